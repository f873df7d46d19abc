/* SPDX-License-Identifier: Apache-2.0 */
#include "driver.h"

#include <dlfcn.h>
#include <string.h>

#include "try.h"

#define PATH "libcuda.so.1"

static bp_status find(const driver *d, const char *name, void *function)
{
    *(void **)function = dlsym(d->library, name);
    return *(void **)function != NULL ? BP_OK : fail(BP_ERR_DEVICE, "the CUDA driver has no %s", name);
}

static bp_status check(const driver *d, int result, const char *call)
{
    int (*get_name)(int, const char **);
    const char *name = "unknown";
    if (result == 0)
        return BP_OK;
    if (find(d, "cuGetErrorName", &get_name) == BP_OK)
        (void)get_name(result, &name);
    return fail(BP_ERR_DEVICE, "%s: %s (%d)", call, name != NULL ? name : "unknown", result);
}

/* ---- the context ---------------------------------------------------------------------------------------------------- */

bp_status driver_init(driver *d, int ordinal)
{
    int (*get_device)(int *, int), (*retain)(void **, int), (*push)(void *);
    *d = (driver){.library = dlopen(PATH, RTLD_NOW | RTLD_LOCAL)};
    if (d->library == NULL)
        return fail(BP_ERR_NO_DEVICE, "no CUDA driver: %s", dlerror());
    TRY(find(d, "cuDeviceGet", &get_device));
    TRY(find(d, "cuDevicePrimaryCtxRetain", &retain));
    TRY(find(d, "cuCtxPushCurrent_v2", &push));
    TRY(find(d, "cuLaunchKernel", &d->launch));
    TRY(check(d, get_device(&d->device, ordinal), "cuDeviceGet"));
    TRY(check(d, retain(&d->context, d->device), "cuDevicePrimaryCtxRetain"));
    return check(d, push(d->context), "cuCtxPushCurrent");
}

void driver_finish(driver *d)
{
    int (*unload)(void *), (*pop)(void **), (*release)(int);
    void *popped;
    if (d->module != NULL && find(d, "cuModuleUnload", &unload) == BP_OK)
        (void)unload(d->module);
    if (d->context != NULL && find(d, "cuCtxPopCurrent_v2", &pop) == BP_OK)
        (void)pop(&popped);
    if (d->context != NULL && find(d, "cuDevicePrimaryCtxRelease_v2", &release) == BP_OK)
        (void)release(d->device);
    if (d->library != NULL)
        (void)dlclose(d->library);
    *d = (driver){0};
}

/* ---- kernels -------------------------------------------------------------------------------------------------------- */

bp_status driver_load(driver *d, const void *image, const char *const *names, size_t count, void **kernels)
{
    int (*load)(void **, const void *), (*get_function)(void **, void *, const char *), (*load_function)(void *);
    TRY(find(d, "cuModuleLoadData", &load));
    TRY(find(d, "cuModuleGetFunction", &get_function));
    if (find(d, "cuFuncLoad", &load_function) != BP_OK)
        load_function = NULL; /* before CUDA 12.4, which loads what it looks up */
    TRY(check(d, load(&d->module, image), "cuModuleLoadData"));
    for (size_t i = 0; i < count; i++) {
        TRY(check(d, get_function(&kernels[i], d->module, names[i]), names[i]));
        if (load_function != NULL)
            TRY(check(d, load_function(kernels[i]), names[i]));
    }
    return BP_OK;
}

bp_status driver_launch(const driver *d, void *kernel, uint32_t blocks, uint32_t threads, void **arguments,
                        const bp_stream *stream)
{
    uint64_t native;
    void *handle; /* the same bits */
    TRY(bp_stream_native(stream, &native));
    memcpy(&handle, &native, sizeof handle);
    return check(d, d->launch(kernel, blocks, 1, 1, threads, 1, 1, 0, handle, arguments, NULL), "cuLaunchKernel");
}
