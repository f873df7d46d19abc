/* SPDX-License-Identifier: Apache-2.0 */
/* The data behind bp_schedule: spans of requests with equal intervals, windows, overlaps. */
#ifndef BP_SCHEDULE_SCHEDULE_H
#define BP_SCHEDULE_SCHEDULE_H

#include <bucketpool/schedule.h>

#include <stdbool.h>

#include "core/memory.h"
#include "planner/model/buckets.h"

/* Consecutive requests of one unit and role with the same intervals; no intervals: never live. */
typedef struct bp_span {
    uint32_t first_request, request_count;
    uint32_t first_interval, interval_count;
    bool starts_group; /* first_request is the first of its unit and role */
} bp_span;

/* One acquire and its release. Adjacent and overlapping uses of a span are merged into one interval. */
typedef struct bp_use {
    uint32_t begin, end;
    uint8_t acquire_lane, release_lane;
} bp_use;

/* Lanes on which an interval's first use is acquired and its last use released. */
typedef struct bp_interval_lanes {
    uint8_t acquire, release;
} bp_interval_lanes;

/* `later` is acquired in `step` by the `distance`-th unit (from 1) after `earlier` was released on another lane. */
typedef struct bp_window {
    uint32_t earlier, later; /* requests */
    uint32_t step, distance;
    uint32_t first_step, end_step; /* of the recording; it repeats, so the end precedes the begin */
} bp_window;

struct bp_schedule {
    bp_step *steps;
    size_t step_count, step_capacity;
    bp_span *spans; /* in the order of the requests; together all of them */
    size_t span_count, span_capacity;
    bp_use *uses; /* of the span that is being added */
    size_t use_count, use_capacity;
    bp_interval *intervals;
    size_t interval_count, interval_capacity;
    bp_interval_lanes *lanes; /* by interval */
    size_t lane_capacity;
    bp_window *windows; /* sorted by later, earlier, step; no duplicates */
    size_t window_count, window_capacity;
    size_t request_count; /* of the buckets */
    /* bp_schedule_finish makes the members below. */
    bp_scheduled_request *requests;
    bp_overlap *overlaps; /* of the windows */
    size_t overlap_count;
    bp_schedule_event *events;
    bp_schedule_info info;
};

/* Order of calls: bp_schedule_new, steps and spans, bp_schedule_finish. */
bp_status bp_schedule_new(size_t request_count, bp_schedule **schedule);
bp_status bp_schedule_add_step(bp_schedule *schedule, bp_phase phase, int32_t unit, int32_t forward_unit);

/* Spans are added in the order of the requests: add_span, its uses in any order, then close_span, which merges the uses into intervals. */
bp_status bp_schedule_add_span(bp_schedule *schedule, uint32_t first_request, uint32_t request_count,
                               bool starts_group);
bp_status bp_schedule_add_use(bp_schedule *schedule, const bp_use *use);
bp_status bp_schedule_close_span(bp_schedule *schedule);

/* Errors: BP_ERR_UNSUPPORTED (too many windows). */
bp_status bp_schedule_add_window(bp_schedule *schedule, const bp_window *window);

/* Makes the list of requests, the overlaps of the windows, the events and the view. O(requests + intervals + steps + w log w) for w
 * windows. */
bp_status bp_schedule_finish(bp_schedule *schedule);

/* Steps after a release in which an overlap window still keeps the memory from others. */
typedef struct bp_tail {
    uint32_t request;
    bp_interval interval;
} bp_tail;

/* The tails of all windows, by request; a tail across the end of the schedule is split in two. The caller frees them. */
bp_status bp_schedule_find_tails(const bp_schedule *schedule, bp_tail **tails, size_t *count);

/* The default lanes on which requests in `role` are acquired and released. */
bp_interval_lanes bp_role_lanes(uint32_t role);

/* An interval, by its index in `intervals`, and the lanes on which it begins and ends. */
bp_use bp_schedule_use(const bp_schedule *schedule, size_t interval);

/* The intervals of a request of a finished schedule. */
static inline const bp_interval *bp_schedule_intervals(const bp_schedule *schedule, size_t request, size_t *count)
{
    *count = schedule->requests[request].interval_count;
    return schedule->requests[request].intervals;
}

#endif
