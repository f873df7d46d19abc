/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of the jemalloc test for each way to get jemalloc. */
#ifndef TESTS_PINNED_JEMALLOC_WAYS_H
#define TESTS_PINNED_JEMALLOC_WAYS_H

#include <stdbool.h>

/* The program was linked with it. */
bool is_linked(void);

/* Runs all checks in this process; jemalloc's name must contain `name`. Returns the exit status. */
int run_inside(const char *name);

#endif
