/* SPDX-License-Identifier: Apache-2.0 */
/* bp_schedule: construction from steps, spans and windows, overlaps, events, and the tails that windows add to live ranges. */
#include "planner/schedule/schedule.h"

#include <bucketpool/core/fail.h>

#include <stdlib.h>

bp_status bp_schedule_new(size_t request_count, bp_schedule **schedule)
{
    BP_TRY(bp_new_array(1, sizeof **schedule, (void **)schedule));
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
    free((*schedule)->requests);
    free((*schedule)->overlaps);
    free((*schedule)->events);
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
    s->steps[s->step_count++] = (bp_step){phase, unit, forward_unit};
    return BP_OK;
}

bp_status bp_schedule_add_span(bp_schedule *s, uint32_t first_request, uint32_t request_count, bool starts_group)
{
    BP_TRY(bp_grow_array((void **)&s->spans, &s->span_capacity, s->span_count, sizeof *s->spans));
    s->spans[s->span_count++] = (bp_span){first_request, request_count, (uint32_t)s->interval_count, 0, starts_group};
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

static int schedule_by_begin(const void *a, const void *b)
{
    const bp_use *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

bp_status bp_schedule_close_span(bp_schedule *s)
{
    bp_span *span = &s->spans[s->span_count - 1];
    if (s->use_count > 1)
        qsort(s->uses, s->use_count, sizeof *s->uses, schedule_by_begin);
    for (size_t i = 0; i < s->use_count; i++) {
        const bp_use *use = &s->uses[i];
        bp_interval *last = span->interval_count > 0 ? &s->intervals[s->interval_count - 1] : NULL;
        if (last == NULL || use->begin > last->end) {
            size_t count = s->interval_count;
            BP_TRY(bp_grow_array((void **)&s->intervals, &s->interval_capacity, count, sizeof *s->intervals));
            BP_TRY(bp_grow_array((void **)&s->lanes, &s->lane_capacity, count, sizeof *s->lanes));
            s->lanes[count] = (bp_interval_lanes){use->acquire_lane, use->release_lane};
            s->intervals[s->interval_count++] = (bp_interval){use->begin, use->end};
            span->interval_count++;
        } else if (use->end >= last->end) { /* adjacent and overlapping uses are merged */
            last->end = use->end;
            s->lanes[s->interval_count - 1].release = use->release_lane;
        }
    }
    return BP_OK;
}

bp_use bp_schedule_use(const bp_schedule *schedule, size_t interval)
{
    const bp_interval *i = &schedule->intervals[interval];
    const bp_interval_lanes *lanes = &schedule->lanes[interval];
    return (bp_use){i->begin, i->end, lanes->acquire, lanes->release};
}

/* Limit against hostile recordings and window widths. */
#define MAX_WINDOWS (1u << 22)

bp_status bp_schedule_add_window(bp_schedule *s, const bp_window *window)
{
    if (s->window_count == MAX_WINDOWS)
        return bp_fail(BP_ERR_UNSUPPORTED,
                       "the overlap window makes more than %u pairs of requests; use a smaller window", MAX_WINDOWS);
    BP_TRY(bp_grow_array((void **)&s->windows, &s->window_capacity, s->window_count, sizeof *s->windows));
    s->windows[s->window_count++] = *window;
    return BP_OK;
}

/* ---- overlaps ------------------------------------------------------------------------------------------------------ */

static int overlaps_by_pair(const void *a, const void *b)
{
    const bp_window *x = a, *y = b;
    if (x->later != y->later)
        return x->later < y->later ? -1 : 1;
    if (x->earlier != y->earlier)
        return x->earlier < y->earlier ? -1 : 1;
    if (x->step != y->step)
        return x->step < y->step ? -1 : 1;
    return x->distance < y->distance ? -1 : x->distance > y->distance;
}

static bool are_live_together(const bp_schedule *s, uint32_t a, uint32_t b)
{
    size_t count_a, count_b, i = 0, k = 0;
    const bp_interval *x = bp_schedule_intervals(s, a, &count_a), *y = bp_schedule_intervals(s, b, &count_b);
    while (i < count_a && k < count_b) {
        if (x[i].begin < y[k].end && y[k].begin < x[i].end)
            return true;
        if (x[i].end <= y[k].end)
            i++;
        else
            k++;
    }
    return false;
}

/* Drops windows of requests that are live together; the others become overlaps. */
static bp_status derive_overlaps(bp_schedule *s)
{
    size_t kept = 0, pairs = 0, capacity = 0;
    if (s->window_count > 0)
        qsort(s->windows, s->window_count, sizeof *s->windows, overlaps_by_pair);
    for (size_t i = 0; i < s->window_count;) {
        bp_overlap pair = {s->windows[i].earlier, s->windows[i].later};
        bool apart = !are_live_together(s, pair.earlier, pair.later);
        if (apart) {
            BP_TRY(bp_grow_array((void **)&s->overlaps, &capacity, pairs, sizeof *s->overlaps));
            s->overlaps[pairs++] = pair;
        }
        for (size_t first = i;
             i < s->window_count && s->windows[i].earlier == pair.earlier && s->windows[i].later == pair.later; i++) {
            /* sorted by distance: the nearest is kept */
            bool repeated = i > first && s->windows[i].step == s->windows[i - 1].step;
            if (apart && !repeated)
                s->windows[kept++] = s->windows[i];
        }
    }
    s->window_count = kept;
    s->overlap_count = pairs;
    return BP_OK;
}

/* ---- events -------------------------------------------------------------------------------------------------------- */

/* Sort key of events: step, then releases before acquires. */
static size_t rank_of(uint32_t step, uint32_t acquire)
{
    return 2 * (size_t)step + acquire;
}

/* Counting sort, O(intervals + steps), stable in the order of requests. `starts`: scratch of 2 * steps + 2 entries, the first event of each
 * rank. */
static void sort_events(bp_schedule *s, uint32_t *starts, uint32_t *spans)
{
    for (size_t i = 0; i < s->interval_count; i++) {
        starts[rank_of(s->intervals[i].begin, 1) + 1]++;
        starts[rank_of(s->intervals[i].end, 0) + 1]++;
    }
    for (size_t rank = 0; rank < rank_of((uint32_t)s->step_count, 1); rank++)
        starts[rank + 1] += starts[rank];
    for (size_t i = 0; i < s->span_count; i++) {
        const bp_span *span = &s->spans[i];
        for (uint32_t k = 0; k < span->interval_count; k++) {
            bp_use use = bp_schedule_use(s, span->first_interval + k);
            uint32_t acquire = starts[rank_of(use.begin, 1)]++, release = starts[rank_of(use.end, 0)]++;
            s->events[acquire] =
                (bp_schedule_event){use.begin, 1, use.acquire_lane, span->first_request, span->request_count};
            s->events[release] =
                (bp_schedule_event){use.end, 0, use.release_lane, span->first_request, span->request_count};
            spans[acquire] = spans[release] = (uint32_t)i;
        }
    }
}

/* Merges the events of a unit and role that coincide: recorded schedules have a span for each request. */
static bp_status list_events(bp_schedule *s)
{
    size_t count = 2 * s->interval_count, merged = 0;
    uint32_t *starts = NULL, *spans = NULL;
    bp_status status = bp_new_array(count, sizeof *s->events, (void **)&s->events);
    if (status == BP_OK)
        status = bp_new_array(rank_of((uint32_t)s->step_count, 1) + 1, sizeof *starts, (void **)&starts);
    if (status == BP_OK)
        status = bp_new_array(count, sizeof *spans, (void **)&spans);
    if (status == BP_OK)
        sort_events(s, starts, spans);
    for (size_t i = 0; status == BP_OK && i < count; i++) {
        const bp_schedule_event *e = &s->events[i];
        bp_schedule_event *last = merged > 0 ? &s->events[merged - 1] : NULL;
        if (last != NULL && last->step == e->step && last->acquire == e->acquire && last->lane == e->lane &&
            last->first_request + last->request_count == e->first_request && !s->spans[spans[i]].starts_group)
            last->request_count += e->request_count;
        else
            s->events[merged++] = *e;
    }
    s->info.event_count = merged;
    free(starts);
    free(spans);
    return status;
}

bp_status bp_schedule_finish(bp_schedule *s)
{
    free(s->uses);
    s->uses = NULL;
    BP_TRY(bp_new_array(s->request_count, sizeof *s->requests, (void **)&s->requests));
    for (size_t i = 0; i < s->span_count; i++) {
        const bp_span *span = &s->spans[i];
        for (uint32_t k = 0; k < span->request_count && span->interval_count > 0; k++)
            s->requests[span->first_request + k] =
                (bp_scheduled_request){s->intervals + span->first_interval, span->interval_count};
    }
    BP_TRY(derive_overlaps(s));
    BP_TRY(list_events(s));
    s->info.step_count = s->step_count;
    s->info.steps = s->steps;
    s->info.request_count = s->request_count;
    s->info.requests = s->requests;
    s->info.overlap_count = s->overlap_count;
    s->info.overlaps = s->overlaps;
    s->info.events = s->events;
    return BP_OK;
}

const bp_schedule_info *bp_schedule_get_info(const bp_schedule *schedule)
{
    return schedule != NULL ? &schedule->info : NULL;
}

/* ---- tails --------------------------------------------------------------------------------------------------------- */

static int overlaps_by_request(const void *a, const void *b)
{
    const bp_tail *x = a, *y = b;
    if (x->request != y->request)
        return x->request < y->request ? -1 : 1;
    if (x->interval.begin != y->interval.begin)
        return x->interval.begin < y->interval.begin ? -1 : 1;
    return (x->interval.end > y->interval.end) - (x->interval.end < y->interval.end);
}

/* The tail from the latest release of `earlier` to the acquire of `later`, across the end of the recording if necessary. */
static size_t add_tail(const bp_schedule *s, const bp_window *window, bp_tail *tails)
{
    size_t count;
    const bp_interval *intervals = bp_schedule_intervals(s, window->earlier, &count);
    uint32_t before = window->first_step, last = before; /* latest release before the acquire; latest of all */
    for (size_t i = 0; i < count; i++) {
        bool within = intervals[i].begin >= window->first_step && intervals[i].end <= window->end_step;
        if (within && intervals[i].end <= window->step)
            before = intervals[i].end;
        if (within)
            last = intervals[i].end;
    }
    tails[0] = (bp_tail){window->earlier, {before, window->step + 1}};
    if (before > window->first_step || last == window->end_step)
        return 1;
    tails[1] = (bp_tail){window->earlier, {last, window->end_step}};
    return 2;
}

bp_status bp_schedule_find_tails(const bp_schedule *schedule, bp_tail **tails, size_t *count)
{
    BP_TRY(bp_new_array(2 * schedule->window_count, sizeof **tails, (void **)tails));
    *count = 0;
    for (size_t i = 0; i < schedule->window_count; i++)
        *count += add_tail(schedule, &schedule->windows[i], *tails + *count);
    if (*count > 0)
        qsort(*tails, *count, sizeof **tails, overlaps_by_request);
    return BP_OK;
}
