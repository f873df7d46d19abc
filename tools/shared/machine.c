/* SPDX-License-Identifier: Apache-2.0 */
/* Available memory (also of control groups, versions 1 and 2), cache size and clock of the machine. */
#include "shared/machine.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define PATH_CHARS 1024
#define FILE_CHARS 16384

/* The number in the line that begins with `word`, else `otherwise`. */
static uint64_t number_in(const char *path, const char *word, uint64_t otherwise)
{
    char text[FILE_CHARS], *rest = text, *line;
    machine_read(path, text, sizeof text);
    while ((line = strsep(&rest, "\n")) != NULL) {
        char *number = strncmp(line, word, strlen(word)) == 0 ? line + strlen(word) : line + strlen(line), *end;
        unsigned long long value = strtoull(number, &end, 10);
        if (end != number)
            return value;
    }
    return otherwise;
}

/* ---- control groups ---------------------------------------------------------------------------------------------- */

typedef struct group_files {
    const char *root, *limit, *used, *cached;
} group_files;

static const group_files version_1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                                      "total_inactive_file "};
static const group_files version_2 = {"/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file "};

static uint64_t number_of_group(const char *folder, const char *file, const char *word, uint64_t otherwise)
{
    char path[2 * PATH_CHARS];
    snprintf(path, sizeof path, "%s/%s", folder, file);
    return number_in(path, word, otherwise);
}

/* Least memory left in a group and its ancestors. A container may show only the outermost group, as the root. */
static uint64_t groups_leave(const group_files *files, const char *path)
{
    char folder[PATH_CHARS];
    uint64_t min = UINT64_MAX;
    snprintf(folder, sizeof folder, "%s%s", files->root, path);
    while (strlen(folder) >= strlen(files->root)) {
        /* Inactive file pages count as used, but can be reclaimed. */
        uint64_t limit = number_of_group(folder, files->limit, "", UINT64_MAX);
        uint64_t used = number_of_group(folder, files->used, "", 0);
        uint64_t cached = number_of_group(folder, "memory.stat", files->cached, 0);
        used -= cached < used ? cached : used;
        uint64_t here = limit > used ? limit - used : 0;

        min = here < min ? here : min;
        *strrchr(folder, '/') = '\0';
    }
    return min;
}

/* A line of /proc/self/cgroup is "number:controllers:path"; version 2 has no controllers. */
static uint64_t line_leaves(char *line)
{
    char *controllers = strchr(line, ':'), *path = controllers != NULL ? strchr(controllers + 1, ':') : NULL;
    if (path == NULL)
        return UINT64_MAX;
    *path++ = '\0';
    if (strcmp(controllers, ":") == 0)
        return groups_leave(&version_2, path);
    return strcmp(controllers, ":memory") == 0 ? groups_leave(&version_1, path) : UINT64_MAX;
}

static uint64_t all_groups_leave(void)
{
    char text[FILE_CHARS], *rest = text, *line;
    uint64_t min = UINT64_MAX;
    machine_read("/proc/self/cgroup", text, sizeof text);
    while ((line = strsep(&rest, "\n")) != NULL) {
        uint64_t here = line_leaves(line);
        min = here < min ? here : min;
    }
    return min;
}

uint64_t machine_available_bytes(void)
{
    uint64_t machine = number_in("/proc/meminfo", "MemAvailable:", 0) << 10, groups = all_groups_leave();
    return machine < groups ? machine : groups;
}

/* ---- the machine ------------------------------------------------------------------------------------------------- */

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

/* The number at the beginning of a one-line file; -1: none. */
static long read_number(long cpu, const char *file)
{
    char path[96], text[32];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%ld/cache/index3/%s", cpu, file);
    return machine_read(path, text, sizeof text) && *text >= '0' && *text <= '9' ? strtol(text, NULL, 10) : -1;
}

uint64_t machine_cache_bytes(void)
{
    const char *told = secure_getenv("BUCKETPOOL_CACHE_BYTES");
    uint64_t bytes = told != NULL ? strtoull(told, NULL, 10) : 0;
    if (bytes > 0)
        return bytes;
    long cpus = sysconf(_SC_NPROCESSORS_CONF);
    for (long cpu = 0; cpu < cpus; cpu++) {
        long kib = read_number(cpu, "size");
        if (kib > 0 && read_number(cpu, "shared_cpu_list") == cpu) /* counts a shared cache once, at its first CPU */
            bytes += (uint64_t)kib << 10;
    }
    return bytes > 0 ? bytes : LIKELY_CACHE_BYTES;
}

double machine_seconds(void)
{
    struct timespec now = {0};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}
