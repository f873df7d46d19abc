/* SPDX-License-Identifier: Apache-2.0 */
/* Training steps in an allocation trace: the allocations, the step that repeats, and a plan with one address for each
 * allocation of the step. Pure: no device, clock or files. Host-side only; separate traces may be used by separate
 * threads. */
#ifndef BP_STEPS_STEPS_H
#define BP_STEPS_STEPS_H

#include <bucketpool/step_plan.h>

#include "planner/steps/stack_places.h"
#include "planner/steps/trace.h"

/* ---- allocations --------------------------------------------------------------------------------------------------- */

/* An allocation, from its event to the completion of its free. */
typedef struct bp_allocation {
    uint64_t address;
    uint64_t bytes;      /* as requested; rounded where the request is unknown */
    uint32_t begin, end; /* events; BP_TRACE_NONE: before the oldest event, after the newest one */
    uint32_t requested;  /* the event that requested the free: the tensor is gone. `end` where that was not recorded */
    uint32_t stack;
    uint16_t stream;
} bp_allocation;

typedef struct bp_allocations {
    bp_allocation *all; /* first those that were live before the oldest event, by address; then by begin */
    size_t count, live_at_start;
    uint64_t
        replaced;     /* allocations at an address that was still in use: their free is missing, and is assumed there */
    uint64_t unknown; /* events of unknown kinds */
} bp_allocations;

/* The caller owns the result: bp_allocations_finish. Expected O(events). Errors: BP_ERR_OVERFLOW (the bytes together
 * exceed 64 bits), BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_allocations_init(const bp_trace *trace, bp_allocations *allocations);
BP_API void bp_allocations_finish(bp_allocations *allocations);

/* True after an event; BP_TRACE_NONE: before the first one. */
static inline bool bp_allocation_is_live(const bp_allocation *a, uint32_t event)
{
    if (event == BP_TRACE_NONE)
        return a->begin == BP_TRACE_NONE;
    return (a->begin == BP_TRACE_NONE || a->begin <= event) && (a->end == BP_TRACE_NONE || a->end > event);
}

/* The phase in which it was made. */
static inline bp_trace_phase bp_allocation_phase(const bp_allocation *a, const bp_stack_places *places)
{
    if (a->begin == BP_TRACE_NONE)
        return BP_TRACE_PHASE_UNKNOWN;
    bp_trace_phase phase =
        a->stack == BP_TRACE_NONE ? BP_TRACE_PHASE_UNKNOWN : (bp_trace_phase)places->all[a->stack].phase;
    return phase == BP_TRACE_PHASE_UNKNOWN && bp_stack_places_miss_backward(places) ? BP_TRACE_PHASE_BACKWARD : phase;
}

/* For a sweep over time: by event, the allocation that ends there, or BP_TRACE_NONE. An end comes before the begin of the
 * same event. free() it. Errors: BP_ERR_NO_HOST_MEMORY. */
bp_status bp_allocations_ends(const bp_trace *trace, const bp_allocations *allocations, uint32_t **ends);

/* ---- steps --------------------------------------------------------------------------------------------------------- */

/* A step of the trace: the allocations first to first + count - 1, between two moments when few bytes are live. */
typedef struct bp_trace_step {
    size_t first, count;
    uint32_t begin, end; /* events: the first of the step, and the first behind it */
    uint32_t kind;
    size_t matched;       /* allocations that the kind's reference step has, too */
    uint64_t begin_bytes; /* live when it begins, rounded */
    uint64_t peak_bytes;  /* peak live bytes, rounded */
    uint32_t peak_event;  /* the first event that reaches the peak */
} bp_trace_step;

/* Steps with the same allocations, up to a few: their reference is the last of them, but not the last of the trace. */
typedef struct bp_step_kind {
    size_t reference, steps;
    size_t allocations; /* of the reference step */
} bp_step_kind;

enum { BP_STEP_MAX_KINDS = BP_STEP_PLAN_KINDS - 1 }; /* a plan also has the first step */

typedef enum bp_steps_source {
    BP_STEPS_WHOLE,    /* no step was found: the whole trace is the only one */
    BP_STEPS_REPEATED, /* the part that repeats */
    BP_STEPS_MARKED    /* the annotations of the trace say where steps begin */
} bp_steps_source;

typedef struct bp_steps {
    bp_trace_step *steps; /* consecutive */
    size_t count;
    bp_steps_source source;
    bp_step_kind kinds[BP_STEP_MAX_KINDS];
    size_t kind_count;
    /* by allocation: its order in the reference step of its step's kind, counted from 0; BP_TRACE_NONE: outside the
     * steps, or not in the reference */
    uint32_t *orders;
    uint64_t allocations, matched; /* of all steps */
    /* ends of optimizers: the allocations before which they lie, or the number of allocations; ascending */
    uint32_t *optimizer_ends;
    size_t optimizer_end_count;
    /* of the whole trace, rounded: steps may miss it (warm-up, an unfinished last step) */
    uint64_t peak_bytes;
    uint32_t peak_event; /* the first event that reaches the peak; BP_TRACE_NONE: before the first event */
} bp_steps;

/* The first step before which a whole step ran: the second, or the only one. What is live in the first may be from before
 * it. */
static inline const bp_trace_step *bp_steps_steady(const bp_steps *steps)
{
    return &steps->steps[steps->count > 1 ? 1 : 0];
}

/* Finds the steps of a training. In this order:
 *  - marks, which are the annotations of torch.profiler ("ProfilerStep#3"), of programs ("step 3") and of optimizers;
 *  - the part that repeats, by sizes and streams of allocations in order, if forward, backward and optimizer are in it, and only
 *    warm-up before it and an unfinished step behind it are left out;
 *  - else the whole trace as one step.
 * A trace without allocations has no steps. The caller owns the result: bp_steps_finish. O(allocations), with at most 64 comparisons of
 * each, and O(n + d^2) for d <= 2048 differences of steps of n allocations that are compared. Errors: BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_steps_init(const bp_trace *trace, const bp_allocations *allocations, const bp_stack_places *places,
                               bp_steps *steps);
BP_API void bp_steps_finish(bp_steps *steps);

/* ---- plans --------------------------------------------------------------------------------------------------------- */

/* The most bytes that PyTorch had from the driver, by the segments of the recording, and those at an event. */
BP_API uint64_t bp_trace_reserved(const bp_trace *trace, uint32_t event, uint64_t *at_event);

/* Plans one address for each allocation of the step, valid in all recorded steps: no two allocations that are live
 * together in one of them share a byte. `config` NULL: the defaults of bp_step_plan_config_init. Item i of a kind is the
 * allocation references[kind].first + i. The caller owns the plan: bp_step_plan_destroy. Errors: as bp_step_plan_create. */
BP_API bp_status bp_step_plan_trace(const bp_trace *trace, const bp_allocations *allocations,
                                    const bp_stack_places *places, const bp_steps *steps,
                                    const bp_step_plan_config *config, bp_trace_step references[BP_STEP_PLAN_KINDS],
                                    bp_step_plan **plan);

#endif
