/* Counts what must not happen on the hot path: the program is linked with -Wl,--wrap for each function in interpose.c. */
#ifndef BP_TEST_CONTRACT_INTERPOSE_H
#define BP_TEST_CONTRACT_INTERPOSE_H

#include <stddef.h>

/* From here on, calls of this thread are counted; the thread is the caller's own. */
void watch(void);

typedef struct watched {
    size_t allocations; /* malloc and its like, free, mmap and its like */
    size_t locks;       /* mutexes, read-write locks, conditions, semaphores, sleeping */
    const char *last;   /* "" or the last of them */
} watched;

watched unwatch(void);

#endif
