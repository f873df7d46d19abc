/* SPDX-License-Identifier: Apache-2.0 */
/* Creation of pools, planned requests and bound requests. */
#include "cases.h"

/* ---- the plan's requests --------------------------------------------------------------------------------------------- */

static bp_status find(const bp_plan *plan, const char *unit, uint32_t ordinal, bp_role role, bp_dtype dtype,
                      uint64_t bytes)
{
    uint32_t id = 77777;
    bp_status status = bp_plan_find(plan, unit, ordinal, role, dtype, bytes, &id);
    assert_int_equal(id == 77777, status != BP_OK);
    return status;
}

/* Differences between the runtime and the plan, each with its message. */
CASE(mismatches)
{
    KIT k = begin_kit(device->create(), "300f 300q 300,0", TRAINING, allocator->policy, 0);
    assert_ok(bp_plan_set_model(k.plan, "a model"));
    assert_ok(find(k.plan, "u0", 0, BP_ROLE_PARAM, BP_DTYPE_BF16, 600));
    assert_fails(find(k.plan, "stranger", 0, BP_ROLE_PARAM, BP_DTYPE_BF16, 600), BP_ERR_MISMATCH,
                 "plan of a model:", "param of stranger, bucket.0 is not in the plan");
    assert_fails(find(k.plan, "", 0, BP_ROLE_PARAM, BP_DTYPE_BF16, 600), BP_ERR_MISMATCH, "is not in the plan");
    assert_fails(find(k.plan, "u0", 9, BP_ROLE_PARAM, BP_DTYPE_BF16, 600), BP_ERR_MISMATCH, "u0, bucket.9",
                 "is not in the plan");
    assert_fails(find(k.plan, "u0", 0, BP_ROLE_GRAD, BP_DTYPE_BF16, 600), BP_ERR_MISMATCH, "grad of u0, bucket.0",
                 "frozen buckets have no gradients");
    assert_fails(find(k.plan, "u0", 0, (bp_role)(BP_ROLE_COUNT + 1000), BP_DTYPE_BF16, 600), BP_ERR_MISMATCH,
                 "is not in the plan");
    assert_fails(find(k.plan, "u0", 0, BP_ROLE_PARAM, BP_DTYPE_FP32, BP_BYTES_ANY), BP_ERR_MISMATCH,
                 "param of u0, bucket.0 has dtype bf16 in the plan, not fp32");
    assert_fails(find(k.plan, "u0", 0, BP_ROLE_PARAM, BP_DTYPE_NONE, 1200), BP_ERR_MISMATCH,
                 "param of u0, bucket.0 has 600 bytes in the plan, not 1200");
    assert_fails(find(k.plan, "u0", 0, BP_ROLE_PARAM, BP_DTYPE_NONE, 0), BP_ERR_MISMATCH, "600 bytes", "not 0");
    static const bp_dtype of_fp8[] = {BP_DTYPE_FP8_E4M3, BP_DTYPE_FP8_E5M2, BP_DTYPE_UINT8};
    for (size_t i = 0; i < 3; i++) /* one storage dtype */
        assert_ok(find(k.plan, "u1", 0, BP_ROLE_PARAM, of_fp8[i], 300));
    assert_fails(find(k.plan, "u1", 0, BP_ROLE_PARAM, BP_DTYPE_BF16, 300), BP_ERR_MISMATCH, "dtype uint8", "not bf16");
    assert_fails(find(k.plan, "u0", 0, BP_ROLE_PARAM, BP_DTYPE_FP8_E4M3, 600), BP_ERR_MISMATCH, "not fp8_e4m3");
    assert_fails(find(k.plan, "u2", 1, BP_ROLE_PARAM, BP_DTYPE_BF16, 0), BP_ERR_MISMATCH, "u2, bucket.1",
                 "is not in the plan"); /* a bucket without elements has no request */
    assert_fails(find(NULL, "u0", 0, BP_ROLE_PARAM, BP_DTYPE_BF16, 600), BP_ERR_INVALID_ARGUMENT, "needs a plan");
    assert_fails(find(k.plan, NULL, 0, BP_ROLE_PARAM, BP_DTYPE_BF16, 600), BP_ERR_INVALID_ARGUMENT, "a unit");
    assert_fails(bp_plan_find(k.plan, "u0", 0, BP_ROLE_PARAM, BP_DTYPE_BF16, 600, NULL), BP_ERR_INVALID_ARGUMENT, "id");
    if (allocator->policy == BP_POLICY_MAX) {
        bp_plan *infeasible = make_max(&k.w, 1);
        assert_fails(find(infeasible, "u0", 0, BP_ROLE_PARAM, BP_DTYPE_BF16, 600), BP_ERR_MISMATCH, "u0",
                     "has no memory: the plan is infeasible");
        bp_plan_destroy(&infeasible);
    }
}

/* An evaluation has no gradients: its plan lists them without memory, and a pool serves the others. */
CASE(never_used)
{
    scenario_options options = TRAINING;
    options.eval = 1;
    KIT k = begin_kit(device->create(), UNITS, options, allocator->policy, 0);
    bp_pool_config config = config_of(allocator);
    open_pool(&k, &config);
    uint32_t id = id_of(&k, 0, BP_ROLE_GRAD, 0), other = param(&k, 0);
    assert_int_equal(bp_pool_get_info(k.pool)->requests[id].placement, BP_PLACE_NONE);
    assert_fails(find(k.plan, "u0", 0, BP_ROLE_GRAD, BP_DTYPE_BF16, 600), BP_ERR_MISMATCH, "grad of u0, bucket.0",
                 "has no memory: the plan's schedule never uses it");
    assert_refused(&k, id, k.streams[0], "u0", "has no memory");
    const uint32_t both[] = {other, id};
    snapshot before = snapshot_of(k.pool);
    void *address = &k;
    uint64_t bytes;
    int answer = 9;
    assert_fails(bp_pool_acquire(k.pool, both, 2, k.streams[0], NULL), BP_ERR_SCHEDULE, "has no memory");
    assert_fails(bp_pool_try_acquire(k.pool, both, 2, k.streams[0], NULL, &answer), BP_ERR_SCHEDULE, "has no memory");
    assert_int_equal(answer, 9);
    assert_ok(bp_pool_can_acquire(k.pool, &id, 1, NULL, 0, &answer));
    assert_int_equal(answer, 0);
    assert_fails(bp_pool_address(k.pool, id, &address, &bytes), BP_ERR_SCHEDULE, "u0");
    assert_fails(bp_pool_release(k.pool, &id, 1, k.streams[0]), BP_ERR_SCHEDULE, "u0");
    assert_fails(bp_pool_use(k.pool, &id, 1, k.streams[0]), BP_ERR_SCHEDULE, "u0");
    assert_ptr_equal(address, &k);
    assert_unchanged(k.pool, &before);
    assert_int_equal(bp_pool_references(k.pool, id), 0);
    assert_ok(
        bp_pool_set_stream(k.pool, &id, 1, k.streams[0])); /* setters accept requests that can never be acquired */
    assert_ok(bp_pool_set_zero(k.pool, &id, 1, BP_ZERO_ALL));
    walk(&k, 2, NULL, false);
}

/* ---- requests beside the plan ---------------------------------------------------------------------------------------- */

static bp_status try_bind(const kit *k, bp_bind bind)
{
    uint32_t id = 77777;
    uint64_t requests = statistics_of(k->pool).requests;
    bp_status status = bp_pool_bind(k->pool, &bind, &id);
    assert_int_equal(id == 77777, status != BP_OK);
    assert_int_equal(statistics_of(k->pool).requests, requests + (status == BP_OK));
    assert_int_equal(bp_pool_get_info(k->pool)->request_count, requests + (status == BP_OK));
    return status;
}

CASE(bind_errors)
{
    KIT k = open_kit(allocator, device);
    const bp_bind bind = bind_of("u0", 0, BP_ROLE_PARAM, BP_DTYPE_BF16, 600);
    bp_bind wrong[] = {bind, bind, bind, bind, bind, bind, bind};
    wrong[0].role = BP_ROLE_COUNT + 1000;
    wrong[1].dtype = BP_DTYPE_NONE;
    wrong[2].used_bytes = 601;
    wrong[3].placement = (bp_placement)99;
    wrong[4].placement = BP_PLACE_NONE;
    wrong[5].placement = BP_PLACE_PLANNED;
    wrong[6].unit = NULL;
    static const char *const words[] = {"role", "dtype", "601 used bytes of 600", "99", "", "bp_plan_find", "NULL"};
    for (size_t i = 0; i < 7; i++)
        assert_fails(try_bind(&k, wrong[i]), BP_ERR_INVALID_ARGUMENT, words[i]);
    assert_fails(try_bind(&k, (bp_bind){0}), BP_ERR_INVALID_ARGUMENT, "size");
    uint32_t id = 77;
    assert_invalid(bp_pool_bind(k.pool, NULL, &id));
    assert_invalid(bp_pool_bind(k.pool, &bind, NULL));
    assert_invalid(bp_pool_bind(NULL, &bind, &id));
    assert_int_equal(id, 77);
    assert_ok(try_bind(&k, bind)); /* failures used neither memory nor ids */
    walk(&k, 1, NULL, false);
}

/* ---- pools ----------------------------------------------------------------------------------------------------------- */

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

CASE(creation_errors)
{
    KIT k = begin_kit(device->create(), UNITS, TRAINING, allocator->policy, 0);
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
    wrong[1].strict = (bp_strict)99;
    wrong[2].strict = (bp_strict)0;
    wrong[3].guard = (bp_guard)99;
    wrong[4].capture_check = (bp_capture_check)99;
    for (size_t i = 0; i < 5; i++)
        assert_invalid(try_create(&k, k.plan, &wrong[i]));
    assert_invalid(try_create(&k, NULL, &good));
    bp_pool *pool = NULL;
    assert_invalid(bp_pool_create(NULL, k.plan, &good, &pool));
    assert_invalid(bp_pool_create(k.device, k.plan, &good, NULL));
    bp_plan_config one = plan_config(BP_POLICY_MAX, 1, BP_FALLBACK_PERSISTENT);
    bp_plan *infeasible = NULL;
    assert_ok(bp_plan_create(k.w.buckets, k.w.schedule, &one, &infeasible));
    assert_fails(try_create(&k, infeasible, NULL), BP_ERR_INFEASIBLE, NULL);
    bp_plan_destroy(&infeasible);
    config = good;
    config.persistent_bytes = UINT64_MAX - 5;
    assert_fails(try_create(&k, k.plan, &config), BP_ERR_OVERFLOW, NULL);
}

CASE(info)
{
    KIT k = begin_kit(device->create(), UNITS, TRAINING, allocator->policy, 0);
    bp_pool_config config = config_of(allocator);
    char fingerprint[BP_FINGERPRINT_CHARS];
    assert_ok(bp_plan_fingerprint(k.plan, fingerprint));
    assert_ok(bp_plan_set_model(k.plan, "a model"));
    for (int named = 0; named < 2; named++) {
        char name[] = "a pool";
        config.name = named ? name : NULL;
        open_pool(&k, &config);
        name[0] = 'x'; /* copied */
        const bp_pool_info *info = bp_pool_get_info(k.pool);
        assert_string_equal(info->name, named ? "a pool" : "a model");
        assert_int_equal(info->policy, allocator->policy);
        assert_string_equal(info->fingerprint, fingerprint);
        assert_ptr_equal(info->device, k.device);
        assert_int_equal(info->alignment, ALIGNMENT);
        assert_int_equal(info->guarded, 0);
        assert_int_equal(info->request_count, k.requests);
        assert_int_equal(info->slab_count, bp_plan_get_info(k.plan)->slab_count);
        assert_fails(bp_pool_release(k.pool, k.ids, 1, k.streams[0]), BP_ERR_SCHEDULE, info->name, "u0");
        bp_pool_destroy(&k.pool);
    }
    assert_null(bp_pool_get_info(NULL));
    assert_null(bp_plan_get_info(NULL));
}

/* Pools share nothing, and the plan may be destroyed before them. */
CASE(two_pools)
{
    kit k = open_kit(allocator, device), other = k;
    other.pool = NULL;
    other.ids = NULL;
    bp_pool_config config = config_of(allocator);
    config.name = "another pool";
    open_pool(&other, &config);
    bp_plan_destroy(&k.plan);
    const bp_pool_info *mine = bp_pool_get_info(k.pool), *theirs = bp_pool_get_info(other.pool);
    for (size_t i = 0; i < mine->slab_count; i++) {
        for (size_t j = 0; j < theirs->slab_count; j++) {
            const bp_pool_slab a = mine->slabs[i], b = theirs->slabs[j];
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
    bp_pool_destroy(&other.pool); /* live requests end */
    free(other.ids);
    assert_int_equal(live_count(k.pool), 2);
    drop(&k, param(&k, 0), k.streams[0]);
    drop(&k, param(&k, 1), k.streams[0]);
    walk(&k, 2, NULL, false);
    end_kit(&k);
}

/* The device is destroyed after its last user. */
CASE(device_destroyed_last)
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
    free_scenario(&k.w);
    free(k.ids);
}

CASE(seal)
{
    KIT k = open_kit(allocator, device);
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
    assert_invalid(bp_pool_seal(NULL));
}
