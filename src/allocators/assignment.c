/* SPDX-License-Identifier: Apache-2.0 */
/* Choice of memory for requests whose planned buffer is held. Without strict assignment they may get another copy of their class; passes
 * that the plan does not contain may get overflow memory.
 *
 * Sources: FixedPoolAllocator and MaxPoolAllocator of Megatron-LM (PR 5462),
 * whose requests take the first free copy, and its strict assignment of buckets to buffers. */
#include <bucketpool/core/fail.h>

#include <stdio.h>

#include "allocators/capture.h"
#include "allocators/engine.h"
#include "allocators/report.h"
#include "allocators/residency.h"

/* True if a request of kind BP_KIND_CHOSEN may get another copy of its class than the planned one. */
static bool may_deviate(const bp_pool *pool, const bp_entry *r)
{
    return r->class_index != BP_NONE && pool->strict != BP_STRICT_ERROR && !bp_is_fixed(pool);
}

/* True if the request may get overflow memory. Requests of offloaded slabs may not: they are refused. */
static bool may_overflow(const bp_pool *pool, uint32_t id)
{
    return atomic_load_explicit((atomic_uint *)&pool->overflow_allowed, memory_order_relaxed) && !bp_is_fixed(pool) &&
           !bp_home_is_closed(pool, id);
}

static bool claim_range(bp_pool *pool, uint32_t id, uint32_t first, uint32_t count, uint32_t *holder)
{
    if (!bp_claim_segments(pool, first, count, id, holder))
        return false;
    bp_take_place(pool, id, first, count);
    return true;
}

bool bp_claim_chosen(bp_pool *pool, uint32_t id, uint32_t *holder)
{
    const bp_entry *r = &pool->entries[id];
    uint32_t other;
    if (claim_range(pool, id, r->home.first, r->home.count, holder))
        return true;
    const bp_range copies = may_deviate(pool, r) ? bp_copies_of(pool, r) : (bp_range){0};
    for (uint32_t i = 0; i < copies.count; i++) {
        if (claim_range(pool, id, pool->copies[copies.first + i], 1, &other))
            return true;
    }
    if (*holder == BP_HELD_BY_OFFLOAD || !may_overflow(pool, id))
        return false;
    for (uint32_t i = 0; i < pool->overflow.count; i++) {
        const uint32_t segment = pool->overflow.first + i;
        if (pool->segments[segment].bytes >= r->bytes && claim_range(pool, id, segment, 1, &other))
            return true;
    }
    return false;
}

void bp_note_choice(bp_pool *pool, uint32_t id)
{
    bp_entry *r = &pool->entries[id];
    if (r->first == r->home.first)
        return;
    if (r->first >= pool->overflow.first) {
        bp_count(&r->overflows, 1);
        return;
    }
    bp_count(&r->deviations, 1);
    if (pool->strict == BP_STRICT_WARN && pool->on_message != NULL) {
        char text[BP_EXPLANATION_BYTES];
        bp_explain_deviation(pool, id, r->home.first, r->first, text);
        pool->on_message(pool->user, text);
    }
}

bp_status bp_pool_allow_overflow(bp_pool *pool, int allowed)
{
    if (pool == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_pool_allow_overflow: the pool is NULL");
    if (allowed && pool->overflow.count == 0)
        return bp_fail(BP_ERR_UNSUPPORTED, "pool %s has no overflow memory; set overflow_bytes when it is made",
                       pool->info.name);
    if (allowed && atomic_load_explicit(&pool->sealed, memory_order_relaxed))
        return bp_fail(BP_ERR_SCHEDULE, "pool %s is sealed: overflow memory would move requests", pool->info.name);
    atomic_store_explicit(&pool->overflow_allowed, allowed != 0, memory_order_relaxed);
    return BP_OK;
}

/* ---- would it be served? ----------------------------------------------------------------------------------------- */

/* Simulates an acquire after the releases of the call: makes the choices of acquire without the claims. */

#define MAX_CHOICES 256

typedef struct question {
    const bp_pool *pool;
    const uint32_t *ids, *releasing;
    size_t count, releasing_count;
    bp_range chosen[MAX_CHOICES]; /* segments that earlier ids of the call would take, for requests that may choose */
    uint32_t chosen_count;
} question;

static uint64_t word_of(const bp_word *word)
{
    return atomic_load_explicit((bp_word *)word, memory_order_relaxed);
}

/* True if the request is live after the releases. */
static bool stays_live(const question *q, uint32_t id)
{
    const uint64_t word = word_of(q->pool->entries[id].word);
    uint32_t released = 0;
    for (size_t i = 0; i < q->releasing_count; i++)
        released += q->releasing[i] == id;
    return BP_WORD_ID(word) == id && ((word & BP_WORD_BUSY) != 0 || BP_WORD_REFERENCES(word) > released);
}

/* True if the segment is free for the request at `position` of the call. */
static bool would_be_free(const question *q, uint32_t segment, size_t position)
{
    const uint32_t holder = bp_segment_holder(&q->pool->segments[segment]);
    if (holder == BP_HELD_BY_LAUNCH || holder == BP_HELD_BY_OFFLOAD || (holder != BP_NONE && stays_live(q, holder)))
        return false;
    for (uint32_t i = 0; i < q->chosen_count; i++) {
        if (segment >= q->chosen[i].first && segment - q->chosen[i].first < q->chosen[i].count)
            return false;
    }
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

/* Makes the choice of bp_claim_chosen. */
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
    const bp_range copies = may_deviate(pool, r) ? bp_copies_of(pool, r) : (bp_range){0};
    for (uint32_t i = 0; i < copies.count; i++) {
        if (would_take(q, pool->copies[copies.first + i], position))
            return true;
    }
    if (!may_overflow(pool, q->ids[position]))
        return false;
    for (uint32_t i = 0; i < pool->overflow.count; i++) {
        const uint32_t segment = pool->overflow.first + i;
        if (pool->segments[segment].bytes >= r->bytes && would_take(q, segment, position))
            return true;
    }
    return false;
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

bp_status bp_pool_can_acquire(const bp_pool *pool, const uint32_t *ids, size_t count, const uint32_t *releasing,
                              size_t releasing_count, int *can)
{
    if (pool == NULL || can == NULL || (ids == NULL && count > 0) || (releasing == NULL && releasing_count > 0))
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_pool_can_acquire: the pool, the ids or the output is NULL");
    BP_TRY(bp_device_check(pool->device, "bp_pool_can_acquire"));
    BP_TRY(bp_check_ids(pool, ids, count));
    for (size_t i = 1; i < count; i++) {
        for (size_t k = 0; k < i; k++) {
            if (ids[k] == ids[i])
                return bp_fail_twice(pool, ids[i]);
        }
    }
    BP_TRY(bp_check_ids(pool, releasing, releasing_count));
    question q; /* not initialised as a whole: the array of choices is large */
    q.pool = pool;
    q.ids = ids;
    q.count = count;
    q.releasing = releasing;
    q.releasing_count = releasing_count;
    q.chosen_count = 0;
    bool all = true;
    for (size_t i = 0; all && i < count; i++) {
        if (q.chosen_count == MAX_CHOICES)
            return bp_fail(BP_ERR_UNSUPPORTED,
                           "bp_pool_can_acquire: more than %d requests can get another copy; ask for fewer at once",
                           MAX_CHOICES);
        all = would_serve(&q, i);
    }
    *can = all;
    return BP_OK;
}
