/* SPDX-License-Identifier: Apache-2.0 */
/* First fit in an order of weights, with squeaky-wheel improvement, without a conflict graph: the live ranges placed so far are in columns of
 * consecutive steps, in the order of offsets. */
#include <bucketpool/core/arith.h>
#include <bucketpool/core/fail.h>

#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "planner/packing/solve.h"

/* A placed live range. */
typedef struct placed {
    uint64_t bottom, top;
    uint32_t begin, end;
} placed;

typedef struct fitting {
    const bp_timeline *t;
    const bp_item_index *index;
    bp_work *work;
    uint64_t share_end; /* no order begins after this work */
    uint32_t width;     /* steps of a column */
    uint32_t column_count;
    size_t *columns; /* by column: its first entry; one more */
    uint32_t *used;  /* by column: its entries */
    placed *entries; /* of each column, lowest first */
    placed *taken;   /* ranges beside an item, when it is live in several columns */
    size_t taken_count, taken_capacity;
    bp_keyed *order;   /* items, heaviest first: the key is the complement of the weight */
    uint64_t *offsets; /* in the current order; NOT_PLACED */
    uint64_t *weights; /* by item */
} fitting;

#define NOT_PLACED UINT64_MAX

static int lower_first(const void *left, const void *right)
{
    const placed *a = left, *b = right;
    return (a->bottom > b->bottom) - (a->bottom < b->bottom);
}

/* The lowest offset with `size` free bytes between ranges, lowest first, that overlap the steps [begin, end). */
static uint64_t lowest_gap(const placed *ranges, size_t count, uint32_t begin, uint32_t end, uint64_t size)
{
    uint64_t at = 0;
    for (size_t i = 0; i < count; i++) {
        if (ranges[i].end <= begin || ranges[i].begin >= end)
            continue;
        if (ranges[i].bottom >= at && ranges[i].bottom - at >= size)
            return at;
        at = ranges[i].top > at ? ranges[i].top : at;
    }
    return at;
}

static bp_status take(fitting *f, uint64_t bottom, uint64_t top)
{
    BP_TRY(bp_grow_array((void **)&f->taken, &f->taken_capacity, f->taken_count, sizeof *f->taken));
    f->taken[f->taken_count++] = (placed){bottom, top, 0, UINT32_MAX};
    return BP_OK;
}

/* Takes the placed ranges that overlap a live range; one in several columns counts in the first that both have. */
static bp_status take_beside(fitting *f, const bp_life *life)
{
    uint32_t first = life->begin / f->width, last = (life->end - 1) / f->width;
    for (uint32_t c = first; c <= last; c++) {
        for (size_t i = f->columns[c]; i < f->columns[c] + f->used[c]; i++) {
            const placed *range = &f->entries[i];
            bool is_first = c == first || range->begin / f->width == c;
            if (is_first && range->end > life->begin && range->begin < life->end)
                BP_TRY(take(f, range->bottom, range->top));
        }
        f->work->spent += 2 * (uint64_t)f->used[c] + 8;
    }
    return BP_OK;
}

/* The lowest offset where the item fits. */
static bp_status lowest_fit(fitting *f, uint32_t item, uint64_t *offset)
{
    const bp_item_index *x = f->index;
    uint32_t first = x->first_life[item], lives = x->first_life[item + 1] - first;
    uint32_t first_pair = x->first_pair[item], pairs = x->first_pair[item + 1] - first_pair;
    const bp_life *life = lives > 0 ? &f->t->lives[x->lives[first]] : NULL;
    if (lives == 1 && pairs == 0 && life->begin / f->width == (life->end - 1) / f->width) {
        uint32_t c = life->begin / f->width;
        f->work->spent += 2 * (uint64_t)f->used[c] + 16;
        *offset = lowest_gap(f->entries + f->columns[c], f->used[c], life->begin, life->end, f->t->sizes[item]);
        return BP_OK;
    }
    f->taken_count = 0;
    for (uint32_t k = first; k < first + lives; k++)
        BP_TRY(take_beside(f, &f->t->lives[x->lives[k]]));
    for (uint32_t k = first_pair; k < first_pair + pairs; k++) {
        uint64_t bottom = f->offsets[x->pairs[k]];
        if (bottom != NOT_PLACED)
            BP_TRY(take(f, bottom, bottom + f->t->sizes[x->pairs[k]]));
    }
    if (f->taken_count > 1)
        qsort(f->taken, f->taken_count, sizeof *f->taken, lower_first);
    f->work->spent += 16 * (uint64_t)f->taken_count + 8;
    *offset = lowest_gap(f->taken, f->taken_count, 0, UINT32_MAX, f->t->sizes[item]);
    return BP_OK;
}

static void place(fitting *f, uint32_t item, uint64_t offset)
{
    const bp_item_index *x = f->index;
    f->offsets[item] = offset;
    for (uint32_t k = x->first_life[item]; k < x->first_life[item + 1]; k++) {
        const bp_life *life = &f->t->lives[x->lives[k]];
        for (uint32_t c = life->begin / f->width; c <= (life->end - 1) / f->width; c++) {
            placed *column = f->entries + f->columns[c];
            uint32_t low = 0;
            for (uint32_t high = f->used[c]; low < high;) {
                uint32_t middle = low + (high - low) / 2;
                if (column[middle].bottom < offset)
                    low = middle + 1;
                else
                    high = middle;
            }
            memmove(column + low + 1, column + low, (f->used[c]++ - low) * sizeof *column);
            column[low] = (placed){offset, offset + f->t->sizes[item], life->begin, life->end};
        }
    }
}

/* Places all items. *height: of the highest; UINT64_MAX: the work is over. */
static bp_status place_by_weight(fitting *f, uint64_t *height)
{
    const bp_timeline *t = f->t;
    uint64_t highest = 0;
    *height = UINT64_MAX;
    memset(f->used, 0, f->column_count * sizeof *f->used);
    for (uint32_t i = 0; i < t->count; i++) {
        f->order[i] = (bp_keyed){~f->weights[i], i};
        f->offsets[i] = NOT_PLACED;
    }
    qsort(f->order, t->count, sizeof *f->order, bp_compare_keyed);
    for (uint32_t i = 0; i < t->count; i++) {
        uint32_t item = f->order[i].number;
        uint64_t offset;
        BP_TRY(lowest_fit(f, item, &offset));
        place(f, item, offset);
        highest = offset + t->sizes[item] > highest ? offset + t->sizes[item] : highest;
        if (bp_work_is_over(f->work))
            return BP_OK;
    }
    *height = highest;
    return BP_OK;
}

typedef enum start { AS_LIVE, LARGEST, LARGEST_AREA, LONGEST, START_COUNT } start;

static void set_weights(fitting *f, start how)
{
    for (uint32_t i = 0; i < f->t->count; i++) {
        uint64_t size = f->t->sizes[i], life = bp_item_life(f->t, f->index, i), area;
        if (!bp_mul_u64(size, life > 0 ? life : 1, &area))
            area = UINT64_MAX;
        f->weights[i] = how == AS_LIVE ? f->t->count - i : how == LARGEST ? size : how == LONGEST ? life : area;
    }
}

#define MAX_ROUNDS 200 /* without an improvement */

static bool has_share(const fitting *f)
{
    return f->work->spent <= f->share_end && !bp_work_is_over(f->work);
}

/* Places all items by weight, keeps the offsets if they are the best, and moves the highest items forward. */
static bp_status run_round(fitting *f, uint64_t *offsets, uint64_t *best, uint64_t *height)
{
    BP_TRY(place_by_weight(f, height));
    if (*height < *best) {
        *best = *height;
        memcpy(offsets, f->offsets, f->t->count * sizeof *offsets);
    }
    for (uint32_t i = 0; *height != UINT64_MAX && i < f->t->count; i++) {
        uint64_t end = f->offsets[i] + f->t->sizes[i], more = f->weights[i] / 8 + 1;
        if (end > *best - *best / 16 && f->weights[i] < UINT64_MAX - more)
            f->weights[i] += more;
    }
    return BP_OK;
}

/* Each order once, then improves them, the best first. */
static bp_status try_orders(fitting *f, uint64_t target, uint64_t *offsets, uint64_t *best)
{
    bp_keyed starts[START_COUNT];
    uint64_t height;
    *best = UINT64_MAX;
    for (start how = AS_LIVE; how < START_COUNT; how++) {
        starts[how] = (bp_keyed){UINT64_MAX, how};
        if (*best <= target || (how != AS_LIVE && !has_share(f)))
            return BP_OK;
        set_weights(f, how);
        BP_TRY(run_round(f, offsets, best, &starts[how].key));
    }
    qsort(starts, START_COUNT, sizeof *starts, bp_compare_keyed);
    for (int s = 0; s < START_COUNT; s++) {
        set_weights(f, (start)starts[s].number);
        for (uint32_t round = 0; round < MAX_ROUNDS; round++) {
            uint64_t before = *best;
            if (*best <= target || !has_share(f))
                return BP_OK;
            BP_TRY(run_round(f, offsets, best, &height));
            round = *best < before ? 0 : round;
        }
    }
    return BP_OK;
}

#define MAX_ENTRIES_OF_A_LIFE 6 /* on average */

/* The narrowest columns, a power of two wide, with a limited number of entries. */
static bp_status make_columns(fitting *f)
{
    const bp_timeline *t = f->t;
    for (f->width = 1; f->width < t->steps; f->width *= 2) {
        uint64_t entries = 0;
        for (uint32_t i = 0; i < t->life_count; i++)
            entries += (t->lives[i].end - 1) / f->width - t->lives[i].begin / f->width + 1;
        if (entries <= MAX_ENTRIES_OF_A_LIFE * (uint64_t)t->life_count)
            break;
    }
    f->column_count = t->steps > 0 ? (t->steps - 1) / f->width + 1 : 0;
    BP_TRY(bp_new_array((size_t)f->column_count + 1, sizeof *f->columns, (void **)&f->columns));
    BP_TRY(bp_new_array((size_t)f->column_count + 1, sizeof *f->used, (void **)&f->used));
    for (uint32_t i = 0; i < t->life_count; i++) {
        for (uint32_t c = t->lives[i].begin / f->width; c <= (t->lives[i].end - 1) / f->width; c++)
            f->columns[c + 1]++;
    }
    for (uint32_t c = 0; c < f->column_count; c++)
        f->columns[c + 1] += f->columns[c];
    return bp_new_array(f->columns[f->column_count], sizeof *f->entries, (void **)&f->entries);
}

bp_status bp_first_fit(const bp_timeline *timeline, const bp_item_index *index, uint64_t target, uint64_t share,
                       bp_work *work, uint64_t *offsets, uint64_t *height)
{
    fitting f = {.t = timeline, .index = index, .work = work};
    f.share_end = bp_work_part(work, share).limit;
    bp_status status = make_columns(&f);
    if (status == BP_OK)
        status = bp_new_array(timeline->count, sizeof *f.order, (void **)&f.order);
    if (status == BP_OK)
        status = bp_new_array(timeline->count, sizeof *f.offsets, (void **)&f.offsets);
    if (status == BP_OK)
        status = bp_new_array(timeline->count, sizeof *f.weights, (void **)&f.weights);
    if (status == BP_OK)
        status = try_orders(&f, target, offsets, height);
    free(f.columns);
    free(f.used);
    free(f.entries);
    free(f.taken);
    free(f.order);
    free(f.offsets);
    free(f.weights);
    return status;
}
