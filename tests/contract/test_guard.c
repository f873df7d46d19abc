/* SPDX-License-Identifier: Apache-2.0 */
/* Guard mode: uses after release trap, writes past the end are detected, fresh memory is NaN. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "overlaps.h"

#define NOT_SANITIZED __attribute__((no_sanitize("address"), noinline))

#if defined(__SANITIZE_ADDRESS__)
int __asan_address_is_poisoned(const volatile void *address);
#define assert_poisoned(address, poisoned) assert_int_equal(__asan_address_is_poisoned(address) != 0, poisoned)
#else
#define assert_poisoned(address, poisoned) (void)(address)
#endif

NOT_SANITIZED static void touch(volatile uint8_t *address, bool write)
{
    if (write)
        *address = 1;
    else
        (void)*address;
}

static sigjmp_buf after_fault;

static void leave_fault(int number)
{
    siglongjmp(after_fault, number);
}

/* True if a touch faults; probed in this process, because a forked child has no slabs. */
static bool traps(void *address, bool write)
{
    struct sigaction catching = {.sa_handler = leave_fault}, segv, bus;
    sigaction(SIGSEGV, &catching, &segv);
    sigaction(SIGBUS, &catching, &bus);
    volatile bool faulted = true;
    if (sigsetjmp(after_fault, 1) == 0) {
        touch(address, write);
        faulted = false;
    }
    sigaction(SIGSEGV, &segv, NULL);
    sigaction(SIGBUS, &bus, NULL);
    return faulted;
}

static void assert_access(void *address, uint64_t bytes, bool allowed)
{
    uint8_t *ends[] = {address, (uint8_t *)address + bytes - 1};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(traps(ends[i], false), !allowed);
        assert_int_equal(traps(ends[i], true), !allowed);
        assert_poisoned(ends[i], !allowed);
    }
}

static kit guarded_kit(const allocator_row *row, bp_device *device, uint64_t alignment)
{
    kit k = begin_kit(device, NULL, TRAINING, row->policy, 0);
    k.w = make_scenario(model_of(UNITS), TRAINING);
    bp_plan_config planning = plan_config(row->policy, 0, BP_FALLBACK_PERSISTENT);
    planning.alignment = alignment;
    assert_ok(bp_plan_create(k.w.buckets, k.w.schedule, &planning, &k.plan));
    bp_pool_config config = config_of(row);
    config.guard = BP_GUARD_ON;
    config.persistent_bytes = 2048;
    open_pool(&k, &config);
    return k;
}

TEST(use_after_release)
{
    static const uint64_t alignments[] = {256, 4096};
    for (size_t a = 0; a < ALLOCATOR_COUNT; a++) {
        /* Scheduled buffers overlap others and are not spaced out: only pages that belong to one segment trap. */
        int first = ALLOCATORS[a].policy == BP_POLICY_SCHEDULED ? 1 : 0;
        for (int i = first; i < 2 && ALLOCATORS[a].pooled; i++) {
            KIT k = guarded_kit(&ALLOCATORS[a], i == 0 ? new_host() : device_at(2)->create(), alignments[i]);
            for (int round = 0; round < 2; round++) {
                uint8_t *u0 = take(&k, param(&k, 0), k.streams[0]), *u1 = take(&k, param(&k, 1), k.streams[1]);
                assert_ok(bp_device_synchronize(k.device));
                assert_access(u0, 600, true);
                drop(&k, param(&k, 0), k.streams[1]);
                assert_access(u0, 600, false);
                assert_access(u1, 600, true); /* others are unaffected */
                u1[599] = 1;
                assert_ptr_equal(take(&k, param(&k, 2), k.streams[0]), u0);
                assert_access(u0, 600, true); /* now in the next live range */
                drop(&k, param(&k, 2), k.streams[0]);
                assert_ok(bp_pool_cancel(k.pool, (const uint32_t[]){param(&k, 1)}, 1));
                assert_access(u1, 600, false);
            }
        }
    }
}

TEST(persistent_requests)
{
    KIT k = guarded_kit(&ALLOCATORS[2], new_host(), 256);
    bp_bind bind = bind_of("", 0, BP_ROLE_PARAM, BP_DTYPE_BF16, 700);
    bind.placement = BP_PLACE_PERSISTENT;
    uint32_t id, other;
    assert_ok(bp_pool_bind(k.pool, &bind, &id));
    bind.ordinal = 1;
    assert_ok(bp_pool_bind(k.pool, &bind, &other));
    uint8_t *at = take(&k, id, k.streams[0]), *beside = take(&k, other, k.streams[0]);
    assert_ok(bp_device_synchronize(k.device));
    memset(at, 5, 700);
    memset(beside, 6, 700);
    drop(&k, id, k.streams[0]);
    assert_int_equal(beside[0], 6);
    assert_int_equal(beside[699], 6);
    drop(&k, other, k.streams[0]);
}

static void assert_bytes(const uint8_t *address, uint64_t bytes, uint8_t value)
{
    for (uint64_t i = 0; i < bytes; i++)
        assert_int_equal(address[i], value);
}

TEST(fresh_memory_is_nan)
{
    for (size_t a = 0; a < ALLOCATOR_COUNT; a++) {
        KIT k = begin_kit(new_host(), "225/300 225/300 225/300", TRAINING, ALLOCATORS[a].policy, 0);
        bp_pool_config config = config_of(&ALLOCATORS[a]);
        config.guard = BP_GUARD_ON;
        open_pool(&k, &config);
        assert_int_equal(bp_pool_get_info(k.pool)->guarded, 1);
        static const bp_zero zeros[] = {BP_ZERO_NOTHING, BP_ZERO_PADDING, BP_ZERO_ALL};
        for (int round = 0; round < 2; round++) {
            for (uint32_t i = 0; i < 3; i++) {
                uint32_t id = param(&k, i);
                assert_ok(bp_pool_set_zero(k.pool, &id, 1, zeros[i]));
                uint8_t *address = take(&k, id, k.streams[0]);
                assert_ok(bp_stream_synchronize(k.streams[0]));
                assert_bytes(address, 450, i == 2 ? 0 : 0xff);
                assert_bytes(address + 450, 150, i == 0 ? 0xff : 0);
                memset(address, 0x44, 600);
                take(&k, id, k.streams[1]); /* live: not filled again */
                assert_ok(bp_stream_synchronize(k.streams[1]));
                assert_bytes(address, 600, 0x44);
                drop(&k, id, k.streams[1]);
                assert_bytes(address, 600, 0x44); /* one reference remains */
                drop(&k, id, k.streams[0]);
            }
        }
    }
}

NOT_SANITIZED static uint8_t swap_byte(volatile uint8_t *address, uint8_t value)
{
    uint8_t before = *address;
    *address = value;
    return before;
}

/* 600 bytes in a buffer of at least 768: there is a redzone. */
TEST(writes_past_the_end)
{
    static const uint64_t alignments[] = {256, 4096};
    for (int i = 0; i < 2; i++) {
        KIT k = guarded_kit(&ALLOCATORS[2], new_host(), alignments[i]);
        static const uint64_t past[] = {0, 1, 100, 167};
        for (size_t p = 0; p < 4; p++) {
            uint32_t id = param(&k, 3);
            uint8_t *address = take(&k, id, k.streams[0]);
            assert_ok(bp_device_synchronize(k.device));
            memset(address, 0x31, 600); /* all bytes of the request are accessible */
            uint8_t before = swap_byte(address + 600 + past[p], 0x99);
            assert_int_not_equal(before, 0x99);
            snapshot was = snapshot_of(k.pool);
            assert_fails(bp_pool_release(k.pool, &id, 1, k.streams[0]), BP_ERR_SCHEDULE, "u3");
            assert_unchanged(k.pool, &was);
            swap_byte(address + 600 + past[p], before);
            drop(&k, id, k.streams[0]);
        }
        /* Also writes of work that is still pending when release is called. */
        uint32_t id = param(&k, 3);
        uint8_t *address = take(&k, id, k.streams[0]);
        assert_ok(bp_stream_fill(k.streams[1], address, 0x31, 600));
        drop(&k, id, k.streams[1]);
        walk(&k, 1, NULL, false);
    }
}

static void take_long(void *argument)
{
    pause_us(20000);
    atomic_store((flag *)argument, 1);
}

TEST(release_waits)
{
    for (int way = 0; way < 3; way++) { /* the stream that acquired, used, released */
        KIT k = guarded_kit(&ALLOCATORS[2], new_host(), 256);
        flag done = 0;
        uint32_t id = param(&k, 0);
        take(&k, id, k.streams[0]);
        assert_ok(bp_pool_use(k.pool, &id, 1, k.streams[1]));
        assert_ok(bp_stream_call(k.streams[way], take_long, &done));
        drop(&k, id, k.streams[2]);
        assert_int_equal(done, 1);
    }
}

static bool is_on(bp_device *device, bp_guard guard, const char *environment)
{
    if (environment != NULL)
        setenv("BUCKETPOOL_GUARD", environment, 1);
    else
        unsetenv("BUCKETPOOL_GUARD");
    kit k = begin_kit(device, UNITS, TRAINING, BP_POLICY_MAX, 0);
    bp_pool_config config = pool_config();
    config.guard = guard;
    open_pool(&k, &config);
    unsetenv("BUCKETPOOL_GUARD");
    bp_pool_statistics s = statistics_of(k.pool);
    const uint64_t rounding = 2 * (uint64_t)sysconf(_SC_PAGESIZE);
    bool larger = s.slab_bytes > 2 * aligned(bp_plan_get_info(k.plan)->bytes) + rounding;
    assert_int_equal(bp_pool_get_info(k.pool)->guarded, larger);
    walk(&k, 1, NULL, false);
    end_kit(&k);
    return larger;
}

TEST(switches)
{
    assert_false(is_on(new_host(), BP_GUARD_OFF, NULL));
    assert_false(is_on(new_host(), BP_GUARD_OFF, "1"));
    assert_false(is_on(new_host(), BP_GUARD_ENVIRONMENT, NULL));
    assert_false(is_on(new_host(), BP_GUARD_ENVIRONMENT, "0"));
    assert_false(is_on(new_host(), BP_GUARD_ENVIRONMENT, ""));
    assert_true(is_on(new_host(), BP_GUARD_ENVIRONMENT, "1"));
    assert_true(is_on(new_host(), BP_GUARD_ON, NULL));
    assert_true(is_on(new_host(), BP_GUARD_ON, "0"));
    assert_false(is_on(new_null(), BP_GUARD_ENVIRONMENT, "1")); /* it cannot, and was not forced */
    KIT k = begin_kit(new_null(), UNITS, TRAINING, BP_POLICY_MAX, 0);
    bp_pool_config config = pool_config();
    config.guard = BP_GUARD_ON;
    assert_fails(bp_pool_create(k.device, k.plan, &config, &k.pool), BP_ERR_UNSUPPORTED, NULL);
    assert_null(k.pool);
}

TEST(walk)
{
    for (size_t a = 0; a < ALLOCATOR_COUNT; a++) {
        KIT k = guarded_kit(&ALLOCATORS[a], new_slow_host(30, a), 256);
        void *addresses[SNAPSHOT_LIVE] = {NULL};
        walk(&k, 4, addresses, ALLOCATORS[a].assigned);
    }
}

/* Partially overlapping buffers share pages: live ones must stay accessible. */
TEST(partial_overlaps)
{
    static const place places[] = {{0, 1000}, {512, 1000}, {1024, 1000}, {2048, 300}};
    bp_pool_config config = pool_config();
    config.guard = BP_GUARD_ON;
    KIT k = open_places(new_host(), places, 4, &config);
    uint8_t *live[4] = {NULL};
    seed(3);
    for (int step = 0; step < 400; step++) {
        uint32_t i = random_below(4);
        if (live[i] != NULL) {
            drop(&k, i, k.streams[0]);
            live[i] = NULL;
        } else if (try_take(&k, i, k.streams[0])) {
            live[i] = address_of(&k, i);
            assert_ok(bp_device_synchronize(k.device));
            assert_bytes(live[i], places[i].bytes, 0xff);
            memset(live[i], (int)i + 1, places[i].bytes);
        }
        for (uint32_t j = 0; j < 4; j++)
            if (live[j] != NULL)
                assert_bytes(live[j], places[j].bytes, (uint8_t)(j + 1));
    }
}
