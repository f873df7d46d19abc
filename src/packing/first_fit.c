/* First fit: items one after the other, each as low as it fits. */
#include "packing/first_fit.h"

#include <stdlib.h>
#include <string.h>

#include "core/fail.h"

typedef struct range {
    uint64_t begin, end;
} range;

typedef struct fitting {
    const bp_problem *p;
    bp_work *work;
    uint32_t *order;
    uint64_t *offsets; /* of the order being tried; NOT_PLACED */
    range *taken;      /* by the item's neighbours, sorted by begin */
    uint64_t *weights; /* by item: what it is sorted by, largest first */
} fitting;

#define NOT_PLACED UINT64_MAX

static int first_fit_by_begin(const void *left, const void *right)
{
    const range *a = left, *b = right;
    return (a->begin > b->begin) - (a->begin < b->begin);
}

/* The lowest gap between the item's placed neighbours that it fits into. */
static uint64_t lowest_fit(fitting *f, uint32_t item)
{
    const bp_problem *p = f->p;
    size_t count = 0;
    for (uint32_t n = p->neighbours.first[item]; n < p->neighbours.first[item + 1]; n++) {
        uint32_t other = p->neighbours.entries[n];
        if (f->offsets[other] != NOT_PLACED)
            f->taken[count++] = (range){f->offsets[other], f->offsets[other] + p->sizes[other]};
    }
    f->work->spent += 8 + 4 * (uint64_t)(p->neighbours.first[item + 1] - p->neighbours.first[item]);
    if (count > 1)
        qsort(f->taken, count, sizeof *f->taken, first_fit_by_begin);
    uint64_t at = 0;
    for (size_t i = 0; i < count; i++) {
        if (f->taken[i].begin >= at && f->taken[i].begin - at >= p->sizes[item])
            return at;
        at = f->taken[i].end > at ? f->taken[i].end : at;
    }
    return at;
}

static uint64_t place_in_order(fitting *f)
{
    for (uint32_t i = 0; i < f->p->count; i++)
        f->offsets[i] = NOT_PLACED;
    for (uint32_t i = 0; i < f->p->count; i++)
        f->offsets[f->order[i]] = lowest_fit(f, f->order[i]);
    return bp_problem_height(f->p, f->offsets);
}

typedef struct weighted {
    uint64_t weight;
    uint32_t item;
} weighted;

static int by_weight(const void *left, const void *right)
{
    const weighted *a = left, *b = right;
    if (a->weight != b->weight)
        return a->weight > b->weight ? -1 : 1;
    return (a->item > b->item) - (a->item < b->item);
}

static void sort_by_weight(fitting *f, weighted *list)
{
    for (uint32_t i = 0; i < f->p->count; i++)
        list[i] = (weighted){f->weights[i], i};
    qsort(list, f->p->count, sizeof *list, by_weight);
    for (uint32_t i = 0; i < f->p->count; i++)
        f->order[i] = list[i].item;
}

typedef enum start { AS_LIVE, LARGEST, LARGEST_AREA, START_COUNT } start;

static void weigh(fitting *f, start how)
{
    for (uint32_t i = 0; i < f->p->count; i++) {
        uint64_t sections = f->p->memberships.first[i + 1] - f->p->memberships.first[i];
        uint64_t area;
        if (__builtin_mul_overflow(f->p->sizes[i], sections, &area))
            area = UINT64_MAX;
        f->weights[i] = how == AS_LIVE ? f->p->count - i : how == LARGEST ? f->p->sizes[i] : area;
    }
}

#define MOST_ROUNDS 200 /* without an improvement */

/* What ends above, or little below, the best height gets more weight and comes earlier. */
static void add_weight_on_top(fitting *f, uint64_t best)
{
    uint64_t top = best - best / 16;
    for (uint32_t i = 0; i < f->p->count; i++) {
        uint64_t end = f->offsets[i] + f->p->sizes[i];
        uint64_t more = f->weights[i] / 8 + 1;
        if (end > top && f->weights[i] < UINT64_MAX - more)
            f->weights[i] += more;
    }
}

static bp_status try_orders(fitting *f, weighted *list, uint64_t target, uint64_t *offsets, uint64_t *best)
{
    size_t bytes = f->p->count * sizeof *offsets;
    *best = UINT64_MAX;
    for (start how = AS_LIVE; how < START_COUNT; how++) {
        weigh(f, how);
        for (uint32_t round = 0; round < MOST_ROUNDS; round++) {
            if (*best != UINT64_MAX && (*best <= target || bp_work_is_over(f->work)))
                return BP_OK;
            sort_by_weight(f, list);
            uint64_t height = place_in_order(f);
            if (height < *best) {
                *best = height;
                memcpy(offsets, f->offsets, bytes);
                round = 0;
            }
            add_weight_on_top(f, *best);
        }
    }
    return BP_OK;
}

bp_status bp_first_fit(const bp_problem *problem, uint64_t target, bp_work *work, uint64_t *offsets, uint64_t *height)
{
    fitting f = {.p = problem, .work = work};
    void *order = NULL, *placed = NULL, *taken = NULL, *weights = NULL, *list = NULL;
    bp_status status = bp_new_array(problem->count, sizeof *f.order, &order);
    if (status == BP_OK)
        status = bp_new_array(problem->count, sizeof *f.offsets, &placed);
    if (status == BP_OK)
        status = bp_new_array(problem->count, sizeof *f.taken, &taken);
    if (status == BP_OK)
        status = bp_new_array(problem->count, sizeof *f.weights, &weights);
    if (status == BP_OK)
        status = bp_new_array(problem->count, sizeof(weighted), &list);
    f.order = order;
    f.offsets = placed;
    f.taken = taken;
    f.weights = weights;
    if (status == BP_OK)
        status = try_orders(&f, list, target, offsets, height);
    free(order);
    free(placed);
    free(taken);
    free(weights);
    free(list);
    return status;
}
