/* SPDX-License-Identifier: Apache-2.0 */
/* Reuse in stream order, proven by bytes on the host device: required waits happen, and there are no others. Gates block streams, so that
 * no order arises by chance. */
#include "support/pools.h"

/* Four units of one size on two copies: u0 and u2 share one, u1 and u3 the other. */
#define FOUR "1000 1000 1000 1000"
#define BYTES 2000

static kit four(bp_device *device)
{
    kit k = start_kit(device, FOUR, PARAM_ONLY, BP_POLICY_MAX, 0);
    assert_ptr_equal(address_of(&k, param(&k, 0)), address_of(&k, param(&k, 2)));
    assert_ptr_not_equal(address_of(&k, param(&k, 0)), address_of(&k, param(&k, 1)));
    return k;
}

static void fill(const kit *k, int stream, void *address, uint8_t value)
{
    assert_ok(bp_stream_fill(k->streams[stream], address, value, BYTES));
}

/* The previous user's work is still queued when the memory is reused on another stream. */
static void assert_reuse_is_ordered(bp_device *device)
{
    KIT k = four(device);
    for (int round = 0; round < 3; round++) {
        gate g = {0};
        flag done = 0;
        void *address = take(&k, param(&k, 0), k.streams[0]);
        block(k.streams[0], &g);
        fill(&k, 0, address, 0x11);
        drop(&k, param(&k, 0), k.streams[0]);
        uint32_t next = param(&k, round == 0 ? 2 : 0); /* another request, then the same one */
        assert_ptr_equal(take(&k, next, k.streams[1]), address);
        fill(&k, 1, address, 0x22);
        raise_on(k.streams[1], &done);
        assert_true(stays_down(&done));
        unblock(&g);
        assert_true(is_raised_soon(&done));
        assert_ok(bp_device_synchronize(k.device));
        check c = {.address = address, .bytes = BYTES, .value = 0x22};
        check_on(k.streams[2], &c);
        assert_ok(bp_device_synchronize(k.device));
        assert_int_equal(c.wrong, 0);
        drop(&k, next, k.streams[1]);
    }
}

TEST(reuse_is_ordered)
{
    assert_reuse_is_ordered(new_device());
    assert_reuse_is_ordered(new_slow_device(300, 7));
}

/* One of the streams: acquiring, using, releasing, acquiring the second reference, releasing the second reference. */
enum { ACQUIRES, USES, RELEASES, HOLDS, WAYS };

/* Tests if a reuse waits for work on each of them. */
TEST(union_of_streams)
{
    for (int blocked = 0; blocked < WAYS; blocked++) {
        for (int late = 0; late < 2; late++) { /* late: enqueued after the last release, and not waited for */
            gate g = {0};
            KIT k = four(new_device());
            bp_stream *fresh = NULL;
            assert_ok(bp_stream_create(k.device, "fresh", &fresh));
            flag done = 0;
            uint32_t id = param(&k, 0);
            take(&k, id, k.streams[ACQUIRES]);
            assert_ok(bp_pool_use(k.pool, &id, 1, k.streams[USES]));
            take(&k, id, k.streams[HOLDS]);
            if (!late)
                block(k.streams[blocked], &g);
            drop(&k, id, k.streams[RELEASES]);
            drop(&k, id, k.streams[HOLDS]);
            if (late)
                block(k.streams[blocked], &g);
            take(&k, param(&k, 2), fresh);
            raise_on(fresh, &done);
            if (late)
                assert_true(is_raised_soon(&done));
            else
                assert_true(stays_down(&done));
            unblock(&g);
            assert_true(is_raised_soon(&done));
            bp_stream_destroy(&fresh);
        }
    }
}

/* One stream acquires, another releases, alone or with another request in one call: a reuse waits for both. */
TEST(acquiring_and_releasing_streams)
{
    for (int blocked = 0; blocked < 2; blocked++) {
        for (uint32_t count = 1; count <= 2; count++) {
            gate g = {0};
            KIT k = four(new_device());
            const uint32_t ids[] = {param(&k, 1), param(&k, 0)}, next[] = {param(&k, 3), param(&k, 2)};
            flag done = 0;
            assert_ok(bp_pool_acquire(k.pool, ids, count, k.streams[0], NULL));
            block(k.streams[blocked], &g);
            assert_ok(bp_pool_release(k.pool, ids, count, k.streams[1]));
            take(&k, next[count - 1], k.streams[2]);
            raise_on(k.streams[2], &done);
            assert_true(stays_down(&done));
            unblock(&g);
            assert_true(is_raised_soon(&done));
        }
    }
}

/* Requests that different streams acquired, released in one call: a reuse waits for the streams that had its memory. */
TEST(requests_of_several_streams_in_one_call)
{
    for (int blocked = 0; blocked < 2; blocked++) {
        gate g = {0};
        KIT k = four(new_device());
        const uint32_t ids[] = {param(&k, 0), param(&k, 1)};
        flag done[2] = {0};
        for (int i = 0; i < 2; i++)
            take(&k, ids[i], k.streams[i]);
        block(k.streams[blocked], &g);
        assert_ok(bp_pool_release(k.pool, ids, 2, k.streams[2]));
        for (uint32_t i = 0; i < 2; i++) { /* the memory of the stream that is not blocked first */
            const uint32_t which = blocked == 0 ? 1 - i : i;
            bp_stream *fresh = NULL;
            assert_ok(bp_stream_create(k.device, "fresh", &fresh));
            take(&k, param(&k, 2 + which), fresh);
            raise_on(fresh, &done[i]);
            assert_true(i == 0 ? is_raised_soon(&done[i]) : stays_down(&done[i]));
            if (i == 1)
                unblock(&g);
            bp_stream_destroy(&fresh);
        }
        assert_true(is_raised_soon(&done[1]));
    }
}

/* The hash of the sequence depends on the order within a call, not on how calls divide it. */
TEST(sequence_within_a_call)
{
    uint64_t hashes[3], acquires;
    for (int way = 0; way < 3; way++) {
        KIT k = four(new_device());
        const uint32_t ids[] = {param(&k, way == 1), param(&k, way != 1)};
        if (way < 2) {
            assert_ok(bp_pool_acquire(k.pool, ids, 2, k.streams[0], NULL));
        } else {
            take(&k, ids[0], k.streams[0]);
            take(&k, ids[1], k.streams[0]);
        }
        assert_ok(bp_pool_sequence(k.pool, &hashes[way], &acquires));
        assert_int_equal(acquires, 2);
    }
    assert_true(hashes[0] != hashes[1] && hashes[0] == hashes[2]);
}

/* A wait covers exactly the position of a release for 255 further releases; then a later event may replace it. */
TEST(exact_points)
{
    for (int releases = 0; releases <= 700; releases += releases == 0 ? 255 : 445) {
        for (int before = 0; before < 2; before++) {
            gate g = {0};
            KIT k = four(new_device());
            flag done = 0;
            take(&k, param(&k, 0), k.streams[0]);
            if (before)
                block(k.streams[0], &g);
            drop(&k, param(&k, 0), k.streams[0]);
            if (!before)
                block(k.streams[0], &g); /* the next layer's compute, enqueued before the next gather */
            for (int i = 0; i < releases; i++) {
                take(&k, param(&k, 1), k.streams[0]);
                drop(&k, param(&k, 1), k.streams[0]);
            }
            take(&k, param(&k, 2), k.streams[1]);
            raise_on(k.streams[1], &done);
            if (before)
                assert_true(stays_down(&done));
            else if (releases <= 255)
                assert_true(is_raised_soon(&done));
            unblock(&g);
            assert_true(is_raised_soon(&done));
        }
    }
}

/* A busy try_acquire adds no waits that matter; zeros are written in stream order. */
TEST(zeros_are_ordered)
{
    gate g = {0};
    KIT k = start_kit(new_slow_device(100, 3), FOUR, PARAM_ONLY, BP_POLICY_MAX, 0);
    const uint32_t ids[] = {param(&k, 0), param(&k, 2)};
    assert_ok(bp_pool_set_zero(k.pool, &ids[1], 1, BP_ZERO_ALL));
    uint8_t *address = take(&k, ids[0], k.streams[0]);
    check old = {.address = address, .bytes = BYTES, .value = 0x77}, zero = {.address = address, .bytes = BYTES};
    fill(&k, 0, address, 0x77);
    block(k.streams[0], &g);
    check_on(k.streams[0], &old); /* still reading when the next acquire writes its zeros */
    drop(&k, ids[0], k.streams[0]);
    take(&k, ids[1], k.streams[1]);
    check_on(k.streams[1], &zero);
    unblock(&g);
    assert_ok(bp_device_synchronize(k.device));
    assert_int_equal(old.wrong, 0);
    assert_int_equal(zero.wrong, 0);
}

/* Further streams wait for the zeros that the live range began with, and for none if it began without, whatever set_zero changes meanwhile. */
TEST(zeros_of_live_ranges)
{
    for (int zeroed = 0; zeroed < 2; zeroed++) {
        gate g = {0};
        KIT k = four(new_device());
        const uint32_t id = param(&k, 0);
        flag done = 0;
        assert_ok(bp_pool_set_zero(k.pool, &id, 1, zeroed ? BP_ZERO_ALL : BP_ZERO_NOTHING));
        block(k.streams[0], &g);
        take(&k, id, k.streams[0]);
        assert_ok(bp_pool_set_zero(k.pool, &id, 1, zeroed ? BP_ZERO_NOTHING : BP_ZERO_ALL));
        take(&k, id, k.streams[1]);
        raise_on(k.streams[1], &done);
        assert_true(zeroed ? stays_down(&done) : is_raised_soon(&done));
        unblock(&g);
        assert_true(is_raised_soon(&done));
    }
}

/* Stream-ordered memory is freed after all work of the live range: AddressSanitizer detects an early free, the bytes a late write. */
TEST(dynamic_is_freed_in_order)
{
    for (int blocked = 0; blocked < HOLDS; blocked++) {
        gate g = {0};
        KIT k = start_kit(new_device(), FOUR, PARAM_ONLY, BP_POLICY_DYNAMIC, 0);
        check checks[4];
        uint32_t id = param(&k, 0);
        void *address = take(&k, id, k.streams[ACQUIRES]);
        assert_ok(bp_pool_use(k.pool, &id, 1, k.streams[USES]));
        assert_ok(
            bp_stream_synchronize(k.streams[ACQUIRES])); /* the memory is available once that stream reaches the free */
        block(k.streams[blocked], &g);
        fill(&k, blocked, address, 0x11);
        drop(&k, id, k.streams[RELEASES]);
        for (uint32_t u = 0; u < 4; u++) { /* may be the same memory */
            void *next = take(&k, param(&k, u), k.streams[3]);
            fill(&k, 3, next, (uint8_t)(0x20 + u));
            checks[u] = (check){.address = next, .bytes = BYTES, .value = (uint8_t)(0x20 + u)};
        }
        flag waited = 0;
        assert_true(stays_down(&waited));
        unblock(&g);
        assert_ok(bp_device_synchronize(k.device));
        for (uint32_t u = 0; u < 4; u++) {
            check_on(k.streams[3], &checks[u]);
            drop(&k, param(&k, u), k.streams[3]);
        }
        assert_ok(bp_device_synchronize(k.device));
        for (uint32_t u = 0; u < 4; u++)
            assert_int_equal(checks[u].wrong, 0);
    }
}
