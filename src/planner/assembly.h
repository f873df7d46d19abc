/* A plan while it is put together: shared by the policies with buffers and by scheduled pools. */
#ifndef BP_PLANNER_ASSEMBLY_H
#define BP_PLANNER_ASSEMBLY_H

#include "planner/plan.h"
#include "planner/policy.h"

typedef struct bp_assembly {
    const bp_buckets *buckets;
    const bp_schedule *schedule;
    const bp_plan_config *config;
    bp_plan *plan;
    bp_place *places; /* by request */
} bp_assembly;

/* The request's address: in the slab that is added next. */
void bp_place_request(bp_plan *plan, uint32_t request, uint64_t offset);

/* Appends to the witnesses of the role that is added next. */
bp_status bp_add_witness(bp_plan *plan, uint32_t request);
/* Those that are live in the step that sets the role's lower bound. */
bp_status bp_add_witnesses(bp_assembly *a, const bp_plan_role *role);

/* A slab of `bytes` whose release group is `group`. */
bp_status bp_add_slab(bp_plan *plan, const char *group, uint64_t bytes);

/* Adds a role whose buffers and witnesses are those of the plan from `begin` on: the plan's totals grow. */
bp_status bp_add_role(bp_plan *plan, bp_plan_role *role, bp_role_ranges begin);

/* Pools of policy scheduled for the roles of the mask: one for each role, or one for all. */
bp_status bp_assemble_scheduled(bp_assembly *a, uint32_t roles);

#endif
