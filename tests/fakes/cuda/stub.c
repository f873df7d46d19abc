/* SPDX-License-Identifier: Apache-2.0 */
/* The toolkit's stub library, which a program loads if LD_LIBRARY_PATH has the stub's folder: every function returns
 * CUDA_ERROR_STUB_LIBRARY. */
#include <stdint.h>

#define STUB_API __attribute__((visibility("default")))
#define STUB_LIBRARY 34

STUB_API int cuInit(unsigned flags);
STUB_API int cuDriverGetVersion(int *version);
STUB_API int cuGetErrorName(int error, const char **name);
STUB_API int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status);

int cuInit(unsigned flags)
{
    (void)flags;
    return STUB_LIBRARY;
}

int cuDriverGetVersion(int *version)
{
    (void)version;
    return STUB_LIBRARY;
}

int cuGetErrorName(int error, const char **name)
{
    (void)error;
    (void)name;
    return STUB_LIBRARY;
}

int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status)
{
    (void)name;
    (void)function;
    (void)version;
    (void)flags;
    (void)status;
    return STUB_LIBRARY;
}
