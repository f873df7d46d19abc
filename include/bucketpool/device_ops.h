/* SPDX-License-Identifier: Apache-2.0 */
/** @file
 * The interface that a device implements: a table of functions. Users of devices read device.h.
 *
 * A device has address space, physical memory, streams and events. Streams are ordered queues of work that runs
 * asynchronously to the host; an event marks the position of a stream at the time of the record. The interface does
 * not depend on CUDA: the host device implements it too.
 *
 * The first argument of every function is `self`. Functions may be called from any thread at the same time, except
 * that two threads never destroy the same object. A function that returns an error calls bp_error_record first and
 * leaves its outputs unchanged. Sizes are multiples of traits.granularity, unless said otherwise.
 *
 * Pools call event_record and stream_wait in acquire and release: these two must not allocate, synchronize or lock.
 *
 * A table of an older header may be shorter than that of the library: functions after its end count as missing.
 *
 * Sources: the memory provider tables of UMF; virtual memory management of CUDA for reserve, commit and map. */
#ifndef BUCKETPOOL_DEVICE_OPS_H
#define BUCKETPOOL_DEVICE_OPS_H

#include <bucketpool/device.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Properties of a device, which never change. */
typedef struct bp_device_traits {
    /** set by the library: `traits` writes at most this many bytes and does not change `size` */
    size_t size;
    uint64_t granularity;     /**< bytes, a power of two: reserve, commit and map take multiples of it */
    uint64_t page_bytes;      /**< protect takes multiples of it; 0: no protection */
    uint32_t host_accessible; /**< 1: the host may read and write mapped memory */
    uint32_t no_memory;       /**< 1: addresses without memory (the null device) */
} bp_device_traits;

typedef enum bp_access { BP_ACCESS_NONE = 0, BP_ACCESS_READ_WRITE = 1 } bp_access;

typedef struct bp_device_ops {
    size_t size;      /**< sizeof(bp_device_ops) */
    const char *name; /**< "host"; static */
    /** Called once, after every stream and event was destroyed and all memory unmapped. */
    void (*destroy)(void *self);
    bp_status (*traits)(void *self, bp_device_traits *traits);

    /** Reserves addresses without memory; an access faults. `alignment` is a power of two, at least the granularity. */
    bp_status (*reserve)(void *self, uint64_t bytes, uint64_t alignment, void **address);
    bp_status (*unreserve)(void *self, void *address, uint64_t bytes);
    /** Allocates physical memory as one handle; its contents are undefined. Errors: BP_ERR_NO_DEVICE_MEMORY (with the
     * bytes wanted and left), BP_ERR_NO_HOST_MEMORY (no memory for bookkeeping). */
    bp_status (*commit)(void *self, uint64_t bytes, uint64_t *handle);
    bp_status (*decommit)(void *self, uint64_t handle);
    /** Maps a whole handle at a reserved address, readable and writable. A handle that is unmapped and mapped again
     * keeps its bytes. */
    bp_status (*map)(void *self, void *address, uint64_t bytes, uint64_t handle);
    bp_status (*unmap)(void *self, void *address, uint64_t bytes);
    /** Changes the access to mapped memory, in multiples of page_bytes. NULL if page_bytes is 0. */
    bp_status (*protect)(void *self, void *address, uint64_t bytes, bp_access access);

    /** Stream-ordered memory of any size, aligned to 256 bytes, outside slabs: for work that is enqueued on `stream`
     * after `allocate` and before `free`. Freed memory may count as used until the stream reaches the free. For
     * dynamic requests. */
    bp_status (*allocate)(void *self, uint64_t bytes, void *stream, void **address);
    bp_status (*free)(void *self, void *address, uint64_t bytes, void *stream);

    bp_status (*stream_create)(void *self, void **stream);
    /** Imports a native stream. NULL if the device has no native streams. */
    bp_status (*stream_import)(void *self, uint64_t native, void **stream);
    /** Waits for the work of the stream first. The native stream of an import is not destroyed. After an error the
     * stream still accepts work and events until the device is destroyed. */
    bp_status (*stream_destroy)(void *self, void *stream);
    bp_status (*stream_synchronize)(void *self, void *stream);
    bp_status (*synchronize)(void *self);
    /** Work on a stream: a function that a thread of the device calls, a fill, a copy. Any size and alignment. */
    bp_status (*call)(void *self, void *stream, bp_host_function *function, void *argument);
    bp_status (*fill)(void *self, void *stream, void *address, uint8_t value, uint64_t bytes);
    bp_status (*copy)(void *self, void *stream, void *to, const void *from, uint64_t bytes);

    bp_status (*event_create)(void *self, void **event);
    bp_status (*event_destroy)(void *self, void *event);
    /** Marks all work enqueued on `stream` so far. A later record moves the mark; waits enqueued before keep the old
     * one. */
    bp_status (*event_record)(void *self, void *event, void *stream);
    /** Work enqueued on `stream` from now on starts after the marked work. An event that was never recorded marks
     * nothing. */
    bp_status (*stream_wait)(void *self, void *stream, void *event);
    bp_status (*event_synchronize)(void *self, void *event);

    /** The native handle, as stream_import takes it. NULL if the device has no native streams. */
    bp_status (*stream_native)(void *self, void *stream, uint64_t *native);

    /** Pins host memory (whole pages) for direct copies. Both functions or neither. */
    bp_status (*pin)(void *self, void *address, uint64_t bytes);
    bp_status (*unpin)(void *self, void *address, uint64_t bytes);

    /** Capture of work into graphs: all five functions or none. Between begin and end, work on `stream`, and on
     * streams that waited for an event of it, is recorded and not run. `capture_of` returns a number that identifies
     * a capture; 0: the stream runs its work. `graph_end` also ends an invalid capture, and returns its error. */
    bp_status (*capture_of)(void *self, void *stream, uint64_t *capture);
    bp_status (*graph_begin)(void *self, void *stream);
    bp_status (*graph_end)(void *self, void *stream, void **graph);
    /** Enqueues the work of the graph on `stream`. A launch starts after earlier launches of the same graph have
     * ended. */
    bp_status (*graph_launch)(void *self, void *graph, void *stream);
    bp_status (*graph_destroy)(void *self, void *graph);
} bp_device_ops;

/** Creates a device from a table of functions. The table is copied, its name is not. `self` is passed to
 * `ops->destroy` at the end, also if this call fails after it accepted its arguments. The caller owns the device:
 * bp_device_destroy.
 *
 * Errors: BP_ERR_INVALID_ARGUMENT (NULL, a missing function), BP_ERR_UNSUPPORTED (a newer table with functions that
 * this library does not know); after both `self` is still the caller's. BP_ERR_NO_HOST_MEMORY and errors of `traits`,
 * after which `self` was destroyed. */
BP_API bp_status bp_device_create(const bp_device_ops *ops, void *self, bp_device **device);

#ifdef __cplusplus
}
#endif
#endif
