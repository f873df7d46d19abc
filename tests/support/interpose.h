/* SPDX-License-Identifier: Apache-2.0 */
/* Counts calls that are forbidden on the hot path: the program is linked with -Wl,--wrap for each function in interpose.c. */
#ifndef BP_TEST_CONTRACT_INTERPOSE_H
#define BP_TEST_CONTRACT_INTERPOSE_H

#include <stddef.h>

/* Counts calls of this thread from here on. */
void watch(void);

typedef struct watched {
    size_t allocations; /* malloc, free, mmap and related functions */
    size_t locks;       /* mutexes, read-write locks, conditions, semaphores, sleeping */
    const char *last;   /* "" or the last of them */
} watched;

watched unwatch(void);

#endif
