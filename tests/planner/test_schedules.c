/* SPDX-License-Identifier: Apache-2.0 */
/* Intervals and errors of training schedules and recorded ones. */
#include "support/harness.h"

#include <bucketpool/plan.h>

#include <stdbool.h>

#include "support/scenarios.h"

/* ---- intervals ----------------------------------------------------------------------------------------------------- */

/* Expects up to two intervals; adjacent ones are merged, empty ones are dropped. */
static void assert_intervals(const scenario *s, size_t request, uint32_t begin, uint32_t end, uint32_t begin_again,
                             uint32_t end_again)
{
    bp_interval expected[2];
    size_t expected_count = 0, count;
    if (begin < end)
        expected[expected_count++] = (bp_interval){begin, end};
    if (begin_again < end_again && expected_count > 0 && begin_again <= end)
        expected[0].end = end_again;
    else if (begin_again < end_again)
        expected[expected_count++] = (bp_interval){begin_again, end_again};
    const bp_interval *intervals = intervals_of(s->schedule, request, &count);
    assert_int_equal(count, expected_count);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(intervals[i].begin, expected[i].begin);
        assert_int_equal(intervals[i].end, expected[i].end);
    }
}

/* The table of docs/concepts/schedules.md. Requests are ordered by unit, then role. */
static void assert_training_step(uint32_t n, scenario_options options)
{
    bp_model *model = new_model();
    for (uint32_t u = 0; u < n; u++)
        add_bucket(model, add_numbered_unit(model, u), BP_DTYPE_FP8_E4M3, 10, 0);
    SCOPED(free_scenario) scenario s = make_scenario(model, options);
    uint32_t p = options.prefetch, g = options.grad_units, steps = options.eval ? n : 2 * n;
    bool transposes = options.roles & TRANSPOSE && !options.eval;
    assert_int_equal(bp_schedule_get_info(s.schedule)->step_count, steps);
    size_t request = 0;
    for (uint32_t k = 0; k < n; k++) {
        uint32_t own = 2 * n - 1 - k; /* the backward step */
        uint32_t forward = k > p ? k - p : 0, backward = own > n + p ? own - p : n;
        uint32_t again = options.eval ? 0 : own + 1, drained = own + g < 2 * n ? own + g : 2 * n;
        assert_intervals(&s, request++, forward, k + 1, backward, transposes ? 0 : again);
        if (options.roles & TRANSPOSE)
            assert_intervals(&s, request++, 0, 0, backward, again);
        assert_intervals(&s, request++, 0, 0, own, options.eval ? 0 : drained);
        for (int role = BP_ROLE_STATE; role <= BP_ROLE_OPTIMIZER; role++)
            assert_intervals(&s, request++, 0, steps, 0, 0);
    }
    assert_int_equal(bp_buckets_get_info(s.buckets)->request_count, request);
    for (uint32_t i = 0; i < steps; i++) {
        bp_step step = bp_schedule_get_info(s.schedule)->steps[i];
        assert_int_equal(step.phase, i < n ? BP_PHASE_FORWARD : BP_PHASE_BACKWARD);
        assert_int_equal(step.unit, i < n ? i : 2 * n - 1 - i);
    }
}

TEST(test_training_intervals)
{
    for (uint32_t n = 1; n <= 6; n++) {
        for (uint32_t prefetch = 0; prefetch <= 7; prefetch++) {
            for (uint32_t grad_units = 1; grad_units <= 7; grad_units++) {
                scenario_options options = {PARAM | GRAD | STATE, prefetch, grad_units, prefetch % 2, 0, 0, 0};
                assert_training_step(n, options);
                options.eval = 0;
                assert_training_step(n, options);
                options.roles |= TRANSPOSE;
                assert_training_step(n, options);
            }
        }
    }
}

/* "outer" holds "inner", and both run before "last": steps 0 to 2 forward, 3 to 5 backward. */
TEST(test_nested_intervals)
{
    bp_model *model = new_model();
    int32_t outer = add_unit(model, "outer", BP_OUTSIDE), inner = add_unit(model, "inner", outer);
    int32_t last = add_unit(model, "last", BP_OUTSIDE);
    add_bucket(model, outer, BP_DTYPE_BF16, 1, 0);
    add_bucket(model, inner, BP_DTYPE_BF16, 1, 0);
    add_bucket(model, last, BP_DTYPE_BF16, 1, 0);
    scenario_options options = PARAM_ONLY;
    options.prefetch = 0;
    SCOPED(free_scenario) scenario s = make_scenario(model, options);
    assert_int_equal(bp_schedule_get_info(s.schedule)->step_count, 6);
    assert_intervals(&s, 0, 0, 2, 4, 6);
    assert_intervals(&s, 1, 1, 2, 4, 5);
    assert_intervals(&s, 2, 2, 3, 3, 4);
}

TEST(test_recorded_intervals)
{
    bp_model *model = new_model();
    int32_t a = add_unit(model, "a", BP_OUTSIDE), b = add_unit(model, "b", BP_OUTSIDE);
    add_bucket(model, a, BP_DTYPE_BF16, 1, 0);
    add_bucket(model, a, BP_DTYPE_BF16, 2, 0);
    add_bucket(model, b, BP_DTYPE_BF16, 1, 0);
    add_event(model, 1, a, -1);
    add_event(model, 1, b, -1);
    add_event(model, 0, a, 0);
    add_event(model, 0, b, 0);
    add_event(model, 0, a, 1);
    add_event(model, 1, a, 0);
    add_event(model, 0, a, 0);
    scenario_options options = {.roles = PARAM, .recorded = 1};
    SCOPED(free_scenario) scenario s = make_scenario(model, options);
    assert_int_equal(bp_schedule_get_info(s.schedule)->step_count, 7);
    assert_intervals(&s, 0, 0, 2, 5, 6);
    assert_intervals(&s, 1, 0, 4, 0, 0);
    assert_intervals(&s, 2, 1, 3, 0, 0);
}

/* ---- errors -------------------------------------------------------------------------------------------------------- */

TEST(test_training_schedule_errors)
{
    SCOPED(free_scenario) scenario s = scenario_of_kinds("xy");
    bp_schedule_config config;
    SCOPED(bp_schedule_destroy) bp_schedule *schedule = NULL;
    assert_ok(bp_schedule_config_init(&config, sizeof config));
    config.grad_units = 0;
    assert_fails(bp_schedule_create_training(s.buckets, &config, &schedule), BP_ERR_INVALID_ARGUMENT, "grad_units");
    config.grad_units = 1;
    assert_fails(bp_schedule_create_training(NULL, &config, &schedule), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_schedule_create_training(s.buckets, &config, NULL), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_null(schedule);
    config.prefetch = UINT32_MAX;
    config.grad_units = UINT32_MAX;
    assert_ok(bp_schedule_create_training(s.buckets, &config, &schedule));
    size_t count;
    const bp_interval *intervals = intervals_of(schedule, 0, &count);
    assert_int_equal(count, 2); /* the step has a forward and a backward, and memory is released between them */
    assert_int_equal(intervals[0].begin, 0);
    assert_null(bp_schedule_get_info(NULL));
    bp_schedule_destroy(&schedule);
    assert_ok(bp_schedule_create_training(s.buckets, NULL, &schedule)); /* the defaults: prefetch depth 1 */
    assert_int_equal(intervals_of(schedule, 1, &count)[0].begin, 0);
    assert_int_equal(intervals_of(schedule, 1, &count)[0].end, 3);
}

/* Events of two units "alpha" (two buckets) and "beta": "A" acquires alpha, "a" releases it, "B" and "b" likewise beta,
 * "0" and "1" acquire a bucket of alpha, "z" and "o" release them, "9" acquires one that does not exist. */
static void assert_recording_fails(const char *events, const char *position, const char *name)
{
    SCOPED(bp_model_destroy) bp_model *model = new_model();
    int32_t alpha = add_unit(model, "alpha", BP_OUTSIDE), beta = add_unit(model, "beta", BP_OUTSIDE);
    add_bucket(model, alpha, BP_DTYPE_BF16, 10, 0);
    add_bucket(model, alpha, BP_DTYPE_BF16, 20, 0);
    add_bucket(model, beta, BP_DTYPE_BF16, 10, 0);
    for (; *events != '\0'; events++) {
        uint32_t acquire = *events == 'A' || *events == 'B' || (*events >= '0' && *events <= '9');
        int32_t unit = *events == 'B' || *events == 'b' ? beta : alpha;
        int32_t bucket = *events == '0' || *events == 'z'   ? 0
                         : *events == '1' || *events == 'o' ? 1
                         : *events == '9'                   ? 9
                                                            : -1;
        add_event(model, acquire, unit, bucket);
    }
    bp_buckets_config config;
    assert_ok(bp_buckets_config_init(&config, sizeof config));
    config.roles = PARAM;
    SCOPED(bp_buckets_destroy) bp_buckets *buckets = NULL;
    SCOPED(bp_schedule_destroy) bp_schedule *schedule = NULL;
    assert_ok(bp_buckets_create(model, &config, &buckets));
    bp_status status = bp_schedule_create_recorded(model, buckets, NULL, &schedule);
    if (name == NULL)
        assert_ok(status);
    else if (*position == '\0')
        assert_fails(status, BP_ERR_SCHEDULE, name);
    else
        assert_fails(status, BP_ERR_SCHEDULE, position, name);
    assert_int_equal(status == BP_OK, schedule != NULL);
}

TEST(test_recorded_schedule_errors)
{
    assert_recording_fails("ABab", "", NULL);
    assert_recording_fails("A0", "event 1", "alpha");
    assert_recording_fails("01BzobAa", "", NULL);
    assert_recording_fails("Bab", "event 1", "alpha");
    assert_recording_fails("ABaba", "event 4", "alpha");
    assert_recording_fails("ABB", "event 2", "beta");
    assert_recording_fails("AB1", "event 2", "alpha");
    assert_recording_fails("ABa", "event 1", "beta");
    assert_recording_fails("AB9", "event 2", "alpha");
    assert_recording_fails("Aa", "", "beta");
    assert_recording_fails("0Bzb", "", "alpha");
    bp_model *model = new_model();
    add_bucket(model, add_unit(model, "a", BP_OUTSIDE), BP_DTYPE_BF16, 10, 0);
    assert_fails(try_event(model, 1, 1, -1), BP_ERR_INVALID_ARGUMENT, "1");
    assert_fails(try_event(model, 1, -1, -1), BP_ERR_INVALID_ARGUMENT, "-1");
    SCOPED(free_scenario) scenario s = make_scenario(model, PARAM_ONLY);
    bp_schedule *schedule = NULL;
    assert_fails(bp_schedule_create_recorded(s.model, s.buckets, NULL, &schedule), BP_ERR_INVALID_ARGUMENT, "event");
    assert_fails(bp_schedule_create_recorded(NULL, s.buckets, NULL, &schedule), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_schedule_create_recorded(s.model, NULL, NULL, &schedule), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_null(schedule);
}

TESTS(NULL, NULL)
