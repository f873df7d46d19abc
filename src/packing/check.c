/* The independent checker: a sweep over time with the live items sorted by offset. Shares no arithmetic with the packers, so that
 * a mistake there shows here. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "core/fail.h"
#include "packing/instance.h"

/* An item's life begins or ends. Ends come before beginnings at the same time. */
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

typedef struct check {
    const bp_packing *packing;
    const uint64_t *offsets;
    uint32_t *live; /* items that are live, by offset */
    size_t live_count;
    uint32_t *times_live; /* by item: its intervals may overlap each other */
    uint32_t low, high;   /* the items at fault */
} check;

/* Where in `live` the first item is that begins at or above `offset`. */
static size_t position_of(const check *c, uint64_t offset)
{
    size_t low = 0, high = c->live_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (c->offsets[c->live[middle]] < offset)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bp_status fail_overlap(check *c, uint32_t one, uint32_t other)
{
    uint32_t low = one < other ? one : other, high = one < other ? other : one;
    c->low = low;
    c->high = high;
    return bp_fail(BP_ERR_MISMATCH, "items %u and %u conflict and share bytes: %llu at %llu, %llu at %llu", low, high,
                   (unsigned long long)c->packing->sizes[low], (unsigned long long)c->offsets[low],
                   (unsigned long long)c->packing->sizes[high], (unsigned long long)c->offsets[high]);
}

static bp_status enter(check *c, uint32_t item)
{
    if (c->times_live[item]++ > 0)
        return BP_OK;
    size_t at = position_of(c, c->offsets[item]);
    if (at < c->live_count && c->offsets[c->live[at]] - c->offsets[item] < c->packing->sizes[item])
        return fail_overlap(c, item, c->live[at]);
    if (at > 0 && c->offsets[item] - c->offsets[c->live[at - 1]] < c->packing->sizes[c->live[at - 1]])
        return fail_overlap(c, item, c->live[at - 1]);
    memmove(c->live + at + 1, c->live + at, (c->live_count - at) * sizeof *c->live);
    c->live[at] = item;
    c->live_count++;
    return BP_OK;
}

static void leave(check *c, uint32_t item)
{
    if (--c->times_live[item] > 0)
        return;
    size_t at = position_of(c, c->offsets[item]);
    c->live_count--;
    memmove(c->live + at, c->live + at + 1, (c->live_count - at) * sizeof *c->live);
}

static bp_status check_end(check *c, uint32_t item, uint64_t bytes)
{
    if (c->offsets[item] <= bytes && c->packing->sizes[item] <= bytes - c->offsets[item])
        return BP_OK;
    c->low = c->high = item;
    return bp_fail(BP_ERR_MISMATCH, "item %u: %llu at %llu ends after %llu", item,
                   (unsigned long long)c->packing->sizes[item], (unsigned long long)c->offsets[item],
                   (unsigned long long)bytes);
}

static bp_status check_times(check *c, moment *moments, uint64_t bytes)
{
    const bp_packing *p = c->packing;
    size_t count = 0;
    for (size_t i = 0; i < p->life_count; i++) {
        uint32_t item = p->lives[i].item;
        if (p->sizes[item] == 0)
            continue;
        BP_TRY(check_end(c, item, bytes));
        moments[count++] = (moment){p->lives[i].begin, item, 1};
        moments[count++] = (moment){p->lives[i].end, item, 0};
    }
    qsort(moments, count, sizeof *moments, compare_moments);
    for (size_t i = 0; i < count; i++) {
        if (moments[i].begins)
            BP_TRY(enter(c, moments[i].item));
        else
            leave(c, moments[i].item);
    }
    return BP_OK;
}

static bp_status check_pairs(check *c, uint64_t bytes)
{
    const bp_packing *p = c->packing;
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

static bp_status run(check *c, uint64_t bytes)
{
    const bp_packing *packing = c->packing;
    if (packing == NULL || (c->offsets == NULL && packing->count > 0))
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_packing_check: needs a packing and offsets");
    if (packing->count == 0)
        return BP_OK;
    void *live = NULL, *times = NULL, *moments = NULL;
    bp_status status = bp_new_array(packing->count, sizeof *c->live, &live);
    if (status == BP_OK)
        status = bp_new_array(packing->count, sizeof *c->times_live, &times);
    if (status == BP_OK)
        status = bp_new_array(2 * packing->life_count, sizeof(moment), &moments);
    c->live = live;
    c->times_live = times;
    if (status == BP_OK)
        status = check_times(c, moments, bytes);
    if (status == BP_OK)
        status = check_pairs(c, bytes);
    free(live);
    free(times);
    free(moments);
    return status;
}

bp_status bp_packing_check(const bp_packing *packing, const uint64_t *offsets, uint64_t bytes)
{
    check c = {.packing = packing, .offsets = offsets};
    return run(&c, bytes);
}

bp_status bp_packing_find_fault(const bp_packing *packing, const uint64_t *offsets, uint64_t bytes,
                                bp_packing_fault *fault)
{
    if (fault == NULL || fault->size < sizeof *fault)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_packing_find_fault: fault of size %zu, expected at least %zu",
                       fault != NULL ? fault->size : 0, sizeof *fault);
    check c = {.packing = packing, .offsets = offsets};
    bp_status status = run(&c, bytes);
    if (status != BP_OK && status != BP_ERR_MISMATCH)
        return status;
    *fault = (bp_packing_fault){sizeof *fault, status == BP_ERR_MISMATCH, c.low, c.high};
    return BP_OK;
}
