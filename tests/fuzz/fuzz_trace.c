/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes bp_trace_file_parse, and plans the steps of an accepted trace: the plan is never below the peak live bytes. */
#include <stdlib.h>
#include <string.h>

#include <bucketpool/status.h>

#include "formats/snapshots/trace_file.h"
#include "planner/steps/attribution.h"
#include "target.h"

static void need(int holds)
{
    if (!holds)
        abort();
}

static void walk(const bp_trace *trace)
{
    uint64_t earliest = 0;
    for (size_t i = 0; i < trace->event_count; i++) {
        const bp_trace_event *event = &trace->events[i];
        need(event->time_us >= earliest && event->stream < trace->stream_count &&
             event->action <= BP_TRACE_EMPTY_CACHE);
        need(event->stack == BP_TRACE_NONE || event->stack < trace->stack_count);
        need(event->action == BP_TRACE_OOM || event->bytes <= UINT64_MAX - event->address);
        earliest = event->time_us;
    }
    for (size_t i = 0; i < trace->stack_count; i++) {
        for (size_t k = 0; k < trace->stacks[i].count; k++)
            need(trace->stacks[i].frames[k] < trace->frame_count);
    }
    for (size_t i = 0; i < trace->segment_count; i++) {
        const bp_trace_segment *segment = &trace->segments[i];
        need(i == 0 || segment[-1].address + segment[-1].bytes <= segment->address);
        for (size_t b = segment->first_block; b < segment->first_block + segment->block_count; b++)
            need(trace->blocks[b].segment == i && trace->blocks[b].address >= segment->address &&
                 trace->blocks[b].address + trace->blocks[b].bytes <= segment->address + segment->bytes);
    }
}

static void plan(const bp_trace *trace)
{
    bp_allocations allocations;
    bp_steps steps = {0};
    bp_step_plan_config config;
    bp_step_plan *made = NULL;
    bp_stack_places places;
    bp_attribution purposes;
    if (bp_allocations_init(trace, &allocations) != BP_OK)
        return;
    need(bp_stack_places_init(trace, &places) == BP_OK);
    need(bp_steps_init(trace, &allocations, &places, &steps) == BP_OK);
    need(bp_attribution_init(trace, &allocations, &places, &purposes) == BP_OK);
    for (size_t i = 0; i < allocations.count; i++)
        need(purposes.kinds[i] < BP_MEMORY_KINDS && purposes.phases[i] < BP_TRACE_PHASES);
    for (size_t i = 0; i < steps.count; i++)
        need(steps.steps[i].count > 0 && (i == 0 || steps.steps[i].begin == steps.steps[i - 1].end));
    need(bp_step_plan_config_init(&config, sizeof config) == BP_OK);
    config.work = 10000;
    config.is_from_start = trace->event_count % 2;
    bp_status status = bp_step_plan_trace(trace, &allocations, &places, &steps, &config, NULL, &made);
    need(status == (steps.count > 0 && trace->stream_count <= BP_STEP_PLAN_STREAMS ? BP_OK : BP_ERR_INVALID_ARGUMENT));
    if (made != NULL) {
        const bp_step_plan_info *info = bp_step_plan_get_info(made);
        need(info->bytes >= info->lower_bound_bytes && steps.peak_bytes >= info->peak_live_bytes);
        need(info->bytes_without_windows <= info->bytes);
    }
    bp_step_plan_destroy(&made);
    bp_attribution_finish(&purposes);
    bp_steps_finish(&steps);
    bp_stack_places_finish(&places);
    bp_allocations_finish(&allocations);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    bp_trace_file *file = NULL;
    bp_status status = bp_trace_file_parse(data, size, "input", &file);
    need((status == BP_OK) == (file != NULL));
    if (status != BP_OK) {
        need(status == BP_ERR_FORMAT && *bp_error_detail() != '\0' && strchr(bp_error_detail(), '\n') == NULL);
        return 0;
    }
    const bp_trace_file_info *info = bp_trace_file_get_info(file);
    for (size_t i = 0; i < info->trace_count; i++) {
        walk(&info->traces[i]);
        plan(&info->traces[i]);
    }
    bp_trace_file_destroy(&file);
    return 0;
}
