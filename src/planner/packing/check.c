/* SPDX-License-Identifier: Apache-2.0 */
/* The independent checker: a sweep over time with the live items in a bit set, ordered by offset. O(n log n) in items and intervals.
 * Shares no arithmetic with the packers, so that a mistake there shows here. */
#include <bucketpool/core/fail.h>
#include <bucketpool/core/structs.h>

#include <stdlib.h>

#include "core/memory.h"
#include "planner/packing/problem.h"

/* Begin or end of a live range. At equal times ends come first: intervals are half open. */
typedef struct moment {
    uint64_t time;
    uint32_t item, begins;
} moment;

static int compare_moments(const void *left, const void *right)
{
    const moment *a = left, *b = right;
    if (a->time != b->time)
        return a->time < b->time ? -1 : 1;
    if (a->begins != b->begins)
        return a->begins < b->begins ? -1 : 1;
    return (a->item > b->item) - (a->item < b->item);
}

/* ---- live items ------------------------------------------------------------------------------------------------------ */

/* The ranks of live items form a hierarchical bit set of LEVELS levels: a bit is set if the word below it is not 0. A neighbour is found in
 * O(LEVELS). */
#define LEVELS 6 /* 64^6 members */

typedef struct check {
    const bp_packing *packing;
    const uint64_t *offsets;
    uint32_t *by_offset;     /* items in the order of offsets */
    uint32_t *ranks;         /* by item: its index in by_offset */
    uint32_t *times_live;    /* by item: its intervals may overlap each other */
    uint64_t *level[LEVELS]; /* ranks of live items */
    moment *moments;
    uint32_t low, high; /* the items that overlap */
} check;

/* The nearest live item below rank `rank` or above it. */
static bool find_neighbour(const check *c, size_t rank, bool above, uint32_t *item)
{
    for (int l = 0; l < LEVELS; l++, rank /= 64) {
        const uint64_t lower = (UINT64_C(1) << rank % 64) - 1;
        uint64_t word = c->level[l][rank / 64] & (above ? ~lower << 1 : lower);
        if (word == 0)
            continue;
        for (size_t found = rank / 64;; word = c->level[--l][found]) {
            found = found * 64 + (size_t)(above ? __builtin_ctzll(word) : 63 - __builtin_clzll(word));
            if (l == 0) {
                *item = c->by_offset[found];
                return true;
            }
        }
    }
    return false;
}

static int compare_offsets(const void *left, const void *right, void *offsets)
{
    const uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    const uint64_t x = ((const uint64_t *)offsets)[a], y = ((const uint64_t *)offsets)[b];
    if (x != y)
        return x < y ? -1 : 1;
    return (a > b) - (a < b);
}

/* ---- the sweep ------------------------------------------------------------------------------------------------------- */

static bp_status fail_overlap(check *c, uint32_t one, uint32_t other)
{
    uint32_t low = one < other ? one : other, high = one < other ? other : one;
    c->low = low;
    c->high = high;
    return bp_fail(BP_ERR_MISMATCH, "items %u and %u conflict and overlap: %llu bytes at %llu, %llu bytes at %llu", low,
                   high, (unsigned long long)c->packing->sizes[low], (unsigned long long)c->offsets[low],
                   (unsigned long long)c->packing->sizes[high], (unsigned long long)c->offsets[high]);
}

/* Live items are disjoint so far, so only the nearest ones can overlap the new item. */
static bp_status check_enter(check *c, uint32_t item)
{
    uint32_t above, below;
    size_t rank = c->ranks[item];
    if (c->times_live[item]++ > 0)
        return BP_OK;
    if (find_neighbour(c, rank, true, &above) && c->offsets[above] - c->offsets[item] < c->packing->sizes[item])
        return fail_overlap(c, item, above);
    if (find_neighbour(c, rank, false, &below) && c->offsets[item] - c->offsets[below] < c->packing->sizes[below])
        return fail_overlap(c, item, below);
    for (int l = 0; l < LEVELS; l++, rank /= 64)
        c->level[l][rank / 64] |= UINT64_C(1) << rank % 64;
    return BP_OK;
}

static void check_leave(check *c, uint32_t item)
{
    size_t rank = c->ranks[item];
    if (--c->times_live[item] > 0)
        return;
    for (int l = 0; l < LEVELS; l++, rank /= 64) {
        c->level[l][rank / 64] &= ~(UINT64_C(1) << rank % 64);
        if (c->level[l][rank / 64] != 0)
            return;
    }
}

static bp_status check_end(check *c, uint32_t item, uint64_t bytes)
{
    if (c->offsets[item] <= bytes && c->packing->sizes[item] <= bytes - c->offsets[item])
        return BP_OK;
    c->low = c->high = item;
    return bp_fail(BP_ERR_MISMATCH, "item %u: %llu bytes at offset %llu end beyond the capacity of %llu", item,
                   (unsigned long long)c->packing->sizes[item], (unsigned long long)c->offsets[item],
                   (unsigned long long)bytes);
}

static bp_status check_placement(check *c, uint64_t bytes)
{
    const bp_packing *p = c->packing;
    size_t begin[LEVELS], total = 0, count = 0, members = p->count;
    BP_TRY(bp_new_array(p->count, sizeof *c->by_offset, (void **)&c->by_offset));
    BP_TRY(bp_new_array(p->count, sizeof *c->ranks, (void **)&c->ranks));
    BP_TRY(bp_new_array(p->count, sizeof *c->times_live, (void **)&c->times_live));
    for (size_t i = 0; i < p->count; i++)
        c->by_offset[i] = (uint32_t)i;
    qsort_r(c->by_offset, p->count, sizeof *c->by_offset, compare_offsets, (void *)c->offsets);
    for (size_t i = 0; i < p->count; i++)
        c->ranks[c->by_offset[i]] = (uint32_t)i;
    for (int l = 0; l < LEVELS; l++) {
        begin[l] = total;
        members = members / 64 + 1;
        total += members;
    }
    BP_TRY(bp_new_array(total, sizeof **c->level, (void **)&c->level[0]));
    for (int l = 1; l < LEVELS; l++)
        c->level[l] = c->level[0] + begin[l];

    BP_TRY(bp_new_array(2 * p->life_count, sizeof *c->moments, (void **)&c->moments));
    for (size_t i = 0; i < p->life_count; i++) {
        uint32_t item = p->lives[i].item;
        if (p->sizes[item] == 0)
            continue;
        BP_TRY(check_end(c, item, bytes));
        c->moments[count++] = (moment){p->lives[i].begin, item, 1};
        c->moments[count++] = (moment){p->lives[i].end, item, 0};
    }
    qsort(c->moments, count, sizeof *c->moments, compare_moments);
    for (size_t i = 0; i < count; i++) {
        if (c->moments[i].begins)
            BP_TRY(check_enter(c, c->moments[i].item));
        else
            check_leave(c, c->moments[i].item);
    }

    for (size_t i = 0; i < p->pair_count; i++) {
        uint32_t a = p->pairs[i].item, b = p->pairs[i].other;
        if (p->sizes[a] == 0 || p->sizes[b] == 0)
            continue;
        BP_TRY(check_end(c, a, bytes));
        BP_TRY(check_end(c, b, bytes));
        bool apart = c->offsets[a] < c->offsets[b] ? c->offsets[b] - c->offsets[a] >= p->sizes[a]
                                                   : c->offsets[a] - c->offsets[b] >= p->sizes[b];
        if (!apart)
            return fail_overlap(c, a, b);
    }
    return BP_OK;
}

static bp_status check_run(check *c, uint64_t bytes)
{
    if (c->packing == NULL || (c->offsets == NULL && c->packing->count > 0))
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_packing_check: needs a packing and offsets");
    bp_status status = c->packing->count > 0 ? check_placement(c, bytes) : BP_OK;
    free(c->by_offset);
    free(c->ranks);
    free(c->times_live);
    free(c->level[0]);
    free(c->moments);
    return status;
}

bp_status bp_packing_check(const bp_packing *packing, const uint64_t *offsets, uint64_t bytes)
{
    check c = {.packing = packing, .offsets = offsets};
    return check_run(&c, bytes);
}

bp_status bp_packing_find_fault(const bp_packing *packing, const uint64_t *offsets, uint64_t bytes,
                                bp_packing_fault *fault)
{
    check c = {.packing = packing, .offsets = offsets};
    bp_status status = check_run(&c, bytes);
    if (status != BP_OK && status != BP_ERR_MISMATCH)
        return status;
    const bp_packing_fault found = {sizeof found, status == BP_ERR_MISMATCH, c.low, c.high};
    return bp_struct_write("bp_packing_find_fault", &found, sizeof found, fault);
}
