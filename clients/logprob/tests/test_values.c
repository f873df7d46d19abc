/* SPDX-License-Identifier: Apache-2.0 */
/* Logits that have broken other kernels: infinities, NaN, large offsets, partial vectors, targets outside. */
#include "support/harness.h"

#include "support/batches.h"
#include "support/hosts.h"

#include <math.h>
#include <string.h>

#include "support/scenarios.h"

/* All kernels and dtypes of logits and gradient; `change` edits the batch first. */
static void check_everywhere(batch_options options, void (*change)(batch *b))
{
    static const bp_dtype dtypes[] = {BP_DTYPE_FP32, BP_DTYPE_BF16, BP_DTYPE_FP16};
    FOR_KERNELS(kernels)
    {
        for (size_t d = 0; d < 3; d++) {
            options.dtype = dtypes[d];
            for (int narrow = 0; narrow < 2; narrow++) {
                options.grad_dtype = narrow ? dtypes[d] : BP_DTYPE_FP32;
                seed(11);
                check_options(device, &options, kernels->bit, 0, change);
            }
        }
    }
}

TEST(any_width_and_alignment_will_do)
{
    static const uint64_t widths[] = {1,  2,  3,  5,   7,    8,    9,    15,   17,   31,
                                      33, 63, 65, 127, 1023, 2047, 2049, 4095, 4097, 6151};
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        for (uint32_t shift = 0; shift < 4; shift++)
            check_everywhere((batch_options){.batch = 1,
                                             .sequence = 3,
                                             .columns = widths[i],
                                             .with_entropy = true,
                                             .logits = {.shift = 2 * shift + 1},
                                             .grad = {.shift = 5 * shift},
                                             .outputs = {.shift = shift},
                                             .outside_in_16 = 2},
                             NULL);
}

static void many_are_minus_infinity(batch *b)
{
    for (uint64_t s = 0; s < b->o.sequence; s++) {
        for (uint64_t v = 0; v < b->o.columns; v++)
            if (random_below(3) != 0 || (s == 3 && v < 2048))
                put_logit(b, 0, s, v, -INFINITY);
        put_logit(b, 0, s, b->o.columns - 1, 1.5); /* one is finite */
    }
    put_logit(b, 0, 0, 17, -INFINITY);
    put_whole(&b->target, 0, 0, 17); /* log-probability -inf */
}

TEST(minus_infinity_is_a_logit)
{
    check_everywhere((batch_options){.batch = 1, .sequence = 5, .columns = 61, .with_entropy = true},
                     many_are_minus_infinity);
    check_everywhere((batch_options){.batch = 1, .sequence = 4, .columns = 4200, .with_entropy = true},
                     many_are_minus_infinity);
}

/* All except one are -inf: probability 1. */
static void all_but_one(batch *b)
{
    for (uint64_t s = 0; s < b->o.sequence; s++)
        for (uint64_t v = 0; v < b->o.columns; v++)
            put_logit(b, 0, s, v, v == 70 * s ? -3 : -INFINITY);
    put_whole(&b->target, 0, 0, 0);
    put_whole(&b->target, 0, 1, 70);
}

TEST(a_single_finite_logit_is_certain)
{
    check_everywhere((batch_options){.batch = 1, .sequence = 2, .columns = 100, .with_entropy = true}, all_but_one);
    check_everywhere((batch_options){.batch = 1, .sequence = 2, .columns = 1, .with_entropy = true}, NULL);
}

static void some_rows_have_none(batch *b)
{
    const double bad[] = {-INFINITY, NAN, INFINITY};
    for (uint64_t v = 0; v < b->o.columns; v++)
        put_logit(b, 0, 0, v, -INFINITY);
    for (uint64_t s = 1; s < 3; s++)
        put_logit(b, 0, s, b->o.columns - 1 - s, bad[s]);
    for (uint64_t s = 3; s < 5; s++) /* among many of -inf */
        for (uint64_t v = 0; v < b->o.columns; v++)
            put_logit(b, 0, s, v, v == b->o.columns / 2 ? bad[s - 2] : -INFINITY);
}

TEST(rows_without_a_distribution_are_nan)
{
    static const uint64_t widths[] = {5, 16, 64, 100, 2048, 5000};
    for (size_t i = 0; i < 6; i++)
        for (uint32_t outside = 0; outside <= 16; outside += 16) /* then the log-probability is 0 here, too */
            check_everywhere(
                (batch_options){
                    .batch = 1, .sequence = 6, .columns = widths[i], .with_entropy = true, .outside_in_16 = outside},
                some_rows_have_none);
}

/* x - max is -inf, and must not give NaN. */
TEST(logits_too_far_apart_have_probability_0)
{
    FOR_KERNELS(kernels)
    {
        batch_options options = {.batch = 1, .sequence = 3, .columns = 2, .with_entropy = true, .temperature = 8e37};
        batch b = new_batch(&options);
        bp_logprob *client = new_client(device, &b, kernels->bit, 0);
        for (uint64_t s = 0; s < 3; s++) {
            put_logit(&b, 0, s, 0, 2e38);
            put_logit(&b, 0, s, 1, -2e38);
            put_whole(&b.target, 0, s, 0);
        }
        run_forward(client, &b);
        run_backward(client, &b);
        for (uint64_t s = 0; s < 3; s++) {
            assert_true(upstream_at(&b.logprob, 0, s) == 0 && upstream_at(&b.entropy, 0, s) == 0);
            for (int64_t v = 0; v < 2; v++)
                assert_true(element_at(row_at(&b.grad, 0, s), BP_DTYPE_FP32, v) == 0);
        }
        bp_logprob_destroy(&client);
        free_batch(&b);
    }
}

/* The largest magnitudes of the dtype, and differences up to the range of fp32. */
static void largest_logits(batch *b)
{
    const double max = b->o.dtype == BP_DTYPE_FP16 ? 65504 : 0x1.fep127;
    const double x[] = {max, max / 2, 0, max, max / 4, -1};
    for (uint64_t s = 0; s < b->o.sequence; s++)
        for (uint64_t v = 0; v < b->o.columns; v++)
            put_logit(b, 0, s, v, s % 2 == 0 ? x[(v + s) % 6] : -x[(v + s) % 6]);
}

TEST(logits_may_be_the_largest_numbers)
{
    static const double temperatures[] = {1, 1e-4, 1e30, 8e37};
    for (size_t i = 0; i < 4; i++)
        for (uint64_t columns = 5; columns < 5000; columns += 2500)
            check_everywhere((batch_options){.batch = 1,
                                             .sequence = 6,
                                             .columns = columns,
                                             .with_entropy = true,
                                             .temperature = temperatures[i]},
                             largest_logits);
}

static void all_at_minus_200(batch *b)
{
    for (uint64_t s = 0; s < b->o.sequence; s++)
        for (uint64_t v = 0; v < b->o.columns; v++)
            put_logit(b, 0, s, v, -200 - (double)(v % 3));
}

TEST(a_maximum_below_zero_is_found)
{
    check_everywhere((batch_options){.batch = 1, .sequence = 2, .columns = 77, .with_entropy = true}, all_at_minus_200);
    check_everywhere((batch_options){.batch = 1, .sequence = 2, .columns = 2051, .with_entropy = true},
                     all_at_minus_200);
}

TEST(constant_offsets_cancel)
{
    static const double offsets[] = {1e4, -1e4, 3e4};
    for (size_t i = 0; i < 3; i++)
        check_everywhere(
            (batch_options){
                .batch = 2, .sequence = 3, .columns = 1500, .with_entropy = true, .offset = offsets[i], .spread = 20},
            NULL);
}

/* Large spread: most probabilities underflow to 0 in fp32. */
TEST(wide_logits_underflow_to_zero)
{
    check_everywhere((batch_options){.batch = 1, .sequence = 9, .columns = 300, .with_entropy = true, .spread = 300},
                     NULL);
    check_everywhere((batch_options){.batch = 1, .sequence = 9, .columns = 300, .with_entropy = true, .spread = 20000},
                     NULL);
}

TEST(the_maximum_may_be_anywhere)
{
    FOR_KERNELS(kernels)
    {
        batch_options options = {.batch = 1, .sequence = 1, .columns = 2100, .with_entropy = true};
        batch b = new_batch(&options);
        bp_logprob *client = new_client(device, &b, kernels->bit, 0);
        for (uint64_t v = 0; v < b.o.columns; v += v < 130 || v > 2040 ? 1 : 61) {
            double kept = element_at(row_at(&b.logits, 0, 0), BP_DTYPE_FP32, (int64_t)v);
            put_logit(&b, 0, 0, v, 30);
            put_whole(&b.target, 0, 0, (int64_t)v);
            check_both(client, &b);
            put_logit(&b, 0, 0, v, kept);
        }
        bp_logprob_destroy(&client);
        free_batch(&b);
    }
}

TEST(targets_may_all_be_outside)
{
    for (int masked = 0; masked < 2; masked++)
        check_everywhere((batch_options){.batch = 2,
                                         .sequence = 9,
                                         .columns = 130,
                                         .with_entropy = true,
                                         .masked = masked != 0,
                                         .outside_in_16 = 16,
                                         .target_dtype = BP_DTYPE_INT32,
                                         .vocab_start = 1000},
                         NULL);
}

static void mask_all(batch *b)
{
    memset(b->mask.memory, 0, b->mask.bytes);
    memset(b->logits.memory, 0xff, b->logits.bytes);
    memcpy(b->original, b->logits.memory, b->logits.bytes);
}

TEST(all_rows_may_be_masked)
{
    for (uint64_t columns = 1; columns < 3000; columns += 2500)
        for (int large = 0; large < 2; large++)
            check_everywhere((batch_options){.batch = large != 0 ? 3 : 1,
                                             .sequence = large != 0 ? 9 : 1,
                                             .columns = columns,
                                             .with_entropy = true,
                                             .masked = true},
                             mask_all);
}

static void far_targets(batch *b)
{
    const int64_t far[] = {INT64_MIN, INT64_MAX, INT64_MIN + 40, INT64_C(1) << 32, -(INT64_C(1) << 32), UINT32_MAX};
    for (uint64_t s = 0; s < b->o.sequence; s++)
        put_whole(&b->target, 0, s, far[s]);
}

/* 2^32 must not become 0 when targets are narrowed. */
TEST(far_targets_are_outside)
{
    for (int64_t start = 0; start < 100; start += 50)
        check_everywhere((batch_options){.batch = 1, .sequence = 6, .columns = 50, .vocab_start = start}, far_targets);
}

TEST(temperatures_divide)
{
    static const double temperatures[] = {1e-30, 1e-6, 0.05, 0.7, 1.3, 8, 1000, 1e30, 8e37};
    for (size_t i = 0; i < 9; i++)
        check_everywhere((batch_options){.batch = 2,
                                         .sequence = 3,
                                         .columns = 333,
                                         .with_entropy = true,
                                         .outside_in_16 = 3,
                                         .temperature = temperatures[i]},
                         NULL);
}

/* A token whose temperature is out of range is NaN, and no other token. */
TEST(bad_temperatures_are_nan)
{
    static const float bad[] = {0, -1, NAN, INFINITY, -INFINITY, 1e-38f, 8.6e37f};
    FOR_KERNELS(kernels)
    {
        for (int capped = 0; capped < 2; capped++) {
            batch_options options = {.batch = 1, .sequence = 8, .columns = 300, .with_entropy = true, .heated = true};
            options.with_logsumexp = options.with_mean = true;
            options.soft_cap = capped ? 8 : 0;
            batch b = new_batch(&options);
            for (uint64_t s = 0; s < 7; s++)
                *(float *)row_at(&b.temperatures, 0, s) = bad[s];
            bp_logprob *client = new_client(device, &b, kernels->bit, 1);
            run_forward(client, &b);
            run_backward(client, &b);
            for (uint64_t s = 0; s < 8; s++) {
                const view *const outputs[] = {&b.logprob, &b.entropy, &b.logsumexp, &b.mean_logprob};
                for (int i = 0; i < 4; i++)
                    assert_int_equal(isnan(upstream_at(outputs[i], 0, s)) != 0, s < 7);
                for (int64_t v = 0; v < 300; v++)
                    assert_int_equal(isnan(((const float *)row_at(&b.grad, 0, s))[v]) != 0, s < 7);
            }
            bp_logprob_destroy(&client);
            free_batch(&b);
        }
    }
}

/* A soft cap makes infinite logits finite, keeps NaN, and is close to the identity for small ones. */
TEST(caps_bound_logits)
{
    static const double caps[] = {1e-3, 0.5, 30, 1e30};
    FOR_KERNELS(kernels)
    {
        for (size_t i = 0; i < 4; i++) {
            batch_options options = {.batch = 1, .sequence = 3, .columns = 2100, .with_entropy = true};
            options.with_logsumexp = options.with_mean = true;
            options.soft_cap = caps[i];
            batch b = new_batch(&options);
            for (uint64_t v = 0; v < 9 && i < 3; v++)
                put_logit(&b, 0, 0, v * 211, v % 3 == 0 ? -INFINITY : v % 3 == 1 ? INFINITY : 1e38);
            put_logit(&b, 0, 1, 2099, NAN);
            for (uint64_t v = 0; v < 2100; v++)
                put_logit(&b, 0, 2, v, 1e-6 * random_fraction());
            bp_logprob *client = new_client(device, &b, kernels->bit, 1);
            check_both(client, &b);
            assert_true(isnan(upstream_at(&b.logprob, 0, 1)));
            bp_logprob_destroy(&client);
            free_batch(&b);
        }
    }
}

TESTS(open_host, close_host)
