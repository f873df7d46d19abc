/* Holds: which streams touch a request's memory while it is live. Belongs to the call that has claimed the request's word. */
#ifndef BP_ALLOCATORS_HOLD_H
#define BP_ALLOCATORS_HOLD_H

#include "allocators/slots.h"

/* The stream's place among those of the hold; that of a new one where it is not among them, BP_HOLD_STREAMS when there is none. */
static inline uint32_t bp_hold_find(const bp_bound *r, const bp_stream *stream)
{
    uint32_t i = 0;
    while (i < r->streams && r->hold[i].stream != stream)
        i++;
    return i;
}

/* Notes that a stream acquires or uses; there must be a place for it. */
static inline void bp_hold_touch(bp_bound *r, bp_stream *stream, bool acquires)
{
    uint32_t i = bp_hold_find(r, stream);
    if (i == r->streams)
        r->hold[r->streams++] = (bp_hold_stream){.stream = stream};
    bp_hold_stream *h = &r->hold[i];
    h->open += h->open < UINT16_MAX;
    h->acquired |= acquires;
    h->recorded = 0;
    r->used |= !acquires;
}

/* Frees the memory and the word of a request that nobody holds any more. */
static inline void bp_hold_free_place(bp_pool *pool, bp_bound *r)
{
    const bool shares_word = r->kind == BP_KIND_DIRECT;
    for (uint32_t s = shares_word; s < r->count; s++)
        bp_free_segment(pool, r->first + s);
    atomic_store_explicit(r->word, 0, memory_order_release);
}

/* Counters of calls that end early; shared, but not on the paths that succeed. */
static inline void bp_count_shared(_Atomic uint64_t *counter)
{
    atomic_fetch_add_explicit(counter, 1, memory_order_relaxed);
}

#endif
