/* SPDX-License-Identifier: Apache-2.0 */
/* First fit decreasing for items of a step plan, around memory that is taken already. */
#include <stdlib.h>
#include <string.h>

#include <bucketpool/core/arith.h>
#include <bucketpool/core/fail.h>

#include "core/memory.h"
#include "planner/steps/planner.h"

/* Time is cut into spans; memory is listed in each of those in which it is taken. */
enum { SPANS = 512 };

/* Memory that is taken for some time, by an obstacle or by a placed item. */
typedef struct taken {
    uint64_t begin, end, offset, last; /* bytes [offset, last) */
} taken;

typedef struct span {
    taken *listed; /* lowest first */
    size_t count, capacity;
} span;

/* Passes what is taken in a span during a range. */
typedef struct cursor {
    const span *in;
    const bp_step_range *range;
    size_t next;
} cursor;

typedef struct ordered_item {
    uint64_t first, second; /* decreasing, in this order */
    uint32_t item;
} ordered_item;

typedef struct fitter {
    const bp_step_fit *fit;
    size_t *range_begin; /* by item, in `range_order`; one more */
    uint32_t *range_order;
    uint64_t span_length;
    span spans[SPANS];
    cursor *cursors;
    size_t cursor_count, cursor_capacity;
    ordered_item *order;
    uint64_t work;
} fitter;

/* ---- conflicts ----------------------------------------------------------------------------------------------------- */

static bp_status list_in(span *s, const taken *memory)
{
    void *listed = s->listed;
    BP_TRY(bp_grow_array(&listed, &s->capacity, s->count, sizeof *s->listed));
    s->listed = listed;
    size_t low = 0;
    for (size_t high = s->count; low < high;) {
        const size_t middle = low + (high - low) / 2;
        if (s->listed[middle].offset < memory->offset)
            low = middle + 1;
        else
            high = middle;
    }
    memmove(&s->listed[low + 1], &s->listed[low], (s->count++ - low) * sizeof *s->listed);
    s->listed[low] = *memory;
    return BP_OK;
}

static size_t time_span(const fitter *f, uint64_t time)
{
    const uint64_t number = time / f->span_length;
    return number < SPANS ? (size_t)number : SPANS - 1;
}

static bp_status take_memory(fitter *f, uint64_t begin, uint64_t end, uint64_t offset, uint64_t bytes)
{
    const taken memory = {begin, end, offset, offset + bytes};
    for (size_t s = time_span(f, begin); s <= time_span(f, end - 1); s++)
        BP_TRY(list_in(&f->spans[s], &memory));
    return BP_OK;
}

static bp_status take_ranges(fitter *f, uint32_t item, uint64_t offset)
{
    for (size_t i = f->range_begin[item]; i < f->range_begin[item + 1]; i++) {
        const bp_step_range *range = &f->fit->ranges->all[f->range_order[i]];
        BP_TRY(take_memory(f, range->begin, range->end, offset, f->fit->bytes[item]));
    }
    return BP_OK;
}

static bp_status make_cursors(fitter *f, uint32_t item)
{
    f->cursor_count = 0;
    for (size_t i = f->range_begin[item]; i < f->range_begin[item + 1]; i++) {
        const bp_step_range *range = &f->fit->ranges->all[f->range_order[i]];
        for (size_t s = time_span(f, range->begin); s <= time_span(f, range->end - 1); s++) {
            void *cursors = f->cursors;
            BP_TRY(bp_grow_array(&cursors, &f->cursor_capacity, f->cursor_count, sizeof *f->cursors));
            f->cursors = cursors;
            f->cursors[f->cursor_count++] = (cursor){&f->spans[s], range, 0};
        }
    }
    return BP_OK;
}

/* The end of the highest memory that is taken during the cursor's range in [offset, offset + bytes), which grows with it. */
static uint64_t pass_taken(fitter *f, cursor *c, uint64_t offset, uint64_t bytes)
{
    const size_t begin = c->next;
    for (; c->next < c->in->count && c->in->listed[c->next].offset < offset + bytes; c->next++) {
        const taken *t = &c->in->listed[c->next];
        if (t->last > offset && t->begin < c->range->end && c->range->begin < t->end)
            offset = t->last;
    }
    f->work += c->next - begin + 1;
    return offset;
}

/* The lowest offset from `offset` on that is free during all ranges of the cursors. Each of the taken is passed once. */
static uint64_t lowest_from(fitter *f, uint64_t offset, uint64_t bytes)
{
    for (uint64_t before = UINT64_MAX; before != offset;) {
        before = offset;
        for (size_t i = 0; i < f->cursor_count; i++)
            offset = pass_taken(f, &f->cursors[i], offset, bytes);
    }
    return offset;
}

/* ---- placing ------------------------------------------------------------------------------------------------------- */

static bp_status begin_anew(fitter *f)
{
    for (size_t s = 0; s < SPANS; s++)
        f->spans[s].count = 0;
    for (size_t i = 0; i < f->fit->obstacle_count; i++) {
        const bp_step_obstacle *o = &f->fit->obstacles[i];
        if (o->begin < o->end && o->bytes > 0)
            BP_TRY(take_memory(f, o->begin, o->end, o->offset, o->bytes));
    }
    return BP_OK;
}

static bool is_placed(const fitter *f, uint32_t item)
{
    return f->fit->bytes[item] > 0 && f->range_begin[item] < f->range_begin[item + 1];
}

static bp_status fit_all(fitter *f, uint64_t *offsets, uint64_t *total)
{
    const bp_step_fit *fit = f->fit;
    *total = 0;
    BP_TRY(begin_anew(f));
    for (size_t pass = 0; pass < 2; pass++) { /* those with a wanted offset come first */
        for (size_t i = 0; i < fit->count; i++) {
            const uint32_t item = f->order[i].item;
            const bool is_wanted = fit->wanted != NULL && fit->wanted[item] != BP_STEP_OUTSIDE;
            if (!is_placed(f, item) || (pass == 0 ? !is_wanted : is_wanted && offsets[item] != BP_STEP_OUTSIDE))
                continue;
            const uint64_t from = pass == 0 ? fit->wanted[item] : 0;
            BP_TRY(make_cursors(f, item));
            offsets[item] = lowest_from(f, from, fit->bytes[item]);
            if (pass == 0 && offsets[item] != from) {
                offsets[item] = BP_STEP_OUTSIDE;
                continue;
            }
            if (fit->capacity > 0 && fit->bytes[item] > fit->capacity - bp_min_u64(offsets[item], fit->capacity)) {
                offsets[item] = BP_STEP_OUTSIDE;
                continue;
            }
            BP_TRY(take_ranges(f, item, offsets[item]));
            const uint64_t end = offsets[item] + fit->bytes[item];
            *total = end > *total ? end : *total;
            if (fit->work > 0 && f->work > fit->work) {
                *total = UINT64_MAX;
                return BP_OK;
            }
        }
    }
    return BP_OK;
}

static int by_order(const void *left, const void *right)
{
    const ordered_item *a = left, *b = right;
    if (a->first != b->first)
        return a->first > b->first ? -1 : 1;
    if (a->second != b->second)
        return a->second > b->second ? -1 : 1;
    return (a->item > b->item) - (a->item < b->item);
}

typedef enum fit_order { BY_BYTES, BY_LENGTH, BY_AREA, BY_BEGIN, FIT_ORDERS } fit_order;

static void sort_items(fitter *f, fit_order order)
{
    for (size_t i = 0; i < f->fit->count; i++) {
        uint64_t length = 0, begin = UINT64_MAX;
        const uint64_t bytes = f->fit->bytes[i];
        for (size_t k = f->range_begin[i]; k < f->range_begin[i + 1]; k++) {
            const bp_step_range *range = &f->fit->ranges->all[f->range_order[k]];
            length += range->end - range->begin;
            begin = range->begin < begin ? range->begin : begin;
        }
        uint64_t area = 0;
        if (!bp_mul_u64(bytes, length, &area))
            area = UINT64_MAX;
        const uint64_t keys[FIT_ORDERS] = {bytes, length, area, UINT64_MAX - begin};
        f->order[i] = (ordered_item){keys[order], order == BY_BYTES ? length : bytes, (uint32_t)i};
    }
    qsort(f->order, f->fit->count, sizeof *f->order, by_order);
}

/* ---- all ----------------------------------------------------------------------------------------------------------- */

/* The ranges of each item. */
static bp_status sort_ranges(fitter *f)
{
    const bp_step_fit *fit = f->fit;
    uint64_t end = 1, bytes = 0;
    for (size_t i = 0; i < fit->ranges->count; i++) {
        const bp_step_range *range = &fit->ranges->all[i];
        f->range_begin[range->item + 1]++;
        end = range->end > end ? range->end : end;
    }
    for (size_t i = 0; i < fit->count; i++) {
        f->range_begin[i + 1] += f->range_begin[i];
        if (!bp_add_u64(bytes, fit->bytes[i], &bytes))
            return bp_fail(BP_ERR_OVERFLOW, "step plan: the bytes of its items together exceed 64 bits");
    }
    for (size_t i = 0; i < fit->obstacle_count; i++) {
        const bp_step_obstacle *o = &fit->obstacles[i];
        if (!bp_add_u64(bytes, o->bytes, &bytes) || o->offset > UINT64_MAX - bytes)
            return bp_fail(BP_ERR_OVERFLOW, "step plan: its items and what is held exceed 64 bits");
    }
    for (size_t i = fit->ranges->count; i > 0; i--)
        f->range_order[--f->range_begin[fit->ranges->all[i - 1].item + 1]] = (uint32_t)(i - 1);
    /* range_begin[item + 1] is the beginning now: move it to its place. */
    memmove(f->range_begin, f->range_begin + 1, fit->count * sizeof *f->range_begin);
    f->range_begin[fit->count] = fit->ranges->count;
    f->span_length = end / SPANS + 1;
    return BP_OK;
}

static bp_status fit_in_orders(fitter *f, uint64_t *offsets, uint64_t *total)
{
    const size_t count = f->fit->count;
    uint64_t *tried = calloc(count + 1, sizeof *tried);
    if (tried == NULL)
        return bp_fail_memory(count * sizeof *tried);
    bp_status status = BP_OK;
    uint64_t least_outside = UINT64_MAX;
    *total = UINT64_MAX;
    for (unsigned order = 0; order < FIT_ORDERS && status == BP_OK; order++) {
        uint64_t end = 0, outside = 0;
        sort_items(f, (fit_order)order);
        memset(tried, 0, count * sizeof *tried);
        status = fit_all(f, tried, &end);
        for (size_t i = 0; i < count; i++)
            outside += tried[i] == BP_STEP_OUTSIDE ? f->fit->bytes[i] : 0;
        if (status == BP_OK && (outside < least_outside || (outside == least_outside && end < *total))) {
            least_outside = outside;
            *total = end;
            memcpy(offsets, tried, count * sizeof *tried);
        }
        if (least_outside == 0 && *total <= f->fit->least)
            break;
    }
    free(tried);
    return status;
}

bp_status bp_step_first_fit(const bp_step_fit *fit, uint64_t *offsets, uint64_t *total)
{
    const size_t room = fit->ranges->count + fit->obstacle_count + 1;
    fitter f = {.fit = fit,
                .range_begin = calloc(fit->count + 2, sizeof *f.range_begin),
                .range_order = malloc(room * sizeof *f.range_order),
                .order = malloc((fit->count + 1) * sizeof *f.order)};
    const bool has_room = f.range_begin != NULL && f.range_order != NULL && f.order != NULL;
    bp_status status = has_room ? sort_ranges(&f) : bp_fail_memory(room * sizeof *f.range_order);
    if (status == BP_OK)
        status = fit_in_orders(&f, offsets, total);
    for (size_t s = 0; s < SPANS; s++)
        free(f.spans[s].listed);
    free(f.range_begin);
    free(f.range_order);
    free(f.cursors);
    free(f.order);
    return status;
}
