/* SPDX-License-Identifier: Apache-2.0 */
/** @file
 * Pools inside captured CUDA graphs.
 *
 * The runtime declares a capture to the pool around its own capture, and each launch around its own launch:
 * @code
 * bp_capture_begin(pool, NULL, &capture);    // waits for all release events of the pool
 * cudaStreamBeginCapture(stream, mode);      // or bp_graph_begin
 * // acquire, use and release as usual, on streams of the capture
 * cudaStreamEndCapture(stream, &graph);      // or bp_graph_end
 * bp_capture_end(capture);                   // fails if a request acquired inside is still live
 *
 * bp_capture_before_launch(capture, stream); // the stream waits for eager work in the memory of the graph
 * cudaGraphLaunch(executable, stream);
 * bp_capture_launched(capture, stream);      // records the release events of the launch
 * @endcode
 *
 * Inside a capture, release events are edges of the graph: acquiring memory that was released inside makes the graph
 * wait for the release. The graph waits for no eager work. Addresses are fixed in the graph, so these fail inside:
 * deviations from the planned buffer, overflow memory, dynamic requests, registration (comm.h), and
 * bp_pool_set_stream.
 *
 * Requests that are live when the capture begins:
 * - Persistent requests may be used inside and stay live.
 * - Other requests make bp_capture_begin fail, unless the configuration lists them as owned. Owned requests may be
 *   used, acquired and released inside, and must have the same reference counts at the end.
 * - After each launch, both kinds count as used by the stream of the launch.
 *
 * Captures of different pools are independent. A pool has one capture at a time. Earlier graphs stay valid, whatever
 * is captured or run afterwards, because addresses never change.
 *
 * Checked mode (bp_pool_config.capture_check) asks the driver which streams are captured. A stream that does not take
 * part is then an error with its name, instead of error 905 or 907 of the driver later.
 *
 * Thread safety: one call at a time for a capture. begin, end and destroy: no call of the pool at the same time.
 * Between begin and end only streams of the capture may acquire and release. before_launch and launched: as acquire
 * and release.
 *
 * Sources: the rules of stream capture in CUDA (events recorded inside cannot be waited for outside, nor the other
 * way round); full-iteration graphs of Megatron. */
#ifndef BUCKETPOOL_CAPTURE_H
#define BUCKETPOOL_CAPTURE_H

#include <bucketpool/pool.h>

#ifdef __cplusplus
extern "C" {
#endif

/** A capture of a pool, and later its graph: the record of the memory that the graph accesses. */
typedef struct bp_capture bp_capture;

/** Slabs in which the graph has collectives. Windows of collectives are fixed in the graph, so that the graph is
 * invalid once such a slab has been offloaded (offload.h).
 * - BP_CAPTURE_COLLECTIVES_AUTO: the accessed slabs that are registered (comm.h) when the capture ends.
 * - BP_CAPTURE_COLLECTIVES_NONE: none, the graph only computes in the memory of the pool.
 * - BP_CAPTURE_COLLECTIVES_ALL: all accessed slabs, for NCCL with NCCL_GRAPH_REGISTER=1, which registers during the
 *   capture. */
typedef enum bp_capture_collectives {
    BP_CAPTURE_COLLECTIVES_AUTO = 0,
    BP_CAPTURE_COLLECTIVES_NONE = 1,
    BP_CAPTURE_COLLECTIVES_ALL = 2
} bp_capture_collectives;

typedef struct bp_capture_config {
    size_t size;
    const char *name;      /**< in messages; copied. NULL: "capture.<n>" */
    const uint32_t *owned; /**< owned: live requests that the capture may use; copied */
    size_t owned_count;
    bp_capture_collectives collectives;
} bp_capture_config;

/** Sets the defaults: no owned requests, BP_CAPTURE_COLLECTIVES_AUTO. */
BP_API bp_status bp_capture_config_init(bp_capture_config *config, size_t size);

/** Begins a capture. Call it before the runtime begins its own capture. Waits on the host until every release event of
 * the pool has passed, so that nothing inside has to wait for work outside. `config` NULL: the defaults. The caller
 * owns the capture: bp_capture_destroy.
 *
 * Errors:
 * - BP_ERR_INVALID_ARGUMENT: an owned request is unknown, listed twice, not live, or dynamic.
 * - BP_ERR_SCHEDULE: a live request is neither persistent nor owned; the message names it and its stream.
 * - BP_ERR_CAPTURE: the pool, or a stream with work of the pool, is being captured.
 * - BP_ERR_UNSUPPORTED: guard mode.
 * - BP_ERR_NO_HOST_MEMORY, errors of the device. */
BP_API bp_status bp_capture_begin(bp_pool *pool, const bp_capture_config *config, bp_capture **capture);

/** Ends the capture. Call it after the runtime has ended its own capture.
 *
 * Errors: BP_ERR_SCHEDULE (a request acquired inside is still live, or an owned one has another reference count than
 * before; the message names it. The capture is still open: release and call again, or destroy it), BP_ERR_CAPTURE
 * (not being captured). */
BP_API bp_status bp_capture_end(bp_capture *capture);

/** Prepares a launch on `stream`: the stream waits for the release events of the graph's memory, and the graph holds
 * this memory until bp_capture_launched. Memory of owned and persistent requests stays theirs; these requests must be
 * live until then. A second call without a launch starts over.
 *
 * Errors:
 * - BP_ERR_SCHEDULE: another request or launch holds memory of the graph; an owned request is not live, has other
 *   memory than at the begin of the capture, or has no room for a further stream. The message names the request.
 * - BP_ERR_CAPTURE: the capture has not ended; the pool is being captured (launch graphs outside); a slab with
 *   collectives of the graph was offloaded since (capture again).
 * - BP_ERR_INVALID_ARGUMENT: a stream that was destroyed or is of another device, a pool that was destroyed. */
BP_API bp_status bp_capture_before_launch(bp_capture *capture, bp_stream *stream);

/** Ends a launch: records release events, after which the memory of the graph may be reused. Owned requests count as
 * used by `stream`. `stream` NULL: the launch failed and nothing runs.
 *
 * Errors: BP_ERR_SCHEDULE (bp_capture_before_launch was not called since the last launch), and as
 * bp_capture_before_launch. After an error the call can be repeated. */
BP_API bp_status bp_capture_launched(bp_capture *capture, bp_stream *stream);

/** Destroys the capture; its graph must not be launched any more. A capture that has not ended is abandoned: requests
 * acquired inside are free again, owned and persistent requests are as before, and nothing is waited for, because the
 * work inside never runs. After its pool was destroyed this is the only permitted call. Accepts NULL and a pointer to
 * NULL; sets *capture to NULL. */
BP_API void bp_capture_destroy(bp_capture **capture);

/** A slab that the graph accesses: it must be resident when the graph is launched. */
typedef struct bp_capture_slab {
    uint32_t slab; /**< index of the slab in the pool */
    /** 1: offloading the slab invalidates the graph (bp_capture_config.collectives) */
    int32_t has_collectives;
} bp_capture_slab;

/** The contents of a capture. All but `name` is 0 until the capture has ended. */
typedef struct bp_capture_info {
    const char *name;
    int32_t ended;                /**< 1: the graph can be launched */
    uint64_t acquires;            /**< acquires inside, for each id */
    uint64_t releases;            /**< releases inside, for each id */
    uint64_t waits;               /**< edges for release events */
    uint64_t bytes;               /**< bytes of slabs that the graph accesses, each byte counted once */
    const bp_capture_slab *slabs; /**< in the order of the pool */
    size_t slab_count;
    uint64_t launches;
} bp_capture_info;

/** The contents of a capture. Lives as long as the capture. bp_capture_end and bp_capture_launched change it: do not
 * read it at the same time. NULL for NULL. */
BP_API const bp_capture_info *bp_capture_get_info(const bp_capture *capture);

/** 1 if a capture of the pool has begun and not ended. Any thread. */
BP_API int bp_pool_is_capturing(const bp_pool *pool);

#ifdef __cplusplus
}
#endif
#endif
