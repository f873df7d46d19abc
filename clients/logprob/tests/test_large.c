/* SPDX-License-Identifier: Apache-2.0 */
/* Offsets beyond 2^31 elements and 2^32 bytes, in a sparse mapping with few touched pages. */
#include "support/harness.h"

#include "support/batches.h"
#include "support/hosts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "support/scenarios.h"

static void *reserve(uint64_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        print_message("%llu bytes of address space could not be mapped\n", (unsigned long long)bytes);
        skip();
    }
    madvise(memory, bytes, MADV_NOHUGEPAGE);
    return memory;
}

/* Rows of the batch with large strides, in elements. */
typedef struct far_apart {
    uint8_t *logits, *grad;
    int64_t batch_stride, stride;
    uint64_t bytes;
} far_apart;

static void *far_row(uint8_t *base, const far_apart *f, const view *like, uint64_t i, uint64_t s)
{
    return base + ((int64_t)i * f->batch_stride + (int64_t)s * f->stride) * like->element;
}

static void check_far(const kernels_row *kernels, bp_dtype dtype, int64_t batch_stride, int64_t stride)
{
    batch_options options = {.batch = 2,
                             .sequence = 3,
                             .columns = 301,
                             .dtype = dtype,
                             .grad_dtype = dtype,
                             .with_entropy = true,
                             .outside_in_16 = 2};
    seed(13);
    batch b = new_batch(&options);
    far_apart f = {.batch_stride = batch_stride, .stride = stride};
    f.bytes = (uint64_t)(batch_stride + 2 * stride + 301) * b.logits.element;
    assert_true(f.bytes > UINT64_C(1) << 32);
    f.logits = reserve(f.bytes);
    f.grad = reserve(f.bytes);
    for (uint64_t i = 0; i < 2; i++)
        for (uint64_t s = 0; s < 3; s++)
            memcpy(far_row(f.logits, &f, &b.logits, i, s), row_at(&b.logits, i, s), 301 * (size_t)b.logits.element);
    bp_logprob *client = new_client(device, &b, kernels->bit, 2);
    bp_logprob_batch call = call_of(&b, whole_shard(&b));
    bp_logprob_outputs outputs = outputs_of(&b);
    bp_logprob_gradients gradients = gradients_of(&b, whole_shard(&b));
    call.logits.data = f.logits;
    gradients.logits_grad.data = f.grad;
    call.logits.batch_stride = gradients.logits_grad.batch_stride = batch_stride;
    call.logits.stride = gradients.logits_grad.stride = stride;
    assert_ok(bp_logprob_forward(client, &call, &outputs, NULL));
    assert_true(outputs_are_true(&b));
    assert_ok(bp_logprob_backward(client, &call, &gradients, NULL));
    for (uint64_t i = 0; i < 2; i++)
        for (uint64_t s = 0; s < 3; s++)
            memcpy(row_at(&b.grad, i, s), far_row(f.grad, &f, &b.grad, i, s), 301 * (size_t)b.grad.element);
    assert_true(gradient_is_true(&b, whole_shard(&b)));
    bp_logprob_destroy(&client);
    free_batch(&b);
    munmap(f.logits, f.bytes);
    munmap(f.grad, f.bytes);
}

TEST(rows_may_be_far_apart)
{
    const int64_t far = (INT64_C(1) << 31) + 4099;
    FOR_KERNELS(kernels)
    {
        for (int dtype = BP_DTYPE_FP32; dtype <= BP_DTYPE_BF16; dtype++) {
            check_far(kernels, (bp_dtype)dtype, 7 * far, 2 * far);
            check_far(kernels, (bp_dtype)dtype, 1000, far);
            check_far(kernels, (bp_dtype)dtype, far, 350);
        }
    }
}

/* 16-bit gradients that use streaming stores, against single rows, which do not. */
static void check_halves(const kernels_row *kernels, bp_dtype dtype)
{
    const uint64_t columns = 500009, tokens = 18, bytes = columns * tokens * 2;
    uint16_t *logits = reserve(bytes), *whole = reserve(bytes + 64), *alone = reserve(bytes + 64);
    for (uint64_t i = 0; i < columns * tokens; i++)
        logits[i] = (uint16_t)(0x3000 + i * 40503 % 0x1000);
    batch_options options = {.batch = 1, .sequence = tokens, .columns = 1, .with_entropy = true};
    batch b = new_batch(&options);
    b.o.columns = columns;
    bp_logprob *client = new_client(device, &b, kernels->bit, 2);
    bp_logprob_outputs outputs = outputs_of(&b);
    bp_logprob_gradients gradients = gradients_of(&b, whole_shard(&b));
    bp_logprob_batch call = call_of(&b, whole_shard(&b));
    call.logits = (bp_token_rows){.data = logits, .dtype = dtype, .batch = 1, .sequence = tokens, .columns = columns};
    gradients.logits_grad = call.logits;
    gradients.logits_grad.data = whole + 1;
    assert_ok(bp_logprob_forward(client, &call, &outputs, NULL));
    assert_ok(bp_logprob_backward(client, &call, &gradients, NULL));
    call.logits.sequence = gradients.logits_grad.sequence = 1;
    for (uint64_t s = 0; s < tokens; s++) {
        call.logits.data = logits + s * columns;
        call.tokens.target.data = row_at(&b.target, 0, s);
        gradients.logprob_grad.data = row_at(&b.logprob_grad, 0, s);
        gradients.entropy_grad.data = row_at(&b.entropy_grad, 0, s);
        gradients.logits_grad.data = alone + 1 + s * columns;
        assert_ok(bp_logprob_forward(client, &call, &outputs, NULL));
        assert_ok(bp_logprob_backward(client, &call, &gradients, NULL));
    }
    assert_memory_equal(whole, alone, bytes + 64);
    bp_logprob_destroy(&client);
    free_batch(&b);
    munmap(logits, bytes);
    munmap(whole, bytes + 64);
    munmap(alone, bytes + 64);
}

TEST(large_gradients_in_halves_are_like_small_ones)
{
    FOR_KERNELS(kernels)
    {
        check_halves(kernels, BP_DTYPE_BF16);
        check_halves(kernels, BP_DTYPE_FP16);
    }
}

/* batch x sequence x columns exceeds 2^31, but almost all rows are masked: their pages are never touched. */
TEST(products_of_sizes_may_pass_2_to_the_31)
{
    const uint64_t columns = 131072, tokens = 20000, bytes = columns * tokens * 2;
    uint16_t *logits = reserve(bytes);
    uint8_t *mask = calloc(tokens, 1);
    int64_t *target = calloc(tokens, sizeof *target);
    float *logprob = malloc(tokens * sizeof *logprob);
    assert_true(mask != NULL && target != NULL && logprob != NULL);
    static const uint64_t live[] = {0, 9999, 16383, 16384, 16390, 19999};
    for (size_t i = 0; i < 6; i++) {
        mask[live[i]] = 1;
        target[live[i]] = (int64_t)live[i];
        logits[live[i] * columns + live[i]] = 0x4000; /* 2 in bf16 among zeros */
    }
    batch sizes = {.o = {.batch = 1, .sequence = tokens, .columns = columns}};
    FOR_KERNELS(kernels)
    {
        bp_logprob *client = new_client(device, &sizes, kernels->bit, 0);
        bp_logprob_batch call;
        bp_logprob_outputs outputs;
        assert_ok(bp_logprob_batch_init(&call, sizeof call));
        assert_ok(bp_logprob_outputs_init(&outputs, sizeof outputs));
        call.logits =
            (bp_token_rows){.data = logits, .dtype = BP_DTYPE_BF16, .batch = 1, .sequence = tokens, .columns = columns};
        call.tokens.target = (bp_token_values){target, 0, 1};
        call.tokens.mask = (bp_token_values){mask, 0, 1};
        outputs.logprob = (bp_token_values){logprob, 0, 1};
        memset(logprob, POISON, tokens * sizeof *logprob);
        assert_ok(bp_logprob_forward(client, &call, &outputs, NULL));
        double expected = 2 - log(exp(2) + (double)columns - 1);
        for (uint64_t t = 0; t < tokens; t++)
            assert_true(mask[t] != 0 ? is_near(logprob[t], expected) : logprob[t] == 0);
        bp_logprob_destroy(&client);
    }
    free(mask);
    free(target);
    free(logprob);
    munmap(logits, bytes);
}

/* A single row with the maximum number of columns, and more bytes than 32 bits: zeros except for one -1. Reads the zero page for about a
 * second. */
TEST(a_row_may_have_many_columns)
{
    if (!has_kernels(device, &KERNELS[1]))
        skip(); /* plain kernels would take too long */
    const uint64_t columns = INT32_MAX, bytes = columns * 2;
    uint16_t *logits = reserve(bytes);
    int64_t target = (int64_t)columns - 3;
    float logprob = NAN;
    logits[target] = 0xbf80; /* -1 */
    batch sizes = {.o = {.batch = 1, .sequence = 1, .columns = columns}};
    bp_logprob *client = new_client(device, &sizes, BP_KERNELS_ALL, 0);
    bp_logprob_batch call;
    bp_logprob_outputs outputs;
    assert_ok(bp_logprob_batch_init(&call, sizeof call));
    assert_ok(bp_logprob_outputs_init(&outputs, sizeof outputs));
    call.logits =
        (bp_token_rows){.data = logits, .dtype = BP_DTYPE_BF16, .batch = 1, .sequence = 1, .columns = columns};
    call.tokens.target = (bp_token_values){&target, 0, 1};
    outputs.logprob = (bp_token_values){&logprob, 0, 1};
    assert_ok(bp_logprob_forward(client, &call, &outputs, NULL));
    assert_true(is_near(logprob, -1 - log((double)columns)));
    bp_logprob_destroy(&client);
    munmap(logits, bytes);
    bp_logprob_config config;
    assert_ok(bp_logprob_config_init(&config, sizeof config));
    config.max_tokens = 1;
    config.vocab = columns + 1;
    assert_fails(bp_logprob_create(device, &config, &client), BP_ERR_INVALID_ARGUMENT, "2147483648", "2147483647");
}

TESTS(open_host, close_host)
