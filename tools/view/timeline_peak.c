#include <stdlib.h>
#include <string.h>

#include "view/timeline.h"

static _Thread_local const view_pool *sorted;

static int by_place(const void *left, const void *right)
{
    const view_span *a = &sorted->spans[*(const uint32_t *)left], *b = &sorted->spans[*(const uint32_t *)right];
    if (a->slab != b->slab)
        return a->slab < b->slab ? -1 : 1;
    return (a->offset > b->offset) - (a->offset < b->offset);
}

static int by_owner(const void *left, const void *right)
{
    const view_span *a = &sorted->spans[*(const uint32_t *)left], *b = &sorted->spans[*(const uint32_t *)right];
    const bp_snapshot_request *x = &sorted->requests[a->request], *y = &sorted->requests[b->request];
    int order = (int)sorted->role_of[a->request] - (int)sorted->role_of[b->request];
    if (order == 0)
        order = strcmp(x->unit, y->unit);
    if (order == 0)
        order = strcmp(x->bucket, y->bucket);
    return order != 0 ? order : (a->request > b->request) - (a->request < b->request);
}

/* Slabs that have memory after so many of their events; false: out of memory. */
static bool find_residency(const view_pool *pool, size_t slab_events, bool **resident)
{
    *resident = calloc(pool->info->slab_count + 1, sizeof **resident);
    if (*resident == NULL)
        return false;
    for (size_t i = 0; i < pool->info->slab_count; i++)
        (*resident)[i] = pool->slabs[i].resident_at_start != 0;
    for (size_t i = 0; i < slab_events; i++)
        (*resident)[pool->info->slab_events[i].slab] = pool->info->slab_events[i].gained != 0;
    return true;
}

static void add_free(view_pool *pool, uint64_t bytes)
{
    pool->peak_free_bytes += bytes;
    pool->peak_largest_free = bytes > pool->peak_largest_free ? bytes : pool->peak_largest_free;
}

/* The free ranges of a slab; its spans begin at place `at` of those at the peak, sorted by place. Returns where the next slab's begin. */
static size_t add_free_ranges(view_pool *pool, uint32_t slab, size_t at)
{
    uint64_t end = 0, bytes = pool->slabs[slab].bytes;
    for (; at < pool->at_peak_count && pool->spans[pool->at_peak[at]].slab == slab; at++) {
        const view_span *span = &pool->spans[pool->at_peak[at]];
        uint64_t size = pool->requests[span->request].bytes, room = bytes - span->offset;
        if (span->offset > end)
            add_free(pool, span->offset - end);
        uint64_t span_end = span->offset + (size < room ? size : room);
        end = span_end > end ? span_end : end;
    }
    if (bytes > end)
        add_free(pool, bytes - end);
    return at;
}

static void measure(view_pool *pool, const bool *resident)
{
    size_t at = 0;
    for (uint32_t slab = 0; slab < pool->info->slab_count; slab++) {
        while (at < pool->at_peak_count && pool->spans[pool->at_peak[at]].slab < slab)
            at++;
        if (!resident[slab])
            continue;
        pool->peak_slab_bytes += pool->slabs[slab].bytes;
        at = add_free_ranges(pool, slab, at);
    }
}

bool view_find_peak(view_pool *pool, size_t peak_event, size_t slab_events)
{
    bool *resident = NULL;
    pool->at_peak = calloc(pool->span_count + 1, sizeof *pool->at_peak);
    if (pool->at_peak == NULL || !find_residency(pool, slab_events, &resident))
        return false;
    for (size_t i = 0; i < pool->span_count && pool->peak_bytes > 0; i++) {
        const view_span *span = &pool->spans[i];
        if (span->begin_event > peak_event || span->end_event <= peak_event)
            continue;
        pool->at_peak[pool->at_peak_count++] = (uint32_t)i;
        pool->roles[pool->role_of[span->request]].at_peak_bytes += pool->requests[span->request].bytes;
    }
    sorted = pool;
    qsort(pool->at_peak, pool->at_peak_count, sizeof *pool->at_peak, by_place);
    measure(pool, resident);
    qsort(pool->at_peak, pool->at_peak_count, sizeof *pool->at_peak, by_owner);
    free(resident);
    return true;
}

double view_pool_free_share(const view_pool *pool)
{
    return pool->peak_slab_bytes > 0 ? (double)pool->peak_free_bytes / (double)pool->peak_slab_bytes : 0;
}
