/* SPDX-License-Identifier: Apache-2.0 */
/* Expandable segments of the caching allocator's model: addresses that are reserved once, and mapped and unmapped in pages. */
#include "step/allocator/allocator.h"

#include <bucketpool/core/fail.h>

#include <stdlib.h>

#include "core/memory.h"

#define SMALL_PAGE ((uint64_t)2 << 20)
#define UNKNOWN_DEVICE_BYTES ((uint64_t)1 << 40)

static bool is_usable(const bp_caching_block *block)
{
    return block != NULL && !block->allocated && !block->pending;
}

static bool has_room(const bp_caching_block *first, uint64_t bytes)
{
    uint64_t room = 0;
    for (; room < bytes && is_usable(first); first = first->next)
        room += first->bytes;
    return room >= bytes;
}

uint64_t bp_caching_reservation(const bp_caching_settings *settings, bool is_small)
{
    uint64_t device_bytes = settings->device_bytes != 0 ? settings->device_bytes : UNKNOWN_DEVICE_BYTES;
    uint64_t page = is_small ? SMALL_PAGE : settings->large_segment_bytes;
    return (device_bytes + device_bytes / 8 + page - 1) / page * page;
}

static bp_status reserve_addresses(bp_caching_allocator *a, const bp_caching_request *request,
                                   bp_caching_block **reserved)
{
    *reserved = NULL;
    uint64_t bytes = bp_caching_reservation(&a->settings, request->pool->is_small), address;
    uint64_t page = request->pool->is_small ? SMALL_PAGE : a->settings.large_segment_bytes;
    if (bytes < request->bytes && a->settings.device_bytes != 0)
        return BP_OK; /* more than the device has */
    if (bytes < request->bytes)
        bytes = (request->bytes + page - 1) / page * page;
    if (a->device.reserve != NULL ? !a->device.reserve(a->device.user, bytes, &address)
                                  : !bp_caching_take_addresses(a, bytes, &address))
        return BP_OK;
    bp_expandable *expandable;
    bp_caching_block *first;
    BP_TRY(bp_blocks_new(&a->blocks, &first));
    BP_TRY(bp_new_array(1, sizeof *expandable, (void **)&expandable));
    *expandable = (bp_expandable){a->expandables, address, bytes, page};
    a->expandables = expandable;
    first->stream = request->stream;
    first->address = address;
    first->bytes = bytes;
    first->pool = request->pool;
    first->expandable = expandable;
    bp_block_set_insert(&request->pool->unmapped, first);
    *reserved = first;
    return BP_OK;
}

/* The free or unmapped block at the lowest address from which the request fits. */
static bp_status find_room(bp_caching_allocator *a, const bp_caching_request *request, bp_caching_block **found)
{
    const bp_block_set *set = &request->pool->unmapped;
    bp_caching_block *next = bp_block_set_from(set, (bp_block_key){request->stream, 0, 0});
    for (; next != NULL && next->stream == request->stream; next = bp_block_set_after(set, bp_block_key_of(next))) {
        *found = is_usable(next->previous) ? next->previous : next;
        if (has_room(*found, request->bytes))
            return BP_OK;
    }
    return reserve_addresses(a, request, found);
}

/* Maps at least `bytes` from the beginning of an unmapped block, which becomes a free block. */
static bp_status map_pages(bp_caching_allocator *a, bp_caching_block *unmapped, uint64_t bytes, bool *is_mapped)
{
    uint64_t page = unmapped->expandable->page_bytes, mapped_bytes = (bytes + page - 1) / page * page;
    *is_mapped = a->device.map != NULL ? a->device.map(a->device.user, unmapped->address, mapped_bytes)
                                       : bp_caching_has_memory(a, mapped_bytes);
    if (!*is_mapped)
        return BP_OK;
    bp_caching_block *rest = NULL;
    bp_block_set_remove(&unmapped->pool->unmapped, unmapped);
    if (mapped_bytes < unmapped->bytes) {
        BP_TRY(bp_caching_split(a, unmapped, mapped_bytes, &rest));
        bp_block_set_insert(&rest->pool->unmapped, rest);
    }
    unmapped->mapped = true;
    bp_caching_merge(a, unmapped, unmapped->previous);
    bp_caching_merge(a, unmapped, unmapped->next);
    bp_caching_insert_free(unmapped);
    bp_caching_count_reserved(a, mapped_bytes);
    return BP_OK;
}

bp_status bp_caching_expand(bp_caching_allocator *a, const bp_caching_request *request, bp_caching_block **expanded)
{
    bp_caching_block *found;
    BP_TRY(find_room(a, request, &found));
    if (found == NULL)
        return BP_OK;
    bool is_mapped = found->mapped;
    if (!is_mapped)
        BP_TRY(map_pages(a, found, found->bytes < request->bytes ? found->bytes : request->bytes, &is_mapped));
    while (is_mapped && found->bytes < request->bytes) {
        uint64_t missing = request->bytes - found->bytes;
        bp_caching_block *next = found->next;
        BP_TRY(map_pages(a, next, next->bytes < missing ? next->bytes : missing, &is_mapped));
        found = next; /* merged with the block before */
    }
    if (!is_mapped)
        return BP_OK;
    bp_block_set_remove(&found->pool->free, found);
    *expanded = found;
    return BP_OK;
}

static void give_up(bp_caching_allocator *a, bp_caching_block *whole)
{
    bp_expandable **link = &a->expandables, *expandable = whole->expandable;
    while (*link != expandable)
        link = &(*link)->next;
    *link = expandable->next;
    free(expandable);
    bp_block_set_remove(&whole->pool->unmapped, whole);
    bp_blocks_return(&a->blocks, whole);
}

bp_status bp_caching_unmap(bp_caching_allocator *a, bp_caching_block *freed)
{
    uint64_t page = freed->expandable->page_bytes, base = freed->expandable->address;
    uint64_t begin = (freed->address - base + page - 1) / page * page;
    uint64_t end = (freed->address - base + freed->bytes) / page * page;
    if (begin >= end || !bp_caching_may_release(a, BP_CACHING_CACHED, true, base + begin, end - begin))
        return BP_OK;
    bp_block_set_remove(&freed->pool->free, freed);
    uint64_t before = base + begin - freed->address;
    bp_caching_block *after;
    if (before > 0) {
        bp_caching_block *first = freed;
        BP_TRY(bp_caching_split(a, first, before, &freed));
        bp_caching_insert_free(first);
    }
    if (freed->bytes > end - begin) {
        BP_TRY(bp_caching_split(a, freed, end - begin, &after));
        bp_caching_insert_free(after);
    }
    freed->mapped = false;
    bp_caching_merge(a, freed, freed->previous);
    bp_caching_merge(a, freed, freed->next);
    bp_block_set_insert(&freed->pool->unmapped, freed);
    a->counters.reserved_bytes -= end - begin;
    a->counters.device_releases++;
    if (freed->previous == NULL && freed->next == NULL)
        give_up(a, freed);
    return BP_OK;
}

/* ---- states ------------------------------------------------------------------------------------------------------ */

static bp_status check_pieces(const bp_caching_segment *segment, const bp_caching_piece *pieces, size_t count,
                              uint64_t *bytes)
{
    *bytes = 0;
    for (size_t i = 0; i < count; i++) {
        bool is_mapped = pieces[i].state != BP_CACHING_UNMAPPED;
        bool merges =
            i > 0 && pieces[i].state == pieces[i - 1].state && (pieces[i].state == BP_CACHING_FREE || !is_mapped);
        if (pieces[i].bytes == 0 || merges || (!is_mapped && !segment->is_expandable) ||
            __builtin_add_overflow(*bytes, pieces[i].bytes, bytes))
            return bp_fail(BP_ERR_INVALID_ARGUMENT, "segment %#llx: piece %zu of %llu bytes cannot follow",
                           (unsigned long long)segment->address, i, (unsigned long long)pieces[i].bytes);
    }
    uint64_t end;
    if (count == 0 || __builtin_add_overflow(segment->address, *bytes, &end))
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "segment %#llx: it has no pieces, or ends behind the last address",
                       (unsigned long long)segment->address);
    return BP_OK;
}

bp_status bp_caching_add_segment(bp_caching_allocator *allocator, const bp_caching_segment *segment,
                                 const bp_caching_piece *pieces, size_t count, bp_caching_block **blocks)
{
    uint64_t bytes, address = segment->address, mapped_bytes = 0;
    bp_caching_allocator *a = allocator;
    bp_blocks_pool *pool;
    bp_expandable *expandable = NULL;
    BP_TRY(check_pieces(segment, pieces, count, &bytes));
    BP_TRY(bp_caching_find_pool(a, segment->pool, segment->is_small, &pool));
    if (segment->is_expandable) {
        BP_TRY(bp_new_array(1, sizeof *expandable, (void **)&expandable));
        uint64_t page = segment->is_small ? SMALL_PAGE : a->settings.large_segment_bytes;
        *expandable = (bp_expandable){a->expandables, address, bytes, page};
        a->expandables = expandable;
    }
    for (size_t i = 0; i < count; i++) {
        bp_caching_state state = pieces[i].state;
        bp_caching_block *added, *previous = i > 0 ? blocks[i - 1] : NULL;
        BP_TRY(bp_blocks_new(&a->blocks, &added));
        added->stream = segment->stream;
        added->address = address;
        added->bytes = pieces[i].bytes;
        added->pool = pool;
        added->expandable = expandable;
        added->mapped = state != BP_CACHING_UNMAPPED;
        added->previous = previous;
        if (previous != NULL)
            previous->next = added;
        added->allocated = state == BP_CACHING_ALLOCATED;
        added->pending = state == BP_CACHING_PENDING;
        if (added->allocated || added->pending) {
            added->requested_bytes = pieces[i].requested_bytes;
            bp_caching_count_active(a, added);
        } else if (state == BP_CACHING_FREE) {
            bp_caching_insert_free(added);
        } else {
            bp_block_set_insert(&pool->unmapped, added);
        }
        mapped_bytes += added->mapped ? added->bytes : 0;
        address += added->bytes;
        blocks[i] = added;
    }
    bp_caching_count_reserved(a, mapped_bytes);
    a->counters.device_allocations--; /* it is not an event of this play */
    a->counters.segments += !segment->is_expandable;
    return BP_OK;
}
