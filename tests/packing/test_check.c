/* SPDX-License-Identifier: Apache-2.0 */
/* bp_packing_check against the reference model, on valid and invalid placements; bp_packing_bound and its witness. */
#include "support/harness.h"

#include "answers.h"

#include <stdlib.h>

#include "naive.h"

static const random_options SMALL = {.items = 7,
                                     .steps = 12,
                                     .intervals = 3,
                                     .min_size = 1,
                                     .max_size = 5,
                                     .pairs = 5,
                                     .empty = true,
                                     .never_live = true};

typedef struct tally {
    size_t right, wrong;
} tally;

/* True if the checker finds a fault; asserts that the fault it names exists. */
static bool finds_fault(const instance *in, const bp_packing *packing, const bool *with, const uint64_t *offsets,
                        uint64_t bytes)
{
    bp_packing_fault fault = {.size = sizeof fault, .found = 77};
    assert_ok(bp_packing_find_fault(packing, offsets, bytes, &fault));
    if (fault.found == 0)
        return false;
    assert_for(in, fault.found == 1 && fault.item <= fault.other && fault.other < in->count);
    uint64_t one = offsets[fault.item], other = offsets[fault.other];
    uint64_t size = in->sizes[fault.item], other_size = in->sizes[fault.other];
    if (fault.item == fault.other)
        assert_for(in, naive_live(in, fault.item) && (one > bytes || bytes - one < size));
    else
        assert_for(in, with[(size_t)fault.item * in->count + fault.other] &&
                           (one <= other ? other - one < size : one - other < other_size));
    return true;
}

static void compare(const instance *in, const bp_packing *packing, const bool *with, const uint64_t *offsets,
                    uint64_t bytes, tally *t)
{
    bool right = naive_check(in, with, offsets, bytes);
    bp_status status = bp_packing_check(packing, offsets, bytes);
    if (status != (right ? BP_OK : BP_ERR_MISMATCH)) {
        for (uint32_t i = 0; i < in->count; i++)
            print_error("item %u at %llu\n", i, (unsigned long long)offsets[i]);
        print_error("in %llu bytes: %s\n", (unsigned long long)bytes, bp_status_name(status));
    }
    assert_for(in, status == (right ? BP_OK : BP_ERR_MISMATCH));
    assert_for(in, finds_fault(in, packing, with, offsets, bytes) == !right);
    t->right += right;
    t->wrong += !right;
}

/* Any offsets, including ends that overflow 64 bits. */
TEST(test_random_placements)
{
    static const uint64_t bases[] = {0, UINT64_MAX - 20};
    seed(1);
    tally t = {0};
    for (int i = 0; i < 20000; i++) {
        random_options options = SMALL;
        options.items = (uint32_t)random_between(1, 7);
        options.pairs = one_in(2) ? 0 : SMALL.pairs;
        SCOPED(end_instance) instance in = random_instance(options);
        SCOPED(bp_packing_destroy) bp_packing *packing = make_packing(&in);
        bool *with = naive_conflicts(&in);
        uint64_t offsets[MAX_TRIED], base = bases[one_in(4)];
        for (int k = 0; k < 10; k++) {
            for (uint32_t item = 0; item < in.count; item++)
                offsets[item] = base + random_below(one_in(2) ? 21 : 10);
            compare(&in, packing, with, offsets, base + random_between(8, 20), &t);
        }
        free(with);
    }
    assert_true(t.right > 10000 && t.wrong > 10000);
}

/* Tight placements, and the same with one item moved by a byte or onto another. */
TEST(test_moved_items)
{
    seed(2);
    tally t = {0};
    for (int i = 0; i < 2000; i++) {
        SCOPED(end_instance) instance in = random_instance(SMALL);
        SCOPED(bp_packing_destroy) bp_packing *packing = make_packing(&in);
        bool *with = naive_conflicts(&in);
        uint64_t offsets[MAX_TRIED], bytes = naive_placement(&in, offsets);
        compare(&in, packing, with, offsets, bytes, &t);
        compare(&in, packing, with, offsets, bytes + 1, &t);
        if (bytes > 0)
            compare(&in, packing, with, offsets, bytes - 1, &t);
        for (uint32_t item = 0; item < in.count; item++) {
            uint64_t kept = offsets[item], moved[] = {kept + 1, kept - 1, offsets[random_below(in.count)], UINT64_MAX};
            for (size_t k = 0; k < sizeof moved / sizeof *moved; k++) {
                offsets[item] = moved[k]; /* wraps below 0 */
                compare(&in, packing, with, offsets, bytes, &t);
                compare(&in, packing, with, offsets, UINT64_MAX, &t);
            }
            offsets[item] = kept;
        }
        free(with);
    }
    assert_true(t.right > 10000 && t.wrong > 10000);
}

/* Many items with many intervals each, at most one of which overlaps. */
TEST(test_one_wrong_of_many)
{
    seed(3);
    for (int i = 0; i < 60; i++) {
        random_options options = {
            .items = 150, .steps = 400, .intervals = 4, .min_size = 10, .max_size = 300, .pairs = 200};
        SCOPED(end_instance) instance in = random_instance(options);
        SCOPED(bp_packing_destroy) bp_packing *packing = make_packing(&in);
        bool *with = naive_conflicts(&in);
        uint64_t *offsets = calloc(in.count, sizeof *offsets), bytes = 0;
        assert_non_null(offsets);
        for (uint32_t item = 0; item < in.count; item++) { /* stacked */
            offsets[item] = bytes;
            bytes += in.sizes[item];
        }
        tally t = {0};
        compare(&in, packing, with, offsets, bytes, &t);
        assert_int_equal(t.right, 1);
        for (int k = 0; k < 50; k++) {
            uint32_t item = (uint32_t)random_below(in.count);
            uint64_t kept = offsets[item];
            offsets[item] += one_in(2) ? 1 : random_below(bytes);
            compare(&in, packing, with, offsets, 2 * bytes, &t);
            offsets[item] = kept;
        }
        assert_true(t.wrong > 0);
        free(offsets);
        free(with);
    }
}

TEST(test_names_the_items)
{
    SCOPED(end_instance) instance in = {0};
    for (uint32_t i = 0; i < 40; i++)
        add_interval(&in, add_item(&in, 1000), i, i + 2);
    SCOPED(bp_packing_destroy) bp_packing *packing = make_packing(&in);
    uint64_t offsets[40];
    for (uint32_t i = 0; i < 40; i++)
        offsets[i] = i % 2 * 1000;
    assert_ok(bp_packing_check(packing, offsets, 2000));
    offsets[27] = 999;
    assert_fails(bp_packing_check(packing, offsets, 2000), BP_ERR_MISMATCH, "26", "27");
    offsets[27] = 1001;
    assert_fails(bp_packing_check(packing, offsets, 2000), BP_ERR_MISMATCH, "27", "2000");
}

/* ---- the bound ----------------------------------------------------------------------------------------------------- */

TEST(test_bound)
{
    seed(4);
    size_t extended = 0;
    for (int i = 0; i < 6000; i++) {
        random_options options = SMALL;
        options.items = (uint32_t)random_between(1, 7);
        options.pairs = one_in(2) ? 0 : 12;
        SCOPED(end_instance) instance in = random_instance(options);
        uint64_t bound = bound_of(&in);
        assert_for(&in, bound <= naive_clique(&in));
        extended += bound > naive_live_sum(&in);
    }
    assert_true(extended > 100);
    for (int i = 0; i < 20; i++) {
        random_options options = {
            .items = 120, .steps = 300, .intervals = 3, .min_size = 1, .max_size = 1000000, .pairs = i % 2 * 300};
        SCOPED(end_instance) instance in = random_instance(options);
        bound_of(&in);
    }
}

/* A live set, and an item with added conflicts to all of its members: the clique includes both. */
TEST(test_bound_extends)
{
    SCOPED(end_instance) instance in = {0};
    for (uint32_t i = 0; i < 4; i++)
        add_interval(&in, add_item(&in, 10 + i), 5, 6);
    uint32_t other = add_item(&in, 7);
    add_interval(&in, other, 8, 9);
    assert_int_equal(bound_of(&in), 46);
    for (uint32_t i = 0; i < 4; i++)
        add_pair(&in, i % 2 == 0 ? i : other, i % 2 == 0 ? other : i);
    assert_int_equal(bound_of(&in), 53);
    assert_int_equal(naive_clique(&in), 53);
}

/* A dense graph of added conflicts: the work stays limited. */
TEST(test_bound_of_dense_conflicts)
{
    seed(5);
    for (uint32_t percent = 100; percent >= 50; percent -= 10) {
        SCOPED(end_instance) instance in = {0};
        uint64_t sum = 0;
        for (uint32_t i = 0; i < 90; i++) {
            add_interval(&in, add_item(&in, random_between(1, 100)), i, i + 1);
            sum += in.sizes[i];
            for (uint32_t k = 0; k < i; k++)
                if (random_below(100) < percent)
                    add_pair(&in, i, k);
        }
        uint64_t bound = bound_of(&in);
        assert_for(&in, percent < 100 || bound == sum);
        if (percent == 100)
            assert_optimum(&in, sum);
    }
}

TESTS(NULL, NULL)
