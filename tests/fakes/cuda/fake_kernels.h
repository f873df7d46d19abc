/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of the emulated driver: FAKE_CUDA="kernels=PATH" names a shared library that exports `const fake_kernel
 * fake_kernels[]`. Every image that a program loads contains these kernels. They run on the thread of their stream,
 * which can access device memory. */
#ifndef FAKE_KERNELS_H
#define FAKE_KERNELS_H

#include <stddef.h>

typedef struct fake_kernel {
    const char *name;
    size_t argument_bytes; /* of the kernel's one parameter, a structure by value */
    void (*run)(const unsigned grid[3], const unsigned block[3], unsigned shared_bytes, const void *argument);
} fake_kernel; /* the list ends with a NULL name */

#endif
