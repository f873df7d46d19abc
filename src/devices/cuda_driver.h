/* SPDX-License-Identifier: Apache-2.0 */
/* Table of the CUDA driver functions that the cuda device calls; tests replace it by an emulated driver.
 *
 * The table has no CUDA types, so that no CUDA headers are needed: handles are pointers, device addresses are uint64_t, results are int
 * (CUresult). Signatures are those of the driver ABI of CUDA 12.0, for drivers of CUDA 12 and 13.
 *
 * Source: the CUDA driver API reference; cuGetProcAddress for versions. */
#ifndef BP_DEVICES_CUDA_DRIVER_H
#define BP_DEVICES_CUDA_DRIVER_H

#include <bucketpool/status.h>

/* CUmemAllocationProp, the properties of memory from cuMemCreate. */
typedef struct bp_cu_allocation_prop {
    int type;         /* 1: pinned */
    int handle_types; /* CUmemAllocationHandleType bits that the memory can be exported as: 1 POSIX file descriptor, 8 fabric */
    int location_type; /* 1: device */
    int location_id;
    void *win32_metadata;
    uint8_t compression_type;
    uint8_t gpu_direct_rdma_capable;
    uint16_t usage;
    uint8_t reserved[4];
} bp_cu_allocation_prop;

/* CUmemAccessDesc. */
typedef struct bp_cu_access {
    int location_type; /* 1: device */
    int location_id;
    int flags; /* 0 none, 1 read, 3 read and write */
} bp_cu_access;

/* CUmulticastObjectProp. */
typedef struct bp_cu_multicast_prop {
    uint32_t devices;
    size_t bytes;
    uint64_t handle_types;
    uint64_t flags;
} bp_cu_multicast_prop;

typedef struct bp_cuda_driver {
    int (*cuInit)(unsigned flags);
    int (*cuDriverGetVersion)(int *version); /* 12080 is 12.8 */
    int (*cuGetErrorName)(int error, const char **name);
    int (*cuGetErrorString)(int error, const char **text);

    int (*cuDeviceGetCount)(int *count);
    int (*cuDeviceGet)(int *device, int ordinal);
    int (*cuDeviceGetName)(char *name, int length, int device);
    int (*cuDeviceGetAttribute)(int *value, int attribute, int device);
    int (*cuDeviceCanAccessPeer)(int *can, int device, int peer);

    int (*cuDevicePrimaryCtxRetain)(void **context, int device);
    int (*cuDevicePrimaryCtxRelease)(int device);
    int (*cuCtxPushCurrent)(void *context);
    int (*cuCtxPopCurrent)(void **context);
    int (*cuCtxGetCurrent)(void **context);
    int (*cuCtxSynchronize)(void);

    int (*cuMemGetInfo)(size_t *free_bytes, size_t *total_bytes);
    int (*cuMemGetAllocationGranularity)(size_t *bytes, const bp_cu_allocation_prop *prop,
                                         int option);                                              /* 1: recommended */
    int (*cuMulticastGetGranularity)(size_t *bytes, const bp_cu_multicast_prop *prop, int option); /* may be NULL */
    int (*cuMemAddressReserve)(uint64_t *address, size_t bytes, size_t alignment, uint64_t wanted,
                               unsigned long long flags);
    int (*cuMemAddressFree)(uint64_t address, size_t bytes);
    int (*cuMemCreate)(unsigned long long *handle, size_t bytes, const bp_cu_allocation_prop *prop,
                       unsigned long long flags);
    int (*cuMemRelease)(unsigned long long handle);
    int (*cuMemMap)(uint64_t address, size_t bytes, size_t offset, unsigned long long handle, unsigned long long flags);
    int (*cuMemUnmap)(uint64_t address, size_t bytes);
    int (*cuMemSetAccess)(uint64_t address, size_t bytes, const bp_cu_access *access, size_t count);
    int (*cuMemAlloc)(uint64_t *address, size_t bytes);
    int (*cuMemFree)(uint64_t address);
    int (*cuMemAllocAsync)(uint64_t *address, size_t bytes, void *stream);
    int (*cuMemFreeAsync)(uint64_t address, void *stream);
    int (*cuMemHostRegister)(void *address, size_t bytes, unsigned flags);
    int (*cuMemHostUnregister)(void *address);

    int (*cuStreamCreate)(void **stream, unsigned flags); /* 1: does not wait for the legacy stream */
    int (*cuStreamDestroy)(void *stream);
    int (*cuStreamSynchronize)(void *stream);
    int (*cuStreamGetCtx)(void *stream, void **context);
    int (*cuStreamWaitEvent)(void *stream, void *event, unsigned flags);
    /* status: 0 not capturing, 1 active, 2 invalidated; the last three may be NULL */
    int (*cuStreamGetCaptureInfo)(void *stream, int *status, uint64_t *id, void **graph, void ***dependencies,
                                  size_t *count);
    int (*cuLaunchHostFunc)(void *stream, void (*function)(void *), void *argument);
    int (*cuMemsetD8Async)(uint64_t address, unsigned char value, size_t count, void *stream);
    int (*cuMemcpyAsync)(uint64_t to, uint64_t from, size_t bytes, void *stream);

    int (*cuEventCreate)(void **event, unsigned flags); /* 2: without times */
    int (*cuEventDestroy)(void *event);
    int (*cuEventRecord)(void *event, void *stream);
    int (*cuEventSynchronize)(void *event);

    int (*cuStreamBeginCapture)(void *stream, int mode); /* 0 global, 1 thread-local, 2 relaxed */
    int (*cuStreamEndCapture)(void *stream, void **graph);
    int (*cuGraphInstantiate)(void **executable, void *graph, unsigned long long flags);
    int (*cuGraphLaunch)(void *executable, void *stream);
    int (*cuGraphExecDestroy)(void *executable);
    int (*cuGraphDestroy)(void *graph);

    int (*cuModuleLoadData)(void **module, const void *image);
    int (*cuModuleUnload)(void *module);
    int (*cuModuleGetFunction)(void **function, void *module, const char *name);
    int (*cuFuncLoad)(void *function); /* of CUDA 12.4; may be NULL */
    int (*cuFuncGetAttribute)(int *value, int attribute, void *function);
    int (*cuFuncSetAttribute)(void *function, int attribute, int value);
    int (*cuLaunchKernel)(void *function, unsigned blocks_x, unsigned blocks_y, unsigned blocks_z, unsigned threads_x,
                          unsigned threads_y, unsigned threads_z, unsigned shared_bytes, void *stream, void **arguments,
                          void **extra);
} bp_cuda_driver;

/* Fills the table from a driver library and initialises the driver (cuInit). `library`: a path or a name for dlopen; NULL:
 * "libcuda.so.1". The library stays loaded. The current context is not changed. Any thread. Errors: BP_ERR_INVALID_ARGUMENT;
 * BP_ERR_NO_DEVICE, whose detail has the reason: no driver on this machine (the loader's message), a stub of the toolkit, a driver older
 * than CUDA 12.0, a driver that fails to start (by name and number). */
BP_API bp_status bp_cuda_driver_load(const char *library, bp_cuda_driver *driver);

#endif
