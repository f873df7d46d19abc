/* Devices and streams as the rest of the library sees them: a provider's table with the bookkeeping that all devices
 * share. */
#ifndef BP_DEVICES_DEVICE_H
#define BP_DEVICES_DEVICE_H

#include <bucketpool/device_ops.h>

#include <stdatomic.h>
#include <stdbool.h>

/* Bytes or objects, now and at most. */
typedef struct bp_device_counter {
    _Atomic uint64_t now;
    _Atomic uint64_t peak;
} bp_device_counter;

struct bp_device {
    const bp_device_ops *ops;
    void *self;
    bp_device_traits traits;
    atomic_uint references; /* the caller's, and one for each stream, event and pool */
    bp_device_counter committed_bytes, allocated_bytes, live_streams, live_events;
    atomic_uint stream_numbers;   /* of streams ever made */
    _Atomic(bp_stream *) streams; /* ever made, newest first: their memory stays until the device goes */
};

/* For pools and decorators, which keep their device alive. */
void bp_device_retain(bp_device *device);
void bp_device_release(bp_device *device);

/* Physical memory with the device's usage counted; otherwise the table's commit and decommit. Stream-ordered memory
 * likewise. */
bp_status bp_device_commit(bp_device *device, uint64_t bytes, uint64_t *handle);
bp_status bp_device_decommit(bp_device *device, uint64_t bytes, uint64_t handle);
bp_status bp_device_allocate(bp_device *device, uint64_t bytes, bp_stream *stream, void **address);
bp_status bp_device_free(bp_device *device, void *address, uint64_t bytes, bp_stream *stream);

void bp_device_count(bp_device_counter *counter, uint64_t amount);
void bp_device_discount(bp_device_counter *counter, uint64_t amount);

#define BP_STREAM_POINTS 256u /* events of a stream's timeline; a power of two */

typedef struct bp_stream_points {
    void *events[BP_STREAM_POINTS];
    /* Of each event: a point that it is known to mark, or to mark a younger one than. */
    atomic_uint marked[BP_STREAM_POINTS];
} bp_stream_points;

/* A stream and its timeline: a ring of events made with the stream. Recording a point uses the next event of the
 * ring, so that any number of release points need no further events. The memory of a destroyed stream stays until
 * its device goes, so that calls with it are errors and not crashes. */
struct bp_stream {
    bp_device *device;
    void *raw; /* the provider's stream */
    atomic_bool alive;
    uint32_t number;      /* in the order in which the device made its streams */
    atomic_uint recorded; /* points taken so far; the point itself is the value before its record, modulo 2^32 */
    atomic_uint waiting;  /* calls that read `points` now */
    _Atomic(bp_stream_points *) points; /* NULL: destroyed, all its work is done */
    struct bp_stream *next;             /* of the device's streams */
    char name[48];
};

/* Whether work may be put on the stream: alive, and of this device. Hot. */
static inline bool bp_stream_is_usable(const bp_stream *stream, const bp_device *device)
{
    return stream != NULL && stream->device == device && atomic_load_explicit(&stream->alive, memory_order_relaxed);
}

/* BP_OK, or the error of a stream that is not usable: NULL, destroyed (by name), of another device (names both).
 * Cold. */
bp_status bp_stream_check(const bp_stream *stream, const bp_device *device, const char *function);

/* Marks everything enqueued on the stream so far. Hot: no allocation, no lock of its own. Any thread. After a
 * failure the point is lost, which harms no other. */
bp_status bp_stream_record_point(bp_stream *stream, uint32_t *point);

/* Work enqueued on `waiter` from now on starts after `point` of `stream`, whose record has returned. `stream` may
 * have been destroyed since, or be destroyed meanwhile: then nothing is left to wait for, as destroying waits. Where
 * the ring has gone round since, the oldest point it still has stands in: it is later, so it is safe. Hot. */
bp_status bp_stream_wait_point(bp_stream *waiter, bp_stream *stream, uint32_t point);

/* What is left of a destroyed stream; its device is going. */
void bp_stream_free(bp_stream *stream);

#endif
