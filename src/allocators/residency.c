/* SPDX-License-Identifier: Apache-2.0 */
/* Residency of a pool's slabs for requests and graphs: refuses, closes and reopens the memory of a release group. */
#include "allocators/residency.h"

#include <bucketpool/core/fail.h>

#include "allocators/capture.h"
#include "allocators/engine.h"
#include "allocators/report.h"

static const uint64_t OFFLOADED_WORD = (uint64_t)BP_HELD_BY_OFFLOAD + 1;

bp_device *bp_pool_device(const bp_pool *pool)
{
    return pool->device;
}

bp_slabs *bp_pool_slabs(bp_pool *pool)
{
    return &pool->slabs;
}

bp_status bp_residency_join(bp_pool *pool, void *user, void (*gone)(void *user))
{
    BP_TRY(bp_capture_refuse_any(pool, "bp_offload_create"));
    if (pool->residents.user != NULL)
        return bp_fail(BP_ERR_SCHEDULE, "pool %.40s has an offload already", pool->info.name);
    if (pool->guard.wanted)
        return bp_fail(BP_ERR_UNSUPPORTED, "pool %.40s is in guard mode: its memory cannot be offloaded",
                       pool->info.name);
    if (pool->device->traits.no_memory)
        return bp_fail(BP_ERR_UNSUPPORTED, "pool %.40s cannot be offloaded: device %s has no memory", pool->info.name,
                       bp_device_name(pool->device));
    pool->residents.user = user;
    pool->residents.gone = gone;
    return BP_OK;
}

void bp_residency_leave(bp_pool *pool)
{
    pool->residents.user = NULL;
    pool->residents.gone = NULL;
}

void bp_residency_pool_gone(bp_pool *pool)
{
    if (pool->residents.gone != NULL)
        pool->residents.gone(pool->residents.user);
    bp_residency_leave(pool);
}

bool bp_residency_is_closed(const bp_pool *pool, uint32_t slab)
{
    return atomic_load_explicit(&pool->residents.closed[slab], memory_order_relaxed);
}

/* Reads only fields that do not change while another call works on the request. */
uint32_t bp_home_slab(const bp_pool *pool, uint32_t id)
{
    const bp_range *home = &pool->entries[id].home;
    return home->count > 0 ? pool->places[home->first].slab : BP_NONE;
}

bool bp_home_is_closed(const bp_pool *pool, uint32_t id)
{
    const uint32_t slab = bp_home_slab(pool, id);
    return slab != BP_NONE && bp_residency_is_closed(pool, slab);
}

/* ---- requests ------------------------------------------------------------------------------------------------------- */

/* The first segment from `s` on in a chosen slab; segment_capacity: none. Persistent segments that are not bound yet are skipped. */
static uint32_t next_segment(const bp_pool *pool, const bool *chosen, uint32_t s)
{
    while (s < pool->segment_capacity) {
        if (s >= pool->persistent.next && s < pool->overflow.first)
            s = pool->overflow.first;
        else if (chosen[pool->places[s].slab])
            return s;
        else
            s++;
    }
    return s;
}

/* The group is not offloaded yet, so that bp_fail_busy's sentence about offloading would be wrong. */
static bp_status fail_busy(const bp_pool *pool, uint32_t id, const char *group)
{
    char request[BP_REQUEST_BYTES];
    return bp_fail(
        BP_ERR_SCHEDULE,
        "pool %.40s: group %.40s cannot be offloaded: %s is being acquired or released by another call at the "
        "same time",
        pool->info.name, group, bp_explain_request(pool, id, request));
}

static bp_status fail_launching(const bp_pool *pool, const char *group)
{
    return bp_fail(BP_ERR_SCHEDULE,
                   "pool %.40s: group %.40s cannot be offloaded: the launch of a graph has its memory (between "
                   "bp_capture_before_launch and bp_capture_launched)",
                   pool->info.name, group);
}

/* Handles a segment that is held. A request that is always live (state roles, persistent) is marked as claimed while the slab is closed;
 * any other holder is an error. */
static bp_status stop_holder(bp_pool *pool, uint32_t holder, const char *group)
{
    if (holder == BP_HELD_BY_LAUNCH)
        return fail_launching(pool, group);
    if (holder >= bp_request_count(pool)) /* released a moment ago, or being bound */
        return bp_fail(BP_ERR_SCHEDULE,
                       "pool %.40s: group %.40s cannot be offloaded: other calls use it at this moment",
                       pool->info.name, group);
    bp_entry *r = &pool->entries[holder];
    const bp_plan_request *request = &pool->requests[holder];
    uint64_t word = atomic_load_explicit(r->word, memory_order_acquire);
    if (request->placement != BP_PLACE_PERSISTENT && (BP_ROLES_STATE & BP_ROLE_BIT(request->role)) == 0) {
        char text[BP_REQUEST_BYTES], since[BP_REQUEST_BYTES];
        if (BP_WORD_REFERENCES(word) == 0)
            return fail_busy(pool, holder, group);
        return bp_fail(BP_ERR_SCHEDULE, "pool %.40s: group %.40s cannot be offloaded: %s is live since %s",
                       pool->info.name, group, bp_explain_request(pool, holder, text),
                       bp_explain_since(pool, holder, since));
    }
    if (r->stopped) /* it may have several segments */
        return BP_OK;
    if ((word & BP_WORD_BUSY) != 0 || BP_WORD_ID(word) != holder || BP_WORD_REFERENCES(word) == 0 ||
        !atomic_compare_exchange_strong_explicit(r->word, &word, word | BP_WORD_BUSY, memory_order_acq_rel,
                                                 memory_order_relaxed))
        return fail_busy(pool, holder, group);
    r->stopped = true;
    return BP_OK;
}

/* Reopens the chosen segments before `end`. */
static void open_segments(bp_pool *pool, const bool *chosen, uint32_t end)
{
    for (uint32_t s = next_segment(pool, chosen, 0); s < end; s = next_segment(pool, chosen, s + 1)) {
        const uint32_t holder = bp_segment_holder(&pool->segments[s]);
        if (holder == BP_HELD_BY_OFFLOAD) {
            bp_free_segment(pool, s);
        } else if (holder < bp_request_count(pool) && pool->entries[holder].first == s) {
            pool->entries[holder].stopped = false;
            bp_clear_busy(pool->entries[holder].word);
        }
    }
}

static void note_closed(bp_pool *pool, const bool *chosen, bool closed)
{
    for (size_t i = 0; i < pool->slabs.count; i++) {
        if (chosen[i])
            atomic_store_explicit(&pool->residents.closed[i], closed, memory_order_relaxed);
    }
}

/* A slab is marked closed before its first segment is claimed and until the last one is free, so that a call that finds a segment claimed
 * knows why. Called under the binding lock, because binding assigns segments of persistent memory. */
bp_status bp_residency_close(bp_pool *pool, const bool *chosen, const char *group)
{
    if (bp_capture_is_launching(pool, chosen)) /* also for memory of always-live requests */
        return fail_launching(pool, group);
    bp_status status = BP_OK;
    pthread_mutex_lock(&pool->binding);
    note_closed(pool, chosen, true);
    uint32_t s = next_segment(pool, chosen, 0);
    while (s < pool->segment_capacity && status == BP_OK) {
        uint64_t found = 0;
        if (!atomic_compare_exchange_strong_explicit(&pool->segments[s].word, &found, OFFLOADED_WORD,
                                                     memory_order_acq_rel, memory_order_acquire))
            status = stop_holder(pool, BP_WORD_ID(found), group);
        if (status == BP_OK)
            s = next_segment(pool, chosen, s + 1);
    }
    if (status != BP_OK) {
        open_segments(pool, chosen, s);
        note_closed(pool, chosen, false);
    }
    pthread_mutex_unlock(&pool->binding);
    return status;
}

void bp_residency_open(bp_pool *pool, const bool *chosen)
{
    pthread_mutex_lock(&pool->binding);
    open_segments(pool, chosen, pool->segment_capacity);
    note_closed(pool, chosen, false);
    pthread_mutex_unlock(&pool->binding);
}

/* ---- graphs --------------------------------------------------------------------------------------------------------- */

static bool has_collectives(const bp_capture *capture, const bool *chosen)
{
    bool found = false;
    for (size_t i = 0; i < capture->info.slab_count && !found; i++)
        found = chosen[capture->slabs[i].slab] && capture->slabs[i].has_collectives;
    return found;
}

bp_status bp_residency_check_graphs(const bp_pool *pool, const bool *chosen, const char *group)
{
    for (const bp_capture *c = pool->capture.all; c != NULL; c = c->next) {
        if (!c->is_void && has_collectives(c, chosen))
            return bp_fail(
                BP_ERR_CAPTURE,
                "pool %.40s: group %.40s cannot be offloaded: %s has collectives in it, and their windows would end; "
                "destroy it, or pass BP_OFFLOAD_RECAPTURE and capture it again",
                pool->info.name, group, c->name);
    }
    return BP_OK;
}

void bp_residency_void_graphs(bp_pool *pool, const bool *chosen)
{
    for (bp_capture *c = pool->capture.all; c != NULL; c = c->next) {
        if (has_collectives(c, chosen))
            atomic_store_explicit(&c->is_void, true, memory_order_relaxed);
    }
}
