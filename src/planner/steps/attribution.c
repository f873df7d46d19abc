/* SPDX-License-Identifier: Apache-2.0 */
/* Derives purposes of allocations from phases and live ranges. */
#include "planner/steps/attribution.h"

#include <bucketpool/core/fail.h>

#include <stdlib.h>

#include "core/memory.h"

const char *bp_memory_kind_name(bp_memory_kind kind)
{
    static const char *const names[BP_MEMORY_KINDS] = {"unknown",         "parameters",  "gradients",
                                                       "optimizer state", "activations", "logits",
                                                       "communication",   "workspace",   "live before the recording"};
    return kind < BP_MEMORY_KINDS ? names[kind] : "unknown";
}

/* The next allocations behind one. */
typedef struct next_events {
    uint32_t run_end;      /* of another phase */
    uint32_t backward_end; /* neither of backward nor of a recomputation; event_count: none */
    uint32_t failure;      /* the last request that found no memory, if it is behind */
} next_events;

/* True if something else than backward frees it: zero_grad, the program, the next step. */
static bool is_freed_outside_backward(const bp_trace *trace, const bp_allocation *a, const bp_stack_places *places)
{
    const uint32_t stack = a->end != BP_TRACE_NONE ? trace->events[a->end].stack : BP_TRACE_NONE;
    if (stack == BP_TRACE_NONE || stack == a->stack) /* recordings on fake tensors repeat the stack of the allocation */
        return false;
    const unsigned phase = places->all[stack].phase;
    return phase == BP_TRACE_PHASE_FORWARD || phase == BP_TRACE_PHASE_OPTIMIZER || phase == BP_TRACE_PHASE_SETUP;
}

/* In a backward pass that a failed request ends, gradients of parameters and of activations are not told apart. */
static bool is_gradient(const bp_trace *trace, const bp_allocation *a, const bp_stack_places *places,
                        const next_events *next)
{
    if (next->backward_end == trace->event_count && next->failure > a->begin)
        return false;
    return a->end > next->backward_end || is_freed_outside_backward(trace, a, places);
}

static bp_memory_kind kind_of(const bp_trace *trace, const bp_allocation *a, bp_trace_phase phase,
                              const bp_stack_places *places, const next_events *next)
{
    const bp_stack_place *place = a->stack == BP_TRACE_NONE ? NULL : &places->all[a->stack];
    if (place != NULL && place->is_workspace)
        return BP_MEMORY_WORKSPACE;
    if (phase == BP_TRACE_PHASE_BACKWARD && is_gradient(trace, a, places, next))
        return BP_MEMORY_GRADIENTS; /* those of a reduce-scatter, too */
    if (place != NULL && place->is_unsharded && phase != BP_TRACE_PHASE_OPTIMIZER)
        return BP_MEMORY_PARAMETERS;
    if (place != NULL && place->is_communication && phase != BP_TRACE_PHASE_SETUP && phase != BP_TRACE_PHASE_OPTIMIZER)
        return BP_MEMORY_COMMUNICATION;
    switch (phase) {
    case BP_TRACE_PHASE_SETUP: return a->end >= next->run_end ? BP_MEMORY_PARAMETERS : BP_MEMORY_WORKSPACE;
    case BP_TRACE_PHASE_FORWARD:
    case BP_TRACE_PHASE_RECOMPUTE:
    case BP_TRACE_PHASE_BACKWARD: return BP_MEMORY_ACTIVATIONS;
    case BP_TRACE_PHASE_OPTIMIZER: return a->end >= next->run_end ? BP_MEMORY_OPTIMIZER_STATE : BP_MEMORY_WORKSPACE;
    default: return BP_MEMORY_UNKNOWN;
    }
}

bp_status bp_attribution_init(const bp_trace *trace, const bp_allocations *allocations, const bp_stack_places *places,
                              bp_attribution *attribution)
{
    const size_t count = allocations->count;
    void *kinds = NULL, *phases = NULL;
    bp_status status = bp_new_array(count, sizeof *attribution->kinds, &kinds);
    if (status == BP_OK)
        status = bp_new_array(count, sizeof *attribution->phases, &phases);
    if (status != BP_OK) {
        free(kinds);
        return status;
    }
    bp_attribution made = {.kinds = kinds, .phases = phases};
    for (size_t i = 0; i < count; i++)
        made.phases[i] = (uint8_t)bp_allocation_phase(&allocations->all[i], places);
    next_events next = {.run_end = (uint32_t)trace->event_count, .backward_end = (uint32_t)trace->event_count};
    for (uint32_t i = 0; i < trace->event_count; i++)
        next.failure = trace->events[i].action == BP_TRACE_OOM ? i : next.failure;
    for (size_t i = count; i-- > 0;) {
        const bp_allocation *a = &allocations->all[i];
        const bp_trace_phase phase = (bp_trace_phase)made.phases[i];
        const bool is_early = a->begin == BP_TRACE_NONE;
        if (i + 1 < count && phase != (bp_trace_phase)made.phases[i + 1])
            next.run_end = allocations->all[i + 1].begin;
        made.kinds[i] = is_early ? BP_MEMORY_EARLIER
                        : trace->events[a->begin].kind != BP_MEMORY_UNKNOWN
                            ? trace->events[a->begin].kind
                            : (uint8_t)kind_of(trace, a, phase, places, &next);
        if (!is_early && phase != BP_TRACE_PHASE_BACKWARD && phase != BP_TRACE_PHASE_RECOMPUTE)
            next.backward_end = a->begin;
    }
    *attribution = made;
    return BP_OK;
}

void bp_attribution_finish(bp_attribution *attribution)
{
    free(attribution->kinds);
    free(attribution->phases);
    *attribution = (bp_attribution){0};
}
