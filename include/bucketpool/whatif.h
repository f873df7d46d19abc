/** @file
 * What-if: how many bytes plans of other schedules need, and which units set the peak.
 *
 * All of it is about policy scheduled. It is host data like plans: pure, deterministic, without device or stream,
 * allowed during a capture. Finished objects are never changed; any number of threads may read them. Elements of
 * arrays never grow; what is added later comes as an array of its own beside them. */
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
    uint32_t max_prefetch; /**< prefetch depths from 0 to this one are planned; at most BP_MAX_WHATIF_PREFETCH */
    uint64_t work;         /**< limit of the search for each slab; the present choice has that of its own plan config */
    /** The plan of the present choice, of policy scheduled; NULL: it is made. Read during the call only. */
    const bp_plan *present;
} bp_alternatives_config;

/** Defaults: prefetch depths 0 to 4, work 2^24. For any bundled model that takes about a second in all.
 * Errors: BP_ERR_INVALID_ARGUMENT (NULL, a size that is no struct's). */
BP_API bp_status bp_alternatives_config_init(bp_alternatives_config *config, size_t size);

/** Plans every combination of: the prefetch depth, separate or unified streams, a slab for each role or one slab for
 * all. Everything else is as in `schedule` and `plan`, which are the present choice. A setting that changes nothing
 * is not varied: streams without parameters or without gradients, joint slabs with a single role. Units with
 * overrides keep their prefetch depth. The policy of `plan` does not count.
 * The caller owns the result: bp_alternatives_destroy. It keeps nothing of its inputs.
 * Errors: as bp_schedule_create_training and bp_plan_create; BP_ERR_INVALID_ARGUMENT also for a max_prefetch above
 * BP_MAX_WHATIF_PREFETCH. */
BP_API bp_status bp_alternatives_create(const bp_buckets *buckets, const bp_schedule_config *schedule,
                                        const bp_plan_config *plan, const bp_alternatives_config *config,
                                        bp_alternatives **alternatives);
/** NULL and a pointer to NULL are accepted. */
BP_API void bp_alternatives_destroy(bp_alternatives **alternatives);

typedef struct bp_alternative {
    uint32_t prefetch, prefetch_backward; /**< prefetch depths */
    bp_streams streams;
    uint32_t joint;             /**< 1: one slab for all roles */
    uint32_t is_present;        /**< 1: the choice that was handed in */
    uint32_t optimal;           /**< 1: no plan needs fewer bytes */
    uint64_t bytes;             /**< of policy scheduled */
    uint64_t lower_bound_bytes; /**< as in the plan */
    uint64_t proven_bytes;      /**< no plan needs fewer: the lower bound, or more where a search proved it */
    uint64_t max_bytes;         /**< of policy max; 0: infeasible with the copies asked for */
    uint64_t live_bytes;        /**< peak live bytes of all roles together: no allocator needs fewer */
} bp_alternative;

/** Fields are only ever added at the end. */
typedef struct bp_alternatives_info {
    size_t alternative_count;
    const bp_alternative
        *alternatives; /**< by prefetch, streams, joint; first a present choice that is none of these */
} bp_alternatives_info;

/** The view and its array belong to the object and live as long as it. alternatives NULL: NULL. */
BP_API const bp_alternatives_info *bp_alternatives_get_info(const bp_alternatives *alternatives);

/* ---- what sets the peak ----------------------------------------------------------------------------------- */

typedef struct bp_peaks bp_peaks;

/** For each entry of the plan's roles: what is live where the lower bound is reached, and the peak if these holders
 * were not live together. The plan must have been made of these buckets and this schedule by bp_plan_create.
 * The caller owns the result: bp_peaks_destroy. It keeps nothing of its inputs.
 * Errors: BP_ERR_INVALID_ARGUMENT (a schedule or a plan of other buckets, a plan from a file), BP_ERR_NO_HOST_MEMORY.
 */
BP_API bp_status bp_peaks_create(const bp_buckets *buckets, const bp_schedule *schedule, const bp_plan *plan,
                                 bp_peaks **peaks);
/** NULL and a pointer to NULL are accepted. */
BP_API void bp_peaks_destroy(bp_peaks **peaks);

/** A unit in a role, live at the peak. */
typedef struct bp_peak_holder {
    uint32_t unit; /**< index of a unit of the buckets */
    uint32_t role;
    uint64_t bytes; /**< aligned; those of a peak add up to its bytes */
} bp_peak_holder;

typedef struct bp_peak {
    uint32_t roles; /**< BP_ROLE_BIT mask of those that share the slab */
    uint32_t step;  /**< the first that reaches the peak */
    uint64_t bytes; /**< the lower bound */
    size_t holder_count;
    const bp_peak_holder *holders; /**< live in the step; by bytes, the largest first, then by unit, then by role */
    /** Where overlap windows set the bound no step reaches it: then everything from here on is 0. */
    uint32_t step_count; /**< steps that reach the peak */
    uint32_t set_count;  /**< different sets of holders that reach it, with this one */
    /** Largest live sum of a step in which not all these holders are live. `bytes` where another set reaches the
     * peak. */
    uint64_t next_bytes;
    uint32_t next_step;   /**< the first step with next_bytes */
    uint32_t below_step;  /**< the first step with below_bytes */
    uint64_t below_bytes; /**< largest live sum of a step that does not reach the peak; 0: all steps reach it */
} bp_peak;

/** Fields are only ever added at the end. */
typedef struct bp_peaks_info {
    size_t peak_count;
    const bp_peak *peaks; /**< one for each entry of the plan's roles, in their order */
} bp_peaks_info;

/** The view and its arrays belong to the object and live as long as it. peaks NULL: NULL. */
BP_API const bp_peaks_info *bp_peaks_get_info(const bp_peaks *peaks);

#ifdef __cplusplus
}
#endif
#endif
