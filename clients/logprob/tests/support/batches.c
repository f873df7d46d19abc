/* SPDX-License-Identifier: Apache-2.0 */
/* Random batches, and calls on them. */
#include "support/harness.h"

#include "batches.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/scenarios.h"

#define SAVED_MARGIN 64

const kernels_row KERNELS[KERNELS_COUNT] = {
    {"plain", BP_KERNELS_PLAIN}, {"avx2", BP_KERNELS_AVX2}, {"avx512", BP_KERNELS_AVX512}, {"neon", BP_KERNELS_NEON}};

/* ---- filling ------------------------------------------------------------------------------------------------------- */

double random_fraction(void)
{
    return ((double)random_below(1u << 24) + 0.5) / (1u << 23) - 1;
}

static double random_logit(const batch_options *o)
{
    return o->offset + (o->spread == 0 ? 4 : o->spread) * (random_fraction() + random_fraction());
}

static int64_t random_target(const batch_options *o)
{
    int64_t first = o->vocab_start, end = first + (int64_t)o->columns;
    if (o->ignored_in_16 != 0 && random_below(16) < o->ignored_in_16)
        return o->ignores_first ? first : BP_LOGPROB_IGNORED;
    if (random_below(16) >= o->outside_in_16)
        return first + random_below((uint32_t)o->columns);
    const int64_t outside[] = {first - 1, end, end + 1000, -100, INT32_MIN, INT32_MAX};
    return outside[random_below(6)];
}

void put_logit(batch *b, uint64_t i, uint64_t s, uint64_t column, double value)
{
    void *row = row_at(&b->logits, i, s);
    put_element(row, b->o.dtype, (int64_t)column, value);
    b->x[(i * b->o.sequence + s) * b->o.columns + column] = element_at(row, b->o.dtype, (int64_t)column);
    size_t at = (size_t)((uint8_t *)row - b->logits.memory) + column * b->logits.element;
    memcpy(b->original + at, b->logits.memory + at, b->logits.element);
}

static void fill_targets(batch *b, uint64_t i, uint64_t s)
{
    for (uint32_t k = 0; k < b->o.targets; k++) {
        put_whole_k(&b->target, i, s, k, random_target(&b->o));
        if (k > 0 && random_below(4) == 0) /* the same target again */
            put_whole_k(&b->target, i, s, k, whole_k(&b->target, i, s, k - 1));
    }
}

static void fill_row(batch *b, uint64_t i, uint64_t s)
{
    const batch_options *o = &b->o;
    double *x = b->x + (i * o->sequence + s) * o->columns;
    void *row = row_at(&b->logits, i, s);
    for (uint64_t v = 0; v < o->columns && !is_masked(b, i, s); v++) {
        put_element(row, o->dtype, (int64_t)v, random_logit(o));
        x[v] = element_at(row, o->dtype, (int64_t)v);
    }
    if (o->ignored_in_16 == 0)
        fill_targets(b, i, s);
    if (is_masked(b, i, s) && !o->upstream.repeated)
        return; /* must be ignored */
    for (uint32_t k = 0; k < o->targets; k++)
        ((float *)row_at(&b->logprob_grad, i, s))[k] = (float)(2 * random_fraction());
    *(float *)row_at(&b->entropy_grad, i, s) = (float)random_fraction();
    if (o->with_logsumexp)
        *(float *)row_at(&b->logsumexp_grad, i, s) = (float)random_fraction();
    if (o->with_mean)
        *(float *)row_at(&b->mean_logprob_grad, i, s) = (float)(2 * random_fraction());
    if (o->heated)
        *(float *)row_at(&b->temperatures, i, s) = (float)(0.6 + 0.5 * random_fraction());
}

static void fill_mask(batch *b)
{
    for (uint64_t i = 0; i < b->o.batch; i++)
        for (uint64_t s = 0; s < b->o.sequence; s++)
            *(uint8_t *)row_at(&b->mask, i, s) =
                b->o.masked && random_below(3) == 0 ? 0 : (uint8_t)(1 + random_below(255));
}

static view values_view(const batch_options *o, bp_dtype dtype, layout where, uint32_t count)
{
    return new_view(dtype, o->batch, o->sequence, count, where, POISON);
}

batch new_batch(const batch_options *options)
{
    batch b = {.o = *options};
    batch_options *o = &b.o;
    o->dtype = o->dtype == 0 ? BP_DTYPE_FP32 : o->dtype;
    o->grad_dtype = o->in_place ? o->dtype : o->grad_dtype == 0 ? BP_DTYPE_FP32 : o->grad_dtype;
    o->target_dtype = o->target_dtype == 0 ? BP_DTYPE_INT64 : o->target_dtype;
    o->temperature = o->temperature == 0 ? 1 : (double)(float)o->temperature;
    b.logits = new_view(o->dtype, o->batch, o->sequence, o->columns, o->logits, POISON);
    b.grad = o->in_place ? b.logits : new_view(o->grad_dtype, o->batch, o->sequence, o->columns, o->grad, POISON);
    o->rounding = o->rounding == 0 ? BP_DTYPE_FP32 : o->rounding;
    o->soft_cap = (double)(float)o->soft_cap;
    o->targets = o->targets == 0 ? 1 : o->targets;
    b.target = values_view(o, o->target_dtype, o->target, o->targets);
    b.mask = values_view(o, BP_DTYPE_UINT8, o->mask, 1);
    b.temperatures = values_view(o, BP_DTYPE_FP32, o->upstream, 1);
    view *const outputs[] = {&b.logprob, &b.entropy, &b.logsumexp, &b.mean_logprob};
    view *const upstream[] = {&b.logprob_grad, &b.entropy_grad, &b.logsumexp_grad, &b.mean_logprob_grad};
    for (int i = 0; i < 4; i++) {
        *outputs[i] = values_view(o, BP_DTYPE_FP32, o->outputs, i == 0 ? o->targets : 1);
        *upstream[i] = values_view(o, BP_DTYPE_FP32, o->upstream, i == 0 ? o->targets : 1);
    }
    uint64_t tokens = token_count(&b);
    assert_ok(bp_logprob_saved_bytes(tokens, o->with_entropy, &b.saved_bytes));
    b.saved = aligned_alloc(64, (2 * SAVED_MARGIN + b.saved_bytes + 63) / 64 * 64);
    b.x = calloc(tokens * o->columns + 1, sizeof *b.x);
    b.original = malloc(b.logits.bytes);
    if (b.saved == NULL || b.x == NULL || b.original == NULL)
        abort();
    fill_mask(&b); /* separate passes, because tokens may share an element */
    for (uint64_t i = 0; i < o->batch && o->ignored_in_16 != 0; i++)
        for (uint64_t s = 0; s < o->sequence; s++)
            fill_targets(&b, i, s);
    for (uint64_t i = 0; i < o->batch; i++)
        for (uint64_t s = 0; s < o->sequence; s++)
            fill_row(&b, i, s);
    memcpy(b.original, b.logits.memory, b.logits.bytes);
    poison_outputs(&b, POISON);
    return b;
}

void free_batch(batch *b)
{
    free_view(&b->logits);
    if (!b->o.in_place)
        free_view(&b->grad);
    view *const others[] = {&b->target,       &b->mask,           &b->temperatures,     &b->logprob,
                            &b->entropy,      &b->logsumexp,      &b->mean_logprob,     &b->logprob_grad,
                            &b->entropy_grad, &b->logsumexp_grad, &b->mean_logprob_grad};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        free_view(others[i]);
    free(b->saved);
    free(b->x);
    free(b->original);
}

void restore_logits(batch *b)
{
    memcpy(b->logits.memory, b->original, b->logits.bytes);
}

uint64_t token_count(const batch *b)
{
    return b->o.batch * b->o.sequence;
}

bool is_masked(const batch *b, uint64_t i, uint64_t s)
{
    bool masked = b->o.ignored_in_16 != 0;
    for (uint32_t k = 0; k < b->o.targets && masked; k++)
        masked = is_ignored(b, i, s, k);
    return masked || (b->o.masked && *(const uint8_t *)row_at(&b->mask, i, s) == 0);
}

bool is_ignored(const batch *b, uint64_t i, uint64_t s, uint32_t k)
{
    const int64_t ignored = b->o.ignores_first ? b->o.vocab_start : BP_LOGPROB_IGNORED;
    return b->o.ignored_in_16 != 0 && whole_k(&b->target, i, s, k) == ignored;
}

bool is_bad(const batch *b, uint64_t i, uint64_t s)
{
    bool bad = false;
    for (uint32_t k = 0; k < b->o.targets && b->o.strict && !is_masked(b, i, s); k++) {
        const int64_t column = target_column(b, i, s, k);
        bad = bad || (!is_ignored(b, i, s, k) && (column < 0 || column >= (int64_t)b->o.columns));
    }
    return bad;
}

bool has_bad(const batch *b)
{
    bool bad = false;
    for (uint64_t i = 0; i < b->o.batch; i++)
        for (uint64_t s = 0; s < b->o.sequence; s++)
            bad = bad || is_bad(b, i, s);
    return bad;
}

double logit_at(const batch *b, uint64_t i, uint64_t s, uint64_t column)
{
    double x = b->x[(i * b->o.sequence + s) * b->o.columns + column];
    if (b->o.rounding != BP_DTYPE_FP32)
        x = rounded_to(b->o.rounding, x);
    return b->o.soft_cap == 0 ? x : b->o.soft_cap * tanh(x / b->o.soft_cap);
}

int64_t target_column(const batch *b, uint64_t i, uint64_t s, uint32_t k)
{
    if (is_ignored(b, i, s, k))
        return -1;
    /* wraps around for the smallest targets, far from any column */
    return (int64_t)((uint64_t)whole_k(&b->target, i, s, k) - (uint64_t)b->o.vocab_start);
}

true_row truth_of(const batch *b, uint64_t i, uint64_t s)
{
    double *x = malloc((b->o.columns + 1) * sizeof *x);
    if (x == NULL)
        abort();
    for (uint64_t v = 0; v < b->o.columns; v++)
        x[v] = logit_at(b, i, s, v);
    true_row row = row_of(x, b->o.columns, target_column(b, i, s, 0),
                          b->o.heated ? upstream_at(&b->temperatures, i, s) : b->o.temperature);
    row.cap = b->o.soft_cap;
    free(x);
    return row;
}

true_upstream upstream_of(const batch *b, uint64_t i, uint64_t s, int64_t column)
{
    true_upstream up = {.entropy = b->o.with_entropy ? upstream_at(&b->entropy_grad, i, s) : 0,
                        .logsumexp = b->o.with_logsumexp ? upstream_at(&b->logsumexp_grad, i, s) : 0,
                        .mean = b->o.with_mean ? upstream_at(&b->mean_logprob_grad, i, s) : 0};
    for (uint32_t k = 0; k < b->o.targets && !b->o.without_logprob; k++) {
        if (is_ignored(b, i, s, k))
            continue;
        up.all += value_of(&b->logprob_grad, i, s, k);
        up.here += target_column(b, i, s, k) == column ? value_of(&b->logprob_grad, i, s, k) : 0;
    }
    return up;
}

double value_of(const view *v, uint64_t i, uint64_t s, uint32_t k)
{
    return ((const float *)row_at(v, i, s))[k];
}

double upstream_at(const view *v, uint64_t i, uint64_t s)
{
    return value_of(v, i, s, 0);
}

void poison_outputs(batch *b, uint8_t poison)
{
    poison_view(&b->logprob, poison);
    poison_view(&b->entropy, poison);
    poison_view(&b->logsumexp, poison);
    poison_view(&b->mean_logprob, poison);
    memset(b->saved, poison, 2 * SAVED_MARGIN + b->saved_bytes);
}

void poison_gradient(batch *b, uint8_t poison)
{
    if (!b->o.in_place)
        poison_view(&b->grad, poison);
}

/* ---- calls --------------------------------------------------------------------------------------------------------- */

shard whole_shard(const batch *b)
{
    return (shard){0, b->o.columns};
}

static bp_token_rows part_of(const view *v, shard part)
{
    bp_token_rows rows = rows_of(v);
    rows.data = v->data + part.first * v->element;
    rows.columns = part.end - part.first;
    return rows;
}

bp_logprob_batch call_of(const batch *b, shard part)
{
    bp_logprob_batch call;
    bp_logprob_batch_init(&call, sizeof call);
    call.logits = part_of(&b->logits, part);
    call.tokens.target = values_of(&b->target);
    call.tokens.target_dtype = b->o.target_dtype;
    if (b->o.masked)
        call.tokens.mask = values_of(&b->mask);
    call.tokens.temperature = (float)b->o.temperature;
    call.tokens.targets = b->o.targets;
    call.tokens.soft_cap = (float)b->o.soft_cap;
    call.tokens.rounding = b->o.rounding;
    if (b->o.ignored_in_16 == 0)
        call.tokens.ignore_index = BP_LOGPROB_IGNORE_NONE;
    else if (b->o.ignores_first)
        call.tokens.ignore_index = b->o.vocab_start;
    if (b->o.heated)
        call.tokens.temperatures = values_of(&b->temperatures);
    return call;
}

bp_logprob_outputs outputs_of(const batch *b)
{
    bp_logprob_outputs outputs;
    bp_logprob_outputs_init(&outputs, sizeof outputs);
    if (!b->o.without_logprob)
        outputs.logprob = values_of(&b->logprob);
    if (b->o.with_entropy)
        outputs.entropy = values_of(&b->entropy);
    if (b->o.with_logsumexp)
        outputs.logsumexp = values_of(&b->logsumexp);
    if (b->o.with_mean)
        outputs.mean_logprob = values_of(&b->mean_logprob);
    outputs.saved = b->saved + SAVED_MARGIN;
    outputs.saved_bytes = b->saved_bytes;
    return outputs;
}

bp_logprob_gradients gradients_of(const batch *b, shard part)
{
    bp_logprob_gradients gradients;
    bp_logprob_gradients_init(&gradients, sizeof gradients);
    if (!b->o.without_logprob)
        gradients.logprob_grad = values_of(&b->logprob_grad);
    if (b->o.with_entropy)
        gradients.entropy_grad = values_of(&b->entropy_grad);
    if (b->o.with_logsumexp)
        gradients.logsumexp_grad = values_of(&b->logsumexp_grad);
    if (b->o.with_mean)
        gradients.mean_logprob_grad = values_of(&b->mean_logprob_grad);
    gradients.saved = b->saved + SAVED_MARGIN;
    gradients.saved_bytes = b->saved_bytes;
    gradients.logits_grad = part_of(&b->grad, part);
    gradients.in_place = b->o.in_place;
    return gradients;
}

bp_logprob *new_client(bp_device *device, const batch *b, uint32_t kernels, uint32_t threads)
{
    bp_logprob_config config;
    bp_logprob *client = NULL;
    assert_ok(bp_logprob_config_init(&config, sizeof config));
    config.max_tokens = token_count(b);
    config.max_targets = b->o.targets > 1 ? b->o.targets : 1;
    config.vocab = b->o.columns;
    config.vocab_start = (uint64_t)b->o.vocab_start;
    config.kernels = kernels;
    config.threads = threads;
    config.targets = b->o.strict ? BP_TARGETS_ERROR : BP_TARGETS_MASK;
    assert_ok(bp_logprob_create(device, &config, &client));
    return client;
}

void run_forward(bp_logprob *client, const batch *b)
{
    bp_logprob_batch call = call_of(b, whole_shard(b));
    bp_logprob_outputs outputs = outputs_of(b);
    assert_int_equal(bp_logprob_forward(client, &call, &outputs, NULL), has_bad(b) ? BP_ERR_INVALID_ARGUMENT : BP_OK);
}

void run_backward(bp_logprob *client, const batch *b)
{
    bp_logprob_batch call = call_of(b, whole_shard(b));
    bp_logprob_gradients gradients = gradients_of(b, whole_shard(b));
    assert_ok(bp_logprob_backward(client, &call, &gradients, NULL));
}

void run_fused(bp_logprob *client, const batch *b)
{
    bp_logprob_batch call = call_of(b, whole_shard(b));
    bp_logprob_outputs outputs = outputs_of(b);
    bp_logprob_gradients gradients = gradients_of(b, whole_shard(b));
    gradients.saved = NULL;
    gradients.saved_bytes = 0;
    assert_int_equal(bp_logprob_forward_backward(client, &call, &outputs, &gradients, NULL),
                     has_bad(b) ? BP_ERR_INVALID_ARGUMENT : BP_OK);
}

void check_both(bp_logprob *client, batch *b)
{
    poison_outputs(b, POISON);
    poison_gradient(b, POISON);
    if (b->o.fused) {
        run_fused(client, b);
        assert_true(outputs_are_true(b) && gradient_is_true(b, whole_shard(b)));
        assert_true(b->o.in_place || inputs_are_whole(b));
        return;
    }
    run_forward(client, b);
    assert_true(outputs_are_true(b));
    assert_true(inputs_are_whole(b));
    run_backward(client, b);
    assert_true(gradient_is_true(b, whole_shard(b)));
    assert_true(b->o.in_place || inputs_are_whole(b));
}

void check_options(bp_device *device, const batch_options *options, uint32_t kernels, uint32_t threads,
                   void (*change)(batch *b))
{
    batch b = new_batch(options);
    if (change != NULL)
        change(&b);
    bp_logprob *client = new_client(device, &b, kernels, threads);
    check_both(client, &b);
    bp_logprob_destroy(&client);
    free_batch(&b);
}

bool has_kernels(bp_device *device, const kernels_row *row)
{
    static bool said;
    batch one = {.o = {.batch = 1, .sequence = 1, .columns = 1}};
    bp_logprob *client = new_client(device, &one, row->bit, 1);
    const bp_logprob_info info = *bp_logprob_get_info(client);
    bool has = strcmp(info.kernels, row->name) == 0;
    if (!has && !said)
        print_message("this machine or build has no %s kernels\n", row->name);
    said = said || !has;
    bp_logprob_destroy(&client);
    return has;
}
