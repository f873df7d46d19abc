/** @file
 * For providers: the table of functions that makes a communicator. Users of communicators read comm.h.
 *
 * Every function gets the provider's `self` first. Functions that return bp_status record a detail (bp_error_record) where they
 * decide to fail. Calls of one communicator come one at a time.
 *
 * A provider's table may be shorter than the library's, of an older header: functions after its end are missing ones. */
#ifndef BUCKETPOOL_COMM_OPS_H
#define BUCKETPOOL_COMM_OPS_H

#include <bucketpool/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Constant for the life of a communicator. */
typedef struct bp_comm_traits {
    size_t size; /**< set by the library: `traits` fills at most so many bytes, and leaves it alone */
    uint32_t rank, ranks;
    bp_register_kind best;    /**< kind that can be asked for; each lesser one can too, but for those in `lacks` */
    uint32_t lacks;           /**< bits 1 << kind */
    uint64_t version;         /**< of what is underneath, compared between ranks; NCCL: 22809. 0: none */
    const char *version_name; /**< "NCCL 2.28.9"; "" . Lives as long as the communicator */
    int32_t captures;         /**< 1: collectives are only enqueued, so that a capture may take them up */
} bp_comm_traits;

typedef struct bp_comm_ops {
    size_t size;                 /**< sizeof(bp_comm_ops) */
    const char *name;            /**< "nccl"; static */
    void (*destroy)(void *self); /**< not what is wrapped */
    bp_status (*traits)(void *self, bp_comm_traits *traits);
    /** BP_ERR_TIMEOUT breaks the communicator; nothing may write to `all` afterwards. */
    bp_status (*exchange)(void *self, const void *mine, uint64_t bytes, void *all);

    /** As in comm.h; may be NULL. */
    bp_status (*all_gather)(void *self, const void *mine, void *all, uint64_t bytes, bp_stream *stream);
    bp_status (*all_reduce)(void *self, const void *from, void *to, uint64_t count, bp_dtype dtype,
                            bp_reduction reduction, bp_stream *stream);
    bp_status (*reduce_scatter)(void *self, const void *from, void *to, uint64_t count, bp_dtype dtype,
                                bp_reduction reduction, bp_stream *stream);

    /** Both or neither. BP_OK with *handle NULL: not granted, and *because (static, or living as long as self) says why. Windows are
     * registered by all ranks in the same order. The current device stays as it was. */
    bp_status (*register_memory)(void *self, void *address, uint64_t bytes, bp_register_kind kind, void **handle,
                                 const char **because);
    bp_status (*deregister_memory)(void *self, bp_register_kind kind, void *handle);

    /** Calls `tell` with each sentence that holds for memory of this kind and traffic; NULL: there are none. */
    void (*warnings)(void *self, bp_register_kind kind, uint32_t traffic,
                     void (*tell)(void *user, const char *sentence), void *user);
    bp_status (*abort)(void *self); /**< may be NULL */
} bp_comm_ops;

/** A communicator from a table, which is copied; its name stays the provider's. `self` is handed to `ops->destroy` in the end, also when this call fails after its arguments were
 * accepted. Errors: BP_ERR_INVALID_ARGUMENT (a missing function; nothing was taken over), BP_ERR_UNSUPPORTED (a newer table with
 * functions that this library does not know; nothing was taken over), BP_ERR_NO_HOST_MEMORY, what `traits` returns. */
BP_API bp_status bp_comm_create(const bp_comm_ops *ops, void *self, const char *name, bp_comm **comm);

#ifdef __cplusplus
}
#endif
#endif
