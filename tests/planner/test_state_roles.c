/* SPDX-License-Identifier: Apache-2.0 */
/* State that a rank keeps between steps: shards of parameters, reduced gradients and optimizer tensors. */
#include "support/harness.h"

#include <bucketpool/plan.h>

#include <string.h>

#include "support/scenarios.h"

#define MAIN_GRAD BP_ROLE_BIT(BP_ROLE_MAIN_GRAD)
#define OPTIMIZER BP_ROLE_BIT(BP_ROLE_OPTIMIZER)

static bp_buckets_config config_of(bp_bucketing bucketing, bp_padding padding, uint32_t dp)
{
    bp_buckets_config config;
    assert_ok(bp_buckets_config_init(&config, sizeof config));
    config.bucketing = bucketing;
    config.padding = padding;
    config.dp = dp;
    config.roles = PARAM | STATE;
    return config;
}

static bp_buckets *make_buckets(const bp_model *model, const bp_buckets_config *config)
{
    bp_buckets *buckets = NULL;
    assert_ok(bp_buckets_create(model, config, &buckets));
    return buckets;
}

static void add_parameter(bp_model *model, int32_t unit, const char *name, uint64_t rows, bp_dtype dtype,
                          uint32_t flags)
{
    bp_parameter parameter;
    assert_ok(bp_parameter_init(&parameter, sizeof parameter));
    parameter.name = name;
    parameter.unit = unit;
    parameter.dims = 1;
    parameter.shape[0] = rows;
    parameter.dtype = dtype;
    parameter.flags = flags;
    assert_ok(bp_model_add_parameter(model, &parameter));
}

/* Bytes of a bucket's request in a role; 0: none. */
static uint64_t bytes_of(const bp_buckets *buckets, uint32_t bucket, uint32_t role, bp_dtype dtype)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < bp_buckets_get_info(buckets)->request_count; i++) {
        bp_request r = bp_buckets_get_info(buckets)->requests[i];
        if (r.bucket != bucket || r.role != role)
            continue;
        assert_int_equal(bytes, 0);
        assert_int_equal(r.dtype, dtype);
        assert_true(r.numel > 0 && r.bytes > 0);
        bytes = r.bytes;
    }
    return bytes;
}

/* ---- sizes ----------------------------------------------------------------------------------------------------------- */

/* 10 elements on 4 ranks: a shard of 3 in all three roles. */
TEST(test_shards)
{
    SCOPED(bp_model_destroy) bp_model *model = new_model();
    add_bucket(model, add_numbered_unit(model, 0), BP_DTYPE_BF16, 9, 10);
    bp_buckets_config config = config_of(BP_BUCKETING_GIVEN, BP_PADDING_GIVEN, 4);
    assert_int_equal(config.optimizer_tensors, 3);
    SCOPED(bp_buckets_destroy) bp_buckets *buckets = make_buckets(model, &config);
    assert_int_equal(bytes_of(buckets, 0, BP_ROLE_STATE, BP_DTYPE_BF16), 3 * 2);
    assert_int_equal(bytes_of(buckets, 0, BP_ROLE_MAIN_GRAD, BP_DTYPE_FP32), 3 * 4);
    assert_int_equal(bytes_of(buckets, 0, BP_ROLE_OPTIMIZER, BP_DTYPE_FP32), 3 * 3 * 4);
    bp_buckets_destroy(&buckets);
    config.main_grad_dtype = BP_DTYPE_BF16;
    config.optimizer_dtype = BP_DTYPE_FP64;
    config.optimizer_tensors = 2;
    buckets = make_buckets(model, &config);
    assert_int_equal(bytes_of(buckets, 0, BP_ROLE_MAIN_GRAD, BP_DTYPE_BF16), 3 * 2);
    assert_int_equal(bytes_of(buckets, 0, BP_ROLE_OPTIMIZER, BP_DTYPE_FP64), 2 * 3 * 8);
    bp_buckets_destroy(&buckets);
    /* each tensor begins at a whole byte, and fp8 is stored as bytes */
    config.optimizer_dtype = BP_DTYPE_FP4_E2M1;
    buckets = make_buckets(model, &config);
    assert_int_equal(bytes_of(buckets, 0, BP_ROLE_OPTIMIZER, BP_DTYPE_FP4_E2M1), 2 * 2);
    bp_buckets_destroy(&buckets);
    config.optimizer_dtype = BP_DTYPE_FP8_E4M3;
    buckets = make_buckets(model, &config);
    assert_int_equal(bytes_of(buckets, 0, BP_ROLE_OPTIMIZER, BP_DTYPE_UINT8), 2 * 3);
    bp_buckets_destroy(&buckets);
    config.optimizer_tensors = 0;
    buckets = make_buckets(model, &config);
    assert_int_equal(bytes_of(buckets, 0, BP_ROLE_OPTIMIZER, BP_DTYPE_UINT8), 0);
    assert_int_equal(bytes_of(buckets, 0, BP_ROLE_MAIN_GRAD, BP_DTYPE_BF16), 3 * 2);
}

/* A packed bucket on 2 ranks: 5 bf16 and 3 fp32 trained parameters, 7 frozen ones. */
TEST(test_packed_buckets)
{
    SCOPED(bp_model_destroy) bp_model *model = new_model();
    int32_t unit = add_numbered_unit(model, 0);
    add_parameter(model, unit, "a", 5, BP_DTYPE_BF16, 0);
    add_parameter(model, unit, "b", 3, BP_DTYPE_FP32, 0);
    add_parameter(model, unit, "c", 7, BP_DTYPE_FP32, BP_PARAMETER_FROZEN);
    bp_buckets_config config = config_of(BP_BUCKETING_FSDP2, BP_PADDING_FSDP2, 2);
    SCOPED(bp_buckets_destroy) bp_buckets *buckets = make_buckets(model, &config);
    assert_int_equal(bp_buckets_get_info(buckets)->bucket_count, 1);
    assert_int_equal(bytes_of(buckets, 0, BP_ROLE_STATE, BP_DTYPE_UINT8), (6 * 2 + 4 * 4 + 8 * 4) / 2);
    assert_int_equal(bytes_of(buckets, 0, BP_ROLE_MAIN_GRAD, BP_DTYPE_FP32), (6 + 4) / 2 * 4);
    assert_int_equal(bytes_of(buckets, 0, BP_ROLE_OPTIMIZER, BP_DTYPE_FP32), (6 + 4) / 2 * 4 * 3);
    assert_int_equal(bp_buckets_get_info(buckets)->buckets[0].grad_dtype, BP_DTYPE_FP32); /* holds both */
}

static bp_model *model_with_frozen(void)
{
    bp_model *model = new_model();
    for (uint32_t u = 0; u < 3; u++) {
        bp_given_bucket bucket = {.size = sizeof bucket,
                                  .unit = add_numbered_unit(model, u),
                                  .dtype = BP_DTYPE_BF16,
                                  .numel = 4000 + u,
                                  .frozen = u == 1};
        assert_ok(bp_model_add_bucket(model, &bucket));
    }
    add_bucket(model, 0, BP_DTYPE_INT32, 10, 0); /* cannot be trained */
    return model;
}

TEST(test_frozen_buckets_have_no_state)
{
    SCOPED(bp_model_destroy) bp_model *model = model_with_frozen();
    bp_buckets_config config = config_of(BP_BUCKETING_GIVEN, BP_PADDING_GIVEN, 4);
    SCOPED(bp_buckets_destroy) bp_buckets *buckets = make_buckets(model, &config);
    for (uint32_t i = 0; i < bp_buckets_get_info(buckets)->bucket_count; i++) {
        bp_bucket bucket = bp_buckets_get_info(buckets)->buckets[i];
        bool trained = !bucket.frozen;
        assert_int_equal(trained, bucket.dtype == BP_DTYPE_BF16 && bucket.unit != 1);
        assert_true(bytes_of(buckets, i, BP_ROLE_STATE, bucket.dtype) > 0);
        assert_int_equal(bytes_of(buckets, i, BP_ROLE_MAIN_GRAD, BP_DTYPE_FP32) > 0, trained);
        assert_int_equal(bytes_of(buckets, i, BP_ROLE_OPTIMIZER, BP_DTYPE_FP32) > 0, trained);
    }
}

TEST(test_errors)
{
    SCOPED(bp_model_destroy) bp_model *model = new_model();
    SCOPED(bp_buckets_destroy) bp_buckets *buckets = NULL;
    add_bucket(model, add_numbered_unit(model, 0), BP_DTYPE_BF16, UINT64_C(1) << 56, 0);
    bp_buckets_config config = config_of(BP_BUCKETING_GIVEN, BP_PADDING_GIVEN, 1);
    config.optimizer_tensors = 1u << 20;
    assert_fails(bp_buckets_create(model, &config, &buckets), BP_ERR_OVERFLOW, "1048576 optimizer tensors");
    config.roles &= ~OPTIMIZER;
    config.main_grad_dtype = BP_DTYPE_FP8_E4M3;
    assert_fails(bp_buckets_create(model, &config, &buckets), BP_ERR_INVALID_ARGUMENT, "fp8_e4m3 cannot hold");
    config.main_grad_dtype = BP_DTYPE_NONE;
    config.optimizer_dtype = (bp_dtype)99;
    assert_fails(bp_buckets_create(model, &config, &buckets), BP_ERR_INVALID_ARGUMENT, "99");
    assert_null(buckets);
    config.optimizer_dtype = BP_DTYPE_NONE;
    buckets = make_buckets(model, &config);
}

/* ---- plans ----------------------------------------------------------------------------------------------------------- */

/* The role's slab; asserts that no other role uses it. */
static bp_plan_slab slab_of_role(const bp_plan_info *plan, uint32_t role)
{
    size_t found = SIZE_MAX;
    for (size_t i = 0; i < plan->request_count; i++) {
        const bp_plan_request *r = &plan->requests[i];
        if (r->role == role && r->placement == BP_PLACE_PLANNED) {
            assert_true(found == SIZE_MAX || found == r->slab);
            found = r->slab;
        }
    }
    assert_true(found < plan->slab_count);
    for (size_t i = 0; i < plan->request_count; i++) {
        const bp_plan_request *r = &plan->requests[i];
        if (r->placement == BP_PLACE_PLANNED)
            assert_int_equal(r->slab == found, r->role == role);
    }
    return plan->slabs[found];
}

static uint64_t aligned_sum(const bp_buckets *buckets, uint32_t role)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < bp_buckets_get_info(buckets)->request_count; i++) {
        bp_request r = bp_buckets_get_info(buckets)->requests[i];
        sum += r.role == role ? aligned(r.bytes) : 0;
    }
    return sum;
}

TEST(test_separate_slabs)
{
    static const uint32_t roles[] = {BP_ROLE_STATE, BP_ROLE_MAIN_GRAD, BP_ROLE_OPTIMIZER};
    scenario_options options = DEFAULTS;
    options.roles = PARAM | GRAD | STATE;
    for (uint32_t joint = 0; joint <= 1; joint++) {
        for (int policy = BP_POLICY_FIXED; policy <= BP_POLICY_SCHEDULED; policy++) {
            SCOPED(free_scenario) scenario s = make_scenario(model_with_frozen(), options);
            bp_plan_config config = plan_config((bp_policy)policy, 0, BP_FALLBACK_PERSISTENT);
            config.joint = joint;
            SCOPED(bp_plan_destroy) bp_plan *plan = NULL;
            assert_ok(bp_plan_create(s.buckets, s.schedule, &config, &plan));
            assert_ok(bp_plan_check(plan, s.buckets, s.schedule));
            for (size_t i = 0; i < sizeof roles / sizeof *roles; i++) {
                bp_plan_slab slab = slab_of_role(bp_plan_get_info(plan), roles[i]);
                assert_string_equal(slab.group, bp_role_name((bp_role)roles[i]));
                assert_int_equal(slab.bytes, aligned_sum(s.buckets, roles[i]));
            }
        }
    }
}

/* Training and evaluation of the same buckets in one plan: state is live in both. */
TEST(test_live_in_evaluation)
{
    scenario_options options = DEFAULTS;
    options.roles = PARAM | GRAD | STATE;
    options.eval = 1;
    SCOPED(free_scenario) scenario s = make_scenario(model_with_frozen(), options);
    for (size_t i = 0; i < bp_buckets_get_info(s.buckets)->request_count; i++) {
        size_t count;
        const bp_request r = bp_buckets_get_info(s.buckets)->requests[i];
        const bp_interval *live = intervals_of(s.schedule, i, &count);
        if (!(STATE & BP_ROLE_BIT(r.role)))
            continue;
        assert_int_equal(count, 1);
        assert_int_equal(live[0].begin, 0);
        assert_int_equal(live[0].end, bp_schedule_get_info(s.schedule)->step_count);
    }
}

/* ---- release groups --------------------------------------------------------------------------------------------------- */

static void fingerprint_of(const bp_plan *plan, char fingerprint[BP_FINGERPRINT_CHARS])
{
    assert_ok(bp_plan_fingerprint(plan, fingerprint));
}

TEST(test_groups)
{
    scenario_options options = DEFAULTS;
    options.roles = PARAM | MAIN_GRAD | OPTIMIZER;
    SCOPED(free_scenario) scenario s = make_scenario(model_with_frozen(), options);
    SCOPED(bp_plan_destroy) bp_plan *plan = make_max(&s, 0);
    char before[BP_FINGERPRINT_CHARS], after[BP_FINGERPRINT_CHARS], name[] = "trained";
    const bp_plan_info *info = bp_plan_get_info(plan);
    assert_int_equal(info->slab_count, 3);
    fingerprint_of(plan, before);
    assert_ok(bp_plan_set_group(plan, 1, name));
    assert_ok(bp_plan_set_group(plan, 2, name));
    memset(name, 'x', sizeof name - 1); /* the plan has a copy */
    assert_string_equal(info->slabs[0].group, "param");
    assert_string_equal(info->slabs[1].group, "trained");
    assert_string_equal(info->slabs[2].group, "trained");
    fingerprint_of(plan, after);
    assert_true(strcmp(before, after) != 0);
    assert_ok(bp_plan_check(plan, s.buckets, s.schedule));
    /* a plan from contents has the groups, too */
    bp_plan *again = NULL;
    again = copy_plan(plan);
    fingerprint_of(again, before);
    assert_string_equal(before, after);
    bp_plan_destroy(&again);
    /* errors change nothing */
    assert_fails(bp_plan_set_group(plan, 3, "x"), BP_ERR_INVALID_ARGUMENT, "\"x\"", "slab 3", "has 3");
    assert_fails(bp_plan_set_group(plan, 0, ""), BP_ERR_INVALID_ARGUMENT, "name");
    assert_fails(bp_plan_set_group(plan, 0, NULL), BP_ERR_INVALID_ARGUMENT, "name");
    assert_fails(bp_plan_set_group(NULL, 0, "x"), BP_ERR_INVALID_ARGUMENT, "plan");
    fingerprint_of(plan, before);
    assert_string_equal(before, after);
    assert_ok(bp_plan_set_group(plan, 1, "main_grad"));
    assert_ok(bp_plan_set_group(plan, 2, "optimizer"));
    fingerprint_of(plan, after);
    SCOPED(bp_plan_destroy) bp_plan *fresh = make_max(&s, 0);
    fingerprint_of(fresh, before);
    assert_string_equal(before, after);
}

TESTS(NULL, NULL)
