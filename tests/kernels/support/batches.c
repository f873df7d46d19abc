/* Random batches, and calls on them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "batches.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../../planner/scenarios.h"

#define SAVED_MARGIN 64

const kernels_row KERNELS[KERNELS_COUNT] = {
    {"plain", BP_KERNELS_PLAIN}, {"avx2", BP_KERNELS_AVX2}, {"avx512", BP_KERNELS_AVX512}};

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

static void fill_row(batch *b, uint64_t i, uint64_t s)
{
    const batch_options *o = &b->o;
    double *x = b->x + (i * o->sequence + s) * o->columns;
    void *row = row_at(&b->logits, i, s);
    for (uint64_t v = 0; v < o->columns && !is_masked(b, i, s); v++) {
        put_element(row, o->dtype, (int64_t)v, random_logit(o));
        x[v] = element_at(row, o->dtype, (int64_t)v);
    }
    put_whole(&b->target, i, s, random_target(o));
    if (is_masked(b, i, s) && !o->upstream.repeated)
        return; /* must be ignored */
    *(float *)row_at(&b->logprob_grad, i, s) = (float)(2 * random_fraction());
    *(float *)row_at(&b->entropy_grad, i, s) = (float)random_fraction();
}

static void fill_mask(batch *b)
{
    for (uint64_t i = 0; i < b->o.batch; i++)
        for (uint64_t s = 0; s < b->o.sequence; s++)
            *(uint8_t *)row_at(&b->mask, i, s) =
                b->o.masked && random_below(3) == 0 ? 0 : (uint8_t)(1 + random_below(255));
}

static view values_view(const batch_options *o, bp_dtype dtype, layout where)
{
    return new_view(dtype, o->batch, o->sequence, 1, where, POISON);
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
    b.target = values_view(o, o->target_dtype, o->target);
    b.mask = values_view(o, BP_DTYPE_UINT8, o->mask);
    b.logprob = values_view(o, BP_DTYPE_FP32, o->outputs);
    b.entropy = values_view(o, BP_DTYPE_FP32, o->outputs);
    b.logprob_grad = values_view(o, BP_DTYPE_FP32, o->upstream);
    b.entropy_grad = values_view(o, BP_DTYPE_FP32, o->upstream);
    uint64_t tokens = token_count(&b);
    assert_ok(bp_logprob_saved_bytes(tokens, o->with_entropy, &b.saved_bytes));
    b.saved = aligned_alloc(64, (2 * SAVED_MARGIN + b.saved_bytes + 63) / 64 * 64);
    b.x = calloc(tokens * o->columns + 1, sizeof *b.x);
    b.original = malloc(b.logits.bytes);
    if (b.saved == NULL || b.x == NULL || b.original == NULL)
        abort();
    fill_mask(&b); /* separate pass, because tokens may share an element */
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
    view *const others[] = {&b->target, &b->mask, &b->logprob, &b->entropy, &b->logprob_grad, &b->entropy_grad};
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
    return b->o.masked && *(const uint8_t *)row_at(&b->mask, i, s) == 0;
}

true_row truth_of(const batch *b, uint64_t i, uint64_t s)
{
    const double *x = b->x + (i * b->o.sequence + s) * b->o.columns;
    /* wraps around for the smallest targets, far from any column */
    int64_t column = (int64_t)((uint64_t)whole_at(&b->target, i, s) - (uint64_t)b->o.vocab_start);
    return row_of(x, b->o.columns, column, b->o.temperature);
}

double upstream_at(const view *v, uint64_t i, uint64_t s)
{
    return *(const float *)row_at(v, i, s);
}

void poison_outputs(batch *b, uint8_t poison)
{
    poison_view(&b->logprob, poison);
    poison_view(&b->entropy, poison);
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
    config.vocab = b->o.columns;
    config.vocab_start = (uint64_t)b->o.vocab_start;
    config.kernels = kernels;
    config.threads = threads;
    assert_ok(bp_logprob_create(device, &config, &client));
    return client;
}

void run_forward(bp_logprob *client, const batch *b)
{
    bp_logprob_batch call = call_of(b, whole_shard(b));
    bp_logprob_outputs outputs = outputs_of(b);
    assert_ok(bp_logprob_forward(client, &call, &outputs, NULL));
}

void run_backward(bp_logprob *client, const batch *b)
{
    bp_logprob_batch call = call_of(b, whole_shard(b));
    bp_logprob_gradients gradients = gradients_of(b, whole_shard(b));
    assert_ok(bp_logprob_backward(client, &call, &gradients, NULL));
}

void check_both(bp_logprob *client, batch *b)
{
    poison_outputs(b, POISON);
    poison_gradient(b, POISON);
    run_forward(client, b);
    assert_true(outputs_are_true(b));
    assert_true(inputs_are_whole(b));
    run_backward(client, b);
    assert_true(gradient_is_true(b, whole_shard(b)));
    assert_true(b->o.in_place || inputs_are_whole(b));
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
