/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA graph captures of a pool: begin waits for all earlier work, end discards the release events of the capture. A launch takes the
 * graph's memory like an acquire and frees it like a release. */
#include "allocators/capture.h"

#include <bucketpool/core/fail.h>
#include <bucketpool/core/structs.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "allocators/engine.h"
#include "allocators/observers.h"
#include "allocators/report.h"

/* The request's word; 0: not live. */
static uint64_t live_word(const bp_pool *pool, uint32_t id)
{
    uint64_t word = atomic_load_explicit(pool->entries[id].word, memory_order_acquire);
    return BP_WORD_ID(word) == id && BP_WORD_REFERENCES(word) > 0 ? word : 0;
}

/* NULL: the request was not live when the capture began. */
static bp_captured_request *find_captured(const bp_capture *capture, uint32_t id)
{
    uint32_t low = 0, high = capture->held_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (capture->held[middle].id < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low < capture->held_count && capture->held[low].id == id ? &capture->held[low] : NULL;
}

/* ---- on the path of calls ------------------------------------------------------------------------------------------- */

static void capture_note(bp_pool *pool, bp_pool_event_kind kind, uint32_t id, const bp_stream *stream)
{
    (void)stream;
    if (kind != BP_EVENT_ACQUIRE && kind != BP_EVENT_REF && kind != BP_EVENT_USE)
        return;
    bp_capture *capture = pool->capture.current;
    const bp_entry *r = &pool->entries[id];
    bp_captured_request *held = find_captured(capture, id);
    if (held != NULL)
        atomic_store_explicit(&held->touched, true, memory_order_relaxed);
    for (uint32_t s = r->first; s < r->first + r->count; s++)
        atomic_fetch_or_explicit(&capture->touched[s / 64], UINT64_C(1) << s % 64, memory_order_relaxed);
}

static bp_status capture_check_own(bp_pool *pool, uint32_t id, uint64_t word, bp_stream *stream)
{
    (void)stream;
    const bp_captured_request *held = find_captured(pool->capture.current, id);
    if (held == NULL || BP_WORD_REFERENCES(word) > BP_WORD_REFERENCES(held->word))
        return BP_OK;
    return bp_fail_order(pool, id, "was live before the capture began; release it after the capture ends");
}

const bp_observer bp_capture_observer = {.check = capture_check_own, .note = capture_note};

bp_status bp_capture_check_stream(const bp_pool *pool, bp_stream *stream, const char *function)
{
    const unsigned watch = atomic_load_explicit((atomic_uint *)&pool->watch, memory_order_relaxed);
    uint64_t capture;
    if ((watch & BP_WATCH_ASK) == 0)
        return BP_OK;
    BP_TRY(bp_stream_capture_of(stream, &capture));
    if ((capture != 0) == ((watch & BP_WATCH_CAPTURING) != 0) || pool->device->ops->capture_of == NULL)
        return BP_OK;
    if (capture != 0)
        return bp_fail(BP_ERR_CAPTURE,
                       "%s: pool %.40s: stream %s is being captured, but the pool is not; declare the capture with "
                       "bp_capture_begin",
                       function, pool->info.name, bp_stream_name(stream));
    return bp_fail(
        BP_ERR_CAPTURE,
        "%s: pool %.40s: stream %s is not part of %s; let it wait for an event of the capture's first stream", function,
        pool->info.name, bp_stream_name(stream), pool->capture.current->name);
}

bp_status bp_capture_refuse(const bp_pool *pool, const char *function)
{
    if (!bp_is_capturing(pool))
        return BP_OK;
    return bp_fail(BP_ERR_CAPTURE, "%s: pool %.40s is being captured (%s); call this before or after the capture",
                   function, pool->info.name, pool->capture.current->name);
}

bp_status bp_capture_refuse_any(const bp_pool *pool, const char *function)
{
    BP_TRY(bp_capture_refuse(pool, function));
    if (atomic_load(&pool->device->captured_pools) == 0)
        return BP_OK;
    return bp_fail(BP_ERR_CAPTURE,
                   "%s: pool %.40s: another pool of device %s is being captured; call this before or after the capture",
                   function, pool->info.name, bp_device_name(pool->device));
}

bool bp_capture_is_launching(const bp_pool *pool, const bool *chosen)
{
    bool found = false;
    for (const bp_capture *c = pool->capture.all; c != NULL && !found; c = c->next) {
        for (size_t i = 0; c->armed && i < c->info.slab_count; i++)
            found |= chosen[c->slabs[i].slab];
    }
    return found;
}

int bp_pool_is_capturing(const bp_pool *pool)
{
    return bp_is_capturing(pool);
}

/* ---- beginning ------------------------------------------------------------------------------------------------------ */

/* True if a fence of the pool needs a wait on the stream. */
static bool has_points(const bp_pool *pool, const bp_stream *stream)
{
    for (uint32_t s = 0; s < pool->segment_capacity; s++) {
        const bp_fence *fence = &pool->fences[pool->segments[s].fence];
        for (uint32_t i = 0; i < fence->count; i++) {
            if (fence->points[i].stream == stream)
                return true;
        }
    }
    for (uint32_t id = 0; id < bp_request_count(pool); id++) {
        const bp_entry *r = &pool->entries[id];
        for (uint32_t i = 0; live_word(pool, id) != 0 && i < r->streams; i++) {
            if (r->live[i].stream == stream)
                return true;
        }
    }
    return false;
}

/* Waits for all of the pool's work, and empties the fences. */
static bp_status quiesce(bp_pool *pool, const char *name)
{
    for (bp_stream *s = atomic_load_explicit(&pool->device->streams, memory_order_acquire); s != NULL; s = s->next) {
        uint64_t capture = 0;
        if (bp_stream_is_over(s) || !has_points(pool, s))
            continue;
        if (bp_stream_is_usable(s, pool->device))
            BP_TRY(bp_stream_capture_of(s, &capture));
        if (capture != 0)
            return bp_fail(
                BP_ERR_CAPTURE,
                "pool %.40s: %s: stream %s is being captured already; call bp_capture_begin before the capture",
                pool->info.name, name, s->name);
        BP_TRY(bp_stream_quiesce(s));
    }
    for (uint32_t s = 0; s < pool->segment_capacity; s++)
        pool->segments[s].fence = 0;
    return BP_OK;
}

/* Saves the live requests, and clears their streams for the time of the capture: their work is complete. */
static bp_status note_held(bp_pool *pool, const bp_capture_config *config, bp_capture *capture)
{
    uint32_t live = 0;
    for (uint32_t id = 0; id < bp_request_count(pool); id++) {
        char request[BP_REQUEST_BYTES], since[BP_REQUEST_BYTES];
        size_t i = 0;
        if (live_word(pool, id) == 0)
            continue;
        while (i < config->owned_count && config->owned[i] != id)
            i++;
        if (pool->requests[id].placement != BP_PLACE_PERSISTENT && pool->entries[id].kind != BP_KIND_EMPTY &&
            i == config->owned_count)
            return bp_fail(BP_ERR_SCHEDULE,
                           "pool %.40s cannot be captured: %s is live since %s; release it, or name it as owned",
                           pool->info.name, bp_explain_request(pool, id, request), bp_explain_since(pool, id, since));
        live++;
    }
    BP_TRY(bp_new_array(live, sizeof *capture->held, (void **)&capture->held));
    BP_TRY(bp_new_array(live, sizeof *capture->used, (void **)&capture->used));
    for (uint32_t id = 0; id < bp_request_count(pool); id++) {
        bp_entry *r = &pool->entries[id];
        if (live_word(pool, id) == 0)
            continue;
        bp_captured_request *held = &capture->held[capture->held_count++];
        *held = (bp_captured_request){
            .id = id, .first = r->first, .streams = r->streams, .used = r->used, .word = live_word(pool, id)};
        memcpy(held->live, r->live, sizeof held->live);
    }
    return BP_OK;
}

static const bp_capture_config capture_config_defaults = {.size = sizeof capture_config_defaults};

bp_status bp_capture_config_init(bp_capture_config *config, size_t size)
{
    return bp_struct_init("bp_capture_config_init", config, size, &capture_config_defaults,
                          sizeof capture_config_defaults);
}

static void free_capture(bp_capture *capture)
{
    free(capture->held);
    free(capture->touched);
    free(capture->segments);
    free(capture->used);
    free(capture->slabs);
    free(capture);
}

static bp_status capture_make(bp_pool *pool, const bp_capture_config *config, bp_capture **capture)
{
    void *memory;
    BP_TRY(bp_new_array(1, sizeof **capture, &memory));
    bp_capture *made = *capture = memory;
    made->pool = pool;
    if (config->name != NULL)
        snprintf(made->name, sizeof made->name, "%s", config->name);
    else
        snprintf(made->name, sizeof made->name, "capture.%u", pool->capture.number);
    BP_TRY(bp_new_array((size_t)pool->segment_capacity / 64 + 1, sizeof *made->touched, (void **)&made->touched));
    BP_TRY(bp_new_array(pool->slabs.count, sizeof *made->slabs, (void **)&made->slabs));
    made->info = (bp_capture_info){.name = made->name, .slabs = made->slabs};
    made->collectives = config->collectives;
    made->before.size = sizeof made->before;
    BP_TRY(bp_pool_statistics_get(pool, &made->before));
    BP_TRY(note_held(pool, config, made));
    BP_TRY(bp_stream_prepare_captures(pool->device));
    return quiesce(pool, made->name);
}

static bp_status check_begin(const bp_pool *pool, const bp_capture_config *config)
{
    if (config->owned == NULL && config->owned_count > 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_capture_begin: owned ids are NULL, %zu expected",
                       config->owned_count);
    if ((unsigned)config->collectives > BP_CAPTURE_COLLECTIVES_ALL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_capture_begin: unknown collectives %d", (int)config->collectives);
    BP_TRY(bp_capture_refuse(pool, "bp_capture_begin"));
    if (pool->guard.wanted)
        return bp_fail(BP_ERR_UNSUPPORTED, "pool %.40s cannot be captured: guard mode waits for streams; switch it off",
                       pool->info.name);
    for (size_t i = 0; i < config->owned_count; i++) {
        uint32_t id = config->owned[i];
        char request[BP_REQUEST_BYTES];
        BP_TRY(bp_check_ids(pool, &id, 1));
        if (live_word(pool, id) == 0 || pool->entries[id].kind == BP_KIND_DYNAMIC)
            return bp_fail(BP_ERR_INVALID_ARGUMENT, "pool %.40s: a capture cannot own %s, which is %s", pool->info.name,
                           bp_explain_request(pool, id, request), live_word(pool, id) == 0 ? "not live" : "dynamic");
        for (size_t k = 0; k < i; k++) {
            if (config->owned[k] == id)
                return bp_fail_twice(pool, id);
        }
    }
    return BP_OK;
}

bp_status bp_capture_begin(bp_pool *pool, const bp_capture_config *config, bp_capture **capture)
{
    bp_capture_config own = capture_config_defaults;
    if (pool == NULL || capture == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_capture_begin: the pool or the output is NULL");
    BP_TRY(bp_device_check(pool->device, "bp_capture_begin"));
    BP_TRY(bp_struct_read("bp_capture_begin", config, true, &own, sizeof own));
    BP_TRY(check_begin(pool, &own));
    bp_capture *made = NULL;
    bp_status status = capture_make(pool, &own, &made);
    if (status != BP_OK) {
        if (made != NULL)
            free_capture(made);
        return status;
    }
    for (uint32_t i = 0; i < made->held_count; i++)
        pool->entries[made->held[i].id].streams = 0;
    made->next = pool->capture.all;
    pool->capture.all = pool->capture.current = made;
    pool->capture.number++;
    atomic_fetch_add(&pool->device->captured_pools, 1);
    const unsigned ask = pool->capture.check != BP_CAPTURE_CHECK_OFF ? BP_WATCH_ASK : 0;
    bp_observe(pool, BP_OBSERVER_CAPTURE);
    atomic_store_explicit(&pool->watch, BP_WATCH_CAPTURING | ask, memory_order_release);
    if (pool->annotations != NULL)
        bp_annotations_capture(pool, made->name);
    *capture = made;
    return BP_OK;
}

/* ---- ending --------------------------------------------------------------------------------------------------------- */

static bool is_touched(const bp_capture *capture, uint32_t segment)
{
    return (atomic_load_explicit(&capture->touched[segment / 64], memory_order_relaxed) >> segment % 64 & 1) != 0;
}

/* Discards the streams and fences of the capture, whose work has not run on any stream. */
static void capture_leave(bp_capture *capture)
{
    bp_pool *pool = capture->pool;
    for (uint32_t s = 0; s < pool->segment_capacity; s++) {
        if (is_touched(capture, s))
            pool->segments[s].fence = 0;
    }
    for (uint32_t i = 0; i < capture->held_count; i++) {
        const bp_captured_request *held = &capture->held[i];
        bp_entry *r = &pool->entries[held->id];
        r->streams = 0;
        r->used = held->used;
        for (uint32_t k = 0; k < held->streams;
             k++) { /* the work of these streams is complete, their events may be recorded anew */
            if (held->live[k].point == BP_NO_POINT)
                r->live[r->streams++] = held->live[k];
        }
    }
    if (pool->annotations != NULL)
        bp_annotations_capture(pool, NULL);
    bp_unobserve(pool, BP_OBSERVER_CAPTURE);
    pool->capture.current = NULL;
    atomic_fetch_sub(&pool->device->captured_pools, 1);
    atomic_store_explicit(&pool->watch, pool->capture.check == BP_CAPTURE_CHECK_ALWAYS ? BP_WATCH_ASK : 0,
                          memory_order_release);
}

/* Lists the memory of a launch: the touched segments without those of held requests, which the launch uses. */
static bp_status list_memory(bp_capture *capture)
{
    bp_pool *pool = capture->pool;
    uint32_t count = 0;
    for (uint32_t s = 0; s < pool->segment_capacity; s++)
        count += is_touched(capture, s);
    BP_TRY(bp_new_array(count, sizeof *capture->segments, (void **)&capture->segments));
    for (uint32_t s = 0; s < pool->segment_capacity; s++) {
        if (!is_touched(capture, s))
            continue;
        const uint32_t slab = pool->places[s].slab; /* segments are sorted by slab */
        if (capture->info.slab_count == 0 || capture->slabs[capture->info.slab_count - 1].slab != slab) {
            const bool has_collectives =
                capture->collectives == BP_CAPTURE_COLLECTIVES_ALL ||
                (capture->collectives == BP_CAPTURE_COLLECTIVES_AUTO && bp_slabs_are_captured(&pool->slabs, slab));
            capture->slabs[capture->info.slab_count++] = (bp_capture_slab){slab, has_collectives};
        }
        capture->info.bytes += pool->segments[s].bytes;
        if (bp_segment_holder(&pool->segments[s]) == BP_NONE)
            capture->segments[capture->segment_count++] = s;
    }
    for (uint32_t i = 0; i < capture->held_count; i++) {
        const bp_captured_request *held = &capture->held[i];
        if (atomic_load_explicit(&held->touched, memory_order_relaxed) && pool->entries[held->id].kind != BP_KIND_EMPTY)
            capture->used[capture->used_count++] = held->id;
    }
    return BP_OK;
}

bp_status bp_capture_end(bp_capture *capture)
{
    if (capture == NULL || capture->pool == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_capture_end: the capture is NULL, or its pool was destroyed");
    const bp_pool *pool = capture->pool;
    BP_TRY(bp_device_check(pool->device, "bp_capture_end"));
    if (capture->ended)
        return bp_fail(BP_ERR_CAPTURE, "%s has ended already", capture->name);
    for (uint32_t id = 0; id < bp_request_count(pool); id++) { /* acquires and releases inside must balance */
        const bp_captured_request *held = find_captured(capture, id);
        const uint64_t word = live_word(pool, id), before = held != NULL ? held->word : 0;
        char request[BP_REQUEST_BYTES];
        if (word != before)
            return bp_fail(BP_ERR_SCHEDULE,
                           "pool %.40s: %s cannot end: the reference count of %s is %u, expected %u as at its begin; "
                           "acquire and release in pairs",
                           pool->info.name, capture->name, bp_explain_request(pool, id, request),
                           (unsigned)BP_WORD_REFERENCES(word), (unsigned)BP_WORD_REFERENCES(before));
    }
    bp_pool_statistics now = {.size = sizeof now};
    BP_TRY(bp_pool_statistics_get(pool, &now));
    BP_TRY(list_memory(capture));
    const bp_pool_statistics *before = &capture->before;
    capture->info.acquires = now.acquires - before->acquires;
    capture->info.releases = now.releases + now.cancelled - before->releases - before->cancelled;
    capture->info.waits = now.waits - before->waits;
    capture->info.ended = 1;
    capture_leave(capture);
    capture->ended = true;
    return BP_OK;
}

const bp_capture_info *bp_capture_get_info(const bp_capture *capture)
{
    return capture != NULL ? &capture->info : NULL;
}

/* ---- launches ---------------------------------------------------------------------------------------------------- */

static const uint64_t LAUNCH_WORD = (uint64_t)BP_HELD_BY_LAUNCH + 1;

static bp_status launch_check(const bp_capture *capture, const char *function)
{
    if (capture == NULL || capture->pool == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: the capture is NULL, or its pool was destroyed", function);
    BP_TRY(bp_device_check(capture->pool->device, function));
    if (!capture->ended)
        return bp_fail(BP_ERR_CAPTURE, "%s: %s has not ended yet (bp_capture_end)", function, capture->name);
    if (capture->is_void)
        return bp_fail(BP_ERR_CAPTURE,
                       "%s: %s has collectives in memory that was offloaded since, whose windows are gone: capture it "
                       "anew",
                       function, capture->name);
    return bp_capture_refuse(capture->pool, function);
}

static void free_segments(const bp_capture *capture, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        bp_free_segment(capture->pool, capture->segments[i]);
}

/* Frees the segments that before_launch claimed. */
static void disarm(bp_capture *capture)
{
    if (capture->pool->annotations != NULL)
        bp_annotations_launched(capture->pool, capture->segments, capture->segment_count);
    free_segments(capture, capture->segment_count);
    atomic_store_explicit(&capture->armed, false, memory_order_relaxed);
}

static bp_status claim_segments(const bp_capture *capture)
{
    bp_pool *pool = capture->pool;
    for (uint32_t i = 0; i < capture->segment_count; i++) {
        const uint32_t s = capture->segments[i];
        uint64_t found = 0;
        if (atomic_compare_exchange_strong_explicit(&pool->segments[s].word, &found, LAUNCH_WORD, memory_order_acq_rel,
                                                    memory_order_relaxed))
            continue;
        free_segments(capture, i);
        const uint32_t holder = BP_WORD_ID(found);
        char request[BP_REQUEST_BYTES];
        if (holder == BP_HELD_BY_OFFLOAD)
            return bp_fail(BP_ERR_SCHEDULE, "pool %.40s: %s cannot be launched: its group %.40s is offloaded",
                           pool->info.name, capture->name, pool->slab_infos[pool->places[s].slab].group);
        if (holder >= bp_request_count(pool))
            return bp_fail(BP_ERR_SCHEDULE,
                           "pool %.40s: %s cannot be launched: the launch of another graph has buffer %u of it",
                           pool->info.name, capture->name, s);
        return bp_fail(BP_ERR_SCHEDULE,
                       "pool %.40s: %s cannot be launched: %s holds buffer %u of it since acquire %llu",
                       pool->info.name, capture->name, bp_explain_request(pool, holder, request), s,
                       (unsigned long long)bp_read(&pool->entries[holder].since_acquire));
    }
    return BP_OK;
}

/* Checks that a request that was live when the capture began is live, at the same address, and has a free stream entry. A stream that is
 * new to the request waits for the memory's earlier users and for zeroing, as in an acquire. */
static bp_status order_used(const bp_capture *capture, uint32_t id, bp_waits *waits)
{
    const bp_pool *pool = capture->pool;
    bp_entry *r = &pool->entries[id];
    uint64_t word = atomic_load_explicit(r->word, memory_order_acquire);
    if (BP_WORD_ID(word) != id || BP_WORD_REFERENCES(word) == 0)
        return bp_fail_order(pool, id, "is used by a graph that is to be launched, but is not live");
    if ((word & BP_WORD_BUSY) != 0 ||
        !atomic_compare_exchange_strong_explicit(r->word, &word, word | BP_WORD_BUSY, memory_order_acq_rel,
                                                 memory_order_relaxed))
        return bp_fail_race(pool, id);

    bp_status status = BP_OK;
    const uint32_t at = bp_live_find(r, waits->waiter);
    if (r->first != find_captured(capture, id)->first) {
        status = bp_fail_order(
            pool, id, "is used by a graph that is to be launched, but its address has changed since the capture");
    } else if (at == BP_LIVE_STREAMS) {
        status = bp_fail_streams(pool, id);
    } else if (at == r->streams || r->live[at].stream != waits->waiter) {
        for (uint32_t s = r->first; s < r->first + r->count && status == BP_OK; s++)
            status = bp_waits_add(waits, &pool->fences[pool->segments[s].fence]);
        if (status == BP_OK)
            status = bp_waits_add_zeros(waits, r);
    }
    atomic_store_explicit(r->word, word, memory_order_release);
    return status;
}

bp_status bp_capture_before_launch(bp_capture *capture, bp_stream *stream)
{
    BP_TRY(launch_check(capture, "bp_capture_before_launch"));
    bp_pool *pool = capture->pool;
    BP_TRY(bp_check_stream(pool, stream, "bp_capture_before_launch"));
    if (!capture->armed) {
        BP_TRY(claim_segments(capture));
        if (pool->annotations != NULL)
            bp_annotations_launch(pool, capture->segments, capture->segment_count);
    }
    atomic_store_explicit(&capture->armed, true, memory_order_relaxed);

    bp_waits waits;
    bp_status status = BP_OK;
    bp_waits_init(&waits, pool, stream);
    for (uint32_t i = 0; i < capture->used_count && status == BP_OK; i++)
        status = order_used(capture, capture->used[i], &waits);
    for (uint32_t i = 0; i < capture->segment_count && status == BP_OK; i++)
        status = bp_waits_add(&waits, &pool->fences[pool->segments[capture->segments[i]].fence]);
    if (status == BP_OK)
        status = bp_waits_issue(&waits);
    if (status != BP_OK)
        disarm(capture);
    return status;
}

/* A failure changes nothing: a recorded point without a user has no effect. */
bp_status bp_capture_launched(bp_capture *capture, bp_stream *stream)
{
    BP_TRY(launch_check(capture, "bp_capture_launched"));
    if (!capture->armed)
        return bp_fail(BP_ERR_SCHEDULE,
                       "bp_capture_launched: %s was not prepared; call bp_capture_before_launch before each launch",
                       capture->name);
    if (stream != NULL) {
        bp_pool *pool = capture->pool;
        uint64_t point;
        bool recorded;
        BP_TRY(bp_stream_check(stream, pool->device, "bp_capture_launched"));
        BP_TRY(bp_stream_record_point(stream, &point, &recorded));
        if (capture->used_count > 0)
            BP_TRY(bp_pool_use(pool, capture->used, capture->used_count, stream));
        capture->info.launches++;
        for (uint32_t i = 0; i < capture->segment_count && recorded; i++) {
            uint32_t s = capture->segments[i], fence = bp_fence_of(pool, s, 1, BP_NONE);
            pool->fences[fence] = (bp_fence){.count = 1, .points = {{.stream = stream, .point = point}}};
            pool->segments[s].fence = fence;
        }
    }
    disarm(capture);
    return BP_OK;
}

/* ---- destruction ------------------------------------------------------------------------------------------------- */

/* Drops the references acquired inside; restores those from before the capture. */
static void drop_references(const bp_capture *capture)
{
    bp_pool *pool = capture->pool;
    for (uint32_t id = 0; id < bp_request_count(pool); id++) {
        bp_entry *r = &pool->entries[id];
        const bp_captured_request *held = find_captured(capture, id);
        if (held != NULL) {
            for (uint32_t n = BP_WORD_REFERENCES(live_word(pool, id)); n > BP_WORD_REFERENCES(held->word); n--)
                bp_note_event(pool, BP_EVENT_UNREF, id, NULL);
            atomic_store_explicit(r->word, held->word, memory_order_release);
        } else if (live_word(pool, id) != 0) {
            bp_tally_release(&pool->tally, r->live_bytes);
            bp_note_event(pool, BP_EVENT_CANCEL, id, NULL);
            bp_live_free_place(pool, r);
        }
    }
}

void bp_capture_destroy(bp_capture **capture)
{
    if (capture == NULL || *capture == NULL)
        return;
    bp_capture *c = *capture;
    *capture = NULL;
    if (c->pool != NULL && !bp_device_is_here(c->pool->device))
        return;
    BP_KEEP_ERROR;
    if (c->pool != NULL && !c->ended) {
        drop_references(c);
        capture_leave(c);
    }
    if (c->pool != NULL && c->armed)
        disarm(c);
    if (c->pool != NULL) {
        bp_capture **at = &c->pool->capture.all;
        while (*at != c)
            at = &(*at)->next;
        *at = c->next;
    }
    free_capture(c);
}

void bp_capture_pool_gone(bp_pool *pool)
{
    if (pool->capture.current != NULL)
        atomic_fetch_sub(&pool->device->captured_pools, 1);
    for (bp_capture *c = pool->capture.all; c != NULL; c = c->next)
        c->pool = NULL;
}
