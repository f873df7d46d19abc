/* The lower bound of a pool: the largest sum of sizes that are live at once. No assignment can take less. */
#ifndef BP_PLAN_BOUND_H
#define BP_PLAN_BOUND_H

#include "schedule/schedule.h"

typedef struct bp_bound {
    uint64_t bytes;
    uint32_t step; /* the first that reaches it */
} bp_bound;

/* Which requests count; NULL counts all of the role. */
typedef bool bp_request_filter(const void *context, uint32_t request);

/* Of the roles in a BP_ROLE_BIT mask together. Sizes are rounded up to `alignment`. Errors: BP_ERR_OVERFLOW. */
bp_status bp_bound_of(const bp_buckets *buckets, const bp_schedule *schedule, uint32_t roles, uint64_t alignment,
                      bp_request_filter *filter, const void *context, bp_bound *bound);

/* Whether a span has a live request at `step`. */
bool bp_span_is_live(const bp_schedule *schedule, const bp_span *span, uint32_t step);

#endif
