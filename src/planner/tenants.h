/* One role of the buckets as the pool policies see it: units that come and go. */
#ifndef BP_PLANNER_TENANTS_H
#define BP_PLANNER_TENANTS_H

#include "planner/schedule.h"

/* The requests of one unit in one role, and the union of their intervals. */
typedef struct bp_tenant {
    uint32_t unit;
    uint32_t first_request, request_count;
    uint32_t first_interval, interval_count; /* in bp_tenants.intervals */
} bp_tenant;

typedef struct bp_tenants {
    uint32_t role;
    bp_tenant *tenants; /* that are ever live, in the order of the units */
    size_t count;
    bp_interval *intervals;
    uint32_t step_count;
    uint32_t most_live;      /* tenants live at once, at most */
    uint32_t most_live_step; /* the first step where so many are */
} bp_tenants;

bp_status bp_tenants_init(const bp_buckets *buckets, const bp_schedule *schedule, uint32_t role, bp_tenants *tenants);
void bp_tenants_finish(bp_tenants *tenants);

/* Works out most_live and most_live_step of a set of tenants that was put together otherwise. */
bp_status bp_tenants_count_live(bp_tenants *tenants);

/* Gives each tenant one of `copies` copies, so that no two that are live at once share one.
 * `copies` 0: as few as a greedy search and then a bounded exact search find. On return *copies is the number used, or 0 when
 * the tenants do not fit into the number asked for; *proven then says whether that is certain or the search gave up. */
bp_status bp_tenants_assign_copies(const bp_tenants *tenants, uint32_t *copies, uint32_t *copy_of_tenant, bool *proven);

#endif
