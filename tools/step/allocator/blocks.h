/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of the caching allocator's model, and ordered sets of them. */
#ifndef BP_STEP_BLOCKS_H
#define BP_STEP_BLOCKS_H

#include <bucketpool/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct bp_caching_block bp_caching_block;

struct bp_caching_block {
    uint64_t stream, address, bytes, requested_bytes;
    bp_caching_block *previous, *next; /* of the segment, by address */
    bp_caching_block *left, *right;    /* of the set that it is in, or of the free list of bp_blocks */
    struct bp_blocks_pool *pool;
    struct bp_expandable *expandable; /* NULL: a segment that is allocated at once */
    uint64_t search_base;             /* searches of the pool when the block was freed */
    uint32_t priority;
    bool allocated, pending, mapped;
};

/* A treap by stream, bytes and address; blocks without memory count as 0 bytes. Expected O(log n). */
typedef struct bp_block_set {
    bp_caching_block *root;
} bp_block_set;

/* Small or large blocks of one pool. A block is in the set that its state says, or in none. */
typedef struct bp_blocks_pool {
    bp_block_set free;     /* with memory */
    bp_block_set unmapped; /* addresses of expandable segments */
    uint64_t searches;     /* counted with garbage collection */
    uint32_t number;
    bool is_small, own_allocator, no_split;
} bp_blocks_pool;

typedef struct bp_block_key {
    uint64_t stream, bytes, address;
} bp_block_key;

void bp_block_set_insert(bp_block_set *set, bp_caching_block *added);
void bp_block_set_remove(bp_block_set *set, bp_caching_block *removed);
/* The first block that is not before the key, the first behind it, and the last before it; NULL if there is none. */
bp_caching_block *bp_block_set_from(const bp_block_set *set, bp_block_key key);
bp_caching_block *bp_block_set_after(const bp_block_set *set, bp_block_key key);
bp_caching_block *bp_block_set_before(const bp_block_set *set, bp_block_key key);

static inline bp_block_key bp_block_key_of(const bp_caching_block *block)
{
    return (bp_block_key){block->stream, block->mapped ? block->bytes : 0, block->address};
}

/* Memory of blocks, reused and freed together. */
typedef struct bp_blocks {
    struct bp_blocks_chunk *chunks;
    bp_caching_block *unused;
    uint64_t random;
} bp_blocks;

/* A zeroed block with a priority. Errors: BP_ERR_NO_HOST_MEMORY. */
bp_status bp_blocks_new(bp_blocks *blocks, bp_caching_block **added);
void bp_blocks_return(bp_blocks *blocks, bp_caching_block *returned);
/* Visits the blocks that are in use, in no order. */
void bp_blocks_each(const bp_blocks *blocks, void (*visit)(void *user, const struct bp_caching_block *block),
                    void *user);
void bp_blocks_finish(bp_blocks *blocks);

#endif
