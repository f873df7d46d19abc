/* Schedules: when each request is live in one training step.
 *
 * Time is counted in steps: a step is one unit's forward or backward compute (a recorded schedule counts its events). A
 * request is live in half-open intervals [begin, end) of steps; two requests conflict when any of their intervals overlap.
 * The schedule repeats: after its last step comes the first step of the next iteration.
 *
 * Pure host data, deterministic; finished objects may be read from many threads. Capture-safe. */
#ifndef BUCKETPOOL_SCHEDULE_H
#define BUCKETPOOL_SCHEDULE_H

#include <bucketpool/model.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct bp_schedule bp_schedule;

typedef enum bp_phase { BP_PHASE_FORWARD = 0, BP_PHASE_BACKWARD = 1, BP_PHASE_RECORDED = 2 } bp_phase;

typedef struct bp_schedule_config {
    size_t size;
    uint32_t prefetch;   /* units gathered ahead of the one that computes, forward and backward. 0: none */
    uint32_t grad_units; /* units whose gradients are live at once while their reduce-scatter drains; at least 1 */
    uint32_t eval;       /* 1: forward only */
} bp_schedule_config;

/* Prefetch 1, two units of gradients, training. */
BP_API bp_status bp_schedule_config_init(bp_schedule_config *config, size_t size);

/* The default training step, Megatron-FSDP's with double buffering:
 *   forward of the units in order, each gathered `prefetch` steps before it computes and released right after it;
 *   backward in reverse order likewise (so the last unit is gathered again as backward begins);
 *   a unit's gradients are acquired at its backward step and released when the backward of grad_units - 1 further units is
 *   done, which is when their reduce-scatter has ended;
 *   fp8 parameters are held row-wise in forward and as their transpose in backward, when param_transpose requests exist;
 *   the outer reduction's copy (grad_comm) is live with its gradients; state is live all the time.
 * A nested unit runs within its parent: the parent is live from its own step to its last descendant's.
 * Source: Megatron-LM d98e8a64, AllGatherPipeline and GradReducePipeline; docs/schedules.md lists every event.
 * Errors: BP_ERR_INVALID_ARGUMENT (grad_units 0, no units), BP_ERR_OVERFLOW, BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_schedule_create_training(const bp_buckets *buckets, const bp_schedule_config *config,
                                             bp_schedule **schedule);

/* The events that the model brought along (bp_model_add_event), one step each. Events of roles that the buckets make no requests
 * for are passed over.
 * Errors: BP_ERR_SCHEDULE (release before acquire, acquire of what is live, an acquire never released, an event for a
 * request that does not exist, a request without events), by position and name; BP_ERR_INVALID_ARGUMENT (no events). */
BP_API bp_status bp_schedule_create_recorded(const bp_model *model, const bp_buckets *buckets, bp_schedule **schedule);

BP_API void bp_schedule_destroy(bp_schedule **schedule);

typedef struct bp_step {
    size_t size;
    bp_phase phase;
    int32_t unit; /* the unit that computes (training), or of the event (recorded) */
} bp_step;

BP_API size_t bp_schedule_step_count(const bp_schedule *schedule);
BP_API bp_status bp_schedule_step(const bp_schedule *schedule, size_t index, bp_step *step);

typedef struct bp_interval {
    uint32_t begin; /* first step in which the request is live */
    uint32_t end;   /* first step in which it is not */
} bp_interval;

/* The intervals of a request in increasing order, never empty, never touching. NULL and 0 for an unknown request or one that
 * this schedule never uses (gradients in evaluation). The array lives as long as the schedule. */
BP_API const bp_interval *bp_schedule_intervals(const bp_schedule *schedule, size_t request, size_t *count);

#ifdef __cplusplus
}
#endif
#endif
