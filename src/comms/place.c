/* Where a rank runs: numbers that are equal for ranks of one host, and of one process. */
#include "comms/agreement.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* FNV-1a. */
static uint64_t hash(uint64_t so_far, const void *bytes, size_t count)
{
    for (const uint8_t *at = bytes, *end = at + count; at < end; at++)
        so_far = (so_far ^ *at) * UINT64_C(1099511628211);
    return so_far;
}

void bp_proposal_place(bp_proposal *proposal)
{
    const uint64_t start = UINT64_C(14695981039346656037);
    char name[256] = "";
    struct stat space;
    uint64_t process[2] = {(uint64_t)getpid(), 0};
    (void)gethostname(name, sizeof name - 1);
    /* containers of one host may give the same number to different processes */
    if (stat("/proc/self/ns/pid", &space) == 0)
        process[1] = (uint64_t)space.st_ino;
    proposal->host = hash(start, name, strlen(name));
    proposal->process = hash(start, process, sizeof process);
}
