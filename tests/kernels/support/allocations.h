/* Counts what the program allocates and frees, on all threads: it is linked with -Wl,--wrap for each function in allocations.c. What shared
 * libraries do for themselves is not seen. */
#ifndef BP_TESTS_KERNELS_SUPPORT_ALLOCATIONS_H
#define BP_TESTS_KERNELS_SUPPORT_ALLOCATIONS_H

void count_allocations(void);
/* How many there were since. */
unsigned long counted_allocations(void);

#endif
