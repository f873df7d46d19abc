/* The cuda device: making it, its context, its properties, and the meaning of the driver's results. */
#include "devices/cuda.h"

#include <stdlib.h>
#include <string.h>

#include "core/fail.h"
#include "core/memory.h"
#include "core/structs.h"

/* ---- results of the driver --------------------------------------------------------------------------------------- */

/* Of errors around captures, what to do; the driver only says that something was not permitted. */
static const char *capture_advice(int error)
{
    switch (error) {
    case BP_CU_CAPTURE_FIRST:
        return "not possible while a graph is being captured: synchronise, allocate and free outside";
    case BP_CU_CAPTURE_INVALIDATED: return "the capture was made invalid by an earlier error: end it and begin again";
    case BP_CU_CAPTURE_MERGE:
        return "would merge two captures: streams of different captures may not wait for one another";
    case BP_CU_CAPTURE_UNMATCHED: return "the stream is not the one on which this capture began";
    case BP_CU_CAPTURE_UNJOINED:
        return "a stream that joined the capture was not joined back: let the first stream wait for it before the end";
    case BP_CU_CAPTURE_ISOLATION:
        return "would wait across the border of a capture: declare it (bp_capture_begin) before it begins, and let "
               "every stream "
               "that takes part wait for its first stream";
    case BP_CU_CAPTURE_IMPLICIT:
        return "uses the legacy default stream, which waits for the captured one: capture with streams of your own";
    case BP_CU_CAPTURED_EVENT:
        return "waits for an event that was recorded inside a capture: declare captures (bp_capture_begin, "
               "bp_capture_end)";
    default: return "the capture began on another thread, and not in relaxed mode";
    }
}

static bp_status cuda_error_status_of(int error)
{
    switch (error) {
    case BP_CU_OUT_OF_MEMORY: return BP_ERR_NO_DEVICE_MEMORY;
    case BP_CU_NOT_INITIALIZED:
    case BP_CU_DEINITIALIZED:
    case BP_CU_STUB_LIBRARY:
    case BP_CU_NO_DEVICE:
    case BP_CU_INVALID_DEVICE: return BP_ERR_NO_DEVICE;
    case BP_CU_NOT_PERMITTED:
    case BP_CU_NOT_SUPPORTED: return BP_ERR_UNSUPPORTED;
    default: return BP_ERR_DEVICE;
    }
}

bp_status bp_cuda_fail(const bp_cuda_driver *driver, int error, const char *what)
{
    const char *name = NULL, *text = NULL;
    (void)driver->cuGetErrorName(error, &name);
    (void)driver->cuGetErrorString(error, &text);
    if (error >= BP_CU_CAPTURE_FIRST && error <= BP_CU_CAPTURE_WRONG_THREAD)
        return bp_fail(BP_ERR_CAPTURE, "cuda: %s: %s (%s, %d)", what, capture_advice(error),
                       name != NULL ? name : "unknown", error);
    return bp_fail(cuda_error_status_of(error), "cuda: %s: %s (%s, %d)", what,
                   text != NULL ? text : "the driver has no text for it", name != NULL ? name : "unknown", error);
}

/* ---- the device -------------------------------------------------------------------------------------------------- */

/* The cuda device: making it, its context, what is known of it. */

#define READ_WRITE 3

/* Of the driver's device attributes. */
#define COMPUTE_MAJOR 75
#define COMPUTE_MINOR 76
#define VIRTUAL_MEMORY 102
#define MEMORY_POOLS 115

#define PLAIN_GRANULARITY (UINT64_C(2) << 20)

/* ---- the current context -------------------------------------------------------------------------------------------- */

bp_status bp_cuda_push(const bp_cuda *cuda)
{
    int error = cuda->driver.cuCtxPushCurrent(cuda->context);
    return bp_cuda_check(cuda, error, "making the device current");
}

void bp_cuda_pop(const bp_cuda *cuda)
{
    void *popped; /* whatever is on top: what lies below was current before */
    (void)cuda->driver.cuCtxPopCurrent(&popped);
}

bp_status bp_cuda_enter(const bp_device *device, bp_cuda_scope *scope)
{
    if (device == NULL || scope == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_cuda_enter: needs a device and a scope");
    BP_TRY(bp_device_check(device, "bp_cuda_enter"));
    const bp_cuda *cuda = bp_cuda_of(device);
    if (cuda != NULL)
        BP_TRY(bp_cuda_push(cuda));
    *scope = (bp_cuda_scope){cuda};
    return BP_OK;
}

void bp_cuda_leave(bp_cuda_scope *scope)
{
    if (scope->entered != NULL)
        bp_cuda_pop(scope->entered);
    scope->entered = NULL;
}

/* ---- making --------------------------------------------------------------------------------------------------------- */

static const bp_cuda_config cuda_config_defaults = {.size = sizeof cuda_config_defaults};

bp_status bp_cuda_config_init(bp_cuda_config *config, size_t size)
{
    return bp_struct_init("bp_cuda_config_init", config, size, &cuda_config_defaults, sizeof cuda_config_defaults);
}

static int attribute(const bp_cuda *cuda, int which)
{
    int value = 0;
    return cuda->driver.cuDeviceGetAttribute(&value, which, cuda->device) == BP_CU_SUCCESS ? value : 0;
}

static bp_status find_device(bp_cuda *cuda)
{
    int count = 0;
    int error = cuda->driver.cuDeviceGetCount(&count);
    if (error != BP_CU_SUCCESS)
        return bp_cuda_fail(&cuda->driver, error, "counting devices");
    if (count == 0)
        return bp_fail(BP_ERR_NO_DEVICE, "cuda: the driver finds no GPU");
    if (cuda->config.ordinal < 0 || cuda->config.ordinal >= count)
        return bp_fail(BP_ERR_NO_DEVICE, "cuda: no device %d: this machine has %d, from 0", cuda->config.ordinal,
                       count);
    error = cuda->driver.cuDeviceGet(&cuda->device, cuda->config.ordinal);
    return bp_cuda_check(cuda, error, "finding the device");
}

static bp_status cuda_describe(bp_cuda *cuda)
{
    bp_cuda_info *info = &cuda->info;
    size_t left;
    size_t total = 0;
    *info = (bp_cuda_info){.ordinal = cuda->config.ordinal};
    int error = cuda->driver.cuDeviceGetName(info->name, sizeof info->name, cuda->device);
    if (error == BP_CU_SUCCESS)
        error = cuda->driver.cuDriverGetVersion(&info->driver_version);
    if (error != BP_CU_SUCCESS)
        return bp_cuda_fail(&cuda->driver, error, "asking what the device is");
    BP_TRY(bp_cuda_push(cuda));
    error = cuda->driver.cuMemGetInfo(&left, &total);
    bp_cuda_pop(cuda);
    if (error != BP_CU_SUCCESS)
        return bp_cuda_fail(&cuda->driver, error, "asking how much memory the device has");
    info->total_bytes = total;
    info->compute_major = attribute(cuda, COMPUTE_MAJOR);
    info->compute_minor = attribute(cuda, COMPUTE_MINOR);
    info->stream_ordered = attribute(cuda, MEMORY_POOLS) != 0;
    return BP_OK;
}

/* The device itself, then those that can reach its memory. */
static bp_status find_peers(bp_cuda *cuda)
{
    int count = 0, can;
    int error = cuda->driver.cuDeviceGetCount(&count);
    if (error != BP_CU_SUCCESS)
        return bp_cuda_fail(&cuda->driver, error, "counting devices");
    void *memory;
    BP_TRY(bp_new_array((size_t)count, sizeof *cuda->access, &memory));
    cuda->access = memory;
    cuda->access[cuda->access_count++] = (bp_cu_access){BP_CU_ON_DEVICE, cuda->device, READ_WRITE};
    for (int i = 0; i < count; i++) {
        int peer;
        if (i == cuda->config.ordinal || cuda->driver.cuDeviceGet(&peer, i) != BP_CU_SUCCESS)
            continue;
        if (cuda->driver.cuDeviceCanAccessPeer(&can, peer, cuda->device) == BP_CU_SUCCESS && can != 0)
            cuda->access[cuda->access_count++] = (bp_cu_access){BP_CU_ON_DEVICE, peer, READ_WRITE};
    }
    cuda->info.peers = (int32_t)cuda->access_count - 1;
    return BP_OK;
}

/* Everything that needs the device's context. */
static bp_status open_device(bp_cuda *cuda)
{
    BP_TRY(cuda_describe(cuda));
    cuda->traits = (bp_device_traits){.size = sizeof cuda->traits, .granularity = PLAIN_GRANULARITY};
    if (cuda->config.memory == BP_CUDA_PLAIN)
        return BP_OK;
    if (!attribute(cuda, VIRTUAL_MEMORY))
        return bp_fail(
            BP_ERR_UNSUPPORTED,
            "cuda: device %d (%s) has no virtual memory management; BP_CUDA_PLAIN works without, but cannot be "
            "registered as a window",
            cuda->config.ordinal, cuda->info.name);
    BP_TRY(find_peers(cuda));
    return bp_cuda_choose_memory(cuda);
}

static bp_status open_context(bp_cuda *cuda)
{
    BP_TRY(find_device(cuda));
    int error = cuda->driver.cuDevicePrimaryCtxRetain(&cuda->context, cuda->device);
    return bp_cuda_check(cuda, error, "opening the device");
}

static void cuda_destroy(void *self)
{
    bp_cuda *cuda = self;
    if (cuda->context != NULL) {
        bp_cuda_streams_finish(cuda);
        (void)cuda->driver.cuDevicePrimaryCtxRelease(cuda->device);
    }
    pthread_mutex_destroy(&cuda->lock);
    free(cuda->blocks);
    free(cuda->access);
    free(cuda);
}

static bp_status cuda_traits(void *self, bp_device_traits *traits)
{
    *traits = ((bp_cuda *)self)->traits;
    return BP_OK;
}

#define SHARED_FUNCTIONS                                                                                               \
    .size = sizeof(bp_device_ops), .name = "cuda", .destroy = cuda_destroy, .traits = cuda_traits,                     \
    .allocate = bp_cuda_allocate, .free = bp_cuda_free, .stream_create = bp_cuda_stream_create,                        \
    .stream_import = bp_cuda_stream_import, .stream_destroy = bp_cuda_stream_destroy,                                  \
    .stream_synchronize = bp_cuda_stream_synchronize, .synchronize = bp_cuda_synchronize, .call = bp_cuda_call,        \
    .fill = bp_cuda_fill, .copy = bp_cuda_copy, .event_create = bp_cuda_event_create,                                  \
    .event_destroy = bp_cuda_event_destroy, .event_record = bp_cuda_event_record, .stream_wait = bp_cuda_stream_wait,  \
    .event_synchronize = bp_cuda_event_synchronize, .stream_native = bp_cuda_stream_native, .pin = bp_cuda_pin,        \
    .unpin = bp_cuda_unpin, .capture_of = bp_cuda_capture_of, .graph_begin = bp_cuda_graph_begin,                      \
    .graph_end = bp_cuda_graph_end, .graph_launch = bp_cuda_graph_launch, .graph_destroy = bp_cuda_graph_destroy

static const bp_device_ops virtual_ops = {
    SHARED_FUNCTIONS,         .reserve = bp_cuda_reserve,   .unreserve = bp_cuda_unreserve,
    .commit = bp_cuda_commit, .decommit = bp_cuda_decommit, .map = bp_cuda_map,
    .unmap = bp_cuda_unmap,
};

static const bp_device_ops plain_ops = {
    SHARED_FUNCTIONS,
    .reserve = bp_cuda_plain_reserve,
    .unreserve = bp_cuda_plain_unreserve,
    .commit = bp_cuda_plain_commit,
    .decommit = bp_cuda_plain_decommit,
    .map = bp_cuda_plain_map,
    .unmap = bp_cuda_plain_unmap,
};

bp_status bp_device_create_cuda_from(const bp_cuda_config *config, const bp_cuda_driver *driver, bp_device **device)
{
    bp_cuda_config completed = cuda_config_defaults;
    if (device == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_device_create_cuda: needs an output");
    BP_TRY(bp_struct_read("bp_device_create_cuda", config, true, &completed, sizeof completed));
    if (completed.memory != BP_CUDA_VIRTUAL && completed.memory != BP_CUDA_PLAIN)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_device_create_cuda: memory of kind %d", (int)completed.memory);
    bp_cuda_driver loaded;
    if (driver == NULL)
        BP_TRY(bp_cuda_driver_load(completed.driver, &loaded));
    else
        BP_TRY(bp_cuda_start(driver, "of the caller's table"));
    void *memory;
    BP_TRY(bp_new_array(1, sizeof(bp_cuda), &memory));
    bp_cuda *cuda = memory;
    cuda->driver = driver != NULL ? *driver : loaded;
    cuda->config = completed;
    cuda->config.driver = NULL;            /* the caller's */
    pthread_mutex_init(&cuda->lock, NULL); /* cannot fail for a plain mutex */
    bp_status status = open_context(cuda);
    if (status == BP_OK)
        status = open_device(cuda);
    if (status != BP_OK) {
        cuda_destroy(cuda);
        return status;
    }
    return bp_device_create(completed.memory == BP_CUDA_PLAIN ? &plain_ops : &virtual_ops, cuda, device);
}

bp_status bp_device_create_cuda(const bp_cuda_config *config, bp_device **device)
{
    return bp_device_create_cuda_from(config, NULL, device);
}

/* ---- looking -------------------------------------------------------------------------------------------------------- */

const bp_cuda *bp_cuda_of(const bp_device *device)
{
    device = bp_device_undecorated(device);
    return device->ops->destroy == cuda_destroy ? device->self : NULL;
}

const bp_cuda_info *bp_cuda_get_info(const bp_device *device)
{
    const bp_cuda *cuda = device != NULL ? bp_cuda_of(device) : NULL;
    return cuda != NULL ? &cuda->info : NULL;
}
