/* SPDX-License-Identifier: Apache-2.0 */
/* Derived schedules: schedules of the same buckets merged in sequence, and a model's schedule embedded in the merged buckets of several
 * models. */
#include <bucketpool/core/fail.h>

#include <stdlib.h>

#include "planner/schedule/schedule.h"

static bp_status append_steps(bp_schedule *s, const bp_schedule *from, int32_t first_unit)
{
    for (size_t i = 0; i < from->step_count; i++) {
        const bp_step *step = &from->steps[i];
        BP_TRY(bp_schedule_add_step(s, step->phase, step->unit < 0 ? step->unit : step->unit + first_unit,
                                    step->forward_unit < 0 ? step->forward_unit : step->forward_unit + first_unit));
    }
    return BP_OK;
}

static bp_status add_uses(bp_schedule *s, const bp_schedule *from, const bp_span *span, uint32_t first_step)
{
    for (uint32_t i = 0; i < span->interval_count; i++) {
        bp_use use = bp_schedule_use(from, span->first_interval + i);
        use.begin += first_step;
        use.end += first_step;
        BP_TRY(bp_schedule_add_use(s, &use));
    }
    return BP_OK;
}

static bp_status append_windows(bp_schedule *s, const bp_schedule *from, uint32_t first_request, uint32_t first_step)
{
    for (size_t i = 0; i < from->window_count; i++) {
        bp_window window = from->windows[i];
        window.earlier += first_request;
        window.later += first_request;
        window.step += first_step;
        window.first_step += first_step;
        window.end_step += first_step;
        BP_TRY(bp_schedule_add_window(s, &window));
    }
    return BP_OK;
}

/* ---- merged schedules ----------------------------------------------------------------------------------------------- */

/* A source schedule and the number of its spans that are merged. */
typedef struct merged_part {
    const bp_schedule *schedule;
    uint32_t first_step;
    size_t span;
} merged_part;

static const bp_span *span_of(const merged_part *p)
{
    return &p->schedule->spans[p->span];
}

/* True if the request is the first of its unit and role in this schedule. */
static bool starts_group(const merged_part *p, uint32_t request)
{
    return span_of(p)->first_request == request && span_of(p)->starts_group;
}

/* A merged span ends wherever a span of any source ends. */
static bp_status merge_spans(bp_schedule *merged, merged_part *parts, size_t count)
{
    for (uint32_t first = 0; first < merged->request_count;) {
        uint32_t end = (uint32_t)merged->request_count;
        for (size_t i = 0; i < count; i++) {
            uint32_t span_end = span_of(&parts[i])->first_request + span_of(&parts[i])->request_count;
            end = span_end < end ? span_end : end;
            if (starts_group(&parts[i], first) != starts_group(&parts[0], first))
                return bp_fail(BP_ERR_INVALID_ARGUMENT,
                               "schedule %zu was made for other buckets than schedule 0: its units have other requests",
                               i);
        }
        BP_TRY(bp_schedule_add_span(merged, first, end - first, starts_group(&parts[0], first)));
        for (size_t i = 0; i < count; i++) {
            const bp_span *span = span_of(&parts[i]);
            BP_TRY(add_uses(merged, parts[i].schedule, span, parts[i].first_step));
            parts[i].span += span->first_request + span->request_count == end;
        }
        BP_TRY(bp_schedule_close_span(merged));
        first = end;
    }
    return BP_OK;
}

static bp_status merge(bp_schedule *merged, merged_part *parts, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        parts[i].first_step = (uint32_t)merged->step_count;
        BP_TRY(append_steps(merged, parts[i].schedule, 0));
    }
    BP_TRY(merge_spans(merged, parts, count));
    for (size_t i = 0; i < count; i++)
        BP_TRY(append_windows(merged, parts[i].schedule, 0, parts[i].first_step));
    return bp_schedule_finish(merged);
}

bp_status bp_schedule_create_merged(const bp_schedule *const *schedules, size_t count, bp_schedule **schedule)
{
    if (schedules == NULL || count == 0 || schedule == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_schedule_create_merged: needs at least one schedule");
    for (size_t i = 0; i < count; i++) {
        if (schedules[i] == NULL)
            return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_schedule_create_merged: schedule %zu is missing", i);
        if (schedules[i]->request_count != schedules[0]->request_count)
            return bp_fail(
                BP_ERR_INVALID_ARGUMENT,
                "schedule %zu was made for other buckets than schedule 0: it has %zu requests, schedule 0 has %zu", i,
                schedules[i]->request_count, schedules[0]->request_count);
    }
    merged_part *parts;
    BP_TRY(bp_new_array(count, sizeof *parts, (void **)&parts));
    for (size_t i = 0; i < count; i++)
        parts[i].schedule = schedules[i];
    bp_schedule *merged = NULL;
    bp_status status = bp_schedule_new(schedules[0]->request_count, &merged);
    if (status == BP_OK)
        status = merge(merged, parts, count);
    free(parts);
    if (status != BP_OK) {
        bp_schedule_destroy(&merged);
        return status;
    }
    *schedule = merged;
    return BP_OK;
}

/* ---- embedded schedules ----------------------------------------------------------------------------------------------- */

/* Of the other parts only the state is live: it is kept while this part runs. */
static bp_status embed_other(bp_schedule *s, const bp_request_group *group)
{
    BP_TRY(bp_schedule_add_span(s, group->first, group->count, true));
    if ((BP_ROLES_STATE & BP_ROLE_BIT(group->role)) && s->step_count > 0) {
        bp_interval_lanes lanes = bp_role_lanes(group->role);
        bp_use use = {0, (uint32_t)s->step_count, lanes.acquire, lanes.release};
        BP_TRY(bp_schedule_add_use(s, &use));
    }
    return bp_schedule_close_span(s);
}

static bp_status embed(bp_schedule *s, const bp_schedule *from, const bp_buckets *buckets, const bp_buckets_part *part)
{
    BP_TRY(append_steps(s, from, (int32_t)part->first_unit));
    size_t g = 0;
    for (; g < buckets->group_count && buckets->groups[g].first < part->first_request; g++)
        BP_TRY(embed_other(s, &buckets->groups[g]));
    for (size_t i = 0; i < from->span_count; i++) {
        const bp_span *span = &from->spans[i];
        BP_TRY(bp_schedule_add_span(s, part->first_request + span->first_request, span->request_count,
                                    span->starts_group));
        BP_TRY(add_uses(s, from, span, 0));
        BP_TRY(bp_schedule_close_span(s));
    }
    for (; g < buckets->group_count; g++) {
        if (buckets->groups[g].first >= part->first_request + part->request_count)
            BP_TRY(embed_other(s, &buckets->groups[g]));
    }
    BP_TRY(append_windows(s, from, part->first_request, 0));
    return bp_schedule_finish(s);
}

bp_status bp_schedule_create_embedded(const bp_schedule *schedule, const bp_buckets *buckets, size_t index,
                                      bp_schedule **embedded)
{
    if (schedule == NULL || buckets == NULL || embedded == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "bp_schedule_create_embedded: needs a schedule and the buckets of several models");
    if (index >= buckets->part_count)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "part %zu does not exist; the buckets have %zu parts", index,
                       buckets->part_count);
    const bp_buckets_part *part = &buckets->parts[index];
    if (schedule->request_count != part->request_count)
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "the schedule was made for %zu requests, part %zu of the buckets has %u",
                       schedule->request_count, index, part->request_count);
    for (size_t i = 0; i < schedule->step_count; i++) {
        if (schedule->steps[i].unit >= (int32_t)part->unit_count)
            return bp_fail(BP_ERR_INVALID_ARGUMENT, "step %zu of the schedule runs unit %d, part %zu has %u", i,
                           schedule->steps[i].unit, index, part->unit_count);
    }
    bp_schedule *created;
    BP_TRY(bp_schedule_new(buckets->request_count, &created));
    bp_status status = embed(created, schedule, buckets, part);
    if (status != BP_OK) {
        bp_schedule_destroy(&created);
        return status;
    }
    *embedded = created;
    return BP_OK;
}
