/* SPDX-License-Identifier: Apache-2.0 */
/* Random batches of the head, and calls on them. */
#include "support/harness.h"

#include "heads.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/scenarios.h"

#define SAVED_MARGIN 64
#define KEPT_GAP 3

/* The whole of a [columns, hidden] matrix as rows of one sequence. */
static view weight_view(const head_options *o, bp_dtype dtype, layout where)
{
    where.sequence_outside = false;
    return new_view(dtype, 1, o->columns, o->hidden, where, POISON);
}

static void fill_hidden(head_batch *h, uint64_t i, uint64_t s)
{
    void *row = row_at(&h->hidden, i, s);
    double masked = h->o.masked_is_nan ? NAN : 30000;
    for (uint64_t k = 0; k < h->o.hidden; k++)
        put_element(row, h->o.dtype, (int64_t)k, is_masked(&h->tokens, i, s) ? masked : 2 * random_fraction());
}

static void fill_weight(head_batch *h)
{
    double scale = 3 / sqrt((double)h->o.hidden);
    for (uint64_t v = 0; v < h->o.columns; v++)
        for (uint64_t k = 0; k < h->o.hidden; k++) {
            put_element(row_at(&h->weight, 0, v), h->o.dtype, (int64_t)k, scale * random_fraction());
            h->before[v * h->o.hidden + k] = (float)random_fraction();
        }
    for (uint64_t v = 0; v < h->o.columns && h->o.biased; v++)
        ((float *)h->bias.data)[v] = h->o.excludes && v % 5 == 3 ? -INFINITY : (float)(2 * random_fraction());
}

/* Logits of a token, and the largest sum of magnitudes of a logit's terms. */
static void make_logits(head_batch *h, uint64_t i, uint64_t s)
{
    uint64_t t = i * h->o.sequence + s;
    double *x = h->tokens.x + t * h->o.columns;
    for (uint64_t v = 0; v < h->o.columns; v++) {
        double sum = h->o.biased ? value_of(&h->bias, 0, 0, (uint32_t)v) : 0, sizes = fabs(sum);
        for (uint64_t k = 0; k < h->o.hidden; k++) {
            double term = element_at(row_at(&h->hidden, i, s), h->o.dtype, (int64_t)k) *
                          element_at(row_at(&h->weight, 0, v), h->o.dtype, (int64_t)k);
            sum += term;
            sizes += fabs(term);
        }
        x[v] = sum;
        if (sizes < INFINITY)
            h->product[t] = fmax(h->product[t], sizes);
    }
}

head_batch new_head_batch(const head_options *options)
{
    head_batch h = {.o = *options};
    head_options *o = &h.o;
    o->dtype = o->dtype == 0 ? BP_DTYPE_FP32 : o->dtype;
    o->grad_dtype = o->grad_dtype == 0 ? BP_DTYPE_FP32 : o->grad_dtype;
    batch_options tokens = {.batch = o->batch,
                            .sequence = o->sequence,
                            .columns = o->columns,
                            .target = o->target,
                            .mask = o->mask,
                            .upstream = o->upstream,
                            .outputs = o->outputs,
                            .masked = o->masked,
                            .with_entropy = o->with_entropy,
                            .without_logprob = o->without_logprob,
                            .temperature = o->temperature,
                            .vocab_start = o->vocab_start,
                            .outside_in_16 = o->outside_in_16,
                            .ignored_in_16 = o->ignored_in_16,
                            .ignores_first = o->ignores_first,
                            .targets = o->targets,
                            .with_logsumexp = o->with_logsumexp,
                            .with_mean = o->with_mean,
                            .heated = o->heated,
                            .soft_cap = o->soft_cap,
                            .rounding = o->rounding};
    h.tokens = new_batch(&tokens);
    o->temperature = h.tokens.o.temperature;
    h.hidden = new_view(o->dtype, o->batch, o->sequence, o->hidden, o->hidden_at, POISON);
    h.hidden_grad = new_view(o->grad_dtype, o->batch, o->sequence, o->hidden, o->hidden_grad_at, POISON);
    h.weight = weight_view(o, o->dtype, o->weight_at);
    h.weight_grad = weight_view(o, o->narrow_weight_grad ? o->dtype : BP_DTYPE_FP32, o->weight_grad_at);
    h.bias = new_view(BP_DTYPE_FP32, 1, 1, o->columns, (layout){.shift = 3}, POISON);
    h.bias_grad = new_view(BP_DTYPE_FP32, 1, 1, o->columns, (layout){.shift = 5}, POISON);
    h.before = calloc(o->columns * o->hidden, sizeof *h.before);
    h.product = calloc(token_count(&h.tokens) + 1, sizeof *h.product);
    h.kept = malloc(token_count(&h.tokens) * (o->columns + KEPT_GAP) * sizeof *h.kept + 1);
    assert_true(h.before != NULL && h.product != NULL && h.kept != NULL);
    fill_weight(&h);
    for (uint64_t i = 0; i < o->batch; i++) {
        for (uint64_t s = 0; s < o->sequence; s++) {
            fill_hidden(&h, i, s);
            if (!is_masked(&h.tokens, i, s))
                make_logits(&h, i, s);
        }
    }
    poison_head(&h);
    return h;
}

void free_head_batch(head_batch *h)
{
    free_batch(&h->tokens);
    free_view(&h->hidden);
    free_view(&h->hidden_grad);
    free_view(&h->weight);
    free_view(&h->weight_grad);
    free_view(&h->bias);
    free_view(&h->bias_grad);
    free(h->before);
    free(h->product);
    free(h->kept);
}

void poison_head(head_batch *h)
{
    poison_outputs(&h->tokens, POISON);
    poison_view(&h->hidden_grad, POISON);
    poison_view(&h->weight_grad, POISON);
    poison_view(&h->bias_grad, POISON);
    memset(h->kept, POISON, token_count(&h->tokens) * (h->o.columns + KEPT_GAP) * sizeof *h->kept);
    if (h->o.accumulate)
        memcpy(h->bias_grad.data, h->bias.data, h->o.columns * sizeof(float));
    for (uint64_t v = 0; v < h->o.columns && h->o.accumulate; v++)
        for (uint64_t k = 0; k < h->o.hidden; k++)
            ((float *)row_at(&h->weight_grad, 0, v))[k] = (float)h->before[v * h->o.hidden + k];
}

/* ---- calls --------------------------------------------------------------------------------------------------------- */

bp_lm_head_config head_config_of(const head_batch *h, shard part)
{
    static const uint32_t passes[HEAD_WAYS] = {BP_LM_HEAD_FORWARD | BP_LM_HEAD_BACKWARD, BP_LM_HEAD_ONE_CALL,
                                               BP_LM_HEAD_KEPT};
    bp_lm_head_config config;
    bp_lm_head_config_init(&config, sizeof config);
    config.max_tokens = h->o.batch * h->o.sequence;
    config.max_targets = h->tokens.o.targets;
    config.targets = BP_TARGETS_MASK;
    config.hidden = h->o.hidden;
    config.vocab = part.end - part.first;
    config.vocab_start = (uint64_t)h->o.vocab_start + part.first;
    config.dtype = h->o.dtype;
    config.chunk = h->o.chunk;
    config.threads = h->o.threads;
    config.partial_hidden_grad = h->o.partial;
    config.memory_bytes = h->o.memory_bytes != 0 ? h->o.memory_bytes : config.memory_bytes;
    config.passes = passes[h->o.way];
    return config;
}

bp_lm_head_batch head_call_of(const head_batch *h, shard part)
{
    bp_lm_head_batch call;
    bp_logprob_batch tokens = call_of(&h->tokens, part);
    bp_lm_head_batch_init(&call, sizeof call);
    call.hidden = rows_of(&h->hidden);
    call.weight = row_at(&h->weight, 0, part.first);
    call.weight_stride = h->weight.stride;
    call.tokens = tokens.tokens;
    if (h->o.biased)
        call.bias = (const float *)h->bias.data + part.first;
    if (h->o.way == KEPT_LOGITS) {
        call.logits = h->kept;
        call.logits_stride = (int64_t)h->o.columns + KEPT_GAP;
    }
    return call;
}

bp_lm_head_gradients head_gradients_of(const head_batch *h, shard part)
{
    bp_lm_head_gradients gradients;
    bp_lm_head_gradients_init(&gradients, sizeof gradients);
    if (!h->o.without_logprob)
        gradients.logprob_grad = values_of(&h->tokens.logprob_grad);
    if (h->o.with_entropy)
        gradients.entropy_grad = values_of(&h->tokens.entropy_grad);
    if (h->o.with_logsumexp)
        gradients.logsumexp_grad = values_of(&h->tokens.logsumexp_grad);
    if (h->o.with_mean)
        gradients.mean_logprob_grad = values_of(&h->tokens.mean_logprob_grad);
    if (h->o.biased)
        gradients.bias_grad = (float *)h->bias_grad.data + part.first;
    gradients.saved = h->tokens.saved + SAVED_MARGIN;
    gradients.saved_bytes = h->tokens.saved_bytes;
    gradients.hidden_grad = rows_of(&h->hidden_grad);
    gradients.weight_grad = row_at(&h->weight_grad, 0, part.first);
    gradients.weight_grad_stride = h->weight_grad.stride;
    gradients.weight_grad_dtype = h->o.narrow_weight_grad ? h->o.dtype : BP_DTYPE_FP32;
    gradients.accumulate = h->o.accumulate;
    return gradients;
}

bool has_products(bp_device *device)
{
    bp_lm_head_config config;
    bp_lm_head *head = NULL;
    assert_ok(bp_lm_head_config_init(&config, sizeof config));
    config.max_tokens = config.hidden = config.vocab = 1;
    config.dtype = BP_DTYPE_FP32; /* bf16 may need no BLAS library */
    bp_status status = bp_lm_head_create(device, &config, &head);
    bp_lm_head_destroy(&head);
    if (status == BP_ERR_UNSUPPORTED)
        print_message("no matrix products: %s\n", bp_error_detail());
    return status != BP_ERR_UNSUPPORTED;
}

bp_lm_head *new_head(bp_device *device, const head_batch *h)
{
    bp_lm_head *head = NULL;
    bp_lm_head_config config = head_config_of(h, whole_shard(&h->tokens));
    assert_ok(bp_lm_head_create(device, &config, &head));
    return head;
}

bp_status call_head(bp_lm_head *head, head_way way, const bp_lm_head_batch *call, const bp_logprob_outputs *outputs,
                    const bp_lm_head_gradients *gradients, bp_stream *stream)
{
    if (way == ONE_CALL)
        return bp_lm_head_forward_backward(head, call, outputs, gradients, stream);
    const bp_status status = bp_lm_head_forward(head, call, outputs, stream);
    return status != BP_OK ? status : bp_lm_head_backward(head, call, gradients, stream);
}

void run_head(bp_lm_head *head, const head_batch *h)
{
    bp_lm_head_batch call = head_call_of(h, whole_shard(&h->tokens));
    bp_logprob_outputs outputs = outputs_of(&h->tokens);
    bp_lm_head_gradients gradients = head_gradients_of(h, whole_shard(&h->tokens));
    assert_ok(call_head(head, h->o.way, &call, &outputs, &gradients, NULL));
}

void check_head(bp_lm_head *head, head_batch *h)
{
    poison_head(h);
    run_head(head, h);
    assert_true(head_outputs_are_true(h));
    assert_true(hidden_grad_is_true(h, whole_shard(&h->tokens)));
    assert_true(weight_grad_is_true(h, whole_shard(&h->tokens)));
}
