/* SPDX-License-Identifier: Apache-2.0 */
/* The part of a CUDA 11.8 driver that a program reaches if it needs 12.0: it initializes, but lacks CUDA 12's lookup
 * function. */
#include <stdint.h>

#define OLD_API __attribute__((visibility("default")))

OLD_API int cuInit(unsigned flags);
OLD_API int cuDriverGetVersion(int *version);
OLD_API int cuGetProcAddress(const char *name, void **function, int version, uint64_t flags);

int cuInit(unsigned flags)
{
    return flags == 0 ? 0 : 1;
}

int cuDriverGetVersion(int *version)
{
    *version = 11080;
    return 0;
}

int cuGetProcAddress(const char *name, void **function, int version, uint64_t flags)
{
    (void)name;
    (void)version;
    (void)flags;
    *function = 0;
    return 500;
}
