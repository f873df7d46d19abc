/** @file
 * Devices, streams and events as pools and runtimes use them.
 *
 *   host   the embedded default: real memory, real streams (each a worker thread with an ordered queue), real events.
 *          Nothing runs earlier than its order allows, so a missing dependency shows up as wrong bytes.
 *   null   addresses without memory, streams that run nothing: for planning at full size and for measuring bookkeeping.
 *   cuda   a GPU: cuda.h.
 *
 * Errors of every call: BP_ERR_INVALID_ARGUMENT (NULL, a stream that was destroyed, by name, or one of another device), BP_ERR_CAPTURE (what
 * a driver refuses while a stream is being captured), BP_ERR_DEVICE (the driver's own words). Comments name further ones.
 *
 * Thread safety: everything may be called from any thread at once, except that nothing may use an object while it is being
 * destroyed. Capture: work, records and waits on streams may be captured; creating, destroying and synchronizing are refused by drivers
 * meanwhile. Host and null devices have no graphs.
 *
 * fork(): a device, a communicator and all that is made of them (streams, events, pools, captures, offloads, leases, profiles, pinned memory,
 * registrations, clients) serve the process that made them. In a forked child each call with one is BP_ERR_INVALID_ARGUMENT and names both
 * processes; destroying one sets the pointer to NULL and leaves the object as it is, as its threads and locks are not there; getters read
 * the copy. Slabs of the host device are not in the child: touching one is SIGSEGV. The child may make devices of its own. */
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
    uint64_t memory_bytes; /**< what the device has; commits beyond it are BP_ERR_NO_DEVICE_MEMORY. 0: the machine's */
    uint64_t granularity;  /**< of slabs: a power of two, a multiple of the page size. 0: the page size */
    uint32_t queue_length; /**< work that a stream holds before enqueueing waits; a power of two. 0: 16384 */
    uint32_t max_delay_us; /**< streams pause up to this long before pieces of work, to bring missing waits to light */
    uint64_t delay_seed;   /**< of those pauses */
} bp_host_config;

/** Fills the struct with the defaults, whatever is in it. Errors: BP_ERR_INVALID_ARGUMENT (a size that is none). */
BP_API bp_status bp_host_config_init(bp_host_config *config, size_t size);

/** Physical memory is shared anonymous mappings, so that unmapped memory really goes back and mapping again shows the same bytes. No child
 * inherits them.
 * `config` NULL: the defaults. The caller owns the device: bp_device_destroy.
 * Errors: BP_ERR_INVALID_ARGUMENT, BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_device_create_host(const bp_host_config *config, bp_device **device);

/** The caller owns the device: bp_device_destroy. Each address of memory in stream order is given once, 2^63 bytes in all: then
 * BP_ERR_NO_DEVICE_MEMORY. Errors: BP_ERR_INVALID_ARGUMENT, BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_device_create_null(bp_device **device);

/** Gives up the caller's reference; the device goes when its streams, events and pools are gone too. Accepts NULL and
 * pointers to NULL; sets *device to NULL. */
BP_API void bp_device_destroy(bp_device **device);

/** "host", "null", "cuda", or as the provider says. Lives as long as the device. */
BP_API const char *bp_device_name(const bp_device *device);

/** 1: host functions, and the host, may read and write the device's memory; 0: bp_stream_copy does. */
BP_API int bp_device_is_host_accessible(const bp_device *device);

/** The host waits until all work of all streams is done. Not while capturing. */
BP_API bp_status bp_device_synchronize(bp_device *device);

/** Memory of a device now and at most since it was made; without address space that has no memory. */
typedef struct bp_device_usage {
    size_t size;
    uint64_t committed_bytes; /**< physical memory of slabs */
    uint64_t peak_committed_bytes;
    uint64_t allocated_bytes; /**< in stream order, outside slabs */
    uint64_t peak_allocated_bytes;
    uint64_t streams; /**< that live */
    uint64_t events;
} bp_device_usage;

/** Counters change while others use the device: each is right for a moment of the call. Any thread, also while capturing. Errors:
 * BP_ERR_INVALID_ARGUMENT. */
BP_API bp_status bp_device_usage_get(const bp_device *device, bp_device_usage *usage);

/* ---- streams ------------------------------------------------------------------------------------------------------ */

/** A new stream. `name` is copied (NULL: "stream.<n>") and appears in messages. The caller owns it: bp_stream_destroy.
 * A stream prepares its release events here, so that none are made later. Errors: BP_ERR_NO_HOST_MEMORY, what the device reports. */
BP_API bp_status bp_stream_create(bp_device *device, const char *name, bp_stream **stream);

/** A stream that the caller's runtime made, by its native handle. Handles are reused by drivers, so streams are never told apart
 * by them: import once, and destroy the import before the native stream.
 * Errors: BP_ERR_UNSUPPORTED where the device has no native streams. */
BP_API bp_status bp_stream_import(bp_device *device, uint64_t native, const char *name, bp_stream **stream);

/** Waits for the stream's work, then ends it. Other copies of the pointer stay safe to pass: a call with one is
 * BP_ERR_INVALID_ARGUMENT that says which stream was destroyed, until the device goes (a few dozen bytes per stream are kept for
 * that). Accepts NULL and pointers to NULL; sets *stream to NULL. */
BP_API void bp_stream_destroy(bp_stream **stream);

/** Lives as long as the device. */
BP_API const char *bp_stream_name(const bp_stream *stream);
/** The handle that a runtime knows the stream by (CUstream). Errors: BP_ERR_UNSUPPORTED where the device has none. */
BP_API bp_status bp_stream_native(const bp_stream *stream, uint64_t *native);
/** The host waits for all work of the stream. Not while it is captured. */
BP_API bp_status bp_stream_synchronize(bp_stream *stream);

/** Work in stream order. The function runs on a thread of the device (null device: at once, on the caller's), must not call
 * back into the device, and its argument must stay valid until then. */
BP_API bp_status bp_stream_call(bp_stream *stream, bp_host_function *function, void *argument);
/** Each of `bytes` bytes at `address` gets the value, in stream order; any size and alignment. Memory of the device. */
BP_API bp_status bp_stream_fill(bp_stream *stream, void *address, uint8_t value, uint64_t bytes);
/** Copies `bytes` bytes in stream order; any size and alignment. Memory of the device, or of the host, which must stay valid until then: where it
 * is not pinned the call may wait for the copy. The two ranges must not overlap. */
BP_API bp_status bp_stream_copy(bp_stream *stream, void *to, const void *from, uint64_t bytes);

/* ---- events ------------------------------------------------------------------------------------------------------- */

/** The caller owns the event: bp_event_destroy. Errors: BP_ERR_NO_HOST_MEMORY, what the device reports. */
BP_API bp_status bp_event_create(bp_device *device, bp_event **event);
/** Waits that were made on it hold. Accepts NULL and pointers to NULL; sets *event to NULL. */
BP_API void bp_event_destroy(bp_event **event);
/** Marks everything enqueued on `stream` so far; a later record moves the mark, waits made before keep the old one. */
BP_API bp_status bp_event_record(bp_event *event, bp_stream *stream);
/** Work enqueued on `stream` from now on starts after what the event marks; nothing when it was never recorded. */
BP_API bp_status bp_stream_wait(bp_stream *stream, bp_event *event);
/** The host waits for what the event marks; not at all when it was never recorded. Not for an event that was recorded in a capture. */
BP_API bp_status bp_event_synchronize(bp_event *event);

/* ---- graphs ------------------------------------------------------------------------------------------------------- */

/** Work that was captured instead of run, and can be launched again and again. Runtimes that capture through CUDA itself do not need
 * these; pools take part in either kind of capture through capture.h. */
typedef struct bp_graph bp_graph;

/** From now on, what is enqueued on `stream`, and on streams that wait for an event recorded on it since, becomes part of a graph.
 * Waiting for streams or events by the host, making and freeing memory are refused until the end (BP_ERR_CAPTURE).
 * Errors: BP_ERR_UNSUPPORTED (a device without graphs), BP_ERR_CAPTURE (captured already). */
BP_API bp_status bp_graph_begin(bp_stream *stream);
/** Ends the capture that began on `stream`; streams that joined it must have been waited for by it. The caller owns the graph:
 * bp_graph_destroy. Errors: BP_ERR_CAPTURE (nothing is captured; or something was wrong with what was: then the capture is over and
 * there is no graph), BP_ERR_NO_HOST_MEMORY, what the device reports (of a device that fails nobody knows whether the capture is over). */
BP_API bp_status bp_graph_end(bp_stream *stream, bp_graph **graph);
/** Enqueues all work of the graph. What host functions and copies point to must still be valid. Launches of one graph run one
 * after the other. */
BP_API bp_status bp_graph_launch(bp_graph *graph, bp_stream *stream);
/** Launches that are on their way finish. Accepts NULL and pointers to NULL; sets *graph to NULL. */
BP_API void bp_graph_destroy(bp_graph **graph);
/** Which capture the stream's work goes into: a number, the same for all its streams; 0: none, work is run. Asks the driver. Devices
 * without graphs answer 0. */
BP_API bp_status bp_stream_capture_of(bp_stream *stream, uint64_t *capture);

/* ---- host memory -------------------------------------------------------------------------------------------------- */

/** Makes host memory fit for fast copies to and from the device (page-locked); whole pages that the caller owns, and unpins before it
 * frees them. Where a device reads host memory as it is, nothing happens. Not while capturing. */
BP_API bp_status bp_device_pin(bp_device *device, void *address, uint64_t bytes);
/** Ends that, for an address and bytes that were pinned. No copy may be on its way. Not while capturing. */
BP_API bp_status bp_device_unpin(bp_device *device, void *address, uint64_t bytes);

#ifdef __cplusplus
}
#endif
#endif
