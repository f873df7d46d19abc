#include "view/compare.h"

#include <stdlib.h>
#include <string.h>

static uint64_t peak_of(const view_pool *pool)
{
    return pool->peak_bytes;
}

static uint64_t slabs_of(const view_pool *pool)
{
    return pool->slab_bytes;
}

static uint64_t free_of(const view_pool *pool)
{
    return pool->peak_free_bytes;
}

static uint64_t length_of(const view_pool *pool)
{
    return pool->length_ns;
}

static uint64_t events_of(const view_pool *pool)
{
    return pool->info->event_count + pool->info->lost_events;
}

const view_metric view_metrics[VIEW_METRICS] = {{"live peak", peak_of, true},
                                                {"slabs", slabs_of, true},
                                                {"free at the peak", free_of, true},
                                                {"time", length_of, false},
                                                {"events", events_of, false}};

const view_pool *view_find_pool(const view_file *file, const char *name)
{
    for (size_t i = 0; i < file->pool_count; i++) {
        if (strcmp(file->pools[i].info->name, name) == 0)
            return &file->pools[i];
    }
    return NULL;
}

bool view_is_first_of_name(const view_file *files, size_t file, size_t pool)
{
    const char *name = files[file].pools[pool].info->name;
    for (size_t i = 0; i < file; i++) {
        if (view_find_pool(&files[i], name) != NULL)
            return false;
    }
    return view_find_pool(&files[file], name) == &files[file].pools[pool];
}

static int by_value(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

static uint64_t distance(uint64_t a, uint64_t b)
{
    return a > b ? a - b : b - a;
}

bool view_compare(const view_file *files, size_t count, const char *pool, const view_metric *metric,
                  view_spread *spread)
{
    *spread = (view_spread){.odd_file = SIZE_MAX};
    uint64_t *values = calloc(count + 1, sizeof *values), farthest = 0;
    if (values == NULL)
        return false;
    for (size_t i = 0; i < count; i++) {
        const view_pool *found = view_find_pool(&files[i], pool);
        if (found == NULL)
            continue;
        uint64_t value = metric->value(found);
        if (spread->files == 0 || value < spread->least) {
            spread->least = value;
            spread->least_file = i;
        }
        if (spread->files == 0 || value > spread->most) {
            spread->most = value;
            spread->most_file = i;
        }
        values[spread->files++] = value;
    }
    qsort(values, spread->files, sizeof *values, by_value);
    spread->median = spread->files > 0 ? values[(spread->files - 1) / 2] : 0;
    free(values);
    /* Of two that differ none is odd. */
    for (size_t i = 0; i < count && spread->files > 2; i++) {
        const view_pool *found = view_find_pool(&files[i], pool);
        uint64_t away = found != NULL ? distance(metric->value(found), spread->median) : 0;
        if (away > farthest) {
            farthest = away;
            spread->odd_file = i;
        }
    }
    return true;
}
