#include "planner/schedule.h"

#include <stdlib.h>
#include <string.h>

#include "core/fail.h"

bp_status bp_schedule_config_init(bp_schedule_config *config, size_t size)
{
    if (config == NULL || size < sizeof *config)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_schedule_config_init: size %zu, expected at least %zu", size,
                       sizeof *config);
    *config = (bp_schedule_config){
        .size = sizeof *config, .prefetch = 1, .prefetch_backward = BP_PREFETCH_SAME, .grad_units = 2};
    return BP_OK;
}

bp_status bp_schedule_new(size_t request_count, bp_schedule **schedule)
{
    void *memory;
    BP_TRY(bp_new_array(1, sizeof **schedule, &memory));
    *schedule = memory;
    (*schedule)->request_count = request_count;
    return BP_OK;
}

void bp_schedule_destroy(bp_schedule **schedule)
{
    if (schedule == NULL || *schedule == NULL)
        return;
    free((*schedule)->steps);
    free((*schedule)->spans);
    free((*schedule)->uses);
    free((*schedule)->intervals);
    free((*schedule)->lanes);
    free((*schedule)->windows);
    free((*schedule)->overlaps);
    free(*schedule);
    *schedule = NULL;
}

bp_interval_lanes bp_role_lanes(uint32_t role)
{
    switch (role) {
    case BP_ROLE_PARAM:
    case BP_ROLE_PARAM_TRANSPOSE: return (bp_interval_lanes){BP_LANE_GATHER, BP_LANE_COMPUTE};
    case BP_ROLE_GRAD: return (bp_interval_lanes){BP_LANE_COMPUTE, BP_LANE_REDUCE};
    case BP_ROLE_GRAD_COMM: return (bp_interval_lanes){BP_LANE_COMPUTE, BP_LANE_OUTER_REDUCE};
    default: return (bp_interval_lanes){BP_LANE_COMPUTE, BP_LANE_COMPUTE};
    }
}

/* ---- building ------------------------------------------------------------------------------------------------------ */

bp_status bp_schedule_add_step(bp_schedule *s, bp_phase phase, int32_t unit, int32_t forward_unit)
{
    if (s->step_count >= INT32_MAX)
        return bp_fail(BP_ERR_OVERFLOW, "the schedule has more than %d steps", INT32_MAX);
    BP_TRY(bp_grow_array((void **)&s->steps, &s->step_capacity, s->step_count, sizeof *s->steps));
    s->steps[s->step_count++] = (bp_step){sizeof(bp_step), phase, unit, forward_unit};
    return BP_OK;
}

bp_status bp_schedule_add_span(bp_schedule *s, uint32_t first_request, uint32_t request_count)
{
    BP_TRY(bp_grow_array((void **)&s->spans, &s->span_capacity, s->span_count, sizeof *s->spans));
    s->spans[s->span_count++] = (bp_span){first_request, request_count, (uint32_t)s->interval_count, 0};
    s->use_count = 0;
    return BP_OK;
}

bp_status bp_schedule_add_use(bp_schedule *s, const bp_use *use)
{
    if (s->interval_count + s->use_count >= INT32_MAX)
        return bp_fail(BP_ERR_OVERFLOW, "the schedule acquires more than %d times", INT32_MAX);
    BP_TRY(bp_grow_array((void **)&s->uses, &s->use_capacity, s->use_count, sizeof *s->uses));
    s->uses[s->use_count++] = *use;
    return BP_OK;
}

static int by_begin(const void *a, const void *b)
{
    const bp_use *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

/* Uses that touch or overlap share an interval. */
static bp_status add_interval(bp_schedule *s, bp_span *span, const bp_use *use)
{
    if (span->interval_count > 0 && use->begin <= s->intervals[s->interval_count - 1].end) {
        bp_interval *last = &s->intervals[s->interval_count - 1];
        if (use->end >= last->end) {
            last->end = use->end;
            s->lanes[s->interval_count - 1].release = use->release_lane;
        }
        return BP_OK;
    }
    BP_TRY(bp_grow_array((void **)&s->intervals, &s->interval_capacity, s->interval_count, sizeof *s->intervals));
    BP_TRY(bp_grow_array((void **)&s->lanes, &s->lane_capacity, s->interval_count, sizeof *s->lanes));
    s->lanes[s->interval_count] = (bp_interval_lanes){use->acquire_lane, use->release_lane};
    s->intervals[s->interval_count++] = (bp_interval){use->begin, use->end};
    span->interval_count++;
    return BP_OK;
}

bp_status bp_schedule_close_span(bp_schedule *s)
{
    bp_span *span = &s->spans[s->span_count - 1];
    if (s->use_count > 1)
        qsort(s->uses, s->use_count, sizeof *s->uses, by_begin);
    for (size_t i = 0; i < s->use_count; i++)
        BP_TRY(add_interval(s, span, &s->uses[i]));
    return BP_OK;
}

/* ---- reading ------------------------------------------------------------------------------------------------------- */

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

bp_use bp_schedule_use(const bp_schedule *schedule, size_t interval)
{
    const bp_interval *i = &schedule->intervals[interval];
    const bp_interval_lanes *lanes = &schedule->lanes[interval];
    return (bp_use){i->begin, i->end, lanes->acquire, lanes->release};
}

size_t bp_schedule_overlap_count(const bp_schedule *schedule)
{
    return schedule->overlap_count;
}

const bp_overlap *bp_schedule_overlaps(const bp_schedule *schedule)
{
    return schedule->overlap_count > 0 ? schedule->overlaps : NULL;
}
