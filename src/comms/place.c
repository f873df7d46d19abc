/* Where a rank runs: numbers that are equal for ranks of one host, and of one process. */
#include "comms/agreement.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

/* FNV-1a. */
static uint64_t hash(const char *text)
{
    uint64_t so_far = UINT64_C(14695981039346656037);
    for (; *text != '\0'; text++)
        so_far = (so_far ^ (uint8_t)*text) * UINT64_C(1099511628211);
    return so_far;
}

void bp_proposal_place(bp_proposal *proposal)
{
    char host[256] = "", process[64];
    struct stat space = {0};
    (void)gethostname(host, sizeof host - 1);
    /* containers of one host may give the same number to different processes */
    (void)stat("/proc/self/ns/pid", &space);
    snprintf(process, sizeof process, "%ld of %llu", (long)getpid(), (unsigned long long)space.st_ino);
    proposal->host = hash(host);
    proposal->process = hash(process);
}
