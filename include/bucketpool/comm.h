/** @file
 * Communicators, and the registration of a pool's memory with them.
 *
 * A communicator is a group of ranks that a runtime has made already: this library wraps it, and makes none of its own.
 *
 *   self       one rank
 *   callback   functions of the caller: a torch.distributed group, a test
 *   nccl       an ncclComm_t of the caller's own copy of NCCL: nccl.h
 *   mpi        an MPI communicator: comm_mpi.h, in the library bucketpool-mpi
 *
 * Registration lets NCCL send from and receive into a pool's slabs without copies. One window per slab and communicator; slabs are one
 * physical allocation each, as NCCL wants them.
 *
 * Calls that say "collective" must be made by all ranks of the communicator, in the same order; they block until all have come. Where one
 * rank fails all of them return an error that names it. Thread safety: one call at a time per communicator. Capture: all_gather, all_reduce
 * and reduce_scatter of nccl and self may be captured, on all ranks alike. Nothing else here may be called while a pool or a stream concerned
 * is being captured (BP_ERR_CAPTURE). */
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

/* ---- time-outs ------------------------------------------------------------------------------------------------------

 * A rank that is stopped, stuck or dead leaves the others waiting. With a time-out, exchanges (and so all agreements between ranks: of
 * registrations, of the log-prob client) end with BP_ERR_TIMEOUT on the ranks that wait. The error names the missing ranks where the
 * transport tells them apart: MPI does, NCCL does not. all_gather, all_reduce and reduce_scatter have no time-out here: their memory
 * belongs to the caller, and a late rank would write into it.
 *
 * A communicator that timed out is broken: every later call fails at once with BP_ERR_TIMEOUT and the first error, and nothing is
 * deregistered from it any more. Destroying it waits for nobody: memory that a late rank may still write into is leaked on purpose.
 * bp_comm_abort ends what it wraps.
 *
 * Fields `timeout_ms`: milliseconds; 0: the environment variable BUCKETPOOL_COMM_TIMEOUT (whole seconds; 0 or unset: none);
 * BP_COMM_NO_TIMEOUT: none, whatever the variable says. Choose more than the longest time between two ranks' arrivals at an agreement. */
#define BP_COMM_NO_TIMEOUT UINT32_MAX

/* ---- communicators ------------------------------------------------------------------------------------------------- */

/** One rank: exchanges and collectives copy. The caller owns it: bp_comm_destroy. Errors: BP_ERR_INVALID_ARGUMENT, BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_comm_create_self(bp_comm **comm);

/** Functions of the caller, called on the thread of the call. They return BP_OK or another status (bp_error_record for the words). The
 * collectives may be NULL: then they are BP_ERR_UNSUPPORTED. */
typedef struct bp_comm_callbacks {
    size_t size;
    uint32_t rank, ranks;
    /** Collective, blocking, host memory: every rank gives `bytes`, `all` gets those of all ranks in rank order. The time-out is the
     * caller's: a function that gives up records which ranks are missing and returns BP_ERR_TIMEOUT, which breaks the communicator.
     * Nothing may write to `all` afterwards. */
    bp_status (*exchange)(void *user, const void *mine, uint64_t bytes, void *all);
    /** In the order of `stream`: enqueue there, or wait for it first. Memory of the stream's device. */
    bp_status (*all_gather)(void *user, const void *mine, void *all, uint64_t bytes, bp_stream *stream);
    bp_status (*all_reduce)(void *user, const void *from, void *to, uint64_t count, bp_dtype dtype,
                            bp_reduction reduction, bp_stream *stream);
    bp_status (*reduce_scatter)(void *user, const void *from, void *to, uint64_t count, bp_dtype dtype,
                                bp_reduction reduction, bp_stream *stream);
    bp_status (*abort)(void *user); /**< may be NULL */
    void (*destroy)(void *user);    /**< may be NULL */
} bp_comm_callbacks;

/** The table is copied. `user` is handed to `destroy` with the last reference, or stays the caller's where this call fails. `name` is copied and
 * appears in messages; NULL: "callback". The caller owns the communicator: bp_comm_destroy. Errors: BP_ERR_INVALID_ARGUMENT (rank not below
 * ranks, no exchange), BP_ERR_UNSUPPORTED (a newer table with functions that this library does not know), BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_comm_create_callback(const bp_comm_callbacks *callbacks, void *user, const char *name,
                                         bp_comm **comm);

/** Gives up the caller's reference; registrations keep theirs. What the communicator wraps stays the caller's, who destroys it later. Accepts
 * NULL and pointers to NULL; sets *comm to NULL. */
BP_API void bp_comm_destroy(bp_comm **comm);

/** A communicator, as it was made. */
typedef struct bp_comm_info {
    const char *name;
    const char *version_name; /**< of the library underneath: "NCCL 2.28.9"; "" */
    uint32_t rank, ranks;
} bp_comm_info;

/** Lives as long as the communicator and never changes. NULL for NULL. Any thread, also while capturing and in a forked child. */
BP_API const bp_comm_info *bp_comm_get_info(const bp_comm *comm);

/** Collective: an all-gather of host memory. Each rank gives `bytes` bytes; `all` has room for ranks x bytes and gets those of all ranks in rank
 * order. Blocks; not to be called while a stream of the communicator's device is being captured, unless the provider uses none. Errors: BP_ERR_TIMEOUT, what the communicator reports. */
BP_API bp_status bp_comm_exchange(bp_comm *comm, const void *mine, uint64_t bytes, void *all);

/** Collective, in stream order: device memory (host memory for communicators of CPUs). all_gather: `bytes` from each rank.
 * reduce_scatter: `count` elements arrive at each rank, ranks * count are given. fp32, fp16, bf16, int32 and int64. Errors:
 * BP_ERR_UNSUPPORTED (a dtype, or a communicator without it). */
BP_API bp_status bp_comm_all_gather(bp_comm *comm, const void *mine, void *all, uint64_t bytes, bp_stream *stream);
/** `count` elements from each rank, reduced; `to` may be `from`. Errors: as all_gather. */
BP_API bp_status bp_comm_all_reduce(bp_comm *comm, const void *from, void *to, uint64_t count, bp_dtype dtype,
                                    bp_reduction reduction, bp_stream *stream);
/** `from` has ranks x count elements, `to` gets the `count` of this rank. Errors: as all_gather. */
BP_API bp_status bp_comm_reduce_scatter(bp_comm *comm, const void *from, void *to, uint64_t count, bp_dtype dtype,
                                        bp_reduction reduction, bp_stream *stream);

/** Ends a communicator that cannot go on: aborts what it wraps (where the provider can) and forgets it. Its windows are gone with it: they
 * are not deregistered. Every later call is BP_ERR_INVALID_ARGUMENT, "was aborted". Not collective; any thread. Errors:
 * BP_ERR_INVALID_ARGUMENT (it has ended already), what the communicator reports. */
BP_API bp_status bp_comm_abort(bp_comm *comm);
/** The same for one that somebody else has aborted or destroyed: it is not touched any more. */
BP_API void bp_comm_forget(bp_comm *comm);

/* ---- registration -------------------------------------------------------------------------------------------------- */

/** From the least to the best.
 * BP_REGISTER_BUFFER: ncclCommRegister: local and lazy, success says little. NCCL 2.19.
 * BP_REGISTER_WINDOW: ncclCommWindowRegister: collective. NCCL 2.27.
 * BP_REGISTER_SYMMETRIC: a window whose offset is the same on all ranks, for symmetric kernels. NCCL 2.27. */
typedef enum bp_register_kind {
    BP_REGISTER_NONE = 0,
    BP_REGISTER_BUFFER = 1,
    BP_REGISTER_WINDOW = 2,
    BP_REGISTER_SYMMETRIC = 3
} bp_register_kind;

/** "none", "buffer", "window", "symmetric window". Static. */
BP_API const char *bp_register_kind_name(bp_register_kind kind);

/** What collectives will do with the memory; for the report. */
#define BP_TRAFFIC_GATHER 1u         /**< all-gathers into it */
#define BP_TRAFFIC_REDUCE_SCATTER 2u /**< reduce-scatters from it */
#define BP_TRAFFIC_FLOAT_AVG 4u      /**< with ncclAvg of floats */
#define BP_TRAFFIC_IN_PLACE_RING 8u  /**< all-reduces in place */

/** One communicator for the slabs of one release group. */
typedef struct bp_registration_entry {
    size_t size;
    bp_comm *comm;
    const char *group;     /**< of slabs; copied. NULL: all slabs of the plan */
    bp_register_kind kind; /**< the best to ask for; less is asked for where it is not granted */
    int32_t exact;         /**< 1: nothing less will do; not granted is then "none" in the report, still no failure */
    uint32_t traffic;      /**< BP_TRAFFIC bits */
} bp_registration_entry;

/** No group, symmetric window, not exact, no traffic named. */
BP_API bp_status bp_registration_entry_init(bp_registration_entry *entry, size_t size);

typedef struct bp_registration bp_registration;

/** Collective over the communicators, in the order of `entries`. Registers each slab with each communicator of its group, slab by slab. First
 * the ranks of every communicator compare what they are about to do (fingerprint of the plan, sizes and number of slabs, kinds, version of
 * this library and of NCCL); where one differs all of them get BP_ERR_MISMATCH and nothing was registered.
 *
 * What NCCL does not grant is no failure: the report says what was granted instead and why, the same on all ranks. Call it once, before the
 * first collective in the memory, with no collective of the communicators on its way. Slabs that lose and regain their memory (offload) are
 * deregistered and registered again by themselves.
 *
 * Errors: BP_ERR_INVALID_ARGUMENT (no such group, an aborted communicator), BP_ERR_SCHEDULE (a slab is registered with that communicator
 * already; a sealed pool), BP_ERR_CAPTURE, BP_ERR_MISMATCH (names the rank; a pool on another GPU than the communicator), BP_ERR_UNSUPPORTED, BP_ERR_NO_HOST_MEMORY, what a communicator
 * reports (of another rank: naming it). Everything done so far is undone, on all ranks. The caller owns the registration. */
BP_API bp_status bp_registration_create(bp_pool *pool, const bp_registration_entry *entries, size_t count,
                                        bp_registration **registration);

/** Collective where windows were granted. Deregisters in the reverse order; no collective may be on its way. Destroy it before the
 * communicators that it names; the pool may go first (and deregisters then). Accepts NULL and pointers to NULL; sets *registration to NULL. */
BP_API void bp_registration_destroy(bp_registration **registration);

/** A slab with a communicator. */
typedef struct bp_registration_window {
    uint32_t slab;  /**< of the pool */
    uint32_t entry; /**< that asked for it */
    void *address;
    uint64_t bytes;
    bp_register_kind asked, granted;
    void *handle;        /**< ncclWindow_t or the handle of ncclCommRegister; NULL: none */
    const char *because; /**< why less than asked was granted; "" */
} bp_registration_window;

/** Why a window would be silently useless although it was granted; holds for all windows of an entry. */
typedef struct bp_registration_warning {
    uint32_t entry;
    const char *text;
} bp_registration_warning;

typedef struct bp_registration_info {
    const bp_registration_window *windows; /**< slab by slab, within a slab in the order of entries */
    size_t window_count;
    const bp_registration_warning *warnings; /**< in the order of entries */
    size_t warning_count;
} bp_registration_info;

/** Lives as long as the registration. `granted`, `handle` and `because` of windows change when their slab is offloaded or restored, and when
 * the pool is destroyed: not to be read beside these calls. NULL for NULL. */
BP_API const bp_registration_info *bp_registration_get_info(const bp_registration *registration);

/** The report as text: a line for each window and each warning. `text`, `capacity`, `needed` and errors as of bp_pool_dump. Whether registration removes copies cannot be told from
 * one process: the report says what was granted, not what it gains. */
BP_API bp_status bp_registration_report(const bp_registration *registration, char *text, size_t capacity,
                                        size_t *needed);

#ifdef __cplusplus
}
#endif
#endif
