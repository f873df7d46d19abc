/* Bad targets where they are errors: reported with token and value, by the call or by a check. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/batches.h"
#include "support/hosts.h"

#include <stdio.h>
#include <string.h>

#include "../planner/scenarios.h"
#include "../support/brief.h"

static bp_logprob *checked_client(const batch *b, uint32_t threads)
{
    bp_logprob_config config;
    bp_logprob *client = NULL;
    assert_ok(bp_logprob_config_init(&config, sizeof config));
    config.max_tokens = token_count(b);
    config.vocab = b->o.columns;
    config.vocab_start = (uint64_t)b->o.vocab_start;
    config.targets = BP_TARGETS_CHECKED;
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

static void targets_outside_are_named(void **state)
{
    (void)state;
    static const int64_t wide[] = {999, 1040, 0, -1, -100, INT64_MIN, INT64_MAX, 1000 + (INT64_C(1) << 32)};
    static const int64_t narrow[] = {999, 1040, 0, -1, -100, INT32_MIN, INT32_MAX};
    bp_stream *stream = NULL;
    assert_ok(bp_stream_create(device, "s", &stream));
    for (int is_wide = 0; is_wide < 2; is_wide++) {
        batch b = good_batch(is_wide ? BP_DTYPE_INT64 : BP_DTYPE_INT32, false);
        bp_logprob *client = checked_client(&b, 2);
        for (size_t i = 0; i < (is_wide ? 8 : 7); i++) {
            int64_t bad = is_wide ? wide[i] : narrow[i], kept = whole_at(&b.target, 1, 7);
            char text[32];
            snprintf(text, sizeof text, "%lld", (long long)bad);
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

static void good_targets_at_the_edges_pass(void **state)
{
    (void)state;
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
static void the_lowest_bad_target_is_reported(void **state)
{
    (void)state;
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

static void masked_rows_are_not_checked(void **state)
{
    (void)state;
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
static void checks_report_all_calls_since_the_last(void **state)
{
    (void)state;
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

/* Other rows of the batch are unaffected. */
static void bad_targets_leave_other_rows_unaffected(void **state)
{
    (void)state;
    bp_stream *stream = NULL;
    assert_ok(bp_stream_create(device, "s", &stream));
    batch b = good_batch(BP_DTYPE_INT64, false);
    bp_logprob *client = checked_client(&b, 2);
    put_whole(&b.target, 0, 3, INT64_MIN);
    assert_ok(forward_on(client, &b, stream));
    assert_ok(bp_stream_synchronize(stream));
    assert_true(outputs_are_true(&b));
    bp_logprob_destroy(&client);
    free_batch(&b);
    bp_stream_destroy(&stream);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(targets_outside_are_named),
                                       cmocka_unit_test(good_targets_at_the_edges_pass),
                                       cmocka_unit_test(the_lowest_bad_target_is_reported),
                                       cmocka_unit_test(masked_rows_are_not_checked),
                                       cmocka_unit_test(checks_report_all_calls_since_the_last),
                                       cmocka_unit_test(bad_targets_leave_other_rows_unaffected)};
    return cmocka_run_group_tests(tests, open_host, close_host);
}
