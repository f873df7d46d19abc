/* SPDX-License-Identifier: Apache-2.0 */
/* Undoes the events of a trace. Blocks and segments are exact where the trace has their sizes; two things are derived:
 *
 *  - the size of a large block that was allocated before the first event and freed later: its free names the requested bytes alone. The block
 *    ends where a later allocation, the next block or the segment begins, if that is at most 1 MiB behind its rounded size, because free
 *    blocks of large segments are larger than that;
 *  - the first address of an expandable segment: the lowest one that was mapped since all of the segment was unmapped. */
#include "step/allocator/start_state.h"

#include <bucketpool/core/arith.h>
#include <bucketpool/core/fail.h>

#include <stdlib.h>
#include <string.h>

#include "core/address_map.h"
#include "core/memory.h"

#define MIB ((uint64_t)1 << 20)
#define SMALL_PAGE (2 * MIB)

/* Mapped ranges of one stream and pool: those of small or of large blocks. */
typedef struct range_group {
    uint64_t stream;
    uint32_t pool;
    bool is_small;
    uint64_t base; /* the lowest address since nothing was mapped; UINT64_MAX: none */
    struct range {
        uint64_t begin, end;
    } * ranges; /* by address, apart */
    size_t count, capacity;
} range_group;

typedef struct undo {
    const bp_trace *trace;
    const bp_trace_pools *pools;
    const bp_caching_settings *settings;
    bp_start_state *state;
    bp_address_map blocks, segments; /* to their number plus one, as a pointer */
    bp_address_map loose_ends;       /* from the MiB of the end of a block that is not exact, to its number plus one */
    size_t *unused_blocks, *unused_segments;
    size_t unused_block_count, unused_block_capacity, unused_segment_count, unused_segment_capacity;
    uint64_t looks; /* at earlier events that are left, which bounds their number in hostile traces */
    range_group *groups;
    size_t group_count, group_capacity;
} undo;

static uint32_t pool_of(const undo *u, const bp_trace_event *event)
{
    return bp_trace_pool(u->pools, (size_t)(event - u->trace->events));
}

/* ---- numbers in maps --------------------------------------------------------------------------------------------- */

static void *as_value(size_t number)
{
    return (void *)(uintptr_t)(number + 1); /* NOLINT(performance-no-int-to-ptr): a number, not an address */
}

static bool take_number_at(bp_address_map *map, uint64_t address, size_t *number)
{
    void *value = bp_address_map_take(map, address);
    if (value != NULL)
        *number = (size_t)(uintptr_t)value - 1;
    return value != NULL;
}

static bool get_number_at(const bp_address_map *map, uint64_t address, size_t *number)
{
    void *value = bp_address_map_get(map, address);
    if (value != NULL)
        *number = (size_t)(uintptr_t)value - 1;
    return value != NULL;
}

/* ---- mapped ranges ----------------------------------------------------------------------------------------------- */

static bp_status find_range_group(undo *u, uint64_t stream, uint32_t pool, bool is_small, range_group **group)
{
    for (size_t i = 0; i < u->group_count; i++) {
        range_group *g = &u->groups[i];
        if (g->stream == stream && g->pool == pool && g->is_small == is_small) {
            *group = g;
            return BP_OK;
        }
    }
    BP_TRY(bp_grow_array((void **)&u->groups, &u->group_capacity, u->group_count, sizeof *u->groups));
    *group = &u->groups[u->group_count++];
    **group = (range_group){.stream = stream, .pool = pool, .is_small = is_small, .base = UINT64_MAX};
    return BP_OK;
}

enum { LOOK_BACK = 10000 }; /* events */

/* Pages of small blocks are mapped one by one, but several may be unmapped at once, as many as a large page has. What the range held before
 * tells them apart. */
static bool held_small_blocks(undo *u, const bp_trace_event *unmapped)
{
    for (const bp_trace_event *e = unmapped; e-- > u->trace->events && unmapped - e < LOOK_BACK && u->looks > 0;) {
        u->looks--;
        if (e->address < unmapped->address || e->address - unmapped->address >= unmapped->bytes)
            continue;
        if (e->action == BP_TRACE_SEGMENT_MAP)
            return e->bytes % u->settings->large_segment_bytes != 0;
        if (e->action == BP_TRACE_ALLOC || e->action == BP_TRACE_FREE_REQUESTED || e->action == BP_TRACE_FREE_COMPLETED)
            return bp_caching_round(u->settings, e->bytes) <= MIB;
    }
    return false;
}

static bp_status group_of_event(undo *u, const bp_trace_event *event, range_group **group)
{
    bool is_small = event->bytes % u->settings->large_segment_bytes != 0 ||
                    (event->action == BP_TRACE_SEGMENT_UNMAP && held_small_blocks(u, event));
    return find_range_group(u, bp_trace_stream(u->trace, event->stream), pool_of(u, event), is_small, group);
}

/* The first range that ends at the address or behind it. */
static size_t range_at(const range_group *group, uint64_t address)
{
    size_t low = 0, high = group->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (group->ranges[middle].end >= address)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static bp_status add_mapped_range(range_group *group, uint64_t begin, uint64_t end)
{
    size_t first = range_at(group, begin), last = first;
    group->base = bp_min_u64(group->base, begin);
    while (last < group->count && group->ranges[last].begin <= end) {
        begin = bp_min_u64(begin, group->ranges[last].begin);
        end = group->ranges[last].end > end ? group->ranges[last].end : end;
        last++;
    }
    BP_TRY(bp_grow_array((void **)&group->ranges, &group->capacity, group->count, sizeof *group->ranges));
    memmove(group->ranges + first + 1, group->ranges + last, (group->count - last) * sizeof *group->ranges);
    group->ranges[first] = (struct range){begin, end};
    group->count = group->count + first + 1 - last;
    return BP_OK;
}

/* False if the range was not mapped. */
static bp_status remove_range(range_group *group, uint64_t begin, uint64_t end, bool *was_there)
{
    size_t at = range_at(group, begin + 1);
    *was_there = at < group->count && group->ranges[at].begin <= begin && group->ranges[at].end >= end;
    if (!*was_there)
        return BP_OK;
    group->base = bp_min_u64(group->base, begin);
    struct range old = group->ranges[at];
    BP_TRY(bp_grow_array((void **)&group->ranges, &group->capacity, group->count, sizeof *group->ranges));
    size_t parts = (old.begin < begin) + (old.end > end);
    memmove(group->ranges + at + parts, group->ranges + at + 1, (group->count - at - 1) * sizeof *group->ranges);
    group->count = group->count + parts - 1;
    if (old.begin < begin)
        group->ranges[at++] = (struct range){old.begin, begin};
    if (old.end > end)
        group->ranges[at] = (struct range){end, old.end};
    if (group->count == 0)
        group->base = UINT64_MAX;
    return BP_OK;
}

/* ---- blocks and segments ----------------------------------------------------------------------------------------- */

static bp_status add_start_block(undo *u, bp_start_block block)
{
    size_t number;
    bp_start_state *state = u->state;
    if (get_number_at(&u->blocks, block.address, &number) || block.bytes == 0) {
        state->contradictions++;
        return BP_OK;
    }
    if (u->unused_block_count > 0) {
        number = u->unused_blocks[--u->unused_block_count];
    } else {
        number = state->block_count;
        BP_TRY(bp_grow_array((void **)&state->blocks, &state->block_capacity, number, sizeof *state->blocks));
        state->block_count++;
    }
    block.is_used = true;
    state->blocks[number] = block;
    if (!block.is_exact)
        BP_TRY(bp_address_map_set(&u->loose_ends, (block.address + block.bytes) / MIB, as_value(number)));
    return bp_address_map_set(&u->blocks, block.address, as_value(number));
}

static void tie_loose_end(undo *u, size_t number)
{
    bp_start_block *block = &u->state->blocks[number];
    uint64_t place = (block->address + block->bytes) / MIB;
    if (!block->is_exact && bp_address_map_get(&u->loose_ends, place) == as_value(number))
        bp_address_map_take(&u->loose_ends, place);
    block->is_exact = true;
}

/* A large allocation takes the beginning of a free block: a block that ends at most 1 MiB before ends there, as no large block is smaller. */
static void end_blocks_at(undo *u, uint64_t address, uint64_t bytes)
{
    if (bp_caching_round(u->settings, bytes) <= MIB)
        return;
    for (uint64_t back = 0; back < 2 && address / MIB >= back; back++) {
        size_t number;
        if (!get_number_at(&u->loose_ends, address / MIB - back, &number))
            continue;
        bp_start_block *block = &u->state->blocks[number];
        uint64_t end = block->address + block->bytes;
        if (end <= address && address - end <= MIB) {
            tie_loose_end(u, number);
            block->bytes = address - block->address;
        }
    }
}

static bp_status remove_block(undo *u, uint64_t address)
{
    size_t number;
    if (!take_number_at(&u->blocks, address, &number)) {
        u->state->contradictions++;
        return BP_OK;
    }
    tie_loose_end(u, number);
    u->state->blocks[number].is_used = false;
    BP_TRY(bp_grow_array((void **)&u->unused_blocks, &u->unused_block_capacity, u->unused_block_count, sizeof(size_t)));
    u->unused_blocks[u->unused_block_count++] = number;
    return BP_OK;
}

static bp_status add_start_segment(undo *u, bp_start_segment segment)
{
    size_t number;
    uint64_t end;
    bp_start_state *state = u->state;
    if (get_number_at(&u->segments, segment.address, &number) || segment.bytes == 0 ||
        !bp_add_u64(segment.address, segment.bytes, &end)) {
        state->contradictions++;
        return BP_OK;
    }
    if (u->unused_segment_count > 0) {
        number = u->unused_segments[--u->unused_segment_count];
    } else {
        number = state->segment_count;
        BP_TRY(bp_grow_array((void **)&state->segments, &state->segment_capacity, number, sizeof *state->segments));
        state->segment_count++;
    }
    segment.is_used = true;
    state->segments[number] = segment;
    return bp_address_map_set(&u->segments, segment.address, as_value(number));
}

static bp_status remove_segment(undo *u, uint64_t address)
{
    size_t number;
    if (!take_number_at(&u->segments, address, &number)) {
        u->state->contradictions++;
        return BP_OK;
    }
    u->state->segments[number].is_used = false;
    BP_TRY(bp_grow_array((void **)&u->unused_segments, &u->unused_segment_capacity, u->unused_segment_count,
                         sizeof(size_t)));
    u->unused_segments[u->unused_segment_count++] = number;
    return BP_OK;
}

/* ---- the end of the trace ---------------------------------------------------------------------------------------- */

static bp_status read_end(undo *u)
{
    const bp_trace *trace = u->trace;
    range_group *group;
    for (size_t i = 0; i < trace->segment_count; i++) {
        const bp_trace_segment *s = &trace->segments[i];
        uint64_t stream = bp_trace_stream(trace, s->stream), end;
        uint32_t pool = u->pools->of_segment[i];
        if (!bp_add_u64(s->address, s->bytes, &end) || s->bytes == 0) {
            u->state->contradictions++;
            continue;
        }
        if (s->is_expandable) {
            BP_TRY(find_range_group(u, stream, pool, !s->is_large, &group));
            BP_TRY(add_mapped_range(group, s->address, end));
        } else {
            BP_TRY(add_start_segment(u, (bp_start_segment){.address = s->address,
                                                           .bytes = s->bytes,
                                                           .base = s->address,
                                                           .stream = stream,
                                                           .pool = pool,
                                                           .is_small = !s->is_large}));
        }
        for (size_t j = s->first_block; j < s->first_block + s->block_count && j < trace->block_count; j++) {
            const bp_trace_block *b = &trace->blocks[j];
            if (b->active)
                BP_TRY(add_start_block(u, (bp_start_block){.address = b->address,
                                                           .bytes = b->bytes,
                                                           .requested_bytes = b->requested_bytes,
                                                           .stream = stream,
                                                           .pool = pool,
                                                           .is_pending = b->pending_free,
                                                           .is_exact = true}));
        }
    }
    return BP_OK;
}

/* ---- undoing ----------------------------------------------------------------------------------------------------- */

static bp_status undo_free(undo *u, const bp_trace_event *e, bool is_completed)
{
    size_t number;
    if (get_number_at(&u->blocks, e->address, &number) && !is_completed) {
        u->state->blocks[number].is_pending = false;
        return BP_OK;
    }
    uint64_t bytes = bp_caching_round(u->settings, e->bytes), end;
    if (!bp_add_u64(e->address, bytes, &end)) {
        u->state->contradictions++;
        return BP_OK;
    }
    return add_start_block(u, (bp_start_block){.address = e->address,
                                               .bytes = bytes,
                                               .requested_bytes = e->bytes,
                                               .stream = bp_trace_stream(u->trace, e->stream),
                                               .pool = pool_of(u, e),
                                               .is_pending = is_completed,
                                               .is_exact = bytes <= MIB});
}

static bp_status undo_mapping(undo *u, const bp_trace_event *e, bool was_mapped)
{
    range_group *group;
    uint64_t end;
    bool was_there = true;
    if (!bp_add_u64(e->address, e->bytes, &end) || e->bytes == 0) {
        u->state->contradictions++;
        return BP_OK;
    }
    BP_TRY(group_of_event(u, e, &group));
    if (was_mapped)
        BP_TRY(remove_range(group, e->address, end, &was_there));
    else
        BP_TRY(add_mapped_range(group, e->address, end));
    u->state->contradictions += !was_there;
    return BP_OK;
}

static bp_status undo_event(undo *u, const bp_trace_event *e)
{
    switch ((bp_trace_action)e->action) {
    case BP_TRACE_ALLOC: end_blocks_at(u, e->address, e->bytes); return remove_block(u, e->address);
    case BP_TRACE_FREE_REQUESTED: return undo_free(u, e, false);
    case BP_TRACE_FREE_COMPLETED: return undo_free(u, e, true);
    case BP_TRACE_SEGMENT_ALLOC: return remove_segment(u, e->address);
    case BP_TRACE_SEGMENT_FREE:
        return add_start_segment(u, (bp_start_segment){.address = e->address,
                                                       .bytes = e->bytes,
                                                       .base = e->address,
                                                       .stream = bp_trace_stream(u->trace, e->stream),
                                                       .pool = pool_of(u, e),
                                                       .is_small = e->bytes <= SMALL_PAGE});
    case BP_TRACE_SEGMENT_MAP: return undo_mapping(u, e, true);
    case BP_TRACE_SEGMENT_UNMAP: return undo_mapping(u, e, false);
    case BP_TRACE_UNKNOWN:
    case BP_TRACE_SNAPSHOT:
    case BP_TRACE_EMPTY_CACHE:
    case BP_TRACE_OOM: break;
    }
    return BP_OK;
}

/* ---- the state --------------------------------------------------------------------------------------------------- */

static int by_address_of_block(const void *a, const void *b)
{
    const bp_start_block *x = a, *y = b;
    return (x->address > y->address) - (x->address < y->address);
}

static int by_address_of_segment(const void *a, const void *b)
{
    const bp_start_segment *x = a, *y = b;
    return (x->address > y->address) - (x->address < y->address);
}

/* An address that is not whole pages behind the base is of another expandable segment, as is one that is too far behind it. */
static bp_status add_ranges(undo *u, const range_group *group)
{
    uint64_t page = group->is_small ? SMALL_PAGE : u->settings->large_segment_bytes, base = group->base;
    uint64_t device = u->settings->device_bytes, reach = device == 0 ? UINT64_MAX : device + device / 8 + page;
    for (size_t i = 0; i < group->count; i++) {
        struct range range = group->ranges[i];
        if ((range.begin - base) % page != 0 || range.end - base > reach)
            base = range.begin;
        BP_TRY(add_start_segment(u, (bp_start_segment){.address = range.begin,
                                                       .bytes = range.end - range.begin,
                                                       .base = base,
                                                       .stream = group->stream,
                                                       .pool = group->pool,
                                                       .is_small = group->is_small,
                                                       .is_expandable = true}));
    }
    return BP_OK;
}

static void sort_and_check(undo *u)
{
    bp_start_state *state = u->state;
    size_t count = 0;
    for (size_t i = 0; i < state->segment_count; i++) {
        if (state->segments[i].is_used)
            state->segments[count++] = state->segments[i];
    }
    state->segment_count = count;
    if (count > 1)
        qsort(state->segments, count, sizeof *state->segments, by_address_of_segment);
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        bp_start_segment *s = &state->segments[i];
        if (kept > 0 && s->address - state->segments[kept - 1].address < state->segments[kept - 1].bytes)
            state->contradictions++;
        else
            state->segments[kept++] = *s;
    }
    state->segment_count = kept;

    count = 0;
    for (size_t i = 0; i < state->block_count; i++) {
        if (state->blocks[i].is_used)
            state->blocks[count++] = state->blocks[i];
    }
    if (count > 1)
        qsort(state->blocks, count, sizeof *state->blocks, by_address_of_block);
    kept = 0;
    uint64_t end = 0; /* of the last block */
    for (size_t i = 0, at = 0; i < count; i++) {
        bp_start_block *b = &state->blocks[i];
        while (at < state->segment_count && state->segments[at].address < b->address &&
               b->address - state->segments[at].address >= state->segments[at].bytes)
            at++;
        const bp_start_segment *s = at < state->segment_count ? &state->segments[at] : NULL;
        bool is_inside = s != NULL && b->address >= s->address && b->bytes <= s->bytes - (b->address - s->address);
        if (!is_inside || b->address < end) {
            state->contradictions++;
            continue;
        }
        uint64_t segment_end = s->address + s->bytes, limit = u->settings->max_split_bytes;
        uint64_t next = i + 1 < count ? bp_min_u64(state->blocks[i + 1].address, segment_end) : segment_end;
        if (!b->is_exact && !s->is_expandable && !s->is_small && next >= b->address + b->bytes &&
            (next - (b->address + b->bytes) <= MIB || (limit != 0 && b->bytes >= limit)))
            b->bytes = next - b->address;
        b->stream = s->stream;
        b->pool = s->pool;
        end = b->address + b->bytes;
        state->blocks[kept++] = *b;
    }
    state->block_count = kept;
}

static bp_status find_state(undo *u, size_t event)
{
    BP_TRY(read_end(u));
    for (size_t i = u->trace->event_count; i-- > event;)
        BP_TRY(undo_event(u, &u->trace->events[i]));
    for (size_t i = 0; i < u->group_count; i++)
        BP_TRY(add_ranges(u, &u->groups[i]));
    sort_and_check(u);
    return BP_OK;
}

bp_status bp_start_state_find(const bp_trace *trace, const bp_trace_pools *pools, const bp_caching_settings *settings,
                              size_t event, bp_start_state *state)
{
    *state = (bp_start_state){0};
    undo u = {.trace = trace, .pools = pools, .settings = settings, .state = state, .looks = (uint64_t)1 << 26};
    bp_status status = find_state(&u, event);
    bp_address_map_finish(&u.blocks);
    bp_address_map_finish(&u.segments);
    bp_address_map_finish(&u.loose_ends);
    for (size_t i = 0; i < u.group_count; i++)
        free(u.groups[i].ranges);
    free(u.groups);
    free(u.unused_blocks);
    free(u.unused_segments);
    return status;
}

void bp_start_state_finish(bp_start_state *state)
{
    free(state->blocks);
    free(state->segments);
    *state = (bp_start_state){0};
}
