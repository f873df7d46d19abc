/* SPDX-License-Identifier: Apache-2.0 */
/* Options of bp_pack: capacity, known placements, limited work. */
#include "support/harness.h"

#include "answers.h"

#include <stdlib.h>
#include <string.h>

#include "naive.h"
#include "support/brief.h"

static instance random_small(void)
{
    return random_instance((random_options){.items = (uint32_t)random_between(1, 7),
                                            .steps = (uint32_t)random_between(1, 14),
                                            .intervals = 2,
                                            .longest = (uint32_t)random_below(5),
                                            .min_size = 1,
                                            .max_size = 9,
                                            .pairs = (uint32_t)random_below(2) * 5,
                                            .empty = true,
                                            .never_live = true});
}

/* Large enough that the search does not finish quickly. */
static instance random_hard(void)
{
    return random_instance((random_options){.items = (uint32_t)random_between(30, 90),
                                            .steps = (uint32_t)random_between(40, 120),
                                            .intervals = (uint32_t)random_between(1, 3),
                                            .longest = (uint32_t)random_below(3) * 10,
                                            .min_size = 1,
                                            .max_size = 1000,
                                            .pairs = (uint32_t)random_below(2) * 40});
}

static uint64_t largest_of(const instance *in)
{
    uint64_t largest = 0;
    for (uint32_t i = 0; i < in->count; i++)
        if (naive_live(in, i) && in->sizes[i] > largest)
            largest = in->sizes[i];
    return largest;
}

/* ---- capacity ------------------------------------------------------------------------------------------------------ */

TEST(test_every_capacity)
{
    seed(1);
    for (int i = 0, times = share_of(400); i < times; i++) {
        SCOPED(end_instance) instance in = random_small();
        uint64_t optimum = naive_optimum(&in), largest = largest_of(&in);
        for (uint64_t capacity = largest > 0 ? largest : 1; capacity <= optimum + 3; capacity++) {
            bp_pack_config config = new_config();
            config.capacity = capacity;
            SCOPED(end_answer) answer a = solve(&in, config);
            assert_for(&in, a.result.outcome == (capacity < optimum ? BP_PACK_INFEASIBLE : BP_PACK_PLACED));
            assert_for(&in, a.result.bytes >= optimum && a.result.proven <= optimum);
        }
    }
}

TEST(test_capacity_below_an_item)
{
    seed(2);
    for (int i = 0, times = share_of(400); i < times; i++) {
        SCOPED(end_instance) instance in = random_small();
        bp_pack_config config = new_config();
        config.capacity = largest_of(&in) - 1;
        if (largest_of(&in) > 1)
            assert_refused(&in, config, BP_ERR_INVALID_ARGUMENT);
    }
    SCOPED(end_instance) instance in = {0};
    add_interval(&in, add_item(&in, 10), 0, 1);
    add_item(&in, 1000); /* never live */
    bp_pack_config config = new_config();
    config.capacity = 10;
    answer a = solve(&in, config);
    assert_int_equal(a.result.outcome, BP_PACK_PLACED);
    end_answer(&a);
    config.capacity = 9;
    assert_refused(&in, config, BP_ERR_INVALID_ARGUMENT);
}

/* ---- known placements ---------------------------------------------------------------------------------------------- */

/* Stacks the items in random order with gaps of up to `gap`. */
static uint64_t pile(const instance *in, uint64_t gap, uint64_t *offsets)
{
    uint64_t bytes = 0;
    uint32_t *order = calloc(in->count + 1, sizeof *order);
    assert_non_null(order);
    for (uint32_t i = 0; i < in->count; i++)
        order[i] = i;
    shuffle(order, in->count);
    for (uint32_t i = 0; i < in->count; i++) {
        offsets[order[i]] = bytes;
        bytes += in->sizes[order[i]] + random_below(gap + 1);
    }
    free(order);
    return naive_height(in, offsets);
}

TEST(test_known_small)
{
    seed(3);
    for (int i = 0, times = share_of(1500); i < times; i++) {
        SCOPED(end_instance) instance in = random_small();
        uint64_t known[MAX_TRIED], optimum = naive_placement(&in, known), height = optimum;
        if (i % 2 == 0)
            height = pile(&in, 3, known);
        for (uint32_t item = 0; item < in.count; item++)
            if (!naive_live(&in, item))
                known[item] = one_in(2) ? UINT64_MAX : random_below(99); /* ignored */
        bp_pack_config config = new_config();
        config.known = known;
        config.work = i % 3 == 0 ? 1 : 0;
        SCOPED(end_answer) answer a = solve(&in, config);
        assert_for(&in, a.result.bytes <= height && (config.work == 1 || a.result.bytes == optimum));
        end_answer(&a);
        config.capacity = height > 0 ? height : 1;
        a = solve(&in, config);
        assert_for(&in, a.result.outcome == BP_PACK_PLACED);
    }
}

TEST(test_known_large)
{
    seed(4);
    for (int i = 0, times = share_of(40); i < times; i++) {
        SCOPED(end_instance) instance in = random_hard();
        uint64_t *known = calloc(in.count, sizeof *known);
        assert_non_null(known);
        bp_pack_config config = new_config();
        config.work = 200000;
        answer first = solve(&in, config);
        memcpy(known, first.offsets, in.count * sizeof *known);
        config.known = known;
        config.work = one_in(2) ? 1 : 200000;
        answer second = solve(&in, config);
        assert_for(&in, second.result.bytes <= first.result.bytes);
        end_answer(&second);
        uint64_t height = pile(&in, 5, known);
        config.work = 1;
        second = solve(&in, config);
        assert_for(&in, second.result.bytes <= height);
        end_answer(&second);
        end_answer(&first);
        free(known);
    }
}

TEST(test_known_is_checked)
{
    seed(5);
    size_t refused = 0;
    for (int i = 0, times = share_of(2000); i < times; i++) {
        SCOPED(end_instance) instance in = random_small();
        uint64_t known[MAX_TRIED];
        naive_placement(&in, known);
        uint32_t item = (uint32_t)random_below(in.count);
        known[item] = one_in(4) ? UINT64_MAX - random_below(in.sizes[item] + 1) : known[random_below(in.count)];
        bool *with = naive_conflicts(&in);
        bp_pack_config config = new_config();
        config.known = known;
        /* valid as long as no end exceeds 2^64 - 1 */
        if (naive_check(&in, with, known, UINT64_MAX)) {
            answer a = solve(&in, config);
            end_answer(&a);
        } else {
            assert_refused(&in, config, BP_ERR_INVALID_ARGUMENT);
            refused++;
        }
        free(with);
    }
    assert_true(refused > (size_t)share_of(300));
}

/* ---- work ---------------------------------------------------------------------------------------------------------- */

static void assert_same(const instance *in, const answer *a, const answer *b)
{
    assert_for(in, memcmp(a->offsets, b->offsets, in->count * sizeof *a->offsets) == 0);
    assert_for(in, a->result.outcome == b->result.outcome && a->result.optimal == b->result.optimal);
    assert_for(in, a->result.bytes == b->result.bytes && a->result.bound == b->result.bound);
    assert_for(in, a->result.proven == b->result.proven && a->result.work == b->result.work);
    assert_string_equal(a->result.method, b->result.method);
}

/* Results are deterministic, and more work never gives more bytes. */
static void try_works(const instance *in, uint64_t capacity, uint64_t max_work, uint64_t factor)
{
    uint64_t min = UINT64_MAX;
    for (uint64_t work = 1; work <= max_work; work *= factor) {
        bp_pack_config config = new_config();
        config.work = work;
        config.capacity = capacity;
        SCOPED(end_answer) answer a = solve(in, config), b = solve(in, config);
        assert_same(in, &a, &b);
        if (a.result.bytes > min)
            print_error("%llu bytes with less work, %llu with %llu, capacity %llu\n", (unsigned long long)min,
                        (unsigned long long)a.result.bytes, (unsigned long long)work, (unsigned long long)capacity);
        assert_for(in, a.result.bytes <= min);
        min = a.result.bytes;
    }
}

TEST(test_little_work)
{
    seed(6);
    for (int i = 0, times = share_of(1000); i < times; i++) {
        SCOPED(end_instance) instance in = random_small();
        uint64_t optimum = naive_optimum(&in);
        for (uint64_t work = 1; work <= 1000000; work *= 10) {
            bp_pack_config config = new_config();
            config.work = work;
            SCOPED(end_answer) answer a = solve(&in, config);
            assert_for(&in, a.result.bytes >= optimum && a.result.proven <= optimum);
        }
    }
}

TEST(test_more_work_small)
{
    seed(8);
    for (int i = 0, times = share_of(300); i < times; i++) {
        SCOPED(end_instance)
        instance in = random_instance((random_options){.items = (uint32_t)random_between(6, 14),
                                                       .steps = (uint32_t)random_between(5, 30),
                                                       .intervals = (uint32_t)random_between(1, 3),
                                                       .longest = (uint32_t)random_below(4) * 2,
                                                       .min_size = 1,
                                                       .max_size = random_between(1, 12),
                                                       .pairs = (uint32_t)random_below(2) * 6});
        try_works(&in, 0, 4000000, 2);
    }
}

TEST(test_more_work)
{
    seed(7);
    for (int i = 0, times = share_of(25); i < times; i++) {
        SCOPED(end_instance) instance in = random_hard();
        try_works(&in, 0, 10000000, 10);
        uint64_t bound = bound_of(&in);
        try_works(&in, bound, 1000000, 10);
        try_works(&in, bound + bound / 10, 1000000, 10);
    }
}

/* Layers of a few kinds in turns, each live while the next few are, as with prefetch: few are live together. */
static instance random_layers(void)
{
    instance in = {0};
    uint64_t sizes[4] = {0}, extra[4] = {0};
    uint32_t kinds = (uint32_t)random_between(2, 4), depth = (uint32_t)random_between(3, 5);
    for (uint32_t kind = 0; kind < kinds; kind++) {
        sizes[kind] = random_between(50, 150);
        extra[kind] = one_in(2) ? random_between(100, 200) : 0;
    }
    for (uint32_t layer = 0; layer < 40; layer++) {
        add_interval(&in, add_item(&in, sizes[layer % kinds]), layer, layer + depth);
        if (extra[layer % kinds] > 0)
            add_interval(&in, add_item(&in, extra[layer % kinds]), layer, layer + depth);
    }
    return in;
}

TEST(test_more_work_layers)
{
    seed(10);
    for (int i = 0, times = share_of(20); i < times; i++) {
        SCOPED(end_instance) instance in = random_layers();
        try_works(&in, 0, 40000000, 2);
    }
}

/* The progress ends with the result, and a search that is stopped before it begins still places everything. */
TEST(test_progress)
{
    seed(9);
    for (int i = 0, times = share_of(25); i < times; i++) {
        SCOPED(end_instance) instance in = random_hard();
        bp_pack_progress progress = {0};
        bp_pack_config config = new_config();
        config.work = 1000000;
        config.progress = &progress;
        SCOPED(end_answer) answer a = solve(&in, config);
        assert_for(&in, progress.bytes == a.result.bytes && progress.proven == a.result.proven);
        progress = (bp_pack_progress){.stop = 1};
        config.work = 0;
        SCOPED(end_answer) answer stopped = solve(&in, config);
        assert_for(&in, stopped.result.outcome == BP_PACK_PLACED && progress.bytes == stopped.result.bytes);
        assert_for(&in, stopped.result.bytes >= a.result.bytes && stopped.result.work < 100000000);
    }
}

/* Items without conflicts are placed without a search. */
TEST(test_progress_without_conflicts)
{
    SCOPED(end_instance) instance in = {0};
    for (uint32_t i = 0; i < 3; i++)
        add_interval(&in, add_item(&in, 5 + i % 2 * 4), 2 * i, 2 * i + 1);
    bp_pack_progress progress = {0};
    bp_pack_config config = new_config();
    config.progress = &progress;
    SCOPED(end_answer) answer a = solve(&in, config);
    assert_for(&in, a.result.bytes == 9 && progress.bytes == 9 && progress.proven == 9);
}

TESTS(NULL, NULL)
