#include "planner/schedule.h"

#include <stdlib.h>

#include "core/fail.h"

bp_status bp_schedule_config_init(bp_schedule_config *config, size_t size)
{
    if (config == NULL || size < sizeof *config)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_schedule_config_init: size %zu, expected at least %zu", size,
                       sizeof *config);
    *config = (bp_schedule_config){.size = sizeof *config, .prefetch = 1, .prefetch_backward = BP_PREFETCH_SAME, .grad_units = 2};
    return BP_OK;
}

bp_status bp_schedule_new(const bp_buckets *buckets, bp_schedule **schedule)
{
    void *memory;
    BP_TRY(bp_new_array(1, sizeof **schedule, &memory));
    *schedule = memory;
    (*schedule)->request_count = buckets->request_count;
    return BP_OK;
}

void bp_schedule_destroy(bp_schedule **schedule)
{
    if (schedule == NULL || *schedule == NULL)
        return;
    free((*schedule)->steps);
    free((*schedule)->spans);
    free((*schedule)->intervals);
    free(*schedule);
    *schedule = NULL;
}

bp_status bp_schedule_add_step(bp_schedule *s, bp_phase phase, int32_t unit)
{
    if (s->step_count >= INT32_MAX)
        return bp_fail(BP_ERR_OVERFLOW, "the schedule has more than %d steps", INT32_MAX);
    BP_TRY(bp_grow_array((void **)&s->steps, &s->step_capacity, s->step_count, sizeof *s->steps));
    s->steps[s->step_count++] = (bp_step){sizeof(bp_step), phase, unit, BP_OUTSIDE};
    return BP_OK;
}

bp_status bp_schedule_add_span(bp_schedule *s, uint32_t first_request, uint32_t request_count)
{
    BP_TRY(bp_grow_array((void **)&s->spans, &s->span_capacity, s->span_count, sizeof *s->spans));
    s->spans[s->span_count++] = (bp_span){first_request, request_count, (uint32_t)s->interval_count, 0};
    return BP_OK;
}

bp_status bp_schedule_add_interval(bp_schedule *s, uint32_t begin, uint32_t end)
{
    bp_span *span = &s->spans[s->span_count - 1];
    if (span->interval_count > 0) {
        bp_interval *last = &s->intervals[s->interval_count - 1];
        if (begin <= last->end) {
            last->end = end > last->end ? end : last->end;
            return BP_OK;
        }
    }
    BP_TRY(bp_grow_array((void **)&s->intervals, &s->interval_capacity, s->interval_count, sizeof *s->intervals));
    s->intervals[s->interval_count++] = (bp_interval){begin, end};
    span->interval_count++;
    return BP_OK;
}

size_t bp_schedule_step_count(const bp_schedule *schedule)
{
    return schedule->step_count;
}

bp_status bp_schedule_step(const bp_schedule *schedule, size_t index, bp_step *step)
{
    if (index >= schedule->step_count || step->size < sizeof *step)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "step %zu of %zu, size %zu", index, schedule->step_count, step->size);
    *step = schedule->steps[index];
    return BP_OK;
}

const bp_interval *bp_schedule_intervals(const bp_schedule *schedule, size_t request, size_t *count)
{
    *count = 0;
    size_t low = 0, high = schedule->span_count; /* the last span that begins at or before the request */
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (schedule->spans[middle].first_request <= request)
            low = middle + 1;
        else
            high = middle;
    }
    if (request >= schedule->request_count || low == 0 || schedule->spans[low - 1].interval_count == 0)
        return NULL;
    *count = schedule->spans[low - 1].interval_count;
    return schedule->intervals + schedule->spans[low - 1].first_interval;
}
