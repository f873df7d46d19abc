/* Requests that are kept apart although they are never live together: sharing memory would cost an overlap. */
#ifndef BP_SCHEDULE_OVERLAPS_H
#define BP_SCHEDULE_OVERLAPS_H

#include "schedule/schedule.h"

/* Errors: BP_ERR_UNSUPPORTED where there are too many. */
bp_status bp_schedule_add_window(bp_schedule *schedule, const bp_window *window);

/* Windows of a recorded schedule: what is released on one lane is kept from the next `width` units that acquire on another, also
 * round the end of the recording. The spans are there. */
bp_status bp_schedule_add_overlap_window(bp_schedule *schedule, const bp_buckets *buckets, uint32_t width);

/* Drops the windows of requests that are live together, and makes the overlaps from the others. The list of requests is there. */
bp_status bp_schedule_derive_overlaps(bp_schedule *schedule);

/* Steps in which a request that was released still keeps off what is acquired. */
typedef struct bp_tail {
    uint32_t request;
    bp_interval interval;
} bp_tail;

/* The tails of all windows, by request; one that goes beyond the end of the step is two. The caller frees them. */
bp_status bp_schedule_find_tails(const bp_schedule *schedule, bp_tail **tails, size_t *count);

#endif
