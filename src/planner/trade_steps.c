/* Steps whose overlap is given up, chosen greedily at the peak of the live sums.
 *
 * In a chosen step every use keeps what compute needs: a gather ahead begins after it, a reduction has ended before it. Where
 * one step lowers the sum of the slabs' peaks, the one that lowers it most is chosen, the earliest of several. Where none does,
 * because a slab has several peaks, the peaks of one slab are given up together, if that many stalls are left. What that cuts in
 * vain is given back in the end. */
#include "planner/trade_sums.h"

#include <stdlib.h>
#include <string.h>

#include "core/fail.h"

/* ---- one step ------------------------------------------------------------------------------------------------------ */

static bool is_peak(const bp_step_trade *t, uint32_t step)
{
    for (uint32_t k = 0; k < t->trade->slab_count; k++)
        if (t->slabs[k].peak > 0 && t->slabs[k].live[step] == t->slabs[k].peak)
            return true;
    return false;
}

/* Whether giving up the step changes all peaks of some slab. */
static bool may_lower(const bp_step_trade *t, uint32_t step)
{
    uint32_t first = step, end = step + 1;
    for (uint32_t i = 0; i < t->sweep.active_count; i++) {
        const bp_use *use = &t->s->uses[t->sweep.active[i] / 2];
        if (t->sweep.active[i] % 2)
            end = use->end > end ? use->end : end;
        else
            first = use->begin < first ? use->begin : first;
    }
    for (uint32_t k = 0; k < t->trade->slab_count; k++)
        if (t->slabs[k].peak > 0 && first <= t->slabs[k].first_peak && t->slabs[k].last_peak < end)
            return true;
    return false;
}

/* The value without the overlap of the step. */
static uint64_t value_without(bp_step_trade *t, uint32_t step)
{
    for (uint32_t i = 0; i < t->sweep.active_count; i++) {
        uint32_t span = t->span_of_use[t->sweep.active[i] / 2];
        if (t->seen_at[span] == step + 1)
            continue;
        t->seen_at[span] = step + 1;
        bp_trade_add_live(t, span, BP_NO_STEP, -t->trade->bytes_of_span[span]);
        bp_trade_add_live(t, span, step, t->trade->bytes_of_span[span]);
        bp_trade_spend(t->trade, 2 * t->s->spans[span].use_count);
    }
    uint64_t value = 0;
    for (uint32_t k = 0; k < t->trade->slab_count; k++) {
        bp_slab_sums *slab = &t->slabs[k];
        uint64_t changed = 0, peak = 0;
        for (size_t i = 0; i < t->s->step_count; i++) {
            changed += slab->change[i];
            slab->change[i] = 0;
            peak = slab->live[i] + changed > peak ? slab->live[i] + changed : peak;
        }
        slab->change[t->s->step_count] = 0;
        value += peak;
    }
    bp_trade_spend(t->trade, t->trade->slab_count * t->s->step_count);
    return value;
}

/* The step that lowers the value most, BP_NO_STEP where none does. */
static uint32_t find_step(bp_step_trade *t)
{
    uint32_t best = BP_NO_STEP;
    uint64_t least = t->value;
    memset(t->seen_at, 0, t->s->span_count * sizeof *t->seen_at);
    bp_trade_begin_sweep(t);
    for (uint32_t step = 0; step < t->s->step_count && t->trade->work > 0; step++) {
        if (!is_peak(t, step))
            continue;
        bp_trade_sweep_to(t, step);
        if (!may_lower(t, step))
            continue;
        uint64_t value = value_without(t, step);
        if (value < least) {
            least = value;
            best = step;
        }
    }
    return best;
}

/* ---- all peaks of a slab --------------------------------------------------------------------------------------------- */

static bp_status choose(bp_step_trade *t, uint32_t step)
{
    BP_TRY(bp_grow_array((void **)&t->chosen, &t->chosen_capacity, t->chosen_count, sizeof *t->chosen));
    t->chosen[t->chosen_count++] = step;
    return BP_OK;
}

/* Gives up the slab's peaks one by one from the first, up to where a reduction that no longer drains may have lowered one. Counts
 * them; none, or more than `most`, where that does not lead further. */
static bp_status give_up_peaks(bp_step_trade *t, uint32_t slab, uint32_t most, uint32_t *given_up)
{
    uint32_t reached = 0;
    uint64_t peak = t->slabs[slab].peak;
    *given_up = 0;
    bp_trade_begin_sweep(t);
    for (uint32_t step = t->slabs[slab].first_peak; step <= t->slabs[slab].last_peak && *given_up <= most; step++) {
        if (t->slabs[slab].live[step] != peak)
            continue;
        if (step < reached)
            return BP_OK;
        bp_trade_sweep_to(t, step);
        if (t->sweep.active_count == 0) {
            *given_up = 0;
            return BP_OK;
        }
        for (uint32_t i = 0; i < t->sweep.active_count; i++) {
            bp_use *use = &t->s->uses[t->sweep.active[i] / 2];
            if (t->sweep.active[i] % 2)
                reached = use->end > reached ? use->end : reached;
            *use = bp_cut_use(*use, step);
        }
        BP_TRY(choose(t, step));
        ++*given_up;
    }
    return BP_OK;
}

/* Whether the slab's peak falls with the stalls that are left; if so they are chosen and the uses cut. */
static bp_status lower_slab(bp_step_trade *t, uint32_t slab, bool *lowered)
{
    uint64_t peak = t->slabs[slab].peak;
    uint32_t left = t->trade->stalls, given_up = 1;
    *lowered = false;
    while (t->slabs[slab].peak == peak && given_up > 0 && t->trade->work > 0) {
        BP_TRY(give_up_peaks(t, slab, left, &given_up));
        if (given_up > left)
            return BP_OK;
        left -= given_up;
        bp_trade_measure(t);
    }
    *lowered = t->slabs[slab].peak < peak;
    return BP_OK;
}

/* Forgets what was chosen since. */
static void go_back(bp_step_trade *t, size_t chosen_count)
{
    memcpy(t->s->uses, t->saved, t->s->use_count * sizeof *t->saved);
    t->chosen_count = chosen_count;
    bp_trade_measure(t);
}

/* Lowers the slab that lowers the value most, with the fewest stalls where several do. */
static bp_status choose_peaks(bp_step_trade *t, bool *lowered)
{
    size_t before = t->chosen_count, fewest = 0;
    uint32_t best = BP_NO_SLAB;
    uint64_t least = t->value;
    memcpy(t->saved, t->s->uses, t->s->use_count * sizeof *t->saved);
    for (uint32_t k = 0; k < t->trade->slab_count; k++) {
        bool falls = false;
        if (t->slabs[k].peak > 0)
            BP_TRY(lower_slab(t, k, &falls));
        size_t count = t->chosen_count - before;
        if (falls && (t->value < least || (t->value == least && best != BP_NO_SLAB && count < fewest))) {
            best = k;
            least = t->value;
            fewest = count;
        }
        go_back(t, before);
    }
    *lowered = false;
    if (best != BP_NO_SLAB)
        BP_TRY(lower_slab(t, best, lowered));
    if (*lowered)
        t->trade->stalls -= (uint32_t)(t->chosen_count - before);
    else
        go_back(t, before);
    return BP_OK;
}

static bp_status choose_steps(bp_step_trade *t)
{
    bool lowered = true;
    bp_trade_measure(t);
    while (lowered && t->trade->stalls > 0 && t->trade->work > 0) {
        uint32_t step = find_step(t);
        if (step == BP_NO_STEP) {
            BP_TRY(choose_peaks(t, &lowered));
            continue;
        }
        BP_TRY(choose(t, step));
        for (uint32_t i = 0; i < t->s->use_count; i++)
            if (t->trade->slab_of_span[t->span_of_use[i]] != BP_NO_SLAB)
                t->s->uses[i] = bp_cut_use(t->s->uses[i], step);
        t->trade->stalls--;
        bp_trade_measure(t);
    }
    return BP_OK;
}

/* ---- all of it ------------------------------------------------------------------------------------------------------ */

static int by_value(const void *a, const void *b)
{
    const uint32_t *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

bp_status bp_trade_steps(bp_trade *trade)
{
    bp_step_trade t;
    bp_status status = bp_step_trade_init(trade, &t);
    if (status == BP_OK)
        status = choose_steps(&t);
    if (status == BP_OK && t.chosen_count > 0) {
        qsort(t.chosen, t.chosen_count, sizeof *t.chosen, by_value);
        status = bp_trade_return_cuts(&t);
        if (status == BP_OK)
            status = bp_trade_note_waits(trade, t.original, t.chosen, t.chosen_count);
    }
    bp_step_trade_finish(&t);
    return status;
}
