/* SPDX-License-Identifier: Apache-2.0 */
/* Known defects of other pools (Megatron-FSDP, FSDP2, PyTorch's allocator), one test each. */
#include <bucketpool/profile.h>

#include <pthread.h>

#include "support/interpose.h"
#include "support/pools.h"

/* ---- the hot path -------------------------------------------------------------------------------------------------- */

static void serve(const kit *k, unsigned rounds)
{
    const uint32_t ids[] = {param(k, 0), param(k, 1), id_of(k, 0, BP_ROLE_PARAM, 1), id_of(k, 5, BP_ROLE_GRAD, 0)};
    const uint32_t blocked[] = {param(k, 2), param(k, 3)};
    void *addresses[4];
    int answer;
    for (unsigned i = 0; i < rounds; i++) {
        assert_ok(bp_pool_acquire(k->pool, ids, 4, k->streams[0], addresses));
        assert_ok(bp_pool_acquire(k->pool, ids, 1, k->streams[1], NULL));
        assert_ok(bp_pool_use(k->pool, ids, 3, k->streams[2]));
        assert_ok(bp_pool_try_acquire(k->pool, blocked, 2, k->streams[0], addresses, &answer));
        assert_int_equal(answer, 0);
        assert_ok(bp_pool_can_acquire(k->pool, blocked, 2, ids, 4, &answer));
        assert_int_equal(bp_pool_acquire(k->pool, blocked, 1, k->streams[0], NULL), BP_ERR_SCHEDULE);
        assert_int_equal(bp_pool_release(k->pool, blocked, 1, k->streams[0]), BP_ERR_SCHEDULE);
        assert_ok(bp_pool_release(k->pool, ids, 1, k->streams[1]));
        assert_ok(bp_pool_release(k->pool, ids, 4, k->streams[3]));
        assert_ok(bp_pool_try_acquire(k->pool, blocked, 2, k->streams[1], NULL, &answer));
        assert_int_equal(answer, 1);
        assert_ok(bp_pool_cancel(k->pool, blocked, 2));
        bp_pool_set_step(k->pool, i);
    }
}

/* Its ring exists before the first event. */
static bp_profile *start_profile(const kit *k)
{
    bp_profile *profile = NULL;
    bp_profile_config config;
    assert_ok(bp_profile_config_init(&config, sizeof config));
    config.max_entries = 512; /* wraps */
    config.directory = "/nowhere/at all";
    assert_ok(bp_profile_create(&k->pool, 1, &config, &profile));
    assert_ok(bp_profile_step(profile, 0));
    return profile;
}

TEST(hot_path)
{
    for (size_t d = 0; d < device_count(); d++) {
        for (size_t a = 0; a < ALLOCATOR_COUNT; a++) {
            for (int traced = 0; traced < 3 && ALLOCATORS[a].pooled; traced++) {
                kit k = open_kit(&ALLOCATORS[a], device_at(d));
                bp_profile *profile = NULL;
                if (traced == 1)
                    assert_ok(bp_pool_trace_start(k.pool, 64, 1));
                if (traced == 2)
                    profile = start_profile(&k);
                watch(); /* from the first call on */
                serve(&k, 300);
                watched seen = unwatch();
                if (seen.allocations + seen.locks > 0)
                    fail_msg("%s on %s: %zu allocations, %zu locks, last: %s", ALLOCATORS[a].name, device_at(d)->name,
                             seen.allocations, seen.locks, seen.last);
                end_kit(&k);
                bp_profile_destroy(&profile); /* writes nothing: the pool is gone */
            }
        }
    }
}

/* Checks that the counters work at all. */
TEST(watching)
{
    const device_row host = {"host", new_host, HOST_READS};
    watch();
    KIT k = open_kit(&ALLOCATORS[0], &host);
    watched seen = unwatch();
    assert_true(seen.allocations > 0 && seen.locks > 0);
    watch();
    take(&k, param(&k, 0), k.streams[0]); /* dynamic */
    seen = unwatch();
    assert_true(seen.allocations > 0);
}

/* ---- schedules ----------------------------------------------------------------------------------------------------- */

static kit kit_with(bp_model *model, scenario_options options, uint32_t copies, bp_strict strict)
{
    kit k = begin_kit(new_device(), NULL, options, BP_POLICY_MAX, 0);
    k.w = make_scenario(model, options);
    k.plan = make_max(&k.w, copies);
    bp_pool_config config = pool_config();
    config.strict = strict;
    config.persistent_bytes = 65536;
    open_pool(&k, &config);
    return k;
}

/* Megatron PR 5462: an embedding or output layer that triggers prefetch exhausts the two buffers. */
TEST(outside_parameters_prefetch)
{
    KIT k = kit_with(model_of(UNITS), PARAM_ONLY, 2, BP_STRICT_ERROR);
    bp_bind bind = bind_of("", 0, BP_ROLE_PARAM, BP_DTYPE_BF16, 20000);
    bind.placement = BP_PLACE_PERSISTENT;
    uint32_t embedding, output, next = param(&k, 2);
    assert_ok(bp_pool_bind(k.pool, &bind, &embedding));
    bind.ordinal = 1;
    assert_ok(bp_pool_bind(k.pool, &bind, &output));
    take(&k, embedding, k.streams[0]);
    assert_true(try_take(&k, param(&k, 0), k.streams[0]));
    assert_true(try_take(&k, param(&k, 1), k.streams[0]));
    take(&k, output, k.streams[0]); /* needs no buffer of the pool */
    for (int i = 0; i < 3; i++)
        assert_false(try_take(&k, next, k.streams[0])); /* its prefetches are busy */
    assert_int_equal(statistics_of(k.pool).refused, 0);
    assert_int_equal(live_count(k.pool), 4);
    drop(&k, param(&k, 0), k.streams[1]);
    assert_true(try_take(&k, next, k.streams[0]));
    drop(&k, next, k.streams[1]);
    drop(&k, param(&k, 1), k.streams[1]);
    walk(&k, 2, NULL, false);
}

/* Megatron's MaxPool grows when a larger bucket first arrives, and addresses change. */
TEST(big_unit_arrives_late)
{
    static const bp_strict levels[] = {BP_STRICT_ERROR, BP_STRICT_OFF};
    for (size_t i = 0; i < 2; i++) {
        KIT k = kit_with(model_of("100 120 90 110 100 130 100 9000,50"), PARAM_ONLY, 0, levels[i]);
        void *addresses[7];
        uint64_t committed = usage_of(k.device).committed_bytes, slabs = statistics_of(k.pool).slab_bytes;
        for (int round = 0; round < 4; round++) {
            for (uint32_t u = 0; u < 7; u++) {
                void *address = take(&k, param(&k, u), k.streams[0]);
                if (round > 0)
                    assert_ptr_equal(address, addresses[u]);
                addresses[u] = address;
                drop(&k, param(&k, u), k.streams[0]);
            }
            if (round > 0) { /* only now */
                uint8_t *big = take(&k, param(&k, 7), k.streams[0]);
                assert_ok(bp_stream_fill(k.streams[0], big, 1, 18000));
                drop(&k, param(&k, 7), k.streams[0]);
            }
            assert_int_equal(usage_of(k.device).committed_bytes, committed);
            assert_int_equal(statistics_of(k.pool).slab_bytes, slabs);
        }
        assert_int_equal(usage_of(k.device).peak_committed_bytes, committed);
    }
}

/* Combined 1F1B (Megatron PR 6316): the forward of one micro-batch beside the backward of another. '+0' acquires unit 0. */
static bp_model *recorded_model(const char *units, const char *events)
{
    bp_model *model = model_of(units);
    for (; *events != '\0'; events += 2)
        add_event(model, events[0] == '+', events[1] - '0', -1);
    return model;
}

TEST(one_forward_one_backward)
{
    static const char events[] = "+0+1-0+2-1+3-2"  /* warm-up */
                                 "+0-3+2+1-0-2+1"; /* acquires and releases do not balance yet */
    static const char steady[] = "+0+1-0+2-1+3-2+0-3+2+1-0-2-1+3-3+1+2+0-1-2-0";
    scenario_options options = PARAM_ONLY;
    options.recorded = 1;
    bp_model *unbalanced = recorded_model("500 500 500 500", events);
    bp_buckets_config config;
    bp_buckets *buckets = NULL;
    bp_schedule *schedule = NULL;
    assert_ok(bp_buckets_config_init(&config, sizeof config));
    assert_ok(bp_buckets_create(unbalanced, &config, &buckets));
    assert_fails(bp_schedule_create_recorded(unbalanced, buckets, NULL, &schedule), BP_ERR_SCHEDULE, NULL);
    bp_buckets_destroy(&buckets);
    bp_model_destroy(&unbalanced);
    KIT k = kit_with(recorded_model("500 500 500 500", steady), options, 3, BP_STRICT_ERROR);
    assert_int_equal(bp_plan_get_info(k.plan)->roles[0].live_units, 3);
    void *addresses[4] = {NULL};
    walk(&k, 5, addresses, true);
    bp_plan *two = make_max(&k.w, 2);
    bp_pool *pool = NULL;
    assert_fails(bp_pool_create(k.device, two, NULL, &pool), BP_ERR_INFEASIBLE, NULL);
    assert_null(pool);
    bp_plan_destroy(&two);
}

TEST(shared_weights)
{
    bp_model *model = model_of("500 400,100 500 600");
    static const uint32_t order[] = {0, 1, 0, 2, 1, 0, 3, 1};
    assert_ok(bp_model_set_order(model, order, 8));
    KIT k = kit_with(model, TRAINING, 0, BP_STRICT_ERROR);
    size_t intervals;
    intervals_of(k.w.schedule, 0, &intervals);
    assert_true(intervals >= 3);
    void *addresses[SNAPSHOT_LIVE] = {NULL};
    walk(&k, 4, addresses, true);
}

TEST(odd_units)
{
    static const char *const models[] = {"0 300f 300,0f - 0f,300 300,0,300 0",
                                         "100,200,300 100 100,200 - 400,10,20,30 7",
                                         "300q 500q,40 300 100,300q 300f,10", "300/512 100/1024 300/300,5/512"};
    for (size_t m = 0; m < 4; m++) {
        for (int any = 0; any < 2; any++) {
            scenario_options options = TRAINING;
            options.roles |= m == 2 ? TRANSPOSE : 0;
            KIT k = kit_with(model_of(models[m]), options, 0, any ? BP_STRICT_OFF : BP_STRICT_ERROR);
            void *addresses[SNAPSHOT_LIVE] = {NULL};
            walk(&k, 4, addresses, !any);
        }
    }
}

/* fp8 is stored as uint8 and shares with it; transposes have separate memory. */
TEST(fp8)
{
    scenario_options options = {.roles = PARAM | TRANSPOSE, .prefetch = 1, .grad_units = 2};
    KIT k = start_kit(new_device(), "300q 300q 300q", options, BP_POLICY_MAX, 0);
    uint32_t ids[6], wrong;
    static const char *const units[] = {"u0", "u1", "u2"};
    for (uint32_t i = 0; i < 6; i++) {
        const bp_role role = i < 3 ? BP_ROLE_PARAM : BP_ROLE_PARAM_TRANSPOSE;
        assert_fails(bp_plan_find(k.plan, units[i % 3], 0, role, BP_DTYPE_BF16, 300, &wrong), BP_ERR_MISMATCH,
                     units[i % 3], "bf16", "uint8");
        assert_ok(bp_plan_find(k.plan, units[i % 3], 0, role, BP_DTYPE_FP8_E4M3, 300, &ids[i]));
    }
    assert_ptr_equal(address_of(&k, ids[0]), address_of(&k, ids[2]));
    assert_ptr_not_equal(address_of(&k, ids[0]), address_of(&k, ids[3]));
    assert_ok(bp_pool_acquire(k.pool, (const uint32_t[]){ids[0], ids[1], ids[3], ids[4]}, 4, k.streams[0], NULL));
}

/* All roles at once; state is always live and never shares. */
TEST(roles)
{
    scenario_options options = {.prefetch = 2, .grad_units = 3, .grad_comm_dtype = BP_DTYPE_FP32};
    options.roles = PARAM | TRANSPOSE | GRAD | GRAD_COMM | STATE;
    KIT k = kit_with(model_of("300q,40 200 300q,40 100f,70 20"), options, 0, BP_STRICT_ERROR);
    void *addresses[SNAPSHOT_LIVE] = {NULL};
    walk(&k, 4, addresses, true);
}

/* Units that do not fit the fixed pool are dynamic if that fallback was requested. */
TEST(fixed_with_dynamic_rest)
{
    KIT k = begin_kit(new_device(), NULL, TRAINING, BP_POLICY_FIXED, 0);
    k.w = make_scenario(model_of(UNITS), TRAINING);
    k.plan = make_plan(&k.w, BP_POLICY_FIXED, 0, BP_FALLBACK_DYNAMIC);
    open_pool(&k, NULL);
    assert_int_equal(bp_pool_get_info(k.pool)->policy, BP_POLICY_FIXED);
    walk(&k, 3, NULL, false);
    assert_int_equal(statistics_of(k.pool).dynamic, 3 * 3); /* u4: forward, backward, gradient */
    void *address;
    uint64_t bytes;
    assert_fails(bp_pool_address(k.pool, param(&k, 4), &address, &bytes), BP_ERR_SCHEDULE, "u4");
    assert_ok(bp_pool_address(k.pool, param(&k, 3), &address, &bytes));
    assert_ok(bp_pool_seal(k.pool));
    take(&k, param(&k, 3), k.streams[0]);
    assert_refused(&k, param(&k, 4), k.streams[0], "u4");
}

/* Strict assignment without a message callback, and without alternatives. */
TEST(choices_that_do_not_apply)
{
    bp_pool_config config = pool_config();
    config.strict = BP_STRICT_WARN;
    kit k = begin_kit(new_device(), UNITS, TRAINING, BP_POLICY_SCHEDULED, 0); /* its requests have no class */
    open_pool(&k, &config);
    void *addresses[SNAPSHOT_LIVE] = {NULL};
    walk(&k, 2, addresses, true);
    for (uint32_t u = 0; u < 2; u++)
        take(&k, param(&k, u), k.streams[0]);
    assert_refused(&k, param(&k, 2), k.streams[0], "u2");
    assert_int_equal(statistics_of(k.pool).deviations, 0);
    end_kit(&k);
    k = begin_kit(new_device(), UNITS, TRAINING, BP_POLICY_MAX, 0);
    open_pool(&k, &config);
    take(&k, param(&k, 2), k.streams[0]);
    take(&k, param(&k, 0), k.streams[0]); /* a deviation without on_message */
    assert_int_equal(statistics_of(k.pool).deviations, 1);
    end_kit(&k);
}
