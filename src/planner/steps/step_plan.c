/* SPDX-License-Identifier: Apache-2.0 */
/* Plans the memory of training steps: one address for each allocation, valid in all recorded steps. */
#include <stdlib.h>
#include <string.h>

#include <bucketpool/core/fail.h>
#include <bucketpool/core/structs.h>
#include <bucketpool/pack.h>

#include "core/memory.h"
#include "planner/steps/planner.h"

/* ---- verification -------------------------------------------------------------------------------------------------- */

enum { MAX_FAULTS = 32 };

/* The item of an allocation, or NULL. `by_first`: also of the first step of the process, else only of other steps. */
static bp_step_plan_item *item_of(const bp_step_planner *p, bool by_first, size_t allocation)
{
    const bp_steps *s = p->steps;
    size_t low = 0, high = s->count;
    if (by_first && allocation >= p->first.first && allocation - p->first.first < p->first.count)
        return &p->items[p->kind_count - 1][allocation - p->first.first];
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        *(s->steps[middle].first <= allocation ? &low : &high) = middle;
    }
    const bp_trace_step *step = &s->steps[low];
    if (allocation < step->first || allocation >= step->first + step->count)
        return NULL;
    const uint32_t kind = p->kind_of[step->kind], order = s->orders[allocation];
    return kind == BP_TRACE_NONE || order == BP_TRACE_NONE ? NULL : &p->items[kind][order];
}

/* True if the plan has an offset for this allocation of a step. */
static bool has_offset(const bp_step_planner *p, bool by_first, size_t allocation)
{
    const bp_step_plan_item *item = item_of(p, by_first, allocation);
    return item != NULL && item->offset != BP_STEP_OUTSIDE;
}

static void drop_all(const bp_step_planner *p)
{
    for (size_t k = 0; k < p->kind_count; k++) {
        for (size_t i = 0; i < p->kinds[k].item_count; i++)
            p->items[k][i].offset = BP_STEP_OUTSIDE;
    }
}

/* Finds two allocations that are live together at one address, in the time of the trace. `offsets`: room for all. */
static bp_status find_fault(const bp_step_planner *p, bool by_first, uint64_t bytes, uint64_t *offsets,
                            bp_packing_fault *fault)
{
    const bp_allocations *a = p->allocations;
    bp_packing *packing = NULL;
    bp_status status = bp_packing_create(&packing);
    for (size_t i = 0; i < a->count && status == BP_OK; i++) {
        const bool is_in = has_offset(p, by_first, i);
        const uint64_t begin = a->all[i].begin, stop = bp_step_stop(p, &a->all[i]);
        offsets[i] = is_in ? item_of(p, by_first, i)->offset : 0;
        status = bp_packing_add_item(packing, is_in ? bp_step_round(a->all[i].bytes) : 0, NULL);
        if (status == BP_OK && is_in && begin < stop)
            status = bp_packing_add_interval(packing, i, begin, stop);
    }
    if (status == BP_OK)
        status = bp_packing_find_fault(packing, offsets, bytes, fault);
    bp_packing_destroy(&packing);
    return status;
}

/* Checks the offsets against all steps. Of two items that overlap, the smaller one is outside; after MAX_FAULTS of them
 * all items are. */
static bp_status verify(const bp_step_planner *p, bool by_first, uint64_t bytes)
{
    uint64_t *offsets = calloc(p->allocations->count + 1, sizeof *offsets);
    bp_packing_fault fault = {.size = sizeof fault, .found = 1};
    if (offsets == NULL)
        return bp_fail_memory(p->allocations->count * sizeof *offsets);
    bp_status status = BP_OK;
    for (size_t faults = 0; status == BP_OK && fault.found; faults++) {
        if (faults == MAX_FAULTS)
            drop_all(p);
        status = find_fault(p, by_first, bytes, offsets, &fault);
        if (status != BP_OK || !fault.found)
            continue;
        bp_step_plan_item *const item = item_of(p, by_first, fault.item), *const other =
                                                                              item_of(p, by_first, fault.other);
        (item->bytes < other->bytes ? item : other)->offset = BP_STEP_OUTSIDE;
    }
    free(offsets);
    return status;
}

/* ---- marks and places ---------------------------------------------------------------------------------------------- */

/* The ends of optimizers in a kind's reference step. *marks: room for all that the trace has. */
static void find_marks(bp_step_planner *p, uint32_t kind, uint32_t *marks)
{
    const bp_trace_step *step = &p->references[kind];
    size_t count = 0;
    for (size_t i = 0; i < p->steps->optimizer_end_count; i++) {
        const size_t at = p->steps->optimizer_ends[i];
        if (at >= step->first && at < step->first + step->count)
            marks[count++] = (uint32_t)(at - step->first);
    }
    p->kinds[kind].marks = marks;
    p->kinds[kind].mark_count = count;
}

enum { PLACE_CHARS = 256 };

typedef struct named_stack {
    char name[PLACE_CHARS];
    uint32_t stack;
} named_stack;

static int by_name(const void *left, const void *right)
{
    return strcmp(((const named_stack *)left)->name, ((const named_stack *)right)->name);
}

/* The lines of code that allocate items. `places` has them by number and `named` keeps their texts. */
static bp_status find_places(const bp_step_planner *p, const bp_stack_places *stacks, named_stack **named,
                             const char ***places, size_t *count)
{
    const size_t stack_count = stacks != NULL ? p->trace->stack_count : 0;
    void *numbers = NULL, *texts = NULL, *all = NULL;
    size_t used = 0;
    bp_status status = bp_new_array(stack_count, sizeof(uint32_t), &numbers);
    if (status == BP_OK)
        status = bp_new_array(stack_count, sizeof(char *), &texts);
    uint32_t *number = numbers;
    for (uint32_t pass = 0; pass < 2 && status == BP_OK; pass++) { /* counts the stacks of items, then names them */
        if (pass > 0)
            status = bp_new_array(used, sizeof(named_stack), &all);
        for (size_t i = 0; i < stack_count && pass > 0 && status == BP_OK; i++) {
            if (number[i] == 0)
                continue;
            named_stack *each = &((named_stack *)all)[number[i] - 1];
            each->stack = (uint32_t)i;
            bp_trace_frame_name(stacks->all[i].frame, true, each->name, sizeof each->name);
        }
        for (uint32_t k = 0; k < p->kind_count && pass == 0; k++) {
            for (size_t i = 0; i < p->kinds[k].item_count; i++) {
                const uint32_t stack = p->allocations->all[p->references[k].first + i].stack;
                if (stack < stack_count && stacks->all[stack].frame != NULL && number[stack] == 0)
                    number[stack] = (uint32_t)++used;
            }
        }
    }
    *named = all;
    *places = texts;
    *count = 0;
    if (status == BP_OK && used > 0) {
        qsort(all, used, sizeof(named_stack), by_name);
        for (size_t i = 0; i < used; i++) {
            const named_stack *each = &((named_stack *)all)[i];
            if (i == 0 || strcmp(each->name, (*places)[*count - 1]) != 0)
                (*places)[(*count)++] = each->name;
            number[each->stack] = (uint32_t)*count;
        }
    }
    for (uint32_t k = 0; k < p->kind_count && status == BP_OK; k++) {
        for (size_t i = 0; i < p->kinds[k].item_count; i++) {
            const uint32_t stack = p->allocations->all[p->references[k].first + i].stack;
            if (stack < stack_count && number[stack] > 0)
                p->items[k][i].place = number[stack] - 1;
        }
    }
    free(numbers);
    return status;
}

/* ---- sums ---------------------------------------------------------------------------------------------------------- */

static uint64_t persistent_bytes(const bp_step_planner *p)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < p->allocations->count; i++) {
        const bp_allocation *a = &p->allocations->all[i];
        bytes += bp_step_is_persistent(p, a) ? bp_step_round(a->bytes) : 0;
    }
    return bytes;
}

/* The peak of what is neither persistent nor planned, during the steps after the first, in which
 * memory from before it may be live. */
static bp_status measure_rest(const bp_step_planner *p, bp_step_plan_info *info)
{
    const bp_allocation *all = p->allocations->all;
    const bp_trace_step *first = bp_steps_steady(p->steps), *last = &p->steps->steps[p->steps->count - 1];
    uint64_t outside = 0;
    uint32_t *ends = NULL;
    size_t next = p->allocations->live_at_start;
    BP_TRY(bp_allocations_ends(p->trace, p->allocations, &ends));
    for (size_t i = 0; i < next; i++)
        outside += bp_step_is_persistent(p, &all[i]) ? 0 : bp_step_round(all[i].bytes);
    for (uint32_t event = 0; event < last->end; event++) {
        uint32_t ended = ends[event];
        if (ended != BP_TRACE_NONE && !bp_step_is_persistent(p, &all[ended]) && !has_offset(p, false, ended))
            outside -= bp_step_round(all[ended].bytes);
        if (next < p->allocations->count && all[next].begin == event) {
            if (!bp_step_is_persistent(p, &all[next]) && !has_offset(p, false, next))
                outside += bp_step_round(all[next].bytes);
            next++;
        }
        if (event >= first->begin && outside > info->outside_bytes)
            info->outside_bytes = outside;
    }
    for (const bp_trace_step *step = first; step <= last; step++)
        info->peak_live_bytes = step->peak_bytes > info->peak_live_bytes ? step->peak_bytes : info->peak_live_bytes;
    free(ends);
    return BP_OK;
}

uint64_t bp_trace_reserved(const bp_trace *trace, uint32_t event, uint64_t *at_event)
{
    uint64_t bytes = 0, max = 0;
    *at_event = 0;
    for (size_t i = 0; i < trace->segment_count; i++)
        bytes += trace->segments[i].bytes;
    for (size_t behind = trace->event_count; behind > 0; behind--) {
        const size_t i = behind - 1;
        const bp_trace_event *e = &trace->events[i];
        bool more = e->action == BP_TRACE_SEGMENT_ALLOC || e->action == BP_TRACE_SEGMENT_MAP;
        bool less = e->action == BP_TRACE_SEGMENT_FREE || e->action == BP_TRACE_SEGMENT_UNMAP;
        if (i == event)
            *at_event = bytes;
        max = bytes > max ? bytes : max;
        if (more)
            bytes -= e->bytes < bytes ? e->bytes : bytes;
        else if (less)
            bytes += e->bytes;
    }
    if (event == BP_TRACE_NONE)
        *at_event = bytes;
    return bytes > max ? bytes : max;
}

/* ---- all ----------------------------------------------------------------------------------------------------------- */

static bp_status check_config(const bp_step_plan_config *config)
{
    if (config->held_count > 0 && config->held == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "step plan: %zu held ranges, but `held` is NULL", config->held_count);
    for (size_t i = 0; i < config->held_count; i++) {
        const bp_step_held *held = &config->held[i];
        if (held->offset % BP_STEP_ALIGNMENT != 0 || held->bytes % BP_STEP_ALIGNMENT != 0 ||
            held->bytes > UINT64_MAX / 2 || held->offset > UINT64_MAX / 2)
            return bp_fail(BP_ERR_INVALID_ARGUMENT,
                           "step plan: held range %zu has %llu bytes at %llu; both are multiples of %u, below 2^63", i,
                           (unsigned long long)held->bytes, (unsigned long long)held->offset, BP_STEP_ALIGNMENT);
    }
    return BP_OK;
}

/* By event, the allocation whose memory may be used again from there on. */
static bp_status find_stops(bp_step_planner *p)
{
    const size_t count = p->trace->event_count + 1;
    p->ends = malloc(count * sizeof *p->ends);
    if (p->ends == NULL)
        return bp_fail_memory(count * sizeof *p->ends);
    memset(p->ends, 0xff, count * sizeof *p->ends);
    for (size_t i = 0; i < p->allocations->count; i++)
        p->ends[bp_step_stop(p, &p->allocations->all[i])] = (uint32_t)i;
    p->ends[p->trace->event_count] = BP_TRACE_NONE;
    return BP_OK;
}

/* The stream with most allocations, the first of several. */
static bool find_main_stream(bp_step_planner *p)
{
    size_t counts[BP_STEP_PLAN_STREAMS] = {0}, used = 0;
    for (size_t k = 0; k < p->kind_count; k++) {
        for (size_t i = 0; i < p->kinds[k].item_count; i++)
            used += counts[p->items[k][i].stream]++ == 0;
    }
    for (uint32_t i = 1; i < BP_STEP_PLAN_STREAMS; i++)
        p->main_stream = counts[i] > counts[p->main_stream] ? i : p->main_stream;
    return used > 1;
}

/* Windows of BP_STEP_LEAD_AUTO cost at most a fiftieth of the memory that the steps take without them. */
enum { WINDOWS_SHARE = 50 };

/* A placement with windows, after one without: with shorter ones, if those of BP_STEP_LEAD_AUTO cost more than they may,
 * because a search within its limit of work does not find places for them. */
static bp_status place_windows(bp_step_planner *p, uint64_t persistent, bp_step_placement *without,
                               bp_step_placement *placement)
{
    const bool is_limited = p->config.lead == BP_STEP_LEAD_AUTO;
    p->windows_limit = is_limited ? without->bytes + (without->bytes + persistent) / WINDOWS_SHARE : UINT64_MAX;
    for (p->shortening = 1; p->shortening <= 16; p->shortening *= 4) {
        BP_TRY(bp_step_planner_place(p, true, placement));
        if (placement->bytes <= p->windows_limit)
            return BP_OK;
        bp_step_placement_finish(placement);
    }
    *placement = *without;
    *without = (bp_step_placement){.bytes = placement->bytes};
    return BP_OK;
}

static size_t count_outside(const bp_step_planner *p, uint32_t kind)
{
    size_t count = 0;
    for (size_t i = 0; i < p->kinds[kind].item_count; i++)
        count += p->items[kind][i].offset == BP_STEP_OUTSIDE;
    return count;
}

/* A kind some of whose items verify() put outside: what was proven counted them. */
static bp_status measure_again(bp_step_planner *p, uint32_t kind_number, bool has_windows)
{
    bp_step_plan_kind *kind = &p->kinds[kind_number];
    BP_TRY(bp_step_planner_bound(p, kind_number, has_windows, &kind->lower_bound_bytes));
    kind->proven_bytes = kind->lower_bound_bytes;
    kind->bytes = 0;
    for (size_t i = 0; i < kind->item_count; i++) {
        const bp_step_plan_item *item = &p->items[kind_number][i];
        const uint64_t end = item->offset == BP_STEP_OUTSIDE ? 0 : item->offset + bp_step_round(item->bytes);
        kind->bytes = end > kind->bytes ? end : kind->bytes;
    }
    return BP_OK;
}

/* Items get the offsets of a placement, unless steps contradict them. */
static bp_status take_placement(bp_step_planner *p, const bp_step_placement *placement)
{
    size_t outside[BP_STEP_PLAN_KINDS] = {0};
    for (uint32_t k = 0; k < p->kind_count; k++) {
        bp_step_plan_kind *kind = &p->kinds[k];
        kind->bytes = placement->ends[k];
        kind->lower_bound_bytes = placement->bounds[k];
        kind->proven_bytes = placement->proven[k];
        kind->method = placement->methods[k];
        for (size_t i = 0; i < kind->item_count; i++)
            p->items[k][i].offset =
                p->items[k][i].offset == BP_STEP_OUTSIDE ? BP_STEP_OUTSIDE : placement->offsets[k][i];
        outside[k] = count_outside(p, k);
    }
    BP_TRY(verify(p, false, placement->bytes));
    if (p->has_first)
        BP_TRY(verify(p, true, placement->bytes));
    for (uint32_t k = 0; k < p->kind_count; k++) {
        if (count_outside(p, k) > outside[k])
            BP_TRY(measure_again(p, k, placement->has_windows));
    }
    return BP_OK;
}

/* Items get offsets in the slab. */
static bp_status place_items(bp_step_planner *p, bp_step_plan_info *info)
{
    const bool has_windows = find_main_stream(p) && p->config.lead > 0;
    bp_step_placement placement = {0}, without = {0};
    bp_status status = bp_step_planner_place(p, false, has_windows ? &without : &placement);
    if (status == BP_OK && has_windows)
        status = place_windows(p, info->persistent_bytes, &without, &placement);
    if (status == BP_OK)
        status = take_placement(p, &placement);
    uint64_t proven = 0;
    for (size_t k = 0; k < p->kind_count && status == BP_OK; k++) {
        const bp_step_plan_kind *kind = &p->kinds[k];
        proven = kind->proven_bytes > proven ? kind->proven_bytes : proven;
        info->lower_bound_bytes =
            kind->lower_bound_bytes > info->lower_bound_bytes ? kind->lower_bound_bytes : info->lower_bound_bytes;
        info->bytes = kind->bytes > info->bytes ? kind->bytes : info->bytes;
    }
    for (size_t i = 0; i < p->config.held_count; i++) {
        const uint64_t end = p->config.held[i].offset + p->config.held[i].bytes;
        info->bytes = end > info->bytes ? end : info->bytes;
    }
    info->bytes_without_windows = has_windows && without.bytes < info->bytes ? without.bytes : info->bytes;
    info->optimal = proven == info->bytes;
    bp_step_placement_finish(&placement);
    bp_step_placement_finish(&without);
    return status;
}

/* Fills the contents, and makes the plan. */
static bp_status make_plan(bp_step_planner *p, const bp_stack_places *stacks, bp_step_plan_info *info,
                           bp_step_plan **plan)
{
    bp_step_plan_waits waits[BP_STEP_PLAN_STREAMS * BP_STEP_PLAN_STREAMS];
    named_stack *named = NULL;
    const char **places = NULL;
    uint32_t *marks = malloc((p->kind_count * p->steps->optimizer_end_count + 1) * sizeof *marks);
    bp_status status =
        marks == NULL ? bp_fail_memory(p->kind_count * p->steps->optimizer_end_count * sizeof *marks) : BP_OK;
    for (uint32_t k = 0; k < p->kind_count && status == BP_OK; k++)
        find_marks(p, k, marks + k * p->steps->optimizer_end_count);
    if (status == BP_OK)
        status = find_places(p, stacks, &named, &places, &info->place_count);
    if (status == BP_OK)
        status = bp_step_planner_order_streams(p, p->trace->stream_count, waits, &info->waits_count);
    if (status == BP_OK) {
        uint64_t at_peak = 0;
        const uint64_t reserved = bp_trace_reserved(p->trace, p->steps->peak_event, &at_peak);
        info->reserved_before_bytes = p->config.reserved_before_bytes;
        if (info->reserved_before_bytes == 0 && at_peak >= p->steps->peak_bytes)
            info->reserved_before_bytes = reserved;
        bp_step_plan_info all = *info;
        all.kinds = p->kinds;
        all.kind_count = p->kind_count;
        all.streams = p->trace->streams;
        all.stream_count = p->trace->stream_count;
        all.waits = waits;
        all.places = places;
        status = bp_step_plan_from_info(&all, plan);
    }
    free(marks);
    free(named);
    free((void *)places);
    return status;
}

bp_status bp_step_plan_trace(const bp_trace *trace, const bp_allocations *allocations, const bp_stack_places *places,
                             const bp_steps *steps, const bp_step_plan_config *config,
                             bp_trace_step references[BP_STEP_PLAN_KINDS], bp_step_plan **plan)
{
    bp_step_planner p = {.trace = trace, .allocations = allocations, .steps = steps};
    bp_step_plan_info info = {0};
    BP_TRY(bp_step_plan_config_init(&p.config, sizeof p.config));
    BP_TRY(bp_struct_read("bp_step_plan_create", config, true, &p.config, sizeof p.config));
    BP_TRY(check_config(&p.config));
    if (steps->count == 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "step plan: the trace has no steps to plan");
    if (trace->stream_count > BP_STEP_PLAN_STREAMS)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "step plan: %zu streams; at most %u are possible", trace->stream_count,
                       BP_STEP_PLAN_STREAMS);
    bp_status status = find_stops(&p);
    if (status == BP_OK)
        status = bp_step_planner_find_kinds(&p);
    if (status == BP_OK)
        info.persistent_bytes = persistent_bytes(&p);
    if (status == BP_OK)
        status = place_items(&p, &info);
    if (status == BP_OK)
        status = measure_rest(&p, &info);
    if (status == BP_OK)
        status = make_plan(&p, places, &info, plan);
    if (status == BP_OK && references != NULL)
        memcpy(references, p.references, sizeof p.references);
    for (size_t i = 0; i < BP_STEP_PLAN_KINDS; i++)
        free(p.items[i]);
    free(p.ends);
    return status;
}

bp_status bp_step_plan_config_init(bp_step_plan_config *config, size_t size)
{
    const bp_step_plan_config defaults = {.size = sizeof defaults, .lead = BP_STEP_LEAD_AUTO, .is_from_start = 1};
    return bp_struct_init("bp_step_plan_config_init", config, size, &defaults, sizeof defaults);
}
