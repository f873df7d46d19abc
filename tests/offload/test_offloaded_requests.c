/* SPDX-License-Identifier: Apache-2.0 */
/* Requests and observers of an offloaded group, in each of its states. */
#include <bucketpool/dlpack.h>

#include "allocators/pool.h"
#include "stores.h"

static const store_options WITH_PERSISTENT = {.persistent_bytes = 20000};

/* `live`: a request that is always live; `other`: one in resident memory. */
static void check_requests(store *s, const char *group, uint32_t id, uint32_t other, bool live)
{
    bp_stream *stream = s->k.streams[1];
    const uint32_t both[] = {other, id};
    int answer = 7;
    void *address = NULL, *addresses[2];
    store_state before = state_of(s);
    assert_fails(bp_pool_acquire(s->k.pool, &id, 1, stream, &address), BP_ERR_SCHEDULE, group);
    assert_fails(bp_pool_acquire(s->k.pool, both, 2, stream, addresses), BP_ERR_SCHEDULE, group);
    assert_null(address);
    assert_ok(bp_pool_try_acquire(s->k.pool, both, 2, stream, addresses, &answer));
    assert_int_equal(answer, 0);
    answer = 7;
    assert_ok(bp_pool_can_acquire(s->k.pool, both, 2, NULL, 0, &answer));
    assert_int_equal(answer, 0);
    answer = 7;
    assert_ok(bp_pool_can_acquire(s->k.pool, &id, 1, &id, 1, &answer));
    assert_int_equal(answer, 0);
    assert_fails(bp_pool_use(s->k.pool, &id, 1, stream), BP_ERR_SCHEDULE, live ? group : "");
    assert_fails(bp_pool_release(s->k.pool, &id, 1, stream), BP_ERR_SCHEDULE, live ? group : "");
    assert_fails(bp_pool_cancel(s->k.pool, &id, 1), BP_ERR_SCHEDULE, live ? group : "");
    assert_same_state(s, &before);
    work_on(s, other, stream, stream); /* the others are unaffected */
}

static void check_offloaded(store *s, const char *group, uint32_t id, bool live)
{
    uint32_t other = of_role(s, strcmp(group, "grad") == 0 ? BP_ROLE_PARAM : BP_ROLE_GRAD);
    void *address = address_of(&s->k, id);
    begin_keep(s, group);
    check_requests(s, group, id, other, live);
    finish_offload(s, group);
    check_requests(s, group, id, other, live);
    assert_ptr_equal(address_of(&s->k, id), address);
    begin_restore(s, group, BP_RESTORE_LEAVE);
    check_requests(s, group, id, other, live);
    finish_restore(s, group, BP_RESTORE_LEAVE);
    assert_ptr_equal(address_of(&s->k, id), address);
    if (!live)
        work_on(s, id, s->k.streams[2], s->k.streams[1]);
}

TEST(requests_while_offloaded)
{
    STORE s = open_store(new_device(), &WITH_PERSISTENT, NULL);
    check_offloaded(&s, "param", of_role(&s, BP_ROLE_PARAM), false);
    check_offloaded(&s, "grad", of_role(&s, BP_ROLE_GRAD), false);
    check_offloaded(&s, "state", of_role(&s, BP_ROLE_STATE), true);
    check_offloaded(&s, "main_grad", of_role(&s, BP_ROLE_MAIN_GRAD), true);
    check_offloaded(&s, "optimizer", of_role(&s, BP_ROLE_OPTIMIZER), true);
    check_offloaded(&s, "persistent", s.persistent, true);
    assert_bytes(&s);
}

TEST(binding)
{
    STORE s = open_store(new_device(), &(store_options){.persistent_bytes = 60000, .bare = true}, NULL);
    assert_ok(bp_offload_create(s.k.pool, NULL, &s.offload));
    bp_bind bind = bind_of("", 11, BP_ROLE_PARAM, BP_DTYPE_BF16, 512);
    bind.placement = BP_PLACE_PERSISTENT;
    uint32_t id = 77, dynamic;
    assert_ok(bp_offload_begin(s.offload, "persistent", BP_OFFLOAD_KEEP));
    assert_refuses(&s, bp_pool_bind(s.k.pool, &bind, &id), BP_ERR_SCHEDULE, "persistent");
    assert_ok(bp_offload_finish(s.offload, "persistent"));
    assert_refuses(&s, bp_pool_bind(s.k.pool, &bind, &id), BP_ERR_SCHEDULE, "persistent");
    assert_int_equal(id, 77);
    bind.placement = BP_PLACE_DYNAMIC; /* of other memory */
    assert_ok(bp_pool_bind(s.k.pool, &bind, &dynamic));
    bind.placement = BP_PLACE_PERSISTENT;
    assert_ok(bp_restore_begin(s.offload, "persistent", BP_RESTORE_LEAVE));
    assert_refuses(&s, bp_pool_bind(s.k.pool, &bind, &id), BP_ERR_SCHEDULE, "persistent");
    assert_ok(bp_restore_finish(s.offload, "persistent"));
    assert_ok(bp_pool_bind(s.k.pool, &bind, &id));
}

/* A request belongs to the slab that it is in: one in overflow memory does not hold its group. Overflow memory does not serve requests of
 * an offloaded group. */
TEST(overflow)
{
    const store_options options = {.units = "500 500 500 500", .roles = PARAM, .overflow_bytes = 4096};
    STORE s = open_store(new_device(), &options, NULL);
    uint32_t ids[4];
    for (uint32_t u = 0; u < 4; u++)
        ids[u] = param(&s.k, u);
    assert_ok(bp_pool_allow_overflow(s.k.pool, 1));
    void *usual = address_of(&s.k, ids[2]);
    take(&s.k, ids[0], s.k.streams[0]);
    take(&s.k, ids[1], s.k.streams[0]);
    assert_ptr_not_equal(take(&s.k, ids[2], s.k.streams[1]), usual);
    assert_int_equal(statistics_of(s.k.pool).overflows, 1);
    drop(&s.k, ids[0], s.k.streams[0]);
    drop(&s.k, ids[1], s.k.streams[0]);
    assert_fails(bp_offload_begin(s.offload, "overflow", BP_OFFLOAD_KEEP), BP_ERR_SCHEDULE, "overflow", "u2");
    write_request(&s, ids[2], s.k.streams[1]);
    keep(&s, "param");
    write_request(&s, ids[2], s.k.streams[1]);
    assert_refused(&s.k, ids[3], s.k.streams[0], "param");
    assert_false(try_take(&s.k, ids[3], s.k.streams[0]));
    drop(&s.k, ids[2], s.k.streams[1]);
    assert_refused(&s.k, ids[2], s.k.streams[0], "param");
    keep(&s, "overflow");
    bring_back(&s, "param", BP_RESTORE_LEAVE);
    take(&s.k, ids[0], s.k.streams[0]);
    take(&s.k, ids[1], s.k.streams[0]);
    assert_refused(&s.k, ids[2], s.k.streams[1], "u2");
    assert_false(try_take(&s.k, ids[2], s.k.streams[1]));
    bring_back(&s, "overflow", BP_RESTORE_LEAVE);
    assert_true(try_take(&s.k, ids[2], s.k.streams[1]));
    assert_bytes(&s);
}

/* A caller's slab may have the name of a pool's group: then both are offloaded together. */
TEST(shared_name)
{
    STORE s = open_store(new_device(), &(store_options){.groups = {"persistent"}, .persistent_bytes = 8192}, NULL);
    assert_int_equal(group_of(s.offload, "persistent").slabs, 2);
    uint32_t id = of_role(&s, BP_ROLE_PARAM);
    take(&s.k, id, s.k.streams[0]);
    assert_fails(bp_offload_begin(s.offload, "persistent", BP_OFFLOAD_KEEP), BP_ERR_SCHEDULE, "u0");
    drop(&s.k, id, s.k.streams[0]);
    keep(&s, "persistent");
    assert_refused(&s.k, id, s.k.streams[0], "persistent");
    assert_refused(&s.k, s.persistent, s.k.streams[0], "persistent");
    bring_back(&s, "persistent", BP_RESTORE_LEAVE);
    assert_bytes(&s);
}

/* ---- observers ------------------------------------------------------------------------------------------------------ */

typedef struct observer {
    uint8_t attached[MAX_SLABS];
    unsigned wrong;
} observer;

static bp_status attach(void *user, uint32_t slab, void *address, uint64_t bytes)
{
    observer *o = user;
    o->wrong += slab >= MAX_SLABS || bytes == 0 || o->attached[slab]++ != 0;
    return BP_OK;
}

static void detach(void *user, uint32_t slab, void *address, uint64_t bytes)
{
    observer *o = user;
    o->wrong += slab >= MAX_SLABS || bytes == 0 || o->attached[slab]-- != 1;
}

static const bp_slab_callbacks WATCHING = {.attach = attach, .detach = detach};

static void assert_attached(const store *s, const observer *o, const char *away)
{
    assert_int_equal(o->wrong, 0);
    for (size_t i = 0; i < s->slab_count; i++)
        assert_int_equal(o->attached[i], !is_in_group(s, i, away));
}

/* attach is called once for resident slabs; for the others when they are mapped again. */
TEST(observers)
{
    store s = open_store(new_device(), &WITH_PERSISTENT, NULL);
    observer before = {.wrong = 0}, between = {.wrong = 0};
    assert_ok(bp_pool_attach(s.k.pool, &WATCHING, &before));
    begin_keep(&s, "main_grad");
    assert_attached(&s, &before, "");
    finish_offload(&s, "main_grad");
    assert_attached(&s, &before, "main_grad");
    assert_ok(bp_pool_attach(s.k.pool, &WATCHING, &between));
    assert_attached(&s, &between, "main_grad");
    begin_restore(&s, "main_grad", BP_RESTORE_LEAVE);
    assert_attached(&s, &before, "");
    assert_attached(&s, &between, "");
    finish_restore(&s, "main_grad", BP_RESTORE_LEAVE);
    discard(&s, "grad");
    assert_attached(&s, &between, "grad");
    assert_ok(bp_pool_detach(s.k.pool, &WATCHING, &between)); /* while a group is offloaded */
    for (size_t i = 0; i < s.slab_count; i++)
        assert_int_equal(between.attached[i], 0);
    bring_back(&s, "grad", BP_RESTORE_ZERO);
    assert_attached(&s, &before, "");
    assert_int_equal(between.wrong, 0);
    discard(&s, "grad");
    assert_bytes(&s);
    close_store(&s); /* with an offloaded group */
    assert_int_equal(before.wrong, 0);
    for (size_t i = 0; i < MAX_SLABS; i++)
        assert_int_equal(before.attached[i], 0);
}

/* A tensor over unmapped addresses would crash its reader. */
TEST(lending)
{
    STORE s = open_store(new_device(), NULL, NULL);
    void *made = &s;
    bp_export_config what;
    assert_ok(bp_export_config_init(&what, sizeof what));
    what.id = of_role(&s, BP_ROLE_STATE);
    const char *group = group_of_request(&s, what.id);
    keep(&s, group);
    assert_fails(bp_pool_export(s.k.pool, &what, &made), BP_ERR_SCHEDULE, group, "offloaded");
    assert_ptr_equal(made, &s);
    assert_int_equal(bp_pool_export_count(s.k.pool), 0);
    what.id = param(&s.k, 0); /* not of the group */
    assert_ok(bp_pool_export(s.k.pool, &what, &made));
    bp_export_delete(&made);
    bring_back(&s, group, BP_RESTORE_LEAVE);
    what.id = of_role(&s, BP_ROLE_STATE);
    assert_ok(bp_pool_export(s.k.pool, &what, &made));
    bp_export_delete(&made);
    assert_bytes(&s);
}
