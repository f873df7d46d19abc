/* SPDX-License-Identifier: Apache-2.0 */
/* The bits of a row depend on its data only: not on chunks, threads, runs, alignment, gaps, or neighbouring rows. */
#include "support/harness.h"

#include "support/batches.h"
#include "support/hosts.h"

#include <string.h>

#include "support/scenarios.h"

/* Several tiles, and a partial last one. */
#define COLUMNS 5003
#define SEQUENCE 17

static const batch_options WHOLE = {.batch = 3,
                                    .sequence = SEQUENCE,
                                    .columns = COLUMNS,
                                    .with_entropy = true,
                                    .masked = true,
                                    .outside_in_16 = 2,
                                    .temperature = 0.8};

static batch batch_with(batch_options options, bp_dtype dtype)
{
    options.dtype = dtype;
    seed(21);
    return new_batch(&options);
}

static void run_both(bp_logprob *client, batch *b)
{
    run_forward(client, b);
    run_backward(client, b);
}

static void assert_same(const batch *a, const batch *b)
{
    assert_true(same_rows(&a->logprob, &b->logprob, "log-probabilities"));
    assert_true(same_rows(&a->entropy, &b->entropy, "entropies"));
    assert_true(same_rows(&a->grad, &b->grad, "gradients"));
}

static batch first_run(const kernels_row *kernels, bp_dtype dtype)
{
    batch b = batch_with(WHOLE, dtype);
    bp_logprob *client = new_client(device, &b, kernels->bit, 1);
    run_both(client, &b);
    assert_true(outputs_are_true(&b) && gradient_is_true(&b, whole_shard(&b)));
    bp_logprob_destroy(&client);
    return b;
}

#define FOR_DTYPES(d) for (int d = BP_DTYPE_FP32; d <= BP_DTYPE_BF16; d++)

TEST(threads_and_runs_change_nothing)
{
    FOR_KERNELS(kernels)
    {
        FOR_DTYPES(d)
        {
            batch expected = first_run(kernels, (bp_dtype)d), b = batch_with(WHOLE, (bp_dtype)d);
            for (uint32_t threads = 0; threads <= 4; threads++) {
                bp_logprob *client = new_client(device, &b, kernels->bit, threads);
                for (int run = 0; run < 3; run++) {
                    poison_outputs(&b, (uint8_t)(POISON - run));
                    poison_gradient(&b, (uint8_t)(POISON - run));
                    run_both(client, &b);
                    assert_same(&expected, &b);
                }
                bp_logprob_destroy(&client);
            }
            free_batch(&b);
            free_batch(&expected);
        }
    }
}

/* Threads also share one long row. */
TEST(threads_within_a_row_change_nothing)
{
    batch_options options = {.batch = 1, .sequence = 1, .columns = 200001, .with_entropy = true};
    FOR_KERNELS(kernels)
    {
        batch expected = batch_with(options, BP_DTYPE_BF16), b = batch_with(options, BP_DTYPE_BF16);
        bp_logprob *client = new_client(device, &b, kernels->bit, 1);
        run_both(client, &expected);
        bp_logprob_destroy(&client);
        assert_true(outputs_are_true(&expected) && gradient_is_true(&expected, whole_shard(&expected)));
        for (uint32_t threads = 2; threads <= 4; threads++) {
            client = new_client(device, &b, kernels->bit, threads);
            run_both(client, &b);
            assert_same(&expected, &b);
            bp_logprob_destroy(&client);
        }
        free_batch(&b);
        free_batch(&expected);
    }
}

/* Tokens [first, first + count) of one sequence in a separate call. */
static void run_slice(bp_logprob *client, batch *b, uint64_t i, uint64_t first, uint64_t count)
{
    bp_logprob_batch call = call_of(b, whole_shard(b));
    bp_logprob_outputs outputs = outputs_of(b);
    bp_logprob_gradients gradients = gradients_of(b, whole_shard(b));
    call.logits.batch = gradients.logits_grad.batch = 1;
    call.logits.sequence = gradients.logits_grad.sequence = count;
    call.logits.data = row_at(&b->logits, i, first);
    call.tokens.target.data = row_at(&b->target, i, first);
    call.tokens.mask.data = row_at(&b->mask, i, first);
    outputs.logprob.data = row_at(&b->logprob, i, first);
    outputs.entropy.data = row_at(&b->entropy, i, first);
    gradients.logprob_grad.data = row_at(&b->logprob_grad, i, first);
    gradients.entropy_grad.data = row_at(&b->entropy_grad, i, first);
    gradients.logits_grad.data = row_at(&b->grad, i, first);
    assert_ok(bp_logprob_forward(client, &call, &outputs, NULL));
    assert_ok(bp_logprob_backward(client, &call, &gradients, NULL));
}

TEST(rows_and_slices_match_the_whole)
{
    static const uint64_t sizes[] = {1, 3, 5, 16};
    FOR_KERNELS(kernels)
    {
        FOR_DTYPES(d)
        {
            batch expected = first_run(kernels, (bp_dtype)d);
            for (size_t c = 0; c < 4; c++) {
                batch b = batch_with(WHOLE, (bp_dtype)d);
                bp_logprob *client = new_client(device, &b, kernels->bit, 2);
                for (uint64_t i = 0; i < b.o.batch; i++)
                    for (uint64_t s = 0; s < SEQUENCE; s += sizes[c])
                        run_slice(client, &b, i, s, sizes[c] < SEQUENCE - s ? sizes[c] : SEQUENCE - s);
                assert_same(&expected, &b);
                bp_logprob_destroy(&client);
                free_batch(&b);
            }
            free_batch(&expected);
        }
    }
}

TEST(places_change_nothing)
{
    FOR_KERNELS(kernels)
    {
        FOR_DTYPES(d)
        {
            batch expected = first_run(kernels, (bp_dtype)d);
            for (uint32_t shift = 0; shift < 20; shift += 1 + shift % 5) {
                batch_options options = WHOLE;
                options.logits = (layout){.shift = shift, .row_gap = shift * 3, .batch_gap = 13};
                options.grad = (layout){.shift = 33 - shift, .row_gap = 1, .sequence_outside = shift % 2 == 1};
                options.outputs = (layout){.shift = shift, .row_gap = shift % 3};
                batch b = batch_with(options, (bp_dtype)d);
                bp_logprob *client = new_client(device, &b, kernels->bit, 2);
                run_both(client, &b);
                assert_same(&expected, &b);
                bp_logprob_destroy(&client);
                free_batch(&b);
            }
            free_batch(&expected);
        }
    }
}

/* In place, the gradient has the same bits as elsewhere in that dtype. */
TEST(in_place_is_like_elsewhere)
{
    FOR_KERNELS(kernels)
    {
        FOR_DTYPES(d)
        {
            batch_options options = WHOLE;
            options.grad_dtype = (bp_dtype)d;
            batch elsewhere = batch_with(options, (bp_dtype)d);
            options.in_place = true;
            batch b = batch_with(options, (bp_dtype)d);
            bp_logprob *client = new_client(device, &b, kernels->bit, 2);
            run_both(client, &elsewhere);
            for (int run = 0; run < 2; run++) {
                restore_logits(&b);
                run_both(client, &b);
                assert_same(&elsewhere, &b);
            }
            bp_logprob_destroy(&client);
            free_batch(&b);
            free_batch(&elsewhere);
        }
    }
}

/* The whole gradient is large enough for streaming stores, a single row is not. */
static void check_large(const kernels_row *kernels)
{
    batch_options options = {
        .batch = 1, .sequence = 9, .columns = 500009, .grad = {.shift = 1, .row_gap = 3}, .with_entropy = true};
    batch whole = batch_with(options, BP_DTYPE_FP32), rows = batch_with(options, BP_DTYPE_FP32);
    bp_logprob *client = new_client(device, &whole, kernels->bit, 2);
    run_both(client, &whole);
    for (uint64_t s = 0; s < 9; s++)
        run_slice(client, &rows, 0, s, 1);
    assert_same(&whole, &rows);
    assert_true(gaps_are_whole(&whole.grad, "the gradient"));
    bp_logprob_destroy(&client);
    free_batch(&whole);
    free_batch(&rows);
}

TEST(large_gradients_are_like_small_ones)
{
    FOR_KERNELS(kernels)
    check_large(kernels);
}

/* An earlier, wider call with other data leaves nothing in the workspaces. */
TEST(earlier_calls_change_nothing)
{
    FOR_KERNELS(kernels)
    {
        batch expected = first_run(kernels, BP_DTYPE_BF16), b = batch_with(WHOLE, BP_DTYPE_BF16);
        batch_options other = WHOLE;
        other.dtype = BP_DTYPE_FP16;
        other.spread = 1000;
        other.masked = false;
        batch before = new_batch(&other);
        bp_logprob *client = new_client(device, &b, kernels->bit, 2);
        run_both(client, &before);
        run_both(client, &b);
        assert_same(&expected, &b);
        bp_logprob_destroy(&client);
        free_batch(&before);
        free_batch(&b);
        free_batch(&expected);
    }
}

/* Options of every kind of pass. */
static batch_options options_of(unsigned variant)
{
    batch_options o = WHOLE;
    o.in_place = (variant & 1) != 0;
    o.with_entropy = (variant & 2) != 0;
    o.grad_dtype = (variant & 4) != 0 ? BP_DTYPE_BF16 : BP_DTYPE_FP32;
    if (variant < 8)
        return o;
    o.targets = 3;
    o.with_logsumexp = o.with_mean = true;
    o.heated = variant % 3 == 0;
    o.soft_cap = variant % 3 != 1 ? 9 : 0;
    o.rounding = variant % 3 != 2 ? BP_DTYPE_BF16 : BP_DTYPE_FP32;
    return o;
}

/* One call for both passes has the bits of two, for any number of threads, whether they share rows or not. */
TEST(one_call_is_like_two)
{
    FOR_KERNELS(kernels)
    {
        for (unsigned variant = 0; variant < 16; variant++) {
            batch_options options = options_of(variant);
            const bp_dtype dtype = (variant & 4) != 0 ? BP_DTYPE_BF16 : (bp_dtype)(BP_DTYPE_FP32 + variant % 3);
            batch expected = batch_with(options, dtype), b = batch_with(options, dtype);
            for (uint32_t threads = 1; threads <= 30; threads += 29) {
                bp_logprob *client = new_client(device, &b, kernels->bit, threads);
                restore_logits(&expected);
                restore_logits(&b);
                poison_outputs(&b, POISON);
                poison_gradient(&b, POISON);
                run_both(client, &expected);
                run_fused(client, &b);
                assert_same(&expected, &b);
                assert_true(same_rows(&expected.logsumexp, &b.logsumexp, "logsumexp"));
                assert_true(same_rows(&expected.mean_logprob, &b.mean_logprob, "mean_logprob"));
                assert_memory_equal(expected.saved, b.saved, b.saved_bytes + 64);
                bp_logprob_destroy(&client);
            }
            free_batch(&b);
            free_batch(&expected);
        }
    }
}

/* Targets, log-probabilities and upstream gradients in any order: [targets, batch, sequence], backwards. */
TEST(steps_change_nothing)
{
    enum { TARGETS = 5, TOKENS = 3 * SEQUENCE };
    FOR_KERNELS(kernels)
    {
        batch_options options = WHOLE;
        options.targets = TARGETS;
        batch expected = batch_with(options, BP_DTYPE_FP32), b = batch_with(options, BP_DTYPE_FP32);
        bp_logprob *client = new_client(device, &b, kernels->bit, 2);
        run_both(client, &expected);
        int64_t targets[TARGETS * TOKENS];
        float logprob[TARGETS * TOKENS], upstream[TARGETS * TOKENS];
        for (uint64_t t = 0; t < TOKENS; t++) {
            for (uint32_t k = 0; k < TARGETS; k++) {
                targets[k * TOKENS + t] = whole_k(&b.target, t / SEQUENCE, t % SEQUENCE, k);
                upstream[(TARGETS - 1 - k) * TOKENS + t] = value_of(&b.logprob_grad, t / SEQUENCE, t % SEQUENCE, k);
            }
        }
        bp_logprob_batch call = call_of(&b, whole_shard(&b));
        bp_logprob_outputs outputs = outputs_of(&b);
        bp_logprob_gradients gradients = gradients_of(&b, whole_shard(&b));
        call.tokens.target = (bp_token_values){targets, SEQUENCE, 1, TOKENS};
        outputs.logprob = (bp_token_values){logprob, SEQUENCE, 1, TOKENS};
        gradients.logprob_grad = (bp_token_values){upstream + (TARGETS - 1) * TOKENS, SEQUENCE, 1, -TOKENS};
        assert_ok(bp_logprob_forward(client, &call, &outputs, NULL));
        assert_ok(bp_logprob_backward(client, &call, &gradients, NULL));
        for (uint64_t t = 0; t < TOKENS; t++)
            for (uint32_t k = 0; k < TARGETS; k++)
                assert_true(logprob[k * TOKENS + t] == value_of(&expected.logprob, t / SEQUENCE, t % SEQUENCE, k));
        assert_true(same_rows(&expected.grad, &b.grad, "gradients"));
        bp_logprob_destroy(&client);
        free_batch(&b);
        free_batch(&expected);
    }
}

TESTS(open_host, close_host)
