/* What-if: what plans of other schedules take, and which units set the peak.
 *
 * All of it is about policy scheduled, and as pure and deterministic as its plans. Finished objects may be read from
 * many threads. Capture-safe, as nothing touches a device. */
#ifndef BUCKETPOOL_WHATIF_H
#define BUCKETPOOL_WHATIF_H

#include <bucketpool/plan.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- other schedules ---------------------------------------------------------------------------------------------- */

typedef struct bp_alternatives bp_alternatives;

typedef struct bp_alternatives_config {
    size_t size;
    uint32_t most_prefetch; /* depths from 0 to this are planned */
    uint64_t work;          /* bound of the search per slab; the present choice has that of its own configuration */
    const bp_plan *present; /* the present choice's plan, of policy scheduled, if it is there; else it is made */
} bp_alternatives_config;

/* Depths 0 to 4, 2^24: of any bundled model all plans take a second together. */
BP_API bp_status bp_alternatives_config_init(bp_alternatives_config *config, size_t size);

/* What plans take where units are gathered further ahead or less far, where gathers and reductions run on separate
 * streams or on one, and with a slab for each role or one for all; everything else is as in `schedule` and `plan`,
 * the present choice. What makes no difference is left as it is: streams without parameters and gradients, joint
 * slabs for a single role.
 * Units with a prefetch of their own (overrides) keep it. The policy of `plan` does not count.
 * Errors: as bp_schedule_create_training and bp_plan_create have; BP_ERR_INVALID_ARGUMENT
 * also for a most_prefetch above BP_MOST_WHATIF_PREFETCH. The caller owns the result: bp_alternatives_destroy. It
 * keeps nothing of its inputs. */
BP_API bp_status bp_alternatives_create(const bp_buckets *buckets, const bp_schedule_config *schedule,
                                        const bp_plan_config *plan, const bp_alternatives_config *config,
                                        bp_alternatives **alternatives);
BP_API void bp_alternatives_destroy(bp_alternatives **alternatives);
#define BP_MOST_WHATIF_PREFETCH 64u

typedef struct bp_alternative {
    size_t size;
    uint32_t prefetch, prefetch_backward;
    bp_streams streams;
    uint32_t joint;
    uint32_t is_present;        /* 1: the choice that was handed in */
    uint32_t optimal;           /* 1: no plan takes less */
    uint64_t bytes;             /* of policy scheduled */
    uint64_t lower_bound_bytes; /* as in bp_plan_summary */
    uint64_t proven_bytes;      /* no plan takes less: the bound, or more where a search proved it */
    uint64_t max_bytes;         /* of policy max; 0: infeasible with the copies asked for */
    uint64_t
        live_bytes; /* the largest sum of what is live at once, of all roles together: the floor of any allocator */
} bp_alternative;

/* By prefetch, then streams, then joint. A present choice that is none of these comes first. */
BP_API size_t bp_alternatives_count(const bp_alternatives *alternatives);
BP_API bp_status bp_alternatives_get(const bp_alternatives *alternatives, size_t index, bp_alternative *alternative);

/* ---- what sets the peak --------------------------------------------------------------------------------------------- */

typedef struct bp_peaks bp_peaks;

/* For each entry of the plan's roles: what holds memory where its lower bound is reached, and what would be the peak
 * if that did not come together. The plan must be of these buckets and this schedule.
 * Errors: BP_ERR_INVALID_ARGUMENT (a schedule of other buckets, a plan without witnesses), BP_ERR_NO_HOST_MEMORY. The
 * caller owns the result: bp_peaks_destroy. It keeps nothing of its inputs. */
BP_API bp_status bp_peaks_create(const bp_buckets *buckets, const bp_schedule *schedule, const bp_plan *plan,
                                 bp_peaks **peaks);
BP_API void bp_peaks_destroy(bp_peaks **peaks);

/* The holders are units in a role. Where overlap windows set the bound it is no step's: then everything from `steps`
 * on is 0. */
typedef struct bp_peak {
    size_t size;
    uint32_t roles; /* BP_ROLE_BIT mask of those that share the slab */
    uint32_t step;  /* the first that reaches the peak */
    uint64_t bytes; /* the lower bound */
    size_t holders; /* that are live in the step and take memory */
    uint32_t steps; /* that reach the peak */
    uint32_t sets;  /* different sets of holders that do, with this one */
    uint64_t
        next_bytes; /* the largest live sum of a step in which these holders are not all live; as much as `bytes` where
                            other holders reach the peak too */
    uint32_t next_step;   /* the first that has it */
    uint32_t below_step;  /* likewise */
    uint64_t below_bytes; /* the largest live sum of a step that does not reach the peak; 0: all do */
} bp_peak;

BP_API size_t bp_peaks_count(const bp_peaks *peaks);
BP_API bp_status bp_peaks_get(const bp_peaks *peaks, size_t index, bp_peak *peak);

typedef struct bp_peak_holder {
    size_t size;
    uint32_t unit; /* index as in bp_buckets_unit_name */
    uint32_t role;
    uint64_t bytes; /* aligned; those of a peak add up to it */
} bp_peak_holder;

/* By bytes, the largest first; equal ones by unit, then role. */
BP_API bp_status bp_peaks_holder(const bp_peaks *peaks, size_t peak, size_t index, bp_peak_holder *holder);

#ifdef __cplusplus
}
#endif
#endif
