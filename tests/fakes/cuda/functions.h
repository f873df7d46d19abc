/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of the emulated driver. */
#ifndef FAKE_CUDA_FUNCTIONS_H
#define FAKE_CUDA_FUNCTIONS_H

/* Allowed before cuInit; refused during unsafe captures; refused only with vmm_unsafe, because no source tells; works in a context with a
 * lasting error. */
enum { FAKE_EARLY = 1, FAKE_UNSAFE = 2, FAKE_PERHAPS_UNSAFE = 4, FAKE_WITHOUT_WORK = 8 };

/* Public name, and flags. */
#define FAKE_FUNCTIONS(F)                                                                                              \
    F(cuInit, FAKE_EARLY)                                                                                              \
    F(cuDriverGetVersion, FAKE_EARLY)                                                                                  \
    F(cuGetErrorName, FAKE_EARLY)                                                                                      \
    F(cuGetErrorString, FAKE_EARLY)                                                                                    \
    F(cuGetProcAddress, FAKE_EARLY)                                                                                    \
    F(cuDeviceGetCount, FAKE_WITHOUT_WORK)                                                                             \
    F(cuDeviceGet, FAKE_WITHOUT_WORK)                                                                                  \
    F(cuDeviceGetName, FAKE_WITHOUT_WORK)                                                                              \
    F(cuDeviceGetAttribute, FAKE_WITHOUT_WORK)                                                                         \
    F(cuDeviceCanAccessPeer, FAKE_WITHOUT_WORK)                                                                        \
    F(cuDeviceTotalMem, FAKE_WITHOUT_WORK)                                                                             \
    F(cuDevicePrimaryCtxRetain, FAKE_WITHOUT_WORK)                                                                     \
    F(cuDevicePrimaryCtxRelease, FAKE_WITHOUT_WORK)                                                                    \
    F(cuDevicePrimaryCtxGetState, FAKE_WITHOUT_WORK)                                                                   \
    F(cuCtxPushCurrent, FAKE_WITHOUT_WORK)                                                                             \
    F(cuCtxPopCurrent, FAKE_WITHOUT_WORK)                                                                              \
    F(cuCtxGetCurrent, FAKE_WITHOUT_WORK)                                                                              \
    F(cuCtxSetCurrent, FAKE_WITHOUT_WORK)                                                                              \
    F(cuCtxGetDevice, FAKE_WITHOUT_WORK)                                                                               \
    F(cuCtxSynchronize, 0)                                                                                             \
    F(cuMemGetInfo, 0)                                                                                                 \
    F(cuMemGetAllocationGranularity, 0)                                                                                \
    F(cuMulticastGetGranularity, 0)                                                                                    \
    F(cuMemAddressReserve, FAKE_PERHAPS_UNSAFE)                                                                        \
    F(cuMemAddressFree, FAKE_PERHAPS_UNSAFE)                                                                           \
    F(cuMemCreate, FAKE_PERHAPS_UNSAFE)                                                                                \
    F(cuMemRelease, FAKE_PERHAPS_UNSAFE)                                                                               \
    F(cuMemRetainAllocationHandle, 0)                                                                                  \
    F(cuMemMap, FAKE_PERHAPS_UNSAFE)                                                                                   \
    F(cuMemUnmap, FAKE_PERHAPS_UNSAFE)                                                                                 \
    F(cuMemSetAccess, FAKE_PERHAPS_UNSAFE)                                                                             \
    F(cuMemGetAddressRange, 0)                                                                                         \
    F(cuMemAlloc, FAKE_UNSAFE)                                                                                         \
    F(cuMemFree, FAKE_UNSAFE)                                                                                          \
    F(cuMemAllocAsync, 0)                                                                                              \
    F(cuMemFreeAsync, 0)                                                                                               \
    F(cuDeviceGetDefaultMemPool, 0)                                                                                    \
    F(cuMemPoolGetAttribute, 0)                                                                                        \
    F(cuMemPoolSetAttribute, 0)                                                                                        \
    F(cuMemPoolTrimTo, 0)                                                                                              \
    F(cuMemHostRegister, FAKE_UNSAFE)                                                                                  \
    F(cuMemHostUnregister, FAKE_UNSAFE)                                                                                \
    F(cuStreamCreate, 0)                                                                                               \
    F(cuStreamDestroy, 0)                                                                                              \
    F(cuStreamSynchronize, 0)                                                                                          \
    F(cuStreamQuery, 0)                                                                                                \
    F(cuStreamGetCtx, 0)                                                                                               \
    F(cuStreamGetFlags, 0)                                                                                             \
    F(cuStreamWaitEvent, 0)                                                                                            \
    F(cuLaunchHostFunc, 0)                                                                                             \
    F(cuStreamWaitValue32, 0)                                                                                          \
    F(cuMemsetD8Async, 0)                                                                                              \
    F(cuMemcpyAsync, 0)                                                                                                \
    F(cuEventCreate, 0)                                                                                                \
    F(cuEventDestroy, 0)                                                                                               \
    F(cuEventRecord, 0)                                                                                                \
    F(cuEventSynchronize, 0)                                                                                           \
    F(cuEventQuery, 0)                                                                                                 \
    F(cuStreamBeginCapture, 0)                                                                                         \
    F(cuStreamEndCapture, 0)                                                                                           \
    F(cuStreamIsCapturing, 0)                                                                                          \
    F(cuStreamGetCaptureInfo, 0)                                                                                       \
    F(cuThreadExchangeStreamCaptureMode, 0)                                                                            \
    F(cuGraphInstantiate, 0)                                                                                           \
    F(cuGraphLaunch, 0)                                                                                                \
    F(cuGraphExecDestroy, 0)                                                                                           \
    F(cuGraphDestroy, 0)                                                                                               \
    F(cuModuleLoadData, FAKE_PERHAPS_UNSAFE)                                                                           \
    F(cuModuleUnload, FAKE_PERHAPS_UNSAFE)                                                                             \
    F(cuModuleGetFunction, FAKE_PERHAPS_UNSAFE)                                                                        \
    F(cuFuncLoad, FAKE_PERHAPS_UNSAFE)                                                                                 \
    F(cuFuncGetAttribute, 0)                                                                                           \
    F(cuFuncSetAttribute, 0)                                                                                           \
    F(cuLaunchKernel, 0)

/* Name, symbol with the ABI, and the first CUDA version for which cuGetProcAddress returns it (cudaTypedefs.h).
 * Several symbols of one name are in ascending order. cuGraphInstantiate is left out on purpose: the symbol of this
 * name is CUDA 11's function with five arguments. */
#define FAKE_SYMBOLS(S)                                                                                                \
    S(cuInit, cuInit, 2000)                                                                                            \
    S(cuDriverGetVersion, cuDriverGetVersion, 2020)                                                                    \
    S(cuGetErrorName, cuGetErrorName, 6000)                                                                            \
    S(cuGetErrorString, cuGetErrorString, 6000)                                                                        \
    S(cuGetProcAddress, cuGetProcAddress, 11030)                                                                       \
    S(cuGetProcAddress, cuGetProcAddress_v2, 12000)                                                                    \
    S(cuDeviceGetCount, cuDeviceGetCount, 2000)                                                                        \
    S(cuDeviceGet, cuDeviceGet, 2000)                                                                                  \
    S(cuDeviceGetName, cuDeviceGetName, 2000)                                                                          \
    S(cuDeviceGetAttribute, cuDeviceGetAttribute, 2000)                                                                \
    S(cuDeviceCanAccessPeer, cuDeviceCanAccessPeer, 4000)                                                              \
    S(cuDeviceTotalMem, cuDeviceTotalMem_v2, 3020)                                                                     \
    S(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, 7000)                                                        \
    S(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, 11000)                                                  \
    S(cuDevicePrimaryCtxGetState, cuDevicePrimaryCtxGetState, 7000)                                                    \
    S(cuCtxPushCurrent, cuCtxPushCurrent_v2, 4000)                                                                     \
    S(cuCtxPopCurrent, cuCtxPopCurrent_v2, 4000)                                                                       \
    S(cuCtxGetCurrent, cuCtxGetCurrent, 4000)                                                                          \
    S(cuCtxSetCurrent, cuCtxSetCurrent, 4000)                                                                          \
    S(cuCtxGetDevice, cuCtxGetDevice, 2000)                                                                            \
    S(cuCtxGetDevice, cuCtxGetDevice_v2, 13000)                                                                        \
    S(cuCtxSynchronize, cuCtxSynchronize, 2000)                                                                        \
    S(cuCtxSynchronize, cuCtxSynchronize_v2, 13000)                                                                    \
    S(cuMemGetInfo, cuMemGetInfo_v2, 3020)                                                                             \
    S(cuMemGetAllocationGranularity, cuMemGetAllocationGranularity, 10020)                                             \
    S(cuMulticastGetGranularity, cuMulticastGetGranularity, 12010)                                                     \
    S(cuMemAddressReserve, cuMemAddressReserve, 10020)                                                                 \
    S(cuMemAddressFree, cuMemAddressFree, 10020)                                                                       \
    S(cuMemCreate, cuMemCreate, 10020)                                                                                 \
    S(cuMemRelease, cuMemRelease, 10020)                                                                               \
    S(cuMemRetainAllocationHandle, cuMemRetainAllocationHandle, 11000)                                                 \
    S(cuMemMap, cuMemMap, 10020)                                                                                       \
    S(cuMemUnmap, cuMemUnmap, 10020)                                                                                   \
    S(cuMemSetAccess, cuMemSetAccess, 10020)                                                                           \
    S(cuMemGetAddressRange, cuMemGetAddressRange_v2, 3020)                                                             \
    S(cuMemAlloc, cuMemAlloc_v2, 3020)                                                                                 \
    S(cuMemFree, cuMemFree_v2, 3020)                                                                                   \
    S(cuMemAllocAsync, cuMemAllocAsync, 11020)                                                                         \
    S(cuMemFreeAsync, cuMemFreeAsync, 11020)                                                                           \
    S(cuDeviceGetDefaultMemPool, cuDeviceGetDefaultMemPool, 11020)                                                     \
    S(cuMemPoolGetAttribute, cuMemPoolGetAttribute, 11020)                                                             \
    S(cuMemPoolSetAttribute, cuMemPoolSetAttribute, 11020)                                                             \
    S(cuMemPoolTrimTo, cuMemPoolTrimTo, 11020)                                                                         \
    S(cuMemHostRegister, cuMemHostRegister_v2, 6050)                                                                   \
    S(cuMemHostUnregister, cuMemHostUnregister, 4000)                                                                  \
    S(cuStreamCreate, cuStreamCreate, 2000)                                                                            \
    S(cuStreamDestroy, cuStreamDestroy_v2, 4000)                                                                       \
    S(cuStreamSynchronize, cuStreamSynchronize, 2000)                                                                  \
    S(cuStreamQuery, cuStreamQuery, 2000)                                                                              \
    S(cuStreamGetCtx, cuStreamGetCtx, 9020)                                                                            \
    S(cuStreamGetCtx, cuStreamGetCtx_v2, 12050)                                                                        \
    S(cuStreamGetFlags, cuStreamGetFlags, 5050)                                                                        \
    S(cuStreamWaitEvent, cuStreamWaitEvent, 3020)                                                                      \
    S(cuLaunchHostFunc, cuLaunchHostFunc, 10000)                                                                       \
    S(cuStreamWaitValue32, cuStreamWaitValue32_v2, 11070)                                                              \
    S(cuMemsetD8Async, cuMemsetD8Async, 3020)                                                                          \
    S(cuMemcpyAsync, cuMemcpyAsync, 4000)                                                                              \
    S(cuEventCreate, cuEventCreate, 2000)                                                                              \
    S(cuEventDestroy, cuEventDestroy_v2, 4000)                                                                         \
    S(cuEventRecord, cuEventRecord, 2000)                                                                              \
    S(cuEventSynchronize, cuEventSynchronize, 2000)                                                                    \
    S(cuEventQuery, cuEventQuery, 2000)                                                                                \
    S(cuStreamBeginCapture, cuStreamBeginCapture_v2, 10010)                                                            \
    S(cuStreamEndCapture, cuStreamEndCapture, 10000)                                                                   \
    S(cuStreamIsCapturing, cuStreamIsCapturing, 10000)                                                                 \
    S(cuStreamGetCaptureInfo, cuStreamGetCaptureInfo, 10010)                                                           \
    S(cuStreamGetCaptureInfo, cuStreamGetCaptureInfo_v2, 11030)                                                        \
    S(cuStreamGetCaptureInfo, cuStreamGetCaptureInfo_v3, 12030)                                                        \
    S(cuThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode, 10010)                                     \
    S(cuGraphInstantiateWithFlags, cuGraphInstantiateWithFlags, 11040)                                                 \
    S(cuGraphLaunch, cuGraphLaunch, 10000)                                                                             \
    S(cuGraphExecDestroy, cuGraphExecDestroy, 10000)                                                                   \
    S(cuGraphDestroy, cuGraphDestroy, 10000)                                                                           \
    S(cuModuleLoadData, cuModuleLoadData, 2000)                                                                        \
    S(cuModuleUnload, cuModuleUnload, 2000)                                                                            \
    S(cuModuleGetFunction, cuModuleGetFunction, 2000)                                                                  \
    S(cuFuncLoad, cuFuncLoad, 12040)                                                                                   \
    S(cuFuncGetAttribute, cuFuncGetAttribute, 2020)                                                                    \
    S(cuFuncSetAttribute, cuFuncSetAttribute, 9000)                                                                    \
    S(cuLaunchKernel, cuLaunchKernel, 4000)

#endif
