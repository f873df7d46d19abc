/* SPDX-License-Identifier: Apache-2.0 */
/* The exported functions, as in the CUDA driver API reference, with the types of devices/cuda_driver.h. */
#ifndef FAKE_CUDA_DRIVER_H
#define FAKE_CUDA_DRIVER_H

#include "fake.h"

FAKE_API int cuInit(unsigned flags);
FAKE_API int cuDriverGetVersion(int *version);
FAKE_API int cuGetErrorName(int error, const char **name);
FAKE_API int cuGetErrorString(int error, const char **text);
FAKE_API int cuGetProcAddress(const char *name, void **function, int version, uint64_t flags);
FAKE_API int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status);

FAKE_API int cuDeviceGetCount(int *count);
FAKE_API int cuDeviceGet(int *device, int ordinal);
FAKE_API int cuDeviceGetName(char *name, int length, int device);
FAKE_API int cuDeviceGetAttribute(int *value, int attribute, int device);
FAKE_API int cuDeviceCanAccessPeer(int *can, int device, int peer);
FAKE_API int cuDeviceTotalMem_v2(size_t *bytes, int device);

FAKE_API int cuDevicePrimaryCtxRetain(void **context, int device);
FAKE_API int cuDevicePrimaryCtxRelease_v2(int device);
FAKE_API int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active);
FAKE_API int cuCtxPushCurrent_v2(void *context);
FAKE_API int cuCtxPopCurrent_v2(void **context);
FAKE_API int cuCtxGetCurrent(void **context);
FAKE_API int cuCtxSetCurrent(void *context);
FAKE_API int cuCtxGetDevice(int *device);
FAKE_API int cuCtxGetDevice_v2(int *device, void *context);
FAKE_API int cuCtxSynchronize(void);
FAKE_API int cuCtxSynchronize_v2(void *context);

FAKE_API int cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes);
FAKE_API int cuMemGetAllocationGranularity(size_t *bytes, const bp_cu_allocation_prop *prop, int option);
FAKE_API int cuMulticastGetGranularity(size_t *bytes, const bp_cu_multicast_prop *prop, int option);
FAKE_API int cuMemAddressReserve(uint64_t *address, size_t bytes, size_t alignment, uint64_t wanted,
                                 unsigned long long flags);
FAKE_API int cuMemAddressFree(uint64_t address, size_t bytes);
FAKE_API int cuMemCreate(unsigned long long *handle, size_t bytes, const bp_cu_allocation_prop *prop,
                         unsigned long long flags);
FAKE_API int cuMemRelease(unsigned long long handle);
FAKE_API int cuMemRetainAllocationHandle(unsigned long long *handle, void *address);
FAKE_API int cuMemMap(uint64_t address, size_t bytes, size_t offset, unsigned long long handle,
                      unsigned long long flags);
FAKE_API int cuMemUnmap(uint64_t address, size_t bytes);
FAKE_API int cuMemSetAccess(uint64_t address, size_t bytes, const bp_cu_access *access, size_t count);
FAKE_API int cuMemGetAddressRange_v2(uint64_t *base, size_t *bytes, uint64_t address);
FAKE_API int cuMemAlloc_v2(uint64_t *address, size_t bytes);
FAKE_API int cuMemFree_v2(uint64_t address);
FAKE_API int cuMemAllocAsync(uint64_t *address, size_t bytes, void *stream);
FAKE_API int cuMemFreeAsync(uint64_t address, void *stream);
FAKE_API int cuDeviceGetDefaultMemPool(void **pool, int device);
FAKE_API int cuMemPoolGetAttribute(void *pool, int attribute, void *value);
FAKE_API int cuMemPoolSetAttribute(void *pool, int attribute, void *value);
FAKE_API int cuMemPoolTrimTo(void *pool, size_t keep);
FAKE_API int cuMemHostRegister_v2(void *address, size_t bytes, unsigned flags);
FAKE_API int cuMemHostUnregister(void *address);

FAKE_API int cuStreamCreate(void **stream, unsigned flags);
FAKE_API int cuStreamDestroy_v2(void *stream);
FAKE_API int cuStreamSynchronize(void *stream);
FAKE_API int cuStreamQuery(void *stream);
FAKE_API int cuStreamGetCtx(void *stream, void **context);
FAKE_API int cuStreamGetCtx_v2(void *stream, void **context, void **green);
FAKE_API int cuStreamGetFlags(void *stream, unsigned *flags);
FAKE_API int cuStreamWaitEvent(void *stream, void *event, unsigned flags);
FAKE_API int cuLaunchHostFunc(void *stream, void (*function)(void *), void *argument);
FAKE_API int cuStreamWaitValue32_v2(void *stream, uint64_t address, uint32_t value, unsigned flags);
FAKE_API int cuMemsetD8Async(uint64_t address, unsigned char value, size_t count, void *stream);
FAKE_API int cuMemcpyAsync(uint64_t to, uint64_t from, size_t bytes, void *stream);

FAKE_API int cuEventCreate(void **event, unsigned flags);
FAKE_API int cuEventDestroy_v2(void *event);
FAKE_API int cuEventRecord(void *event, void *stream);
FAKE_API int cuEventSynchronize(void *event);
FAKE_API int cuEventQuery(void *event);

FAKE_API int cuStreamBeginCapture_v2(void *stream, int mode);
FAKE_API int cuStreamEndCapture(void *stream, void **graph);
FAKE_API int cuStreamIsCapturing(void *stream, int *status);
FAKE_API int cuStreamGetCaptureInfo(void *stream, int *status, uint64_t *id);
FAKE_API int cuStreamGetCaptureInfo_v2(void *stream, int *status, uint64_t *id, void **graph, void ***dependencies,
                                       size_t *count);
FAKE_API int cuStreamGetCaptureInfo_v3(void *stream, int *status, uint64_t *id, void **graph, void ***dependencies,
                                       const void **edges, size_t *count);
FAKE_API int cuThreadExchangeStreamCaptureMode(int *mode);
FAKE_API int cuGraphInstantiateWithFlags(void **executable, void *graph, unsigned long long flags);
FAKE_API int cuGraphLaunch(void *executable, void *stream);
FAKE_API int cuGraphExecDestroy(void *executable);
FAKE_API int cuGraphDestroy(void *graph);

FAKE_API int cuModuleLoadData(void **module, const void *image);
FAKE_API int cuModuleUnload(void *module);
FAKE_API int cuModuleGetFunction(void **function, void *module, const char *name);
FAKE_API int cuFuncLoad(void *function);
FAKE_API int cuFuncGetAttribute(int *value, int attribute, void *function);
FAKE_API int cuFuncSetAttribute(void *function, int attribute, int value);
FAKE_API int cuLaunchKernel(void *function, unsigned blocks_x, unsigned blocks_y, unsigned blocks_z, unsigned threads_x,
                            unsigned threads_y, unsigned threads_z, unsigned shared_bytes, void *stream,
                            void **arguments, void **extra);

#endif
