/* Dynamic requests. Memory is the device's own stream-ordered memory; a stream
 * of the pool's, the reaper, waits for the release points and frees, so that no stream of the caller waits for another. */
#include "allocators/dynamic.h"

#include <stdio.h>

#include "allocators/engine.h"
#include "core/fail.h"

bp_status bp_dynamic_prepare(bp_pool *pool)
{
    return pool->reaper != NULL ? BP_OK : bp_stream_create(pool->device, "reaper", &pool->reaper);
}

bp_status bp_dynamic_claim(bp_pool *pool, uint32_t id, bp_stream *stream, bool patient)
{
    bp_entry *r = &pool->entries[id];
    void *address;
    bp_status status = bp_device_allocate(pool->device, r->bytes, stream, &address);
    if (status == BP_ERR_NO_DEVICE_MEMORY && patient) { /* memory may be on its way back */
        BP_TRY(bp_stream_synchronize(pool->reaper));
        status = bp_device_allocate(pool->device, r->bytes, stream, &address);
    }
    BP_TRY(status);
    r->first = 0;
    r->count = 0;
    atomic_store_explicit(&r->address, address, memory_order_relaxed);
    return BP_OK;
}

bp_status bp_dynamic_mark(bp_pool *pool, uint32_t id, bp_stream *stream)
{
    bp_entry *r = &pool->entries[id];
    uint64_t point;
    bool recorded;
    BP_TRY(bp_stream_record_point(stream, &point, &recorded));
    r->fence = bp_fence_of(pool, 0, 0, id);
    pool->fences[r->fence] = (bp_fence){.count = recorded, .points = {{.stream = stream, .point = point}}};
    return BP_OK;
}

/* The device does not take the memory back now: keep it until the pool goes. */
static void keep_unfreed(bp_pool *pool, void *address, uint64_t bytes)
{
    char text[160];
    pthread_mutex_lock(&pool->binding);
    if (pool->unfreed_count < BP_MOST_UNFREED)
        pool->unfreed[pool->unfreed_count++] = (bp_unfreed){address, bytes};
    pthread_mutex_unlock(&pool->binding);
    snprintf(text, sizeof text, "pool %.40s: the device did not take %llu bytes of dynamic memory back",
             pool->info.name, (unsigned long long)bytes);
    if (pool->on_message != NULL)
        pool->on_message(pool->user, text);
}

void bp_dynamic_unclaim(bp_pool *pool, uint32_t id, bp_stream *stream)
{
    bp_entry *r = &pool->entries[id];
    void *address = atomic_load_explicit(&r->address, memory_order_relaxed);
    atomic_store_explicit(&r->address, NULL, memory_order_relaxed);
    if (bp_device_free(pool->device, address, r->bytes, stream) != BP_OK)
        keep_unfreed(pool, address, r->bytes);
}

void bp_dynamic_free(bp_pool *pool, uint32_t id)
{
    bp_dynamic_unclaim(pool, id, pool->reaper);
}

void bp_dynamic_finish(bp_pool *pool)
{
    if (pool->reaper == NULL)
        return;
    uint32_t count = bp_request_count(pool);
    for (uint32_t id = 0; id < count; id++) {
        bp_entry *r = &pool->entries[id];
        void *address = atomic_load_explicit(&r->address, memory_order_relaxed);
        if (r->kind == BP_KIND_DYNAMIC && address != NULL)
            bp_device_free(pool->device, address, r->bytes, pool->reaper);
    }
    for (uint32_t i = 0; i < pool->unfreed_count; i++)
        bp_device_free(pool->device, pool->unfreed[i].address, pool->unfreed[i].bytes, pool->reaper);
    bp_stream_destroy(&pool->reaper);
}
