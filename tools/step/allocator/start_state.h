/* SPDX-License-Identifier: Apache-2.0 */
/* The state of PyTorch's allocator before an event of a trace: the events are undone, beginning with the state in the snapshot. */
#ifndef BP_STEP_START_STATE_H
#define BP_STEP_START_STATE_H

#include "planner/steps/trace.h"
#include "step/allocator/caching_allocator.h"

/* The pools of a trace: 0 is the default one. Events do not name their pool: it is that of the segment at their address, from its allocation
 * to the snapshot. A private pool's segment that was freed before the snapshot counts as one of the default pool. */
typedef struct bp_trace_pools {
    uint32_t *of_segment;
    uint32_t *of_event; /* NULL: all are of the default pool */
} bp_trace_pools;

/* O(e log n) for e events and n segments. The caller finishes the pools, on failure too. Errors: BP_ERR_NO_HOST_MEMORY. */
bp_status bp_trace_pools_init(bp_trace_pools *pools, const bp_trace *trace);
void bp_trace_pools_finish(bp_trace_pools *pools);
/* Tells an allocator which pools have private allocators: their segments do not expand although others do. */
bp_status bp_trace_pools_apply(const bp_trace_pools *pools, const bp_trace *trace, const bp_caching_settings *settings,
                               bp_caching_allocator *allocator);

static inline uint32_t bp_trace_pool(const bp_trace_pools *pools, size_t event)
{
    return pools->of_event == NULL ? 0 : pools->of_event[event];
}

typedef struct bp_start_block {
    uint64_t address, bytes, requested_bytes;
    uint64_t stream; /* handle */
    uint32_t pool;
    bool is_pending;
    bool is_exact; /* `bytes` was recorded or derived; else it may be more, by at most 1 MiB */
    bool is_used;  /* while events are undone */
} bp_start_block;

typedef struct bp_start_segment {
    uint64_t address, bytes; /* of a segment, or of a mapped range */
    uint64_t base;           /* where the addresses of the expandable segment begin; else the address */
    uint64_t stream;
    uint32_t pool;
    bool is_small, is_expandable, is_used;
} bp_start_segment;

typedef struct bp_start_state {
    bp_start_block *blocks; /* active ones, by address; they do not overlap */
    size_t block_count, block_capacity;
    bp_start_segment *segments; /* by address */
    size_t segment_count, segment_capacity;
    uint64_t contradictions; /* blocks without a segment, or over others; events that cannot be undone */
} bp_start_state;

/* The state before events[event]. O(e log n). The caller finishes the state, on failure too. Errors: BP_ERR_NO_HOST_MEMORY. */
bp_status bp_start_state_find(const bp_trace *trace, const bp_trace_pools *pools, const bp_caching_settings *settings,
                              size_t event, bp_start_state *state);
void bp_start_state_finish(bp_start_state *state);

/* True if memory goes back to the device. */
static inline bool bp_trace_is_release(unsigned action)
{
    return action == BP_TRACE_SEGMENT_FREE || action == BP_TRACE_SEGMENT_UNMAP;
}

/* The handle of a stream. */
static inline uint64_t bp_trace_stream(const bp_trace *trace, uint16_t stream)
{
    return stream < trace->stream_count ? trace->streams[stream] : stream;
}

#endif
