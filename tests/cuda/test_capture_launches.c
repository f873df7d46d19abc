/* SPDX-License-Identifier: Apache-2.0 */
/* Launches: their waits, waits of later requests, their memory, and requests that were live when the capture began. */
#include <bucketpool/capture.h>

#include "captures.h"
#include "support/driver.h"

TEST(launches)
{
    gate h = {0};
    gate g = {0};
    KIT k = open_max();
    bp_capture *capture = begin(&k);
    assert_fails(bp_capture_before_launch(capture, k.streams[0]), BP_ERR_CAPTURE, "not ended");
    assert_ok(bp_graph_begin(k.streams[0]));
    drop(&k, param(&k, 0), (take(&k, param(&k, 0), k.streams[0]), k.streams[0]));
    bp_graph *graph = end_graph(k.streams[0]);
    assert_ok(bp_capture_end(capture));
    assert_fails(bp_capture_launched(capture, k.streams[0]), BP_ERR_SCHEDULE, "before_launch");
    take(&k, param(&k, 0), k.streams[1]);
    assert_fails(bp_capture_before_launch(capture, k.streams[0]), BP_ERR_SCHEDULE, "capture.0", "u0", "holds");
    drop(&k, param(&k, 0), k.streams[1]);
    assert_ok(bp_capture_before_launch(capture, k.streams[0]));
    assert_ok(bp_capture_before_launch(capture, k.streams[0]));
    uint32_t id = param(&k, 0);
    int can = 1;
    assert_ok(bp_pool_can_acquire(k.pool, &id, 1, NULL, 0, &can));
    assert_int_equal(can, 0);
    assert_false(try_take(&k, id, k.streams[1]));
    assert_refused(&k, id, k.streams[1], "launch of a graph");
    bp_capture *second = NULL;
    assert_ok(bp_capture_launched(capture, NULL)); /* it failed */
    take(&k, id, k.streams[1]);
    drop(&k, id, k.streams[1]);
    /* no capture can begin between before_launch and launched, nor the graph be launched while it runs */
    second = begin(&k);
    assert_fails(bp_capture_before_launch(capture, k.streams[0]), BP_ERR_CAPTURE, "capture.1");
    bp_capture_destroy(&second);
    /* ordered after eager work, and before later eager work */
    flag ran = 0, after = 0;
    take(&k, id, k.streams[1]);
    block(k.streams[1], &g);
    drop(&k, id, k.streams[1]);
    launch(capture, graph, k.streams[2]);
    raise_on(k.streams[2], &ran);
    assert_true(stays_down(&ran));
    unblock(&g);
    assert_true(is_raised_soon(&ran));
    block(k.streams[2], &h);
    launch(capture, graph, k.streams[2]);
    take(&k, id, k.streams[3]);
    raise_on(k.streams[3], &after);
    assert_true(stays_down(&after));
    unblock(&h);
    assert_true(is_raised_soon(&after));
    drop(&k, id, k.streams[3]);
    bp_graph_destroy(&graph);
    bp_capture_destroy(&capture);
    assert_serves(&k);
}

/* Between before_launch and launched other memory of the pool stays usable. */
TEST(launching)
{
    KIT k = open_max();
    int attached = 0;
    bp_capture *captures[2];
    bp_graph *graphs[2];
    for (int i = 0; i < 2; i++) { /* the same memory */
        captures[i] = begin(&k);
        assert_ok(bp_graph_begin(k.streams[0]));
        drop(&k, param(&k, 0), (take(&k, param(&k, 0), k.streams[0]), k.streams[0]));
        graphs[i] = end_graph(k.streams[0]);
        assert_ok(bp_capture_end(captures[i]));
    }
    assert_ok(bp_capture_before_launch(captures[0], k.streams[0]));
    assert_fails(bp_capture_before_launch(captures[1], k.streams[1]), BP_ERR_SCHEDULE, "capture.1", "another graph");
    assert_ok(bp_pool_attach(k.pool, &COUNTING, &attached));
    assert_ok(bp_pool_detach(k.pool, &COUNTING, &attached));
    const uint32_t next = param(&k, 1);
    assert_ok(bp_pool_set_stream(k.pool, &next, 1, k.streams[2]));
    drop(&k, next, (take(&k, next, k.streams[2]), k.streams[2]));
    assert_ok(bp_pool_set_stream(k.pool, &next, 1, NULL));
    assert_ok(bp_graph_launch(graphs[0], k.streams[0]));
    assert_ok(bp_capture_launched(captures[0], k.streams[0]));
    assert_ok(bp_capture_before_launch(captures[1], k.streams[1]));
    assert_ok(bp_capture_launched(captures[1], NULL));
    for (int i = 0; i < 2; i++) {
        bp_graph_destroy(&graphs[i]);
        bp_capture_destroy(&captures[i]);
    }
    assert_serves(&k);
}

/* An owned request that a graph reads has a fixed address. */
TEST(owned_moved)
{
    KIT k = begin_kit(new_cuda(), "500 500 500", TRAINING, BP_POLICY_MAX, 2);
    bp_pool_config config = pool_config();
    config.strict = BP_STRICT_OFF;
    open_pool(&k, &config);
    uint32_t owned = param(&k, 0), other = param(&k, 2);
    void *address = take(&k, owned, k.streams[0]);
    CAPTURED c = capture_on(&k, k.streams[1], &owned);
    assert_ok(bp_pool_use(k.pool, &owned, 1, k.streams[1]));
    end_captured(&c);
    drop(&k, owned, k.streams[0]);
    assert_ptr_equal(take(&k, other, k.streams[0]), address);
    assert_ptr_not_equal(take(&k, owned, k.streams[0]), address);
    assert_fails(bp_capture_before_launch(c.capture, k.streams[1]), BP_ERR_SCHEDULE, "u0", "its address has changed");
    drop(&k, owned, k.streams[0]);
    drop(&k, other, k.streams[0]);
    assert_ptr_equal(take(&k, owned, k.streams[0]), address);
    assert_ok(bp_capture_before_launch(c.capture, k.streams[1]));
    assert_ok(bp_capture_launched(c.capture, NULL));
    drop(&k, owned, k.streams[0]);
}

/* An owned request became live again after the capture: the launch waits once for the earlier users of its memory. */
TEST(owned_again)
{
    gate g = {0}, h = {0};
    KIT k = open_max();
    uint32_t owned = param(&k, 0);
    take(&k, owned, k.streams[0]);
    CAPTURED c = capture_on(&k, k.streams[1], &owned);
    drop(&k, owned, (take(&k, owned, k.streams[1]), k.streams[1]));
    end_captured(&c);
    flag ran = 0, again = 0;
    assert_ok(bp_pool_use(k.pool, &owned, 1, k.streams[2]));
    block(k.streams[2], &g);
    drop(&k, owned, k.streams[2]);
    take(&k, owned, k.streams[0]);
    launch(c.capture, c.graph, k.streams[1]);
    raise_on(k.streams[1], &ran);
    assert_true(stays_down(&ran));
    unblock(&g);
    assert_true(is_raised_soon(&ran));
    block(k.streams[0], &h); /* later work of its holders does not concern the next launch */
    block(k.streams[2], &h);
    assert_ok(bp_capture_before_launch(c.capture, k.streams[1]));
    assert_ok(bp_capture_launched(c.capture, k.streams[1]));
    raise_on(k.streams[1], &again);
    assert_true(is_raised_soon(&again));
    unblock(&h);
    drop(&k, owned, k.streams[0]);
    forget(&c);
    assert_serves(&k);
}

/* Zeros of an acquire after the capture are written before the launch. */
TEST(owned_zeros)
{
    gate g = {0};
    KIT k = open_max();
    bp_bind bind = bind_of("", 0, BP_ROLE_PARAM, BP_DTYPE_BF16, 1024);
    uint32_t id;
    bind.placement = BP_PLACE_PERSISTENT;
    assert_ok(bp_pool_bind(k.pool, &bind, &id));
    assert_ok(bp_pool_set_zero(k.pool, &id, 1, BP_ZERO_ALL));
    take(&k, id, k.streams[0]);
    CAPTURED c = capture_on(&k, k.streams[1], NULL);
    drop(&k, id, (take(&k, id, k.streams[1]), k.streams[1]));
    end_captured(&c);
    drop(&k, id, k.streams[0]);
    flag ran = 0;
    block(k.streams[0], &g);
    take(&k, id, k.streams[0]);
    launch(c.capture, c.graph, k.streams[1]);
    raise_on(k.streams[1], &ran);
    assert_true(stays_down(&ran));
    unblock(&g);
    assert_true(is_raised_soon(&ran));
    drop(&k, id, k.streams[0]);
    forget(&c);
    assert_serves(&k);
}

/* A launch needs a stream entry of each owned request; the error comes before the graph runs. */
TEST(owned_on_max_streams)
{
    KIT k = open_max();
    uint32_t owned = param(&k, 0);
    bp_stream *streams[BP_LIVE_STREAMS];
    for (int i = 0; i < BP_LIVE_STREAMS; i++)
        assert_ok(bp_stream_create(k.device, NULL, &streams[i]));
    take(&k, owned, streams[0]);
    CAPTURED c = capture_on(&k, k.streams[1], &owned);
    assert_ok(bp_pool_use(k.pool, &owned, 1, k.streams[1]));
    drop(&k, param(&k, 1), (take(&k, param(&k, 1), k.streams[1]), k.streams[1]));
    end_captured(&c);
    for (int i = 1; i < BP_LIVE_STREAMS; i++)
        assert_ok(bp_pool_use(k.pool, &owned, 1, streams[i]));
    assert_fails(bp_capture_before_launch(c.capture, k.streams[1]), BP_ERR_SCHEDULE, "u0", "8 streams");
    drop(&k, param(&k, 1), (take(&k, param(&k, 1), k.streams[2]), k.streams[2])); /* nothing was taken */
    assert_ok(bp_capture_before_launch(c.capture, streams[3]));
    assert_ok(bp_capture_launched(c.capture, NULL));
    drop(&k, owned, streams[0]);
    for (int i = 0; i < BP_LIVE_STREAMS; i++)
        bp_stream_destroy(&streams[i]);
    forget(&c);
    assert_serves(&k);
}

/* A graph destroyed between the two calls frees its memory, also during another capture. */
TEST(forgotten_while_launching)
{
    KIT k = open_max();
    bp_capture *capture = begin(&k);
    assert_ok(bp_graph_begin(k.streams[0]));
    drop(&k, param(&k, 0), (take(&k, param(&k, 0), k.streams[0]), k.streams[0]));
    bp_graph *graph = end_graph(k.streams[0]);
    assert_ok(bp_capture_end(capture));
    assert_ok(bp_capture_before_launch(capture, k.streams[0]));
    bp_capture *second = begin(&k);
    bp_capture_destroy(&capture);
    assert_ok(bp_capture_end(second));
    bp_capture_destroy(&second);
    bp_graph_destroy(&graph);
    assert_serves(&k);
}
