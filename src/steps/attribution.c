/* Derives purposes of allocations from phases and live ranges. */
#include "steps/attribution.h"

#include <stdlib.h>

#include "core/fail.h"
#include "core/memory.h"

const char *bp_memory_kind_name(bp_memory_kind kind)
{
    static const char *const names[BP_MEMORY_KINDS] = {
        "unknown",     "parameters",    "gradients", "optimizer state",
        "activations", "communication", "workspace", "live before the recording"};
    return kind < BP_MEMORY_KINDS ? names[kind] : "unknown";
}

/* run_end: the next allocation of another phase. backward_end: the next one that is neither of backward nor of a recomputation. */
static bp_memory_kind kind_of(const bp_allocation *a, bp_trace_phase phase, uint32_t run_end, uint32_t backward_end,
                              const bp_stack_place *place)
{
    if (a->begin == BP_TRACE_NONE)
        return BP_MEMORY_EARLIER;
    if (place != NULL && place->is_workspace)
        return BP_MEMORY_WORKSPACE;
    if (phase == BP_TRACE_PHASE_BACKWARD && a->end > backward_end)
        return BP_MEMORY_GRADIENTS; /* those of a reduce-scatter, too */
    if (place != NULL && place->is_communication && phase != BP_TRACE_PHASE_SETUP && phase != BP_TRACE_PHASE_OPTIMIZER)
        return BP_MEMORY_COMMUNICATION;
    switch (phase) {
    case BP_TRACE_PHASE_SETUP: return a->end >= run_end ? BP_MEMORY_PARAMETERS : BP_MEMORY_WORKSPACE;
    case BP_TRACE_PHASE_FORWARD:
    case BP_TRACE_PHASE_RECOMPUTE:
    case BP_TRACE_PHASE_BACKWARD: return BP_MEMORY_ACTIVATIONS;
    case BP_TRACE_PHASE_OPTIMIZER: return a->end >= run_end ? BP_MEMORY_OPTIMIZER_STATE : BP_MEMORY_WORKSPACE;
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
    uint32_t run_end = (uint32_t)trace->event_count, backward_end = run_end;
    for (size_t i = count; i-- > 0;) {
        const bp_allocation *a = &allocations->all[i];
        const bp_stack_place *place = a->stack == BP_TRACE_NONE ? NULL : &places->all[a->stack];
        bp_trace_phase phase = (bp_trace_phase)made.phases[i];
        unsigned named = a->begin == BP_TRACE_NONE ? BP_MEMORY_UNKNOWN : trace->events[a->begin].kind;
        if (i + 1 < count && phase != (bp_trace_phase)made.phases[i + 1])
            run_end = allocations->all[i + 1].begin;
        made.kinds[i] = (uint8_t)(named != BP_MEMORY_UNKNOWN ? (bp_memory_kind)named
                                                             : kind_of(a, phase, run_end, backward_end, place));
        if (phase != BP_TRACE_PHASE_BACKWARD && phase != BP_TRACE_PHASE_RECOMPUTE)
            backward_end = a->begin;
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
