/* SPDX-License-Identifier: Apache-2.0 */
/* Counts allocations and frees of the program on all threads: link with -Wl,--wrap for each function in allocations.c. Allocations inside
 * shared libraries are not counted. */
#ifndef BP_TESTS_KERNELS_SUPPORT_ALLOCATIONS_H
#define BP_TESTS_KERNELS_SUPPORT_ALLOCATIONS_H

void count_allocations(void);
/* Number of calls since the start of counting. */
unsigned long counted_allocations(void);

#endif
