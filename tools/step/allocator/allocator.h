/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of the caching allocator's model that its files share. */
#ifndef BP_STEP_ALLOCATOR_H
#define BP_STEP_ALLOCATOR_H

#include "step/allocator/blocks.h"
#include "step/allocator/caching_allocator.h"

/* Addresses of one stream and pool, mapped in pages. */
typedef struct bp_expandable {
    struct bp_expandable *next;
    uint64_t address, bytes, page_bytes;
} bp_expandable;

struct bp_caching_allocator {
    bp_caching_settings settings; /* max_split_bytes is UINT64_MAX where it is unlimited */
    bp_caching_device device;
    bp_caching_counters counters;
    bp_blocks_pool **pools; /* pairs: large, small */
    size_t pool_count, pool_capacity;
    bp_expandable *expandables;
    bp_blocks blocks;
    bp_caching_block **released; /* of expandable segments, while they are released */
    size_t released_capacity;
    uint64_t lowest_address; /* of the default device's segments */
    bool search_fails;       /* of the next allocation, for playback_check.c */
};

typedef struct bp_caching_request {
    uint64_t bytes, segment_bytes, stream;
    bp_blocks_pool *pool;
    bool expands;
} bp_caching_request;

bp_status bp_caching_find_pool(bp_caching_allocator *a, uint32_t number, bool is_small, bp_blocks_pool **pool);
void bp_caching_count_reserved(bp_caching_allocator *a, uint64_t bytes);
void bp_caching_count_active(bp_caching_allocator *a, const bp_caching_block *block);
bool bp_caching_has_memory(const bp_caching_allocator *a, uint64_t bytes);
bool bp_caching_take_addresses(bp_caching_allocator *a, uint64_t bytes, uint64_t *address);
bool bp_caching_may_release(bp_caching_allocator *a, bp_caching_reason reason, bool is_mapping, uint64_t address,
                            uint64_t bytes);

/* Into the set of its pool. */
void bp_caching_insert_free(bp_caching_block *freed);
/* Merges a neighbour into a block that is in no set. False, and no change, if `from` is NULL, active, or has memory while `into` has none. */
bool bp_caching_merge(bp_caching_allocator *a, bp_caching_block *into, bp_caching_block *from);
/* Shortens the block to `bytes`; the rest is in no set. */
bp_status bp_caching_split(bp_caching_allocator *a, bp_caching_block *first, uint64_t bytes, bp_caching_block **rest);

/* ---- expandable.c ------------------------------------------------------------------------------------------------ */

/* The bytes of addresses that an expandable segment reserves: an eighth more than the memory of the device. */
uint64_t bp_caching_reservation(const bp_caching_settings *settings, bool is_small);
/* Maps memory at the lowest address where the request fits. The block is in no set; NULL if the device has no memory. */
bp_status bp_caching_expand(bp_caching_allocator *a, const bp_caching_request *request, bp_caching_block **expanded);
/* Unmaps the whole pages of a free block, and frees the addresses if all of the segment is unmapped. */
bp_status bp_caching_unmap(bp_caching_allocator *a, bp_caching_block *freed);

#endif
