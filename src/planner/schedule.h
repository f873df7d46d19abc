/* The schedule's own data: spans of requests that share their intervals. */
#ifndef BP_PLANNER_SCHEDULE_H
#define BP_PLANNER_SCHEDULE_H

#include <bucketpool/schedule.h>

#include <stdbool.h>

#include "core/memory.h"
#include "model/buckets.h"

/* Consecutive requests with the same intervals; no intervals: never live. */
typedef struct bp_span {
    uint32_t first_request, request_count;
    uint32_t first_interval, interval_count;
} bp_span;

struct bp_schedule {
    bp_step *steps;
    size_t step_count, step_capacity;
    bp_span *spans; /* in the order of the requests; together all of them */
    size_t span_count, span_capacity;
    bp_interval *intervals;
    size_t interval_count, interval_capacity;
    size_t request_count; /* of the buckets it was made for */
};

bp_status bp_schedule_new(const bp_buckets *buckets, bp_schedule **schedule);
bp_status bp_schedule_add_step(bp_schedule *schedule, bp_phase phase, int32_t unit);
bp_status bp_schedule_add_span(bp_schedule *schedule, uint32_t first_request, uint32_t request_count);
/* Adds [begin, end) to the newest span; intervals come in order of begin, touching and overlapping ones are merged. */
bp_status bp_schedule_add_interval(bp_schedule *schedule, uint32_t begin, uint32_t end);

#endif
