/* SPDX-License-Identifier: Apache-2.0 */
/* Acquire, the first half of the hot path. A call claims all its requests, orders the stream after the release events of their memory,
 * then commits. Nothing before the commit is visible: a call that fails drops its claims and has changed nothing. */
#include "allocators/engine.h"
#include "allocators/observers.h"
#include "allocators/report.h"
#include "allocators/residency.h"

typedef enum outcome {
    CLAIMED = 0,
    HELD,         /* by another request */
    UNKNOWN,      /* the id is not bound */
    RACE,         /* a call works on the request: another one, or this one if the id occurs twice */
    OTHER_STREAM, /* bp_pool_set_stream promised another stream */
    NO_MEMORY,    /* the plan's schedule never uses the request */
    MAX_REFERENCES,
    MAX_STREAMS,
    SEALED, /* dynamic, and the pool is sealed */
    FAILED  /* the device failed; bp_status_detail has the reason */
} outcome;

typedef struct acquiring {
    bp_pool *pool;
    const uint32_t *ids;
    size_t count;
    bp_stream *stream;
    bool patient;     /* if the device is out of memory, waits for pending frees */
    size_t failed;    /* index of the id that an outcome other than CLAIMED is about */
    uint32_t holder;  /* holder, for HELD; BP_NONE: unknown */
    bp_status status; /* status, for FAILED */
} acquiring;

/* ---- claiming ------------------------------------------------------------------------------------------------------- */

/* Claims memory for a request whose word is claimed. */
static outcome claim_place(acquiring *a, const bp_entry *r, uint32_t id)
{
    switch (r->kind) {
    case BP_KIND_DIRECT: /* the word is that of the first segment */
        return bp_claim_segments(a->pool, r->first + 1, r->count - 1, id, &a->holder) ? CLAIMED : HELD;
    case BP_KIND_CHOSEN: return bp_claim_chosen(a->pool, id, &a->holder) ? CLAIMED : HELD;
    case BP_KIND_EMPTY: return CLAIMED;
    case BP_KIND_UNUSED: return NO_MEMORY;
    default: break;
    }
    if (bp_is_fixed(a->pool))
        return SEALED;
    a->status = bp_dynamic_claim(a->pool, id, a->stream, a->patient);
    return a->status == BP_OK ? CLAIMED : a->status == BP_ERR_NO_DEVICE_MEMORY ? HELD : FAILED;
}

/* Another reference to a request that is live, or the reason against it. `found` is in its word. */
static outcome claim_again(acquiring *a, bp_entry *r, uint32_t id, uint64_t found)
{
    if (BP_WORD_ID(found) != id) {
        a->holder = BP_WORD_ID(found);
        return HELD;
    }
    if (found & BP_WORD_BUSY)
        return RACE;
    if (BP_WORD_REFERENCES(found) == BP_MAX_REFERENCES)
        return MAX_REFERENCES;
    if (!atomic_compare_exchange_strong_explicit(r->word, &found, found | BP_WORD_BUSY, memory_order_acq_rel,
                                                 memory_order_relaxed))
        return RACE;
    if (bp_live_find(r, a->stream) < BP_LIVE_STREAMS)
        return CLAIMED;
    atomic_store_explicit(r->word, found, memory_order_release);
    return MAX_STREAMS;
}

/* Claims the word of a free request that the stream may acquire, and its first segment, which shares the word. */
BP_HOT bool claim_free(bp_pool *pool, uint32_t id, const bp_stream *stream, uint64_t *found)
{
    const bp_entry *r = &pool->entries[id];
    *found = 0;
    return BP_LIKELY(r->only == NULL || r->only == stream) &&
           BP_LIKELY(atomic_compare_exchange_strong_explicit(r->word, found, ((uint64_t)id + 1) | BP_WORD_BUSY,
                                                             memory_order_acq_rel, memory_order_relaxed));
}

static outcome acquire_claim(acquiring *a, uint32_t id)
{
    if (id >= bp_request_count(a->pool))
        return UNKNOWN;
    bp_entry *r = &a->pool->entries[id];
    uint64_t found;
    if (!claim_free(a->pool, id, a->stream, &found))
        return found != 0 ? claim_again(a, r, id, found) : OTHER_STREAM;
    outcome o = claim_place(a, r, id);
    if (o != CLAIMED)
        atomic_store_explicit(r->word, 0, memory_order_release);
    return o;
}

/* Drops the claims of the first `count` ids. */
static void acquire_unclaim(bp_pool *pool, const uint32_t *ids, size_t count, bp_stream *stream)
{
    while (count-- > 0) {
        bp_entry *r = &pool->entries[ids[count]];
        if (BP_WORD_REFERENCES(atomic_load_explicit(r->word, memory_order_relaxed)) > 0) {
            bp_clear_busy(r->word);
            continue;
        }
        if (r->kind == BP_KIND_DYNAMIC)
            bp_dynamic_free(pool, ids[count], stream);
        bp_live_free_place(pool, r);
    }
}

/* ---- ordering ------------------------------------------------------------------------------------------------------- */

BP_HOT bool is_fresh(const bp_entry *r)
{
    return BP_WORD_REFERENCES(atomic_load_explicit(r->word, memory_order_relaxed)) == 0;
}

/* True if the memory's earlier users were all on the stream. */
BP_HOT bool is_ordered(const bp_pool *pool, const bp_entry *r, const bp_stream *stream)
{
    uint32_t before = 0;
    for (uint32_t s = r->first; s < r->first + r->count; s++) {
        const uint32_t index = pool->segments[s].fence;
        const bp_fence *fence = &pool->fences[index];
        for (uint32_t i = 0; i < fence->count && index != before; i++) {
            if (fence->points[i].stream != stream)
                return false;
        }
        before = index;
    }
    return true;
}

/* Collects the points that order the stream after a request's earlier users. */
static bp_status collect_request(const bp_pool *pool, const bp_entry *r, bp_waits *w)
{
    if (!is_fresh(r)) {
        uint32_t place = bp_live_find(r, w->waiter);
        if (place < r->streams && r->live[place].acquired)
            return BP_OK;                 /* ordered by its first acquire on this stream */
        BP_TRY(bp_waits_add_zeros(w, r)); /* zeros are written before the work of a further stream */
    }
    if (r->kind == BP_KIND_DYNAMIC && !is_fresh(r))
        return bp_waits_add(w, &pool->fences[r->fence]); /* the allocation is ordered on its first stream */
    uint32_t before = 0;
    for (uint32_t s = r->first; s < r->first + r->count; s++) {
        uint32_t fence = pool->segments[s].fence;
        if (fence != before)
            BP_TRY(bp_waits_add(w, &pool->fences[fence]));
        before = fence;
    }
    return BP_OK;
}

/* Orders the stream after the earlier users of all claimed requests, or drops the claims. Counts for the first id. */
BP_SLOW bp_status acquire_wait(bp_pool *pool, const uint32_t *ids, size_t count, bp_stream *stream)
{
    bp_waits w;
    bp_waits_init(&w, pool, stream);
    bp_status status = BP_OK;
    for (size_t i = 0; i < count && status == BP_OK; i++)
        status = collect_request(pool, &pool->entries[ids[i]], &w);
    if (status == BP_OK)
        status = bp_waits_issue(&w);
    if (status != BP_OK) {
        acquire_unclaim(pool, ids, count, stream);
        bp_count_shared(&pool->refused);
        return status;
    }
    bp_count(&pool->entries[ids[0]].waits, w.issued);
    bp_count(&pool->entries[ids[0]].records, w.recorded);
    return BP_OK;
}

/* Prepares the memory on the stream, before the caller's work. */
static bp_status acquire_prepare(acquiring *a)
{
    bp_pool *pool = a->pool;
    for (size_t i = 0; i < a->count; i++) {
        const uint32_t id = a->ids[i];
        const bp_entry *r = &pool->entries[id];
        if (!is_fresh(r))
            continue;
        bp_status status = bp_observers_prepare(pool, id, a->stream);
        if (status == BP_OK && r->kind == BP_KIND_DYNAMIC) {
            status = bp_dynamic_mark(pool, id, a->stream);
            if (status != BP_OK)
                bp_observers_undo(pool, id, a->stream);
        }
        if (status == BP_OK)
            continue;
        while (i-- > 0) {
            if (is_fresh(&pool->entries[a->ids[i]]))
                bp_observers_undo(pool, a->ids[i], a->stream);
        }
        return status;
    }
    return BP_OK;
}

/* ---- committing ----------------------------------------------------------------------------------------------------- */

static inline uint64_t acquire_mix(uint64_t value)
{
    value = (value ^ value >> 31) * 0x9e3779b97f4a7c15u;
    return value ^ value >> 29;
}

BP_HOT void begin_live_range(const bp_pool *pool, bp_entry *r, bp_stream *stream, uint64_t number)
{
    r->streams = 1;
    r->used = 0;
    r->live[0] = (bp_live_stream){.stream = stream, .point = BP_NO_POINT, .open = 1, .acquired = 1};
    atomic_store_explicit(&r->since_acquire, number, memory_order_relaxed);
    atomic_store_explicit(&r->since_step, bp_read(&pool->step), memory_order_relaxed);
    atomic_store_explicit(&r->since_stream, stream, memory_order_release);
}

BP_HOT void acquire_commit(bp_pool *pool, bp_entry *r, uint32_t id, bp_stream *stream, uint64_t number)
{
    uint64_t word = atomic_load_explicit(r->word, memory_order_relaxed) & ~BP_WORD_BUSY;
    bp_count(&r->acquires, 1);
    bp_count(&r->hash, acquire_mix(r->key + number * 0xd1342543de82ef95u));
    if (BP_LIKELY(BP_WORD_REFERENCES(word) == 0)) {
        begin_live_range(pool, r, stream, number);
        if (r->kind == BP_KIND_CHOSEN)
            bp_note_choice(pool, id);
    } else {
        bp_live_touch(r, stream, true);
        bp_count(&r->repeated, 1);
    }
    atomic_store_explicit(r->word, word + BP_WORD_REFERENCE, memory_order_release);
}

/* Cold: the error of an outcome. */
static bp_status explain(const acquiring *a, outcome o)
{
    bp_pool *pool = a->pool;
    const uint32_t id = a->ids[a->failed];
    char what[160];
    bp_count_shared(&pool->refused);
    switch (o) {
    case HELD: return a->status == BP_ERR_NO_DEVICE_MEMORY ? a->status : bp_fail_held(pool, id, a->holder);
    case UNKNOWN: return bp_fail_unknown(pool, id);
    case RACE: return bp_fail_busy(pool, a->ids, a->failed);
    case OTHER_STREAM:
        snprintf(what, sizeof what, "is acquired on stream %.40s; bp_pool_set_stream promised stream %.40s",
                 a->stream->name, pool->entries[id].only->name);
        return bp_fail_order(pool, id, what);
    case NO_MEMORY: return bp_fail_order(pool, id, "has no memory: the plan's schedule never uses it");
    case MAX_REFERENCES: return bp_fail_order(pool, id, "has 65535 references already, the largest count");
    case MAX_STREAMS: return bp_fail_streams(pool, id);
    case SEALED:
        if (!bp_is_capturing(pool))
            return bp_fail_order(pool, id, "is dynamic, and the pool is sealed");
        (void)bp_fail_order(pool, id, "is dynamic, and the pool is being captured: plan it, or acquire it before");
        return BP_ERR_CAPTURE;
    default: return a->status;
    }
}

/* Serves what the plan does not foresee: further references, other places, observers, dynamic memory, refusals. The first `claimed`
 * requests are claimed. `acquired` NULL: the requests must be acquired. */
BP_SLOW bp_status acquire_slowly(bp_pool *pool, const uint32_t *ids, size_t count, size_t claimed, bp_stream *stream,
                                 void **addresses, int *acquired)
{
    acquiring a = {
        .pool = pool, .ids = ids, .count = count, .stream = stream, .patient = acquired == NULL, .holder = BP_NONE};
    for (a.failed = claimed; a.failed < count; a.failed++) {
        outcome o = acquire_claim(&a, ids[a.failed]);
        if (o == CLAIMED)
            continue;
        acquire_unclaim(pool, ids, a.failed, stream);
        if (acquired == NULL || !(o == HELD || (o == RACE && bp_home_is_closed(pool, ids[a.failed]))))
            return explain(&a, o);
        bp_count_shared(&pool->busy);
        *acquired = 0;
        return BP_OK;
    }
    BP_TRY(acquire_wait(pool, ids, count, stream));
    bp_status status = acquire_prepare(&a);
    if (status != BP_OK) {
        acquire_unclaim(pool, ids, count, stream);
        bp_count_shared(&pool->refused);
        return status;
    }
    uint64_t bytes = 0;
    for (size_t i = 0; i < count; i++)
        bytes += is_fresh(&pool->entries[ids[i]]) ? pool->entries[ids[i]].live_bytes : 0;
    uint64_t number = bp_tally_acquire(&pool->tally, count, bytes);
    for (size_t i = 0; i < count; i++) {
        bp_entry *r = &pool->entries[ids[i]];
        const bool fresh = is_fresh(r);
        if (addresses != NULL)
            addresses[i] = bp_entry_address(r);
        bp_count(&r->dynamic, fresh && r->kind == BP_KIND_DYNAMIC);
        bp_count(&r->records, fresh && r->kind == BP_KIND_DYNAMIC); /* the point of the allocation */
        bp_note_event(pool, fresh ? BP_EVENT_ACQUIRE : BP_EVENT_REF, ids[i], stream);
        acquire_commit(pool, r, ids[i], stream, number + i);
    }
    if (acquired != NULL)
        *acquired = 1;
    return BP_OK;
}

/* All acquires: free requests at their planned places, in order and not observed, here. */
BP_HOT bp_status acquire(bp_pool *pool, const uint32_t *ids, size_t count, bp_stream *stream, void **addresses,
                         int *acquired)
{
    uint64_t bytes = 0, found;
    uint32_t holder;
    const bool fast = bp_observed(pool, ~0u) == 0;
    bool ordered = true;
    bp_entry *r = NULL;
    size_t i = 0;
    while (i < count && BP_LIKELY(fast) && BP_LIKELY(ids[i] < bp_request_count(pool))) {
        r = &pool->entries[ids[i]];
        if (!BP_LIKELY(r->kind == BP_KIND_DIRECT) || !claim_free(pool, ids[i], stream, &found))
            break;
        if (!BP_LIKELY(r->count == 1) && !bp_claim_segments(pool, r->first + 1, r->count - 1, ids[i], &holder)) {
            atomic_store_explicit(r->word, 0, memory_order_release); /* which holds the first segment, too */
            break;
        }
        bytes += r->live_bytes;
        ordered = ordered && is_ordered(pool, r, stream);
        i++;
    }
    if (!BP_LIKELY(i == count))
        return acquire_slowly(pool, ids, count, i, stream, addresses, acquired);
    if (!ordered)
        BP_TRY(acquire_wait(pool, ids, count, stream));
    uint64_t number = bp_tally_acquire(&pool->tally, count, bytes);
    for (i = 0; i < count; i++) {
        if (count > 1) /* one request is still in registers */
            r = &pool->entries[ids[i]];
        if (addresses != NULL)
            addresses[i] = bp_entry_address(r);
        acquire_commit(pool, r, ids[i], stream, number + i);
    }
    if (acquired != NULL)
        *acquired = 1;
    return BP_OK;
}

/* Any number of requests, out of line. */
BP_SLOW bp_status acquire_many(bp_pool *pool, const uint32_t *ids, size_t count, bp_stream *stream, void **addresses,
                               int *acquired)
{
    return acquire(pool, ids, count, stream, addresses, acquired);
}

/* ---- calls ---------------------------------------------------------------------------------------------------------- */

BP_HOT bp_status check_call(bp_pool *pool, const uint32_t *ids, size_t count, bp_stream *stream, const char *function)
{
    BP_TRY(bp_check_call(pool, ids, count, function));
    return bp_check_stream(pool, stream, function);
}

bp_status bp_pool_acquire(bp_pool *pool, const uint32_t *ids, size_t count, bp_stream *stream, void **addresses)
{
    BP_TRY(check_call(pool, ids, count, stream, "bp_pool_acquire"));
    return BP_LIKELY(count == 1) ? acquire(pool, ids, 1, stream, addresses, NULL)
                                 : acquire_many(pool, ids, count, stream, addresses, NULL);
}

bp_status bp_pool_try_acquire(bp_pool *pool, const uint32_t *ids, size_t count, bp_stream *stream, void **addresses,
                              int *acquired)
{
    BP_TRY(check_call(pool, ids, count, stream, "bp_pool_try_acquire"));
    if (acquired == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_pool_try_acquire: the output is NULL");
    return acquire_many(pool, ids, count, stream, addresses, acquired);
}
