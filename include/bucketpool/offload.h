/** @file
 * Offload: the physical memory of release groups is given back to the device, and mapped again later at the same addresses.
 *
 * A release group is the slabs of a pool whose plan gives them one name: by default a group for each role ("param", "grad", "state",
 * "main_grad", "optimizer"), "joint" for a joint slab, "persistent" and "overflow" for what the pool adds; bp_plan_set_group names others.
 * Each group is offloaded and restored on its own.
 *
 *   bp_offload_create(pool, NULL, &offload);
 *   bp_offload_begin(offload, "optimizer", BP_OFFLOAD_KEEP);        copies run beside what the device does next
 *   bp_offload_begin(offload, "main_grad", BP_OFFLOAD_DISCARD);
 *   ... work that does not touch them ...
 *   bp_offload_finish(offload, "optimizer");                        now the memory is the device's
 *   bp_offload_finish(offload, "main_grad");
 *   ... generate ...
 *   bp_restore_begin(offload, "optimizer", BP_RESTORE_LEAVE);       memory is mapped and registered, copies run
 *   bp_restore_begin(offload, "main_grad", BP_RESTORE_ZERO);
 *   bp_restore_finish(offload, "optimizer");
 *   bp_restore_finish(offload, "main_grad");
 *
 * Addresses stay as they are, and so do views of the memory and captured graphs, but for graphs with collectives in the group (below).
 *
 * What counts as in use: a live request refuses the offload of its group, unless it is one whose memory lasts as long as the pool: of a
 * state role (state, main_grad, optimizer), or persistent. Those stay live; their bytes are what `keep` is for. From bp_offload_begin to the
 * end of bp_restore_finish acquiring, using and releasing requests of the group is BP_ERR_SCHEDULE (try_acquire is busy, can_acquire 0), and
 * so is binding persistent requests while "persistent" is offloaded.
 *
 * Order: copies start after everything that any stream of the device has been given before bp_offload_begin (streams that are being captured
 * are not waited for). Work on native streams that were never imported is not waited for. Touching the memory between bp_offload_begin and
 * bp_restore_finish is an error of the caller, which traps once it is unmapped.
 *
 * Registered memory (comm.h): windows are deregistered before the memory is unmapped and registered again after it is mapped. Then bp_offload_begin,
 * bp_offload_finish and bp_restore_begin are collective over the communicators of the registration, for the same groups in the same order on
 * all ranks, with no collective of theirs on its way: where one rank fails all of them get the error, naming it, and nothing has changed on
 * any (but for memory that one rank's device does not take back: bp_offload_finish). bp_restore_finish is not collective. Without registration
 * nothing is exchanged.
 *
 * Graphs: memory that a graph only computes in may be offloaded and restored. A graph with collectives in it has the addresses of windows, which are
 * other ones afterwards: see bp_capture_config.collectives and BP_OFFLOAD_RECAPTURE.
 *
 * Thread safety: one call at a time for an offload, beside acquires and releases of other groups; leases, groups and their getters from any
 * thread. Capture: nothing here while a pool of the device is being captured (BP_ERR_CAPTURE), but for leases.
 *
 * Sources: torch_memory_saver for release and resume at stable addresses; SkyRL's offloading of parts of the state (PR 563), whose first
 * version lost gradients because their size was not saved; CUDA's virtual memory management. */
#ifndef BUCKETPOOL_OFFLOAD_H
#define BUCKETPOOL_OFFLOAD_H

#include <bucketpool/pinned.h>
#include <bucketpool/pool.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct bp_offload bp_offload;

/** Where kept bytes are on the host.
 * BP_BACKING_PINNED: in pinned memory, which copies reach at full speed; it stays for the next time (bp_offload_trim).
 * BP_BACKING_STAGED: in ordinary memory, through two pinned chunks in turn: slower, but pins little.
 * BP_BACKING_AUTO: pinned; staged where so much cannot be pinned. */
typedef enum bp_backing { BP_BACKING_AUTO = 0, BP_BACKING_PINNED = 1, BP_BACKING_STAGED = 2 } bp_backing;

/** Called by a thread of the device after each chunk that was copied, in order, for a group; must not call this library and should be short. */
typedef void bp_offload_progress(void *user, const char *group, uint64_t copied_bytes, uint64_t bytes);

typedef struct bp_offload_config {
    size_t size;
    bp_pinned *pinned; /**< where pinned memory comes from, of the pool's device; kept alive. NULL: memory of its own */
    bp_backing backing;
    uint64_t chunk_bytes;          /**< of copies, rounded up to whole pages. 0: 32 MiB */
    bp_offload_progress *progress; /**< may be NULL */
    void *user;
} bp_offload_config;

/** Pinned memory of its own, automatic backing, chunks of 32 MiB. */
BP_API bp_status bp_offload_config_init(bp_offload_config *config, size_t size);

/** One for a pool. Makes its streams now, and nothing else: what a pool does not offload costs nothing. `config` NULL: the defaults. The caller
 * owns it: bp_offload_destroy. Errors: BP_ERR_INVALID_ARGUMENT, BP_ERR_SCHEDULE (the pool has one), BP_ERR_UNSUPPORTED (a device without
 * memory, guard mode), BP_ERR_CAPTURE, BP_ERR_NO_HOST_MEMORY, what the device reports. */
BP_API bp_status bp_offload_create(bp_pool *pool, const bp_offload_config *config, bp_offload **offload);

/** Waits for copies on their way, lets go of host memory and of kept bytes. Groups that are offloaded stay so: restore them before, or
 * destroy the pool. The pool may go first: then this call and the getters are left, others are BP_ERR_INVALID_ARGUMENT. Leases must have been returned. Accepts NULL and pointers to NULL;
 * sets *offload to NULL. */
BP_API void bp_offload_destroy(bp_offload **offload);

/* ---- offloading -------------------------------------------------------------------------------------------------------- */

/** What becomes of the bytes of the group's slabs, all that were made: kept on the host, or given up. A bit may be added to either.
 * BP_OFFLOAD_RECAPTURE: the caller will capture anew the graphs that have collectives in the group; launching one of them afterwards is
 * BP_ERR_CAPTURE. Without it such graphs refuse the offload. */
#define BP_OFFLOAD_KEEP 1u
#define BP_OFFLOAD_DISCARD 2u
#define BP_OFFLOAD_RECAPTURE 4u

/** Starts: from now on nobody gets the group's memory; its bytes are being copied. Does not wait for streams.
 * Errors (nothing has changed): BP_ERR_INVALID_ARGUMENT (no such group: names those there are; flags), BP_ERR_SCHEDULE (not resident; a request
 * is live; a graph's launch has the memory; a lease is out: by name), BP_ERR_UNSUPPORTED (keeping a joint slab, whose bytes are of no use
 * later), BP_ERR_CAPTURE (a capture; a graph with collectives in the group: by name), BP_ERR_NO_HOST_MEMORY (no room for the bytes, with the
 * numbers), what the device reports. */
BP_API bp_status bp_offload_begin(bp_offload *offload, const char *group, uint32_t flags);

/** Waits for the copies, deregisters, and gives the memory back to the device. Errors: BP_ERR_SCHEDULE (not begun), and what the device reports:
 * where a copy failed, or memory could not be unmapped, the group is resident again, as if nothing had begun; in the latter case with other
 * windows, so that with BP_OFFLOAD_RECAPTURE graphs with collectives in it have to be captured anew all the same. Memory that was unmapped but
 * that the device does not take back is reported too, by this rank alone; the group is offloaded then (bp_offload_group.unreturned_bytes), and has
 * that memory again after restoring. */
BP_API bp_status bp_offload_finish(bp_offload *offload, const char *group);

/* ---- restoring --------------------------------------------------------------------------------------------------------- */

/** What discarded memory has in it afterwards: zeros, or whatever there is. Kept bytes are always restored. */
typedef enum bp_restore { BP_RESTORE_ZERO = 1, BP_RESTORE_LEAVE = 2 } bp_restore;

/** Memory at the same addresses, registered again; bytes are on their way. Errors: BP_ERR_SCHEDULE (not offloaded), BP_ERR_NO_DEVICE_MEMORY (bytes
 * wanted and left) and what the device and the communicators report: everything is undone, the group is offloaded as before with its bytes still on
 * the host, and the call can be made again when there is memory. */
BP_API bp_status bp_restore_begin(bp_offload *offload, const char *group, bp_restore fill);

/** Waits for the bytes; then the group serves requests again. Errors: BP_ERR_SCHEDULE (not begun), what the device reports: bytes that did not
 * arrive are still on the host, and the call can be made again, which copies anew. */
BP_API bp_status bp_restore_finish(bp_offload *offload, const char *group);

/** Gives back host memory that holds no bytes now; nothing while a pool of the device is being captured. */
BP_API void bp_offload_trim(bp_offload *offload);

/* ---- residency ----------------------------------------------------------------------------------------------------- */

typedef enum bp_residency {
    BP_RESIDENT = 1,
    BP_OFFLOADING = 2, /**< begun: still has its memory */
    BP_OFFLOADED = 3,
    BP_RESTORING = 4 /**< begun: has its memory */
} bp_residency;

typedef struct bp_offload_group {
    size_t size;
    const char *name; /**< lives as long as the offload */
    bp_residency residency;
    uint32_t slabs;
    uint64_t bytes;              /**< of its slabs */
    uint64_t resident_bytes;     /**< that it has on the device now */
    uint64_t kept_bytes;         /**< that are on the host for it: to be restored */
    uint64_t host_bytes;         /**< of host memory it has, also where it holds nothing now */
    uint64_t unreturned_bytes;   /**< unmapped, but not taken back by the device */
    uint64_t copied_bytes;       /**< so far, of the copies that began last */
    uint64_t offloads, restores; /**< finished */
    uint32_t leases;             /**< out */
    int32_t pinned;              /**< 1: its host memory is pinned */
} bp_offload_group;

/** A snapshot of all groups, in the order of their first slab: which there are and what their names are never changes. Fills up to `capacity`
 * entries, which follow each other groups[0].size bytes apart (set it to sizeof groups[0]); *count is how many groups there are. Any thread,
 * also after the pool was destroyed. Errors: BP_ERR_INVALID_ARGUMENT. */
BP_API bp_status bp_offload_groups(const bp_offload *offload, bp_offload_group *groups, size_t capacity, size_t *count);

/* ---- readers ------------------------------------------------------------------------------------------------------- */

/** Somebody reads the group's memory beside the training loop (an asynchronous checkpoint): as long as the lease is out the group cannot be
 * offloaded. Work that was enqueued on streams of the device before it is returned is waited for by the next offload. */
typedef struct bp_lease bp_lease;

/** `reader`: a name for messages, copied. Any thread. Errors: BP_ERR_INVALID_ARGUMENT (no such group), BP_ERR_SCHEDULE (it is not resident),
 * BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_lease_take(bp_offload *offload, const char *group, const char *reader, bp_lease **lease);
/** Any thread; before the offload is destroyed. Accepts NULL and pointers to NULL; sets *lease to NULL. */
BP_API void bp_lease_return(bp_lease **lease);

#ifdef __cplusplus
}
#endif
#endif
