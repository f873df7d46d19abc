/* Allocations of the calling thread, counted, or one of them failing. The program is linked with shortage.c and -Wl,--wrap for each function
 * there. */
#ifndef BP_TEST_SUPPORT_SHORTAGE_H
#define BP_TEST_SUPPORT_SHORTAGE_H

#include <stdbool.h>

typedef struct allocation_shortage {
    bool counts;
    unsigned long allocations; /* while it counts */
    unsigned fails;            /* 0: none, or it has failed; 1: the next one */
} allocation_shortage;

extern _Thread_local allocation_shortage shortage;

#endif
