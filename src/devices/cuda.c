/* SPDX-License-Identifier: Apache-2.0 */
/* The cuda device: loading the driver, errors, the current context, creation. */
#include "devices/cuda.h"

#include <bucketpool/core/fail.h>
#include <bucketpool/core/structs.h>
#include <bucketpool/kernels.h>

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"

/* Advice for errors around captures, in the order of their numbers from BP_CU_CAPTURE_FIRST; the driver only says that an operation was
 * not permitted. */
static const char *const capture_advice[] = {
    "not possible while a graph is being captured; synchronise, allocate and free outside",
    "an earlier error invalidated the capture; end it and begin again",
    "would merge two captures; streams of different captures must not wait for one another",
    "the stream is not the one on which this capture began",
    "a stream that joined the capture was not joined back; let the first stream wait for it before the end",
    ("would wait across the border of a capture; declare the capture (bp_capture_begin) before it begins, and let "
     "every "
     "participating stream wait for its first stream"),
    "uses the legacy default stream, which waits for the captured one; capture with created streams",
    "waits for an event that was recorded inside a capture; declare captures (bp_capture_begin, bp_capture_end)",
    "the capture began on another thread, and not in relaxed mode",
};
_Static_assert(BP_CU_CAPTURE_FIRST + sizeof capture_advice / sizeof *capture_advice == BP_CU_CAPTURE_WRONG_THREAD + 1,
               "one advice per error");

bp_status bp_cuda_fail(const bp_cuda_driver *driver, int error, const char *function, const char *what)
{
    const char *name = NULL, *text = NULL;
    (void)driver->cuGetErrorName(error, &name);
    (void)driver->cuGetErrorString(error, &text);
    bp_status status = BP_ERR_DEVICE;
    if (error == BP_CU_OUT_OF_MEMORY)
        status = BP_ERR_NO_DEVICE_MEMORY;
    else if (error == BP_CU_NOT_PERMITTED || error == BP_CU_NOT_SUPPORTED)
        status = BP_ERR_UNSUPPORTED;
    else if (error == BP_CU_NOT_INITIALIZED || error == BP_CU_DEINITIALIZED || error == BP_CU_STUB_LIBRARY ||
             error == BP_CU_NO_DEVICE || error == BP_CU_INVALID_DEVICE)
        status = BP_ERR_NO_DEVICE;
    if (error >= BP_CU_CAPTURE_FIRST && error <= BP_CU_CAPTURE_WRONG_THREAD) {
        status = BP_ERR_CAPTURE;
        text = capture_advice[error - BP_CU_CAPTURE_FIRST];
    }
    return bp_fail(status, "cuda: %s: %s: %s (%s, %d)", what, function,
                   text != NULL ? text : "the driver has no text for it", name != NULL ? name : "unknown", error);
}

/* ---- the driver ----------------------------------------------------------------------------------------------------- */

/* Driver functions, found at run time by a versioned lookup, so that one table serves drivers of CUDA 12 and 13. */

#define OLDEST 12000 /* CUDA 12.0, whose signatures the table has */

/* A field of the table. `version`: the signature to look up; newer drivers may have another one under the same name. */
typedef struct entry {
    const char *name;
    size_t offset;
    int version;
    bool optional;
} entry;

#define AT(name) #name, offsetof(bp_cuda_driver, name)

static const entry entries[] = {
    {AT(cuInit), 2000, false},
    {AT(cuDriverGetVersion), 2020, false},
    {AT(cuGetErrorName), 6000, false},
    {AT(cuGetErrorString), 6000, false},
    {AT(cuDeviceGetCount), 2000, false},
    {AT(cuDeviceGet), 2000, false},
    {AT(cuDeviceGetName), 2000, false},
    {AT(cuDeviceGetAttribute), 2000, false},
    {AT(cuDeviceCanAccessPeer), 4000, false},
    {AT(cuDevicePrimaryCtxRetain), 7000, false},
    {AT(cuDevicePrimaryCtxRelease), 11000, false},
    {AT(cuCtxPushCurrent), 4000, false},
    {AT(cuCtxPopCurrent), 4000, false},
    {AT(cuCtxGetCurrent), 4000, false},
    {AT(cuCtxSynchronize), 2000, false},
    {AT(cuMemGetInfo), 3020, false},
    {AT(cuMemGetAllocationGranularity), 10020, false},
    {AT(cuMulticastGetGranularity), 12010, true},
    {AT(cuMemAddressReserve), 10020, false},
    {AT(cuMemAddressFree), 10020, false},
    {AT(cuMemCreate), 10020, false},
    {AT(cuMemRelease), 10020, false},
    {AT(cuMemMap), 10020, false},
    {AT(cuMemUnmap), 10020, false},
    {AT(cuMemSetAccess), 10020, false},
    {AT(cuMemAlloc), 3020, false},
    {AT(cuMemFree), 3020, false},
    {AT(cuMemAllocAsync), 11020, false},
    {AT(cuMemFreeAsync), 11020, false},
    {AT(cuMemHostRegister), 6050, false},
    {AT(cuMemHostUnregister), 4000, false},
    {AT(cuStreamCreate), 2000, false},
    {AT(cuStreamDestroy), 4000, false},
    {AT(cuStreamSynchronize), 2000, false},
    {AT(cuStreamGetCtx), 9020, false},
    {AT(cuStreamWaitEvent), 3020, false},
    {AT(cuStreamGetCaptureInfo), OLDEST, false},
    {AT(cuLaunchHostFunc), 10000, false},
    {AT(cuMemsetD8Async), 3020, false},
    {AT(cuMemcpyAsync), 4000, false},
    {AT(cuEventCreate), 2000, false},
    {AT(cuEventDestroy), 4000, false},
    {AT(cuEventRecord), 2000, false},
    {AT(cuEventSynchronize), 2000, false},
    {AT(cuStreamBeginCapture), 10010, false},
    {AT(cuStreamEndCapture), 10000, false},
    {"cuGraphInstantiateWithFlags", offsetof(bp_cuda_driver, cuGraphInstantiate), 11040, false},
    {AT(cuGraphLaunch), 10000, false},
    {AT(cuGraphExecDestroy), 10000, false},
    {AT(cuGraphDestroy), 10000, false},
    {AT(cuModuleLoadData), 2000, false},
    {AT(cuModuleUnload), 2000, false},
    {AT(cuModuleGetFunction), 2000, false},
    {AT(cuFuncLoad), 12040, true},
    {AT(cuFuncGetAttribute), 2020, false},
    {AT(cuFuncSetAttribute), 9000, false},
    {AT(cuLaunchKernel), 4000, false},
};

static bp_status fail_stub(const char *library)
{
    return bp_fail(BP_ERR_NO_DEVICE, "%s is the toolkit's stub, not a driver; remove its folder from LD_LIBRARY_PATH",
                   library);
}

/* Calls cuInit, which is idempotent. `library`: in messages. */
static bp_status cuda_start(const bp_cuda_driver *driver, const char *library)
{
    int error = driver->cuInit(0);
    if (error == BP_CU_STUB_LIBRARY)
        return fail_stub(library);
    if (error == BP_CU_NO_DEVICE)
        return bp_fail(BP_ERR_NO_DEVICE, "the driver %s finds no GPU", library);
    if (error != BP_CU_SUCCESS) {
        const char *name = NULL;
        (void)driver->cuGetErrorName(error, &name);
        return bp_fail(BP_ERR_NO_DEVICE, "the driver %s does not start: cuInit: %s (%d)", library,
                       name != NULL ? name : "unknown", error);
    }
    return BP_OK;
}

bp_status bp_cuda_driver_load(const char *library, bp_cuda_driver *driver)
{
    if (driver == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_cuda_driver_load: the table is NULL");
    if (library == NULL)
        library = "libcuda.so.1";
    void *handle = dlopen(library, RTLD_LAZY | RTLD_LOCAL); /* never closed: drivers do not support dlclose */
    if (handle == NULL) {
        const char *reason = dlerror();
        return bp_fail(BP_ERR_NO_DEVICE, "no CUDA driver on this machine: %s", reason != NULL ? reason : library);
    }

    /* any driver, initialised or not, answers this */
    int (*get_version)(int *);
    void *symbol = dlsym(handle, "cuDriverGetVersion");
    memcpy(&get_version, &symbol, sizeof symbol);
    int version = 0;
    if (symbol == NULL)
        return bp_fail(BP_ERR_NO_DEVICE, "%s is not a CUDA driver: it lacks cuDriverGetVersion", library);
    int error = get_version(&version);
    if (error == BP_CU_STUB_LIBRARY)
        return fail_stub(library);
    if (error != BP_CU_SUCCESS || version <= 0)
        return bp_fail(BP_ERR_NO_DEVICE,
                       "the driver %s is of an unknown version: cuDriverGetVersion returned %s %d; install a driver of "
                       "CUDA 12.0 or later",
                       library, error != BP_CU_SUCCESS ? "error" : "version", error != BP_CU_SUCCESS ? error : version);
    if (version < OLDEST)
        return bp_fail(BP_ERR_NO_DEVICE, "the driver %s is of CUDA %d.%d; 12.0 or later is needed", library,
                       version / 1000, version % 1000 / 10);

    symbol = dlsym(handle, "cuGetProcAddress_v2");
    if (symbol == NULL)
        return bp_fail(BP_ERR_NO_DEVICE,
                       "the driver %s lacks cuGetProcAddress_v2, which drivers of CUDA 12.0 and later have; update it",
                       library);
    int (*find)(const char *name, void **function, int version, uint64_t flags, int *status);
    memcpy(&find, &symbol, sizeof symbol);
    bp_cuda_driver found;
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        void *function = NULL;
        int how;
        error = find(entries[i].name, &function, entries[i].version, 0, &how);
        if (error == BP_CU_STUB_LIBRARY)
            return fail_stub(library);
        if (error != BP_CU_SUCCESS)
            function = NULL;
        if (function == NULL && !entries[i].optional)
            return bp_fail(BP_ERR_NO_DEVICE,
                           "the driver %s lacks %s, which drivers of CUDA 12.0 and later have; update it", library,
                           entries[i].name);
        memcpy((char *)&found + entries[i].offset, &function, sizeof function);
    }
    BP_TRY(cuda_start(&found, library));
    *driver = found;
    return BP_OK;
}

/* ---- the current context -------------------------------------------------------------------------------------------- */

bp_status bp_cuda_push(const bp_cuda *cuda)
{
    int error = cuda->driver.cuCtxPushCurrent(cuda->context);
    return bp_cuda_check(cuda, error, "cuCtxPushCurrent", "making the device current");
}

void bp_cuda_pop(const bp_cuda *cuda)
{
    void *popped; /* whatever is on top: the earlier context is below */
    (void)cuda->driver.cuCtxPopCurrent(&popped);
}

bp_status bp_cuda_enter(const bp_device *device, bp_cuda_scope *scope)
{
    if (device == NULL || scope == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_cuda_enter: the device or the scope is NULL");
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

/* ---- creation ------------------------------------------------------------------------------------------------------- */

#define READ_WRITE 3

/* Driver device attributes. */
#define COMPUTE_MAJOR 75
#define COMPUTE_MINOR 76
#define MULTIPROCESSORS 16
#define SHARED_BYTES 97 /* of a block, for kernels that ask for them */
#define VIRTUAL_MEMORY 102
#define MEMORY_POOLS 115

#define PLAIN_GRANULARITY (UINT64_C(2) << 20)

static const bp_cuda_config cuda_config_defaults = {.size = sizeof cuda_config_defaults};

bp_status bp_cuda_config_init(bp_cuda_config *config, size_t size)
{
    return bp_struct_init("bp_cuda_config_init", config, size, &cuda_config_defaults, sizeof cuda_config_defaults);
}

bp_status bp_cuda_attribute(const bp_cuda *cuda, int attribute, int *value)
{
    int found = 0;
    const int error = cuda->driver.cuDeviceGetAttribute(&found, attribute, cuda->device);
    if (error != BP_CU_SUCCESS && error != BP_CU_INVALID_VALUE)
        return bp_cuda_fail(&cuda->driver, error, "cuDeviceGetAttribute", "querying the device's attributes");
    *value = error == BP_CU_SUCCESS ? found : 0;
    return BP_OK;
}

/* Finds the devices that can access its memory: itself, then its peers. */
static bp_status find_peers(bp_cuda *cuda)
{
    int count = 0, can;
    int error = cuda->driver.cuDeviceGetCount(&count);
    if (error != BP_CU_SUCCESS)
        return bp_cuda_fail(&cuda->driver, error, "cuDeviceGetCount", "counting devices");
    void *memory;
    BP_TRY(bp_new_array((size_t)count, sizeof *cuda->access, &memory));
    cuda->access = memory;
    cuda->access[cuda->access_count++] = (bp_cu_access){BP_CU_ON_DEVICE, cuda->device, READ_WRITE};
    for (int i = 0; i < count; i++) {
        int peer;
        if (i == cuda->config.ordinal)
            continue;
        error = cuda->driver.cuDeviceGet(&peer, i);
        BP_TRY(bp_cuda_check(cuda, error, "cuDeviceGet", "finding peers"));
        error = cuda->driver.cuDeviceCanAccessPeer(&can, peer, cuda->device);
        BP_TRY(bp_cuda_check(cuda, error, "cuDeviceCanAccessPeer", "finding peers"));
        if (can != 0)
            cuda->access[cuda->access_count++] = (bp_cu_access){BP_CU_ON_DEVICE, peer, READ_WRITE};
    }
    cuda->info.peers = (int32_t)cuda->access_count - 1;
    return BP_OK;
}

/* Initialises everything that needs the device's context. */
static bp_status open_device(bp_cuda *cuda)
{
    const bp_cuda_driver *driver = &cuda->driver;
    bp_cuda_info *info = &cuda->info;
    int count = 0;
    size_t left, total = 0;
    int error = driver->cuDeviceGetCount(&count);
    if (error != BP_CU_SUCCESS)
        return bp_cuda_fail(driver, error, "cuDeviceGetCount", "counting devices");
    if (count == 0)
        return bp_fail(BP_ERR_NO_DEVICE, "cuda: the driver finds no GPU");
    if (cuda->config.ordinal < 0 || cuda->config.ordinal >= count)
        return bp_fail(BP_ERR_NO_DEVICE, "cuda: no device %d; this machine has %d, counted from 0",
                       cuda->config.ordinal, count);
    error = driver->cuDeviceGet(&cuda->device, cuda->config.ordinal);
    BP_TRY(bp_cuda_check(cuda, error, "cuDeviceGet", "finding the device"));
    error = driver->cuDevicePrimaryCtxRetain(&cuda->context, cuda->device);
    BP_TRY(bp_cuda_check(cuda, error, "cuDevicePrimaryCtxRetain", "opening the device"));

    *info = (bp_cuda_info){.ordinal = cuda->config.ordinal};
    error = driver->cuDeviceGetName(info->name, sizeof info->name, cuda->device);
    BP_TRY(bp_cuda_check(cuda, error, "cuDeviceGetName", "querying the device's attributes"));
    error = driver->cuDriverGetVersion(&info->driver_version);
    BP_TRY(bp_cuda_check(cuda, error, "cuDriverGetVersion", "querying the device's attributes"));
    BP_TRY(bp_cuda_push(cuda));
    error = driver->cuMemGetInfo(&left, &total);
    BP_TRY(bp_cuda_pop_check(cuda, error, "cuMemGetInfo", "querying the device's memory"));
    info->total_bytes = total;
    int virtual_memory = 0;
    const struct {
        int number, *value;
    } attributes[] = {{COMPUTE_MAJOR, &info->compute_major}, {COMPUTE_MINOR, &info->compute_minor},
                      {MEMORY_POOLS, &info->stream_ordered}, {MULTIPROCESSORS, &cuda->multiprocessors},
                      {SHARED_BYTES, &cuda->shared_bytes},   {VIRTUAL_MEMORY, &virtual_memory}};
    for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++)
        BP_TRY(bp_cuda_attribute(cuda, attributes[i].number, attributes[i].value));

    cuda->traits = (bp_device_traits){.size = sizeof cuda->traits, .granularity = PLAIN_GRANULARITY};
    if (cuda->config.memory == BP_CUDA_PLAIN)
        return BP_OK;
    if (virtual_memory == 0)
        return bp_fail(
            BP_ERR_UNSUPPORTED,
            "cuda: device %d (%s) has no virtual memory management; use BP_CUDA_PLAIN, whose slabs cannot be "
            "registered as windows",
            cuda->config.ordinal, info->name);
    BP_TRY(find_peers(cuda));
    BP_TRY(bp_cuda_push(cuda));
    bp_status status = bp_cuda_choose_memory(cuda);
    bp_cuda_pop(cuda);
    return status;
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

static const bp_device_ops ops = {
    .size = sizeof ops,
    .name = "cuda",
    .destroy = cuda_destroy,
    .traits = cuda_traits,
    .reserve = bp_cuda_reserve,
    .unreserve = bp_cuda_unreserve,
    .commit = bp_cuda_commit,
    .decommit = bp_cuda_decommit,
    .map = bp_cuda_map,
    .unmap = bp_cuda_unmap,
    .allocate = bp_cuda_allocate,
    .free = bp_cuda_free,
    .stream_create = bp_cuda_stream_create,
    .stream_import = bp_cuda_stream_import,
    .stream_destroy = bp_cuda_stream_destroy,
    .stream_synchronize = bp_cuda_stream_synchronize,
    .synchronize = bp_cuda_synchronize,
    .call = bp_cuda_call,
    .fill = bp_cuda_fill,
    .copy = bp_cuda_copy,
    .event_create = bp_cuda_event_create,
    .event_destroy = bp_cuda_event_destroy,
    .event_record = bp_cuda_event_record,
    .stream_wait = bp_cuda_stream_wait,
    .event_synchronize = bp_cuda_event_synchronize,
    .stream_native = bp_cuda_stream_native,
    .pin = bp_cuda_pin,
    .unpin = bp_cuda_unpin,
    .capture_of = bp_cuda_capture_of,
    .graph_begin = bp_cuda_graph_begin,
    .graph_end = bp_cuda_graph_end,
    .graph_launch = bp_cuda_graph_launch,
    .graph_destroy = bp_cuda_graph_destroy,
};

bp_status bp_device_create_cuda_from(const bp_cuda_config *config, const bp_cuda_driver *driver, bp_device **device)
{
    bp_cuda_config completed = cuda_config_defaults;
    if (device == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_device_create_cuda: the output is NULL");
    BP_TRY(bp_struct_read("bp_device_create_cuda", config, true, &completed, sizeof completed));
    if (completed.memory != BP_CUDA_VIRTUAL && completed.memory != BP_CUDA_PLAIN)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_device_create_cuda: unknown kind of memory %d",
                       (int)completed.memory);
    bp_cuda_driver loaded;
    if (driver == NULL)
        BP_TRY(bp_cuda_driver_load(completed.driver, &loaded));
    else
        BP_TRY(cuda_start(driver, "from the caller's table"));
    void *memory;
    BP_TRY(bp_new_array(1, sizeof(bp_cuda), &memory));
    bp_cuda *cuda = memory;
    cuda->driver = driver != NULL ? *driver : loaded;
    cuda->config = completed;
    cuda->config.driver = NULL;            /* owned by the caller */
    pthread_mutex_init(&cuda->lock, NULL); /* cannot fail for a plain mutex */
    bp_status status = open_device(cuda);
    if (status != BP_OK) {
        cuda_destroy(cuda);
        return status;
    }
    bp_device_ops table = ops;
    if (completed.memory == BP_CUDA_PLAIN) {
        table.reserve = bp_cuda_plain_reserve;
        table.unreserve = bp_cuda_plain_unreserve;
        table.commit = bp_cuda_plain_commit;
        table.decommit = bp_cuda_plain_decommit;
        table.map = bp_cuda_plain_map;
        table.unmap = bp_cuda_plain_unmap;
    }
    return bp_device_create(&table, cuda, device);
}

bp_status bp_device_create_cuda(const bp_cuda_config *config, bp_device **device)
{
    return bp_device_create_cuda_from(config, NULL, device);
}

const bp_cuda *bp_cuda_of(const bp_device *device)
{
    device = bp_device_undecorated(device);
    return device->ops->destroy == cuda_destroy ? device->self : NULL;
}

uint32_t bp_cuda_multiprocessors(const bp_device *device)
{
    const bp_cuda *cuda = device != NULL ? bp_cuda_of(device) : NULL;
    return cuda != NULL ? (uint32_t)cuda->multiprocessors : 0;
}

const bp_cuda_info *bp_cuda_get_info(const bp_device *device)
{
    const bp_cuda *cuda = device != NULL ? bp_cuda_of(device) : NULL;
    return cuda != NULL ? &cuda->info : NULL;
}
