/* Waiting for release points: they are collected first, the latest of each stream, then waited for. Hot. */
#ifndef BP_ALLOCATORS_WAITS_H
#define BP_ALLOCATORS_WAITS_H

#include "allocators/pool.h"
#include "core/fail.h"

#define BP_WAITS_BATCH 32 /* streams whose points are collected before any is waited for */

/* Not initialised as a whole: the room for points would take longer than the rest of the call. */
typedef struct bp_waits {
    bp_stream *waiter;
    bool captured; /* the points are of the capture that the pool is in */
    uint32_t count, issued, recorded;
    bp_point points[BP_WAITS_BATCH];
} bp_waits;

BP_HOT void bp_waits_init(bp_waits *w, const bp_pool *pool, bp_stream *waiter)
{
    w->waiter = waiter;
    w->captured = bp_is_capturing(pool);
    w->count = w->issued = w->recorded = 0;
}

/* Waits for what was collected. */
static inline bp_status bp_waits_issue(bp_waits *w)
{
    for (uint32_t i = 0; i < w->count; i++) {
        const bp_point *p = &w->points[i];
        BP_TRY(w->captured ? bp_stream_wait_captured(w->waiter, p->stream, p->point)
                           : bp_stream_wait_point(w->waiter, p->stream, p->point));
    }
    w->issued += w->count;
    w->count = 0;
    return BP_OK;
}

/* Marks the position of now on a stream, inside a capture or outside. */
BP_HOT bp_status bp_take_point(bool captured, bp_stream *stream, uint64_t *point, bool *recorded)
{
    return captured ? bp_stream_record_captured(stream, point, recorded)
                    : bp_stream_record_point(stream, point, recorded);
}

BP_HOT bp_status bp_waits_add(bp_waits *w, const bp_fence *fence)
{
    for (uint32_t i = 0; i < fence->count; i++) {
        bp_point p = fence->points[i];
        if (p.stream == w->waiter)
            continue;
        if (p.point ==
            BP_NO_POINT) { /* left out for a next user on that stream, who is another: the position of now stands in */
            bool recorded;
            BP_TRY(bp_take_point(w->captured, p.stream, &p.point, &recorded));
            if (!recorded)
                continue;
            w->recorded++;
        }
        uint32_t k = 0;
        while (k < w->count && w->points[k].stream != p.stream)
            k++;
        if (k == BP_WAITS_BATCH) {
            BP_TRY(bp_waits_issue(w));
            k = 0;
        }
        if (k == w->count)
            w->points[w->count++] = p;
        else if (p.point > w->points[k].point)
            w->points[k].point = p.point;
    }
    return BP_OK;
}

/* The zeros that the first acquire of a live request may still be writing. */
static inline bp_status bp_waits_add_zeros(bp_waits *w, const bp_entry *r)
{
    if (r->zero == BP_ZERO_NOTHING || r->streams == 0)
        return BP_OK;
    return bp_waits_add(w, &(bp_fence){.count = 1, .points = {{.stream = r->hold[0].stream, .point = BP_NO_POINT}}});
}

#endif
