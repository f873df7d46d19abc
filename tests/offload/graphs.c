/* SPDX-License-Identifier: Apache-2.0 */
/* A captured graph that computes in the memory of a store. */
#include "graphs.h"

bp_capture_config capture_config(const store *s, uint32_t *owned)
{
    bp_capture_config config;
    assert_ok(bp_capture_config_init(&config, sizeof config));
    config.owned = owned;
    for (size_t i = 0; i < s->k.requests; i++) {
        if (is_state(request_at(s, s->k.ids[i])) && bp_pool_references(s->k.pool, s->k.ids[i]) > 0)
            owned[config.owned_count++] = s->k.ids[i];
    }
    return config;
}

static uint64_t common_bytes(const store *s)
{
    uint64_t bytes = request_at(s, of_role(s, BP_ROLE_STATE))->bytes;
    const bp_role others[] = {BP_ROLE_PARAM, BP_ROLE_GRAD};
    for (size_t i = 0; i < 2; i++) {
        uint64_t other = request_at(s, of_role(s, others[i]))->bytes;
        bytes = other < bytes ? other : bytes;
    }
    return bytes;
}

recorded record_graph(store *s, const char *name, bp_capture_collectives collectives)
{
    recorded r = {NULL, NULL};
    uint32_t owned[64], state = of_role(s, BP_ROLE_STATE), parameter = of_role(s, BP_ROLE_PARAM),
                        gradient = of_role(s, BP_ROLE_GRAD);
    bp_stream *stream = s->k.streams[0];
    bp_capture_config config = capture_config(s, owned);
    config.name = name;
    config.collectives = collectives;
    assert_ok(bp_capture_begin(s->k.pool, &config, &r.capture));
    assert_ok(bp_graph_begin(stream));
    assert_ok(bp_pool_use(s->k.pool, &state, 1, stream));
    void *to = take(&s->k, parameter, stream);
    assert_ok(bp_stream_copy(stream, to, address_of(&s->k, state), common_bytes(s)));
    void *last = take(&s->k, gradient, stream);
    assert_ok(bp_stream_copy(stream, last, to, common_bytes(s)));
    drop(&s->k, parameter, stream);
    drop(&s->k, gradient, stream);
    assert_ok(bp_graph_end(stream, &r.graph));
    assert_ok(bp_capture_end(r.capture));
    return r;
}

void forget_graph(recorded *r)
{
    bp_graph_destroy(&r->graph);
    bp_capture_destroy(&r->capture);
}

void replay(const recorded *r, bp_stream *stream)
{
    assert_ok(bp_capture_before_launch(r->capture, stream));
    assert_ok(bp_graph_launch(r->graph, stream));
    assert_ok(bp_capture_launched(r->capture, stream));
}

static void expect_copy(store *s, uint32_t to, uint32_t from)
{
    uint8_t *bytes[2] = {NULL, NULL}, *known = NULL;
    const uint32_t ids[2] = {to, from};
    for (size_t i = 0; i < 2; i++) {
        uint8_t *address = address_of(&s->k, ids[i]);
        size_t slab = slab_of_group(s, group_of_request(s, ids[i]));
        uint64_t offset = (uintptr_t)address - (uintptr_t)s->slabs[slab].address;
        assert_true(offset < s->slabs[slab].bytes);
        bytes[i] = s->bytes[slab] + offset;
        known = i == 0 ? s->known[slab] + offset : known;
    }
    memcpy(bytes[0], bytes[1], common_bytes(s));
    memset(known, 1, common_bytes(s));
}

void assert_replays(store *s, const recorded *r)
{
    uint32_t state = of_role(s, BP_ROLE_STATE);
    write_request(s, state, s->k.streams[0]);
    replay(r, s->k.streams[0]);
    expect_copy(s, of_role(s, BP_ROLE_PARAM), state);
    expect_copy(s, of_role(s, BP_ROLE_GRAD), state);
    assert_bytes(s);
}

const bp_capture_slab *touched_slab(const bp_capture *capture, uint32_t slab)
{
    const bp_capture_info *info = bp_capture_get_info(capture);
    for (size_t i = 0; i < info->slab_count; i++) {
        if (info->slabs[i].slab == slab)
            return &info->slabs[i];
    }
    return NULL;
}

bool has_collectives(const bp_capture *capture, uint32_t slab)
{
    const bp_capture_slab *touched = touched_slab(capture, slab);
    return touched != NULL && touched->has_collectives;
}
