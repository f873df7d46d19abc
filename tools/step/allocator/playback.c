/* SPDX-License-Identifier: Apache-2.0 */
/* Plays the allocations and frees of a trace through a new allocator. */
#include "step/allocator/playback.h"

#include <bucketpool/core/arith.h>
#include <bucketpool/core/fail.h>

#include <stdlib.h>

#include "core/address_map.h"
#include "core/memory.h"
#include "step/allocator/allocator.h"
#include "step/allocator/releases.h"
#include "step/allocator/start_state.h"

typedef struct player {
    const bp_trace *trace;
    bp_trace_pools pools;
    bp_releases releases;
    const bp_play_options *options;
    bp_play_result *result;
    bp_caching_allocator *allocator;
    bp_address_map live; /* recorded addresses to blocks, or to one of the marks below */
    uint64_t *pending;   /* recorded addresses of requested frees, some of them completed since */
    size_t pending_count, pending_capacity;
} player;

/* Allocations that found no memory; blocks whose free was completed early, for memory; frees of unknown blocks. */
static char failed_mark, completed_mark, unknown_mark;

static bool is_mark(const void *value)
{
    return value == &failed_mark || value == &completed_mark || value == &unknown_mark;
}

void bp_play_options_init(bp_play_options *options, const bp_trace *trace)
{
    *options = (bp_play_options){.live_at_start = true, .empty_cache = true};
    bp_caching_settings_read(trace, &options->settings);
}

/* ---- pending frees ----------------------------------------------------------------------------------------------- */

static bool is_pending(const player *p, uint64_t address)
{
    const bp_caching_block *block = bp_address_map_get(&p->live, address);
    return block != NULL && !is_mark(block) && block->pending;
}

/* Before memory of the device is released, PyTorch waits for the streams of all pending frees. */
static bool complete_pending(void *user)
{
    player *p = user;
    for (size_t i = 0; i < p->pending_count; i++) {
        if (!is_pending(p, p->pending[i]))
            continue;
        bp_address_entry *entry = bp_address_entry_of(&p->live, p->pending[i]);
        bp_caching_complete_free(p->allocator, entry->value);
        entry->value = &completed_mark;
    }
    p->pending_count = 0;
    return true;
}

static bp_status note_pending(player *p, uint64_t address)
{
    if (p->pending_count == p->pending_capacity) {
        size_t kept = 0;
        for (size_t i = 0; i < p->pending_count; i++) {
            if (is_pending(p, p->pending[i]))
                p->pending[kept++] = p->pending[i];
        }
        p->pending_count = kept;
        BP_TRY(bp_grow_array((void **)&p->pending, &p->pending_capacity, 2 * kept, sizeof *p->pending));
    }
    p->pending[p->pending_count++] = address;
    return BP_OK;
}

/* ---- events ------------------------------------------------------------------------------------------------------ */

static bp_status allocate(player *p, uint64_t address, uint64_t bytes, uint64_t stream, uint32_t pool)
{
    bp_caching_block *block = bp_address_map_get(&p->live, address);
    if (block != NULL && !is_mark(block)) {
        p->result->oddities.allocs_over_live++;
        bp_caching_complete_free(p->allocator, block);
        bp_address_map_take(&p->live, address);
    }
    bp_status status = bp_caching_allocate(p->allocator, bytes, stream, pool, &block);
    if (status != BP_ERR_NO_DEVICE_MEMORY && status != BP_ERR_OVERFLOW) {
        BP_TRY(status);
        return bp_address_map_set(&p->live, address, block);
    }
    bp_add_u64(p->result->failed_bytes, bytes, &p->result->failed_bytes);
    return bp_address_map_set(&p->live, address, &failed_mark);
}

static bp_status request_free(player *p, uint64_t address)
{
    bp_caching_block *block = bp_address_map_get(&p->live, address);
    if (block == NULL) {
        p->result->oddities.frees_without_alloc++;
        return bp_address_map_set(&p->live, address, &unknown_mark);
    }
    if (is_mark(block))
        return BP_OK;
    bp_caching_request_free(p->allocator, block);
    return note_pending(p, address);
}

static void complete_played_free(player *p, uint64_t address)
{
    bp_caching_block *block = bp_address_map_take(&p->live, address);
    if (block == NULL)
        p->result->oddities.frees_without_alloc++;
    else if (!is_mark(block))
        bp_caching_complete_free(p->allocator, block);
}

/* PyTorch releases all unused memory of the default pool, and that of a private pool when it ends. */
static bp_status play_release(player *p, const bp_release *release)
{
    bool is_unclear = release->cause == BP_RELEASE_UNCLEAR;
    bool is_like_others = p->options->unclear_releases == BP_PLAY_LIKE_OTHERS && p->releases.empty_caches > 0;
    if (!p->options->empty_cache || release->cause == BP_RELEASE_FORCED ||
        (is_unclear && p->options->unclear_releases != BP_PLAY_EMPTY_CACHE && !is_like_others))
        return BP_OK;
    p->result->empty_caches++;
    complete_pending(p);
    for (size_t i = release->first; i < release->end; i++) {
        uint32_t pool = bp_trace_pool(&p->pools, i);
        if (i == release->first || pool != bp_trace_pool(&p->pools, i - 1))
            BP_TRY(bp_caching_release(p->allocator, pool));
    }
    return BP_OK;
}

static bp_status play_event(player *p, size_t index)
{
    const bp_trace_event *e = &p->trace->events[index];
    switch ((bp_trace_action)e->action) {
    case BP_TRACE_ALLOC:
        return allocate(p, e->address, e->bytes, bp_trace_stream(p->trace, e->stream), bp_trace_pool(&p->pools, index));
    case BP_TRACE_FREE_REQUESTED: return request_free(p, e->address);
    case BP_TRACE_FREE_COMPLETED: complete_played_free(p, e->address); break;
    case BP_TRACE_UNKNOWN: p->result->oddities.unknown_events++; break;
    case BP_TRACE_SEGMENT_ALLOC:
    case BP_TRACE_SEGMENT_MAP:
    case BP_TRACE_SEGMENT_FREE:
    case BP_TRACE_SEGMENT_UNMAP:
    case BP_TRACE_EMPTY_CACHE:
    case BP_TRACE_SNAPSHOT:
    case BP_TRACE_OOM: break;
    }
    return BP_OK;
}

static bp_status start(player *p)
{
    bp_start_state state;
    bp_status status = bp_start_state_find(p->trace, &p->pools, &p->options->settings, 0, &state);
    for (size_t i = 0; status == BP_OK && i < state.block_count; i++) {
        const bp_start_block *b = &state.blocks[i];
        uint64_t bytes = b->requested_bytes != 0 ? b->requested_bytes : b->bytes;
        status = allocate(p, b->address, bytes, b->stream, b->pool);
        if (status == BP_OK && b->is_pending)
            status = request_free(p, b->address);
    }
    bp_start_state_finish(&state);
    return status;
}

static bp_status play(player *p)
{
    const bp_play_options *options = p->options;
    const bp_caching_counters *counters = bp_caching_get_counters(p->allocator);
    BP_TRY(bp_trace_pools_apply(&p->pools, p->trace, &options->settings, p->allocator));
    if (options->live_at_start)
        BP_TRY(start(p));
    p->result->live_at_start_bytes = counters->active_bytes;
    uint64_t peak = counters->peak_reserved_bytes;
    for (size_t i = 0, release = 0; i < p->trace->event_count; i++) {
        if (release < p->releases.count && p->releases.all[release].first == i)
            BP_TRY(play_release(p, &p->releases.all[release++]));
        BP_TRY(play_event(p, i));
        if (options->reserved_bytes != NULL)
            options->reserved_bytes[i] = counters->reserved_bytes;
        if (options->active_bytes != NULL)
            options->active_bytes[i] = counters->active_bytes;
        if (options->requested_bytes != NULL)
            options->requested_bytes[i] = counters->requested_bytes;
        if (options->visit != NULL && i == options->visit_event)
            bp_caching_visit(p->allocator, options->visit, options->visit_user);
        if (counters->peak_reserved_bytes > peak) {
            peak = counters->peak_reserved_bytes;
            p->result->peak_event = i;
        }
    }
    p->result->counters = *counters;
    return BP_OK;
}

bp_status bp_play(const bp_trace *trace, const bp_play_options *options, bp_play_result *result)
{
    bp_play_result found = {0};
    player p = {.trace = trace, .options = options, .result = &found};
    bp_caching_device device = {.user = &p, .synchronize = complete_pending};
    BP_TRY(bp_caching_create(&options->settings, &device, &p.allocator));
    bp_status status = bp_trace_pools_init(&p.pools, trace);
    if (status == BP_OK)
        status = bp_releases_init(trace, &options->settings, &p.releases);
    found.oddities.unclear_releases = p.releases.unclear;
    if (status == BP_OK)
        status = play(&p);
    bp_releases_finish(&p.releases);
    bp_trace_pools_finish(&p.pools);
    bp_caching_destroy(&p.allocator);
    bp_address_map_finish(&p.live);
    free(p.pending);
    if (status == BP_OK)
        *result = found;
    return status;
}
