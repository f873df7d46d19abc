/* SPDX-License-Identifier: Apache-2.0 */
/* Device memory of the emulated driver, allocated in the context of a rank's device. */
#include "device_memory.h"

#include "fakes/cuda/fake_cuda.h"

static bp_cuda_driver driver_of(rank *r, void **context)
{
    bp_cuda_driver driver;
    fake_cuda_table(&driver);
    int device = r->team->options.shared_device ? 0 : (int)r->number;
    expect(r, driver.cuDevicePrimaryCtxRetain(context, device) == 0);
    expect(r, driver.cuCtxPushCurrent(*context) == 0);
    return driver;
}

static void leave(rank *r, const bp_cuda_driver *driver)
{
    void *context;
    expect(r, driver->cuCtxPopCurrent(&context) == 0);
    driver->cuDevicePrimaryCtxRelease(r->team->options.shared_device ? 0 : (int)r->number);
}

void *device_allocate(rank *r, size_t bytes)
{
    void *context;
    uint64_t address = 0;
    bp_cuda_driver driver = driver_of(r, &context);
    expect(r, driver.cuMemAlloc(&address, bytes) == 0);
    leave(r, &driver);
    return (void *)(uintptr_t)address; /* NOLINT(performance-no-int-to-ptr): it is one of the device */
}

void device_free(rank *r, void *memory)
{
    void *context;
    bp_cuda_driver driver = driver_of(r, &context);
    expect(r, driver.cuMemFree((uint64_t)(uintptr_t)memory) == 0);
    leave(r, &driver);
}
