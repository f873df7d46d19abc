/* SPDX-License-Identifier: Apache-2.0 */
#include "head_cases.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- random numbers ------------------------------------------------------------------------------------------------ */

static uint64_t next(uint64_t *state)
{
    uint64_t x = *state += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

uint64_t random_up_to(uint64_t *state, uint64_t max)
{
    return next(state) % (max + 1);
}

/* A multiple of 1/32 in [-1, 1]. */
double random_unit(uint64_t *state)
{
    return ((double)random_up_to(state, 64) - 32) / 32;
}

head_case random_case(uint64_t seed)
{
    static const bp_dtype dtypes[] = {BP_DTYPE_FP32, BP_DTYPE_BF16, BP_DTYPE_FP16};
    static const int64_t chunks[] = {1, 3, 5, 17, 0};
    static const float temperatures[] = {1, 0.5F, 2, 0.7F};
    uint64_t s = seed;
    head_case c = {.batch = 1 + random_up_to(&s, 3),
                   .sequence = 1 + random_up_to(&s, 22),
                   .hidden = 1 + random_up_to(&s, 40),
                   .vocab = 1 + random_up_to(&s, 90),
                   .dtype = dtypes[random_up_to(&s, 2)],
                   .chunk = chunks[random_up_to(&s, 4)],
                   .spare_tokens = random_up_to(&s, 1) * random_up_to(&s, 30),
                   .temperature = temperatures[random_up_to(&s, 3)],
                   .has_mask = random_up_to(&s, 1) != 0,
                   .has_entropy = random_up_to(&s, 1) != 0,
                   .accumulate = random_up_to(&s, 1) != 0,
                   .by_token = random_up_to(&s, 1) != 0,
                   .gap = random_up_to(&s, 1) * random_up_to(&s, 5),
                   .broadcasts = random_up_to(&s, 3) == 0,
                   .ignores = seed % 2 != 0,
                   .seed = next(&s)};
    c.grad_dtype = random_up_to(&s, 1) != 0 ? c.dtype : BP_DTYPE_FP32;
    c.way = (head_way)random_up_to(&s, HEAD_WAYS - 1);
    c.narrow_weight_grad = c.chunk == 0 && !c.accumulate;
    return c;
}

/* ---- fp64 ---------------------------------------------------------------------------------------------------------- */

static void *new_array(uint64_t count, size_t bytes)
{
    void *array = calloc(count + 1, bytes);
    if (array == NULL)
        abort();
    return array;
}

static double logit(const head_values *v, uint64_t token, uint64_t column)
{
    double sum = 0;
    for (uint64_t k = 0; k < v->c.hidden; k++)
        sum += v->hidden[token * v->c.hidden + k] * v->weight[column * v->c.hidden + k];
    return sum / (double)v->c.temperature;
}

/* Logits of a token, their log-sum-exp, and the entropy. */
static double *row_of(const head_values *v, uint64_t token, double *log_sum, double *entropy)
{
    double *row = new_array(v->c.vocab, sizeof *row), largest = -INFINITY, sum = 0;
    for (uint64_t i = 0; i < v->c.vocab; i++) {
        row[i] = logit(v, token, i);
        largest = fmax(largest, row[i]);
    }
    for (uint64_t i = 0; i < v->c.vocab; i++)
        sum += exp(row[i] - largest);
    *log_sum = largest + log(sum);
    *entropy = 0;
    for (uint64_t i = 0; i < v->c.vocab; i++)
        *entropy -= exp(row[i] - *log_sum) * (row[i] - *log_sum);
    return row;
}

static bool is_known(const head_values *v, uint64_t token)
{
    return v->target[token] >= 0 && (uint64_t)v->target[token] < v->c.vocab;
}

static void check_token_row(head_values *v, uint64_t token)
{
    double log_sum, entropy;
    double *row = row_of(v, token, &log_sum, &entropy);
    v->logprob[token] = is_known(v, token) ? row[v->target[token]] - log_sum : 0;
    v->entropy[token] = entropy;
    for (uint64_t i = 0; i < v->c.vocab; i++) {
        const double p = exp(row[i] - log_sum);
        double d = v->upstream[token] * ((int64_t)i == v->target[token] ? 1 - p : -p);
        if (v->c.has_entropy)
            d -= v->other[token] * p * (entropy + row[i] - log_sum);
        d /= (double)v->c.temperature;
        for (uint64_t k = 0; k < v->c.hidden; k++) {
            v->hidden_grad[token * v->c.hidden + k] += d * v->weight[i * v->c.hidden + k];
            v->weight_grad[i * v->c.hidden + k] += d * v->hidden[token * v->c.hidden + k];
        }
    }
    free(row);
}

double loss_of(const head_values *v)
{
    double loss = 0;
    for (uint64_t t = 0; t < v->tokens; t++) {
        double log_sum, entropy;
        if (!v->kept[t])
            continue;
        double *row = row_of(v, t, &log_sum, &entropy);
        loss += v->upstream[t] * (is_known(v, t) ? row[v->target[t]] - log_sum : -log_sum);
        loss += v->c.has_entropy ? v->other[t] * entropy : 0;
        free(row);
    }
    return loss;
}

head_values values_of(const head_case *c)
{
    uint64_t s = c->seed;
    head_values v = {.c = *c, .tokens = c->batch * c->sequence};
    const uint64_t states = v.tokens * c->hidden, weights = c->vocab * c->hidden;
    double **arrays[] = {&v.hidden,  &v.weight,  &v.upstream,    &v.other,      &v.before,
                         &v.logprob, &v.entropy, &v.hidden_grad, &v.weight_grad};
    const uint64_t counts[] = {states, weights, v.tokens, v.tokens, weights, v.tokens, v.tokens, states, weights};
    for (int i = 0; i < 9; i++) {
        *arrays[i] = new_array(counts[i], sizeof(double));
        for (uint64_t k = 0; i < 5 && k < counts[i]; k++)
            (*arrays[i])[k] = random_unit(&s);
    }
    v.target = new_array(v.tokens, sizeof *v.target);
    v.mask = new_array(v.tokens, 1);
    v.kept = new_array(v.tokens, sizeof *v.kept);
    for (uint64_t t = 0; t < v.tokens; t++) {
        v.target[t] = random_up_to(&s, 9) == 0 ? -100 : (int64_t)random_up_to(&s, c->vocab - 1);
        v.mask[t] = !c->has_mask || random_up_to(&s, 2) != 0;
        v.kept[t] = v.mask[t] != 0 && !(c->ignores && v.target[t] == -100);
        if (c->broadcasts) {
            v.upstream[t] = v.upstream[0];
            v.other[t] = v.other[0];
        }
    }
    for (uint64_t t = 0; t < v.tokens; t++)
        if (v.kept[t])
            check_token_row(&v, t);
    return v;
}

void free_values(head_values *v)
{
    void *arrays[] = {v->hidden, v->weight,  v->upstream, v->other,       v->before,      v->target,
                      v->mask,   v->logprob, v->entropy,  v->hidden_grad, v->weight_grad, v->kept};
    for (int i = 0; i < 12; i++)
        free(arrays[i]);
}
