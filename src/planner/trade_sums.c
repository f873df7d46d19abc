#include "planner/trade_sums.h"

#include <stdlib.h>
#include <string.h>

#include "core/fail.h"

bp_status bp_step_trade_init(bp_trade *trade, bp_step_trade *t)
{
    *t = (bp_step_trade){.trade = trade, .s = trade->schedule};
    size_t steps = t->s->step_count, uses = t->s->use_count, spans = t->s->span_count;
    for (uint32_t k = 0; k < t->trade->slab_count; k++) {
        BP_TRY(bp_new_array(steps, sizeof(uint64_t), (void **)&t->slabs[k].live));
        BP_TRY(bp_new_array(steps + 1, sizeof(uint64_t), (void **)&t->slabs[k].change));
    }
    BP_TRY(bp_new_array(steps + 2, sizeof(uint32_t), (void **)&t->sweep.starts));
    BP_TRY(bp_new_array(2 * uses, sizeof(uint32_t), (void **)&t->sweep.entries));
    BP_TRY(bp_new_array(2 * uses, sizeof(uint32_t), (void **)&t->sweep.active));
    BP_TRY(bp_new_array(uses, sizeof(uint32_t), (void **)&t->span_of_use));
    BP_TRY(bp_new_array(spans, sizeof(uint32_t), (void **)&t->seen_at));
    BP_TRY(bp_new_array(uses, sizeof(bp_use), (void **)&t->original));
    BP_TRY(bp_new_array(uses, sizeof(bp_use), (void **)&t->saved));
    memcpy(t->original, t->s->uses, uses * sizeof *t->original);
    for (uint32_t i = 0; i < spans; i++)
        for (uint32_t k = 0; k < t->s->spans[i].use_count; k++)
            t->span_of_use[t->s->spans[i].first_use + k] = i;
    return BP_OK;
}

void bp_step_trade_finish(bp_step_trade *t)
{
    for (uint32_t k = 0; k < t->trade->slab_count; k++) {
        free(t->slabs[k].live);
        free(t->slabs[k].change);
    }
    free(t->sweep.starts);
    free(t->sweep.entries);
    free(t->sweep.active);
    free(t->span_of_use);
    free(t->seen_at);
    free(t->original);
    free(t->saved);
    free(t->chosen);
}

/* ---- uses ---------------------------------------------------------------------------------------------------------- */

static bool is_ahead(const bp_use *use, uint32_t step)
{
    return use->begin <= step && step < use->needed_begin;
}

static bool is_after(const bp_use *use, uint32_t step)
{
    return use->needed_end <= step && step < use->end;
}

bp_use bp_cut_use(bp_use use, uint32_t step)
{
    if (is_ahead(&use, step))
        use.begin = step + 1;
    else if (is_after(&use, step))
        use.end = step;
    return use;
}

/* Uses stay in order of begin, whatever is cut. */
void bp_trade_add_live(bp_step_trade *t, uint32_t span_index, uint32_t step, uint64_t bytes)
{
    const bp_span *span = &t->s->spans[span_index];
    uint64_t *change = t->slabs[t->trade->slab_of_span[span_index]].change;
    bp_interval live = {0, 0};
    for (uint32_t i = span->first_use; i < span->first_use + span->use_count; i++) {
        bp_use use = bp_cut_use(t->s->uses[i], step);
        if (i > span->first_use && use.begin <= live.end) {
            live.end = use.end > live.end ? use.end : live.end;
            continue;
        }
        change[live.begin] += bytes;
        change[live.end] -= bytes;
        live = (bp_interval){use.begin, use.end};
    }
    change[live.begin] += bytes;
    change[live.end] -= bytes;
}

/* ---- live sums ----------------------------------------------------------------------------------------------------- */

/* Turns the changes into live sums. */
static void sum_changes(bp_slab_sums *slab, size_t steps)
{
    uint64_t live = 0;
    slab->peak = 0;
    for (size_t step = 0; step < steps; step++) {
        live += slab->change[step];
        slab->change[step] = 0;
        slab->live[step] = live;
        if (live > slab->peak) {
            slab->peak = live;
            slab->first_peak = (uint32_t)step;
        }
        if (live == slab->peak)
            slab->last_peak = (uint32_t)step;
    }
    slab->change[steps] = 0;
}

void bp_trade_measure(bp_step_trade *t)
{
    for (uint32_t i = 0; i < t->s->span_count; i++) {
        if (t->trade->slab_of_span[i] != BP_NO_SLAB && t->s->spans[i].use_count > 0)
            bp_trade_add_live(t, i, BP_NO_STEP, t->trade->bytes_of_span[i]);
    }
    t->value = 0;
    for (uint32_t k = 0; k < t->trade->slab_count; k++) {
        sum_changes(&t->slabs[k], t->s->step_count);
        t->value += t->slabs[k].peak;
    }
    bp_trade_spend(t->trade, t->s->use_count + t->trade->slab_count * t->s->step_count);
}

/* ---- the uses that a step could do without --------------------------------------------------------------------------- */

void bp_trade_begin_sweep(bp_step_trade *t)
{
    bp_sweep *w = &t->sweep;
    memset(w->starts, 0, (t->s->step_count + 2) * sizeof *w->starts);
    for (int counting = 1; counting >= 0; counting--) {
        for (uint32_t i = 0; i < t->s->use_count; i++) {
            const bp_use *use = &t->s->uses[i];
            if (t->trade->slab_of_span[t->span_of_use[i]] == BP_NO_SLAB)
                continue;
            for (uint32_t after = 0; after < 2; after++) {
                if (after ? use->needed_end >= use->end : use->begin >= use->needed_begin)
                    continue;
                uint32_t start = after ? use->needed_end : use->begin;
                if (counting)
                    w->starts[start + 2]++;
                else
                    w->entries[w->starts[start + 1]++] = 2 * i + after;
            }
        }
        for (size_t step = 2; counting && step < t->s->step_count + 2; step++)
            w->starts[step] += w->starts[step - 1];
    }
    w->active_count = w->next = 0;
    bp_trade_spend(t->trade, 2 * t->s->use_count + t->s->step_count);
}

void bp_trade_sweep_to(bp_step_trade *t, uint32_t step)
{
    bp_sweep *w = &t->sweep;
    uint32_t kept = 0;
    while (w->next < w->starts[step + 1])
        w->active[w->active_count++] = w->entries[w->next++];
    for (uint32_t i = 0; i < w->active_count; i++) {
        const bp_use *use = &t->s->uses[w->active[i] / 2];
        if (w->active[i] % 2 ? is_after(use, step) : is_ahead(use, step))
            w->active[kept++] = w->active[i];
    }
    bp_trade_spend(t->trade, w->active_count + 1);
    w->active_count = kept;
}
