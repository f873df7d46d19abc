/* SPDX-License-Identifier: Apache-2.0 */
/* Interface between plan assembly and the policies, and live bytes and units. A policy chooses, for one role, the size classes and each
 * request's class and copy, or packs several roles. The assembly computes offsets and sums of classes. */
#ifndef BP_PLAN_POLICY_H
#define BP_PLAN_POLICY_H

#include <bucketpool/pack.h>
#include <bucketpool/plan.h>

#include "planner/schedule/schedule.h"

#define BP_NO_CLASS UINT32_MAX /* dynamic: no address */

/* A request's class and copy. */
typedef struct bp_place {
    uint32_t class_index, copy;
} bp_place;

/* ---- bytes that are live at once --------------------------------------------------------------------------------------- */

/* The peak live bytes of a pool: a lower bound of every assignment. */
typedef struct bp_bound {
    uint64_t bytes;
    uint32_t step; /* the first that reaches the peak */
} bp_bound;

/* The sum of the sizes of a span's requests, each rounded up to `alignment`. `places`, unless NULL: counts only requests without a class.
 * Errors: BP_ERR_OVERFLOW. */
bp_status bp_span_bytes(const bp_buckets *buckets, const bp_span *span, uint64_t alignment, const bp_place *places,
                        uint64_t *bytes);

/* Peak of the roles in a BP_ROLE_BIT mask together. Errors: BP_ERR_OVERFLOW. */
bp_status bp_bound_of(const bp_buckets *buckets, const bp_schedule *schedule, uint32_t roles, uint64_t alignment,
                      const bp_place *places, bp_bound *bound);

/* True if a span has a live request at `step`. */
bool bp_span_is_live(const bp_schedule *schedule, const bp_span *span, uint32_t step);

/* ---- units that are live at once --------------------------------------------------------------------------------------- */

/* The requests of one unit in one role, and the union of their intervals. */
typedef struct bp_live_unit {
    uint32_t unit;
    uint32_t first_request, request_count;
    uint32_t first_interval, interval_count; /* in bp_live_units.intervals */
} bp_live_unit;

typedef struct bp_live_units {
    uint32_t role;
    bp_live_unit *units; /* units that are ever live, in model order */
    size_t count;
    bp_interval *intervals;
    uint32_t step_count;
    uint32_t max_live;      /* largest number of units live at once */
    uint32_t max_live_step; /* the first step with max_live units */
} bp_live_units;

bp_status bp_live_units_init(const bp_buckets *buckets, const bp_schedule *schedule, uint32_t role,
                             bp_live_units *units);
void bp_live_units_finish(bp_live_units *units);

/* Computes max_live and max_live_step of a set that bp_live_units_init did not make. */
bp_status bp_live_units_count_live(bp_live_units *units);

/* Assigns units to copies so that no two live units share one (interval colouring). *copies in: the limit; 0: as few as greedy
 * colouring, then a bounded exact search, find. Out: the number used; 0: the units do not fit, which is certain if *proven, else the
 * search ended undecided. */
bp_status bp_live_units_assign_copies(const bp_live_units *units, uint32_t *copies, uint32_t *copy_of_unit,
                                      bool *proven);

/* ---- policies with size classes ---------------------------------------------------------------------------------------- */

/* A size class of a role. */
typedef struct bp_class {
    uint64_t bytes;  /* of one copy, aligned */
    uint64_t offset; /* of copy 0 in the role's slab; written by the assembly */
    uint32_t copies, rank, users;
    uint32_t set_by; /* the largest request */
    uint8_t kind;    /* bp_buffer_kind */
    uint8_t dtype;
} bp_class;

typedef struct bp_role_layout {
    bp_class *classes;
    size_t class_count, class_capacity;
    bp_place *places; /* by request, of all roles; a policy writes those of its role */
    uint64_t stride;  /* from a copy of a shared class to the next; written by the assembly */
    uint32_t copies;
    bool feasible, proven;          /* proven: infeasibility is certain */
    uint32_t live_units, live_step; /* largest number of live units that share buffers, and its first step */
} bp_role_layout;

typedef struct bp_policy_input {
    const bp_buckets *buckets;
    const bp_schedule *schedule;
    const bp_plan_config *config;
    const bp_live_units *units; /* of the role */
} bp_policy_input;

typedef bp_status bp_policy_function(const bp_policy_input *input, bp_role_layout *layout);

bp_policy_function bp_policy_dynamic, bp_policy_fixed, bp_policy_max;
/* Every request gets a persistent class; the state roles use it under every policy. */
bp_policy_function bp_policy_persistent;

/* ---- policy scheduled -------------------------------------------------------------------------------------------------- */

/* Offsets for the requests of a pool, from packing the schedule's live ranges. */
typedef struct bp_scheduled_pool {
    uint32_t *requests; /* requests that are ever live and not empty, in order */
    uint64_t *offsets;  /* of each */
    size_t count;
    bp_pack_result result;
    uint32_t *witness; /* requests that set the bound */
    size_t witness_count;
} bp_scheduled_pool;

/* `roles`: a BP_ROLE_BIT mask. The search starts from max-pool's layout (one role) or from separate pools (several), so the result is
 * never larger. Errors: BP_ERR_OVERFLOW, BP_ERR_NO_HOST_MEMORY. */
bp_status bp_scheduled_pool_init(const bp_buckets *buckets, const bp_schedule *schedule, const bp_plan_config *config,
                                 uint32_t roles, bp_scheduled_pool *pool);
void bp_scheduled_pool_finish(bp_scheduled_pool *pool);

#endif
