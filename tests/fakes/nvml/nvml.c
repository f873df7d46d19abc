/* SPDX-License-Identifier: Apache-2.0 */
/* NVML for rehearsals of GPU runs: the functions of nvml.h that scripts/gpu/machine.py calls, with readings that
 * change from call to call. */
#include <stddef.h>

#define API __attribute__((visibility("default")))

enum { SUCCESS = 0, INVALID_ARGUMENT = 2 };

static unsigned calls;

API int nvmlInit_v2(void);
API int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device);
API int nvmlDeviceGetClockInfo(void *device, int type, unsigned *mhz);
API int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts);
API int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius);
API int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *reasons);

int nvmlInit_v2(void)
{
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device)
{
    if (index != 0)
        return INVALID_ARGUMENT;
    *device = &calls;
    return SUCCESS;
}

/* 1: SM, 2: memory. */
int nvmlDeviceGetClockInfo(void *device, int type, unsigned *mhz)
{
    if (device != &calls || (type != 1 && type != 2))
        return INVALID_ARGUMENT;
    *mhz = type == 1 ? 1200 + ++calls % 700 : 2619;
    return SUCCESS;
}

int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts)
{
    if (device != &calls)
        return INVALID_ARGUMENT;
    *milliwatts = 70000 + calls % 500 * 1000;
    return SUCCESS;
}

int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius)
{
    if (device != &calls || sensor != 0)
        return INVALID_ARGUMENT;
    *celsius = 30 + calls % 40;
    return SUCCESS;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *reasons)
{
    if (device != &calls)
        return INVALID_ARGUMENT;
    *reasons = 1; /* idle */
    return SUCCESS;
}
