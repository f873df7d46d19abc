/* SPDX-License-Identifier: Apache-2.0 */
/* The default memory pool of each device: bytes freed in stream order count as used by the device, up to the release
 * threshold. Lowering the threshold frees nothing; cuMemPoolTrimTo does, and so does running out of memory. */
#include "driver.h"

/* CUmemPool_attribute. */
enum { RELEASE_THRESHOLD = 4 };

int fake_pool_take(int device, uint64_t bytes)
{
    fake_pool *pool = &fake.pools[device];
    const uint64_t kept = pool->kept < bytes ? pool->kept : bytes;
    pool->kept -= kept;
    int result = fake_memory_take(device, bytes - kept);
    if (result != OK)
        pool->kept += kept;
    return result;
}

void fake_pool_trim(int device, uint64_t keep)
{
    fake_pool *pool = &fake.pools[device];
    if (pool->kept <= keep)
        return;
    fake_memory_give(device, pool->kept - keep);
    pool->kept = keep;
}

void fake_pool_give(int device, uint64_t bytes)
{
    fake_pool *pool = &fake.pools[device];
    const uint64_t room = pool->threshold > pool->kept ? pool->threshold - pool->kept : 0;
    const uint64_t kept = bytes < room ? bytes : room;
    pool->kept += kept;
    fake_memory_give(device, bytes - kept);
}

static fake_pool *find(const void *handle)
{
    for (int i = 0; i < fake.config.devices; i++)
        if (handle == &fake.pools[i])
            return &fake.pools[i];
    return NULL;
}

int cuDeviceGetDefaultMemPool(void **pool, int device)
{
    FAKE_ENTER(cuDeviceGetDefaultMemPool);
    if (pool == NULL || device < 0 || device >= fake.config.devices)
        return fake_leave(pool == NULL ? INVALID_VALUE : INVALID_DEVICE);
    *pool = &fake.pools[device];
    return fake_leave(OK);
}

int cuMemPoolGetAttribute(void *handle, int attribute, void *value)
{
    FAKE_ENTER(cuMemPoolGetAttribute);
    const fake_pool *pool = find(handle);
    if (pool == NULL || value == NULL || attribute != RELEASE_THRESHOLD)
        return fake_leave(INVALID_VALUE);
    memcpy(value, &pool->threshold, sizeof pool->threshold);
    return fake_leave(OK);
}

int cuMemPoolSetAttribute(void *handle, int attribute, void *value)
{
    FAKE_ENTER(cuMemPoolSetAttribute);
    fake_pool *pool = find(handle);
    if (pool == NULL || value == NULL || attribute != RELEASE_THRESHOLD)
        return fake_leave(INVALID_VALUE);
    memcpy(&pool->threshold, value, sizeof pool->threshold);
    return fake_leave(OK);
}

int cuMemPoolTrimTo(void *handle, size_t keep)
{
    FAKE_ENTER(cuMemPoolTrimTo);
    fake_pool *pool = find(handle);
    if (pool == NULL)
        return fake_leave(INVALID_VALUE);
    fake_pool_trim((int)(pool - fake.pools), keep);
    return fake_leave(OK);
}
