/* Analyses a recorded training step. */
#include "step/step.h"

#include <stdlib.h>
#include <string.h>

#include "shared/progress.h"

/* ---- the peak ------------------------------------------------------------------------------------------------------ */

static bool is_live(const bp_allocation *a, uint32_t event)
{
    return (a->begin == BP_TRACE_NONE || a->begin <= event) && (a->end == BP_TRACE_NONE || a->end > event);
}

/* The frame that names an allocation: the innermost one of Python outside PyTorch, else of Python, else any. */
static const bp_trace_frame *naming_frame(const bp_trace *trace, uint32_t stack)
{
    const bp_trace_frame *python = NULL;
    if (stack == BP_TRACE_NONE || trace->stacks[stack].count == 0)
        return NULL;
    for (size_t i = 0; i < trace->stacks[stack].count; i++) {
        const bp_trace_frame *frame = &trace->frames[trace->stacks[stack].frames[i]];
        bool is_python = cli_has_suffix(frame->file, ".py");
        if (is_python && strstr(frame->file, "/torch/") == NULL)
            return frame;
        python = python == NULL && is_python ? frame : python;
    }
    return python != NULL ? python : &trace->frames[trace->stacks[stack].frames[0]];
}

static int by_place(const void *left, const void *right)
{
    const step_holder *a = left, *b = right;
    int order = strcmp(a->file, b->file);
    if (order == 0)
        order = strcmp(a->function, b->function);
    return order != 0 ? order : (a->line > b->line) - (a->line < b->line);
}

static int by_bytes(const void *left, const void *right)
{
    const step_holder *a = left, *b = right;
    if (a->bytes != b->bytes)
        return a->bytes > b->bytes ? -1 : 1;
    return by_place(left, right);
}

/* Sums the live allocations of the peak by place. */
static int find_holders(step_answer *a)
{
    size_t live = 0, kept = 0;
    for (size_t i = 0; i < a->allocations.count; i++)
        live += is_live(&a->allocations.all[i], a->peak_event);
    a->holders = calloc(live + 1, sizeof *a->holders);
    if (a->holders == NULL)
        return cli_fail(EXIT_ENVIRONMENT, "out of memory");
    for (size_t i = 0; i < a->allocations.count; i++) {
        const bp_allocation *allocation = &a->allocations.all[i];
        if (!is_live(allocation, a->peak_event))
            continue;
        const bp_trace_frame *frame = naming_frame(a->trace, allocation->stack);
        a->requested_bytes += allocation->bytes;
        a->holders[a->holder_count++] = (step_holder){.file = frame != NULL ? frame->file : "",
                                                      .function = frame != NULL ? frame->function : "",
                                                      .line = frame != NULL ? frame->line : 0,
                                                      .bytes = bp_step_round(allocation->bytes),
                                                      .allocations = 1};
    }
    qsort(a->holders, a->holder_count, sizeof *a->holders, by_place);
    for (size_t i = 0; i < a->holder_count; i++) {
        if (kept > 0 && by_place(&a->holders[kept - 1], &a->holders[i]) == 0) {
            a->holders[kept - 1].bytes += a->holders[i].bytes;
            a->holders[kept - 1].allocations++;
        } else {
            a->holders[kept++] = a->holders[i];
        }
    }
    a->holder_count = kept;
    qsort(a->holders, a->holder_count, sizeof *a->holders, by_bytes);
    return EXIT_GO_ON;
}

/* ---- what PyTorch had ---------------------------------------------------------------------------------------------- */

/* Recorded segments at the end, and backwards through their events. */
static void find_recorded(step_answer *a)
{
    const bp_trace *trace = a->trace;
    const bp_trace_step *first = bp_steps_steady(&a->steps), *last = &a->steps.steps[a->steps.count - 1];
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < trace->event_count; i++) {
        if (trace->events[i].action == BP_TRACE_OOM && a->failures++ == 0)
            a->first_failure = i;
    }
    for (size_t i = 0; i < trace->segment_count; i++)
        bytes += trace->segments[i].bytes;
    for (size_t i = trace->event_count; i-- > 0;) {
        const bp_trace_event *event = &trace->events[i];
        bool more = event->action == BP_TRACE_SEGMENT_ALLOC || event->action == BP_TRACE_SEGMENT_MAP;
        bool less = event->action == BP_TRACE_SEGMENT_FREE || event->action == BP_TRACE_SEGMENT_UNMAP;
        if (i == a->peak_event)
            a->recorded_at_peak = bytes;
        if (i >= first->begin && i < last->end && bytes > a->recorded_bytes)
            a->recorded_bytes = bytes;
        if (more)
            bytes -= event->bytes < bytes ? event->bytes : bytes;
        else if (less)
            bytes += event->bytes;
    }
    a->has_segments = a->recorded_at_peak >= a->peak_bytes; /* recordings on fake tensors have live blocks only */
}

/* ---- all ----------------------------------------------------------------------------------------------------------- */

int step_answer_init(const char *path, const bp_trace *trace, const step_options *options, step_answer *answer)
{
    *answer = (step_answer){.path = path, .trace = trace};
    bp_status status = bp_allocations_init(trace, &answer->allocations);
    if (status == BP_OK)
        status = bp_steps_init(trace, &answer->allocations, &answer->steps);
    if (status != BP_OK)
        return cli_fail(EXIT_BAD_INPUT, "%.300s: %s", path, bp_error_detail());
    if (answer->steps.count == 0)
        return cli_fail(EXIT_BAD_INPUT,
                        "%.300s: cuda:%u has no recorded allocations; call "
                        "torch.cuda.memory._record_memory_history() before the steps",
                        path, trace->device);
    status = bp_step_plan_init(trace, &answer->allocations, &answer->steps, options->work, &answer->plan);
    if (status != BP_OK)
        return cli_fail_status(status);
    const bp_trace_step *last = &answer->steps.steps[answer->steps.count - 1];
    for (const bp_trace_step *step = bp_steps_steady(&answer->steps); step <= last; step++) {
        if (step->peak_bytes > answer->peak_bytes) {
            answer->peak_bytes = step->peak_bytes;
            answer->peak_event = step->peak_event;
        }
    }
    find_recorded(answer);
    CLI_TRY(step_play(answer));
    return find_holders(answer);
}

void step_answer_finish(step_answer *answer)
{
    bp_step_plan_finish(&answer->plan);
    bp_steps_finish(&answer->steps);
    bp_allocations_finish(&answer->allocations);
    free(answer->holders);
    *answer = (step_answer){0};
}
