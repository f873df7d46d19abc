/** @file
 * For providers: the table of functions that makes a device. Users of devices read device.h.
 *
 * A device gives address space, physical memory, streams and events. Streams are ordered queues of work that runs
 * asynchronously to the host; an event marks the point that a stream has reached when it is recorded. Nothing here knows
 * CUDA: the host device is built from the same table.
 *
 * Every function gets the provider's `self` first. All may be called from any thread at once, except that two threads
 * never destroy one object. Functions that return bp_status record a detail (bp_error_record) where they decide to fail
 * and write their outputs only on success. Sizes are multiples of traits.granularity unless said otherwise.
 *
 * event_record and stream_wait are on the acquire/release path of pools: they must not allocate, synchronise or lock.
 *
 * A provider's table may be shorter than the library's, of an older header: functions after its end are missing ones.
 *
 * Source of the shape: UMF's memory provider tables; CUDA's virtual memory management for
 * reserve, commit, map. */
#ifndef BUCKETPOOL_DEVICE_OPS_H
#define BUCKETPOOL_DEVICE_OPS_H

#include <bucketpool/device.h>

#ifdef __cplusplus
extern "C" {
#endif

/** What a device can do; constant for its life. */
typedef struct bp_device_traits {
    size_t size;              /**< set by the library: `traits` fills at most so many bytes, and leaves it alone */
    uint64_t granularity;     /**< bytes, a power of two: reserve, commit and map take multiples of it */
    uint64_t page_bytes;      /**< protect takes multiples of it; 0: no protection */
    uint32_t host_accessible; /**< 1: the host may read and write mapped memory */
    uint32_t no_memory;       /**< 1: addresses have no memory behind them (the null device) */
} bp_device_traits;

typedef enum bp_access { BP_ACCESS_NONE = 0, BP_ACCESS_READ_WRITE = 1 } bp_access;

typedef struct bp_device_ops {
    size_t size;      /**< sizeof(bp_device_ops) */
    const char *name; /**< "host"; static */
    /** Called once, when nothing uses the device any more: every stream and event is destroyed, everything is unmapped. */
    void (*destroy)(void *self);
    bp_status (*traits)(void *self, bp_device_traits *traits);

    /** Address space without memory; touching it faults. `alignment` is a power of two, at least the granularity. */
    bp_status (*reserve)(void *self, uint64_t bytes, uint64_t alignment, void **address);
    bp_status (*unreserve)(void *self, void *address, uint64_t bytes);
    /** Physical memory as one handle; what it holds is not specified. BP_ERR_NO_DEVICE_MEMORY when the device has too little, naming bytes wanted
     * and left; BP_ERR_NO_HOST_MEMORY when the host has no room to keep track of it. */
    bp_status (*commit)(void *self, uint64_t bytes, uint64_t *handle);
    bp_status (*decommit)(void *self, uint64_t handle);
    /** Puts a whole handle at a reserved address, readable and writable. A handle may be mapped again after unmap and keeps
     * its bytes. */
    bp_status (*map)(void *self, void *address, uint64_t bytes, uint64_t handle);
    bp_status (*unmap)(void *self, void *address, uint64_t bytes);
    /** Of mapped memory, multiples of page_bytes. NULL where page_bytes is 0. */
    bp_status (*protect)(void *self, void *address, uint64_t bytes, bp_access access);

    /** Memory of any size in stream order, aligned to 256 bytes, outside all slabs (what is freed may count against the device until the
     * stream gets there): it may be used by work that is enqueued on
     * `stream` after allocate, until work that is enqueued before free. What allocators without a pool use. */
    bp_status (*allocate)(void *self, uint64_t bytes, void *stream, void **address);
    bp_status (*free)(void *self, void *address, uint64_t bytes, void *stream);

    bp_status (*stream_create)(void *self, void **stream);
    /** A stream that somebody else made, by its native handle; NULL where there is no such thing. */
    bp_status (*stream_import)(void *self, uint64_t native, void **stream);
    /** Waits for the stream's work first. Imported streams live on. Where it fails the stream still takes work and events until the
     * device goes. */
    bp_status (*stream_destroy)(void *self, void *stream);
    bp_status (*stream_synchronize)(void *self, void *stream);
    bp_status (*synchronize)(void *self);
    /** Work on a stream: a function called by a thread of the device, bytes filled, bytes copied. Any size and alignment. */
    bp_status (*call)(void *self, void *stream, bp_host_function *function, void *argument);
    bp_status (*fill)(void *self, void *stream, void *address, uint8_t value, uint64_t bytes);
    bp_status (*copy)(void *self, void *stream, void *to, const void *from, uint64_t bytes);

    bp_status (*event_create)(void *self, void **event);
    bp_status (*event_destroy)(void *self, void *event);
    /** Marks everything enqueued on `stream` so far. Recording again moves the mark; waits made before keep the old one. */
    bp_status (*event_record)(void *self, void *event, void *stream);
    /** Work enqueued on `stream` from now on starts after what the event marks. An event never recorded marks nothing. */
    bp_status (*stream_wait)(void *self, void *stream, void *event);
    bp_status (*event_synchronize)(void *self, void *event);

    /** The stream's native handle, as stream_import takes; NULL where there is no such thing. */
    bp_status (*stream_native)(void *self, void *stream, uint64_t *native);

    /** Host memory that copies read and write without a detour; whole pages. Both or neither. */
    bp_status (*pin)(void *self, void *address, uint64_t bytes);
    bp_status (*unpin)(void *self, void *address, uint64_t bytes);

    /** Capture of work into graphs; all five or none. Between begin and end what is enqueued on `stream`, and on streams that
     * have waited for an event of it, is kept and not run. `capture_of` gives a number that tells captures apart; 0: the stream
     * runs its work. `graph_end` ends a capture that went wrong too, and returns then what was wrong. */
    bp_status (*capture_of)(void *self, void *stream, uint64_t *capture);
    bp_status (*graph_begin)(void *self, void *stream);
    bp_status (*graph_end)(void *self, void *stream, void **graph);
    /** Enqueues all its work on `stream`, after what the stream has; a second launch starts after the first. */
    bp_status (*graph_launch)(void *self, void *graph, void *stream);
    bp_status (*graph_destroy)(void *self, void *graph);
} bp_device_ops;

/** A device from a table, which is copied; its name stays the provider's. `self` is handed to `ops->destroy` in the end, also when this call
 * fails after its arguments were accepted (then *device is not written and self is gone).
 * Errors: BP_ERR_INVALID_ARGUMENT (NULL, a missing function: nothing was taken over), BP_ERR_UNSUPPORTED (a newer table with functions that
 * this library does not know: nothing was taken over), BP_ERR_NO_HOST_MEMORY, what `traits` returns. */
BP_API bp_status bp_device_create(const bp_device_ops *ops, void *self, bp_device **device);

#ifdef __cplusplus
}
#endif
#endif
