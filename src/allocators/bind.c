/* Binding: a request's name, checked against the plan, becomes an id. */
#include "allocators/annotations.h"
#include "allocators/dynamic.h"
#include "allocators/guarded.h"
#include "allocators/known.h"
#include "allocators/layout.h"
#include "allocators/residency.h"
#include "allocators/slots.h"
#include "core/arith.h"
#include "core/fail.h"

bp_status bp_bind_init(bp_bind *bind, size_t size)
{
    if (bind == NULL || size < sizeof *bind)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_bind_init: size %zu, expected at least %zu", size, sizeof *bind);
    *bind = (bp_bind){.size = sizeof *bind, .unit = "", .placement = BP_PLACE_PLANNED, .acquire_lane = BP_LANE_ANY};
    return BP_OK;
}

static bp_status check_bind(const bp_bind *b)
{
    if (b->size < sizeof *b || b->unit == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_pool_bind: the request was not initialised, or its unit is NULL");
    if (b->role >= BP_ROLE_COUNT || bp_dtype_bits(b->dtype) == 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s, bucket %u: role %u or dtype %d is unknown", b->unit, b->ordinal,
                       b->role, (int)b->dtype);
    if (b->placement < BP_PLACE_PLANNED || b->placement > BP_PLACE_DYNAMIC || (unsigned)b->zero > BP_ZERO_ALL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s, bucket %u: placement %d or zero %d is unknown", b->unit,
                       b->ordinal, (int)b->placement, (int)b->zero);
    if (b->used_bytes > b->bytes)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s, bucket %u: %llu used bytes of %llu", b->unit, b->ordinal,
                       (unsigned long long)b->used_bytes, (unsigned long long)b->bytes);
    if (b->acquire_lane != BP_LANE_ANY && b->acquire_lane >= BP_LANE_COUNT)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s, bucket %u: lane %u; there are %u", b->unit, b->ordinal,
                       b->acquire_lane, BP_LANE_COUNT);
    return BP_OK;
}

static bp_status fail_bind(const bp_pool *pool, const bp_bind *b, const char *what)
{
    return bp_fail(BP_ERR_MISMATCH, "pool %.40s: %s of %.80s, bucket.%u (%s, %llu bytes) %s", pool->name,
                   bp_role_name((bp_role)b->role), b->unit[0] != '\0' ? b->unit : "outside units", b->ordinal,
                   bp_dtype_name(b->dtype), (unsigned long long)b->bytes, what);
}

/* A request that was bound before must be the same now. */
static bp_status check_again(const bp_pool *pool, const bp_bind *b, const bp_known *known)
{
    const bp_bound *r = &pool->bounds[known->id];
    if (r->bytes != b->bytes || known->dtype != bp_dtype_storage(b->dtype) || r->placement != b->placement)
        return bp_fail(
            BP_ERR_MISMATCH,
            "pool %.40s: %s of %.80s, bucket.%u was bound with %llu bytes of %s, placement %d; now %llu bytes of "
            "%s, placement %d",
            pool->name, bp_role_name((bp_role)b->role), b->unit, b->ordinal, (unsigned long long)r->bytes,
            bp_dtype_name(known->dtype), (int)r->placement, (unsigned long long)b->bytes, bp_dtype_name(b->dtype),
            (int)b->placement);
    if (r->used_bytes != b->used_bytes || r->zero != b->zero || r->lane != b->acquire_lane)
        return bp_fail(
            BP_ERR_MISMATCH,
            "pool %.40s: %s of %.80s, bucket.%u was bound with %llu used bytes, zero %d, lane %d; now %llu, %d, %d",
            pool->name, bp_role_name((bp_role)b->role), b->unit, b->ordinal, (unsigned long long)r->used_bytes, r->zero,
            (int)r->lane, (unsigned long long)b->used_bytes, (int)b->zero, (int)b->acquire_lane);
    return BP_OK;
}

/* What the plan says of a request must be what the runtime has. */
static bp_status check_planned(const bp_pool *pool, const bp_bind *b, const bp_known *known)
{
    if (known == NULL) {
        if (b->bytes == 0)
            return BP_OK; /* nothing to place */
        return fail_bind(pool, b,
                         pool->plan_is_stable ? "is not in the plan: another model, other bucketing, or no such role "
                                                "(frozen buckets have no gradients)"
                                              : "is not in the plan; if the plan left it dynamic, bind it as such");
    }
    char what[128];
    if (known->dtype != bp_dtype_storage(b->dtype)) {
        snprintf(what, sizeof what, "has dtype %s in the plan", bp_dtype_name(known->dtype));
        return fail_bind(pool, b, what);
    }
    if (known->bytes != b->bytes) {
        snprintf(what, sizeof what, "has %llu bytes in the plan", (unsigned long long)known->bytes);
        return fail_bind(pool, b, what);
    }
    return BP_OK;
}

/* How the request will get its memory. */
static bp_kind choose_kind(const bp_pool *pool, const bp_bind *b, const bp_known *known)
{
    if (b->bytes == 0)
        return BP_KIND_EMPTY;
    if (b->placement == BP_PLACE_DYNAMIC || (b->placement == BP_PLACE_PLANNED && pool->ops == &bp_dynamic_ops))
        return BP_KIND_DYNAMIC;
    if (b->placement == BP_PLACE_PERSISTENT)
        return BP_KIND_DIRECT;
    bool only_place =
        known->class_index == BP_NONE || (pool->selection == BP_SELECT_ASSIGNED && pool->strict == BP_STRICT_ERROR);
    return only_place && pool->overflow_count == 0 ? BP_KIND_DIRECT : BP_KIND_CHOSEN;
}

/* Finds memory for a persistent request in its slab. It is taken once nothing can fail any more. */
static bp_status find_persistent(bp_pool *pool, const bp_bind *b, bp_known *known)
{
    uint64_t step = pool->alignment > 256 ? pool->alignment : 256, bytes;
    if (pool->persistent_bytes > 0 && bp_residency_is_closed(pool, pool->persistent_slab))
        return bp_fail(BP_ERR_SCHEDULE,
                       "pool %.40s: %s of %.80s, bucket.%u cannot be bound: group persistent is offloaded", pool->name,
                       bp_role_name((bp_role)b->role), b->unit, b->ordinal);
    if (!bp_round_up_u64(b->bytes, step, &bytes))
        return bp_fail(BP_ERR_OVERFLOW, "%s, bucket.%u: %llu bytes", b->unit, b->ordinal, (unsigned long long)b->bytes);
    uint64_t room = pool->persistent_bytes;
    if (bytes > room - pool->persistent_used)
        return bp_fail(
            BP_ERR_NO_DEVICE_MEMORY,
            "pool %.40s: %s of %.80s, bucket.%u needs %llu bytes of persistent memory; %llu of %llu are used: make "
            "the pool with more persistent_bytes",
            pool->name, bp_role_name((bp_role)b->role), b->unit, b->ordinal, (unsigned long long)bytes,
            (unsigned long long)pool->persistent_used, (unsigned long long)room);
    uint32_t s = pool->next_persistent;
    pool->segments[s].address = pool->slabs.slabs[pool->persistent_slab].address + pool->persistent_used;
    pool->segments[s].bytes = bytes;
    pool->places[s] = (bp_segment_place){.offset = pool->persistent_used,
                                         .made_offset = pool->persistent_used,
                                         .room = bytes,
                                         .slab = pool->persistent_slab,
                                         .class_index = BP_NONE};
    if (pool->guarded)
        BP_TRY(bp_guarded_add(pool, s));
    known->first = s;
    known->count = 1;
    return BP_OK;
}

/* Whether the release points of memory may be left out depends on who else acquires it, and where. */
static void note_lane(bp_pool *pool, uint32_t segment, uint32_t lane)
{
    atomic_uint *common = &pool->segments[segment].lane;
    uint32_t before = atomic_load_explicit(common, memory_order_relaxed);
    if (before == BP_LANE_UNBOUND)
        atomic_store_explicit(common, lane, memory_order_relaxed);
    else if (before != lane)
        atomic_store_explicit(common, BP_LANE_ANY, memory_order_relaxed);
}

static void note_lanes(bp_pool *pool, const bp_bound *r, const bp_known *known)
{
    for (uint32_t i = 0; i < known->count; i++)
        note_lane(pool, known->first + i, r->lane);
    if (r->kind != BP_KIND_CHOSEN)
        return;
    if (known->class_index != BP_NONE) {
        const bp_range *copies = &pool->classes[known->class_index];
        for (uint32_t i = 0; i < copies->count; i++)
            note_lane(pool, pool->copies[copies->first + i], r->lane);
    }
    for (uint32_t i = 0; i < pool->overflow_count; i++)
        note_lane(pool, pool->overflow_first + i, r->lane);
}

static void fill_bound(bp_pool *pool, const bp_bind *b, uint32_t known_index, uint64_t live_bytes, uint32_t id)
{
    bp_known *known = &pool->known[known_index];
    bp_bound *r = &pool->bounds[id];
    *r = (bp_bound){.kind = (uint8_t)choose_kind(pool, b, known),
                    .zero = (uint8_t)b->zero,
                    .lane = b->acquire_lane,
                    .key = known->key,
                    .live_bytes = live_bytes,
                    .class_index = known->class_index,
                    .preferred = BP_NONE,
                    .known = known_index,
                    .bytes = b->bytes,
                    .used_bytes = b->used_bytes,
                    .placement = b->placement};
    r->word = &r->own_word;
    if (r->kind == BP_KIND_DIRECT) {
        r->word = &pool->segments[known->first].word;
        bp_take_place(pool, id, known->first, known->count);
    }
    if (r->kind == BP_KIND_CHOSEN && (pool->selection == BP_SELECT_ASSIGNED || known->class_index == BP_NONE))
        r->preferred = known->first;
    if (r->kind == BP_KIND_DIRECT || r->kind == BP_KIND_CHOSEN)
        note_lanes(pool, r, known);
    known->id = id;
}

/* Under the binding lock. */
static bp_status bind_locked(bp_pool *pool, const bp_bind *b, uint32_t *id)
{
    uint32_t index = bp_known_find(pool, b->unit, b->ordinal, b->role);
    bp_known *known = index != BP_NONE ? &pool->known[index] : NULL;
    if (known != NULL && known->id != BP_NONE) {
        BP_TRY(check_again(pool, b, known));
        *id = known->id;
        return BP_OK;
    }
    bool dynamic = b->bytes > 0 && (b->placement == BP_PLACE_DYNAMIC || pool->ops == &bp_dynamic_ops) &&
                   b->placement != BP_PLACE_PERSISTENT;
    if (b->placement == BP_PLACE_PLANNED)
        BP_TRY(check_planned(pool, b, known));
    else if (known != NULL && b->placement == BP_PLACE_PERSISTENT)
        return fail_bind(pool, b, "is in the plan: bind it as planned");
    if (dynamic && bp_pool_is_sealed(pool))
        return bp_fail(BP_ERR_UNSUPPORTED, "pool %.40s is sealed: it takes no dynamic requests", pool->name);
    uint64_t live_bytes;
    if (!bp_round_up_u64(b->bytes, pool->alignment, &live_bytes))
        return bp_fail(BP_ERR_OVERFLOW, "%s, bucket.%u: %llu bytes", b->unit, b->ordinal, (unsigned long long)b->bytes);
    if (known == NULL && pool->known_count == pool->known_capacity)
        return bp_fail(BP_ERR_UNSUPPORTED,
                       "pool %.40s has room for %u requests beyond the plan's: make it with more extra_requests",
                       pool->name, pool->known_capacity - pool->planned_count);
    if (dynamic)
        BP_TRY(bp_dynamic_prepare(pool));
    if (known == NULL) {
        bp_known added = {.unit = b->unit,
                          .bytes = b->bytes,
                          .ordinal = b->ordinal,
                          .role = b->role,
                          .dtype = bp_dtype_storage(b->dtype),
                          .class_index = BP_NONE};
        if (b->placement == BP_PLACE_PERSISTENT && b->bytes > 0)
            BP_TRY(find_persistent(pool, b, &added));
        BP_TRY(bp_known_add(pool, &added, &index));
        if (added.count > 0) {
            pool->next_persistent++;
            pool->persistent_used += pool->places[added.first].room;
        }
    }
    uint32_t next = atomic_load_explicit(&pool->bound_count, memory_order_relaxed);
    fill_bound(pool, b, index, live_bytes, next);
    if (pool->annotations != NULL)
        bp_annotations_bind(pool, next);
    atomic_store_explicit(&pool->bound_count, next + 1, memory_order_release);
    *id = next;
    return BP_OK;
}

bp_status bp_pool_bind(bp_pool *pool, const bp_bind *bind, uint32_t *id)
{
    if (pool == NULL || bind == NULL || id == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_pool_bind: needs a pool, a request and a place for its id");
    BP_TRY(bp_device_check(pool->device, "bp_pool_bind"));
    BP_TRY(check_bind(bind));
    pthread_mutex_lock(&pool->binding);
    bp_status status = bind_locked(pool, bind, id);
    pthread_mutex_unlock(&pool->binding);
    return status;
}

static bp_status bind_request(bp_pool *pool, const bp_buckets *buckets, size_t index, bool lanes, uint32_t *id)
{
    bp_request request = {.size = sizeof request};
    bp_bucket bucket = {.size = sizeof bucket};
    bp_bind bind;
    BP_TRY(bp_buckets_request(buckets, index, &request));
    BP_TRY(bp_buckets_get(buckets, request.bucket, &bucket));
    BP_TRY(bp_bind_init(&bind, sizeof bind));
    bind.unit = bp_buckets_unit_name(buckets, (size_t)bucket.unit);
    bind.ordinal = bucket.ordinal;
    bind.role = request.role;
    bind.dtype = request.dtype;
    bind.bytes = request.bytes;
    BP_TRY(bp_dtype_bytes(request.dtype, request.numel, &bind.used_bytes));
    if (bind.used_bytes > bind.bytes)
        bind.used_bytes = bind.bytes;
    if (lanes)
        bind.acquire_lane =
            request.role == BP_ROLE_PARAM || request.role == BP_ROLE_PARAM_TRANSPOSE ? BP_LANE_GATHER : BP_LANE_COMPUTE;
    BP_TRY(check_bind(&bind));
    pthread_mutex_lock(&pool->binding);
    if (!pool->plan_is_stable && bp_known_find(pool, bind.unit, bind.ordinal, bind.role) >= pool->planned_count)
        bind.placement = BP_PLACE_DYNAMIC;
    bp_status status = bind_locked(pool, &bind, id);
    pthread_mutex_unlock(&pool->binding);
    return status;
}

bp_status bp_pool_bind_buckets(bp_pool *pool, const bp_buckets *buckets, int lanes, uint32_t *ids)
{
    if (pool == NULL || buckets == NULL || ids == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_pool_bind_buckets: needs a pool, buckets and a place for the ids");
    BP_TRY(bp_device_check(pool->device, "bp_pool_bind_buckets"));
    bp_status status = BP_OK;
    if (pool->annotations != NULL)
        bp_nvtx_push("bind", pool->name);
    for (size_t i = 0; status == BP_OK && i < bp_buckets_request_count(buckets); i++)
        status = bind_request(pool, buckets, i, lanes != 0, &ids[i]);
    if (pool->annotations != NULL)
        bp_nvtx_pop();
    return status;
}
