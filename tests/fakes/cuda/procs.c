/* SPDX-License-Identifier: Apache-2.0 */
/* cuGetProcAddress, and the table for programs that are linked with this library. */
#include "driver.h"

#include <string.h>

static const struct {
    const char *name;
    void (*function)(void);
    int since;
} symbols[] = {
#define FAKE_ROW(name, symbol, since) {#name, (void (*)(void))symbol, since},
    FAKE_SYMBOLS(FAKE_ROW)
#undef FAKE_ROW
};

/* CUdriverProcAddressQueryResult. */
enum { FOUND = 0, NOT_FOUND = 1, VERSION_NOT_SUFFICIENT = 2 };

static int look_up(const char *name, int version, void **function)
{
    int status = NOT_FOUND;
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        if (strcmp(symbols[i].name, name) != 0 || symbols[i].since > fake.config.version)
            continue;
        if (symbols[i].since <= version) {
            memcpy(function, &symbols[i].function, sizeof *function);
            status = FOUND;
        } else if (status == NOT_FOUND) {
            status = VERSION_NOT_SUFFICIENT;
        }
    }
    return status;
}

static int get(const char *name, void **function, int version, uint64_t flags, int *status)
{
    if (name == NULL || function == NULL || version > fake.config.version || flags > 2)
        return INVALID_VALUE;
    *function = NULL;
    int found = look_up(name, version, function);
    if (status != NULL)
        *status = found;
    return OK;
}

int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status)
{
    FAKE_ENTER(cuGetProcAddress);
    return fake_leave(get(name, function, version, flags, status));
}

int cuGetProcAddress(const char *name, void **function, int version, uint64_t flags)
{
    FAKE_ENTER(cuGetProcAddress);
    return fake_leave(get(name, function, version, flags, NULL));
}

FAKE_API void fake_cuda_table(bp_cuda_driver *driver)
{
    *driver = (bp_cuda_driver){
        .cuInit = cuInit,
        .cuDriverGetVersion = cuDriverGetVersion,
        .cuGetErrorName = cuGetErrorName,
        .cuGetErrorString = cuGetErrorString,
        .cuDeviceGetCount = cuDeviceGetCount,
        .cuDeviceGet = cuDeviceGet,
        .cuDeviceGetName = cuDeviceGetName,
        .cuDeviceGetAttribute = cuDeviceGetAttribute,
        .cuDeviceCanAccessPeer = cuDeviceCanAccessPeer,
        .cuDevicePrimaryCtxRetain = cuDevicePrimaryCtxRetain,
        .cuDevicePrimaryCtxRelease = cuDevicePrimaryCtxRelease_v2,
        .cuCtxPushCurrent = cuCtxPushCurrent_v2,
        .cuCtxPopCurrent = cuCtxPopCurrent_v2,
        .cuCtxGetCurrent = cuCtxGetCurrent,
        .cuCtxSynchronize = cuCtxSynchronize,
        .cuMemGetInfo = cuMemGetInfo_v2,
        .cuMemGetAllocationGranularity = cuMemGetAllocationGranularity,
        .cuMulticastGetGranularity = cuMulticastGetGranularity,
        .cuMemAddressReserve = cuMemAddressReserve,
        .cuMemAddressFree = cuMemAddressFree,
        .cuMemCreate = cuMemCreate,
        .cuMemRelease = cuMemRelease,
        .cuMemMap = cuMemMap,
        .cuMemUnmap = cuMemUnmap,
        .cuMemSetAccess = cuMemSetAccess,
        .cuMemAlloc = cuMemAlloc_v2,
        .cuMemFree = cuMemFree_v2,
        .cuMemAllocAsync = cuMemAllocAsync,
        .cuMemFreeAsync = cuMemFreeAsync,
        .cuMemHostRegister = cuMemHostRegister_v2,
        .cuMemHostUnregister = cuMemHostUnregister,
        .cuStreamCreate = cuStreamCreate,
        .cuStreamDestroy = cuStreamDestroy_v2,
        .cuStreamSynchronize = cuStreamSynchronize,
        .cuStreamGetCtx = cuStreamGetCtx,
        .cuStreamWaitEvent = cuStreamWaitEvent,
        .cuStreamGetCaptureInfo = cuStreamGetCaptureInfo_v2,
        .cuLaunchHostFunc = cuLaunchHostFunc,
        .cuMemsetD8Async = cuMemsetD8Async,
        .cuMemcpyAsync = cuMemcpyAsync,
        .cuEventCreate = cuEventCreate,
        .cuEventDestroy = cuEventDestroy_v2,
        .cuEventRecord = cuEventRecord,
        .cuEventSynchronize = cuEventSynchronize,
        .cuStreamBeginCapture = cuStreamBeginCapture_v2,
        .cuStreamEndCapture = cuStreamEndCapture,
        .cuGraphInstantiate = cuGraphInstantiateWithFlags,
        .cuGraphLaunch = cuGraphLaunch,
        .cuGraphExecDestroy = cuGraphExecDestroy,
        .cuGraphDestroy = cuGraphDestroy,
        .cuModuleLoadData = cuModuleLoadData,
        .cuModuleUnload = cuModuleUnload,
        .cuModuleGetFunction = cuModuleGetFunction,
        .cuFuncLoad = cuFuncLoad,
        .cuFuncGetAttribute = cuFuncGetAttribute,
        .cuFuncSetAttribute = cuFuncSetAttribute,
        .cuLaunchKernel = cuLaunchKernel,
    };
}
