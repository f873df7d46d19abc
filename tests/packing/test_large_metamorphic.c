/* SPDX-License-Identifier: Apache-2.0 */
/* Changes of a large instance that keep its placement, scale it, or keep it valid. */
#include "support/harness.h"

#include "large.h"

#include <stdlib.h>
#include <string.h>

/* Packs both instances; the results are equal, with bytes and offsets times `scale`. */
static void assert_scaled(const instance *in, const instance *changed, uint64_t scale)
{
    subject before = start_subject(in), after = start_subject(changed);
    bp_pack_result a = pack(&before, WORK, 0, NULL), b = pack(&after, WORK, 0, NULL);
    assert_true(b.bytes == scale * a.bytes && b.bound == scale * a.bound && b.work == a.work);
    assert_string_equal(a.method, b.method);
    for (uint32_t i = 0; i < in->count; i++)
        assert_true(after.offsets[i] == scale * before.offsets[i]);
    end_subject(&before);
    end_subject(&after);
}

TEST(test_times_shifted)
{
    seed(1);
    for (uint32_t intervals = 1; intervals <= 3; intervals += 2) {
        SCOPED(end_instance)
        instance in = random_large(intervals == 1 ? 4600 : 3000, intervals), shifted = copy_instance(&in);
        for (uint32_t i = 0; i < in.interval_count; i++) {
            shifted.intervals[i].begin += UINT64_MAX - 10000;
            shifted.intervals[i].end += UINT64_MAX - 10000;
        }
        assert_scaled(&in, &shifted, 1);
    }
}

/* Priorities are products of powers, so that a power of two changes no order. */
TEST(test_sizes_scaled)
{
    seed(2);
    SCOPED(end_instance) instance in = random_large(4600, 1), scaled = copy_instance(&in);
    for (uint32_t i = 0; i < in.count; i++)
        scaled.sizes[i] *= 256;
    assert_scaled(&in, &scaled, 256);
    for (uint32_t i = 0; i < in.count; i++)
        scaled.sizes[i] = in.sizes[i] * 1000003;
    subject s = start_subject(&scaled);
    assert_true(pack(&s, WORK, 0, NULL).bytes % 1000003 == 0);
    end_subject(&s);
}

TEST(test_items_without_size)
{
    seed(3);
    SCOPED(end_instance) instance in = random_large(3000, 3), more = copy_instance(&in);
    for (uint32_t i = 0; i < 50; i++) {
        uint32_t item = add_item(&more, 0);
        add_interval(&more, item, random_below(3000), 3000 + random_below(3000));
        add_pair(&more, item, (uint32_t)random_below(in.count));
    }
    add_item(&more, 1000); /* never live */
    assert_scaled(&in, &more, 1);
}

/* Items in another order, and time reversed: another placement, but a valid one with the same bound. */
TEST(test_reordered)
{
    seed(4);
    SCOPED(end_instance) instance in = random_large(4600, 1), other = copy_instance(&in);
    uint32_t *numbers = calloc(in.count, sizeof *numbers);
    assert_non_null(numbers);
    for (uint32_t i = 0; i < in.count; i++)
        numbers[i] = i;
    shuffle(numbers, in.count);
    for (uint32_t i = 0; i < in.count; i++)
        other.sizes[numbers[i]] = in.sizes[i];
    for (uint32_t i = 0; i < in.interval_count; i++) {
        other.intervals[i].item = numbers[in.intervals[i].item];
        other.intervals[i].begin = 20000 - in.intervals[i].end;
        other.intervals[i].end = 20000 - in.intervals[i].begin;
    }
    subject before = start_subject(&in), after = start_subject(&other);
    assert_true(before.bound == after.bound);
    pack(&before, WORK, 0, NULL);
    for (uint32_t i = 0; i < in.count; i++)
        after.offsets[numbers[i]] = before.offsets[i];
    assert_ok(bp_packing_check(after.packing, after.offsets, UINT64_MAX));
    pack(&after, WORK, 0, NULL);
    end_subject(&before);
    end_subject(&after);
    free(numbers);
}

TESTS(NULL, NULL)
