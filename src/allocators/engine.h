/* SPDX-License-Identifier: Apache-2.0 */
/* Engine of a pool, shared by acquire.c and release.c: claims of segments, streams of a live request, waits for release events. Hot path;
 * each claim is one compare-and-swap. */
#ifndef BP_ALLOCATORS_ENGINE_H
#define BP_ALLOCATORS_ENGINE_H

#include <bucketpool/core/fail.h>

#include "allocators/capture.h"
#include "allocators/pool.h"

/* ---- segments ------------------------------------------------------------------------------------------------------- */

/* Id of the request that holds the segment; BP_NONE: free. */
static inline uint32_t bp_segment_holder(const bp_segment *segment)
{
    return BP_WORD_ID(atomic_load_explicit((bp_word *)&segment->word, memory_order_relaxed));
}

/* Fence of a live range with `count` segments from `first`. A single segment has a fence, written by its holder only. A request with
 * several segments has one fence, because different requests may take its segments next. */
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

/* Ends the call's claim of a request; the word is otherwise unchanged. */
static inline void bp_clear_busy(bp_word *word)
{
    atomic_store_explicit(word, atomic_load_explicit(word, memory_order_relaxed) & ~BP_WORD_BUSY, memory_order_release);
}

/* Claims all segments from `first`, or none. */
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

/* Records the segments of a live request. */
static inline void bp_take_place(bp_pool *pool, uint32_t id, uint32_t first, uint32_t count)
{
    bp_entry *r = &pool->entries[id];
    r->first = first;
    r->count = count;
    r->fence = bp_fence_of(pool, first, count, id);
    atomic_store_explicit(&r->address, pool->segments[first].address, memory_order_relaxed);
}

/* Claims memory for a request whose word is claimed: the planned segments, else another copy of its class, else overflow memory. Returns
 * false with the holder of the planned segments in `*holder`. */
bool bp_claim_chosen(bp_pool *pool, uint32_t id, uint32_t *holder);
/* Counts and reports a request's deviation from the plan. Called after everything that can fail. */
void bp_note_choice(bp_pool *pool, uint32_t id);

/* ---- live requests -------------------------------------------------------------------------------------------------- */

/* Streams that touch a request's memory while it is live. Only the call that has claimed the request's word may access them. */

/* Index of the stream's entry; else of a free entry, else of one whose stream was destroyed. BP_LIVE_STREAMS: all are in use. */
static inline uint32_t bp_live_find(const bp_entry *r, const bp_stream *stream)
{
    uint32_t i = 0;
    while (i < r->streams && r->live[i].stream != stream)
        i++;
    if (i < BP_LIVE_STREAMS)
        return i;
    for (i = 0; i < BP_LIVE_STREAMS && !bp_stream_is_over(r->live[i].stream);)
        i++;
    return i;
}

/* The stream's entry, created if absent; needs a free entry. */
static inline bp_live_stream *bp_live_entry(bp_entry *r, bp_stream *stream)
{
    uint32_t i = bp_live_find(r, stream);
    bool is_new = i == r->streams || r->live[i].stream != stream;
    r->streams += i == r->streams;
    if (is_new)
        r->live[i] = (bp_live_stream){.stream = stream, .point = BP_NO_POINT};
    return &r->live[i];
}

/* Records an acquire or use by the stream; needs a free entry. */
static inline void bp_live_touch(bp_entry *r, bp_stream *stream, bool acquires)
{
    bp_live_stream *h = bp_live_entry(r, stream);
    h->open += h->open < UINT16_MAX;
    h->acquired |= acquires;
    h->point = BP_NO_POINT;
    r->used |= !acquires;
}

/* Frees the segments and the word of a request without references. */
static inline void bp_live_free_place(bp_pool *pool, bp_entry *r)
{
    const bool shares_word = r->kind == BP_KIND_DIRECT;
    for (uint32_t s = shares_word; s < r->count; s++)
        bp_free_segment(pool, r->first + s);
    atomic_store_explicit(r->word, 0, memory_order_release);
}

/* Checks the arguments that all calls on ids share. */
BP_HOT bp_status bp_check_call(const bp_pool *pool, const uint32_t *ids, size_t count, const char *function)
{
    if (pool == NULL || (ids == NULL && count > 0))
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: the pool or the ids are NULL", function);
    return bp_device_check(pool->device, function);
}

/* Counters of calls that end early; shared between threads, but not used on the paths that succeed. */
static inline void bp_count_shared(_Atomic uint64_t *counter)
{
    atomic_fetch_add_explicit(counter, 1, memory_order_relaxed);
}

/* Checks the stream argument of a call. */
BP_HOT bp_status bp_check_stream(bp_pool *pool, bp_stream *stream, const char *function)
{
    bp_status status = BP_OK;
    if (stream == NULL)
        status = bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: the stream is NULL", function);
    else if (!bp_stream_is_usable(stream, pool->device))
        status = bp_stream_check(stream, pool->device, function);
    else if (atomic_load_explicit(&pool->watch, memory_order_relaxed) != 0)
        status = bp_capture_check_stream(pool, stream, function);
    if (status != BP_OK)
        bp_count_shared(&pool->refused);
    return status;
}

/* ---- waits ---------------------------------------------------------------------------------------------------------- */

/* Release points to wait for: collected first, the latest of each stream, then waited for. */

#define BP_WAITS_BATCH 32 /* streams whose points are collected before any is waited for */

/* Not initialised as a whole: clearing the points would take longer than the rest of the call. */
typedef struct bp_waits {
    bp_stream *waiter;
    bool captured; /* the points belong to the pool's present capture */
    uint32_t count, issued, recorded;
    bp_point points[BP_WAITS_BATCH];
} bp_waits;

BP_HOT void bp_waits_init(bp_waits *w, const bp_pool *pool, bp_stream *waiter)
{
    w->waiter = waiter;
    w->captured = bp_is_capturing(pool);
    w->count = w->issued = w->recorded = 0;
}

/* Waits for the collected points. */
static inline bp_status bp_waits_issue(bp_waits *w)
{
    for (uint32_t i = 0; i < w->count; i++) {
        const bp_point *p = &w->points[i];
        BP_TRY(w->captured ? bp_stream_wait_captured(w->waiter, p->stream, p->point)
                           : bp_stream_wait_point(w->waiter, p->stream, p->point));
    }
    w->issued += w->count;
    w->count = 0;
    return BP_OK;
}

/* Records the stream's present position, inside or outside of a capture. */
BP_HOT bp_status bp_take_point(bool captured, bp_stream *stream, uint64_t *point, bool *recorded)
{
    return captured ? bp_stream_record_captured(stream, point, recorded)
                    : bp_stream_record_point(stream, point, recorded);
}

BP_HOT bp_status bp_waits_add(bp_waits *w, const bp_fence *fence)
{
    for (uint32_t i = 0; i < fence->count; i++) {
        bp_point p = fence->points[i];
        if (p.stream == w->waiter)
            continue;
        if (p.point == BP_NO_POINT) { /* BP_NO_POINT was promised to another stream: the present position covers it */
            bool recorded;
            BP_TRY(bp_take_point(w->captured, p.stream, &p.point, &recorded));
            if (!recorded)
                continue;
            w->recorded++;
        }
        uint32_t k = 0;
        while (k < w->count && w->points[k].stream != p.stream)
            k++;
        if (k == BP_WAITS_BATCH) {
            BP_TRY(bp_waits_issue(w));
            k = 0;
        }
        if (k == w->count)
            w->points[w->count++] = p;
        else if (p.point > w->points[k].point)
            w->points[k].point = p.point;
    }
    return BP_OK;
}

/* Adds zeroing by the first acquire of a live request, which may still be running. */
static inline bp_status bp_waits_add_zeros(bp_waits *w, const bp_entry *r)
{
    if (!r->zeroed || r->streams == 0)
        return BP_OK;
    return bp_waits_add(w, &(bp_fence){.count = 1, .points = {{.stream = r->live[0].stream, .point = BP_NO_POINT}}});
}

#endif
