/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of pack.h. An instance is split into the connected components of its conflict graph, which are solved one by one; the
 * total is the height of the highest. */
#include <bucketpool/core/fail.h>
#include <bucketpool/core/structs.h>

#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "planner/packing/solve.h"

/* ---- instances --------------------------------------------------------------------------------------------------- */

bp_status bp_packing_create(bp_packing **packing)
{
    if (packing == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_packing_create: needs an output");
    BP_TRY(bp_new_array(1, sizeof **packing, (void **)packing));
    return BP_OK;
}

void bp_packing_destroy(bp_packing **packing)
{
    if (packing == NULL || *packing == NULL)
        return;
    free((*packing)->sizes);
    free((*packing)->lives);
    free((*packing)->pairs);
    free(*packing);
    *packing = NULL;
}

bp_status bp_packing_add_item(bp_packing *packing, uint64_t size, size_t *item)
{
    if (packing == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_packing_add_item: needs a packing");
    if (packing->count >= INT32_MAX)
        return bp_fail(BP_ERR_OVERFLOW, "a packing has at most %d items", INT32_MAX);
    BP_TRY(bp_grow_array((void **)&packing->sizes, &packing->capacity, packing->count, sizeof *packing->sizes));
    packing->sizes[packing->count] = size;
    if (item != NULL)
        *item = packing->count;
    packing->count++;
    packing->info.sizes = packing->sizes;
    packing->info.item_count = packing->count;
    return BP_OK;
}

bp_status bp_packing_add_interval(bp_packing *packing, size_t item, uint64_t begin, uint64_t end)
{
    if (packing == NULL || item >= packing->count)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_packing_add_interval: item %zu of %zu", item,
                       packing != NULL ? packing->count : 0);
    if (end <= begin)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "item %zu: interval [%llu, %llu) ends before it starts", item,
                       (unsigned long long)begin, (unsigned long long)end);
    BP_TRY(
        bp_grow_array((void **)&packing->lives, &packing->life_capacity, packing->life_count, sizeof *packing->lives));
    packing->lives[packing->life_count++] = (bp_packing_interval){begin, end, (uint32_t)item};
    packing->info.intervals = packing->lives;
    packing->info.interval_count = packing->life_count;
    return BP_OK;
}

bp_status bp_packing_add_conflict(bp_packing *packing, size_t item, size_t other)
{
    if (packing == NULL || item >= packing->count || other >= packing->count || item == other)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_packing_add_conflict: items %zu and %zu of %zu", item, other,
                       packing != NULL ? packing->count : 0);
    BP_TRY(
        bp_grow_array((void **)&packing->pairs, &packing->pair_capacity, packing->pair_count, sizeof *packing->pairs));
    packing->pairs[packing->pair_count++] = (bp_pair){(uint32_t)item, (uint32_t)other};
    return BP_OK;
}

const bp_packing_info *bp_packing_get_info(const bp_packing *packing)
{
    return packing != NULL ? &packing->info : NULL;
}

/* ---- packing ----------------------------------------------------------------------------------------------------- */

#define DEFAULT_WORK (UINT64_C(1) << 31) /* two to five seconds */

static const bp_pack_config pack_config_defaults = {.size = sizeof pack_config_defaults};

bp_status bp_pack_config_init(bp_pack_config *config, size_t size)
{
    return bp_struct_init("bp_pack_config_init", config, size, &pack_config_defaults, sizeof pack_config_defaults);
}

/* Writes the items that are live at the peak, or the larger item without a live range. */
static void list_heaviest(const bp_timeline *t, uint32_t *witness, size_t *count)
{
    bool is_peak = t->bound_item == BP_NO_ITEM;
    *count = 0;
    if (!is_peak)
        witness[(*count)++] = t->origin[t->bound_item];
    for (uint32_t i = 0; is_peak && i < t->life_count && t->lives[i].begin <= t->bound_step; i++) {
        if (t->lives[i].end > t->bound_step)
            witness[(*count)++] = t->origin[t->lives[i].item];
    }
}

/* Writes the heaviest clique of a part if it is heavier than *bound. */
static bp_status bound_part(const bp_timeline *t, uint32_t *witness, size_t *count, uint64_t *bound)
{
    bool has_graph =
        t->pair_count > 0 && t->conflicts <= BP_PROBLEM_CONFLICTS; /* declared conflicts may extend a live set */
    bp_problem problem = {0};
    if (has_graph)
        BP_TRY(bp_problem_init(t, &problem));
    if (has_graph && problem.bound > *bound) {
        uint32_t first = problem.sections.first[problem.bound_section];
        *bound = problem.bound;
        *count = problem.sections.first[problem.bound_section + 1] - first;
        for (size_t i = 0; i < *count; i++)
            witness[i] = t->origin[problem.sections.entries[first + i]];
    } else if (!has_graph && t->bound > *bound) {
        *bound = t->bound;
        list_heaviest(t, witness, count);
    }
    bp_problem_finish(&problem);
    return BP_OK;
}

bp_status bp_packing_bound(const bp_packing *packing, uint32_t *witness, size_t *count, uint64_t *bound)
{
    if (packing == NULL || count == NULL || bound == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_packing_bound: needs a packing and outputs");
    bp_timelines timelines;
    uint32_t *items = NULL;
    size_t found = 0;
    uint64_t max = 0;
    BP_TRY(bp_timelines_init(packing, &timelines));
    bp_status status = bp_new_array(packing->count, sizeof *items, (void **)&items);
    for (uint32_t i = 0; status == BP_OK && i < timelines.count; i++)
        status = bound_part(&timelines.parts[i], items, &found, &max);
    if (status == BP_OK) {
        qsort(items, found, sizeof *items, bp_compare_numbers);
        if (witness != NULL)
            memcpy(witness, items, found * sizeof *witness);
        *count = found;
        *bound = max;
    }
    free(items);
    bp_timelines_finish(&timelines);
    return status;
}

typedef struct packer {
    const bp_packing *packing;
    const bp_pack_config *config;
    uint64_t *offsets; /* by item of the packing: the result */
    bp_timelines timelines;
    bp_work work;
    uint64_t bound, height, proven; /* of the parts so far */
    const char *method;
} packer;

/* Highest bound first; of equal bounds the part with the earliest item. */
static int by_bound(const void *left, const void *right)
{
    const bp_timeline *a = left, *b = right;
    if (a->bound != b->bound)
        return a->bound > b->bound ? -1 : 1;
    return (a->origin[0] > b->origin[0]) - (a->origin[0] < b->origin[0]);
}

/* Counts the result of a part. */
static void add_part(packer *p, const bp_solution *part)
{
    if (p->method == NULL || part->height > p->height)
        p->method = part->method;
    p->height = part->height > p->height ? part->height : p->height;
    p->bound = part->bound > p->bound ? part->bound : p->bound;
    p->proven = part->proven > p->proven ? part->proven : p->proven;
    __atomic_store_n(&p->work.progress->bytes, p->height, __ATOMIC_RELAXED);
    __atomic_store_n(&p->work.progress->proven, p->proven, __ATOMIC_RELAXED);
}

/* The target is the height of the parts so far or the requested capacity: a lower part would not reduce the total. */
static bp_status solve_part(packer *p, const bp_timeline *part)
{
    uint64_t capacity = p->config->capacity;
    uint64_t target = capacity > p->height ? capacity : p->height, ceiling = capacity != 0 ? capacity : UINT64_MAX;
    if (part->count == 1) { /* offset 0, without a search */
        add_part(p,
                 &(bp_solution){
                     .height = part->bound, .bound = part->bound, .proven = part->bound, .method = "online best fit"});
        return BP_OK;
    }
    bp_solution solution = {.height = UINT64_MAX, .others = p->height, .method = "none"};
    BP_TRY(bp_new_array(part->count, sizeof *solution.offsets, (void **)&solution.offsets));
    if (p->config->known != NULL) {
        for (uint32_t i = 0; i < part->count; i++)
            solution.offsets[i] = p->config->known[part->origin[i]];
        solution.height = bp_timeline_height(part, solution.offsets);
        solution.placed = true;
        solution.method = "known";
    }
    bp_status status = bp_solve(part, target, ceiling, &p->work, &solution);
    if (status == BP_OK) {
        for (uint32_t i = 0; i < part->count; i++)
            p->offsets[part->origin[i]] = solution.offsets[i];
        add_part(p, &solution);
    }
    free(solution.offsets);
    return status;
}

static bp_status pack_parts(packer *p)
{
    uint64_t capacity = p->config->capacity;
    const bp_timeline *all = &p->timelines.all;
    for (uint32_t i = 0; capacity != 0 && i < all->count; i++) {
        if (all->sizes[i] > capacity)
            return bp_fail(BP_ERR_INVALID_ARGUMENT, "capacity %llu is less than the size of item %u, %llu",
                           (unsigned long long)capacity, all->origin[i], (unsigned long long)all->sizes[i]);
    }
    if (p->config->known != NULL) {
        bp_status status = bp_packing_check(p->packing, p->config->known, UINT64_MAX);
        if (status == BP_ERR_MISMATCH)
            return bp_fail(BP_ERR_INVALID_ARGUMENT, "the known offsets are not a valid placement: %s",
                           bp_error_detail());
        BP_TRY(status);
    }
    BP_TRY(bp_new_array(p->packing->count, sizeof *p->offsets, (void **)&p->offsets));
    if (p->timelines.count > 0)
        qsort(p->timelines.parts, p->timelines.count, sizeof *p->timelines.parts, by_bound);
    for (uint32_t i = 0; i < p->timelines.count; i++)
        BP_TRY(solve_part(p, &p->timelines.parts[i]));
    return BP_OK;
}

bp_status bp_pack(const bp_packing *packing, const bp_pack_config *config, uint64_t *offsets, bp_pack_result *result)
{
    bp_pack_config own = pack_config_defaults;
    if (packing == NULL || (offsets == NULL && packing->count > 0))
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_pack: needs a packing and room for offsets");
    BP_TRY(bp_struct_read("bp_pack", config, true, &own, sizeof own));
    BP_TRY(bp_struct_check("bp_pack", result, result != NULL ? result->size : 0)); /* before the search */
    packer p = {.packing = packing, .config = &own};
    bp_pack_progress unseen = {0};
    p.work = (bp_work){0, own.work != 0 ? own.work : DEFAULT_WORK, own.progress != NULL ? own.progress : &unseen};
    BP_TRY(bp_timelines_init(packing, &p.timelines));
    bp_status status = pack_parts(&p);
    if (status == BP_OK) {
        bool fits = own.capacity == 0 || p.height <= own.capacity;
        bp_pack_outcome failure = p.proven > own.capacity ? BP_PACK_INFEASIBLE : BP_PACK_NOT_FOUND;
        bp_pack_result made = {.size = sizeof made,
                               .outcome = fits ? BP_PACK_PLACED : failure,
                               .optimal = p.height == p.proven,
                               .bytes = p.height,
                               .bound = p.bound,
                               .proven = p.proven,
                               .work = p.work.spent,
                               .method = p.method != NULL ? p.method : "nothing to place"};
        for (size_t i = 0; fits && i < packing->count; i++)
            offsets[i] = p.offsets[i];
        status = bp_struct_write("bp_pack", &made, sizeof made, result);
    }
    free(p.offsets);
    bp_timelines_finish(&p.timelines);
    return status;
}
