/* SPDX-License-Identifier: Apache-2.0 */
/* Small instances, whole families and random ones: bp_pack finds and proves the optimum of the exhaustive search. */
#include "support/harness.h"

#include "answers.h"

#include <stdlib.h>

#include "naive.h"
#include "support/brief.h"

/* Asserts the optimum and, if `capacities`, the results for capacities at it and just below. */
static void assert_solved(const instance *in, bool capacities)
{
    uint64_t optimum = naive_optimum(in), largest = 0;
    assert_optimum(in, optimum);
    for (uint32_t i = 0; i < in->count; i++)
        if (naive_live(in, i) && in->sizes[i] > largest)
            largest = in->sizes[i];
    for (uint64_t spare = 0; capacities && optimum > 0 && spare < 2; spare++) {
        bp_pack_config config = new_config();
        config.capacity = optimum + spare;
        SCOPED(end_answer) answer a = solve(in, config);
        assert_for(in, a.result.outcome == BP_PACK_PLACED);
    }
    if (!capacities || optimum <= largest)
        return;
    bp_pack_config config = new_config();
    config.capacity = optimum - 1;
    SCOPED(end_answer) answer a = solve(in, config);
    assert_for(in, a.result.outcome == BP_PACK_INFEASIBLE);
}

/* ---- reference model ------------------------------------------------------------------------------------------------ */

TEST(test_references_agree)
{
    seed(1);
    for (int i = 0, times = share_of(4000); i < times; i++) {
        random_options options = {.items = (uint32_t)random_between(1, 5),
                                  .steps = (uint32_t)random_between(1, 6),
                                  .intervals = 2,
                                  .min_size = 1,
                                  .max_size = 4,
                                  .pairs = (uint32_t)random_below(4),
                                  .empty = true,
                                  .never_live = true};
        SCOPED(end_instance) instance in = random_instance(options);
        uint64_t offsets[MAX_TRIED], optimum = naive_placement(&in, offsets);
        bool *with = naive_conflicts(&in);
        assert_for(&in, naive_grid_optimum(&in) == optimum);
        assert_for(&in, naive_check(&in, with, offsets, optimum) && naive_height(&in, offsets) == optimum);
        assert_for(&in, naive_clique(&in) <= optimum);
        assert_for(&in, naive_live_sum(&in) <= naive_clique(&in));
        free(with);
    }
}

/* ---- families ------------------------------------------------------------------------------------------------------ */

/* Enumerates all multisets of up to `most` items with sizes 1 to 3 and any sets of steps, from `kind` on. */
static size_t try_sets(instance *in, uint32_t kind, uint32_t steps, uint32_t max)
{
    size_t tried = 0;
    uint32_t masks = (1U << steps) - 1;
    for (; in->count < max && kind < 3 * masks; kind++) {
        add_masked_item(in, 1 + kind / masks, 1 + kind % masks);
        assert_solved(in, tried % 16 == 0);
        tried += 1 + try_sets(in, kind, steps, max);
        drop_item(in);
    }
    return tried;
}

TEST(test_all_sets)
{
    SCOPED(end_instance) instance in = {0};
    assert_int_equal(try_sets(&in, 0, 2, 5), 2001);
    assert_int_equal(try_sets(&in, 0, 3, in_brief() ? 4 : 5), in_brief() ? 12649 : 65779);
    assert_int_equal(try_sets(&in, 0, 4, 3), 17295);
}

/* An instance with the conflict graph `edges`, a bit per pair; each conflict is a common step or, by the bits of `added`, an added
 * conflict. For even `edges` each item is also live alone. */
static instance graph_instance(const uint64_t *sizes, uint32_t count, uint32_t edges, uint32_t added)
{
    instance in = {0};
    for (uint32_t i = 0; i < count; i++) {
        add_item(&in, sizes[i]);
        if (edges % 2 == 0)
            add_interval(&in, i, 100 + i, 101 + i);
    }
    uint32_t edge = 0;
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t k = 0; k < i; k++, edge++) {
            if (!(edges >> edge & 1))
                continue;
            if (added >> edge & 1) {
                add_pair(&in, i, k);
            } else {
                add_interval(&in, i, edge, edge + 1);
                add_interval(&in, k, edge, edge + 1);
            }
        }
    }
    return in;
}

/* The five-cycle, the smallest graph whose optimum exceeds its heaviest clique. */
#define FIVE_CYCLE 0x265U

/* Every conflict graph of five items with sizes 1 to 3, largest first; interval graphs are only some of them. */
TEST(test_all_graphs)
{
    static const uint32_t added[] = {0, 0x3FF, 0x155};
    size_t tried = 0, above_bound = 0;
    const uint32_t every = in_brief() ? 5 : 1; /* stride over the graphs, with another start for each set of sizes */
    for (uint32_t digits = 0; digits < 243; digits++) {
        uint64_t sizes[5];
        bool sorted = true;
        for (uint32_t i = 0, rest = digits; i < 5; i++, rest /= 3) {
            sizes[i] = 1 + rest % 3;
            sorted = sorted && (i == 0 || sizes[i] <= sizes[i - 1]);
        }
        for (uint32_t edges = digits % every; sorted && edges < 1024; edges += every) {
            SCOPED(end_instance) instance in = graph_instance(sizes, 5, edges, added[tried % 3]);
            assert_solved(&in, tried % 8 == 0);
            above_bound += naive_optimum(&in) > naive_clique(&in);
            tried++;
        }
    }
    assert_true(every > 1 ? tried > 21 * 200 : tried == 21 * 1024);
    assert_true(above_bound > 50 / every);
}

/* ---- at random ----------------------------------------------------------------------------------------------------- */

static void try_random(random_options options, int count)
{
    for (int i = 0, times = share_of(count); i < times; i++) {
        random_options these = options;
        these.items = (uint32_t)random_between(1, options.items);
        these.steps = (uint32_t)random_between(1, options.steps);
        these.longest = one_in(2) ? 0 : 3;
        SCOPED(end_instance) instance in = random_instance(these);
        assert_solved(&in, i % 4 == 0);
    }
}

TEST(test_random)
{
    seed(2);
    try_random((random_options){.items = 7, .steps = 12, .intervals = 1, .min_size = 1, .max_size = 5}, 1500);
    try_random((random_options){.items = 7, .steps = 20, .intervals = 4, .min_size = 1, .max_size = 9}, 1500);
    try_random((random_options){.items = 7, .steps = 30, .intervals = 3, .min_size = 900, .max_size = 1100, .pairs = 6},
               1500);
    random_options odd = {.items = 7,
                          .steps = 9,
                          .intervals = 2,
                          .min_size = 1,
                          .max_size = 6,
                          .pairs = 8,
                          .empty = true,
                          .never_live = true};
    try_random(odd, 1500);
}

/* Random conflict graphs: their optimum often exceeds the bound, unlike that of random intervals. */
TEST(test_random_graphs)
{
    seed(3);
    size_t above_bound = 0;
    for (int i = 0, times = share_of(3000); i < times; i++) {
        uint64_t sizes[7], min = random_between(1, 20), max = min + random_below(10);
        uint32_t count = (uint32_t)random_between(5, 7);
        for (uint32_t k = 0; k < count; k++)
            sizes[k] = random_between(min, max);
        uint32_t edges = (uint32_t)random_below(1 << 21);
        if (one_in(2))
            edges = (edges & ~0x3FFU) | FIVE_CYCLE;
        SCOPED(end_instance)
        instance in = graph_instance(sizes, count, edges, i % 2 == 0 ? 0 : (uint32_t)random_below(1 << 21));
        assert_solved(&in, i % 4 == 0);
        above_bound += naive_optimum(&in) > naive_clique(&in);
    }
    assert_true(above_bound > (size_t)share_of(300));
}

TESTS(NULL, NULL)
