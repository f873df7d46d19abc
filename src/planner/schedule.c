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
    free((*schedule)->waits);
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
    s->spans[s->span_count++] =
        (bp_span){first_request, request_count, (uint32_t)s->interval_count, 0, (uint32_t)s->use_count, 0};
    return BP_OK;
}

bp_status bp_schedule_add_use(bp_schedule *s, const bp_use *use)
{
    if (s->use_count >= INT32_MAX)
        return bp_fail(BP_ERR_OVERFLOW, "the schedule acquires more than %d times", INT32_MAX);
    BP_TRY(bp_grow_array((void **)&s->uses, &s->use_capacity, s->use_count, sizeof *s->uses));
    s->uses[s->use_count++] = *use;
    s->spans[s->span_count - 1].use_count++;
    return BP_OK;
}

static int by_begin(const void *a, const void *b)
{
    const bp_use *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    if (x->needed_begin != y->needed_begin)
        return x->needed_begin < y->needed_begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

/* What follows `use` without a step in which nobody needs it is the same use. */
static bool continues(const bp_use *use, const bp_use *next)
{
    return next->needed_begin <= use->needed_end && use->needed_begin <= next->needed_end;
}

static void lengthen(bp_use *use, const bp_use *next)
{
    if (next->end >= use->end) {
        use->end = next->end;
        use->release_lane = next->release_lane;
    }
    use->needed_begin = next->needed_begin < use->needed_begin ? next->needed_begin : use->needed_begin;
    use->needed_end = next->needed_end > use->needed_end ? next->needed_end : use->needed_end;
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
    if (span->use_count == 0)
        return BP_OK;
    bp_use *uses = s->uses + span->first_use;
    uint32_t kept = 1;
    qsort(uses, span->use_count, sizeof *uses, by_begin);
    for (uint32_t i = 1; i < span->use_count; i++) {
        if (continues(&uses[kept - 1], &uses[i]))
            lengthen(&uses[kept - 1], &uses[i]);
        else
            uses[kept++] = uses[i];
    }
    span->use_count = kept;
    s->use_count = span->first_use + kept;
    for (uint32_t i = 0; i < kept; i++)
        BP_TRY(add_interval(s, span, &uses[i]));
    return BP_OK;
}

bp_status bp_schedule_renew_intervals(bp_schedule *s)
{
    s->interval_count = 0;
    for (size_t i = 0; i < s->span_count; i++) {
        bp_span *span = &s->spans[i];
        span->first_interval = (uint32_t)s->interval_count;
        span->interval_count = 0;
        for (uint32_t k = 0; k < span->use_count; k++)
            BP_TRY(add_interval(s, span, &s->uses[span->first_use + k]));
    }
    return BP_OK;
}

static bp_status copy_array(const void *from, size_t count, size_t element_bytes, void **to)
{
    BP_TRY(bp_new_array(count, element_bytes, to));
    if (count > 0)
        memcpy(*to, from, count * element_bytes);
    return BP_OK;
}

static bp_status copy_into(const bp_schedule *s, bp_schedule *copy)
{
    BP_TRY(copy_array(s->steps, s->step_count, sizeof *s->steps, (void **)&copy->steps));
    BP_TRY(copy_array(s->spans, s->span_count, sizeof *s->spans, (void **)&copy->spans));
    BP_TRY(copy_array(s->uses, s->use_count, sizeof *s->uses, (void **)&copy->uses));
    BP_TRY(copy_array(s->intervals, s->interval_count, sizeof *s->intervals, (void **)&copy->intervals));
    BP_TRY(copy_array(s->lanes, s->interval_count, sizeof *s->lanes, (void **)&copy->lanes));
    BP_TRY(copy_array(s->windows, s->window_count, sizeof *s->windows, (void **)&copy->windows));
    BP_TRY(copy_array(s->overlaps, s->overlap_count, sizeof *s->overlaps, (void **)&copy->overlaps));
    return copy_array(s->waits, s->wait_count, sizeof *s->waits, (void **)&copy->waits);
}

bp_status bp_schedule_copy(const bp_schedule *schedule, bp_schedule **copy)
{
    void *memory;
    BP_TRY(bp_new_array(1, sizeof **copy, &memory));
    bp_schedule *made = memory;
    bp_status status = copy_into(schedule, made);
    if (status != BP_OK) {
        bp_schedule_destroy(&made);
        return status;
    }
    made->step_count = made->step_capacity = schedule->step_count;
    made->span_count = made->span_capacity = schedule->span_count;
    made->use_count = made->use_capacity = schedule->use_count;
    made->interval_count = made->interval_capacity = made->lane_capacity = schedule->interval_count;
    made->window_count = made->window_capacity = schedule->window_count;
    made->overlap_count = schedule->overlap_count;
    made->wait_count = made->wait_capacity = schedule->wait_count;
    made->request_count = schedule->request_count;
    *copy = made;
    return BP_OK;
}

bp_status bp_schedule_add_wait(bp_schedule *schedule, const bp_wait *wait)
{
    BP_TRY(bp_grow_array((void **)&schedule->waits, &schedule->wait_capacity, schedule->wait_count,
                         sizeof *schedule->waits));
    size_t at = schedule->wait_count++;
    for (; at > 0 && schedule->waits[at - 1].step > wait->step; at--)
        schedule->waits[at] = schedule->waits[at - 1];
    schedule->waits[at] = *wait;
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

void bp_schedule_interval_lanes(const bp_schedule *schedule, size_t interval, uint32_t *acquire, uint32_t *release)
{
    *acquire = schedule->lanes[interval].acquire;
    *release = schedule->lanes[interval].release;
}

size_t bp_schedule_overlap_count(const bp_schedule *schedule)
{
    return schedule->overlap_count;
}

const bp_overlap *bp_schedule_overlaps(const bp_schedule *schedule)
{
    return schedule->overlap_count > 0 ? schedule->overlaps : NULL;
}

size_t bp_schedule_wait_count(const bp_schedule *schedule)
{
    return schedule->wait_count;
}

bp_status bp_schedule_wait(const bp_schedule *schedule, size_t index, bp_wait *wait)
{
    if (index >= schedule->wait_count || wait->size < sizeof *wait)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "wait %zu of %zu, size %zu", index, schedule->wait_count, wait->size);
    *wait = schedule->waits[index];
    return BP_OK;
}
