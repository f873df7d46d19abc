/* SPDX-License-Identifier: Apache-2.0 */
/* The model of PyTorch's caching allocator: its rules one by one, and random programs against the reference model. */
#include "support/harness.h"

#include <stdlib.h>
#include <string.h>

#include "naive_allocator.h"
#include "support/brief.h"
#include "support/scenarios.h"

#define MIB ((uint64_t)1 << 20)

static bp_caching_settings defaults(void)
{
    bp_caching_settings settings;
    bp_caching_settings_init(&settings);
    return settings;
}

static bp_caching_allocator *create(bp_caching_settings settings)
{
    bp_caching_allocator *allocator = NULL;
    assert_ok(bp_caching_create(&settings, NULL, &allocator));
    return allocator;
}

static bp_caching_block *allocate(bp_caching_allocator *allocator, uint64_t bytes, uint64_t stream)
{
    bp_caching_block *block = NULL;
    assert_ok(bp_caching_allocate(allocator, bytes, stream, 0, &block));
    return block;
}

static uint64_t reserved(const bp_caching_allocator *allocator)
{
    return bp_caching_get_counters(allocator)->reserved_bytes;
}

/* ---- rules ------------------------------------------------------------------------------------------------------- */

TEST(test_rounding)
{
    bp_caching_settings settings = defaults();
    assert_int_equal(bp_caching_round(&settings, 1), 512);
    assert_int_equal(bp_caching_round(&settings, 512), 512);
    assert_int_equal(bp_caching_round(&settings, 513), 1024);
    assert_int_equal(bp_caching_round(&settings, (uint64_t)1 << 60), (uint64_t)1 << 60);
    settings.roundup_power2_divisions[0] = 4;
    assert_int_equal(bp_caching_round(&settings, 2048), 2048);
    assert_int_equal(bp_caching_round(&settings, 4097), 5120); /* of 4096, 5120, 6144, 7168 */
    assert_int_equal(bp_caching_round(&settings, 2 * MIB - 1), 2 * MIB);
    assert_int_equal(bp_caching_round(&settings, 2 * MIB + 1), 2 * MIB + 512); /* another row */
    settings.roundup_power2_divisions[15] = 2;
    assert_int_equal(bp_caching_round(&settings, ((uint64_t)1 << 40) + 1), (uint64_t)3 << 39);
}

TEST(test_segment_sizes)
{
    const struct {
        uint64_t bytes, segment;
    } rows[] = {{1, 2 * MIB},         {MIB, 2 * MIB},          {MIB + 1, 20 * MIB}, {10 * MIB - 512, 20 * MIB},
                {10 * MIB, 10 * MIB}, {10 * MIB + 1, 12 * MIB}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        bp_caching_allocator *allocator = create(defaults());
        allocate(allocator, rows[i].bytes, 0);
        assert_int_equal(reserved(allocator), rows[i].segment);
        bp_caching_destroy(&allocator);
        assert_null(allocator);
    }
    bp_caching_destroy(&(bp_caching_allocator *){NULL});
}

TEST(test_splits)
{
    bp_caching_allocator *allocator = create(defaults());
    bp_caching_block *small = allocate(allocator, 512, 0), *next = allocate(allocator, 512, 0);
    assert_int_equal(bp_caching_address(next), bp_caching_address(small) + 512);
    /* Of 12 MiB, 1 MiB is too little for a separate large block. */
    bp_caching_block *large = allocate(allocator, 12 * MIB, 0);
    bp_caching_complete_free(allocator, large);
    assert_int_equal(bp_caching_bytes(allocate(allocator, 11 * MIB, 0)), 12 * MIB);
    large = allocate(allocator, 14 * MIB, 0);
    bp_caching_complete_free(allocator, large);
    assert_int_equal(bp_caching_bytes(allocate(allocator, 13 * MIB - 512, 0)), 13 * MIB - 512);
    bp_caching_destroy(&allocator);
}

TEST(test_merging)
{
    bp_caching_allocator *allocator = create(defaults());
    bp_caching_block *a = allocate(allocator, 3 * MIB, 0), *b = allocate(allocator, 4 * MIB, 0),
                     *c = allocate(allocator, 5 * MIB, 0);
    uint64_t first = bp_caching_address(a);
    bp_caching_complete_free(allocator, a);
    bp_caching_complete_free(allocator, c);
    assert_int_equal(reserved(allocator), 20 * MIB);
    bp_caching_segment segment = {.pool = 0};
    assert_true(bp_caching_is_free(allocator, &segment, first, 3 * MIB));
    assert_true(bp_caching_is_free(allocator, &segment, first + 7 * MIB, 13 * MIB));
    bp_caching_complete_free(allocator, b);
    assert_true(bp_caching_is_free(allocator, &segment, first, 20 * MIB));
    assert_ok(bp_caching_release(allocator, 0));
    assert_int_equal(reserved(allocator), 0);
    assert_int_equal(bp_caching_get_counters(allocator)->peak_reserved_bytes, 20 * MIB);
    bp_caching_destroy(&allocator);
}

TEST(test_streams)
{
    bp_caching_allocator *allocator = create(defaults());
    bp_caching_block *block = allocate(allocator, 30 * MIB, 7), *other;
    uint64_t address = bp_caching_address(block);
    bp_caching_request_free(allocator, block);
    other = allocate(allocator, 30 * MIB, 7);
    assert_int_not_equal(bp_caching_address(other), address); /* the free is pending */
    bp_caching_complete_free(allocator, block);
    assert_false(bp_caching_is_cached(allocator, 30 * MIB, 8, 0));
    assert_int_equal(bp_caching_address(allocate(allocator, 30 * MIB, 7)), address);
    assert_int_equal(reserved(allocator), 60 * MIB);
    bp_caching_destroy(&allocator);
}

TEST(test_failures)
{
    bp_caching_settings settings = defaults();
    settings.device_bytes = 100 * MIB;
    bp_caching_allocator *allocator = create(settings);
    bp_caching_block *a = allocate(allocator, 60 * MIB, 0), *b = NULL;
    assert_fails(bp_caching_allocate(allocator, 50 * MIB, 1, 0, &b), BP_ERR_NO_DEVICE_MEMORY, "52428800", "62914560");
    bp_caching_complete_free(allocator, a);
    assert_ok(bp_caching_allocate(allocator, 50 * MIB, 1, 0, &b)); /* the cached segment is released */
    assert_int_equal(reserved(allocator), 50 * MIB);
    assert_int_equal(bp_caching_get_counters(allocator)->retries, 2);
    assert_int_equal(bp_caching_get_counters(allocator)->failures, 1);
    assert_fails(bp_caching_allocate(allocator, (uint64_t)1 << 60, 1, 0, &b), BP_ERR_OVERFLOW, "1 EiB");
    bp_caching_destroy(&allocator);
}

/* Blocks of 40 MiB and more are not split, and serve requests that leave less than 20 MiB of them unused. */
TEST(test_max_split)
{
    bp_caching_settings settings = defaults();
    settings.max_split_bytes = 40 * MIB;
    bp_caching_allocator *allocator = create(settings);
    bp_caching_complete_free(allocator, allocate(allocator, 80 * MIB, 0));
    assert_false(bp_caching_is_cached(allocator, 30 * MIB, 0, 0));
    assert_false(bp_caching_is_cached(allocator, 60 * MIB, 0, 0));
    assert_true(bp_caching_is_cached(allocator, 60 * MIB + 512, 0, 0));
    assert_int_equal(bp_caching_bytes(allocate(allocator, 70 * MIB, 0)), 80 * MIB);
    bp_caching_destroy(&allocator);
}

TEST(test_garbage_collection)
{
    bp_caching_settings settings = defaults();
    settings.limit_bytes = 200 * MIB;
    settings.garbage_collection_threshold = 0.6;
    bp_caching_allocator *allocator = create(settings);
    bp_caching_block *old = allocate(allocator, 60 * MIB, 0), *fresh = allocate(allocator, 50 * MIB, 1);
    bp_caching_complete_free(allocator, old);
    for (int i = 0; i < 8; i++) /* each search makes free blocks older */
        bp_caching_complete_free(allocator, allocate(allocator, 2 * MIB, 2));
    bp_caching_complete_free(allocator, fresh);
    assert_int_equal(reserved(allocator), 130 * MIB);
    allocate(allocator, 22 * MIB, 3);
    assert_int_equal(reserved(allocator), 92 * MIB); /* 60 MiB released */
    assert_fails(bp_caching_allocate(allocator, 190 * MIB, 3, 0, &old), BP_ERR_NO_DEVICE_MEMORY, "199229440");
    bp_caching_destroy(&allocator);
}

TEST(test_expandable)
{
    bp_caching_settings settings = defaults();
    settings.expandable_segments = true;
    bp_caching_allocator *allocator = create(settings);
    bp_caching_block *a = allocate(allocator, 30 * MIB, 0), *b = allocate(allocator, 30 * MIB, 0);
    assert_int_equal(reserved(allocator), 60 * MIB); /* 40, then 20 more for the 20 that are missing */
    assert_int_equal(bp_caching_address(b), bp_caching_address(a) + 30 * MIB);
    bp_caching_complete_free(allocator, a);
    assert_ok(bp_caching_release(allocator, 0));
    assert_int_equal(reserved(allocator), 40 * MIB); /* the first page */
    assert_int_equal(bp_caching_get_counters(allocator)->segments, 0);
    bp_caching_block *c = allocate(allocator, 25 * MIB, 0);
    assert_int_equal(bp_caching_address(c), bp_caching_address(b) - 30 * MIB);
    assert_int_equal(reserved(allocator), 60 * MIB);
    bp_caching_complete_free(allocator, b);
    bp_caching_complete_free(allocator, c);
    assert_ok(bp_caching_release(allocator, 0));
    assert_int_equal(reserved(allocator), 0);
    /* A pool with a private allocator gets plain segments. */
    assert_ok(bp_caching_set_pool(allocator, 3, true, false));
    assert_ok(bp_caching_allocate(allocator, 30 * MIB, 0, 3, &a));
    assert_int_equal(bp_caching_get_counters(allocator)->segments, 1);
    bp_caching_destroy(&allocator);
}

TEST(test_no_split_pool)
{
    bp_caching_allocator *allocator = create(defaults());
    bp_caching_block *block;
    assert_ok(bp_caching_set_pool(allocator, 1, false, true));
    assert_ok(bp_caching_allocate(allocator, 2 * MIB, 0, 1, &block));
    assert_int_equal(bp_caching_bytes(block), 20 * MIB);
    bp_caching_destroy(&allocator);
}

TEST(test_settings)
{
    bp_caching_allocator *allocator = NULL;
    bp_caching_settings settings = defaults();
    settings.roundup_power2_divisions[3] = 3;
    assert_fails(bp_caching_create(&settings, NULL, &allocator), BP_ERR_INVALID_ARGUMENT, "roundup_power2_divisions",
                 "3");
    settings = defaults();
    settings.garbage_collection_threshold = 1;
    assert_fails(bp_caching_create(&settings, NULL, &allocator), BP_ERR_INVALID_ARGUMENT,
                 "garbage_collection_threshold");
    settings = defaults();
    settings.large_segment_bytes = 3 * MIB;
    assert_fails(bp_caching_create(&settings, NULL, &allocator), BP_ERR_INVALID_ARGUMENT, "large_segment_bytes",
                 "3145728");
    settings = defaults();
    settings.max_split_bytes = MIB;
    assert_fails(bp_caching_create(&settings, NULL, &allocator), BP_ERR_INVALID_ARGUMENT, "max_split_bytes", "1048576");
    settings = defaults();
    settings.device_bytes = UINT64_MAX;
    assert_fails(bp_caching_create(&settings, NULL, &allocator), BP_ERR_INVALID_ARGUMENT, "device_bytes");
    assert_null(allocator);
}

TEST(test_states)
{
    bp_caching_settings settings = defaults();
    settings.expandable_segments = true;
    bp_caching_allocator *allocator = create(settings);
    bp_caching_segment segment = {.address = 1 << 30, .stream = 5, .is_expandable = true};
    const bp_caching_piece pieces[] = {{20 * MIB, 0, BP_CACHING_UNMAPPED},
                                       {8 * MIB, 7 * MIB, BP_CACHING_ALLOCATED},
                                       {12 * MIB, 0, BP_CACHING_FREE},
                                       {40 * MIB, 0, BP_CACHING_UNMAPPED}};
    bp_caching_block *blocks[4];
    assert_ok(bp_caching_add_segment(allocator, &segment, pieces, 4, blocks));
    assert_int_equal(reserved(allocator), 20 * MIB);
    assert_int_equal(bp_caching_get_counters(allocator)->requested_bytes, 7 * MIB);
    bp_caching_block *block = allocate(allocator, 15 * MIB, 5); /* at the lowest address where it fits */
    assert_int_equal(bp_caching_address(block), segment.address);
    block = allocate(allocator, 14 * MIB, 5);
    assert_int_equal(bp_caching_address(block), segment.address + 28 * MIB);
    const bp_caching_piece twice[] = {{512, 0, BP_CACHING_FREE}, {512, 0, BP_CACHING_FREE}};
    assert_fails(bp_caching_add_segment(allocator, &segment, twice, 2, blocks), BP_ERR_INVALID_ARGUMENT, "piece 1");
    assert_fails(bp_caching_add_segment(allocator, &segment, twice, 0, blocks), BP_ERR_INVALID_ARGUMENT, "no pieces");
    segment.is_expandable = false;
    assert_fails(bp_caching_add_segment(allocator, &segment, pieces, 1, blocks), BP_ERR_INVALID_ARGUMENT, "piece 0");
    bp_caching_destroy(&allocator);
}

/* ---- random programs --------------------------------------------------------------------------------------------- */

static uint64_t random_bytes(void)
{
    switch (random_below(4)) {
    case 0: return 1 + random_below(4096);
    case 1: return 1 + random_below((uint32_t)(2 * MIB));
    case 2: return 1 + random_below((uint32_t)(24 * MIB));
    default: return (1 + random_below(60)) * MIB;
    }
}

static bp_caching_settings random_settings(void)
{
    bp_caching_settings settings = defaults();
    settings.expandable_segments = random_below(2);
    if (random_below(3) == 0)
        settings.max_split_bytes = (20 + random_below(40)) * MIB;
    if (random_below(3) == 0)
        settings.device_bytes = (100 + random_below(400)) * MIB;
    for (size_t i = 0; i < 16 && random_below(3) == 0; i++)
        settings.roundup_power2_divisions[i] = 1u << random_below(5);
    return settings;
}

enum { MAX_LIVE = 80 };

typedef struct program {
    bp_caching_allocator *allocator;
    naive_allocator naive;
    struct {
        bp_caching_block *block;
        uint64_t address;
        bool is_pending;
    } live[MAX_LIVE];
    size_t count;
    uint64_t active;
} program;

/* Blocks and gaps tile the segments, so live blocks do not overlap; the reserved bytes are those of mapped blocks. */
static void assert_invariants(const program *p)
{
    uint64_t mapped = 0, active = 0;
    for (size_t i = 0; i < p->naive.count; i++) {
        const naive_block *b = &p->naive.blocks[i];
        bp_caching_segment segment = {0, b->stream, b->pool, b->is_small, b->is_expandable};
        mapped += b->state != BP_CACHING_UNMAPPED ? b->bytes : 0;
        active += b->state == BP_CACHING_ALLOCATED || b->state == BP_CACHING_PENDING ? b->bytes : 0;
        if (i > 0)
            assert_true(b[-1].address + b[-1].bytes <= b->address);
        assert_int_equal(b->state == BP_CACHING_FREE, bp_caching_is_free(p->allocator, &segment, b->address, b->bytes));
    }
    assert_int_equal(mapped, reserved(p->allocator));
    assert_int_equal(active, bp_caching_get_counters(p->allocator)->active_bytes);
    for (size_t i = 0; i < p->count; i++) {
        bp_caching_state state = p->live[i].is_pending ? BP_CACHING_PENDING : BP_CACHING_ALLOCATED;
        assert_int_equal(bp_caching_address(p->live[i].block), p->live[i].address);
        assert_int_equal(naive_find(&p->naive, p->live[i].address, state), bp_caching_bytes(p->live[i].block));
    }
}

static void allocate_in_both(program *p)
{
    uint64_t bytes = random_bytes(), stream = random_below(3);
    uint32_t pool = random_below(8) == 0;
    bp_caching_block *block = NULL;
    bool is_cached = bp_caching_is_cached(p->allocator, bytes, stream, pool);
    uint64_t before = bp_caching_get_counters(p->allocator)->device_allocations;
    bp_status status = bp_caching_allocate(p->allocator, bytes, stream, pool, &block);
    uint64_t address = naive_allocate(&p->naive, bytes, stream, pool);
    assert_int_equal(status, address != 0 ? BP_OK : BP_ERR_NO_DEVICE_MEMORY);
    assert_true(!is_cached || (status == BP_OK && before == bp_caching_get_counters(p->allocator)->device_allocations));
    assert_int_equal(block != NULL ? bp_caching_address(block) : 0, address);
    if (block == NULL)
        return;
    p->live[p->count].block = block;
    p->live[p->count].is_pending = false;
    p->live[p->count++].address = address;
}

static void free_in_both(program *p)
{
    size_t i = random_below((uint32_t)p->count);
    if (!p->live[i].is_pending && random_below(4) == 0) {
        bp_caching_request_free(p->allocator, p->live[i].block);
        naive_request_free(&p->naive, p->live[i].address);
        p->live[i].is_pending = true;
        return;
    }
    bp_caching_complete_free(p->allocator, p->live[i].block);
    naive_complete_free(&p->naive, p->live[i].address);
    p->live[i] = p->live[--p->count];
}

TEST(test_random_programs)
{
    static program p;
    for (int round = 0, rounds = share_of(300); round < rounds; round++) {
        seed((uint64_t)round);
        bp_caching_settings settings = random_settings();
        memset(&p, 0, sizeof p);
        p.allocator = create(settings);
        naive_init(&p.naive, &settings);
        for (int i = 0; i < 400; i++) {
            uint32_t choice = random_below(100);
            if (choice == 0) {
                uint32_t pool = random_below(2);
                assert_ok(bp_caching_release(p.allocator, pool));
                naive_release(&p.naive, pool);
            } else if (p.count < MAX_LIVE && (p.count == 0 || choice < 55)) {
                allocate_in_both(&p);
            } else {
                free_in_both(&p);
            }
            if (i % 16 == 0)
                assert_invariants(&p);
        }
        assert_invariants(&p);
        bp_caching_destroy(&p.allocator);
    }
}

TESTS(NULL, NULL)
