/* SPDX-License-Identifier: Apache-2.0 */
/* Targets outside the vocabulary: reported with token and value, by the call or by a check, and NaN. Ignored targets: zeros, rows not read. */
#include "support/harness.h"

#include "support/batches.h"
#include "support/hosts.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "support/brief.h"
#include "support/scenarios.h"

static bp_logprob *checked_client(const batch *b, uint32_t threads)
{
    bp_logprob_config config;
    bp_logprob *client = NULL;
    assert_ok(bp_logprob_config_init(&config, sizeof config));
    config.max_tokens = token_count(b);
    config.vocab = b->o.columns;
    config.vocab_start = (uint64_t)b->o.vocab_start;
    config.threads = threads;
    assert_ok(bp_logprob_create(device, &config, &client));
    return client;
}

static batch good_batch(bp_dtype target_dtype, bool masked)
{
    batch_options options = {.batch = 3,
                             .sequence = 50,
                             .columns = 40,
                             .vocab_start = 1000,
                             .target_dtype = target_dtype,
                             .masked = masked,
                             .strict = true,
                             .with_entropy = true};
    return new_batch(&options);
}

static bp_status forward_on(bp_logprob *client, const batch *b, bp_stream *stream)
{
    bp_logprob_batch call = call_of(b, whole_shard(b));
    bp_logprob_outputs outputs = outputs_of(b);
    return bp_logprob_forward(client, &call, &outputs, stream);
}

/* Reported once, by the call or by a check. */
static void assert_named(bp_logprob *client, const batch *b, bp_stream *stream, const char *token, const char *value)
{
    assert_fails(forward_on(client, b, NULL), BP_ERR_INVALID_ARGUMENT, "target", token, value);
    assert_ok(bp_logprob_check(client));
    assert_ok(forward_on(client, b, stream));
    assert_fails(bp_logprob_check(client), BP_ERR_INVALID_ARGUMENT, "target", token, value);
    assert_ok(bp_logprob_check(client));
}

TEST(targets_outside_are_named)
{
    static const int64_t wide[] = {999, 1040, 0, -1, -100, INT64_MIN, INT64_MAX, 1000 + (INT64_C(1) << 32)};
    static const int64_t narrow[] = {999, 1040, 0, -1, -100, INT32_MIN, INT32_MAX};
    bp_stream *stream = NULL;
    assert_ok(bp_stream_create(device, "s", &stream));
    for (int is_wide = 0; is_wide < 2; is_wide++) {
        batch b = good_batch(is_wide ? BP_DTYPE_INT64 : BP_DTYPE_INT32, false);
        bp_logprob *client = checked_client(&b, 2);
        for (size_t i = 0; i < (is_wide ? 8 : 7); i++) {
            int64_t bad = is_wide ? wide[i] : narrow[i], kept = whole_at(&b.target, 1, 7);
            const long long lowest = 1000 + (long long)INT32_MIN, highest = 1000 + (long long)INT32_MAX;
            char text[48];
            snprintf(text, sizeof text, "target %lld%s",
                     bad < lowest    ? lowest
                     : bad > highest ? highest
                                     : (long long)bad,
                     bad <= lowest    ? " or less"
                     : bad >= highest ? " or more"
                                      : ",");
            put_whole(&b.target, 1, 7, bad);
            assert_named(client, &b, stream, "57", text); /* token 1 * 50 + 7 */
            put_whole(&b.target, 1, 7, kept);
        }
        assert_ok(forward_on(client, &b, NULL));
        assert_true(outputs_are_true(&b));
        bp_logprob_destroy(&client);
        free_batch(&b);
    }
    bp_stream_destroy(&stream);
}

TEST(good_targets_at_the_edges_pass)
{
    batch b = good_batch(BP_DTYPE_INT64, false);
    bp_logprob *client = checked_client(&b, 1);
    put_whole(&b.target, 0, 0, 1000);
    put_whole(&b.target, 2, 49, 1039);
    check_both(client, &b);
    assert_ok(bp_logprob_check(client));
    bp_logprob_destroy(&client);
    free_batch(&b);
}

/* The lowest bad token is reported, for any scheduling of threads. */
TEST(the_lowest_bad_target_is_reported)
{
    bp_stream *stream = NULL;
    assert_ok(bp_stream_create(device, "s", &stream));
    for (uint32_t threads = 1; threads <= 4; threads++) {
        batch b = good_batch(BP_DTYPE_INT64, false);
        bp_logprob *client = checked_client(&b, threads);
        for (uint64_t t = 149; t > 11; t -= 3)
            put_whole(&b.target, t / 50, t % 50, -(int64_t)t);
        for (int run = 0, runs = in_brief() ? 2 : 5; run < runs; run++)
            assert_named(client, &b, stream, " 14", "-14");
        bp_logprob_destroy(&client);
        free_batch(&b);
    }
    bp_stream_destroy(&stream);
}

TEST(masked_rows_are_not_checked)
{
    batch b = good_batch(BP_DTYPE_INT64, true);
    bp_logprob *client = checked_client(&b, 2);
    for (uint64_t i = 0; i < 3; i++)
        for (uint64_t s = 0; s < 50; s++)
            if (is_masked(&b, i, s))
                put_whole(&b.target, i, s, -100);
    check_both(client, &b);
    assert_ok(bp_logprob_check(client));
    bp_logprob_destroy(&client);
    free_batch(&b);
}

/* Several calls on a stream before the check: the lowest token of all is reported. */
TEST(checks_report_all_calls_since_the_last)
{
    bp_stream *stream = NULL;
    assert_ok(bp_stream_create(device, "s", &stream));
    batch a = good_batch(BP_DTYPE_INT64, false), b = good_batch(BP_DTYPE_INT64, false);
    bp_logprob *client = checked_client(&a, 2);
    put_whole(&a.target, 2, 20, 7000);
    put_whole(&b.target, 0, 31, 8000);
    for (int order = 0; order < 2; order++) {
        assert_ok(forward_on(client, order ? &a : &b, stream));
        assert_ok(forward_on(client, order ? &b : &a, stream));
        assert_fails(bp_logprob_check(client), BP_ERR_INVALID_ARGUMENT, "31", "8000");
        assert_ok(bp_logprob_check(client));
    }
    assert_ok(forward_on(client, &a, stream));
    assert_fails(bp_logprob_check(client), BP_ERR_INVALID_ARGUMENT, "120", "7000");
    bp_logprob_destroy(&client);
    free_batch(&a);
    free_batch(&b);
    bp_stream_destroy(&stream);
}

/* The token's outputs and gradient are NaN, those of other rows are unaffected. */
TEST(bad_targets_leave_other_rows_unaffected)
{
    bp_stream *stream = NULL;
    assert_ok(bp_stream_create(device, "s", &stream));
    batch b = good_batch(BP_DTYPE_INT64, false);
    bp_logprob *client = checked_client(&b, 2);
    put_whole(&b.target, 0, 3, INT64_MIN);
    assert_ok(forward_on(client, &b, stream));
    assert_ok(bp_stream_synchronize(stream));
    assert_fails(bp_logprob_check(client), BP_ERR_INVALID_ARGUMENT, "token 3 ");
    assert_true(isnan(upstream_at(&b.logprob, 0, 3)) && isnan(upstream_at(&b.entropy, 0, 3)));
    assert_true(outputs_are_true(&b));
    run_backward(client, &b);
    assert_true(isnan(((const float *)row_at(&b.grad, 0, 3))[0]) && gradient_is_true(&b, whole_shard(&b)));
    bp_logprob_destroy(&client);
    free_batch(&b);
    bp_stream_destroy(&stream);
}

/* A client by the defaults: -100 is ignored, its row is not read (POISON is NaN), and its results are zeros; the next id is an error. */
TEST(ignored_targets_are_zeros)
{
    batch b = good_batch(BP_DTYPE_INT64, false);
    bp_logprob *client = checked_client(&b, 2);
    bp_logprob_batch call = call_of(&b, whole_shard(&b)), defaults;
    bp_logprob_outputs outputs = outputs_of(&b);
    bp_logprob_gradients gradients = gradients_of(&b, whole_shard(&b));
    assert_ok(bp_logprob_batch_init(&defaults, sizeof defaults));
    assert_true(defaults.tokens.ignore_index == -100);
    call.tokens.ignore_index = defaults.tokens.ignore_index;
    put_whole(&b.target, 1, 7, -100);
    memset(row_at(&b.logits, 1, 7), POISON, 40 * sizeof(float));
    assert_ok(bp_logprob_forward(client, &call, &outputs, NULL));
    assert_ok(bp_logprob_backward(client, &call, &gradients, NULL));
    assert_true(upstream_at(&b.logprob, 1, 7) == 0 && upstream_at(&b.entropy, 1, 7) == 0);
    for (int v = 0; v < 40; v++)
        assert_true(((const float *)row_at(&b.grad, 1, 7))[v] == 0);
    put_whole(&b.target, 1, 8, -101);
    assert_fails(bp_logprob_forward(client, &call, &outputs, NULL), BP_ERR_INVALID_ARGUMENT, "token 58 ", "-101",
                 "40 ids", "[1000, 1039]");
    call.tokens.ignore_index = BP_LOGPROB_IGNORE_NONE;
    assert_fails(bp_logprob_forward(client, &call, &outputs, NULL), BP_ERR_INVALID_ARGUMENT, "token 57 ", "-100");
    bp_logprob_destroy(&client);
    free_batch(&b);
}

/* Of several targets an ignored one is 0, and its upstream gradient counts for nothing; all of them ignored are a masked row. Also where the
 * ignored id is in the vocabulary. */
TEST(several_targets_may_be_ignored)
{
    for (int first = 0; first < 2; first++) {
        for (int strict = 0; strict < 2; strict++) {
            seed(7);
            batch_options options = {.batch = 3,
                                     .sequence = 20,
                                     .columns = 40,
                                     .vocab_start = 1000,
                                     .targets = 3,
                                     .ignored_in_16 = 8,
                                     .ignores_first = first != 0,
                                     .outside_in_16 = strict ? 1 : 3,
                                     .strict = strict != 0,
                                     .with_entropy = true,
                                     .with_mean = true};
            batch b = new_batch(&options);
            unsigned masked = 0, mixed = 0;
            for (uint64_t i = 0; i < 3; i++) {
                for (uint64_t s = 0; s < 20; s++) {
                    masked += is_masked(&b, i, s);
                    mixed += is_ignored(&b, i, s, 1) && !is_masked(&b, i, s);
                }
            }
            assert_true(masked > 0 && mixed > 0);
            assert_int_equal(has_bad(&b), strict);
            bp_logprob *client = new_client(device, &b, BP_KERNELS_ALL, 2);
            check_both(client, &b);
            bp_logprob_destroy(&client);
            free_batch(&b);
        }
    }
}

/* As the vocabulary-parallel functions of other projects: 0, and the gradient of -log of the whole sum. */
TEST(outside_targets_may_be_masked)
{
    seed(8);
    batch_options options = {.batch = 2, .sequence = 9, .columns = 40, .outside_in_16 = 8, .with_entropy = true};
    batch b = new_batch(&options);
    put_whole(&b.target, 1, 3, -100);
    bp_logprob *client = new_client(device, &b, BP_KERNELS_ALL, 2);
    check_both(client, &b);
    assert_true(upstream_at(&b.logprob, 1, 3) == 0 && ((const float *)row_at(&b.grad, 1, 3))[5] != 0);
    assert_ok(bp_logprob_check(client));
    bp_logprob_destroy(&client);
    free_batch(&b);
}

TESTS(open_host, close_host)
