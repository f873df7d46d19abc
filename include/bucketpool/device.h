/* SPDX-License-Identifier: Apache-2.0 */
/** @file
 * Devices, streams, events and graphs, as pools and runtimes use them.
 * - host: the built-in device. Real memory, streams (worker threads with ordered queues) and events. No work runs
 *   before the work that it is ordered after, so a missing dependency shows up as wrong bytes.
 * - null: addresses without memory, streams that run nothing. For plans at full size and for measuring the cost of
 *   bookkeeping.
 * - cuda: an NVIDIA GPU, see cuda.h.
 *
 * @code
 * bp_device_create_host(NULL, &device);
 * bp_stream_create(device, "gather", &gather);
 * bp_stream_create(device, "compute", &compute);
 * bp_event_create(device, &gathered);
 * bp_stream_copy(gather, bucket, shard, bytes);
 * bp_event_record(gathered, gather);
 * bp_stream_wait(compute, gathered); // work enqueued on `compute` from here on sees the copy
 * @endcode
 *
 * Errors of all calls: BP_ERR_INVALID_ARGUMENT (NULL, a stream that was destroyed or is of another device),
 * BP_ERR_CAPTURE (an operation that the driver refuses during a capture), BP_ERR_DEVICE (the message quotes the
 * driver). Comments name further errors.
 *
 * Thread safety: any call, any thread, at the same time; except that no call may use an object that is being
 * destroyed. Capture: work, records and waits on streams can be captured. Drivers refuse creation, destruction and
 * synchronization meanwhile. Host and null devices have no graphs.
 *
 * fork(): devices, communicators and the objects made from them (streams, events, pools, captures, offloads, leases,
 * profiles, pinned memory, registrations, log-prob clients) belong to the process that created them. In a forked
 * child each call with one is BP_ERR_INVALID_ARGUMENT, which names both processes. Getters read the child's copy.
 * Destroying an object sets the pointer to NULL and frees nothing, because its threads and locks do not exist in the
 * child. Slabs of the host device are not mapped in the child: an access is SIGSEGV. The child may create new
 * devices. */
#ifndef BUCKETPOOL_DEVICE_H
#define BUCKETPOOL_DEVICE_H

#include <bucketpool/status.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct bp_device bp_device;
typedef struct bp_stream bp_stream;
typedef struct bp_event bp_event;

typedef void bp_host_function(void *argument);

/* ---- devices ------------------------------------------------------------------------------------------------------ */

typedef struct bp_host_config {
    size_t size;
    /** memory of the device; commits beyond it are BP_ERR_NO_DEVICE_MEMORY. 0: the memory of the machine */
    uint64_t memory_bytes;
    /** granularity of slabs: a power of two, a multiple of the page size. 0: the page size */
    uint64_t granularity;
    /** pieces of work in a stream's queue before an enqueue waits; a power of two. 0: 16384 */
    uint32_t queue_length;
    /** largest random pause before a piece of work, which exposes missing waits. 0: none */
    uint32_t max_delay_us;
    uint64_t delay_seed; /**< seed of the random pauses */
} bp_host_config;

/** Sets the defaults. Errors: BP_ERR_INVALID_ARGUMENT (NULL, an unknown size). */
BP_API bp_status bp_host_config_init(bp_host_config *config, size_t size);

/** Creates a host device. `config` NULL: the defaults. The caller owns the device: bp_device_destroy.
 *
 * Physical memory is shared anonymous mappings, so unmapping returns memory to the system, and memory that is mapped
 * again has the same bytes. Forked children do not inherit it.
 *
 * Errors: BP_ERR_INVALID_ARGUMENT, BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_device_create_host(const bp_host_config *config, bp_device **device);

/** Creates a null device. The caller owns it: bp_device_destroy. An address of stream-ordered memory is never used
 * twice; after 2^63 bytes allocations are BP_ERR_NO_DEVICE_MEMORY.
 *
 * Errors: BP_ERR_INVALID_ARGUMENT, BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_device_create_null(bp_device **device);

/** Drops the caller's reference. The device is destroyed with its last stream, event and pool. Accepts NULL and a
 * pointer to NULL; sets *device to NULL. */
BP_API void bp_device_destroy(bp_device **device);

/** The name of the device: "host", "null", "cuda", or that of the provider. Lives as long as the device. */
BP_API const char *bp_device_name(const bp_device *device);

/** 1: the host and host functions may read and write device memory. 0: only bp_stream_copy can. */
BP_API int bp_device_is_host_accessible(const bp_device *device);

/** Waits on the host for all work of all streams. Not during a capture. */
BP_API bp_status bp_device_synchronize(bp_device *device);

/** Memory of a device: current values and high-water marks. Reserved addresses without memory are not counted. */
typedef struct bp_device_usage {
    size_t size;
    uint64_t committed_bytes; /**< physical memory of slabs */
    uint64_t peak_committed_bytes;
    uint64_t allocated_bytes; /**< stream-ordered memory, outside slabs */
    uint64_t peak_allocated_bytes;
    uint64_t streams; /**< existing streams */
    uint64_t events;
} bp_device_usage;

/** Reads the counters. Each counter is correct for some moment of the call. Any thread, also during a capture. Errors:
 * BP_ERR_INVALID_ARGUMENT. */
BP_API bp_status bp_device_usage_get(const bp_device *device, bp_device_usage *usage);

/* ---- streams ------------------------------------------------------------------------------------------------------ */

/** Creates a stream. `name` appears in messages and is copied; NULL: "stream.<n>". The caller owns the stream:
 * bp_stream_destroy. The events for releases are created here, so that releases create none.
 *
 * Errors: BP_ERR_NO_HOST_MEMORY, errors of the device. */
BP_API bp_status bp_stream_create(bp_device *device, const char *name, bp_stream **stream);

/** Imports a native stream of the caller's runtime (CUstream). Drivers reuse handles, so this library does not compare
 * streams by handle: import a stream once, and destroy the import before the native stream. The caller owns the
 * import: bp_stream_destroy, which leaves the native stream alone.
 *
 * Errors: BP_ERR_UNSUPPORTED (a device without native streams). */
BP_API bp_status bp_stream_import(bp_device *device, uint64_t native, const char *name, bp_stream **stream);

/** Waits for the work of the stream and destroys it. A later call with a copy of the pointer is safe: it is
 * BP_ERR_INVALID_ARGUMENT and names the stream. (The device keeps a few dozen bytes for each destroyed stream.)
 * Accepts NULL and a pointer to NULL; sets *stream to NULL. */
BP_API void bp_stream_destroy(bp_stream **stream);

/** The name of the stream. Lives as long as the device. */
BP_API const char *bp_stream_name(const bp_stream *stream);
/** The native handle of a stream (CUstream). Errors: BP_ERR_UNSUPPORTED (a device without native streams). */
BP_API bp_status bp_stream_native(const bp_stream *stream, uint64_t *native);
/** Waits on the host for all work of the stream. Not while the stream is captured. */
BP_API bp_status bp_stream_synchronize(bp_stream *stream);

/** Enqueues a call of `function`. It runs on a thread of the device (null device: at once, on the calling thread) and
 * must not call the device. `argument` must stay valid until then. */
BP_API bp_status bp_stream_call(bp_stream *stream, bp_host_function *function, void *argument);
/** Enqueues a fill of device memory: each of `bytes` bytes at `address` gets `value`. Any size and alignment. */
BP_API bp_status bp_stream_fill(bp_stream *stream, void *address, uint8_t value, uint64_t bytes);
/** Enqueues a copy between device or host memory. Any size and alignment; the ranges must not overlap. Host memory
 * must stay valid until the copy has run; if it is not pinned, the call may wait for the copy. */
BP_API bp_status bp_stream_copy(bp_stream *stream, void *to, const void *from, uint64_t bytes);

/* ---- events ------------------------------------------------------------------------------------------------------- */

/** Creates an event. The caller owns it: bp_event_destroy. Errors: BP_ERR_NO_HOST_MEMORY, errors of the device. */
BP_API bp_status bp_event_create(bp_device *device, bp_event **event);
/** Destroys an event. Streams that wait for it still wait. Accepts NULL and a pointer to NULL; sets *event to NULL. */
BP_API void bp_event_destroy(bp_event **event);
/** Records the event: it marks all work enqueued on `stream` so far. A later record moves the mark; waits enqueued
 * before keep the old one. */
BP_API bp_status bp_event_record(bp_event *event, bp_stream *stream);
/** Orders `stream` after an event: work enqueued from now on starts after the marked work. No effect if the event was
 * never recorded. */
BP_API bp_status bp_stream_wait(bp_stream *stream, bp_event *event);
/** Waits on the host for the marked work. Returns at once if the event was never recorded. Not for an event that was
 * recorded in a capture. */
BP_API bp_status bp_event_synchronize(bp_event *event);

/* ---- graphs ------------------------------------------------------------------------------------------------------- */

/** Captured work, which can be launched many times. Runtimes that capture through CUDA do not need these functions;
 * pools take part in both kinds of capture through capture.h. */
typedef struct bp_graph bp_graph;

/** Begins a capture: work that is enqueued on `stream`, and on streams that wait for an event recorded on it since,
 * becomes part of a graph. Until the end, synchronization with the host and allocation are BP_ERR_CAPTURE.
 *
 * Errors: BP_ERR_UNSUPPORTED (a device without graphs), BP_ERR_CAPTURE (the stream is captured already). */
BP_API bp_status bp_graph_begin(bp_stream *stream);
/** Ends the capture that began on `stream`, which must have waited for all streams that joined. The caller owns the
 * graph: bp_graph_destroy.
 *
 * Errors: BP_ERR_CAPTURE (nothing is captured; or the captured work is invalid: then the capture is over without a
 * graph), BP_ERR_NO_HOST_MEMORY, errors of the device, after which the state of the capture is undefined. */
BP_API bp_status bp_graph_end(bp_stream *stream, bp_graph **graph);
/** Enqueues the work of the graph on `stream`. Memory and arguments of captured work must still be valid. Launches of
 * one graph run one after the other. */
BP_API bp_status bp_graph_launch(bp_graph *graph, bp_stream *stream);
/** Destroys a graph. Enqueued launches still run. Accepts NULL and a pointer to NULL; sets *graph to NULL. */
BP_API void bp_graph_destroy(bp_graph **graph);
/** The number of the capture that records the stream, the same for all streams of one capture; 0: the stream runs its
 * work. Asks the driver. Always 0 on devices without graphs. */
BP_API bp_status bp_stream_capture_of(bp_stream *stream, uint64_t *capture);

/* ---- host memory -------------------------------------------------------------------------------------------------- */

/** Pins (page-locks) host memory for fast copies to and from the device. `address` and `bytes` are whole pages of the
 * caller, who unpins them before they are freed. No effect on devices that access host memory directly. Not during a
 * capture. */
BP_API bp_status bp_device_pin(bp_device *device, void *address, uint64_t bytes);
/** Unpins memory; `address` and `bytes` are those of bp_device_pin. No copy of it may be in flight. Not during a
 * capture. */
BP_API bp_status bp_device_unpin(bp_device *device, void *address, uint64_t bytes);

#ifdef __cplusplus
}
#endif
#endif
