/* A trace of PyTorch's allocator that is being read. */
#ifndef BP_FORMATS_SNAPSHOT_TORCH_H
#define BP_FORMATS_SNAPSHOT_TORCH_H

#include "formats/snapshot_file.h"

typedef enum bp_torch_action {
    BP_TORCH_OTHER,
    BP_TORCH_ALLOC,
    BP_TORCH_FREE,
    BP_TORCH_MAP,
    BP_TORCH_UNMAP
} bp_torch_action;

typedef struct bp_torch_event {
    uint64_t address, bytes, stream, time_ns;
    bp_pickle_ref frames;
    uint32_t request; /* of allocations and their ends */
    bp_torch_action action;
} bp_torch_event;

/* Something that happens at an address: an event of the trace or, without one, a block of the end. */
typedef struct bp_torch_moment {
    uint64_t address, bytes;
    uint32_t event : 31, allocates : 1; /* BP_TORCH_END: a block of the end */
    bp_pickle_ref frames;
} bp_torch_moment;
#define BP_TORCH_END 0x7fffffffu

/* Its arrays are freed when the device has been read; the pool stays. */
typedef struct bp_torch_device {
    bp_snapshot_reader *reader;
    bp_snapshot_pool *pool;
    size_t number;
    bp_torch_event *events;
    size_t event_count, mapping_count;
    bp_torch_moment *moments;
    size_t moment_count;
    uint64_t *mapped; /* bytes of each slab, now */
} bp_torch_device;

static inline bool bp_torch_is_mapping(const bp_torch_event *event)
{
    return event->action == BP_TORCH_MAP || event->action == BP_TORCH_UNMAP;
}

/* snapshot_segments.c: makes slabs of the segments that are there at the end, and of all that the trace has. */
bp_status bp_torch_find_slabs(bp_torch_device *d);

#endif
