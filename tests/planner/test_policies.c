/* SPDX-License-Identifier: Apache-2.0 */
/* Rules of each policy on hand-made models, and properties of max. */
#include "support/harness.h"

#include <bucketpool/plan.h>

#include <string.h>

#include "invariants.h"
#include "support/scenarios.h"

static bp_plan_buffer find_buffer(const bp_plan *plan, size_t role, bp_buffer_kind kind, bp_dtype dtype, uint32_t rank)
{
    const bp_plan_role *in = &bp_plan_get_info(plan)->roles[role];
    for (size_t b = 0; b < in->buffer_count; b++) {
        const bp_plan_buffer buffer = in->buffers[b];
        if (buffer.kind == kind && buffer.dtype == dtype && buffer.rank == rank)
            return buffer;
    }
    fail_msg("no buffer of %s, rank %u", bp_dtype_name(dtype), rank);
    return (bp_plan_buffer){0};
}

/* The request that sets the class's size. */
static void assert_set_by(const bp_plan *plan, const bp_plan_buffer *buffer, const char *unit, uint32_t ordinal)
{
    const bp_plan_request *request = &bp_plan_get_info(plan)->requests[buffer->set_by];
    assert_string_equal(request->unit, unit);
    assert_int_equal(request->ordinal, ordinal);
}

/* ---- max ----------------------------------------------------------------------------------------------------------- */

TEST(test_max_ranks_by_unpadded)
{
    bp_model *model = new_model();
    int32_t a = add_unit(model, "a", BP_OUTSIDE), b = add_unit(model, "b", BP_OUTSIDE);
    /* Ranked by padded elements, a's two buckets would change places and the classes be 4096 and 2048 bytes. */
    add_bucket(model, a, BP_DTYPE_BF16, 1000, 1024);
    add_bucket(model, a, BP_DTYPE_BF16, 900, 2048);
    add_bucket(model, b, BP_DTYPE_BF16, 1000, 1024);
    SCOPED(free_scenario) scenario s = make_scenario(model, PARAM_ONLY);
    SCOPED(bp_plan_destroy) bp_plan *plan = make_max(&s, 0);
    bp_plan_buffer first = find_buffer(plan, 0, BP_BUFFER_POOLED, BP_DTYPE_BF16, 0);
    bp_plan_buffer second = find_buffer(plan, 0, BP_BUFFER_POOLED, BP_DTYPE_BF16, 1);
    assert_int_equal(first.bytes, 2048);
    assert_int_equal(first.users, 2);
    assert_int_equal(second.bytes, 4096);
    assert_int_equal(second.users, 1);
    assert_set_by(plan, &second, "a", 1);
    assert_int_equal(bp_plan_get_info(plan)->bytes, 2 * (2048 + 4096));
}

TEST(test_max_ties_by_larger_index)
{
    bp_model *model = new_model();
    int32_t a = add_unit(model, "a", BP_OUTSIDE), b = add_unit(model, "b", BP_OUTSIDE);
    /* a's second bucket comes first: classes of 4096 and 2048 bytes. The other way round they were 4096 and 4096. */
    add_bucket(model, a, BP_DTYPE_BF16, 1000, 1024);
    add_bucket(model, a, BP_DTYPE_BF16, 1000, 2048);
    add_bucket(model, b, BP_DTYPE_BF16, 1000, 2048);
    SCOPED(free_scenario) scenario s = make_scenario(model, PARAM_ONLY);
    SCOPED(bp_plan_destroy) bp_plan *plan = make_max(&s, 0);
    bp_plan_buffer second = find_buffer(plan, 0, BP_BUFFER_POOLED, BP_DTYPE_BF16, 1);
    assert_int_equal(find_buffer(plan, 0, BP_BUFFER_POOLED, BP_DTYPE_BF16, 0).bytes, 4096);
    assert_int_equal(second.bytes, 2048);
    assert_set_by(plan, &second, "a", 0);
    assert_int_equal(bp_plan_get_info(plan)->bytes, 2 * (4096 + 2048));
}

TEST(test_max_fp8_is_uint8)
{
    bp_model *model = new_model();
    int32_t a = add_unit(model, "a", BP_OUTSIDE), b = add_unit(model, "b", BP_OUTSIDE);
    add_bucket(model, a, BP_DTYPE_FP8_E4M3, 1000, 1024);
    add_bucket(model, b, BP_DTYPE_UINT8, 1000, 2048);
    add_bucket(model, b, BP_DTYPE_INT8, 10, 0);
    SCOPED(free_scenario) scenario s = make_scenario(model, PARAM_ONLY);
    SCOPED(bp_plan_destroy) bp_plan *plan = make_max(&s, 0);
    bp_plan_buffer shared = find_buffer(plan, 0, BP_BUFFER_POOLED, BP_DTYPE_UINT8, 0);
    assert_int_equal(shared.bytes, 2048);
    assert_int_equal(shared.users, 2);
    assert_set_by(plan, &shared, "b", 0);
    assert_int_equal(find_buffer(plan, 0, BP_BUFFER_POOLED, BP_DTYPE_INT8, 0).users, 1);
    assert_int_equal(bp_plan_get_info(plan)->requests[0].dtype, BP_DTYPE_UINT8);
}

/* Units of many buckets with many ties: more than one sorted run. */
TEST(test_max_many_buckets)
{
    seed(8);
    for (int i = 0; i < 60; i++) {
        bp_model *model = new_model();
        for (uint32_t u = 0; u < 3; u++) {
            int32_t unit = add_numbered_unit(model, u);
            for (uint32_t b = random_below(60); b > 0; b--) {
                uint64_t numel = 100 + random_below(i % 2 == 0 ? 4 : 1000);
                add_bucket(model, unit, random_below(4) == 0 ? BP_DTYPE_FP32 : BP_DTYPE_BF16, numel,
                           numel + 128 * random_below(3));
            }
            add_bucket(model, unit, BP_DTYPE_BF16, 100, 0);
        }
        SCOPED(free_scenario) scenario s = make_scenario(model, PARAM_ONLY);
        assert_max_holds(&s, 0);
        assert_max_holds(&s, 2);
    }
}

/* Unused copies cost bytes of the slab, but neither memory of the plan nor time. */
TEST(test_many_copies)
{
    bp_model *model = new_model();
    for (uint32_t u = 0; u < 3; u++) {
        int32_t unit = add_numbered_unit(model, u);
        for (uint64_t b = 0; b < 5; b++)
            add_bucket(model, unit, BP_DTYPE_BF16, 100 + 7 * u + b, 0);
    }
    SCOPED(free_scenario) scenario s = make_scenario(model, PARAM_ONLY);
    static const uint32_t copies[] = {1u << 10, (1u << 30) - 1, 1u << 30, 1u << 31, UINT32_MAX};
    for (size_t i = 0; i < sizeof copies / sizeof *copies; i++) {
        SCOPED(bp_plan_destroy) bp_plan *plan = make_max(&s, copies[i]);
        assert_int_equal(bp_plan_get_info(plan)->bytes, UINT64_C(5) * 256 * copies[i]);
        assert_ok(bp_plan_check(plan, s.buckets, s.schedule));
    }
}

typedef struct tiny_unit {
    uint32_t buckets;
    uint64_t numel[3];
    bp_dtype dtype[3];
} tiny_unit;

static void draw_units(tiny_unit *units, uint32_t count)
{
    static const bp_dtype dtypes[] = {BP_DTYPE_BF16, BP_DTYPE_FP32, BP_DTYPE_UINT8};
    for (uint32_t u = 0; u < count; u++) {
        units[u].buckets = 1 + random_below(3);
        for (uint32_t b = 0; b < units[u].buckets; b++) {
            units[u].numel[b] = 256 * (1 + random_below(6));
            units[u].dtype[b] = dtypes[random_below(3)];
        }
    }
}

static uint64_t max_bytes_of(const tiny_unit *units, uint32_t count, uint64_t scale, uint32_t copies)
{
    bp_model *model = new_model();
    for (uint32_t u = 0; u < count; u++) {
        int32_t unit = add_numbered_unit(model, u);
        for (uint32_t b = 0; b < units[u].buckets; b++)
            add_bucket(model, unit, units[u].dtype[b], units[u].numel[b] * scale, 0);
    }
    scenario s = make_scenario(model, DEFAULTS);
    bp_plan *plan = make_max(&s, copies);
    uint64_t bytes = bp_plan_get_info(plan)->bytes;
    bp_plan_destroy(&plan);
    free_scenario(&s);
    return bytes;
}

TEST(test_max_properties)
{
    seed(5);
    for (int i = 0; i < 300; i++) {
        tiny_unit units[6];
        uint32_t count = 2 + random_below(4);
        draw_units(units, count + 1);
        assert_true(max_bytes_of(units, count + 1, 1, 0) >= max_bytes_of(units, count, 1, 0));
        assert_true(max_bytes_of(units, count + 1, 1, 3) >= max_bytes_of(units, count, 1, 3));
        uint64_t bytes = max_bytes_of(units, count, 1, 2);
        assert_int_equal(max_bytes_of(units, count, 7, 2), 7 * bytes);
        for (uint32_t u = count; u > 1; u--) {
            uint32_t other = random_below(u);
            tiny_unit moved = units[other];
            units[other] = units[u - 1];
            units[u - 1] = moved;
        }
        assert_int_equal(max_bytes_of(units, count, 1, 2), bytes);
    }
}

/* ---- fixed --------------------------------------------------------------------------------------------------------- */

/* Asserts the bytes of policy fixed with two copies, for units x (512 aligned bytes), y (1024) and z (1280). */
static void assert_fixed_bytes(const char *kinds, uint64_t pool, uint64_t persistent, uint64_t dynamic)
{
    SCOPED(free_scenario) scenario s = scenario_of_kinds(kinds);
    SCOPED(bp_plan_destroy) bp_plan *plan = make_plan(&s, BP_POLICY_FIXED, 2, BP_FALLBACK_PERSISTENT);
    assert_int_equal(bp_plan_get_info(plan)->roles[0].pool_bytes, pool);
    assert_int_equal(bp_plan_get_info(plan)->roles[0].persistent_bytes, persistent);
    assert_int_equal(bp_plan_get_info(plan)->bytes, pool + persistent);
    assert_int_equal(bp_plan_get_info(plan)->stable, 1);
    bp_plan_destroy(&plan);
    plan = make_plan(&s, BP_POLICY_FIXED, 2, BP_FALLBACK_DYNAMIC);
    assert_int_equal(bp_plan_get_info(plan)->roles[0].pool_bytes, pool);
    assert_int_equal(bp_plan_get_info(plan)->roles[0].dynamic_bytes, dynamic);
    assert_int_equal(bp_plan_get_info(plan)->bytes, pool + dynamic);
    assert_int_equal(bp_plan_get_info(plan)->stable, persistent == 0);
}

TEST(test_fixed_mode)
{
    assert_fixed_bytes("xxxx", 2 * 512, 0, 0);
    assert_fixed_bytes("xyxy", 2 * 512, 2 * 1024, 1024); /* a tie: the first seen; y and y are never live together */
    assert_fixed_bytes("yxyx", 2 * 1024, 2 * 512, 512);
    assert_fixed_bytes("xyy", 2 * 1024, 512, 512);
    assert_fixed_bytes("xxyy", 2 * 512, 2 * 1024, 2 * 1024);
    assert_fixed_bytes("zyyxx", 2 * 1024, 1280 + 2 * 512, 1280);
    assert_fixed_bytes("zxy", 2 * 1280, 512 + 1024, 512 + 1024);
}

/* Units that differ in padding only share buffers, which have the largest padded size. */
TEST(test_fixed_ignores_padding)
{
    bp_model *model = new_model();
    add_bucket(model, add_unit(model, "a", BP_OUTSIDE), BP_DTYPE_BF16, 1000, 1024);
    add_bucket(model, add_unit(model, "b", BP_OUTSIDE), BP_DTYPE_BF16, 1001, 1024);
    add_bucket(model, add_unit(model, "c", BP_OUTSIDE), BP_DTYPE_BF16, 1000, 4096);
    add_bucket(model, add_unit(model, "d", BP_OUTSIDE), BP_DTYPE_FP16, 1000, 1024);
    SCOPED(free_scenario) scenario s = make_scenario(model, PARAM_ONLY);
    SCOPED(bp_plan_destroy) bp_plan *plan = make_plan(&s, BP_POLICY_FIXED, 2, BP_FALLBACK_PERSISTENT);
    assert_int_equal(bp_plan_get_info(plan)->roles[0].pool_bytes, 2 * 8192);
    assert_int_equal(bp_plan_get_info(plan)->roles[0].persistent_bytes, 2 * 2048);
    bp_plan_buffer pooled = find_buffer(plan, 0, BP_BUFFER_POOLED, BP_DTYPE_BF16, 0);
    assert_set_by(plan, &pooled, "c", 0);
    assert_int_equal(pooled.users, 2);
    assert_plan_holds(plan, &s);
}

/* ---- feasibility and alignment ------------------------------------------------------------------------------------- */

TEST(test_infeasible)
{
    SCOPED(free_scenario) scenario s = scenario_of_kinds("xxx");
    SCOPED(bp_plan_destroy) bp_plan *plan = make_max(&s, 1);
    const bp_plan_info *info = bp_plan_get_info(plan);
    assert_int_equal(info->feasible, 0);
    assert_int_equal(info->requests[0].placement, BP_PLACE_NONE);
    assert_non_null(strstr(info->infeasible_because, "1"));
    assert_non_null(strstr(info->infeasible_because, "2"));
    assert_fails(bp_plan_check(plan, s.buckets, s.schedule), BP_ERR_UNSUPPORTED, info->infeasible_because);
    bp_plan_destroy(&plan);
    plan = make_plan(&s, BP_POLICY_FIXED, 1, BP_FALLBACK_DYNAMIC);
    assert_int_equal(bp_plan_get_info(plan)->feasible, 0);
}

TEST(test_alignment)
{
    SCOPED(free_scenario) scenario s = scenario_of_kinds("xyz");
    for (uint64_t alignment = 1; alignment <= 1 << 20; alignment *= 2) {
        bp_plan_config config = plan_config(BP_POLICY_MAX, 0, BP_FALLBACK_PERSISTENT);
        config.alignment = alignment;
        SCOPED(bp_plan_destroy) bp_plan *plan = NULL;
        assert_ok(bp_plan_create(s.buckets, s.schedule, &config, &plan));
        uint64_t z = (1200 + alignment - 1) / alignment * alignment, y = (800 + alignment - 1) / alignment * alignment;
        assert_int_equal(bp_plan_get_info(plan)->bytes, 2 * z);
        assert_int_equal(bp_plan_get_info(plan)->lower_bound_bytes, y + z);
        assert_int_equal(bp_plan_get_info(plan)->alignment, alignment);
        assert_ok(bp_plan_check(plan, s.buckets, s.schedule));
    }
}

TESTS(NULL, NULL)
