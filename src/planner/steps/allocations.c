/* SPDX-License-Identifier: Apache-2.0 */
/* The allocations of a trace: events that belong together, and those live before the oldest event. */
#include <bucketpool/core/arith.h>
#include <bucketpool/core/fail.h>

#include <stdlib.h>
#include <string.h>

#include "core/address_map.h"
#include "planner/steps/steps.h"

/* ---- allocations --------------------------------------------------------------------------------------------------- */

typedef struct finder {
    const bp_trace *trace;
    bp_allocations *found;
    size_t capacity;
    bp_address_map in_use; /* to the number of the allocation, as a pointer */
    size_t early;          /* allocations that were live before the oldest event */
} finder;

static bp_status finder_add(finder *f, const bp_allocation *allocation, uint32_t *index)
{
    if (f->found->count == f->capacity) {
        size_t capacity = f->capacity + f->capacity / 2 + 256;
        bp_allocation *moved = realloc(f->found->all, capacity * sizeof *moved);
        if (moved == NULL)
            return bp_fail_memory(capacity * sizeof *moved);
        f->found->all = moved;
        f->capacity = capacity;
    }
    *index = (uint32_t)f->found->count;
    f->found->all[f->found->count++] = *allocation;
    f->early += allocation->begin == BP_TRACE_NONE;
    return BP_OK;
}

/* The allocation in use at an address, or BP_TRACE_NONE. */
static uint32_t in_use_at(const finder *f, uint64_t address)
{
    void *value = bp_address_map_get(&f->in_use, address);
    return value != NULL ? (uint32_t)((uintptr_t)value - 1) : BP_TRACE_NONE;
}

static bp_status use_address(finder *f, uint64_t address, uint32_t index)
{
    return bp_address_map_set(&f->in_use, address,
                              (void *)((uintptr_t)index + 1)); /* NOLINT(performance-no-int-to-ptr) */
}

static bp_status finder_alloc(finder *f, uint32_t i)
{
    const bp_trace_event *event = &f->trace->events[i];
    uint32_t at = in_use_at(f, event->address);
    if (at != BP_TRACE_NONE) {
        f->found->all[at].end = i;
        if (f->found->all[at].requested == BP_TRACE_NONE)
            f->found->all[at].requested = i;
        f->found->replaced++;
    }
    const bp_allocation made = {.address = event->address,
                                .bytes = event->bytes,
                                .begin = i,
                                .end = BP_TRACE_NONE,
                                .requested = BP_TRACE_NONE,
                                .stack = event->stack,
                                .stream = event->stream};
    BP_TRY(finder_add(f, &made, &at));
    return use_address(f, event->address, at);
}

static bp_status finder_free(finder *f, uint32_t i)
{
    const bp_trace_event *event = &f->trace->events[i];
    void *value = bp_address_map_take(&f->in_use, event->address);
    uint32_t at = value != NULL ? (uint32_t)((uintptr_t)value - 1) : 0;
    if (value == NULL) {
        const bp_allocation early = {.address = event->address,
                                     .bytes = event->bytes,
                                     .begin = BP_TRACE_NONE,
                                     .end = i,
                                     .requested = BP_TRACE_NONE,
                                     .stack = BP_TRACE_NONE, /* the event has the stack of the free */
                                     .stream = event->stream};
        BP_TRY(finder_add(f, &early, &at));
    }
    f->found->all[at].end = i;
    if (f->found->all[at].requested == BP_TRACE_NONE)
        f->found->all[at].requested = i;
    return BP_OK;
}

static void finder_request_free(const finder *f, uint32_t i)
{
    uint32_t at = in_use_at(f, f->trace->events[i].address);
    if (at != BP_TRACE_NONE && f->found->all[at].requested == BP_TRACE_NONE)
        f->found->all[at].requested = i;
}

/* Blocks that are live at the end and have no event. */
static bp_status finder_add_silent(finder *f)
{
    for (size_t s = 0; s < f->trace->segment_count; s++) {
        const bp_trace_segment *segment = &f->trace->segments[s];
        for (size_t b = segment->first_block; b < segment->first_block + segment->block_count; b++) {
            const bp_trace_block *block = &f->trace->blocks[b];
            uint32_t at = 0;
            if (!block->active || in_use_at(f, block->address) != BP_TRACE_NONE)
                continue;
            const bp_allocation silent = {.address = block->address,
                                          .bytes = block->requested_bytes > 0 ? block->requested_bytes : block->bytes,
                                          .begin = BP_TRACE_NONE,
                                          .end = BP_TRACE_NONE,
                                          .requested = BP_TRACE_NONE,
                                          .stack = block->stack,
                                          .stream = segment->stream};
            BP_TRY(finder_add(f, &silent, &at));
            BP_TRY(use_address(f, block->address, at));
        }
    }
    return BP_OK;
}

static int by_address_and_end(const void *left, const void *right)
{
    const bp_allocation *a = left, *b = right;
    if (a->address != b->address)
        return a->address < b->address ? -1 : 1;
    return (a->end > b->end) - (a->end < b->end);
}

/* Allocations with a begin are in order already: only the early ones move to the front. */
static bp_status finder_sort(finder *f)
{
    bp_allocation *sorted = malloc((f->found->count + 1) * sizeof *sorted);
    if (sorted == NULL)
        return bp_fail_memory(f->found->count * sizeof *sorted);
    size_t early = 0, late = f->early;
    for (size_t i = 0; i < f->found->count; i++)
        sorted[f->found->all[i].begin == BP_TRACE_NONE ? early++ : late++] = f->found->all[i];
    qsort(sorted, early, sizeof *sorted, by_address_and_end);
    free(f->found->all);
    f->found->all = sorted;
    f->found->live_at_start = early;
    return BP_OK;
}

static bp_status finder_run(finder *f)
{
    for (size_t i = 0; i < f->trace->event_count; i++) {
        switch (f->trace->events[i].action) {
        case BP_TRACE_ALLOC: BP_TRY(finder_alloc(f, (uint32_t)i)); break;
        case BP_TRACE_FREE_REQUESTED: finder_request_free(f, (uint32_t)i); break;
        case BP_TRACE_FREE_COMPLETED: BP_TRY(finder_free(f, (uint32_t)i)); break;
        case BP_TRACE_UNKNOWN: f->found->unknown++; break;
        default: break;
        }
    }
    BP_TRY(finder_add_silent(f));
    uint64_t sum = 0;
    for (size_t i = 0; i < f->found->count; i++) {
        const bp_allocation *a = &f->found->all[i];
        if (a->bytes >= BP_LARGEST_REQUEST)
            return bp_fail(BP_ERR_OVERFLOW,
                           "trace: an allocation of %llu bytes at 0x%llx; PyTorch refuses 1 EiB and more",
                           (unsigned long long)a->bytes, (unsigned long long)a->address);
        if (!bp_add_u64(sum, bp_step_round(a->bytes), &sum))
            return bp_fail(BP_ERR_OVERFLOW, "trace: the bytes of its %zu allocations together exceed 64 bits",
                           f->found->count);
    }
    return finder_sort(f);
}

bp_status bp_allocations_init(const bp_trace *trace, bp_allocations *allocations)
{
    bp_allocations found = {0};
    finder f = {.trace = trace, .found = &found};
    bp_status status = finder_run(&f);
    bp_address_map_finish(&f.in_use);
    if (status == BP_OK)
        *allocations = found;
    else
        free(found.all);
    return status;
}

bp_status bp_allocations_ends(const bp_trace *trace, const bp_allocations *allocations, uint32_t **ends)
{
    uint32_t *made = malloc((trace->event_count + 1) * sizeof *made);
    if (made == NULL)
        return bp_fail_memory(trace->event_count * sizeof *made);
    memset(made, 0xff, (trace->event_count + 1) * sizeof *made);
    for (size_t i = 0; i < allocations->count; i++) {
        if (allocations->all[i].end != BP_TRACE_NONE)
            made[allocations->all[i].end] = (uint32_t)i;
    }
    *ends = made;
    return BP_OK;
}

void bp_allocations_finish(bp_allocations *allocations)
{
    free(allocations->all);
    *allocations = (bp_allocations){0};
}
