/* SPDX-License-Identifier: Apache-2.0 */
/* The order sweep, called directly: its placements are valid, and its proofs agree with branch and bound. */
#include "support/harness.h"

#include "answers.h"

#include <stdlib.h>

#include "planner/packing/solve.h"
#include "support/brief.h"

#define TRIES 400
#define ENOUGH_WORK (UINT64_C(1) << 34)

static bp_pack_progress unseen;

static instance random_swept(int i)
{
    return random_instance((random_options){.items = (uint32_t)random_between(2, 10),
                                            .steps = (uint32_t)random_between(2, 16),
                                            .intervals = (uint32_t)random_between(1, 2),
                                            .longest = 6,
                                            .min_size = 1,
                                            .max_size = random_between(1, 9),
                                            .pairs = i % 3 == 0 ? 20 : 0});
}

/* Conflicting items share no byte, and all end at or below the capacity. */
static void check_placement(const instance *in, const bp_problem *p, const uint64_t *offsets, uint64_t capacity)
{
    for (uint32_t i = 0; i < p->count; i++) {
        assert_for(in, offsets[i] + p->sizes[i] <= capacity);
        for (uint32_t n = p->neighbours.first[i]; n < p->neighbours.first[i + 1]; n++) {
            uint32_t other = p->neighbours.entries[n];
            assert_for(in,
                       offsets[i] + p->sizes[i] <= offsets[other] || offsets[other] + p->sizes[other] <= offsets[i]);
        }
    }
}

/* The same verdict from the sweep, in both modes and with any work that suffices, as from branch and bound. */
static void compare_verdicts(const instance *in, const bp_problem *p, const bp_order *order, uint64_t capacity)
{
    uint64_t offsets[64];
    bp_verdict expected;
    bp_work enough = {0, ENOUGH_WORK, &unseen};
    assert_ok(bp_search(p, capacity, NULL, 0, &enough, offsets, &expected));
    assert_for(in, expected.found != expected.impossible);
    for (int dives = 0; dives < 2; dives++) {
        bp_verdict verdict = {0};
        for (uint64_t limit = 64; !verdict.found && !verdict.impossible; limit *= 4) {
            bp_work work = {0, limit, &unseen};
            assert_for(in, limit < ENOUGH_WORK);
            assert_ok(bp_sweep(p, order, capacity, dives != 0 ? limit : 0, &work, offsets, &verdict));
            assert_for(in, !(verdict.found && verdict.impossible));
            assert_for(in, verdict.found || verdict.impossible || bp_work_is_over(&work));
        }
        assert_for(in, verdict.found == expected.found);
        if (verdict.found)
            check_placement(in, p, offsets, capacity);
        else
            assert_for(in, verdict.proven > capacity);
    }
}

/* The least height that the sweep finds, following its own lower bounds. */
static uint64_t climb(const instance *in, const bp_problem *p, const bp_order *order)
{
    uint64_t offsets[64];
    bp_verdict verdict = {.proven = p->bound};
    do {
        bp_work work = {0, ENOUGH_WORK, &unseen};
        uint64_t capacity = verdict.proven;
        assert_ok(bp_sweep(p, order, capacity, 0, &work, offsets, &verdict));
        if (verdict.found)
            return capacity;
        assert_for(in, verdict.impossible && verdict.proven > capacity);
    } while (true);
}

TEST(test_same_verdicts_as_branch_and_bound)
{
    seed(8101);
    for (int i = 0; i < share_of(TRIES); i++) {
        SCOPED(end_instance) instance in = random_swept(i);
        SCOPED(bp_packing_destroy) bp_packing *packing = make_packing(&in);
        bp_timelines timelines;
        assert_ok(bp_timelines_init(packing, &timelines));
        for (uint32_t k = 0; k < timelines.count; k++) {
            bp_problem p = {0};
            bp_order order = {0};
            assert_ok(bp_problem_init(&timelines.parts[k], &p));
            assert_ok(bp_order_init(&p, &order));
            uint64_t min = climb(&in, &p, &order);
            for (uint64_t capacity = p.bound > 0 ? p.bound - 1 : 0; capacity <= min; capacity++)
                compare_verdicts(&in, &p, &order, capacity);
            bp_order_finish(&order);
            bp_problem_finish(&p);
        }
        bp_timelines_finish(&timelines);
    }
}

/* Sizes without a common divisor whose sum exceeds 31 bits are not swept: neither found nor impossible. */
TEST(test_large_sizes_are_left_to_others)
{
    bp_problem p = {0};
    bp_order order = {0};
    uint64_t offsets[3];
    SCOPED(end_instance) instance in = {0};
    for (uint64_t i = 0; i < 3; i++)
        add_interval(&in, add_item(&in, (UINT64_C(1) << 31) + i), i, i + 2);
    SCOPED(bp_packing_destroy) bp_packing *packing = make_packing(&in);
    bp_timelines timelines;
    assert_ok(bp_timelines_init(packing, &timelines));
    assert_int_equal(timelines.count, 1);
    assert_ok(bp_problem_init(&timelines.parts[0], &p));
    assert_ok(bp_order_init(&p, &order));
    for (int dives = 0; dives < 2; dives++) {
        bp_work work = {0, ENOUGH_WORK, &unseen};
        bp_verdict verdict;
        assert_ok(bp_sweep(&p, &order, UINT64_C(1) << 40, dives != 0 ? ENOUGH_WORK : 0, &work, offsets, &verdict));
        assert_false(verdict.found || verdict.impossible);
    }
    bp_order_finish(&order);
    bp_problem_finish(&p);
    bp_timelines_finish(&timelines);
}

TESTS(NULL, NULL)
