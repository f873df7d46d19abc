/* Overlap that was given up for nothing: a step is chosen for one slab, but cuts the uses of all. */
#include <stdlib.h>
#include <string.h>

#include "core/fail.h"
#include "planner/trade_sums.h"

/* The cuts of a slab. */
typedef struct cuts {
    bp_step_trade *t;
    uint32_t slab;
    bool *is_kept; /* by chosen step */
} cuts;

/* Uses begin after the last kept step that they were ahead of, and end at the first that they drained into. */
static bp_use cut_again(const bp_use *original, const uint32_t *previous, const uint32_t *next)
{
    bp_use use = *original;
    uint32_t last = use.needed_begin > 0 ? previous[use.needed_begin - 1] : BP_NO_STEP;
    if (last != BP_NO_STEP && last >= use.begin)
        use.begin = last + 1;
    if (next[use.needed_end] < use.end)
        use.end = next[use.needed_end];
    return use;
}

/* By step: the last kept step up to it, the first from it on. */
static void find_kept(const cuts *c, uint32_t *previous, uint32_t *next)
{
    const bp_step_trade *t = c->t;
    size_t count = t->s->step_count, k = 0;
    uint32_t last = BP_NO_STEP;
    for (uint32_t step = 0; step < count; step++) {
        for (; k < t->chosen_count && t->chosen[k] <= step; k++)
            last = c->is_kept[k] ? t->chosen[k] : last;
        previous[step] = last;
    }
    last = BP_NO_STEP;
    next[count] = last;
    for (size_t step = count; step-- > 0;)
        next[step] = last = previous[step] == step ? (uint32_t)step : last;
}

/* The slab's peak with the cuts that are kept. */
static uint64_t peak_with(const cuts *c, uint32_t *previous, uint32_t *next)
{
    bp_step_trade *t = c->t;
    find_kept(c, previous, next);
    for (uint32_t i = 0; i < t->s->use_count; i++) {
        if (t->trade->slab_of_span[t->span_of_use[i]] == c->slab)
            t->s->uses[i] = cut_again(&t->original[i], previous, next);
    }
    bp_trade_spend(t->trade, t->s->use_count + 2 * t->s->step_count);
    bp_trade_measure(t);
    return t->slabs[c->slab].peak;
}

/* All of the slab's cuts where its peak is what it was, else one by one, from the first. */
static void return_cuts(const cuts *c, uint32_t *previous, uint32_t *next)
{
    bp_step_trade *t = c->t;
    uint64_t peak = t->slabs[c->slab].peak;
    memset(c->is_kept, false, t->chosen_count * sizeof *c->is_kept);
    if (peak_with(c, previous, next) <= peak)
        return;
    memset(c->is_kept, true, t->chosen_count * sizeof *c->is_kept);
    for (size_t k = 0; k < t->chosen_count && t->trade->work > 0; k++) {
        c->is_kept[k] = false;
        c->is_kept[k] = peak_with(c, previous, next) > peak;
    }
    peak_with(c, previous, next);
}

bp_status bp_trade_return_cuts(bp_step_trade *t)
{
    uint32_t *previous = NULL, *next = NULL;
    cuts c = {.t = t};
    bp_status status = bp_new_array(t->chosen_count, sizeof *c.is_kept, (void **)&c.is_kept);
    if (status == BP_OK)
        status = bp_new_array(t->s->step_count + 1, sizeof *previous, (void **)&previous);
    if (status == BP_OK)
        status = bp_new_array(t->s->step_count + 1, sizeof *next, (void **)&next);
    for (c.slab = 0; status == BP_OK && c.slab < t->trade->slab_count; c.slab++)
        return_cuts(&c, previous, next);
    free(c.is_kept);
    free(previous);
    free(next);
    return status;
}
