/* Strict assignment: a decorator of the allocators whose classes have copies. It decides between the buffer that a request had
 * before and another one; the engine claims. Source: Megatron-LM's strict assignment of buckets to buffers. */
#include <stdio.h>

#include "allocators/explain.h"
#include "allocators/slots.h"

static bool is_sealed(const bp_pool *pool)
{
    return atomic_load_explicit((atomic_uint *)&pool->sealed, memory_order_relaxed) != 0;
}

uint32_t bp_strict_segment(const bp_pool *pool, const bp_bound *r)
{
    return pool->strict == BP_STRICT_ERROR || is_sealed(pool) ? r->preferred : BP_NONE;
}

static void note(bp_pool *pool, uint32_t id, uint32_t got)
{
    bp_bound *r = &pool->bounds[id];
    if (r->preferred != BP_NONE && got != r->preferred) {
        bp_count(&r->deviations, 1);
        if (pool->strict == BP_STRICT_WARN && pool->on_message != NULL) {
            char text[BP_EXPLANATION_BYTES];
            bp_explain_deviation(pool, id, r->preferred, got, text);
            pool->on_message(pool->user, text);
        }
    }
    if (r->preferred == BP_NONE)
        r->preferred = got;
    bp_take_place(pool, id, got, 1);
}

static bool claim_copy(bp_pool *pool, uint32_t id, uint32_t *holder)
{
    const bp_copies *copies = &pool->classes[pool->bounds[id].class_index];
    for (uint32_t i = 0; i < copies->count; i++) {
        uint32_t segment = pool->copies[copies->first + i];
        if (bp_claim_segment(pool, segment, id, holder)) {
            note(pool, id, segment);
            return true;
        }
    }
    return false;
}

bool bp_claim_strictly(bp_pool *pool, uint32_t id, uint32_t *holder)
{
    const bp_bound *r = &pool->bounds[id];
    uint32_t in_the_way = BP_NONE;
    if (r->preferred != BP_NONE) {
        if (bp_claim_segment(pool, r->preferred, id, holder)) {
            note(pool, id, r->preferred);
            return true;
        }
        in_the_way = *holder;
    }
    if (bp_strict_segment(pool, r) == BP_NONE && r->class_index != BP_NONE && claim_copy(pool, id, holder))
        return true;
    if (in_the_way != BP_NONE)
        *holder = in_the_way;
    return bp_claim_overflow(pool, id);
}
