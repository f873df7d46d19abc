/* SPDX-License-Identifier: Apache-2.0 */
/* Acquire, try_acquire, use, release and cancel. */
#include "cases.h"

CASE(walk)
{
    KIT k = open_kit(allocator, device);
    void *addresses[SNAPSHOT_LIVE] = {NULL};
    uint64_t slab_bytes = statistics_of(k.pool).slab_bytes, committed = usage_of(k.device).committed_bytes;
    assert_int_equal(bp_pool_get_info(k.pool)->policy, allocator->policy);
    walk(&k, 12, addresses, allocator->assigned);
    assert_int_equal(statistics_of(k.pool).slab_bytes, slab_bytes);
    assert_int_equal(usage_of(k.device).committed_bytes, committed);
    assert_int_equal(usage_of(k.device).peak_committed_bytes, committed);
    assert_int_equal(statistics_of(k.pool).refused, 0);
    assert_int_equal(live_count(k.pool), 0);
}

CASE(release_errors)
{
    KIT k = open_kit(allocator, device);
    uint32_t id = param(&k, 3), none = statistics_of(k.pool).requests, twice[] = {id, id}, with_none[] = {id, none};
    bp_pool_set_step(k.pool, 4711);
    assert_fails(bp_pool_release(k.pool, &id, 1, k.streams[0]), BP_ERR_SCHEDULE, "u3", "4711");
    assert_fails(bp_pool_use(k.pool, &id, 1, k.streams[0]), BP_ERR_SCHEDULE, "u3");
    assert_fails(bp_pool_cancel(k.pool, &id, 1), BP_ERR_SCHEDULE, "u3");
    take(&k, id, k.streams[0]);
    snapshot before = snapshot_of(k.pool);
    assert_fails(bp_pool_release(k.pool, twice, 2, k.streams[0]), BP_ERR_INVALID_ARGUMENT, "u3");
    assert_invalid(bp_pool_release(k.pool, &none, 1, k.streams[0]));
    assert_invalid(bp_pool_release(k.pool, with_none, 2, k.streams[0]));
    assert_invalid(bp_pool_use(k.pool, with_none, 2, k.streams[0]));
    assert_invalid(bp_pool_cancel(k.pool, with_none, 2));
    uint32_t with_idle[] = {id, param(&k, 1)};
    assert_fails(bp_pool_release(k.pool, with_idle, 2, k.streams[0]), BP_ERR_SCHEDULE, "u1");
    assert_fails(bp_pool_use(k.pool, with_idle, 2, k.streams[1]), BP_ERR_SCHEDULE, "u1");
    assert_fails(bp_pool_cancel(k.pool, with_idle, 2), BP_ERR_SCHEDULE, "u1");
    assert_unchanged(k.pool, &before);
    drop(&k, id, k.streams[1]);
    assert_fails(bp_pool_release(k.pool, &id, 1, k.streams[1]), BP_ERR_SCHEDULE, "u3"); /* twice */
    uint32_t last = UINT32_MAX;
    assert_invalid(bp_pool_acquire(k.pool, &last, 1, k.streams[0], NULL));
    assert_invalid(bp_pool_acquire(k.pool, &none, 1, k.streams[0], NULL));
    assert_fails(bp_pool_acquire(k.pool, twice, 2, k.streams[0], NULL), BP_ERR_INVALID_ARGUMENT, "u3");
    int acquired = 7;
    assert_fails(bp_pool_try_acquire(k.pool, twice, 2, k.streams[0], NULL, &acquired), BP_ERR_INVALID_ARGUMENT, "u3");
    assert_invalid(bp_pool_try_acquire(k.pool, &none, 1, k.streams[0], NULL, &acquired));
    assert_int_equal(acquired, 7);
    assert_int_equal(live_count(k.pool), 0);
}

/* u2 shares with u0, or finds both buffers held. */
CASE(refused)
{
    kit k = open_kit(allocator, device);
    bp_pool_set_step(k.pool, 90817);
    take(&k, param(&k, 0), k.streams[0]);
    take(&k, param(&k, 1), k.streams[0]);
    if (!allocator->pooled) {
        take(&k, param(&k, 2), k.streams[0]);
        end_kit(&k);
        return;
    }
    for (int i = 0; i < 3; i++)
        assert_refused(&k, param(&k, 2), k.streams[0], "u2", allocator->assigned ? "u0" : "u", "90817");
    drop(&k, param(&k, 0), k.streams[0]);
    take(&k, param(&k, 2), k.streams[0]);
    assert_refused(&k, param(&k, 0), k.streams[0], "u0", allocator->assigned ? "u2" : "u");
    drop(&k, param(&k, 1), k.streams[0]); /* the pool still serves */
    drop(&k, param(&k, 2), k.streams[0]);
    walk(&k, 2, NULL, false);
    end_kit(&k);
}

CASE(streams)
{
    KIT k = open_kit(allocator, device);
    uint32_t id = param(&k, 0);
    bp_device *other = device->create();
    bp_stream *foreign = NULL, *gone = NULL;
    assert_ok(bp_stream_create(other, "foreigner", &foreign));
    assert_ok(bp_stream_create(k.device, "bygone", &gone));
    bp_stream *destroyed = gone, *streams[] = {NULL, foreign, destroyed};
    bp_stream_destroy(&gone);
    assert_null(gone);
    const char *const words[] = {"", "foreigner", "bygone"};
    for (size_t i = 0; i < 3; i++) {
        int acquired = 7;
        snapshot before = snapshot_of(k.pool);
        assert_fails(bp_pool_acquire(k.pool, &id, 1, streams[i], NULL), BP_ERR_INVALID_ARGUMENT, words[i]);
        assert_fails(bp_pool_try_acquire(k.pool, &id, 1, streams[i], NULL, &acquired), BP_ERR_INVALID_ARGUMENT,
                     words[i]);
        assert_unchanged(k.pool, &before);
        take(&k, id, k.streams[0]);
        before = snapshot_of(k.pool);
        assert_fails(bp_pool_acquire(k.pool, &id, 1, streams[i], NULL), BP_ERR_INVALID_ARGUMENT, words[i]);
        assert_fails(bp_pool_use(k.pool, &id, 1, streams[i]), BP_ERR_INVALID_ARGUMENT, words[i]);
        assert_fails(bp_pool_release(k.pool, &id, 1, streams[i]), BP_ERR_INVALID_ARGUMENT, words[i]);
        assert_unchanged(k.pool, &before);
        drop(&k, id, k.streams[0]);
    }
    bp_stream_destroy(&foreign);
    bp_device_destroy(&other);
    /* A stream destroyed between release and reuse, and one destroyed while its request is live. */
    bp_stream *passing = NULL;
    assert_ok(bp_stream_create(k.device, "passing", &passing));
    take(&k, id, passing);
    drop(&k, id, passing);
    bp_stream_destroy(&passing);
    take(&k, param(&k, 2), k.streams[1]);
    drop(&k, param(&k, 2), k.streams[1]);
    assert_ok(bp_stream_create(k.device, "passing", &passing));
    take(&k, id, passing);
    bp_stream_destroy(&passing);
    drop(&k, id, k.streams[1]);
    walk(&k, 1, NULL, false);
}

/* Streams and references of one request. */
CASE(limits)
{
    KIT k = open_kit(allocator, device);
    uint32_t id = param(&k, 0);
    bp_stream *streams[BP_LIVE_STREAMS + 1];
    for (size_t i = 0; i <= BP_LIVE_STREAMS; i++)
        assert_ok(bp_stream_create(k.device, NULL, &streams[i]));
    for (int round = 0; round < 2; round++) { /* a point per reference */
        take(&k, id, streams[round]);
        for (size_t i = 0; i < BP_LIVE_STREAMS; i++) {
            assert_ok(bp_pool_use(k.pool, &id, 1, streams[i]));
            assert_ok(bp_pool_use(k.pool, &id, 1, streams[i]));
        }
        snapshot before = snapshot_of(k.pool);
        bp_stream *ninth = streams[BP_LIVE_STREAMS];
        assert_fails(bp_pool_use(k.pool, &id, 1, ninth), BP_ERR_SCHEDULE, "u0");
        assert_fails(bp_pool_acquire(k.pool, &id, 1, ninth, NULL), BP_ERR_SCHEDULE, "u0");
        assert_fails(bp_pool_release(k.pool, &id, 1, ninth), BP_ERR_SCHEDULE, "u0");
        assert_unchanged(k.pool, &before);
        drop(&k, id, streams[3]);
        assert_int_equal(live_count(k.pool), 0);
    }
    const uint32_t max = device == light_device() ? 65535 : 0;
    for (uint32_t i = 0; i < max; i++)
        assert_ok(bp_pool_acquire(k.pool, &id, 1, streams[0], NULL));
    if (max > 0)
        assert_refused(&k, id, streams[0], "u0");
    for (uint32_t i = 0; i < max; i++)
        assert_ok(bp_pool_release(k.pool, &id, 1, streams[0]));
    assert_int_equal(live_count(k.pool), 0);
    for (size_t i = 0; i <= BP_LIVE_STREAMS; i++)
        bp_stream_destroy(&streams[i]);
}

CASE(null_arguments)
{
    kit k = open_kit(allocator, device);
    bp_pool *pool = k.pool;
    bp_stream *s = k.streams[0];
    uint32_t id = param(&k, 0);
    int answer = 7;
    snapshot before = snapshot_of(pool);
    assert_invalid(bp_pool_acquire(NULL, &id, 1, s, NULL));
    assert_invalid(bp_pool_acquire(pool, NULL, 1, s, NULL));
    assert_invalid(bp_pool_try_acquire(NULL, &id, 1, s, NULL, &answer));
    assert_invalid(bp_pool_try_acquire(pool, NULL, 1, s, NULL, &answer));
    assert_invalid(bp_pool_try_acquire(pool, &id, 1, s, NULL, NULL));
    assert_invalid(bp_pool_can_acquire(NULL, &id, 1, NULL, 0, &answer));
    assert_invalid(bp_pool_can_acquire(pool, NULL, 1, NULL, 0, &answer));
    assert_invalid(bp_pool_can_acquire(pool, &id, 1, NULL, 0, NULL));
    assert_invalid(bp_pool_use(NULL, &id, 1, s));
    assert_invalid(bp_pool_use(pool, NULL, 1, s));
    assert_invalid(bp_pool_release(NULL, &id, 1, s));
    assert_invalid(bp_pool_release(pool, NULL, 1, s));
    assert_invalid(bp_pool_cancel(NULL, &id, 1));
    assert_invalid(bp_pool_cancel(pool, NULL, 1));
    assert_invalid(bp_pool_set_stream(NULL, &id, 1, s));
    assert_invalid(bp_pool_set_stream(pool, NULL, 1, s));
    assert_unchanged(pool, &before);
    const uint32_t beyond = statistics_of(pool).requests;
    assert_invalid(bp_pool_can_acquire(pool, &beyond, 1, NULL, 0, &answer));
    assert_invalid(bp_pool_can_acquire(pool, &id, 1, &beyond, 1, &answer));
    assert_invalid(bp_pool_can_acquire(pool, &id, 1, NULL, 1, &answer));
    assert_int_equal(answer, 7);
    assert_int_equal(bp_pool_references(NULL, id), 0);
    assert_int_equal(bp_pool_references(pool, beyond), 0);
    bp_pool_destroy(NULL);
    bp_pool *none = NULL;
    bp_pool_destroy(&none);
    end_kit(&k);
}

/* Statistics, live requests, dumps, the hash of the sequence, addresses. */
CASE(report_arguments)
{
    KIT k = open_kit(allocator, device);
    bp_pool_statistics s = {.size = 1};
    bp_live_request live[2] = {{.size = sizeof *live}, {.id = 555}};
    char text[10];
    size_t count = 0;
    uint64_t number = 0;
    void *address;
    const uint32_t both[] = {param(&k, 0), param(&k, 1)};
    assert_ok(bp_pool_acquire(k.pool, both, 2, k.streams[0], NULL));
    assert_ok(bp_pool_live(k.pool, live, 1, &count)); /* room for one entry: all are counted */
    assert_int_equal(count, 2);
    assert_int_equal(live[1].id, 555);
    assert_invalid(bp_pool_live(k.pool, NULL, 1, &count));
    assert_invalid(bp_pool_live(k.pool, live, 1, NULL));
    assert_invalid(bp_pool_live(NULL, live, 1, &count));
    live[0].size = 1;
    assert_invalid(bp_pool_live(k.pool, live, 1, &count));
    assert_invalid(bp_pool_statistics_get(k.pool, NULL));
    assert_invalid(bp_pool_statistics_get(k.pool, &s));
    s.size = sizeof s;
    assert_invalid(bp_pool_statistics_get(NULL, &s));
    assert_invalid(bp_pool_dump(k.pool, NULL, 10, &count));
    assert_invalid(bp_pool_dump(k.pool, text, 10, NULL));
    assert_invalid(bp_pool_dump(NULL, text, 10, &count));
    assert_invalid(bp_pool_sequence(k.pool, NULL, &number));
    assert_invalid(bp_pool_sequence(NULL, &number, &number));
    assert_invalid(bp_pool_address(k.pool, statistics_of(k.pool).requests, &address, &number));
    assert_invalid(bp_pool_address(NULL, 0, &address, &number));
}
