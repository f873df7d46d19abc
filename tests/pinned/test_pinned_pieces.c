/* SPDX-License-Identifier: Apache-2.0 */
/* Pieces: addresses, contents, limits, and the checks of free. */
#include "support.h"

#include <unistd.h>

#define SLAB (4 * MIB)

TEST(random)
{
    unsigned refused = 0;
    for (uint64_t seed = 0; seed < 8; seed++) {
        DEVICE *device = new_device();
        bp_pinned_config config = small_config(BP_PINNED_PLAIN, (1 + seed % 4) * MIB + (seed % 2) * 4 * KIB);
        config.planned_bytes = seed % 3 == 0 ? 64 * KIB : 0;
        config.max_bytes = 12 * MIB;
        config.no_huge_pages = seed % 2 == 0;
        bp_pinned *pinned = new_pinned(device, &config);
        walk(pinned, seed, 1200, 3 * MIB, &refused);
        const bp_pinned_statistics s = statistics_of(pinned);
        assert_int_equal(s.planned_pieces + s.small_pieces + s.planned_bytes + s.small_bytes + s.slab_used_bytes, 0);
        assert_int_equal(s.pinned_bytes, config.slab_bytes);
        assert_int_equal(pinned_bytes(), config.slab_bytes);
        assert_in_range(s.peak_pinned_bytes, s.pinned_bytes, config.max_bytes);
        bp_pinned_destroy(&pinned);
        assert_null(pinned);
    }
    assert_true(refused > 50); /* limits were met */
}

/* The slab is full to the last page, and after any use it can be allocated as one piece again. */
TEST(slab_recovers)
{
    DEVICE *device = new_device();
    bp_pinned_config config = small_config(BP_PINNED_PLAIN, SLAB);
    config.planned_bytes = 2 * SLAB;
    PINNED *pinned = new_pinned(device, &config);
    void *pages[SLAB / 4096], *more = NULL, *whole;
    for (unsigned turn = 0; turn < 3; turn++) {
        for (size_t i = 0; i < SLAB / 4096; i++)
            assert_ok(bp_pinned_allocate(pinned, 4096, 4096, &pages[i]));
        assert_int_equal(statistics_of(pinned).slab_used_bytes, SLAB);
        assert_fails(bp_pinned_allocate(pinned, 1, 0, &more), BP_ERR_NO_HOST_MEMORY, "4194304 are used by 1024 pieces");
        assert_null(more);
        for (size_t i = 0; i < SLAB / 4096; i++) /* every second one, then the rest */
            assert_ok(bp_pinned_free(pinned, pages[i * 2 % (SLAB / 4096) + (i >= SLAB / 8192)]));
        walk(pinned, turn, 600, MIB, NULL);
        assert_ok(bp_pinned_allocate(pinned, SLAB, 2 * MIB, &whole));
        memset(whole, 7, SLAB);
        assert_ok(bp_pinned_free(pinned, whole));
    }
    assert_fails(bp_pinned_allocate(pinned, SLAB + 1, 0, &more), BP_ERR_NO_HOST_MEMORY, "slab_bytes");
    assert_int_equal(pinned_bytes(), SLAB);
}

/* No size class rounds a planned piece up, and freed memory is unmapped. */
TEST(planned_to_the_page)
{
    DEVICE *device = new_device();
    bp_pinned *pinned = new_pinned(device, NULL);
    assert_int_equal(pinned_ranges(), 0);
    void *a, *b;
    assert_ok(bp_pinned_allocate(pinned, 5 * MIB + 1, 0, &a));
    assert_int_equal(pinned_bytes(), 5 * MIB + (uint64_t)sysconf(_SC_PAGESIZE));
    assert_ok(bp_pinned_allocate(pinned, MIB, 2 * MIB, &b));
    assert_int_equal((uintptr_t)b % (2 * MIB), 0);
    bp_pinned_statistics s = statistics_of(pinned);
    assert_int_equal(s.planned_pieces, 2);
    assert_int_equal(s.planned_bytes, 6 * MIB + 1);
    assert_int_equal(s.pinned_bytes, 6 * MIB + (uint64_t)sysconf(_SC_PAGESIZE));
    assert_int_equal(s.slab_bytes, 0);
    assert_int_equal(s.small_pieces, 0);
    assert_true(s.touch_ns > 0 && s.pin_ns > 0);
    assert_ok(bp_pinned_free(pinned, a));
    assert_int_equal(pinned_bytes(), MIB);
    s = statistics_of(pinned);
    assert_int_equal(s.pinned_bytes, MIB);
    assert_int_equal(s.peak_pinned_bytes, 6 * MIB + (uint64_t)sysconf(_SC_PAGESIZE));
    bp_pinned_destroy(&pinned); /* frees the allocated pieces, too */
}

TEST(limits)
{
    DEVICE *device = new_device();
    bp_pinned_config config = small_config(BP_PINNED_PLAIN, 2 * MIB);
    config.max_bytes = 5 * MIB;
    bp_pinned *pinned = new_pinned(device, &config);
    void *a, *b, *c = NULL;
    assert_ok(bp_pinned_allocate(pinned, 3 * MIB, 0, &a));
    assert_fails(bp_pinned_allocate(pinned, 3 * MIB, 0, &c), BP_ERR_NO_HOST_MEMORY, "5242880: 3145728 are pinned");
    assert_ok(bp_pinned_allocate(pinned, 100, 0, &b)); /* the slab still fits */
    assert_fails(bp_pinned_allocate(pinned, MIB, 0, &c), BP_ERR_NO_HOST_MEMORY, "max_bytes");
    assert_ok(bp_pinned_free(pinned, a));
    assert_ok(bp_pinned_allocate(pinned, 3 * MIB, 0, &a));
    assert_fails(bp_pinned_allocate(pinned, UINT64_MAX, 0, &c), BP_ERR_NO_HOST_MEMORY, "18446744073709551615");
    assert_null(c);
    bp_pinned_destroy(&pinned);

    config.max_bytes = MIB; /* less than the slab */
    pinned = new_pinned(device, &config);
    assert_fails(bp_pinned_allocate(pinned, 1, 0, &c), BP_ERR_NO_HOST_MEMORY, "2097152 bytes more");
    bp_pinned_destroy(&pinned);
    config.max_bytes = 0; /* more than any machine has */
    pinned = new_pinned(device, &config);
    assert_fails(bp_pinned_allocate(pinned, UINT64_MAX - 5000, 0, &c), BP_ERR_NO_HOST_MEMORY, "address space");
    assert_fails(bp_pinned_allocate(pinned, UINT64_MAX, 0, &c), BP_ERR_NO_HOST_MEMORY, "18446744073709551615");
    assert_fails(bp_pinned_allocate(pinned, (uint64_t)1 << 60, 0, &c), BP_ERR_NO_HOST_MEMORY, "1152921504606846976");
    assert_int_equal(pinned_ranges(), 0);
    bp_pinned_destroy(&pinned);
}

TEST(freeing)
{
    DEVICE *device = new_device();
    bp_pinned_config config = small_config(BP_PINNED_PLAIN, SLAB);
    bp_pinned *pinned = new_pinned(device, &config);
    void *small, *planned, *other;
    assert_ok(bp_pinned_allocate(pinned, 5000, 0, &small));
    assert_ok(bp_pinned_allocate(pinned, 3 * MIB, 0, &planned));
    assert_ok(bp_pinned_free(pinned, NULL));
    assert_fails(bp_pinned_free(pinned, (char *)small + 4096), BP_ERR_INVALID_ARGUMENT, "2 pieces are allocated");
    assert_fails(bp_pinned_free(pinned, (char *)planned + 4096), BP_ERR_INVALID_ARGUMENT, "not the address");
    assert_fails(bp_pinned_free(pinned, &config), BP_ERR_INVALID_ARGUMENT, "not the address");
    assert_fails(bp_pinned_free(NULL, small), BP_ERR_INVALID_ARGUMENT, "is NULL");
    assert_ok(bp_pinned_free(pinned, small));
    assert_fails(bp_pinned_free(pinned, small), BP_ERR_INVALID_ARGUMENT, "1 pieces are allocated");
    assert_ok(bp_pinned_free(pinned, planned));
    assert_fails(bp_pinned_free(pinned, planned), BP_ERR_INVALID_ARGUMENT, "0 pieces are allocated");
    assert_ok(bp_pinned_allocate(pinned, 5000, 0, &other)); /* the address is still valid */
    assert_ptr_equal(other, small);
    bp_pinned_destroy(&pinned);
    bp_pinned_destroy(&pinned);
    bp_pinned_destroy(NULL);
}

TEST(arguments)
{
    DEVICE *device = new_device();
    bp_pinned *pinned = NULL;
    bp_pinned_config good = small_config(BP_PINNED_PLAIN, 0), bad;
    assert_fails(bp_pinned_config_init(NULL, sizeof good), BP_ERR_INVALID_ARGUMENT, "is NULL");
    assert_fails(bp_pinned_config_init(&good, 8), BP_ERR_INVALID_ARGUMENT, "size of a struct is 8");
    assert_fails(bp_pinned_create(NULL, &good, &pinned), BP_ERR_INVALID_ARGUMENT, "device");
    assert_fails(bp_pinned_create(device, &good, NULL), BP_ERR_INVALID_ARGUMENT, "output");
#define REFUSES(field, value, word)                                                                                    \
    bad = good;                                                                                                        \
    bad.field = (value);                                                                                               \
    assert_fails(bp_pinned_create(device, &bad, &pinned), BP_ERR_INVALID_ARGUMENT, word)
    REFUSES(size, 8, "size of a struct is 8");
    REFUSES(allocator, (bp_pinned_allocator)3, "unknown allocator 3");
    REFUSES(touch_threads, 65, "touch_threads is 65");
    REFUSES(numa_node, -2, "numa_node is -2");
    REFUSES(numa_node, 1023, "numa_node is 1023"); /* more nodes than any test machine has */
    REFUSES(numa_node, 5000, "numa_node is 5000");
    REFUSES(no_huge_pages, 2, "no_huge_pages is 2");
    assert_null(pinned);
    pinned = new_pinned(device, &good);
    void *address = NULL;
    assert_fails(bp_pinned_allocate(NULL, 1, 0, &address), BP_ERR_INVALID_ARGUMENT, "is NULL");
    assert_fails(bp_pinned_allocate(pinned, 1, 0, NULL), BP_ERR_INVALID_ARGUMENT, "output");
    assert_fails(bp_pinned_allocate(pinned, 0, 0, &address), BP_ERR_INVALID_ARGUMENT, "0 bytes");
    assert_fails(bp_pinned_allocate(pinned, 1, 3, &address), BP_ERR_INVALID_ARGUMENT, "alignment 3");
    assert_fails(bp_pinned_allocate(pinned, 1, 4 * MIB, &address), BP_ERR_INVALID_ARGUMENT, "4194304");
    bp_pinned_statistics small = {.size = 8};
    assert_fails(bp_pinned_statistics_get(pinned, &small), BP_ERR_INVALID_ARGUMENT, "statistics");
    assert_fails(bp_pinned_statistics_get(pinned, NULL), BP_ERR_INVALID_ARGUMENT, "statistics");
    assert_fails(bp_pinned_statistics_get(NULL, &small), BP_ERR_INVALID_ARGUMENT, "statistics");
    assert_null(address);
    assert_int_equal(pinned_ranges(), 0);
    assert_string_equal(statistics_of(pinned).allocator, "plain");
    assert_string_equal(statistics_of(pinned).because, "");
    bp_pinned_destroy(&pinned);
}

/* The defaults: a slab of 64 MiB, planned from 1 MiB on; the device outlives it. */
TEST(defaults)
{
    DEVICE *device = new_device();
    PINNED *pinned = new_pinned(device, NULL);
    bp_device *kept = device;
    bp_device_destroy(&device);
    void *small, *planned;
    assert_ok(bp_pinned_allocate(pinned, MIB - 1, 0, &small));
    assert_ok(bp_pinned_allocate(pinned, MIB, 0, &planned));
    const bp_pinned_statistics s = statistics_of(pinned);
    assert_int_equal(s.slab_bytes, 64 * MIB);
    assert_int_equal(s.small_bytes, MIB - 1);
    assert_in_range(s.slab_used_bytes, MIB, 2 * MIB);
    assert_int_equal(s.planned_bytes, MIB);
    assert_int_equal(s.pinned_bytes, 65 * MIB);
    assert_non_null(kept);
}
