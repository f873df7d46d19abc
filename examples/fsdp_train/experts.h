/* SPDX-License-Identifier: Apache-2.0 */
/* Routing: each token goes to the expert with the largest logit, whose output counts as much as the expert's probability. `rows` is the
 * number of experts. */
#ifndef FSDP_TRAIN_EXPERTS_H
#define FSDP_TRAIN_EXPERTS_H

#include "numbers.h"

/* out[n] = the expert; x: logits [n, expert] */
OPERATION void choose(const work *w, uint64_t item)
{
    const float *logits = w->x + item * w->rows;
    uint32_t best = 0;
    for (uint32_t e = 1; e < w->rows; e++)
        best = logits[e] > logits[best] ? e : best;
    ((uint32_t *)w->out)[item] = best;
}

OPERATION float probability_of(const float *logits, uint32_t experts, uint64_t expert)
{
    float max = logits[0], sum = 0.0f;
    for (uint32_t e = 1; e < experts; e++)
        max = logits[e] > max ? logits[e] : max;
    for (uint32_t e = 0; e < experts; e++)
        sum += exp_of(logits[e] - max);
    return exp_of(logits[expert] - max) / sum;
}

/* out[n] = the probability of the expert picked */
OPERATION void route(const work *w, uint64_t item)
{
    ((float *)w->out)[item] = probability_of(w->x + item * w->rows, w->rows, w->pick[item]);
}

/* out[n, d] = a[n, d] + b[n] x[n, d]; without a: b[n] x[n, d]. b is what route gave */
OPERATION void gated(const work *w, uint64_t item)
{
    float value = w->b[item / w->columns] * w->x[item];
    ((float *)w->out)[item] = w->a != NULL ? w->a[item] + value : value;
}

/* out[n, e] = the gradient of the logits x; dy [n, d] is gated's, a [n, d] what the expert gave */
OPERATION void route_dx(const work *w, uint64_t item)
{
    uint64_t n = item / w->rows, e = item % w->rows;
    const float *logits = w->x + n * w->rows;
    float sum = 0.0f;
    for (uint32_t d = 0; d < w->columns; d++)
        sum += w->dy[n * w->columns + d] * w->a[n * w->columns + d];
    float gate = probability_of(logits, w->rows, w->pick[n]);
    float own = w->pick[n] == e ? 1.0f : 0.0f;
    ((float *)w->out)[item] = sum * gate * (own - probability_of(logits, w->rows, e));
}

#endif
