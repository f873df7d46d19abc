#include "support/harness.h"

#include "calls.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- kits ---------------------------------------------------------------------------------------------------------- */

kit open_kit(uint32_t threads, uint32_t kernels, uint64_t columns)
{
    kit k = {0};
    assert_ok(bp_device_create_host(NULL, &k.device));
    for (int i = 0; i < 2; i++)
        assert_ok(bp_stream_create(k.device, NULL, &k.streams[i]));
    assert_ok(bp_engine_create_host(threads, kernels, columns, &k.engine));
    return k;
}

void close_kit(kit *k)
{
    assert_ok(bp_device_synchronize(k->device));
    k->engine->ops->destroy(k->engine);
    for (int i = 0; i < 2; i++)
        bp_stream_destroy(&k->streams[i]);
    bp_device_destroy(&k->device);
}

/* ---- memory -------------------------------------------------------------------------------------------------------- */

enum { GAP = 3, BATCH_GAP = 5, VALUE_STRIDE = 2 };

static bp_dtype public_dtype(int dtype)
{
    return dtype == BP_ROW_FP32 ? BP_DTYPE_FP32 : dtype == BP_ROW_BF16 ? BP_DTYPE_BF16 : BP_DTYPE_FP16;
}

static void *poisoned(size_t bytes)
{
    void *memory = malloc(bytes > 0 ? bytes : 1);
    assert_non_null(memory);
    memset(memory, 0xff, bytes);
    return memory;
}

static uint64_t tokens_of(const call *c)
{
    return c->o.batch * c->o.sequence;
}

static int64_t row_stride(const call *c)
{
    return (int64_t)c->o.columns + GAP;
}

static int64_t batch_stride(const call *c)
{
    return (int64_t)c->o.sequence * row_stride(c) + BATCH_GAP;
}

static int64_t row_offset(const call *c, uint64_t token)
{
    return (int64_t)(token / c->o.sequence) * batch_stride(c) + (int64_t)(token % c->o.sequence) * row_stride(c);
}

static size_t value_offset(const call *c, uint64_t token)
{
    return token / c->o.sequence * (c->o.sequence * VALUE_STRIDE + 1) + token % c->o.sequence * VALUE_STRIDE;
}

int64_t target_of(const call *c, uint64_t token)
{
    size_t offset = value_offset(c, token);
    return c->o.narrow_targets ? ((int32_t *)c->targets)[offset] : ((int64_t *)c->targets)[offset];
}

int is_masked(const call *c, uint64_t token)
{
    return c->o.with_mask && c->mask[value_offset(c, token)] == 0;
}

static void fill_token(call *c, uint64_t token, uint64_t *state)
{
    static const int64_t elsewhere[] = {-1, -100, INT64_MIN, INT64_MAX, INT32_MIN, INT32_MAX};
    size_t offset = value_offset(c, token);
    row_kind kind = token % 2 == 0 ? c->o.kind : ROW_NORMAL;
    char *row = c->logits + row_offset(c, token) * (int64_t)element_bytes(c->o.dtype);
    fill_row(kind, c->o.dtype, row, c->o.columns, c->o.seed + token);
    int64_t target = token % 5 == 4 ? elsewhere[random_of(state) % 6] : (int64_t)(random_of(state) % c->o.columns);
    if (token % 7 == 6)
        target = (int64_t)c->o.columns; /* first id outside */
    if (c->o.narrow_targets)
        ((int32_t *)c->targets)[offset] = (int32_t)target;
    else
        ((int64_t *)c->targets)[offset] = target;
    c->mask[offset] = (uint8_t)(random_of(state) % 3);
    c->logprob_grad[offset] = (float)random_normal(state);
    c->entropy_grad[offset] = (float)random_normal(state);
}

static bp_tokens_work tokens_work(const call *c)
{
    int64_t all = (int64_t)c->o.sequence * VALUE_STRIDE + 1;
    return (bp_tokens_work){.batch = c->o.batch,
                            .sequence = c->o.sequence,
                            .target = c->targets,
                            .target_batch_stride = all,
                            .target_stride = VALUE_STRIDE,
                            .targets = 1,
                            .target_is_64 = !c->o.narrow_targets,
                            .scale = c->o.scale,
                            .mask = c->o.with_mask ? c->mask : NULL,
                            .mask_batch_stride = all,
                            .mask_stride = VALUE_STRIDE,
                            .vocab = c->o.columns};
}

static void set_work(call *c)
{
    const bp_tokens_work tokens = tokens_work(c);
    const uint64_t count = tokens_of(c);
    const int64_t all = tokens.mask_batch_stride;
    const bool with_entropy = c->o.with_entropy != 0;
    const bp_saved_work saved = {c->saved, c->saved + count, with_entropy ? c->saved + 2 * count : NULL};
    const int64_t apart = c->o.same_upstream ? 0 : VALUE_STRIDE;
    const bp_logits_work logits = {.data = c->logits,
                                   .batch_stride = batch_stride(c),
                                   .stride = row_stride(c),
                                   .columns = c->o.columns,
                                   .dtype = (int32_t)public_dtype(c->o.dtype),
                                   .rounding = BP_DTYPE_FP32};
    const bp_results_work results = {.logprob = {c->logprob, all, VALUE_STRIDE, 0},
                                     .entropy = {with_entropy ? c->entropy : NULL, all, VALUE_STRIDE, 0},
                                     .saved = saved};
    c->forward = (bp_forward_work){.tokens = tokens,
                                   .logits = logits,
                                   .level = with_entropy ? BP_SUMS_WEIGHTED : BP_SUMS_PLAIN,
                                   .partials = c->partials,
                                   .target_logits = c->target_logits};
    c->finish = (bp_finish_work){
        .tokens = tokens, .partials = c->partials, .target_logits = c->target_logits, .ranks = 1, .results = results};
    c->backward = (bp_gradient_work){.tokens = tokens,
                                     .logits = logits,
                                     .saved = saved,
                                     .logprob = {c->logprob_grad, c->o.same_upstream ? 0 : all, apart, 0},
                                     .entropy = {with_entropy ? c->entropy_grad : NULL, all, VALUE_STRIDE, 0},
                                     .out = c->out,
                                     .out_batch_stride = batch_stride(c),
                                     .out_stride = row_stride(c),
                                     .out_dtype = (int32_t)public_dtype(c->o.out_dtype)};
    if (c->o.directly) {
        c->forward.partials = NULL;
        c->forward.target_logits = NULL;
        c->forward.results = results;
    }
    if (c->o.in_place && c->o.out_dtype != c->o.dtype) {
        c->backward.out_batch_stride *= 2;
        c->backward.out_stride *= 2;
        c->backward.narrows_in_place = 1;
    }
}

call new_call(const call_options *options)
{
    call c = {.o = *options, .bad = UINT64_MAX};
    uint64_t state = options->seed * 77 + 88172645463325252u, count = tokens_of(&c);
    size_t elements = (size_t)((int64_t)options->batch * batch_stride(&c));
    c.logits_bytes = elements * element_bytes(options->dtype);
    c.logits = poisoned(c.logits_bytes);
    c.out_bytes = options->in_place ? c.logits_bytes : elements * element_bytes(options->out_dtype);
    c.out = options->in_place ? c.logits : poisoned(c.out_bytes);
    c.values = (options->sequence * VALUE_STRIDE + 1) * options->batch;
    c.targets = poisoned(c.values * sizeof(int64_t));
    c.mask = poisoned(c.values);
    c.logprob = poisoned(c.values * sizeof(float));
    c.entropy = poisoned(c.values * sizeof(float));
    c.logprob_grad = poisoned(c.values * sizeof(float));
    c.entropy_grad = poisoned(c.values * sizeof(float));
    c.saved = poisoned(count * 3 * sizeof(float));
    c.partials = poisoned(count * sizeof(bp_partial));
    c.target_logits = poisoned(count * sizeof(float));
    for (uint64_t token = 0; token < count; token++)
        fill_token(&c, token, &state);
    set_work(&c);
    return c;
}

void end_call(call *c)
{
    void *const owned[] = {c->logits,       c->o.in_place ? NULL : c->out,
                           c->targets,      c->mask,
                           c->logprob,      c->entropy,
                           c->logprob_grad, c->entropy_grad,
                           c->saved,        c->partials,
                           c->target_logits};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        free(owned[i]);
}

/* ---- runs ---------------------------------------------------------------------------------------------------------- */

void enqueue_forward(const kit *k, unsigned stream, const call *c)
{
    assert_ok(k->engine->ops->forward(k->engine, &c->forward, k->streams[stream]));
    if (!c->o.directly)
        assert_ok(k->engine->ops->finish(k->engine, &c->finish, k->streams[stream]));
}

void enqueue_backward(const kit *k, unsigned stream, const call *c)
{
    assert_ok(k->engine->ops->gradient(k->engine, &c->backward, k->streams[stream]));
}

void run_call(const kit *k, const call *c)
{
    enqueue_forward(k, 0, c);
    enqueue_backward(k, 0, c);
    assert_ok(bp_stream_synchronize(k->streams[0]));
}

/* ---- comparison ---------------------------------------------------------------------------------------------------- */

static void compare(const char *name, const char *what, const call *c, uint64_t token, double is, double exact,
                    double tolerance)
{
    if (isnan(exact) ? isnan(is) : is == exact || fabs(is - exact) <= tolerance)
        return;
    fail_msg("%s: %s of token %llu of %llu x %llu, %llu columns, dtype %d, kind %d: %.9g, expected %.9g", name, what,
             (unsigned long long)token, (unsigned long long)c->o.batch, (unsigned long long)c->o.sequence,
             (unsigned long long)c->o.columns, c->o.dtype, (int)c->o.kind, is, exact);
}

static double half_unit(int dtype, double value)
{
    return dtype == BP_ROW_FP32 ? 0 : dtype == BP_ROW_BF16 ? fabs(value) * 0x1p-8 : fabs(value) * 0x1p-11 + 0x1p-25;
}

static void check_row(const char *name, const call *c, const call *original, uint64_t token, int is_regular)
{
    const uint64_t count = tokens_of(c);
    const size_t offset = value_offset(c, token);
    const int64_t target = target_of(c, token);
    int64_t out_row = row_offset(c, token) * (c->backward.narrows_in_place ? 2 : 1);
    const char *x = original->logits + row_offset(c, token) * (int64_t)element_bytes(c->o.dtype);
    const char *out = c->out + out_row * (int64_t)element_bytes(c->o.out_dtype);
    bp_row_gradient row = {.max = c->saved[token],
                           .log_sum = c->saved[count + token],
                           .energy = c->o.with_entropy ? c->saved[2 * count + token] : 0,
                           .scale = c->o.scale,
                           .factor = -c->logprob_grad[c->o.same_upstream ? 0 : offset],
                           .entropy_grad = c->o.with_entropy ? c->entropy_grad[offset] : 0};
    for (uint64_t i = 0; i < c->o.columns; i++) {
        double tolerance = 0, exact = is_masked(c, token) ? 0 : NAN;
        if (is_regular && !is_masked(c, token))
            exact = gradient_of_row(&row, value_at(c->o.dtype, x, i), (int64_t)i == target, &tolerance);
        compare(name, "the gradient", c, token, value_at(c->o.out_dtype, out, i), exact,
                tolerance + 1.01 * half_unit(c->o.out_dtype, exact));
    }
}

static void check_outputs(const char *name, const call *c, const call *original, uint64_t token)
{
    const uint64_t count = tokens_of(c);
    const char *x = original->logits + row_offset(c, token) * (int64_t)element_bytes(c->o.dtype);
    int64_t target = target_of(c, token);
    int has_target = target >= 0 && target < (int64_t)c->o.columns;
    int is_regular = token % 2 == 1 || row_is_regular(c->o.kind);
    double logprob = 0, entropy = 0, max = 0, log_sum = 0, energy = 0;
    if (!is_masked(c, token)) {
        exact_sums sums = sums_of(c->o.dtype, x, c->o.columns, c->o.scale);
        max = is_regular ? sums.max : c->saved[token];
        log_sum = is_regular ? log(sums.sum) : NAN;
        energy = is_regular ? sums.weighted / sums.sum : NAN;
        logprob = has_target ? (value_at(c->o.dtype, x, (uint64_t)target) - max) * c->o.scale - log_sum : 0;
        entropy = log_sum - energy;
    }
    const size_t offset = value_offset(c, token);
    compare(name, "max", c, token, c->saved[token], max, 0);
    compare(name, "log_sum", c, token, c->saved[count + token], log_sum, 2e-6);
    compare(name, "the log-probability", c, token, c->logprob[offset], logprob, 2e-6 + 1e-7 * fabs(logprob));
    if (c->o.with_entropy) {
        compare(name, "the entropy", c, token, c->entropy[offset], entropy, 5e-6);
        compare(name, "energy", c, token, c->saved[2 * count + token], energy, 4e-6);
    }
    check_row(name, c, original, token, is_regular);
}

/* Gaps between tokens are still poison. */
static void check_gaps(const call *c)
{
    for (uint64_t b = 0; b < c->o.batch; b++) {
        for (size_t i = 0; i < c->o.sequence * VALUE_STRIDE + 1; i++) {
            size_t at = b * (c->o.sequence * VALUE_STRIDE + 1) + i;
            if (i % VALUE_STRIDE != 0 || i / VALUE_STRIDE == c->o.sequence)
                assert_true(isnan(c->logprob[at]) && isnan(c->entropy[at]));
        }
    }
    for (uint64_t token = 0; token < tokens_of(c) && !c->backward.narrows_in_place; token++) {
        const char *row = c->out + (size_t)row_offset(c, token) * element_bytes(c->o.out_dtype);
        for (size_t i = 0; i < GAP * element_bytes(c->o.out_dtype); i++)
            assert_int_equal(row[c->o.columns * element_bytes(c->o.out_dtype) + i], (char)0xff);
    }
}

void check_call(const char *name, const call *c, const call *original)
{
    for (uint64_t token = 0; token < tokens_of(c); token++)
        check_outputs(name, c, original, token);
    check_gaps(c);
    if (!c->o.in_place)
        assert_memory_equal(c->logits, original->logits, c->logits_bytes);
}

int calls_are_equal(const call *a, const call *b)
{
    return memcmp(a->out, b->out, a->out_bytes) == 0 && memcmp(a->logits, b->logits, a->logits_bytes) == 0 &&
           memcmp(a->logprob, b->logprob, a->values * sizeof(float)) == 0 &&
           memcmp(a->entropy, b->entropy, a->values * sizeof(float)) == 0 &&
           memcmp(a->saved, b->saved, tokens_of(a) * 3 * sizeof(float)) == 0;
}
