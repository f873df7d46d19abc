/* SPDX-License-Identifier: Apache-2.0 */
/* Streams promised with bp_pool_set_stream: reuse on them needs no event, and another stream is an error instead of a race. */
#include "support/pools.h"

#define FOUR "1000 1000 1000 1000"

static op_counts counts;

static unsigned long recorded(void)
{
    return atomic_load(&counts.calls[OP_EVENT_RECORD]);
}

/* Nothing is promised yet. */
static kit four(scenario_options options)
{
    kit k = start_kit(new_counted(new_device(), &counts), FOUR, options, BP_POLICY_MAX, 0);
    return k;
}

/* Parameters on s0, gradients on s1. */
static kit four_promised(scenario_options options)
{
    kit k = four(options);
    promise_stream(&k, BP_ROLE_PARAM, k.streams[0]);
    promise_stream(&k, BP_ROLE_GRAD, k.streams[1]);
    return k;
}

TEST(nothing_is_recorded)
{
    KIT k = four_promised(TRAINING);
    unsigned long before = recorded();
    for (uint32_t u = 0; u < 4; u++) {
        take(&k, param(&k, u), k.streams[0]);
        drop(&k, param(&k, u), k.streams[0]);
        uint32_t grad = id_of(&k, u, BP_ROLE_GRAD, 0);
        take(&k, grad, k.streams[1]);
        drop(&k, grad, k.streams[1]);
    }
    bp_pool_statistics s = statistics_of(k.pool);
    assert_int_equal(recorded(), before);
    assert_int_equal(s.records, 0);
    assert_int_equal(s.elided, 8);
    assert_int_equal(s.waits, 0);
    take(&k, param(&k, 0), k.streams[0]);
    drop(&k, param(&k, 0), k.streams[2]); /* that stream's point needs an event, the promised one's does not */
    s = statistics_of(k.pool);
    assert_int_equal(recorded(), before + 1);
    assert_int_equal(s.records, 1);
    assert_int_equal(s.elided, 9);
    uint32_t id = param(&k, 2);
    take(&k, id, k.streams[0]);
    assert_int_equal(statistics_of(k.pool).waits, 1);
    assert_ok(bp_pool_use(k.pool, &id, 1, k.streams[3]));
    drop(&k, id, k.streams[0]);
    assert_int_equal(recorded(), before + 2);
    assert_int_equal(statistics_of(k.pool).elided, 10);
}

/* Points are omitted only if all requests of the memory have the same stream: u0 and u2 share, u1 and u3 share. Without strict assignment
 * all four requests must, as each may get either copy. */
TEST(all_that_share)
{
    for (int any = 0; any < 2; any++) {
        KIT k = begin_kit(new_counted(new_device(), &counts), FOUR, PARAM_ONLY, BP_POLICY_MAX, 0);
        bp_pool_config config = pool_config();
        config.strict = any ? BP_STRICT_OFF : BP_STRICT_ERROR;
        open_pool(&k, &config);
        static const uint32_t order[] = {0, 2, 1, 3};
        for (unsigned promised = 0; promised <= 4; promised++) {
            if (promised > 0) {
                uint32_t id = param(&k, order[promised - 1]);
                assert_ok(bp_pool_set_stream(k.pool, &id, 1, k.streams[0]));
            }
            for (uint32_t u = 0; u < 4; u++) {
                const bool all = any ? promised == 4 : promised >= (u % 2 == 0 ? 2 : 4);
                uint64_t before = statistics_of(k.pool).elided;
                take(&k, param(&k, u), k.streams[0]);
                drop(&k, param(&k, u), k.streams[0]);
                assert_int_equal(statistics_of(k.pool).elided - before, all);
            }
        }
    }
}

/* The order without an event exists; other streams that took part are waited for. */
TEST(order)
{
    KIT k = four_promised(PARAM_ONLY);
    for (int by_use = 0; by_use < 2; by_use++) {
        gate g = {0};
        flag done = 0;
        uint32_t id = param(&k, 0);
        take(&k, id, k.streams[0]);
        block(k.streams[1], &g); /* the layer's compute */
        if (by_use)
            assert_ok(bp_pool_use(k.pool, &id, 1, k.streams[1]));
        drop(&k, id, k.streams[by_use ? 0 : 1]);
        take(&k, param(&k, 2), k.streams[0]);
        raise_on(k.streams[0], &done);
        assert_true(stays_down(&done));
        unblock(&g);
        assert_true(is_raised_soon(&done));
        drop(&k, param(&k, 2), k.streams[0]);
    }
}

TEST(another_stream)
{
    KIT k = four_promised(TRAINING);
    assert_refused(&k, param(&k, 0), k.streams[1], "u0", "s1");
    assert_refused(&k, id_of(&k, 0, BP_ROLE_GRAD, 0), k.streams[0], "u0", "s0");
    uint32_t ids[] = {param(&k, 0), id_of(&k, 0, BP_ROLE_GRAD, 0)};
    snapshot before = snapshot_of(k.pool);
    int acquired = 9;
    assert_fails(bp_pool_acquire(k.pool, ids, 2, k.streams[0], NULL), BP_ERR_SCHEDULE, "u0");
    assert_fails(bp_pool_try_acquire(k.pool, ids, 2, k.streams[0], NULL, &acquired), BP_ERR_SCHEDULE, "u0");
    assert_int_equal(acquired, 9);
    assert_unchanged(k.pool, &before);
    take(&k, ids[0], k.streams[0]);
    assert_refused(&k, ids[0], k.streams[2], "u0", "s2"); /* a further reference is an acquire too */
    assert_ok(bp_pool_use(k.pool, ids, 1, k.streams[2])); /* use and release are allowed on any stream */
    drop(&k, ids[0], k.streams[3]);
}

static void take_long(void *argument)
{
    pause_us(30000);
    atomic_store((flag *)argument, 1);
}

/* Omitted points order nothing on another stream: a change waits for the promised stream, and is refused while requests are live. */
TEST(changes)
{
    for (int dropped = 0; dropped < 2; dropped++) { /* another stream, or none */
        KIT k = four_promised(PARAM_ONLY);
        uint32_t id = param(&k, 0);
        bp_stream *next = dropped ? NULL : k.streams[1];
        take(&k, id, k.streams[0]);
        assert_fails(bp_pool_set_stream(k.pool, &id, 1, next), BP_ERR_SCHEDULE, "s0", "live");
        assert_refused(&k, id, k.streams[1], "u0"); /* nothing changed */
        flag done = 0;
        assert_ok(bp_stream_call(k.streams[0], take_long, &done));
        drop(&k, id, k.streams[0]);
        assert_int_equal(statistics_of(k.pool).elided, 1);
        assert_ok(bp_pool_set_stream(k.pool, k.ids, k.requests, next));
        assert_int_equal(done, 1);
        if (!dropped)
            assert_refused(&k, id, k.streams[0], "u0");
        uint64_t elided = statistics_of(k.pool).elided, waits = statistics_of(k.pool).waits;
        take(&k, param(&k, 2), k.streams[1]);
        assert_int_equal(statistics_of(k.pool).waits, waits); /* that work is done */
        drop(&k, param(&k, 2), k.streams[1]);
        assert_int_equal(statistics_of(k.pool).elided - elided, !dropped);
    }
}

/* A destroyed promised stream must be replaced before the next acquire. */
TEST(destroyed_promised_stream)
{
    KIT k = four(PARAM_ONLY);
    bp_stream *passing = NULL, *gone;
    uint32_t id = param(&k, 0);
    assert_ok(bp_stream_create(k.device, "passing", &passing));
    gone = passing;
    promise_stream(&k, BP_ROLE_PARAM, passing);
    take(&k, id, passing);
    drop(&k, id, passing);
    bp_stream_destroy(&passing);
    assert_fails(bp_pool_acquire(k.pool, &id, 1, gone, NULL), BP_ERR_INVALID_ARGUMENT, "passing");
    assert_fails(bp_pool_set_stream(k.pool, &id, 1, gone), BP_ERR_INVALID_ARGUMENT, "passing");
    assert_refused(&k, id, k.streams[0], "u0");
    promise_stream(&k, BP_ROLE_PARAM, k.streams[0]);
    take(&k, param(&k, 2), k.streams[0]);
    drop(&k, param(&k, 2), k.streams[0]);
}

/* A promise ends because a neighbour has another one, or none, while work of the promised stream is in flight: the neighbour is ordered
 * after this work, and vice versa. */
TEST(a_late_neighbour)
{
    for (int promised = 0; promised < 2; promised++) {
        KIT k = four_promised(PARAM_ONLY);
        uint32_t first = param(&k, 0), second = param(&k, 2);
        flag done = 0;
        take(&k, first, k.streams[0]);
        assert_ok(bp_stream_call(k.streams[0], take_long, &done));
        drop(&k, first, k.streams[0]); /* no event */
        assert_int_equal(statistics_of(k.pool).elided, 1);
        assert_ok(bp_pool_set_stream(k.pool, &second, 1, promised ? k.streams[1] : NULL));
        assert_int_equal(done, 1);
        for (int back = 0; back < 2; back++) {
            const uint32_t ids[] = {back ? second : first, back ? first : second};
            bp_stream *from = k.streams[back ? 1 : 0], *to = k.streams[back ? 0 : 1];
            gate g = {0};
            flag reached = 0;
            take(&k, ids[0], from);
            block(from, &g);
            drop(&k, ids[0], from);
            take(&k, ids[1], to);
            raise_on(to, &reached);
            assert_true(stays_down(&reached));
            unblock(&g);
            assert_true(is_raised_soon(&reached));
            drop(&k, ids[1], to);
        }
        assert_int_equal(statistics_of(k.pool).elided, 1);
    }
}
