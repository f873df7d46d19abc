/* The seam between plan assembly and the policies: a policy decides, for one role, which size classes there are and which
 * class and copy each request uses. Offsets and sums are the assembly's business. */
#ifndef BP_PLAN_POLICY_H
#define BP_PLAN_POLICY_H

#include <bucketpool/plan.h>

#include "plan/live_units.h"

/* A size class of a role. */
typedef struct bp_class {
    uint64_t bytes;  /* of one copy, aligned */
    uint64_t offset; /* of copy 0 in the role's slab; written by the assembly */
    uint32_t copies, rank, users;
    uint32_t set_by; /* the request that needs the most */
    uint8_t kind;    /* bp_buffer_kind */
    uint8_t dtype;
} bp_class;

#define BP_NO_CLASS UINT32_MAX /* dynamic: no address */

/* Where a request goes. */
typedef struct bp_place {
    uint32_t class_index, copy;
} bp_place;

typedef struct bp_role_layout {
    bp_class *classes;
    size_t class_count, class_capacity;
    bp_place *places; /* by request, of all roles; a policy writes those of its own */
    uint64_t stride;  /* from a copy of a shared class to the next; written by the assembly */
    uint32_t copies;
    bool feasible, proven;          /* proven: that it is not feasible */
    uint32_t live_units, live_step; /* of the units that share buffers: how many at once, and in which step first */
} bp_role_layout;

typedef struct bp_policy_input {
    const bp_buckets *buckets;
    const bp_schedule *schedule;
    const bp_plan_config *config;
    const bp_live_units *units; /* of the role */
} bp_policy_input;

typedef bp_status bp_policy_function(const bp_policy_input *input, bp_role_layout *layout);

bp_policy_function bp_policy_dynamic, bp_policy_fixed, bp_policy_max;
/* Every request has memory of its own; also what the state role gets under every policy. */
bp_policy_function bp_policy_persistent;

#endif
