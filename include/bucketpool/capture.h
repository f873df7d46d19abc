/** @file
 * Pools inside captured graphs (CUDA graphs).
 *
 * The runtime declares a capture around its own:
 *
 *   bp_capture_begin(pool, NULL, &capture);           waits until all memory of the pool is at rest
 *   cudaStreamBeginCapture(...)                       or bp_graph_begin
 *   ... acquire, use, release as usual, on streams of the capture ...
 *   cudaStreamEndCapture(...)                         or bp_graph_end
 *   bp_capture_end(capture);                          what was acquired inside must have been released inside
 *
 *   bp_capture_before_launch(capture, stream);        the stream waits for what eager work still does in the graph's memory
 *   cudaGraphLaunch(graph, stream);
 *   bp_capture_launched(capture, stream);             posts the release points that the replay's host never executed
 *
 * Inside, release points are edges of the graph: acquiring memory that was released inside makes the graph wait for the release, and
 * nothing waits for eager work, as there is none left. Addresses are fixed in the graph, so a deviation from a request's buffer, overflow
 * memory and dynamic requests are refused inside; so are registration (bp_pool_attach, detach) and promised streams (bp_pool_set_stream).
 *
 * Requests that are live when the capture begins:
 * - persistent ones may be used inside, and stay live;
 * - others are refused, unless the configuration names them as owned: they may be used, acquired again and released so often inside, and
 *   must be live as before at the end;
 * after each launch they count as used by the stream of the launch.
 *
 * What is captured in one pool does not concern another. A pool has one capture at a time; graphs captured earlier stay valid, whatever
 * is captured or runs eagerly in between, as addresses never change.
 *
 * Checked mode (bp_pool_config.capture_check) asks the driver which streams are captured, so that a stream which does not take part is
 * an error with its name instead of the driver's 905 or 907 later.
 *
 * Thread safety: calls for one capture come one at a time. Begin, end, abandon and destroy: one thread, and no calls of the pool beside them.
 * Between begin and end only streams of the capture may acquire and release. before_launch and launched: as acquire and release. Sources: CUDA's rules of stream capture (events recorded
 * inside cannot be waited for outside, nor the other way round); the design of Megatron's full-iteration graphs. */
#ifndef BUCKETPOOL_CAPTURE_H
#define BUCKETPOOL_CAPTURE_H

#include <bucketpool/pool.h>

#ifdef __cplusplus
extern "C" {
#endif

/** A capture, and later the graph that came of it, as far as the pool is concerned: which memory it touches. */
typedef struct bp_capture bp_capture;

/** In which of the slabs that it touches the graph has collectives: their windows are baked into it, so that it is void once such a slab has been
 * offloaded (offload.h). AUTO: in those that are registered (comm.h) when the capture ends. NONE: the graph only computes in the pool's
 * memory. ALL: in all of them, also where NCCL registers by itself while capturing (NCCL_GRAPH_REGISTER=1). */
typedef enum bp_capture_collectives {
    BP_CAPTURE_COLLECTIVES_AUTO = 0,
    BP_CAPTURE_COLLECTIVES_NONE = 1,
    BP_CAPTURE_COLLECTIVES_ALL = 2
} bp_capture_collectives;

typedef struct bp_capture_config {
    size_t size;
    const char *name;      /**< in messages; copied. NULL: "capture.<n>" */
    const uint32_t *owned; /**< live requests that the capture may use; copied */
    size_t owned_count;
    bp_capture_collectives collectives;
} bp_capture_config;

/** Nothing owned, collectives as registered. */
BP_API bp_status bp_capture_config_init(bp_capture_config *config, size_t size);

/** Begins, before the runtime's own capture does: waits until every release point of the pool has passed, so that nothing inside has to
 * wait for work outside. `config` NULL: the defaults. The caller owns the capture: bp_capture_destroy.
 * Errors: BP_ERR_INVALID_ARGUMENT (an owned request that is unknown, twice, not live, or dynamic), BP_ERR_SCHEDULE (a request is live
 * that is neither persistent nor owned: by name, with its holder), BP_ERR_CAPTURE (the pool is being captured already; a stream of the
 * pool's work is captured already), BP_ERR_UNSUPPORTED (guard mode), BP_ERR_NO_HOST_MEMORY, what the device reports. */
BP_API bp_status bp_capture_begin(bp_pool *pool, const bp_capture_config *config, bp_capture **capture);

/** Ends it, after the runtime's own capture has ended. Errors: BP_ERR_SCHEDULE when what was acquired inside is still live, or what was
 * live before is not, or not as often (by name; the capture goes on: release and end again, or abandon); BP_ERR_CAPTURE (not being
 * captured). */
BP_API bp_status bp_capture_end(bp_capture *capture);

/** Before each launch of the graph on `stream`: orders the stream after every release point in the graph's memory, and takes that memory
 * until bp_capture_launched; but for what live requests hold: they must stay live until then. Called again without a launch in between, it starts over.
 * Errors: BP_ERR_SCHEDULE (a request that is not the capture's own, or another launch, holds memory of the graph; an owned one is not live:
 * by name; one is in other memory than when the capture began, or has no room for a further stream), BP_ERR_CAPTURE (the capture has not ended,
 * or the pool is being captured: graphs are launched outside; a slab that the graph has collectives in was offloaded since: capture anew),
 * BP_ERR_INVALID_ARGUMENT (a destroyed stream, one of another device, a pool that was destroyed). */
BP_API bp_status bp_capture_before_launch(bp_capture *capture, bp_stream *stream);

/** After each launch: memory of the graph may be reused when the stream has come to this point; what is owned counts as used by the
 * stream. `stream` NULL: the launch failed and nothing runs. Errors: BP_ERR_SCHEDULE (before_launch was not called since the last one),
 * and as before_launch; then the call can be made again. */
BP_API bp_status bp_capture_launched(bp_capture *capture, bp_stream *stream);

/** Forgets the graph, which must not be launched any more. A capture that has not ended is abandoned, as a graph that will never run: requests
 * acquired inside are free again, requests that were live before are as they were; nothing is waited for, as work inside never runs. Accepts
 * NULL and pointers to NULL; sets *capture to NULL. Captures of a pool that was destroyed first can only be destroyed. */
BP_API void bp_capture_destroy(bp_capture **capture);

/** A slab that the graph touches: it must have its memory when the graph is launched. */
typedef struct bp_capture_slab {
    uint32_t slab; /**< of the pool */
    int32_t
        has_collectives; /**< 1: as bp_capture_config.collectives says, so that offloading the slab makes the graph void */
} bp_capture_slab;

/** All but the name is 0 until the capture has ended. */
typedef struct bp_capture_info {
    const char *name;
    int32_t ended;                /**< 1: there is a graph to launch */
    uint64_t acquires;            /**< inside, each id */
    uint64_t releases;            /**< inside */
    uint64_t waits;               /**< edges for release events */
    uint64_t bytes;               /**< of slabs that the graph touches, as segments lie; each once */
    const bp_capture_slab *slabs; /**< in the order of the pool's */
    size_t slab_count;
    uint64_t launches;
} bp_capture_info;

/** Lives as long as the capture; not to be read beside bp_capture_end and bp_capture_launched, which change it. NULL for NULL. */
BP_API const bp_capture_info *bp_capture_get_info(const bp_capture *capture);

/** 1 while a capture of the pool has begun and not ended. Any thread. */
BP_API int bp_pool_is_capturing(const bp_pool *pool);

#ifdef __cplusplus
}
#endif
#endif
