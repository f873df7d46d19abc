/* SPDX-License-Identifier: Apache-2.0 */
/* Private pools of a trace: numbers for their ids, and the pool of an address. */
#include "step/allocator/start_state.h"

#include <bucketpool/core/fail.h>

#include <stdlib.h>

#include "core/memory.h"

static int by_pool_id(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;
    if (x[0] != y[0])
        return x[0] < y[0] ? -1 : 1;
    return (x[1] > y[1]) - (x[1] < y[1]);
}

static bp_status number_segments(bp_trace_pools *pools, const bp_trace *trace, size_t *count)
{
    uint64_t(*ids)[2]; /* of the default pool and of all segments, then the distinct ones in order */
    BP_TRY(bp_new_array(trace->segment_count, sizeof *pools->of_segment, (void **)&pools->of_segment));
    BP_TRY(bp_new_array(trace->segment_count + 1, sizeof *ids, (void **)&ids));
    *count = 1;
    for (size_t i = 0; i < trace->segment_count; i++) {
        ids[i + 1][0] = trace->segments[i].pool[0];
        ids[i + 1][1] = trace->segments[i].pool[1];
    }
    qsort(ids, trace->segment_count + 1, sizeof *ids, by_pool_id);
    for (size_t i = 1; i <= trace->segment_count; i++) {
        if (by_pool_id(ids[i], ids[*count - 1]) != 0) {
            ids[*count][0] = ids[i][0];
            ids[*count][1] = ids[i][1];
            ++*count;
        }
    }
    for (size_t i = 0; i < trace->segment_count; i++) {
        uint64_t(*found)[2] = bsearch(trace->segments[i].pool, ids, *count, sizeof *ids, by_pool_id);
        pools->of_segment[i] = (uint32_t)(found - ids);
    }
    free(ids);
    return BP_OK;
}

/* The segment of the snapshot that holds the address, or segment_count. */
static size_t segment_at(const bp_trace *trace, uint64_t address)
{
    size_t low = 0, high = trace->segment_count;
    while (low < high) { /* the first segment behind the address */
        size_t middle = low + (high - low) / 2;
        if (trace->segments[middle].address > address)
            high = middle;
        else
            low = middle + 1;
    }
    bool is_inside = low > 0 && address - trace->segments[low - 1].address < trace->segments[low - 1].bytes;
    return is_inside ? low - 1 : trace->segment_count;
}

bp_status bp_trace_pools_init(bp_trace_pools *pools, const bp_trace *trace)
{
    size_t count;
    uint64_t *ends; /* of the part of each segment that exists before the event: segments grow upwards */
    *pools = (bp_trace_pools){0};
    BP_TRY(number_segments(pools, trace, &count));
    if (count == 1)
        return BP_OK;
    BP_TRY(bp_new_array(trace->event_count, sizeof *pools->of_event, (void **)&pools->of_event));
    BP_TRY(bp_new_array(trace->segment_count, sizeof *ends, (void **)&ends));
    for (size_t i = 0; i < trace->segment_count; i++)
        ends[i] = trace->segments[i].address + trace->segments[i].bytes;
    for (size_t i = trace->event_count; i-- > 0;) {
        const bp_trace_event *e = &trace->events[i];
        size_t segment = segment_at(trace, e->address);
        if (segment == trace->segment_count || e->address >= ends[segment])
            continue;
        pools->of_event[i] = pools->of_segment[segment];
        if (e->action == BP_TRACE_SEGMENT_ALLOC || e->action == BP_TRACE_SEGMENT_MAP)
            ends[segment] = e->address;
    }
    free(ends);
    return BP_OK;
}

void bp_trace_pools_finish(bp_trace_pools *pools)
{
    free(pools->of_segment);
    free(pools->of_event);
    *pools = (bp_trace_pools){0};
}

bp_status bp_trace_pools_apply(const bp_trace_pools *pools, const bp_trace *trace, const bp_caching_settings *settings,
                               bp_caching_allocator *allocator)
{
    if (!settings->expandable_segments || !trace->settings.expandable_segments)
        return BP_OK;
    for (size_t i = 0; i < trace->segment_count; i++) {
        if (pools->of_segment[i] != 0 && !trace->segments[i].is_expandable)
            BP_TRY(bp_caching_set_pool(allocator, pools->of_segment[i], true, false));
    }
    return BP_OK;
}
