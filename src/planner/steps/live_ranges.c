/* SPDX-License-Identifier: Apache-2.0 */
/* Live ranges of the items of a step plan, on axes of time: the order of events in recorded steps.
 *
 * An allocation that is freed in the next step is live from its begin to the end of the step, and from the beginning of the
 * step to its end. Where the next step is of another kind, the change from one to the other is a separate axis. */
#include <stdlib.h>
#include <string.h>

#include <bucketpool/core/fail.h>

#include "core/memory.h"
#include "planner/steps/planner.h"

bp_status bp_step_ranges_add(bp_step_ranges *ranges, bp_step_range range)
{
    if (range.live >= range.end)
        return BP_OK;
    void *all = ranges->all;
    BP_TRY(bp_grow_array(&all, &ranges->capacity, ranges->count, sizeof *ranges->all));
    ranges->all = all;
    ranges->all[ranges->count++] = range;
    return BP_OK;
}

static bp_step_range live_range(uint32_t item, uint64_t begin, uint64_t end)
{
    return (bp_step_range){.begin = begin, .end = end, .live = begin, .item = item};
}

/* ---- recorded steps ------------------------------------------------------------------------------------------------ */

static bool is_first_kind(const bp_step_planner *p, uint32_t kind)
{
    return p->has_first && kind + 1 == p->kind_count;
}

const bp_trace_step *bp_step_next_of_kind(const bp_step_planner *p, uint32_t kind, size_t *next)
{
    if (is_first_kind(p, kind))
        return (*next)++ == 0 ? &p->first : NULL;
    while (*next < p->steps->count) {
        const bp_trace_step *step = &p->steps->steps[(*next)++];
        if (p->kind_of[step->kind] == kind)
            return step;
    }
    return NULL;
}

uint32_t bp_step_order(const bp_step_planner *p, uint32_t kind, const bp_trace_step *step, size_t i)
{
    return is_first_kind(p, kind) ? (uint32_t)i : p->steps->orders[step->first + i];
}

bool bp_step_is_persistent(const bp_step_planner *p, const bp_allocation *a)
{
    const bp_trace_step *last = &p->steps->steps[p->steps->count - 1];
    return (a->begin == BP_TRACE_NONE || a->begin < last->begin) && bp_step_stop(p, a) >= last->end;
}

/* The step that follows a recorded one, or NULL. */
static const bp_trace_step *step_after(const bp_step_planner *p, const bp_trace_step *step)
{
    if (step == &p->first)
        return p->after_first;
    return step + 1 < p->steps->steps + p->steps->count ? step + 1 : NULL;
}

/* Intervals of an allocation in the time of its step, of `step->end - step->begin` events: one, or two if it is
 * freed in the next step of the kind. `carried`: events of a next step of another kind at which it is freed; 0: there is none.
 * Returns 0 if its live range is longer than a step. The end of what is live at the end of the trace is known from other
 * steps of the kind. */
static size_t intervals_of(const bp_step_planner *p, uint32_t kind, const bp_trace_step *step, const bp_allocation *a,
                           uint64_t begin[2], uint64_t end[2], uint64_t *carried)
{
    const bp_trace_step *next = step_after(p, step);
    const uint64_t length = step->end - step->begin;
    const uint32_t last = bp_step_stop(p, a);
    *carried = 0;
    begin[0] = a->begin - step->begin;
    end[0] = last <= step->end ? last - step->begin : length;
    if (last <= step->end)
        return 1;
    if (next == NULL)
        return p->steps->kinds[step->kind].steps > 1 || p->steps->count == 1 ? 1 : 0;
    if (last > next->end)
        return 0;
    if (p->kind_of[next->kind] != kind) {
        *carried = last - step->end;
        return 1;
    }
    begin[1] = 0;
    end[1] = last - step->end; /* in the time of the next step, which is alike */
    return end[1] <= begin[0] ? 2 : 0;
}

/* True if the matched events of two steps of a kind come in the same order. */
static bool is_same_order(const bp_step_planner *p, const bp_trace_step *a, const bp_trace_step *b)
{
    uint32_t i = a->begin, k = b->begin;
    size_t next_a = a->first, next_b = b->first;
    const bp_allocation *all = p->allocations->all;
    if (a->count != b->count || a->matched != a->count || b->matched != b->count ||
        a->end - a->begin != b->end - b->begin)
        return false;
    for (; i < a->end; i++, k++) {
        bool begins_a = next_a < a->first + a->count && all[next_a].begin == i;
        bool begins_b = next_b < b->first + b->count && all[next_b].begin == k;
        size_t end_a = p->ends[i], end_b = p->ends[k]; /* before the step's first allocation: the difference wraps */
        if (begins_a != begins_b || (end_a == BP_TRACE_NONE) != (end_b == BP_TRACE_NONE))
            return false;
        if (end_a != BP_TRACE_NONE && end_a - a->first != end_b - b->first)
            return false;
        next_a += begins_a;
        next_b += begins_b;
    }
    return true;
}

/* ---- kinds --------------------------------------------------------------------------------------------------------- */

/* The first step of a process is what was recorded before the second one. Steps behind the ends of optimizers begin with
 * the second; otherwise the first of them makes the optimizer's state. */
static void find_first(bp_step_planner *p)
{
    const bp_steps *s = p->steps;
    const bp_trace_step *second = &s->steps[0];
    const bool has_ended = s->optimizer_end_count > 0 && s->optimizer_ends[0] <= second->first;
    const size_t early = p->allocations->live_at_start;
    if (!p->config.is_from_start || s->source == BP_STEPS_WHOLE)
        return;
    if (!has_ended && s->source == BP_STEPS_MARKED && s->count > 1)
        second++;
    if (second->first == early)
        return;
    p->has_first = true;
    p->after_first = second;
    p->first = (bp_trace_step){.first = early, .count = second->first - early, .begin = 0, .end = second->begin};
    p->first.matched = p->first.count;
}

/* Items whose live range in some step of the kind is longer than a step, or not known, are outside. */
static void find_outside(bp_step_planner *p, uint32_t kind)
{
    size_t next = 0;
    for (const bp_trace_step *step; (step = bp_step_next_of_kind(p, kind, &next)) != NULL;) {
        for (size_t i = 0; i < step->count; i++) {
            const uint32_t order = bp_step_order(p, kind, step, i);
            const bp_allocation *a = &p->allocations->all[step->first + i];
            uint64_t begin[2], end[2], carried = 0;
            if (order != BP_TRACE_NONE &&
                (bp_step_is_persistent(p, a) || intervals_of(p, kind, step, a, begin, end, &carried) == 0))
                p->items[kind][order].offset = BP_STEP_OUTSIDE;
        }
    }
}

static bp_status make_step_kind(bp_step_planner *p, uint32_t kind, const bp_trace_step *reference, size_t steps)
{
    p->references[kind] = *reference;
    p->items[kind] = calloc(reference->count + 1, sizeof *p->items[kind]);
    if (p->items[kind] == NULL)
        return bp_fail_memory(reference->count * sizeof *p->items[kind]);
    p->kinds[kind] = (bp_step_plan_kind){.items = p->items[kind],
                                         .item_count = reference->count,
                                         .is_first = reference == &p->first,
                                         .steps = (uint32_t)steps};
    for (size_t i = 0; i < reference->count; i++) {
        const bp_allocation *a = &p->allocations->all[reference->first + i];
        p->items[kind][i] = (bp_step_plan_item){.bytes = a->bytes,
                                                .offset = a->bytes > 0 ? 0 : BP_STEP_OUTSIDE,
                                                .stream = a->stream,
                                                .place = BP_STEP_NO_PLACE};
    }
    return BP_OK;
}

bp_status bp_step_planner_find_kinds(bp_step_planner *p)
{
    const bp_steps *s = p->steps;
    find_first(p);
    for (uint32_t i = 0; i < s->kind_count; i++) {
        const bp_trace_step *reference = &s->steps[s->kinds[i].reference];
        const bool is_of_first =
            p->has_first && p->after_first > s->steps && s->kinds[i].steps == 1 && reference == &s->steps[0];
        p->kind_of[i] = is_of_first ? BP_TRACE_NONE : (uint32_t)p->kind_count;
        if (is_of_first)
            continue;
        BP_TRY(make_step_kind(p, (uint32_t)p->kind_count, reference, s->kinds[i].steps));
        p->kind_count++;
    }
    if (p->has_first) {
        BP_TRY(make_step_kind(p, (uint32_t)p->kind_count, &p->first, 1));
        p->kind_count++;
    }
    for (uint32_t kind = 0; kind < p->kind_count; kind++)
        find_outside(p, kind);
    return BP_OK;
}

/* ---- windows ------------------------------------------------------------------------------------------------------- */

typedef struct window_item {
    uint64_t bytes;
    uint32_t order;
} window_item;

static int by_item_size(const void *left, const void *right)
{
    const window_item *a = left, *b = right;
    if (a->bytes != b->bytes)
        return a->bytes < b->bytes ? -1 : 1;
    return (a->order > b->order) - (a->order < b->order);
}

/* By order, items of streams other than the main one: of the same size, and any; or BP_TRACE_NONE. */
typedef struct neighbours {
    uint32_t before, behind, before_of_any_size;
} neighbours;

/* free() them. */
static bp_status find_neighbours(const bp_step_planner *p, const bp_step_plan_kind *kind, neighbours **found)
{
    const size_t count = kind->item_count;
    window_item *sorted = malloc((count + 1) * sizeof *sorted);
    neighbours *made = malloc((count + 1) * sizeof *made);
    uint32_t last = BP_TRACE_NONE;
    size_t used = 0;
    if (sorted == NULL || made == NULL) {
        free(sorted);
        free(made);
        return bp_fail_memory(count * sizeof *sorted);
    }
    memset(made, 0xff, count * sizeof *made);
    for (uint32_t i = 0; i < count; i++) {
        if (kind->items[i].stream == p->main_stream)
            continue;
        sorted[used++] = (window_item){kind->items[i].bytes, i};
        made[i].before_of_any_size = last;
        last = i;
    }
    qsort(sorted, used, sizeof *sorted, by_item_size);
    for (size_t i = 1; i < used; i++) {
        if (sorted[i].bytes == sorted[i - 1].bytes) {
            made[sorted[i].order].before = sorted[i - 1].order;
            made[sorted[i - 1].order].behind = sorted[i].order;
        }
    }
    free(sorted);
    *found = made;
    return BP_OK;
}

/* The beginning of an item's window, in the time of the step: since the item of its size before it, which is a layer for
 * all-gathers. The first of a size has the window of the second; an item alone in its size has one since the item before it. `begins`: of allocations by order, UINT64_MAX for those that the step does not have. */
static uint64_t window_begin(const bp_step_planner *p, const neighbours *all, const uint64_t *begins, uint32_t order)
{
    const uint64_t begin = begins[order];
    uint64_t lead = p->config.lead;
    if (lead == BP_STEP_LEAD_AUTO) {
        uint32_t before = all[order].before, behind = all[order].behind;
        while (before != BP_TRACE_NONE && begins[before] == UINT64_MAX)
            before = all[before].before;
        while (behind != BP_TRACE_NONE && begins[behind] == UINT64_MAX)
            behind = all[behind].behind;
        if (before == BP_TRACE_NONE && behind != BP_TRACE_NONE && begins[behind] > begin)
            return begin > begins[behind] - begin ? begin - (begins[behind] - begin) : 0;
        before = before == BP_TRACE_NONE ? all[order].before_of_any_size : before;
        while (before != BP_TRACE_NONE && begins[before] == UINT64_MAX)
            before = all[before].before_of_any_size;
        lead = before == BP_TRACE_NONE ? begin : begins[before] < begin ? begin - begins[before] : 0;
    }
    return begin > lead ? begin - lead : 0;
}

/* Shortens windows so that live bytes and windows keep below the limit: at each moment that exceeds it, the largest windows
 * begin later. `end`: behind all ranges. O(end + windows * windows open together). */
static bp_status limit_windows(const bp_step_planner *p, uint32_t kind, const bp_step_ranges *ranges, uint64_t end)
{
    void *bytes_at = NULL, *window_at = NULL, *next_at = NULL, *open_at = NULL;
    bp_status status = bp_new_array(end + 1, sizeof(int64_t), &bytes_at);
    if (status == BP_OK)
        status = bp_new_array(end + 1, sizeof(uint32_t), &window_at);
    if (status == BP_OK)
        status = bp_new_array(ranges->count, sizeof(uint32_t), &next_at);
    if (status == BP_OK)
        status = bp_new_array(ranges->count, sizeof(uint32_t), &open_at);
    int64_t *changes = bytes_at; /* of live bytes, by moment */
    uint32_t *first = window_at; /* by moment: windows that begin there, a list; numbers and 1 more */
    uint32_t *next = next_at, *open = open_at;
    for (size_t i = 0; i < ranges->count && status == BP_OK; i++) {
        const bp_step_range *range = &ranges->all[i];
        const int64_t bytes = (int64_t)bp_step_round(p->items[kind][range->item].bytes);
        changes[range->live] += bytes;
        changes[range->end] -= bytes;
        if (range->begin < range->live) {
            next[i] = first[range->begin];
            first[range->begin] = (uint32_t)i + 1;
        }
    }
    int64_t live = 0;
    uint64_t windows = 0;
    size_t count = 0;
    for (uint64_t time = 0; time < end && status == BP_OK; time++) {
        live += changes[time];
        for (size_t i = 0; i < count;) {
            const bp_step_range *range = &ranges->all[open[i]];
            const bool is_over = range->live == time;
            windows -= is_over ? bp_step_round(p->items[kind][range->item].bytes) : 0;
            open[i] = is_over ? open[--count] : open[i];
            i += !is_over;
        }
        for (uint32_t i = first[time]; i > 0; i = next[i - 1]) {
            open[count++] = i - 1;
            windows += bp_step_round(p->items[kind][ranges->all[i - 1].item].bytes);
        }
        while (count > 0 && (uint64_t)live + windows > p->windows_limit) {
            size_t largest = 0;
            for (size_t i = 1; i < count; i++) {
                const uint64_t bytes = p->items[kind][ranges->all[open[i]].item].bytes;
                const uint64_t most = p->items[kind][ranges->all[open[largest]].item].bytes;
                largest = bytes > most || (bytes == most && open[i] > open[largest]) ? i : largest;
            }
            const uint32_t number = open[largest];
            bp_step_range *range = &ranges->all[number];
            range->begin = time + 1; /* where it is looked at again, unless it is live */
            windows -= bp_step_round(p->items[kind][range->item].bytes);
            open[largest] = open[--count];
            next[number] = first[time + 1];
            first[time + 1] = range->begin < range->live ? number + 1 : first[time + 1];
        }
    }
    free(bytes_at);
    free(window_at);
    free(next_at);
    free(open_at);
    return status;
}

/* ---- axes ---------------------------------------------------------------------------------------------------------- */

enum { MAX_AXES = 16 };

/* By order, the begin of an allocation in the time of its step; UINT64_MAX: the step does not have it. */
static void find_begins(const bp_step_planner *p, uint32_t kind, const bp_trace_step *step, uint64_t *begins)
{
    memset(begins, 0xff, p->kinds[kind].item_count * sizeof *begins);
    for (size_t i = 0; i < step->count; i++) {
        const uint32_t order = bp_step_order(p, kind, step, i);
        if (order != BP_TRACE_NONE)
            begins[order] = p->allocations->all[step->first + i].begin - step->begin;
    }
}

/* Adds the ranges of a step's matched allocations, at `time`. `near`: for windows, else NULL. `begins`: room for the
 * kind's items. */
static bp_status add_axis(const bp_step_planner *p, uint32_t kind, const bp_trace_step *step, const neighbours *near,
                          uint64_t *begins, bp_step_ranges *ranges, uint64_t time)
{
    find_begins(p, kind, step, begins);
    for (size_t i = 0; i < step->count; i++) {
        const uint32_t order = bp_step_order(p, kind, step, i);
        uint64_t begin[2], end[2], carried = 0;
        if (order == BP_TRACE_NONE || p->items[kind][order].offset == BP_STEP_OUTSIDE)
            continue;
        const size_t count = intervals_of(p, kind, step, &p->allocations->all[step->first + i], begin, end, &carried);
        for (size_t k = 0; k < count; k++) {
            bp_step_range range = live_range(order, time + begin[k], time + end[k]);
            if (k == 0 && near != NULL && p->items[kind][order].stream != p->main_stream)
                range.begin = range.live - (begin[0] - window_begin(p, near, begins, order)) / p->shortening;
            BP_TRY(bp_step_ranges_add(ranges, range));
        }
    }
    return BP_OK;
}

/* Adds memory that steps in the order of the reference carry into a step of their kind, at `time`. */
static bp_status add_carried(const bp_step_planner *p, uint32_t kind, bp_step_ranges *ranges, uint64_t time)
{
    size_t next = 0;
    for (const bp_trace_step *step; (step = bp_step_next_of_kind(p, kind, &next)) != NULL;) {
        if (step->first == p->references[kind].first || !is_same_order(p, step, &p->references[kind]))
            continue;
        for (size_t i = 0; i < step->count; i++) {
            const uint32_t order = bp_step_order(p, kind, step, i);
            uint64_t begin[2], end[2], carried = 0;
            if (order != BP_TRACE_NONE && p->items[kind][order].offset != BP_STEP_OUTSIDE &&
                intervals_of(p, kind, step, &p->allocations->all[step->first + i], begin, end, &carried) == 2)
                BP_TRY(bp_step_ranges_add(ranges, live_range(order, time + begin[1], time + end[1])));
        }
    }
    return BP_OK;
}

bp_status bp_step_planner_find_ranges(const bp_step_planner *p, uint32_t kind, bool has_windows, uint64_t *time,
                                      bp_step_ranges *ranges)
{
    const bp_trace_step *steps[MAX_AXES], *reference = NULL;
    size_t next = 0, count = 0;
    neighbours *near = NULL;
    uint64_t *begins = malloc((p->kinds[kind].item_count + 1) * sizeof *begins);
    bp_status status = begins == NULL ? bp_fail_memory(p->kinds[kind].item_count * sizeof *begins) : BP_OK;
    if (status == BP_OK && has_windows && !is_first_kind(p, kind))
        status = find_neighbours(p, &p->kinds[kind], &near);
    /* The last of the steps with another order, and the reference. */
    for (const bp_trace_step *step; (step = bp_step_next_of_kind(p, kind, &next)) != NULL;) {
        const bool is_reference = step->first == p->references[kind].first;
        if (!is_reference && is_same_order(p, step, &p->references[kind]))
            continue;
        if (count == MAX_AXES) {
            const size_t oldest = steps[0] == reference ? 1 : 0;
            memmove(&steps[oldest], &steps[oldest + 1], (MAX_AXES - 1 - oldest) * sizeof *steps);
            count--;
        }
        reference = is_reference ? step : reference;
        steps[count++] = step;
    }
    while (count > 0 && status == BP_OK) {
        const bp_trace_step *step = steps[--count], *behind = step_after(p, step);
        status = add_axis(p, kind, step, near, begins, ranges, *time);
        /* The reference itself does, unless a step of another kind follows. */
        if (status == BP_OK && step == reference && (behind == NULL || p->kind_of[behind->kind] != kind))
            status = add_carried(p, kind, ranges, *time);
        *time += step->end - step->begin + 1u;
    }
    if (status == BP_OK && near != NULL && p->windows_limit < UINT64_MAX)
        status = limit_windows(p, kind, ranges, *time);
    free(near);
    free(begins);
    return status;
}

/* ---- changes of the kind ------------------------------------------------------------------------------------------- */

/* Adds memory that `step` carries into the step behind it, and items that this one allocates before the last of it is freed. */
static bp_status add_change(const bp_step_planner *p, uint32_t kind, const bp_trace_step *step, uint32_t next_kind,
                            uint64_t time, bp_step_ranges *ranges, bp_step_ranges *next_ranges)
{
    const bp_trace_step *next = step_after(p, step);
    const bp_allocation *all = p->allocations->all;
    uint64_t last = 0, begin[2], end[2], carried = 0;
    for (size_t i = 0; i < step->count; i++) {
        const uint32_t order = bp_step_order(p, kind, step, i);
        if (order == BP_TRACE_NONE || p->items[kind][order].offset == BP_STEP_OUTSIDE)
            continue;
        intervals_of(p, kind, step, &all[step->first + i], begin, end, &carried);
        last = carried > last ? carried : last;
        BP_TRY(bp_step_ranges_add(ranges, live_range(order, time, time + carried)));
    }
    for (size_t i = 0; i < next->count; i++) {
        const bp_allocation *a = &all[next->first + i];
        const uint32_t order = bp_step_order(p, next_kind, next, i);
        if (a->begin - next->begin >= last)
            break;
        if (order == BP_TRACE_NONE || p->items[next_kind][order].offset == BP_STEP_OUTSIDE)
            continue;
        intervals_of(p, next_kind, next, a, begin, end, &carried);
        BP_TRY(bp_step_ranges_add(next_ranges,
                                  live_range(order, time + begin[0], time + (end[0] < last ? end[0] : last))));
    }
    return BP_OK;
}

bp_status bp_step_planner_find_changes(const bp_step_planner *p, uint32_t kind, uint32_t next, uint64_t *time,
                                       bp_step_ranges *ranges, bp_step_ranges *next_ranges)
{
    size_t at = 0;
    for (const bp_trace_step *step; (step = bp_step_next_of_kind(p, kind, &at)) != NULL;) {
        const bp_trace_step *after = step_after(p, step);
        if (after == NULL || p->kind_of[after->kind] != next || next == kind)
            continue;
        BP_TRY(add_change(p, kind, step, next, *time, ranges, next_ranges));
        *time += after->end - after->begin + 1u;
    }
    return BP_OK;
}
