/* SPDX-License-Identifier: Apache-2.0 */
/* First fit, online best fit and best fit on a skyline, called directly: small instances against references. */
#include "support/harness.h"

#include "answers.h"

#include <stdlib.h>

#include "naive.h"
#include "planner/packing/solve.h"
#include "support/brief.h"

static bp_pack_progress unseen;

/* One component of an instance. */
typedef struct part {
    const bp_timeline *t;
    bp_item_index index;
    uint64_t *offsets; /* by item of the part */
} part;

typedef void try_part(const instance *in, part *p);

static instance random_small(int i)
{
    return random_instance((random_options){.items = (uint32_t)random_between(1, 30),
                                            .steps = (uint32_t)random_between(1, 40),
                                            .intervals = (uint32_t)random_between(1, 3),
                                            .longest = (uint32_t)random_below(3) * 8,
                                            .min_size = 1,
                                            .max_size = random_between(1, 100),
                                            .pairs = i % 3 == 0 ? 20 : 0,
                                            .empty = true,
                                            .never_live = true});
}

static void try_parts(int times, try_part *try)
{
    for (int i = 0; i < share_of(times); i++) {
        SCOPED(end_instance) instance in = random_small(i);
        SCOPED(bp_packing_destroy) bp_packing *packing = make_packing(&in);
        bp_timelines timelines;
        assert_ok(bp_timelines_init(packing, &timelines));
        for (uint32_t k = 0; k < timelines.count; k++) {
            part p = {.t = &timelines.parts[k], .offsets = calloc(in.count, sizeof *p.offsets)};
            assert_non_null(p.offsets);
            assert_ok(bp_item_index_init(p.t, &p.index));
            try(&in, &p);
            bp_item_index_finish(&p.index);
            free(p.offsets);
        }
        bp_timelines_finish(&timelines);
    }
}

/* Asserts that the part's items are placed without overlaps, and returns their height. */
static uint64_t checked_height(const instance *in, const part *p)
{
    bool *with = naive_conflicts(in);
    uint64_t height = 0;
    for (uint32_t i = 0; i < p->t->count; i++) {
        uint64_t end = p->offsets[i] + p->t->sizes[i];
        height = end > height ? end : height;
        assert_for(in, p->t->sizes[i] == in->sizes[p->t->origin[i]]);
        for (uint32_t k = 0; k < i; k++)
            assert_for(in, !with[(size_t)p->t->origin[i] * in->count + p->t->origin[k]] || p->offsets[k] >= end ||
                               p->offsets[k] + p->t->sizes[k] <= p->offsets[i]);
    }
    free(with);
    assert_for(in, height >= p->t->bound);
    return height;
}

/* ---- first fit ------------------------------------------------------------------------------------------------------ */

/* The lowest offset where an item fits beside those of lower number, over all ends of items. */
static uint64_t lowest_gap_of(const part *p, const bool *with, size_t count, uint32_t item)
{
    uint64_t lowest = UINT64_MAX;
    for (uint32_t below = 0; below <= item; below++) { /* `item`: the bottom */
        uint64_t at = below < item ? p->offsets[below] + p->t->sizes[below] : 0;
        bool fits = true;
        for (uint32_t k = 0; k < item && fits; k++)
            fits = !with[p->t->origin[item] * count + p->t->origin[k]] || p->offsets[k] >= at + p->t->sizes[item] ||
                   p->offsets[k] + p->t->sizes[k] <= at;
        lowest = fits && at < lowest ? at : lowest;
    }
    return lowest;
}

/* The first order is that of the items. A target that each order reaches ends the search after it. */
static void try_first_order(const instance *in, part *p)
{
    bool *with = naive_conflicts(in);
    uint64_t height = 0;
    bp_work work = {0, UINT64_MAX, &unseen};
    assert_ok(bp_first_fit(p->t, &p->index, UINT64_MAX - 1, UINT64_MAX, &work, p->offsets, &height));
    assert_for(in, checked_height(in, p) == height);
    for (uint32_t i = 0; i < p->t->count; i++)
        assert_for(in, p->offsets[i] == lowest_gap_of(p, with, in->count, i));
    free(with);
}

/* More work gives no higher result; the search ends soon after the work. */
static void try_more_orders(const instance *in, part *p)
{
    uint64_t before = UINT64_MAX;
    for (uint64_t limit = 1; limit < 2000000; limit *= 8) {
        uint64_t height = 0;
        bp_work work = {0, limit, &unseen};
        assert_ok(bp_first_fit(p->t, &p->index, p->t->bound, UINT64_MAX, &work, p->offsets, &height));
        assert_for(in, height <= before && work.spent < limit + 10000);
        assert_for(in, height == UINT64_MAX || checked_height(in, p) == height);
        before = height;
    }
}

TEST(test_first_fit)
{
    seed(1);
    try_parts(1000, try_first_order);
    try_parts(60, try_more_orders);
}

/* ---- online best fit ------------------------------------------------------------------------------------------------ */

static void try_online(const instance *in, part *p)
{
    bp_work work = {0, UINT64_MAX, &unseen}, none = {0, 0, &unseen};
    uint64_t height = 0, again = 0;
    assert_ok(bp_online_fit(p->t, UINT64_MAX, &work, p->offsets, &height));
    assert_for(in, (height == UINT64_MAX) == (p->t->pair_count > 0));
    if (height == UINT64_MAX)
        return;
    assert_for(in, checked_height(in, p) == height);
    assert_ok(bp_online_fit(p->t, height + 1, &work, p->offsets, &again));
    assert_for(in, again == height && checked_height(in, p) == height);
    assert_ok(bp_online_fit(p->t, height, &work, p->offsets, &again));
    assert_for(in, again == UINT64_MAX);
    assert_ok(bp_online_fit(p->t, UINT64_MAX, &none, p->offsets, &again));
    assert_for(in, again == UINT64_MAX && none.spent > 0);
}

TEST(test_online_best_fit)
{
    seed(2);
    try_parts(1000, try_online);
}

/* ---- skyline -------------------------------------------------------------------------------------------------------- */

static void try_passes(const instance *in, part *p)
{
    bp_skyline *skyline = NULL;
    bp_work work = {0, UINT64_MAX, &unseen};
    uint64_t best = UINT64_MAX;
    assert_ok(bp_skyline_create(p->t, &p->index, &skyline));
    for (int pass = 0; pass < 60; pass++) {
        uint64_t limit = pass % 4 == 0 ? UINT64_MAX : best;
        bool found = bp_skyline_pass(skyline, limit, &work, p->offsets);
        uint64_t height = found ? checked_height(in, p) : UINT64_MAX;
        assert_for(in, found ? height < limit : limit != UINT64_MAX);
        best = height < best ? height : best;
    }
    work.limit = 0; /* over: only an unlimited pass is completed */
    assert_for(in, bp_skyline_pass(skyline, UINT64_MAX, &work, p->offsets));
    checked_height(in, p);
    assert_for(in, !bp_skyline_pass(skyline, p->t->bound, &work, p->offsets));
    bp_skyline_destroy(&skyline);
    assert_null(skyline);
    if (p->t->count <= MAX_TRIED && in->count == p->t->count)
        assert_for(in, best >= naive_optimum(in));
}

TEST(test_skyline)
{
    seed(3);
    try_parts(500, try_passes);
}

TESTS(NULL, NULL)
