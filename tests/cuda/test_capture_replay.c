/* SPDX-License-Identifier: Apache-2.0 */
/* Captured and replayed work leaves the same bytes as eager work: whole iterations and single layers, mixed with eager ones, on every
 * allocator. */
#include <bucketpool/capture.h>

#include "support/driver.h"
#include "training.h"

#define ITERATIONS 12

typedef struct captured {
    bp_capture *capture;
    bp_graph *graph;
} captured;

static captured begin(training *t)
{
    captured c = {0};
    assert_ok(bp_capture_begin(t->k->pool, NULL, &c.capture));
    assert_ok(bp_graph_begin(t->compute));
    training_fork(t);
    return c;
}

static void end(training *t, captured *c)
{
    training_join(t);
    assert_ok(bp_graph_end(t->compute, &c->graph));
    assert_ok(bp_capture_end(c->capture));
}

static void launch(const captured *c, bp_stream *stream)
{
    assert_ok(bp_capture_before_launch(c->capture, stream));
    assert_ok(bp_graph_launch(c->graph, stream));
    assert_ok(bp_capture_launched(c->capture, stream));
}

static void destroy(captured *c)
{
    bp_graph_destroy(&c->graph);
    bp_capture_destroy(&c->capture);
}

static kit open_row(const allocator_row *row, bool promised)
{
    kit k = begin_kit(new_cuda(), UNITS, TRAINING, row->policy, 0);
    bp_pool_config config = config_of(row);
    open_pool(&k, &config);
    if (promised) {
        promise_stream(&k, BP_ROLE_PARAM, k.streams[0]);
        promise_stream(&k, BP_ROLE_GRAD, k.streams[1]);
    }
    return k;
}

/* ---- iterations ---------------------------------------------------------------------------------------------------- */

/* `eager`: a bit for each iteration that is not replayed. */
static void run_iterations(const allocator_row *row, bool promised, uint32_t eager)
{
    KIT k = open_row(row, promised);
    training t;
    training_begin(&t, &k);
    training_set_iteration(&t, 1000);
    training_iterate(&t); /* eagerly, once */
    training_assert_outputs(&t);
    captured c = begin(&t);
    training_iterate(&t);
    end(&t, &c);
    for (uint32_t i = 0; i < ITERATIONS; i++) {
        training_set_iteration(&t, i);
        if (eager >> i & 1)
            training_iterate(&t);
        else
            launch(&c, i % 3 == 2 ? k.streams[3] : t.compute);
        training_assert_outputs(&t);
    }
    const bp_capture_info summary = *bp_capture_get_info(c.capture);
    assert_true(summary.acquires > 0 && summary.acquires == summary.releases && summary.waits > 0 && summary.bytes > 0);
    assert_int_equal(summary.launches, ITERATIONS - (uint32_t)__builtin_popcount(eager & ((1u << ITERATIONS) - 1)));
    destroy(&c);
    training_end(&t);
}

TEST(iterations)
{
    for (size_t i = 0; i < ALLOCATOR_COUNT; i++) {
        if (!ALLOCATORS[i].pooled)
            continue;
        for (int promised = 0; promised < 2; promised++) {
            run_iterations(&ALLOCATORS[i], promised, 0);
            run_iterations(&ALLOCATORS[i], promised, 0x5aa);
        }
    }
}

/* Replays and eager iterations without host waits in between: only the points recorded by launches separate them. Each has different
 * inputs, so that a wrong order shows. */
TEST(back_to_back)
{
    for (size_t i = 0; i < ALLOCATOR_COUNT; i++) {
        if (!ALLOCATORS[i].pooled)
            continue;
        KIT k = open_row(&ALLOCATORS[i], false);
        training t, other;
        training_begin(&t, &k);
        training_begin(&other, &k);
        training_set_iteration(&t, 1);
        training_set_iteration(&other, 2);
        training_iterate(&other);
        training_iterate(&t);
        training_assert_outputs(&t);
        captured c = begin(&t);
        training_iterate(&t);
        end(&t, &c);
        for (uint32_t n = 0; n < ITERATIONS; n++) {
            training_set_iteration(&t, 2 * n);
            training_set_iteration(&other, 2 * n + 1);
            launch(&c, k.streams[3]);
            training_iterate(&other);
            launch(&c, k.streams[3]);
            training_assert_outputs(&t);
            training_assert_outputs(&other);
        }
        destroy(&c);
        training_end(&other);
        training_end(&t);
    }
}

/* ---- layers -------------------------------------------------------------------------------------------------------- */

#define LAYERS 6

TEST(layers)
{
    for (size_t i = 0; i < ALLOCATOR_COUNT; i++) {
        if (!ALLOCATORS[i].pooled)
            continue;
        KIT k = open_row(&ALLOCATORS[i], false);
        training t;
        captured layers[LAYERS];
        training_begin(&t, &k);
        training_set_iteration(&t, 0);
        for (uint32_t u = 0; u < LAYERS; u++)
            training_layer(&t, u);
        for (uint32_t u = 0; u < LAYERS; u++) {
            layers[u] = begin(&t);
            training_layer(&t, u);
            end(&t, &layers[u]);
        }
        for (uint32_t n = 1; n < ITERATIONS; n++) {
            training_set_iteration(&t, n);
            for (uint32_t u = 0; u < LAYERS;
                 u++) { /* neighbours share memory: launches on two streams, some layers eager */
                if ((n + u) % 4 == 0)
                    training_layer(&t, u);
                else
                    launch(&layers[u], u % 2 ? k.streams[3] : t.compute);
            }
            for (uint32_t u = 0; u < LAYERS; u++)
                training_assert_layer(&t, u);
        }
        for (uint32_t u = 0; u < LAYERS; u++)
            destroy(&layers[u]);
        training_end(&t);
    }
}

/* ---- requests live before the capture ------------------------------------------------------------------------------ */

/* Reads a request that was prefetched eagerly, and a persistent one, inside the capture. */
TEST(owned_and_persistent)
{
    gate g = {0};
    KIT k = begin_kit(new_cuda(), UNITS, TRAINING, BP_POLICY_SCHEDULED, 0);
    bp_pool_config config = pool_config();
    config.persistent_bytes = 4096;
    open_pool(&k, &config);
    bp_bind bind = bind_of("", 0, BP_ROLE_PARAM, BP_DTYPE_BF16, 1024);
    bind.placement = BP_PLACE_PERSISTENT;
    uint32_t ids[2] = {0, param(&k, 0)};
    assert_ok(bp_pool_bind(k.pool, &bind, &ids[0]));
    uint8_t *in = take_pinned(), *out = take_pinned();
    void *addresses[2];
    assert_ok(bp_pool_acquire(k.pool, ids, 2, k.streams[0], addresses));
    bp_capture_config capture_config;
    assert_ok(bp_capture_config_init(&capture_config, sizeof capture_config));
    capture_config.owned = &ids[1];
    capture_config.owned_count = 1;
    captured c = {0};
    assert_ok(bp_capture_begin(k.pool, &capture_config, &c.capture));
    assert_ok(bp_graph_begin(k.streams[1]));
    assert_ok(bp_pool_use(k.pool, ids, 2, k.streams[1]));
    void *again;
    assert_ok(bp_pool_acquire(k.pool, &ids[1], 1, k.streams[1], &again));
    assert_ptr_equal(again, addresses[1]);
    assert_ok(bp_stream_copy(k.streams[1], out, addresses[0], 512));
    assert_ok(bp_stream_copy(k.streams[1], out + 512, addresses[1], 512));
    assert_ok(bp_pool_release(k.pool, &ids[1], 1, k.streams[1]));
    assert_ok(bp_graph_end(k.streams[1], &c.graph));
    assert_ok(bp_capture_end(c.capture));
    for (int n = 0; n < 4; n++) {
        for (int i = 0; i < 1024; i++)
            in[i] = (uint8_t)(n * 3 + i);
        assert_ok(bp_stream_copy(k.streams[0], addresses[0], in, 512));
        assert_ok(bp_stream_copy(k.streams[0], addresses[1], in + 512, 512));
        order(k.device, k.streams[0], k.streams[1]);
        launch(&c, k.streams[1]);
        assert_ok(bp_stream_synchronize(k.streams[1]));
        assert_memory_equal(in, out, 1024);
    }
    /* reuse of the owned request's memory waits for the launch, which is blocked */
    block(k.streams[1], &g);
    launch(&c, k.streams[1]);
    assert_ok(bp_pool_release(k.pool, &ids[1], 1, k.streams[0]));
    flag f = 0;
    uint32_t next = param(&k, 2); /* at the same address */
    assert_ptr_equal(take(&k, next, k.streams[2]), addresses[1]);
    raise_on(k.streams[2], &f);
    assert_true(stays_down(&f));
    unblock(&g);
    assert_true(is_raised_soon(&f));
    /* an owned request that was released no longer belongs to the graph */
    assert_fails(bp_capture_before_launch(c.capture, k.streams[1]), BP_ERR_SCHEDULE, "u0", "not live");
    drop(&k, next, k.streams[2]);
    assert_ok(bp_pool_release(k.pool, ids, 1, k.streams[1]));
    destroy(&c);
    give_pinned(in);
    give_pinned(out);
}

/* ---- other pools on the same streams ------------------------------------------------------------------------------- */

/* More points than a ring has are recorded inside a capture. Points recorded earlier by another pool must not be replaced by events of
 * the capture, which cannot be waited for outside. */
TEST(points_of_another_pool)
{
    KIT k = begin_kit(new_cuda(), UNITS, TRAINING, BP_POLICY_MAX, 0);
    bp_pool_config config = pool_config();
    open_pool(&k, &config);
    bp_pool *first = k.pool;
    drop(&k, param(&k, 0), (take(&k, param(&k, 0), k.streams[0]), k.streams[1]));
    open_pool(&k, &config);
    captured c = {0};
    assert_ok(bp_capture_begin(k.pool, NULL, &c.capture));
    assert_ok(bp_graph_begin(k.streams[1]));
    order(k.device, k.streams[1], k.streams[0]);
    for (int i = 0; i < 700; i++) {
        take(&k, param(&k, 1), k.streams[i % 2]);
        drop(&k, param(&k, 1), k.streams[1 - i % 2]);
    }
    order(k.device, k.streams[0], k.streams[1]);
    assert_ok(bp_graph_end(k.streams[1], &c.graph));
    assert_ok(bp_capture_end(c.capture));
    bp_pool *second = k.pool;
    k.pool = first;
    take(&k, param(&k, 0), k.streams[2]); /* waits for its old point */
    drop(&k, param(&k, 0), k.streams[2]);
    k.pool = second;
    launch(&c, k.streams[1]);
    take(&k, param(&k, 1), k.streams[2]);
    drop(&k, param(&k, 1), k.streams[2]);
    assert_ok(bp_device_synchronize(k.device));
    destroy(&c);
    bp_pool_destroy(&first);
}
