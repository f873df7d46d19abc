/* SPDX-License-Identifier: Apache-2.0 */
/* Instances with more conflicts than the conflict graph takes: placements, bounds, capacities and work limits, without quadratic references. */
#include "support/harness.h"

#include "large.h"

#include <stdlib.h>

#include "planted.h"

/* ---- kinds of instances -------------------------------------------------------------------------------------------- */

TEST(test_random)
{
    seed(5);
    SCOPED(end_instance) instance in = random_large(4600, 1);
    try_large(&in);
    end_instance(&in);
    in = random_large(3000, 3);
    try_large(&in);
}

TEST(test_declared_conflicts)
{
    seed(6);
    for (uint32_t intervals = 1; intervals <= 3; intervals += 2) {
        SCOPED(end_instance)
        instance in = random_instance((random_options){.items = 7000,
                                                       .steps = 5000,
                                                       .intervals = intervals,
                                                       .min_size = 1,
                                                       .max_size = 200,
                                                       .pairs = 3000,
                                                       .empty = true,
                                                       .never_live = true});
        try_large(&in);
    }
}

/* Live through all, live ranges that touch, and one item that takes most of the bytes. */
TEST(test_one_item_through_all)
{
    seed(7);
    SCOPED(end_instance) instance in = random_large(4600, 1);
    add_interval(&in, add_item(&in, UINT64_C(1) << 62), 0, 8000);
    add_interval(&in, add_item(&in, UINT64_C(1) << 62), 3000, 3100);
    uint32_t touching = add_item(&in, (UINT64_C(1) << 62) + 5);
    for (uint32_t i = 0; i < 100; i++)
        add_interval(&in, touching, 40 * i, 40 * i + 40);
    try_large(&in);
}

/* Items of equal size fill the peak exactly (interval graph colouring). */
TEST(test_equal_sizes)
{
    seed(8);
    SCOPED(end_instance) instance in = random_large(4600, 1);
    for (uint32_t i = 0; i < in.count; i++)
        in.sizes[i] = 4096;
    bp_pack_result r = try_large(&in);
    assert_true(r.bytes % 4096 == 0);
    end_instance(&in);
    for (uint32_t i = 0; i < 3000; i++)
        add_interval(&in, add_item(&in, 7), 3, 9);
    r = try_large(&in);
    assert_true(r.bytes == 7 * 3000 && r.optimal == 1);
}

/* A random trace of pushes and pops: offsets that follow the stack reach the peak. */
TEST(test_stack)
{
    seed(9);
    SCOPED(end_instance) instance in = {0};
    uint32_t stack[1000], depth = 0;
    uint64_t *begins = calloc(20000, sizeof *begins), time = 0;
    assert_non_null(begins);
    while (in.count < 20000 || depth > 0) {
        bool is_push = in.count < 20000 && depth < 1000 && (depth < 300 || one_in(2));
        time++;
        if (is_push) {
            begins[in.count] = time;
            stack[depth++] = add_item(&in, random_between(1, 1000));
        } else {
            depth--;
            add_interval(&in, stack[depth], begins[stack[depth]], time);
        }
    }
    bp_pack_result r = try_large(&in);
    assert_true(r.optimal == 1);
    free(begins);
}

/* Planted packings on top of each other: their heights add up to the peak. */
TEST(test_planted)
{
    seed(10);
    for (int gaps = 0; gaps < 2; gaps++) {
        SCOPED(end_instance) instance in = {0};
        uint64_t known[18000], base = 0;
        while (in.count < 17600) {
            SCOPED(end_planted)
            planted p = plant((planted_options){
                .items = 400, .bytes = 100000, .steps = 1000, .wheels = true, .gaps = gaps > 0, .pairs = gaps > 0});
            uint32_t first = in.count;
            for (uint32_t i = 0; i < p.in.count; i++)
                known[add_item(&in, p.in.sizes[i])] = base + p.offsets[i];
            for (uint32_t i = 0; i < p.in.interval_count; i++)
                add_interval(&in, first + p.in.intervals[i].item, p.in.intervals[i].begin, p.in.intervals[i].end);
            for (uint32_t i = 0; i < p.in.pair_count; i++)
                add_pair(&in, first + p.in.pairs[i].item, first + p.in.pairs[i].other);
            base += p.bytes;
        }
        subject s = start_subject(&in);
        assert_true(s.bound == base);
        bp_pack_result r = pack(&s, WORK, 0, NULL);
        print_message("planted: %.1f%% above the optimum\n", 100.0 * (double)(r.bytes - base) / (double)base);
        assert_for(&in, r.bytes >= base && (gaps > 0 || r.bytes <= base + base / 4));
        assert_for(&in, pack(&s, 1, 0, known).optimal == 1);
        assert_int_equal(pack(&s, 1, base, known).outcome, BP_PACK_PLACED);
        assert_true(pack(&s, WORK, base, NULL).outcome != BP_PACK_INFEASIBLE);
        end_subject(&s);
    }
}

/* ---- components ---------------------------------------------------------------------------------------------------- */

TEST(test_single_items)
{
    seed(11);
    SCOPED(end_instance) instance in = {0};
    uint64_t largest = 0;
    for (uint32_t i = 0; i < 100000; i++) {
        uint32_t item = add_item(&in, random_between(1, 1000000));
        largest = in.sizes[item] > largest ? in.sizes[item] : largest;
        add_interval(&in, item, 10 * i, 10 * i + random_between(1, 10));
    }
    bp_pack_result r = try_large(&in);
    assert_true(r.bytes == largest && r.optimal == 1);
}

/* Components that alternate in time, each held together by gaps; one has declared conflicts only. */
TEST(test_interleaved_components)
{
    seed(12);
    SCOPED(end_instance) instance in = {0};
    for (uint32_t part = 0; part < 4000; part++) {
        uint32_t last = add_item(&in, random_between(1, 1000));
        for (uint64_t i = random_below(6); i > 0; i--) {
            uint32_t item = add_item(&in, random_between(1, 1000));
            uint64_t begin = 10 * (random_below(30) * 4000 + part);
            add_interval(&in, last, begin, begin + 10);
            add_interval(&in, item, begin + random_below(10), begin + 10);
            last = item;
        }
    }
    uint32_t ring = in.count;
    for (uint32_t i = 0; i < 5; i++)
        add_item(&in, 5000 + i);
    for (uint32_t i = 0; i < 5; i++)
        add_pair(&in, ring + i, ring + (i + 1) % 5);
    subject s = start_subject(&in);
    bp_pack_result r = pack(&s, WORK, 0, NULL);
    assert_true(r.optimal == 1 && r.bytes > 10000);
    end_subject(&s);
}

/* A component without a conflict graph beside small ones with one. */
TEST(test_components_of_all_sizes)
{
    seed(13);
    SCOPED(end_instance) instance in = random_large(4600, 1);
    for (uint32_t i = 0; i < 2000; i++)
        add_interval(&in, add_item(&in, random_between(1, 1000)), 9000 + i, 9001 + i + random_below(3));
    try_large(&in);
}

/* ---- sizes --------------------------------------------------------------------------------------------------------- */

/* All live together. */
static instance overlapping_items(uint32_t count)
{
    instance in = {0};
    for (uint32_t i = 0; i < count; i++)
        add_interval(&in, add_item(&in, 1 + i), random_below(50), 50 + random_between(1, 50));
    return in;
}

/* The heights of a full address space are valid. */
TEST(test_largest_sum)
{
    seed(1);
    SCOPED(end_instance) instance in = overlapping_items(2950);
    uint64_t sum = 0;
    for (uint32_t i = 0; i < in.count; i++)
        sum += in.sizes[i];
    in.sizes[random_below(in.count)] += UINT64_MAX - sum;
    bp_pack_result r = try_large(&in);
    assert_true(r.bytes == UINT64_MAX && r.optimal == 1);
}

/* ---- declared conflicts -------------------------------------------------------------------------------------------- */

/* An item without a live range that is larger than the peak is the bound. */
TEST(test_bound_without_live_range)
{
    seed(2);
    SCOPED(end_instance) instance in = overlapping_items(2950);
    uint32_t item = add_item(&in, peak_of(&in, NULL) + 7);
    add_pair(&in, 20, item);
    bp_pack_result r = try_large(&in);
    assert_true(r.bound == in.sizes[item] && r.bytes >= in.sizes[item] + in.sizes[20]);
}

/* Declaring a conflict again has no effect, however often. */
TEST(test_repeated_conflicts)
{
    SCOPED(end_instance) instance in = {0};
    for (uint32_t i = 0; i < 5; i++)
        add_item(&in, 3 + i);
    for (uint32_t i = 0; i < 5; i++)
        add_pair(&in, i, (i + 1) % 5);
    SCOPED(bp_packing_destroy) bp_packing *packing = make_packing(&in);
    for (uint32_t i = 0; i < UINT32_C(1) << 23; i++)
        assert_ok(bp_packing_add_conflict(packing, (i + 1) % 5, i % 5));
    SCOPED(end_answer) answer once = solve_plainly(&in);
    uint64_t offsets[5];
    bp_pack_result r = {.size = sizeof r};
    assert_ok(bp_pack(packing, NULL, offsets, &r));
    assert_true(r.optimal == 1 && r.bytes == once.result.bytes && r.bound == once.result.bound);
    assert_memory_equal(offsets, once.offsets, sizeof offsets);
}

/* A clique of declared conflicts. The work counts them. */
TEST(test_conflicts_alone)
{
    seed(3);
    SCOPED(end_instance) instance in = {0};
    for (uint32_t i = 0; i < 2900; i++)
        add_item(&in, random_between(1, 1000));
    for (uint32_t i = 0; i < in.count; i++)
        for (uint32_t k = 0; k < i; k++)
            add_pair(&in, i, k);
    subject s = start_subject(&in);
    bp_pack_result r = pack(&s, 1, 0, NULL);
    uint64_t sum = 0;
    for (uint32_t i = 0; i < in.count; i++)
        sum += in.sizes[i];
    assert_true(r.bytes >= sum && r.work >= 8 * (uint64_t)in.pair_count);
    end_subject(&s);
}

/* ---- work ---------------------------------------------------------------------------------------------------------- */

/* One order of first fit takes more than the whole work. */
TEST(test_work_ends)
{
    seed(4);
    SCOPED(end_instance) instance in = random_large(6000, 3);
    subject s = start_subject(&in);
    uint64_t work = 40000000;
    assert_in_range(pack(&s, work, 0, NULL).work, work, work + work / 4);
    end_subject(&s);
}

TESTS(NULL, NULL)
