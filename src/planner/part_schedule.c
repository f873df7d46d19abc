/* The schedule of one model among several that share a pool. */
#include "core/fail.h"
#include "planner/overlaps.h"
#include "planner/schedule.h"

static bp_status check(const bp_schedule *schedule, const bp_buckets *united, size_t index)
{
    if (index >= united->part_count)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "part %zu does not exist: the buckets were united of %zu parts", index,
                       united->part_count);
    const bp_buckets_part *part = &united->parts[index];
    if (schedule->request_count != part->request_count)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "the schedule is of %zu requests, part %zu of the buckets has %u",
                       schedule->request_count, index, part->request_count);
    for (size_t i = 0; i < schedule->step_count; i++) {
        if (schedule->steps[i].unit >= (int32_t)part->unit_count)
            return bp_fail(BP_ERR_INVALID_ARGUMENT, "step %zu of the schedule runs unit %d, part %zu has %u", i,
                           schedule->steps[i].unit, index, part->unit_count);
    }
    return BP_OK;
}

static bp_status add_steps(bp_schedule *s, const bp_schedule *from, int32_t first_unit)
{
    for (size_t i = 0; i < from->step_count; i++) {
        const bp_step *step = &from->steps[i];
        BP_TRY(bp_schedule_add_step(s, step->phase, step->unit < 0 ? step->unit : step->unit + first_unit,
                                    step->forward_unit < 0 ? step->forward_unit : step->forward_unit + first_unit));
    }
    return BP_OK;
}

/* Other parts are at rest, but their state is still there when it is their turn. */
static bp_status add_resting(bp_schedule *s, const bp_request_group *group)
{
    BP_TRY(bp_schedule_add_span(s, group->first, group->count));
    if ((BP_ROLES_STATE & BP_ROLE_BIT(group->role)) && s->step_count > 0) {
        uint32_t steps = (uint32_t)s->step_count;
        bp_interval_lanes lanes = bp_role_lanes(group->role);
        bp_use use = {0, steps, lanes.acquire, lanes.release};
        BP_TRY(bp_schedule_add_use(s, &use));
    }
    return bp_schedule_close_span(s);
}

static bp_status add_spans(bp_schedule *s, const bp_schedule *from, uint32_t first_request)
{
    for (size_t i = 0; i < from->span_count; i++) {
        const bp_span *span = &from->spans[i];
        BP_TRY(bp_schedule_add_span(s, first_request + span->first_request, span->request_count));
        for (uint32_t k = 0; k < span->interval_count; k++) {
            bp_use use = bp_schedule_use(from, span->first_interval + k);
            BP_TRY(bp_schedule_add_use(s, &use));
        }
        BP_TRY(bp_schedule_close_span(s));
    }
    return BP_OK;
}

static bp_status add_windows(bp_schedule *s, const bp_schedule *from, uint32_t first_request)
{
    for (size_t i = 0; i < from->window_count; i++) {
        bp_window window = from->windows[i];
        window.earlier += first_request;
        window.later += first_request;
        BP_TRY(bp_schedule_add_window(s, &window));
    }
    return BP_OK;
}

static bp_status embed(bp_schedule *s, const bp_schedule *from, const bp_buckets *united, const bp_buckets_part *part)
{
    BP_TRY(add_steps(s, from, (int32_t)part->first_unit));
    size_t g = 0;
    for (; g < united->group_count && united->groups[g].first < part->first_request; g++)
        BP_TRY(add_resting(s, &united->groups[g]));
    BP_TRY(add_spans(s, from, part->first_request));
    for (; g < united->group_count; g++) {
        if (united->groups[g].first >= part->first_request + part->request_count)
            BP_TRY(add_resting(s, &united->groups[g]));
    }
    BP_TRY(add_windows(s, from, part->first_request));
    return bp_schedule_derive_overlaps(s);
}

bp_status bp_schedule_create_of_part(const bp_schedule *schedule, const bp_buckets *united, size_t index,
                                     bp_schedule **of_part)
{
    if (schedule == NULL || united == NULL || of_part == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_schedule_create_of_part: needs a schedule and united buckets");
    BP_TRY(check(schedule, united, index));
    bp_schedule *created;
    BP_TRY(bp_schedule_new(united->request_count, &created));
    bp_status status = embed(created, schedule, united, &united->parts[index]);
    if (status != BP_OK) {
        bp_schedule_destroy(&created);
        return status;
    }
    *of_part = created;
    return BP_OK;
}
