/* SPDX-License-Identifier: Apache-2.0 */
/* Operations on a rank's shard: conversion from and to the communicated dtype, and Adam. Source of Adam: Kingma and
 * Ba, arXiv 1412.6980. */
#ifndef FSDP_TRAIN_SHARDS_H
#define FSDP_TRAIN_SHARDS_H

#include "numbers.h"

/* out[i] = weight[i] in fp32 */
OPERATION void widen(const work *w, uint64_t item)
{
    ((float *)w->out)[item] = load(w->weight, w->stored, item);
}

/* out[i], as stored, = x[i] */
OPERATION void narrow(const work *w, uint64_t item)
{
    store(w->out, w->stored, item, w->x[item]);
}

/* state: main weights, then both moments, `items` each; dy: the gradient; a: 1 / (1 - beta^t) for both; out: the
 * weights as gathered; scale: the learning rate */
OPERATION void adam(const work *w, uint64_t item)
{
    float *weights = w->state, *first = w->state + w->items, *second = w->state + 2 * w->items, g = w->dy[item];
    first[item] = 0.9f * first[item] + 0.1f * g;
    second[item] = 0.95f * second[item] + 0.05f * (g * g);
    weights[item] = weights[item] - w->scale * (first[item] * w->a[0]) / (sqrtf(second[item] * w->a[1]) + 1e-8f);
    store(w->out, w->stored, item, weights[item]);
}

#endif
