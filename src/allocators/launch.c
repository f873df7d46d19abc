/* Launches of captured graphs: they take the graph's memory like an acquire, and give it back like a release. */
#include "allocators/annotations.h"
#include "allocators/capture.h"
#include "allocators/explain.h"
#include "allocators/slots.h"
#include "allocators/waits.h"
#include "core/fail.h"

static const uint64_t LAUNCH_WORD = (uint64_t)BP_HELD_BY_LAUNCH + 1;

static bp_status check(const bp_capture *capture, const char *function)
{
    if (capture == NULL || capture->pool == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: no capture, or its pool was destroyed", function);
    if (!capture->ended)
        return bp_fail(BP_ERR_CAPTURE, "%s: %s has not ended yet (bp_capture_end)", function, capture->name);
    return bp_capture_refuse(capture->pool, function);
}

static bp_status check_held(const bp_capture *capture)
{
    const bp_pool *pool = capture->pool;
    for (uint32_t i = 0; i < capture->held_count; i++) {
        uint32_t id = capture->held[i].id;
        if (atomic_load_explicit(&capture->held[i].touched, memory_order_relaxed) &&
            BP_WORD_ID(atomic_load_explicit(pool->bounds[id].word, memory_order_acquire)) != id &&
            pool->bounds[id].kind != BP_KIND_EMPTY)
            return bp_fail_order(pool, id, "is used by a graph that is to be launched, but is not live");
    }
    return BP_OK;
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
    if (holder >= atomic_load_explicit((atomic_uint *)&pool->bound_count, memory_order_acquire))
        return bp_fail(BP_ERR_SCHEDULE,
                       "pool %.40s: %s cannot be launched: the launch of another graph has buffer %u of it", pool->name,
                       capture->name, segment);
    return bp_fail(BP_ERR_SCHEDULE, "pool %.40s: %s cannot be launched: %s holds buffer %u of it since acquire %llu",
                   pool->name, capture->name, bp_explain_request(pool, holder, request), segment,
                   (unsigned long long)bp_read(&pool->bounds[holder].since_acquire));
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

static bp_status order(const bp_capture *capture, bp_stream *stream)
{
    const bp_pool *pool = capture->pool;
    bp_waits waits;
    bp_waits_init(&waits, pool, stream);
    for (uint32_t i = 0; i < capture->segment_count; i++)
        BP_TRY(bp_waits_add(&waits, &pool->fences[pool->segments[capture->segments[i]].fence]));
    return bp_waits_issue(&waits);
}

bp_status bp_capture_before_launch(bp_capture *capture, bp_stream *stream)
{
    BP_TRY(check(capture, "bp_capture_before_launch"));
    BP_TRY(bp_stream_check(stream, capture->pool->device, "bp_capture_before_launch"));
    BP_TRY(check_held(capture));
    if (!capture->armed)
        BP_TRY(claim_segments(capture));
    if (!capture->armed && capture->pool->annotations != NULL)
        bp_annotations_launch(capture->pool, capture->segments, capture->segment_count);
    capture->armed = true;
    bp_status status = order(capture, stream);
    if (status != BP_OK)
        (void)bp_capture_launched(capture, NULL);
    return status;
}

/* The stream of a launch has used what was live. */
static bp_status use_held(const bp_capture *capture, bp_stream *stream)
{
    for (uint32_t i = 0; i < capture->held_count; i++) {
        if (atomic_load_explicit(&capture->held[i].touched, memory_order_relaxed) &&
            capture->pool->bounds[capture->held[i].id].kind != BP_KIND_EMPTY)
            BP_TRY(bp_pool_use(capture->pool, &capture->held[i].id, 1, stream));
    }
    return BP_OK;
}

bp_status bp_capture_launched(bp_capture *capture, bp_stream *stream)
{
    const char *function = "bp_capture_launched";
    uint64_t point = 0;
    bool recorded = false;
    BP_TRY(check(capture, function));
    if (!capture->armed)
        return bp_fail(BP_ERR_SCHEDULE, "%s: %s: bp_capture_before_launch comes before each launch", function,
                       capture->name);
    bp_pool *pool = capture->pool;
    if (stream != NULL) {
        BP_TRY(bp_stream_check(stream, pool->device, function));
        BP_TRY(use_held(capture, stream));
        BP_TRY(bp_stream_record_point(stream, &point, &recorded));
        capture->launches++;
    }
    for (uint32_t i = 0; i < capture->segment_count && recorded; i++) {
        uint32_t s = capture->segments[i], fence = bp_fence_of(pool, s, 1, BP_NONE);
        pool->fences[fence] = (bp_fence){.count = 1, .points = {{.stream = stream, .point = point}}};
        pool->segments[s].fence = fence;
    }
    if (pool->annotations != NULL)
        bp_annotations_launched(pool, capture->segments, capture->segment_count);
    free_segments(capture, capture->segment_count);
    capture->armed = false;
    return BP_OK;
}
