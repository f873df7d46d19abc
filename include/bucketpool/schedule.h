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

/* What a step computes: a unit forward or backward, an event of a recorded schedule, or what lies outside units (embedding, output
 * layer). With unified communication streams a backward step is two steps, BACKWARD (reductions) and BACKWARD_GATHER. With the
 * forward of one microbatch and the backward of another running together, a step belongs to both: COMBINED names the unit that
 * runs backward. */
typedef enum bp_phase {
    BP_PHASE_FORWARD = 0,
    BP_PHASE_BACKWARD = 1,
    BP_PHASE_RECORDED = 2,
    BP_PHASE_OUTSIDE = 3,
    BP_PHASE_BACKWARD_GATHER = 4,
    BP_PHASE_COMBINED = 5
} bp_phase;

/* Logical streams of a schedule; runtimes may number lanes of their own below BP_LANE_COUNT. */
enum { BP_LANE_GATHER = 0, BP_LANE_COMPUTE = 1, BP_LANE_REDUCE = 2, BP_LANE_OUTER_REDUCE = 3 };
#define BP_LANE_COUNT 16u
#define BP_LANE_ANY UINT32_MAX

/* BP_PASSES_TRAIN: forward and backward. BP_PASSES_EVAL: forward only. BP_PASSES_BOTH: a training step, then an evaluation. */
typedef enum bp_passes { BP_PASSES_TRAIN = 0, BP_PASSES_EVAL = 1, BP_PASSES_BOTH = 2 } bp_passes;

/* BP_STREAMS_SEPARATE: all-gathers and reduce-scatters run beside each other.
 * BP_STREAMS_UNIFIED: one stream for both, so in backward the reduce-scatter of unit u+1 ends before the all-gather of u-1 starts.
 *   Source: Megatron-LM issue 6471. */
typedef enum bp_streams { BP_STREAMS_SEPARATE = 0, BP_STREAMS_UNIFIED = 1 } bp_streams;

/* What gathering a parameter outside units (embedding, output layer) gathers ahead.
 * BP_OUTSIDE_PREFETCHES_NOTHING: such parameters have no steps; the first unit is gathered as it computes.
 * BP_OUTSIDE_PREFETCHES_SUCCESSOR: what comes before the first unit, and what lies between forward and backward, are steps of
 *   their own, in which the units that really come next are gathered. */
typedef enum bp_outside { BP_OUTSIDE_PREFETCHES_NOTHING = 0, BP_OUTSIDE_PREFETCHES_SUCCESSOR = 1 } bp_outside;

/* How many units ahead of its own compute one unit is gathered, instead of the schedule's depth. */
typedef struct bp_unit_prefetch {
    uint32_t unit;              /* index as in bp_buckets_unit_name */
    uint32_t forward, backward; /* backward: BP_PREFETCH_SAME: as forward */
} bp_unit_prefetch;

typedef struct bp_schedule_config {
    size_t size;
    uint32_t prefetch;   /* units gathered ahead of the one that computes, forward and backward. 0: none */
    uint32_t grad_units; /* units whose gradients are live at once while their reduce-scatter drains; at least 1 */
    bp_passes passes;
    uint32_t prefetch_backward; /* in backward, BP_PREFETCH_SAME: as forward */
    uint32_t
        keep_after_forward; /* 1: parameters are not resharded after forward but live until their backward is done (in an
                                    evaluation: until it ends) */
    uint32_t recompute;     /* 1: backward runs forward again (activation checkpointing). Changes what fp8 models hold:
                                    row-wise parameters are gathered in backward too, at the unit's own step */
    bp_streams streams;
    bp_outside outside;
    uint32_t
        microbatches; /* forward passes in flight in a 1F1B pipeline stage; 0 and 1: each forward is followed by its backward */
    uint32_t
        combined; /* 1: steady state of 1F1B runs the forward of one microbatch and the backward of another side by side */
    uint32_t override_count;
    const bp_unit_prefetch *overrides; /* read during the call only; a unit once */
} bp_schedule_config;

#define BP_PREFETCH_SAME UINT32_MAX

/* Prefetch 1 both ways, two units of gradients, training, separate streams, resharding, no recompute, no pipeline. */
BP_API bp_status bp_schedule_config_init(bp_schedule_config *config, size_t size);

/* A training or evaluation step as FSDP runtimes run it; by default Megatron-FSDP's with double buffering:
 *   forward of the units in order, each gathered `prefetch` steps before it computes and released right after it;
 *   backward in reverse order likewise (so the last unit is gathered again as backward begins);
 *   a unit's gradients are acquired at its backward step and released when the backward of grad_units - 1 further units is
 *   done, which is when their reduce-scatter has ended;
 *   fp8 parameters are held row-wise in forward and as their transpose in backward, when param_transpose requests exist;
 *   the outer reduction's copy (grad_comm) is live with its gradients; the roles of state (BP_ROLES_STATE) are live all the time.
 * A nested unit runs within its parent: the parent is live from its own step to its last descendant's.
 * 1F1B with m microbatches in flight: m forward passes, m times a forward and a backward pass (one beside the other when
 * `combined`), m backward passes; nothing is gathered ahead across the border of two passes. Two passes of each kind stand for any
 * larger number, as no more conflicts come of them.
 * Source: Megatron-LM d98e8a64, AllGatherPipeline and GradReducePipeline; docs/schedules.md lists every event.
 * Errors: BP_ERR_INVALID_ARGUMENT (grad_units 0, no units, an unknown unit or one named twice in overrides, unknown modes,
 * more microbatches than BP_MOST_MICROBATCHES), BP_ERR_UNSUPPORTED (more than 2^25 steps), BP_ERR_OVERFLOW,
 * BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_schedule_create_training(const bp_buckets *buckets, const bp_schedule_config *config,
                                             bp_schedule **schedule);
#define BP_MOST_MICROBATCHES 1024u

typedef struct bp_recorded_config {
    size_t size;
    /* A recording is in the order of the host, which runs ahead of its streams: FSDP2's host releases unit u before it acquires
     * u+1, though the gather of u+1 is to run under the compute of u. So memory that was released on one lane is kept from the
     * next `overlap_window` units that acquire on another lane: sharing it would make them wait. 0: only what the host held at
     * the same time conflicts. */
    uint32_t overlap_window;
    uint32_t
        partial; /* 1: requests without events are not live (an evaluation has no gradients), instead of an error */
} bp_recorded_config;

/* A window of 0, every request must have events. */
BP_API bp_status bp_recorded_config_init(bp_recorded_config *config, size_t size);

/* The events that the model brought along (bp_model_add_event), one step each. Events of roles that the buckets make no requests
 * for are passed over. `config` NULL: the default.
 * Errors: BP_ERR_SCHEDULE (release before acquire, acquire of what is live, an acquire never released, an event for a
 * request that does not exist, a request without events unless `partial`), by position and name; BP_ERR_INVALID_ARGUMENT (no events);
 * BP_ERR_UNSUPPORTED (a window that keeps requests apart more than 2^22 times). */
BP_API bp_status bp_schedule_create_recorded(const bp_model *model, const bp_buckets *buckets,
                                             const bp_recorded_config *config, bp_schedule **schedule);

/* Several schedules of the same buckets, one after the other: what conflicts in any of them conflicts in the union. A request that
 * one of them does not use is not live there. The schedules are only read.
 * Errors: BP_ERR_INVALID_ARGUMENT (none, or schedules of other buckets), BP_ERR_OVERFLOW, BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_schedule_create_united(const bp_schedule *const *schedules, size_t count, bp_schedule **schedule);

/* The schedule of one model among several that share a pool: `schedule` was made for `part`, which is number `index` of those that
 * `united` was made of (bp_buckets_create_united). Its requests are those of the union; the other parts' are never live, but for
 * their state, which is there when their turn comes.
 * Unite the parts' schedules to have the models run one after the other.
 * Errors: BP_ERR_INVALID_ARGUMENT (no such part, a schedule of other buckets), BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_schedule_create_of_part(const bp_schedule *schedule, const bp_buckets *united, size_t index,
                                            bp_schedule **of_part);

BP_API void bp_schedule_destroy(bp_schedule **schedule);

typedef struct bp_step {
    size_t size;
    bp_phase phase;
    int32_t unit;         /* the unit that computes (training), or of the event (recorded); BP_OUTSIDE for none */
    int32_t forward_unit; /* in both halves of a combined step: the unit that runs forward beside it; else BP_OUTSIDE */
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

/* Two requests that are not live together, but `later` is acquired so soon after `earlier` was released on another lane that
 * sharing memory would make it wait where the schedule wants them to overlap. They conflict too. From overlap windows only;
 * generated schedules have their overlap in the intervals. */
typedef struct bp_overlap {
    uint32_t earlier, later; /* requests */
} bp_overlap;

BP_API size_t bp_schedule_overlap_count(const bp_schedule *schedule);
/* By `later`, then `earlier`; each pair once, and once the other way round where that is so too. The array lives as long as the
 * schedule, NULL when there are none. */
BP_API const bp_overlap *bp_schedule_overlaps(const bp_schedule *schedule);

/* One acquire or release of all requests of a unit in a role that come and go together. */
typedef struct bp_schedule_event {
    size_t size;
    uint32_t step;
    uint32_t acquire; /* 1 acquire, 0 release */
    uint32_t lane;
    uint32_t first_request, request_count;
} bp_schedule_event;

/* The schedule as events: by step, releases before acquires. A release stands at the first step in which the requests are no longer
 * live, the step count when they stay live to the end. Lanes are those of the roles (gathers on BP_LANE_GATHER, gradients acquired
 * on BP_LANE_COMPUTE and released on BP_LANE_REDUCE, ...) or as recorded. `events` lives as long as the caller keeps it: it is
 * handed over and freed with bp_schedule_events_destroy. Within a step releases and acquires each are in the order of the requests.
 * Errors: BP_ERR_INVALID_ARGUMENT (a schedule of other buckets), BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_schedule_events_create(const bp_schedule *schedule, const bp_buckets *buckets,
                                           bp_schedule_event **events, size_t *count);
BP_API void bp_schedule_events_destroy(bp_schedule_event **events);

#ifdef __cplusplus
}
#endif
#endif
