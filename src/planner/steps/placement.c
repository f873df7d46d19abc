/* SPDX-License-Identifier: Apache-2.0 */
/* Offset assignment for the kinds of steps, which share a slab. */
#include <stdlib.h>
#include <string.h>

#include <bucketpool/core/fail.h>
#include <bucketpool/pack.h>

#include "core/memory.h"
#include "planner/steps/planner.h"

/* A kind of step as an instance of the packer, in units of BP_STEP_ALIGNMENT, and its ranges. */
typedef struct instance {
    bp_packing *packing;
    bp_step_ranges ranges; /* of the packer's axes, then of changes */
    size_t axes_count;     /* of the ranges, those of the axes */
    uint64_t *bytes;       /* by item, rounded; 0: outside */
    uint64_t time;         /* behind the axes */
    bool is_placed;
} instance;

typedef struct placer {
    const bp_step_planner *p;
    bp_step_placement *placement;
    instance instances[BP_STEP_PLAN_KINDS];
} placer;

/* ---- instances ----------------------------------------------------------------------------------------------------- */

/* The items and axes for the packer, and the lower bound in bytes. */
static bp_status fill_packing(const uint64_t *bytes, size_t count, const bp_step_range *axes, size_t axes_count,
                              bp_packing *packing, uint64_t *bound)
{
    size_t members = 0;
    for (size_t i = 0; i < count; i++)
        BP_TRY(bp_packing_add_item(packing, bytes[i] / BP_STEP_ALIGNMENT, NULL));
    for (size_t i = 0; i < axes_count; i++)
        BP_TRY(bp_packing_add_interval(packing, axes[i].item, axes[i].begin, axes[i].end));
    BP_TRY(bp_packing_bound(packing, NULL, &members, bound));
    *bound *= BP_STEP_ALIGNMENT;
    return BP_OK;
}

static bp_status make_packing(placer *s, uint32_t kind)
{
    instance *made = &s->instances[kind];
    bp_packing_destroy(&made->packing);
    BP_TRY(bp_packing_create(&made->packing));
    return fill_packing(made->bytes, s->p->kinds[kind].item_count, made->ranges.all, made->axes_count, made->packing,
                        &s->placement->bounds[kind]);
}

static void round_items(const bp_step_planner *p, uint32_t kind, uint64_t *bytes)
{
    for (size_t i = 0; i < p->kinds[kind].item_count; i++) {
        const bp_step_plan_item *item = &p->items[kind][i];
        bytes[i] = item->offset == BP_STEP_OUTSIDE ? 0 : bp_step_round(item->bytes);
    }
}

static bp_status make_instance(placer *s, uint32_t kind, bool has_windows)
{
    const bp_step_planner *p = s->p;
    instance *made = &s->instances[kind];
    const size_t count = p->kinds[kind].item_count;
    made->bytes = malloc((count + 1) * sizeof *made->bytes);
    s->placement->offsets[kind] = calloc(count + 1, sizeof *s->placement->offsets[kind]);
    if (made->bytes == NULL || s->placement->offsets[kind] == NULL)
        return bp_fail_memory(count * sizeof *made->bytes);
    round_items(p, kind, made->bytes);
    BP_TRY(bp_step_planner_find_ranges(p, kind, has_windows, &made->time, &made->ranges));
    made->axes_count = made->ranges.count;
    return make_packing(s, kind);
}

/* ---- one kind ------------------------------------------------------------------------------------------------------ */

typedef struct obstacles {
    bp_step_obstacle *all;
    size_t count, capacity;
} obstacles;

static bp_status add_obstacle(obstacles *o, const bp_step_obstacle *obstacle)
{
    void *all = o->all;
    BP_TRY(bp_grow_array(&all, &o->capacity, o->count, sizeof *o->all));
    o->all = all;
    o->all[o->count++] = *obstacle;
    return BP_OK;
}

/* Held memory, and what is live together with this kind's items where a step of another kind comes before or after. */
static bp_status find_obstacles(placer *s, uint32_t kind, obstacles *o)
{
    const bp_step_planner *p = s->p;
    instance *own = &s->instances[kind];
    for (size_t i = 0; i < p->config.held_count; i++)
        BP_TRY(add_obstacle(o, &(bp_step_obstacle){0, UINT64_MAX, p->config.held[i].offset, p->config.held[i].bytes}));
    bp_step_ranges others = {0};
    bp_status status = BP_OK;
    for (uint32_t other = 0; other < p->kind_count && status == BP_OK; other++) {
        if (!s->instances[other].is_placed)
            continue;
        others.count = 0;
        status = bp_step_planner_find_changes(p, kind, other, &own->time, &own->ranges, &others);
        if (status == BP_OK)
            status = bp_step_planner_find_changes(p, other, kind, &own->time, &others, &own->ranges);
        for (size_t i = 0; i < others.count && status == BP_OK; i++) {
            const bp_step_range *range = &others.all[i];
            status =
                add_obstacle(o, &(bp_step_obstacle){range->begin, range->end, s->placement->offsets[other][range->item],
                                                    s->instances[other].bytes[range->item]});
        }
    }
    free(others.all);
    return status;
}

static size_t items_in_common(const bp_step_planner *p, uint32_t a, uint32_t b)
{
    size_t i = 0;
    while (i < p->kinds[a].item_count && i < p->kinds[b].item_count && p->items[a][i].bytes == p->items[b][i].bytes &&
           p->items[a][i].stream == p->items[b][i].stream)
        i++;
    return i;
}

/* The placed kind with which a kind has most items in common from the beginning on; they become wanted. False: none. */
static bool want_prefix(const placer *s, uint32_t kind, uint64_t *wanted)
{
    const bp_step_planner *p = s->p;
    size_t longest = 0;
    uint32_t best = 0;
    for (uint32_t other = 0; other < p->kind_count; other++) {
        const size_t length = s->instances[other].is_placed ? items_in_common(p, kind, other) : 0;
        best = length > longest ? other : best;
        longest = length > longest ? length : longest;
    }
    memset(wanted, 0xff, p->kinds[kind].item_count * sizeof *wanted);
    for (size_t i = 0; i < longest; i++) {
        if (s->instances[best].bytes[i] > 0)
            wanted[i] = s->placement->offsets[best][i];
    }
    return longest > 0;
}

typedef struct candidate {
    uint64_t *offsets;
    uint64_t end, proven;
    const char *method;
} candidate;

static bp_status fit_around(const placer *s, uint32_t kind, const obstacles *o, const uint64_t *wanted, uint64_t work,
                            uint64_t capacity, candidate *made)
{
    const instance *own = &s->instances[kind];
    const bp_step_fit input = {.bytes = own->bytes,
                               .count = s->p->kinds[kind].item_count,
                               .ranges = &own->ranges,
                               .obstacles = o->all,
                               .obstacle_count = o->count,
                               .wanted = wanted,
                               .least = s->placement->bytes > s->placement->bounds[kind] ? s->placement->bytes
                                                                                         : s->placement->bounds[kind],
                               .work = work,
                               .capacity = capacity};
    made->proven = s->placement->bounds[kind];
    return bp_step_first_fit(&input, made->offsets, &made->end);
}

/* By the packer and, where that does not prove its result, by first fit, which is better for many items with gaps; where
 * obstacles are in the way, by first fit around them. `packed`: room for the items. */
static bp_status pack_alone(const placer *s, uint32_t kind, const obstacles *o, uint64_t *packed, candidate *made)
{
    const size_t count = s->p->kinds[kind].item_count;
    const obstacles none = {0};
    bp_pack_config config;
    bp_pack_result result = {.size = sizeof result};
    BP_TRY(bp_pack_config_init(&config, sizeof config));
    config.work = s->p->config.work;
    BP_TRY(bp_pack(s->instances[kind].packing, &config, packed, &result));
    for (size_t i = 0; i < count; i++)
        packed[i] *= BP_STEP_ALIGNMENT;
    uint64_t packed_end = result.bytes * BP_STEP_ALIGNMENT;
    made->method = result.method;
    if (!result.optimal) {
        BP_TRY(fit_around(s, kind, &none, NULL, 0, 0, made));
        if (made->end < packed_end) {
            packed_end = made->end;
            made->method = "first fit";
            memcpy(packed, made->offsets, count * sizeof *packed);
        }
    }
    made->end = packed_end;
    if (o->count == 0) {
        memcpy(made->offsets, packed, count * sizeof *packed);
    } else {
        BP_TRY(fit_around(s, kind, o, packed, 0, 0, made));
        if (memcmp(made->offsets, packed, count * sizeof *packed) != 0)
            made->method =
                s->p->config.held_count > 0 ? "first fit around what is live" : "first fit around other kinds";
    }
    made->proven = result.proven * BP_STEP_ALIGNMENT;
    return BP_OK;
}

/* The first step of the process does not make the slab larger: what does not fit is outside. */
static bp_status limit_first(placer *s, uint32_t kind, const obstacles *o, candidate *made)
{
    const uint64_t capacity = s->placement->bytes;
    if (!s->p->kinds[kind].is_first || s->p->kind_count == 1 || made->end <= capacity)
        return BP_OK;
    made->method = "first fit below the other kinds";
    if (capacity > 0)
        BP_TRY(fit_around(s, kind, o, NULL, 0, capacity, made));
    for (size_t i = 0; i < s->p->kinds[kind].item_count; i++) {
        if (capacity == 0 || made->offsets[i] == BP_STEP_OUTSIDE) {
            made->offsets[i] = BP_STEP_OUTSIDE;
            s->instances[kind].bytes[i] = 0;
        }
    }
    made->end = capacity == 0 ? 0 : made->end;
    BP_TRY(make_packing(s, kind));
    made->proven = s->placement->bounds[kind];
    return BP_OK;
}

/* Tries the addresses of another kind's beginning, and takes them if the slab does not grow by it. */
static bp_status choose(placer *s, uint32_t kind, const obstacles *o, uint64_t *wanted, candidate *shared,
                        candidate *alone)
{
    bp_step_placement *placement = s->placement;
    const uint64_t prefix_work = (uint64_t)1 << 30;
    candidate *best = shared;
    shared->end = UINT64_MAX;
    shared->method = "first fit, with the addresses of another kind";
    if (want_prefix(s, kind, wanted))
        BP_TRY(fit_around(s, kind, o, wanted, prefix_work, 0, shared));
    if (shared->end > placement->bytes) {
        alone->method = "first fit around other kinds";
        if (s->p->kinds[kind].is_first && placement->bytes > 0) /* limit_first() would undo a longer search */
            BP_TRY(fit_around(s, kind, o, NULL, 0, 0, alone));
        else
            BP_TRY(pack_alone(s, kind, o, wanted, alone));
        best = shared->end <= alone->end ? shared : alone;
        if (placement->bytes >= alone->end) /* else both grow the slab, or only the shared one does */
            best = alone;
    }
    BP_TRY(limit_first(s, kind, o, best));
    memcpy(placement->offsets[kind], best->offsets, s->p->kinds[kind].item_count * sizeof *best->offsets);
    placement->ends[kind] = best->end;
    placement->proven[kind] = best->proven;
    placement->methods[kind] = best->method;
    placement->bytes = best->end > placement->bytes ? best->end : placement->bytes;
    return BP_OK;
}

static bp_status place_kind(placer *s, uint32_t kind)
{
    const size_t count = s->p->kinds[kind].item_count;
    obstacles o = {0};
    uint64_t *room = malloc((3 * count + 1) * sizeof *room);
    bp_status status = room == NULL ? bp_fail_memory(3 * count * sizeof *room) : find_obstacles(s, kind, &o);
    if (status == BP_OK) {
        memset(room, 0, 3 * count * sizeof *room);
        candidate shared = {.offsets = room + count}, alone = {.offsets = room + 2 * count};
        status = choose(s, kind, &o, room, &shared, &alone);
    }
    for (size_t i = 0; i < count && status == BP_OK; i++)
        room[i] = s->instances[kind].bytes[i] > 0 ? s->placement->offsets[kind][i] / BP_STEP_ALIGNMENT : 0;
    if (status == BP_OK)
        status = bp_packing_check(s->instances[kind].packing, room, s->placement->ends[kind] / BP_STEP_ALIGNMENT);
    s->instances[kind].is_placed = true;
    free(o.all);
    free(room);
    return status;
}

/* ---- kinds together ------------------------------------------------------------------------------------------------ */

/* Adds the ranges of items, whose numbers begin at `base`, in axes behind `time`. */
static bp_status add_ranges(bp_packing *packing, const bp_step_ranges *ranges, size_t base, uint64_t time)
{
    for (size_t i = 0; i < ranges->count; i++) {
        const bp_step_range *range = &ranges->all[i];
        BP_TRY(bp_packing_add_interval(packing, base + range->item, time + range->begin, time + range->end));
    }
    return BP_OK;
}

/* All steady kinds as one instance, with the changes from one to another. `bases`: numbers of their first items. */
static bp_status join_kinds(const placer *s, bp_packing *packing, const size_t *bases)
{
    const bp_step_planner *p = s->p;
    uint64_t time = 0;
    bp_step_ranges before = {0}, behind = {0};
    bp_status status = BP_OK;
    for (uint32_t kind = 0; kind < p->kind_count && status == BP_OK; kind++) {
        for (size_t i = 0; i < p->kinds[kind].item_count && !p->kinds[kind].is_first && status == BP_OK; i++)
            status = bp_packing_add_item(packing, s->instances[kind].bytes[i] / BP_STEP_ALIGNMENT, NULL);
    }
    for (uint32_t kind = 0; kind < p->kind_count && status == BP_OK; kind++) {
        if (p->kinds[kind].is_first)
            continue;
        const bp_step_ranges axes = {.all = s->instances[kind].ranges.all, .count = s->instances[kind].axes_count};
        status = add_ranges(packing, &axes, bases[kind], time);
        time += s->instances[kind].time;
        for (uint32_t next = 0; next < p->kind_count && status == BP_OK; next++) {
            before.count = behind.count = 0;
            if (!p->kinds[next].is_first)
                status = bp_step_planner_find_changes(p, kind, next, &time, &before, &behind);
            if (status == BP_OK)
                status = add_ranges(packing, &before, bases[kind], 0);
            if (status == BP_OK)
                status = add_ranges(packing, &behind, bases[next], 0);
        }
    }
    free(before.all);
    free(behind.all);
    return status;
}

/* Searches a smaller slab for all steady kinds, from the placement of each. `known` and `offsets`: room for all items. */
static bp_status improve(placer *s, bp_packing *packing, const size_t *bases, uint64_t *known, uint64_t *offsets)
{
    const bp_step_planner *p = s->p;
    bp_step_placement *placement = s->placement;
    bp_pack_config config;
    bp_pack_result result = {.size = sizeof result};
    BP_TRY(join_kinds(s, packing, bases));
    for (uint32_t kind = 0; kind < p->kind_count; kind++) {
        for (size_t i = 0; i < p->kinds[kind].item_count && !p->kinds[kind].is_first; i++)
            known[bases[kind] + i] = placement->offsets[kind][i] / BP_STEP_ALIGNMENT;
    }
    BP_TRY(bp_pack_config_init(&config, sizeof config));
    config.work = p->config.work;
    config.known = known;
    BP_TRY(bp_pack(packing, &config, offsets, &result));
    BP_TRY(bp_packing_check(packing, offsets, result.bytes));
    placement->bytes = result.bytes * BP_STEP_ALIGNMENT;
    for (uint32_t kind = 0; kind < p->kind_count; kind++) {
        if (p->kinds[kind].is_first)
            continue;
        placement->ends[kind] = 0;
        placement->proven[kind] = result.proven * BP_STEP_ALIGNMENT; /* of the slab */
        placement->methods[kind] = result.method;
        for (size_t i = 0; i < p->kinds[kind].item_count; i++) {
            const uint64_t offset = offsets[bases[kind] + i] * BP_STEP_ALIGNMENT;
            const uint64_t end = s->instances[kind].bytes[i] > 0 ? offset + s->instances[kind].bytes[i] : 0;
            placement->offsets[kind][i] = offset;
            placement->ends[kind] = end > placement->ends[kind] ? end : placement->ends[kind];
        }
    }
    return BP_OK;
}

/* Kinds that were placed one by one may take more than the largest of them needs: memory that one step carries into one of
 * another kind was in the way. */
static bp_status improve_together(placer *s)
{
    const bp_step_planner *p = s->p;
    size_t bases[BP_STEP_PLAN_KINDS], count = 0, kinds = 0;
    uint64_t bound = 0;
    for (uint32_t kind = 0; kind < p->kind_count; kind++) {
        bases[kind] = count;
        count += p->kinds[kind].is_first ? 0 : p->kinds[kind].item_count;
        kinds += !p->kinds[kind].is_first;
        if (!p->kinds[kind].is_first && s->placement->proven[kind] > bound)
            bound = s->placement->proven[kind];
    }
    if (kinds < 2 || s->placement->bytes <= bound || p->config.held_count > 0)
        return BP_OK;
    bp_packing *packing = NULL;
    uint64_t *offsets = malloc((2 * count + 1) * sizeof *offsets);
    bp_status status = offsets == NULL ? bp_fail_memory(2 * count * sizeof *offsets) : bp_packing_create(&packing);
    if (status == BP_OK)
        status = improve(s, packing, bases, offsets + count, offsets);
    bp_packing_destroy(&packing);
    free(offsets);
    return status;
}

/* ---- all ----------------------------------------------------------------------------------------------------------- */

static bp_status place_kinds(placer *s, bool has_windows)
{
    const bp_step_planner *p = s->p;
    for (uint32_t kind = 0; kind < p->kind_count; kind++)
        BP_TRY(make_instance(s, kind, has_windows));
    for (size_t i = 0; i < p->kind_count; i++) {
        if (i + p->has_first == p->kind_count)
            BP_TRY(improve_together(s));
        uint32_t largest = BP_TRACE_NONE;
        for (uint32_t kind = 0; kind < p->kind_count; kind++) {
            if (!s->instances[kind].is_placed && (!p->kinds[kind].is_first || i + 1 == p->kind_count) &&
                (largest == BP_TRACE_NONE || s->placement->bounds[kind] > s->placement->bounds[largest]))
                largest = kind;
        }
        BP_TRY(place_kind(s, largest));
    }
    if (!p->has_first)
        BP_TRY(improve_together(s));
    for (size_t i = 0; i < p->config.held_count; i++) {
        const uint64_t end = p->config.held[i].offset + p->config.held[i].bytes;
        s->placement->bytes = end > s->placement->bytes ? end : s->placement->bytes;
    }
    return BP_OK;
}

bp_status bp_step_planner_place(const bp_step_planner *p, bool has_windows, bp_step_placement *placement)
{
    placer s = {.p = p, .placement = placement};
    placement->has_windows = has_windows;
    bp_status status = place_kinds(&s, has_windows);
    for (size_t i = 0; i < p->kind_count; i++) {
        bp_packing_destroy(&s.instances[i].packing);
        free(s.instances[i].ranges.all);
        free(s.instances[i].bytes);
    }
    return status;
}

bp_status bp_step_planner_bound(const bp_step_planner *p, uint32_t kind, bool has_windows, uint64_t *bound)
{
    const size_t count = p->kinds[kind].item_count;
    bp_step_ranges axes = {0};
    bp_packing *packing = NULL;
    uint64_t time = 0, *bytes = calloc(count + 1, sizeof *bytes);
    bp_status status = bytes == NULL ? bp_fail_memory(count * sizeof *bytes) : bp_packing_create(&packing);
    if (status == BP_OK) {
        round_items(p, kind, bytes);
        status = bp_step_planner_find_ranges(p, kind, has_windows, &time, &axes);
    }
    if (status == BP_OK)
        status = fill_packing(bytes, count, axes.all, axes.count, packing, bound);
    bp_packing_destroy(&packing);
    free(axes.all);
    free(bytes);
    return status;
}

void bp_step_placement_finish(bp_step_placement *placement)
{
    for (size_t i = 0; i < BP_STEP_PLAN_KINDS; i++)
        free(placement->offsets[i]);
    *placement = (bp_step_placement){0};
}
