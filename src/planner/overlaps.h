/* Requests that are kept apart although they are never live together: sharing memory would cost an overlap. */
#ifndef BP_PLANNER_OVERLAPS_H
#define BP_PLANNER_OVERLAPS_H

#include "planner/schedule.h"

/* Errors: BP_ERR_UNSUPPORTED where there are too many. */
bp_status bp_schedule_add_window(bp_schedule *schedule, const bp_window *window);

/* Drops the windows of requests that are live together, and makes the overlaps from the others. The intervals are there. */
bp_status bp_schedule_derive_overlaps(bp_schedule *schedule);

#endif
