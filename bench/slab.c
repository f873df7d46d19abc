/* A plan of one request in one slab. */
#include "slab.h"

#include "plan/plan.h"
#include "worlds.h"

bp_plan *one_slab_plan(uint64_t bytes)
{
    const bp_plan_request request = {.unit = "layers.0",
                                     .role = BP_ROLE_PARAM,
                                     .dtype = BP_DTYPE_UINT8,
                                     .placement = BP_PLACE_PLANNED,
                                     .bytes = bytes,
                                     .used_bytes = bytes};
    const bp_plan_slab slab = {.group = "param", .bytes = bytes};
    const bp_plan_info info = {.policy = BP_POLICY_SCHEDULED,
                               .feasible = 1,
                               .stable = 1,
                               .alignment = 256,
                               .bytes = bytes,
                               .request_count = 1,
                               .requests = &request,
                               .slab_count = 1,
                               .slabs = &slab};
    bp_plan *plan;
    must(bp_plan_from_info(&info, &plan));
    return plan;
}
