/* SPDX-License-Identifier: Apache-2.0 */
/* Merged schedules, and merged buckets of several models that share a pool. */
#include "support/harness.h"

#include <bucketpool/plan.h>

#include <stdbool.h>
#include <string.h>

#include "support/scenarios.h"

static bp_schedule *draw_schedule(const bp_buckets *buckets)
{
    bp_schedule_config config;
    assert_ok(bp_schedule_config_init(&config, sizeof config));
    config.prefetch = random_below(3);
    config.grad_units = 1 + random_below(3);
    config.passes = (bp_passes)random_below(3);
    config.streams = (bp_streams)random_below(2);
    config.outside = (bp_outside)random_below(2);
    bp_schedule *schedule;
    assert_ok(bp_schedule_create_training(buckets, &config, &schedule));
    return schedule;
}

static void plan_and_check(const bp_buckets *buckets, const bp_schedule *schedule)
{
    bp_plan_config config = plan_config(BP_POLICY_MAX, 0, BP_FALLBACK_PERSISTENT);
    SCOPED(bp_plan_destroy) bp_plan *plan = NULL;
    assert_ok(bp_plan_create(buckets, schedule, &config, &plan));
    assert_ok(bp_plan_check(plan, buckets, schedule));
}

/* ---- schedules ------------------------------------------------------------------------------------------------------ */

TEST(test_conflicts_of_merged_schedules)
{
    size_t differences = 0;
    for (uint32_t round = 0; round < 200; round++) {
        seed(round);
        scenario_options options = DEFAULTS;
        options.roles = PARAM | GRAD | STATE;
        SCOPED(free_scenario) scenario s = make_scenario(random_model(1 + random_below(6)), options);
        bp_schedule *parts[3], *merged;
        size_t count = 1 + random_below(3), steps = 0;
        for (size_t i = 0; i < count; i++) {
            parts[i] = draw_schedule(s.buckets);
            steps += bp_schedule_get_info(parts[i])->step_count;
        }
        assert_ok(bp_schedule_create_merged((const bp_schedule *const *)parts, count, &merged));
        assert_int_equal(bp_schedule_get_info(merged)->step_count, steps);
        size_t requests = bp_buckets_get_info(s.buckets)->request_count;
        for (size_t a = 0; a < requests; a++) {
            for (size_t b = 0; b < requests; b++) {
                bool expected = false, first = requests_conflict(parts[0], a, b);
                for (size_t i = 0; i < count; i++)
                    expected |= requests_conflict(parts[i], a, b);
                assert_int_equal(requests_conflict(merged, a, b), expected);
                differences += expected != first;
            }
        }
        plan_and_check(s.buckets, merged);
        for (size_t i = 0, at = 0; i < count; at += bp_schedule_get_info(parts[i++])->step_count) {
            for (size_t k = 0; k < bp_schedule_get_info(parts[i])->step_count; k++) {
                bp_step step = bp_schedule_get_info(merged)->steps[at + k];
                bp_step expected = bp_schedule_get_info(parts[i])->steps[k];
                assert_int_equal(step.phase, expected.phase);
                assert_int_equal(step.unit, expected.unit);
            }
        }
        for (size_t i = 0; i < count; i++)
            bp_schedule_destroy(&parts[i]);
        bp_schedule_destroy(&merged);
    }
    assert_true(differences > 100);
}

/* Gradients that one schedule does not use, and an interval across the border of the schedules. */
TEST(test_intervals_of_merged_schedules)
{
    SCOPED(free_scenario) scenario s = make_scenario(random_model(2), DEFAULTS);
    bp_schedule_config config;
    assert_ok(bp_schedule_config_init(&config, sizeof config));
    config.passes = BP_PASSES_EVAL;
    SCOPED(bp_schedule_destroy) bp_schedule *evaluation = NULL, *merged = NULL;
    assert_ok(bp_schedule_create_training(s.buckets, &config, &evaluation));
    const bp_schedule *parts[] = {s.schedule, evaluation};
    assert_ok(bp_schedule_create_merged(parts, 2, &merged));
    size_t count;
    const bp_interval *first = intervals_of(merged, 0, &count); /* unit 0: steps 0, 2 and 3, and 4 */
    assert_int_equal(count, 2);
    assert_int_equal(first[1].begin, 2);
    assert_int_equal(first[1].end, 5);
    bp_request request;
    size_t grad = 0;
    do
        request = bp_buckets_get_info(s.buckets)->requests[grad++];
    while (request.role != BP_ROLE_GRAD);
    const bp_interval *gradient = intervals_of(merged, grad - 1, &count);
    assert_int_equal(count, 1);
    assert_int_equal(gradient->begin, 3);
    assert_int_equal(gradient->end, 4);
}

/* ---- models --------------------------------------------------------------------------------------------------------- */

static bp_buckets *unite(const bp_buckets *first, const bp_buckets *second)
{
    const bp_buckets *parts[] = {first, second};
    const char *const names[] = {"policy", "reference"};
    bp_buckets *merged;
    assert_ok(bp_buckets_create_merged(parts, names, 2, &merged));
    return merged;
}

/* Merged requests equal the part's, except for bucket and unit. */
static void assert_same_requests(const bp_buckets *merged, const bp_buckets *part, size_t first_unit,
                                 size_t first_request, const char *prefix)
{
    for (size_t i = 0; i < bp_buckets_get_info(part)->request_count; i++) {
        bp_request request = bp_buckets_get_info(merged)->requests[first_request + i];
        bp_request expected = bp_buckets_get_info(part)->requests[i];
        bp_bucket bucket = bp_buckets_get_info(merged)->buckets[request.bucket];
        bp_bucket expected_bucket = bp_buckets_get_info(part)->buckets[expected.bucket];
        assert_int_equal(request.role, expected.role);
        assert_int_equal(request.bytes, expected.bytes);
        assert_int_equal(request.numel, expected.numel);
        assert_int_equal(request.dtype, expected.dtype);
        assert_int_equal(bucket.unit, expected_bucket.unit + (int32_t)first_unit);
        assert_int_equal(bucket.ordinal, expected_bucket.ordinal);
        assert_int_equal(bucket.padded_numel, expected_bucket.padded_numel);
        const char *name = bp_buckets_get_info(merged)->units[bucket.unit].name;
        assert_memory_equal(name, prefix, strlen(prefix));
        assert_string_equal(name + strlen(prefix), bp_buckets_get_info(part)->units[expected_bucket.unit].name);
    }
}

TEST(test_merged_buckets)
{
    SCOPED(free_scenario) scenario a = make_scenario(make_mixed(), DEFAULTS), b = make_scenario(make_fp8(), DEFAULTS);
    SCOPED(bp_buckets_destroy) bp_buckets *merged = unite(a.buckets, b.buckets);
    size_t units = bp_buckets_get_info(a.buckets)->unit_count, requests = bp_buckets_get_info(a.buckets)->request_count;
    assert_int_equal(bp_buckets_get_info(merged)->unit_count, units + bp_buckets_get_info(b.buckets)->unit_count);
    assert_int_equal(bp_buckets_get_info(merged)->request_count,
                     requests + bp_buckets_get_info(b.buckets)->request_count);
    assert_int_equal(bp_buckets_get_info(merged)->bucket_count,
                     bp_buckets_get_info(a.buckets)->bucket_count + bp_buckets_get_info(b.buckets)->bucket_count);
    assert_int_equal(bp_buckets_get_info(merged)->persistent_bytes, bp_buckets_get_info(a.buckets)->persistent_bytes);
    assert_true(bp_buckets_get_info(merged)->persistent_bytes > 0);
    assert_same_requests(merged, a.buckets, 0, 0, "policy/");
    assert_same_requests(merged, b.buckets, units, requests, "reference/");
    bp_bucket last = bp_buckets_get_info(merged)->buckets[bp_buckets_get_info(merged)->bucket_count - 1];
    assert_int_equal(last.unit, BP_OUTSIDE);
    bp_schedule *schedule; /* runs the parts' units in sequence, as chunks of a virtual pipeline */
    bp_schedule_config config;
    assert_ok(bp_schedule_config_init(&config, sizeof config));
    assert_ok(bp_schedule_create_training(merged, &config, &schedule));
    plan_and_check(merged, schedule);
    bp_schedule_destroy(&schedule);
}

/* Nested units keep their parents. */
TEST(test_merged_nested_units)
{
    bp_model *model = new_model();
    int32_t outer = add_unit(model, "outer", BP_OUTSIDE), inner = add_unit(model, "inner", outer);
    add_bucket(model, outer, BP_DTYPE_BF16, 1, 0);
    add_bucket(model, inner, BP_DTYPE_BF16, 1, 0);
    scenario_options options = PARAM_ONLY;
    options.prefetch = 0;
    SCOPED(free_scenario) scenario s = make_scenario(model, options);
    SCOPED(bp_buckets_destroy) bp_buckets *merged = unite(s.buckets, s.buckets);
    bp_schedule_config config;
    assert_ok(bp_schedule_config_init(&config, sizeof config));
    config.prefetch = 0;
    config.passes = BP_PASSES_EVAL;
    SCOPED(bp_schedule_destroy) bp_schedule *schedule = NULL;
    assert_ok(bp_schedule_create_training(merged, &config, &schedule));
    static const bp_interval expected[] = {{0, 2}, {1, 2}, {2, 4}, {3, 4}};
    for (size_t r = 0; r < 4; r++) {
        size_t count;
        const bp_interval *live = intervals_of(schedule, r, &count);
        assert_int_equal(count, 1);
        assert_memory_equal(live, &expected[r], sizeof *live);
    }
}

/* The models train in turns: only state conflicts with requests of the other model. */
TEST(test_schedules_of_parts)
{
    for (uint32_t round = 0; round < 50; round++) {
        seed(round);
        scenario_options options = DEFAULTS;
        options.roles = PARAM | GRAD | STATE;
        SCOPED(free_scenario)
        scenario a = make_scenario(random_model(1 + random_below(5)), options),
                 b = make_scenario(random_model(1 + random_below(5)), options);
        SCOPED(bp_buckets_destroy) bp_buckets *buckets = unite(a.buckets, b.buckets);
        bp_schedule *own[] = {draw_schedule(a.buckets), draw_schedule(b.buckets)}, *parts[2], *merged;
        for (size_t i = 0; i < 2; i++)
            assert_ok(bp_schedule_create_embedded(own[i], buckets, i, &parts[i]));
        assert_ok(bp_schedule_create_merged((const bp_schedule *const *)parts, 2, &merged));
        size_t first = bp_buckets_get_info(a.buckets)->request_count,
               requests = bp_buckets_get_info(buckets)->request_count;
        for (size_t x = 0; x < requests; x++) {
            for (size_t y = 0; y < requests; y++) {
                bp_request p = bp_buckets_get_info(buckets)->requests[x];
                bp_request q = bp_buckets_get_info(buckets)->requests[y];
                size_t live[2];
                intervals_of(merged, x, &live[0]);
                intervals_of(merged, y, &live[1]);
                bool has_state = ((BP_ROLE_BIT(p.role) | BP_ROLE_BIT(q.role)) & STATE) != 0;
                bool expected =
                    (x < first) == (y < first) && !has_state
                        ? requests_conflict(own[x >= first], x - (x < first ? 0 : first), y - (y < first ? 0 : first))
                        : has_state && live[0] > 0 && live[1] > 0;
                assert_int_equal(requests_conflict(merged, x, y), expected);
            }
        }
        bp_step step = bp_schedule_get_info(merged)->steps[bp_schedule_get_info(merged)->step_count - 1];
        assert_true(step.unit >= (int32_t)bp_buckets_get_info(a.buckets)->unit_count);
        plan_and_check(buckets, merged);
        for (size_t i = 0; i < 2; i++) {
            bp_schedule_destroy(&own[i]);
            bp_schedule_destroy(&parts[i]);
        }
        bp_schedule_destroy(&merged);
    }
}

/* ---- errors --------------------------------------------------------------------------------------------------------- */

TEST(test_errors)
{
    SCOPED(free_scenario) scenario s = scenario_of_kinds("xyz"), other = scenario_of_kinds("xy");
    bp_schedule *schedule = NULL;
    const bp_schedule *parts[] = {s.schedule, other.schedule}, *missing[] = {s.schedule, NULL};
    assert_fails(bp_schedule_create_merged(parts, 0, &schedule), BP_ERR_INVALID_ARGUMENT, "at least one");
    assert_fails(bp_schedule_create_merged(NULL, 2, &schedule), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_schedule_create_merged(parts, 2, NULL), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_schedule_create_merged(parts, 2, &schedule), BP_ERR_INVALID_ARGUMENT, "schedule 1", "2 requests");
    assert_fails(bp_schedule_create_merged(missing, 2, &schedule), BP_ERR_INVALID_ARGUMENT, "schedule 1");
    SCOPED(bp_buckets_destroy) bp_buckets *merged = NULL;
    const bp_buckets *buckets[] = {s.buckets, other.buckets}, *none[] = {s.buckets, NULL};
    static const char *const twice[] = {"a", "a"}, *const empty[] = {"a", ""}, *const slash[] = {"a", "b/c"},
                             *const good[] = {"a", "b"}, *const unnamed[] = {NULL, "b"};
    assert_fails(bp_buckets_create_merged(buckets, good, 0, &merged), BP_ERR_INVALID_ARGUMENT, "at least one");
    assert_fails(bp_buckets_create_merged(none, good, 2, &merged), BP_ERR_INVALID_ARGUMENT, "part 1");
    assert_fails(bp_buckets_create_merged(buckets, twice, 2, &merged), BP_ERR_INVALID_ARGUMENT, "\"a\"");
    assert_fails(bp_buckets_create_merged(buckets, empty, 2, &merged), BP_ERR_INVALID_ARGUMENT, "part 1");
    assert_fails(bp_buckets_create_merged(buckets, slash, 2, &merged), BP_ERR_INVALID_ARGUMENT, "\"b/c\"");
    assert_fails(bp_buckets_create_merged(buckets, unnamed, 2, &merged), BP_ERR_INVALID_ARGUMENT, "part 0");
    assert_null(merged);
    assert_ok(bp_buckets_create_merged(buckets, good, 2, &merged));
    assert_fails(bp_schedule_create_embedded(s.schedule, merged, 2, &schedule), BP_ERR_INVALID_ARGUMENT, "part 2",
                 "2 parts");
    assert_fails(bp_schedule_create_embedded(s.schedule, merged, 1, &schedule), BP_ERR_INVALID_ARGUMENT, "3 requests",
                 "2");
    assert_fails(bp_schedule_create_embedded(s.schedule, s.buckets, 0, &schedule), BP_ERR_INVALID_ARGUMENT, "0 parts");
    assert_fails(bp_schedule_create_embedded(NULL, merged, 0, &schedule), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_schedule_create_embedded(s.schedule, NULL, 0, &schedule), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_null(schedule);
}

TESTS(NULL, NULL)
