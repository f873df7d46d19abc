/* Making pools and binding requests. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "cases.h"

static bp_status try_bind(const kit *k, bp_bind bind)
{
    uint32_t id = 77777;
    uint64_t requests = statistics_of(k->pool).requests;
    bp_status status = bp_pool_bind(k->pool, &bind, &id);
    assert_int_equal(id == 77777, status != BP_OK);
    if (status != BP_OK)
        assert_int_equal(statistics_of(k->pool).requests, requests);
    return status;
}

/* As bp_pool_bind_buckets binds u0's first parameters. */
static bp_bind bind_again(const kit *k, const allocator_row *allocator)
{
    bp_request request = request_of(k, 0, BP_ROLE_PARAM, 0);
    bp_bind bind = bind_of("u0", 0, BP_ROLE_PARAM, BP_DTYPE_BF16, request.bytes);
    if (allocator->policy == BP_POLICY_DYNAMIC)
        bind.placement = BP_PLACE_DYNAMIC;
    return bind;
}

static void test_bind_again(const allocator_row *allocator, const device_row *device)
{
    kit k = begin_kit(device->create(), UNITS, TRAINING, allocator->policy, 0);
    bp_pool_config config = config_of(allocator);
    assert_ok(bp_pool_create(k.device, k.plan, &config, &k.pool));
    bp_bind bind = bind_again(&k, allocator);
    char name[] = "u0";
    bind.unit = name;
    uint32_t first = 9, second = 9, third = 9;
    assert_ok(bp_pool_bind(k.pool, &bind, &first));
    assert_int_equal(first, 0);
    name[1] = '1'; /* copied, so this is another unit */
    assert_ok(bp_pool_bind(k.pool, &bind, &second));
    assert_int_equal(second, 1);
    name[1] = '0';
    assert_ok(bp_pool_bind(k.pool, &bind, &third));
    assert_int_equal(third, first);
    assert_int_equal(statistics_of(k.pool).requests, 2);
    take(&k, first, k.streams[0]);
    assert_ok(bp_pool_bind(k.pool, &bind, &third)); /* also beside live ones */
    assert_int_equal(third, first);
    assert_fails(try_bind(&k, (bp_bind){0}), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_pool_bind(k.pool, NULL, &third), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_pool_bind(k.pool, &bind, NULL), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_pool_bind(NULL, &bind, &third), BP_ERR_INVALID_ARGUMENT, NULL);
    uint32_t ids[SNAPSHOT_LIVE];
    assert_ok(bp_pool_bind_buckets(k.pool, k.w.buckets, 0, ids));
    assert_int_equal(ids[0], first);
    assert_int_equal(statistics_of(k.pool).requests, bp_buckets_request_count(k.w.buckets));
    end_kit(&k);
}

/* Bound differently before. */
static void test_bound_differently(const allocator_row *allocator, const device_row *device)
{
    kit k = open_kit(allocator, device);
    bp_bind wrong[7];
    for (size_t i = 0; i < 7; i++)
        wrong[i] = bind_again(&k, allocator);
    assert_ok(try_bind(&k, wrong[0]));
    wrong[0].zero = BP_ZERO_ALL;
    wrong[1].acquire_lane = BP_LANE_REDUCE;
    wrong[2].placement = BP_PLACE_PERSISTENT;
    wrong[3].zero = BP_ZERO_PADDING;
    wrong[3].used_bytes -= 2;
    wrong[4].dtype = BP_DTYPE_FP32;
    wrong[5].bytes += 2;
    wrong[5].used_bytes += 2;
    wrong[6].bytes -= 2;
    wrong[6].used_bytes -= 2;
    for (size_t i = 0; i < 7; i++)
        assert_fails(try_bind(&k, wrong[i]), BP_ERR_MISMATCH, "u0");
    walk(&k, 1, NULL, false);
    end_kit(&k);
}

/* What the plan does not have. */
static void test_not_in_the_plan(const allocator_row *allocator, const device_row *device)
{
    kit k = begin_kit(device->create(), UNITS, TRAINING, allocator->policy, 0);
    bp_pool_config config = config_of(allocator);
    assert_ok(bp_pool_create(k.device, k.plan, &config, &k.pool));
    uint64_t bytes = request_of(&k, 0, BP_ROLE_PARAM, 0).bytes;
    bp_bind bind = bind_of("u0", 0, BP_ROLE_PARAM, BP_DTYPE_BF16, bytes);
    bp_bind wrong[] = {bind, bind, bind, bind, bind, bind};
    wrong[0].unit = "stranger";
    wrong[1].ordinal = 9;
    wrong[2].role = BP_ROLE_GRAD_COMM;
    wrong[3].unit = "";
    wrong[4].dtype = BP_DTYPE_FP32;
    wrong[5].bytes = 2 * bytes;
    const char *const words[] = {"stranger", "u0", "grad_comm", "", "fp32", "1200"};
    for (size_t i = 0; i < 6; i++) {
        assert_fails(try_bind(&k, wrong[i]), BP_ERR_MISMATCH, words[i]);
        if (i == 4 && allocator->policy != BP_POLICY_DYNAMIC) /* both are named */
            assert_non_null(strstr(bp_error_detail(), "bf16"));
        if (i == 5 && allocator->policy != BP_POLICY_DYNAMIC)
            assert_non_null(strstr(bp_error_detail(), "600"));
    }
    bp_bind never[] = {bind, bind, bind, bind, bind, bind, bind};
    never[0].role = BP_ROLE_COUNT + 1000;
    never[1].dtype = BP_DTYPE_NONE;
    never[2].used_bytes = bytes + 1;
    never[3].placement = (bp_placement)99;
    never[4].zero = (bp_zero)99;
    never[5].acquire_lane = BP_LANE_COUNT;
    never[6].unit = NULL;
    for (size_t i = 1; i < 7; i++)
        assert_fails(try_bind(&k, never[i]), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_true(try_bind(&k, never[0]) != BP_OK);
    assert_int_equal(statistics_of(k.pool).requests, 0);
    uint32_t ids[SNAPSHOT_LIVE];
    world other = make_world(model_of("300,100 300,200"), TRAINING);
    if (allocator->pooled)
        assert_fails(bp_pool_bind_buckets(k.pool, other.buckets, 0, ids), BP_ERR_MISMATCH, "u");
    assert_fails(bp_pool_bind_buckets(k.pool, NULL, 0, ids), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_pool_bind_buckets(k.pool, other.buckets, 0, NULL), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_pool_bind_buckets(NULL, other.buckets, 0, ids), BP_ERR_INVALID_ARGUMENT, NULL);
    end_world(&other);
    end_kit(&k);
}

static bp_status try_create(const kit *k, const bp_plan *plan, const bp_pool_config *config)
{
    bp_pool *pool = (bp_pool *)(uintptr_t)1;
    bp_status status = bp_pool_create(k->device, plan, config, &pool);
    if (status == BP_OK)
        bp_pool_destroy(&pool);
    else
        assert_ptr_equal(pool, (bp_pool *)(uintptr_t)1);
    assert_int_equal(usage_of(k->device).committed_bytes, 0);
    return status;
}

static void test_creation_errors(const allocator_row *allocator, const device_row *device)
{
    kit k = begin_kit(device->create(), UNITS, TRAINING, allocator->policy, 0);
    bp_pool_config good = config_of(allocator), config = good;
    char fingerprint[BP_FINGERPRINT_CHARS], other[BP_FINGERPRINT_CHARS];
    assert_ok(bp_plan_fingerprint(k.plan, fingerprint));
    memcpy(other, fingerprint, sizeof other);
    other[0] = other[0] == '0' ? '1' : '0';
    assert_ok(try_create(&k, k.plan, NULL));
    assert_ok(try_create(&k, k.plan, &good));
    config.fingerprint = fingerprint;
    assert_ok(try_create(&k, k.plan, &config));
    config.fingerprint = other;
    assert_fails(try_create(&k, k.plan, &config), BP_ERR_MISMATCH, fingerprint, other);
    bp_pool_config wrong[] = {good, good, good, good, good};
    wrong[0].size = 3;
    wrong[1].allocator = (bp_allocator)99;
    wrong[2].selection = (bp_selection)99;
    wrong[3].strict = (bp_strict)99;
    wrong[4].guard = (bp_guard)99;
    for (size_t i = 0; i < 5; i++)
        assert_fails(try_create(&k, k.plan, &wrong[i]), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(try_create(&k, NULL, &good), BP_ERR_INVALID_ARGUMENT, NULL);
    bp_pool *pool = NULL;
    assert_fails(bp_pool_create(NULL, k.plan, &good, &pool), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_pool_create(k.device, k.plan, &good, NULL), BP_ERR_INVALID_ARGUMENT, NULL);
    static const bp_allocator others[] = {BP_ALLOCATOR_FIXED_POOL, BP_ALLOCATOR_MAX_POOL, BP_ALLOCATOR_SCHEDULED};
    static const bp_policy serves[] = {BP_POLICY_FIXED, BP_POLICY_MAX, BP_POLICY_SCHEDULED};
    for (size_t i = 0; i < 3; i++) {
        config = good;
        config.allocator = others[i];
        if (allocator->policy == BP_POLICY_DYNAMIC) /* which has no addresses */
            assert_fails(try_create(&k, k.plan, &config), BP_ERR_UNSUPPORTED, NULL);
        else if (others[i] == BP_ALLOCATOR_SCHEDULED || serves[i] == allocator->policy)
            assert_ok(try_create(&k, k.plan, &config));
    }
    bp_plan_config one = plan_config(BP_POLICY_MAX, 1, BP_FALLBACK_PERSISTENT);
    bp_plan *infeasible = NULL;
    assert_ok(bp_plan_create(k.w.buckets, k.w.schedule, &one, &infeasible));
    assert_fails(try_create(&k, infeasible, NULL), BP_ERR_INFEASIBLE, NULL);
    bp_plan_destroy(&infeasible);
    config = good;
    config.persistent_bytes = UINT64_MAX - 5;
    assert_fails(try_create(&k, k.plan, &config), BP_ERR_OVERFLOW, NULL);
    end_kit(&k);
}

/* Pools share nothing, and the plan need not outlive their making. */
static void test_two_pools(const allocator_row *allocator, const device_row *device)
{
    kit k = open_kit(allocator, device), other = k;
    other.pool = NULL;
    other.ids = NULL;
    bp_pool_config config = config_of(allocator);
    config.name = "another pool";
    open_pool(&other, &config, 0);
    bp_plan_destroy(&k.plan);
    for (size_t i = 0; i < bp_pool_slab_count(k.pool); i++) {
        for (size_t j = 0; j < bp_pool_slab_count(other.pool); j++) {
            bp_pool_slab a = {.size = sizeof a}, b = {.size = sizeof b};
            assert_ok(bp_pool_slab_get(k.pool, i, &a));
            assert_ok(bp_pool_slab_get(other.pool, j, &b));
            char *p = a.address, *q = b.address;
            assert_true(p + a.bytes <= q || q + b.bytes <= p);
        }
    }
    for (uint32_t u = 0; u < 2; u++) { /* the same requests are live in both */
        assert_ptr_not_equal(take(&k, param(&k, u), k.streams[0]), take(&other, param(&other, u), k.streams[0]));
        drop(&other, param(&other, u), k.streams[0]);
    }
    assert_int_equal(live_count(k.pool), 2);
    walk(&other, 2, NULL, false);
    if (allocator->pooled) {
        take(&other, param(&other, 0), k.streams[0]);
        take(&other, param(&other, 1), k.streams[0]);
        assert_refused(&other, param(&other, 2), k.streams[0], "u2");
    }
    bp_pool_destroy(&other.pool); /* what is held there ends */
    free(other.ids);
    assert_int_equal(live_count(k.pool), 2);
    drop(&k, param(&k, 0), k.streams[0]);
    drop(&k, param(&k, 1), k.streams[0]);
    walk(&k, 2, NULL, false);
    end_kit(&k);
}

/* The device goes when nothing needs it any more. */
static void test_device_goes_last(const allocator_row *allocator, const device_row *device)
{
    kit k = open_kit(allocator, device);
    bp_device *alias = k.device;
    bp_device_destroy(&alias);
    assert_null(alias);
    take(&k, param(&k, 0), k.streams[0]);
    drop(&k, param(&k, 0), k.streams[1]);
    for (int i = 0; i < KIT_STREAMS; i++)
        bp_stream_destroy(&k.streams[i]);
    assert_int_equal(live_count(k.pool), 0);
    bp_pool_destroy(&k.pool);
    bp_plan_destroy(&k.plan);
    end_world(&k.w);
    free(k.ids);
}

static void test_seal(const allocator_row *allocator, const device_row *device)
{
    kit k = open_kit(allocator, device);
    bp_bind bind = bind_of("scratch", 0, BP_ROLE_STATE, BP_DTYPE_UINT8, 100);
    bind.placement = BP_PLACE_DYNAMIC;
    uint32_t scratch;
    assert_ok(bp_pool_bind(k.pool, &bind, &scratch));
    walk(&k, 1, NULL, false);
    assert_false(bp_pool_is_sealed(k.pool));
    take(&k, scratch, k.streams[0]);
    assert_fails(bp_pool_seal(k.pool), BP_ERR_SCHEDULE, "scratch");
    assert_false(bp_pool_is_sealed(k.pool));
    drop(&k, scratch, k.streams[0]);
    assert_ok(bp_pool_seal(k.pool));
    assert_true(bp_pool_is_sealed(k.pool));
    assert_refused(&k, scratch, k.streams[0], "scratch");
    bind.unit = "more scratch";
    assert_fails(try_bind(&k, bind), BP_ERR_UNSUPPORTED, NULL);
    if (allocator->pooled)
        walk(&k, 2, NULL, false);
    else
        assert_refused(&k, param(&k, 0), k.streams[0], "u0");
    assert_ok(bp_pool_seal(k.pool)); /* again */
    assert_fails(bp_pool_seal(NULL), BP_ERR_INVALID_ARGUMENT, NULL);
    end_kit(&k);
}

const named_case BINDING_CASES[] = {{"bind again", test_bind_again},
                                    {"bound differently", test_bound_differently},
                                    {"not in the plan", test_not_in_the_plan},
                                    {"creation errors", test_creation_errors},
                                    {"two pools", test_two_pools},
                                    {"device goes last", test_device_goes_last},
                                    {"seal", test_seal},
                                    {NULL, NULL}};
