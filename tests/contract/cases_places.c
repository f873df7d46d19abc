/* SPDX-License-Identifier: Apache-2.0 */
/* Sources and contents of memory: persistent, dynamic and empty requests, zeroing, slabs and their callbacks. */
#include "allocators/pool.h"
#include "cases.h"

static uint32_t bind_outside(const kit *k, uint32_t ordinal, bp_placement placement, uint64_t bytes)
{
    bp_bind bind = bind_of("", ordinal, BP_ROLE_PARAM, BP_DTYPE_BF16, bytes);
    bind.placement = placement;
    uint32_t id = UINT32_MAX;
    assert_ok(bp_pool_bind(k->pool, &bind, &id));
    return id;
}

static void assert_apart_from_slabs(const kit *k, const void *address, uint64_t bytes, const char *except)
{
    bool within = false;
    for (size_t i = 0; i < bp_pool_get_info(k->pool)->slab_count; i++) {
        const bp_pool_slab slab = bp_pool_get_info(k->pool)->slabs[i];
        const char *from = slab.address, *at = address;
        if (strcmp(slab.group, except) == 0)
            within |= at >= from && at + bytes <= from + slab.bytes;
        else
            assert_true(at + bytes <= from || from + slab.bytes <= at);
    }
    assert_int_equal(within, *except != '\0');
}

/* open_kit has 4096 bytes of persistent memory, rounded up to the device's granularity. */
static uint64_t persistent_bytes(const kit *k)
{
    for (size_t i = 0; i < bp_pool_get_info(k->pool)->slab_count; i++) {
        const bp_pool_slab slab = bp_pool_get_info(k->pool)->slabs[i];
        if (strcmp(slab.group, "persistent") == 0)
            return slab.bytes;
    }
    return 0;
}

CASE(persistent)
{
    KIT k = open_kit(allocator, device);
    uint32_t a = bind_outside(&k, 0, BP_PLACE_PERSISTENT, 1000), b = bind_outside(&k, 1, BP_PLACE_PERSISTENT, 2000);
    char *at_a = address_of(&k, a), *at_b = address_of(&k, b); /* before any acquire */
    assert_true(at_a + 1000 <= at_b || at_b + 2000 <= at_a);
    assert_apart_from_slabs(&k, at_a, 1000, "persistent");
    assert_apart_from_slabs(&k, at_b, 2000, "persistent");
    uint64_t room = persistent_bytes(&k);
    char number[24];
    assert_in_range(room, 4096, UINT32_MAX);
    snprintf(number, sizeof number, "%llu", (unsigned long long)room);
    bp_bind bind = bind_of("", 2, BP_ROLE_PARAM, BP_DTYPE_BF16, room - 1096);
    bind.placement = BP_PLACE_PERSISTENT;
    uint32_t id = 99;
    assert_fails(bp_pool_bind(k.pool, &bind, &id), BP_ERR_NO_DEVICE_MEMORY, number);
    assert_int_equal(id, 99);
    uint32_t c = bind_outside(&k, 2, BP_PLACE_PERSISTENT, 500); /* a smaller request is still served */
    take(&k, param(&k, 0), k.streams[0]);
    take(&k, param(&k, 1), k.streams[0]);
    for (int round = 0; round < 3; round++) {
        assert_ptr_equal(take(&k, a, k.streams[0]), at_a);
        assert_ptr_equal(take(&k, b, k.streams[1]), at_b);
        take(&k, c, k.streams[1]);
        assert_ptr_equal(take(&k, a, k.streams[2]), at_a);
        drop(&k, a, k.streams[0]);
        drop(&k, a, k.streams[2]);
        drop(&k, b, k.streams[0]);
        drop(&k, c, k.streams[0]);
        assert_ptr_equal(address_of(&k, a), at_a);
    }
    drop(&k, param(&k, 0), k.streams[0]);
    drop(&k, param(&k, 1), k.streams[0]);
    take(&k, a, k.streams[0]); /* live throughout, without conflicts */
    walk(&k, 2, NULL, false);
    assert_int_equal(statistics_of(k.pool).dynamic > 0, !allocator->pooled);
}

/* A bucket without elements, a frozen one, one of fp8 (stored as uint8). */
CASE(odd_buckets)
{
    KIT k = begin_kit(device->create(), "300,0 300f 300q 300,0", TRAINING, allocator->policy, 0);
    bp_pool_config config = config_of(allocator);
    open_pool(&k, &config);
    walk(&k, 2, NULL, false);
    bp_bind bind = bind_of("u0", 1, BP_ROLE_PARAM, BP_DTYPE_BF16, 0); /* the plan has no request for it */
    bind.placement = allocator->pooled ? BP_PLACE_PERSISTENT : BP_PLACE_DYNAMIC;
    uint32_t id = 99;
    assert_ok(bp_pool_bind(k.pool, &bind, &id));
    for (int round = 0; round < 2; round++) {
        assert_null(take(&k, id, k.streams[0]));
        assert_null(take(&k, id, k.streams[1]));
        drop(&k, id, k.streams[0]);
        drop(&k, id, k.streams[1]);
        assert_fails(bp_pool_release(k.pool, &id, 1, k.streams[0]), BP_ERR_SCHEDULE, "u0");
    }
    const uint32_t both[] = {id, param(&k, 0)};
    void *addresses[2] = {&k, &k};
    assert_ok(bp_pool_acquire(k.pool, both, 2, k.streams[0], addresses));
    assert_null(addresses[0]);
    assert_non_null(addresses[1]);
    assert_ok(bp_pool_release(k.pool, both, 2, k.streams[0]));
    assert_fails(bp_plan_find(k.plan, "u1", 0, BP_ROLE_GRAD, BP_DTYPE_BF16, 600, &id), BP_ERR_MISMATCH, "u1", "grad",
                 "frozen");
}

static void fill(const kit *k, void *address, uint8_t value, uint64_t bytes)
{
    assert_ok(bp_stream_fill(k->streams[0], address, value, bytes));
}

static void assert_holds(const kit *k, const void *address, uint8_t value, uint64_t bytes)
{
    check c = {.address = address, .value = value, .bytes = bytes};
    check_on(k->streams[0], &c);
    assert_ok(bp_stream_synchronize(k->streams[0]));
    assert_int_equal(c.wrong, 0);
}

CASE(zeros)
{
    KIT k = begin_kit(device->create(), "250/300 250/300 250/300 250/300", TRAINING, allocator->policy, 0);
    bp_pool_config config = config_of(allocator);
    config.persistent_bytes = 1024;
    open_pool(&k, &config);
    uint32_t ids[] = {param(&k, 0), param(&k, 1), param(&k, 2), UINT32_MAX};
    bp_bind bind = bind_of("", 0, BP_ROLE_PARAM, BP_DTYPE_BF16, 600);
    bind.used_bytes = 500;
    assert_ok(bp_pool_bind(k.pool, &bind, &ids[3]));
    /* u0: all, u1: padding, u2: nothing, persistent: padding */
    assert_ok(bp_pool_set_zero(k.pool, ids, 1, BP_ZERO_ALL));
    assert_ok(bp_pool_set_zero(k.pool, (const uint32_t[]){ids[3], ids[1]}, 2, BP_ZERO_PADDING));
    for (int round = 0; round < 3; round++) {
        for (uint32_t i = 0; i < 4; i++) {
            uint8_t *address = take(&k, ids[i], k.streams[0]);
            if (!device->memory) {
                drop(&k, ids[i], k.streams[0]);
                continue;
            }
            if (i == 0)
                assert_holds(&k, address, 0, 600);
            else if (i != 2)
                assert_holds(&k, address + 500, 0, 100);
            if (allocator->pooled && i == 3 && round > 0)
                assert_holds(&k, address, 0xd3, 500); /* no more than the padding */
            fill(&k, address, (uint8_t)(0xd0 + i), 600);
            assert_ptr_equal(take(&k, ids[i], k.streams[0]), address); /* live: not zeroed again */
            assert_holds(&k, address, (uint8_t)(0xd0 + i), 600);
            drop(&k, ids[i], k.streams[0]);
            drop(&k, ids[i], k.streams[0]);
            if (allocator->assigned && i == 0) { /* no zeroing: the bytes stay as they were */
                take(&k, ids[2], k.streams[0]);
                assert_holds(&k, address, 0xd0, 600);
                drop(&k, ids[2], k.streams[0]);
            }
        }
    }
}

/* set_zero for planned and bound requests, from the next acquire on; all ids or none. */
CASE(set_zero)
{
    KIT k = open_kit(allocator, device);
    uint32_t id = param(&k, 0), with_none[] = {id, statistics_of(k.pool).requests};
    assert_ok(bp_pool_set_zero(k.pool, NULL, 0, BP_ZERO_ALL));
    assert_invalid(bp_pool_set_zero(k.pool, with_none, 2, BP_ZERO_ALL));
    assert_invalid(bp_pool_set_zero(k.pool, NULL, 1, BP_ZERO_ALL));
    assert_invalid(bp_pool_set_zero(NULL, &id, 1, BP_ZERO_ALL));
    assert_fails(bp_pool_set_zero(k.pool, &id, 1, (bp_zero)3), BP_ERR_INVALID_ARGUMENT, "3");
    if (device->memory) {
        uint8_t *address = take(&k, id, k.streams[0]);
        fill(&k, address, 0xd0, 600);
        assert_ok(bp_pool_set_zero(k.pool, &id, 1, BP_ZERO_ALL)); /* live: from the next acquire on */
        take(&k, id, k.streams[0]);
        assert_holds(&k, address, 0xd0, 600);
        drop(&k, id, k.streams[0]);
        drop(&k, id, k.streams[0]);
        address = take(&k, id, k.streams[0]);
        assert_holds(&k, address, 0, 600);
        fill(&k, address, 0xd0, 600);
        drop(&k, id, k.streams[0]);
        assert_ok(bp_pool_set_zero(k.pool, &id, 1, BP_ZERO_NOTHING));
        address = take(&k, id, k.streams[0]);
        if (allocator->assigned)
            assert_holds(&k, address, 0xd0, 600);
        drop(&k, id, k.streams[0]);
    }
    walk(&k, 1, NULL, false);
}

/* ---- slabs --------------------------------------------------------------------------------------------------------- */

typedef struct attachment {
    int log[64]; /* slab + 1 attached, -(slab + 1) detached, plus 100 times the number of the user */
    size_t count;
    int refuse; /* slab + 1 */
} attachment;

typedef struct attached {
    attachment *to;
    int number;
} attached;

static bp_status attach(void *user, uint32_t slab, void *address, uint64_t bytes)
{
    attached *a = user;
    assert_true(address != NULL && bytes > 0);
    if (a->to->refuse == (int)slab + 1)
        return bp_error_record(BP_ERR_IO, "refused by the test");
    a->to->log[a->to->count++] = 100 * a->number + (int)slab + 1;
    return BP_OK;
}

static void detach(void *user, uint32_t slab, void *address, uint64_t bytes)
{
    attached *a = user;
    assert_true(address != NULL && bytes > 0);
    a->to->log[a->to->count++] = -(100 * a->number + (int)slab + 1);
}

CASE(slabs)
{
    KIT k = open_kit(allocator, device);
    int count = (int)bp_pool_get_info(k.pool)->slab_count;
    uint64_t sum = 0, planned = 0;
    for (int i = 0; i < count; i++) {
        const bp_pool_slab slab = bp_pool_get_info(k.pool)->slabs[i];
        assert_true(slab.bytes >= slab.planned_bytes);
        assert_true((slab.planned_bytes == 0) == (strcmp(slab.group, "persistent") == 0));
        sum += slab.bytes;
        planned += slab.planned_bytes;
    }
    assert_int_equal(count, allocator->pooled ? 3 : 1); /* param, grad, persistent */
    assert_int_equal(sum, statistics_of(k.pool).slab_bytes);
    if (allocator->pooled)
        assert_int_equal(planned, bp_plan_get_info(k.plan)->bytes);
    attachment log = {0};
    attached one = {&log, 1}, two = {&log, 2};
    bp_slab_callbacks callbacks = {.attach = attach, .detach = detach};
    log.refuse = count; /* the last one: the earlier slabs are detached again, in reverse */
    assert_fails(bp_pool_attach(k.pool, &callbacks, &one), BP_ERR_IO, "refused by the test");
    assert_int_equal(log.count, 2 * (count - 1));
    for (int i = 0; i < count - 1; i++)
        assert_int_equal(log.log[count - 1 + i], -log.log[count - 2 - i]);
    assert_invalid(bp_pool_detach(k.pool, &callbacks, &one));
    log = (attachment){0};
    assert_ok(bp_pool_attach(k.pool, &callbacks, &one));
    assert_ok(bp_pool_attach(k.pool, &callbacks, &two));
    for (int i = 0; i < count; i++) {
        assert_int_equal(log.log[i], 101 + i);
        assert_int_equal(log.log[count + i], 201 + i);
    }
    assert_ok(bp_pool_detach(k.pool, &callbacks, &one));
    for (int i = 0; i < count; i++)
        assert_int_equal(log.log[2 * count + i], -(100 + count - i));
    assert_ok(bp_pool_attach(k.pool, &callbacks, &one)); /* now after `two` */
    assert_ok(bp_pool_seal(k.pool));
    assert_fails(bp_pool_attach(k.pool, &callbacks, &k), BP_ERR_SCHEDULE, NULL);
    log.count = 0;
    bp_pool_destroy(&k.pool);
    assert_int_equal(log.count, 2 * count);
    for (int i = 0; i < count; i++) {
        assert_int_equal(log.log[i], -(100 + count - i));
        assert_int_equal(log.log[count + i], -(200 + count - i));
    }
}
