/** @file
 * Pools: a plan made real on a device, and the serving of its buckets.
 *
 * A runtime creates a pool from a plan, and then acquires and releases by id, which is the request's index in the plan (bp_plan_find):
 *
 *   bp_pool_acquire(pool, ids, count, gather_stream, addresses);    the gather stream may write the buckets
 *   ... enqueue the all-gather on gather_stream, make compute_stream wait for it, enqueue the layer ...
 *   bp_pool_release(pool, ids, count, compute_stream);              the memory may be reused after this point
 *
 * Contract, for every allocator and every device:
 * - All memory is made when the pool is created, at planned size. Nothing grows, and a request has one address for the life
 *   of the pool (unless the caller chose otherwise: bp_strict, dynamic requests, overflow).
 * - Acquire orders the stream after every release point of memory that the request overlaps, whatever order requests come
 *   in. The release of the last reference records release points: one on each stream that acquired, used or released the request. A release
 *   point is the stream's position at the call, so that later work of that stream is not waited for. Points more than 255
 *   releases of its stream old are stood in for by a younger one of the same stream.
 * - Acquire, use and release neither allocate, nor synchronise, nor take a lock (dynamic requests allocate by definition;
 *   guard mode synchronises). Their work does not grow with the number of requests.
 * - A call serves all its ids or none. After an error nothing has changed, except that the stream may wait for work that is
 *   already enqueued; the pool goes on.
 * - Errors of order are BP_ERR_SCHEDULE; the detail names the request, its buffer, who holds it, the acquire number
 *   and the step (bp_pool_set_step).
 *
 * Thread safety: acquire, try_acquire, can_acquire, use, release, cancel and the getters may be called from any thread at
 * once for different requests. Two calls at once on one request are an error of the caller that is reported, not a race. Binding may
 * run beside them, and so may destroying a stream that no call names (its requests are released on another one). Creating and
 * destroying pools, the setters, seal, tracing: one thread, no calls beside it.
 * Streams: of the pool's device. Capture: capture.h.
 *
 * Sources: Megatron-LM's FixedPoolAllocator and MaxPoolAllocator (PR 5462) for the policies and strict assignment; RMM and
 * PyTorch's record_stream for ordering by events. */
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

/** Strict assignment: a request of a size class gets the copy that the plan assigns to it. When another request holds that copy while another
 * one of the class is free:
 * BP_STRICT_ERROR: the acquire is refused. BP_STRICT_WARN: the lowest free copy is taken, counted and reported to on_message.
 * BP_STRICT_OFF: it is taken and counted. Requests in no class have one place and are not concerned. */
typedef enum bp_strict { BP_STRICT_OFF = 1, BP_STRICT_WARN = 2, BP_STRICT_ERROR = 3 } bp_strict;

/** Guard mode finds uses after release and writes past the end, on devices whose memory the host can reach. It changes the
 * layout (buffers that no other overlaps are set apart on pages of their own, so the pool is larger than its plan) and
 * makes release wait for the streams. Released memory becomes inaccessible: a touch traps at once where a page holds
 * nothing else. Acquired memory is filled with NaN (bytes 0xff) unless zeros were asked for, redzones are checked at release
 * (BP_ERR_SCHEDULE names request and byte), and AddressSanitizer, where the program has it, is told.
 * BP_GUARD_ENVIRONMENT: on when BUCKETPOOL_GUARD=1 is set and the device can. */
typedef enum bp_guard { BP_GUARD_ENVIRONMENT = 0, BP_GUARD_OFF = 1, BP_GUARD_ON = 2 } bp_guard;

/** What profilers (nsys) and compute-sanitizer are told through NVTX: ranges around creation, registration, captures and steps, a range for each
 * live request, and the memory of live requests as regions of their slab, so that a touch of memory that nobody holds is found. Regions come and
 * go with acquire and release on the host: compute-sanitizer must make launches blocking (--force-blocking-launches yes).
 * BP_ANNOTATE_ENVIRONMENT: on when a tool is attached (NVTX_INJECTION64_PATH) or BUCKETPOOL_NVTX=1 is set, and the library was built
 * with NVTX. Off, it costs nothing. */
typedef enum bp_annotate { BP_ANNOTATE_ENVIRONMENT = 0, BP_ANNOTATE_OFF = 1, BP_ANNOTATE_ON = 2 } bp_annotate;

/** When acquire, use, release and launch ask the driver whether their stream is captured (capture.h); an answer that does not fit is
 * BP_ERR_CAPTURE. BP_CAPTURE_CHECK_ENVIRONMENT: always when BUCKETPOOL_CHECK_CAPTURE=1 is set, else inside. INSIDE: in declared captures
 * only, so that eager calls make no query. ALWAYS: also outside, which finds captures that were not declared. */
typedef enum bp_capture_check {
    BP_CAPTURE_CHECK_ENVIRONMENT = 0,
    BP_CAPTURE_CHECK_OFF = 1,
    BP_CAPTURE_CHECK_INSIDE = 2,
    BP_CAPTURE_CHECK_ALWAYS = 3
} bp_capture_check;

/** Receives one line, without a newline, on the thread whose call it is about. Must not call the pool. */
typedef void bp_message_function(void *user, const char *text);

typedef struct bp_pool_config {
    size_t size;
    const char *name; /**< in messages; copied. NULL: the plan's model */
    bp_strict strict;
    bp_guard guard;
    bp_capture_check capture_check;
    bp_annotate annotate;
    uint32_t extra_requests;   /**< how many requests beyond the plan's may be bound */
    uint64_t persistent_bytes; /**< memory for persistent requests that are not in the plan, made at creation */
    uint64_t overflow_bytes;   /**< memory for unplanned passes, made at creation; see bp_pool_allow_overflow */
    const char *fingerprint;   /**< of the plan that is expected; NULL: any */
    bp_message_function *on_message;
    void *user;
} bp_pool_config;

/** Strict error, guard, capture checks and annotations by environment, 4096 extra requests, no extra memory. */
BP_API bp_status bp_pool_config_init(bp_pool_config *config, size_t size);

/** Makes the plan real: every slab at full size, at a multiple of the plan's alignment. The plan's policy decides how requests are served. The
 * plan is read, not kept: any number of pools may be made from it, and pools share nothing. `config` NULL: the defaults. The caller owns the pool: bp_pool_destroy.
 * Errors: BP_ERR_INVALID_ARGUMENT, BP_ERR_INFEASIBLE (an infeasible plan), BP_ERR_MISMATCH (another fingerprint than expected,
 * naming both; a plan that contradicts itself), BP_ERR_UNSUPPORTED (guard where the
 * device cannot; annotations where the library was built without), BP_ERR_OVERFLOW, BP_ERR_NO_HOST_MEMORY, BP_ERR_NO_DEVICE_MEMORY and whatever the device reports. Everything
 * made so far is undone. */
BP_API bp_status bp_pool_create(bp_device *device, const bp_plan *plan, const bp_pool_config *config, bp_pool **pool);

/** Waits for the device's streams, one by one but for those that are being captured, runs detach callbacks in reverse order and gives the
 * memory back; outstanding references end. Work on native streams that were never imported is not waited for.
 * Accepts NULL and pointers to NULL; sets *pool to NULL. */
BP_API void bp_pool_destroy(bp_pool **pool);

/** A slab as made. */
typedef struct bp_pool_slab {
    void *address;
    uint64_t bytes;         /**< as made */
    uint64_t planned_bytes; /**< 0 for persistent and overflow memory */
    const char *group;      /**< the plan's release group; "persistent", "overflow" */
} bp_pool_slab;

typedef struct bp_pool_info {
    const char *name; /**< as in messages */
    bp_policy policy;
    const char *fingerprint; /**< of the plan that it was made from */
    bp_device *device;       /**< not a reference of its own */
    uint64_t alignment;
    int32_t annotated;               /**< 1: NVTX ranges and memory regions are on */
    int32_t guarded;                 /**< 1: guard mode */
    size_t request_count;            /**< those of the plan, then those that were bound */
    const bp_plan_request *requests; /**< by id. slab and offset are the plan's, 0 for others */
    size_t slab_count;
    const bp_pool_slab *slabs;
} bp_pool_info;

/** The pool as it was made, with what was bound since. Lives as long as the pool; not to be read beside bp_pool_bind. NULL for NULL. */
BP_API const bp_pool_info *bp_pool_get_info(const bp_pool *pool);

/* ---- requests ----------------------------------------------------------------------------------------------------- */

/** A request beside the plan. */
typedef struct bp_bind {
    size_t size;
    const char *unit;    /**< copied; "" for parameters outside units */
    uint32_t ordinal;    /**< of the bucket in its unit */
    uint32_t role;       /**< a bp_role */
    bp_dtype dtype;      /**< of the elements */
    uint64_t bytes;      /**< with padding. 0: a bucket without elements, whose address is NULL */
    uint64_t used_bytes; /**< without padding, for BP_ZERO_PADDING; at most `bytes` */
    /** BP_PLACE_PERSISTENT: memory of its own from config.persistent_bytes.
     * BP_PLACE_DYNAMIC: allocated at each acquire in stream order. Where the device is out of memory, acquire waits for memory that streams are
     * about to free; try_acquire does not. */
    bp_placement placement;
} bp_bind;

/** Persistent, outside units. */
BP_API bp_status bp_bind_init(bp_bind *bind, size_t size);

/** Gives a request that the plan does not have an id: the next after those of the plan and those bound before. Requests of the plan need no
 * binding: their ids are bp_plan_find's. Not for the hot path; one that binds twice has two requests.
 * Errors: BP_ERR_INVALID_ARGUMENT; BP_ERR_NO_DEVICE_MEMORY (persistent_bytes used up, with the numbers); BP_ERR_NO_HOST_MEMORY;
 * BP_ERR_UNSUPPORTED (more than extra_requests; dynamic on a sealed pool); BP_ERR_SCHEDULE (group "persistent" is offloaded). */
BP_API bp_status bp_pool_bind(bp_pool *pool, const bp_bind *bind, uint32_t *id);

/** Promises that every acquire of these requests is on `stream`; acquiring one on another stream is then an error. Where all requests that
 * share memory have the same stream, releases on it need no event. NULL: any stream, as at first. Not while captured.
 * Changing a promise waits for the streams that were promised before. Errors: BP_ERR_INVALID_ARGUMENT (unknown ids, a destroyed stream or
 * one of another device), BP_ERR_SCHEDULE (a promise changes while requests are live), BP_ERR_CAPTURE. */
BP_API bp_status bp_pool_set_stream(bp_pool *pool, const uint32_t *ids, size_t count, bp_stream *stream);

/** Bytes that the acquiring stream clears before the caller's work: none, those after used_bytes (padding that reductions and norms read),
 * all. Not repeated when a live request is acquired again. */
typedef enum bp_zero { BP_ZERO_NOTHING = 0, BP_ZERO_PADDING = 1, BP_ZERO_ALL = 2 } bp_zero;

/** From the next acquire on. Errors: BP_ERR_INVALID_ARGUMENT (unknown ids). */
BP_API bp_status bp_pool_set_zero(bp_pool *pool, const uint32_t *ids, size_t count, bp_zero zero);

/** References to the request now; 0: it is not live, or unknown. Any thread. */
BP_API uint32_t bp_pool_references(const bp_pool *pool, uint32_t id);

/** The request's memory. Stable for planned requests with strict error, and for persistent ones; for others where it is live
 * now, or the plan's place. Errors: BP_ERR_INVALID_ARGUMENT (an unknown id), BP_ERR_SCHEDULE (it has no memory now). */
BP_API bp_status bp_pool_address(const bp_pool *pool, uint32_t id, void **address, uint64_t *bytes);

/* ---- the hot path ------------------------------------------------------------------------------------------------- */

#define BP_LIVE_STREAMS 8 /**< different streams that may acquire, use and release one live request */

/** Takes all `count` ids for work on `stream`. A live request gives the same address again and has one more reference; the stream is
 * then ordered as if it had acquired first. addresses may be NULL.
 * Errors: BP_ERR_INVALID_ARGUMENT (an unknown id, one twice in a call, a destroyed stream or one of another device),
 * BP_ERR_SCHEDULE (the memory is held: names the holder; another stream than bp_pool_set_stream promised; two threads on one request;
 * more than BP_LIVE_STREAMS streams or 65535 references; a sealed pool would have to deviate; the plan's schedule never uses the request, so
 * that it has no memory), BP_ERR_NO_DEVICE_MEMORY (dynamic), and what the device reports. */
BP_API bp_status bp_pool_acquire(bp_pool *pool, const uint32_t *ids, size_t count, bp_stream *stream, void **addresses);

/** As acquire, but answers busy (*acquired 0, BP_OK) where memory is held by others, or the device is out of it: for prefetching as
 * far as memory goes. `acquired` is an output; addresses are written when it is 1. */
BP_API bp_status bp_pool_try_acquire(bp_pool *pool, const uint32_t *ids, size_t count, bp_stream *stream,
                                     void **addresses, int *acquired);

/** Whether an acquire of `ids` would be served once one reference to each of `releasing` is released: 1 or 0. The answer holds while
 * nothing else is acquired. Counts every id, so that two requests for one free buffer are no. `releasing` ids that are not live change
 * nothing. Errors: BP_ERR_INVALID_ARGUMENT (an unknown id, one twice in `ids`), BP_ERR_UNSUPPORTED (more than 256 ids that may choose
 * their buffer). */
BP_API bp_status bp_pool_can_acquire(const bp_pool *pool, const uint32_t *ids, size_t count, const uint32_t *releasing,
                                     size_t releasing_count, int *can);

/** Says that work on a further stream uses live requests, so that reuse waits for it too. Ordering that work after the data
 * is there remains the caller's business. Errors: BP_ERR_SCHEDULE (not live). */
BP_API bp_status bp_pool_use(bp_pool *pool, const uint32_t *ids, size_t count, bp_stream *stream);

/** Drops one reference to each id. `stream` is where its last work was enqueued; it need not be the acquiring stream. Where a request is
 * referenced several times, a release on a stream that acquired or used it ends one acquire or use of that stream: work that another reference puts
 * there afterwards needs a bp_pool_use of its own.
 * Errors: as acquire; BP_ERR_SCHEDULE when one is not live, or guard mode finds that it was written past its end (the request stays
 * live, the redzone is whole again). Dynamic memory that the device refuses to take back is reported to on_message and kept until the
 * pool goes. */
BP_API bp_status bp_pool_release(bp_pool *pool, const uint32_t *ids, size_t count, bp_stream *stream);

/** Gives back prefetched requests that nobody used: a release on the streams that acquired them. They leave no trace in a schedule
 * made from a trace. Errors: BP_ERR_SCHEDULE when one is not live, has more than one reference, or was used or released once. */
BP_API bp_status bp_pool_cancel(bp_pool *pool, const uint32_t *ids, size_t count);

/* ---- stages of a run ---------------------------------------------------------------------------------------------- */

/** From now on every deviation is an error, whatever `strict` says: requests get the copy that the plan assigns, dynamic requests and
 * overflow are refused. Errors: BP_ERR_SCHEDULE while a live request holds dynamic or overflow memory. */
BP_API bp_status bp_pool_seal(bp_pool *pool);
BP_API int bp_pool_is_sealed(const bp_pool *pool);

/** Whether requests whose buffer is held may take overflow memory: for a pass that the plan does not know (validation between
 * steps). Overflow has room for overflow_bytes / (largest request) requests at once, at least one that fits. Errors: BP_ERR_SCHEDULE
 * (sealed), BP_ERR_UNSUPPORTED (overflow_bytes is 0). */
BP_API bp_status bp_pool_allow_overflow(bp_pool *pool, int allowed);

/** A number for messages, traces and annotations: the training step, or the position in it. Cheap; any thread. */
BP_API void bp_pool_set_step(bp_pool *pool, uint64_t step);

/* ---- what is going on --------------------------------------------------------------------------------------------- */

typedef struct bp_pool_statistics {
    size_t size;
    uint64_t slab_bytes; /**< of all slabs, as made: planned bytes, persistent, overflow, rounding, guard pages */
    uint64_t requests;   /**< of the plan, and bound */
    uint64_t acquires;   /**< references taken; counts each id */
    uint64_t repeated;   /**< of these: of requests that were live */
    uint64_t releases;   /**< references dropped, without cancelled */
    uint64_t cancelled;
    uint64_t busy;       /**< try_acquire calls that were not served */
    uint64_t refused;    /**< calls that ended in an error */
    uint64_t records;    /**< release points that took an event */
    uint64_t elided;     /**< release points that needed none, because of bp_pool_set_stream */
    uint64_t waits;      /**< of streams for release points */
    uint64_t deviations; /**< acquires that got another copy than the plan's */
    uint64_t overflows;  /**< acquires served from overflow memory */
    uint64_t dynamic;    /**< acquires that allocated */
    uint64_t live_requests;
    uint64_t live_bytes;      /**< aligned bytes of requests that are live now */
    uint64_t peak_live_bytes; /**< at most so far */
} bp_pool_statistics;

/** Numbers taken while other threads work may be of slightly different moments. Any thread, also while capturing. */
BP_API bp_status bp_pool_statistics_get(const bp_pool *pool, bp_pool_statistics *statistics);

/** A live request. Strings live as long as the pool. */
typedef struct bp_live_request {
    size_t size;
    uint32_t id;
    uint32_t role;
    uint32_t ordinal;
    uint32_t references;
    const char *unit;
    const char *stream; /**< that acquired it first */
    void *address;
    uint64_t bytes;
    uint64_t acquire_number; /**< of its first reference */
    uint64_t step;           /**< at its first reference */
} bp_live_request;

/** Fills up to `capacity` entries (set entries[0].size first: it is the distance between entries), in the order of ids; *count is how many are
 * live, also where that is more. Any thread, also while capturing; with other threads at work each entry is right for a moment of the call. */
BP_API bp_status bp_pool_live(const bp_pool *pool, bp_live_request *entries, size_t capacity, size_t *count);

/** The live requests as text, a line each, and a line of sums: for log files when a job hangs. Writes at most `capacity` bytes with the
 * terminator, whole lines only; *needed is what the full text takes, with the terminator. text may be NULL when capacity is 0. Any thread,
 * also while capturing. */
BP_API bp_status bp_pool_dump(const bp_pool *pool, char *text, size_t capacity, size_t *needed);

/** A hash of the sequence of acquires (unit, ordinal and role of each, in order), and how many there were. Ranks that did the same
 * have the same; when a job hangs, the one that differs went another way. Any thread, also while capturing. */
BP_API bp_status bp_pool_sequence(const bp_pool *pool, uint64_t *hash, uint64_t *acquires);

/* ---- traces ------------------------------------------------------------------------------------------------------- */

typedef enum bp_pool_event_kind {
    BP_EVENT_ACQUIRE = 1, /**< the first reference */
    BP_EVENT_REF = 2,     /**< a further reference */
    BP_EVENT_USE = 3,
    BP_EVENT_UNREF = 4,   /**< a release that leaves references */
    BP_EVENT_RELEASE = 5, /**< the last reference is dropped */
    BP_EVENT_CANCEL = 6
} bp_pool_event_kind;

typedef struct bp_pool_event {
    size_t size;
    bp_pool_event_kind kind;
    uint32_t id;
    uint32_t stream; /**< number of the stream, in the order in which the device made them */
    uint64_t step;
    uint64_t time_ns;    /**< CLOCK_MONOTONIC; 0 when not asked for */
    const void *address; /**< of the request's memory */
} bp_pool_event;

/** Starts recording into a ring of at least `entries` (rounded up to a power of two); a full ring forgets the oldest. What was
 * recorded before is dropped. Errors: BP_ERR_INVALID_ARGUMENT (0 or more than 2^30 entries), BP_ERR_SCHEDULE (a profile records the pool),
 * BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_pool_trace_start(bp_pool *pool, size_t entries, int timestamps);
/** What was recorded stays readable. */
BP_API void bp_pool_trace_stop(bp_pool *pool);
/** Events in the ring, oldest first; call with no acquire or release beside it. */
BP_API size_t bp_pool_trace_count(const bp_pool *pool);
/** One of them, by its position: 0 is the oldest. Errors: BP_ERR_INVALID_ARGUMENT (no such event). */
BP_API bp_status bp_pool_trace_get(const bp_pool *pool, size_t index, bp_pool_event *event);

/** Adds the recorded events whose step is first_step to last_step to `model` as its explicit schedule (bp_model_add_event), which
 * bp_schedule_create_recorded turns into intervals. Requests outside units and given-up prefetches are left out.
 * Errors: BP_ERR_SCHEDULE when the steps do not stand alone (released before it was acquired, or not at all: by name),
 * BP_ERR_MISMATCH (a unit that the model does not have), BP_ERR_INVALID_ARGUMENT (no events in these steps). */
BP_API bp_status bp_pool_trace_to_model(const bp_pool *pool, uint64_t first_step, uint64_t last_step, bp_model *model);

#ifdef __cplusplus
}
#endif
#endif
