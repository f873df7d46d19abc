/* Overlap windows of a recorded schedule that are given up, pair of units by pair.
 *
 * What a slab takes is valued by its largest sum: in each step what is live, and for each acquire all that its windows still keep
 * from it. The true bound, a largest clique, is not looked for. Pairs are chosen as steps are: the one that lowers the sum of the
 * slabs most; where none does, for the peaks of one slab in turn the pair that holds most there. */
#include <stdlib.h>
#include <string.h>

#include "core/arith.h"
#include "core/fail.h"
#include "planner/overlaps.h"
#include "planner/trade_pairs.h"

static void measure(bp_window_trade *t)
{
    t->value = 0;
    for (uint32_t k = 0; k < t->trade->slab_count; k++) {
        t->peak[k] = t->peak_count[k] = 0;
        for (uint32_t step = 0; step < t->s->step_count; step++) {
            if (t->sums[k][step] > t->peak[k]) {
                t->peak[k] = t->sums[k][step];
                t->peak_step[k] = step;
                t->peak_count[k] = 0;
            }
            t->peak_count[k] += t->sums[k][step] == t->peak[k];
        }
        t->value += t->peak[k];
    }
    bp_trade_spend(t->trade, t->trade->slab_count * t->s->step_count);
}

/* ---- choosing ------------------------------------------------------------------------------------------------------ */

static uint64_t value_without(bp_window_trade *t, uint32_t pair)
{
    uint64_t before = t->value;
    bp_trade_count_pair(t, pair, true);
    measure(t);
    uint64_t value = t->value;
    bp_trade_count_pair(t, pair, false);
    t->value = before;
    return value;
}

/* Whether the pair keeps something in all peaks of some slab. */
static bool may_lower(const bp_window_trade *t, uint32_t pair, const uint64_t *peak, const uint32_t *peak_count)
{
    for (uint32_t k = 0; k < t->trade->slab_count; k++) {
        uint32_t met = 0, last = BP_NO_PAIR;
        for (uint32_t i = t->first_of_pair[pair]; i < t->first_of_pair[pair + 1]; i++) {
            const bp_window *w = &t->entries[i].window;
            if (bp_trade_slab_of(t, w->earlier) == k && w->step != last && t->sums[k][w->step] == peak[k])
                met++;
            last = w->step;
        }
        if (met > 0 && met == peak_count[k])
            return true;
    }
    return false;
}

/* The pair that lowers the value most, BP_NO_PAIR where none does. Pairs are tried in the order of the steps. */
static uint32_t find_pair(bp_window_trade *t)
{
    bp_trade_spend(t->trade, t->entry_count);
    uint32_t best = BP_NO_PAIR, peak_count[BP_ROLE_COUNT];
    uint64_t least = t->value, peak[BP_ROLE_COUNT];
    memcpy(peak, t->peak, sizeof peak);
    memcpy(peak_count, t->peak_count, sizeof peak_count);
    memset(t->is_tried, 0, t->pair_count * sizeof *t->is_tried);
    for (uint32_t i = 0; i < t->entry_count && t->trade->work > 0; i++) {
        const bp_trade_entry *e = &t->entries[t->places[i].entry];
        uint32_t slab = bp_trade_slab_of(t, e->window.earlier);
        if (t->is_tried[e->pair] || t->is_dropped[e->pair] || t->sums[slab][e->window.step] != peak[slab])
            continue;
        t->is_tried[e->pair] = true;
        bp_trade_spend(t->trade, t->first_of_pair[e->pair + 1] - t->first_of_pair[e->pair]);
        if (!may_lower(t, e->pair, peak, peak_count))
            continue;
        uint64_t value = value_without(t, e->pair);
        if (value < least) {
            least = value;
            best = e->pair;
        }
    }
    return best;
}

static void drop(bp_window_trade *t, uint32_t pair)
{
    bp_trade_count_pair(t, pair, true);
    t->is_dropped[pair] = true;
    t->chosen[t->chosen_count++] = pair;
    measure(t);
}

static void go_back(bp_window_trade *t, uint32_t chosen_count)
{
    while (t->chosen_count > chosen_count) {
        uint32_t pair = t->chosen[--t->chosen_count];
        t->is_dropped[pair] = false;
        bp_trade_count_pair(t, pair, false);
    }
    measure(t);
}

/* The first place at or after the step. */
static uint32_t first_place(const bp_window_trade *t, uint32_t step)
{
    uint32_t low = 0, high = t->entry_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (t->places[middle].step < step)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The pair without which the slab's sum in the step is the least, BP_NO_PAIR where it stays. */
static uint32_t find_holder(bp_window_trade *t, uint32_t slab, uint32_t step)
{
    uint32_t best = BP_NO_PAIR;
    uint64_t least = t->sums[slab][step];
    for (uint32_t i = first_place(t, step); i < t->entry_count && t->places[i].step == step; i++) {
        uint32_t pair = t->entries[t->places[i].entry].pair;
        if (t->is_dropped[pair] || bp_trade_slab_of(t, t->places[i].request) != slab)
            continue;
        bp_trade_count_pair(t, pair, true);
        if (t->sums[slab][step] < least) {
            least = t->sums[slab][step];
            best = pair;
        }
        bp_trade_count_pair(t, pair, false);
    }
    return best;
}

/* Drops pairs until the slab's peak has fallen; whether it has with the stalls that are left. */
static bool lower_slab(bp_window_trade *t, uint32_t slab)
{
    uint64_t peak = t->peak[slab];
    uint32_t most = t->chosen_count + t->trade->stalls;
    while (t->peak[slab] == peak) {
        uint32_t pair =
            t->chosen_count < most && t->trade->work > 0 ? find_holder(t, slab, t->peak_step[slab]) : BP_NO_PAIR;
        if (pair == BP_NO_PAIR)
            return false;
        drop(t, pair);
    }
    return true;
}

/* As with steps: the slab that lowers the value most, with the fewest pairs where several do. */
static bool choose_peaks(bp_window_trade *t)
{
    uint32_t before = t->chosen_count, best = BP_NO_PAIR, fewest = 0;
    uint64_t least = t->value;
    for (uint32_t k = 0; k < t->trade->slab_count; k++) {
        bool falls = t->peak[k] > 0 && lower_slab(t, k);
        uint32_t count = t->chosen_count - before;
        if (falls && (t->value < least || (t->value == least && best != BP_NO_PAIR && count < fewest))) {
            best = k;
            least = t->value;
            fewest = count;
        }
        go_back(t, before);
    }
    if (best == BP_NO_PAIR || !lower_slab(t, best)) {
        go_back(t, before);
        return false;
    }
    t->trade->stalls -= t->chosen_count - before;
    return true;
}

static void choose_pairs(bp_window_trade *t)
{
    bool lowered = true;
    measure(t);
    while (lowered && t->trade->stalls > 0 && t->trade->work > 0) {
        uint32_t pair = find_pair(t);
        measure(t);
        if (pair == BP_NO_PAIR) {
            lowered = choose_peaks(t);
            continue;
        }
        drop(t, pair);
        t->trade->stalls--;
    }
}

/* ---- all of it ------------------------------------------------------------------------------------------------------ */

static uint64_t bytes_of(const bp_window_trade *t, uint32_t request)
{
    return t->trade->buckets->requests[request].bytes;
}

/* What was acquired first after the release was to run under the compute that it waits for now; what came later still runs under
 * that of the units between. The pair's windows are in order of steps, then of what is acquired. */
static bp_status note_wait(const bp_window_trade *t, uint32_t pair)
{
    const bp_trade_entry *first = &t->entries[t->first_of_pair[pair]];
    bp_wait wait = {sizeof wait, first->window.step, first->window.later, first->window.earlier, 0};
    uint32_t step = BP_NO_PAIR, later = BP_NO_PAIR;
    for (uint32_t i = t->first_of_pair[pair]; i < t->first_of_pair[pair + 1]; i++) {
        const bp_window *w = &t->entries[i].window;
        wait.waits = bytes_of(t, w->later) > bytes_of(t, wait.waits) ? w->later : wait.waits;
        wait.waits_for = bytes_of(t, w->earlier) > bytes_of(t, wait.waits_for) ? w->earlier : wait.waits_for;
        if (w->distance > 1 || (w->step == step && w->later == later))
            continue;
        step = w->step;
        later = w->later;
        if (!bp_add_u64(wait.exposed_bytes, bytes_of(t, later), &wait.exposed_bytes))
            return bp_fail(BP_ERR_OVERFLOW,
                           "the collectives that a pair of units of model \"%s\" exposes do not fit 64 bits",
                           t->trade->buckets->model);
    }
    return bp_schedule_add_wait(t->s, &wait);
}

static bp_status give_up_windows(bp_window_trade *t)
{
    size_t kept = 0;
    for (uint32_t i = 0; i < t->chosen_count; i++) {
        uint32_t pair = t->chosen[i];
        BP_TRY(note_wait(t, pair));
        for (uint32_t k = t->first_of_pair[pair]; k < t->first_of_pair[pair + 1]; k++)
            t->s->windows[t->entries[k].index].distance = 0;
    }
    for (size_t i = 0; i < t->s->window_count; i++) {
        if (t->s->windows[i].distance > 0)
            t->s->windows[kept++] = t->s->windows[i];
    }
    t->s->window_count = kept;
    return bp_schedule_derive_overlaps(t->s);
}

bp_status bp_trade_windows(bp_trade *trade)
{
    bp_window_trade t;
    bp_status status = bp_window_trade_init(trade, &t);
    if (status == BP_OK) {
        choose_pairs(&t);
        status = give_up_windows(&t);
    }
    bp_window_trade_finish(&t);
    return status;
}
