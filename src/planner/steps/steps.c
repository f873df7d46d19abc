/* SPDX-License-Identifier: Apache-2.0 */
/* The steps of a trace: marked, repeated, or the whole trace; and their kinds. */
#include <bucketpool/core/fail.h>

#include <stdlib.h>
#include <string.h>

#include "planner/steps/step_finder.h"

/* ---- live bytes ---------------------------------------------------------------------------------------------------- */

/* Live bytes before each allocation and at the end, rounded, and the peak of the trace. */
static void sweep(const bp_step_finder *f)
{
    const bp_allocation *all = f->allocations->all;
    uint64_t bytes = 0;
    size_t next = 0;
    for (size_t i = 0; i < f->allocations->live_at_start; i++)
        bytes += bp_step_round(all[i].bytes);
    f->steps->peak_bytes = bytes;
    f->steps->peak_event = BP_TRACE_NONE;
    for (uint32_t event = 0; event < f->trace->event_count; event++) {
        if (f->ends[event] != BP_TRACE_NONE)
            bytes -= bp_step_round(all[f->ends[event]].bytes);
        if (next < f->count && f->made[next].begin == event) {
            f->live[next] = bytes;
            bytes += bp_step_round(f->made[next++].bytes);
        }
        if (bytes > f->steps->peak_bytes || (event == 0 && bytes == f->steps->peak_bytes)) {
            f->steps->peak_bytes = bytes;
            f->steps->peak_event = event;
        }
    }
    f->live[f->count] = bytes;
}

static void measure_step(const bp_step_finder *f, bp_trace_step *step)
{
    const bp_allocation *all = f->allocations->all;
    size_t next = step->first - f->allocations->live_at_start;
    uint64_t bytes = f->live[next];
    step->begin_bytes = step->peak_bytes = bytes;
    step->peak_event = step->begin;
    for (uint32_t event = step->begin; event < step->end; event++) {
        if (f->ends[event] != BP_TRACE_NONE && event > step->begin) /* live[next] is without it */
            bytes -= bp_step_round(all[f->ends[event]].bytes);
        if (next < f->count && f->made[next].begin == event)
            bytes += bp_step_round(f->made[next++].bytes);
        if (bytes > step->peak_bytes) {
            step->peak_bytes = bytes;
            step->peak_event = event;
        }
    }
}

size_t bp_steps_between(const bp_step_finder *f, const size_t *cuts, size_t count, bp_trace_step *steps)
{
    size_t made = 0;
    for (size_t i = 0; i + 1 < count; i++) {
        if (cuts[i] == cuts[i + 1])
            continue;
        steps[made] = (bp_trace_step){.first = f->allocations->live_at_start + cuts[i],
                                      .count = cuts[i + 1] - cuts[i],
                                      .begin = f->made[cuts[i]].begin,
                                      .end = cuts[i + 1] < f->count ? f->made[cuts[i + 1]].begin
                                                                    : (uint32_t)f->trace->event_count};
        measure_step(f, &steps[made++]);
    }
    return made;
}

/* ---- kinds --------------------------------------------------------------------------------------------------------- */

/* From the last step back, the trace's last one at the end, because what is live then may end later: a step is of the
 * first kind whose reference has nine of ten of its allocations, else of a new kind. */
static bp_status sort_kinds(const bp_step_finder *f)
{
    bp_steps *s = f->steps;
    size_t longest = 0;
    for (size_t i = 0; i < s->count; i++)
        longest = s->steps[i].count > longest ? s->steps[i].count : longest;
    uint32_t *orders = malloc((longest + 1) * sizeof *orders);
    s->orders = malloc((f->allocations->count + 1) * sizeof *s->orders);
    if (orders == NULL || s->orders == NULL) {
        free(orders);
        return bp_fail_memory((f->allocations->count + longest) * sizeof *orders);
    }
    memset(s->orders, 0xff, (f->allocations->count + 1) * sizeof *s->orders);
    for (size_t left = s->count; left-- > 0;) {
        const size_t i = (left + s->count - 1) % s->count;
        bp_trace_step *step = &s->steps[i];
        bool is_known = false;
        for (uint32_t kind = 0; kind <= s->kind_count && !is_known; kind++) {
            if (kind == s->kind_count && kind < BP_STEP_MAX_KINDS)
                s->kinds[s->kind_count++] = (bp_step_kind){.reference = i, .allocations = step->count};
            else if (kind == s->kind_count)
                break;
            const bp_trace_step *reference = &s->steps[s->kinds[kind].reference];
            size_t matched = bp_steps_align(f, step, reference, orders);
            size_t longer = step->count > reference->count ? step->count : reference->count;
            is_known = matched >= longer - longer / 10;
            /* With as many kinds as there can be, other steps are of the one that is most alike. */
            if (is_known || (s->kind_count == BP_STEP_MAX_KINDS && matched > step->matched)) {
                step->kind = kind;
                step->matched = matched;
                memcpy(&s->orders[step->first], orders, step->count * sizeof *orders);
            }
        }
        s->kinds[step->kind].steps++;
        s->allocations += step->count;
        s->matched += step->matched;
    }
    free(orders);
    return BP_OK;
}

/* ---- all ----------------------------------------------------------------------------------------------------------- */

/* The steps between cuts, which `count` says; none if count is less than 2. */
static bp_status take_cuts(const bp_step_finder *f, const size_t *cuts, size_t count, bp_steps_source source)
{
    if (count < 2)
        return BP_OK;
    bp_trace_step *steps = calloc(count, sizeof *steps);
    if (steps == NULL)
        return bp_fail_memory(count * sizeof *steps);
    f->steps->steps = steps;
    f->steps->count = bp_steps_between(f, cuts, count, steps);
    f->steps->source = source;
    return BP_OK;
}

static bp_status find_in_order(const bp_step_finder *f)
{
    size_t *cuts = malloc((f->trace->annotation_count + f->trace->mark_count + 3) * sizeof *cuts), count = 0;
    const size_t whole[] = {0, f->count};
    if (cuts == NULL)
        return bp_fail_memory(f->trace->annotation_count * sizeof *cuts);
    sweep(f);
    bp_status status = bp_steps_cut_at_marks(f, cuts, &count);
    if (status == BP_OK)
        status = take_cuts(f, cuts, count, BP_STEPS_MARKED);
    free(cuts);
    if (status == BP_OK && f->steps->count == 0) {
        free(f->steps->steps);
        f->steps->steps = NULL;
        f->steps->source = BP_STEPS_REPEATED;
        status = bp_steps_find_period(f);
    }
    if (status == BP_OK && f->steps->count == 0)
        status = take_cuts(f, whole, 2, BP_STEPS_WHOLE);
    return status == BP_OK ? sort_kinds(f) : status;
}

bp_status bp_steps_init(const bp_trace *trace, const bp_allocations *allocations, const bp_stack_places *places,
                        bp_steps *steps)
{
    bp_steps found = {0};
    bp_step_finder f = {.trace = trace,
                        .allocations = allocations,
                        .made = allocations->all + allocations->live_at_start,
                        .count = allocations->count - allocations->live_at_start,
                        .places = places,
                        .steps = &found};
    f.tokens = malloc((f.count + 1) * sizeof *f.tokens);
    f.live = malloc((f.count + 1) * sizeof *f.live);
    bp_status status = f.tokens == NULL || f.live == NULL ? bp_fail_memory(f.count * 2 * sizeof *f.tokens)
                                                          : bp_allocations_ends(trace, allocations, &f.ends);
    for (size_t i = 0; i < f.count && status == BP_OK; i++)
        f.tokens[i] = bp_step_mix(bp_step_round(f.made[i].bytes) ^ bp_step_mix(f.made[i].stream + 1u));
    if (status == BP_OK)
        status = bp_steps_find_optimizer_ends(&f);
    if (status == BP_OK)
        status = find_in_order(&f);
    free(f.tokens);
    free(f.live);
    free(f.ends);
    if (status == BP_OK)
        *steps = found;
    else
        bp_steps_finish(&found);
    return status;
}

void bp_steps_finish(bp_steps *steps)
{
    free(steps->steps);
    free(steps->orders);
    free(steps->optimizer_ends);
    *steps = (bp_steps){0};
}
