/* Holds: which streams touch a request's memory while it is live. Belongs to the call that has claimed the request's word. */
#ifndef BP_ALLOCATORS_HOLD_H
#define BP_ALLOCATORS_HOLD_H

#include "allocators/capture.h"
#include "allocators/slots.h"
#include "core/fail.h"

/* The stream's place in the hold: where it is, else a free one, else that of a stream that is over. BP_HOLD_STREAMS: there is none. */
static inline uint32_t bp_hold_find(const bp_entry *r, const bp_stream *stream)
{
    uint32_t i = 0;
    while (i < r->streams && r->hold[i].stream != stream)
        i++;
    if (i < BP_HOLD_STREAMS)
        return i;
    for (i = 0; i < BP_HOLD_STREAMS && !bp_stream_is_over(r->hold[i].stream);)
        i++;
    return i;
}

/* The stream's entry, made where there is none; there must be a place for it. */
static inline bp_hold_stream *bp_hold_entry(bp_entry *r, bp_stream *stream)
{
    uint32_t i = bp_hold_find(r, stream);
    bool is_new = i == r->streams || r->hold[i].stream != stream;
    r->streams += i == r->streams;
    if (is_new)
        r->hold[i] = (bp_hold_stream){.stream = stream, .point = BP_NO_POINT};
    return &r->hold[i];
}

/* Notes that a stream acquires or uses; there must be a place for it. */
static inline void bp_hold_touch(bp_entry *r, bp_stream *stream, bool acquires)
{
    bp_hold_stream *h = bp_hold_entry(r, stream);
    h->open += h->open < UINT16_MAX;
    h->acquired |= acquires;
    h->point = BP_NO_POINT;
    r->used |= !acquires;
}

/* Frees the memory and the word of a request that nobody holds any more. */
static inline void bp_hold_free_place(bp_pool *pool, bp_entry *r)
{
    const bool shares_word = r->kind == BP_KIND_DIRECT;
    for (uint32_t s = shares_word; s < r->count; s++)
        bp_free_segment(pool, r->first + s);
    atomic_store_explicit(r->word, 0, memory_order_release);
}

/* What every call on ids checks first. */
BP_HOT bp_status bp_check_call(const bp_pool *pool, const uint32_t *ids, size_t count, const char *function)
{
    if (pool == NULL || (ids == NULL && count > 0))
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: needs a pool and ids", function);
    return bp_device_check(pool->device, function);
}

/* Counters of calls that end early; shared, but not on the paths that succeed. */
static inline void bp_count_shared(_Atomic uint64_t *counter)
{
    atomic_fetch_add_explicit(counter, 1, memory_order_relaxed);
}

/* And of the stream that a call names. */
BP_HOT bp_status bp_check_stream(bp_pool *pool, bp_stream *stream, const char *function)
{
    bp_status status = BP_OK;
    if (stream == NULL)
        status = bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: no stream", function);
    else if (!bp_stream_is_usable(stream, pool->device))
        status = bp_stream_check(stream, pool->device, function);
    else if (atomic_load_explicit(&pool->watch, memory_order_relaxed) != 0)
        status = bp_capture_check_stream(pool, stream, function);
    if (status != BP_OK)
        bp_count_shared(&pool->refused);
    return status;
}

#endif
