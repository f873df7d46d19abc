/* SPDX-License-Identifier: Apache-2.0 */
/* bp_alternatives: each alternative equals a plan made separately. */
#include "support/harness.h"

#include <bucketpool/whatif.h>

#include <stdbool.h>

#include "support/scenarios.h"

#define WORK (1u << 18) /* of each search: equal, so that results can be compared */

static bp_plan_config scheduled_config(uint32_t joint)
{
    bp_plan_config config = plan_config(BP_POLICY_SCHEDULED, 0, BP_FALLBACK_PERSISTENT);
    config.joint = joint;
    config.work = WORK;
    return config;
}

static bp_alternatives_config survey_config(void)
{
    bp_alternatives_config config;
    assert_ok(bp_alternatives_config_init(&config, sizeof config));
    assert_int_equal(config.max_prefetch, 4);
    config.work = WORK;
    return config;
}

static bp_schedule_config training_config(void)
{
    bp_schedule_config config;
    assert_ok(bp_schedule_config_init(&config, sizeof config));
    return config;
}

static bp_alternative alternative_at(const bp_alternatives *alternatives, size_t index)
{
    assert_true(index < bp_alternatives_get_info(alternatives)->alternative_count);
    return bp_alternatives_get_info(alternatives)->alternatives[index];
}

/* Plans the alternative by itself. */
static void check_alternative(const scenario *s, bp_schedule_config timing, bp_plan_config config,
                              const bp_alternative *a)
{
    timing.prefetch = a->prefetch;
    timing.prefetch_backward = a->prefetch_backward;
    timing.streams = a->streams;
    config.joint = a->joint;
    SCOPED(bp_schedule_destroy) bp_schedule *schedule = NULL;
    assert_ok(bp_schedule_create_training(s->buckets, &timing, &schedule));
    SCOPED(bp_plan_destroy) bp_plan *plan = NULL, *max = NULL;
    config.policy = BP_POLICY_SCHEDULED;
    assert_ok(bp_plan_create(s->buckets, schedule, &config, &plan));
    config.policy = BP_POLICY_MAX;
    assert_ok(bp_plan_create(s->buckets, schedule, &config, &max));
    uint64_t proven = 0;
    for (size_t i = 0; i < bp_plan_get_info(plan)->role_count; i++)
        proven += bp_plan_get_info(plan)->roles[i].proven_bytes;
    assert_int_equal(a->bytes, bp_plan_get_info(plan)->bytes);
    assert_int_equal(a->lower_bound_bytes, bp_plan_get_info(plan)->lower_bound_bytes);
    assert_int_equal(a->optimal, bp_plan_get_info(plan)->optimal);
    assert_int_equal(a->proven_bytes, proven);
    assert_int_equal(a->max_bytes, bp_plan_get_info(max)->feasible ? bp_plan_get_info(max)->bytes : 0);
}

/* A present plan is used, not made again: shown with a plan of another configuration. */
TEST(test_present_plan)
{
    SCOPED(free_scenario) scenario s = scenario_of_kinds("xyz"), other = scenario_of_kinds("z");
    bp_schedule_config timing = training_config();
    bp_plan_config plan = scheduled_config(0);
    bp_alternatives_config config = survey_config();
    SCOPED(bp_plan_destroy) bp_plan *of_other = make_plan(&other, BP_POLICY_SCHEDULED, 0, BP_FALLBACK_PERSISTENT);
    SCOPED(bp_alternatives_destroy) bp_alternatives *made = NULL;
    config.present = of_other;
    assert_ok(bp_alternatives_create(s.buckets, &timing, &plan, &config, &made));
    assert_int_equal(alternative_at(made, 1).is_present, 1);
    assert_int_equal(alternative_at(made, 1).bytes, 1280);
    assert_int_equal(alternative_at(made, 1).live_bytes, 1280 + 1024);
}

TEST(test_alternatives_are_plans)
{
    SCOPED(free_scenario) scenario s = make_scenario(make_mixed(), DEFAULTS);
    bp_schedule_config timing = training_config();
    bp_plan_config plan = scheduled_config(1);
    bp_alternatives_config config = survey_config();
    timing.streams = BP_STREAMS_UNIFIED;
    timing.prefetch = 2;
    bp_alternatives *made = NULL;
    assert_ok(bp_alternatives_create(s.buckets, &timing, &plan, &config, &made));
    assert_int_equal(bp_alternatives_get_info(made)->alternative_count, 5 * 2 * 2);
    for (size_t i = 0; i < bp_alternatives_get_info(made)->alternative_count; i++) {
        bp_alternative a = alternative_at(made, i);
        assert_int_equal(a.prefetch, i / 4);
        assert_int_equal(a.prefetch_backward, i / 4);
        assert_int_equal(a.streams, i / 2 % 2);
        assert_int_equal(a.joint, i % 2);
        assert_int_equal(a.is_present, i == 2 * 4 + 3);
        assert_true(a.live_bytes <= a.lower_bound_bytes);
        assert_true(!a.joint || a.live_bytes == a.lower_bound_bytes);
        check_alternative(&s, timing, plan, &a);
    }
    bp_alternatives_destroy(&made);
    assert_null(made);
}

/* A present choice outside the table is its first row; too few copies for a prefetch depth make max infeasible. */
TEST(test_present_choice)
{
    SCOPED(free_scenario) scenario s = make_scenario(make_mixed(), DEFAULTS);
    const bp_unit_prefetch override = {2, 3, 0};
    bp_schedule_config timing = training_config();
    bp_plan_config plan = scheduled_config(0);
    bp_alternatives_config config = survey_config();
    timing.prefetch_backward = 0;
    timing.overrides = &override;
    timing.override_count = 1;
    plan.copies = 3;
    config.max_prefetch = 3;
    SCOPED(bp_alternatives_destroy) bp_alternatives *made = NULL;
    assert_ok(bp_alternatives_create(s.buckets, &timing, &plan, &config, &made));
    assert_int_equal(bp_alternatives_get_info(made)->alternative_count, 1 + 4 * 4);
    size_t infeasible = 0;
    for (size_t i = 0; i < bp_alternatives_get_info(made)->alternative_count; i++) {
        bp_alternative a = alternative_at(made, i);
        assert_int_equal(a.is_present, i == 0);
        assert_int_equal(a.prefetch_backward, i == 0 ? 0 : (i - 1) / 4);
        infeasible += a.max_bytes == 0;
        check_alternative(&s, timing, plan, &a);
    }
    assert_true(infeasible > 0 && infeasible < 1 + 4 * 4);
}

/* Options for gradients have no effect on parameters alone, nor joint slabs on one role. */
TEST(test_options_without_effect)
{
    SCOPED(free_scenario) scenario s = scenario_of_kinds("xyzzy");
    bp_schedule_config timing = training_config();
    bp_plan_config plan = scheduled_config(0);
    bp_alternatives_config config = survey_config();
    SCOPED(bp_alternatives_destroy) bp_alternatives *made = NULL;
    assert_ok(bp_alternatives_create(s.buckets, &timing, &plan, &config, &made));
    assert_int_equal(bp_alternatives_get_info(made)->alternative_count, 5);
    /* live at once: a unit of 300 elements; both of 300; and one of 200 with them; 1200, 1280 and 1024 bytes are 1280, 1280, 1024 */
    static const uint64_t takes[] = {1280, 2 * 1280, 2 * 1280 + 1024, 2 * 1280 + 2 * 1024, 2 * 1280 + 2 * 1024 + 512};
    for (size_t i = 0; i < 5; i++) {
        assert_int_equal(alternative_at(made, i).lower_bound_bytes, takes[i]);
        assert_int_equal(alternative_at(made, i).live_bytes, takes[i]);
        assert_int_equal(alternative_at(made, i).bytes, takes[i]);
        assert_int_equal(alternative_at(made, i).is_present, i == 1);
    }
    bp_alternatives_destroy(&made);
    free_scenario(&s);
    scenario_options options = DEFAULTS;
    options.roles = PARAM | GRAD;
    s = make_scenario(make_mixed(), options);
    timing.passes = BP_PASSES_EVAL; /* gradients exist but are never live */
    assert_ok(bp_alternatives_create(s.buckets, &timing, &plan, &config, &made));
    assert_int_equal(bp_alternatives_get_info(made)->alternative_count, 5 * 2);
}

/* ---- errors ----------------------------------------------------------------------------------------------------------- */

TEST(test_errors)
{
    SCOPED(free_scenario) scenario s = scenario_of_kinds("xyz");
    bp_schedule_config timing = training_config();
    bp_plan_config plan = scheduled_config(0);
    bp_alternatives_config config = survey_config();
    SCOPED(bp_alternatives_destroy) bp_alternatives *made = NULL;
    assert_fails(bp_alternatives_config_init(NULL, sizeof config), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_alternatives_config_init(&config, 3), BP_ERR_INVALID_ARGUMENT, "is 3;");
    assert_fails(bp_alternatives_create(NULL, &timing, &plan, &config, &made), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_alternatives_create(s.buckets, NULL, &plan, &config, &made), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_alternatives_create(s.buckets, &timing, NULL, &config, &made), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_alternatives_create(s.buckets, &timing, &plan, &config, NULL), BP_ERR_INVALID_ARGUMENT, NULL);
    config.max_prefetch = BP_MAX_WHATIF_PREFETCH + 1;
    assert_fails(bp_alternatives_create(s.buckets, &timing, &plan, &config, &made), BP_ERR_INVALID_ARGUMENT, "65");
    config = survey_config();
    timing.grad_units = 0;
    assert_fails(bp_alternatives_create(s.buckets, &timing, &plan, &config, &made), BP_ERR_INVALID_ARGUMENT,
                 "grad_units");
    timing = training_config();
    plan.alignment = 96;
    assert_fails(bp_alternatives_create(s.buckets, &timing, &plan, &config, &made), BP_ERR_INVALID_ARGUMENT, "96");
    plan = scheduled_config(0);
    assert_null(made);
    assert_ok(bp_alternatives_create(s.buckets, &timing, &plan, &config, &made));
    assert_null(bp_alternatives_get_info(NULL));
    bp_alternatives_destroy(&made);
    bp_alternatives_destroy(&made);
    bp_alternatives_destroy(NULL);
    assert_ok(
        bp_alternatives_create(s.buckets, &timing, &plan, NULL, &made)); /* the defaults: prefetch depths 0 to 4 */
    assert_int_equal(bp_alternatives_get_info(made)->alternative_count, 5);
}

TESTS(NULL, NULL)
