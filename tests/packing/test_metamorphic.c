/* SPDX-License-Identifier: Apache-2.0 */
/* Metamorphic tests: changes of an instance that keep its optimum, scale it by a known factor, or move it in one direction. */
#include "support/harness.h"

#include "answers.h"

#include <stdlib.h>
#include <string.h>

#include "naive.h"
#include "support/brief.h"

/* Returns a changed copy, whose optimum is `scale` times that of the original. */
typedef instance change(const instance *in, uint64_t *scale);

static uint64_t last_step(const instance *in)
{
    uint64_t last = 0;
    for (uint32_t i = 0; i < in->interval_count; i++)
        last = in->intervals[i].end > last ? in->intervals[i].end : last;
    return last;
}

static instance reverse_time(const instance *in, uint64_t *scale)
{
    (void)scale;
    instance out = copy_instance(in);
    uint64_t last = last_step(in);
    for (uint32_t i = 0; i < out.interval_count; i++) {
        out.intervals[i].begin = last - in->intervals[i].end;
        out.intervals[i].end = last - in->intervals[i].begin;
    }
    return out;
}

static instance renumber(const instance *in, uint64_t *scale)
{
    (void)scale;
    instance out = copy_instance(in);
    uint32_t *numbers = calloc(in->count, sizeof *numbers), *order = calloc(in->interval_count, sizeof *order);
    assert_non_null(numbers);
    assert_non_null(order);
    for (uint32_t i = 0; i < in->count; i++)
        numbers[i] = i;
    for (uint32_t i = 0; i < in->interval_count; i++)
        order[i] = i;
    shuffle(numbers, in->count);
    shuffle(order, in->interval_count);
    for (uint32_t i = 0; i < in->count; i++)
        out.sizes[numbers[i]] = in->sizes[i];
    for (uint32_t i = 0; i < in->interval_count; i++) {
        out.intervals[order[i]] = in->intervals[i];
        out.intervals[order[i]].item = numbers[in->intervals[i].item];
    }
    for (uint32_t i = 0; i < in->pair_count; i++)
        out.pairs[i] = (pair){numbers[in->pairs[i].other], numbers[in->pairs[i].item]};
    free(numbers);
    free(order);
    return out;
}

static instance scale_sizes(const instance *in, uint64_t *scale)
{
    static const uint64_t factors[] = {2, 3, 256, 1000003, UINT64_C(1) << 32};
    *scale = factors[random_below(5)];
    instance out = copy_instance(in);
    for (uint32_t i = 0; i < out.count; i++)
        out.sizes[i] *= *scale;
    return out;
}

/* Splits intervals into adjacent ones. */
static instance split_intervals(const instance *in, uint64_t *scale)
{
    (void)scale;
    instance out = copy_instance(in);
    for (uint32_t i = 0; i < out.interval_count; i++) {
        interval *l = &out.intervals[i];
        if (l->end - l->begin < 2 || one_in(3))
            continue;
        uint64_t at = random_between(l->begin + 1, l->end - 1), end = l->end;
        l->end = at;
        add_interval(&out, l->item, at, end);
    }
    return out;
}

/* Adds intervals that repeat others, in whole or in part. */
static instance repeat_intervals(const instance *in, uint64_t *scale)
{
    (void)scale;
    instance out = copy_instance(in);
    for (uint32_t i = 0; i < in->interval_count; i++) {
        const interval *l = &in->intervals[i];
        for (uint64_t times = random_below(3); times > 0; times--) {
            uint64_t begin = random_between(l->begin, l->end - 1);
            add_interval(&out, l->item, begin, random_between(begin + 1, l->end));
        }
    }
    return out;
}

/* Stretches each step by a different amount, up to the end of the 64-bit range. */
static instance stretch_time(const instance *in, uint64_t *scale)
{
    (void)scale;
    uint64_t last = last_step(in), *at = calloc(last + 1, sizeof *at);
    assert_non_null(at);
    at[0] = random_below(3);
    for (uint64_t i = 1; i <= last; i++)
        at[i] = at[i - 1] + random_between(1, UINT64_MAX / (last + 2));
    instance out = copy_instance(in);
    for (uint32_t i = 0; i < out.interval_count; i++) {
        out.intervals[i].begin = at[in->intervals[i].begin];
        out.intervals[i].end = i % 2 == 0 && in->intervals[i].end == last ? UINT64_MAX : at[in->intervals[i].end];
    }
    free(at);
    return out;
}

/* Doubles a step. */
static instance double_step(const instance *in, uint64_t *scale)
{
    (void)scale;
    uint64_t step = random_below(last_step(in) + 1);
    instance out = copy_instance(in);
    for (uint32_t i = 0; i < out.interval_count; i++) {
        out.intervals[i].begin += out.intervals[i].begin > step;
        out.intervals[i].end += out.intervals[i].end > step;
    }
    return out;
}

/* Adds items without size or intervals. */
static instance add_nothing(const instance *in, uint64_t *scale)
{
    (void)scale;
    instance out = copy_instance(in);
    add_item(&out, 1000);
    uint32_t empty = add_item(&out, 0);
    add_interval(&out, empty, 0, last_step(in) + 5);
    for (uint32_t i = 0; i < in->count; i++)
        if (one_in(2))
            add_pair(&out, empty, i);
    return out;
}

/* Adds conflicts that exist already. */
static instance repeat_conflicts(const instance *in, uint64_t *scale)
{
    (void)scale;
    instance out = copy_instance(in);
    bool *with = naive_conflicts(in);
    for (uint32_t i = 0; i < in->count; i++)
        for (uint32_t k = 0; k < in->count; k++)
            if (i != k && with[(size_t)i * in->count + k] && one_in(4))
                add_pair(&out, i, k);
    free(with);
    return out;
}

/* Replaces all conflicts in time by added conflicts between items that are live one after the other. */
static instance say_conflicts(const instance *in, uint64_t *scale)
{
    (void)scale;
    instance out = copy_instance(in);
    bool *with = naive_conflicts(in);
    out.interval_count = 0;
    out.pair_count = 0;
    for (uint32_t i = 0; i < in->count; i++) {
        if (naive_live(in, i))
            add_interval(&out, i, i, i + 1);
        for (uint32_t k = 0; k < i; k++)
            if (with[(size_t)i * in->count + k])
                add_pair(&out, i, k);
    }
    free(with);
    return out;
}

static change *const CHANGES[] = {reverse_time, renumber,    scale_sizes, split_intervals,  repeat_intervals,
                                  stretch_time, double_step, add_nothing, repeat_conflicts, say_conflicts};
#define CHANGE_COUNT (sizeof CHANGES / sizeof *CHANGES)

/* The proven bound of one holds for the other; if both are optimal, they are equal. */
static bool agree(const bp_pack_result *before, const bp_pack_result *after, uint64_t scale)
{
    if (before->optimal && after->optimal)
        return after->bytes == scale * before->bytes;
    return after->bytes >= scale * before->proven && after->proven <= scale * before->bytes;
}

static void try_changes(const instance *in, bp_pack_config config, bool optimal)
{
    SCOPED(end_answer) answer before = solve(in, config);
    assert_for(in, before.result.optimal || !optimal);
    for (size_t c = 0; c < CHANGE_COUNT; c++) {
        uint64_t scale = 1, other_scale = 1;
        SCOPED(end_instance) instance changed = CHANGES[c](in, &scale);
        answer after = solve(&changed, config);
        assert_for(&changed, after.result.optimal || !optimal);
        if (!agree(&before.result, &after.result, scale)) {
            print_error("change %zu: %llu bytes became %llu of\n", c, (unsigned long long)before.result.bytes,
                        (unsigned long long)after.result.bytes);
            print_instance(in);
        }
        assert_for(&changed, agree(&before.result, &after.result, scale));
        /* the clique search for added conflicts is heuristic; live sums are exact */
        if (in->pair_count + changed.pair_count == 0)
            assert_for(&changed, after.result.bound == scale * before.result.bound);
        end_answer(&after);
        if (last_step(&changed) < 1000) {
            SCOPED(end_instance) instance twice = CHANGES[random_below(CHANGE_COUNT)](&changed, &other_scale);
            if (scale == 1 || other_scale == 1) { /* both factors would overflow the sizes */
                after = solve(&twice, config);
                assert_for(&twice, agree(&before.result, &after.result, scale * other_scale));
                end_answer(&after);
            }
        }
    }
}

TEST(test_small)
{
    seed(1);
    for (int i = 0, times = share_of(250); i < times; i++) {
        random_options options = {.items = (uint32_t)random_between(1, 8),
                                  .steps = (uint32_t)random_between(2, 16),
                                  .intervals = (uint32_t)random_between(1, 3),
                                  .longest = (uint32_t)random_below(5),
                                  .min_size = 1,
                                  .max_size = random_between(1, 50),
                                  .pairs = (uint32_t)random_below(2) * 6,
                                  .empty = true,
                                  .never_live = true};
        SCOPED(end_instance) instance in = random_instance(options);
        try_changes(&in, new_config(), true);
    }
}

TEST(test_larger)
{
    seed(2);
    for (int i = 0, times = share_of(60); i < times; i++) {
        random_options options = {.items = (uint32_t)random_between(9, 40),
                                  .steps = (uint32_t)random_between(10, 60),
                                  .intervals = (uint32_t)random_between(1, 3),
                                  .longest = (uint32_t)random_below(3) * 8,
                                  .min_size = 1,
                                  .max_size = random_between(1, 1000),
                                  .pairs = (uint32_t)random_below(2) * 20};
        SCOPED(end_instance) instance in = random_instance(options);
        bp_pack_config config = new_config();
        config.work = 2000000;
        try_changes(&in, config, false);
    }
}

/* Intervals that are written down in other ways give the same offsets, whatever the work is. */
TEST(test_same_offsets)
{
    static change *const same[] = {split_intervals, repeat_intervals, stretch_time};
    (void)state;
    seed(4);
    for (int i = 0, times = share_of(200); i < times; i++) {
        SCOPED(end_instance)
        instance in = random_instance((random_options){.items = (uint32_t)random_between(2, 40),
                                                       .steps = (uint32_t)random_between(2, 40),
                                                       .intervals = (uint32_t)random_between(1, 3),
                                                       .min_size = 1,
                                                       .max_size = 1000});
        bp_pack_config config = new_config();
        config.work = (uint64_t)random_between(1, 1000000);
        SCOPED(end_answer) answer before = solve(&in, config);
        for (size_t c = 0; c < sizeof same / sizeof *same; c++) {
            uint64_t scale;
            SCOPED(end_instance) instance changed = same[c](&in, &scale);
            SCOPED(end_answer) answer after = solve(&changed, config);
            assert_for(&changed, memcmp(before.offsets, after.offsets, in.count * sizeof *in.sizes) == 0);
        }
    }
}

/* ---- changes in one direction -------------------------------------------------------------------------------------- */

TEST(test_more_takes_no_less)
{
    seed(3);
    for (int i = 0, times = share_of(1500); i < times; i++) {
        random_options options = {.items = (uint32_t)random_between(2, 8),
                                  .steps = 12,
                                  .intervals = 2,
                                  .min_size = 1,
                                  .max_size = 20,
                                  .pairs = 3};
        SCOPED(end_instance) instance in = random_instance(options);
        uint64_t before = solved_optimum(&in), added = random_between(1, 9);
        uint32_t item = (uint32_t)random_below(in.count), other = (item + 1) % in.count;
        SCOPED(end_instance) instance more = copy_instance(&in);
        switch (i % 4) {
        case 0: more.sizes[item] += added; break;
        case 1: add_pair(&more, item, other); break;
        case 2: add_interval(&more, item, random_below(6), 6 + random_below(7) + 1); break;
        default: add_interval(&more, add_item(&more, added), random_below(6), 6 + random_below(7) + 1); break;
        }
        uint64_t after = solved_optimum(&more);
        assert_for(&more, before <= after);
        if (i % 4 == 0 || i % 4 == 3)
            assert_for(&more, after <= before + added);
    }
}

TESTS(NULL, NULL)
