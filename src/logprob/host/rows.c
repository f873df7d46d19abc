/* What is done once for a row, in the same way with all kernels. */
#include "logprob/host/rows.h"

#include <math.h>

/* ---- partials ------------------------------------------------------------------------------------------------------ */

/* Adds what is relative to `from` to what is relative to a->max, which is at least that. */
static void add_below(bp_partial *a, float from, float sum, float weighted, float scale)
{
    if (from == -INFINITY) { /* no term but -inf, or NaN */
        a->sum += sum;
        a->weighted += weighted;
        return;
    }
    float d = (from - a->max) * scale, e = expf(d);
    a->sum += e * sum;
    if (e != 0)
        a->weighted += e * (weighted + sum * d);
}

void bp_partial_merge(bp_partial *a, const bp_partial *b, float scale)
{
    if (b->max > a->max) {
        bp_partial old = *a;
        a->max = b->max;
        a->sum = b->sum;
        a->weighted = b->weighted;
        add_below(a, old.max, old.sum, old.weighted, scale);
    } else {
        add_below(a, b->max, b->sum, b->weighted, scale);
    }
    a->target += b->target;
}

/* ---- outputs ------------------------------------------------------------------------------------------------------- */

bp_row_outputs bp_row_finish(const bp_finish_work *work, uint64_t token, bool has_target)
{
    uint64_t tokens = work->tokens.batch * work->tokens.sequence;
    const bp_partial *partials = work->partials + token;
    double max = -INFINITY, target = 0, sum = 0, weighted = 0;
    for (uint32_t rank = 0; rank < work->ranks; rank++) {
        max = partials[rank * tokens].max > max ? partials[rank * tokens].max : max;
        target += partials[rank * tokens].target;
    }
    for (uint32_t rank = 0; rank < work->ranks; rank++) {
        const bp_partial *partial = partials + rank * tokens;
        double d = partial->max == -INFINITY ? 0 : (partial->max - max) * work->scale, e = exp(d);
        sum += e * partial->sum;
        if (e != 0)
            weighted += e * (partial->weighted + partial->sum * d);
    }
    /* 0: a row of nothing but -inf has no distribution */
    double log_sum = sum != 0 ? log(sum) : NAN, energy = weighted / sum;
    return (bp_row_outputs){
        .logprob = has_target ? (float)((target - max) * work->scale - log_sum) : 0,
        .entropy = (float)(log_sum - energy),
        .max = (float)max,
        .log_sum = (float)log_sum,
        .energy = (float)energy,
    };
}

/* ---- the gradient's one ---------------------------------------------------------------------------------------------- */

float bp_gradient_at_target(const bp_row_gradient *row, float x)
{
    double d = ((double)x - row->max) * row->scale, z = d - row->log_sum, p = exp(z);
    double inner = row->entropy_grad != 0 && p != 0 ? row->entropy_grad * p * (row->energy - d) : 0;
    return (float)(row->scale * (inner - row->logprob_grad * expm1(z)));
}
