/* SPDX-License-Identifier: Apache-2.0 */
/** @file
 * Pools: the slabs of a plan, allocated on a device, and the calls that acquire and release its requests.
 *
 * A runtime creates a pool from a plan, looks up the id of each bucket once (bp_plan_find), and acquires and releases
 * by id:
 * @code
 * bp_pool_acquire(pool, ids, count, gather_stream, addresses);
 * // all-gather into `addresses` on gather_stream; compute_stream waits for it and runs the layer
 * bp_pool_release(pool, ids, count, compute_stream);
 * @endcode
 *
 * Contract, for every policy and every device:
 * - All memory is allocated when the pool is created. Nothing grows. A request keeps one address for the life of the
 *   pool, except for dynamic requests, overflow memory, and requests that bp_strict lets deviate.
 * - Acquire makes the stream wait for the release events of all memory that the request overlaps, in whatever order
 *   requests come.
 * - Releasing the last reference records one release event on each stream that acquired, used or released the
 *   request. A release event marks the position of the stream at the time of the call; later work of that stream is
 *   not waited for. An event that is more than 255 releases of its stream old is replaced by a younger one of the
 *   same stream.
 * - Acquire, use and release do not allocate, synchronize or lock. The exceptions are dynamic requests, which
 *   allocate, and guard mode, which synchronizes. Their cost does not depend on the number of requests.
 * - A call serves all of its ids or none. After an error nothing has changed, except that the stream may wait for
 *   work that is already enqueued; the pool remains usable.
 * - A call in the wrong order is BP_ERR_SCHEDULE. The message names the request, its buffer, the request that holds
 *   it, the acquire number and the step (bp_pool_set_step).
 *
 * Thread safety: acquire, try_acquire, can_acquire, use, release, cancel and the getters may run at the same time for
 * different requests. Two calls at the same time for one request are an error that is reported, not a data race.
 * bp_pool_bind may run at the same time as these calls, and so may the destruction of a stream that no call names.
 * Creation, destruction, the setters, bp_pool_seal and tracing need one thread and no other call at the same time.
 *
 * Streams must be of the pool's device. Capture: see capture.h.
 *
 * Sources: FixedPoolAllocator and MaxPoolAllocator of Megatron-LM (PR 5462) for the policies and for strict
 * assignment; RMM, and record_stream of PyTorch, for ordering reuse with events. */
#ifndef BUCKETPOOL_POOL_H
#define BUCKETPOOL_POOL_H

#include <bucketpool/device.h>
#include <bucketpool/model.h>
#include <bucketpool/plan.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct bp_pool bp_pool;

/* ---- creation ----------------------------------------------------------------------------------------------------- */

/** Strict assignment: the behaviour of acquire when another request holds the copy that the plan assigns, but another
 * copy of the same size class is free. Requests outside size classes have one address and are not affected.
 * - BP_STRICT_ERROR: the acquire fails with BP_ERR_SCHEDULE.
 * - BP_STRICT_WARN: acquire takes the lowest free copy, counts a deviation and reports it to on_message.
 * - BP_STRICT_OFF: acquire takes the lowest free copy and counts a deviation. */
typedef enum bp_strict { BP_STRICT_OFF = 1, BP_STRICT_WARN = 2, BP_STRICT_ERROR = 3 } bp_strict;

/** Guard mode: detection of use after release and of writes past the end, on devices whose memory the host can access.
 * - The layout changes: buffers that overlap no other get separate pages, so the pool is larger than its plan.
 * - Release waits for the streams, then makes the memory inaccessible. An access traps where the page holds nothing
 *   else.
 * - Acquire fills memory with NaN (bytes 0xff) unless bp_pool_set_zero asked for zeros.
 * - Release checks the redzones; BP_ERR_SCHEDULE names the request and the byte. AddressSanitizer is informed where
 *   the program has it.
 *
 * BP_GUARD_ENVIRONMENT: on if BUCKETPOOL_GUARD=1 is set and the device supports it. */
typedef enum bp_guard { BP_GUARD_ENVIRONMENT = 0, BP_GUARD_OFF = 1, BP_GUARD_ON = 2 } bp_guard;

/** NVTX annotations for profilers (nsys) and compute-sanitizer: ranges for creation, registration, captures, steps and
 * live requests, and a memory region for each live request, so that compute-sanitizer reports an access to memory
 * that no request holds.
 *
 * The host adds and removes regions in acquire and release, so compute-sanitizer needs `--force-blocking-launches
 * yes`. Annotations that are off cost nothing.
 *
 * BP_ANNOTATE_ENVIRONMENT: on if the library was built with NVTX, and a tool is attached (NVTX_INJECTION64_PATH) or
 * BUCKETPOOL_NVTX=1 is set. */
typedef enum bp_annotate { BP_ANNOTATE_ENVIRONMENT = 0, BP_ANNOTATE_OFF = 1, BP_ANNOTATE_ON = 2 } bp_annotate;

/** When acquire, use, release and launch ask the driver whether their stream is being captured (capture.h). A stream
 * that should not be, or should be, is BP_ERR_CAPTURE.
 * - BP_CAPTURE_CHECK_OFF: never.
 * - BP_CAPTURE_CHECK_INSIDE: only inside declared captures, so that eager calls make no query.
 * - BP_CAPTURE_CHECK_ALWAYS: also outside, which finds captures that were not declared.
 * - BP_CAPTURE_CHECK_ENVIRONMENT: ALWAYS if BUCKETPOOL_CHECK_CAPTURE=1 is set, else INSIDE. */
typedef enum bp_capture_check {
    BP_CAPTURE_CHECK_ENVIRONMENT = 0,
    BP_CAPTURE_CHECK_OFF = 1,
    BP_CAPTURE_CHECK_INSIDE = 2,
    BP_CAPTURE_CHECK_ALWAYS = 3
} bp_capture_check;

/** Receives one line of text without a newline, on the thread whose call it reports. Must not call the pool. */
typedef void bp_message_function(void *user, const char *text);

typedef struct bp_pool_config {
    size_t size;
    const char *name; /**< in messages; copied. NULL: the plan's model */
    bp_strict strict;
    bp_guard guard;
    bp_capture_check capture_check;
    bp_annotate annotate;
    uint32_t extra_requests; /**< largest number of requests that bp_pool_bind may add */
    /** memory for persistent requests that are not in the plan, allocated at creation */
    uint64_t persistent_bytes;
    /** memory for passes that are not in the plan, allocated at creation; see bp_pool_allow_overflow */
    uint64_t overflow_bytes;
    const char *fingerprint; /**< expected fingerprint of the plan; NULL: any */
    bp_message_function *on_message;
    void *user;
} bp_pool_config;

/** Sets the defaults: BP_STRICT_ERROR; guard mode, capture checks and annotations by environment; 4096 extra requests;
 * no persistent or overflow memory. */
BP_API bp_status bp_pool_config_init(bp_pool_config *config, size_t size);

/** Allocates every slab of the plan at full size, each at a multiple of the plan's alignment. The plan is only read:
 * it may be destroyed afterwards, and any number of pools may be made from it. `config` NULL: the defaults. The
 * caller owns the pool: bp_pool_destroy.
 *
 * Errors, after which all memory has been freed:
 * - BP_ERR_INFEASIBLE: the plan is infeasible.
 * - BP_ERR_MISMATCH: the fingerprint differs from the expected one (the message has both), or the plan contradicts
 *   itself.
 * - BP_ERR_UNSUPPORTED: guard mode on a device without it, or annotations in a library built without NVTX.
 * - BP_ERR_INVALID_ARGUMENT, BP_ERR_OVERFLOW, BP_ERR_NO_HOST_MEMORY, BP_ERR_NO_DEVICE_MEMORY, and errors of the
 *   device. */
BP_API bp_status bp_pool_create(bp_device *device, const bp_plan *plan, const bp_pool_config *config, bp_pool **pool);

/** Waits for all streams of the device that are not being captured, ends registrations in reverse order, and frees
 * the memory. Live requests end. Work on native streams that were never imported is not waited for. Accepts NULL and
 * a pointer to NULL; sets *pool to NULL. */
BP_API void bp_pool_destroy(bp_pool **pool);

/** A slab as allocated. */
typedef struct bp_pool_slab {
    void *address;
    uint64_t bytes;         /**< allocated bytes */
    uint64_t planned_bytes; /**< bytes in the plan; 0 for persistent and overflow memory */
    const char *group;      /**< release group of the plan, "persistent" or "overflow" */
} bp_pool_slab;

typedef struct bp_pool_info {
    const char *name; /**< as in messages */
    bp_policy policy;
    const char *fingerprint; /**< fingerprint of the plan */
    bp_device *device;       /**< borrowed: the caller must not destroy it through this pointer */
    uint64_t alignment;
    int32_t annotated;               /**< 1: NVTX ranges and memory regions are on */
    int32_t guarded;                 /**< 1: guard mode */
    size_t request_count;            /**< requests of the plan, then bound requests */
    const bp_plan_request *requests; /**< by id; `slab` and `offset` are 0 for bound requests */
    size_t slab_count;
    const bp_pool_slab *slabs;
} bp_pool_info;

/** The contents of the pool, including requests that were bound since. Valid as long as the pool. Must not be read
 * while bp_pool_bind runs. NULL for NULL. */
BP_API const bp_pool_info *bp_pool_get_info(const bp_pool *pool);

/* ---- requests ----------------------------------------------------------------------------------------------------- */

/** A request that is not in the plan. */
typedef struct bp_bind {
    size_t size;
    const char *unit;    /**< copied; "" for parameters outside units */
    uint32_t ordinal;    /**< of the bucket in its unit */
    uint32_t role;       /**< a bp_role */
    bp_dtype dtype;      /**< of the elements */
    uint64_t bytes;      /**< with padding. 0: a bucket without elements, whose address is NULL */
    uint64_t used_bytes; /**< without padding, for BP_ZERO_PADDING; at most `bytes` */
    /** BP_PLACE_PERSISTENT: separate memory from config.persistent_bytes, for the life of the pool. BP_PLACE_DYNAMIC:
     * allocated at each acquire, in stream order. If the device is out of memory, acquire waits for memory that
     * streams are about to free; try_acquire returns busy instead. */
    bp_placement placement;
} bp_bind;

/** Sets the defaults: a persistent request outside units. */
BP_API bp_status bp_bind_init(bp_bind *bind, size_t size);

/** Adds a request that is not in the plan and returns its id: the number after the last request. Requests of the plan
 * are not bound; their ids come from bp_plan_find. Binding twice adds two requests. Too slow for the training loop.
 *
 * Errors:
 * - BP_ERR_NO_DEVICE_MEMORY: persistent_bytes are used up; the message has the numbers.
 * - BP_ERR_UNSUPPORTED: more than extra_requests, or a dynamic request on a sealed pool.
 * - BP_ERR_SCHEDULE: release group "persistent" is offloaded.
 * - BP_ERR_INVALID_ARGUMENT, BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_pool_bind(bp_pool *pool, const bp_bind *bind, uint32_t *id);

/** Promises that these requests are only acquired on `stream`; an acquire on another stream then fails. If all
 * requests that share memory are promised to one stream, releases on that stream record no event. NULL withdraws the
 * promise. A change waits for the streams that were promised before.
 *
 * Errors: BP_ERR_INVALID_ARGUMENT (an unknown id; a stream that was destroyed or is of another device),
 * BP_ERR_SCHEDULE (the promise changes while requests are live), BP_ERR_CAPTURE (the pool is being captured). */
BP_API bp_status bp_pool_set_stream(bp_pool *pool, const uint32_t *ids, size_t count, bp_stream *stream);

/** Bytes that the acquiring stream sets to zero before the caller's work: none, the padding after used_bytes
 * (reductions and norms read it), or all. A further acquire of a live request does not clear again. */
typedef enum bp_zero { BP_ZERO_NOTHING = 0, BP_ZERO_PADDING = 1, BP_ZERO_ALL = 2 } bp_zero;

/** Chooses the bytes to clear, from the next acquire of these requests.
 *
 * Errors: BP_ERR_INVALID_ARGUMENT (an unknown id). */
BP_API bp_status bp_pool_set_zero(bp_pool *pool, const uint32_t *ids, size_t count, bp_zero zero);

/** The reference count of a request; 0 if it is not live or unknown. Any thread. */
BP_API uint32_t bp_pool_references(const bp_pool *pool, uint32_t id);

/** Address and bytes of a request. The address of a planned request with BP_STRICT_ERROR and of a persistent request
 * never changes. For other requests it is the address of the live request, or the address in the plan.
 *
 * Errors: BP_ERR_INVALID_ARGUMENT (an unknown id), BP_ERR_SCHEDULE (the request has no memory now). */
BP_API bp_status bp_pool_address(const bp_pool *pool, uint32_t id, void **address, uint64_t *bytes);

/* ---- the hot path ------------------------------------------------------------------------------------------------- */

#define BP_LIVE_STREAMS 8 /**< different streams that may acquire, use and release one live request */

/** Acquires all `count` requests for work on `stream`, which waits for the release events of the overlapping memory.
 * `addresses` gets an address for each id; NULL if not wanted. Acquiring a live request returns the same address,
 * adds a reference, and orders the stream as if it had acquired first.
 *
 * Errors, after which no id was acquired:
 * - BP_ERR_INVALID_ARGUMENT: an unknown id, an id twice in the call, a stream that was destroyed or is of another
 *   device.
 * - BP_ERR_SCHEDULE: another request holds the memory (the message names it); a stream other than the promised one;
 *   two threads on one request; more than BP_LIVE_STREAMS streams or 65535 references; a sealed pool would have to
 *   deviate; a request that the schedule of the plan never uses, and which has no memory.
 * - BP_ERR_NO_DEVICE_MEMORY: a dynamic request.
 * - Errors of the device. */
BP_API bp_status bp_pool_acquire(bp_pool *pool, const uint32_t *ids, size_t count, bp_stream *stream, void **addresses);

/** As bp_pool_acquire, but returns BP_OK with *acquired 0 (busy) if another request holds the memory or the device is
 * out of memory. For prefetching as far as memory allows. With *acquired 1 the addresses are written. */
BP_API bp_status bp_pool_try_acquire(bp_pool *pool, const uint32_t *ids, size_t count, bp_stream *stream,
                                     void **addresses, int *acquired);

/** Tells if bp_pool_acquire of `ids` would succeed after one reference to each of `releasing` was released: *can is 1
 * or 0. The answer is valid until another request is acquired. The ids are counted together: two requests for one
 * free buffer are 0. Ids in `releasing` that are not live have no effect. The device is not asked: it may lack the memory
 * of a dynamic request.
 *
 * Errors: BP_ERR_INVALID_ARGUMENT (an unknown id, an id twice in `ids`), BP_ERR_UNSUPPORTED (more than 256 ids of
 * size classes). */
BP_API bp_status bp_pool_can_acquire(const bp_pool *pool, const uint32_t *ids, size_t count, const uint32_t *releasing,
                                     size_t releasing_count, int *can);

/** Declares that work on another stream uses live requests, so that reuse waits for this stream too. The caller orders
 * that work after the data is written.
 *
 * Errors: as bp_pool_acquire; BP_ERR_SCHEDULE (a request is not live). */
BP_API bp_status bp_pool_use(bp_pool *pool, const uint32_t *ids, size_t count, bp_stream *stream);

/** Drops one reference to each request. `stream` is the stream of its last work, which may differ from the acquiring
 * one. If a request has several references, a release on a stream ends one acquire or use of that stream: work that
 * another reference enqueues there later needs another bp_pool_use.
 *
 * Errors: as bp_pool_acquire; BP_ERR_SCHEDULE (a request is not live; in guard mode: it was written past its end, it
 * stays live and the redzone is repaired). Dynamic memory that the device fails to free is reported to on_message and
 * kept until the pool is destroyed. */
BP_API bp_status bp_pool_release(bp_pool *pool, const uint32_t *ids, size_t count, bp_stream *stream);

/** Cancels acquires whose memory was never used, such as prefetches that are not needed: a release on the streams that
 * acquired them. bp_pool_trace_to_model leaves cancelled acquires out.
 *
 * Errors: BP_ERR_SCHEDULE (a request is not live, has more than one reference, or was used or released before). */
BP_API bp_status bp_pool_cancel(bp_pool *pool, const uint32_t *ids, size_t count);

/* ---- stages of a run ---------------------------------------------------------------------------------------------- */

/** Makes every later deviation from the plan an error, whatever `strict` says: requests get the copy that the plan
 * assigns to them; dynamic requests and overflow fail.
 *
 * Errors: BP_ERR_SCHEDULE (a live request holds dynamic or overflow memory). */
BP_API bp_status bp_pool_seal(bp_pool *pool);
/** 1 if bp_pool_seal was called, else 0. */
BP_API int bp_pool_is_sealed(const bp_pool *pool);

/** Allows (1) or forbids (0) requests whose buffer is held to take overflow memory, for a pass that the plan does not
 * contain, such as validation between steps. Overflow memory serves overflow_bytes / (largest request) requests at
 * the same time, and at least one that fits.
 *
 * Errors: BP_ERR_SCHEDULE (the pool is sealed), BP_ERR_UNSUPPORTED (overflow_bytes is 0). */
BP_API bp_status bp_pool_allow_overflow(bp_pool *pool, int allowed);

/** Sets a number that appears in messages, traces and annotations, usually the training step. One store; any thread. */
BP_API void bp_pool_set_step(bp_pool *pool, uint64_t step);

/* ---- statistics and live requests --------------------------------------------------------------------------------- */

typedef struct bp_pool_statistics {
    size_t size;
    /** of all slabs as allocated: planned, persistent and overflow bytes, rounding, guard pages */
    uint64_t slab_bytes;
    uint64_t requests; /**< in the plan, and bound */
    uint64_t acquires; /**< references taken, for each id */
    uint64_t repeated; /**< acquires of requests that were live already */
    uint64_t releases; /**< references dropped, without cancelled acquires */
    uint64_t cancelled;
    uint64_t busy;       /**< try_acquire calls that returned busy */
    uint64_t refused;    /**< calls that failed */
    uint64_t records;    /**< release events recorded */
    uint64_t elided;     /**< releases without an event, because of bp_pool_set_stream */
    uint64_t waits;      /**< of streams for release events */
    uint64_t deviations; /**< acquires that got another copy than the plan's */
    uint64_t overflows;  /**< acquires served from overflow memory */
    uint64_t dynamic;    /**< acquires that allocated */
    uint64_t live_requests;
    uint64_t live_bytes; /**< aligned bytes of requests that are live now */
    uint64_t
        peak_live_bytes; /**< high-water mark of live_bytes; calls in progress on other threads may count as live */
} bp_pool_statistics;

/** Reads the counters. Counters that other threads change meanwhile may be of slightly different moments. Any thread,
 * also during a capture. */
BP_API bp_status bp_pool_statistics_get(const bp_pool *pool, bp_pool_statistics *statistics);

/** A live request. Strings live as long as the pool. */
typedef struct bp_live_request {
    size_t size;
    uint32_t id;
    uint32_t role;
    uint32_t ordinal;
    uint32_t references;
    const char *unit;
    const char *stream; /**< the stream of the first acquire */
    void *address;
    uint64_t bytes;
    uint64_t acquire_number; /**< number of the first acquire, among those of its thread */
    uint64_t step;           /**< step of the first acquire */
} bp_live_request;

/** Fills up to `capacity` entries in the order of ids. *count is the number of live requests, even if larger. Set
 * entries[0].size first: it is the distance between entries. Any thread, also during a capture. If other threads work
 * meanwhile, each entry is correct for some moment of the call. */
BP_API bp_status bp_pool_live(const bp_pool *pool, bp_live_request *entries, size_t capacity, size_t *count);

/** Writes the live requests as text, one line each, and a line of sums: for the log file of a job that hangs. Writes
 * whole lines only, at most `capacity` bytes with the terminator. *needed is the size of the full text with the
 * terminator. `text` may be NULL if `capacity` is 0. Any thread, also during a capture. */
BP_API bp_status bp_pool_dump(const bp_pool *pool, char *text, size_t capacity, size_t *needed);

/** A hash of the acquires so far (unit, ordinal and role of each) in the order of each thread, and their number. When a
 * job hangs, the rank whose hash differs took another path. Exact where at most eight threads, which last as long as
 * the pool, acquire. Any thread, also during a capture. */
BP_API bp_status bp_pool_sequence(const bp_pool *pool, uint64_t *hash, uint64_t *acquires);

/* ---- traces ------------------------------------------------------------------------------------------------------- */

typedef enum bp_pool_event_kind {
    BP_EVENT_ACQUIRE = 1, /**< the first reference */
    BP_EVENT_REF = 2,     /**< a further reference */
    BP_EVENT_USE = 3,
    BP_EVENT_UNREF = 4,   /**< a release that leaves references */
    BP_EVENT_RELEASE = 5, /**< a release of the last reference */
    BP_EVENT_CANCEL = 6
} bp_pool_event_kind;

typedef struct bp_pool_event {
    size_t size;
    bp_pool_event_kind kind;
    uint32_t id;
    uint32_t stream; /**< number of the stream, in the order of creation on the device */
    uint64_t step;
    uint64_t time_ns;    /**< CLOCK_MONOTONIC; 0 without timestamps */
    const void *address; /**< of the request's memory */
} bp_pool_event;

/** Starts recording events into a ring buffer of `entries`, rounded up to a power of two. A full ring overwrites its
 * oldest events. Events of an earlier trace are dropped. `timestamps` 1: each event has a time.
 *
 * Errors: BP_ERR_INVALID_ARGUMENT (0 or more than 2^30 entries), BP_ERR_SCHEDULE (a profile records the pool),
 * BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_pool_trace_start(bp_pool *pool, size_t entries, int timestamps);
/** Stops recording. Recorded events stay readable. */
BP_API void bp_pool_trace_stop(bp_pool *pool);
/** The number of recorded events in the ring. No acquire or release may run at the same time. */
BP_API size_t bp_pool_trace_count(const bp_pool *pool);
/** Reads the recorded event at `index`; 0 is the oldest. Errors: BP_ERR_INVALID_ARGUMENT (no such index). */
BP_API bp_status bp_pool_trace_get(const bp_pool *pool, size_t index, bp_pool_event *event);

/** Adds the recorded events of steps first_step to last_step to `model` as its recorded schedule (bp_model_add_event),
 * from which bp_schedule_create_recorded makes a schedule. Leaves out requests outside units and cancelled acquires.
 *
 * Errors:
 * - BP_ERR_SCHEDULE: a request is released before it was acquired, or not at all, within these steps; the message
 *   names it.
 * - BP_ERR_MISMATCH: the model does not have a recorded unit.
 * - BP_ERR_INVALID_ARGUMENT: these steps have no events. */
BP_API bp_status bp_pool_trace_to_model(const bp_pool *pool, uint64_t first_step, uint64_t last_step, bp_model *model);

#ifdef __cplusplus
}
#endif
#endif
