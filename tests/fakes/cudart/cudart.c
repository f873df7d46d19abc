/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA runtime on the emulated driver: libcudart.so.13 with as much as PyTorch needs to allocate memory, record events and switch
 * streams. Kernels are registered, never launched: every other function answers cudaErrorNotSupported.
 *
 * Signatures: cuda_runtime_api.h of CUDA 13.0. Handles of streams and events are the driver's. */
#include "../cuda/driver.h"

#include <stdatomic.h>
#include <string.h>

#define API __attribute__((visibility("default")))

enum { MEMORY_ALLOCATION = 2, NOT_FOUND = 500, UNSUPPORTED = 801 };

static _Thread_local int current_device;
static _Thread_local int last_error;

static int note(int error)
{
    if (error != OK && error != NOT_READY)
        last_error = error;
    return error;
}

/* The primary context of the thread's device, as the runtime sets it before each call. */
static int enter(void)
{
    static _Atomic(void *) contexts[16];
    if (current_device < 0 || current_device >= (int)(sizeof contexts / sizeof *contexts))
        return INVALID_DEVICE;
    void *context = contexts[current_device], *current = NULL;
    if (context == NULL) {
        FAKE_TRY(cuInit(0));
        FAKE_TRY(cuDevicePrimaryCtxRetain(&context, current_device));
        contexts[current_device] = context;
    }
    FAKE_TRY(cuCtxGetCurrent(&current));
    return current == context ? OK : cuCtxSetCurrent(context);
}

#define RUN(call)                                                                                                      \
    do {                                                                                                               \
        int entered = enter();                                                                                         \
        return note(entered != OK ? entered : (call));                                                                 \
    } while (0)

/* ---- errors and versions ----------------------------------------------------------------------------------------- */

API int cudaGetLastError(void);
API int cudaPeekAtLastError(void);
API const char *cudaGetErrorName(int error);
API const char *cudaGetErrorString(int error);
API int cudaDriverGetVersion(int *version);
API int cudaRuntimeGetVersion(int *version);
API int cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version, unsigned long long flags,
                                         int *found);

int cudaGetLastError(void)
{
    int error = last_error;
    last_error = OK;
    return error;
}

int cudaPeekAtLastError(void)
{
    return last_error;
}

const char *cudaGetErrorName(int error)
{
    const char *name = NULL;
    return cuGetErrorName(error, &name) == OK ? name : "cudaErrorUnknown";
}

const char *cudaGetErrorString(int error)
{
    const char *text = NULL;
    return cuGetErrorString(error, &text) == OK ? text : "unknown error";
}

int cudaDriverGetVersion(int *version)
{
    return cuDriverGetVersion(version);
}

int cudaRuntimeGetVersion(int *version)
{
    *version = 13000;
    return OK;
}

/* Stands for driver functions that the emulation lacks: PyTorch asks for all that it may ever call. */
static int unsupported_entry(void)
{
    return UNSUPPORTED;
}

int cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version, unsigned long long flags,
                                     int *found)
{
    if (cuGetProcAddress_v2(name, function, (int)version, flags, found) != OK || *function == NULL) {
        int (*entry)(void) = unsupported_entry;
        memcpy(function, &entry, sizeof entry);
    }
    if (found != NULL)
        *found = 0;
    return OK;
}

/* ---- devices ----------------------------------------------------------------------------------------------------- */

/* cudaDeviceProp of CUDA 13: offsets of the fields that the emulation fills. */
enum {
    PROP_BYTES = 1008,
    PROP_MEMORY = 288,
    PROP_SHARED = 296,
    PROP_REGISTERS = 304,
    PROP_WARP = 308,
    PROP_THREADS = 320,
    PROP_MAJOR = 360,
    PROP_PROCESSORS = 384,
    PROP_UNIFIED = 588,
    PROP_L2 = 596,
    PROP_THREADS_PER_PROCESSOR = 604
};

API int cudaGetDeviceCount(int *count);
API int cudaGetDevice(int *device);
API int cudaSetDevice(int device);
API int cudaGetDeviceProperties(void *properties, int device);
API int cudaDeviceGetAttribute(int *value, int attribute, int device);
API int cudaDeviceCanAccessPeer(int *can, int device, int peer);
API int cudaDeviceSynchronize(void);
API int cudaDeviceGetStreamPriorityRange(int *min, int *greatest);
API int cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes);

int cudaGetDeviceCount(int *count)
{
    int status = cuInit(0);
    return note(status != OK ? status : cuDeviceGetCount(count));
}

int cudaGetDevice(int *device)
{
    *device = current_device;
    return OK;
}

int cudaSetDevice(int device)
{
    int count = 0;
    int status = cudaGetDeviceCount(&count);
    if (status != OK || device < 0 || device >= count)
        return note(status != OK ? status : INVALID_DEVICE);
    current_device = device;
    return note(enter());
}

static void put(char *properties, size_t offset, int value)
{
    memcpy(properties + offset, &value, sizeof value);
}

int cudaGetDeviceProperties(void *properties, int device)
{
    size_t memory = 0, shared = 49152;
    int status = cuInit(0);
    if (status == OK)
        status = cuDeviceTotalMem_v2(&memory, device);
    if (status != OK)
        return note(status);
    char *to = properties;
    memset(to, 0, PROP_BYTES);
    (void)cuDeviceGetName(to, 256, device);
    memcpy(to + PROP_MEMORY, &memory, sizeof memory);
    memcpy(to + PROP_SHARED, &shared, sizeof shared);
    put(to, PROP_REGISTERS, 65536);
    put(to, PROP_WARP, 32);
    put(to, PROP_THREADS, 1024);
    put(to, PROP_MAJOR, 9);
    put(to, PROP_PROCESSORS, 4);
    put(to, PROP_UNIFIED, 1);
    put(to, PROP_L2, 1 << 20);
    put(to, PROP_THREADS_PER_PROCESSOR, 2048);
    return OK;
}

int cudaDeviceGetAttribute(int *value, int attribute, int device)
{
    return note(cuDeviceGetAttribute(value, attribute, device));
}

int cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    return note(cuDeviceCanAccessPeer(can, device, peer));
}

int cudaDeviceSynchronize(void)
{
    RUN(cuCtxSynchronize());
}

int cudaDeviceGetStreamPriorityRange(int *min, int *greatest)
{
    *min = *greatest = 0;
    return OK;
}

int cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    RUN(cuMemGetInfo_v2(free_bytes, total_bytes));
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

API int cudaMalloc(void **pointer, size_t bytes);
API int cudaFree(void *pointer);

static int allocate(void **pointer, size_t bytes)
{
    uint64_t address = 0;
    FAKE_TRY(cuMemAlloc_v2(&address, bytes));
    *pointer = (void *)(uintptr_t)address;
    return OK;
}

int cudaMalloc(void **pointer, size_t bytes)
{
    RUN(allocate(pointer, bytes));
}

int cudaFree(void *pointer)
{
    RUN(cuMemFree_v2((uint64_t)(uintptr_t)pointer));
}

/* ---- streams and events ------------------------------------------------------------------------------------------ */

API int cudaStreamCreate(void **stream);
API int cudaStreamCreateWithPriority(void **stream, unsigned flags, int priority);
API int cudaStreamDestroy(void *stream);
API int cudaStreamGetPriority(void *stream, int *priority);
API int cudaStreamQuery(void *stream);
API int cudaStreamSynchronize(void *stream);
API int cudaStreamWaitEvent(void *stream, void *event, unsigned flags);
API int cudaStreamBeginCapture(void *stream, int mode);
API int cudaStreamEndCapture(void *stream, void **graph);
API int cudaStreamIsCapturing(void *stream, int *status);
API int cudaStreamGetCaptureInfo(void *stream, int *status, unsigned long long *id, void **graph, void ***dependencies,
                                 const void **edges, size_t *count);
API int cudaThreadExchangeStreamCaptureMode(int *mode);
API int cudaEventCreate(void **event);
API int cudaEventCreateWithFlags(void **event, unsigned flags);
API int cudaEventDestroy(void *event);
API int cudaEventQuery(void *event);
API int cudaEventRecord(void *event, void *stream);
API int cudaEventRecordWithFlags(void *event, void *stream, unsigned flags);
API int cudaEventSynchronize(void *event);

int cudaStreamCreate(void **stream)
{
    RUN(cuStreamCreate(stream, 0));
}

int cudaStreamCreateWithPriority(void **stream, unsigned flags, int priority)
{
    (void)priority;
    RUN(cuStreamCreate(stream, flags));
}

int cudaStreamDestroy(void *stream)
{
    RUN(cuStreamDestroy_v2(stream));
}

int cudaStreamGetPriority(void *stream, int *priority)
{
    (void)stream;
    *priority = 0;
    return OK;
}

int cudaStreamQuery(void *stream)
{
    RUN(cuStreamQuery(stream));
}

int cudaStreamSynchronize(void *stream)
{
    RUN(cuStreamSynchronize(stream));
}

int cudaStreamWaitEvent(void *stream, void *event, unsigned flags)
{
    RUN(cuStreamWaitEvent(stream, event, flags));
}

int cudaStreamBeginCapture(void *stream, int mode)
{
    RUN(cuStreamBeginCapture_v2(stream, mode));
}

int cudaStreamEndCapture(void *stream, void **graph)
{
    RUN(cuStreamEndCapture(stream, graph));
}

int cudaStreamIsCapturing(void *stream, int *status)
{
    RUN(cuStreamIsCapturing(stream, status));
}

int cudaStreamGetCaptureInfo(void *stream, int *status, unsigned long long *id, void **graph, void ***dependencies,
                             const void **edges, size_t *count)
{
    uint64_t number = 0;
    int entered = enter();
    if (entered == OK)
        entered = cuStreamGetCaptureInfo_v3(stream, status, &number, graph, dependencies, edges, count);
    if (id != NULL)
        *id = number;
    return note(entered);
}

int cudaThreadExchangeStreamCaptureMode(int *mode)
{
    RUN(cuThreadExchangeStreamCaptureMode(mode));
}

int cudaEventCreate(void **event)
{
    RUN(cuEventCreate(event, 0));
}

int cudaEventCreateWithFlags(void **event, unsigned flags)
{
    RUN(cuEventCreate(event, flags));
}

int cudaEventDestroy(void *event)
{
    RUN(cuEventDestroy_v2(event));
}

int cudaEventQuery(void *event)
{
    RUN(cuEventQuery(event));
}

int cudaEventRecord(void *event, void *stream)
{
    RUN(cuEventRecord(event, stream));
}

int cudaEventRecordWithFlags(void *event, void *stream, unsigned flags)
{
    if (flags != 0)
        return note(UNSUPPORTED);
    RUN(cuEventRecord(event, stream));
}

int cudaEventSynchronize(void *event)
{
    RUN(cuEventSynchronize(event));
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

API void **__cudaRegisterFatBinary(const void *image);
API void __cudaRegisterFatBinaryEnd(void **handle);
API void __cudaUnregisterFatBinary(void **handle);
API void __cudaRegisterFunction(void);
API void __cudaRegisterVar(void);

/* Libraries register thousands of kernels when they are loaded. */
void **__cudaRegisterFatBinary(const void *image)
{
    static void *handle;
    (void)image;
    return &handle;
}

void __cudaRegisterFatBinaryEnd(void **handle)
{
    (void)handle;
}

void __cudaUnregisterFatBinary(void **handle)
{
    (void)handle;
}

void __cudaRegisterFunction(void)
{
}

void __cudaRegisterVar(void)
{
}

/* ---- all others -------------------------------------------------------------------------------------------------- */

/* Names that PyTorch's libraries import: a missing one would keep them from being loaded. */
#define OTHERS(F)                                                                                                      \
    F(__cudaGetKernel)                                                                                                 \
    F(__cudaInitModule)                                                                                                \
    F(__cudaLaunchKernel)                                                                                              \
    F(__cudaPopCallConfiguration)                                                                                      \
    F(__cudaPushCallConfiguration)                                                                                     \
    F(cudaDeviceEnablePeerAccess)                                                                                      \
    F(cudaDeviceGetDefaultMemPool)                                                                                     \
    F(cudaDeviceGetPCIBusId)                                                                                           \
    F(cudaEventElapsedTime)                                                                                            \
    F(cudaFreeAsync)                                                                                                   \
    F(cudaFreeHost)                                                                                                    \
    F(cudaFuncGetAttributes)                                                                                           \
    F(cudaFuncSetAttribute)                                                                                            \
    F(cudaGetSymbolAddress)                                                                                            \
    F(cudaGraphDebugDotPrint)                                                                                          \
    F(cudaGraphDestroy)                                                                                                \
    F(cudaGraphExecDestroy)                                                                                            \
    F(cudaGraphGetNodes)                                                                                               \
    F(cudaGraphInstantiateWithFlags)                                                                                   \
    F(cudaGraphLaunch)                                                                                                 \
    F(cudaGraphNodeGetDependencies)                                                                                    \
    F(cudaHostAlloc)                                                                                                   \
    F(cudaHostRegister)                                                                                                \
    F(cudaHostUnregister)                                                                                              \
    F(cudaIpcCloseMemHandle)                                                                                           \
    F(cudaIpcGetEventHandle)                                                                                           \
    F(cudaIpcGetMemHandle)                                                                                             \
    F(cudaIpcOpenEventHandle)                                                                                          \
    F(cudaIpcOpenMemHandle)                                                                                            \
    F(cudaLaunchCooperativeKernel)                                                                                     \
    F(cudaLaunchHostFunc)                                                                                              \
    F(cudaLaunchKernel)                                                                                                \
    F(cudaLaunchKernelExC)                                                                                             \
    F(cudaMallocAsync)                                                                                                 \
    F(cudaMemPoolGetAttribute)                                                                                         \
    F(cudaMemPoolSetAccess)                                                                                            \
    F(cudaMemPoolSetAttribute)                                                                                         \
    F(cudaMemPoolTrimTo)                                                                                               \
    F(cudaMemcpy)                                                                                                      \
    F(cudaMemcpy2DAsync)                                                                                               \
    F(cudaMemcpyAsync)                                                                                                 \
    F(cudaMemcpyPeerAsync)                                                                                             \
    F(cudaMemcpyToSymbol)                                                                                              \
    F(cudaMemset)                                                                                                      \
    F(cudaMemsetAsync)                                                                                                 \
    F(cudaOccupancyMaxActiveBlocksPerMultiprocessor)                                                                   \
    F(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags)                                                          \
    F(cudaPointerGetAttributes)                                                                                        \
    F(cudaProfilerStart)                                                                                               \
    F(cudaProfilerStop)                                                                                                \
    F(cudaStreamAddCallback)

#define DEFINE_OTHER(name)                                                                                             \
    API int name(void);                                                                                                \
    int name(void)                                                                                                     \
    {                                                                                                                  \
        return note(UNSUPPORTED);                                                                                      \
    }
OTHERS(DEFINE_OTHER)
