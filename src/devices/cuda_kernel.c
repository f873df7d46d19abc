/* Kernels on the cuda device: modules, what is in them, launches. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "core/fail.h"
#include "core/memory.h"
#include "devices/cuda.h"

struct bp_cuda_kernel {
    const bp_cuda_module *module;
    void *function;
    struct bp_cuda_kernel *next;
    char name[];
};

struct bp_cuda_module {
    bp_device *device;
    const bp_cuda *cuda;
    void *handle;
    pthread_mutex_t lock; /* of the list; not on the path of launches */
    bp_cuda_kernel *kernels;
};

/* ---- modules -------------------------------------------------------------------------------------------------------- */

/* Of images that cannot be loaded, why. */
static bp_status fail_load(const bp_cuda *cuda, int error)
{
    const bp_cuda_info *info = &cuda->info;
    switch (error) {
    case BP_CU_INVALID_IMAGE:
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "bp_cuda_module_create: the image is neither a fatbin nor a cubin nor PTX (%d)", error);
    case BP_CU_NO_BINARY_FOR_GPU:
        return bp_fail(BP_ERR_UNSUPPORTED,
                       "cuda: the kernels were not built for device %d (%s, compute capability %d.%d), nor as PTX that "
                       "would do for it (%d): build them for it",
                       info->ordinal, info->name, info->compute_major, info->compute_minor, error);
    case BP_CU_INVALID_PTX:
    case BP_CU_UNSUPPORTED_PTX_VERSION:
    case BP_CU_JIT_COMPILER_NOT_FOUND:
    case BP_CU_JIT_COMPILATION_DISABLED:
        return bp_fail(BP_ERR_UNSUPPORTED,
                       "cuda: the kernels are there as PTX only for device %d (%s, compute capability %d.%d), and the "
                       "driver, of CUDA %d.%d, does not compile it (%d): build them for this device, or use a newer "
                       "driver",
                       info->ordinal, info->name, info->compute_major, info->compute_minor, info->driver_version / 1000,
                       info->driver_version % 1000 / 10, error);
    default: return bp_cuda_fail(&cuda->driver, error, "loading kernels");
    }
}

bp_status bp_cuda_module_create(bp_device *device, const void *image, bp_cuda_module **module)
{
    const bp_cuda *cuda = device != NULL ? bp_cuda_of(device) : NULL;
    if (cuda == NULL || image == NULL || module == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_cuda_module_create: needs a cuda device, an image and an output");
    BP_TRY(bp_device_check(device, "bp_cuda_module_create"));
    void *memory;
    BP_TRY(bp_new_array(1, sizeof(bp_cuda_module), &memory));
    bp_cuda_module *made = memory;
    bp_status status = bp_cuda_push(cuda);
    if (status == BP_OK) {
        int error = cuda->driver.cuModuleLoadData(&made->handle, image);
        bp_cuda_pop(cuda);
        status = error == BP_CU_SUCCESS ? BP_OK : fail_load(cuda, error);
    }
    if (status != BP_OK) {
        free(made);
        return status;
    }
    made->device = device;
    made->cuda = cuda;
    pthread_mutex_init(&made->lock, NULL); /* cannot fail for a plain mutex */
    bp_device_retain(device);
    *module = made;
    return BP_OK;
}

void bp_cuda_module_destroy(bp_cuda_module **module)
{
    if (module == NULL || *module == NULL)
        return;
    bp_cuda_module *gone = *module;
    *module = NULL;
    if (!bp_device_is_here(gone->device))
        return;
    if (bp_cuda_push(gone->cuda) == BP_OK) {
        (void)gone->cuda->driver.cuModuleUnload(gone->handle);
        bp_cuda_pop(gone->cuda);
    }
    while (gone->kernels != NULL) {
        bp_cuda_kernel *kernel = gone->kernels;
        gone->kernels = kernel->next;
        free(kernel);
    }
    pthread_mutex_destroy(&gone->lock);
    bp_device_release(gone->device);
    free(gone);
}

/* ---- kernels -------------------------------------------------------------------------------------------------------- */

static bp_status cuda_kernel_add(bp_cuda_module *module, const char *name, bp_cuda_kernel **kernel)
{
    const bp_cuda *cuda = module->cuda;
    void *memory, *function = NULL;
    BP_TRY(bp_cuda_push(cuda));
    int error = cuda->driver.cuModuleGetFunction(&function, module->handle, name);
    if (error == BP_CU_SUCCESS &&
        cuda->driver.cuFuncLoad != NULL) /* from CUDA 12.4 on: else maybe loaded at the launch */
        error = cuda->driver.cuFuncLoad(function);
    bp_cuda_pop(cuda);
    if (error == BP_CU_NOT_FOUND)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_cuda_module_kernel: the image has no kernel \"%s\"", name);
    BP_TRY(bp_cuda_check(cuda, error, "loading a kernel"));
    const size_t bytes = strlen(name) + 1;
    BP_TRY(bp_new_array(1, sizeof(bp_cuda_kernel) + bytes, &memory));
    bp_cuda_kernel *added = memory;
    added->module = module;
    added->function = function;
    memcpy(added->name, name, bytes);
    added->next = module->kernels;
    module->kernels = added;
    *kernel = added;
    return BP_OK;
}

bp_status bp_cuda_module_kernel(bp_cuda_module *module, const char *name, bp_cuda_kernel **kernel)
{
    if (module == NULL || name == NULL || kernel == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_cuda_module_kernel: needs a module, a name and an output");
    BP_TRY(bp_device_check(module->device, "bp_cuda_module_kernel"));
    bp_status status = BP_OK;
    pthread_mutex_lock(&module->lock);
    bp_cuda_kernel *known = module->kernels;
    while (known != NULL && strcmp(known->name, name) != 0)
        known = known->next;
    if (known == NULL)
        status = cuda_kernel_add(module, name, &known);
    pthread_mutex_unlock(&module->lock);
    if (status == BP_OK)
        *kernel = known;
    return status;
}

/* ---- launches ------------------------------------------------------------------------------------------------------- */

static int launch(const bp_cuda_kernel *kernel, const bp_cuda_grid *grid, void **arguments, void *stream)
{
    const uint32_t *blocks = grid->blocks, *threads = grid->threads;
    return kernel->module->cuda->driver.cuLaunchKernel(kernel->function, blocks[0], blocks[1], blocks[2], threads[0],
                                                       threads[1], threads[2], grid->shared_bytes, stream, arguments,
                                                       NULL);
}

/* As events: stream and kernel know their context. Where the thread has none, or one that the driver does not launch them from, theirs
 * is made current. */
bp_status bp_cuda_launch(const bp_cuda_kernel *kernel, const bp_cuda_grid *grid, void **arguments, bp_stream *stream)
{
    if (kernel == NULL || grid == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_cuda_launch: needs a kernel and a grid");
    BP_TRY(bp_stream_check(stream, stream != NULL ? stream->device : NULL, "bp_cuda_launch"));
    const bp_cuda *cuda = kernel->module->cuda;
    const uint32_t *blocks = grid->blocks, *threads = grid->threads;
    if (bp_cuda_of(stream->device) != cuda)
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "bp_cuda_launch: kernel %s is of GPU %d, stream %s of another device (%s)", kernel->name,
                       cuda->info.ordinal, stream->name, bp_device_name(stream->device));
    for (int i = 0; i < 3; i++) {
        if (blocks[i] == 0 || threads[i] == 0)
            return bp_fail(BP_ERR_INVALID_ARGUMENT,
                           "bp_cuda_launch: kernel %s: %u x %u x %u blocks of %u x %u x %u threads are none",
                           kernel->name, blocks[0], blocks[1], blocks[2], threads[0], threads[1], threads[2]);
    }

    const bp_cuda_stream *s = stream->raw; /* of decorated devices too: they hand it through */
    int error = s->legacy ? BP_CU_INVALID_CONTEXT : launch(kernel, grid, arguments, s->handle);
    if (error == BP_CU_INVALID_CONTEXT || error == BP_CU_INVALID_HANDLE) {
        BP_TRY(bp_cuda_push(cuda));
        error = launch(kernel, grid, arguments, s->handle);
        bp_cuda_pop(cuda);
    }
    if (error == BP_CU_SUCCESS)
        return BP_OK;
    char what[256];
    (void)snprintf(
        what, sizeof what, "launching kernel %.64s, %u x %u x %u blocks of %u x %u x %u threads with %u shared bytes",
        kernel->name, blocks[0], blocks[1], blocks[2], threads[0], threads[1], threads[2], grid->shared_bytes);
    return bp_cuda_fail(&cuda->driver, error, what);
}
