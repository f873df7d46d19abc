/* SPDX-License-Identifier: Apache-2.0 */
/* Allocation traces of whole training steps, as PyTorch's CUDA caching allocator records them
 * (torch.cuda.memory._record_memory_history and _dump_snapshot), in memory. Read by formats/snapshots/trace_file.c.
 * Source of the format: docs.pytorch.org, "Understanding CUDA Memory Usage", and c10/cuda/CUDACachingAllocator.h.
 * Host-side only; separate traces may be used by separate threads. */
#ifndef BP_STEPS_TRACE_H
#define BP_STEPS_TRACE_H

#include <bucketpool/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum bp_trace_action {
    BP_TRACE_UNKNOWN, /* counted by bp_trace.unknown_events, with its first name */
    BP_TRACE_ALLOC,
    BP_TRACE_FREE_REQUESTED, /* the tensor is gone; other streams may still use the block */
    BP_TRACE_FREE_COMPLETED, /* the block may serve again */
    BP_TRACE_SEGMENT_ALLOC,
    BP_TRACE_SEGMENT_FREE,
    BP_TRACE_SEGMENT_MAP, /* of an expandable segment */
    BP_TRACE_SEGMENT_UNMAP,
    BP_TRACE_SNAPSHOT,
    BP_TRACE_OOM,        /* bytes: the request; address: free bytes of the device */
    BP_TRACE_EMPTY_CACHE /* torch.cuda.empty_cache, of recordings without segments */
} bp_trace_action;

#define BP_LARGEST_REQUEST ((uint64_t)1 << 60) /* PyTorch refuses so many bytes and more */
#define BP_TRACE_NONE UINT32_MAX               /* no call stack, no segment */

/* Purposes of memory. A recording of bucketpool.torch.trace names them; for others bp_attribution derives them. */
typedef enum bp_memory_kind {
    BP_MEMORY_UNKNOWN,
    BP_MEMORY_PARAMETERS,
    BP_MEMORY_GRADIENTS, /* of parameters */
    BP_MEMORY_OPTIMIZER_STATE,
    BP_MEMORY_ACTIVATIONS,   /* and their gradients */
    BP_MEMORY_LOGITS,        /* their copies and gradients, where the recording names them */
    BP_MEMORY_COMMUNICATION, /* buffers of collectives */
    BP_MEMORY_WORKSPACE,     /* of kernels, and temporaries of the optimizer and of building the model */
    BP_MEMORY_EARLIER,       /* live before the recording */
    BP_MEMORY_KINDS
} bp_memory_kind;

typedef struct bp_trace_event {
    uint64_t address;
    uint64_t bytes;   /* as requested, not rounded, for allocations and frees; of the memory for segments */
    uint64_t time_us; /* never decreases */
    uint32_t stack;   /* index in `stacks`, or BP_TRACE_NONE */
    uint16_t stream;  /* index in `streams` */
    uint8_t action;   /* bp_trace_action */
    uint8_t kind;     /* bp_memory_kind of an allocation, where the recording names it */
} bp_trace_event;

/* The beginning or the end of a range that a program names (torch.profiler.record_function, optimizers, FSDP). */
typedef struct bp_trace_annotation {
    const char *name;
    uint32_t event; /* the first event behind it; event_count: none */
    bool is_end;
    bool is_early; /* before the oldest event */
} bp_trace_annotation;

/* A block of a segment when the snapshot was taken. */
typedef struct bp_trace_block {
    uint64_t address;
    uint64_t bytes;           /* rounded */
    uint64_t requested_bytes; /* 0: not recorded */
    uint32_t segment, stack;
    bool active;       /* allocated, or waiting for a stream */
    bool pending_free; /* waiting for a stream */
} bp_trace_block;

/* Memory that PyTorch had from the driver when the snapshot was taken. */
typedef struct bp_trace_segment {
    uint64_t address, bytes;
    uint64_t pool[2]; /* {0, 0}: the default pool, else a private pool (of graphs, of a MemPool) */
    size_t first_block, block_count;
    uint32_t stack;
    uint16_t stream;
    bool is_large;      /* of the pool of blocks larger than 1 MiB */
    bool is_expandable; /* blocks without memory are not in `blocks`, and bytes counts mapped memory */
} bp_trace_segment;

typedef struct bp_trace_frame {
    const char *file, *function;
    uint64_t line;
} bp_trace_frame;

/* Frames, innermost first. */
typedef struct bp_trace_stack {
    const uint32_t *frames; /* indices in `frames` */
    size_t count;
} bp_trace_stack;

/* Settings of the allocator (PYTORCH_CUDA_ALLOC_CONF), where recorded; 0 and "" otherwise. */
typedef struct bp_trace_settings {
    bool recorded;
    bool expandable_segments;
    uint64_t max_split_bytes; /* 0: unlimited */
    double garbage_collection_threshold;
    uint64_t roundup_power2_divisions[16]; /* for sizes of 1 MiB * 2^i; 0: multiples of 512 bytes */
    const char *text;
} bp_trace_settings;

/* One device's part of a snapshot. `events` in the order of the recording. */
typedef struct bp_trace {
    uint32_t device;
    size_t event_count, segment_count, block_count, stream_count, stack_count, frame_count, annotation_count,
        mark_count;
    bp_trace_event *events;
    bp_trace_annotation *annotations; /* by time */
    uint32_t *marks;                  /* events behind the ends of optimizers, of recordings without annotations */
    bp_trace_segment *segments;       /* by address */
    bp_trace_block *blocks;           /* of all devices of the file, by address within each segment */
    uint64_t *streams;                /* as recorded; the default stream is 0 */
    bp_trace_stack *stacks;
    bp_trace_frame *frames;
    bp_trace_settings settings;
    uint64_t unknown_events; /* of kinds that this library does not know */
    const char *unknown_name;
} bp_trace;

#endif
