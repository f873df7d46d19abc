/* SPDX-License-Identifier: Apache-2.0 */
/* Analyses a recorded training step. */
#include "step/step.h"

#include <bucketpool/core/fail.h>

#include <stdlib.h>
#include <string.h>

uint64_t step_steps_peak(const step_answer *answer)
{
    uint64_t peak = 0;
    for (size_t i = answer->steps.count > 1; i < answer->steps.count; i++) /* from bp_steps_steady on */
        peak = answer->steps.steps[i].peak_bytes > peak ? answer->steps.steps[i].peak_bytes : peak;
    return peak;
}

uint64_t step_planned_bytes(const step_answer *answer)
{
    return answer->plan->persistent_bytes + answer->plan->bytes + answer->plan->outside_bytes;
}

/* Bytes that begin and end at each event; free() them. NULL: out of memory. */
static int64_t *changes_of(const step_answer *a, uint64_t *live)
{
    int64_t *changes = calloc(a->trace->event_count + 1, sizeof *changes);
    *live = 0;
    for (size_t i = 0; i < a->allocations.count && changes != NULL; i++) {
        const bp_allocation *each = &a->allocations.all[i];
        const int64_t bytes = (int64_t)bp_step_round(each->bytes);
        if (each->begin == BP_TRACE_NONE)
            *live += (uint64_t)bytes;
        else
            changes[each->begin] += bytes;
        if (each->end != BP_TRACE_NONE)
            changes[each->end] -= bytes;
    }
    return changes;
}

/* The request with most live bytes, the last of several. */
static int find_failure(step_answer *a)
{
    uint32_t worst = BP_TRACE_NONE;
    uint64_t live = 0, max = 0;
    int64_t *changes = changes_of(a, &live);
    if (changes == NULL)
        return cli_fail(EXIT_ENVIRONMENT, "out of memory");
    for (uint32_t i = 0; i < a->trace->event_count; i++) {
        live += (uint64_t)changes[i];
        if (a->trace->events[i].action != BP_TRACE_OOM)
            continue;
        if (a->failures < STEP_LISTED_FAILURES)
            a->listed[a->failures] = (step_failure){.event = i, .live_bytes = live};
        a->failures++;
        worst = live >= max ? i : worst;
        max = live >= max ? live : max;
    }
    free(changes);
    if (worst == BP_TRACE_NONE)
        return EXIT_GO_ON;
    bp_status status = bp_failed_request_init(a->trace, worst, &a->failed);
    if (status != BP_OK)
        return cli_fail_status(status);
    for (unsigned by = 0; by < STEP_GROUPINGS; by++)
        CLI_TRY(step_holders_find(a, worst, (step_grouping)by, &a->at_failure[by]));
    return EXIT_GO_ON;
}

static bp_status find_steps(step_answer *a)
{
    bp_status status = bp_allocations_init(a->trace, &a->allocations);
    if (status == BP_OK)
        status = bp_stack_places_init(a->trace, &a->places);
    if (status == BP_OK)
        status = bp_steps_init(a->trace, &a->allocations, &a->places, &a->steps);
    return status == BP_OK ? bp_attribution_init(a->trace, &a->allocations, &a->places, &a->attribution) : status;
}

static bp_status make_plan(step_answer *a, const step_options *options)
{
    bp_step_plan_config config;
    BP_TRY(bp_step_plan_config_init(&config, sizeof config));
    config.work = options->work;
    config.lead = options->lead;
    config.is_from_start = a->allocations.live_at_start == 0;
    BP_TRY(bp_step_plan_trace(a->trace, &a->allocations, &a->places, &a->steps, &config, a->references, &a->handle));
    a->plan = bp_step_plan_get_info(a->handle);
    return BP_OK;
}

int step_answer_find(const char *path, const bp_trace *trace, step_answer *answer)
{
    static const bp_step_plan_info nothing = {0};
    *answer = (step_answer){.path = path, .trace = trace, .plan = &nothing};
    bp_status status = find_steps(answer);
    if (status == BP_OK)
        return EXIT_GO_ON;
    return cli_fail(status == BP_ERR_NO_HOST_MEMORY ? EXIT_ENVIRONMENT : EXIT_BAD_INPUT, "%.300s: %s", path,
                    bp_error_detail());
}

int step_answer_init(const char *path, const bp_trace *trace, const step_options *options, step_answer *answer)
{
    CLI_TRY(step_answer_find(path, trace, answer));
    answer->limit = options->limit;
    bp_status status = BP_OK;
    /* Without steps only a failed request was recorded. */
    if (answer->steps.count > 0 && trace->stream_count <= BP_STEP_PLAN_STREAMS)
        status = make_plan(answer, options);
    if (status != BP_OK)
        return cli_fail_status(status);
    answer->peak_bytes = answer->steps.peak_bytes;
    answer->peak_event = answer->steps.peak_event;
    answer->recorded_bytes = bp_trace_reserved(trace, answer->peak_event, &answer->recorded_at_peak);
    answer->has_segments =
        answer->recorded_at_peak >= answer->peak_bytes; /* recordings on fake tensors have live blocks only */
    CLI_TRY(step_play(answer));
    for (unsigned by = 0; by < STEP_GROUPINGS; by++)
        CLI_TRY(step_holders_find(answer, answer->peak_event, (step_grouping)by, &answer->peak[by]));
    return find_failure(answer);
}

void step_answer_finish(step_answer *answer)
{
    bp_step_plan_destroy(&answer->handle);
    bp_steps_finish(&answer->steps);
    bp_attribution_finish(&answer->attribution);
    bp_stack_places_finish(&answer->places);
    bp_allocations_finish(&answer->allocations);
    bp_failed_request_finish(&answer->failed);
    for (unsigned by = 0; by < STEP_GROUPINGS; by++) {
        free(answer->peak[by].all);
        free(answer->at_failure[by].all);
    }
    *answer = (step_answer){0};
}
