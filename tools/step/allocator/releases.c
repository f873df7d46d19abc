/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the causes of releases in a trace: neighbouring events, call stacks, reserved bytes. */
#include "step/allocator/releases.h"

#include <bucketpool/core/fail.h>

#include <stdlib.h>
#include <string.h>

#include "core/address_map.h"
#include "core/memory.h"
#include "step/allocator/start_state.h"

typedef struct finder {
    const bp_trace *trace;
    const bp_caching_settings *settings;
    bp_releases *found;
    bp_address_map stacks; /* of live allocations and segments by address: the stack plus 2, as a pointer */
    bool has_free_stacks;  /* frees have their own stacks, not those of allocations */
    uint64_t *reserved;    /* by release: before it */
    uint64_t max;          /* bytes that the device had */
} finder;

static uint64_t add_or_most(uint64_t a, uint64_t b)
{
    return b <= UINT64_MAX - a ? a + b : UINT64_MAX;
}

static bool is_gain(unsigned action)
{
    return action == BP_TRACE_SEGMENT_ALLOC || action == BP_TRACE_SEGMENT_MAP;
}

/* ---- runs of releases -------------------------------------------------------------------------------------------- */

static bp_status add_release_run(finder *f, size_t first, size_t end, bp_release_cause cause)
{
    bp_releases *r = f->found;
    BP_TRY(bp_grow_array((void **)&r->all, &r->capacity, r->count, sizeof *r->all));
    r->all[r->count++] = (bp_release){first, end, cause};
    return BP_OK;
}

static bp_status find_release_runs(finder *f)
{
    const bp_trace_event *events = f->trace->events;
    for (size_t i = 0, end; i < f->trace->event_count; i = end) {
        end = i + 1;
        if (events[i].action == BP_TRACE_EMPTY_CACHE)
            BP_TRY(add_release_run(f, i, end, BP_RELEASE_EMPTY_CACHE));
        if (!bp_trace_is_release(events[i].action))
            continue;
        for (size_t k = end; k < f->trace->event_count; k++) {
            if (bp_trace_is_release(events[k].action))
                end = k + 1;
            else if (events[k].action != BP_TRACE_FREE_COMPLETED)
                break;
        }
        BP_TRY(add_release_run(f, i, end, BP_RELEASE_UNCLEAR));
    }
    return BP_OK;
}

/* Reserved bytes before each release, backwards from the snapshot, and the most that the device is known to have had. */
static bp_status find_reserved(finder *f)
{
    const bp_trace *trace = f->trace;
    uint64_t bytes = 0;
    size_t release = f->found->count;
    BP_TRY(bp_new_array(f->found->count, sizeof *f->reserved, (void **)&f->reserved));
    for (size_t i = 0; i < trace->segment_count; i++)
        bytes = add_or_most(bytes, trace->segments[i].bytes);
    f->max = bytes;
    for (size_t i = trace->event_count; i-- > 0;) {
        const bp_trace_event *e = &trace->events[i];
        if (is_gain(e->action))
            bytes -= e->bytes < bytes ? e->bytes : bytes;
        else if (bp_trace_is_release(e->action))
            bytes = add_or_most(bytes, e->bytes);
        uint64_t had =
            e->action == BP_TRACE_OOM ? add_or_most(bytes, e->address) : bytes; /* free bytes of the device */
        f->max = had > f->max ? had : f->max;
        if (release > 0 && f->found->all[release - 1].first == i)
            f->reserved[--release] = bytes;
    }
    return BP_OK;
}

/* ---- call stacks ------------------------------------------------------------------------------------------------- */

static bool has_frames(const bp_trace *trace, uint32_t stack)
{
    return stack < trace->stack_count && trace->stacks[stack].count > 0;
}

static bool names_empty_cache(const bp_trace *trace, uint32_t stack)
{
    for (size_t i = 0; has_frames(trace, stack) && i < trace->stacks[stack].count; i++) {
        const bp_trace_frame *frame = &trace->frames[trace->stacks[stack].frames[i]];
        if (strstr(frame->function, "::emptyCache(") != NULL ||
            (strcmp(frame->function, "empty_cache") == 0 && strstr(frame->file, "torch/") != NULL))
            return true;
    }
    return false;
}

/* The allocation or error for which memory of the device is taken from `at` on; event_count: none. */
static size_t request_after(const bp_trace *trace, size_t at)
{
    size_t count = trace->event_count;
    for (; at < count && (is_gain(trace->events[at].action) || trace->events[at].action == BP_TRACE_FREE_COMPLETED);
         at++) {
    }
    bool ends = at < count && (trace->events[at].action == BP_TRACE_ALLOC || trace->events[at].action == BP_TRACE_OOM);
    return ends ? at : count;
}

/* Follows the stacks of allocations and segments up to a release, to compare with those of their ends. */
static bp_status follow_stacks(finder *f, size_t first, size_t end)
{
    for (size_t i = first; i < end; i++) {
        const bp_trace_event *e = &f->trace->events[i];
        /* A segment and the first block in it have the same address. */
        if (e->action == BP_TRACE_ALLOC || e->action == BP_TRACE_SEGMENT_ALLOC) {
            uint64_t key = e->address ^ (e->action == BP_TRACE_ALLOC ? 0 : (uint64_t)1 << 63);
            void *value = (void *)((uintptr_t)e->stack + 2); /* NOLINT(performance-no-int-to-ptr): a number */
            BP_TRY(bp_address_map_set(&f->stacks, key, value));
        } else if (e->action == BP_TRACE_FREE_REQUESTED && has_frames(f->trace, e->stack)) {
            void *value = bp_address_map_take(&f->stacks, e->address);
            f->has_free_stacks = f->has_free_stacks || (value != NULL && (uintptr_t)value != (uintptr_t)e->stack + 2);
        }
    }
    return BP_OK;
}

static bp_release_cause cause_by_stacks(const finder *f, const bp_release *release, size_t request)
{
    const bp_trace *trace = f->trace;
    uint32_t wanted = trace->events[request].stack;
    /* PyTorch writes the allocation's stack for its segments, and for segments that it releases. */
    bool comparable = has_frames(trace, wanted);
    for (size_t i = release->end; i < request; i++)
        comparable = comparable && (!is_gain(trace->events[i].action) || trace->events[i].stack == wanted);
    bool all_of_request = true, is_of_request = f->has_free_stacks;
    for (size_t i = release->first; i < release->end; i++) {
        const bp_trace_event *e = &trace->events[i];
        if (!bp_trace_is_release(e->action))
            continue;
        if (names_empty_cache(trace, e->stack))
            return BP_RELEASE_EMPTY_CACHE;
        uintptr_t own = (uintptr_t)bp_address_map_get(&f->stacks, e->address ^ (uint64_t)1 << 63);
        is_of_request = is_of_request || (own != 0 && own != (uintptr_t)wanted + 2);
        all_of_request = all_of_request && e->stack == wanted;
    }
    return comparable && all_of_request && is_of_request ? BP_RELEASE_FORCED : BP_RELEASE_UNCLEAR;
}

/* ---- causes ------------------------------------------------------------------------------------------------------ */

static bp_release_cause find_cause(const finder *f, size_t index)
{
    const bp_trace *trace = f->trace;
    const bp_release *release = &f->found->all[index];
    size_t before = release->first, request = request_after(trace, release->end);
    while (before > 0 && trace->events[before - 1].action == BP_TRACE_FREE_COMPLETED)
        before--;
    if (before > 0 && is_gain(trace->events[before - 1].action))
        return BP_RELEASE_FORCED;
    bool fails = request < trace->event_count && trace->events[request].action == BP_TRACE_OOM;
    uint64_t needed = fails ? bp_caching_round(f->settings, trace->events[request].bytes) : 0;
    for (size_t i = release->end; i < request && request < trace->event_count; i++)
        needed = is_gain(trace->events[i].action) ? add_or_most(needed, trace->events[i].bytes) : needed;
    if (needed == 0)
        return BP_RELEASE_EMPTY_CACHE;
    bp_release_cause cause = cause_by_stacks(f, release, request);
    if (cause != BP_RELEASE_UNCLEAR || fails)
        return cause == BP_RELEASE_UNCLEAR ? BP_RELEASE_FORCED : cause;
    bool had_memory = add_or_most(f->reserved[index], needed) <= f->max;
    return had_memory && f->settings->garbage_collection_threshold == 0 ? BP_RELEASE_EMPTY_CACHE : BP_RELEASE_UNCLEAR;
}

static bp_status find_causes(finder *f)
{
    BP_TRY(find_release_runs(f));
    if (f->found->count == 0)
        return BP_OK;
    BP_TRY(find_reserved(f));
    size_t followed = 0;
    for (size_t i = 0; i < f->found->count; i++) {
        bp_release *release = &f->found->all[i];
        BP_TRY(follow_stacks(f, followed, release->first));
        followed = release->first;
        if (release->cause == BP_RELEASE_UNCLEAR)
            release->cause = find_cause(f, i);
        f->found->empty_caches += release->cause == BP_RELEASE_EMPTY_CACHE;
        f->found->unclear += release->cause == BP_RELEASE_UNCLEAR;
    }
    return BP_OK;
}

bp_status bp_releases_init(const bp_trace *trace, const bp_caching_settings *settings, bp_releases *releases)
{
    *releases = (bp_releases){0};
    finder f = {.trace = trace, .settings = settings, .found = releases};
    bp_status status = find_causes(&f);
    bp_address_map_finish(&f.stacks);
    free(f.reserved);
    return status;
}

void bp_releases_finish(bp_releases *releases)
{
    free(releases->all);
    *releases = (bp_releases){0};
}
