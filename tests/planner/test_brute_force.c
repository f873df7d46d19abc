/* SPDX-License-Identifier: Apache-2.0 */
/* Plans of tiny models, random and hand-made, against the reference model. */
#include "support/harness.h"

#include <bucketpool/plan.h>

#include <stdbool.h>

#include "invariants.h"
#include "support/brief.h"
#include "support/scenarios.h"

/* ---- random models ------------------------------------------------------------------------------------------------- */

TEST(test_brute_force_training)
{
    seed(1);
    for (int i = 0, times = share_of(600); i < times; i++) {
        scenario_options options = DEFAULTS;
        options.prefetch = random_below(4);
        options.grad_units = 1 + random_below(3);
        options.eval = random_below(8) == 0;
        SCOPED(free_scenario) scenario s = make_scenario(random_model(1 + random_below(4)), options);
        assert_all_policies_hold(&s);
    }
}

TEST(test_brute_force_recorded)
{
    seed(2);
    for (int i = 0, times = share_of(600); i < times; i++) {
        bp_model *model = random_model(1 + random_below(6));
        record_randomly(model, false);
        scenario_options options = {.roles = PARAM, .recorded = 1};
        SCOPED(free_scenario) scenario s = make_scenario(model, options);
        assert_all_policies_hold(&s);
    }
}

/* Recordings that acquire the buckets of a unit separately. */
TEST(test_recorded_buckets)
{
    seed(3);
    for (int i = 0, times = share_of(600); i < times; i++) {
        bp_model *model = random_model(1 + random_below(5));
        record_randomly(model, true);
        scenario_options options = {.roles = PARAM, .recorded = 1};
        SCOPED(free_scenario) scenario s = make_scenario(model, options);
        for (int fallback = BP_FALLBACK_PERSISTENT; fallback <= BP_FALLBACK_DYNAMIC; fallback++) {
            for (int policy = BP_POLICY_DYNAMIC; policy <= BP_POLICY_SCHEDULED; policy++) {
                bp_plan_config config = plan_config((bp_policy)policy, 0, (bp_fallback)fallback);
                config.work = 1 << 20; /* the default would search some scenarios for seconds */
                SCOPED(bp_plan_destroy) bp_plan *plan = NULL;
                assert_ok(bp_plan_create(s.buckets, s.schedule, &config, &plan));
                assert_int_equal(bp_plan_get_info(plan)->feasible, 1);
                assert_plan_holds(plan, &s);
            }
        }
    }
}

/* ---- hand-made models ---------------------------------------------------------------------------------------------- */

static void for_all_prefetches(bp_model *(*make)(void), scenario_options options)
{
    for (options.prefetch = 0; options.prefetch <= 3; options.prefetch++) {
        SCOPED(free_scenario) scenario s = make_scenario(make(), options);
        assert_all_policies_hold(&s);
    }
}

static bp_model *make_frozen(void)
{
    bp_model *model = new_model();
    for (uint32_t u = 0; u < 5; u++) {
        int32_t unit = add_numbered_unit(model, u);
        add_bucket(model, unit, BP_DTYPE_BF16, 500 + u, 640);
        bp_given_bucket frozen = {.size = sizeof frozen,
                                  .name = "frozen",
                                  .unit = unit,
                                  .dtype = BP_DTYPE_BF16,
                                  .numel = 900 - u,
                                  .padded_numel = 1024,
                                  .frozen = 1};
        assert_ok(bp_model_add_bucket(model, &frozen));
    }
    return model;
}

static bp_model *make_all_frozen_unit(void)
{
    bp_model *model = make_frozen();
    bp_given_bucket frozen = {.size = sizeof frozen,
                              .unit = add_unit(model, "tower", BP_OUTSIDE),
                              .dtype = BP_DTYPE_BF16,
                              .numel = 70,
                              .frozen = 1};
    assert_ok(bp_model_add_bucket(model, &frozen));
    return model;
}

static bp_model *make_nested(void)
{
    bp_model *model = new_model();
    int32_t outer = add_unit(model, "outer", BP_OUTSIDE);
    int32_t inner = add_unit(model, "outer.inner", outer);
    int32_t deep = add_unit(model, "outer.inner.deep", inner), second = add_unit(model, "outer.second", outer);
    int32_t last = add_unit(model, "last", BP_OUTSIDE), holder = add_unit(model, "holder", BP_OUTSIDE);
    int32_t held = add_unit(model, "holder.held", holder);
    add_bucket(model, outer, BP_DTYPE_BF16, 500, 0);
    add_bucket(model, inner, BP_DTYPE_BF16, 300, 0);
    add_bucket(model, deep, BP_DTYPE_BF16, 300, 0);
    add_bucket(model, second, BP_DTYPE_FP32, 200, 0);
    add_bucket(model, last, BP_DTYPE_BF16, 700, 0);
    add_bucket(model, held, BP_DTYPE_BF16, 300, 0);
    return model;
}

static bp_model *make_repeated(void)
{
    bp_model *model = new_model();
    static const uint32_t order[] = {0, 3, 1, 3, 2, 3, 0};
    for (uint32_t u = 0; u < 4; u++) {
        int32_t unit = add_numbered_unit(model, u);
        add_bucket(model, unit, BP_DTYPE_BF16, u == 3 ? 900 : 400, 0);
        add_bucket(model, unit, BP_DTYPE_BF16, u == 2 ? 900 : 100, 0);
    }
    assert_ok(bp_model_set_order(model, order, sizeof order / sizeof *order));
    return model;
}

TEST(test_hand_made)
{
    scenario_options options = DEFAULTS;
    for_all_prefetches(make_mixed, options);
    for_all_prefetches(make_frozen, options);
    for_all_prefetches(make_all_frozen_unit, options);
    for_all_prefetches(make_nested, options);
    for_all_prefetches(make_repeated, options);
    options.roles = PARAM | TRANSPOSE | GRAD;
    for_all_prefetches(make_fp8, options);
    options.roles = PARAM | GRAD | GRAD_COMM | STATE;
    options.grad_dtype = BP_DTYPE_FP32;
    options.grad_comm_dtype = BP_DTYPE_BF16;
    for_all_prefetches(make_mixed, options);
    for_all_prefetches(make_nested, options);
    options.grad_units = 4;
    for_all_prefetches(make_repeated, options);
    options.eval = 1;
    options.roles = PARAM | GRAD;
    for_all_prefetches(make_mixed, options);
}

TESTS(NULL, NULL)
