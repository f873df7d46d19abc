/* SPDX-License-Identifier: Apache-2.0 */
/** @file
 * The interface that a communicator implements: a table of functions. Users of communicators read comm.h.
 *
 * The first argument of every function is `self`. A function that returns an error calls bp_error_record first. There
 * is one call at a time for a communicator.
 *
 * A table of an older header may be shorter than that of the library: functions after its end count as missing. */
#ifndef BUCKETPOOL_COMM_OPS_H
#define BUCKETPOOL_COMM_OPS_H

#include <bucketpool/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Properties of a communicator, which never change. */
typedef struct bp_comm_traits {
    /** set by the library: `traits` writes at most this many bytes and does not change `size` */
    size_t size;
    uint32_t rank, ranks;
    /** highest supported kind; lower kinds are supported too, except those in `lacks` */
    bp_register_kind best;
    uint32_t lacks;           /**< bits 1 << kind */
    uint64_t version;         /**< version of the wrapped library, which ranks compare; NCCL 2.28.9: 22809. 0: none */
    const char *version_name; /**< "NCCL 2.28.9"; "" . Lives as long as the communicator */
    int32_t captures;         /**< 1: collectives only enqueue work and can be captured */
} bp_comm_traits;

typedef struct bp_comm_ops {
    size_t size;                 /**< sizeof(bp_comm_ops) */
    const char *name;            /**< "nccl"; static */
    void (*destroy)(void *self); /**< does not destroy the wrapped communicator */
    bp_status (*traits)(void *self, bp_comm_traits *traits);
    /** BP_ERR_TIMEOUT breaks the communicator; nothing may write to `all` afterwards. */
    bp_status (*exchange)(void *self, const void *mine, uint64_t bytes, void *all);

    /** As in comm.h; may be NULL. */
    bp_status (*all_gather)(void *self, const void *mine, void *all, uint64_t bytes, bp_stream *stream);
    bp_status (*all_reduce)(void *self, const void *from, void *to, uint64_t count, bp_dtype dtype,
                            bp_reduction reduction, bp_stream *stream);
    bp_status (*reduce_scatter)(void *self, const void *from, void *to, uint64_t count, bp_dtype dtype,
                                bp_reduction reduction, bp_stream *stream);

    /** Both functions or neither. BP_OK with *handle NULL: not granted; *because has the reason (static, or living as
     * long as self). All ranks register windows in the same order. The current device is unchanged. */
    bp_status (*register_memory)(void *self, void *address, uint64_t bytes, bp_register_kind kind, void **handle,
                                 const char **because);
    bp_status (*deregister_memory)(void *self, bp_register_kind kind, void *handle);

    /** Calls `tell` with each warning for memory of this kind and traffic. NULL: no warnings. */
    void (*warnings)(void *self, bp_register_kind kind, uint32_t traffic,
                     void (*tell)(void *user, const char *sentence), void *user);
    bp_status (*abort)(void *self); /**< may be NULL */
} bp_comm_ops;

/** Creates a communicator from a table of functions. The table is copied, its name is not. `self` is passed to
 * `ops->destroy` at the end, also if this call fails after it accepted its arguments. The caller owns the
 * communicator: bp_comm_destroy.
 *
 * Errors: BP_ERR_INVALID_ARGUMENT (a missing function), BP_ERR_UNSUPPORTED (a newer table with functions that this
 * library does not know); after both `self` is still the caller's. BP_ERR_NO_HOST_MEMORY and errors of `traits`,
 * after which `self` was destroyed. */
BP_API bp_status bp_comm_create(const bp_comm_ops *ops, void *self, const char *name, bp_comm **comm);

#ifdef __cplusplus
}
#endif
#endif
