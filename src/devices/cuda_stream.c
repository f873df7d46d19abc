/* SPDX-License-Identifier: Apache-2.0 */
/* Streams of the cuda device and their work: functions, copies, events, graphs, kernels. */
#include <bucketpool/core/fail.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "devices/cuda.h"
#include "devices/cuda_image.h"

#define NON_BLOCKING 1u /* does not wait for the default stream */

/* ---- creation and destruction --------------------------------------------------------------------------------------- */

static bp_status cuda_stream_make(void *handle, bool owned, bool legacy, void **stream)
{
    void *memory;
    BP_TRY(bp_new_array(1, sizeof(bp_cuda_stream), &memory));
    bp_cuda_stream *made = memory;
    *made = (bp_cuda_stream){.handle = handle, .owned = owned, .legacy = legacy};
    *stream = made;
    return BP_OK;
}

bp_status bp_cuda_stream_create(void *self, void **stream)
{
    bp_cuda *cuda = self;
    pthread_mutex_lock(&cuda->lock);
    bp_cuda_stream *idle = cuda->idle_streams;
    if (idle != NULL)
        cuda->idle_streams = idle->next;
    pthread_mutex_unlock(&cuda->lock);
    if (idle != NULL) {
        *stream = idle;
        return BP_OK;
    }
    void *made;
    BP_TRY(cuda_stream_make(NULL, true, false, &made));
    bp_status status = bp_cuda_push(cuda);
    if (status == BP_OK) {
        int error = cuda->driver.cuStreamCreate(&((bp_cuda_stream *)made)->handle, NON_BLOCKING);
        bp_cuda_pop(cuda);
        status = bp_cuda_check(cuda, error, "cuStreamCreate", "a stream could not be made");
    }
    if (status != BP_OK) {
        free(made);
        return status;
    }
    *stream = made;
    return BP_OK;
}

bp_status bp_cuda_stream_import(void *self, uint64_t native, void **stream)
{
    bp_cuda *cuda = self;
    const bool legacy = native <= BP_CU_STREAM_LEGACY;
    if (native == BP_CU_STREAM_PER_THREAD)
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "cuda: the per-thread default stream differs between threads; pass a created stream");
    /* NOLINTNEXTLINE(performance-no-int-to-ptr): that is what it was */
    void *handle = (void *)(uintptr_t)(legacy ? BP_CU_STREAM_LEGACY : native), *context = NULL;
    if (!legacy) {
        BP_TRY(bp_cuda_push(cuda));
        int error = cuda->driver.cuStreamGetCtx(handle, &context);
        BP_TRY(bp_cuda_pop_check(cuda, error, "cuStreamGetCtx", "querying the context of a stream"));
        if (context != cuda->context)
            return bp_fail(
                BP_ERR_INVALID_ARGUMENT,
                "cuda: stream 0x%llx is of another device or context than device %d (%s); make it while this "
                "context is current",
                (unsigned long long)native, cuda->config.ordinal, cuda->info.name);
    }
    return cuda_stream_make(handle, false, legacy, stream);
}

bp_status bp_cuda_stream_native(void *self, void *stream, uint64_t *native)
{
    (void)self;
    *native = (uintptr_t)((const bp_cuda_stream *)stream)->handle;
    return BP_OK;
}

static void keep(bp_cuda *cuda, bp_cuda_stream **list, bp_cuda_stream *stream)
{
    pthread_mutex_lock(&cuda->lock);
    stream->next = *list;
    *list = stream;
    pthread_mutex_unlock(&cuda->lock);
}

/* The stream is kept for reuse. If the driver refuses to synchronise, it may still have work and pools record points on it: then it lives
 * as long as the device. */
bp_status bp_cuda_stream_destroy(void *self, void *stream)
{
    bp_cuda *cuda = self;
    bp_cuda_stream *s = stream;
    bp_status status = bp_cuda_stream_synchronize(cuda, s);
    if (status != BP_OK)
        keep(cuda, &cuda->stuck_streams, s);
    else if (s->owned)
        keep(cuda, &cuda->idle_streams, s);
    else
        free(s);
    return status;
}

static void end_streams(const bp_cuda *cuda, bp_cuda_stream *s, bool entered)
{
    while (s != NULL) {
        bp_cuda_stream *next = s->next;
        if (entered && s->owned)
            (void)cuda->driver.cuStreamDestroy(s->handle);
        free(s);
        s = next;
    }
}

void bp_cuda_streams_finish(bp_cuda *cuda)
{
    const bool entered = bp_cuda_push(cuda) == BP_OK;
    end_streams(cuda, cuda->idle_streams, entered);
    end_streams(cuda, cuda->stuck_streams, entered);
    if (entered)
        bp_cuda_pop(cuda);
}

/* ---- waiting -------------------------------------------------------------------------------------------------------- */

bp_status bp_cuda_stream_synchronize(void *self, void *stream)
{
    bp_cuda *cuda = self;
    BP_TRY(bp_cuda_push(cuda));
    int error = cuda->driver.cuStreamSynchronize(((bp_cuda_stream *)stream)->handle);
    return bp_cuda_pop_check(cuda, error, "cuStreamSynchronize", "waiting for a stream");
}

bp_status bp_cuda_synchronize(void *self)
{
    bp_cuda *cuda = self;
    BP_TRY(bp_cuda_push(cuda));
    int error = cuda->driver.cuCtxSynchronize();
    return bp_cuda_pop_check(cuda, error, "cuCtxSynchronize", "waiting for the device");
}

/* ---- work ----------------------------------------------------------------------------------------------------------- */

bp_status bp_cuda_call(void *self, void *stream, bp_host_function *function, void *argument)
{
    bp_cuda *cuda = self;
    BP_TRY(bp_cuda_push(cuda));
    int error = cuda->driver.cuLaunchHostFunc(((bp_cuda_stream *)stream)->handle, function, argument);
    return bp_cuda_pop_check(cuda, error, "cuLaunchHostFunc", "a function on a stream");
}

bp_status bp_cuda_fill(void *self, void *stream, void *address, uint8_t value, uint64_t bytes)
{
    bp_cuda *cuda = self;
    BP_TRY(bp_cuda_push(cuda));
    int error =
        cuda->driver.cuMemsetD8Async((uintptr_t)address, value, (size_t)bytes, ((bp_cuda_stream *)stream)->handle);
    return bp_cuda_pop_check(cuda, error, "cuMemsetD8Async", "filling memory");
}

bp_status bp_cuda_copy(void *self, void *stream, void *to, const void *from, uint64_t bytes)
{
    bp_cuda *cuda = self;
    BP_TRY(bp_cuda_push(cuda));
    int error =
        cuda->driver.cuMemcpyAsync((uintptr_t)to, (uintptr_t)from, (size_t)bytes, ((bp_cuda_stream *)stream)->handle);
    return bp_cuda_pop_check(cuda, error, "cuMemcpyAsync", "copying memory");
}

/* ---- events ------------------------------------------------------------------------------------------------------ */

/* The driver's events. On the path of acquire and release: one driver call each, except on errors. */

#define WITHOUT_TIMES 2u

bp_status bp_cuda_event_create(void *self, void **event)
{
    bp_cuda *cuda = self;
    void *created;
    BP_TRY(bp_cuda_push(cuda));
    int error = cuda->driver.cuEventCreate(&created, WITHOUT_TIMES);
    BP_TRY(bp_cuda_pop_check(cuda, error, "cuEventCreate", "an event could not be made"));
    *event = created;
    return BP_OK;
}

bp_status bp_cuda_event_destroy(void *self, void *event)
{
    bp_cuda *cuda = self;
    BP_TRY(bp_cuda_push(cuda));
    int error = cuda->driver.cuEventDestroy(event);
    return bp_cuda_pop_check(cuda, error, "cuEventDestroy", "an event could not be destroyed");
}

/* Streams and events know their context, so that it need not be current. Exceptions: the default stream, and threads without any context. */
bp_status bp_cuda_event_record(void *self, void *event, void *stream)
{
    bp_cuda *cuda = self;
    const bp_cuda_stream *s = stream;
    int error = s->legacy ? BP_CU_INVALID_CONTEXT : cuda->driver.cuEventRecord(event, s->handle);
    if (error == BP_CU_INVALID_CONTEXT) {
        BP_TRY(bp_cuda_push(cuda));
        error = cuda->driver.cuEventRecord(event, s->handle);
        bp_cuda_pop(cuda);
    }
    return bp_cuda_check(cuda, error, "cuEventRecord", "recording an event");
}

bp_status bp_cuda_stream_wait(void *self, void *stream, void *event)
{
    bp_cuda *cuda = self;
    const bp_cuda_stream *s = stream;
    int error = s->legacy ? BP_CU_INVALID_CONTEXT : cuda->driver.cuStreamWaitEvent(s->handle, event, 0);
    if (error == BP_CU_INVALID_CONTEXT) {
        BP_TRY(bp_cuda_push(cuda));
        error = cuda->driver.cuStreamWaitEvent(s->handle, event, 0);
        bp_cuda_pop(cuda);
    }
    /* Handles and flags are valid; driver 580.159 answers so to an event of a capture that has ended. */
    if (error == BP_CU_INVALID_VALUE)
        return bp_fail(BP_ERR_CAPTURE, "cuda: cuStreamWaitEvent: a stream's wait for an event that was recorded inside "
                                       "a capture, which has ended; declare captures "
                                       "(bp_capture_begin, bp_capture_end) (CUDA_ERROR_INVALID_VALUE, 1)");
    return bp_cuda_check(cuda, error, "cuStreamWaitEvent", "a stream's wait for an event");
}

bp_status bp_cuda_event_synchronize(void *self, void *event)
{
    bp_cuda *cuda = self;
    BP_TRY(bp_cuda_push(cuda));
    int error = cuda->driver.cuEventSynchronize(event);
    return bp_cuda_pop_check(cuda, error, "cuEventSynchronize", "waiting for an event");
}

/* ---- graphs ------------------------------------------------------------------------------------------------------ */

#define THREAD_LOCAL 1 /* other threads may allocate meanwhile */
#define ACTIVE 1
#define INVALIDATED 2

bp_status bp_cuda_capture_of(void *self, void *stream, uint64_t *capture)
{
    bp_cuda *cuda = self;
    const bp_cuda_stream *s = stream;
    int status = 0;
    uint64_t id = 0;
    BP_TRY(bp_cuda_push(cuda));
    int error = cuda->driver.cuStreamGetCaptureInfo(s->handle, &status, &id, NULL, NULL, NULL);
    bp_cuda_pop(cuda);
    if (error == BP_CU_SUCCESS && status == INVALIDATED)
        error = BP_CU_CAPTURE_INVALIDATED;
    if (error != BP_CU_SUCCESS)
        return bp_cuda_fail(&cuda->driver, error, "cuStreamGetCaptureInfo", "querying the capture state of a stream");
    *capture = status != ACTIVE ? 0 : id != 0 ? id : UINT64_MAX;
    return BP_OK;
}

bp_status bp_cuda_graph_begin(void *self, void *stream)
{
    bp_cuda *cuda = self;
    const bp_cuda_stream *s = stream;
    if (s->legacy)
        return bp_fail(BP_ERR_CAPTURE, "cuda: the default stream cannot be captured; capture with a created stream");
    BP_TRY(bp_cuda_push(cuda));
    int error = cuda->driver.cuStreamBeginCapture(s->handle, THREAD_LOCAL);
    return bp_cuda_pop_check(cuda, error, "cuStreamBeginCapture", "beginning to capture a graph");
}

/* Keeps the executable graph; the captured graph is destroyed. */
bp_status bp_cuda_graph_end(void *self, void *stream, void **graph)
{
    bp_cuda *cuda = self;
    const bp_cuda_stream *s = stream;
    void *captured = NULL, *executable;
    BP_TRY(bp_cuda_push(cuda));
    const char *function = "cuStreamEndCapture", *what = "ending the capture of a graph";
    int error = cuda->driver.cuStreamEndCapture(s->handle, &captured);
    if (error == BP_CU_SUCCESS) {
        function = "cuGraphInstantiate";
        what = "making a captured graph executable";
        error = cuda->driver.cuGraphInstantiate(&executable, captured, 0);
    }
    if (captured != NULL)
        (void)cuda->driver.cuGraphDestroy(captured);
    bp_cuda_pop(cuda);
    if (error != BP_CU_SUCCESS)
        return bp_cuda_fail(&cuda->driver, error, function, what);
    *graph = executable;
    return BP_OK;
}

bp_status bp_cuda_graph_launch(void *self, void *graph, void *stream)
{
    bp_cuda *cuda = self;
    const bp_cuda_stream *s = stream;
    BP_TRY(bp_cuda_push(cuda));
    int error = cuda->driver.cuGraphLaunch(graph, s->handle);
    return bp_cuda_pop_check(cuda, error, "cuGraphLaunch", "launching a graph");
}

bp_status bp_cuda_graph_destroy(void *self, void *graph)
{
    bp_cuda *cuda = self;
    BP_TRY(bp_cuda_push(cuda));
    int error = cuda->driver.cuGraphExecDestroy(graph);
    return bp_cuda_pop_check(cuda, error, "cuGraphExecDestroy", "a graph could not be destroyed");
}

/* ---- kernels -------------------------------------------------------------------------------------------------------- */

struct bp_cuda_kernel {
    const bp_cuda_module *module;
    void *function;
    struct bp_cuda_kernel *next;
    char name[];
};

struct bp_cuda_module {
    bp_device *device;
    bp_cuda *cuda;
    const void *image; /* identifies it */
    size_t references; /* protected, like the list of modules, by the device's lock */
    bp_cuda_module *next;
    void *handle;
    pthread_mutex_t lock; /* protects the list; not on the path of launches */
    bp_cuda_kernel *kernels;
};

/* The branch of drivers that a version of CUDA came with: CUDA release notes. 0: not known. */
static int branch_of(int version)
{
    static const int of_12[] = {525, 530, 535, 545, 550, 555, 560, 565, 570, 575}, of_13[] = {580, 590};
    const unsigned major = (unsigned)version / 1000, minor = (unsigned)version % 1000 / 10;
    if (major == 12 && minor < sizeof of_12 / sizeof *of_12)
        return of_12[minor];
    return major == 13 && minor < sizeof of_13 / sizeof *of_13 ? of_13[minor] : 0;
}

static bp_status fail_old_driver(const bp_cuda_info *info, const bp_cuda_code *code, int error)
{
    const int version = info->driver_version;
    char branch[16] = "";
    if (branch_of(code->driver) != 0)
        (void)snprintf(branch, sizeof branch, " (%d)", branch_of(code->driver));
    return bp_fail(
        BP_ERR_UNSUPPORTED,
        "cuda: the image's %s for device %d (%s, compute capability %d.%d) needs a driver of CUDA %d.%d%s or "
        "later, and this one is of CUDA %d.%d (%d); update the driver, or compile the kernels for drivers of "
        "CUDA %d.%d",
        code->is_ptx ? "PTX" : "code", info->ordinal, info->name, info->compute_major, info->compute_minor,
        code->driver / 1000, code->driver % 1000 / 10, branch, version / 1000, version % 1000 / 10, error,
        version / 1000, version % 1000 / 10);
}

/* Error of an image that cannot be loaded, with the reason. */
static bp_status fail_load(const bp_cuda *cuda, const void *image, int error)
{
    const bp_cuda_info *info = &cuda->info;
    bp_cuda_code code = {0};
    const bool is_old = bp_cuda_image_find(image, info->compute_major, info->compute_minor, &code) &&
                        code.driver > info->driver_version;
    switch (error) {
    case BP_CU_INVALID_IMAGE: /* of a cubin of a newer driver, too */
        if (!bp_cuda_is_image(image))
            return bp_fail(BP_ERR_INVALID_ARGUMENT,
                           "bp_cuda_module_create: the image is neither a fatbin nor a cubin nor PTX (%d)", error);
        if (is_old)
            return fail_old_driver(info, &code, error);
        return bp_cuda_fail(&cuda->driver, error, "cuModuleLoadData", "loading kernels");
    case BP_CU_NO_BINARY_FOR_GPU:
        if (is_old)
            return fail_old_driver(info, &code, error);
        return bp_fail(BP_ERR_UNSUPPORTED,
                       "cuda: the image has no code for device %d (%s, compute capability %d.%d), nor PTX that can be "
                       "compiled for it (%d); build the kernels for it",
                       info->ordinal, info->name, info->compute_major, info->compute_minor, error);
    case BP_CU_INVALID_PTX:
    case BP_CU_UNSUPPORTED_PTX_VERSION:
    case BP_CU_JIT_COMPILER_NOT_FOUND:
    case BP_CU_JIT_COMPILATION_DISABLED:
        if (is_old)
            return fail_old_driver(info, &code, error);
        return bp_fail(BP_ERR_UNSUPPORTED,
                       "cuda: the image has only PTX for device %d (%s, compute capability %d.%d), and the "
                       "driver, of CUDA %d.%d, does not compile it (%d); build for this device, or use a newer "
                       "driver",
                       info->ordinal, info->name, info->compute_major, info->compute_minor, info->driver_version / 1000,
                       info->driver_version % 1000 / 10, error);
    default: return bp_cuda_fail(&cuda->driver, error, "cuModuleLoadData", "loading kernels");
    }
}

/* Loads the image, or other code in it where what the driver takes is of a newer one. */
static int load_image(const bp_cuda *cuda, const void *image, void **handle)
{
    const bp_cuda_info *info = &cuda->info;
    const int error = cuda->driver.cuModuleLoadData(handle, image);
    if (error != BP_CU_INVALID_IMAGE && error != BP_CU_UNSUPPORTED_PTX_VERSION)
        return error;
    void *part = bp_cuda_image_part(image, info->compute_major, info->compute_minor, info->driver_version);
    const int of_part = part != NULL ? cuda->driver.cuModuleLoadData(handle, part) : error;
    free(part);
    return of_part;
}

static bp_status load_module(bp_device *device, bp_cuda *cuda, const void *image, bp_cuda_module **module)
{
    void *memory;
    BP_TRY(bp_new_array(1, sizeof(bp_cuda_module), &memory));
    bp_cuda_module *made = memory;
    bp_status status = bp_cuda_push(cuda);
    if (status == BP_OK) {
        int error = load_image(cuda, image, &made->handle);
        bp_cuda_pop(cuda);
        status = error == BP_CU_SUCCESS ? BP_OK : fail_load(cuda, image, error);
    }
    if (status != BP_OK) {
        free(made);
        return status;
    }
    made->device = device;
    made->cuda = cuda;
    made->image = image;
    pthread_mutex_init(&made->lock, NULL); /* cannot fail for a plain mutex */
    *module = made;
    return BP_OK;
}

bp_status bp_cuda_module_create(bp_device *device, const void *image, bp_cuda_module **module)
{
    bp_cuda *cuda = device != NULL ? (bp_cuda *)bp_cuda_of(device) : NULL;
    if (cuda == NULL || image == NULL || module == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "bp_cuda_module_create: the device is not cuda, or the image or the output is NULL");
    BP_TRY(bp_device_check(device, "bp_cuda_module_create"));
    bp_status status = BP_OK;
    pthread_mutex_lock(&cuda->lock);
    bp_cuda_module *known = cuda->modules;
    while (known != NULL && known->image != image)
        known = known->next;
    if (known == NULL) {
        status = load_module(device, cuda, image, &known);
        if (status == BP_OK) {
            bp_device_retain(device);
            known->next = cuda->modules;
            cuda->modules = known;
        }
    }
    if (status == BP_OK)
        known->references++;
    pthread_mutex_unlock(&cuda->lock);
    if (status == BP_OK)
        *module = known;
    return status;
}

/* True for the last reference, which removes the module from the device's list. */
static bool drop_module(bp_cuda_module *module)
{
    bp_cuda *cuda = module->cuda;
    pthread_mutex_lock(&cuda->lock);
    const bool last = --module->references == 0;
    bp_cuda_module **link = &cuda->modules;
    while (last && *link != module)
        link = &(*link)->next;
    if (last)
        *link = module->next;
    pthread_mutex_unlock(&cuda->lock);
    return last;
}

void bp_cuda_module_destroy(bp_cuda_module **module)
{
    if (module == NULL || *module == NULL)
        return;
    bp_cuda_module *gone = *module;
    *module = NULL;
    if (!bp_device_is_here(gone->device) || !drop_module(gone))
        return;
    BP_KEEP_ERROR;
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

static bp_status cuda_kernel_add(bp_cuda_module *module, const char *name, bp_cuda_kernel **kernel)
{
    const bp_cuda *cuda = module->cuda;
    void *memory, *function = NULL;
    BP_TRY(bp_cuda_push(cuda));
    const char *called = "cuModuleGetFunction";
    int error = cuda->driver.cuModuleGetFunction(&function, module->handle, name);
    if (error == BP_CU_SUCCESS &&
        cuda->driver.cuFuncLoad != NULL) { /* since CUDA 12.4; else the first launch may load it */
        called = "cuFuncLoad";
        error = cuda->driver.cuFuncLoad(function);
    }
    bp_cuda_pop(cuda);
    if (error == BP_CU_NOT_FOUND)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_cuda_module_kernel: the image has no kernel \"%s\"", name);
    BP_TRY(bp_cuda_check(cuda, error, called, "loading a kernel"));
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
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_cuda_module_kernel: the module, the name or the output is NULL");
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

/* CUfunction_attribute. */
enum { STATIC_SHARED_BYTES = 1, MAX_DYNAMIC_SHARED_BYTES = 8, SHARED_PERCENT = 9 };

bp_status bp_cuda_kernel_allow_shared(const bp_cuda_kernel *kernel, uint32_t *bytes)
{
    if (kernel == NULL || bytes == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_cuda_kernel_allow_shared: the kernel or the output is NULL");
    const bp_cuda *cuda = kernel->module->cuda;
    const bp_cuda_driver *driver = &cuda->driver;
    int used = 0;
    BP_TRY(bp_cuda_push(cuda));
    const char *called = "cuFuncGetAttribute";
    int error = driver->cuFuncGetAttribute(&used, STATIC_SHARED_BYTES, kernel->function);
    const int max = cuda->shared_bytes > used ? cuda->shared_bytes - used : 0;
    if (error == BP_CU_SUCCESS) {
        called = "cuFuncSetAttribute";
        error = driver->cuFuncSetAttribute(kernel->function, MAX_DYNAMIC_SHARED_BYTES, max);
    }
    if (error == BP_CU_SUCCESS)
        error = driver->cuFuncSetAttribute(kernel->function, SHARED_PERCENT, 100);
    BP_TRY(bp_cuda_pop_check(cuda, error, called, "allowing a kernel more shared memory"));
    *bytes = (uint32_t)max;
    return BP_OK;
}

static int launch(const bp_cuda_kernel *kernel, const bp_cuda_grid *grid, void **arguments, void *stream)
{
    const uint32_t *blocks = grid->blocks, *threads = grid->threads;
    return kernel->module->cuda->driver.cuLaunchKernel(kernel->function, blocks[0], blocks[1], blocks[2], threads[0],
                                                       threads[1], threads[2], grid->shared_bytes, stream, arguments,
                                                       NULL);
}

/* Stream and kernel know their context, as events do. If the thread has no context, or one from which the driver does not launch them,
 * theirs is made current. */
bp_status bp_cuda_launch(const bp_cuda_kernel *kernel, const bp_cuda_grid *grid, void **arguments, bp_stream *stream)
{
    if (kernel == NULL || grid == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_cuda_launch: the kernel or the grid is NULL");
    BP_TRY(bp_stream_check(stream, stream != NULL ? stream->device : NULL, "bp_cuda_launch"));
    const bp_cuda *cuda = kernel->module->cuda;
    const uint32_t *blocks = grid->blocks, *threads = grid->threads;
    if (bp_cuda_of(stream->device) != cuda)
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "bp_cuda_launch: kernel %s is of GPU %d, stream %s of another device (%s)", kernel->name,
                       cuda->info.ordinal, stream->name, bp_device_name(stream->device));
    for (int i = 0; i < 3; i++) {
        if (blocks[i] == 0 || threads[i] == 0)
            return bp_fail(
                BP_ERR_INVALID_ARGUMENT,
                "bp_cuda_launch: kernel %s: the grid of %u x %u x %u blocks of %u x %u x %u threads is empty",
                kernel->name, blocks[0], blocks[1], blocks[2], threads[0], threads[1], threads[2]);
    }

    const bp_cuda_stream *s = stream->raw; /* also for decorated devices, which forward it */
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
        what, sizeof what,
        "cuLaunchKernel: launching kernel %.64s, %u x %u x %u blocks of %u x %u x %u threads with %u shared bytes",
        kernel->name, blocks[0], blocks[1], blocks[2], threads[0], threads[1], threads[2], grid->shared_bytes);
    return bp_cuda_fail(&cuda->driver, error, "cuLaunchKernel", what);
}
