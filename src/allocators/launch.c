/* Launches of captured graphs: they take the graph's memory like an acquire, and give it back like a release. */
#include "allocators/capture.h"
#include "allocators/engine.h"
#include "allocators/observers.h"
#include "allocators/report.h"
#include "core/fail.h"

static const uint64_t LAUNCH_WORD = (uint64_t)BP_HELD_BY_LAUNCH + 1;

static bp_status launch_check(const bp_capture *capture, const char *function)
{
    if (capture == NULL || capture->pool == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: no capture, or its pool was destroyed", function);
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

static bp_status fail_segment(const bp_capture *capture, uint32_t segment, uint32_t holder)
{
    const bp_pool *pool = capture->pool;
    char request[BP_REQUEST_BYTES];
    if (holder == BP_HELD_BY_OFFLOAD)
        return bp_fail(BP_ERR_SCHEDULE, "pool %.40s: %s cannot be launched: group %.40s of it is offloaded",
                       pool->info.name, capture->name, pool->slab_infos[pool->places[segment].slab].group);
    if (holder >= bp_request_count(pool))
        return bp_fail(BP_ERR_SCHEDULE,
                       "pool %.40s: %s cannot be launched: the launch of another graph has buffer %u of it",
                       pool->info.name, capture->name, segment);
    return bp_fail(BP_ERR_SCHEDULE, "pool %.40s: %s cannot be launched: %s holds buffer %u of it since acquire %llu",
                   pool->info.name, capture->name, bp_explain_request(pool, holder, request), segment,
                   (unsigned long long)bp_read(&pool->entries[holder].since_acquire));
}

static bp_status claim_segments(const bp_capture *capture)
{
    bp_pool *pool = capture->pool;
    for (uint32_t i = 0; i < capture->segment_count; i++) {
        uint64_t found = 0;
        uint32_t s = capture->segments[i];
        if (atomic_compare_exchange_strong_explicit(&pool->segments[s].word, &found, LAUNCH_WORD, memory_order_acq_rel,
                                                    memory_order_relaxed))
            continue;
        free_segments(capture, i);
        return fail_segment(capture, s, BP_WORD_ID(found));
    }
    return BP_OK;
}

/* What was live when the capture began is live, at the same place, and has room for the stream. Where the stream is new to it, it comes
 * after who had the memory before and after zeros, as with an acquire. The request's word is claimed. */
static bp_status order_claimed(const bp_capture *capture, uint32_t id, bp_waits *waits)
{
    const bp_pool *pool = capture->pool;
    const bp_entry *r = &pool->entries[id];
    const uint32_t at = bp_live_find(r, waits->waiter);
    if (r->first != bp_capture_find_held(capture, id)->first)
        return bp_fail_order(
            pool, id, "is used by a graph that is to be launched, but is in other memory than when it was captured");
    if (at == BP_LIVE_STREAMS)
        return bp_fail_streams(pool, id);
    if (at < r->streams && r->live[at].stream == waits->waiter)
        return BP_OK;
    for (uint32_t s = r->first; s < r->first + r->count; s++)
        BP_TRY(bp_waits_add(waits, &pool->fences[pool->segments[s].fence]));
    return bp_waits_add_zeros(waits, r);
}

static bp_status order_used(const bp_capture *capture, uint32_t id, bp_waits *waits)
{
    bp_entry *r = &capture->pool->entries[id];
    uint64_t word = atomic_load_explicit(r->word, memory_order_acquire);
    if (BP_WORD_ID(word) != id || BP_WORD_REFERENCES(word) == 0)
        return bp_fail_order(capture->pool, id, "is used by a graph that is to be launched, but is not live");
    if ((word & BP_WORD_BUSY) != 0 ||
        !atomic_compare_exchange_strong_explicit(r->word, &word, word | BP_WORD_BUSY, memory_order_acq_rel,
                                                 memory_order_relaxed))
        return bp_fail_race(capture->pool, id);
    bp_status status = order_claimed(capture, id, waits);
    atomic_store_explicit(r->word, word, memory_order_release);
    return status;
}

static bp_status launch_order(const bp_capture *capture, bp_stream *stream)
{
    const bp_pool *pool = capture->pool;
    bp_waits waits;
    bp_waits_init(&waits, pool, stream);
    for (uint32_t i = 0; i < capture->used_count; i++)
        BP_TRY(order_used(capture, capture->used[i], &waits));
    for (uint32_t i = 0; i < capture->segment_count; i++)
        BP_TRY(bp_waits_add(&waits, &pool->fences[pool->segments[capture->segments[i]].fence]));
    return bp_waits_issue(&waits);
}

bp_status bp_capture_before_launch(bp_capture *capture, bp_stream *stream)
{
    BP_TRY(launch_check(capture, "bp_capture_before_launch"));
    BP_TRY(bp_check_stream(capture->pool, stream, "bp_capture_before_launch"));
    if (!capture->armed)
        BP_TRY(claim_segments(capture));
    if (!capture->armed && capture->pool->annotations != NULL)
        bp_annotations_launch(capture->pool, capture->segments, capture->segment_count);
    atomic_store_explicit(&capture->armed, true, memory_order_relaxed);
    bp_status status = launch_order(capture, stream);
    if (status != BP_OK)
        bp_capture_disarm(capture);
    return status;
}

void bp_capture_disarm(bp_capture *capture)
{
    if (capture->pool->annotations != NULL)
        bp_annotations_launched(capture->pool, capture->segments, capture->segment_count);
    free_segments(capture, capture->segment_count);
    atomic_store_explicit(&capture->armed, false, memory_order_relaxed);
}

/* Nothing has changed where it fails: a point that is not used harms nobody. */
static bp_status post(bp_capture *capture, bp_stream *stream)
{
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
    return BP_OK;
}

bp_status bp_capture_launched(bp_capture *capture, bp_stream *stream)
{
    BP_TRY(launch_check(capture, "bp_capture_launched"));
    if (!capture->armed)
        return bp_fail(BP_ERR_SCHEDULE, "bp_capture_launched: %s: bp_capture_before_launch comes before each launch",
                       capture->name);
    if (stream != NULL)
        BP_TRY(post(capture, stream));
    bp_capture_disarm(capture);
    return BP_OK;
}
