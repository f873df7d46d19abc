/* SPDX-License-Identifier: Apache-2.0 */
/* Helpers of the tests of the emulated driver. */
#ifndef BP_TESTS_CUDA_FAKE_SUPPORT_H
#define BP_TESTS_CUDA_FAKE_SUPPORT_H

#include <stdatomic.h>
#include <time.h>

#include "driver.h"
#include "support/suite/suite.h"

#define okay(call) assert_int_equal((call), 0)

static const bp_cu_allocation_prop on_device = {.type = 1, .handle_types = 1, .location_type = 1};
static const bp_cu_access for_device = {.location_type = 1, .flags = 3};

/* A driver configured by `config`, with the context of device 0 current. */
static inline void *start_driver(const fake_cuda_config *config)
{
    void *context = NULL;
    fake_cuda_configure(config);
    okay(cuInit(0));
    okay(cuDevicePrimaryCtxRetain(&context, 0));
    okay(cuCtxPushCurrent_v2(context));
    return context;
}

static inline void *start_default_driver(void)
{
    fake_cuda_config config;
    fake_cuda_config_init(&config);
    return start_driver(&config);
}

/* Asserts that no rule was broken and only the context is left. */
static inline void stop_driver(void)
{
    okay(cuDevicePrimaryCtxRelease_v2(0));
    assert_string_equal(fake_cuda_broken(), "");
    assert_string_equal(fake_cuda_leaks(), "");
    fake_cuda_reset();
}

static inline uint64_t map_memory(uint64_t bytes, unsigned long long *handle)
{
    uint64_t address = 0;
    okay(cuMemAddressReserve(&address, bytes, 0, 0, 0));
    okay(cuMemCreate(handle, bytes, &on_device, 0));
    okay(cuMemMap(address, bytes, 0, *handle, 0));
    okay(cuMemSetAccess(address, bytes, &for_device, 1));
    return address;
}

static inline void unmap_memory(uint64_t address, uint64_t bytes, unsigned long long handle)
{
    okay(cuMemUnmap(address, bytes));
    okay(cuMemRelease(handle));
    okay(cuMemAddressFree(address, bytes));
}

/* A host function that waits for the flag, for five seconds at most. */
static inline void wait_at_gate(void *argument)
{
    for (int i = 0; i < 5000 && atomic_load((atomic_int *)argument) == 0; i++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

#endif
