/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that found no memory ("oom" events): the state of PyTorch's allocator at that moment. */
#ifndef BP_STEP_FAILED_REQUEST_H
#define BP_STEP_FAILED_REQUEST_H

#include "planner/steps/trace.h"

/* Free memory that PyTorch had from the driver, of one stream and pool, small or large blocks. */
typedef struct bp_free_memory {
    uint64_t stream; /* handle */
    uint32_t pool;   /* 0: the default pool, else a private one */
    bool is_small;   /* serves requests of up to 1 MiB */
    uint64_t bytes, largest_bytes;
    uint64_t page_bytes; /* of whole pages of 2 MiB, which expandable segments can give back and map elsewhere */
    size_t ranges;
} bp_free_memory;

typedef struct bp_failed_request {
    uint32_t event;
    uint64_t rounded_bytes;  /* a free range that is as large serves the request */
    uint64_t needed_bytes;   /* PyTorch asks the device for a segment of this size */
    uint64_t reserved_bytes; /* that PyTorch had from the driver; 0: the recording has no segments */
    uint64_t pending_bytes;  /* of tensors that are gone, whose blocks other streams may still use */
    bp_free_memory *free;    /* largest range first */
    size_t free_count;
} bp_failed_request;

/* O(e log e) for e events. The caller owns the result: bp_failed_request_finish. Errors: BP_ERR_INVALID_ARGUMENT (not an
 * oom event), BP_ERR_NO_HOST_MEMORY. */
bp_status bp_failed_request_init(const bp_trace *trace, uint32_t event, bp_failed_request *request);
void bp_failed_request_finish(bp_failed_request *request);

/* Reasons of a failure, from the free memory at that moment. */
typedef enum bp_failure_reason {
    BP_FAILURE_LIMIT,   /* the device had room: a limit of the process, or others had it at that moment */
    BP_FAILURE_RANGE,   /* a range is large enough: max_split_size, or memory of a private pool that is gone */
    BP_FAILURE_PIECES,  /* whole free pages of the stream and the device are enough together */
    BP_FAILURE_OTHERS,  /* a range of another stream, pool or size class is large enough */
    BP_FAILURE_SPLIT,   /* enough in all, in ranges that no setting joins */
    BP_FAILURE_PENDING, /* enough with what other streams may still use */
    BP_FAILURE_FULL     /* not enough in all */
} bp_failure_reason;

/* The first that holds. *missing: bytes that are not free anywhere, for BP_FAILURE_FULL, else 0. */
bp_failure_reason bp_failed_request_reason(const bp_trace *trace, const bp_failed_request *request, uint64_t *missing);

/* True if free memory is of the request's stream, of the default pool and of its size class. */
static inline bool bp_free_memory_is_own(const bp_free_memory *memory, const bp_trace *trace,
                                         const bp_failed_request *request)
{
    return memory->stream == trace->streams[trace->events[request->event].stream] && memory->pool == 0 &&
           memory->is_small == (request->rounded_bytes <= (1u << 20));
}

#endif
