/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of a pool: planned ones are made with the pool, others are bound later. Also their promised streams and zeroing. */
#include "allocators/pool.h"

#include <bucketpool/core/arith.h>
#include <bucketpool/core/fail.h>
#include <bucketpool/core/structs.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "allocators/capture.h"
#include "allocators/engine.h"
#include "allocators/observers.h"
#include "allocators/report.h"
#include "allocators/residency.h"
#include "planner/plan.h"

/* ---- dynamic requests -------------------------------------------------------------------------------------------- */

bp_status bp_dynamic_claim(bp_pool *pool, uint32_t id, bp_stream *stream, bool patient)
{
    bp_entry *r = &pool->entries[id];
    void *address;
    bp_status status = bp_device_allocate(pool->device, r->bytes, stream, &address);
    if (status == BP_ERR_NO_DEVICE_MEMORY && patient) { /* pending frees may return memory */
        BP_TRY(bp_stream_synchronize(pool->dynamic.reaper));
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

void bp_dynamic_free(bp_pool *pool, uint32_t id, bp_stream *stream)
{
    bp_entry *r = &pool->entries[id];
    void *address = bp_entry_address(r);
    char text[160];
    atomic_store_explicit(&r->address, NULL, memory_order_relaxed);
    if (bp_device_free(pool->device, address, r->bytes, stream) == BP_OK)
        return;
    pthread_mutex_lock(&pool->binding); /* the device failed to free it: kept until the pool is destroyed */
    if (pool->dynamic.unfreed_count < BP_MAX_UNFREED)
        pool->dynamic.unfreed[pool->dynamic.unfreed_count++] = (bp_unfreed){address, r->bytes};
    pthread_mutex_unlock(&pool->binding);
    snprintf(text, sizeof text, "pool %.40s: the device could not free %llu bytes of dynamic memory", pool->info.name,
             (unsigned long long)r->bytes);
    if (pool->on_message != NULL)
        pool->on_message(pool->user, text);
}

void bp_dynamic_finish(bp_pool *pool)
{
    if (pool->dynamic.reaper == NULL)
        return;
    uint32_t count = bp_request_count(pool);
    for (uint32_t id = 0; id < count; id++) {
        bp_entry *r = &pool->entries[id];
        void *address = bp_entry_address(r);
        if (r->kind == BP_KIND_DYNAMIC && address != NULL)
            bp_device_free(pool->device, address, r->bytes, pool->dynamic.reaper);
    }
    for (uint32_t i = 0; i < pool->dynamic.unfreed_count; i++)
        bp_device_free(pool->device, pool->dynamic.unfreed[i].address, pool->dynamic.unfreed[i].bytes,
                       pool->dynamic.reaper);
    bp_stream_destroy(&pool->dynamic.reaper);
}

/* ---- requests ---------------------------------------------------------------------------------------------------- */

/* Fills the entry of a request from its description, home and class. Called under the binding lock, or before the pool serves. Errors:
 * BP_ERR_OVERFLOW, BP_ERR_NO_HOST_MEMORY. */
static bp_status fill_entry(bp_pool *pool, uint32_t id)
{
    const bp_plan_request *request = &pool->requests[id];
    bp_entry *r = &pool->entries[id];
    char text[BP_PLAN_REQUEST_BYTES];
    if (!bp_round_up_u64(request->bytes, pool->info.alignment, &r->live_bytes))
        return bp_fail(BP_ERR_OVERFLOW, "%s: %llu bytes", bp_plan_describe(request, text),
                       (unsigned long long)request->bytes);
    const bool only_place =
        request->placement == BP_PLACE_PERSISTENT ||
        ((r->class_index == BP_NONE || pool->strict == BP_STRICT_ERROR) && pool->overflow.count == 0);
    bp_kind kind = only_place ? BP_KIND_DIRECT : BP_KIND_CHOSEN;
    if (request->bytes == 0)
        kind = BP_KIND_EMPTY;
    else if (request->placement == BP_PLACE_NONE)
        kind = BP_KIND_UNUSED;
    else if (request->placement == BP_PLACE_DYNAMIC)
        kind = BP_KIND_DYNAMIC;
    r->kind = (uint8_t)kind;
    r->bytes = request->bytes;
    r->key = bp_plan_key(request->unit, request->ordinal, request->role);
    r->word = &r->own_word;
    if (kind == BP_KIND_DIRECT) {
        r->word = &pool->segments[r->home.first].word;
        bp_take_place(pool, id, r->home.first, r->home.count);
    }
    if (kind == BP_KIND_DYNAMIC && pool->dynamic.reaper == NULL)
        BP_TRY(bp_stream_create(pool->device, "reaper", &pool->dynamic.reaper));
    if (pool->annotations != NULL)
        bp_annotations_bind(pool, id);
    return BP_OK;
}

/* Replaces the description's names by copies. Neighbouring requests of one unit share a copy. */
static bp_status requests_copy_names(bp_pool *pool, uint32_t id)
{
    bp_plan_request *request = &pool->requests[id];
    const char *before = id > 0 ? request[-1].unit : NULL;
    if (before != NULL && strcmp(before, request->unit) == 0)
        request->unit = before;
    else
        BP_TRY(bp_strings_add(&pool->strings, request->unit, &request->unit));
    return request->bucket == NULL ? BP_OK : bp_strings_add(&pool->strings, request->bucket, &request->bucket);
}

bp_status bp_requests_init(bp_pool *pool, const bp_plan_info *plan, uint32_t extra)
{
    if (plan->request_count > UINT32_MAX / 4 || extra > UINT32_MAX / 4)
        return bp_fail(BP_ERR_UNSUPPORTED,
                       "%zu requests and %u extra ones exceed the largest number that a pool serves",
                       plan->request_count, extra);
    pool->planned_count = (uint32_t)plan->request_count;
    pool->request_capacity = pool->planned_count + extra;
    BP_TRY(bp_new_array(pool->request_capacity, sizeof *pool->requests, (void **)&pool->requests));
    BP_TRY(bp_new_lines(pool->request_capacity, sizeof *pool->entries, (void **)&pool->entries));
    for (uint32_t id = 0; id < pool->planned_count; id++) {
        pool->requests[id] = plan->requests[id];
        BP_TRY(requests_copy_names(pool, id));
    }
    return BP_OK;
}

bp_status bp_requests_start(bp_pool *pool)
{
    for (uint32_t id = 0; id < pool->planned_count; id++)
        BP_TRY(fill_entry(pool, id));
    atomic_store_explicit(&pool->request_count, pool->planned_count, memory_order_release);
    pool->info.requests = pool->requests;
    pool->info.request_count = pool->planned_count;
    return BP_OK;
}

/* ---- binding -------------------------------------------------------------------------------------------------------- */

static const bp_bind bind_defaults = {.size = sizeof bind_defaults, .unit = "", .placement = BP_PLACE_PERSISTENT};

bp_status bp_bind_init(bp_bind *bind, size_t size)
{
    return bp_struct_init("bp_bind_init", bind, size, &bind_defaults, sizeof bind_defaults);
}

/* Finds memory for a persistent request in its slab. It is claimed after everything that can fail. */
static bp_status find_persistent(bp_pool *pool, const bp_plan_request *request)
{
    uint64_t step = pool->info.alignment > 256 ? pool->info.alignment : 256, bytes, room = pool->persistent.bytes;
    char text[BP_PLAN_REQUEST_BYTES];
    bp_plan_describe(request, text);
    if (room > 0 && bp_residency_is_closed(pool, pool->persistent.slab))
        return bp_fail(BP_ERR_SCHEDULE, "pool %.40s: %s cannot be bound: group persistent is offloaded",
                       pool->info.name, text);
    if (!bp_round_up_u64(request->bytes, step, &bytes))
        return bp_fail(BP_ERR_OVERFLOW, "%s: %llu bytes", text, (unsigned long long)request->bytes);
    if (bytes > room - pool->persistent.used)
        return bp_fail(
            BP_ERR_NO_DEVICE_MEMORY,
            "pool %.40s: %s needs %llu bytes of persistent memory; %llu of %llu are used: make the pool with more "
            "persistent_bytes",
            pool->info.name, text, (unsigned long long)bytes, (unsigned long long)pool->persistent.used,
            (unsigned long long)room);
    uint32_t s = pool->persistent.next;
    pool->segments[s].address = pool->slabs.slabs[pool->persistent.slab].address + pool->persistent.used;
    pool->segments[s].bytes = bytes;
    pool->places[s] = (bp_segment_place){.offset = pool->persistent.used,
                                         .made_offset = pool->persistent.used,
                                         .room = bytes,
                                         .slab = pool->persistent.slab,
                                         .class_index = BP_NONE};
    return pool->guard.wanted ? bp_guarded_add(pool, s) : BP_OK;
}

/* Called under the binding lock. */
static bp_status bind_locked(bp_pool *pool, const bp_bind *b, uint32_t *id)
{
    uint32_t next = atomic_load_explicit(&pool->request_count, memory_order_relaxed);
    if (b->placement == BP_PLACE_DYNAMIC && b->bytes > 0 && bp_pool_is_sealed(pool))
        return bp_fail(BP_ERR_UNSUPPORTED, "pool %.40s is sealed: it takes no dynamic requests", pool->info.name);
    if (next == pool->request_capacity)
        return bp_fail(BP_ERR_UNSUPPORTED,
                       "pool %.40s has room for %u requests beyond the plan's: make it with more extra_requests",
                       pool->info.name, pool->request_capacity - pool->planned_count);
    bp_plan_request *request = &pool->requests[next];
    *request = (bp_plan_request){.unit = b->unit,
                                 .ordinal = b->ordinal,
                                 .role = b->role,
                                 .dtype = bp_dtype_storage(b->dtype),
                                 .placement = b->placement,
                                 .bytes = b->bytes,
                                 .used_bytes = b->used_bytes};
    bool persistent = b->placement == BP_PLACE_PERSISTENT && b->bytes > 0;
    if (persistent)
        BP_TRY(find_persistent(pool, request));
    BP_TRY(requests_copy_names(pool, next));
    pool->entries[next] = (bp_entry){.class_index = BP_NONE};
    if (persistent)
        pool->entries[next].home = (bp_range){pool->persistent.next, 1};
    BP_TRY(fill_entry(pool, next));
    if (persistent)
        pool->persistent.used += pool->places[pool->persistent.next++].room;
    atomic_store_explicit(&pool->request_count, next + 1, memory_order_release);
    pool->info.request_count = next + 1;
    *id = next;
    return BP_OK;
}

bp_status bp_pool_bind(bp_pool *pool, const bp_bind *bind, uint32_t *id)
{
    bp_bind full = bind_defaults;
    if (pool == NULL || id == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_pool_bind: the pool or the output is NULL");
    BP_TRY(bp_device_check(pool->device, "bp_pool_bind"));
    BP_TRY(bp_struct_read("bp_pool_bind", bind, false, &full, sizeof full));
    const bp_bind *b = &full;
    if (b->unit == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_pool_bind: the request's unit is NULL");
    if (b->role >= BP_ROLE_COUNT || bp_dtype_bits(b->dtype) == 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s, bucket %u: unknown role %u or dtype %d", b->unit, b->ordinal,
                       b->role, (int)b->dtype);
    if (b->placement != BP_PLACE_PERSISTENT && b->placement != BP_PLACE_DYNAMIC)
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "%s, bucket %u: placement %d; expected persistent or dynamic: requests of the plan are not "
                       "bound, bp_plan_find has their ids",
                       b->unit, b->ordinal, (int)b->placement);
    if (b->used_bytes > b->bytes)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s, bucket %u: %llu used bytes of %llu", b->unit, b->ordinal,
                       (unsigned long long)b->used_bytes, (unsigned long long)b->bytes);
    pthread_mutex_lock(&pool->binding);
    bp_status status = bind_locked(pool, b, id);
    pthread_mutex_unlock(&pool->binding);
    return status;
}

/* ---- streams -------------------------------------------------------------------------------------------------------- */

/* Merges a request on `stream` (NULL: any) into the common stream of a segment. *common is NULL before the first request, and `several`,
 * a sentinel address, for more than one stream. */
static void survey_segment(const bp_stream **common, const bp_stream *stream, const bp_stream *several)
{
    if (stream == NULL || (*common != NULL && *common != stream))
        *common = several;
    else if (*common == NULL)
        *common = stream;
}

/* Release points on a segment's old stream were omitted because the next user was promised to be there. Waits for its work, so that no
 * point is needed. */
static bp_status end_promise(bp_pool *pool, const bp_stream *before)
{
    if (bp_tally_live(&pool->tally, NULL) != 0)
        return bp_fail(BP_ERR_SCHEDULE,
                       "bp_pool_set_stream: pool %.40s promised stream %.40s for memory of live requests; release them "
                       "first",
                       pool->info.name, bp_stream_name(before));
    BP_TRY(bp_stream_quiesce((bp_stream *)before));
    for (uint32_t f = 0, count = 1 + pool->segment_capacity + bp_request_count(pool); f < count; f++) {
        bp_fence *fence = &pool->fences[f];
        uint32_t kept = 0;
        for (uint32_t i = 0; i < fence->count; i++) {
            if (fence->points[i].stream != before || fence->points[i].point != BP_NO_POINT)
                fence->points[kept++] = fence->points[i];
        }
        fence->count = kept;
    }
    return BP_OK;
}

/* Computes the common stream of each segment's requests: only[], one entry per segment. */
static bp_status survey_streams(bp_pool *pool, const bp_stream **only)
{
    const bp_stream *several = (const bp_stream *)only, *ended = NULL;
    for (uint32_t id = 0; id < bp_request_count(pool); id++) {
        const bp_entry *r = &pool->entries[id];
        for (uint32_t i = 0; i < r->home.count; i++)
            survey_segment(&only[r->home.first + i], r->only, several);
        if (r->kind != BP_KIND_CHOSEN)
            continue;
        const bp_range copies = bp_copies_of(pool, r);
        for (uint32_t i = 0; i < copies.count; i++)
            survey_segment(&only[pool->copies[copies.first + i]], r->only, several);
        for (uint32_t i = 0; i < pool->overflow.count; i++)
            survey_segment(&only[pool->overflow.first + i], r->only, several);
    }
    for (uint32_t s = 0; s < pool->segment_capacity; s++) {
        const bp_stream *before = atomic_load_explicit(&pool->segments[s].only, memory_order_relaxed);
        only[s] = only[s] == several ? NULL : only[s];
        if (before == NULL || before == only[s] || before == ended)
            continue;
        BP_TRY(end_promise(pool, before));
        ended = before;
    }
    for (uint32_t s = 0; s < pool->segment_capacity; s++)
        atomic_store_explicit(&pool->segments[s].only, only[s], memory_order_relaxed);
    return BP_OK;
}

bp_status bp_pool_set_stream(bp_pool *pool, const uint32_t *ids, size_t count, bp_stream *stream)
{
    static const char function[] = "bp_pool_set_stream";
    BP_TRY(bp_check_call(pool, ids, count, function));
    BP_TRY(bp_check_ids(pool, ids, count));
    BP_TRY(bp_capture_refuse(pool, function));
    if (stream != NULL)
        BP_TRY(bp_stream_check(stream, pool->device, function));
    void *memory;
    BP_TRY(bp_new_array(count + pool->segment_capacity, sizeof(const bp_stream *), &memory));
    const bp_stream **before = memory;
    for (size_t i = 0; i < count; i++) {
        before[i] = pool->entries[ids[i]].only;
        pool->entries[ids[i]].only = stream;
    }
    bp_status status = survey_streams(pool, before + count);
    for (size_t i = count; status != BP_OK && i-- > 0;) /* in reverse order, because an id may occur twice */
        pool->entries[ids[i]].only = before[i];
    free(memory);
    return status;
}

/* ---- zeros ---------------------------------------------------------------------------------------------------------- */

bp_status bp_pool_set_zero(bp_pool *pool, const uint32_t *ids, size_t count, bp_zero zero)
{
    BP_TRY(bp_check_call(pool, ids, count, "bp_pool_set_zero"));
    BP_TRY(bp_check_ids(pool, ids, count));
    if ((unsigned)zero > BP_ZERO_ALL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_pool_set_zero: unknown zero %d", (int)zero);
    for (size_t i = 0; i < count; i++)
        pool->entries[ids[i]].zero = (uint8_t)zero;
    if (zero != BP_ZERO_NOTHING)
        bp_observe(pool, BP_OBSERVER_ZEROS);
    return BP_OK;
}

static bp_status write_zeros(bp_pool *pool, uint32_t id, bp_stream *stream)
{
    bp_entry *r = &pool->entries[id];
    uint64_t from = r->zero == BP_ZERO_PADDING ? pool->requests[id].used_bytes : 0;
    r->zeroed = r->zero != BP_ZERO_NOTHING && from < r->bytes;
    if (!r->zeroed)
        return BP_OK;
    return pool->device->ops->fill(pool->device->self, stream->raw, bp_entry_address(r) + from, 0, r->bytes - from);
}

/* Zeroing in flight must be complete before the next user. */
static void wait_for_zeros(bp_pool *pool, uint32_t id, bp_stream *stream)
{
    if (pool->entries[id].zeroed)
        bp_stream_synchronize(stream);
}

const bp_observer bp_zeros_observer = {.prepare = write_zeros, .undo = wait_for_zeros};
