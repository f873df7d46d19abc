/* Offsets for the requests of a pool, by packing what the schedule says is live together. */
#ifndef BP_PLAN_SCHEDULED_H
#define BP_PLAN_SCHEDULED_H

#include <bucketpool/pack.h>

#include "plan/policy.h"

typedef struct bp_scheduled_pool {
    uint32_t *requests; /* that are ever live and take space, in order */
    uint64_t *offsets;  /* of each */
    size_t count;
    bp_pack_result result;
    uint32_t *witness; /* requests that set the bound */
    size_t witness_count;
} bp_scheduled_pool;

/* `roles`: a BP_ROLE_BIT mask. One role begins with max-pool's layout, several with pools of their own, so that nothing larger comes
 * out. Errors: BP_ERR_OVERFLOW, BP_ERR_UNSUPPORTED, BP_ERR_NO_HOST_MEMORY. */
bp_status bp_scheduled_pool_init(const bp_buckets *buckets, const bp_schedule *schedule, const bp_plan_config *config,
                                 uint32_t roles, bp_scheduled_pool *pool);
void bp_scheduled_pool_finish(bp_scheduled_pool *pool);

#endif
