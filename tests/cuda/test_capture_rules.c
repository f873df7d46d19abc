/* SPDX-License-Identifier: Apache-2.0 */
/* Refusals of captures, and the pool afterwards: cells of the matrix in docs/guides/cuda_graphs.md, and misuse of captures. */
#include <bucketpool/capture.h>

#include <pthread.h>

#include "captures.h"
#include "support/driver.h"
#include "support/trace_device.h"

TEST(arguments)
{
    KIT k = open_max();
    bp_capture *capture = NULL;
    bp_capture_config config;
    assert_fails(bp_capture_config_init(&config, 3), BP_ERR_INVALID_ARGUMENT, "size of a struct is 3");
    assert_ok(bp_capture_config_init(&config, sizeof config));
    assert_fails(bp_capture_begin(NULL, NULL, &capture), BP_ERR_INVALID_ARGUMENT, "pool");
    assert_fails(bp_capture_begin(k.pool, NULL, NULL), BP_ERR_INVALID_ARGUMENT, "output");
    config.owned_count = 1;
    assert_fails(bp_capture_begin(k.pool, &config, &capture), BP_ERR_INVALID_ARGUMENT, "owned");
    uint32_t ids[2] = {77777, param(&k, 0)};
    config.owned = ids;
    assert_fails(bp_capture_begin(k.pool, &config, &capture), BP_ERR_INVALID_ARGUMENT, "77777");
    config.owned = &ids[1];
    assert_fails(bp_capture_begin(k.pool, &config, &capture), BP_ERR_INVALID_ARGUMENT, "u0", "not live");
    take(&k, ids[1], k.streams[0]);
    ids[0] = ids[1];
    config.owned = ids;
    config.owned_count = 2;
    assert_fails(bp_capture_begin(k.pool, &config, &capture), BP_ERR_INVALID_ARGUMENT, "u0", "twice");
    drop(&k, ids[1], k.streams[0]);
    assert_null(capture);
    assert_fails(bp_capture_end(NULL), BP_ERR_INVALID_ARGUMENT, "the capture is NULL");
    assert_fails(bp_capture_before_launch(NULL, k.streams[0]), BP_ERR_INVALID_ARGUMENT, "the capture is NULL");
    assert_fails(bp_capture_launched(NULL, k.streams[0]), BP_ERR_INVALID_ARGUMENT, "the capture is NULL");
    bp_capture_destroy(NULL);
    bp_capture_destroy(&capture);
    assert_serves(&k);
}

TEST(live_before)
{
    KIT k = open_max();
    bp_capture *capture = NULL;
    take(&k, param(&k, 3), k.streams[2]);
    assert_fails(bp_capture_begin(k.pool, NULL, &capture), BP_ERR_SCHEDULE, "u3", "s2", "acquire 0", "owned");
    assert_false(bp_pool_is_capturing(k.pool));
    drop(&k, param(&k, 3), k.streams[2]);
    capture = begin(&k);
    bp_capture *second = NULL;
    assert_fails(bp_capture_begin(k.pool, NULL, &second), BP_ERR_CAPTURE, "capture.0");
    assert_ok(bp_capture_end(capture));
    assert_fails(bp_capture_end(capture), BP_ERR_CAPTURE, "ended");
    bp_capture_destroy(&capture);
    assert_serves(&k);
}

/* bp_capture_begin precedes the runtime's begin. */
TEST(begun_too_late)
{
    KIT k = open_max();
    bp_capture *capture = NULL;
    drop(&k, param(&k, 0), (take(&k, param(&k, 0), k.streams[0]), k.streams[1]));
    assert_ok(bp_graph_begin(k.streams[1]));
    assert_fails(bp_capture_begin(k.pool, NULL, &capture), BP_ERR_CAPTURE, "s1", "before");
    bp_graph *graph = end_graph(k.streams[1]);
    bp_graph_destroy(&graph);
    assert_serves(&k);
}

TEST(balance)
{
    KIT k = open_max();
    bp_capture *capture = begin(&k);
    assert_ok(bp_graph_begin(k.streams[0]));
    take(&k, param(&k, 1), k.streams[0]);
    bp_graph *graph = end_graph(k.streams[0]);
    assert_fails(bp_capture_end(capture), BP_ERR_SCHEDULE, "u1", "count of", "is 1, expected 0");
    assert_true(bp_pool_is_capturing(k.pool));
    bp_capture_destroy(&capture);
    assert_null(capture);
    bp_graph_destroy(&graph);
    assert_serves(&k);
}

/* Requests live before the capture are live afterwards, and cannot be released inside. */
TEST(abandon_puts_back)
{
    KIT k = open_max();
    uint32_t owned = param(&k, 0);
    void *address = take(&k, owned, k.streams[0]);
    uint64_t live = statistics_of(k.pool).live_bytes;
    bp_capture_config config;
    assert_ok(bp_capture_config_init(&config, sizeof config));
    config.name = "doomed";
    config.owned = &owned;
    config.owned_count = 1;
    assert_ok(bp_pool_trace_start(k.pool, 64, 0));
    bp_capture *capture;
    assert_ok(bp_capture_begin(k.pool, &config, &capture));
    assert_ok(bp_graph_begin(k.streams[0]));
    assert_fails(bp_pool_release(k.pool, &owned, 1, k.streams[0]), BP_ERR_SCHEDULE, "u0", "before the capture");
    take(&k, owned, k.streams[0]);
    take(&k, param(&k, 1), k.streams[0]);
    take(&k, id_of(&k, 1, BP_ROLE_GRAD, 0), k.streams[0]);
    assert_fails(bp_capture_end(capture), BP_ERR_SCHEDULE, "doomed");
    bp_graph *graph = end_graph(k.streams[0]);
    bp_graph_destroy(&graph);
    bp_capture_destroy(&capture);
    size_t held = 0, let_go = 0;
    for (size_t n = 0; n < bp_pool_trace_count(k.pool); n++) {
        bp_pool_event event = {.size = sizeof event};
        assert_ok(bp_pool_trace_get(k.pool, n, &event));
        held += event.kind == BP_EVENT_REF || event.kind == BP_EVENT_ACQUIRE;
        let_go += event.kind == BP_EVENT_UNREF || event.kind == BP_EVENT_CANCEL;
    }
    assert_int_equal(held, 3); /* acquires and releases in a trace still balance */
    assert_int_equal(let_go, 3);
    bp_pool_trace_stop(k.pool);
    assert_int_equal(live_count(k.pool), 1);
    assert_int_equal(statistics_of(k.pool).live_bytes, live);
    assert_ptr_equal(address_of(&k, owned), address);
    drop(&k, owned, k.streams[0]);
    assert_int_equal(statistics_of(k.pool).live_bytes, 0);
    assert_serves(&k);
}

/* ---- inside -------------------------------------------------------------------------------------------------------- */

/* capture x registration: refused inside; attached observers stay; attaching afterwards leaves the graph valid. */
TEST(matrix_registration)
{
    KIT k = open_max();
    int before = 0, inside = 0, after = 0;
    const int slabs = (int)bp_pool_get_info(k.pool)->slab_count;
    assert_ok(bp_pool_attach(k.pool, &COUNTING, &before));
    assert_int_equal(before, slabs);
    CAPTURED c = capture_on(&k, k.streams[0], NULL);
    drop(&k, param(&k, 0), (take(&k, param(&k, 0), k.streams[0]), k.streams[0]));
    assert_fails(bp_pool_attach(k.pool, &COUNTING, &inside), BP_ERR_CAPTURE, "capture.0", "before or after");
    assert_fails(bp_pool_detach(k.pool, &COUNTING, &before), BP_ERR_CAPTURE, "bp_pool_detach");
    assert_fails(bp_pool_set_stream(k.pool, k.ids, 1, k.streams[0]), BP_ERR_CAPTURE, "bp_pool_set_stream");
    end_captured(&c);
    assert_int_equal(before, slabs);
    assert_int_equal(inside, 0);
    assert_ok(bp_pool_attach(k.pool, &COUNTING, &after));
    assert_int_equal(after, slabs);
    launch(c.capture, c.graph, k.streams[0]);
    assert_ok(bp_pool_detach(k.pool, &COUNTING, &after));
    assert_ok(bp_pool_detach(k.pool, &COUNTING, &before));
    assert_int_equal(before, 0);
}

TEST(dynamic_inside)
{
    KIT k = open_max();
    bp_bind bind = bind_of("", 3, BP_ROLE_PARAM, BP_DTYPE_BF16, 512);
    bind.placement = BP_PLACE_DYNAMIC;
    uint32_t id;
    assert_ok(bp_pool_bind(k.pool, &bind, &id));
    bp_capture *capture = begin(&k);
    void *address = NULL;
    assert_fails(bp_pool_acquire(k.pool, &id, 1, k.streams[0], &address), BP_ERR_CAPTURE, "stream s0",
                 "is not part of");
    assert_ok(bp_graph_begin(k.streams[0]));
    assert_fails(bp_pool_acquire(k.pool, &id, 1, k.streams[0], &address), BP_ERR_CAPTURE, "dynamic", "captured");
    assert_null(address);
    bp_graph *graph = end_graph(k.streams[0]);
    assert_ok(bp_capture_end(capture));
    bp_graph_destroy(&graph);
    bp_capture_destroy(&capture);
    assert_serves(&k);
}

/* Addresses become part of the graph: at any `strict` a request keeps its buffer, and overflow memory is not served. */
TEST(no_deviation_inside)
{
    KIT k = begin_kit(new_cuda(), "500 500 500", TRAINING, BP_POLICY_MAX, 2);
    bp_pool_config config = pool_config();
    config.strict = BP_STRICT_OFF;
    config.overflow_bytes = 8192;
    open_pool(&k, &config);
    assert_ok(bp_pool_allow_overflow(k.pool, 1));
    void *first = address_of(&k, param(&k, 0)); /* the first copy, of u0 and u2 */
    CAPTURED c = capture_on(&k, k.streams[0], NULL);
    assert_ptr_equal(take(&k, param(&k, 2), k.streams[0]), first);
    assert_refused(&k, param(&k, 0), k.streams[0], "u0", "u2, bucket.0 holds it");
    drop(&k, param(&k, 2), k.streams[0]);
    assert_ptr_equal(take(&k, param(&k, 0), k.streams[0]), first);
    drop(&k, param(&k, 0), k.streams[0]);
    end_captured(&c);
    assert_ptr_equal(take(&k, param(&k, 2), k.streams[0]), first);
    assert_ptr_not_equal(take(&k, param(&k, 0), k.streams[0]), first); /* may move again outside */
    drop(&k, param(&k, 0), k.streams[0]);
    drop(&k, param(&k, 2), k.streams[0]);
}

TEST(streams_made_inside)
{
    KIT k = open_max();
    bp_capture *capture = begin(&k);
    assert_ok(bp_graph_begin(k.streams[0]));
    bp_stream *late;
    assert_ok(bp_stream_create(k.device, "late", &late));
    order(k.device, k.streams[0], late);
    take(&k, param(&k, 0), late);
    uint32_t id = param(&k, 0);
    assert_fails(bp_pool_release(k.pool, &id, 1, late), BP_ERR_CAPTURE, "late", "before bp_capture_begin");
    order(k.device, late, k.streams[0]);
    bp_graph *graph = end_graph(k.streams[0]);
    bp_graph_destroy(&graph);
    bp_capture_destroy(&capture);
    bp_stream_destroy(&late);
    assert_serves(&k);
}

static bp_status destroy_on_event_create(void *user, const device_call *call)
{
    if (call->operation == OP_EVENT_CREATE)
        bp_stream_destroy((bp_stream **)user);
    return BP_OK;
}

/* A stream may be destroyed while begin makes the rings for captures. */
TEST(stream_destroyed_by_another)
{
    bp_stream *victim = NULL;
    bp_device *inner = new_cuda(), *device;
    assert_ok(trace_device_create(inner, destroy_on_event_create, &victim, &device));
    bp_device_destroy(&inner);
    kit k = start_kit(device, UNITS, TRAINING, BP_POLICY_MAX, 0);
    bp_stream *made;
    assert_ok(bp_stream_create(k.device, "victim", &made));
    victim = made;
    bp_capture *capture = begin(&k);
    assert_null(victim);
    assert_ok(bp_capture_end(capture));
    bp_capture_destroy(&capture);
    assert_serves(&k);
    end_kit(&k); /* no events are left */
}

/* ---- checked mode -------------------------------------------------------------------------------------------------- */

TEST(undeclared)
{
    KIT k = begin_kit(new_cuda(), UNITS, TRAINING, BP_POLICY_MAX, 0);
    bp_pool_config config = pool_config();
    config.capture_check = BP_CAPTURE_CHECK_ALWAYS;
    open_pool(&k, &config);
    uint32_t id = param(&k, 0);
    take(&k, id, k.streams[0]);
    assert_ok(bp_graph_begin(k.streams[1]));
    assert_fails(bp_pool_release(k.pool, &id, 1, k.streams[1]), BP_ERR_CAPTURE, "s1", "declare", "bp_capture_begin");
    assert_fails(bp_pool_use(k.pool, &id, 1, k.streams[1]), BP_ERR_CAPTURE, "s1");
    void *address;
    uint32_t other = param(&k, 1);
    assert_fails(bp_pool_acquire(k.pool, &other, 1, k.streams[1], &address), BP_ERR_CAPTURE, "s1");
    bp_graph *graph = end_graph(k.streams[1]);
    bp_graph_destroy(&graph);
    drop(&k, id, k.streams[1]);
    assert_serves(&k);
}

/* A launch on a captured stream would become part of another graph. */
TEST(launch_on_captured_stream)
{
    KIT k = begin_kit(new_cuda(), UNITS, TRAINING, BP_POLICY_MAX, 0);
    bp_pool_config config = pool_config();
    config.capture_check = BP_CAPTURE_CHECK_ALWAYS;
    open_pool(&k, &config);
    bp_capture *capture = begin(&k);
    assert_ok(bp_graph_begin(k.streams[0]));
    drop(&k, param(&k, 0), (take(&k, param(&k, 0), k.streams[0]), k.streams[0]));
    bp_graph *graph = end_graph(k.streams[0]), *other;
    assert_ok(bp_capture_end(capture));
    assert_ok(bp_graph_begin(k.streams[1]));
    assert_fails(bp_capture_before_launch(capture, k.streams[1]), BP_ERR_CAPTURE, "before_launch", "s1", "declare");
    other = end_graph(k.streams[1]);
    assert_ok(bp_capture_before_launch(capture, k.streams[1]));
    assert_ok(bp_capture_launched(capture, NULL));
    bp_graph_destroy(&other);
    bp_graph_destroy(&graph);
    bp_capture_destroy(&capture);
    assert_serves(&k);
}

/* Even without the check the driver refuses the wait; the message is ours. */
TEST(undeclared_and_unchecked)
{
    KIT k = begin_kit(new_cuda(), "500 500 500", TRAINING, BP_POLICY_MAX, 2);
    bp_pool_config config = pool_config();
    config.capture_check = BP_CAPTURE_CHECK_OFF;
    open_pool(&k, &config);
    uint32_t id = param(&k, 0);
    take(&k, id, k.streams[0]);
    assert_ok(bp_graph_begin(k.streams[1]));
    drop(&k, id, k.streams[1]); /* its event becomes the capture's */
    bp_graph *graph = end_graph(k.streams[1]);
    void *address;
    assert_fails(bp_pool_acquire(k.pool, &id, 1, k.streams[2], &address), BP_ERR_CAPTURE, "bp_capture_begin");
    bp_graph_destroy(&graph);
}

TEST(pool_destroyed_first)
{
    KIT k = open_max();
    bp_capture *capture = begin(&k), *open;
    assert_ok(bp_capture_end(capture));
    open = begin(&k);
    bp_pool_destroy(&k.pool);
    assert_fails(bp_capture_before_launch(capture, k.streams[0]), BP_ERR_INVALID_ARGUMENT, "destroyed");
    assert_fails(bp_capture_end(open), BP_ERR_INVALID_ARGUMENT, "destroyed");
    const bp_capture_info summary = *bp_capture_get_info(capture);
    assert_string_equal(summary.name, "capture.0");
    bp_capture_destroy(&capture);
    bp_capture_destroy(&open);
}

typedef struct capturer {
    bp_stream *stream;
    flag begun, over;
    gate *gate; /* blocked work on another stream, released after a while */
} capturer;

static void *capture_elsewhere(void *argument)
{
    capturer *c = argument;
    bp_graph *graph = NULL;
    (void)bp_graph_begin(c->stream);
    atomic_store(&c->begun, 1);
    pause_us(20000);
    unblock(c->gate);
    while (!atomic_load(&c->over))
        pause_us(100);
    (void)bp_graph_end(c->stream, &graph);
    bp_graph_destroy(&graph);
    return NULL;
}

/* Another thread captures something else, so that a device-wide wait is not allowed: the pool waits for its own work all the same. */
TEST(pool_destroyed_while_others_capture)
{
    gate g = {0};
    KIT k = open_max();
    flag ran = 0;
    capturer c = {.stream = k.streams[3], .gate = &g};
    pthread_t thread;
    take(&k, param(&k, 0), k.streams[0]);
    block(k.streams[0], &g);
    raise_on(k.streams[0], &ran);
    assert_int_equal(pthread_create(&thread, NULL, capture_elsewhere, &c), 0);
    while (!atomic_load(&c.begun))
        pause_us(100);
    bp_pool_destroy(&k.pool);
    assert_int_equal(atomic_load(&ran), 1);
    atomic_store(&c.over, 1);
    pthread_join(thread, NULL);
}

TEST(touched_slabs)
{
    KIT k = open_max();
    CAPTURED c = capture_on(&k, k.streams[0], NULL);
    uint32_t id = param(&k, 4);
    void *address = take(&k, id, k.streams[0]);
    drop(&k, id, k.streams[0]);
    end_captured(&c);
    for (uint32_t s = 0; s < bp_pool_get_info(k.pool)->slab_count; s++) {
        const bp_pool_slab slab = bp_pool_get_info(k.pool)->slabs[s];
        bool inside = (char *)address >= (char *)slab.address && (char *)address < (char *)slab.address + slab.bytes;
        assert_int_equal(touched_slab(c.capture, s) != NULL, inside);
    }
}
