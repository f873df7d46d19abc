/* SPDX-License-Identifier: Apache-2.0 */
/* Plans the memory of a step: one address for each allocation, valid in all recorded steps.
 *
 * Each kind of step is an instance of the packer. Time is the order of events in the reference step, and in each other
 * step of the kind whose events come in another order; an allocation that is freed in the next step is live from its
 * begin to the end of the step, and from the beginning of the step to its end. */
#include <stdlib.h>
#include <string.h>

#include <bucketpool/core/arith.h>
#include <bucketpool/core/fail.h>
#include <bucketpool/pack.h>

#include "planner/steps/steps.h"

typedef struct planner {
    const bp_trace *trace;
    const bp_allocations *allocations;
    const bp_steps *steps;
    uint32_t *ends;
    uint64_t work;
    bp_step_plan *plan;
} planner;

/* The step that an allocation belongs to; NULL: none. */
static const bp_trace_step *recorded_step(const planner *p, size_t allocation)
{
    size_t low = 0, high = p->steps->count;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        *(p->steps->steps[middle].first <= allocation ? &low : &high) = middle;
    }
    const bp_trace_step *step = &p->steps->steps[low];
    return p->steps->count > 0 && allocation >= step->first && allocation < step->first + step->count ? step : NULL;
}

/* Live during the whole last step: it belongs to no step, or is kept by one. */
static bool is_persistent(const planner *p, const bp_allocation *a)
{
    const bp_trace_step *last = &p->steps->steps[p->steps->count - 1];
    return (a->begin == BP_TRACE_NONE || a->begin < last->begin) && (a->end == BP_TRACE_NONE || a->end >= last->end);
}

/* ---- live ranges --------------------------------------------------------------------------------------------------- */

/* Half-open intervals of an allocation in the time of its step, of `step->end - step->begin` events: one, or two if it is
 * freed in the next step. 0: its live range is longer than a step, or goes into a step of another kind. The end of what
 * is live at the end of the trace is known from other steps of the kind. */
static size_t intervals_of(const planner *p, const bp_trace_step *step, const bp_allocation *a, uint64_t begin[2],
                           uint64_t end[2])
{
    const bp_trace_step *next = step + 1 < p->steps->steps + p->steps->count ? step + 1 : NULL;
    uint64_t length = step->end - step->begin;
    uint32_t last = a->end == BP_TRACE_NONE ? (uint32_t)p->trace->event_count : a->end;
    begin[0] = a->begin - step->begin;
    end[0] = last <= step->end ? last - step->begin : length;
    if (last <= step->end)
        return 1;
    if (next == NULL)
        return p->steps->kinds[step->kind].steps > 1 || p->steps->count == 1 ? 1 : 0;
    if (last > next->end || next->kind != step->kind)
        return 0;
    begin[1] = 0;
    end[1] = last - step->end; /* in the time of the next step, which is alike */
    return end[1] <= begin[0] ? 2 : 0;
}

/* True if the matched events of two steps of a kind come in the same order. */
static bool is_same_order(const planner *p, const bp_trace_step *a, const bp_trace_step *b)
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

/* ---- one kind ------------------------------------------------------------------------------------------------------ */

enum { MAX_AXES = 16 };

/* Items whose live range in some step of the kind is longer than a step, or not known, are outside. */
static void find_outside(const planner *p, uint32_t number, bp_step_plan_kind *kind)
{
    for (size_t s = 0; s < p->steps->count; s++) {
        const bp_trace_step *step = &p->steps->steps[s];
        for (size_t i = 0; i < step->count && step->kind == number; i++) {
            uint32_t order = p->steps->orders[step->first + i];
            const bp_allocation *a = &p->allocations->all[step->first + i];
            uint64_t begin[2], end[2];
            if (order != BP_TRACE_NONE && (is_persistent(p, a) || intervals_of(p, step, a, begin, end) == 0))
                kind->items[order].is_outside = true;
        }
    }
}

/* Adds the live ranges of a step's matched allocations, at `time`. */
static bp_status add_axis(const planner *p, const bp_trace_step *step, const bp_step_plan_kind *kind,
                          bp_packing *packing, uint64_t time)
{
    for (size_t i = 0; i < step->count; i++) {
        uint32_t order = p->steps->orders[step->first + i];
        uint64_t begin[2], end[2];
        if (order == BP_TRACE_NONE || kind->items[order].is_outside)
            continue;
        size_t count = intervals_of(p, step, &p->allocations->all[step->first + i], begin, end);
        for (size_t k = 0; k < count; k++) {
            if (begin[k] < end[k])
                BP_TRY(bp_packing_add_interval(packing, order, time + begin[k], time + end[k]));
        }
    }
    return BP_OK;
}

/* Items get their offsets; those outside have size 0. */
static bp_status pack_kind(const planner *p, uint32_t number, bp_step_plan_kind *kind, bp_packing *packing,
                           uint64_t *offsets)
{
    const bp_trace_step *reference = &p->steps->steps[p->steps->kinds[number].reference];
    uint64_t time = 0;
    for (size_t i = 0; i < kind->count; i++) {
        uint64_t size = kind->items[i].is_outside ? 0 : bp_step_round(kind->items[i].bytes) / BP_STEP_ALIGNMENT;
        BP_TRY(bp_packing_add_item(packing, size, NULL));
    }
    for (size_t i = p->steps->count, axes = 0; i-- > 0 && axes < MAX_AXES;) {
        const bp_trace_step *step = &p->steps->steps[i];
        if (step->kind != number || (step != reference && is_same_order(p, step, reference)))
            continue;
        BP_TRY(add_axis(p, step, kind, packing, time));
        time += step->end - step->begin + 1u;
        axes++;
    }
    bp_pack_config config;
    bp_pack_result result = {.size = sizeof result};
    BP_TRY(bp_pack_config_init(&config, sizeof config));
    config.work = p->work;
    BP_TRY(bp_pack(packing, &config, offsets, &result));
    BP_TRY(bp_packing_check(packing, offsets, result.bytes));
    kind->bytes = result.bytes * BP_STEP_ALIGNMENT;
    kind->lower_bound_bytes = result.bound * BP_STEP_ALIGNMENT;
    kind->proven_bytes = result.proven * BP_STEP_ALIGNMENT;
    kind->method = result.method;
    for (size_t i = 0; i < kind->count; i++)
        kind->items[i].offset = offsets[i] * BP_STEP_ALIGNMENT;
    return BP_OK;
}

static bp_status plan_kind(const planner *p, uint32_t number, bp_step_plan_kind *kind)
{
    const bp_trace_step *reference = &p->steps->steps[p->steps->kinds[number].reference];
    kind->count = reference->count;
    kind->items = calloc(kind->count + 1, sizeof *kind->items);
    uint64_t *offsets = malloc((kind->count + 1) * sizeof *offsets);
    bp_packing *packing = NULL;
    bp_status status = kind->items == NULL || offsets == NULL ? bp_fail_memory(kind->count * sizeof *kind->items)
                                                              : bp_packing_create(&packing);
    for (size_t i = 0; i < kind->count && status == BP_OK; i++) {
        const bp_allocation *a = &p->allocations->all[reference->first + i];
        kind->items[i] =
            (bp_step_item){.allocation = (uint32_t)(reference->first + i), .bytes = a->bytes, .stream = a->stream};
    }
    if (status == BP_OK) {
        find_outside(p, number, kind);
        status = pack_kind(p, number, kind, packing, offsets);
    }
    bp_packing_destroy(&packing);
    free(offsets);
    return status;
}

/* ---- verification -------------------------------------------------------------------------------------------------- */

enum { MAX_FAULTS = 32 };

static bp_step_item *item_of(const planner *p, size_t allocation)
{
    const bp_trace_step *step = recorded_step(p, allocation);
    uint32_t order = p->steps->orders[allocation];
    return step == NULL || order == BP_TRACE_NONE ? NULL : &p->plan->kinds[step->kind].items[order];
}

/* Checks the offsets against all steps, in the time of the trace. An item at fault is outside; after MAX_FAULTS of them
 * all items are. */
static bp_status verify(const planner *p)
{
    const bp_allocation *all = p->allocations->all;
    const bp_trace_step *last = &p->steps->steps[p->steps->count - 1];
    size_t first = p->steps->steps[0].first, count = last->first + last->count - first;
    bp_packing *packing = NULL;
    uint64_t *offsets = calloc(count + 1, sizeof *offsets);
    bp_packing_fault fault = {.size = sizeof fault, .found = 1};
    if (offsets == NULL)
        return bp_fail_memory(count * sizeof *offsets);
    bp_status status = BP_OK;
    for (size_t faults = 0; status == BP_OK && fault.found; faults++) {
        for (size_t k = 0; k < p->plan->kind_count && faults == MAX_FAULTS; k++) {
            for (size_t i = 0; i < p->plan->kinds[k].count; i++)
                p->plan->kinds[k].items[i].is_outside = true;
        }
        status = bp_packing_create(&packing);
        for (size_t i = 0; i < count && status == BP_OK; i++) {
            const bp_step_item *item = item_of(p, first + i);
            const bp_allocation *a = &all[first + i];
            bool is_in = item != NULL && !item->is_outside;
            offsets[i] = is_in ? item->offset : 0;
            status = bp_packing_add_item(packing, is_in ? bp_step_round(a->bytes) : 0, NULL);
            if (status == BP_OK && is_in)
                status = bp_packing_add_interval(packing, i, a->begin,
                                                 a->end == BP_TRACE_NONE ? p->trace->event_count : a->end);
        }
        if (status == BP_OK)
            status = bp_packing_find_fault(packing, offsets, p->plan->bytes, &fault);
        if (status == BP_OK && fault.found)
            item_of(p, first + fault.other)->is_outside = true;
        bp_packing_destroy(&packing);
    }
    free(offsets);
    return status;
}

/* ---- all ----------------------------------------------------------------------------------------------------------- */

/* True if the plan has an offset for this allocation of a step. */
static bool has_offset(const planner *p, size_t allocation)
{
    const bp_step_item *item = item_of(p, allocation);
    return item != NULL && !item->is_outside;
}

/* Persistent bytes, and the peak of what is neither persistent nor planned, during the steps after the first, in which
 * memory from before it may be live. */
static void measure_rest(const planner *p)
{
    const bp_allocation *all = p->allocations->all;
    const bp_trace_step *first = bp_steps_steady(p->steps), *last = &p->steps->steps[p->steps->count - 1];
    uint64_t outside = 0;
    size_t next = p->allocations->live_at_start;
    bp_step_plan *plan = p->plan;
    for (size_t i = 0; i < p->allocations->count; i++) {
        if (is_persistent(p, &all[i]))
            plan->persistent_bytes += bp_step_round(all[i].bytes);
    }
    for (size_t i = 0; i < next; i++)
        outside += is_persistent(p, &all[i]) ? 0 : bp_step_round(all[i].bytes);
    for (uint32_t event = 0; event < last->end; event++) {
        uint32_t ended = p->ends[event];
        if (ended != BP_TRACE_NONE && !is_persistent(p, &all[ended]) && !has_offset(p, ended))
            outside -= bp_step_round(all[ended].bytes);
        if (next < p->allocations->count && all[next].begin == event) {
            if (!is_persistent(p, &all[next]) && !has_offset(p, next))
                outside += bp_step_round(all[next].bytes);
            next++;
        }
        if (event >= first->begin && outside > plan->outside_bytes)
            plan->outside_bytes = outside;
    }
    for (const bp_trace_step *step = first; step <= last; step++)
        plan->lower_bound_bytes =
            step->peak_bytes > plan->lower_bound_bytes ? step->peak_bytes : plan->lower_bound_bytes;
}

bp_status bp_step_plan_init(const bp_trace *trace, const bp_allocations *allocations, const bp_steps *steps,
                            uint64_t work, bp_step_plan *plan)
{
    if (steps->count == 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "step plan: the trace has no steps to plan");
    bp_step_plan made = {.kind_count = steps->kind_count, .optimal = 1};
    planner p = {.trace = trace, .allocations = allocations, .steps = steps, .work = work, .plan = &made};
    bp_status status = bp_allocations_ends(trace, allocations, &p.ends);
    for (uint32_t kind = 0; kind < steps->kind_count && status == BP_OK; kind++)
        status = plan_kind(&p, kind, &made.kinds[kind]);
    if (status == BP_OK) {
        uint64_t proven = 0;
        for (size_t i = 0; i < made.kind_count; i++) {
            made.bytes = made.kinds[i].bytes > made.bytes ? made.kinds[i].bytes : made.bytes;
            proven = made.kinds[i].proven_bytes > proven ? made.kinds[i].proven_bytes : proven;
        }
        made.optimal = proven == made.bytes;
        status = verify(&p);
    }
    if (status == BP_OK) {
        measure_rest(&p);
        made.total_bytes = made.persistent_bytes + made.bytes + made.outside_bytes;
    }
    free(p.ends);
    if (status == BP_OK)
        *plan = made;
    else
        bp_step_plan_finish(&made);
    return status;
}

void bp_step_plan_finish(bp_step_plan *plan)
{
    for (size_t i = 0; i < plan->kind_count; i++)
        free(plan->kinds[i].items);
    *plan = (bp_step_plan){0};
}
