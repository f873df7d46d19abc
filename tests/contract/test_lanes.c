/* Lanes: reuse on the stream that released needs no event; another stream is an error, not a race. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support.h"

#define FOUR "1000 1000 1000 1000"

static op_counts counts;

static unsigned long recorded(void)
{
    return atomic_load(&counts.calls[BP_OP_EVENT_RECORD]);
}

/* On lanes: gather is s0, compute s1. */
static kit on_lanes(world_options options)
{
    kit k = begin_kit(new_counted(new_device(), &counts), FOUR, options, BP_POLICY_MAX, 0);
    open_pool(&k, NULL, 1);
    return k;
}

static void test_lanes_must_be_set(void **state)
{
    (void)state;
    kit k = on_lanes(PARAM_ONLY);
    uint32_t id = param(&k, 0);
    assert_true(bp_pool_acquire(k.pool, &id, 1, k.streams[0], NULL) != BP_OK);
    assert_int_equal(live_count(k.pool), 0);
    assert_fails(bp_pool_set_lane(k.pool, BP_LANE_COUNT, k.streams[0]), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_pool_set_lane(k.pool, BP_LANE_ANY, k.streams[0]), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_pool_set_lane(NULL, BP_LANE_GATHER, k.streams[0]), BP_ERR_INVALID_ARGUMENT, NULL);
    bp_device *other = new_device();
    bp_stream *foreign = NULL;
    assert_ok(bp_stream_create(other, "foreigner", &foreign));
    assert_fails(bp_pool_set_lane(k.pool, BP_LANE_GATHER, foreign), BP_ERR_INVALID_ARGUMENT, "foreigner");
    bp_stream_destroy(&foreign);
    bp_device_destroy(&other);
    assert_ok(bp_pool_set_lane(k.pool, BP_LANE_GATHER, k.streams[0]));
    take(&k, id, k.streams[0]);
    drop(&k, id, k.streams[0]);
    assert_ok(bp_pool_set_lane(k.pool, BP_LANE_GATHER, NULL));
    assert_true(bp_pool_acquire(k.pool, &id, 1, k.streams[0], NULL) != BP_OK);
    assert_ok(bp_pool_set_lane(k.pool, BP_LANE_COUNT - 1, k.streams[2])); /* one that nobody names */
    end_kit(&k);
}

static void test_nothing_is_recorded(void **state)
{
    (void)state;
    kit k = on_lanes(TRAINING);
    assert_ok(bp_pool_set_lane(k.pool, BP_LANE_GATHER, k.streams[0]));
    assert_ok(bp_pool_set_lane(k.pool, BP_LANE_COMPUTE, k.streams[1]));
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
    drop(&k, param(&k, 0), k.streams[2]); /* that stream's point takes an event, the lane's still none */
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
    end_kit(&k);
}

/* The order that needs no event is there: other streams that took part are waited for. */
static void test_order_on_lanes(void **state)
{
    (void)state;
    kit k = on_lanes(PARAM_ONLY);
    assert_ok(bp_pool_set_lane(k.pool, BP_LANE_GATHER, k.streams[0]));
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
    end_kit(&k);
}

static void test_another_stream(void **state)
{
    (void)state;
    kit k = on_lanes(TRAINING);
    assert_ok(bp_pool_set_lane(k.pool, BP_LANE_GATHER, k.streams[0]));
    assert_ok(bp_pool_set_lane(k.pool, BP_LANE_COMPUTE, k.streams[1]));
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
    assert_refused(&k, ids[0], k.streams[2], "u0", "s2"); /* a further hold is an acquire too */
    assert_ok(bp_pool_use(k.pool, ids, 1, k.streams[2])); /* used and released it may be anywhere */
    drop(&k, ids[0], k.streams[3]);
    end_kit(&k);
}

static void take_long(void *argument)
{
    pause_us(30000);
    atomic_store((flag *)argument, 1);
}

/* Points without events mean nothing on another stream: a change of lanes waits for the old one. */
static void test_changing_a_lane(void **state)
{
    (void)state;
    kit k = on_lanes(PARAM_ONLY);
    uint32_t id = param(&k, 0);
    assert_ok(bp_pool_set_lane(k.pool, BP_LANE_GATHER, k.streams[0]));
    take(&k, id, k.streams[0]);
    assert_fails(bp_pool_set_lane(k.pool, BP_LANE_GATHER, k.streams[1]), BP_ERR_SCHEDULE, NULL); /* live */
    assert_refused(&k, id, k.streams[1], "u0");                                                  /* nothing changed */
    flag done = 0;
    assert_ok(bp_stream_call(k.streams[0], take_long, &done));
    drop(&k, id, k.streams[0]);
    assert_ok(bp_pool_set_lane(k.pool, BP_LANE_GATHER, k.streams[1]));
    assert_int_equal(done, 1);
    assert_refused(&k, id, k.streams[0], "u0");
    take(&k, param(&k, 2), k.streams[1]);
    drop(&k, param(&k, 2), k.streams[1]);
    end_kit(&k);
}

/* A lane whose stream has gone is of no use until it is set again. */
static void test_a_stream_that_goes(void **state)
{
    (void)state;
    kit k = on_lanes(PARAM_ONLY);
    bp_stream *passing = NULL, *gone;
    uint32_t id = param(&k, 0);
    assert_ok(bp_stream_create(k.device, "passing", &passing));
    gone = passing;
    assert_ok(bp_pool_set_lane(k.pool, BP_LANE_GATHER, passing));
    take(&k, id, passing);
    drop(&k, id, passing);
    bp_stream_destroy(&passing);
    assert_fails(bp_pool_acquire(k.pool, &id, 1, gone, NULL), BP_ERR_INVALID_ARGUMENT, "passing");
    assert_fails(bp_pool_set_lane(k.pool, BP_LANE_GATHER, gone), BP_ERR_INVALID_ARGUMENT, "passing");
    assert_refused(&k, id, k.streams[0], "u0");
    assert_ok(bp_pool_set_lane(k.pool, BP_LANE_GATHER, k.streams[0]));
    take(&k, param(&k, 2), k.streams[0]);
    drop(&k, param(&k, 2), k.streams[0]);
    end_kit(&k);
}

/* The schedule, on streams that pause: gathers on s0, releases on s1. */
static void test_walk(void **state)
{
    (void)state;
    kit k = begin_kit(new_counted(new_slow_device(50, 9), &counts), FOUR, PARAM_ONLY, BP_POLICY_MAX, 0);
    open_pool(&k, NULL, 1);
    assert_ok(bp_pool_set_lane(k.pool, BP_LANE_GATHER, k.streams[0]));
    void *addresses[SNAPSHOT_LIVE] = {NULL};
    walk(&k, 8, addresses, true);
    bp_pool_statistics s = statistics_of(k.pool);
    assert_int_equal(s.elided, s.releases); /* the acquiring stream's point of each */
    assert_int_equal(s.records, s.releases);
    end_kit(&k);
}

/* A request without a lane that is bound late must be ordered after releases that took no event, or the events must have
 * been taken. */
static void test_a_late_neighbour(void **state)
{
    (void)state;
    for (int other_lane = 0; other_lane < 2; other_lane++) {
        kit k = begin_kit(new_counted(new_device(), &counts), FOUR, PARAM_ONLY, BP_POLICY_MAX, 0);
        assert_ok(bp_pool_create(k.device, k.plan, NULL, &k.pool));
        assert_ok(bp_pool_set_lane(k.pool, BP_LANE_GATHER, k.streams[0]));
        assert_ok(bp_pool_set_lane(k.pool, BP_LANE_COMPUTE, k.streams[1]));
        bp_bind bind = bind_of("u0", 0, BP_ROLE_PARAM, BP_DTYPE_BF16, 2000);
        bind.acquire_lane = BP_LANE_GATHER;
        uint32_t first, second;
        gate g = {0};
        flag done = 0;
        assert_ok(bp_pool_bind(k.pool, &bind, &first));
        take(&k, first, k.streams[0]);
        block(k.streams[0], &g);
        drop(&k, first, k.streams[0]);
        bind.unit = "u2";
        bind.acquire_lane = other_lane ? BP_LANE_COMPUTE : BP_LANE_ANY;
        assert_ok(bp_pool_bind(k.pool, &bind, &second));
        take(&k, second, k.streams[1]);
        raise_on(k.streams[1], &done);
        assert_true(stays_down(&done));
        unblock(&g);
        assert_true(is_raised_soon(&done));
        drop(&k, second, k.streams[1]);
        /* And back. */
        atomic_store(&g.open, 0);
        atomic_store(&done, 0);
        take(&k, second, k.streams[1]);
        block(k.streams[1], &g);
        drop(&k, second, k.streams[1]);
        take(&k, first, k.streams[0]);
        raise_on(k.streams[0], &done);
        assert_true(stays_down(&done));
        unblock(&g);
        assert_true(is_raised_soon(&done));
        end_kit(&k);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lanes_must_be_set),  cmocka_unit_test(test_nothing_is_recorded),
        cmocka_unit_test(test_order_on_lanes),     cmocka_unit_test(test_another_stream),
        cmocka_unit_test(test_changing_a_lane),    cmocka_unit_test(test_a_late_neighbour),
        cmocka_unit_test(test_a_stream_that_goes), cmocka_unit_test(test_walk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
