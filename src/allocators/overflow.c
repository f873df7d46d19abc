/* Memory for passes that the plan does not know: buffers that any request may take while its own is held. */
#include "allocators/capture.h"
#include "allocators/residency.h"
#include "allocators/slots.h"
#include "core/fail.h"

/* What is offloaded is not merely held: its requests are refused. */
bool bp_may_overflow(const bp_pool *pool, uint32_t id)
{
    return atomic_load_explicit((atomic_uint *)&pool->overflow_allowed, memory_order_relaxed) && !bp_is_fixed(pool) &&
           !bp_is_away(pool, id);
}

bool bp_claim_overflow(bp_pool *pool, uint32_t id, uint32_t in_the_way)
{
    const bp_bound *r = &pool->bounds[id];
    if (in_the_way == BP_HELD_BY_OFFLOAD || !bp_may_overflow(pool, id))
        return false;
    for (uint32_t i = 0; i < pool->overflow_count; i++) {
        uint32_t segment = pool->overflow_first + i, holder;
        if (pool->segments[segment].bytes < r->bytes || !bp_claim_segment(pool, segment, id, &holder))
            continue;
        bp_take_place(pool, id, segment, 1);
        return true;
    }
    return false;
}

bp_status bp_pool_allow_overflow(bp_pool *pool, int allowed)
{
    if (pool == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_pool_allow_overflow: no pool");
    if (allowed && pool->overflow_count == 0)
        return bp_fail(BP_ERR_UNSUPPORTED, "pool %s was made without overflow memory (overflow_bytes)", pool->name);
    if (allowed && atomic_load_explicit(&pool->sealed, memory_order_relaxed))
        return bp_fail(BP_ERR_SCHEDULE, "pool %s is sealed: overflow memory would move requests", pool->name);
    atomic_store_explicit(&pool->overflow_allowed, allowed != 0, memory_order_relaxed);
    return BP_OK;
}
