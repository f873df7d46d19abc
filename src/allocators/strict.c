/* Strict assignment: a decorator of the allocators whose classes have copies. It decides between the buffer that a request had
 * before and another one; the engine claims. Source: Megatron-LM's strict assignment of buckets to buffers. */
#include <stdio.h>

#include "allocators/explain.h"
#include "allocators/slots.h"

uint32_t bp_strict_segment(const bp_pool *pool, const bp_bound *r)
{
    return pool->strict == BP_STRICT_ERROR || bp_is_fixed(pool) ? r->preferred : BP_NONE;
}

void bp_note_choice(bp_pool *pool, uint32_t id)
{
    bp_bound *r = &pool->bounds[id];
    if (r->first >= pool->overflow_first) {
        bp_count(&r->overflows, 1);
        return;
    }
    if (r->preferred == BP_NONE)
        r->preferred = r->first;
    if (r->first == r->preferred)
        return;
    bp_count(&r->deviations, 1);
    if (pool->strict == BP_STRICT_WARN && pool->on_message != NULL) {
        char text[BP_EXPLANATION_BYTES];
        bp_explain_deviation(pool, id, r->preferred, r->first, text);
        pool->on_message(pool->user, text);
    }
}

static bool claim_at(bp_pool *pool, uint32_t id, uint32_t segment, uint32_t *holder)
{
    if (!bp_claim_segment(pool, segment, id, holder))
        return false;
    bp_take_place(pool, id, segment, 1);
    return true;
}

static bool claim_copy(bp_pool *pool, uint32_t id, uint32_t *holder)
{
    const bp_range *copies = &pool->classes[pool->bounds[id].class_index];
    for (uint32_t i = 0; i < copies->count; i++) {
        if (claim_at(pool, id, pool->copies[copies->first + i], holder))
            return true;
    }
    return false;
}

bool bp_claim_strictly(bp_pool *pool, uint32_t id, uint32_t *holder)
{
    const bp_bound *r = &pool->bounds[id];
    uint32_t in_the_way = BP_NONE;
    if (r->preferred != BP_NONE) {
        if (claim_at(pool, id, r->preferred, holder))
            return true;
        in_the_way = *holder;
    }
    if (bp_strict_segment(pool, r) == BP_NONE && r->class_index != BP_NONE && claim_copy(pool, id, holder))
        return true;
    if (in_the_way != BP_NONE)
        *holder = in_the_way;
    return bp_claim_overflow(pool, id, *holder);
}
