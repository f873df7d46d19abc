/* Plans from elsewhere: readers of saved plans, the command that scales them, tests. */
#ifndef BP_PLAN_FROM_INFO_H
#define BP_PLAN_FROM_INFO_H

#include <bucketpool/plan.h>

/* A plan with these contents but for roles, all copied: for readers of saved plans. bytes and bounds are taken as they are.
 * Errors: BP_ERR_MISMATCH (requests or classes outside their slabs, not aligned, a request twice), BP_ERR_INVALID_ARGUMENT
 * (unknown policy, dtypes, roles, placements; more than 65535 slabs), BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_plan_from_info(const bp_plan_info *info, bp_plan **plan);

#endif
