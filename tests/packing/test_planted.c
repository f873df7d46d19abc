/* SPDX-License-Identifier: Apache-2.0 */
/* Planted instances: their optimum is known, and up to a certain size it must be found. */
#include "support/harness.h"

#include "answers.h"

#include <stdlib.h>

#include "naive.h"
#include "planted.h"
#include "support/brief.h"

static planted_options random_options_of(uint32_t min_items, uint32_t max_items)
{
    static const uint64_t bytes[] = {20, 100, 1000, 1048576, UINT64_C(1) << 40};
    return (planted_options){.items = (uint32_t)random_between(min_items, max_items),
                             .bytes = bytes[random_below(5)],
                             .steps = random_between(10, 60),
                             .wheels = one_in(2),
                             .gaps = one_in(2),
                             .pairs = one_in(3)};
}

TEST(test_planted_placements_hold)
{
    seed(1);
    size_t wheels = 0, gaps = 0, pairs = 0;
    for (int i = 0, times = share_of(500); i < times; i++) {
        planted_options options = random_options_of(10, 60);
        SCOPED(end_planted) planted p = plant(options);
        bool *with = naive_conflicts(&p.in);
        assert_for(&p.in, naive_check(&p.in, with, p.offsets, p.bytes));
        assert_for(&p.in, naive_height(&p.in, p.offsets) == p.bytes);
        assert_for(&p.in, naive_live_sum(&p.in) == p.bytes);
        assert_for(&p.in, p.in.count >= 10 && p.in.count <= options.items);
        wheels += options.wheels;
        gaps += p.in.interval_count > p.in.count;
        pairs += p.in.pair_count > 0;
        free(with);
    }
    const size_t min = (size_t)share_of(100);
    assert_true(wheels > min && gaps > min && pairs > min);
}

TEST(test_found)
{
    seed(2);
    for (int i = 0, times = share_of(400); i < times; i++) {
        SCOPED(end_planted) planted p = plant(random_options_of(10, 25));
        assert_optimum(&p.in, p.bytes);
    }
}

TEST(test_found_at_capacity)
{
    seed(3);
    for (int i = 0, times = share_of(200); i < times; i++) {
        SCOPED(end_planted) planted p = plant(random_options_of(10, 25));
        bp_pack_config config = new_config();
        config.capacity = p.bytes + random_below(2) * random_below(p.bytes);
        SCOPED(end_answer) answer a = solve(&p.in, config);
        assert_for(&p.in, a.result.outcome == BP_PACK_PLACED);
    }
}

static bool fits_alone(const planted *p, uint64_t capacity)
{
    for (uint32_t i = 0; i < p->in.count; i++)
        if (p->in.sizes[i] > capacity)
            return false;
    return true;
}

/* Instances too large to demand the optimum: the result must still be valid. */
TEST(test_large)
{
    seed(4);
    size_t found = 0, count = 60;
    for (size_t i = 0; i < count; i++) {
        SCOPED(end_planted) planted p = plant(random_options_of(26, 60));
        bp_pack_config config = new_config();
        config.work = 50000000;
        answer a = solve(&p.in, config);
        assert_for(&p.in, a.result.bytes >= p.bytes && a.result.proven <= p.bytes);
        found += a.result.optimal;
        end_answer(&a);
        config.capacity = p.bytes;
        a = solve(&p.in, config);
        assert_for(&p.in, a.result.outcome != BP_PACK_INFEASIBLE);
        end_answer(&a);
        config.capacity = p.bytes - 1;
        if (fits_alone(&p, config.capacity)) {
            a = solve(&p.in, config);
            assert_for(&p.in, a.result.outcome == BP_PACK_INFEASIBLE);
            end_answer(&a);
        }
    }
    print_message("optimal: %zu of %zu large instances\n", found, count);
}

/* A known optimal placement is kept. */
TEST(test_known)
{
    seed(5);
    for (int i = 0, times = share_of(200); i < times; i++) {
        SCOPED(end_planted) planted p = plant(random_options_of(10, 60));
        bp_pack_config config = new_config();
        config.known = p.offsets;
        config.work = one_in(2) ? 1 : 100000;
        config.capacity = one_in(2) ? p.bytes : 0;
        SCOPED(end_answer) answer a = solve(&p.in, config);
        assert_for(&p.in, a.result.bytes == p.bytes && a.result.optimal == 1);
    }
}

/* A box of bytes [low, high) and steps [begin, end). */
typedef struct box {
    uint64_t begin, end, low, high;
} box;

static void add_boxes(instance *in, uint32_t cuts, box whole)
{
    box boxes[32] = {whole};
    uint32_t count = 1;
    for (uint32_t i = 0; i < cuts; i++) {
        box *b = &boxes[random_below(count)];
        if (one_in(2) && b->end - b->begin > 1) {
            uint64_t at = random_between(b->begin + 1, b->end - 1);
            boxes[count] = *b;
            boxes[count++].begin = at;
            b->end = at;
        } else if (b->high - b->low > 1) {
            uint64_t at = random_between(b->low + 1, b->high - 1);
            boxes[count] = *b;
            boxes[count++].low = at;
            b->high = at;
        }
    }
    for (uint32_t i = 0; i < count; i++)
        add_interval(in, add_item(in, boxes[i].high - boxes[i].low), boxes[i].begin, boxes[i].end);
}

/* Identical items that must lie below and above a third. A search that breaks both symmetries at once (the order of identical items, and
 * the flip upside down) would prove this impossible. */
TEST(test_identical_items_around_another)
{
    seed(6);
    for (int i = 0, times = share_of(1000); i < times; i++) {
        uint64_t v = random_between(200, 399), u = random_between(50, 349), steps = random_between(6, 15);
        SCOPED(end_instance) instance in = {0};
        add_interval(&in, add_item(&in, u), 0, 2);
        add_interval(&in, add_item(&in, v), 0, 1);
        add_interval(&in, add_item(&in, v), 0, 1);
        add_interval(&in, add_item(&in, v), 1, 3);
        uint32_t last = add_item(&in, v);
        add_interval(&in, last, 1, 2);
        add_interval(&in, last, 3, 4);
        add_interval(&in, add_item(&in, u + v), 2, 3);
        add_interval(&in, add_item(&in, u + v), 3, 4 + steps);
        add_boxes(&in, (uint32_t)random_between(6, 20), (box){4, 4 + steps, u + v, u + 2 * v});
        bp_pack_config config = new_config();
        config.work = 1 << 22;
        SCOPED(end_answer) answer a = solve(&in, config);
        assert_for(&in, a.result.proven <= u + 2 * v);
        assert_for(&in, !a.result.optimal || a.result.bytes == u + 2 * v);
    }
}

/* The same instance with added conflicts only, each item live in a separate step: the sections have no order in time. */
static instance without_time(const instance *in)
{
    instance told = {0};
    bool *with = naive_conflicts(in);
    uint32_t shift = (uint32_t)random_below(in->count);
    for (uint32_t i = 0; i < in->count; i++) {
        uint32_t step = (7 * i + shift) % 997; /* a prime larger than the number of items */
        add_interval(&told, add_item(&told, in->sizes[i]), step, step + 1);
    }
    for (uint32_t item = 0; item < in->count; item++) {
        for (uint32_t other = 0; other < item; other++) {
            if (with[(size_t)item * in->count + other])
                add_pair(&told, item, other);
        }
    }
    free(with);
    return told;
}

TEST(test_conflicts_without_time)
{
    seed(7);
    for (int i = 0, times = share_of(300); i < times; i++) {
        SCOPED(end_planted) planted p = plant(random_options_of(20, 50));
        SCOPED(end_instance) instance told = without_time(&p.in);
        bp_pack_config config = new_config();
        config.work = 1 << 22;
        SCOPED(end_answer) answer a = solve(&told, config);
        assert_for(&told, a.result.proven <= p.bytes);
        assert_for(&told, !a.result.optimal || a.result.bytes <= p.bytes);
    }
}

TESTS(NULL, NULL)
