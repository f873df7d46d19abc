#include "machine.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define LIKELY_CACHE_BYTES (UINT64_C(64) << 20)

bool machine_read(const char *path, char *text, size_t room)
{
    size_t used = 0;
    ssize_t got = -1;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    while (file >= 0 && used + 1 < room && (got = read(file, text + used, room - 1 - used)) > 0)
        used += (size_t)got;
    if (file >= 0)
        close(file);
    text[used] = '\0';
    return file >= 0 && got >= 0;
}

/* The number that a file of one line begins with; -1 where there is none. */
static long read_number(long cpu, const char *file)
{
    char path[96], text[32];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%ld/cache/index3/%s", cpu, file);
    return machine_read(path, text, sizeof text) && *text >= '0' && *text <= '9' ? strtol(text, NULL, 10) : -1;
}

uint64_t machine_cache_bytes(void)
{
    uint64_t bytes = 0;
    long cpus = sysconf(_SC_NPROCESSORS_CONF);
    for (long cpu = 0; cpu < cpus; cpu++) {
        long kib = read_number(cpu, "size");
        if (kib > 0 && read_number(cpu, "shared_cpu_list") == cpu) /* the first of those that share it */
            bytes += (uint64_t)kib << 10;
    }
    return bytes > 0 ? bytes : LIKELY_CACHE_BYTES;
}

double machine_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}
