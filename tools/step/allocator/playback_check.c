/* SPDX-License-Identifier: Apache-2.0 */
/* Plays a trace from its recorded state, and compares each decision of the model with the recorded one. The device of the model is the trace:
 * it has memory if the next recorded event is a segment of the request, and it names the address. */
#include "step/allocator/playback.h"

#include <bucketpool/core/arith.h>
#include <bucketpool/core/fail.h>

#include <stdlib.h>

#include "core/address_map.h"
#include "core/memory.h"
#include "step/allocator/allocator.h"
#include "step/allocator/start_state.h"

#define SMALL_SEGMENT ((uint64_t)2 << 20)

typedef struct checker {
    const bp_trace *trace;
    bp_trace_pools pools;
    const bp_caching_settings *settings;
    bp_check_result *result;
    bp_caching_allocator *allocator;
    bp_address_map live;
    /* The events of the allocation or release that is being played: [next, end). */
    size_t next, end;
    bool has_departed;
    bp_departure departure; /* of it */
    uint64_t kept_garbage;  /* a segment that the model would have collected, and the trace did not; 0: none */
    /* An allocation that found no free block, although frees were completed before its end: PyTorch does not search again. */
    size_t unserved, completions_end;
    bp_caching_piece *pieces;
    bp_caching_block **blocks; /* of the pieces */
    size_t piece_count, piece_capacity, block_capacity;
} checker;

static void depart(checker *c, bp_departure_kind kind, uint64_t recorded, uint64_t modelled)
{
    if (!c->has_departed)
        c->departure = (bp_departure){c->end, kind, recorded, modelled};
    c->has_departed = true;
}

static bool is_of_segment(unsigned action)
{
    return bp_trace_is_release(action) || action == BP_TRACE_SEGMENT_ALLOC || action == BP_TRACE_SEGMENT_MAP;
}

/* ---- the device -------------------------------------------------------------------------------------------------- */

/* The next event of the allocation or release, if it is of this kind. */
static const bp_trace_event *next_of(const checker *c, bp_trace_action action)
{
    const bp_trace_event *event = c->next < c->end ? &c->trace->events[c->next] : NULL;
    return event != NULL && event->action == action && !c->has_departed ? event : NULL;
}

static bool take_event(checker *c)
{
    c->next++;
    c->result->segment_events++;
    return true;
}

static bool allocate_recorded(void *user, uint64_t bytes, uint64_t *address)
{
    checker *c = user;
    const bp_trace_event *event = next_of(c, BP_TRACE_SEGMENT_ALLOC);
    if (event == NULL)
        return false;
    *address = event->address;
    if (event->bytes == bytes)
        return take_event(c);
    depart(c, BP_DEPARTURE_SEGMENT, event->bytes, bytes);
    return false;
}

static bool reserve_recorded(void *user, uint64_t bytes, uint64_t *address)
{
    const bp_trace_event *event = next_of(user, BP_TRACE_SEGMENT_MAP);
    if (event == NULL || bytes > UINT64_MAX - event->address)
        return false;
    *address = event->address;
    return true;
}

static bool map_recorded(void *user, uint64_t address, uint64_t bytes)
{
    checker *c = user;
    const bp_trace_event *event = next_of(c, BP_TRACE_SEGMENT_MAP);
    if (event == NULL)
        return false;
    if (event->address == address && event->bytes == bytes)
        return take_event(c);
    if (event->address != address)
        depart(c, BP_DEPARTURE_MAPPING, event->address, address);
    else
        depart(c, BP_DEPARTURE_SEGMENT, event->bytes, bytes);
    return false;
}

/* Garbage collection and the release of oversize blocks look like empty_cache, which may have been called just before. */
static bool release_recorded(void *user, bp_caching_reason reason, bool is_mapping, uint64_t address, uint64_t bytes)
{
    checker *c = user;
    const bp_trace_event *event = next_of(c, is_mapping ? BP_TRACE_SEGMENT_UNMAP : BP_TRACE_SEGMENT_FREE);
    if (event != NULL && event->address == address && event->bytes == bytes)
        return take_event(c);
    if (reason == BP_CACHING_GARBAGE)
        c->kept_garbage = address;
    if (reason == BP_CACHING_CACHED)
        depart(c, BP_DEPARTURE_RELEASE, c->next < c->end ? c->trace->events[c->next].address : 0, address);
    return false;
}

static void complete_recorded_free(checker *c, uint64_t address)
{
    bp_caching_block *block = bp_address_map_take(&c->live, address);
    if (block != NULL)
        bp_caching_complete_free(c->allocator, block);
    else
        c->result->oddities.frees_without_alloc++;
}

/* PyTorch releases unused memory only after the device had none: then the trace has releases. */
static bool synchronize_recorded(void *user)
{
    checker *c = user;
    bool fails = c->trace->events[c->end].action == BP_TRACE_OOM && c->pools.of_event == NULL; /* nothing to release */
    if (c->has_departed || (c->next == c->end && !fails))
        return false;
    c->kept_garbage = 0;
    for (; next_of(c, BP_TRACE_FREE_COMPLETED) != NULL; c->next++)
        complete_recorded_free(c, c->trace->events[c->next].address);
    return true;
}

/* ---- the recorded state ------------------------------------------------------------------------------------------ */

static bp_status add_piece(checker *c, bp_caching_state state, uint64_t bytes, uint64_t requested_bytes)
{
    if (bytes == 0)
        return BP_OK;
    BP_TRY(bp_grow_array((void **)&c->pieces, &c->piece_capacity, c->piece_count, sizeof *c->pieces));
    c->pieces[c->piece_count++] = (bp_caching_piece){bytes, requested_bytes, state};
    return BP_OK;
}

/* The pieces of a segment or mapped range; `*block` counts the state's blocks. */
static bp_status add_range_pieces(checker *c, const bp_start_state *state, const bp_start_segment *range, size_t *block)
{
    uint64_t address = range->address, end = range->address + range->bytes;
    for (; *block < state->block_count && state->blocks[*block].address < end; ++*block) {
        const bp_start_block *b = &state->blocks[*block];
        BP_TRY(add_piece(c, BP_CACHING_FREE, b->address - address, 0));
        BP_TRY(add_piece(c, b->is_pending ? BP_CACHING_PENDING : BP_CACHING_ALLOCATED, b->bytes, b->requested_bytes));
        address = b->address + b->bytes;
    }
    return add_piece(c, BP_CACHING_FREE, end - address, 0);
}

static bool share_addresses(const bp_start_segment *a, const bp_start_segment *b)
{
    return a->is_expandable && b->is_expandable && a->base == b->base && a->stream == b->stream && a->pool == b->pool &&
           a->is_small == b->is_small;
}

static bp_status load_segment(checker *c, const bp_start_segment *first)
{
    BP_TRY(bp_grow_array((void **)&c->blocks, &c->block_capacity, c->piece_count, sizeof *c->blocks));
    bp_caching_segment segment = {.address = first->base,
                                  .stream = first->stream,
                                  .pool = first->pool,
                                  .is_small = first->is_small,
                                  .is_expandable = first->is_expandable};
    BP_TRY(bp_caching_add_segment(c->allocator, &segment, c->pieces, c->piece_count, c->blocks));
    for (size_t i = 0; i < c->piece_count; i++) {
        if (c->pieces[i].state == BP_CACHING_ALLOCATED || c->pieces[i].state == BP_CACHING_PENDING)
            BP_TRY(bp_address_map_set(&c->live, bp_caching_address(c->blocks[i]), c->blocks[i]));
    }
    c->piece_count = 0;
    return BP_OK;
}

static bp_status load(checker *c, const bp_start_state *state)
{
    size_t block = 0;
    for (size_t i = 0, last; i < state->segment_count; i = last) {
        const bp_start_segment *first = &state->segments[i];
        uint64_t address = first->base, room;
        for (last = i; last < state->segment_count && (last == i || share_addresses(first, &state->segments[last]));
             last++) {
            BP_TRY(add_piece(c, BP_CACHING_UNMAPPED, state->segments[last].address - address, 0));
            BP_TRY(add_range_pieces(c, state, &state->segments[last], &block));
            address = state->segments[last].address + state->segments[last].bytes;
        }
        room = bp_caching_reservation(c->settings, first->is_small);
        room = bp_min_u64(room, UINT64_MAX - first->base) - bp_min_u64(room, address - first->base);
        if (first->is_expandable)
            BP_TRY(add_piece(c, BP_CACHING_UNMAPPED, room, 0));
        BP_TRY(load_segment(c, first));
    }
    return BP_OK;
}

/* A new allocator in the recorded state before the event. */
static bp_status restart(checker *c, size_t event)
{
    bp_caching_device device = {.user = c,
                                .allocate = allocate_recorded,
                                .reserve = reserve_recorded,
                                .map = map_recorded,
                                .release = release_recorded,
                                .synchronize = synchronize_recorded};
    bp_caching_destroy(&c->allocator);
    bp_address_map_finish(&c->live);
    BP_TRY(bp_caching_create(c->settings, &device, &c->allocator));
    BP_TRY(bp_trace_pools_apply(&c->pools, c->trace, c->settings, c->allocator));
    bp_start_state state;
    bp_status status = bp_start_state_find(c->trace, &c->pools, c->settings, event, &state);
    if (status == BP_OK)
        status = load(c, &state);
    c->result->oddities.contradictions = state.contradictions;
    bp_start_state_finish(&state);
    c->has_departed = false;
    return status;
}

/* ---- allocations and releases ------------------------------------------------------------------------------------ */

/* The event that ends an allocation: the first one from `first` that is not of a segment, nor a free completed while the allocator waited. */
static size_t find_end(const bp_trace *trace, size_t first)
{
    size_t end = first;
    while (end < trace->event_count &&
           (is_of_segment(trace->events[end].action) || trace->events[end].action == BP_TRACE_FREE_COMPLETED))
        end++;
    return end;
}

/* The events [next, end), and the allocation or its failure that ends them. */
static bp_status check_allocation(checker *c, size_t end)
{
    const bp_trace_event *e = &c->trace->events[end];
    bp_caching_block *block = NULL;
    c->end = end;
    c->kept_garbage = 0;
    bool fails = e->action == BP_TRACE_OOM;
    /* Failures have no address, so their pool is unknown. */
    c->allocator->search_fails = c->unserved == end;
    if (fails && c->next == end && c->unserved != end && c->pools.of_event != NULL &&
        bp_caching_is_cached(c->allocator, e->bytes, bp_trace_stream(c->trace, e->stream), 0)) {
        c->result->oddities.unclear_failures++;
        return BP_OK;
    }
    bp_status status = bp_caching_allocate(c->allocator, e->bytes, bp_trace_stream(c->trace, e->stream),
                                           bp_trace_pool(&c->pools, end), &block);
    if (status != BP_ERR_NO_DEVICE_MEMORY && status != BP_ERR_OVERFLOW)
        BP_TRY(status);
    uint64_t found = block != NULL ? bp_caching_address(block) : 0, recorded = fails ? 0 : e->address;
    if (!fails && bp_address_map_get(&c->live, recorded) != NULL) {
        c->result->oddities.allocs_over_live++;
        depart(c, BP_DEPARTURE_TRACE, recorded, found);
    }
    if ((block == NULL) != fails)
        depart(c, BP_DEPARTURE_FAILURE, recorded, found);
    if (c->next < end)
        depart(c, BP_DEPARTURE_CACHED, c->trace->events[c->next].address, found);
    if (found != recorded)
        depart(c, BP_DEPARTURE_BLOCK, recorded, found);
    if (c->kept_garbage != 0)
        depart(c, BP_DEPARTURE_RELEASE, 0, c->kept_garbage);
    if (c->has_departed)
        return BP_OK;
    c->result->allocations += !fails;
    return fails ? BP_OK : bp_address_map_set(&c->live, e->address, block);
}

/* torch.cuda.empty_cache, or the end of a private pool. */
static bp_status check_release(checker *c)
{
    const bp_trace *trace = c->trace;
    c->end = c->next;
    while (c->end < trace->event_count && bp_trace_is_release(trace->events[c->end].action))
        c->end++;
    while (c->next < c->end && !c->has_departed) {
        size_t before = c->next;
        BP_TRY(bp_caching_release(c->allocator, bp_trace_pool(&c->pools, before)));
        if (c->next == before)
            depart(c, BP_DEPARTURE_RELEASE, trace->events[before].address, 0);
    }
    return BP_OK;
}

/* True if an allocation ends there with memory of the device, or without. */
static bool needs_memory(const bp_trace *trace, size_t end)
{
    if (end == 0 || end == trace->event_count)
        return false;
    unsigned before = trace->events[end - 1].action;
    return trace->events[end].action == BP_TRACE_OOM ||
           (trace->events[end].action == BP_TRACE_ALLOC &&
            (before == BP_TRACE_SEGMENT_ALLOC || before == BP_TRACE_SEGMENT_MAP));
}

static bool is_cached(const checker *c, size_t allocation)
{
    const bp_trace_event *e = &c->trace->events[allocation];
    return bp_caching_is_cached(c->allocator, e->bytes, bp_trace_stream(c->trace, e->stream),
                                bp_trace_pool(&c->pools, allocation));
}

/* Releases belong to an allocation if no free block serves it, and if no frees are completed in between. */
static bool is_for_allocation(const checker *c, size_t end)
{
    const bp_trace *trace = c->trace;
    if (!needs_memory(trace, end))
        return false;
    bool follows = true, is_large = true;
    for (size_t i = c->next; i < end; i++) {
        const bp_trace_event *e = &trace->events[i];
        is_large = is_large && (!bp_trace_is_release(e->action) ||
                                (e->action == BP_TRACE_SEGMENT_FREE && e->bytes > SMALL_SEGMENT));
        follows = e->action != BP_TRACE_FREE_COMPLETED && (follows || bp_trace_is_release(e->action));
    }
    uint32_t pool = bp_trace_pool(&c->pools, end);
    double threshold = c->settings->garbage_collection_threshold * (double)c->settings->limit_bytes;
    bool has_garbage = threshold > 0 && (double)bp_caching_get_counters(c->allocator)->reserved_bytes > threshold;
    /* A private pool's allocation releases its oversize blocks, and garbage: large blocks of the default pool. */
    if (!follows || (pool != 0 && bp_trace_pool(&c->pools, c->next) != pool && !(has_garbage && is_large)))
        return false;
    return c->unserved == end || !is_cached(c, end);
}

/* Frees that are completed one after the other, and then releases or a failure: if no free block serves the allocation at the end, the
 * allocator may have searched already, and completed the frees because the device had no memory. Returns the end of that allocation, or
 * event_count. */
static size_t find_unserved(checker *c)
{
    const bp_trace_event *events = c->trace->events;
    size_t first = c->next, count = c->trace->event_count, end;
    bool is_immediate = first > 0 && events[first - 1].action == BP_TRACE_FREE_REQUESTED &&
                        events[first - 1].address == events[first].address;
    if (is_immediate || first < c->completions_end)
        return count;
    for (end = first; end < count && events[end].action == BP_TRACE_FREE_COMPLETED;)
        end++;
    c->completions_end = end;
    if (end == count || (!bp_trace_is_release(events[end].action) && events[end].action != BP_TRACE_OOM))
        return count;
    end = find_end(c->trace, end);
    return needs_memory(c->trace, end) && !is_cached(c, end) ? end : count;
}

/* Free ranges of expandable segments can grow into a request: then the order of the search and of the completion matters. */
static bp_status check_completion(checker *c)
{
    size_t end = find_unserved(c);
    if (end < c->trace->event_count) {
        c->unserved = end;
        if (c->settings->expandable_segments && bp_trace_pool(&c->pools, end) == 0)
            return check_allocation(c, end);
    }
    complete_recorded_free(c, c->trace->events[c->next].address);
    return BP_OK;
}

static bp_status check_event(checker *c)
{
    const bp_trace *trace = c->trace;
    const bp_trace_event *e = &trace->events[c->next];
    c->end = c->next;
    switch ((bp_trace_action)e->action) {
    case BP_TRACE_ALLOC:
    case BP_TRACE_OOM: BP_TRY(check_allocation(c, c->next)); break;
    case BP_TRACE_SEGMENT_ALLOC:
    case BP_TRACE_SEGMENT_MAP:
        c->end = find_end(trace, c->next);
        if (c->end == trace->event_count ||
            (trace->events[c->end].action != BP_TRACE_ALLOC && trace->events[c->end].action != BP_TRACE_OOM)) {
            c->end -= c->end == trace->event_count;
            depart(c, BP_DEPARTURE_TRACE, e->address, 0);
        } else {
            BP_TRY(check_allocation(c, c->end));
        }
        break;
    case BP_TRACE_SEGMENT_FREE:
    case BP_TRACE_SEGMENT_UNMAP: {
        size_t end = find_end(trace, c->next);
        if (is_for_allocation(c, end)) {
            BP_TRY(check_allocation(c, end));
        } else {
            BP_TRY(check_release(c));
            c->end--; /* the last release is the last event played */
        }
        break;
    }
    case BP_TRACE_FREE_REQUESTED: {
        bp_caching_block *block = bp_address_map_get(&c->live, e->address);
        if (block != NULL)
            bp_caching_request_free(c->allocator, block);
        else
            c->result->oddities.frees_without_alloc++;
        break;
    }
    case BP_TRACE_FREE_COMPLETED: BP_TRY(check_completion(c)); break;
    case BP_TRACE_UNKNOWN: c->result->oddities.unknown_events++; break;
    case BP_TRACE_EMPTY_CACHE: /* its releases follow */
    case BP_TRACE_SNAPSHOT: break;
    }
    return BP_OK;
}

/* ---- the end ----------------------------------------------------------------------------------------------------- */

static bool end_agrees(const checker *c)
{
    const bp_trace *trace = c->trace;
    uint64_t bytes = 0;
    size_t active = 0;
    for (size_t i = 0; i < trace->segment_count; i++) {
        const bp_trace_segment *s = &trace->segments[i];
        bp_caching_segment segment = {.stream = bp_trace_stream(c->trace, s->stream),
                                      .pool = c->pools.of_segment[i],
                                      .is_small = !s->is_large,
                                      .is_expandable = s->is_expandable};
        bytes += s->bytes;
        for (size_t j = s->first_block; j < s->first_block + s->block_count && j < trace->block_count; j++) {
            const bp_trace_block *b = &trace->blocks[j];
            const bp_caching_block *block = bp_address_map_get(&c->live, b->address);
            if (b->active ? block == NULL || block->bytes != b->bytes || block->pending != b->pending_free
                          : !bp_caching_is_free(c->allocator, &segment, b->address, b->bytes))
                return false;
            active += b->active;
        }
    }
    return active == c->live.count && bytes == bp_caching_get_counters(c->allocator)->reserved_bytes;
}

static void keep_peaks(bp_check_result *result, const bp_caching_counters *counters)
{
    bp_caching_counters old = result->counters;
    result->counters = *counters;
    if (old.peak_reserved_bytes > counters->peak_reserved_bytes)
        result->counters.peak_reserved_bytes = old.peak_reserved_bytes;
    if (old.peak_active_bytes > counters->peak_active_bytes)
        result->counters.peak_active_bytes = old.peak_active_bytes;
    if (old.peak_requested_bytes > counters->peak_requested_bytes)
        result->counters.peak_requested_bytes = old.peak_requested_bytes;
    result->counters.device_allocations += old.device_allocations;
    result->counters.device_releases += old.device_releases;
    result->counters.retries += old.retries;
    result->counters.failures += old.failures;
}

static bp_status check(checker *c, size_t limit, uint64_t *reserved_bytes)
{
    bp_check_result *result = c->result;
    size_t count = c->trace->event_count;
    BP_TRY(restart(c, 0));
    for (c->next = 0; c->next < count;) {
        size_t first = c->next;
        BP_TRY(check_event(c));
        size_t after = c->end + 1;
        if (c->has_departed) {
            if (result->departures++ == 0)
                result->first = c->departure;
            keep_peaks(result, bp_caching_get_counters(c->allocator));
            if (result->departures >= limit) {
                result->stopped_at = c->departure.event;
                return BP_OK;
            }
            BP_TRY(restart(c, after));
        }
        for (size_t i = first; reserved_bytes != NULL && i < after; i++)
            reserved_bytes[i] = bp_caching_get_counters(c->allocator)->reserved_bytes;
        c->next = after;
    }
    result->stopped_at = count;
    result->end_agrees = end_agrees(c);
    keep_peaks(result, bp_caching_get_counters(c->allocator));
    return BP_OK;
}

bp_status bp_play_check(const bp_trace *trace, const bp_caching_settings *settings, size_t limit,
                        uint64_t *reserved_bytes, bp_check_result *result)
{
    if (limit == 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_play_check: the limit of departures is 0; it must be at least 1");
    bp_check_result found = {0};
    checker c = {.trace = trace, .settings = settings, .result = &found, .unserved = SIZE_MAX};
    bp_status status = bp_trace_pools_init(&c.pools, trace);
    if (status == BP_OK)
        status = check(&c, limit, reserved_bytes);
    bp_trace_pools_finish(&c.pools);
    bp_caching_destroy(&c.allocator);
    bp_address_map_finish(&c.live);
    free(c.pieces);
    free(c.blocks);
    if (status == BP_OK)
        *result = found;
    return status;
}
