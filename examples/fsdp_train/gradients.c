/* SPDX-License-Identifier: Apache-2.0 */
/* Reference gradients of the first step: one process with the whole batch and all weights in private memory, no pool, no
 * shards, no streams, no collectives. */
#include "numbers.h"
#include "trainer.h"
#include "try.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_FP32 1e-6 /* of a tensor's norm, up to so many tokens */
#define FP32_TOKENS 512
#define MAX_BF16 0x1p-6

/* ---- without shards ------------------------------------------------------------------------------------------------- */

typedef struct whole {
    engine engine;
    net net;
    void *memory;
    void *values[MAX_TENSORS], *grads[MAX_TENSORS];
} whole;

static bp_status make_tensors(const model *m, whole *w)
{
    for (uint32_t i = 0; i < m->count; i++) {
        const tensor *t = &m->tensors[i];
        float *values = malloc(t->numel * sizeof *values);
        w->values[i] = malloc(t->numel * sizeof(float));
        w->grads[i] = calloc(t->numel, sizeof(float));
        for (uint64_t e = 0; values != NULL && e < t->numel; e++)
            values[e] = model_value(m, i, e);
        work k = {.items = t->numel, .x = values, .out = w->values[i], .stored = model_stored(t->dtype)};
        bp_status status = values != NULL && w->values[i] != NULL && w->grads[i] != NULL
                               ? engine_run(&w->engine, OPERATION_narrow, &k, NULL)
                               : fail_memory();
        free(values);
        TRY(status);
    }
    return BP_OK;
}

static weights weights_of(const whole *w, int32_t unit)
{
    const model *m = w->net.model;
    weights found = {{NULL}, {NULL}};
    uint32_t first = model_tensor(m, unit, 0);
    for (uint32_t i = 0; first + i < m->count && m->tensors[first + i].unit == unit; i++) {
        found.at[i] = w->values[first + i];
        found.grad[i] = w->grads[first + i];
    }
    return found;
}

static bp_status compute(whole *w)
{
    net *n = &w->net;
    uint32_t units = n->model->units;
    weights outside = weights_of(w, BP_OUTSIDE);
    data_make(n->model->options, 0, (row_range){0, n->model->options->rows}, n->ids, n->targets);
    TRY(net_embed(n, &outside, NULL));
    for (uint32_t u = 0; u < units; u++) {
        weights of = weights_of(w, (int32_t)u);
        TRY(net_forward(n, u, &of, NULL));
    }
    TRY(net_head(n, &outside, NULL));
    for (uint32_t u = units; u-- > 0;) {
        weights of = weights_of(w, (int32_t)u);
        TRY(net_backward(n, u, &of, NULL));
    }
    return net_embed_backward(n, &outside, NULL);
}

static bp_status run_whole(const model *m, whole *w)
{
    const options *o = m->options;
    uint32_t tokens = (uint32_t)(o->rows * o->length);
    TRY(engine_create(ENGINE_NOW, NULL, 0, &w->engine));
    w->memory = aligned_alloc(256, net_lay_out(&w->net, m, &w->engine, tokens, NULL));
    if (w->memory == NULL)
        return fail_memory();
    net_lay_out(&w->net, m, &w->engine, tokens, w->memory);
    TRY(make_tensors(m, w));
    return compute(w);
}

static void end_whole(whole *w)
{
    for (uint32_t i = 0; i < MAX_TENSORS; i++) {
        free(w->values[i]);
        free(w->grads[i]);
    }
    free(w->memory);
    engine_destroy(&w->engine);
}

/* ---- from shards ---------------------------------------------------------------------------------------------------- */

/* Every rank's shard of a bucket's gradient, one behind the other: the bucket. */
static bp_status collect(trainer *t, const bucket *b, float *all)
{
    uint64_t bytes = b->shard * sizeof *all;
    TRY(bp_stream_copy(t->compute, t->staging.transfer, b->main_grad, bytes));
    TRY(bp_stream_synchronize(t->compute));
    return bp_comm_exchange(t->control, t->staging.transfer, bytes, all);
}

/* The norm of the difference by the norm of the expected gradients. */
static double difference(const tensor *t, const float *found, const void *expected)
{
    double apart = 0, size = 0;
    for (uint64_t e = 0; e < t->numel; e++) {
        double right = load(expected, model_stored(t->dtype), e), wrong = found[e] - right;
        apart += wrong * wrong;
        size += right * right;
    }
    return size > 0 ? sqrt(apart / size) : apart > 0 ? INFINITY : 0;
}

/* Padding was added up, too, and must not have been garbage. */
static bool is_zero(const float *from, const float *end)
{
    while (from < end && *from == 0)
        from++;
    return from == end;
}

static void compare_bucket(const model *m, const whole *w, uint32_t index, const float *all, gradient_report *report)
{
    for (uint32_t i = 0; i < m->count; i++) {
        const tensor *t = &m->tensors[i];
        if (t->bucket != index)
            continue;
        double *worst = t->dtype == BP_DTYPE_FP32 ? &report->fp32 : &report->bf16;
        double apart = difference(t, all + t->offset, w->grads[i]);
        *worst = apart > *worst ? apart : *worst;
        report->tensors++;
    }
}

/* Sums of more tokens are rounded more often, on both sides in another order. */
static double max_fp32(const options *o)
{
    return MAX_FP32 * fmax(1, (double)(o->rows * o->length) / FP32_TOKENS);
}

static bp_status compare(trainer *t, const whole *w, gradient_report *report)
{
    const double max = max_fp32(t->options);
    *report = (gradient_report){0};
    for (uint32_t i = 0; i < t->sharding.count; i++) {
        const bucket *b = &t->sharding.list[i];
        float *all = malloc(b->info.padded_numel * sizeof *all);
        if (all == NULL)
            return fail_memory();
        bp_status status = collect(t, b, all);
        if (status == BP_OK && !is_zero(all + b->info.numel, all + b->info.padded_numel))
            status = fail(BP_ERR_MISMATCH, "the padding of bucket %u has gradients", i);
        if (status == BP_OK)
            compare_bucket(&t->model, w, i, all, report);
        free(all);
        TRY(status);
    }
    if (!(report->fp32 <= max) || !(report->bf16 <= MAX_BF16))
        return fail(BP_ERR_MISMATCH,
                    "gradients are not those of one process: %g of a tensor's norm apart in fp32 (at most %g), %g in "
                    "bf16 (at most %g)",
                    report->fp32, max, report->bf16, MAX_BF16);
    return BP_OK;
}

bp_status gradients_check(trainer *t, gradient_report *report)
{
    whole *w = calloc(1, sizeof *w);
    if (w == NULL)
        return fail_memory();
    bp_status status = run_whole(&t->model, w);
    if (status == BP_OK)
        status = compare(t, w, report);
    end_whole(w);
    free(w);
    return status;
}
