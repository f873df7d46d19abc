/* SPDX-License-Identifier: Apache-2.0 */
/* A reference model of PyTorch's caching allocator: all blocks in one array, and every search looks at all of them. Without garbage
 * collection. */
#ifndef BP_TEST_STEPS_NAIVE_ALLOCATOR_H
#define BP_TEST_STEPS_NAIVE_ALLOCATOR_H

#include "step/allocator/caching_allocator.h"

enum { NAIVE_BLOCKS = 4096 };

typedef struct naive_block {
    uint64_t address, bytes, requested_bytes, stream, base; /* of the segment */
    uint32_t pool;
    bool is_small, is_expandable;
    bp_caching_state state;
} naive_block;

typedef struct naive_allocator {
    bp_caching_settings settings;
    naive_block blocks[NAIVE_BLOCKS]; /* by address */
    size_t count;
    uint64_t lowest_address, reserved;
} naive_allocator;

void naive_init(naive_allocator *naive, const bp_caching_settings *settings);
/* The address; 0: no memory. */
uint64_t naive_allocate(naive_allocator *naive, uint64_t bytes, uint64_t stream, uint32_t pool);
void naive_request_free(naive_allocator *naive, uint64_t address);
void naive_complete_free(naive_allocator *naive, uint64_t address);
void naive_release(naive_allocator *naive, uint32_t pool);
/* The bytes of the block at the address, which is free or not as `state` says; 0 if there is none. */
uint64_t naive_find(const naive_allocator *naive, uint64_t address, bp_caching_state state);

#endif
