#include "pinned/huge.h"

#include <stdbool.h>
#include <stdio.h>

/* The list of mappings, in which each has its figures behind it. */
uint64_t bp_huge_bytes(const uint8_t *address, uint64_t bytes)
{
    FILE *file = fopen("/proc/self/smaps", "re");
    if (file == NULL)
        return 0;
    const unsigned long long first = (uintptr_t)address, end = first + bytes;
    unsigned long long from, to, kib, huge = 0;
    bool ours = false, behind = false;
    char line[512];
    while (!behind && fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, "%llx-%llx ", &from, &to) == 2) {
            ours = from >= first && to <= end;
            behind = from >= end;
        } else if (ours && sscanf(line, "AnonHugePages: %llu kB", &kib) == 1) {
            huge += kib * 1024;
        }
    }
    fclose(file);
    return huge;
}
