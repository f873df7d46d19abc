/* SPDX-License-Identifier: Apache-2.0 */
/* Peak live bytes (the lower bound) and live units of a role; assigns units to copies by greedy colouring, then a bounded exact search. */
#include <bucketpool/core/arith.h>
#include <bucketpool/core/fail.h>

#include <stdlib.h>
#include <string.h>

#include "planner/policy.h"

/* ---- bytes ---------------------------------------------------------------------------------------------------------- */

bp_status bp_span_bytes(const bp_buckets *buckets, const bp_span *span, uint64_t alignment, const bp_place *places,
                        uint64_t *bytes)
{
    uint64_t sum = 0, aligned;
    for (uint32_t r = span->first_request; r < span->first_request + span->request_count; r++) {
        if (places != NULL && places[r].class_index != BP_NO_CLASS)
            continue;
        if (!bp_round_up_u64(buckets->requests[r].bytes, alignment, &aligned) || !bp_add_u64(sum, aligned, &sum))
            return bp_fail(BP_ERR_OVERFLOW, "a unit of model \"%s\" does not fit 64 bits", buckets->model);
    }
    *bytes = sum;
    return BP_OK;
}

/* Bytes that become live and that end at the begin of a step. */
typedef struct change {
    uint64_t begins, ends;
} change;

static bp_status add_changes(const bp_buckets *buckets, const bp_schedule *schedule, uint32_t roles, uint64_t alignment,
                             const bp_place *places, change *changes)
{
    for (size_t i = 0; i < schedule->span_count; i++) {
        const bp_span *span = &schedule->spans[i];
        uint64_t bytes;
        if (!(roles & BP_ROLE_BIT(buckets->requests[span->first_request].role)))
            continue;
        BP_TRY(bp_span_bytes(buckets, span, alignment, places, &bytes));
        for (uint32_t k = 0; k < span->interval_count; k++) {
            const bp_interval *interval = &schedule->intervals[span->first_interval + k];
            if (!bp_add_u64(changes[interval->begin].begins, bytes, &changes[interval->begin].begins) ||
                !bp_add_u64(changes[interval->end].ends, bytes, &changes[interval->end].ends))
                return bp_fail(BP_ERR_OVERFLOW, "the requests of step %u of model \"%s\" do not fit 64 bits",
                               interval->begin, buckets->model);
        }
    }
    return BP_OK;
}

bp_status bp_bound_of(const bp_buckets *buckets, const bp_schedule *schedule, uint32_t roles, uint64_t alignment,
                      const bp_place *places, bp_bound *bound)
{
    change *changes;
    uint64_t live = 0;
    BP_TRY(bp_new_array(schedule->step_count + 1, sizeof *changes, (void **)&changes));
    bp_status status = add_changes(buckets, schedule, roles, alignment, places, changes);
    *bound = (bp_bound){0};
    for (size_t step = 0; status == BP_OK && step < schedule->step_count; step++) {
        live -= changes[step].ends;
        if (!bp_add_u64(live, changes[step].begins, &live))
            status = bp_fail(BP_ERR_OVERFLOW, "the live bytes of step %zu of model \"%s\" do not fit 64 bits", step,
                             buckets->model);
        else if (live > bound->bytes)
            *bound = (bp_bound){live, (uint32_t)step};
    }
    free(changes);
    return status;
}

bool bp_span_is_live(const bp_schedule *schedule, const bp_span *span, uint32_t step)
{
    for (uint32_t k = 0; k < span->interval_count; k++) {
        const bp_interval *interval = &schedule->intervals[span->first_interval + k];
        if (interval->begin <= step && step < interval->end)
            return true;
    }
    return false;
}

/* ---- from spans to units ------------------------------------------------------------------------------------------ */

static int live_units_by_begin(const void *a, const void *b)
{
    const bp_interval *x = a, *y = b;
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

/* Live ranges include the tails of overlap windows: units do not share a copy where an acquire would wait. */
static void live_units_collect(const bp_buckets *buckets, const bp_schedule *schedule, const bp_tail *tails,
                               size_t tail_count, bp_live_units *t)
{
    uint32_t used = 0;
    size_t span = 0, tail = 0;
    for (size_t g = 0; g < buckets->group_count; g++) {
        const bp_request_group *group = &buckets->groups[g];
        uint32_t first = used;
        for (; span < schedule->span_count && schedule->spans[span].first_request < group->first + group->count;
             span++) {
            const bp_span *s = &schedule->spans[span];
            if (group->role != t->role || s->interval_count == 0)
                continue;
            memcpy(t->intervals + used, schedule->intervals + s->first_interval,
                   s->interval_count * sizeof *t->intervals);
            used += s->interval_count;
        }
        for (; tail < tail_count && tails[tail].request < group->first + group->count; tail++) {
            if (group->role == t->role)
                t->intervals[used++] = tails[tail].interval;
        }
        if (used == first)
            continue;
        bp_interval *mine = t->intervals + first;
        uint32_t count = used - first, kept = 0; /* sorted and merged */
        if (count > 1)
            qsort(mine, count, sizeof *mine, live_units_by_begin);
        for (uint32_t i = 0; i < count; i++) {
            if (kept > 0 && mine[i].begin <= mine[kept - 1].end)
                mine[kept - 1].end = mine[i].end > mine[kept - 1].end ? mine[i].end : mine[kept - 1].end;
            else
                mine[kept++] = mine[i];
        }
        used = first + kept;
        t->units[t->count++] = (bp_live_unit){group->unit, group->first, group->count, first, kept};
    }
}

bp_status bp_live_units_count_live(bp_live_units *units)
{
    int32_t *changes;
    BP_TRY(bp_new_array((size_t)units->step_count + 1, sizeof *changes, (void **)&changes));
    units->max_live = units->max_live_step = 0;
    for (size_t i = 0; i < units->count; i++) {
        for (uint32_t k = 0; k < units->units[i].interval_count; k++) {
            const bp_interval *interval = &units->intervals[units->units[i].first_interval + k];
            changes[interval->begin]++;
            changes[interval->end]--;
        }
    }
    int32_t live = 0;
    for (uint32_t step = 0; step < units->step_count; step++) {
        live += changes[step];
        if (live > (int32_t)units->max_live) {
            units->max_live = (uint32_t)live;
            units->max_live_step = step;
        }
    }
    free(changes);
    return BP_OK;
}

bp_status bp_live_units_init(const bp_buckets *buckets, const bp_schedule *schedule, uint32_t role,
                             bp_live_units *units)
{
    *units = (bp_live_units){.role = role, .step_count = (uint32_t)schedule->step_count};
    bp_tail *tails = NULL;
    size_t tail_count = 0;
    bp_status status = bp_schedule_find_tails(schedule, &tails, &tail_count);
    if (status == BP_OK)
        status = bp_new_array(buckets->group_count, sizeof *units->units, (void **)&units->units);
    if (status == BP_OK)
        status =
            bp_new_array(schedule->interval_count + tail_count, sizeof *units->intervals, (void **)&units->intervals);
    if (status == BP_OK) {
        live_units_collect(buckets, schedule, tails, tail_count, units);
        status = bp_live_units_count_live(units);
    }
    free(tails);
    if (status != BP_OK)
        bp_live_units_finish(units);
    return status;
}

void bp_live_units_finish(bp_live_units *units)
{
    free(units->units);
    free(units->intervals);
    *units = (bp_live_units){0};
}

/* ---- copies: colouring the units that are live at once ------------------------------------------------------------ */

/* Limit of placements in the exact search: counted work, not time, so that every rank gets the same result. */
#define SEARCH_TRIALS (1u << 24)

/* The taken steps of each copy in use, as a bitmap over the schedule's steps. */
typedef struct occupancy {
    const bp_live_units *units;
    uint64_t **taken; /* by copy */
    uint32_t copies;
    size_t capacity;
    size_t words;
    uint32_t *copy_of_unit;
    uint32_t *in_use; /* by search depth: copies used by the units before it */
    uint64_t trials_left;
} occupancy;

/* The bits of [begin, end) in word `w` of a bitmap. */
static uint64_t word_mask(uint32_t begin, uint32_t end, size_t w)
{
    uint64_t low = w * 64 >= begin ? 0 : begin - w * 64;
    uint64_t high = (w + 1) * 64 <= end ? 64 : end - w * 64;
    return (high == 64 ? ~0ull : (1ull << high) - 1) & (~0ull << low);
}

/* Takes or frees the unit's steps in a copy. */
static void toggle_steps(occupancy *o, const bp_live_unit *unit, uint32_t copy)
{
    const bp_interval *intervals = o->units->intervals + unit->first_interval;
    for (uint32_t i = 0; i < unit->interval_count; i++) {
        for (size_t w = intervals[i].begin / 64; w * 64 < intervals[i].end; w++)
            o->taken[copy][w] ^= word_mask(intervals[i].begin, intervals[i].end, w);
    }
}

/* False, and no step taken, if another unit has one of the steps. */
static bool live_units_take(occupancy *o, const bp_live_unit *unit, uint32_t copy)
{
    const bp_interval *intervals = o->units->intervals + unit->first_interval;
    for (uint32_t i = 0; i < unit->interval_count; i++) {
        for (size_t w = intervals[i].begin / 64; w * 64 < intervals[i].end; w++) {
            if (o->taken[copy][w] & word_mask(intervals[i].begin, intervals[i].end, w))
                return false;
        }
    }
    toggle_steps(o, unit, copy);
    return true;
}

static bp_status assign_greedily(occupancy *o)
{
    for (size_t t = 0; t < o->units->count; t++) {
        uint32_t copy = 0;
        while (copy < o->copies && !live_units_take(o, &o->units->units[t], copy))
            copy++;
        if (copy == o->copies) {
            BP_TRY(bp_grow_array((void **)&o->taken, &o->capacity, copy, sizeof *o->taken));
            BP_TRY(bp_new_array(o->words, sizeof **o->taken, (void **)&o->taken[copy]));
            o->copies++;
            toggle_steps(o, &o->units->units[t], copy);
        }
        o->copy_of_unit[t] = copy;
    }
    return BP_OK;
}

/* Depth-first search over the units in order; each may open at most one new copy (symmetry breaking). The assigned units are the stack.
 * True if all have a copy; trials_left 0: the search ended undecided. */
static bool assign_exactly(occupancy *o, uint32_t copies)
{
    const bp_live_unit *units = o->units->units;
    size_t count = o->units->count, depth = 0;
    uint32_t *copy_of = o->copy_of_unit;
    uint32_t next = 0; /* the copy to try for the unit at `depth` */
    for (uint32_t copy = 0; copy < o->copies; copy++)
        memset(o->taken[copy], 0, o->words * sizeof **o->taken);
    while (depth < count && o->trials_left > 0) {
        uint32_t max = o->in_use[depth] + 1 < copies ? o->in_use[depth] + 1 : copies;
        while (next < max && o->trials_left > 0 && !live_units_take(o, &units[depth], next)) {
            next++;
            o->trials_left--;
        }
        if (o->trials_left == 0)
            return false;
        o->trials_left--;
        if (next < max) {
            copy_of[depth] = next;
            o->in_use[depth + 1] = next + 1 > o->in_use[depth] ? next + 1 : o->in_use[depth];
            depth++;
            next = 0;
        } else if (depth == 0) {
            return false;
        } else {
            depth--;
            toggle_steps(o, &units[depth], copy_of[depth]);
            next = copy_of[depth] + 1;
        }
    }
    return depth == count;
}

/* Begin of an interval of a unit. */
typedef struct begin {
    uint32_t step, end, unit;
} begin;

static int by_step(const void *a, const void *b)
{
    const begin *x = a, *y = b;
    return x->step < y->step ? -1 : x->step > y->step;
}

/* Round robin: assigns copies in the order in which units become live. *works: no two live units share a copy, which holds for units
 * that run once each, at any prefetch depth. */
static bp_status take_turns(const bp_live_units *units, uint32_t copies, uint32_t *copy_of_unit, bool *works)
{
    size_t count = 0;
    for (size_t t = 0; t < units->count; t++)
        count += units->units[t].interval_count;
    begin *begins;
    uint32_t *free_from; /* by copy */
    BP_TRY(bp_new_array(count, sizeof *begins, (void **)&begins));
    bp_status status = bp_new_array(copies, sizeof *free_from, (void **)&free_from);
    if (status != BP_OK) {
        free(begins);
        return status;
    }
    size_t filled = 0;
    for (uint32_t t = 0; t < units->count; t++) {
        copy_of_unit[t] = t % copies;
        for (uint32_t k = 0; k < units->units[t].interval_count; k++) {
            const bp_interval *interval = &units->intervals[units->units[t].first_interval + k];
            begins[filled++] = (begin){interval->begin, interval->end, t};
        }
    }
    qsort(begins, count, sizeof *begins, by_step);
    *works = true;
    for (size_t i = 0; i < count && *works; i++) {
        uint32_t copy = copy_of_unit[begins[i].unit];
        *works = free_from[copy] <= begins[i].step;
        free_from[copy] = begins[i].end;
    }
    free(begins);
    free(free_from);
    return BP_OK;
}

static bp_status search(occupancy *o, uint32_t *copies, bool *proven)
{
    uint32_t asked = *copies, fewest = o->units->max_live, count = (uint32_t)o->units->count;
    bool works;
    *proven = true;
    if (asked != 0 && asked < fewest) {
        *copies = 0;
        return BP_OK;
    }
    BP_TRY(take_turns(o->units, fewest, o->copy_of_unit, &works));
    if (works) {
        *copies = asked != 0 ? asked : fewest;
        return BP_OK;
    }
    if ((uint64_t)count * fewest > (1u << 26)) { /* a search would take too long: every unit gets a copy */
        for (uint32_t t = 0; t < count; t++)
            o->copy_of_unit[t] = t;
        *proven = false;
        *copies = asked == 0 ? count : asked >= count ? asked : 0;
        return BP_OK;
    }
    BP_TRY(assign_greedily(o));
    uint32_t greedy = o->copies;
    if (greedy <= (asked != 0 ? asked : fewest)) {
        *copies = asked != 0 ? asked : greedy;
        return BP_OK;
    }
    BP_TRY(bp_new_array((size_t)count + 1, sizeof *o->in_use, (void **)&o->in_use));
    o->trials_left = SEARCH_TRIALS;
    for (uint32_t tried = asked != 0 ? asked : fewest; tried < greedy; tried++) {
        if (assign_exactly(o, tried)) {
            *copies = tried;
            return BP_OK;
        }
        *proven = o->trials_left > 0;
        if (asked != 0) {
            *copies = 0;
            return BP_OK;
        }
        if (!*proven)
            break;
    }
    for (uint32_t copy = 0; copy < o->copies; copy++)
        memset(o->taken[copy], 0, o->words * sizeof **o->taken);
    *copies = greedy;
    return assign_greedily(o);
}

bp_status bp_live_units_assign_copies(const bp_live_units *units, uint32_t *copies, uint32_t *copy_of_unit,
                                      bool *proven)
{
    occupancy o = {.units = units, .words = (size_t)units->step_count / 64 + 1, .copy_of_unit = copy_of_unit};
    bp_status status = search(&o, copies, proven);
    for (uint32_t i = 0; i < o.copies; i++)
        free(o.taken[i]);
    free(o.taken);
    free(o.in_use);
    return status;
}
