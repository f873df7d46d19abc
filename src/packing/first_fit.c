/* First fit in an order of weights, with squeaky-wheel improvement. */
#include <stdlib.h>
#include <string.h>

#include "core/arith.h"
#include "core/fail.h"
#include "core/memory.h"
#include "packing/solve.h"

typedef struct range {
    uint64_t begin, end;
} range;

typedef struct fitting {
    const bp_problem *p;
    bp_work *work;
    bp_keyed *order;   /* items, heaviest first: the key is the complement of the weight */
    uint64_t *offsets; /* in the current order; NOT_PLACED */
    range *taken;      /* by the item's neighbours, sorted by begin */
    uint64_t *weights; /* by item */
} fitting;

#define NOT_PLACED UINT64_MAX

static int first_fit_by_begin(const void *left, const void *right)
{
    const range *a = left, *b = right;
    return (a->begin > b->begin) - (a->begin < b->begin);
}

/* The lowest offset where the item fits between its placed neighbours. */
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

/* Returns the height. */
static uint64_t place_by_weight(fitting *f)
{
    for (uint32_t i = 0; i < f->p->count; i++) {
        f->order[i] = (bp_keyed){~f->weights[i], i};
        f->offsets[i] = NOT_PLACED;
    }
    qsort(f->order, f->p->count, sizeof *f->order, bp_compare_keyed);
    for (uint32_t i = 0; i < f->p->count; i++)
        f->offsets[f->order[i].number] = lowest_fit(f, f->order[i].number);
    return bp_problem_height(f->p, f->offsets);
}

typedef enum start { AS_LIVE, LARGEST, LARGEST_AREA, START_COUNT } start;

#define MOST_ROUNDS 200 /* without an improvement */

static void try_orders(fitting *f, uint64_t target, uint64_t *offsets, uint64_t *best)
{
    uint32_t count = f->p->count;
    *best = UINT64_MAX;
    for (start how = AS_LIVE; how < START_COUNT; how++) {
        for (uint32_t i = 0; i < count; i++) {
            uint64_t sections = f->p->memberships.first[i + 1] - f->p->memberships.first[i], area;
            if (!bp_mul_u64(f->p->sizes[i], sections, &area))
                area = UINT64_MAX;
            f->weights[i] = how == AS_LIVE ? count - i : how == LARGEST ? f->p->sizes[i] : area;
        }
        for (uint32_t round = 0; round < MOST_ROUNDS; round++) {
            if (*best != UINT64_MAX && (*best <= target || bp_work_is_over(f->work)))
                return;
            uint64_t height = place_by_weight(f);
            if (height < *best) {
                *best = height;
                memcpy(offsets, f->offsets, count * sizeof *offsets);
                round = 0;
            }
            /* items that end above the best height, or close below it, get more weight and move forward */
            for (uint32_t i = 0; i < count; i++) {
                uint64_t end = f->offsets[i] + f->p->sizes[i], more = f->weights[i] / 8 + 1;
                if (end > *best - *best / 16 && f->weights[i] < UINT64_MAX - more)
                    f->weights[i] += more;
            }
        }
    }
}

bp_status bp_first_fit(const bp_problem *problem, uint64_t target, bp_work *work, uint64_t *offsets, uint64_t *height)
{
    fitting f = {.p = problem, .work = work};
    bp_status status = bp_new_array(problem->count, sizeof *f.order, (void **)&f.order);
    if (status == BP_OK)
        status = bp_new_array(problem->count, sizeof *f.offsets, (void **)&f.offsets);
    if (status == BP_OK)
        status = bp_new_array(problem->count, sizeof *f.taken, (void **)&f.taken);
    if (status == BP_OK)
        status = bp_new_array(problem->count, sizeof *f.weights, (void **)&f.weights);
    if (status == BP_OK)
        try_orders(&f, target, offsets, height);
    free(f.order);
    free(f.offsets);
    free(f.taken);
    free(f.weights);
    return status;
}
