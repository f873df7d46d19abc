/* SPDX-License-Identifier: Apache-2.0 */
/** @file
 * What-if: the bytes of plans with other schedules, and the units that set the peak. For policy scheduled.
 *
 * All objects are host data, like plans: deterministic and without devices. Finished objects never change.
 *
 * Thread safety: any number of threads may read an object. Capture: allowed, no function here uses a device. */
#ifndef BUCKETPOOL_WHATIF_H
#define BUCKETPOOL_WHATIF_H

#include <bucketpool/plan.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- other schedules -------------------------------------------------------------------------------------- */

typedef struct bp_alternatives bp_alternatives;

#define BP_MAX_WHATIF_PREFETCH 64u

typedef struct bp_alternatives_config {
    size_t size;
    uint32_t max_prefetch; /**< largest prefetch depth to plan, from 0 on; at most BP_MAX_WHATIF_PREFETCH */
    uint64_t work;         /**< search limit for each slab; the present choice uses that of its plan config */
    /** The plan of the present choice, with policy scheduled; NULL: it is made. Only read during the call. */
    const bp_plan *present;
} bp_alternatives_config;

/** Sets the defaults: prefetch depths 0 to 4, work 2^26. With these, any bundled model takes a second or two.
 *
 * Errors: BP_ERR_INVALID_ARGUMENT (NULL, an unknown size). */
BP_API bp_status bp_alternatives_config_init(bp_alternatives_config *config, size_t size);

/** Plans every combination of prefetch depth, separate or unified streams, and one slab for each role or one for all.
 * The other options are those of `schedule` and `plan`, which are the present choice; the policy of `plan` is
 * ignored. Settings without effect are not varied: streams without parameters or without gradients, joint slabs with
 * a single role. Units with overrides keep their prefetch depth. `config` NULL: the defaults. The caller owns the
 * result: bp_alternatives_destroy. The inputs are only read.
 *
 * Errors: as bp_schedule_create_training and bp_plan_create; BP_ERR_INVALID_ARGUMENT also for a max_prefetch above
 * BP_MAX_WHATIF_PREFETCH. */
BP_API bp_status bp_alternatives_create(const bp_buckets *buckets, const bp_schedule_config *schedule,
                                        const bp_plan_config *plan, const bp_alternatives_config *config,
                                        bp_alternatives **alternatives);
/** Accepts NULL and a pointer to NULL; sets *alternatives to NULL. */
BP_API void bp_alternatives_destroy(bp_alternatives **alternatives);

typedef struct bp_alternative {
    uint32_t prefetch, prefetch_backward; /**< prefetch depths */
    bp_streams streams;
    uint32_t joint;             /**< 1: one slab for all roles */
    uint32_t is_present;        /**< 1: the present choice */
    uint32_t optimal;           /**< 1: proven minimum */
    uint64_t bytes;             /**< bytes of policy scheduled */
    uint64_t lower_bound_bytes; /**< as in the plan */
    uint64_t proven_bytes;      /**< proven minimum: the lower bound, or more where the search proved it */
    uint64_t max_bytes;         /**< bytes of policy max; 0: infeasible with the given copies */
    uint64_t live_bytes;        /**< peak live bytes of all roles together: no allocator needs fewer */
} bp_alternative;

typedef struct bp_alternatives_info {
    size_t alternative_count;
    /** by prefetch, streams, joint; a present choice outside these combinations is first */
    const bp_alternative *alternatives;
} bp_alternatives_info;

/** The plans, as an array. Lives as long as the object. NULL for NULL. */
BP_API const bp_alternatives_info *bp_alternatives_get_info(const bp_alternatives *alternatives);

/* ---- units that set the peak ----------------------------------------------------------------------------------- */

typedef struct bp_peaks bp_peaks;

/** Finds the units that set the peak, for each entry of the plan's roles: the requests that are live where the lower
 * bound is reached, and the peak if they were not live together. `plan` must have been made by bp_plan_create from
 * these buckets and this schedule. The caller owns the result: bp_peaks_destroy. The inputs are only read.
 *
 * Errors: BP_ERR_INVALID_ARGUMENT (a schedule or a plan of other buckets, a plan from a file), BP_ERR_NO_HOST_MEMORY.
 */
BP_API bp_status bp_peaks_create(const bp_buckets *buckets, const bp_schedule *schedule, const bp_plan *plan,
                                 bp_peaks **peaks);
/** Accepts NULL and a pointer to NULL; sets *peaks to NULL. */
BP_API void bp_peaks_destroy(bp_peaks **peaks);

/** A unit in a role, live at the peak. */
typedef struct bp_peak_holder {
    uint32_t unit; /**< index of a unit of the buckets */
    uint32_t role;
    uint64_t bytes; /**< aligned bytes; the sum over a peak is its bytes */
} bp_peak_holder;

typedef struct bp_peak {
    uint32_t roles; /**< BP_ROLE_BIT mask of the roles in the slab */
    uint32_t step;  /**< the first that reaches the peak */
    uint64_t bytes; /**< the lower bound */
    size_t holder_count;
    const bp_peak_holder *holders; /**< live in the step; largest first, then by unit and role */
    /** Steps that reach the peak. 0 if no step does, because overlap windows set the bound; the following fields are
     * then 0 too. */
    uint32_t step_count;
    uint32_t set_count; /**< different sets of holders that reach the peak, including this one */
    /** Largest sum of live bytes in a step without all of these holders. Equal to `bytes` if another set reaches the
     * peak. */
    uint64_t next_bytes;
    uint32_t next_step;  /**< the first step with next_bytes */
    uint32_t below_step; /**< the first step with below_bytes */
    /** largest sum of live bytes in a step below the peak; 0: all steps reach the peak */
    uint64_t below_bytes;
} bp_peak;

typedef struct bp_peaks_info {
    size_t peak_count;
    const bp_peak *peaks; /**< one for each entry of the plan's roles, in their order */
} bp_peaks_info;

/** The peaks, as an array. Lives as long as the object. NULL for NULL. */
BP_API const bp_peaks_info *bp_peaks_get_info(const bp_peaks *peaks);

#ifdef __cplusplus
}
#endif
#endif
