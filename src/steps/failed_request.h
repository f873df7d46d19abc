/* Requests that found no memory ("oom" events): the state of PyTorch's allocator at that moment. */
#ifndef BP_STEPS_FAILED_REQUEST_H
#define BP_STEPS_FAILED_REQUEST_H

#include "steps/trace.h"

/* Free memory that PyTorch had from the driver, of one stream and pool, small or large blocks. */
typedef struct bp_free_memory {
    uint64_t stream; /* handle */
    uint32_t pool;   /* 0: the default pool, else a private one */
    bool is_small;   /* serves requests of up to 1 MiB */
    uint64_t bytes, largest_bytes;
    uint64_t
        cached_bytes; /* segments without live blocks: freed before the request failed, unless they are of a private pool */
    size_t ranges;
} bp_free_memory;

typedef struct bp_failed_request {
    uint32_t event;
    uint64_t reserved_bytes; /* that PyTorch had from the driver; 0: the recording has no segments */
    uint64_t pending_bytes;  /* of tensors that are gone, whose blocks other streams may still use */
    bp_free_memory *free;    /* largest range first */
    size_t free_count;
} bp_failed_request;

/* O(e log e) for e events. The caller owns the result: bp_failed_request_finish. Errors: BP_ERR_INVALID_ARGUMENT (not an
 * oom event), BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_failed_request_init(const bp_trace *trace, uint32_t event, bp_failed_request *request);
BP_API void bp_failed_request_finish(bp_failed_request *request);

/* True if free memory can serve the request: of its stream, the default pool and its size class. */
static inline bool bp_free_memory_serves(const bp_free_memory *memory, const bp_trace *trace, uint32_t event)
{
    const bp_trace_event *e = &trace->events[event];
    return memory->stream == trace->streams[e->stream] && memory->pool == 0 &&
           memory->is_small == (e->bytes <= (1u << 20));
}

#endif
