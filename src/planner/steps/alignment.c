/* SPDX-License-Identifier: Apache-2.0 */
/* Aligns the allocations of two steps: the longest common subsequence, by Myers' algorithm. */
#include <stdlib.h>

#include "planner/steps/step_finder.h"

enum { MAX_DIFFERENCES = 2048 };

/* Two sequences, and the furthest reaching paths of Myers' algorithm ("An O(ND) Difference Algorithm", 1986):
 * reached[d][k] is how far d insertions and deletions lead in `a` on the diagonal k - d, which is the place in `a` minus
 * that in `b`. */
typedef struct comparison {
    const uint64_t *a, *b;
    size_t a_count, b_count;
    uint32_t *reached[MAX_DIFFERENCES + 1];
    size_t differences, max; /* found; more than `most` are not looked for */
} comparison;

/* True if the path to diagonal k of d differences comes from the diagonal above, by skipping an element of `b`. */
static bool skips_b(const comparison *c, size_t d, size_t k)
{
    const uint32_t *before = c->reached[d - 1];
    return k == 0 || (k < 2 * d && before[k - 2] < before[k]);
}

/* Fills `reached` until the ends of both are reached. False: more differences, or no memory. */
static bool compare_steps(comparison *c)
{
    for (size_t d = 0; d <= c->max; d++) {
        uint32_t *now = c->reached[d] = malloc((2 * d + 1) * sizeof *now);
        c->differences = d;
        for (size_t k = 0; now != NULL && k <= 2 * d; k += 2) {
            size_t x = d == 0 ? 0 : skips_b(c, d, k) ? c->reached[d - 1][k] : c->reached[d - 1][k - 2] + 1u;
            while (x < c->a_count && x + d - k < c->b_count && c->a[x] == c->b[x + d - k])
                x++;
            now[k] = (uint32_t)x;
            if (x >= c->a_count && x + d - k >= c->b_count)
                return true;
        }
        if (now == NULL)
            return false;
    }
    return false;
}

/* Walks the path back from the ends. Elements of `a` get the places in `b` that they match, plus `begin`. Returns how
 * many. */
static size_t walk_back(const comparison *c, uint32_t begin, uint32_t *orders)
{
    size_t x = c->a_count, y = c->b_count, matched = 0;
    for (size_t d = c->differences;; d--) {
        size_t k = x + d - y, x_before = 0, y_before = 0;
        if (d > 0) {
            size_t from = skips_b(c, d, k) ? k : k - 2;
            x_before = c->reached[d - 1][from];
            y_before = x_before + (d - 1) - from;
        }
        for (; x > x_before && y > y_before; matched++)
            orders[--x] = begin + (uint32_t)--y;
        if (d == 0)
            return matched;
        x = x_before;
        y = y_before;
    }
}

size_t bp_steps_align(const bp_step_finder *f, const bp_trace_step *step, const bp_trace_step *reference,
                      uint32_t *orders)
{
    const uint64_t *a = f->tokens + (step->first - f->allocations->live_at_start);
    const uint64_t *b = f->tokens + (reference->first - f->allocations->live_at_start);
    size_t shorter = step->count < reference->count ? step->count : reference->count, begin = 0, end = 0, matched = 0;
    for (size_t i = 0; i < step->count; i++)
        orders[i] = BP_TRACE_NONE;
    for (; begin < shorter && a[begin] == b[begin]; begin++)
        orders[begin] = (uint32_t)begin;
    for (; end < shorter - begin && a[step->count - 1 - end] == b[reference->count - 1 - end]; end++)
        orders[step->count - 1 - end] = (uint32_t)(reference->count - 1 - end);
    comparison *c = calloc(1, sizeof *c); /* without it, the allocations between are not aligned */
    if (c != NULL) {
        c->a = a + begin;
        c->b = b + begin;
        c->a_count = step->count - begin - end;
        c->b_count = reference->count - begin - end;
        c->max = (step->count + reference->count) / 8; /* steps of a kind have less than a ninth */
        c->max = c->max < MAX_DIFFERENCES ? c->max : MAX_DIFFERENCES;
        if (compare_steps(c))
            matched = walk_back(c, (uint32_t)begin, orders + begin);
        for (size_t d = 0; d <= c->differences; d++)
            free(c->reached[d]);
        free(c);
    }
    return begin + end + matched;
}

bool bp_steps_are_alike(const bp_step_finder *f, const bp_trace_step *step, const bp_trace_step *reference,
                        uint32_t *orders)
{
    size_t longer = step->count > reference->count ? step->count : reference->count;
    return bp_steps_align(f, step, reference, orders) >= longer - longer / 10;
}
