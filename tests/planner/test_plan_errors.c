/* SPDX-License-Identifier: Apache-2.0 */
/* Invalid arguments of plans and buckets, empty plans, sizes that overflow. */
#include "support/harness.h"

#include <bucketpool/plan.h>

#include "support/scenarios.h"

TEST(test_plan_errors)
{
    SCOPED(free_scenario) scenario s = scenario_of_kinds("xyz"), other = scenario_of_kinds("xy");
    bp_plan *const untouched = (bp_plan *)&s;
    bp_plan *plan = untouched;
    bp_plan_config config = plan_config(BP_POLICY_MAX, 0, BP_FALLBACK_PERSISTENT);
    assert_fails(bp_plan_create(NULL, s.schedule, &config, &plan), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_plan_create(s.buckets, NULL, &config, &plan), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_plan_create(s.buckets, s.schedule, &config, NULL), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_plan_create(s.buckets, other.schedule, &config, &plan), BP_ERR_INVALID_ARGUMENT, NULL);
    config.alignment = 3;
    assert_fails(bp_plan_create(s.buckets, s.schedule, &config, &plan), BP_ERR_INVALID_ARGUMENT, "3");
    config.alignment = 0;
    assert_fails(bp_plan_create(s.buckets, s.schedule, &config, &plan), BP_ERR_INVALID_ARGUMENT, "0");
    config.alignment = UINT64_C(1) << 63;
    assert_fails(bp_plan_create(s.buckets, s.schedule, &config, &plan), BP_ERR_OVERFLOW, NULL);
    config.alignment = ALIGNMENT;
    config.policy = (bp_policy)9;
    assert_fails(bp_plan_create(s.buckets, s.schedule, &config, &plan), BP_ERR_INVALID_ARGUMENT, "9");
    config.policy = BP_POLICY_FIXED;
    config.fallback = (bp_fallback)9;
    assert_fails(bp_plan_create(s.buckets, s.schedule, &config, &plan), BP_ERR_INVALID_ARGUMENT, "9");
    config = plan_config(BP_POLICY_MAX, 0, BP_FALLBACK_PERSISTENT);
    config.size = 8;
    assert_fails(bp_plan_create(s.buckets, s.schedule, &config, &plan), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_ptr_equal(plan, untouched);
    assert_ok(bp_plan_create(s.buckets, s.schedule, NULL, &plan)); /* the defaults */
    assert_int_equal(bp_plan_get_info(plan)->policy, BP_POLICY_SCHEDULED);
    assert_fails(bp_plan_fingerprint(NULL, NULL), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_plan_fingerprint(plan, NULL), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_plan_set_model(plan, NULL), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_null(bp_plan_get_info(NULL));
    bp_plan_destroy(&plan);
    assert_null(plan);
    bp_plan_destroy(&plan);
    bp_plan_destroy(NULL);
}

TEST(test_policy_names)
{
    for (int policy = BP_POLICY_DYNAMIC; policy <= BP_POLICY_MAX; policy++) {
        bp_policy read = (bp_policy)0;
        assert_ok(bp_policy_parse(bp_policy_name((bp_policy)policy), &read));
        assert_int_equal(read, policy);
    }
    assert_string_equal(bp_policy_name(BP_POLICY_MAX), "max");
    bp_policy read = BP_POLICY_FIXED;
    assert_fails(bp_policy_parse("maximal", &read), BP_ERR_INVALID_ARGUMENT, "maximal", "dynamic", "fixed", "max");
    assert_fails(bp_policy_parse(NULL, &read), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_int_equal(read, BP_POLICY_FIXED);
}

TEST(test_bucket_errors)
{
    SCOPED(bp_model_destroy) bp_model *model = new_model();
    bp_buckets *const untouched = (bp_buckets *)&model;
    bp_buckets *buckets = untouched;
    bp_buckets_config config;
    assert_ok(bp_buckets_config_init(&config, sizeof config));
    assert_fails(bp_buckets_create(model, &config, &buckets), BP_ERR_INVALID_ARGUMENT, "empty");
    add_bucket(model, add_unit(model, "a", BP_OUTSIDE), BP_DTYPE_BF16, 10, 0);
    assert_int_equal(config.dp, 64); /* also the default of Python and the command */
    config.dp = 0;
    assert_fails(bp_buckets_create(model, &config, &buckets), BP_ERR_INVALID_ARGUMENT, "dp");
    config.dp = 6;
    config.ep = 4;
    assert_fails(bp_buckets_create(model, &config, &buckets), BP_ERR_INVALID_ARGUMENT, "6", "4");
    config.ep = 0;
    assert_fails(bp_buckets_create(model, &config, &buckets), BP_ERR_INVALID_ARGUMENT, "ep");
    config.ep = 1;
    config.bucketing = (bp_bucketing)44;
    assert_fails(bp_buckets_create(model, &config, &buckets), BP_ERR_INVALID_ARGUMENT, "44");
    config.bucketing = BP_BUCKETING_GIVEN;
    config.padding = (bp_padding)45;
    assert_fails(bp_buckets_create(model, &config, &buckets), BP_ERR_INVALID_ARGUMENT, "45");
    config.padding = BP_PADDING_FLAT;
    config.flat_alignment = 0;
    assert_fails(bp_buckets_create(model, &config, &buckets), BP_ERR_INVALID_ARGUMENT, "flat_alignment");
    config.flat_alignment = UINT64_MAX / 2;
    assert_fails(bp_buckets_create(model, &config, &buckets), BP_ERR_OVERFLOW, "a");
    config.padding = BP_PADDING_GIVEN;
    assert_fails(bp_buckets_create(NULL, &config, &buckets), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_buckets_create(model, &config, NULL), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_ptr_equal(buckets, untouched);
    bp_given_bucket wrong = {.size = sizeof wrong, .dtype = BP_DTYPE_BF16, .numel = 10, .padded_numel = 9};
    assert_fails(bp_model_add_bucket(model, &wrong), BP_ERR_INVALID_ARGUMENT, "9", "10");
}

/* Buckets outside units and empty ones leave nothing to place. */
TEST(test_nothing_to_place)
{
    SCOPED(bp_model_destroy) bp_model *model = new_model();
    add_bucket(model, BP_OUTSIDE, BP_DTYPE_BF16, 10, 0);
    add_bucket(model, add_unit(model, "a", BP_OUTSIDE), BP_DTYPE_BF16, 0, 0);
    bp_buckets_config config;
    assert_ok(bp_buckets_config_init(&config, sizeof config));
    SCOPED(bp_buckets_destroy) bp_buckets *buckets = NULL;
    assert_ok(bp_buckets_create(model, &config, &buckets));
    bp_schedule_config timing;
    assert_ok(bp_schedule_config_init(&timing, sizeof timing));
    SCOPED(bp_schedule_destroy) bp_schedule *schedule = NULL;
    bp_status status = bp_schedule_create_training(buckets, &timing, &schedule);
    if (status == BP_OK) {
        bp_plan_config how = plan_config(BP_POLICY_MAX, 0, BP_FALLBACK_PERSISTENT);
        bp_plan *plan = NULL;
        status = bp_plan_create(buckets, schedule, &how, &plan);
        assert_null(plan);
    }
    assert_fails(status, BP_ERR_INVALID_ARGUMENT, NULL);
}

TEST(test_overflow)
{
    /* Two buckets of 2^60 elements, of every dtype. */
    for (int dtype = BP_DTYPE_FP64; dtype < BP_DTYPE_COUNT; dtype++) {
        SCOPED(bp_model_destroy) bp_model *model = new_model();
        int32_t unit = add_unit(model, "a", BP_OUTSIDE);
        bp_given_bucket bucket = {
            .size = sizeof bucket, .unit = unit, .dtype = (bp_dtype)dtype, .numel = UINT64_C(1) << 60};
        bp_status status = bp_model_add_bucket(model, &bucket);
        if (status == BP_OK)
            status = bp_model_add_bucket(model, &bucket);
        assert_fails(status, BP_ERR_OVERFLOW, NULL);
    }
    /* Padding that fits in one bucket and overflows in its copies. */
    bp_model *model = new_model();
    for (uint32_t u = 0; u < 20; u++)
        add_bucket(model, add_numbered_unit(model, u), BP_DTYPE_FP64, 1 + u, UINT64_C(1) << 56);
    SCOPED(free_scenario) scenario s = make_scenario(model, PARAM_ONLY);
    bp_plan *plan = make_plan(&s, BP_POLICY_MAX, 31, BP_FALLBACK_PERSISTENT);
    assert_int_equal(bp_plan_get_info(plan)->bytes, UINT64_C(31) << 59);
    assert_ok(bp_plan_check(plan, s.buckets, s.schedule));
    bp_plan_destroy(&plan);
    static const uint32_t too_many[] = {32, 33, 1u << 20, UINT32_MAX};
    for (size_t i = 0; i < sizeof too_many / sizeof *too_many; i++) {
        bp_plan_config config = plan_config(BP_POLICY_MAX, too_many[i], BP_FALLBACK_PERSISTENT);
        assert_fails(bp_plan_create(s.buckets, s.schedule, &config, &plan), BP_ERR_OVERFLOW, NULL);
    }
    free_scenario(&s);
    /* Persistent units, live sums and roles that overflow only in their sum. */
    model = new_model();
    for (uint32_t u = 0; u < 40; u++)
        add_bucket(model, add_numbered_unit(model, u), BP_DTYPE_FP64, 1 + u, UINT64_C(1) << 56);
    s = make_scenario(model, PARAM_ONLY);
    bp_plan_config config = plan_config(BP_POLICY_FIXED, 0, BP_FALLBACK_PERSISTENT);
    assert_fails(bp_plan_create(s.buckets, s.schedule, &config, &plan), BP_ERR_OVERFLOW, NULL);
    free_scenario(&s);
    scenario_options options = {.roles = STATE, .prefetch = 1, .grad_units = 2};
    model = new_model();
    for (uint32_t u = 0; u < 40; u++)
        add_bucket(model, add_numbered_unit(model, u), BP_DTYPE_FP64, 1 + u, UINT64_C(1) << 56);
    s = make_scenario(model, options);
    for (int policy = BP_POLICY_DYNAMIC; policy <= BP_POLICY_MAX; policy++) {
        config = plan_config((bp_policy)policy, 0, BP_FALLBACK_DYNAMIC);
        assert_fails(bp_plan_create(s.buckets, s.schedule, &config, &plan), BP_ERR_OVERFLOW, NULL);
    }
    assert_null(plan);
    free_scenario(&s);
    model = new_model();
    add_bucket(model, add_unit(model, "a", BP_OUTSIDE), BP_DTYPE_FP64, 1, UINT64_C(1) << 57);
    options.roles = PARAM | GRAD;
    s = make_scenario(model, options);
    config = plan_config(BP_POLICY_MAX, 8, BP_FALLBACK_PERSISTENT);
    assert_fails(bp_plan_create(s.buckets, s.schedule, &config, &plan), BP_ERR_OVERFLOW, NULL);
}

TESTS(NULL, NULL)
