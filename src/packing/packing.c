/* The calls of pack.h: an instance is built, split into parts that do not touch, and each part is solved; the highest decides. */
#include "packing/packing.h"

#include <stdlib.h>

#include "core/fail.h"
#include "core/structs.h"
#include "packing/solve.h"

/* ---- instances --------------------------------------------------------------------------------------------------- */

bp_status bp_packing_create(bp_packing **packing)
{
    if (packing == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_packing_create: no place for the packing");
    void *memory;
    BP_TRY(bp_new_array(1, sizeof **packing, &memory));
    *packing = memory;
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
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_packing_add_item: no packing");
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

/* bp_pack: an instance is split into parts that do not touch, and each is solved; the highest decides. */

#define DEFAULT_WORK (UINT64_C(1) << 30) /* a second or three */

static const bp_pack_config pack_config_defaults = {.size = sizeof pack_config_defaults};

bp_status bp_pack_config_init(bp_pack_config *config, size_t size)
{
    return bp_struct_init("bp_pack_config_init", config, size, &pack_config_defaults, sizeof pack_config_defaults);
}

bp_status bp_packing_bound(const bp_packing *packing, uint32_t *witness, size_t *count, uint64_t *bound)
{
    if (packing == NULL || count == NULL || bound == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_packing_bound: needs a packing and places for the answer");
    bp_problem problem;
    BP_TRY(bp_problem_init(packing, &problem));
    *count = 0;
    *bound = problem.bound;
    if (problem.sections.count > 0) {
        uint32_t first = problem.sections.first[problem.bound_section];
        *count = problem.sections.first[problem.bound_section + 1] - first;
        for (size_t i = 0; witness != NULL && i < *count; i++)
            witness[i] = problem.origin[problem.sections.entries[first + i]];
        if (witness != NULL)
            qsort(witness, *count, sizeof *witness, bp_compare_numbers);
    }
    bp_problem_finish(&problem);
    return BP_OK;
}

typedef struct packer {
    const bp_packing *packing;
    const bp_pack_config *config;
    uint64_t *offsets; /* by item of the packing: the answer */
    bp_problem whole, *parts;
    uint32_t part_count;
    uint32_t *order; /* parts, the highest bound first */
    bp_work work;
    uint64_t height, proven; /* of the parts so far */
    const char *method;
} packer;

static bp_status pack_check_config(const packer *p)
{
    if (p->config->capacity != 0) {
        for (uint32_t i = 0; i < p->whole.count; i++) {
            if (p->whole.sizes[i] > p->config->capacity)
                return bp_fail(BP_ERR_INVALID_ARGUMENT, "the capacity is %llu, and item %u alone takes %llu",
                               (unsigned long long)p->config->capacity, p->whole.origin[i],
                               (unsigned long long)p->whole.sizes[i]);
        }
    }
    if (p->config->known == NULL)
        return BP_OK;
    bp_status status = bp_packing_check(p->packing, p->config->known, UINT64_MAX);
    return status == BP_ERR_MISMATCH
               ? bp_fail(BP_ERR_INVALID_ARGUMENT, "the known placement is none: %s", bp_error_detail())
               : status;
}

typedef struct ranked_part {
    uint64_t bound;
    uint32_t part;
} ranked_part;

static int by_bound(const void *left, const void *right)
{
    const ranked_part *a = left, *b = right;
    if (a->bound != b->bound)
        return a->bound > b->bound ? -1 : 1;
    return (a->part > b->part) - (a->part < b->part);
}

static bp_status order_parts(packer *p)
{
    void *memory, *ranked;
    BP_TRY(bp_new_array(p->part_count, sizeof *p->order, &memory));
    p->order = memory;
    BP_TRY(bp_new_array(p->part_count, sizeof(ranked_part), &ranked));
    ranked_part *list = ranked;
    for (uint32_t i = 0; i < p->part_count; i++)
        list[i] = (ranked_part){p->parts[i].bound, i};
    if (p->part_count > 0)
        qsort(list, p->part_count, sizeof *list, by_bound);
    for (uint32_t i = 0; i < p->part_count; i++)
        p->order[i] = list[i].part;
    free(list);
    return BP_OK;
}

/* Item of the packing. */
static uint32_t origin_of(const packer *p, const bp_problem *part, uint32_t item)
{
    return p->whole.origin[part->origin[item]];
}

/* A part need not be lower than those before it, nor than what was asked for. */
static bp_status solve_part(packer *p, const bp_problem *part)
{
    uint64_t capacity = p->config->capacity;
    uint64_t target = capacity > p->height ? capacity : p->height, ceiling = capacity != 0 ? capacity : UINT64_MAX;
    void *memory;
    BP_TRY(bp_new_array(part->count, sizeof(uint64_t), &memory));
    bp_solution solution = {.offsets = memory, .height = UINT64_MAX, .method = "none"};
    if (p->config->known != NULL) {
        for (uint32_t i = 0; i < part->count; i++)
            solution.offsets[i] = p->config->known[origin_of(p, part, i)];
        solution.height = bp_problem_height(part, solution.offsets);
        solution.placed = true;
        solution.method = "known";
    }
    bp_status status = bp_solve(part, target, ceiling, &p->work, &solution);
    for (uint32_t i = 0; status == BP_OK && i < part->count; i++)
        p->offsets[origin_of(p, part, i)] = solution.offsets[i];
    if (status == BP_OK && (p->method == NULL || solution.height > p->height))
        p->method = solution.method;
    if (status == BP_OK) {
        p->height = solution.height > p->height ? solution.height : p->height;
        p->proven = solution.proven > p->proven ? solution.proven : p->proven;
    }
    free(memory);
    return status;
}

static bp_status solve_parts(packer *p)
{
    void *memory;
    BP_TRY(bp_new_array(p->packing->count, sizeof *p->offsets, &memory));
    p->offsets = memory;
    BP_TRY(bp_problem_split(&p->whole, &p->parts, &p->part_count));
    BP_TRY(order_parts(p));
    for (uint32_t i = 0; i < p->part_count; i++)
        BP_TRY(solve_part(p, &p->parts[p->order[i]]));
    return BP_OK;
}

static void pack_finish(packer *p)
{
    for (uint32_t i = 0; i < p->part_count; i++)
        bp_problem_finish(&p->parts[i]);
    free(p->parts);
    free(p->order);
    free(p->offsets);
    bp_problem_finish(&p->whole);
}

static bp_pack_result result_of(const packer *p)
{
    uint64_t capacity = p->config->capacity;
    bool fits = capacity == 0 || p->height <= capacity;
    return (bp_pack_result){.size = sizeof(bp_pack_result),
                            .outcome = fits                   ? BP_PACK_PLACED
                                       : p->proven > capacity ? BP_PACK_INFEASIBLE
                                                              : BP_PACK_NOT_FOUND,
                            .optimal = p->height == p->proven,
                            .bytes = p->height,
                            .bound = p->whole.bound,
                            .proven = p->proven,
                            .work = p->work.spent,
                            .method = p->method != NULL ? p->method : "nothing to place"};
}

bp_status bp_pack(const bp_packing *packing, const bp_pack_config *config, uint64_t *offsets, bp_pack_result *result)
{
    bp_pack_config own = pack_config_defaults;
    bp_pack_result made = {.size = sizeof made};
    if (packing == NULL || (offsets == NULL && packing->count > 0))
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_pack: needs a packing and room for offsets");
    BP_TRY(bp_struct_read("bp_pack", config, false, &own, sizeof own));
    BP_TRY(bp_struct_check("bp_pack", result, result != NULL ? result->size : 0)); /* before the search */
    packer p = {.packing = packing, .config = &own};
    p.work.limit = own.work != 0 ? own.work : DEFAULT_WORK;
    BP_TRY(bp_problem_init(packing, &p.whole));
    bp_status status = pack_check_config(&p);
    if (status == BP_OK)
        status = solve_parts(&p);
    if (status == BP_OK) {
        made = result_of(&p);
        for (size_t i = 0; made.outcome == BP_PACK_PLACED && i < packing->count; i++)
            offsets[i] = p.offsets[i];
        status = bp_struct_write("bp_pack", &made, sizeof made, result);
    }
    pack_finish(&p);
    return status;
}
