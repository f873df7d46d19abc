/* SPDX-License-Identifier: Apache-2.0 */
/* Reference model of packing; see naive.h. */
#include "support/harness.h"

#include "naive.h"

#include <stdlib.h>
#include <string.h>

bool naive_live(const instance *in, uint32_t item)
{
    for (uint32_t i = 0; i < in->interval_count; i++)
        if (in->intervals[i].item == item)
            return in->sizes[item] > 0;
    for (uint32_t i = 0; i < in->pair_count; i++)
        if ((in->pairs[i].item == item && in->sizes[in->pairs[i].other] > 0) ||
            (in->pairs[i].other == item && in->sizes[in->pairs[i].item] > 0))
            return in->sizes[item] > 0;
    return false;
}

bool *naive_conflicts(const instance *in)
{
    size_t n = in->count;
    bool *with = calloc(n * n + 1, sizeof *with);
    assert_non_null(with);
    for (uint32_t i = 0; i < in->interval_count; i++) {
        for (uint32_t k = 0; k < i; k++) {
            const interval *a = &in->intervals[i], *b = &in->intervals[k];
            if (a->item != b->item && a->begin < b->end && b->begin < a->end)
                with[a->item * n + b->item] = with[b->item * n + a->item] = true;
        }
    }
    for (uint32_t i = 0; i < in->pair_count; i++)
        with[in->pairs[i].item * n + in->pairs[i].other] = with[in->pairs[i].other * n + in->pairs[i].item] = true;
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < n; k++)
            if (in->sizes[i] == 0 || in->sizes[k] == 0)
                with[i * n + k] = false;
    return with;
}

bool naive_check(const instance *in, const bool *conflicts, const uint64_t *offsets, uint64_t bytes)
{
    for (uint32_t i = 0; i < in->count; i++) {
        if (!naive_live(in, i))
            continue;
        if (offsets[i] > bytes || bytes - offsets[i] < in->sizes[i])
            return false;
        /* no end overflows: the previous items were checked */
        for (uint32_t k = 0; k < i; k++)
            if (conflicts[(size_t)i * in->count + k] && offsets[i] < offsets[k] + in->sizes[k] &&
                offsets[k] < offsets[i] + in->sizes[i])
                return false;
    }
    return true;
}

uint64_t naive_height(const instance *in, const uint64_t *offsets)
{
    uint64_t height = 0;
    for (uint32_t i = 0; i < in->count; i++)
        if (naive_live(in, i) && offsets[i] + in->sizes[i] > height)
            height = offsets[i] + in->sizes[i];
    return height;
}

/* Checks the begin of each interval: the live sum grows only there. */
uint64_t naive_live_sum(const instance *in)
{
    uint64_t largest = 0;
    uint32_t *seen =
        calloc(in->count + 1, sizeof *seen); /* by item: 1 + the interval at whose begin it was counted last */
    assert_non_null(seen);
    for (uint32_t i = 0; i < in->interval_count; i++) {
        uint64_t sum = 0;
        for (uint32_t k = 0; k < in->interval_count; k++) {
            const interval *other = &in->intervals[k];
            if (other->begin > in->intervals[i].begin || in->intervals[i].begin >= other->end ||
                seen[other->item] == i + 1)
                continue;
            seen[other->item] = i + 1;
            sum += in->sizes[other->item];
        }
        largest = sum > largest ? sum : largest;
    }
    free(seen);
    return largest;
}

uint64_t naive_clique(const instance *in)
{
    assert_in_range(in->count, 0, 20);
    bool *with = naive_conflicts(in);
    uint64_t largest = 0;
    for (uint32_t set = 1; set < 1U << in->count; set++) {
        uint64_t sum = 0;
        bool clique = true;
        for (uint32_t i = 0; i < in->count; i++) {
            if (!(set >> i & 1))
                continue;
            sum += in->sizes[i];
            for (uint32_t k = 0; k < i; k++)
                clique = clique && (!(set >> k & 1) || with[i * in->count + k]);
            clique = clique && naive_live(in, i);
        }
        if (clique && sum > largest)
            largest = sum;
    }
    free(with);
    return largest;
}

/* ---- the optimum --------------------------------------------------------------------------------------------------- */

typedef struct search {
    const instance *in;
    const bool *with;
    uint32_t items[MAX_TRIED], count; /* items with a size that are live */
    bool placed[MAX_TRIED];
    uint64_t offsets[MAX_TRIED], min, limit;
    uint64_t best[MAX_TRIED];
} search;

static uint64_t size_of(const search *s, uint32_t i)
{
    return s->in->sizes[s->items[i]];
}

/* True if the item conflicts with no placed item at the offset; otherwise *above is the end of one that overlaps. */
static bool fits(const search *s, uint32_t i, uint64_t offset, uint64_t *above)
{
    for (uint32_t k = 0; k < s->count; k++) {
        if (!s->placed[k] || !s->with[(size_t)s->items[i] * s->in->count + s->items[k]])
            continue;
        *above = s->offsets[k] + size_of(s, k);
        if (offset < *above && s->offsets[k] < offset + size_of(s, i))
            return false;
    }
    return true;
}

static uint64_t lowest(const search *s, uint32_t i)
{
    uint64_t offset = 0, above;
    while (!fits(s, i, offset, &above))
        offset = above;
    return offset;
}

/* First fit over all permutations, which is exact for any conflicts. Proof: take the items by increasing offset of an optimal placement. By
 * induction each lies no higher than there: the earlier items that conflict with it end at or below its optimal offset, and here no
 * higher, so this offset is free. */
static void try_orders(search *s, uint32_t placed, uint64_t height)
{
    if (height >= s->min)
        return;
    if (placed == s->count) {
        s->min = height;
        memcpy(s->best, s->offsets, sizeof s->best);
        return;
    }
    for (uint32_t i = 0; i < s->count; i++) {
        if (s->placed[i])
            continue;
        s->offsets[i] = lowest(s, i);
        uint64_t end = s->offsets[i] + size_of(s, i);
        s->placed[i] = true;
        try_orders(s, placed + 1, end > height ? end : height);
        s->placed[i] = false;
    }
}

/* True if the items from `placed` on fit below the limit, each at any whole offset. */
static bool try_offsets(search *s, uint32_t placed)
{
    if (placed == s->count)
        return true;
    bool found = false;
    for (uint64_t offset = 0; !found && offset + size_of(s, placed) <= s->limit; offset++) {
        uint64_t above;
        if (!fits(s, placed, offset, &above))
            continue;
        s->offsets[placed] = offset;
        s->placed[placed] = true;
        found = try_offsets(s, placed + 1);
        s->placed[placed] = false;
    }
    return found;
}

static search start_search(const instance *in)
{
    search s = {.in = in, .with = naive_conflicts(in), .min = UINT64_MAX};
    for (uint32_t i = 0; i < in->count; i++) {
        if (!naive_live(in, i))
            continue;
        assert_true(s.count < MAX_TRIED);
        s.items[s.count++] = i;
    }
    return s;
}

uint64_t naive_placement(const instance *in, uint64_t offsets[MAX_TRIED])
{
    search s = start_search(in);
    try_orders(&s, 0, 0);
    free((void *)s.with);
    memset(offsets, 0, MAX_TRIED * sizeof *offsets);
    for (uint32_t i = 0; i < s.count; i++)
        offsets[s.items[i]] = s.best[i];
    return s.min;
}

uint64_t naive_optimum(const instance *in)
{
    search s = start_search(in);
    try_orders(&s, 0, 0);
    free((void *)s.with);
    return s.min;
}

uint64_t naive_grid_optimum(const instance *in)
{
    search s = start_search(in);
    while (!try_offsets(&s, 0))
        s.limit++;
    free((void *)s.with);
    return s.limit;
}
