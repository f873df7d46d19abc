/* SPDX-License-Identifier: Apache-2.0 */
/* Causal attention within a row of `length` tokens. x is [n, 3, heads, size]: query, key and value; `columns` is heads times size. */
#ifndef FSDP_TRAIN_ATTENTION_H
#define FSDP_TRAIN_ATTENTION_H

#include "numbers.h"

enum { QUERY = 0, KEY = 1, VALUE = 2 };

OPERATION const float *head_of(const work *w, const float *all, uint64_t n, uint32_t part, uint64_t head)
{
    return all + (n * 3 + part) * w->columns + head * (w->columns / w->heads);
}

/* Of [n, heads, length]: what token n's head gives each token of its row. */
OPERATION uint64_t scores_of(const work *w, uint64_t n, uint64_t head)
{
    return (n * w->heads + head) * w->length;
}

OPERATION float dot(const float *a, const float *b, uint32_t count)
{
    float sum = 0.0f;
    for (uint32_t i = 0; i < count; i++)
        sum += a[i] * b[i];
    return sum;
}

/* out[n, head, s] = the softmax over tokens s up to n of query n times key s. An item is a token's head. */
OPERATION void scores(const work *w, uint64_t item)
{
    uint64_t n = item / w->heads, head = item % w->heads, first = n - n % w->length;
    uint32_t size = w->columns / w->heads, count = (uint32_t)(n - first) + 1;
    float *out = (float *)w->out + scores_of(w, n, head), max = 0.0f, sum = 0.0f;
    for (uint32_t s = 0; s < count; s++) {
        out[s] = w->scale * dot(head_of(w, w->x, n, QUERY, head), head_of(w, w->x, first + s, KEY, head), size);
        max = s == 0 || out[s] > max ? out[s] : max;
    }
    for (uint32_t s = 0; s < count; s++) {
        out[s] = exp_of(out[s] - max);
        sum += out[s];
    }
    for (uint32_t s = 0; s < count; s++)
        out[s] = out[s] / sum;
}

/* out[n, head, j] = the sum of a[n, head, s] times value s, where a is what scores gave */
OPERATION void mix(const work *w, uint64_t item)
{
    uint32_t size = w->columns / w->heads;
    uint64_t n = item / w->columns, head = item % w->columns / size, first = n - n % w->length;
    const float *p = w->a + scores_of(w, n, head);
    float sum = 0.0f;
    for (uint64_t s = first; s <= n; s++)
        sum += p[s - first] * head_of(w, w->x, s, VALUE, head)[item % size];
    ((float *)w->out)[item] = sum;
}

/* out[n, head, s] = the gradient before the softmax, of dy, mix's. An item is a token's head. */
OPERATION void scores_dx(const work *w, uint64_t item)
{
    uint64_t n = item / w->heads, head = item % w->heads, first = n - n % w->length;
    uint32_t size = w->columns / w->heads;
    const float *p = w->a + scores_of(w, n, head), *dy = w->dy + n * w->columns + head * size;
    float *out = (float *)w->out + scores_of(w, n, head), sum = 0.0f;
    for (uint64_t s = first; s <= n; s++) {
        out[s - first] = dot(dy, head_of(w, w->x, s, VALUE, head), size);
        sum += p[s - first] * out[s - first];
    }
    for (uint64_t s = first; s <= n; s++)
        out[s - first] = p[s - first] * (out[s - first] - sum);
}

/* out[n, part, head, j] = the gradient of query, key and value; a: scores', b: scores_dx's, dy: mix's gradient */
OPERATION void attention_dx(const work *w, uint64_t item)
{
    uint32_t size = w->columns / w->heads, part = (uint32_t)(item / w->columns % 3);
    uint64_t n = item / w->columns / 3, head = item % w->columns / size, j = item % size;
    uint64_t first = n - n % w->length, row_end = first + w->length;
    uint64_t from = part == QUERY ? first : n,
             end = part == QUERY ? n + 1 : row_end; /* whom n looks at; who looks at n */
    float sum = 0.0f;
    for (uint64_t s = from; s < end; s++) {
        if (part == QUERY)
            sum += w->b[scores_of(w, n, head) + s - first] * head_of(w, w->x, s, KEY, head)[j] * w->scale;
        else if (part == KEY)
            sum += w->b[scores_of(w, s, head) + n - first] * head_of(w, w->x, s, QUERY, head)[j] * w->scale;
        else
            sum += w->a[scores_of(w, s, head) + n - first] * w->dy[s * w->columns + head * size + j];
    }
    ((float *)w->out)[item] = sum;
}

#endif
