/* SPDX-License-Identifier: Apache-2.0 */
/** @file
 * Communicators, and the registration of a pool's memory with them.
 *
 * A communicator wraps a group of ranks that the runtime has made; this library creates no groups.
 * - self: one rank
 * - callback: functions of the caller, for example over a torch.distributed group
 * - nccl: an ncclComm_t of the caller's copy of NCCL, see nccl.h
 * - mpi: an MPI communicator, see comm_mpi.h (library bucketpool-mpi)
 *
 * Registration lets NCCL send from and receive into the slabs of a pool without copies. There is one window for each
 * slab and communicator; a slab is one physical allocation, as NCCL requires.
 * @code
 * bp_nccl_config config;
 * bp_nccl_config_init(&config, sizeof config);
 * config.comm = nccl_comm;
 * config.device = device;
 * bp_comm_create_nccl(&config, &comm);
 *
 * bp_registration_entry entry;
 * bp_registration_entry_init(&entry, sizeof entry);
 * entry.comm = comm;
 * bp_registration_create(pool, &entry, 1, &registration);
 * @endcode
 *
 * Collective calls must be made by all ranks of the communicator, in the same order, and block until all ranks have
 * called. If a rank fails, all ranks return an error that names it.
 *
 * Thread safety: one call at a time for a communicator. Capture: all_gather, all_reduce and reduce_scatter of nccl
 * and self can be captured, on all ranks alike. Other calls are BP_ERR_CAPTURE while a pool or stream that they use
 * is being captured. */
#ifndef BUCKETPOOL_COMM_H
#define BUCKETPOOL_COMM_H

#include <bucketpool/device.h>
#include <bucketpool/dtype.h>
#include <bucketpool/pool.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct bp_comm bp_comm;

typedef enum bp_reduction { BP_REDUCE_SUM = 0, BP_REDUCE_MAX = 1, BP_REDUCE_MIN = 2 } bp_reduction;

/* ---- time-outs ------------------------------------------------------------------------------------------------------ */

/** A value of the fields `timeout_ms` (milliseconds): no time-out. 0: the environment variable BUCKETPOOL_COMM_TIMEOUT
 * (whole seconds; 0 or unset: no time-out). Choose more than the longest time between the arrivals of two ranks.
 *
 * A rank that has stopped or died leaves the others waiting. With a time-out, exchanges end with BP_ERR_TIMEOUT on the
 * ranks that wait, and so do all calls in which the ranks agree on a result (registrations, log-prob clients). The
 * message names the missing ranks where the transport reports them: MPI does, NCCL does not. all_gather, all_reduce
 * and reduce_scatter have no time-out here, because a late rank would write into memory that the caller has reused.
 *
 * After a time-out the communicator is broken: later calls fail at once with BP_ERR_TIMEOUT and the first message, and
 * nothing is deregistered. Destroying it waits for no rank; memory that a late rank may still write to is leaked.
 * bp_comm_abort aborts the wrapped communicator. */
#define BP_COMM_NO_TIMEOUT UINT32_MAX

/* ---- communicators ------------------------------------------------------------------------------------------------- */

/** Creates a communicator of one rank, whose collectives copy. The caller owns it: bp_comm_destroy. Errors:
 * BP_ERR_INVALID_ARGUMENT, BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_comm_create_self(bp_comm **comm);

/** Functions of the caller, called on the calling thread. They return BP_OK or another status, with bp_error_record
 * for the message. Collectives that are NULL are BP_ERR_UNSUPPORTED. */
typedef struct bp_comm_callbacks {
    size_t size;
    uint32_t rank, ranks;
    /** Collective, blocking, host memory: each rank gives `bytes` bytes, `all` gets those of all ranks in rank order.
     * Time-outs are up to the caller: the function records the missing ranks and returns BP_ERR_TIMEOUT, which breaks
     * the communicator. Nothing may write to `all` afterwards. */
    bp_status (*exchange)(void *user, const void *mine, uint64_t bytes, void *all);
    /** In stream order: enqueue on `stream`, or wait for it first. Memory of the device of the stream. */
    bp_status (*all_gather)(void *user, const void *mine, void *all, uint64_t bytes, bp_stream *stream);
    bp_status (*all_reduce)(void *user, const void *from, void *to, uint64_t count, bp_dtype dtype,
                            bp_reduction reduction, bp_stream *stream);
    bp_status (*reduce_scatter)(void *user, const void *from, void *to, uint64_t count, bp_dtype dtype,
                                bp_reduction reduction, bp_stream *stream);
    bp_status (*abort)(void *user); /**< may be NULL */
    void (*destroy)(void *user);    /**< may be NULL */
} bp_comm_callbacks;

/** Creates a communicator from functions of the caller. The table is copied. `user` is passed to `destroy` with the
 * last reference, or stays the caller's if this call fails. `name` appears in messages and is copied; NULL:
 * "callback". The caller owns the communicator: bp_comm_destroy.
 *
 * Errors: BP_ERR_INVALID_ARGUMENT (rank >= ranks, no exchange), BP_ERR_UNSUPPORTED (a newer table with functions that
 * this library does not know), BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_comm_create_callback(const bp_comm_callbacks *callbacks, void *user, const char *name,
                                         bp_comm **comm);

/** Drops the caller's reference; registrations have other ones. The wrapped communicator is not destroyed: the caller
 * does so afterwards. Accepts NULL and a pointer to NULL; sets *comm to NULL. */
BP_API void bp_comm_destroy(bp_comm **comm);

/** Properties of a communicator. */
typedef struct bp_comm_info {
    const char *name;
    const char *version_name; /**< version of the wrapped library: "NCCL 2.28.9"; "" */
    uint32_t rank, ranks;
} bp_comm_info;

/** Properties of a communicator. Lives as long as the communicator and never changes. NULL for NULL. Any thread, also
 * during a capture and in a forked child. */
BP_API const bp_comm_info *bp_comm_get_info(const bp_comm *comm);

/** Collective, blocking: an all-gather of host memory. Each rank gives `bytes` bytes; `all` has room for ranks x bytes
 * and gets the bytes of all ranks in rank order. Not while a stream of the communicator's device is captured, unless
 * the provider uses no stream.
 *
 * Errors: BP_ERR_TIMEOUT, errors of the communicator. */
BP_API bp_status bp_comm_exchange(bp_comm *comm, const void *mine, uint64_t bytes, void *all);

/** Collective, in stream order: an all-gather of `bytes` bytes from each rank. `all` has room for ranks x bytes.
 * Device memory, or host memory for communicators of CPUs.
 *
 * Errors: BP_ERR_UNSUPPORTED (a communicator without all-gather), errors of the communicator. */
BP_API bp_status bp_comm_all_gather(bp_comm *comm, const void *mine, void *all, uint64_t bytes, bp_stream *stream);
/** Collective, in stream order: an all-reduce of `count` elements. `to` may be `from`. fp32, fp16, bf16, int32 and
 * int64.
 *
 * Errors: BP_ERR_UNSUPPORTED (a dtype, or a communicator without all-reduce), errors of the communicator. */
BP_API bp_status bp_comm_all_reduce(bp_comm *comm, const void *from, void *to, uint64_t count, bp_dtype dtype,
                                    bp_reduction reduction, bp_stream *stream);
/** Collective, in stream order: a reduce-scatter. `from` has ranks x count elements, `to` gets the `count` elements of
 * this rank. Errors: as bp_comm_all_reduce. */
BP_API bp_status bp_comm_reduce_scatter(bp_comm *comm, const void *from, void *to, uint64_t count, bp_dtype dtype,
                                        bp_reduction reduction, bp_stream *stream);

/** Aborts a communicator after a failure: aborts the wrapped communicator, where the provider supports that. Its
 * windows are gone and are not deregistered. Later calls are BP_ERR_INVALID_ARGUMENT. Not collective; any thread.
 *
 * Errors: BP_ERR_INVALID_ARGUMENT (it was aborted before), errors of the communicator. */
BP_API bp_status bp_comm_abort(bp_comm *comm);
/** As bp_comm_abort, for a communicator that the caller has aborted or destroyed: the wrapped communicator is not used
 * any more. */
BP_API void bp_comm_forget(bp_comm *comm);

/* ---- registration -------------------------------------------------------------------------------------------------- */

/** Kinds of registration, in increasing order.
 * - BP_REGISTER_BUFFER: ncclCommRegister, local and lazy: success does not mean that it has an effect. NCCL 2.19.
 * - BP_REGISTER_WINDOW: ncclCommWindowRegister, collective. NCCL 2.27.
 * - BP_REGISTER_SYMMETRIC: a window with the same offset on all ranks, for symmetric kernels. NCCL 2.27. */
typedef enum bp_register_kind {
    BP_REGISTER_NONE = 0,
    BP_REGISTER_BUFFER = 1,
    BP_REGISTER_WINDOW = 2,
    BP_REGISTER_SYMMETRIC = 3
} bp_register_kind;

/** The name of a kind: "none", "buffer", "window", "symmetric window". Static. */
BP_API const char *bp_register_kind_name(bp_register_kind kind);

/** Collectives that will use the memory, for the warnings of the report. */
#define BP_TRAFFIC_GATHER 1u         /**< all-gathers into it */
#define BP_TRAFFIC_REDUCE_SCATTER 2u /**< reduce-scatters from it */
#define BP_TRAFFIC_FLOAT_AVG 4u      /**< with ncclAvg of floating-point values */
#define BP_TRAFFIC_IN_PLACE_RING 8u  /**< all-reduces in place */

/** The registration of the slabs of one release group with one communicator. */
typedef struct bp_registration_entry {
    size_t size;
    bp_comm *comm;
    const char *group;     /**< release group of the slabs; copied. NULL: all slabs of the plan */
    bp_register_kind kind; /**< the kind to ask for; a lesser kind is tried if it is not granted */
    int32_t exact;         /**< 1: try no lesser kind; if not granted, the report says "none", without an error */
    uint32_t traffic;      /**< BP_TRAFFIC bits */
} bp_registration_entry;

/** Sets the defaults: all slabs of the plan, symmetric window, not exact, no traffic. Errors: BP_ERR_INVALID_ARGUMENT. */
BP_API bp_status bp_registration_entry_init(bp_registration_entry *entry, size_t size);

typedef struct bp_registration bp_registration;

/** Collective over the communicators, in the order of `entries`: registers each slab with each communicator of its
 * group, slab by slab. The ranks first compare the fingerprint of the plan, sizes and number of slabs, kinds, and the
 * versions of this library and of NCCL; if one differs, all ranks get BP_ERR_MISMATCH and nothing is registered. The
 * caller owns the registration: bp_registration_destroy.
 *
 * Call it before the first collective in the memory, with no collective of the communicators in flight. A kind that
 * NCCL does not grant is not an error: the report has the granted kind and the reason, the same on all ranks. Offload
 * deregisters slabs and registers them again after restoring.
 *
 * Errors, after which nothing is registered on any rank:
 * - BP_ERR_INVALID_ARGUMENT: no such group, an aborted communicator.
 * - BP_ERR_SCHEDULE: a slab is registered with that communicator already, or the pool is sealed.
 * - BP_ERR_MISMATCH: the ranks differ (the message names one), or the pool is on another GPU than the communicator.
 * - BP_ERR_CAPTURE, BP_ERR_UNSUPPORTED, BP_ERR_NO_HOST_MEMORY, and errors of a communicator on any rank, which the
 *   message names. */
BP_API bp_status bp_registration_create(bp_pool *pool, const bp_registration_entry *entries, size_t count,
                                        bp_registration **registration);

/** Deregisters in reverse order. Collective if windows were granted; no collective may be in flight. Destroy it before
 * its communicators. If the pool is destroyed first, that deregisters. Accepts NULL and a pointer to NULL; sets
 * *registration to NULL. */
BP_API void bp_registration_destroy(bp_registration **registration);

/** The registration of one slab with one communicator. */
typedef struct bp_registration_window {
    uint32_t slab;  /**< index of the slab in the pool */
    uint32_t entry; /**< index of the registration entry */
    void *address;
    uint64_t bytes;
    bp_register_kind asked, granted;
    void *handle;        /**< ncclWindow_t or the handle of ncclCommRegister; NULL: none */
    const char *because; /**< reason why a lesser kind was granted; "" if it was not */
} bp_registration_window;

/** A reason why a granted window has no effect; it applies to all windows of an entry. */
typedef struct bp_registration_warning {
    uint32_t entry;
    const char *text;
} bp_registration_warning;

typedef struct bp_registration_info {
    const bp_registration_window *windows; /**< by slab, then by entry */
    size_t window_count;
    const bp_registration_warning *warnings; /**< by entry */
    size_t warning_count;
} bp_registration_info;

/** The contents of a registration. Lives as long as the registration. `granted`, `handle` and `because` change when
 * the slab is offloaded or restored and when the pool is destroyed: do not read them at the same time. NULL for NULL.
 */
BP_API const bp_registration_info *bp_registration_get_info(const bp_registration *registration);

/** Writes the registration as text, one line for each window and warning. `text`, `capacity`, `needed` and errors as
 * in bp_pool_dump. The report says what NCCL granted; one process cannot tell if copies are avoided. */
BP_API bp_status bp_registration_report(const bp_registration *registration, char *text, size_t capacity,
                                        size_t *needed);

#ifdef __cplusplus
}
#endif
#endif
