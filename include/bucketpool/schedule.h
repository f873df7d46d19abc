/* SPDX-License-Identifier: Apache-2.0 */
/** @file
 * Schedules: when each request is live in one iteration.
 *
 * Time is counted in steps. A step is one unit's forward or backward compute; a recorded schedule counts its events.
 * A request is live in half-open intervals [begin, end) of steps. Two requests conflict when their intervals overlap.
 * The schedule repeats: the first step of the next iteration follows the last step.
 *
 * A request is named by its index in the buckets that the schedule was made for (bp_buckets_info), which is its id.
 *
 * Schedules are host data: no function here touches a device or a stream, and all of them may be called during a
 * capture. The same input gives the same schedule. A finished schedule is never changed; any number of threads may
 * read it. */
#ifndef BUCKETPOOL_SCHEDULE_H
#define BUCKETPOOL_SCHEDULE_H

#include <bucketpool/model.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct bp_schedule bp_schedule;

/** The computation of a step. */
typedef enum bp_phase {
    BP_PHASE_FORWARD = 0,
    BP_PHASE_BACKWARD = 1,
    BP_PHASE_RECORDED = 2, /**< an event of a recorded schedule */
    BP_PHASE_OUTSIDE = 3,  /**< parameters outside units: embedding, output layer */
    /** unified streams: the second half of a backward step, when all-gathers run. FSDP2 without a root group: the
     * first all-gather of backward */
    BP_PHASE_BACKWARD_GATHER = 4,
    BP_PHASE_COMBINED = 5, /**< the backward of a unit at the same time as the forward of another unit */
    BP_PHASE_REDUCE = 6    /**< FSDP2: after the backward of a unit, its gradients are copied and reduce-scattered */
} bp_phase;

/** Logical streams of a schedule. Runtimes may use further lanes below BP_LANE_COUNT. */
enum { BP_LANE_GATHER = 0, BP_LANE_COMPUTE = 1, BP_LANE_REDUCE = 2, BP_LANE_OUTER_REDUCE = 3 };
#define BP_LANE_COUNT 16u
#define BP_LANE_ANY UINT32_MAX

/** The passes of one iteration.
 * - BP_PASSES_TRAIN: forward and backward.
 * - BP_PASSES_EVAL: forward only.
 * - BP_PASSES_BOTH: a training step, then an evaluation. */
typedef enum bp_passes { BP_PASSES_TRAIN = 0, BP_PASSES_EVAL = 1, BP_PASSES_BOTH = 2 } bp_passes;

/** The streams of collectives.
 * - BP_STREAMS_SEPARATE: all-gathers and reduce-scatters run at the same time.
 * - BP_STREAMS_UNIFIED: one stream for both. In backward the reduce-scatter of unit u+1 ends before the all-gather of
 *   unit u-1 starts. Source: Megatron-LM issue 6471. */
typedef enum bp_streams { BP_STREAMS_SEPARATE = 0, BP_STREAMS_UNIFIED = 1 } bp_streams;

/** Prefetch during the computation of persistent parameters (embedding, output layer).
 * - BP_OUTSIDE_PREFETCHES_NOTHING: these parameters have no steps. The first unit is gathered in its own step.
 * - BP_OUTSIDE_PREFETCHES_SUCCESSOR: an additional step before the first unit and another between forward and
 *   backward. The units that run next are gathered in these steps. */
typedef enum bp_outside { BP_OUTSIDE_PREFETCHES_NOTHING = 0, BP_OUTSIDE_PREFETCHES_SUCCESSOR = 1 } bp_outside;

/** A prefetch depth for one unit, which replaces that of the schedule. */
typedef struct bp_unit_prefetch {
    uint32_t unit;     /**< index of a unit of the buckets */
    uint32_t forward;  /**< prefetch depth in forward */
    uint32_t backward; /**< prefetch depth in backward; BP_PREFETCH_SAME: as in forward */
} bp_unit_prefetch;

#define BP_PREFETCH_SAME UINT32_MAX

typedef struct bp_schedule_config {
    size_t size;
    uint32_t prefetch;   /**< prefetch depth: units gathered before they compute; 0: none */
    uint32_t grad_units; /**< units whose gradients are live at once while their reduce-scatter runs; at least 1 */
    bp_passes passes;
    uint32_t prefetch_backward; /**< prefetch depth in backward; BP_PREFETCH_SAME: as forward */
    /** 1: parameters are not resharded after forward. They are live until their backward ends, in an evaluation until
     * the pass ends. */
    uint32_t keep_after_forward;
    /** 1: activation checkpointing. With fp8, backward also gathers the row-wise parameters, each in its unit's own
     * step. */
    uint32_t recompute;
    bp_streams streams;
    bp_outside outside;
    /** Forward passes in flight in a 1F1B pipeline stage. 0 and 1: backward follows each forward. */
    uint32_t microbatches;
    uint32_t combined;       /**< 1: in the steady state of 1F1B a forward and a backward pass run at the same time */
    uint32_t override_count; /**< elements of `overrides` */
    const bp_unit_prefetch *overrides; /**< at most one for each unit; read during the call only */
} bp_schedule_config;

/** Sets the defaults: prefetch depth 1 in both directions, gradients of 2 units, training, separate streams,
 * resharding after forward, no recompute, no pipeline, no overrides.
 *
 * Errors: BP_ERR_INVALID_ARGUMENT (NULL, an unknown size). */
BP_API bp_status bp_schedule_config_init(bp_schedule_config *config, size_t size);

#define BP_MAX_MICROBATCHES 1024u

/** Creates the schedule of a training or evaluation step of FSDP. The defaults are those of Megatron-FSDP with double
 * buffering. `config` NULL: the defaults.
 * - Forward runs the units in order. A unit is gathered `prefetch` steps before it computes and released after its
 *   step.
 * - Backward runs the units in reverse order, with the same rule. The last unit is gathered again when backward
 *   begins.
 * - The gradients of a unit are acquired in its backward step. They are released when the backward of grad_units - 1
 *   further units has ended, because their reduce-scatter has ended then.
 * - With param_transpose requests, fp8 parameters are live row-wise in forward and transposed in backward.
 * - The copy for the outer all-reduce (grad_comm) is live with its gradients.
 * - The roles in BP_ROLES_STATE are live in all steps.
 * - A nested unit runs within its parent: the parent is live from its own step to the step of its last descendant.
 * - 1F1B with m microbatches in flight has m forward passes, then m pairs of a forward and a backward pass, then m
 *   backward passes. No unit is prefetched across the border of two passes. The schedule contains two passes of each
 *   kind, because more passes add no conflict.
 *
 * The caller owns the schedule: bp_schedule_destroy. The inputs are only read.
 *
 * Errors: BP_ERR_INVALID_ARGUMENT (grad_units 0, no units, an unknown unit, two overrides of one unit, an unknown
 * enumerator, more than BP_MAX_MICROBATCHES), BP_ERR_UNSUPPORTED (more than 2^25 steps; a config of a newer library),
 * BP_ERR_OVERFLOW, BP_ERR_NO_HOST_MEMORY.
 *
 * Source: Megatron-LM d98e8a64, AllGatherPipeline and GradReducePipeline; docs/concepts/schedules.md lists every
 * event. */
BP_API bp_status bp_schedule_create_training(const bp_buckets *buckets, const bp_schedule_config *config,
                                             bp_schedule **schedule);

typedef struct bp_recorded_config {
    size_t size;
    /** Number of units that do not get memory that another lane has just released. A recording is in the order of the
     * host, and the host runs ahead of its streams: FSDP2 releases unit u before it acquires unit u+1, but the
     * all-gather of u+1 should run while u computes. If both shared memory, the all-gather would wait. So memory that
     * one lane released is not given to the next `overlap_window` units that other lanes acquire. 0: requests
     * conflict only if the host held them at the same time. */
    uint32_t overlap_window;
    /** 1: requests without events are never live (an evaluation has no gradients). 0: they are an error. */
    uint32_t partial;
} bp_recorded_config;

/** Sets the defaults: no overlap window, every request must have events. Errors: as bp_schedule_config_init. */
BP_API bp_status bp_recorded_config_init(bp_recorded_config *config, size_t size);

/** Creates a schedule from the recorded events of the model (bp_model_add_event), one step for each event. Events of
 * roles without requests are skipped. `config` NULL: the defaults. The caller owns the schedule: bp_schedule_destroy.
 * The inputs are only read.
 *
 * Errors:
 * - BP_ERR_SCHEDULE, which names the event or the request: a release without an acquire, a second acquire, an acquire
 *   without a release, an event of an unknown request, a request without events unless `partial`.
 * - BP_ERR_INVALID_ARGUMENT: no events, buckets of another model.
 * - BP_ERR_UNSUPPORTED: an overlap window that separates more than 2^22 pairs of requests; a config of a newer
 *   library.
 * - BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_schedule_create_recorded(const bp_model *model, const bp_buckets *buckets,
                                             const bp_recorded_config *config, bp_schedule **schedule);

/** Merges several schedules of the same buckets, one after the other. Requests that conflict in one of them conflict
 * in the merged schedule. The inputs are only read. The caller owns the schedule: bp_schedule_destroy.
 *
 * Errors: BP_ERR_INVALID_ARGUMENT (count 0, schedules of other buckets), BP_ERR_OVERFLOW, BP_ERR_UNSUPPORTED (as
 * bp_schedule_create_recorded), BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_schedule_create_merged(const bp_schedule *const *schedules, size_t count, bp_schedule **schedule);

/** Converts the schedule of one model to merged buckets, for several models that share a pool. `schedule` is for part
 * `index` of the parts from which bp_buckets_create_merged made `buckets`. In the result the requests of the other
 * models are never live, except for the roles in BP_ROLES_STATE, which are always live. Merge the embedded schedules
 * to run the models one after the other. The inputs are only read. The caller owns the result: bp_schedule_destroy.
 *
 * Errors: BP_ERR_INVALID_ARGUMENT (no such index, a schedule of other buckets), BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_schedule_create_embedded(const bp_schedule *schedule, const bp_buckets *buckets, size_t index,
                                             bp_schedule **embedded);

/** Destroys a schedule and its contents. Accepts NULL and a pointer to NULL; sets *schedule to NULL. */
BP_API void bp_schedule_destroy(bp_schedule **schedule);

/* ---- the finished schedule -------------------------------------------------------------------------------- */

/** A step of the schedule. */
typedef struct bp_step {
    bp_phase phase;
    int32_t unit;         /**< unit that computes; recorded: unit of the event; BP_OUTSIDE: none */
    int32_t forward_unit; /**< combined: the unit that runs forward at the same time; else BP_OUTSIDE */
} bp_step;

typedef struct bp_interval {
    uint32_t begin; /**< first step in which the request is live */
    uint32_t end;   /**< first step after that in which it is not live */
} bp_interval;

typedef struct bp_scheduled_request {
    const bp_interval *intervals; /**< in increasing order; they neither overlap nor touch */
    size_t interval_count;        /**< 0: never live (gradients in an evaluation) */
} bp_scheduled_request;

/** Two requests that conflict because of an overlap window, although they are never live together: another lane
 * acquires `later` so soon after the release of `earlier` that it would wait if they shared memory. */
typedef struct bp_overlap {
    uint32_t earlier, later; /**< requests */
} bp_overlap;

/** An acquire or a release of consecutive requests, all of one unit and role. */
typedef struct bp_schedule_event {
    /** Step of the event. For a release: the first step in which the requests are not live, or the step count if they
     * are live to the end. */
    uint32_t step;
    uint32_t acquire; /**< 1: acquire, 0: release */
    /** The recorded lane, else that of the role: parameters are acquired on BP_LANE_GATHER and released on
     * BP_LANE_COMPUTE; gradients are acquired on BP_LANE_COMPUTE and released on BP_LANE_REDUCE, grad_comm on
     * BP_LANE_OUTER_REDUCE. */
    uint32_t lane;
    uint32_t first_request, request_count;
} bp_schedule_event;

/** The contents of a schedule. */
typedef struct bp_schedule_info {
    size_t step_count;
    const bp_step *steps;
    size_t request_count; /**< of the buckets */
    const bp_scheduled_request *requests;
    size_t overlap_count;
    /** by `later`, then `earlier`; a pair appears once in each order in which it occurs */
    const bp_overlap *overlaps;
    size_t event_count;
    const bp_schedule_event *events; /**< by step, in a step releases before acquires, each by first_request */
} bp_schedule_info;

/** The contents of a schedule. Lives as long as the schedule. NULL for NULL. */
BP_API const bp_schedule_info *bp_schedule_get_info(const bp_schedule *schedule);

#ifdef __cplusplus
}
#endif
#endif
