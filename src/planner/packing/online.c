/* SPDX-License-Identifier: Apache-2.0 */
/* Online best fit: an allocator that serves the live ranges in the order of time, the longest of a step first. Cheap, and near the bound for
 * traces whose releases mirror their acquires. */
#include "planner/packing/solve.h"

#include <bucketpool/core/fail.h>

#include <stdlib.h>
#include <string.h>

#include "core/memory.h"

typedef struct free_range {
    uint64_t begin, end;
} free_range;

typedef struct online {
    const bp_timeline *t;
    uint32_t *begins, *ends; /* by item: of the hull of its live ranges */
    bp_keyed *by_begin, *by_end;
    free_range *ranges; /* below `top`, by address; they do not touch */
    uint32_t range_count;
    uint64_t top;
} online;

/* Takes the smallest free range that is large enough, else from the top. */
static uint64_t take_range(online *o, uint64_t size)
{
    uint32_t best = UINT32_MAX;
    uint64_t best_bytes = UINT64_MAX, offset = o->top;
    for (uint32_t i = 0; i < o->range_count; i++) {
        uint64_t bytes = o->ranges[i].end - o->ranges[i].begin;
        if (bytes >= size && bytes < best_bytes) {
            best = i;
            best_bytes = bytes;
        }
    }
    if (best == UINT32_MAX) {
        o->top += size;
        return offset;
    }
    offset = o->ranges[best].begin;
    o->ranges[best].begin += size;
    if (best_bytes == size)
        memmove(o->ranges + best, o->ranges + best + 1, (--o->range_count - best) * sizeof *o->ranges);
    return offset;
}

/* Returns a range, and joins it with the free ones beside it. */
static void give_back(online *o, uint64_t begin, uint64_t end)
{
    uint32_t low = 0, high = o->range_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (o->ranges[middle].begin < begin)
            low = middle + 1;
        else
            high = middle;
    }
    bool joins_below = low > 0 && o->ranges[low - 1].end == begin;
    bool joins_above = low < o->range_count && o->ranges[low].begin == end;
    uint32_t at = joins_below ? low - 1 : low, after = joins_above ? low + 1 : low;
    free_range joined = {joins_below ? o->ranges[at].begin : begin, joins_above ? o->ranges[low].end : end};
    if (joined.end == o->top) {
        o->top = joined.begin;
        o->range_count = at;
        return;
    }
    memmove(o->ranges + at + 1, o->ranges + after, (o->range_count - after) * sizeof *o->ranges);
    o->range_count = o->range_count - after + at + 1;
    o->ranges[at] = joined;
}

static void serve_items(online *o, uint64_t limit, bp_work *work, uint64_t *offsets, uint64_t *height)
{
    const bp_timeline *t = o->t;
    uint64_t highest = 0;
    *height = UINT64_MAX;
    for (uint32_t i = 0, ended = 0; i < t->count; i++) {
        uint32_t item = o->by_begin[i].number;
        for (; o->ends[o->by_end[ended].number] <= o->begins[item]; ended++) {
            uint32_t other = o->by_end[ended].number;
            give_back(o, offsets[other], offsets[other] + t->sizes[other]);
        }
        offsets[item] = take_range(o, t->sizes[item]);
        highest = o->top > highest ? o->top : highest;
        work->spent += 64 + o->range_count;
        if (highest >= limit || bp_work_is_over(work))
            return;
    }
    *height = highest;
}

static bp_status serve_all(online *o, uint64_t limit, bp_work *work, uint64_t *offsets, uint64_t *height)
{
    const bp_timeline *t = o->t;
    BP_TRY(bp_new_array(2 * (size_t)t->count, sizeof *o->begins, (void **)&o->begins));
    BP_TRY(bp_new_array(2 * (size_t)t->count, sizeof *o->by_begin, (void **)&o->by_begin));
    BP_TRY(bp_new_array((size_t)t->count + 1, sizeof *o->ranges, (void **)&o->ranges));
    o->ends = o->begins + t->count;
    o->by_end = o->by_begin + t->count;
    for (uint32_t i = t->life_count; i-- > 0;) {
        const bp_life *life = &t->lives[i];
        o->begins[life->item] = life->begin;
        o->ends[life->item] = life->end > o->ends[life->item] ? life->end : o->ends[life->item];
    }
    for (uint32_t i = 0; i < t->count; i++) {
        o->by_begin[i] = (bp_keyed){(uint64_t)o->begins[i] << 32 | (UINT32_MAX - o->ends[i]), i};
        o->by_end[i] = (bp_keyed){o->ends[i], i};
    }
    qsort(o->by_begin, t->count, sizeof *o->by_begin, bp_compare_keyed);
    qsort(o->by_end, t->count, sizeof *o->by_end, bp_compare_keyed);
    work->spent += 256 * (uint64_t)t->count;
    serve_items(o, limit, work, offsets, height);
    return BP_OK;
}

bp_status bp_online_fit(const bp_timeline *timeline, uint64_t limit, bp_work *work, uint64_t *offsets, uint64_t *height)
{
    online o = {.t = timeline};
    *height = UINT64_MAX;
    bp_status status = timeline->pair_count == 0 ? serve_all(&o, limit, work, offsets, height) : BP_OK;
    free(o.begins);
    free(o.by_begin);
    free(o.ranges);
    return status;
}
