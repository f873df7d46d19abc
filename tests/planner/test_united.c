/* Several schedules, and several models, that share a pool. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <bucketpool/plan.h>

#include <stdbool.h>
#include <string.h>

#include "scenarios.h"

static bool conflict(const bp_schedule *schedule, size_t a, size_t b)
{
    size_t count[2];
    const bp_interval *x = intervals_of(schedule, a, &count[0]);
    const bp_interval *y = intervals_of(schedule, b, &count[1]);
    for (size_t i = 0; i < count[0]; i++)
        for (size_t k = 0; k < count[1]; k++)
            if (x[i].begin < y[k].end && y[k].begin < x[i].end)
                return true;
    return false;
}

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
    bp_plan *plan;
    assert_ok(bp_plan_create(buckets, schedule, &config, &plan));
    assert_ok(bp_plan_check(plan, buckets, schedule));
    bp_plan_destroy(&plan);
}

/* ---- schedules ------------------------------------------------------------------------------------------------------ */

static void test_conflicts_are_united(void **state)
{
    (void)state;
    size_t differences = 0;
    for (uint32_t round = 0; round < 200; round++) {
        seed(round);
        world_options options = DEFAULTS;
        options.roles = PARAM | GRAD | STATE;
        world w = make_world(random_model(1 + random_below(6)), options);
        bp_schedule *parts[3], *united;
        size_t count = 1 + random_below(3), steps = 0;
        for (size_t i = 0; i < count; i++) {
            parts[i] = draw_schedule(w.buckets);
            steps += bp_schedule_get_info(parts[i])->step_count;
        }
        assert_ok(bp_schedule_create_merged((const bp_schedule *const *)parts, count, &united));
        assert_int_equal(bp_schedule_get_info(united)->step_count, steps);
        size_t requests = bp_buckets_get_info(w.buckets)->request_count;
        for (size_t a = 0; a < requests; a++) {
            for (size_t b = 0; b < requests; b++) {
                bool expected = false, first = conflict(parts[0], a, b);
                for (size_t i = 0; i < count; i++)
                    expected |= conflict(parts[i], a, b);
                assert_int_equal(conflict(united, a, b), expected);
                differences += expected != first;
            }
        }
        plan_and_check(w.buckets, united);
        for (size_t i = 0, at = 0; i < count; at += bp_schedule_get_info(parts[i++])->step_count) {
            for (size_t k = 0; k < bp_schedule_get_info(parts[i])->step_count; k++) {
                bp_step step = bp_schedule_get_info(united)->steps[at + k];
                bp_step expected = bp_schedule_get_info(parts[i])->steps[k];
                assert_int_equal(step.phase, expected.phase);
                assert_int_equal(step.unit, expected.unit);
            }
        }
        for (size_t i = 0; i < count; i++)
            bp_schedule_destroy(&parts[i]);
        bp_schedule_destroy(&united);
        end_world(&w);
    }
    assert_true(differences > 100);
}

/* Gradients that one of the schedules does not use, and an interval that goes on over the border. */
static void test_intervals_of_a_union(void **state)
{
    (void)state;
    world w = make_world(random_model(2), DEFAULTS);
    bp_schedule_config config;
    assert_ok(bp_schedule_config_init(&config, sizeof config));
    config.passes = BP_PASSES_EVAL;
    bp_schedule *evaluation, *united;
    assert_ok(bp_schedule_create_training(w.buckets, &config, &evaluation));
    const bp_schedule *parts[] = {w.schedule, evaluation};
    assert_ok(bp_schedule_create_merged(parts, 2, &united));
    size_t count;
    const bp_interval *first = intervals_of(united, 0, &count); /* unit 0: steps 0, 2 and 3, and 4 */
    assert_int_equal(count, 2);
    assert_int_equal(first[1].begin, 2);
    assert_int_equal(first[1].end, 5);
    bp_request request;
    size_t grad = 0;
    do
        request = bp_buckets_get_info(w.buckets)->requests[grad++];
    while (request.role != BP_ROLE_GRAD);
    const bp_interval *gradient = intervals_of(united, grad - 1, &count);
    assert_int_equal(count, 1);
    assert_int_equal(gradient->begin, 3);
    assert_int_equal(gradient->end, 4);
    bp_schedule_destroy(&united);
    bp_schedule_destroy(&evaluation);
    end_world(&w);
}

/* ---- models --------------------------------------------------------------------------------------------------------- */

static bp_buckets *unite(const bp_buckets *first, const bp_buckets *second)
{
    const bp_buckets *parts[] = {first, second};
    const char *const names[] = {"policy", "reference"};
    bp_buckets *united;
    assert_ok(bp_buckets_create_merged(parts, names, 2, &united));
    return united;
}

/* A request of the union is the part's, but for its bucket and unit. */
static void assert_same_requests(const bp_buckets *united, const bp_buckets *part, size_t first_unit,
                                 size_t first_request, const char *prefix)
{
    for (size_t i = 0; i < bp_buckets_get_info(part)->request_count; i++) {
        bp_request request = bp_buckets_get_info(united)->requests[first_request + i];
        bp_request expected = bp_buckets_get_info(part)->requests[i];
        bp_bucket bucket = bp_buckets_get_info(united)->buckets[request.bucket];
        bp_bucket expected_bucket = bp_buckets_get_info(part)->buckets[expected.bucket];
        assert_int_equal(request.role, expected.role);
        assert_int_equal(request.bytes, expected.bytes);
        assert_int_equal(request.numel, expected.numel);
        assert_int_equal(request.dtype, expected.dtype);
        assert_int_equal(bucket.unit, expected_bucket.unit + (int32_t)first_unit);
        assert_int_equal(bucket.ordinal, expected_bucket.ordinal);
        assert_int_equal(bucket.padded_numel, expected_bucket.padded_numel);
        const char *name = bp_buckets_get_info(united)->units[bucket.unit].name;
        assert_memory_equal(name, prefix, strlen(prefix));
        assert_string_equal(name + strlen(prefix), bp_buckets_get_info(part)->units[expected_bucket.unit].name);
    }
}

static void test_united_buckets(void **state)
{
    (void)state;
    world a = make_world(make_mixed(), DEFAULTS), b = make_world(make_fp8(), DEFAULTS);
    bp_buckets *united = unite(a.buckets, b.buckets);
    size_t units = bp_buckets_get_info(a.buckets)->unit_count, requests = bp_buckets_get_info(a.buckets)->request_count;
    assert_int_equal(bp_buckets_get_info(united)->unit_count, units + bp_buckets_get_info(b.buckets)->unit_count);
    assert_int_equal(bp_buckets_get_info(united)->request_count,
                     requests + bp_buckets_get_info(b.buckets)->request_count);
    assert_int_equal(bp_buckets_get_info(united)->bucket_count,
                     bp_buckets_get_info(a.buckets)->bucket_count + bp_buckets_get_info(b.buckets)->bucket_count);
    assert_int_equal(bp_buckets_get_info(united)->persistent_bytes, bp_buckets_get_info(a.buckets)->persistent_bytes);
    assert_true(bp_buckets_get_info(united)->persistent_bytes > 0);
    assert_same_requests(united, a.buckets, 0, 0, "policy/");
    assert_same_requests(united, b.buckets, units, requests, "reference/");
    bp_bucket last = bp_buckets_get_info(united)->buckets[bp_buckets_get_info(united)->bucket_count - 1];
    assert_int_equal(last.unit, BP_OUTSIDE);
    bp_schedule *schedule; /* the parts' units one after the other, as chunks of a virtual pipeline */
    bp_schedule_config config;
    assert_ok(bp_schedule_config_init(&config, sizeof config));
    assert_ok(bp_schedule_create_training(united, &config, &schedule));
    plan_and_check(united, schedule);
    bp_schedule_destroy(&schedule);
    bp_buckets_destroy(&united);
    end_world(&a);
    end_world(&b);
}

/* Nested units keep their parents. */
static void test_united_nested_units(void **state)
{
    (void)state;
    bp_model *model = new_model();
    int32_t outer = add_unit(model, "outer", BP_OUTSIDE), inner = add_unit(model, "inner", outer);
    add_bucket(model, outer, BP_DTYPE_BF16, 1, 0);
    add_bucket(model, inner, BP_DTYPE_BF16, 1, 0);
    world_options options = PARAM_ONLY;
    options.prefetch = 0;
    world w = make_world(model, options);
    bp_buckets *united = unite(w.buckets, w.buckets);
    bp_schedule_config config;
    assert_ok(bp_schedule_config_init(&config, sizeof config));
    config.prefetch = 0;
    config.passes = BP_PASSES_EVAL;
    bp_schedule *schedule;
    assert_ok(bp_schedule_create_training(united, &config, &schedule));
    static const bp_interval expected[] = {{0, 2}, {1, 2}, {2, 4}, {3, 4}};
    for (size_t r = 0; r < 4; r++) {
        size_t count;
        const bp_interval *live = intervals_of(schedule, r, &count);
        assert_int_equal(count, 1);
        assert_memory_equal(live, &expected[r], sizeof *live);
    }
    bp_schedule_destroy(&schedule);
    bp_buckets_destroy(&united);
    end_world(&w);
}

/* One model trains while the other rests, and the other way round: only state meets what is not its own. */
static void test_schedules_of_parts(void **state)
{
    (void)state;
    for (uint32_t round = 0; round < 50; round++) {
        seed(round);
        world_options options = DEFAULTS;
        options.roles = PARAM | GRAD | STATE;
        world a = make_world(random_model(1 + random_below(5)), options),
              b = make_world(random_model(1 + random_below(5)), options);
        bp_buckets *buckets = unite(a.buckets, b.buckets);
        bp_schedule *own[] = {draw_schedule(a.buckets), draw_schedule(b.buckets)}, *parts[2], *united;
        for (size_t i = 0; i < 2; i++)
            assert_ok(bp_schedule_create_embedded(own[i], buckets, i, &parts[i]));
        assert_ok(bp_schedule_create_merged((const bp_schedule *const *)parts, 2, &united));
        size_t first = bp_buckets_get_info(a.buckets)->request_count,
               requests = bp_buckets_get_info(buckets)->request_count;
        for (size_t x = 0; x < requests; x++) {
            for (size_t y = 0; y < requests; y++) {
                bp_request p = bp_buckets_get_info(buckets)->requests[x];
                bp_request q = bp_buckets_get_info(buckets)->requests[y];
                size_t live[2];
                intervals_of(united, x, &live[0]);
                intervals_of(united, y, &live[1]);
                bool has_state = ((BP_ROLE_BIT(p.role) | BP_ROLE_BIT(q.role)) & STATE) != 0;
                bool expected =
                    (x < first) == (y < first) && !has_state
                        ? conflict(own[x >= first], x - (x < first ? 0 : first), y - (y < first ? 0 : first))
                        : has_state && live[0] > 0 && live[1] > 0;
                assert_int_equal(conflict(united, x, y), expected);
            }
        }
        bp_step step = bp_schedule_get_info(united)->steps[bp_schedule_get_info(united)->step_count - 1];
        assert_true(step.unit >= (int32_t)bp_buckets_get_info(a.buckets)->unit_count);
        plan_and_check(buckets, united);
        for (size_t i = 0; i < 2; i++) {
            bp_schedule_destroy(&own[i]);
            bp_schedule_destroy(&parts[i]);
        }
        bp_schedule_destroy(&united);
        bp_buckets_destroy(&buckets);
        end_world(&a);
        end_world(&b);
    }
}

/* ---- errors --------------------------------------------------------------------------------------------------------- */

static void test_errors(void **state)
{
    (void)state;
    world w = world_of_kinds("xyz"), other = world_of_kinds("xy");
    bp_schedule *schedule = NULL;
    const bp_schedule *parts[] = {w.schedule, other.schedule}, *missing[] = {w.schedule, NULL};
    assert_fails(bp_schedule_create_merged(parts, 0, &schedule), BP_ERR_INVALID_ARGUMENT, "at least one");
    assert_fails(bp_schedule_create_merged(NULL, 2, &schedule), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_schedule_create_merged(parts, 2, NULL), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_schedule_create_merged(parts, 2, &schedule), BP_ERR_INVALID_ARGUMENT, "schedule 1", "2 requests");
    assert_fails(bp_schedule_create_merged(missing, 2, &schedule), BP_ERR_INVALID_ARGUMENT, "schedule 1");
    bp_buckets *united = NULL;
    const bp_buckets *buckets[] = {w.buckets, other.buckets}, *none[] = {w.buckets, NULL};
    static const char *const twice[] = {"a", "a"}, *const empty[] = {"a", ""}, *const slash[] = {"a", "b/c"},
                             *const good[] = {"a", "b"}, *const unnamed[] = {NULL, "b"};
    assert_fails(bp_buckets_create_merged(buckets, good, 0, &united), BP_ERR_INVALID_ARGUMENT, "at least one");
    assert_fails(bp_buckets_create_merged(none, good, 2, &united), BP_ERR_INVALID_ARGUMENT, "part 1");
    assert_fails(bp_buckets_create_merged(buckets, twice, 2, &united), BP_ERR_INVALID_ARGUMENT, "\"a\"");
    assert_fails(bp_buckets_create_merged(buckets, empty, 2, &united), BP_ERR_INVALID_ARGUMENT, "part 1");
    assert_fails(bp_buckets_create_merged(buckets, slash, 2, &united), BP_ERR_INVALID_ARGUMENT, "\"b/c\"");
    assert_fails(bp_buckets_create_merged(buckets, unnamed, 2, &united), BP_ERR_INVALID_ARGUMENT, "part 0");
    assert_null(united);
    assert_ok(bp_buckets_create_merged(buckets, good, 2, &united));
    assert_fails(bp_schedule_create_embedded(w.schedule, united, 2, &schedule), BP_ERR_INVALID_ARGUMENT, "part 2",
                 "2 parts");
    assert_fails(bp_schedule_create_embedded(w.schedule, united, 1, &schedule), BP_ERR_INVALID_ARGUMENT, "3 requests",
                 "2");
    assert_fails(bp_schedule_create_embedded(w.schedule, w.buckets, 0, &schedule), BP_ERR_INVALID_ARGUMENT, "0 parts");
    assert_fails(bp_schedule_create_embedded(NULL, united, 0, &schedule), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_schedule_create_embedded(w.schedule, NULL, 0, &schedule), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_null(schedule);
    bp_buckets_destroy(&united);
    end_world(&w);
    end_world(&other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_conflicts_are_united), cmocka_unit_test(test_intervals_of_a_union),
        cmocka_unit_test(test_united_buckets),       cmocka_unit_test(test_united_nested_units),
        cmocka_unit_test(test_schedules_of_parts),   cmocka_unit_test(test_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
