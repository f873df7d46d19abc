/* The GPU that benchmarks run on. */
#include "bench/gpu/gpu.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/measure.h"
#include "bench/pools.h"

int gpu_symbol(void *library, const char *name, void *function, size_t size)
{
    void *found = library != NULL ? dlsym(library, name) : NULL;
    if (found == NULL)
        return 0;
    memcpy(function, &found, size);
    return 1;
}

void gpu_must(const gpu *g, int error, const char *what)
{
    const char *name = NULL;
    if (error == 0)
        return;
    g->driver.cuGetErrorName(error, &name);
    fprintf(stderr, "bench: %s: %s (%d)\n", what, name != NULL ? name : "unknown", error);
    exit(1);
}

int gpu_has_room(const gpu *g, uint64_t bytes)
{
    if (bytes <= g->free_bytes)
        return 1;
    bench_skip("it needs %.1f GiB of device memory, %.1f GiB are free", (double)bytes / (1u << 30),
               (double)g->free_bytes / (1u << 30));
    return 0;
}

bp_device *gpu_device(const gpu *g)
{
    bp_cuda_config config;
    bp_device *device;
    must(bp_cuda_config_init(&config, sizeof config));
    config.driver = g->library_name;
    must(bp_device_create_cuda(&config, &device));
    return device;
}

int gpu_open(gpu *g, const char *library)
{
    bp_cuda_config config;
    bp_device *device;
    int number;
    size_t left, total;
    *g = (gpu){.library_name = library};
    if (bp_cuda_driver_load(library, &g->driver) != BP_OK)
        return 0;
    must(bp_cuda_config_init(&config, sizeof config));
    config.driver = library;
    if (bp_device_create_cuda(&config, &device) != BP_OK)
        return 0;
    g->library = dlopen(library != NULL ? library : "libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    g->info = *bp_cuda_get_info(device);
    gpu_must(g, g->driver.cuDeviceGet(&number, 0), "the first GPU");
    gpu_must(g, g->driver.cuDevicePrimaryCtxRetain(&g->context, number), "its context");
    gpu_must(g, g->driver.cuCtxPushCurrent(g->context), "making the context current");
    gpu_must(g, g->driver.cuMemGetInfo(&left, &total), "asking for memory");
    g->free_bytes = left;
    g->total_bytes = total;
    bp_device_destroy(&device);
    return 1;
}

void gpu_close(const gpu *g)
{
    void *popped;
    gpu_must(g, g->driver.cuCtxPopCurrent(&popped), "popping the context");
    gpu_must(g, g->driver.cuDevicePrimaryCtxRelease(0), "releasing the context");
}
