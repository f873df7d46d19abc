/* The slot engine: claiming and freeing segments. Hot; every claim is a compare-and-swap on the segment's word. */
#ifndef BP_ALLOCATORS_SLOTS_H
#define BP_ALLOCATORS_SLOTS_H

#include "allocators/pool.h"

/* Whose a segment is, BP_NONE: nobody's. */
static inline uint32_t bp_segment_holder(const bp_segment *segment)
{
    return BP_WORD_ID(atomic_load_explicit((bp_word *)&segment->word, memory_order_relaxed));
}

/* The fence that a hold of `count` segments from `first` ends with. A single segment has one of its own, which only its holders write;
 * a request with several has one, as its segments may be taken by different others next. */
static inline uint32_t bp_fence_of(const bp_pool *pool, uint32_t first, uint32_t count, uint32_t id)
{
    return count == 1 ? 1 + first : 1 + pool->segment_capacity + id;
}

static inline bool bp_claim_segment(bp_pool *pool, uint32_t segment, uint32_t id, uint32_t *holder)
{
    uint64_t found = 0;
    if (atomic_compare_exchange_strong_explicit(&pool->segments[segment].word, &found, (uint64_t)id + 1,
                                                memory_order_acq_rel, memory_order_relaxed))
        return true;
    *holder = BP_WORD_ID(found);
    return false;
}

static inline void bp_free_segment(bp_pool *pool, uint32_t segment)
{
    atomic_store_explicit(&pool->segments[segment].word, 0, memory_order_release);
}

/* All segments from `first`, or none. */
static inline bool bp_claim_segments(bp_pool *pool, uint32_t first, uint32_t count, uint32_t id, uint32_t *holder)
{
    for (uint32_t i = 0; i < count; i++) {
        if (bp_claim_segment(pool, first + i, id, holder))
            continue;
        while (i-- > 0)
            bp_free_segment(pool, first + i);
        return false;
    }
    return true;
}

/* Notes where a hold is. */
static inline void bp_take_place(bp_pool *pool, uint32_t id, uint32_t first, uint32_t count)
{
    bp_bound *r = &pool->bounds[id];
    r->first = first;
    r->count = count;
    r->fence = bp_fence_of(pool, first, count, id);
    atomic_store_explicit(&r->address, pool->segments[first].address, memory_order_relaxed);
}

/* Memory for unplanned passes, where it is allowed and free. `in_the_way`: who has the request's own. */
bool bp_may_overflow(const bp_pool *pool, uint32_t id);
bool bp_claim_overflow(bp_pool *pool, uint32_t id, uint32_t in_the_way);

/* Strict assignment, over the copies of a class: the preferred buffer first, then, as far as `strict` allows, another copy, then
 * overflow memory. */
bool bp_claim_strictly(bp_pool *pool, uint32_t id, uint32_t *holder);
/* Counts, remembers and reports where a request was given its memory; once nothing can fail any more. */
void bp_note_choice(bp_pool *pool, uint32_t id);
/* The segment that strict assignment holds a request to now; BP_NONE: any copy of its class. */
uint32_t bp_strict_segment(const bp_pool *pool, const bp_bound *request);

#endif
