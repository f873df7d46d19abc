/* Stages of a run: steps, lanes, and sealing. */
#include "allocators/pool.h"

#include "allocators/annotations.h"
#include "allocators/capture.h"
#include "allocators/explain.h"
#include "core/fail.h"

bp_status bp_pool_seal(bp_pool *pool)
{
    if (pool == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_pool_seal: no pool");
    uint32_t count = bp_bound_count(pool);
    for (uint32_t id = 0; id < count; id++) {
        const bp_bound *r = &pool->bounds[id];
        char name[BP_REQUEST_BYTES];
        bool live = BP_WORD_ID(atomic_load_explicit(r->word, memory_order_acquire)) == id;
        if (live && (r->kind == BP_KIND_DYNAMIC ||
                     (r->kind == BP_KIND_CHOSEN && r->first >= pool->overflow_first && pool->overflow_count > 0)))
            return bp_fail(BP_ERR_SCHEDULE, "pool %s cannot be sealed: %s holds %s memory", pool->name,
                           bp_explain_request(pool, id, name), r->kind == BP_KIND_DYNAMIC ? "dynamic" : "overflow");
    }
    atomic_store_explicit(&pool->sealed, 1, memory_order_relaxed);
    return BP_OK;
}

int bp_pool_is_sealed(const bp_pool *pool)
{
    return atomic_load_explicit((atomic_uint *)&pool->sealed, memory_order_relaxed) != 0;
}

void bp_pool_set_step(bp_pool *pool, uint64_t step)
{
    atomic_store_explicit(&pool->step, step, memory_order_relaxed);
    if (pool->annotations != NULL)
        bp_annotations_step(pool, step);
}

/* The points that were left out on a stream whose work is done: nobody has to wait for them any more. */
static void drop_left_out(bp_pool *pool, const bp_stream *stream)
{
    uint32_t count = 1 + pool->segment_capacity + bp_bound_count(pool);
    for (uint32_t f = 0; f < count; f++) {
        bp_fence *fence = &pool->fences[f];
        uint32_t kept = 0;
        for (uint32_t i = 0; i < fence->count; i++) {
            if (fence->points[i].stream != stream || fence->points[i].point != BP_NO_POINT)
                fence->points[kept++] = fence->points[i];
        }
        fence->count = kept;
    }
}

bp_status bp_pool_set_lane(bp_pool *pool, uint32_t lane, bp_stream *stream)
{
    if (pool == NULL || lane >= BP_LANE_COUNT)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_pool_set_lane: needs a pool and a lane below %u, got %u",
                       BP_LANE_COUNT, lane);
    BP_TRY(bp_device_check(pool->device, "bp_pool_set_lane"));
    BP_TRY(bp_capture_refuse(pool, "bp_pool_set_lane"));
    if (stream != NULL)
        BP_TRY(bp_stream_check(stream, pool->device, "bp_pool_set_lane"));
    bp_stream *before = atomic_load_explicit(&pool->lanes[lane], memory_order_relaxed);
    if (before != NULL && before != stream) {
        /* release points on the old stream were left out because the next user would be on it */
        if (bp_tally_live(&pool->tally) != 0)
            return bp_fail(BP_ERR_SCHEDULE, "pool %s: lane %u cannot move from stream %s while requests are live",
                           pool->name, lane, bp_stream_name(before));
        BP_TRY(bp_stream_quiesce(before));
        drop_left_out(pool, before);
    }
    atomic_store_explicit(&pool->lanes[lane], stream, memory_order_release);
    return BP_OK;
}
