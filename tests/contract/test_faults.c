/* SPDX-License-Identifier: Apache-2.0 */
/* Every device operation and every allocation fails once in turn: the error is returned, nothing has changed or leaks, and a second try
 * succeeds. Linked with -Wl,--wrap of the allocation functions. */
#include "support/driver.h"
#include "support/failures/faulty.h"
#include "support/pools.h"
#include "support/shortage.h"

#define BIG 1000000u

#define CALLS 5

/* Acquire, use, release, try_acquire and cancel; the requests are zeroed if the row can. */
static bp_status make_call(const kit *k, int which, const uint32_t *ids, int *answer)
{
    switch (which) {
    case 0: return bp_pool_acquire(k->pool, ids, 2, k->streams[1], NULL);
    case 1: return bp_pool_use(k->pool, ids, 2, k->streams[2]);
    case 2: return bp_pool_release(k->pool, ids, 2, k->streams[3]);
    case 3: return bp_pool_try_acquire(k->pool, ids, 2, k->streams[2], NULL, answer);
    default: return bp_pool_cancel(k->pool, ids, 2);
    }
}

static kit faulty_kit(const allocator_row *row, faults *f, uint32_t *ids)
{
    kit k = begin_kit(new_faulty(new_device(), f), UNITS, TRAINING, row->policy, 0);
    bp_pool_config config = config_of(row);
    open_pool(&k, &config);
    for (uint32_t u = 0; u < 4; u++)
        ids[u] = param(&k, u);
    assert_ok(bp_pool_set_zero(k.pool, ids, 4, BP_ZERO_ALL));
    return k;
}

TEST(calls)
{
    unsigned met = 0;
    for (size_t a = 0; a < ALLOCATOR_COUNT; a++) {
        faults f;
        uint32_t ids[4];
        KIT k = faulty_kit(&ALLOCATORS[a], &f, ids);
        for (int keep = 0; keep < (ALLOCATORS[a].pooled ? 2 : 1); keep++) {     /* undoing fails as well */
            assert_ok(bp_pool_acquire(k.pool, ids + 2, 2, k.streams[0], NULL)); /* the earlier live ranges */
            assert_ok(bp_pool_release(k.pool, ids + 2, 2, k.streams[0]));
            for (int call = 0; call < CALLS; call++) {
                bool done = false;
                for (unsigned nth = 1; !done; nth++) {
                    snapshot before = snapshot_of(k.pool);
                    int answer = 9;
                    inject(&f, nth, OP_COUNT, keep, BP_ERR_IO);
                    bp_status status = make_call(&k, call, ids, &answer);
                    const faults was = end_faults(&f);
                    if (!was.met) {
                        assert_ok(status);
                        assert_int_equal(answer, call == 3 ? 1 : 9);
                        done = true;
                        continue;
                    }
                    met++;
                    if (was.where == OP_FREE && status == BP_OK) {
                        done = true; /* a release that freed other requests cannot be undone: the rest is freed later */
                        continue;
                    }
                    assert_fails(status, BP_ERR_IO, "injected into", keep ? "" : device_operation_name(was.where));
                    assert_int_equal(answer, 9);
                    assert_unchanged(k.pool, &before);
                    assert_true(nth < 100);
                }
            }
            assert_int_equal(live_count(k.pool), 0);
        }
        no_faults(&f);
    }
    assert_true(met > 20); /* at least one operation failed */
}

/* try_acquire reports busy if the device is out of memory. */
TEST(dynamic_out_of_memory)
{
    faults f;
    uint32_t ids[4];
    KIT k = faulty_kit(&ALLOCATORS[0], &f, ids);
    for (unsigned nth = 1; nth <= 2; nth++) { /* and again: a pool may wait for its streams and retry */
        int answer = 9;
        inject(&f, nth, OP_ALLOCATE, true, BP_ERR_NO_DEVICE_MEMORY);
        assert_ok(bp_pool_try_acquire(k.pool, ids, 2, k.streams[0], NULL, &answer));
        assert_true(f.met);
        assert_int_equal(answer, 0);
        assert_int_equal(live_count(k.pool), 0);
        assert_int_equal(usage_of(k.device).allocated_bytes, 0);
        inject(&f, nth, OP_ALLOCATE, true, BP_ERR_NO_DEVICE_MEMORY);
        assert_fails(bp_pool_acquire(k.pool, ids, 2, k.streams[0], NULL), BP_ERR_NO_DEVICE_MEMORY, "injected");
        assert_int_equal(usage_of(k.device).allocated_bytes, 0);
    }
    no_faults(&f);
    assert_true(try_take(&k, ids[0], k.streams[0]));
}

TEST(creation)
{
    for (size_t a = 0; a < ALLOCATOR_COUNT; a++) {
        faults f;
        KIT k = begin_kit(new_faulty(new_device(), &f), UNITS, TRAINING, ALLOCATORS[a].policy, 0);
        bp_pool_config config = config_of(&ALLOCATORS[a]);
        config.persistent_bytes = 5000;
        config.overflow_bytes = ALLOCATORS[a].pooled ? 5000 : 0;
        bool done = false;
        unsigned met = 0;
        for (unsigned nth = 1; !done; nth++) {
            bp_device_usage before = usage_of(k.device);
            inject(&f, nth, OP_COUNT, false, BP_ERR_IO);
            bp_status status = bp_pool_create(k.device, k.plan, &config, &k.pool);
            const faults was = end_faults(&f);
            done = !was.met;
            if (done) {
                assert_ok(status);
                continue;
            }
            met++;
            assert_fails(status, BP_ERR_IO, "injected into", device_operation_name(was.where));
            assert_null(k.pool);
            assert_int_equal(usage_of(k.device).committed_bytes, 0);
            assert_int_equal(usage_of(k.device).streams, before.streams);
            assert_int_equal(usage_of(k.device).events, before.events);
        }
        assert_true(met >= 3); /* reserve, commit and map */
        bp_pool_destroy(&k.pool);
        open_pool(&k, &config);
        walk(&k, 1, NULL, false);
    }
}

/* Failures during undoing or destroying cannot be repaired, but must not be fatal. */
TEST(undoing)
{
    for (unsigned nth = 1; nth < 40; nth++) {
        faults f;
        kit k = begin_kit(new_faulty(new_device(), &f), UNITS, TRAINING, BP_POLICY_MAX, 0);
        inject(&f, nth, OP_COUNT, true, BP_ERR_IO);
        bp_status status = bp_pool_create(k.device, k.plan, NULL, &k.pool);
        assert_int_equal(status, f.met ? BP_ERR_IO : BP_OK);
        assert_int_equal(k.pool == NULL, f.met);
        no_faults(&f);
        bp_pool_destroy(&k.pool);
        open_pool(&k, NULL);
        take(&k, param(&k, 0), k.streams[0]);
        inject(&f, nth, OP_COUNT, nth % 2, BP_ERR_IO);
        bp_pool_destroy(&k.pool);
        assert_null(k.pool);
        no_faults(&f);
        for (int i = 0; i < KIT_STREAMS; i++)
            bp_stream_destroy(&k.streams[i]);
        bp_device_destroy(&k.device);
        bp_plan_destroy(&k.plan);
        free_scenario(&k.w);
        free(k.ids);
    }
}

/* ---- the two kinds of memory --------------------------------------------------------------------------------------- */

TEST(too_little_device_memory)
{
    bp_host_config host;
    assert_ok(bp_host_config_init(&host, sizeof host));
    host.memory_bytes = 1 << 20;
    bp_device *device = NULL;
    assert_ok(bp_device_create_host(&host, &device));
    KIT k = begin_kit(device, "1000 1000", PARAM_ONLY, BP_POLICY_MAX, 0);
    bp_pool_config config = pool_config();
    config.persistent_bytes = 8 << 20;
    assert_fails(bp_pool_create(k.device, k.plan, &config, &k.pool), BP_ERR_NO_DEVICE_MEMORY, "8388608");
    assert_null(k.pool);
    assert_int_equal(usage_of(k.device).committed_bytes, 0); /* the slabs that fit are freed again */
    config.persistent_bytes = 1 << 18;
    open_pool(&k, &config);
    bp_pool *second = NULL;
    config.persistent_bytes = 1 << 20;
    assert_fails(bp_pool_create(k.device, k.plan, &config, &second), BP_ERR_NO_DEVICE_MEMORY, NULL);
    bp_bind bind = bind_of("scratch", 0, BP_ROLE_STATE, BP_DTYPE_UINT8, BIG);
    bind.placement = BP_PLACE_DYNAMIC;
    uint32_t id;
    assert_ok(bp_pool_bind(k.pool, &bind, &id));
    assert_fails(bp_pool_acquire(k.pool, &id, 1, k.streams[0], NULL), BP_ERR_NO_DEVICE_MEMORY, NULL);
    assert_false(try_take(&k, id, k.streams[0]));
    bp_pool_destroy(&k.pool);
    config.persistent_bytes = 1 << 19;
    open_pool(&k, &config); /* the freed memory can be acquired again */
}

static bp_status all_is_well(void *user, const device_call *call)
{
    return BP_OK;
}

TEST(no_host_memory)
{
    const unsigned long before = shortage.failures;
    for (size_t a = 0; a < ALLOCATOR_COUNT; a++) {
        bp_device *inner = NULL, *device = NULL;
        FAIL_EACH(bp_device_create_host(NULL, &inner));
        FAIL_EACH(trace_device_create(inner, all_is_well, NULL, &device));
        bp_device_destroy(&inner);
        bp_stream *stream = NULL;
        bp_event *event = NULL;
        FAIL_EACH(bp_stream_create(device, "patient", &stream));
        FAIL_EACH(bp_event_create(device, &event));
        bp_event_destroy(&event);
        bp_stream_destroy(&stream);
        KIT k = begin_kit(device, UNITS, TRAINING, ALLOCATORS[a].policy, 0);
        bp_pool_config config = config_of(&ALLOCATORS[a]);
        config.persistent_bytes = 5000;
        config.name = "patient";
        FAIL_EACH(bp_pool_create(k.device, k.plan, &config, &k.pool));
        number_requests(&k);
        FAIL_EACH(bp_pool_set_stream(k.pool, k.ids, k.requests, k.streams[0]));
        FAIL_EACH(bp_pool_set_stream(k.pool, k.ids, k.requests, NULL));
        for (uint32_t i = 0; i < 50; i++) {
            char unit[16];
            uint32_t id;
            snprintf(unit, sizeof unit, "extra %u", i);
            bp_bind bind = bind_of(unit, 0, BP_ROLE_PARAM, BP_DTYPE_BF16, 2);
            bind.placement = i % 10 == 0 ? BP_PLACE_PERSISTENT : BP_PLACE_DYNAMIC;
            FAIL_EACH(bp_pool_bind(k.pool, &bind, &id));
            assert_int_equal(id, k.requests + i); /* failures used no ids */
        }
        FAIL_EACH(bp_pool_trace_start(k.pool, 100, 0));
        walk(&k, 1, NULL, false);
    }
    assert_true(shortage.failures - before > 50);
}

int main(void)
{
    expect_leaks(); /* of calls that were made to fail */
    return run_suite();
}
