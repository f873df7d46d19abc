/* SPDX-License-Identifier: Apache-2.0 */
/* Embedding, normalisation, products with weights, and the activation between two of them. */
#ifndef FSDP_TRAIN_DENSE_H
#define FSDP_TRAIN_DENSE_H

#include "numbers.h"

/* out[n, d] = weight[pick[n], d] */
OPERATION void embed(const work *w, uint64_t item)
{
    ((float *)w->out)[item] =
        load(w->weight, w->stored, (uint64_t)w->pick[item / w->columns] * w->columns + item % w->columns);
}

/* out[v, d] = the sum of dy[n, d] over the tokens that are v */
OPERATION void embed_dw(const work *w, uint64_t item)
{
    float sum = 0.0f;
    for (uint32_t n = 0; n < w->tokens; n++) {
        if (w->pick[n] == item / w->columns)
            sum += w->dy[(uint64_t)n * w->columns + item % w->columns];
    }
    store(w->out, w->stored, item, sum);
}

/* out[n] = 1 / the root of the mean square of x[n] */
OPERATION void norm_scale(const work *w, uint64_t item)
{
    const float *x = w->x + item * w->columns;
    float sum = 0.0f;
    for (uint32_t d = 0; d < w->columns; d++)
        sum += x[d] * x[d];
    ((float *)w->out)[item] = 1.0f / sqrtf(sum / (float)w->columns + 1e-6f);
}

/* out[n, d] = x[n, d] a[n] weight[d], where a is what norm_scale gave */
OPERATION void norm(const work *w, uint64_t item)
{
    ((float *)w->out)[item] = w->x[item] * w->a[item / w->columns] * load(w->weight, w->stored, item % w->columns);
}

/* out[n, d] = b[n, d] + what norm's dy[n] gives for x[n, d]; b is the gradient that goes past the norm, NULL: nothing does */
OPERATION void norm_dx(const work *w, uint64_t item)
{
    uint64_t n = item / w->columns, d = item % w->columns;
    const float *x = w->x + n * w->columns, *dy = w->dy + n * w->columns;
    float scale = w->a[n], sum = 0.0f;
    for (uint32_t j = 0; j < w->columns; j++)
        sum += dy[j] * load(w->weight, w->stored, j) * x[j];
    float straight = dy[d] * load(w->weight, w->stored, d);
    float through = scale * (straight - x[d] * scale * scale * sum / (float)w->columns);
    ((float *)w->out)[item] = w->b != NULL ? w->b[item] + through : through;
}

/* out[d] = the sum of dy[n, d] x[n, d] a[n] over tokens */
OPERATION void norm_dw(const work *w, uint64_t item)
{
    float sum = 0.0f;
    for (uint64_t n = 0; n < w->tokens; n++)
        sum += w->dy[n * w->columns + item] * w->x[n * w->columns + item] * w->a[n];
    store(w->out, w->stored, item, sum);
}

/* The weight that token n is multiplied by: the only one, or its expert's. */
OPERATION uint64_t weight_of(const work *w, uint64_t n)
{
    return w->pick != NULL ? (uint64_t)w->pick[n] * w->rows * w->columns : 0;
}

/* out[n, o] = a[n, o] + the sum of x[n, i] weight[o, i] over columns i; without a: the sum */
OPERATION void linear(const work *w, uint64_t item)
{
    uint64_t n = item / w->rows, row = weight_of(w, n) + item % w->rows * w->columns;
    float sum = 0.0f;
    for (uint32_t i = 0; i < w->columns; i++)
        sum += w->x[n * w->columns + i] * load(w->weight, w->stored, row + i);
    ((float *)w->out)[item] = w->a != NULL ? w->a[item] + sum : sum;
}

/* out[n, i] = a[n, i] + the sum of dy[n, o] weight[o, i] over rows o; without a: the sum */
OPERATION void linear_dx(const work *w, uint64_t item)
{
    uint64_t n = item / w->columns, column = weight_of(w, n) + item % w->columns;
    float sum = 0.0f;
    for (uint32_t o = 0; o < w->rows; o++)
        sum += w->dy[n * w->rows + o] * load(w->weight, w->stored, column + (uint64_t)o * w->columns);
    ((float *)w->out)[item] = w->a != NULL ? w->a[item] + sum : sum;
}

/* out[e, o, i] = the sum of dy[n, o] x[n, i] over the tokens of expert e; without experts: over all */
OPERATION void linear_dw(const work *w, uint64_t item)
{
    uint64_t i = item % w->columns, o = item / w->columns % w->rows, expert = item / w->columns / w->rows;
    float sum = 0.0f;
    for (uint64_t n = 0; n < w->tokens; n++) {
        if (w->pick == NULL || w->pick[n] == expert)
            sum += w->dy[n * w->rows + o] * w->x[n * w->columns + i];
    }
    store(w->out, w->stored, item, sum);
}

/* out = x / (1 + e^-x) */
OPERATION void silu(const work *w, uint64_t item)
{
    ((float *)w->out)[item] = w->x[item] / (1.0f + exp_of(-w->x[item]));
}

/* out = dy times the derivative at x; may be dy's own memory */
OPERATION void silu_dx(const work *w, uint64_t item)
{
    float x = w->x[item], gate = 1.0f / (1.0f + exp_of(-x));
    ((float *)w->out)[item] = w->dy[item] * gate * (1.0f + x * (1.0f - gate));
}

#endif
