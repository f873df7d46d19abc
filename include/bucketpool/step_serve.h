/* SPDX-License-Identifier: Apache-2.0 */
/** @file
 * Serves the plan of a training step (step_plan.h): an allocator asks a server for an address in its slab first, and
 * allocates elsewhere where the server has none.
 * @code
 * uint64_t offset;
 * if (bp_step_server_allocate(server, bytes, stream, &offset) == BP_STEP_SERVED)
 *     return slab + offset;                          // until bp_step_server_free(server, offset)
 * return other_allocator(bytes, stream);
 * @endcode
 *
 * The server compares the order of allocations, by bytes and stream, with the plan. Insertions, omissions and swaps cost
 * what they touch; after a longer departure (an evaluation, an exception) it finds its place by the last allocations. At
 * the mark of a step (the end of an optimizer) it knows its place.
 *
 * What holds whatever the plan says and the program does; bp_step_server_check verifies 1, 2 and 3:
 * 1. A range is handed out only if no byte of it is live. The plan is not asked what is live.
 * 2. A range has at least the requested bytes, lies in the slab, and begins at a multiple of BP_STEP_ALIGNMENT.
 * 3. A range is freed once, by its address; an address where nothing begins is an error and changes nothing.
 * 4. A range that stream T used is handed to stream S only if S waits for T's work up to the free (or all of T's work so
 *    far). If that is not possible, nothing is handed out.
 * 5. Nothing is handed out while bp_step_server_pause says so, and no event is recorded or waited for without the
 *    callbacks' consent: they refuse streams that are being captured.
 * 6. State changes under one lock of the server, held during the callbacks and nothing else that is foreign.
 * 7. The plan is a hint: with a wrong plan, mark or stream less is served.
 * 8. The server does not own the slab: release it only when bp_step_statistics.live is 0.
 *
 * Thread safety: any thread. Capture: see 5; freeing is always allowed. Nothing allocates but bp_step_server_create and
 * _replace.
 *
 * Sources: STAlloc (EuroSys 2026) serves Megatron's steps from a static plan; PyTorch's pull request 83837 matched by order and
 * size. Atoms, kinds, finding the place again, and the order between streams are from this library. */
#ifndef BUCKETPOOL_STEP_SERVE_H
#define BUCKETPOOL_STEP_SERVE_H

#include <bucketpool/step_plan.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct bp_step_server bp_step_server;

/** Streams are numbers of the caller, below this. The default stream is 0. Others need not be those of the plan: a stream of the
 * plan is bound to the first stream of the caller that allocates as it does, and to another one if that was wrong. */
#define BP_STEP_STREAMS 32u

typedef struct bp_step_server_config {
    size_t size;
    void *context; /**< first argument of the callbacks */
    /** Records the work of `stream` so far as its event number `point` (1, 2, ...). False: not possible now, for example
     * because the stream is being captured. Must not call the server. NULL: there is only one stream */
    bool (*record)(void *context, uint32_t stream, uint64_t point);
    /** Makes `stream` wait for an event of stream `before` that was recorded: number `point`, or a later one. False: not
     * possible now. Must not call the server */
    bool (*wait)(void *context, uint32_t stream, uint32_t before, uint64_t point);
} bp_step_server_config;

/** Sets the defaults: no callbacks. */
BP_API bp_status bp_step_server_config_init(bp_step_server_config *config, size_t size);

/** Makes a server, at the beginning of the plan's first kind. The plan is copied. `config` NULL: the defaults. The caller
 * owns it: bp_step_server_destroy. Expected O(items log items).
 *
 * Errors: BP_ERR_INVALID_ARGUMENT (NULL, one callback without the other), BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_step_server_create(const bp_step_plan *plan, const bp_step_server_config *config,
                                       bp_step_server **server);
/** Accepts NULL and a pointer to NULL; sets *server to NULL. No other call may run. */
BP_API void bp_step_server_destroy(bp_step_server **server);

/** Why an allocation was served, or not. */
typedef enum bp_step_outcome {
    BP_STEP_SERVED = 0,
    BP_STEP_UNKNOWN = 1,   /**< no item of the plan has these bytes on this stream */
    BP_STEP_MISPLACED = 2, /**< there are such items, but none unused near this place of the step */
    BP_STEP_UNPLANNED = 3, /**< the item has no address in the plan */
    BP_STEP_BUSY = 4,      /**< a part of its range is live */
    BP_STEP_UNORDERED = 5, /**< another stream used the range, and cannot be waited for now */
    BP_STEP_PAUSED = 6,
    BP_STEP_OUTCOMES = 7
} bp_step_outcome;

/** Asks for memory of `bytes` bytes for work on `stream`. `offset` gets the planned address; it is set only if the outcome
 * is BP_STEP_SERVED. The work of `stream` issued from now on may use it. 0 bytes are BP_STEP_UNKNOWN and count nothing. O(1)
 * expected. */
BP_API bp_step_outcome bp_step_server_allocate(bp_step_server *server, uint64_t bytes, uint32_t stream,
                                               uint64_t *offset);

/** The last resort before an allocation fails: any range of the slab that is not live, the smallest that is large enough. Also while paused.
 * Planned allocations that need it are not served meanwhile. Outcome: BP_STEP_SERVED, BP_STEP_BUSY (no range is large
 * enough), BP_STEP_UNORDERED. O(items). */
BP_API bp_step_outcome bp_step_server_allocate_anywhere(bp_step_server *server, uint64_t bytes, uint32_t stream,
                                                        uint64_t *offset);

/** Live memory of the slab. */
typedef struct bp_step_block {
    uint64_t offset, bytes, requested_bytes;
    uint32_t stream;     /**< that it was handed to */
    uint32_t kind, item; /**< of the plan; UINT32_MAX: of bp_step_server_allocate_anywhere */
} bp_step_block;

/** Frees memory; the work of its streams issued so far may still use it. `block` gets what was freed; NULL if not wanted.
 *
 * Errors: BP_ERR_INVALID_ARGUMENT (nothing live begins there; nothing is changed). */
BP_API bp_status bp_step_server_free(bp_step_server *server, uint64_t offset, bp_step_block *block);

/** Says that work of `stream` uses the live memory at `offset`, which need not be its beginning (record_stream).
 *
 * Errors: BP_ERR_INVALID_ARGUMENT (nothing is live there, no such stream). */
BP_API bp_status bp_step_server_use(bp_step_server *server, uint64_t offset, uint32_t stream);

/** An optimizer has ended its step. */
BP_API void bp_step_server_mark(bp_step_server *server);

/** Serves another plan from now on, in the same slab: what lives there stays, and may be freed as before. Call it at a mark. The
 * deviations begin anew. If the slab is larger than the plan, its end is idle.
 *
 * Errors: BP_ERR_INVALID_ARGUMENT (a plan with more bytes than the slab), BP_ERR_NO_HOST_MEMORY. After an error the server
 * serves as before. */
BP_API bp_status bp_step_server_replace(bp_step_server *server, const bp_step_plan *plan);

/** `paused` true: follows the program without serving. Servers begin unpaused. */
BP_API void bp_step_server_pause(bp_step_server *server, bool paused);

/* ---- looking at it ------------------------------------------------------------------------------------------------- */

typedef struct bp_step_statistics {
    size_t size;
    uint64_t
        outcomes[BP_STEP_OUTCOMES]; /**< allocations by outcome; [BP_STEP_SERVED]: without those of allocate_anywhere */
    uint64_t anywhere;              /**< allocations of bp_step_server_allocate_anywhere that were served */
    uint64_t frees;
    uint64_t live, live_bytes; /**< now; bytes are rounded to BP_STEP_ALIGNMENT */
    uint64_t peak_live_bytes;  /**< since the last bp_step_server_reset_peak */
    uint64_t marks;            /**< of bp_step_server_mark */
    uint64_t steps;            /**< that began: at a mark, or at the end of a kind */
    uint64_t kind_changes;     /**< the step turned out to be of another kind */
    uint64_t resyncs;          /**< places found by the last allocations */
    uint64_t events, waits;    /**< recorded; and waited for */
    uint32_t kind, item;       /**< where the program is */
} bp_step_statistics;

/** Errors: BP_ERR_INVALID_ARGUMENT (NULL, a size that is too small). */
BP_API bp_status bp_step_server_get_statistics(bp_step_server *server, bp_step_statistics *statistics);
/** Sets the peak to what is live now. */
BP_API void bp_step_server_reset_peak(bp_step_server *server);

/** Counts the waits of `stream` for `before`, both streams of the caller; 0 for unknown ones. */
BP_API uint64_t bp_step_server_waits(bp_step_server *server, uint32_t stream, uint32_t before);

/** The live block that contains `offset`, or else the first one behind it. False: there is none. */
BP_API bool bp_step_server_find(bp_step_server *server, uint64_t offset, bp_step_block *block);

/** Allocations that were not served, of one outcome, size and stream. */
typedef struct bp_step_deviation {
    bp_step_outcome outcome;
    uint32_t stream; /**< of the caller */
    uint64_t bytes;
    uint64_t count;
    uint64_t mark;       /**< the first of them: marks before it, */
    uint32_t kind, item; /**< and the place in the plan; for BP_STEP_BUSY and _UNPLANNED, its item */
} bp_step_deviation;

#define BP_STEP_DEVIATIONS                                                                                             \
    64u /**< groups that are kept, in the order of their first members; others only count in the statistics */

/** Copies the first `capacity` groups. Returns how many there are. `deviations` NULL: only counts. */
BP_API size_t bp_step_server_deviations(bp_step_server *server, bp_step_deviation *deviations, size_t capacity);

/** Verifies the invariants that the server's state shows: live blocks are disjoint, inside of the slab and aligned, and the
 * bitmap of what is live, the sums and the counts are those of the blocks. O(items). Errors: BP_ERR_MISMATCH. */
BP_API bp_status bp_step_server_check(bp_step_server *server);

#ifdef __cplusplus
}
#endif
#endif
