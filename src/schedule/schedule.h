/* The schedule's own data: spans of requests that share their intervals. */
#ifndef BP_SCHEDULE_SCHEDULE_H
#define BP_SCHEDULE_SCHEDULE_H

#include <bucketpool/schedule.h>

#include <stdbool.h>

#include "core/memory.h"
#include "model/buckets.h"

/* Consecutive requests of one unit and role with the same intervals; no intervals: never live. */
typedef struct bp_span {
    uint32_t first_request, request_count;
    uint32_t first_interval, interval_count;
    bool starts_group; /* first_request is the first of its unit and role */
} bp_span;

/* One acquire and its release. Uses of a span that touch or overlap make one interval. */
typedef struct bp_use {
    uint32_t begin, end;
    uint8_t acquire_lane, release_lane;
} bp_use;

/* Lanes of an interval: where its first use is acquired and its last released. */
typedef struct bp_interval_lanes {
    uint8_t acquire, release;
} bp_interval_lanes;

/* `later` is acquired in `step`, as the unit number `distance`, from 1, that is after `earlier` was released on another lane. */
typedef struct bp_window {
    uint32_t earlier, later; /* requests */
    uint32_t step, distance;
    uint32_t first_step, end_step; /* of the recording, which repeats: its end comes before its beginning */
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
    bp_window *windows; /* by later, earlier, step; each once */
    size_t window_count, window_capacity;
    size_t request_count; /* of the buckets it was made for */
    /* From here on: made by bp_schedule_finish. */
    bp_scheduled_request *requests;
    bp_overlap *overlaps; /* of the windows */
    size_t overlap_count;
    bp_schedule_event *events;
    bp_schedule_info info;
};

/* A schedule is created by bp_schedule_new, then its steps and spans, then bp_schedule_finish. */
bp_status bp_schedule_new(size_t request_count, bp_schedule **schedule);
bp_status bp_schedule_add_step(bp_schedule *schedule, bp_phase phase, int32_t unit, int32_t forward_unit);

/* Spans are added in the order of the requests: add_span, then its uses in any order, then close_span, which makes intervals of
 * them. */
bp_status bp_schedule_add_span(bp_schedule *schedule, uint32_t first_request, uint32_t request_count,
                               bool starts_group);
bp_status bp_schedule_add_use(bp_schedule *schedule, const bp_use *use);
bp_status bp_schedule_close_span(bp_schedule *schedule);

/* Errors: BP_ERR_UNSUPPORTED where there are too many. */
bp_status bp_schedule_add_window(bp_schedule *schedule, const bp_window *window);

/* Makes the list of requests, the overlaps of the windows, the events and the view. O(requests + intervals + steps + w log w) for w
 * windows. */
bp_status bp_schedule_finish(bp_schedule *schedule);

/* Steps in which a request that was released still keeps off what is acquired. */
typedef struct bp_tail {
    uint32_t request;
    bp_interval interval;
} bp_tail;

/* The tails of all windows, by request; one that goes beyond the end of the step is two. The caller frees them. */
bp_status bp_schedule_find_tails(const bp_schedule *schedule, bp_tail **tails, size_t *count);

/* The lanes on which a request in `role` is acquired and released where nothing else is known. */
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
