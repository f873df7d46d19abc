/* SPDX-License-Identifier: Apache-2.0 */
/* Free ranges beside the live blocks of the state before a failed request. */
#include "step/allocator/failed_request.h"

#include <bucketpool/core/fail.h>

#include <stdlib.h>

#include "core/memory.h"
#include "step/allocator/start_state.h"

/* The segment's entry in `free`; a new one if there is none. */
static bp_status memory_of(bp_failed_request *r, size_t *capacity, const bp_start_segment *segment,
                           bp_free_memory **memory)
{
    for (size_t i = 0; i < r->free_count; i++) {
        bp_free_memory *m = &r->free[i];
        if (m->stream == segment->stream && m->pool == segment->pool && m->is_small == segment->is_small) {
            *memory = m;
            return BP_OK;
        }
    }
    BP_TRY(bp_grow_array((void **)&r->free, capacity, r->free_count, sizeof *r->free));
    *memory = &r->free[r->free_count++];
    **memory = (bp_free_memory){.stream = segment->stream, .pool = segment->pool, .is_small = segment->is_small};
    return BP_OK;
}

static int by_largest(const void *left, const void *right)
{
    const bp_free_memory *a = left, *b = right;
    if (a->largest_bytes != b->largest_bytes)
        return a->largest_bytes > b->largest_bytes ? -1 : 1;
    if (a->stream != b->stream)
        return a->stream < b->stream ? -1 : 1;
    return (a->pool > b->pool) - (a->pool < b->pool);
}

static void add_range(bp_free_memory *memory, uint64_t begin, uint64_t end)
{
    const uint64_t bytes = end - begin, page = (uint64_t)2 << 20, past = begin % page;
    const uint64_t before = past == 0 ? 0 : page - past; /* the first page */
    memory->bytes += bytes;
    memory->ranges += bytes > 0;
    memory->largest_bytes = bytes > memory->largest_bytes ? bytes : memory->largest_bytes;
    memory->page_bytes += before < bytes ? (bytes - before) / page * page : 0;
}

/* True if a range of an expandable segment continues the one before it. */
static bool extends_range(const bp_start_segment *segment)
{
    return segment->is_expandable && segment[-1].is_expandable && segment[-1].base == segment->base &&
           segment[-1].address + segment[-1].bytes == segment->address;
}

/* Segments and blocks are in the order of their addresses. */
static bp_status add_free(const bp_start_state *state, bp_failed_request *r)
{
    size_t next = 0, capacity = 0;
    for (size_t i = 0, last; i < state->segment_count; i = last) {
        const bp_start_segment *first = &state->segments[i];
        uint64_t at = first->address;
        for (last = i + 1; last < state->segment_count && extends_range(&state->segments[last]);)
            last++;
        const uint64_t end = state->segments[last - 1].address + state->segments[last - 1].bytes;
        bp_free_memory *memory = NULL;
        BP_TRY(memory_of(r, &capacity, first, &memory));
        r->reserved_bytes += end - first->address;
        for (; next < state->block_count && state->blocks[next].address < end; next++) {
            const bp_start_block *block = &state->blocks[next];
            if (block->address < at || block->bytes > end - block->address)
                continue; /* a block without a segment, or over another one */
            add_range(memory, at, block->address);
            at = block->address + block->bytes;
            r->pending_bytes += block->is_pending ? block->bytes : 0;
        }
        add_range(memory, at, end);
    }
    size_t kept = 0;
    for (size_t i = 0; i < r->free_count; i++) {
        if (r->free[i].bytes > 0)
            r->free[kept++] = r->free[i];
    }
    r->free_count = kept;
    if (kept > 1)
        qsort(r->free, kept, sizeof *r->free, by_largest);
    return BP_OK;
}

bp_status bp_failed_request_init(const bp_trace *trace, uint32_t event, bp_failed_request *request)
{
    if (event >= trace->event_count || trace->events[event].action != BP_TRACE_OOM)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "trace: event %u is not a request that found no memory", event);
    bp_failed_request found = {.event = event};
    bp_trace_pools pools = {0};
    bp_start_state state = {0};
    bp_caching_settings settings;
    bp_caching_settings_read(trace, &settings);
    found.rounded_bytes = bp_caching_round(&settings, trace->events[event].bytes);
    found.needed_bytes = bp_caching_segment_bytes(&settings, trace->events[event].bytes);
    bp_status status = bp_trace_pools_init(&pools, trace);
    if (status == BP_OK)
        status = bp_start_state_find(trace, &pools, &settings, event, &state);
    if (status == BP_OK)
        status = add_free(&state, &found);
    bp_start_state_finish(&state);
    bp_trace_pools_finish(&pools);
    if (status == BP_OK)
        *request = found;
    else
        bp_failed_request_finish(&found);
    return status;
}

bp_failure_reason bp_failed_request_reason(const bp_trace *trace, const bp_failed_request *request, uint64_t *missing)
{
    const uint64_t max = (uint64_t)1 << 62, said = trace->events[request->event].address;
    const uint64_t device = said < max ? said : max; /* free on the device; sums of it do not wrap */
    uint64_t own_pages = 0, all = device;
    bool has_range = false, has_other = false;
    for (size_t i = 0; i < request->free_count; i++) {
        const bp_free_memory *m = &request->free[i];
        const bool is_own = bp_free_memory_is_own(m, trace, request);
        const bool fits = m->largest_bytes >= request->rounded_bytes;
        all += m->bytes;
        own_pages += is_own ? m->page_bytes : 0;
        has_range = has_range || (is_own && fits);
        has_other = has_other || (!is_own && fits);
    }
    *missing = 0;
    if (device >= request->needed_bytes)
        return BP_FAILURE_LIMIT;
    if (has_range)
        return BP_FAILURE_RANGE;
    if (!trace->settings.expandable_segments && own_pages + device >= request->needed_bytes)
        return BP_FAILURE_PIECES;
    if (has_other)
        return BP_FAILURE_OTHERS;
    if (all >= request->rounded_bytes)
        return BP_FAILURE_SPLIT;
    if (all + request->pending_bytes >= request->rounded_bytes)
        return BP_FAILURE_PENDING;
    *missing = request->rounded_bytes - all - request->pending_bytes;
    return BP_FAILURE_FULL;
}

void bp_failed_request_finish(bp_failed_request *request)
{
    free(request->free);
    *request = (bp_failed_request){0};
}
