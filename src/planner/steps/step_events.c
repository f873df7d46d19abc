/* SPDX-License-Identifier: Apache-2.0 */
/* Plans the steps of a recording of allocations, frees and marks. */
#include <bucketpool/core/fail.h>
#include <bucketpool/step_plan.h>

#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "planner/steps/steps.h"

/* Events without marks, which become numbers of events. */
static bp_status copy_events(const bp_step_event *events, size_t count, bp_trace *trace)
{
    for (size_t i = 0; i < count; i++) {
        const bp_step_event *e = &events[i];
        if (e->action == BP_STEP_MARK) {
            trace->marks[trace->mark_count++] = (uint32_t)trace->event_count;
            continue;
        }
        if (e->action != BP_STEP_ALLOCATE && e->action != BP_STEP_FREE)
            return bp_fail(BP_ERR_INVALID_ARGUMENT, "step plan: event %zu has the unknown action %u", i, e->action);
        if (e->stream >= BP_STEP_PLAN_STREAMS)
            return bp_fail(BP_ERR_INVALID_ARGUMENT, "step plan: event %zu is of stream %u; streams are below %u", i,
                           e->stream, BP_STEP_PLAN_STREAMS);
        trace->stream_count = e->stream >= trace->stream_count ? e->stream + 1 : trace->stream_count;
        trace->events[trace->event_count] = (bp_trace_event){
            .address = e->address,
            .bytes = e->bytes,
            .time_us = trace->event_count,
            .stack = BP_TRACE_NONE,
            .stream = (uint16_t)e->stream,
            .action = e->action == BP_STEP_ALLOCATE ? BP_TRACE_ALLOC : BP_TRACE_FREE_COMPLETED,
        };
        trace->event_count++;
    }
    return BP_OK;
}

static bp_status plan_events(const bp_trace *trace, const bp_step_plan_config *config, bp_step_plan **plan)
{
    bp_allocations allocations = {0};
    bp_stack_places places = {0};
    bp_steps steps = {0};
    bp_status status = bp_allocations_init(trace, &allocations);
    if (status == BP_OK)
        status = bp_stack_places_init(trace, &places);
    if (status == BP_OK)
        status = bp_steps_init(trace, &allocations, &places, &steps);
    if (status == BP_OK)
        status = bp_step_plan_trace(trace, &allocations, &places, &steps, config, NULL, plan);
    bp_steps_finish(&steps);
    bp_stack_places_finish(&places);
    bp_allocations_finish(&allocations);
    return status;
}

bp_status bp_step_plan_create(const bp_step_event *events, size_t count, const bp_step_plan_config *config,
                              bp_step_plan **plan)
{
    uint64_t streams[BP_STEP_PLAN_STREAMS];
    bp_trace trace = {.streams = streams, .stream_count = 1};
    void *copies = NULL, *marks = NULL;
    if ((events == NULL && count > 0) || plan == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "step plan: the events or the plan is NULL");
    if (count >= BP_TRACE_NONE)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "step plan: %zu events; fewer than 2^32 - 1 are possible", count);
    for (uint32_t i = 0; i < BP_STEP_PLAN_STREAMS; i++)
        streams[i] = i;
    bp_status status = bp_new_array(count, sizeof *trace.events, &copies);
    if (status == BP_OK)
        status = bp_new_array(count, sizeof *trace.marks, &marks);
    trace.events = copies;
    trace.marks = marks;
    if (status == BP_OK)
        status = copy_events(events, count, &trace);
    if (status == BP_OK)
        status = plan_events(&trace, config, plan);
    free(copies);
    free(marks);
    return status;
}
