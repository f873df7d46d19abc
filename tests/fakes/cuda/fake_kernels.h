/* Kernels of the emulated driver: FAKE_CUDA="kernels=PATH" names a shared library that exports `const fake_kernel fake_kernels[]`. Whatever
 * image a program loads, these are the kernels that are in it. They run on the thread of their stream, where memory of the device is
 * theirs to touch. */
#ifndef FAKE_KERNELS_H
#define FAKE_KERNELS_H

#include <stddef.h>

typedef struct fake_kernel {
    const char *name;
    size_t argument_bytes; /* kernels take one structure by value */
    void (*run)(const unsigned grid[3], const unsigned block[3], unsigned shared_bytes, const void *argument);
} fake_kernel; /* the list ends with a NULL name */

#endif
