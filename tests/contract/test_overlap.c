/* SPDX-License-Identifier: Apache-2.0 */
/* Plans with partial overlaps on the scheduled allocator, compared with a reference model of byte intervals. */
#include <stdlib.h>

#include "overlaps.h"
#include "planner/plan.h"

/* 0 and 2 are the halves of 4; 1 overlaps both; 3 is disjoint. */
static const place CHAIN[] = {{0, 1000}, {512, 1000}, {1024, 1000}, {2048, 500}, {0, 2000}};

TEST(overlapping_requests)
{
    KIT k = open_places(new_device(), CHAIN, 5, NULL);
    bp_pool_set_step(k.pool, 60606);
    take(&k, 0, k.streams[0]);
    assert_refused(&k, 1, k.streams[0], "r1.", "r0.", "60606");
    assert_refused(&k, 4, k.streams[0], "r4.", "r0.");
    take(&k, 2, k.streams[0]);
    take(&k, 3, k.streams[0]);
    drop(&k, 0, k.streams[0]);
    assert_refused(&k, 1, k.streams[0], "r1.", "r2.");
    assert_refused(&k, 4, k.streams[0], "r4.", "r2.");
    static const uint32_t late[] = {3, 1}; /* the first bytes of 1 are free */
    assert_fails(bp_pool_acquire(k.pool, late, 2, k.streams[0], NULL), BP_ERR_SCHEDULE, "r1.", "r2.");
    drop(&k, 2, k.streams[0]);
    take(&k, 4, k.streams[0]);
    for (uint32_t i = 0; i < 3; i++)
        assert_false(try_take(&k, i, k.streams[0]));
    drop(&k, 4, k.streams[0]);
    /* Two conflicting requests in one call. */
    static const uint32_t both[] = {3, 0, 1};
    snapshot before = snapshot_of(k.pool);
    assert_fails(bp_pool_acquire(k.pool, both, 3, k.streams[0], NULL), BP_ERR_SCHEDULE, "r0.", "r1.");
    int answer = 9;
    assert_ok(bp_pool_try_acquire(k.pool, both, 3, k.streams[0], NULL, &answer));
    assert_int_equal(answer, 0);
    assert_ok(bp_pool_can_acquire(k.pool, both, 3, NULL, 0, &answer));
    assert_int_equal(answer, 0);
    assert_ok(bp_pool_can_acquire(k.pool, both, 2, NULL, 0, &answer));
    assert_int_equal(answer, 1);
    assert_unchanged(k.pool, &before);
}

/* A recent user of some of the bytes must not hide an older user of the others. */
TEST(hidden_users)
{
    static const place places[] = {{0, 1024}, {256, 256}, {0, 256}, {768, 256}, {512, 256}};
    for (uint32_t last = 2; last < 5; last++) {
        gate g = {0};
        KIT k = open_places(new_device(), places, 5, NULL);
        flag done = 0;
        take(&k, 0, k.streams[0]);
        block(k.streams[0], &g);
        drop(&k, 0, k.streams[0]);
        take(&k, 1, k.streams[1]); /* waits for 0; its stream is not checked again */
        drop(&k, 1, k.streams[1]);
        for (int again = 0; again < 2; again++) {
            take(&k, last, k.streams[2 + again]);
            drop(&k, last, k.streams[2 + again]);
        }
        raise_on(k.streams[3], &done);
        assert_true(stays_down(&done));
        unblock(&g);
        assert_true(is_raised_soon(&done));
    }
}

/* Checks if policy max can plan these requests, and makes a pool. Three requests of 1000 bytes on two copies. */
static bp_status try_classes(const bp_plan_class *classes, size_t count, const bp_plan_request *odd)
{
    static const uint64_t offsets[] = {0, 1024, 0};
    static const char *const units[] = {"a", "b", "c"};
    const bp_plan_slab slab = {.group = "param", .bytes = 8192};
    bp_plan_request requests[3];
    for (size_t i = 0; i < 3; i++) {
        requests[i] = (bp_plan_request){
            .dtype = BP_DTYPE_UINT8, .placement = BP_PLACE_PLANNED, .bytes = 1000, .offset = offsets[i]};
        if (i == 2 && odd != NULL)
            requests[i] = *odd;
        requests[i].unit = units[i];
    }
    const bp_plan_info info = {.policy = BP_POLICY_MAX,
                               .copies = 2,
                               .feasible = 1,
                               .stable = 1,
                               .alignment = 256,
                               .request_count = 3,
                               .requests = requests,
                               .slab_count = 1,
                               .slabs = &slab,
                               .class_count = count,
                               .classes = classes};
    bp_plan *plan = NULL;
    bp_pool *pool = NULL;
    bp_device *device = new_null();
    bp_status status = bp_plan_from_info(&info, &plan);
    if (status == BP_OK)
        status = bp_pool_create(device, plan, NULL, &pool);
    assert_int_equal(pool != NULL, status == BP_OK);
    bp_pool_destroy(&pool);
    bp_device_destroy(&device);
    bp_plan_destroy(&plan);
    return status;
}

/* Contradictory plans are refused: one buffer would have two owners. */
TEST(contradictions)
{
    const bp_plan_class good = {.dtype = BP_DTYPE_UINT8, .copies = 2, .stride = 1024, .bytes = 1024};
    bp_plan_class apart = good, classes[2] = {good, good};
    apart.offset = 4096;
    assert_ok(try_classes(&good, 1, NULL));
    classes[1] = apart;
    assert_ok(try_classes(classes, 2, NULL));
    bp_plan_class wrong[5] = {apart, apart, apart, apart, apart};
    wrong[0].offset = 1024; /* on a copy of the first */
    wrong[1].offset = 0;    /* the same memory twice */
    wrong[2].stride = 512;  /* its copies overlap each other */
    wrong[3].offset = 8192; /* beyond the slab */
    wrong[4].copies = UINT32_MAX;
    for (size_t i = 0; i < 5; i++) {
        classes[1] = wrong[i];
        assert_int_equal(try_classes(classes, 2, NULL), BP_ERR_MISMATCH);
    }
    const bp_plan_request fits = {
        .dtype = BP_DTYPE_UINT8, .placement = BP_PLACE_PLANNED, .bytes = 1000, .offset = 1024};
    bp_plan_request odd[4] = {fits, fits, fits, fits};
    odd[0].offset = 512;  /* across two copies */
    odd[1].bytes = 1500;  /* more than a copy */
    odd[2].offset = 1280; /* within one copy, but not at its beginning */
    odd[2].bytes = 700;
    odd[3].dtype = BP_DTYPE_BF16; /* in a class of another dtype */
    assert_ok(try_classes(&good, 1, &fits));
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(try_classes(&good, 1, &odd[i]), BP_ERR_MISMATCH);
}

/* A plan may list requests without bytes, and requests that are never used: they have no segments. */
TEST(without_memory)
{
    const bp_plan_slab slab = {.group = "param", .bytes = 1024};
    const bp_plan_request requests[] = {
        {.unit = "empty", .dtype = BP_DTYPE_UINT8},
        {.unit = "first", .dtype = BP_DTYPE_UINT8, .placement = BP_PLACE_PLANNED, .bytes = 1000},
        {.unit = "unused", .dtype = BP_DTYPE_UINT8, .bytes = 1000},
        {.unit = "second", .dtype = BP_DTYPE_UINT8, .placement = BP_PLACE_PLANNED, .offset = 512, .bytes = 512}};
    const bp_plan_info info = {.policy = BP_POLICY_SCHEDULED,
                               .feasible = 1,
                               .alignment = 256,
                               .request_count = 4,
                               .requests = requests,
                               .slab_count = 1,
                               .slabs = &slab};
    KIT k = begin_kit(new_device(), NULL, TRAINING, BP_POLICY_SCHEDULED, 0);
    assert_ok(bp_plan_from_info(&info, &k.plan));
    open_pool(&k, NULL);
    uint32_t id = 99;
    assert_ok(bp_plan_find(k.plan, "empty", 0, BP_ROLE_PARAM, BP_DTYPE_FP8_E4M3, 0, &id));
    assert_int_equal(id, 0);
    assert_fails(bp_plan_find(k.plan, "unused", 0, BP_ROLE_PARAM, BP_DTYPE_UINT8, 1000, &id), BP_ERR_MISMATCH,
                 "has no memory");
    const uint32_t both[] = {0, 1};
    void *addresses[2] = {&k, &k};
    assert_ok(bp_pool_acquire(k.pool, both, 2, k.streams[0], addresses));
    assert_null(addresses[0]);
    assert_ptr_equal(addresses[1], bp_pool_get_info(k.pool)->slabs[0].address);
    assert_refused(&k, 2, k.streams[0], "unused", "has no memory");
    assert_refused(&k, 3, k.streams[0], "second", "first");
    assert_ok(bp_pool_release(k.pool, both, 2, k.streams[0]));
    take(&k, 3, k.streams[0]);
}
