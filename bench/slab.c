/* A plan of one request in one slab. */
#include "slab.h"

#include "worlds.h"

bp_plan *one_slab_plan(uint64_t bytes)
{
    bp_plan_summary summary = {.size = sizeof summary,
                               .policy = BP_POLICY_SCHEDULED,
                               .feasible = 1,
                               .stable = 1,
                               .alignment = 256,
                               .bytes = bytes};
    bp_plan_slab slab = {.size = sizeof slab, .group = "param", .bytes = bytes};
    bp_assignment a = {
        .size = sizeof a, .unit = "layers.0", .role = BP_ROLE_PARAM, .dtype = BP_DTYPE_UINT8, .bytes = bytes};
    bp_plan_builder *builder;
    bp_plan *plan;
    must(bp_plan_builder_create(&summary, &builder));
    must(bp_plan_builder_add_slab(builder, &slab));
    must(bp_plan_builder_add_assignment(builder, &a));
    must(bp_plan_builder_finish(&builder, &plan));
    return plan;
}
