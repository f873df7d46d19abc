/* One role of the buckets as the pool policies see it: units that come and go. */
#ifndef BP_PLAN_LIVE_UNITS_H
#define BP_PLAN_LIVE_UNITS_H

#include "schedule/schedule.h"

/* The requests of one unit in one role, and the union of their intervals. */
typedef struct bp_live_unit {
    uint32_t unit;
    uint32_t first_request, request_count;
    uint32_t first_interval, interval_count; /* in bp_live_units.intervals */
} bp_live_unit;

typedef struct bp_live_units {
    uint32_t role;
    bp_live_unit *units; /* that are ever live, in the order of the units */
    size_t count;
    bp_interval *intervals;
    uint32_t step_count;
    uint32_t most_live;      /* units live at once, at most */
    uint32_t most_live_step; /* the first step where so many are */
} bp_live_units;

bp_status bp_live_units_init(const bp_buckets *buckets, const bp_schedule *schedule, uint32_t role,
                             bp_live_units *units);
void bp_live_units_finish(bp_live_units *units);

/* Works out most_live and most_live_step of a set of units that was put together otherwise. */
bp_status bp_live_units_count_live(bp_live_units *units);

/* Gives each unit one of `copies` copies, so that no two that are live at once share one.
 * `copies` 0: as few as a greedy search and then a bounded exact search find. On return *copies is the number used, or 0 when
 * the units do not fit into the number asked for; *proven then says whether that is certain or the search gave up. */
bp_status bp_live_units_assign_copies(const bp_live_units *units, uint32_t *copies, uint32_t *copy_of_unit,
                                      bool *proven);

#endif
