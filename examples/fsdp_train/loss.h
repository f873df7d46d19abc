/* SPDX-License-Identifier: Apache-2.0 */
/* The loss of a token: how improbable the token that really follows was. x: logits [n, v]; pick: what follows; `columns`: the vocabulary. */
#ifndef FSDP_TRAIN_LOSS_H
#define FSDP_TRAIN_LOSS_H

#include "numbers.h"

OPERATION float log_sum(const float *logits, uint32_t count)
{
    float max = logits[0], sum = 0.0f;
    for (uint32_t v = 1; v < count; v++)
        max = logits[v] > max ? logits[v] : max;
    for (uint32_t v = 0; v < count; v++)
        sum += exp_of(logits[v] - max);
    return max + log_of(sum);
}

/* out[n] */
OPERATION void loss(const work *w, uint64_t item)
{
    const float *logits = w->x + item * w->columns;
    ((float *)w->out)[item] = log_sum(logits, w->columns) - logits[w->pick[item]];
}

/* out[n] = the logarithm of the sum of e^x[n, v] */
OPERATION void normaliser(const work *w, uint64_t item)
{
    ((float *)w->out)[item] = log_sum(w->x + item * w->columns, w->columns);
}

/* out[n, v] = the gradient of the logits times `scale`; a: what normaliser gave */
OPERATION void loss_dx(const work *w, uint64_t item)
{
    uint64_t n = item / w->columns;
    float own = w->pick[n] == item % w->columns ? 1.0f : 0.0f;
    ((float *)w->out)[item] = w->scale * (exp_of(w->x[item] - w->a[n]) - own);
}

#endif
