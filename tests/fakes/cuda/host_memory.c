/* SPDX-License-Identifier: Apache-2.0 */
/* Registered host memory. */
#include "driver.h"

static int register_memory(void *address, size_t bytes, unsigned flags)
{
    fake_context *context;
    FAKE_TRY(fake_current(&context));
    uint64_t start = (uint64_t)(uintptr_t)address;
    if (address == NULL || bytes == 0 || start + bytes < start || flags > 15)
        return INVALID_VALUE;
    if (fake_range_touching(fake.pinned, start, bytes) != NULL)
        return ALREADY_REGISTERED;
    fake_range_add(&fake.pinned, start, bytes)->context = context;
    return OK;
}

int cuMemHostRegister_v2(void *address, size_t bytes, unsigned flags)
{
    FAKE_ENTER(cuMemHostRegister);
    return fake_leave(register_memory(address, bytes, flags));
}

static int unregister(void *address)
{
    fake_context *context;
    FAKE_TRY(fake_current(&context));
    fake_range *range = fake_range_at(fake.pinned, (uint64_t)(uintptr_t)address);
    if (range == NULL)
        return NOT_REGISTERED;
    fake_range_remove(&fake.pinned, range);
    return OK;
}

int cuMemHostUnregister(void *address)
{
    FAKE_ENTER(cuMemHostUnregister);
    return fake_leave(unregister(address));
}
