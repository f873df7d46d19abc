/* SPDX-License-Identifier: Apache-2.0 */
/* Device memory of a test, allocated outside all pools. */
#ifndef BP_TEST_DEVICE_MEMORY_H
#define BP_TEST_DEVICE_MEMORY_H

#include "team.h"

/* NULL: the allocation failed, and an expectation of the rank with it. */
void *device_allocate(rank *r, size_t bytes);
void device_free(rank *r, void *memory);

#endif
