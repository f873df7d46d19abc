/* Counts allocations of the calling thread, or fails one of them. Programs are linked with shortage.c and -Wl,--wrap
 * for each function there. */
#ifndef BP_TEST_SUPPORT_SHORTAGE_H
#define BP_TEST_SUPPORT_SHORTAGE_H

#include <stdbool.h>

typedef struct allocation_shortage {
    bool counts;
    unsigned long allocations; /* number since counting began */
    unsigned fails;            /* 0: none fails; n: the nth from now on fails */
} allocation_shortage;

extern _Thread_local allocation_shortage shortage;

#endif
