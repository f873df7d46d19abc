/* SPDX-License-Identifier: Apache-2.0 */
/* Snapshots of profiles (profile.h, docs/reference/snapshot_files.md), read by bucketpool-formats. For the command
 * (version node BUCKETPOOL_PRIVATE); not installed.
 *
 * Files are pickles of plain data: nothing in them is executed. Numbers are as in the file; references (ids, slabs)
 * have been checked. Errors are those of formats.h: BP_ERR_IO, BP_ERR_FORMAT with the file and the place in it.
 * Texts are UTF-8 without control characters and live as long as the snapshot. Host-side only; separate calls may
 * run in separate threads. */
#ifndef BP_FORMATS_SNAPSHOTS_SNAPSHOT_H
#define BP_FORMATS_SNAPSHOTS_SNAPSHOT_H

#include <bucketpool/pool.h>

typedef struct bp_snapshot bp_snapshot;

/* The caller owns the snapshot. bp_snapshot_destroy accepts NULL and pointers to NULL, and sets *snapshot to NULL. */
BP_API bp_status bp_snapshot_read(const char *path, bp_snapshot **snapshot);
/* `origin`: name of the data in errors. */
BP_API bp_status bp_snapshot_parse(const void *data, size_t bytes, const char *origin, bp_snapshot **snapshot);
BP_API void bp_snapshot_destroy(bp_snapshot **snapshot);

/* A role of the plan; of PyTorch's allocator, a kind of memory. */
typedef struct bp_snapshot_role {
    const char *role;
    uint64_t bytes, lower_bound_bytes;
} bp_snapshot_role;

typedef struct bp_snapshot_slab {
    uint64_t address, bytes, planned_bytes;
    const char *group;
    int resident;          /* at the end of recording */
    int resident_at_start; /* before its first event */
    int is_expandable;     /* a segment of PyTorch: its mapped parts are one range where they touch */
} bp_snapshot_slab;

typedef struct bp_snapshot_request {
    const char *unit, *bucket, *role, *dtype, *placement;
    uint32_t ordinal;
    uint64_t bytes, references;
} bp_snapshot_request;

typedef struct bp_snapshot_stream {
    uint64_t number;
    const char *name;
} bp_snapshot_stream;

/* A request that was live before the oldest event. */
typedef struct bp_snapshot_live {
    uint32_t id;
    uint64_t address, stream, step;
} bp_snapshot_live;

typedef struct bp_snapshot_event {
    bp_pool_event_kind kind;
    uint32_t id;
    uint64_t stream, step, time_ns, address;
} bp_snapshot_event;

typedef struct bp_snapshot_slab_event {
    int gained; /* 1: the range is mapped from then on, 0: unmapped */
    uint32_t slab;
    uint64_t time_ns;
    uint64_t offset, bytes; /* in the slab; of pools: all of it */
} bp_snapshot_slab_event;

/* A member of bp_pool_statistics, by its name. */
typedef struct bp_snapshot_statistic {
    const char *name;
    uint64_t value;
} bp_snapshot_statistic;

typedef struct bp_snapshot_pool {
    const char *name, *allocator, *fingerprint, *device;
    int has_plan, optimal;
    uint64_t plan_bytes, lower_bound_bytes;
    uint64_t lost_events;
    size_t role_count;
    bp_snapshot_role *roles;
    size_t statistic_count;
    bp_snapshot_statistic *statistics;
    size_t slab_count;
    bp_snapshot_slab *slabs;
    size_t request_count;
    bp_snapshot_request *requests;
    size_t stream_count;
    bp_snapshot_stream *streams;
    size_t live_count;
    bp_snapshot_live *live;
    size_t event_count;
    bp_snapshot_event *events; /* in the file's order; times never decrease */
    size_t slab_event_count;
    bp_snapshot_slab_event *slab_events;
    size_t mapped_at_start; /* the first slab_events are of before the first event, of PyTorch's segments */
} bp_snapshot_pool;

typedef struct bp_snapshot_info {
    int is_ours; /* 0: of PyTorch's allocator (tools/view/recording.c), without members of bucketpool */
    const char *version, *label, *coordinates;
    uint32_t rank, ranks;
    int has_step;
    uint64_t step;
    int counts_events;                    /* times are numbers of events, in microseconds */
    uint64_t first_time_ns, last_time_ns; /* of the recording; all events are between them */
    int64_t realtime_offset_ns;           /* added to a time, gives the system's clock */
    size_t pool_count;
    bp_snapshot_pool *pools;
} bp_snapshot_info;

/* The contents. Live as long as the snapshot. NULL for NULL. */
BP_API const bp_snapshot_info *bp_snapshot_get_info(const bp_snapshot *snapshot);

#endif
