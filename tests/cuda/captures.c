/* SPDX-License-Identifier: Apache-2.0 */
/* Pools to capture, and captures. */
#include <bucketpool/capture.h>

#include "captures.h"
#include "support/driver.h"

kit open_max(void)
{
    kit k = begin_kit(new_cuda(), UNITS, TRAINING, BP_POLICY_MAX, 0);
    bp_pool_config config = pool_config();
    config.persistent_bytes = 4096;
    config.overflow_bytes = 8192;
    open_pool(&k, &config);
    return k;
}

bp_capture *begin(const kit *k)
{
    bp_capture *capture = NULL;
    assert_ok(bp_capture_begin(k->pool, NULL, &capture));
    assert_true(bp_pool_is_capturing(k->pool));
    return capture;
}

bp_capture *begin_owned(const kit *k, uint32_t owned)
{
    bp_capture *capture = NULL;
    bp_capture_config config;
    assert_ok(bp_capture_config_init(&config, sizeof config));
    config.owned = &owned;
    config.owned_count = 1;
    assert_ok(bp_capture_begin(k->pool, &config, &capture));
    return capture;
}

bp_graph *end_graph(bp_stream *stream)
{
    bp_graph *graph = NULL;
    assert_ok(bp_graph_end(stream, &graph));
    return graph;
}

captured capture_on(const kit *k, bp_stream *stream, const uint32_t *owned)
{
    captured c = {.stream = stream, .capture = owned != NULL ? begin_owned(k, *owned) : begin(k)};
    assert_ok(bp_graph_begin(stream));
    return c;
}

void end_captured(captured *c)
{
    c->graph = end_graph(c->stream);
    assert_ok(bp_capture_end(c->capture));
}

void forget(captured *c)
{
    bp_graph_destroy(&c->graph);
    bp_capture_destroy(&c->capture);
}

void launch(bp_capture *capture, bp_graph *graph, bp_stream *stream)
{
    assert_ok(bp_capture_before_launch(capture, stream));
    assert_ok(bp_graph_launch(graph, stream));
    assert_ok(bp_capture_launched(capture, stream));
}

/* The pool still serves requests. */
void assert_serves(kit *k)
{
    assert_false(bp_pool_is_capturing(k->pool));
    assert_int_equal(live_count(k->pool), 0);
    walk(k, 2, NULL, false);
}

static bp_status attach_nothing(void *user, uint32_t slab, void *address, uint64_t bytes)
{
    ++*(int *)user;
    return BP_OK;
}

static void detach_nothing(void *user, uint32_t slab, void *address, uint64_t bytes)
{
    --*(int *)user;
}

const bp_slab_callbacks COUNTING = {.attach = attach_nothing, .detach = detach_nothing};

const bp_capture_slab *touched_slab(const bp_capture *capture, uint32_t slab)
{
    const bp_capture_info *info = bp_capture_get_info(capture);
    for (size_t i = 0; i < info->slab_count; i++) {
        if (info->slabs[i].slab == slab)
            return &info->slabs[i];
    }
    return NULL;
}
