/* SPDX-License-Identifier: Apache-2.0 */
/* A model of PyTorch's CUDA caching allocator and of its expandable segments: the same decisions, without memory. Rules of PyTorch 2.11,
 * c10/cuda/CUDACachingAllocator.cpp: https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management describes them.
 *
 *  - Sizes are rounded up: to 512 bytes, or to divisions of powers of two.
 *  - Blocks of at most 1 MiB come from segments of 2 MiB, those below 10 MiB from segments of 20 MiB, larger ones from multiples of 2 MiB.
 *  - Best fit among the free blocks of the stream, then by address. The rest of a block is split off if it has at least 512 bytes (more than
 *    1 MiB for large blocks). A freed block merges with free neighbours.
 *  - When the device has no memory, segments without live blocks are released.
 *
 * Allocation and free take O(log n) for n free blocks; memory is linear in the number of blocks. Host-side only. Separate allocators may be
 * used by separate threads. */
#ifndef BP_STEP_CACHING_ALLOCATOR_H
#define BP_STEP_CACHING_ALLOCATOR_H

#include <bucketpool/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "planner/steps/trace.h"

typedef struct bp_caching_settings {
    bool expandable_segments;
    uint64_t max_split_bytes;     /* blocks of this size are not split; 0: unlimited */
    uint64_t max_rounding_bytes;  /* unused part of an unsplit block, below this; 20 MiB */
    uint64_t large_segment_bytes; /* segments of blocks below 10 MiB, and pages of expandable segments; 20 MiB */
    uint64_t
        roundup_power2_divisions[16]; /* for sizes of 1 MiB * 2^i and, in [0], below; 0 and 1: multiples of 512 bytes */
    double garbage_collection_threshold; /* of limit_bytes; 0: none */
    uint64_t limit_bytes;                /* memory fraction times the device's memory; 0: no limit */
    uint64_t device_bytes;               /* memory of the device; 0: unlimited */
} bp_caching_settings;

/* PyTorch's defaults, without limits. */
void bp_caching_settings_init(bp_caching_settings *settings);

/* The recorded settings where the trace has them, else the defaults. The limits are not recorded. */
void bp_caching_settings_read(const bp_trace *trace, bp_caching_settings *settings);

typedef enum bp_caching_reason {
    BP_CACHING_GARBAGE,  /* garbage collection of old blocks */
    BP_CACHING_OVERSIZE, /* blocks of at least max_split_bytes, after a failed allocation */
    BP_CACHING_CACHED,   /* all unused memory, after a failed allocation or bp_caching_release */
} bp_caching_reason;

/* The device, whose answers a recorded trace can give. A function that is NULL has the default. */
typedef struct bp_caching_device {
    void *user;
    /* A segment: false if the device has no memory. Default: below the earlier ones, as NVIDIA's driver places most, until
     * device_bytes are in use. The order decides between free blocks of one size. */
    bool (*allocate)(void *user, uint64_t bytes, uint64_t *address);
    /* Addresses for an expandable segment. Default: below the earlier ones. */
    bool (*reserve)(void *user, uint64_t bytes, uint64_t *address);
    bool (*map)(void *user, uint64_t address, uint64_t bytes);
    /* A segment is about to be freed, or a range to be unmapped: false keeps it. Default: true. */
    bool (*release)(void *user, bp_caching_reason reason, bool is_mapping, uint64_t address, uint64_t bytes);
    /* An allocation failed, and all unused memory would be released. The function completes pending frees with
     * bp_caching_complete_free. False: nothing is released. Default: true, and pending frees stay. */
    bool (*synchronize)(void *user);
} bp_caching_device;

typedef struct bp_caching_counters {
    uint64_t reserved_bytes, peak_reserved_bytes;   /* of the device */
    uint64_t active_bytes, peak_active_bytes;       /* rounded bytes of blocks, until their free is completed */
    uint64_t requested_bytes, peak_requested_bytes; /* the bytes that were asked for, of these blocks */
    uint64_t segments;                              /* that exist and are not expandable */
    uint64_t device_allocations, device_releases;   /* segments and mapped or unmapped ranges */
    uint64_t retries, failures;                     /* allocations after all unused memory was released; that failed */
} bp_caching_counters;

typedef struct bp_caching_allocator bp_caching_allocator;
typedef struct bp_caching_block bp_caching_block;

/* `device` may be NULL. Both are copied. Errors: BP_ERR_INVALID_ARGUMENT (settings outside their ranges), BP_ERR_NO_HOST_MEMORY. */
bp_status bp_caching_create(const bp_caching_settings *settings, const bp_caching_device *device,
                            bp_caching_allocator **allocator);
void bp_caching_destroy(bp_caching_allocator **allocator);

/* Pool 0 is the default one; others are private pools (of graphs, of a MemPool), which exist from their first use. `own_allocator`: segments
 * come from the pool's own allocator, so they do not expand. `no_split`: a block is a segment. */
bp_status bp_caching_set_pool(bp_caching_allocator *allocator, uint32_t number, bool own_allocator, bool no_split);

/* Streams are their handles, which order blocks. `bytes` is not 0. Errors: BP_ERR_NO_DEVICE_MEMORY, BP_ERR_OVERFLOW (1 EiB and more),
 * BP_ERR_NO_HOST_MEMORY (the allocator cannot be used further). */
bp_status bp_caching_allocate(bp_caching_allocator *allocator, uint64_t bytes, uint64_t stream, uint32_t pool,
                              bp_caching_block **allocated);

/* The tensor is gone. The block stays active until the free is completed. */
void bp_caching_request_free(bp_caching_allocator *allocator, bp_caching_block *freed);
/* The block may serve again, and is invalid afterwards. Includes the request if there was none. */
void bp_caching_complete_free(bp_caching_allocator *allocator, bp_caching_block *freed);

/* Releases unused memory of a pool, as torch.cuda.empty_cache does for pool 0. Does not complete pending frees. Errors:
 * BP_ERR_NO_HOST_MEMORY. */
bp_status bp_caching_release(bp_caching_allocator *allocator, uint32_t pool);

/* Bytes that are asked from the device for a request which no free block serves. */
uint64_t bp_caching_segment_bytes(const bp_caching_settings *settings, uint64_t bytes);

/* True if a free block would serve the request: no memory of the device is needed. */
bool bp_caching_is_cached(const bp_caching_allocator *allocator, uint64_t bytes, uint64_t stream, uint32_t pool);

uint64_t bp_caching_round(const bp_caching_settings *settings, uint64_t bytes);

uint64_t bp_caching_address(const bp_caching_block *block);
uint64_t bp_caching_bytes(const bp_caching_block *block);
const bp_caching_counters *bp_caching_get_counters(const bp_caching_allocator *allocator);

/* ---- states ------------------------------------------------------------------------------------------------------ */

typedef enum bp_caching_state {
    BP_CACHING_FREE,
    BP_CACHING_ALLOCATED,
    BP_CACHING_PENDING, /* free requested */
    BP_CACHING_UNMAPPED /* addresses of an expandable segment */
} bp_caching_state;

typedef struct bp_caching_piece {
    uint64_t bytes, requested_bytes;
    bp_caching_state state;
} bp_caching_piece;

typedef struct bp_caching_segment {
    uint64_t address, stream;
    uint32_t pool;
    bool is_small, is_expandable;
} bp_caching_segment;

/* Adds a segment whose pieces follow each other. `blocks` receives the block of each piece. No free piece may follow a free one. Errors:
 * BP_ERR_INVALID_ARGUMENT, BP_ERR_NO_HOST_MEMORY. */
bp_status bp_caching_add_segment(bp_caching_allocator *allocator, const bp_caching_segment *segment,
                                 const bp_caching_piece *pieces, size_t count, bp_caching_block **blocks);

/* True if the segment's pool has this very block, and the block is free. */
bool bp_caching_is_free(const bp_caching_allocator *allocator, const bp_caching_segment *segment, uint64_t address,
                        uint64_t bytes);

/* Visits each block of each segment: blocks of a segment follow each other, segments are in no order. */
typedef void bp_caching_visitor(void *user, const bp_caching_segment *segment, uint64_t address,
                                const bp_caching_piece *piece);
void bp_caching_visit(const bp_caching_allocator *allocator, bp_caching_visitor *visit, void *user);

#endif
