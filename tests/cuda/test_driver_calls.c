/* SPDX-License-Identifier: Apache-2.0 */
/* Driver calls of acquire and release, counted by the emulated driver: none if the next user is on the same stream; else one record per
 * stream that leaves a point, and one wait per such stream. */
#include "support/driver.h"
#include "support/pools.h"

/* Four units on two copies: u0 and u2 share one, u1 and u3 the other. */
#define FOUR "1000,10,20,30 1000,10,20,30 1000,10,20,30 1000,10,20,30"
#define PAIRS 50
#define MAX_FUNCTIONS 128

static uint64_t (*calls_of)(const char *function);
static const char *(*function_at)(size_t index);

/* ---- counting ------------------------------------------------------------------------------------------------------ */

static uint64_t before[MAX_FUNCTIONS];

static void start_counting(void)
{
    size_t i = 0;
    for (; function_at(i) != NULL; i++) {
        assert_true(i < MAX_FUNCTIONS);
        before[i] = calls_of(function_at(i));
    }
    assert_true(i > 30);
}

/* Asserts exactly these calls since then. */
static void assert_calls(uint64_t records, uint64_t waits)
{
    for (size_t i = 0; function_at(i) != NULL; i++) {
        const char *name = function_at(i);
        uint64_t expected = strcmp(name, "cuEventRecord") == 0       ? records
                            : strcmp(name, "cuStreamWaitEvent") == 0 ? waits
                                                                     : 0;
        uint64_t now = calls_of(name) - before[i];
        if (now != expected)
            fail_msg("%s: called %llu times, not %llu", name, (unsigned long long)now, (unsigned long long)expected);
    }
}

static kit four(bool promised)
{
    kit k = start_kit(new_cuda(), FOUR, PARAM_ONLY, BP_POLICY_MAX, 0);
    if (promised)
        promise_stream(&k, BP_ROLE_PARAM, k.streams[0]);
    return k;
}

static void unit_of(const kit *k, uint32_t unit, uint32_t *ids)
{
    for (uint32_t b = 0; b < 4; b++)
        ids[b] = id_of(k, unit, BP_ROLE_PARAM, b);
}

/* ---- cases --------------------------------------------------------------------------------------------------------- */

TEST(same_stream)
{
    KIT k = four(true);
    start_counting(); /* from the first call of the pool on */
    for (uint32_t i = 0; i < PAIRS; i++) {
        take(&k, param(&k, i % 4), k.streams[0]);
        drop(&k, param(&k, i % 4), k.streams[0]);
    }
    assert_calls(0, 0);
}

/* All-gather on s0, release on s1: the promised stream's point needs no event. */
TEST(two_streams)
{
    KIT k = four(true);
    for (uint32_t u = 0; u < 2; u++) {
        take(&k, param(&k, u), k.streams[0]);
        start_counting();
        drop(&k, param(&k, u), k.streams[1]);
        assert_calls(1, 0);
    }
    start_counting();
    for (uint32_t i = 2; i < PAIRS; i++) {
        take(&k, param(&k, i % 4), k.streams[0]);
        drop(&k, param(&k, i % 4), k.streams[1]);
    }
    assert_calls(PAIRS - 2, PAIRS - 2);
}

/* One wait per stream that left a point, whichever others took part. */
TEST(distinct_streams)
{
    KIT k = four(true);
    uint32_t id = param(&k, 0);
    take(&k, id, k.streams[0]);
    start_counting();
    assert_ok(bp_pool_use(k.pool, &id, 1, k.streams[1]));
    assert_ok(bp_pool_use(k.pool, &id, 1, k.streams[2]));
    assert_ok(bp_pool_use(k.pool, &id, 1, k.streams[1]));
    assert_calls(0, 0);
    drop(&k, id, k.streams[3]);
    assert_calls(3, 0);
    start_counting();
    take(&k, param(&k, 2), k.streams[0]);
    assert_calls(0, 3);
    drop(&k, param(&k, 2), k.streams[0]);
}

/* Without promises the acquiring stream leaves a point too; its own next acquire does not wait for it. */
TEST(any_stream)
{
    KIT k = four(false);
    take(&k, param(&k, 0), k.streams[0]);
    start_counting();
    drop(&k, param(&k, 0), k.streams[0]);
    assert_calls(1, 0);
    take(&k, param(&k, 2), k.streams[0]);
    assert_calls(1, 0);
    drop(&k, param(&k, 2), k.streams[1]);
    assert_calls(3, 0);
    take(&k, param(&k, 0), k.streams[2]);
    assert_calls(3, 2);
    drop(&k, param(&k, 0), k.streams[2]);
}

/* A whole unit in one call needs one point and one wait. */
TEST(arrays)
{
    KIT k = four(true);
    uint32_t ids[8];
    unit_of(&k, 0, ids);
    unit_of(&k, 1, ids + 4);
    start_counting();
    assert_ok(bp_pool_acquire(k.pool, ids, 4, k.streams[0], NULL));
    assert_ok(bp_pool_release(k.pool, ids, 4, k.streams[1]));
    assert_calls(1, 0);
    assert_ok(bp_pool_acquire(k.pool, ids, 4, k.streams[0], NULL));
    assert_calls(1, 1);
    assert_ok(bp_pool_acquire(k.pool, ids + 4, 4, k.streams[0], NULL));
    assert_ok(bp_pool_release(k.pool, ids, 4, k.streams[1]));     /* two calls, two points ... */
    assert_ok(bp_pool_release(k.pool, ids + 4, 4, k.streams[1])); /* ... of one stream: the later one covers both */
    assert_calls(3, 1);
    assert_ok(bp_pool_acquire(k.pool, ids, 8, k.streams[0], NULL));
    assert_calls(3, 2);
    assert_ok(bp_pool_release(k.pool, ids, 8, k.streams[0]));
    assert_calls(3, 2);
}

/* Refusals, can_acquire and busy prefetches make no driver calls. */
TEST(refusals_make_no_calls)
{
    KIT k = four(true);
    uint32_t id = param(&k, 2);
    int answer;
    take(&k, param(&k, 0), k.streams[0]);
    start_counting();
    for (int i = 0; i < PAIRS; i++) {
        assert_false(try_take(&k, id, k.streams[0]));
        assert_int_equal(bp_pool_acquire(k.pool, &id, 1, k.streams[0], NULL), BP_ERR_SCHEDULE);
        assert_int_equal(bp_pool_release(k.pool, &id, 1, k.streams[1]), BP_ERR_SCHEDULE);
        assert_ok(bp_pool_can_acquire(k.pool, &id, 1, NULL, 0, &answer));
    }
    assert_calls(0, 0);
    drop(&k, param(&k, 0), k.streams[0]);
    assert_calls(0, 0);
}

int main(void)
{
    *(void **)&calls_of = driver_symbol("fake_cuda_calls");
    *(void **)&function_at = driver_symbol("fake_cuda_function");
    if (calls_of == NULL || function_at == NULL)
        return 77;
    if (driver()->cuCtxPushCurrent(driver_context()) != 0) /* as on every thread of a runtime */
        return 1;
    return run_suite();
}
