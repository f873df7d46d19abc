/* Acquire, the first half of the hot path. A call claims all its requests, orders the stream after the release events of their memory,
 * then commits. Nothing before the commit is visible: a call that fails drops its claims and has changed nothing. */
#include "allocators/engine.h"
#include "allocators/observers.h"
#include "allocators/report.h"

typedef enum outcome {
    CLAIMED = 0,
    HELD,         /* by another request */
    UNKNOWN,      /* the id is not bound */
    RACE,         /* a call works on the request: another one, or this one if the id occurs twice */
    OTHER_STREAM, /* bp_pool_set_stream promised another stream */
    NO_MEMORY,    /* the plan's schedule never uses the request */
    MOST_REFERENCES,
    MOST_STREAMS,
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

/* Claims planned memory for a request whose word is claimed. */
BP_HOT bool claim_planned(bp_pool *pool, const bp_entry *r, uint32_t id, uint32_t *holder)
{
    if (r->kind == BP_KIND_CHOSEN)
        return bp_claim_chosen(pool, id, holder);
    return r->count == 1 || bp_claim_segments(pool, r->first + 1, r->count - 1, id, holder); /* the first is claimed */
}

/* Claims memory for a request whose word is claimed. */
static outcome claim_place(acquiring *a, bp_entry *r, uint32_t id)
{
    if (r->kind <= BP_KIND_CHOSEN)
        return claim_planned(a->pool, r, id, &a->holder) ? CLAIMED : HELD;
    if (r->kind == BP_KIND_EMPTY)
        return CLAIMED;
    if (r->kind == BP_KIND_UNUSED)
        return NO_MEMORY;
    if (bp_is_fixed(a->pool))
        return SEALED;
    a->status = bp_dynamic_claim(a->pool, id, a->stream, a->patient);
    return a->status == BP_OK ? CLAIMED : a->status == BP_ERR_NO_DEVICE_MEMORY ? HELD : FAILED;
}

/* Sets *request on success. */
BP_HOT outcome acquire_claim(acquiring *a, uint32_t id, bp_entry **request)
{
    bp_pool *pool = a->pool;
    if (id >= bp_request_count(pool))
        return UNKNOWN;
    bp_entry *r = *request = &pool->entries[id];
    if (r->only != NULL && r->only != a->stream)
        return OTHER_STREAM;
    const uint64_t mine = (uint64_t)id + 1;
    uint64_t found = 0;
    if (atomic_compare_exchange_strong_explicit(r->word, &found, mine | BP_WORD_BUSY, memory_order_acq_rel,
                                                memory_order_relaxed)) {
        outcome o = claim_place(a, r, id);
        if (o != CLAIMED)
            atomic_store_explicit(r->word, 0, memory_order_release);
        return o;
    }
    if ((uint32_t)found != mine) {
        a->holder = BP_WORD_ID(found);
        return HELD;
    }
    if (found & BP_WORD_BUSY)
        return RACE;
    if (BP_WORD_REFERENCES(found) == BP_MOST_REFERENCES)
        return MOST_REFERENCES;
    if (!atomic_compare_exchange_strong_explicit(r->word, &found, found | BP_WORD_BUSY, memory_order_acq_rel,
                                                 memory_order_relaxed))
        return RACE;
    if (bp_live_find(r, a->stream) < BP_LIVE_STREAMS)
        return CLAIMED;
    atomic_store_explicit(r->word, found, memory_order_release);
    return MOST_STREAMS;
}

/* Drops the claims of the first `count` ids. */
static void acquire_unclaim(acquiring *a, size_t count)
{
    while (count-- > 0) {
        uint32_t id = a->ids[count];
        bp_entry *r = &a->pool->entries[id];
        uint64_t word = atomic_load_explicit(r->word, memory_order_relaxed);
        if (BP_WORD_REFERENCES(word) > 0) {
            bp_clear_busy(r->word);
            continue;
        }
        if (r->kind == BP_KIND_DYNAMIC)
            bp_dynamic_free(a->pool, id, a->stream);
        bp_live_free_place(a->pool, r);
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

/* Orders the stream after the earlier users of all claimed requests. Counts for the first id. */
static bp_status acquire_order(bp_pool *pool, const uint32_t *ids, size_t count, bp_stream *stream)
{
    bp_waits w;
    bp_waits_init(&w, pool, stream);
    for (size_t i = 0; i < count; i++)
        BP_TRY(collect_request(pool, &pool->entries[ids[i]], &w));
    BP_TRY(bp_waits_issue(&w));
    bp_count(&pool->entries[ids[0]].waits, w.issued);
    bp_count(&pool->entries[ids[0]].records, w.recorded);
    return BP_OK;
}

/* True if observers or zeroing must prepare the request's memory. */
BP_HOT bool needs_preparing(const bp_pool *pool, const bp_entry *r)
{
    return bp_observed(pool, BP_OBSERVERS_PREPARE) != 0 || r->kind == BP_KIND_DYNAMIC;
}

/* Prepares the memory on the stream, before the caller's work. */
static bp_status acquire_prepare(acquiring *a)
{
    bp_pool *pool = a->pool;
    for (size_t i = 0; i < a->count; i++) {
        const uint32_t id = a->ids[i];
        const bp_entry *r = &pool->entries[id];
        if (!is_fresh(r) || !needs_preparing(pool, r))
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

BP_HOT void count_acquire(bp_entry *r, uint64_t number)
{
    bp_count(&r->acquires, 1);
    bp_count(&r->hash, acquire_mix(r->key + number * 0xd1342543de82ef95u));
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

BP_HOT void acquire_commit(acquiring *a, uint32_t id, bp_entry *r, uint64_t number)
{
    uint64_t word = atomic_load_explicit(r->word, memory_order_relaxed) & ~BP_WORD_BUSY;
    count_acquire(r, number);
    if (BP_WORD_REFERENCES(word) == 0) {
        if (r->kind == BP_KIND_CHOSEN) {
            bp_note_choice(a->pool, id);
        } else if (r->kind == BP_KIND_DYNAMIC) {
            bp_count(&r->dynamic, 1);
            bp_count(&r->records, 1); /* the point of the allocation */
        }
        begin_live_range(a->pool, r, a->stream, number);
        bp_note_event(a->pool, BP_EVENT_ACQUIRE, id, a->stream);
    } else {
        bp_live_touch(r, a->stream, true);
        bp_count(&r->repeated, 1);
        bp_note_event(a->pool, BP_EVENT_REF, id, a->stream);
    }
    atomic_store_explicit(r->word, word + BP_WORD_REFERENCE, memory_order_release);
}

/* Returns CLAIMED on success. */
static outcome acquire_all(acquiring *a, void **addresses)
{
    uint64_t bytes = 0;
    bool ordered = true;
    for (; a->failed < a->count; a->failed++) {
        bp_entry *r;
        outcome o = acquire_claim(a, a->ids[a->failed], &r);
        if (o != CLAIMED) {
            acquire_unclaim(a, a->failed);
            return o;
        }
        bytes += is_fresh(r) ? r->live_bytes : 0;
        ordered = ordered && is_fresh(r) && is_ordered(a->pool, r, a->stream);
    }
    a->failed = 0;
    if (!ordered)
        a->status = acquire_order(a->pool, a->ids, a->count, a->stream);
    if (a->status == BP_OK)
        a->status = acquire_prepare(a);
    if (a->status != BP_OK) {
        acquire_unclaim(a, a->count);
        return FAILED;
    }
    uint64_t number = bp_tally_acquire(&a->pool->tally, a->count, bytes);
    for (size_t i = 0; i < a->count; i++) {
        bp_entry *r = &a->pool->entries[a->ids[i]];
        if (addresses != NULL)
            addresses[i] = bp_entry_address(r);
        acquire_commit(a, a->ids[i], r, number + i);
    }
    return CLAIMED;
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
    case MOST_REFERENCES: return bp_fail_order(pool, id, "has 65535 references already, the largest count");
    case MOST_STREAMS: return bp_fail_streams(pool, id);
    case SEALED:
        if (!bp_is_capturing(pool))
            return bp_fail_order(pool, id, "is dynamic, and the pool is sealed");
        (void)bp_fail_order(pool, id, "is dynamic, and the pool is being captured: plan it, or acquire it before");
        return BP_ERR_CAPTURE;
    default: return a->status;
    }
}

/* Serves any call. `acquired` NULL: the requests must be acquired. */
static bp_status acquire_any(bp_pool *pool, const uint32_t *ids, size_t count, bp_stream *stream, void **addresses,
                             int *acquired)
{
    acquiring a = {
        .pool = pool, .ids = ids, .count = count, .stream = stream, .patient = acquired == NULL, .holder = BP_NONE};
    outcome o = count == 0 ? CLAIMED : acquire_all(&a, addresses);
    if (acquired != NULL && (o == HELD || (o == RACE && bp_home_is_closed(pool, ids[a.failed]))))
        bp_count_shared(&pool->busy);
    else if (o != CLAIMED)
        return explain(&a, o);
    if (acquired != NULL)
        *acquired = o == CLAIMED;
    return BP_OK;
}

/* ---- the common case ------------------------------------------------------------------------------------------------ */

/* Claims a free request with planned memory. NULL: it is another case, and nothing has changed. */
BP_HOT bp_entry *claim_simple(bp_pool *pool, uint32_t id, const bp_stream *stream)
{
    if (id >= bp_request_count(pool))
        return NULL;
    bp_entry *r = &pool->entries[id];
    if (r->kind > BP_KIND_CHOSEN || (r->only != NULL && r->only != stream))
        return NULL;
    uint64_t found = 0;
    uint32_t holder;
    if (!atomic_compare_exchange_strong_explicit(r->word, &found, ((uint64_t)id + 1) | BP_WORD_BUSY,
                                                 memory_order_acq_rel, memory_order_relaxed))
        return NULL;
    if (BP_LIKELY(claim_planned(pool, r, id, &holder)))
        return r;
    atomic_store_explicit(r->word, 0, memory_order_release);
    return NULL;
}

static void unclaim_simple(bp_pool *pool, const uint32_t *ids, size_t count)
{
    while (count-- > 0)
        bp_live_free_place(pool, &pool->entries[ids[count]]);
}

/* Acquires free requests with planned memory, not observed. False: it is another case, and nothing has changed. */
BP_HOT bool acquire_simple(bp_pool *pool, const uint32_t *ids, size_t count, bp_stream *stream, void **addresses,
                           bp_status *status)
{
    uint64_t bytes = 0;
    uint32_t id = 0;
    bp_entry *r = NULL;
    bool ordered = true;
    if (bp_observed(pool, ~0u) != 0)
        return false;
    for (size_t i = 0; i < count; i++) {
        id = ids[i];
        r = claim_simple(pool, id, stream);
        if (r == NULL) {
            unclaim_simple(pool, ids, i);
            return false;
        }
        bytes += r->live_bytes;
        ordered = ordered && is_ordered(pool, r, stream);
    }
    *status = ordered ? BP_OK : acquire_order(pool, ids, count, stream);
    if (*status != BP_OK) {
        unclaim_simple(pool, ids, count);
        bp_count_shared(&pool->refused);
        return true;
    }
    const uint64_t number = bp_tally_acquire(&pool->tally, count, bytes);
    for (size_t i = 0; i < count; i++) {
        if (count > 1) { /* one request is still in registers */
            id = ids[i];
            r = &pool->entries[id];
        }
        if (addresses != NULL)
            addresses[i] = bp_entry_address(r);
        count_acquire(r, number + i);
        begin_live_range(pool, r, stream, number + i);
        if (r->kind == BP_KIND_CHOSEN)
            bp_note_choice(pool, id);
        atomic_store_explicit(r->word, ((uint64_t)id + 1) | BP_WORD_REFERENCE, memory_order_release);
    }
    return true;
}

/* Any number of requests. */
static bp_status acquire_many(bp_pool *pool, const uint32_t *ids, size_t count, bp_stream *stream, void **addresses,
                              int *acquired)
{
    bp_status status;
    if (count == 1 || !acquire_simple(pool, ids, count, stream, addresses, &status))
        return acquire_any(pool, ids, count, stream, addresses, acquired);
    if (status == BP_OK && acquired != NULL)
        *acquired = 1;
    return status;
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
    bp_status status; /* of one request: inlined without loops */
    if (BP_LIKELY(count == 1 && acquire_simple(pool, ids, 1, stream, addresses, &status)))
        return status;
    return acquire_many(pool, ids, count, stream, addresses, NULL);
}

bp_status bp_pool_try_acquire(bp_pool *pool, const uint32_t *ids, size_t count, bp_stream *stream, void **addresses,
                              int *acquired)
{
    BP_TRY(check_call(pool, ids, count, stream, "bp_pool_try_acquire"));
    if (acquired == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_pool_try_acquire: the output is NULL");
    bp_status status;
    if (count != 1 || !acquire_simple(pool, ids, 1, stream, addresses, &status))
        return acquire_many(pool, ids, count, stream, addresses, acquired);
    if (status == BP_OK)
        *acquired = 1;
    return status;
}
