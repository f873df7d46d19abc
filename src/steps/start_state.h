/* The state of PyTorch's allocator before an event of a trace: the events are undone, beginning with the state in the snapshot. */
#ifndef BP_STEPS_START_STATE_H
#define BP_STEPS_START_STATE_H

#include "steps/caching_allocator.h"
#include "steps/trace.h"

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
bp_status bp_start_state_find(const bp_trace *trace, const bp_caching_settings *settings, size_t event,
                              bp_start_state *state);
void bp_start_state_finish(bp_start_state *state);

/* The pool of an event: recorded, or that of the segment at its address in the snapshot, or 0. */
uint32_t bp_trace_pool_of(const bp_trace *trace, const bp_trace_event *event);
/* The number of a pool; 0 if `pools` lacks it. */
uint32_t bp_trace_pool_number(const bp_trace *trace, const uint64_t pool[2]);

#endif
