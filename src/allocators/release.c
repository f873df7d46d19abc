/* SPDX-License-Identifier: Apache-2.0 */
/* Use, release and cancel, the second half of the hot path. A call claims all its requests, records its release events (one per stream
 * for any number of requests), then commits. A call that fails drops its claims and has changed nothing. */
#include "allocators/engine.h"
#include "allocators/observers.h"
#include "allocators/report.h"

typedef enum purpose { RELEASE, CANCEL, USE } purpose;

#define MAX_STREAMS_PER_CALL 64

/* State of a call. All its requests share the point of a stream. */
typedef struct releasing {
    bp_pool *pool;
    const uint32_t *ids;
    size_t count;
    bp_stream *stream; /* NULL: cancel, on the streams that acquired */
    purpose purpose;
    bool dynamic; /* a request is dynamic */
    uint32_t taken_count;
    bp_point taken[MAX_STREAMS_PER_CALL];
} releasing;

/* Not initialised as a whole: clearing the points would take longer than the rest of the call. */
static void release_start(releasing *c, bp_pool *pool, const uint32_t *ids, size_t count, bp_stream *stream, purpose p)
{
    c->pool = pool;
    c->ids = ids;
    c->count = count;
    c->stream = stream;
    c->purpose = p;
    c->dynamic = false;
    c->taken_count = 0;
}

static bp_status count_refused(bp_pool *pool, bp_status status)
{
    if (status != BP_OK)
        bp_count_shared(&pool->refused);
    return status;
}

/* ---- claiming ------------------------------------------------------------------------------------------------------- */

static const char *const not_live[] = {
    [RELEASE] = "is released, but not live", [CANCEL] = "is cancelled, but not live", [USE] = "is used, but not live"};

static bool is_last(const bp_entry *r)
{
    return BP_WORD_REFERENCES(atomic_load_explicit(r->word, memory_order_relaxed)) == 1;
}

/* Claims a live request; *word is the word before, or the one that was found. */
BP_HOT bool claim_word(bp_entry *r, uint32_t id, uint64_t *word)
{
    *word = atomic_load_explicit(r->word, memory_order_relaxed);
    return BP_WORD_ID(*word) == id && (*word & BP_WORD_BUSY) == 0 &&
           atomic_compare_exchange_strong_explicit(r->word, word, *word | BP_WORD_BUSY, memory_order_acq_rel,
                                                   memory_order_relaxed);
}

/* Checks that the call may work on a claimed request. */
static bp_status check_claimed(releasing *c, uint32_t id)
{
    bp_pool *pool = c->pool;
    const bp_entry *r = &pool->entries[id];
    bp_status status = BP_OK;
    if (c->purpose == CANCEL && (r->used || !is_last(r)))
        status = bp_fail_order(
            pool, id, r->used ? "is cancelled, but was used" : "is cancelled, but has more than one reference");
    else if (c->stream != NULL && bp_live_find(r, c->stream) == BP_LIVE_STREAMS)
        status = bp_fail_streams(pool, id);
    c->dynamic |= r->kind == BP_KIND_DYNAMIC;
    return status;
}

/* Drops the claims of a call. */
static void unclaim(bp_pool *pool, const uint32_t *ids, size_t count)
{
    while (count-- > 0)
        bp_clear_busy(pool->entries[ids[count]].word);
}

static bp_status release_claim(const releasing *c, size_t index)
{
    const uint32_t id = c->ids[index];
    uint64_t word;
    if (id >= bp_request_count(c->pool))
        return bp_fail_unknown(c->pool, id);
    if (!claim_word(&c->pool->entries[id], id, &word))
        return (word & BP_WORD_BUSY) != 0 && BP_WORD_ID(word) == id ? bp_fail_busy(c->pool, c->ids, index)
                                                                    : bp_fail_order(c->pool, id, not_live[c->purpose]);
    return BP_OK;
}

/* ---- points --------------------------------------------------------------------------------------------------------- */

/* The stream of every next user of the request's memory, which needs no event for the order. NULL: unknown. */
BP_HOT const bp_stream *next_stream(const bp_pool *pool, const bp_entry *r)
{
    const uint32_t first = r->first, count = r->count;
    if (count == 0)
        return NULL;
    const bp_stream *only = atomic_load_explicit(&pool->segments[first].only, memory_order_relaxed);
    for (uint32_t s = first + 1; s < first + count; s++) {
        if (atomic_load_explicit(&pool->segments[s].only, memory_order_relaxed) != only)
            return NULL;
    }
    return only;
}

static const bp_point *find_taken(const releasing *c, const bp_stream *stream)
{
    for (uint32_t i = 0; i < c->taken_count; i++) {
        if (c->taken[i].stream == stream)
            return &c->taken[i];
    }
    return NULL;
}

/* Records the call's point of a stream once. A destroyed stream has no pending work. */
static bp_status take_point(releasing *c, bp_stream *stream)
{
    if (find_taken(c, stream) != NULL)
        return BP_OK;
    if (c->taken_count == MAX_STREAMS_PER_CALL)
        return bp_fail(BP_ERR_UNSUPPORTED,
                       "pool %.40s: one call releases requests of more than %d streams; release in several calls",
                       c->pool->info.name, MAX_STREAMS_PER_CALL);
    bool recorded;
    bp_point *p = &c->taken[c->taken_count];
    p->stream = stream;
    BP_TRY(bp_take_point(bp_is_capturing(c->pool), stream, &p->point, &recorded));
    c->taken_count += recorded;
    return BP_OK;
}

/* True if this release ends the last acquire or use on the stream. */
static bool closes(const bp_live_stream *h)
{
    return h->open <= 1;
}

/* Records the points for the end of one reference. */
static bp_status release_take_points(releasing *c, const bp_entry *r)
{
    const bp_stream *next = next_stream(c->pool, r);
    bool last = is_last(r), seen = c->stream == NULL;
    if (r->kind == BP_KIND_EMPTY)
        return BP_OK;
    for (uint32_t i = 0; i < r->streams; i++) {
        const bp_live_stream *h = &r->live[i];
        bool here = h->stream == c->stream;
        seen = seen || here;
        if (h->stream == next || (here ? !last && !closes(h) : !last || h->point != BP_NO_POINT))
            continue;
        BP_TRY(take_point(c, h->stream));
    }
    /* released on a stream that neither acquired nor used */
    return seen || c->stream == next ? BP_OK : take_point(c, c->stream);
}

/* ---- committing ----------------------------------------------------------------------------------------------------- */

/* State of a stream of the live request after this release, with its point. */
static bp_live_stream after_release(const releasing *c, bool last, const bp_live_stream *before)
{
    bp_live_stream h = *before;
    if (h.stream == c->stream ? !last && !closes(before) : !last || h.point != BP_NO_POINT)
        return h;
    const bp_point *p = find_taken(c, h.stream);
    h.point = p != NULL ? p->point : BP_NO_POINT;
    return h;
}

static void add_point(const bp_live_stream *h, bp_fence *fence, uint32_t *count)
{
    if (!bp_stream_is_over(h->stream))
        fence->points[(*count)++] = (bp_point){.stream = h->stream, .point = h->point};
}

/* Writes the release events of all streams of the live range to the fence. Returns how many need no event. */
static uint32_t write_fence(const releasing *c, const bp_entry *r, bp_fence *fence)
{
    bool seen = c->stream == NULL;
    uint32_t count = 0, elided = 0;
    for (uint32_t i = 0; i < r->streams; i++) {
        const bp_live_stream h = after_release(c, true, &r->live[i]);
        add_point(&h, fence, &count);
        seen = seen || h.stream == c->stream;
    }
    if (!seen) {
        const bp_live_stream h = after_release(c, true, &(bp_live_stream){.stream = c->stream, .point = BP_NO_POINT});
        add_point(&h, fence, &count);
    }
    fence->count = count;
    for (uint32_t i = 0; i < count; i++)
        elided += fence->points[i].point == BP_NO_POINT;
    return elided;
}

/* Gives memory with a fence, and the word, to the next request. The bytes are spare before it can take the memory and count them too. */
BP_HOT void release_place(bp_pool *pool, bp_entry *r)
{
    const uint32_t fence = r->fence, first = r->first, count = r->count;
    for (uint32_t s = first; s < first + count; s++)
        pool->segments[s].fence = fence;
    bp_tally_release(&pool->tally, r->live_bytes);
    bp_live_free_place(pool, r);
}

static void end_live_range(releasing *c, uint32_t id, bp_entry *r)
{
    bp_pool *pool = c->pool;
    if (r->kind != BP_KIND_DYNAMIC && r->kind != BP_KIND_EMPTY)
        bp_count(&r->elided, write_fence(c, r, &pool->fences[r->fence]));
    bp_note_event(pool, c->purpose == CANCEL ? BP_EVENT_CANCEL : BP_EVENT_RELEASE, id,
                  c->stream != NULL ? c->stream : r->live[0].stream);
    if (r->kind == BP_KIND_DYNAMIC) /* after its address is recorded: another request may get it */
        bp_dynamic_free(pool, id, pool->dynamic.reaper);
    release_place(pool, r);
}

static void release_commit(releasing *c, uint32_t id, bp_entry *r)
{
    bp_count(c->purpose == CANCEL ? &r->cancelled : &r->releases, 1);
    if (is_last(r)) {
        end_live_range(c, id, r);
        return;
    }
    if (c->stream != NULL)
        bp_live_entry(r, c->stream);
    for (uint32_t i = 0; i < r->streams; i++) { /* the live range takes over the call's points */
        bp_live_stream *h = &r->live[i];
        *h = after_release(c, false, h);
        if (h->stream == c->stream)
            h->open -= h->open > 0 && h->open < UINT16_MAX;
    }
    r->used = 1;
    bp_note_event(c->pool, BP_EVENT_UNREF, id, c->stream);
    uint64_t word = atomic_load_explicit(r->word, memory_order_relaxed);
    atomic_store_explicit(r->word, (word & ~BP_WORD_BUSY) - BP_WORD_REFERENCE, memory_order_release);
}

/* Runs observers and frees dynamic memory when references are dropped. Everything that can fail comes first. */
static bp_status finish_memory(releasing *c)
{
    bp_pool *pool = c->pool;
    for (size_t i = 0; i < c->count; i++) {
        const bp_entry *r = &pool->entries[c->ids[i]];
        BP_TRY(bp_observers_check(pool, c->ids[i], atomic_load_explicit(r->word, memory_order_relaxed), c->stream));
        if (!is_last(r) || r->kind != BP_KIND_DYNAMIC)
            continue;
        bp_fence fence; /* the reaper waits for the release events of dynamic memory */
        write_fence(c, r, &fence);
        for (uint32_t k = 0; k < fence.count; k++) {
            if (fence.points[k].point != BP_NO_POINT)
                BP_TRY(bp_stream_wait_point(pool->dynamic.reaper, fence.points[k].stream, fence.points[k].point));
        }
    }
    for (size_t i = 0; i < c->count; i++) {
        if (is_last(&pool->entries[c->ids[i]]))
            bp_observers_close(pool, c->ids[i]);
    }
    return BP_OK;
}

/* Claims the requests after the first `claimed`, and checks all. Without claims on errors. */
static bp_status claim_all(releasing *c, size_t claimed)
{
    for (size_t i = 0; i < c->count; i++) {
        bp_status status = i < claimed ? BP_OK : release_claim(c, i);
        if (status == BP_OK) {
            claimed = i < claimed ? claimed : i + 1;
            status = check_claimed(c, c->ids[i]);
        }
        if (status != BP_OK) {
            unclaim(c->pool, c->ids, claimed);
            return status;
        }
    }
    return BP_OK;
}

/* Ends what the plan does not foresee: references that are left, several streams, observers, dynamic memory, cancelled requests, refusals.
 * The first `claimed` requests are claimed. */
BP_SLOW bp_status release_slowly(bp_pool *pool, const uint32_t *ids, size_t count, size_t claimed, bp_stream *stream,
                                 purpose p)
{
    releasing c;
    release_start(&c, pool, ids, count, stream, p);
    bp_status status = claim_all(&c, claimed);
    if (status != BP_OK)
        return count_refused(pool, status);
    for (size_t i = 0; i < count && status == BP_OK; i++)
        status = release_take_points(&c, &pool->entries[ids[i]]);
    if (status == BP_OK && (bp_observed(pool, BP_OBSERVERS_CHECK) != 0 || c.dynamic))
        status = finish_memory(&c);
    if (status != BP_OK) {
        unclaim(pool, ids, count);
        return count_refused(pool, status);
    }
    bp_count(&pool->entries[ids[0]].records, c.taken_count);
    for (size_t i = 0; i < count; i++)
        release_commit(&c, ids[i], &pool->entries[ids[i]]);
    return BP_OK;
}

/* ---- the common case ------------------------------------------------------------------------------------------------ */

/* bp_stream_record_point through local variables, so that the results stay in registers. */
BP_HOT bp_status record_end(bp_stream *stream, uint64_t *point, bool *has)
{
    uint64_t taken = 0;
    bool recorded;
    bp_status status = bp_stream_record_point(stream, &taken, &recorded);
    *point = taken;
    *has = recorded;
    return status;
}

/* Releases. The last references to planned memory of requests that one stream acquired, not observed, here. */
BP_HOT bp_status release(bp_pool *pool, const uint32_t *ids, size_t count, bp_stream *stream)
{
    bool fast = bp_observed(pool, ~0u) == 0, record_first = false, record_last = false;
    bp_stream *first = NULL;
    bp_entry *r = NULL;
    const bp_stream *next = NULL;
    size_t claimed = 0;
    while (claimed < count && BP_LIKELY(fast) && BP_LIKELY(ids[claimed] < bp_request_count(pool))) {
        uint64_t word;
        r = &pool->entries[ids[claimed]];
        if (!BP_LIKELY(claim_word(r, ids[claimed], &word)))
            break;
        first = claimed == 0 ? r->live[0].stream : first;
        fast = BP_WORD_REFERENCES(word) == 1 && r->streams == 1 && r->live[0].point == BP_NO_POINT &&
               r->live[0].stream == first && r->count > 0;
        next = next_stream(pool, r);
        record_first = record_first || (next != first && first != stream);
        record_last = record_last || next != stream;
        claimed++;
    }
    if (!BP_LIKELY(claimed == count && fast))
        return release_slowly(pool, ids, count, claimed, stream, RELEASE);
    uint64_t first_point = 0, last_point = 0;
    bool has_first = first != stream, has_last = true; /* a destroyed stream has no pending work */
    bp_status status = record_first ? record_end(first, &first_point, &has_first) : BP_OK;
    if (record_last && status == BP_OK)
        status = record_end(stream, &last_point, &has_last);
    if (status != BP_OK) {
        unclaim(pool, ids, count);
        return count_refused(pool, status);
    }
    if (record_first || record_last)
        bp_count(&pool->entries[ids[0]].records, (record_first && has_first) + (record_last && has_last));
    for (size_t i = 0; i < count; i++) {
        if (count > 1) { /* one request is still in registers */
            r = &pool->entries[ids[i]];
            next = next_stream(pool, r);
        }
        bp_fence *fence = &pool->fences[r->fence];
        uint32_t points = 0;
        if (has_first)
            fence->points[points++] = (bp_point){first, next == first ? BP_NO_POINT : first_point};
        if (has_last)
            fence->points[points++] = (bp_point){stream, next == stream ? BP_NO_POINT : last_point};
        fence->count = points;
        bp_count(&r->elided, (has_first && next == first) + (has_last && next == stream));
        bp_count(&r->releases, 1);
        release_place(pool, r);
    }
    return BP_OK;
}

/* Any number of requests, out of line. */
BP_SLOW bp_status release_many(bp_pool *pool, const uint32_t *ids, size_t count, bp_stream *stream)
{
    return release(pool, ids, count, stream);
}

/* ---- calls ---------------------------------------------------------------------------------------------------------- */

bp_status bp_pool_release(bp_pool *pool, const uint32_t *ids, size_t count, bp_stream *stream)
{
    BP_TRY(bp_check_call(pool, ids, count, "bp_pool_release"));
    BP_TRY(bp_check_stream(pool, stream, "bp_pool_release"));
    if (BP_LIKELY(count == 1))
        return release(pool, ids, 1, stream);
    return count == 0 ? BP_OK : release_many(pool, ids, count, stream);
}

bp_status bp_pool_cancel(bp_pool *pool, const uint32_t *ids, size_t count)
{
    BP_TRY(bp_check_call(pool, ids, count, "bp_pool_cancel"));
    return count == 0 ? BP_OK : release_slowly(pool, ids, count, 0, NULL, CANCEL);
}

bp_status bp_pool_use(bp_pool *pool, const uint32_t *ids, size_t count, bp_stream *stream)
{
    BP_TRY(bp_check_call(pool, ids, count, "bp_pool_use"));
    BP_TRY(bp_check_stream(pool, stream, "bp_pool_use"));
    releasing c;
    release_start(&c, pool, ids, count, stream, USE);
    BP_TRY(count_refused(pool, claim_all(&c, 0)));
    for (size_t i = 0; i < count; i++) {
        bp_live_touch(&pool->entries[ids[i]], stream, false);
        bp_note_event(pool, BP_EVENT_USE, ids[i], stream);
    }
    unclaim(pool, ids, count);
    return BP_OK;
}
