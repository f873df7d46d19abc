/* Devices and streams as the rest of the library sees them: a provider's table with the bookkeeping that all devices
 * share. */
#ifndef BP_DEVICES_DEVICE_H
#define BP_DEVICES_DEVICE_H

#include <bucketpool/device_ops.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "core/process.h"
#include "devices/clients.h"

/* Bytes or objects, now and at most. */
typedef struct bp_device_counter {
    _Atomic uint64_t now;
    _Atomic uint64_t peak;
} bp_device_counter;

struct bp_device {
    bp_device_ops table;      /* the provider's, copied */
    const bp_device_ops *ops; /* that table */
    void *self;
    bp_device_traits traits;
    const bp_device *decorated; /* whose streams and memory this device hands through; NULL: none */
    bp_process process;         /* that made it */
    atomic_uint references;     /* the caller's, and one for each stream, event and pool */
    bp_device_counter committed_bytes, allocated_bytes, live_streams, live_events;
    atomic_uint captured_pools;   /* of which a capture has begun and not ended */
    atomic_uint stream_numbers;   /* of streams ever made */
    _Atomic(bp_stream *) streams; /* ever made, newest first: their memory stays until the device goes */
    pthread_mutex_t rings_lock;   /* of unused_rings; not on any hot path */
    struct bp_stream_points *unused_rings;
};

/* Devices, and what is made of them, serve the process that made them. In a forked child calls are refused, and what destroys leaves
 * everything as it is: threads and locks of the parent are not there, and pages that nobody writes to are shared with it. */
static inline bool bp_device_is_here(const bp_device *device)
{
    return bp_process_is_here(&device->process);
}

/* BP_OK, or the error of a call in a forked child. */
static inline bp_status bp_device_check(const bp_device *device, const char *function)
{
    return bp_process_check(&device->process, function, "device", device->ops->name);
}

/* For pools and decorators, which keep their device alive. */
void bp_device_retain(bp_device *device);
void bp_device_release(bp_device *device);

/* The table and self of a device: for decorators. Valid while the device lives. */
BP_API const bp_device_ops *bp_device_table(const bp_device *device, void **self);

/* The device under its decorators; itself, where there are none. */
static inline const bp_device *bp_device_undecorated(const bp_device *device)
{
    while (device->decorated != NULL)
        device = device->decorated;
    return device;
}

/* Physical memory with the device's usage counted; otherwise the table's commit and decommit. Stream-ordered memory
 * likewise. */
bp_status bp_device_commit(bp_device *device, uint64_t bytes, uint64_t *handle);
bp_status bp_device_decommit(bp_device *device, uint64_t bytes, uint64_t handle);
bp_status bp_device_allocate(bp_device *device, uint64_t bytes, bp_stream *stream, void **address);
bp_status bp_device_free(bp_device *device, void *address, uint64_t bytes, bp_stream *stream);

void bp_device_count(bp_device_counter *counter, uint64_t amount);
void bp_device_discount(bp_device_counter *counter, uint64_t amount);

#define BP_STREAM_POINTS 256u /* events of a stream's timeline; a power of two */

/* Rings outlive their streams: a call that is still looking at the points of a stream whose work is done may wait for
 * nothing, or for a later stream that has taken the ring over; never for too little. */
typedef struct bp_stream_points {
    void *events[BP_STREAM_POINTS];
    /* Of each event: a point that it is known to mark, or to mark a younger one than. */
    _Atomic uint64_t marked[BP_STREAM_POINTS];
    struct bp_stream_points *next; /* of the device's unused rings */
} bp_stream_points;

/* A stream and its timeline: a ring of events made with the stream. Recording a point uses the next event of the
 * ring, so that any number of release points need no further events. The memory of a destroyed stream stays until
 * its device goes, so that calls with it are errors and not crashes. */
struct bp_stream {
    bp_device *device;
    void *raw; /* the provider's stream */
    atomic_bool alive;
    atomic_bool closing;       /* the provider is ending it: `raw` must not be used any more */
    atomic_bool over;          /* destroyed, and all its work is done: nothing of it is waited for any more */
    uint32_t number;           /* in the order in which the device made its streams */
    _Atomic uint64_t recorded; /* points taken so far; a point is the value before its record */
    _Atomic uint64_t through;  /* calls that took one and no longer use `raw` */
    bp_stream_points *points;
    /* Of points inside captures, apart: an event that a capture has recorded cannot be waited for outside, so it must not stand in
     * for one of another pool's. Made when a pool is first captured; NULL: not yet. */
    _Atomic(bp_stream_points *) captured;
    struct bp_stream *next; /* of the device's streams */
    char name[48];
};

/* Whether work may be put on the stream: alive, and of this device. Hot. */
static inline bool bp_stream_is_usable(const bp_stream *stream, const bp_device *device)
{
    return stream != NULL && stream->device == device && atomic_load_explicit(&stream->alive, memory_order_relaxed);
}

/* Frees the rings that no stream has; the device is going. */
void bp_stream_free_rings(bp_device *device);
void bp_stream_free(bp_stream *stream);

/* Whether nothing of a stream has to be waited for any more. A stream that is being destroyed is not over yet. */
static inline bool bp_stream_is_over(const bp_stream *stream)
{
    return atomic_load_explicit(&stream->over, memory_order_acquire);
}

/* Marks everything enqueued on the stream so far. *recorded is false, and *point not written, when its work is done and the stream is over. May run
 * beside destroying the stream: pools do that without the caller knowing. Hot: no allocation, no lock of its own. Any thread.
 * After a failure the point is lost, which harms no other. */
bp_status bp_stream_record_point(bp_stream *stream, uint64_t *point, bool *recorded);

/* Work enqueued on `waiter` from now on starts after `point` of `stream`, whose record has returned. `stream` may
 * have been destroyed since, or be destroyed meanwhile: then nothing is left to wait for, as destroying waits. Where
 * the ring has gone round since, the oldest point it still has stands in: it is later, so it is safe. Hot. */
bp_status bp_stream_wait_point(bp_stream *waiter, bp_stream *stream, uint64_t point);

/* The same inside a capture that was declared: a younger point may stand in for one of this capture more than 255 points ago.
 * Errors: BP_ERR_CAPTURE: the stream was made after bp_stream_prepare_captures. */
bp_status bp_stream_record_captured(bp_stream *stream, uint64_t *point, bool *recorded);
bp_status bp_stream_wait_captured(bp_stream *waiter, bp_stream *stream, uint64_t point);
/* Makes what the two need for every stream that lives now. Cold. */
bp_status bp_stream_prepare_captures(bp_device *device);

/* The host waits for the stream's work. Like record_point beside destroying. */
bp_status bp_stream_quiesce(bp_stream *stream);

/* ---- reserved address space ---------------------------------------------------------------------------------------- */

/* Of the process, for devices whose addresses are the process's own. What is mapped with MAP_FIXED is checked against it, so that a wrong
 * address is an error and does not overwrite the program. Any thread. */
typedef struct bp_address_range {
    void *address;
    uint64_t bytes;
} bp_address_range;

typedef struct bp_address_space {
    const char *device; /* its name, for messages */
    uint64_t granularity;
    pthread_mutex_t lock;
    bp_address_range *ranges;
    size_t count, capacity;
} bp_address_space;

void bp_address_space_init(bp_address_space *space, const char *device, uint64_t granularity);
/* Gives back what is still reserved. */
void bp_address_space_finish(bp_address_space *space);

/* The functions reserve and unreserve of a device whose struct begins with its address space. */
bp_status bp_address_space_reserve(void *self, uint64_t bytes, uint64_t alignment, void **address);
bp_status bp_address_space_unreserve(void *self, void *address, uint64_t bytes);

/* Sizes that reserve, commit and map take: not 0, multiples of the granularity. */
bp_status bp_address_space_check_bytes(const bp_address_space *space, uint64_t bytes, const char *operation);
/* BP_OK where [address, address + bytes) is reserved and both are multiples of `step`. */
bp_status bp_address_space_check(bp_address_space *space, const void *address, uint64_t bytes, uint64_t step,
                                 const char *operation);

#endif
