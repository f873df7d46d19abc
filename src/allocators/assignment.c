/* Requests whose buffer is held by another one: strict assignment decides whether they may have another copy of their class, and passes that
 * the plan does not know may take overflow memory.
 *
 * Sources: Megatron-LM's FixedPoolAllocator and MaxPoolAllocator (PR 5462), whose requests take the first free copy, and its strict
 * assignment of buckets to buffers. */
#include <stdio.h>

#include "allocators/capture.h"
#include "allocators/engine.h"
#include "allocators/explain.h"
#include "allocators/residency.h"
#include "core/fail.h"

bool bp_may_deviate(const bp_pool *pool, const bp_entry *r)
{
    return r->class_index != BP_NONE && pool->strict != BP_STRICT_ERROR && !bp_is_fixed(pool);
}

/* What is offloaded is not merely held: its requests are refused. */
bool bp_may_overflow(const bp_pool *pool, uint32_t id)
{
    return atomic_load_explicit((atomic_uint *)&pool->overflow_allowed, memory_order_relaxed) && !bp_is_fixed(pool) &&
           !bp_is_away(pool, id);
}

static bool claim_range(bp_pool *pool, uint32_t id, uint32_t first, uint32_t count, uint32_t *holder)
{
    if (!bp_claim_segments(pool, first, count, id, holder))
        return false;
    bp_take_place(pool, id, first, count);
    return true;
}

static bool claim_copy(bp_pool *pool, uint32_t id)
{
    const bp_range *copies = &pool->classes[pool->entries[id].class_index];
    for (uint32_t i = 0; i < copies->count; i++) {
        uint32_t holder;
        if (claim_range(pool, id, pool->copies[copies->first + i], 1, &holder))
            return true;
    }
    return false;
}

static bool claim_overflow(bp_pool *pool, uint32_t id)
{
    for (uint32_t i = 0; i < pool->overflow_count; i++) {
        uint32_t segment = pool->overflow_first + i, holder;
        if (pool->segments[segment].bytes >= pool->requests[id].bytes && claim_range(pool, id, segment, 1, &holder))
            return true;
    }
    return false;
}

bool bp_claim_chosen(bp_pool *pool, uint32_t id, uint32_t *holder)
{
    const bp_entry *r = &pool->entries[id];
    if (claim_range(pool, id, r->home.first, r->home.count, holder))
        return true;
    if (bp_may_deviate(pool, r) && claim_copy(pool, id))
        return true;
    return *holder != BP_HELD_BY_OFFLOAD && bp_may_overflow(pool, id) && claim_overflow(pool, id);
}

void bp_note_choice(bp_pool *pool, uint32_t id)
{
    bp_entry *r = &pool->entries[id];
    if (r->first == r->home.first)
        return;
    if (r->first >= pool->overflow_first) {
        bp_count(&r->overflows, 1);
        return;
    }
    bp_count(&r->deviations, 1);
    if (pool->strict == BP_STRICT_WARN && pool->on_message != NULL) {
        char text[BP_EXPLANATION_BYTES];
        bp_explain_deviation(pool, id, r->home.first, r->first, text);
        pool->on_message(pool->user, text);
    }
}

bp_status bp_pool_allow_overflow(bp_pool *pool, int allowed)
{
    if (pool == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_pool_allow_overflow: no pool");
    if (allowed && pool->overflow_count == 0)
        return bp_fail(BP_ERR_UNSUPPORTED, "pool %s was made without overflow memory (overflow_bytes)",
                       pool->info.name);
    if (allowed && atomic_load_explicit(&pool->sealed, memory_order_relaxed))
        return bp_fail(BP_ERR_SCHEDULE, "pool %s is sealed: overflow memory would move requests", pool->info.name);
    atomic_store_explicit(&pool->overflow_allowed, allowed != 0, memory_order_relaxed);
    return BP_OK;
}
