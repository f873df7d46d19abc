/* SPDX-License-Identifier: Apache-2.0 */
/* Replaces the engine of host devices (-Wl,--wrap) by the one of cuda devices, whose kernels the emulation runs on the stream's thread. It
 * turns tests of the host kernels into tests of the CUDA kernels, which replace the plain ones. */
#include "engine.h"

#include <stdlib.h>
#include <string.h>

#include <bucketpool/core/fail.h>
#include <bucketpool/kernels.h>
#include <bucketpool/logprob.h>

#include "cuda/cuda.h"
#include "kernels.h"

const uint64_t bp_cuda_image[] = {0};

bp_status __wrap_bp_engine_create_host(uint32_t threads, uint32_t kernels, uint64_t columns, bp_engine **engine);
const bp_cuda_info *__wrap_bp_cuda_get_info(const bp_device *device);
const bp_cuda_info *__real_bp_cuda_get_info(const bp_device *device);
uint32_t __wrap_bp_cuda_multiprocessors(const bp_device *device);
bp_status __wrap_bp_cuda_module_create(bp_device *device, const void *image, bp_cuda_module **module);
void __wrap_bp_cuda_module_destroy(bp_cuda_module **module);
bp_status __wrap_bp_cuda_module_kernel(bp_cuda_module *module, const char *name, bp_cuda_kernel **kernel);
bp_status __wrap_bp_cuda_kernel_allow_shared(const bp_cuda_kernel *kernel, uint32_t *bytes);
bp_status __wrap_bp_cuda_launch(const bp_cuda_kernel *kernel, const bp_cuda_grid *grid, void **arguments,
                                bp_stream *stream);

bp_status __wrap_bp_engine_create_host(uint32_t threads, uint32_t kernels, uint64_t columns, bp_engine **engine)
{
    (void)threads, (void)columns;
    BP_TRY(bp_engine_create_cuda(NULL, engine));
    (*engine)->kernels = kernels == BP_KERNELS_PLAIN ? "plain" : "none";
    return BP_OK;
}

const bp_cuda_info *__wrap_bp_cuda_get_info(const bp_device *device)
{
    static const bp_cuda_info of_engine = {.compute_major = 9};
    return device != NULL ? __real_bp_cuda_get_info(device) : &of_engine;
}

uint32_t __wrap_bp_cuda_multiprocessors(const bp_device *device)
{
    (void)device;
    return 132;
}

bp_status __wrap_bp_cuda_module_create(bp_device *device, const void *image, bp_cuda_module **module)
{
    (void)device;
    *module = image == bp_cuda_image ? (bp_cuda_module *)fake_kernels : NULL;
    return BP_OK;
}

void __wrap_bp_cuda_module_destroy(bp_cuda_module **module)
{
    *module = NULL;
}

bp_status __wrap_bp_cuda_module_kernel(bp_cuda_module *module, const char *name, bp_cuda_kernel **kernel)
{
    for (const fake_kernel *k = (const fake_kernel *)module; k->name != NULL; k++)
        if (strcmp(k->name, name) == 0) {
            *kernel = (bp_cuda_kernel *)k;
            return BP_OK;
        }
    return bp_fail(BP_ERR_INVALID_ARGUMENT, "unknown kernel %s", name);
}

/* Less than a GPU, so that test rows do not fit as a whole. */
bp_status __wrap_bp_cuda_kernel_allow_shared(const bp_cuda_kernel *kernel, uint32_t *bytes)
{
    (void)kernel;
    *bytes = 36u << 10;
    return BP_OK;
}

typedef struct launch {
    const fake_kernel *kernel;
    bp_cuda_grid grid;
    _Alignas(16) char argument[];
} launch;

static void run(void *user)
{
    launch *l = user;
    l->kernel->run(l->grid.blocks, l->grid.threads, l->grid.shared_bytes, l->argument);
    free(l);
}

bp_status __wrap_bp_cuda_launch(const bp_cuda_kernel *kernel, const bp_cuda_grid *grid, void **arguments,
                                bp_stream *stream)
{
    const fake_kernel *k = (const fake_kernel *)kernel;
    launch *l = malloc(sizeof *l + k->argument_bytes);
    if (l == NULL)
        return bp_fail_memory(sizeof *l + k->argument_bytes);
    l->kernel = k;
    l->grid = *grid;
    memcpy(l->argument, arguments[0], k->argument_bytes);
    bp_status status = bp_stream_call(stream, run, l);
    if (status != BP_OK)
        free(l);
    return status;
}
