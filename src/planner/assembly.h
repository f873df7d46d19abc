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
    bp_place *places;      /* by request */
    uint32_t *slots;       /* by request: number of its (class, copy), or of its pool; UINT32_MAX: it has no address */
    uint32_t *assignments; /* by request */
    size_t slot_count;
} bp_assembly;

/* Bucket name (it points into the buckets), unit and ordinal of a request. */
void bp_name_request(const bp_assembly *a, uint32_t request, const char **bucket, uint32_t *unit, uint32_t *ordinal);

bp_status bp_add_witness(bp_assembly *a, uint32_t request);
/* Those that are live in the step that sets the bound of the role's entry. */
bp_status bp_add_witnesses(bp_assembly *a, bp_role_data *role);

/* A slab of `bytes` whose release group is `group`. */
bp_status bp_add_slab(bp_plan *plan, const char *group, uint64_t bytes);

/* Adds an entry with its sums and its slab: the plan's totals grow. */
bp_status bp_add_role(bp_plan *plan, const bp_role_data *role);

/* Pools of policy scheduled for the roles of the mask: one for each role, or one for all. */
bp_status bp_assemble_scheduled(bp_assembly *a, uint32_t roles);

#endif
