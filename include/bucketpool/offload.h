/* SPDX-License-Identifier: Apache-2.0 */
/** @file
 * Offload: the physical memory of release groups is unmapped and returned to the device, and mapped again later at
 * the same addresses.
 *
 * A release group is the set of slabs with one name in the plan. By default each role has a group ("param", "grad",
 * "state", "main_grad", "optimizer"); a joint slab is "joint", and the pool adds "persistent" and "overflow".
 * bp_plan_set_group sets other names. Groups are offloaded and restored independently.
 * @code
 * bp_offload_create(pool, NULL, &offload);
 * bp_offload_begin(offload, "optimizer", BP_OFFLOAD_KEEP);      // copies run beside later work
 * bp_offload_begin(offload, "main_grad", BP_OFFLOAD_DISCARD);
 * // work that does not use these groups
 * bp_offload_finish(offload, "optimizer");                      // the device has the memory back
 * bp_offload_finish(offload, "main_grad");
 * // generate
 * bp_restore_begin(offload, "optimizer", BP_RESTORE_LEAVE);     // memory is mapped and registered, copies run
 * bp_restore_begin(offload, "main_grad", BP_RESTORE_ZERO);
 * bp_restore_finish(offload, "optimizer");
 * bp_restore_finish(offload, "main_grad");
 * @endcode
 *
 * Addresses do not change. Views of the memory stay valid, and so do captured graphs without collectives in the
 * group.
 *
 * Live requests: a live request refuses the offload of its group, unless its memory lasts as long as the pool (state
 * roles and persistent requests). Those stay live while offloaded. From bp_offload_begin to the end of
 * bp_restore_finish, acquire, use and release in the group are BP_ERR_SCHEDULE, try_acquire is busy, can_acquire is
 * 0; binding persistent requests fails while "persistent" is offloaded.
 *
 * Order: copies start after all work that any stream of the device had at bp_offload_begin, except for streams that
 * are being captured. Work on native streams that were never imported is not waited for. The caller must not access
 * the memory between bp_offload_begin and bp_restore_finish; an access faults once the memory is unmapped.
 *
 * Registered memory (comm.h): windows are deregistered before the memory is unmapped and registered again after it is
 * mapped. bp_offload_begin, bp_offload_finish and bp_restore_begin are then collective over the communicators of the
 * registration: the same groups in the same order on all ranks, with no collective of these communicators in flight.
 * If one rank fails, all ranks get an error that names it and nothing has changed on any rank (for memory that the
 * device does not take back see bp_offload_finish). bp_restore_finish is not collective. Without registration the
 * ranks do not communicate.
 *
 * Graphs: memory that a graph only computes in can be offloaded and restored. A graph with collectives contains the
 * addresses of windows, which change: see bp_capture_config.collectives and BP_OFFLOAD_RECAPTURE.
 *
 * Thread safety: one call at a time for an offload, beside acquires and releases of other groups. Leases,
 * bp_offload_groups and getters: any thread. Capture: except for leases, calls are BP_ERR_CAPTURE while a pool of the
 * device is being captured.
 *
 * Sources: torch_memory_saver for release and resume at fixed addresses; SkyRL's offload of parts of the state (PR
 * 563), whose first version lost gradients because their size was not saved; virtual memory management of CUDA. */
#ifndef BUCKETPOOL_OFFLOAD_H
#define BUCKETPOOL_OFFLOAD_H

#include <bucketpool/pinned.h>
#include <bucketpool/pool.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct bp_offload bp_offload;

/** Host memory for kept bytes.
 * - BP_BACKING_PINNED: pinned memory, at full copy speed; it is kept for the next offload (bp_offload_trim frees it).
 * - BP_BACKING_STAGED: pageable memory, copied through two pinned chunks: slower, but pins little memory.
 * - BP_BACKING_AUTO: pinned; staged if that much memory cannot be pinned. */
typedef enum bp_backing { BP_BACKING_AUTO = 0, BP_BACKING_PINNED = 1, BP_BACKING_STAGED = 2 } bp_backing;

/** Called on a thread of the device after each copied chunk of a group, in order. Must be short and must not call this
 * library. */
typedef void bp_offload_progress(void *user, const char *group, uint64_t copied_bytes, uint64_t bytes);

typedef struct bp_offload_config {
    size_t size;
    /** source of pinned memory, on the device of the pool; the offload adds a reference. NULL: a separate one */
    bp_pinned *pinned;
    bp_backing backing;
    uint64_t chunk_bytes;          /**< chunk size of copies, rounded up to whole pages. 0: 32 MiB */
    bp_offload_progress *progress; /**< may be NULL */
    void *user;
} bp_offload_config;

/** Sets the defaults: separate pinned memory, automatic backing, chunks of 32 MiB. Errors: BP_ERR_INVALID_ARGUMENT. */
BP_API bp_status bp_offload_config_init(bp_offload_config *config, size_t size);

/** Creates the offload of a pool; a pool has at most one. Creates streams only; memory is allocated when a group is
 * offloaded. `config` NULL: the defaults. The caller owns it: bp_offload_destroy.
 *
 * Errors: BP_ERR_SCHEDULE (the pool has an offload), BP_ERR_UNSUPPORTED (a device without memory, guard mode),
 * BP_ERR_INVALID_ARGUMENT, BP_ERR_CAPTURE, BP_ERR_NO_HOST_MEMORY, errors of the device. */
BP_API bp_status bp_offload_create(bp_pool *pool, const bp_offload_config *config, bp_offload **offload);

/** Waits for copies in flight, and frees host memory with the kept bytes. Offloaded groups stay offloaded: restore
 * them before, or destroy the pool. All leases must have been returned. If the pool was destroyed first, only this
 * call and the getters are permitted; others are BP_ERR_INVALID_ARGUMENT. Accepts NULL and a pointer to NULL; sets
 * *offload to NULL. */
BP_API void bp_offload_destroy(bp_offload **offload);

/* ---- offloading -------------------------------------------------------------------------------------------------------- */

/** Flags of bp_offload_begin: one of KEEP (the bytes of all slabs of the group are copied to the host) and DISCARD,
 * with or without RECAPTURE.
 *
 * BP_OFFLOAD_RECAPTURE: the caller will capture the graphs with collectives in the group again; launching an old one
 * is BP_ERR_CAPTURE. Without this flag such graphs refuse the offload. */
#define BP_OFFLOAD_KEEP 1u
#define BP_OFFLOAD_DISCARD 2u
#define BP_OFFLOAD_RECAPTURE 4u

/** Begins the offload of a group: its requests cannot be acquired any more, and its bytes are copied. Does not wait
 * for streams.
 *
 * Errors, after which nothing has changed:
 * - BP_ERR_INVALID_ARGUMENT: no such group (the message lists the groups), invalid flags.
 * - BP_ERR_SCHEDULE: the group is not resident, a request is live, the launch of a graph holds the memory, or a lease
 *   has not been returned. The message names it.
 * - BP_ERR_UNSUPPORTED: KEEP of a joint slab, whose bytes have no use later.
 * - BP_ERR_CAPTURE: a capture; a graph with collectives in the group, which the message names.
 * - BP_ERR_NO_HOST_MEMORY (with the numbers), errors of the device. */
BP_API bp_status bp_offload_begin(bp_offload *offload, const char *group, uint32_t flags);

/** Waits for the copies, deregisters and unmaps the memory, and returns it to the device.
 *
 * Errors: BP_ERR_SCHEDULE (not begun), errors of the device.
 * - A copy failed, or memory could not be unmapped: the group is resident again. In the latter case its windows are
 *   new ones: with BP_OFFLOAD_RECAPTURE, capture graphs with collectives again.
 * - The device did not take back unmapped memory: only this rank gets the error. The group is offloaded
 *   (bp_offload_group.unreturned_bytes) and has this memory again after restoring. */
BP_API bp_status bp_offload_finish(bp_offload *offload, const char *group);

/* ---- restoring --------------------------------------------------------------------------------------------------------- */

/** Contents of discarded memory after restoring: zeros, or undefined. Kept bytes are always restored. */
typedef enum bp_restore { BP_RESTORE_ZERO = 1, BP_RESTORE_LEAVE = 2 } bp_restore;

/** Begins to restore a group: maps memory at the same addresses, registers it and enqueues the copies.
 *
 * Errors: BP_ERR_SCHEDULE (not offloaded), BP_ERR_NO_DEVICE_MEMORY (with the bytes wanted and left), errors of the
 * device and the communicators. After an error the group is offloaded as before, with its bytes on the host: call
 * again when there is memory. */
BP_API bp_status bp_restore_begin(bp_offload *offload, const char *group, bp_restore fill);

/** Waits for the copies; the group is then resident and serves requests.
 *
 * Errors: BP_ERR_SCHEDULE (not begun), errors of the device. After an error the bytes are still on the host, and
 * another call copies them again. */
BP_API bp_status bp_restore_finish(bp_offload *offload, const char *group);

/** Frees host memory that holds no bytes now. No effect while a pool of the device is being captured. */
BP_API void bp_offload_trim(bp_offload *offload);

/* ---- residency ----------------------------------------------------------------------------------------------------- */

typedef enum bp_residency {
    BP_RESIDENT = 1,
    BP_OFFLOADING = 2, /**< begun; memory is still mapped */
    BP_OFFLOADED = 3,
    BP_RESTORING = 4 /**< begun; memory is mapped */
} bp_residency;

typedef struct bp_offload_group {
    size_t size;
    const char *name; /**< lives as long as the offload */
    bp_residency residency;
    uint32_t slabs;
    uint64_t bytes;              /**< of its slabs */
    uint64_t resident_bytes;     /**< bytes in device memory now */
    uint64_t kept_bytes;         /**< bytes on the host, to be restored */
    uint64_t host_bytes;         /**< allocated host memory, even if it holds no bytes now */
    uint64_t unreturned_bytes;   /**< bytes unmapped, but not taken back by the device */
    uint64_t copied_bytes;       /**< progress of the last copies */
    uint64_t offloads, restores; /**< finished offloads and restores */
    uint32_t leases;             /**< leases that have not been returned */
    int32_t pinned;              /**< 1: its host memory is pinned */
} bp_offload_group;

/** Fills up to `capacity` entries with the groups, in the order of their first slab; *count is the number of groups.
 * Groups and their names never change. Set groups[0].size first: it is the distance between entries. Any thread, also
 * after the pool was destroyed.
 *
 * Errors: BP_ERR_INVALID_ARGUMENT. */
BP_API bp_status bp_offload_groups(const bp_offload *offload, bp_offload_group *groups, size_t capacity, size_t *count);

/* ---- readers ------------------------------------------------------------------------------------------------------- */

/** A reader of a group beside the training loop, such as an asynchronous checkpoint. The group cannot be offloaded
 * until the lease is returned. The next offload waits for work that was enqueued on streams of the device before the
 * return. */
typedef struct bp_lease bp_lease;

/** Takes a lease on a group. `reader` is a name for messages, copied. Any thread. Errors: BP_ERR_INVALID_ARGUMENT (no
 * such group), BP_ERR_SCHEDULE (the group is not resident), BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_lease_take(bp_offload *offload, const char *group, const char *reader, bp_lease **lease);
/** Returns a lease. Any thread; before the offload is destroyed. Accepts NULL and a pointer to NULL; sets *lease to
 * NULL. */
BP_API void bp_lease_return(bp_lease **lease);

#ifdef __cplusplus
}
#endif
#endif
