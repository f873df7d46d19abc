/* What the test of jemalloc asks of each way to have it. */
#ifndef TESTS_PINNED_JEMALLOC_WAYS_H
#define TESTS_PINNED_JEMALLOC_WAYS_H

#include <stdbool.h>

/* The program was linked with it. */
bool is_linked(void);

/* All of it, in this process, where jemalloc has `name` in its own. The exit status. */
int run_inside(const char *name);

#endif
