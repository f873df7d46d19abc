/* SPDX-License-Identifier: Apache-2.0 */
/* Captured graphs and offload: the offload row of the matrix in docs/guides/cuda_graphs.md. */
#include <pthread.h>

#include "graphs.h"
#include "support/driver.h"

static const char *const TOUCHED[] = {"param", "grad", "state"};

/* ---- before and inside captures ------------------------------------------------------------------------------------ */

/* `second`: another pool of the device is captured. */
static void check_inside(bool second_is)
{
    STORE s = open_store(new_cuda(), NULL, NULL);
    bp_pool *second = NULL;
    bp_offload *late = NULL;
    bp_capture *capture = NULL;
    bp_lease *lease = NULL;
    uint32_t owned[64];
    assert_ok(bp_pool_create(s.k.device, s.k.plan, NULL, &second));
    keep(&s, "state");
    bring_back(&s, "state", BP_RESTORE_LEAVE);
    begin_keep(&s, "optimizer");
    keep(&s, "main_grad");
    keep(&s, "grad");
    begin_restore(&s, "grad", BP_RESTORE_LEAVE);
    bp_capture_config config = capture_config(&s, owned);
    assert_ok(bp_capture_begin(second_is ? second : s.k.pool, second_is ? NULL : &config, &capture));
    assert_refuses(&s, bp_offload_begin(s.offload, "param", BP_OFFLOAD_KEEP), BP_ERR_CAPTURE, "captured");
    assert_refuses(&s, bp_offload_begin(s.offload, "param", BP_OFFLOAD_DISCARD), BP_ERR_CAPTURE, "captured");
    assert_refuses(&s, bp_offload_finish(s.offload, "optimizer"), BP_ERR_CAPTURE, "captured");
    assert_refuses(&s, bp_restore_begin(s.offload, "main_grad", BP_RESTORE_LEAVE), BP_ERR_CAPTURE, "captured");
    assert_refuses(&s, bp_restore_finish(s.offload, "grad"), BP_ERR_CAPTURE, "captured");
    if (second_is)
        assert_fails(bp_offload_create(second, NULL, &late), BP_ERR_CAPTURE, "captured");
    assert_null(late);
    assert_ok(bp_lease_take(s.offload, "param", "checkpoint", &lease));
    bp_lease_return(&lease);
    bp_offload_trim(s.offload); /* a driver does not unpin during captures */
    assert_int_equal(group_of(s.offload, "state").host_bytes, bytes_of_group(&s, "state"));
    bp_capture_destroy(&capture);
    bp_offload_trim(s.offload);
    assert_int_equal(group_of(s.offload, "state").host_bytes, 0);
    finish_offload(&s, "optimizer");
    bring_back(&s, "main_grad", BP_RESTORE_LEAVE);
    finish_restore(&s, "grad", BP_RESTORE_LEAVE);
    bring_back(&s, "optimizer", BP_RESTORE_LEAVE);
    assert_bytes(&s);
    bp_pool_destroy(&second);
}

/* Every call is refused while a pool of the device is captured, this one or another; leases do not involve the device. */
TEST(offload_inside)
{
    check_inside(false);
}

TEST(offload_inside_another)
{
    check_inside(true);
}

/* A capture is possible while a group is offloaded; its requests cannot be acquired inside either. */
TEST(offload_before)
{
    STORE s = open_store(new_cuda(), &(store_options){.roles = PARAM | GRAD}, NULL);
    uint32_t gradient = of_role(&s, BP_ROLE_GRAD), parameter = of_role(&s, BP_ROLE_PARAM);
    bp_capture *capture = NULL;
    bp_graph *graph = NULL;
    keep(&s, "grad");
    assert_ok(bp_capture_begin(s.k.pool, NULL, &capture));
    assert_ok(bp_graph_begin(s.k.streams[0]));
    drop(&s.k, parameter, (take(&s.k, parameter, s.k.streams[0]), s.k.streams[0]));
    assert_refused(&s.k, gradient, s.k.streams[0], "grad", "offloaded");
    assert_ok(bp_graph_end(s.k.streams[0], &graph));
    assert_ok(bp_capture_end(capture));
    recorded r = {capture, graph};
    replay(&r, s.k.streams[0]);
    bring_back(&s, "grad", BP_RESTORE_LEAVE);
    replay(&r, s.k.streams[0]);
    assert_bytes(&s);
    forget_graph(&r);
}

/* ---- captured graphs ----------------------------------------------------------------------------------------------- */

/* A graph without collectives is valid after a restore, at the same addresses; while its memory is offloaded it cannot be launched. */
TEST(offload_of_a_graph)
{
    STORE s = open_store(new_cuda(), NULL, NULL);
    recorded r = record_graph(&s, "layer", BP_CAPTURE_COLLECTIVES_AUTO);
    for (uint32_t slab = 0; slab < s.slab_count; slab++)
        assert_false(has_collectives(r.capture, slab));
    assert_replays(&s, &r);
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < 3; i++) {
            const char *group = TOUCHED[i];
            begin_keep(&s, group);
            assert_fails(bp_capture_before_launch(r.capture, s.k.streams[0]), BP_ERR_SCHEDULE, group);
            finish_offload(&s, group);
            assert_fails(bp_capture_before_launch(r.capture, s.k.streams[0]), BP_ERR_SCHEDULE, group);
            begin_restore(&s, group, BP_RESTORE_LEAVE);
            assert_fails(bp_capture_before_launch(r.capture, s.k.streams[0]), BP_ERR_SCHEDULE, group);
            finish_restore(&s, group, BP_RESTORE_LEAVE);
            assert_replays(&s, &r);
        }
        keep(&s, "optimizer"); /* groups that the graph does not touch may be offloaded */
        discard(&s, "main_grad");
        assert_replays(&s, &r);
        bring_back(&s, "optimizer", BP_RESTORE_LEAVE);
        bring_back(&s, "main_grad", BP_RESTORE_ZERO);
        assert_replays(&s, &r);
    }
    forget_graph(&r);
}

/* Between before_launch and launched the launch holds its memory. An offload waits for work of the launch. */
TEST(offload_launching)
{
    STORE s = open_store(new_cuda(), NULL, NULL);
    recorded r = record_graph(&s, "layer", BP_CAPTURE_COLLECTIVES_AUTO);
    assert_ok(bp_capture_before_launch(r.capture, s.k.streams[0]));
    for (size_t i = 0; i < 3; i++) /* the last one is owned */
        assert_refuses(&s, bp_offload_begin(s.offload, TOUCHED[i], BP_OFFLOAD_KEEP), BP_ERR_SCHEDULE, TOUCHED[i],
                       "launch");
    keep(&s, "optimizer");
    bring_back(&s, "optimizer", BP_RESTORE_LEAVE);
    assert_ok(bp_capture_launched(r.capture, NULL));
    gate g = {0};
    pthread_t opener;
    block(s.k.streams[0], &g);
    uint32_t from = of_role(&s, BP_ROLE_STATE);
    write_request(&s, from, s.k.streams[0]);
    replay(&r, s.k.streams[0]);
    begin_keep(&s, "grad"); /* the replay is still blocked */
    begin_keep(&s, "param");
    assert_int_equal(pthread_create(&opener, NULL, unblock_later, &g), 0);
    finish_offload(&s, "grad");
    finish_offload(&s, "param");
    assert_int_equal(pthread_join(opener, NULL), 0);
    bring_back(&s, "param", BP_RESTORE_LEAVE);
    bring_back(&s, "grad", BP_RESTORE_LEAVE);
    uint64_t bytes = request_at(&s, from)->bytes;
    const bp_role roles[] = {BP_ROLE_STATE, BP_ROLE_PARAM, BP_ROLE_GRAD};
    uint8_t *found[3];
    for (size_t i = 0; i < 3; i++) {
        found[i] = malloc(bytes);
        assert_non_null(found[i]);
        assert_ok(bp_stream_copy(s.k.streams[1], found[i], address_of(&s.k, of_role(&s, roles[i])), bytes));
        assert_ok(bp_stream_synchronize(s.k.streams[1]));
    }
    assert_memory_equal(found[1], found[0], bytes); /* it ran before the copies */
    assert_memory_equal(found[2], found[0], bytes);
    for (size_t i = 0; i < 3; i++)
        free(found[i]);
    assert_replays(&s, &r);
    forget_graph(&r);
}

/* Persistent memory stays live: a graph uses it, and its launches do not claim it. */
TEST(offload_of_persistent)
{
    STORE s = open_store(new_cuda(), &(store_options){.roles = PARAM | GRAD, .persistent_bytes = 8192}, NULL);
    recorded r = {NULL, NULL};
    bp_stream *stream = s.k.streams[0];
    uint32_t gradient = of_role(&s, BP_ROLE_GRAD);
    assert_ok(bp_capture_begin(s.k.pool, NULL, &r.capture));
    assert_ok(bp_graph_begin(stream));
    assert_ok(bp_pool_use(s.k.pool, &s.persistent, 1, stream));
    void *to = take(&s.k, gradient, stream);
    assert_ok(bp_stream_copy(stream, to, address_of(&s.k, s.persistent), 512));
    drop(&s.k, gradient, stream);
    assert_ok(bp_graph_end(stream, &r.graph));
    assert_ok(bp_capture_end(r.capture));
    assert_non_null(touched_slab(r.capture, (uint32_t)slab_of_group(&s, "persistent")));
    keep(&s, "persistent");
    assert_fails(bp_capture_before_launch(r.capture, stream), BP_ERR_SCHEDULE, "persistent");
    bring_back(&s, "persistent", BP_RESTORE_LEAVE);
    assert_ok(bp_capture_before_launch(r.capture, stream));
    assert_refuses(&s, bp_offload_begin(s.offload, "persistent", BP_OFFLOAD_KEEP), BP_ERR_SCHEDULE, "launch");
    assert_ok(bp_graph_launch(r.graph, stream));
    assert_ok(bp_capture_launched(r.capture, stream));
    keep(&s, "persistent");
    keep(&s, "param");
    bring_back(&s, "persistent", BP_RESTORE_LEAVE);
    replay(&r, stream);
    bring_back(&s, "param", BP_RESTORE_LEAVE);
    memcpy(s.bytes[slab_of_group(&s, "grad")] + ((uintptr_t)to - (uintptr_t)s.slabs[slab_of_group(&s, "grad")].address),
           s.bytes[slab_of_group(&s, "persistent")], 512);
    assert_bytes(&s);
    forget_graph(&r);
}

/* ---- captures of others -------------------------------------------------------------------------------------------- */

typedef struct capturer {
    bp_stream *stream;
    flag begun, over;
    bp_status status[2];
} capturer;

static void *capture_elsewhere(void *argument)
{
    capturer *c = argument;
    bp_graph *graph = NULL;
    c->status[0] = bp_graph_begin(c->stream);
    atomic_store(&c->begun, 1);
    while (!atomic_load(&c->over))
        pause_us(100);
    c->status[1] = bp_graph_end(c->stream, &graph);
    bp_graph_destroy(&graph);
    return NULL;
}

/* A stream captured on another thread without this library: the offload does not wait for it, and its capture stays valid. */
TEST(offload_while_others_capture)
{
    STORE s = open_store(new_cuda(), NULL, NULL);
    bp_stream *stream = NULL;
    assert_ok(bp_stream_create(s.k.device, "elsewhere", &stream));
    capturer c = {.stream = stream};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, capture_elsewhere, &c), 0);
    while (!atomic_load(&c.begun))
        pause_us(100);
    keep(&s, "optimizer");
    discard(&s, "main_grad");
    bring_back(&s, "optimizer", BP_RESTORE_LEAVE);
    bring_back(&s, "main_grad", BP_RESTORE_ZERO);
    atomic_store(&c.over, 1);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(c.status[0], BP_OK);
    assert_int_equal(c.status[1], BP_OK);
    assert_bytes(&s);
    bp_stream_destroy(&stream);
}
