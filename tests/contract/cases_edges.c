/* SPDX-License-Identifier: Apache-2.0 */
/* Limits: number of ids in a call, bytes, requests, length of names. */
#include "cases.h"

#define MANY 700

/* One unit with many buckets, in one call. */
CASE(many_ids)
{
    char units[3 * MANY + 1] = "";
    for (size_t i = 0; i < MANY; i++)
        memcpy(units + 2 * i, i + 1 < MANY ? "9," : "9 ", 2);
    strcpy(units + 2 * MANY, "9");
    KIT k = begin_kit(device->create(), units, PARAM_ONLY, allocator->policy, 0);
    bp_pool_config config = config_of(allocator);
    open_pool(&k, &config);
    assert_int_equal(k.requests, MANY + 1);
    void **addresses = calloc(MANY, sizeof *addresses);
    uint32_t *ids = calloc(MANY + 1, sizeof *ids);
    for (uint32_t i = 0; i < MANY; i++)
        ids[i] = id_of(&k, 0, BP_ROLE_PARAM, MANY - 1 - i);
    static const size_t duplicates[][2] = {{0, MANY}, {MANY - 1, MANY}, {3, 64}, {511, 513}, {255, 600}};
    for (size_t t = 0; t < 5; t++) { /* a duplicate is found at any position */
        size_t at = duplicates[t][1];
        uint32_t before = ids[at];
        ids[at] = ids[duplicates[t][0]];
        size_t count = at == MANY ? MANY + 1 : MANY;
        assert_invalid(bp_pool_acquire(k.pool, ids, count, k.streams[0], NULL));
        assert_int_equal(live_count(k.pool), 0);
        ids[at] = before;
    }
    assert_ok(bp_pool_acquire(k.pool, ids, MANY, k.streams[0], addresses));
    assert_int_equal(live_count(k.pool), MANY);
    for (uint32_t i = 0; i < MANY; i += 7)
        assert_ptr_equal(addresses[i], address_of(&k, ids[i]));
    assert_ok(bp_pool_use(k.pool, ids, MANY, k.streams[1]));
    ids[MANY] = id_of(&k, 1, BP_ROLE_PARAM, 0); /* not live */
    assert_fails(bp_pool_release(k.pool, ids, MANY + 1, k.streams[0]), BP_ERR_SCHEDULE, "u1");
    assert_int_equal(live_count(k.pool), MANY);
    assert_ok(bp_pool_release(k.pool, ids, MANY, k.streams[0]));
    assert_int_equal(live_count(k.pool), 0);
    assert_ok(bp_pool_acquire(k.pool, ids, 0, k.streams[0], NULL)); /* an empty call is valid */
    assert_ok(bp_pool_release(k.pool, ids, 0, k.streams[0]));
    free(addresses);
    free(ids);
}

/* Real addresses have the alignment of the plan's offsets, also beyond a page. */
CASE(alignment)
{
    KIT k = begin_kit(device->create(), NULL, TRAINING, allocator->policy, 0);
    k.w = make_scenario(model_of(UNITS), TRAINING);
    bp_plan_config planning = plan_config(allocator->policy, 0, BP_FALLBACK_PERSISTENT);
    planning.alignment = 1 << 16;
    assert_ok(bp_plan_create(k.w.buckets, k.w.schedule, &planning, &k.plan));
    bp_pool_config config = config_of(allocator);
    open_pool(&k, &config);
    for (uint32_t u = 0; u < 6; u++) {
        for (int role = 0; role < 2 && allocator->pooled; role++) {
            uint32_t id = id_of(&k, u, role == 0 ? BP_ROLE_PARAM : BP_ROLE_GRAD, 0);
            assert_int_equal((uintptr_t)take(&k, id, k.streams[0]) % planning.alignment, 0);
            drop(&k, id, k.streams[0]);
        }
    }
    walk(&k, 1, NULL, false);
}

/* Two requests of 256 GiB at the same time. */
CASE(full_size)
{
    if (device->memory)
        return; /* only the null device can serve this */
    KIT k = begin_kit(device->create(), "137438953472 137438953472 137438953472", PARAM_ONLY, allocator->policy, 0);
    bp_pool_config config = config_of(allocator);
    open_pool(&k, &config);
    char *first = take(&k, param(&k, 0), k.streams[0]), *second = take(&k, param(&k, 1), k.streams[0]);
    uint64_t apart = (uint64_t)(first < second ? second - first : first - second);
    assert_true(apart >= UINT64_C(1) << 38);
    assert_true(statistics_of(k.pool).live_bytes == UINT64_C(1) << 39);
    drop(&k, param(&k, 0), k.streams[0]);
    drop(&k, param(&k, 1), k.streams[0]);
    walk(&k, 2, NULL, false);
}

/* Names far longer than an error detail. */
CASE(long_names)
{
    KIT k = open_kit(allocator, device);
    char name[3000], text[12000];
    uint32_t ids[3];
    for (uint32_t i = 0; i < 3; i++) {
        memset(name, 'a' + (int)i, sizeof name - 1);
        name[sizeof name - 1] = '\0';
        bp_bind bind = bind_of(name, 0, BP_ROLE_PARAM, BP_DTYPE_BF16, 100);
        bind.placement = BP_PLACE_PERSISTENT;
        assert_ok(bp_pool_bind(k.pool, &bind, &ids[i]));
    }
    bp_pool_release(k.pool, ids, 1, k.streams[0]);
    assert_true(strlen(bp_error_detail()) <= 511);
    assert_ok(bp_pool_acquire(k.pool, ids, 3, k.streams[0], NULL));
    bp_live_request live[3] = {{.size = sizeof *live}, {.size = sizeof *live}, {.size = sizeof *live}};
    size_t count, needed;
    assert_ok(bp_pool_live(k.pool, live, 3, &count));
    assert_string_equal(live[2].unit, name);
    assert_ok(bp_pool_dump(k.pool, NULL, 0, &needed));
    assert_true(needed < sizeof text);
    for (size_t capacity = needed; capacity > 0; capacity -= capacity > 97 ? 97 : capacity) {
        size_t again;
        assert_ok(bp_pool_dump(k.pool, text, capacity, &again));
        assert_int_equal(again, needed);
        assert_true(strlen(text) < capacity);
    }
    assert_ok(bp_pool_release(k.pool, ids, 3, k.streams[0]));
}

static void take_long(void *argument)
{
    pause_us(20000);
    atomic_fetch_add((flag *)argument, 1);
}

/* Destroying a pool ends its live requests after their streams' work is complete. */
CASE(destroy)
{
    KIT k = open_kit(allocator, device);
    flag done = 0;
    for (uint32_t u = 0; u < 2; u++) {
        uint8_t *address = take(&k, param(&k, u), k.streams[u]);
        if (!device->memory)
            continue;
        assert_ok(bp_stream_call(k.streams[u], take_long, &done));
        assert_ok(bp_stream_fill(k.streams[u], address, 1, 600)); /* faults if the memory was freed */
    }
    bp_pool_destroy(&k.pool);
    assert_int_equal(done, device->memory ? 2 : 0);
}
