/* SPDX-License-Identifier: Apache-2.0 */
/* Fixtures of large packing instances; see large.h. */
#include "support/harness.h"

#include "large.h"

#include <stdlib.h>
#include <string.h>

/* ---- references ---------------------------------------------------------------------------------------------------- */

static int by_begin(const void *left, const void *right)
{
    const interval *a = left, *b = right;
    return (a->begin > b->begin) - (a->begin < b->begin);
}

static bool are_apart(const instance *in, const uint64_t *offsets, uint32_t one, uint32_t other)
{
    uint64_t low = offsets[one] < offsets[other] ? one : other, high = one + other - low;
    return in->sizes[one] == 0 || in->sizes[other] == 0 || offsets[high] - offsets[low] >= in->sizes[low];
}

/* Every two conflicting items are apart, and the highest ends at `bytes`. */
static bool is_placed(const instance *in, const uint64_t *offsets, uint64_t bytes)
{
    bool apart = true;
    uint64_t highest = 0;
    if (in->interval_count > 0)
        qsort(in->intervals, in->interval_count, sizeof *in->intervals, by_begin);
    for (uint32_t i = 0; i < in->interval_count; i++) {
        const interval *a = &in->intervals[i], *b = a + 1, *end = in->intervals + in->interval_count;
        uint64_t top = offsets[a->item] + in->sizes[a->item];
        highest = in->sizes[a->item] > 0 && top > highest ? top : highest;
        for (; b < end && b->begin < a->end; b++)
            apart = apart && (a->item == b->item || are_apart(in, offsets, a->item, b->item));
    }
    for (uint32_t i = 0; i < in->pair_count; i++) {
        const uint32_t ends[] = {in->pairs[i].item, in->pairs[i].other};
        apart = apart && are_apart(in, offsets, ends[0], ends[1]);
        for (int k = 0; k < 2; k++) {
            uint64_t top = offsets[ends[k]] + in->sizes[ends[k]];
            highest = in->sizes[ends[k]] > 0 && in->sizes[ends[1 - k]] > 0 && top > highest ? top : highest;
        }
    }
    return apart && highest == bytes;
}

typedef struct event {
    uint64_t time, ends;
    uint32_t item;
} event;

static int by_time(const void *left, const void *right)
{
    const event *a = left, *b = right;
    if (a->time != b->time)
        return a->time < b->time ? -1 : 1;
    return (a->ends < b->ends) - (a->ends > b->ends);
}

uint64_t peak_of(const instance *in, const bool *chosen)
{
    event *events = calloc(2 * (size_t)in->interval_count + 1, sizeof *events);
    uint32_t *live = calloc(in->count + 1, sizeof *live), count = 0;
    uint64_t bytes = 0, peak = 0;
    assert_true(events != NULL && live != NULL);
    for (uint32_t i = 0; i < in->interval_count; i++) {
        if (chosen != NULL && !chosen[in->intervals[i].item])
            continue;
        events[count++] = (event){in->intervals[i].begin, 0, in->intervals[i].item};
        events[count++] = (event){in->intervals[i].end, 1, in->intervals[i].item};
    }
    qsort(events, count, sizeof *events, by_time);
    for (uint32_t i = 0; i < count; i++) {
        if (events[i].ends)
            bytes -= --live[events[i].item] == 0 ? in->sizes[events[i].item] : 0;
        else
            bytes += live[events[i].item]++ == 0 ? in->sizes[events[i].item] : 0;
        peak = bytes > peak ? bytes : peak;
    }
    free(events);
    free(live);
    return peak;
}

/* The bound is the peak, and its witness live at one time. With declared conflicts it may be one item or one conflict. */
static uint64_t checked_bound(const instance *in, const bp_packing *packing)
{
    uint32_t *witness = calloc(in->count + 1, sizeof *witness);
    bool *chosen = calloc(in->count + 1, sizeof *chosen);
    size_t count = SIZE_MAX;
    uint64_t bound = 0, sum = 0, peak = peak_of(in, NULL);
    assert_true(witness != NULL && chosen != NULL);
    assert_ok(bp_packing_bound(packing, witness, &count, &bound));
    for (size_t i = 0; i < count; i++) {
        assert_for(in, witness[i] < in->count && (i == 0 || witness[i] > witness[i - 1]));
        chosen[witness[i]] = true;
        sum += in->sizes[witness[i]];
    }
    assert_for(in, sum == bound && bound >= peak);
    assert_for(in, in->pair_count > 0 || bound == peak);
    assert_for(in, (in->pair_count > 0 && count <= 2) || peak_of(in, chosen) == bound);
    free(witness);
    free(chosen);
    return bound;
}

/* ---- calls --------------------------------------------------------------------------------------------------------- */

subject start_subject(const instance *in)
{
    subject s = {.in = in, .packing = make_packing(in), .offsets = calloc(in->count + 1, sizeof *s.offsets)};
    assert_non_null(s.offsets);
    s.bound = checked_bound(in, s.packing);
    return s;
}

void end_subject(subject *s)
{
    bp_packing_destroy(&s->packing);
    free(s->offsets);
}

bp_pack_result pack(subject *s, uint64_t work, uint64_t capacity, const uint64_t *known)
{
    bp_pack_config config = new_config();
    bp_pack_result r = {.size = sizeof r};
    config.work = work;
    config.capacity = capacity;
    config.known = known;
    assert_ok(bp_pack(s->packing, &config, s->offsets, &r));
    assert_for(s->in, r.bound == s->bound && r.bound <= r.proven && r.proven <= r.bytes);
    assert_for(s->in, r.optimal == (r.proven == r.bytes));
    bool fits = capacity == 0 || r.bytes <= capacity;
    assert_for(s->in, fits == (r.outcome == BP_PACK_PLACED));
    assert_for(s->in, fits || (r.proven > capacity) == (r.outcome == BP_PACK_INFEASIBLE));
    if (fits) {
        assert_ok(bp_packing_check(s->packing, s->offsets, r.bytes));
        assert_for(s->in, (work != 1 && work != WORK) || capacity > 0 || is_placed(s->in, s->offsets, r.bytes));
    }
    return r;
}

bp_pack_result try_large(const instance *in)
{
    subject s = start_subject(in);
    uint64_t *first = calloc(in->count + 1, sizeof *first), pile = 0, largest = 0;
    assert_non_null(first);
    uint64_t little = pack(&s, 1, 0, NULL).bytes;
    uint64_t more = pack(&s, WORK / 4, 0, NULL).bytes;
    bp_pack_result r = pack(&s, WORK, 0, NULL);
    assert_for(in, little >= more && more >= r.bytes);
    memcpy(first, s.offsets, in->count * sizeof *first);
    bp_pack_result again = pack(&s, WORK, 0, NULL);
    assert_for(in, again.bytes == r.bytes && again.work == r.work && again.proven == r.proven);
    assert_memory_equal(first, s.offsets, in->count * sizeof *first);
    assert_for(in, pack(&s, 1, 0, first).bytes <= r.bytes);
    assert_int_equal(pack(&s, WORK, r.bytes, NULL).outcome, BP_PACK_PLACED);
    for (uint32_t i = 0; i < in->count; i++) {
        first[i] = pile;
        pile += in->sizes[i];
        largest = in->sizes[i] > largest ? in->sizes[i] : largest;
    }
    assert_for(in, pack(&s, 1, 0, first).bytes <= pile);
    assert_int_equal(pack(&s, 1, pile, NULL).outcome, BP_PACK_PLACED);
    if (s.bound - 1 >= largest)
        assert_int_equal(pack(&s, 1, s.bound - 1, NULL).outcome, BP_PACK_INFEASIBLE);
    free(first);
    end_subject(&s);
    return r;
}

instance random_large(uint32_t items, uint32_t intervals)
{
    return random_instance(
        (random_options){.items = items, .steps = 2 * items, .intervals = intervals, .min_size = 1, .max_size = 1000});
}
