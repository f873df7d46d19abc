/* SPDX-License-Identifier: Apache-2.0 */
/* Traces of a pool, and the recorded schedules made from them. */
#include <time.h>

#include "support/pools.h"

static bp_pool_event event_at(const kit *k, size_t index)
{
    bp_pool_event event = {.size = sizeof event};
    assert_ok(bp_pool_trace_get(k->pool, index, &event));
    return event;
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

TEST(events)
{
    for (size_t a = 0; a < ALLOCATOR_COUNT; a++) {
        for (int timestamps = 0; timestamps < 2; timestamps++) {
            KIT k = open_kit(&ALLOCATORS[a], device_at(0));
            uint32_t u0 = param(&k, 0), u1 = param(&k, 1), both[] = {u0, u1}, none = 1000;
            take(&k, u1, k.streams[0]); /* before the start */
            drop(&k, u1, k.streams[0]);
            assert_int_equal(bp_pool_trace_count(k.pool), 0);
            uint64_t begin = now_ns();
            assert_ok(bp_pool_trace_start(k.pool, 100, timestamps));
            bp_pool_set_step(k.pool, 70);
            const void *address = take(&k, u0, k.streams[0]);
            assert_ok(bp_pool_use(k.pool, &u0, 1, k.streams[2]));
            bp_pool_set_step(k.pool, 71);
            take(&k, u0, k.streams[1]);
            drop(&k, u0, k.streams[1]);
            drop(&k, u0, k.streams[3]);
            assert_ok(bp_pool_acquire(k.pool, both, 2, k.streams[0], NULL)); /* in their order */
            bp_pool_release(k.pool, &none, 1, k.streams[0]);                 /* failed calls are not recorded */
            bp_pool_acquire(k.pool, &none, 1, k.streams[0], NULL);
            if (ALLOCATORS[a].pooled)
                assert_false(try_take(&k, param(&k, 2), k.streams[0]));
            assert_ok(bp_pool_cancel(k.pool, &u1, 1));
            drop(&k, u0, k.streams[0]);
            bp_pool_trace_stop(k.pool);
            take(&k, u1, k.streams[0]); /* after the stop */
            uint64_t end = now_ns(), last = begin;
            static const bp_pool_event_kind kinds[] = {BP_EVENT_ACQUIRE, BP_EVENT_USE,     BP_EVENT_REF,
                                                       BP_EVENT_UNREF,   BP_EVENT_RELEASE, BP_EVENT_ACQUIRE,
                                                       BP_EVENT_ACQUIRE, BP_EVENT_CANCEL,  BP_EVENT_RELEASE};
            const uint32_t ids[] = {u0, u0, u0, u0, u0, u0, u1, u1, u0}, streams[] = {0, 2, 1, 1, 3, 0, 0, 0, 0};
            assert_int_equal(bp_pool_trace_count(k.pool), 9);
            uint32_t first = event_at(&k, 0).stream;
            for (size_t i = 0; i < 9; i++) {
                bp_pool_event event = event_at(&k, i);
                assert_int_equal(event.kind, kinds[i]);
                assert_int_equal(event.id, ids[i]);
                if (i < 5) /* the first live range */
                    assert_ptr_equal(event.address, address);
                if (event.kind != BP_EVENT_CANCEL) /* cancel has no stream */
                    assert_int_equal(event.stream - first, streams[i]);
                assert_int_equal(event.step, i < 2 ? 70 : 71);
                assert_true(timestamps ? event.time_ns >= last && event.time_ns <= end : event.time_ns == 0);
                last = event.time_ns;
            }
        }
    }
}

TEST(ring)
{
    KIT k = open_kit(&ALLOCATORS[2], light_device());
    bp_pool_event event = {.size = sizeof event};
    assert_invalid(bp_pool_trace_get(k.pool, 0, &event));
    assert_invalid(bp_pool_trace_start(k.pool, 0, 0));
    assert_invalid(bp_pool_trace_start(k.pool, ((size_t)1 << 30) + 1, 0));
    assert_invalid(bp_pool_trace_start(NULL, 10, 0));
    static const size_t asked[] = {1, 2, 5, 8, 64}, made[] = {1, 2, 8, 8, 64};
    for (size_t i = 0; i < 5; i++) {
        for (unsigned events = 0; events < 150; events += 2) {
            assert_ok(bp_pool_trace_start(k.pool, asked[i], 0)); /* starts anew */
            for (unsigned e = 0; e < events; e += 2) {
                bp_pool_set_step(k.pool, e);
                take(&k, param(&k, e / 2 % 4), k.streams[0]);
                bp_pool_set_step(k.pool, e + 1);
                drop(&k, param(&k, e / 2 % 4), k.streams[0]);
            }
            size_t count = bp_pool_trace_count(k.pool);
            assert_int_equal(count, events < made[i] ? events : made[i]);
            for (size_t j = 0; j < count; j++) {
                event = event_at(&k, j);
                uint64_t number = events - count + j;
                assert_int_equal(event.step, number);
                assert_int_equal(event.id, param(&k, (uint32_t)(number / 2 % 4)));
                assert_int_equal(event.kind, number % 2 == 0 ? BP_EVENT_ACQUIRE : BP_EVENT_RELEASE);
            }
            assert_invalid(bp_pool_trace_get(k.pool, count, &event));
        }
    }
    assert_invalid(bp_pool_trace_get(k.pool, 0, NULL));
    event.size = 1;
    assert_invalid(bp_pool_trace_get(k.pool, 0, &event));
    bp_pool_trace_stop(k.pool);
    bp_pool_trace_stop(k.pool);
    assert_int_equal(bp_pool_trace_count(k.pool), 64);
}

/* ---- schedules of traces ------------------------------------------------------------------------------------------- */

static kit recorded_kit(const allocator_row *row)
{
    kit k = begin_kit(new_null(), UNITS, PARAM_ONLY, row->policy, 0);
    bp_pool_config config = config_of(row);
    config.persistent_bytes = 1024;
    open_pool(&k, &config);
    assert_ok(bp_pool_trace_start(k.pool, 4096, 0));
    return k;
}

static uint64_t bound_of(const bp_model *model, bp_policy policy, uint64_t *bytes)
{
    bp_buckets_config config;
    bp_buckets *buckets = NULL;
    bp_schedule *schedule = NULL;
    bp_plan *plan = NULL;
    assert_ok(bp_buckets_config_init(&config, sizeof config));
    config.bucketing = BP_BUCKETING_GIVEN;
    config.padding = BP_PADDING_GIVEN;
    config.roles = PARAM;
    assert_ok(bp_buckets_create(model, &config, &buckets));
    assert_ok(bp_schedule_create_recorded(model, buckets, NULL, &schedule));
    bp_plan_config planning = plan_config(policy, 0, BP_FALLBACK_PERSISTENT);
    assert_ok(bp_plan_create(buckets, schedule, &planning, &plan));
    uint64_t bound = bp_plan_get_info(plan)->roles[0].lower_bound_bytes;
    *bytes = bp_plan_get_info(plan)->bytes;
    bp_plan_destroy(&plan);
    bp_schedule_destroy(&schedule);
    bp_buckets_destroy(&buckets);
    return bound;
}

TEST(a_trace_is_a_schedule)
{
    for (size_t a = 0; a < ALLOCATOR_COUNT; a++) {
        KIT k = recorded_kit(&ALLOCATORS[a]);
        bp_bind bind = bind_of("", 0, BP_ROLE_PARAM, BP_DTYPE_BF16, 600);
        bind.placement = BP_PLACE_PERSISTENT;
        uint32_t outside, ahead = param(&k, 3), u0 = param(&k, 0);
        assert_ok(bp_pool_bind(k.pool, &bind, &outside));
        bp_pool_set_step(k.pool, 1);
        walk(&k, 1, NULL, false);
        uint64_t peak = statistics_of(k.pool).peak_live_bytes;
        bp_pool_set_step(k.pool, 2);
        take(&k, outside, k.streams[0]); /* outside units: not in the schedule */
        take(&k, ahead, k.streams[0]);
        assert_ok(bp_pool_cancel(k.pool, &ahead, 1)); /* nor is this */
        walk(&k, 1, NULL, false);
        take(&k, u0, k.streams[0]); /* one interval, whatever happens inside */
        take(&k, u0, k.streams[1]);
        assert_ok(bp_pool_use(k.pool, &u0, 1, k.streams[2]));
        drop(&k, u0, k.streams[0]);
        drop(&k, u0, k.streams[1]);
        bp_pool_set_step(k.pool, 3);
        walk(&k, 1, NULL, false);
        drop(&k, outside, k.streams[0]);
        assert_true(peak > 0);
        size_t events[4] = {0};
        for (uint64_t step = 1; step <= 3; step++) {
            bp_model *model = model_of(UNITS);
            assert_ok(bp_pool_trace_to_model(k.pool, step, step, model));
            events[step] = bp_model_get_info(model)->event_count;
            uint64_t bytes;
            assert_int_equal(bound_of(model, BP_POLICY_DYNAMIC, &bytes), peak);
            assert_int_equal(bytes, peak);
            assert_int_equal(bound_of(model, BP_POLICY_MAX, &bytes), peak);
            assert_true(bytes >= peak);
            bp_model_destroy(&model);
        }
        assert_int_equal(events[1], events[3]);
        assert_int_equal(events[2], events[1] + 2);
        bp_model *model = model_of(UNITS);
        assert_ok(bp_pool_trace_to_model(k.pool, 0, 3, model));
        assert_int_equal(bp_model_get_info(model)->event_count, events[1] + events[2] + events[3]);
        bp_model_destroy(&model);
    }
}

/* Event for event. */
TEST(order_of_events)
{
    KIT k = recorded_kit(&ALLOCATORS[2]);
    const uint32_t ids[] = {id_of(&k, 1, BP_ROLE_PARAM, 1), param(&k, 0), param(&k, 1)};
    assert_ok(bp_pool_acquire(k.pool, ids, 3, k.streams[0], NULL));
    drop(&k, ids[1], k.streams[0]);
    assert_ok(bp_pool_release(k.pool, ids + 2, 1, k.streams[0]));
    assert_ok(bp_pool_release(k.pool, ids, 1, k.streams[0]));
    static const struct {
        uint32_t acquire;
        int32_t unit, bucket;
    } expected[] = {{1, 1, 1}, {1, 0, 0}, {1, 1, 0}, {0, 0, 0}, {0, 1, 0}, {0, 1, 1}};
    bp_model *model = model_of(UNITS);
    assert_ok(bp_pool_trace_to_model(k.pool, 0, UINT64_MAX, model));
    assert_int_equal(bp_model_get_info(model)->event_count, 6);
    for (size_t i = 0; i < 6; i++) {
        bp_model_event event = *bp_model_get_info(model)->events[i];
        assert_int_equal(event.acquire, expected[i].acquire);
        assert_int_equal(event.unit, expected[i].unit);
        assert_int_equal(event.bucket, expected[i].bucket);
        assert_int_equal(event.role, BP_ROLE_PARAM);
    }
    bp_model_destroy(&model);
}

static void assert_no_schedule(const kit *k, uint64_t first, uint64_t last, bp_status expected, const char *name)
{
    bp_model *model = model_of(UNITS);
    assert_fails(bp_pool_trace_to_model(k->pool, first, last, model), expected, name);
    assert_int_equal(bp_model_get_info(model)->event_count, 0); /* all or nothing */
    bp_model_destroy(&model);
}

TEST(windows)
{
    KIT k = recorded_kit(&ALLOCATORS[2]);
    uint32_t u0 = param(&k, 0), u1 = param(&k, 1), u4 = param(&k, 4);
    assert_no_schedule(&k, 0, 100, BP_ERR_INVALID_ARGUMENT, NULL); /* nothing yet */
    bp_pool_set_step(k.pool, 10);
    take(&k, u0, k.streams[0]);
    take(&k, u1, k.streams[0]);
    drop(&k, u0, k.streams[0]);
    bp_pool_set_step(k.pool, 11);
    take(&k, u4, k.streams[0]);
    drop(&k, u4, k.streams[0]);
    bp_pool_set_step(k.pool, 12);
    drop(&k, u1, k.streams[0]);
    bp_model *model = model_of(UNITS);
    assert_ok(bp_pool_trace_to_model(k.pool, 10, 12, model));
    assert_int_equal(bp_model_get_info(model)->event_count, 6);
    assert_invalid(bp_pool_trace_to_model(NULL, 10, 12, model));
    assert_invalid(bp_pool_trace_to_model(k.pool, 12, 10, model));
    bp_model_destroy(&model);
    assert_invalid(bp_pool_trace_to_model(k.pool, 10, 12, NULL));
    assert_no_schedule(&k, 10, 10, BP_ERR_SCHEDULE, "u1"); /* never released */
    assert_no_schedule(&k, 10, 11, BP_ERR_SCHEDULE, "u1");
    assert_no_schedule(&k, 12, 12, BP_ERR_SCHEDULE, "u1"); /* released before it was acquired */
    assert_no_schedule(&k, 11, 12, BP_ERR_SCHEDULE, "u1");
    assert_no_schedule(&k, 13, 99, BP_ERR_INVALID_ARGUMENT, NULL);
    model = model_of(UNITS);
    assert_ok(bp_pool_trace_to_model(k.pool, 11, 11, model));
    bp_model_destroy(&model);
    model = model_of("300,100 300,100"); /* has no u4 */
    assert_fails(bp_pool_trace_to_model(k.pool, 10, 12, model), BP_ERR_MISMATCH, "u4");
    assert_int_equal(bp_model_get_info(model)->event_count, 0);
    bp_model_destroy(&model);
    /* Events that the ring has overwritten are missing. */
    assert_ok(bp_pool_trace_start(k.pool, 2, 0));
    bp_pool_set_step(k.pool, 20);
    take(&k, u0, k.streams[0]);
    take(&k, u1, k.streams[0]);
    drop(&k, u0, k.streams[0]);
    drop(&k, u1, k.streams[0]);
    assert_no_schedule(&k, 20, 20, BP_ERR_SCHEDULE, "u0");
}
