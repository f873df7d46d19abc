/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors in memory, in the layouts of a case. */
#include "head_cases.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define POISON 0xff /* NaN in every float dtype */

/* ---- elements ------------------------------------------------------------------------------------------------------ */

static uint64_t bytes_of(bp_dtype dtype)
{
    return bp_dtype_bits(dtype) / 8;
}

static void set(void *at, bp_dtype dtype, double value)
{
    const float single = (float)value;
    if (dtype == BP_DTYPE_FP32) {
        memcpy(at, &single, sizeof single);
    } else if (dtype == BP_DTYPE_BF16) { /* the values are exact in bf16 */
        memcpy(at, (const uint8_t *)&single + 2, 2);
    } else {
        const int exponent = value == 0 ? 0 : ilogb(value);
        const uint16_t fraction = value == 0 ? 0 : (uint16_t)((fabs(value) / exp2(exponent) - 1) * 1024);
        const uint16_t bits = (uint16_t)((value < 0 ? 0x8000 : 0) |
                                         (value == 0 ? 0 : (uint16_t)((unsigned)(exponent + 15) << 10)) | fraction);
        memcpy(at, &bits, sizeof bits);
    }
}

static double get(const void *at, bp_dtype dtype)
{
    uint16_t bits;
    if (dtype == BP_DTYPE_FP32) {
        float single;
        memcpy(&single, at, sizeof single);
        return (double)single;
    }
    memcpy(&bits, at, sizeof bits);
    if (dtype == BP_DTYPE_BF16) {
        const uint32_t wide = (uint32_t)bits << 16;
        float single;
        memcpy(&single, &wide, sizeof single);
        return (double)single;
    }
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const double magnitude = exponent == 31  ? (fraction != 0 ? NAN : INFINITY)
                             : exponent == 0 ? ldexp(fraction, -24)
                                             : ldexp(1024 + fraction, exponent - 25);
    return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

/* ---- layouts ------------------------------------------------------------------------------------------------------- */

/* Rows of `columns` per token, in the layout of the case. */
static void strides_of(const head_case *c, uint64_t columns, int64_t *batch_stride, int64_t *stride)
{
    const int64_t row = (int64_t)(columns + c->gap);
    *batch_stride = c->by_token ? row : row * (int64_t)c->sequence;
    *stride = c->by_token ? row * (int64_t)c->batch : row;
}

static uint64_t place_of(const head_case *c, uint64_t token, int64_t batch_stride, int64_t stride)
{
    return (uint64_t)((int64_t)(token / c->sequence) * batch_stride + (int64_t)(token % c->sequence) * stride);
}

static uint64_t size_of(const head_tensors *t, uint64_t columns, uint64_t bytes)
{
    return t->v->tokens * (columns + t->v->c.gap) * bytes;
}

static uint64_t weight_bytes(const head_tensors *t, uint64_t bytes)
{
    return t->columns * (t->v->c.hidden + t->v->c.gap) * bytes;
}

static bp_dtype weight_grad_dtype(const head_case *c)
{
    return c->narrow_weight_grad ? c->dtype : BP_DTYPE_FP32;
}

static uint64_t kept_bytes(const head_tensors *t)
{
    return t->v->c.way == KEPT_LOGITS ? t->v->tokens * t->columns * sizeof(float) : 0;
}

static uint8_t *new_memory(uint64_t bytes)
{
    uint8_t *memory = malloc(bytes + 1);
    if (memory == NULL)
        abort();
    memset(memory, POISON, bytes + 1);
    return memory;
}

/* ---- tensors ------------------------------------------------------------------------------------------------------- */

static void fill_tokens(head_tensors *t)
{
    const head_values *v = t->v;
    const head_case *c = &v->c;
    int64_t batch_stride, stride;
    for (uint64_t token = 0; token < v->tokens; token++) {
        strides_of(c, c->hidden, &batch_stride, &stride);
        for (uint64_t k = 0; k < c->hidden && (v->kept[token] || c->masks_finite); k++) /* otherwise poison */
            set(t->hidden + (place_of(c, token, batch_stride, stride) + k) * bytes_of(c->dtype), c->dtype,
                v->hidden[token * c->hidden + k]);
        strides_of(c, 1, &batch_stride, &stride);
        const uint64_t at = place_of(c, token, batch_stride, stride);
        memcpy(t->target + at * sizeof(int64_t), &v->target[token], sizeof(int64_t));
        t->mask[at] = v->mask[token];
        set(t->upstream + at * sizeof(float), BP_DTYPE_FP32, v->upstream[token]);
        set(t->other + at * sizeof(float), BP_DTYPE_FP32, v->other[token]);
    }
}

void poison(head_tensors *t)
{
    const head_case *c = &t->v->c;
    memset(t->logprob, POISON, size_of(t, 1, sizeof(float)));
    memset(t->entropy, POISON, size_of(t, 1, sizeof(float)));
    memset(t->saved, POISON, t->saved_bytes);
    memset(t->hidden_grad, POISON, size_of(t, c->hidden, bytes_of(c->grad_dtype)));
    memset(t->weight_grad, POISON, weight_bytes(t, bytes_of(weight_grad_dtype(c))));
    memset(t->kept, POISON, kept_bytes(t));
    for (uint64_t i = 0; c->accumulate && i < t->columns; i++)
        for (uint64_t k = 0; k < c->hidden; k++)
            set(t->weight_grad + (i * (c->hidden + c->gap) + k) * sizeof(float), BP_DTYPE_FP32,
                t->v->before[(t->first + i) * c->hidden + k]);
}

static bp_token_rows rows_at(const head_case *c, void *data, bp_dtype dtype)
{
    bp_token_rows rows = {
        .data = data, .dtype = dtype, .batch = c->batch, .sequence = c->sequence, .columns = c->hidden};
    if (c->gap != 0 || c->by_token)
        strides_of(c, c->hidden, &rows.batch_stride, &rows.stride);
    return rows;
}

static bp_token_values values_at(const head_case *c, void *data, bool broadcasts)
{
    bp_token_values values = {.data = data};
    if (!broadcasts)
        strides_of(c, 1, &values.batch_stride, &values.stride);
    return values;
}

void describe(head_tensors *t)
{
    const head_case *c = &t->v->c;
    (void)bp_lm_head_batch_init(&t->batch, sizeof t->batch);
    (void)bp_logprob_outputs_init(&t->outputs, sizeof t->outputs);
    (void)bp_lm_head_gradients_init(&t->gradients, sizeof t->gradients);
    t->batch.hidden = rows_at(c, t->hidden, c->dtype);
    t->batch.weight = t->weight;
    t->batch.weight_stride = c->gap == 0 ? 0 : (int64_t)(c->hidden + c->gap);
    t->batch.tokens.target = values_at(c, t->target, false);
    t->batch.tokens.mask = values_at(c, c->has_mask ? t->mask : NULL, false);
    t->batch.tokens.temperature = c->temperature;
    if (!c->ignores)
        t->batch.tokens.ignore_index = BP_LOGPROB_IGNORE_NONE;
    t->outputs.logprob = values_at(c, t->logprob, false);
    t->outputs.entropy = values_at(c, c->has_entropy ? t->entropy : NULL, false);
    t->outputs.saved = t->saved;
    t->outputs.saved_bytes = t->saved_bytes;
    t->gradients.logprob_grad = values_at(c, t->upstream, c->broadcasts);
    t->gradients.entropy_grad = values_at(c, c->has_entropy ? t->other : NULL, c->broadcasts);
    t->gradients.saved = t->saved;
    t->gradients.saved_bytes = t->saved_bytes;
    t->gradients.hidden_grad = rows_at(c, t->hidden_grad, c->grad_dtype);
    t->gradients.weight_grad = t->weight_grad;
    t->gradients.weight_grad_stride = t->batch.weight_stride;
    t->gradients.weight_grad_dtype = weight_grad_dtype(c);
    if (c->way == KEPT_LOGITS)
        t->batch.logits = (float *)(void *)t->kept;
    t->gradients.accumulate = c->accumulate;
}

void memories_of(head_tensors *t, head_memory memories[HEAD_MEMORIES])
{
    const head_case *c = &t->v->c;
    const head_memory all[HEAD_MEMORIES] = {{&t->hidden, size_of(t, c->hidden, bytes_of(c->dtype))},
                                            {&t->weight, weight_bytes(t, bytes_of(c->dtype))},
                                            {&t->target, size_of(t, 1, sizeof(int64_t))},
                                            {&t->mask, size_of(t, 1, 1)},
                                            {&t->upstream, size_of(t, 1, sizeof(float))},
                                            {&t->other, size_of(t, 1, sizeof(float))},
                                            {&t->logprob, size_of(t, 1, sizeof(float))},
                                            {&t->entropy, size_of(t, 1, sizeof(float))},
                                            {&t->saved, t->saved_bytes},
                                            {&t->hidden_grad, size_of(t, c->hidden, bytes_of(c->grad_dtype))},
                                            {&t->weight_grad, weight_bytes(t, bytes_of(weight_grad_dtype(c)))},
                                            {&t->kept, kept_bytes(t)}};
    memcpy(memories, all, sizeof all);
}

head_tensors tensors_of(const head_values *v, uint64_t first, uint64_t columns)
{
    const head_case *c = &v->c;
    head_tensors t = {.v = v, .first = first, .columns = columns, .allowed = 4e-6};
    head_memory memories[HEAD_MEMORIES];
    t.saved_bytes = v->tokens * (c->has_entropy ? 12 : 8);
    memories_of(&t, memories);
    for (int i = 0; i < HEAD_MEMORIES; i++)
        *memories[i].at = new_memory(memories[i].bytes);
    fill_tokens(&t);
    for (uint64_t i = 0; i < columns; i++)
        for (uint64_t k = 0; k < c->hidden; k++)
            set(t.weight + (i * (c->hidden + c->gap) + k) * bytes_of(c->dtype), c->dtype,
                v->weight[(first + i) * c->hidden + k]);
    describe(&t);
    poison(&t);
    return t;
}

void free_tensors(head_tensors *t)
{
    head_memory memories[HEAD_MEMORIES];
    memories_of(t, memories);
    for (int i = 0; i < HEAD_MEMORIES; i++)
        free(*memories[i].at);
}

static void mix(uint64_t *hash, const uint8_t *memory, uint64_t bytes)
{
    for (uint64_t i = 0; i < bytes; i++)
        *hash = (*hash ^ memory[i]) * UINT64_C(0x100000001b3);
}

uint64_t bits_of(const head_tensors *t)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    mix(&hash, t->logprob, size_of(t, 1, sizeof(float)));
    mix(&hash, t->entropy, size_of(t, 1, sizeof(float)));
    mix(&hash, t->hidden_grad, size_of(t, t->v->c.hidden, bytes_of(t->v->c.grad_dtype)));
    mix(&hash, t->weight_grad, weight_bytes(t, bytes_of(weight_grad_dtype(&t->v->c))));
    return hash;
}

/* ---- comparison ---------------------------------------------------------------------------------------------------- */

static bool is_poison(const uint8_t *memory, uint64_t bytes)
{
    for (uint64_t i = 0; i < bytes; i++)
        if (memory[i] != POISON)
            return false;
    return true;
}

/* Error of rows of `columns`, each followed by the gap; relative to `allowed` times the largest value. */
static double wrong_rows(const uint8_t *memory, bp_dtype dtype, uint64_t columns, uint64_t gap, const uint64_t *places,
                         const double *expected, uint64_t rows, double allowed)
{
    double largest = 1, worst = 0;
    const uint64_t bytes = bytes_of(dtype);
    for (uint64_t i = 0; i < rows * columns; i++)
        largest = fmax(largest, fabs(expected[i]));
    for (uint64_t r = 0; r < rows; r++) {
        for (uint64_t k = 0; k < columns; k++) {
            const double is = get(memory + (places[r] + k) * bytes, dtype), should = expected[r * columns + k];
            const double narrow =
                dtype == BP_DTYPE_FP32 ? 0 : fabs(should) * (dtype == BP_DTYPE_BF16 ? 0x1p-8 : 0x1p-11);
            const double error = fabs(is - should) / (allowed * largest + narrow);
            worst = error <= worst ? worst : isnan(error) ? INFINITY : error;
        }
        if (!is_poison(memory + (places[r] + columns) * bytes, gap * bytes))
            return INFINITY;
    }
    return worst;
}

static double wrong_tensor(const head_tensors *t, const uint8_t *memory, bp_dtype dtype, uint64_t columns,
                           const double *expected, double allowed)
{
    int64_t batch_stride, stride;
    uint64_t *places = malloc((t->v->tokens + 1) * sizeof *places);
    if (places == NULL)
        abort();
    strides_of(&t->v->c, columns, &batch_stride, &stride);
    for (uint64_t token = 0; token < t->v->tokens; token++)
        places[token] = place_of(&t->v->c, token, batch_stride, stride);
    const double wrong = wrong_rows(memory, dtype, columns, t->v->c.gap, places, expected, t->v->tokens, allowed);
    free(places);
    return wrong;
}

double wrong_outputs(const head_tensors *t)
{
    const double logprob = wrong_tensor(t, t->logprob, BP_DTYPE_FP32, 1, t->v->logprob, 4e-6);
    if (!t->v->c.has_entropy)
        return is_poison(t->entropy, size_of(t, 1, sizeof(float))) ? logprob : INFINITY;
    return fmax(logprob, wrong_tensor(t, t->entropy, BP_DTYPE_FP32, 1, t->v->entropy, 4e-6));
}

double wrong_gradients(const head_tensors *t)
{
    const head_case *c = &t->v->c;
    const uint64_t count = t->columns * c->hidden, step = c->hidden + c->gap;
    double *expected = calloc(count + 1, sizeof *expected);
    uint64_t *places = malloc((t->columns + 1) * sizeof *places);
    if (expected == NULL || places == NULL)
        abort();
    for (uint64_t i = 0; i < count; i++)
        expected[i] =
            t->v->weight_grad[t->first * c->hidden + i] + (c->accumulate ? t->v->before[t->first * c->hidden + i] : 0);
    for (uint64_t i = 0; i < t->columns; i++)
        places[i] = i * step;
    const double weight =
        wrong_rows(t->weight_grad, weight_grad_dtype(c), c->hidden, c->gap, places, expected, t->columns, t->allowed);
    free(expected);
    free(places);
    return fmax(weight, wrong_tensor(t, t->hidden_grad, c->grad_dtype, c->hidden, t->v->hidden_grad, t->allowed));
}

bp_lm_head_config head_config_of(const head_case *c)
{
    bp_lm_head_config config;
    (void)bp_lm_head_config_init(&config, sizeof config);
    config.max_tokens = c->batch * c->sequence + c->spare_tokens;
    config.hidden = c->hidden;
    config.vocab = c->vocab;
    config.dtype = c->dtype;
    config.chunk = c->chunk;
    config.memory_bytes = c->memory_bytes != 0 ? c->memory_bytes : config.memory_bytes;
    config.passes = c->way == TWO_CALLS  ? BP_LM_HEAD_FORWARD | BP_LM_HEAD_BACKWARD
                    : c->way == ONE_CALL ? BP_LM_HEAD_ONE_CALL
                                         : BP_LM_HEAD_KEPT;
    config.targets = BP_TARGETS_MASK; /* some are outside the vocabulary */
    return config;
}

bp_status call_head(bp_lm_head *head, const head_tensors *t, bp_stream *stream)
{
    if (t->v->c.way == ONE_CALL)
        return bp_lm_head_forward_backward(head, &t->batch, &t->outputs, &t->gradients, stream);
    const bp_status status = bp_lm_head_forward(head, &t->batch, &t->outputs, stream);
    return status != BP_OK ? status : bp_lm_head_backward(head, &t->batch, &t->gradients, stream);
}
