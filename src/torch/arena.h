/* The memory that serves one device of PyTorch, and the order of those who use it one after the other. */
#ifndef BP_TORCH_ARENA_H
#define BP_TORCH_ARENA_H

#include <bucketpool/cuda.h>
#include <bucketpool/torch_allocator.h>

#include "memory/slabs.h"
#include "torch/pieces.h"

#define BP_TORCH_STEP 512u /* of sizes and addresses: what PyTorch divides segments by */
#define BP_TORCH_ALIGNMENT (2u << 20)

typedef struct bp_torch_import {
    uint64_t native;
    bp_stream *stream;
} bp_torch_import;

typedef struct bp_torch_arena {
    bp_device *device;
    int32_t ordinal;
    bp_slabs slabs; /* one, or none where a pool serves */
    bp_pool *pool;
    uint32_t request;
    bp_stream *holder; /* on which the pool's request is held */
    uint8_t *address;
    bp_torch_pieces pieces;
    bp_torch_import *imports; /* streams that PyTorch named */
    size_t import_count, import_capacity;
    bp_torch_statistics statistics;
} bp_torch_arena;

/* All or nothing. */
bp_status bp_torch_arena_create(const bp_torch_config *config, bp_torch_arena **arena);
/* Nothing is live; the device's work is waited for first: where that fails the arena stays. */
bp_status bp_torch_arena_destroy(bp_torch_arena *arena);

bp_status bp_torch_arena_allocate(bp_torch_arena *arena, uint64_t bytes, uint64_t native, void **address);
void bp_torch_arena_free(bp_torch_arena *arena, const void *address, uint64_t native);

#endif
