/* SPDX-License-Identifier: Apache-2.0 */
/* The peak of a pool: the live spans, the mapped ranges, and the free ranges. */
#include <stdlib.h>
#include <string.h>

#include "view/ranges.h"
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

/* The ranges of each slab that are mapped after this number of slab events, by address; segments that touch stay apart. */
static bp_status find_mapped(const view_pool *pool, size_t slab_events, view_ranges *mapped)
{
    uint64_t work = 0;
    bp_status status = BP_OK;
    for (size_t i = 0; status == BP_OK && i < pool->info->slab_count; i++) {
        const view_range whole = {0, pool->slabs[i].bytes, 0};
        if (pool->slabs[i].resident_at_start)
            status = view_ranges_add(&mapped[i], whole, &work, NULL, NULL);
    }
    for (size_t i = 0; status == BP_OK && i < slab_events; i++) {
        const bp_snapshot_slab_event *event = &pool->info->slab_events[i];
        const view_range range = {event->offset, event->offset + event->bytes, 0};
        status = event->gained ? view_ranges_add(&mapped[event->slab], range, &work, NULL, NULL)
                               : view_ranges_take(&mapped[event->slab], range, &work, NULL, NULL);
    }
    return status;
}

static void add_free(view_pool *pool, uint64_t bytes)
{
    pool->peak_free_bytes += bytes;
    pool->peak_largest_free = bytes > pool->peak_largest_free ? bytes : pool->peak_largest_free;
}

/* Adds the free parts of a mapped range of a slab. Its spans begin at `at` in the spans at the peak, sorted by address. Returns the first span
 * that does not end in the range. */
static size_t add_free_ranges(view_pool *pool, uint32_t slab, const view_range *range, size_t at)
{
    uint64_t end = range->begin;
    for (; at < pool->at_peak_count && pool->spans[pool->at_peak[at]].slab == slab; at++) {
        const view_span *span = &pool->spans[pool->at_peak[at]];
        uint64_t size = pool->requests[span->request].bytes, room = UINT64_MAX - span->offset;
        uint64_t span_end = span->offset + (size < room ? size : room);
        if (span->offset >= range->end)
            break;
        if (span->offset > end)
            add_free(pool, span->offset - end);
        end = span_end > end ? span_end : end;
        if (span_end > range->end)
            break; /* continues in the next range */
    }
    if (range->end > end)
        add_free(pool, range->end - end);
    return at;
}

static void find_free(view_pool *pool, const view_ranges *mapped)
{
    size_t at = 0;
    for (uint32_t slab = 0; slab < pool->info->slab_count; slab++) {
        while (at < pool->at_peak_count && pool->spans[pool->at_peak[at]].slab < slab)
            at++;
        for (size_t i = 0; i < mapped[slab].count; i++) {
            view_range range = mapped[slab].all[i];
            while (pool->slabs[slab].is_expandable && i + 1 < mapped[slab].count &&
                   mapped[slab].all[i + 1].begin == range.end)
                range.end = mapped[slab].all[++i].end;
            pool->peak_slab_bytes += range.end - range.begin;
            at = add_free_ranges(pool, slab, &range, at);
        }
    }
}

bp_status view_peak_init(view_pool *pool, size_t peak_event, size_t slab_events)
{
    view_ranges *mapped = calloc(pool->info->slab_count + 1, sizeof *mapped);
    pool->at_peak = calloc(pool->span_count + 1, sizeof *pool->at_peak);
    if (pool->at_peak == NULL || mapped == NULL) {
        free(mapped);
        bp_error_record(BP_ERR_NO_HOST_MEMORY, "out of memory while the peak is looked at");
        return BP_ERR_NO_HOST_MEMORY;
    }
    bp_status status = find_mapped(pool, slab_events, mapped);
    for (size_t i = 0; status == BP_OK && i < pool->span_count && pool->peak_bytes > 0; i++) {
        const view_span *span = &pool->spans[i];
        if (span->begin_event > peak_event || span->end_event <= peak_event)
            continue;
        pool->at_peak[pool->at_peak_count++] = (uint32_t)i;
        pool->roles[pool->role_of[span->request]].at_peak_bytes += pool->requests[span->request].bytes;
    }
    if (status == BP_OK) {
        sorted = pool;
        qsort(pool->at_peak, pool->at_peak_count, sizeof *pool->at_peak, by_place);
        find_free(pool, mapped);
        qsort(pool->at_peak, pool->at_peak_count, sizeof *pool->at_peak, by_owner);
    }
    for (size_t i = 0; i < pool->info->slab_count; i++)
        view_ranges_finish(&mapped[i]);
    free(mapped);
    return status;
}

double view_pool_free_share(const view_pool *pool)
{
    return pool->peak_slab_bytes > 0 ? (double)pool->peak_free_bytes / (double)pool->peak_slab_bytes : 0;
}
