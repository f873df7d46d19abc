/* Several schedules of the same buckets as one: their time axes behind each other. */
#include <stdlib.h>

#include "core/fail.h"
#include "planner/overlaps.h"
#include "planner/schedule.h"

/* One of the schedules, and how far its spans have been taken over. */
typedef struct part {
    const bp_schedule *schedule;
    uint32_t first_step;
    size_t span;
} part;

static bp_status check(const bp_schedule *const *schedules, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (schedules[i] == NULL)
            return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_schedule_create_united: schedule %zu is missing", i);
        if (schedules[i]->request_count != schedules[0]->request_count)
            return bp_fail(BP_ERR_INVALID_ARGUMENT,
                           "schedule %zu is of other buckets: it has %zu requests, the first schedule has %zu", i,
                           schedules[i]->request_count, schedules[0]->request_count);
    }
    return BP_OK;
}

static bp_status add_steps(bp_schedule *united, part *parts, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const bp_schedule *s = parts[i].schedule;
        parts[i].first_step = (uint32_t)united->step_count;
        for (size_t k = 0; k < s->step_count; k++)
            BP_TRY(bp_schedule_add_step(united, s->steps[k].phase, s->steps[k].unit, s->steps[k].forward_unit));
    }
    return BP_OK;
}

static bp_status add_uses(bp_schedule *united, const part *p, const bp_span *span)
{
    for (uint32_t i = 0; i < span->interval_count; i++) {
        bp_use use = bp_schedule_use(p->schedule, span->first_interval + i);
        use.begin += p->first_step;
        use.end += p->first_step;
        BP_TRY(bp_schedule_add_use(united, &use));
    }
    return BP_OK;
}

/* Spans end wherever one of any schedule does. */
static bp_status add_spans(bp_schedule *united, part *parts, size_t count)
{
    for (uint32_t first = 0; first < united->request_count;) {
        uint32_t end = (uint32_t)united->request_count;
        for (size_t i = 0; i < count; i++) {
            const bp_span *span = &parts[i].schedule->spans[parts[i].span];
            uint32_t span_end = span->first_request + span->request_count;
            end = span_end < end ? span_end : end;
        }
        BP_TRY(bp_schedule_add_span(united, first, end - first));
        for (size_t i = 0; i < count; i++) {
            const bp_span *span = &parts[i].schedule->spans[parts[i].span];
            BP_TRY(add_uses(united, &parts[i], span));
            parts[i].span += span->first_request + span->request_count == end;
        }
        BP_TRY(bp_schedule_close_span(united));
        first = end;
    }
    return BP_OK;
}

static bp_status add_windows(bp_schedule *united, const part *p)
{
    for (size_t i = 0; i < p->schedule->window_count; i++) {
        bp_window window = p->schedule->windows[i];
        window.step += p->first_step;
        window.first_step += p->first_step;
        window.end_step += p->first_step;
        BP_TRY(bp_schedule_add_window(united, &window));
    }
    return BP_OK;
}

static bp_status unite(bp_schedule *united, part *parts, size_t count)
{
    BP_TRY(add_steps(united, parts, count));
    BP_TRY(add_spans(united, parts, count));
    for (size_t i = 0; i < count; i++)
        BP_TRY(add_windows(united, &parts[i]));
    return bp_schedule_derive_overlaps(united);
}

bp_status bp_schedule_create_united(const bp_schedule *const *schedules, size_t count, bp_schedule **schedule)
{
    if (schedules == NULL || count == 0 || schedule == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_schedule_create_united: needs at least one schedule");
    BP_TRY(check(schedules, count));
    part *parts;
    BP_TRY(bp_new_array(count, sizeof *parts, (void **)&parts));
    for (size_t i = 0; i < count; i++)
        parts[i].schedule = schedules[i];
    bp_schedule *united = NULL;
    bp_status status = bp_schedule_new(schedules[0]->request_count, &united);
    if (status == BP_OK)
        status = unite(united, parts, count);
    free(parts);
    if (status != BP_OK) {
        bp_schedule_destroy(&united);
        return status;
    }
    *schedule = united;
    return BP_OK;
}
