/* Whether an acquire would be served, counting what is about to be released: the claims of acquire, played through without making
 * them. */
#include "allocators/engine.h"
#include "allocators/explain.h"
#include "core/fail.h"

#define MOST_CHOICES 256

typedef struct question {
    const bp_pool *pool;
    const uint32_t *ids, *releasing;
    size_t count, releasing_count;
    bp_range chosen[MOST_CHOICES]; /* segments that earlier ids of the call would take, of requests that may choose */
    uint32_t chosen_count;
} question;

static uint64_t word_of(const bp_word *word)
{
    return atomic_load_explicit((bp_word *)word, memory_order_relaxed);
}

static uint32_t times(const question *q, uint32_t id)
{
    uint32_t n = 0;
    for (size_t i = 0; i < q->releasing_count; i++)
        n += q->releasing[i] == id;
    return n;
}

/* Whether a request will be live when all releases have happened. */
static bool stays_live(const question *q, uint32_t id)
{
    uint64_t word = word_of(q->pool->entries[id].word);
    return BP_WORD_ID(word) == id && ((word & BP_WORD_BUSY) != 0 || BP_WORD_REFERENCES(word) > times(q, id));
}

static bool can_acquire_is_chosen(const question *q, uint32_t segment)
{
    for (uint32_t i = 0; i < q->chosen_count; i++) {
        if (segment >= q->chosen[i].first && segment - q->chosen[i].first < q->chosen[i].count)
            return true;
    }
    return false;
}

/* Whether a segment would be free for the request at `position` of the call. */
static bool would_be_free(const question *q, uint32_t segment, size_t position)
{
    uint32_t holder = bp_segment_holder(&q->pool->segments[segment]);
    if (holder == BP_HELD_BY_LAUNCH || holder == BP_HELD_BY_OFFLOAD || (holder != BP_NONE && stays_live(q, holder)) ||
        can_acquire_is_chosen(q, segment))
        return false;
    for (size_t i = 0; i < position; i++) {
        const bp_entry *r = &q->pool->entries[q->ids[i]];
        if (r->kind == BP_KIND_DIRECT && segment >= r->first && segment - r->first < r->count)
            return false;
    }
    return true;
}

static bool would_take(question *q, uint32_t segment, size_t position)
{
    if (!would_be_free(q, segment, position))
        return false;
    q->chosen[q->chosen_count++] = (bp_range){segment, 1};
    return true;
}

static bool would_overflow(question *q, size_t position)
{
    const bp_pool *pool = q->pool;
    if (!bp_may_overflow(pool, q->ids[position]))
        return false;
    for (uint32_t i = 0; i < pool->overflow_count; i++) {
        uint32_t segment = pool->overflow_first + i;
        if (pool->segments[segment].bytes >= pool->entries[q->ids[position]].bytes && would_take(q, segment, position))
            return true;
    }
    return false;
}

static bool would_be_given(question *q, size_t position)
{
    const bp_pool *pool = q->pool;
    const bp_entry *r = &pool->entries[q->ids[position]];
    bool is_free = true;
    for (uint32_t s = r->home.first; is_free && s < r->home.first + r->home.count; s++)
        is_free = would_be_free(q, s, position);
    if (is_free) {
        q->chosen[q->chosen_count++] = r->home;
        return true;
    }
    const bp_range copies = r->class_index != BP_NONE ? pool->classes[r->class_index] : (bp_range){0};
    for (uint32_t i = 0; bp_may_deviate(pool, r) && i < copies.count; i++) {
        if (would_take(q, pool->copies[copies.first + i], position))
            return true;
    }
    return would_overflow(q, position);
}

static bool would_serve(question *q, size_t position)
{
    uint32_t id = q->ids[position];
    const bp_entry *r = &q->pool->entries[id];
    if (stays_live(q, id))
        return (word_of(r->word) & BP_WORD_BUSY) == 0;
    if (r->kind == BP_KIND_EMPTY)
        return true;
    if (r->kind == BP_KIND_DYNAMIC)
        return !bp_is_fixed(q->pool);
    if (r->kind == BP_KIND_UNUSED)
        return false;
    if (r->kind == BP_KIND_CHOSEN)
        return would_be_given(q, position);
    for (uint32_t s = r->first; s < r->first + r->count; s++) {
        if (!would_be_free(q, s, position))
            return false;
    }
    return true;
}

static bp_status can_acquire_check_ids(const bp_pool *pool, const uint32_t *ids, size_t count)
{
    uint32_t bound = bp_request_count(pool);
    for (size_t i = 0; i < count; i++) {
        if (ids[i] >= bound)
            return bp_fail_unknown(pool, ids[i]);
    }
    return BP_OK;
}

static bp_status check_twice(const bp_pool *pool, const uint32_t *ids, size_t count)
{
    for (size_t i = 1; i < count; i++) {
        for (size_t k = 0; k < i; k++) {
            if (ids[k] == ids[i])
                return bp_fail_twice(pool, ids[i]);
        }
    }
    return BP_OK;
}

bp_status bp_pool_can_acquire(const bp_pool *pool, const uint32_t *ids, size_t count, const uint32_t *releasing,
                              size_t releasing_count, int *can)
{
    if (pool == NULL || can == NULL || (ids == NULL && count > 0) || (releasing == NULL && releasing_count > 0))
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_pool_can_acquire: needs a pool, ids and a place for its answer");
    BP_TRY(bp_device_check(pool->device, "bp_pool_can_acquire"));
    BP_TRY(can_acquire_check_ids(pool, ids, count));
    BP_TRY(check_twice(pool, ids, count));
    BP_TRY(can_acquire_check_ids(pool, releasing, releasing_count));
    question q; /* not initialised as a whole: the choices are many */
    q.pool = pool;
    q.ids = ids;
    q.count = count;
    q.releasing = releasing;
    q.releasing_count = releasing_count;
    q.chosen_count = 0;
    bool all = true;
    for (size_t i = 0; all && i < count; i++) {
        if (q.chosen_count == MOST_CHOICES)
            return bp_fail(BP_ERR_UNSUPPORTED,
                           "bp_pool_can_acquire: asked for more than %d requests that choose their buffer",
                           MOST_CHOICES);
        all = would_serve(&q, i);
    }
    *can = all;
    return BP_OK;
}
