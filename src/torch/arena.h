/* The memory that serves one device of PyTorch, in pieces, and the order of those who use it one after the other. */
#ifndef BP_TORCH_ARENA_H
#define BP_TORCH_ARENA_H

#include <bucketpool/cuda.h>
#include <bucketpool/device.h>
#include <bucketpool/torch_allocator.h>

#include <stdbool.h>

#include "memory/slabs.h"

/* ---- pieces ------------------------------------------------------------------------------------------------------ */

/* Of a free piece, what its next user has to wait for, from the least to the most.
 * BP_TORCH_CLEAN: nothing. BP_TORCH_MARKED: a point of a stream. BP_TORCH_UNKNOWN: everything on the device. */
typedef enum bp_torch_piece_state {
    BP_TORCH_CLEAN = 0,
    BP_TORCH_MARKED = 1,
    BP_TORCH_UNKNOWN = 2,
    BP_TORCH_LIVE = 3
} bp_torch_piece_state;

typedef struct bp_torch_piece {
    uint64_t offset, bytes;
    bp_torch_piece_state state;
    bool captured;     /* live: handed out to a capture */
    bp_stream *stream; /* marked */
    uint64_t point;
} bp_torch_piece;

typedef struct bp_torch_pieces {
    bp_torch_piece *pieces;
    size_t count, capacity;
} bp_torch_pieces;

/* ---- arenas ------------------------------------------------------------------------------------------------------ */

/* The memory that serves one device of PyTorch, and the order of those who use it one after the other. */

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
