#include "packing/instance.h"

#include <stdlib.h>

#include "core/fail.h"

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
