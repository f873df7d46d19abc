/* SPDX-License-Identifier: Apache-2.0 */
/* bp_timelines: numbers the items, turns times into steps, and separates the connected components. */
#include "planner/packing/problem.h"

#include <bucketpool/core/arith.h>
#include <bucketpool/core/fail.h>

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"

/* ---- from a packing ---------------------------------------------------------------------------------------------- */

typedef struct moment {
    uint64_t time;
    uint32_t item;
    bool begins, joined;
} moment;

/* At equal times ends come first: intervals are half open. */
static int by_time(const void *left, const void *right)
{
    const moment *a = left, *b = right;
    if (a->time != b->time)
        return a->time < b->time ? -1 : 1;
    if (a->begins != b->begins)
        return a->begins < b->begins ? -1 : 1;
    return (a->item > b->item) - (a->item < b->item);
}

static void number_item(const bp_packing *packing, uint32_t item, uint32_t *number_of, bp_timeline *t)
{
    if (number_of[item] != BP_NO_ITEM)
        return;
    number_of[item] = t->count;
    t->sizes[t->count] = packing->sizes[item];
    t->origin[t->count++] = item;
}

/* Counts the begins at one time of items that are live already, so that an interval that ends at this time continues. */
static void join_touching(moment *moments, size_t first, size_t count, uint32_t *live_times)
{
    for (size_t i = first; i < count && moments[i].time == moments[first].time; i++) {
        if (moments[i].begins && live_times[moments[i].item] > 0) {
            live_times[moments[i].item]++;
            moments[i].joined = true;
        }
    }
}

/* Merges the intervals of each item, also across gaps in which nothing begins, and numbers items and steps in one sweep over the sorted
 * moments. `live_times`: by item of the packing, zero; `open_life`: by item of the timeline. */
static void sweep_moments(const bp_packing *packing, moment *moments, size_t count, uint32_t *number_of,
                          uint32_t *live_times, uint32_t *open_life, bp_timeline *t)
{
    bool ended = false;
    for (size_t i = 0; i < count; i++) {
        uint32_t item = moments[i].item;
        if (i == 0 || moments[i].time != moments[i - 1].time)
            join_touching(moments, i, count, live_times);
        if (moments[i].joined)
            continue;
        if (!moments[i].begins) {
            if (--live_times[item] > 0)
                continue;
            t->lives[open_life[number_of[item]]].end = t->steps;
            ended = true;
        } else if (live_times[item]++ == 0) {
            bool is_new = number_of[item] == BP_NO_ITEM;
            number_item(packing, item, number_of, t);
            t->steps += ended || t->steps == 0;
            ended = false;
            if (!is_new && t->lives[open_life[number_of[item]]].end == t->steps - 1)
                continue;
            open_life[number_of[item]] = t->life_count;
            t->lives[t->life_count++] = (bp_life){.begin = t->steps - 1, .item = number_of[item]};
        }
    }
}

/* Numbers the added conflicts, each once. */
static void fill_pairs(const bp_packing *packing, uint32_t *number_of, bp_timeline *t)
{
    size_t count = 0;
    for (size_t i = 0; i < packing->pair_count; i++) {
        bp_pair pair = packing->pairs[i];
        if (packing->sizes[pair.item] == 0 || packing->sizes[pair.other] == 0)
            continue;
        number_item(packing, pair.item, number_of, t);
        number_item(packing, pair.other, number_of, t);
        uint32_t one = number_of[pair.item], other = number_of[pair.other];
        t->pairs[count++] = (bp_pair){one < other ? one : other, one < other ? other : one};
    }
    if (count > 1)
        qsort(t->pairs, count, sizeof *t->pairs, bp_compare_pairs);
    for (size_t i = 0; i < count; i++) {
        if (i == 0 || bp_compare_pairs(&t->pairs[i], &t->pairs[t->pair_count - 1]) != 0)
            t->pairs[t->pair_count++] = t->pairs[i];
    }
}

static bp_status fill(const bp_packing *packing, moment *moments, uint32_t *number_of, uint32_t *live_times,
                      bp_timeline *t)
{
    size_t moment_count = 0;
    uint64_t sum = 0;
    for (size_t i = 0; i < packing->life_count; i++) {
        const bp_packing_interval *life = &packing->lives[i];
        if (packing->sizes[life->item] == 0)
            continue;
        moments[moment_count++] = (moment){life->begin, life->item, true, false};
        moments[moment_count++] = (moment){life->end, life->item, false, false};
    }
    qsort(moments, moment_count, sizeof *moments, by_time);
    memset(number_of, 0xff, packing->count * sizeof *number_of);
    sweep_moments(packing, moments, moment_count, number_of, live_times, live_times + packing->count, t);
    fill_pairs(packing, number_of, t);
    for (uint32_t i = 0; i < t->count; i++) {
        if (!bp_add_u64(sum, t->sizes[i], &sum))
            return bp_fail(BP_ERR_OVERFLOW, "the sum of all sizes does not fit 64 bits");
    }
    return BP_OK;
}

static bp_status timeline_init(const bp_packing *packing, bp_timeline *timeline)
{
    moment *moments = NULL;
    uint32_t *numbers = NULL; /* number_of, live_times, open_life */
    *timeline = (bp_timeline){0};
    if (packing->life_count > INT32_MAX)
        return bp_fail(BP_ERR_OVERFLOW, "%zu live ranges; a packing has at most %d", packing->life_count, INT32_MAX);
    bp_status status = bp_new_array(packing->count, sizeof *timeline->sizes, (void **)&timeline->sizes);
    if (status == BP_OK)
        status = bp_new_array(packing->count, sizeof *timeline->origin, (void **)&timeline->origin);
    if (status == BP_OK)
        status = bp_new_array(packing->life_count, sizeof *timeline->lives, (void **)&timeline->lives);
    if (status == BP_OK)
        status = bp_new_array(packing->pair_count, sizeof *timeline->pairs, (void **)&timeline->pairs);
    if (status == BP_OK)
        status = bp_new_array(2 * packing->life_count, sizeof *moments, (void **)&moments);
    if (status == BP_OK)
        status = bp_new_array(3 * packing->count, sizeof *numbers, (void **)&numbers);
    if (status == BP_OK)
        status = fill(packing, moments, numbers, numbers + packing->count, timeline);
    free(moments);
    free(numbers);
    return status;
}

static void timeline_finish(bp_timeline *timeline)
{
    free(timeline->sizes);
    free(timeline->origin);
    free(timeline->lives);
    free(timeline->pairs);
    *timeline = (bp_timeline){0};
}

uint64_t bp_timeline_height(const bp_timeline *t, const uint64_t *offsets)
{
    uint64_t height = 0;
    for (uint32_t i = 0; i < t->count; i++) {
        uint64_t end = offsets[i] + t->sizes[i];
        height = end > height ? end : height;
    }
    return height;
}

bp_status bp_timeline_ends(const bp_timeline *t, uint32_t **by_end)
{
    uint32_t *first;
    *by_end = NULL;
    BP_TRY(bp_new_array((size_t)t->steps + 2, sizeof *first, (void **)&first));
    bp_status status = bp_new_array(t->life_count, sizeof **by_end, (void **)by_end);
    if (status == BP_OK) {
        for (uint32_t i = 0; i < t->life_count; i++)
            first[t->lives[i].end + 1]++;
        for (uint32_t s = 1; s <= t->steps; s++)
            first[s + 1] += first[s];
        for (uint32_t i = 0; i < t->life_count; i++)
            (*by_end)[first[t->lives[i].end]++] = i;
    }
    free(first);
    return status;
}

bp_status bp_item_index_init(const bp_timeline *t, bp_item_index *index)
{
    bp_item_index x = {0};
    bp_status status = bp_new_array((size_t)t->count + 2, sizeof *x.first_life, (void **)&x.first_life);
    if (status == BP_OK)
        status = bp_new_array(t->life_count, sizeof *x.lives, (void **)&x.lives);
    if (status == BP_OK)
        status = bp_new_array((size_t)t->count + 2, sizeof *x.first_pair, (void **)&x.first_pair);
    if (status == BP_OK)
        status = bp_new_array(2 * t->pair_count, sizeof *x.pairs, (void **)&x.pairs);
    *index = x;
    if (status != BP_OK) {
        bp_item_index_finish(index);
        return status;
    }
    for (uint32_t i = 0; i < t->life_count; i++)
        x.first_life[t->lives[i].item + 2]++;
    for (size_t i = 0; i < t->pair_count; i++) {
        x.first_pair[t->pairs[i].item + 2]++;
        x.first_pair[t->pairs[i].other + 2]++;
    }
    for (uint32_t i = 2; i < t->count + 2; i++) {
        x.first_life[i] += x.first_life[i - 1];
        x.first_pair[i] += x.first_pair[i - 1];
    }
    for (uint32_t i = 0; i < t->life_count; i++)
        x.lives[x.first_life[t->lives[i].item + 1]++] = i;
    for (size_t i = 0; i < t->pair_count; i++) {
        x.pairs[x.first_pair[t->pairs[i].item + 1]++] = t->pairs[i].other;
        x.pairs[x.first_pair[t->pairs[i].other + 1]++] = t->pairs[i].item;
    }
    return BP_OK;
}

void bp_item_index_finish(bp_item_index *index)
{
    free(index->first_life);
    free(index->lives);
    free(index->first_pair);
    free(index->pairs);
    *index = (bp_item_index){0};
}

uint64_t bp_item_life(const bp_timeline *t, const bp_item_index *index, uint32_t item)
{
    uint64_t life = 0;
    for (uint32_t k = index->first_life[item]; k < index->first_life[item + 1]; k++)
        life += t->lives[index->lives[k]].end - t->lives[index->lives[k]].begin;
    return life;
}

/* ---- components -------------------------------------------------------------------------------------------------- */

/* Representative of an item's set, with path halving. */
static uint32_t find_set(uint32_t *parent, uint32_t item)
{
    while (parent[item] != item)
        item = parent[item] = parent[parent[item]];
    return item;
}

/* The earlier item represents the union, so that a set's representative is its first item. */
static void join_sets(uint32_t *parent, uint32_t one, uint32_t other)
{
    one = find_set(parent, one);
    other = find_set(parent, other);
    if (one < other)
        parent[other] = one;
    else
        parent[one] = other;
}

/* Items that are live together are in one set: it is enough to join each with one that is still live. */
static void join_conflicts(const bp_timeline *t, uint32_t *parent)
{
    uint32_t latest = 0; /* of the live ranges so far, the one with the last end */
    for (uint32_t i = 0; i < t->count; i++)
        parent[i] = i;
    for (uint32_t i = 1; i < t->life_count; i++) {
        if (t->lives[latest].end > t->lives[i].begin)
            join_sets(parent, t->lives[latest].item, t->lives[i].item);
        if (t->lives[i].end > t->lives[latest].end)
            latest = i;
    }
    for (size_t i = 0; i < t->pair_count; i++)
        join_sets(parent, t->pairs[i].item, t->pairs[i].other);
}

typedef struct split {
    bp_timeline old, new; /* ungrouped, grouped */
    uint32_t *part_of;    /* by item */
    uint32_t *number_of;  /* by item: its number in its part */
    uint32_t *by_end;     /* of the old live ranges */
    uint32_t *place;      /* by old live range: its place in the grouped ones */
    bp_timeline *parts;
    uint32_t part_count;
} split;

/* Places items, live ranges and pairs by part. The parts' counts are counted twice: first for the sizes, then while they are filled. */
static void group(split *s)
{
    const bp_timeline *t = &s->old;
    for (uint32_t i = 0; i < t->count; i++)
        s->parts[s->part_of[i]].count++;
    for (uint32_t i = 0; i < t->life_count; i++)
        s->parts[s->part_of[t->lives[i].item]].life_count++;
    for (size_t i = 0; i < t->pair_count; i++)
        s->parts[s->part_of[t->pairs[i].item]].pair_count++;
    bp_timeline next = s->new;
    for (uint32_t p = 0; p < s->part_count; p++) {
        bp_timeline *part = &s->parts[p];
        bp_timeline begin = next;
        next.sizes += part->count;
        next.origin += part->count;
        next.lives += part->life_count;
        next.pairs += part->pair_count;
        *part = (bp_timeline){.sizes = begin.sizes,
                              .origin = begin.origin,
                              .lives = begin.lives,
                              .pairs = begin.pairs,
                              .bound_item = BP_NO_ITEM};
    }
    for (uint32_t i = 0; i < t->count; i++) {
        bp_timeline *part = &s->parts[s->part_of[i]];
        s->number_of[i] = part->count;
        part->sizes[part->count] = t->sizes[i];
        part->origin[part->count++] = t->origin[i];
    }
    for (size_t i = 0; i < t->pair_count; i++) {
        bp_timeline *part = &s->parts[s->part_of[t->pairs[i].item]];
        part->pairs[part->pair_count++] = (bp_pair){s->number_of[t->pairs[i].item], s->number_of[t->pairs[i].other]};
    }
}

/* Live state of a part during the sweep of group_lives. */
typedef struct part_sweep {
    uint64_t live_bytes;
    uint32_t live;
    bool ended;
} part_sweep;

/* Places live ranges by part, with steps of the part. */
static void group_lives(split *s, part_sweep *sweeps)
{
    const bp_timeline *t = &s->old;
    for (uint32_t b = 0, e = 0; e < t->life_count;) {
        if (b < t->life_count && t->lives[b].begin < t->lives[s->by_end[e]].end) {
            uint32_t item = t->lives[b].item;
            bp_timeline *part = &s->parts[s->part_of[item]];
            part_sweep *sweep = &sweeps[s->part_of[item]];
            part->steps += sweep->ended || part->steps == 0;
            sweep->ended = false;
            s->place[b++] = part->life_count;
            part->lives[part->life_count++] = (bp_life){.begin = part->steps - 1, .item = s->number_of[item]};
            part->conflicts += sweep->live++;
            sweep->live_bytes += t->sizes[item];
            if (sweep->live_bytes > part->bound) {
                part->bound = sweep->live_bytes;
                part->bound_step = part->steps - 1;
            }
        } else {
            uint32_t life = s->by_end[e++], item = t->lives[life].item;
            bp_timeline *part = &s->parts[s->part_of[item]];
            part_sweep *sweep = &sweeps[s->part_of[item]];
            part->lives[s->place[life]].end = part->steps;
            sweep->live_bytes -= t->sizes[item];
            sweep->live--;
            sweep->ended = true;
        }
    }
    for (uint32_t i = 0; i < t->count; i++) { /* items without a live range */
        bp_timeline *part = &s->parts[s->part_of[i]];
        if (t->sizes[i] > part->bound) {
            part->bound = t->sizes[i];
            part->bound_item = s->number_of[i];
        }
    }
    for (uint32_t p = 0; p < s->part_count; p++)
        s->parts[p].conflicts += s->parts[p].pair_count;
}

static bp_status split_timeline(split *s)
{
    const bp_timeline *t = &s->old;
    uint32_t *parent;
    part_sweep *sweeps = NULL;
    BP_TRY(bp_new_array(t->count, sizeof *s->part_of, (void **)&s->part_of));
    BP_TRY(bp_new_array(t->count, sizeof *s->number_of, (void **)&s->number_of));
    parent = s->number_of; /* its numbers come later */
    join_conflicts(t, parent);
    for (uint32_t i = 0; i < t->count; i++)
        s->part_of[i] = parent[i] == i ? s->part_count++ : s->part_of[find_set(parent, i)];
    BP_TRY(bp_new_array(s->part_count, sizeof *s->parts, (void **)&s->parts));
    BP_TRY(bp_new_array(t->life_count, sizeof *s->place, (void **)&s->place));
    s->new.count = t->count;
    BP_TRY(bp_new_array(t->count, sizeof *s->new.sizes, (void **)&s->new.sizes));
    BP_TRY(bp_new_array(t->count, sizeof *s->new.origin, (void **)&s->new.origin));
    BP_TRY(bp_new_array(t->life_count, sizeof *s->new.lives, (void **)&s->new.lives));
    BP_TRY(bp_new_array(t->pair_count, sizeof *s->new.pairs, (void **)&s->new.pairs));
    BP_TRY(bp_timeline_ends(t, &s->by_end));
    BP_TRY(bp_new_array(s->part_count, sizeof *sweeps, (void **)&sweeps));
    group(s);
    group_lives(s, sweeps);
    free(sweeps);
    return BP_OK;
}

bp_status bp_timelines_init(const bp_packing *packing, bp_timelines *timelines)
{
    split s = {0};
    *timelines = (bp_timelines){0};
    bp_status status = timeline_init(packing, &s.old);
    if (status == BP_OK)
        status = split_timeline(&s);
    free(s.part_of);
    free(s.number_of);
    free(s.by_end);
    free(s.place);
    timeline_finish(&s.old);
    *timelines = (bp_timelines){s.new, s.parts, s.part_count};
    if (status != BP_OK)
        bp_timelines_finish(timelines);
    return status;
}

void bp_timelines_finish(bp_timelines *timelines)
{
    timeline_finish(&timelines->all);
    free(timelines->parts);
    *timelines = (bp_timelines){0};
}
