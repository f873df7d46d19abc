/* Device memory of a test, outside all pools. */
#ifndef BP_TEST_DEVICE_MEMORY_H
#define BP_TEST_DEVICE_MEMORY_H

#include "team.h"

/* NULL: the expectation of the rank failed. */
void *device_allocate(rank *r, size_t bytes);
void device_free(rank *r, void *memory);

#endif
