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
    bp_entry *r = &pool->entries[id];
    r->first = first;
    r->count = count;
    r->fence = bp_fence_of(pool, first, count, id);
    atomic_store_explicit(&r->address, pool->segments[first].address, memory_order_relaxed);
}

/* Of requests of kind BP_KIND_CHOSEN (assignment.c). Whether the request may get another copy of its class than the plan's, and overflow memory. */
bool bp_may_deviate(const bp_pool *pool, const bp_entry *request);
bool bp_may_overflow(const bp_pool *pool, uint32_t id);
/* Claims memory for a request whose word is claimed: the plan's, else another copy of its class, else overflow memory. false: `*holder` has
 * the plan's. */
bool bp_claim_chosen(bp_pool *pool, uint32_t id, uint32_t *holder);
/* Counts and reports where a request was given its memory; once nothing can fail any more. */
void bp_note_choice(bp_pool *pool, uint32_t id);

#endif
