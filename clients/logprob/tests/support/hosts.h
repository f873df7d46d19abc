/* SPDX-License-Identifier: Apache-2.0 */
/* A host device for all tests of a program. */
#ifndef BP_TESTS_KERNELS_SUPPORT_HOSTS_H
#define BP_TESTS_KERNELS_SUPPORT_HOSTS_H

#include <bucketpool/device.h>

extern bp_device *device;

int open_host(void **state);
int close_host(void **state);

/* Iterates over the kernels of this machine. */
#define FOR_KERNELS(k)                                                                                                 \
    for (const kernels_row *k = KERNELS; k < KERNELS + KERNELS_COUNT; k++)                                             \
        if (has_kernels(device, k))

#endif
