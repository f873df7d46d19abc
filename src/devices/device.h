/* SPDX-License-Identifier: Apache-2.0 */
/* Devices and streams: a provider's table, and the bookkeeping that all devices share. */
#ifndef BP_DEVICES_DEVICE_H
#define BP_DEVICES_DEVICE_H

#include <bucketpool/device_ops.h>
#include <bucketpool/kernels.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "core/process.h"

/* Bytes or objects: the present value and the high-water mark. */
typedef struct bp_device_counter {
    _Atomic uint64_t now;
    _Atomic uint64_t peak;
} bp_device_counter;

struct bp_device {
    bp_device_ops table;      /* copy of the provider's table */
    const bp_device_ops *ops; /* that table */
    void *self;
    bp_device_traits traits;
    const bp_device *decorated; /* device whose streams and memory this decorator forwards; NULL: none */
    bp_process process;         /* process that made the device */
    atomic_uint references;     /* the caller's, and one per stream, event and pool */
    bp_device_counter committed_bytes, allocated_bytes, live_streams, live_events;
    atomic_uint captured_pools;   /* pools being captured */
    atomic_uint stream_numbers;   /* number of streams ever made */
    _Atomic(bp_stream *) streams; /* all streams ever made, newest first: their structs live as long as the device */
    pthread_mutex_t rings_lock;   /* protects unused_rings; not on a hot path */
    struct bp_stream_points *unused_rings;
};

/* Devices and their objects serve the process that made them. In a forked child, which lacks the parent's threads and may inherit held
 * locks, calls are refused. Destroying there frees nothing: pages that are not written stay shared with the parent. */
static inline bool bp_device_is_here(const bp_device *device)
{
    return bp_process_is_here(&device->process);
}

/* BP_OK, or the error of a call in a forked child. */
static inline bp_status bp_device_check(const bp_device *device, const char *function)
{
    if (bp_device_is_here(device)) /* before the name is read */
        return BP_OK;
    return bp_process_fail(&device->process, function, "device", device->ops->name);
}

/* Adds a reference; used by pools and decorators. */
void bp_device_retain(bp_device *device);
void bp_device_release(bp_device *device);

/* The table and self of a device, for decorators. Valid while the device lives. */
BP_API const bp_device_ops *bp_device_table(const bp_device *device, void **self);

/* The device below all decorators. */
static inline const bp_device *bp_device_undecorated(const bp_device *device)
{
    while (device->decorated != NULL)
        device = device->decorated;
    return device;
}

/* Commits or decommits physical memory and counts it in the device's usage; likewise for stream-ordered memory. */
bp_status bp_device_commit(bp_device *device, uint64_t bytes, uint64_t *handle);
bp_status bp_device_decommit(bp_device *device, uint64_t bytes, uint64_t handle);
bp_status bp_device_allocate(bp_device *device, uint64_t bytes, bp_stream *stream, void **address);
bp_status bp_device_free(bp_device *device, void *address, uint64_t bytes, bp_stream *stream);

void bp_device_count(bp_device_counter *counter, uint64_t amount);
void bp_device_discount(bp_device_counter *counter, uint64_t amount);

#define BP_STREAM_POINTS 256u /* events per timeline; a power of two */

/* A ring outlives its stream. A call that still reads the points of a completed stream then waits for nothing, or for the later stream
 * that reuses the ring, but never too briefly. */
typedef struct bp_stream_points {
    void *events[BP_STREAM_POINTS];
    /* Per event: a point such that the event marks this point or a later one. */
    _Atomic uint64_t marked[BP_STREAM_POINTS];
    struct bp_stream_points *next; /* list of the device's unused rings */
} bp_stream_points;

/* A stream and its timeline, a ring of events made with the stream. Recording a point takes the next event of the ring, so that any
 * number of releases needs no further events. The struct of a destroyed stream lives as long as its device: calls with it return
 * errors. */
struct bp_stream {
    bp_device *device;
    void *raw; /* the provider's stream */
    atomic_bool alive;
    atomic_bool closing;       /* the provider is destroying it: `raw` must not be used */
    atomic_bool over;          /* destroyed and all its work complete: no wait is needed */
    uint32_t number;           /* order of creation on the device */
    _Atomic uint64_t recorded; /* points taken so far; a point is the value before it was recorded */
    _Atomic uint64_t through;  /* calls that took a number and no longer use `raw` */
    bp_stream_points *points;
    /* Ring of points inside captures. Separate, because an event recorded in a capture cannot be waited for outside, and so must not
     * replace an event of another pool's points. Made by bp_stream_prepare_captures; NULL: not yet. */
    _Atomic(bp_stream_points *) captured;
    struct bp_stream *next; /* list of the device's streams */
    char name[48];
};

/* True if work may be enqueued: the stream is alive and of this device. Hot path. */
static inline bool bp_stream_is_usable(const bp_stream *stream, const bp_device *device)
{
    return stream != NULL && stream->device == device && atomic_load_explicit(&stream->alive, memory_order_relaxed);
}

/* Frees the unused rings when the device is destroyed. */
void bp_stream_free_rings(bp_device *device);
void bp_stream_free(bp_stream *stream);

/* True if the stream is destroyed and its work complete. False while it is being destroyed. */
static inline bool bp_stream_is_over(const bp_stream *stream)
{
    return atomic_load_explicit(&stream->over, memory_order_acquire);
}

/* Records a point that covers all work enqueued so far. If the stream is over, *recorded is false and *point is not written. May run
 * concurrently with destroying the stream, which pools cannot prevent. Hot path: no allocation, no lock. Any thread. A failure loses only
 * this point. */
bp_status bp_stream_record_point(bp_stream *stream, uint64_t *point, bool *recorded);

/* Orders later work on `waiter` after `point` of `stream`, whose record has returned. `stream` may be destroyed before or concurrently:
 * destroying waits for its work. If the ring has wrapped since, waits for the oldest point that it still has, which is later and so safe.
 * Hot path. */
bp_status bp_stream_wait_point(bp_stream *waiter, bp_stream *stream, uint64_t point);

/* The same inside a declared capture. If `point` is more than 255 points old, a later one of the same capture replaces it. Errors:
 * BP_ERR_CAPTURE: the stream was made after bp_stream_prepare_captures. */
bp_status bp_stream_record_captured(bp_stream *stream, uint64_t *point, bool *recorded);
bp_status bp_stream_wait_captured(bp_stream *waiter, bp_stream *stream, uint64_t point);
/* Makes the rings for captures of every living stream. Cold path. */
bp_status bp_stream_prepare_captures(bp_device *device);

/* Blocks the host until the stream's work is complete. May run concurrently with destroying it, like record_point. */
bp_status bp_stream_quiesce(bp_stream *stream);

/* ---- reserved address space ---------------------------------------------------------------------------------------- */

/* Address space reserved by devices whose addresses are those of the process. MAP_FIXED mappings are checked against it, so that a wrong
 * address is an error and does not overwrite the program. Any thread. */
typedef struct bp_address_range {
    void *address;
    uint64_t bytes;
} bp_address_range;

typedef struct bp_address_space {
    const char *device; /* device name, for messages */
    uint64_t granularity;
    pthread_mutex_t lock;
    bp_address_range *ranges;
    size_t count, capacity;
} bp_address_space;

void bp_address_space_init(bp_address_space *space, const char *device, uint64_t granularity);
/* Releases the remaining reservations. */
void bp_address_space_finish(bp_address_space *space);

/* reserve and unreserve of a device whose struct begins with its address space. */
bp_status bp_address_space_reserve(void *self, uint64_t bytes, uint64_t alignment, void **address);
bp_status bp_address_space_unreserve(void *self, void *address, uint64_t bytes);

/* Checks the size of a reserve, commit or map: not 0, a multiple of the granularity. */
bp_status bp_address_space_check_bytes(const bp_address_space *space, uint64_t bytes, const char *operation);
/* BP_OK if [address, address + bytes) is reserved and both are multiples of `step`. */
bp_status bp_address_space_check(bp_address_space *space, const void *address, uint64_t bytes, uint64_t step,
                                 const char *operation);

#endif
