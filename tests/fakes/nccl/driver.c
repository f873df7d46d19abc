/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL's calls of the driver, which is the emulated one. */
#include <stdlib.h>

#include "state.h"

int cuCtxGetCurrent(void **context);
int cuCtxSetCurrent(void *context);
int cuCtxGetDevice(int *device);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuDevicePrimaryCtxRelease_v2(int device);
int cuDeviceGetCount(int *count);
int cuLaunchHostFunc(void *stream, void (*function)(void *), void *argument);
int cuInit(unsigned flags);

void *driver_current_context(void)
{
    void *context = NULL;
    return cuCtxGetCurrent(&context) == 0 ? context : NULL;
}

void driver_set_context(void *context)
{
    cuCtxSetCurrent(context);
}

/* Like cudaGetDevice: 0 if no context is current. */
int driver_current_device(int *device)
{
    if (cuInit(0) != 0)
        return NCCL_CUDA_ERROR;
    if (driver_current_context() == NULL)
        *device = 0;
    else if (cuCtxGetDevice(device) != 0)
        return NCCL_CUDA_ERROR;
    return NCCL_SUCCESS;
}

int driver_device_count(void)
{
    int count = 0;
    return cuInit(0) == 0 && cuDeviceGetCount(&count) == 0 ? count : 0;
}

int driver_retain(int device, void **context)
{
    return cuDevicePrimaryCtxRetain(context, device) == 0 ? NCCL_SUCCESS : NCCL_CUDA_ERROR;
}

void driver_release(int device)
{
    cuDevicePrimaryCtxRelease_v2(device);
}

int driver_launch(void *stream, void (*function)(void *), void *argument)
{
    return cuLaunchHostFunc(stream, function, argument) == 0 ? NCCL_SUCCESS : NCCL_CUDA_ERROR;
}
