/* SPDX-License-Identifier: Apache-2.0 */
/** @file
 * Communicators over an ncclComm_t, through the caller's copy of NCCL.
 *
 * Two copies of NCCL in one process are unsafe, because group state, function pointers and the layout of a
 * communicator belong to the copy that made it. This library never loads NCCL: it uses the functions in the caller's
 * table, or the one copy that the process has loaded.
 *
 * Buffers are registered from NCCL 2.19 on, windows from 2.27; older versions than 2.19 are refused. */
#ifndef BUCKETPOOL_NCCL_H
#define BUCKETPOOL_NCCL_H

#include <bucketpool/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Functions of one copy of NCCL, by name and without its types: results, data types and reductions are int, handles
 * are pointers, streams are CUstream. Functions that may be NULL say so. */
typedef struct bp_nccl_functions {
    size_t size; /**< sizeof(bp_nccl_functions) */
    int (*ncclGetVersion)(int *version);
    const char *(*ncclGetErrorString)(int result);
    const char *(*ncclGetLastError)(void *comm);
    int (*ncclCommCount)(void *comm, int *ranks);
    int (*ncclCommUserRank)(void *comm, int *rank);
    int (*ncclCommCuDevice)(void *comm, int *device);
    int (*ncclCommGetAsyncError)(void *comm, int *result);
    int (*ncclCommAbort)(void *comm);
    int (*ncclAllGather)(const void *from, void *to, size_t count, int dtype, void *comm, void *stream);
    int (*ncclAllReduce)(const void *from, void *to, size_t count, int dtype, int op, void *comm, void *stream);
    int (*ncclReduceScatter)(const void *from, void *to, size_t count, int dtype, int op, void *comm, void *stream);
    int (*ncclCommRegister)(void *comm, void *address, size_t bytes, void **handle); /**< may be NULL */
    int (*ncclCommDeregister)(void *comm, void *handle);                             /**< may be NULL */
    int (*ncclCommWindowRegister)(void *comm, void *address, size_t bytes, void **window,
                                  int flags);                  /**< may be NULL */
    int (*ncclCommWindowDeregister)(void *comm, void *window); /**< may be NULL */
} bp_nccl_functions;

typedef struct bp_nccl_config {
    size_t size;
    void *comm; /**< ncclComm_t; borrowed, the caller destroys it afterwards */
    /** copied. NULL: the functions of the one copy of NCCL in this process */
    const bp_nccl_functions *functions;
    bp_device *device; /**< the cuda device of the communicator's GPU */
    /** communicator of the same ranks in the same order, for exchanges. NULL: exchanges use NCCL, on a separate stream */
    bp_comm *control;
    const char *name; /**< in messages; copied. NULL: "nccl" */
    /** Time-out of exchanges over NCCL and of calls that return ncclInProgress, as comm.h says. NCCL does not report
     * the missing ranks; a control communicator with a time-out may. */
    uint32_t timeout_ms;
} bp_nccl_config;

/** Sets the defaults. Errors: BP_ERR_INVALID_ARGUMENT (NULL, an unknown size). */
BP_API bp_status bp_nccl_config_init(bp_nccl_config *config, size_t size);

/** Wraps an ncclComm_t. Not collective. The caller owns the communicator: bp_comm_destroy.
 *
 * Errors:
 * - BP_ERR_INVALID_ARGUMENT: an incomplete table, a control communicator of other ranks, an ncclComm_t in an error
 *   state.
 * - BP_ERR_UNSUPPORTED: no table, and the process has loaded no copy of NCCL or several (the message has their
 *   files); NCCL older than 2.19.
 * - BP_ERR_MISMATCH: the ncclComm_t is on another GPU than the device; the message has both.
 * - BP_ERR_NO_HOST_MEMORY, BP_ERR_NO_DEVICE_MEMORY. */
BP_API bp_status bp_comm_create_nccl(const bp_nccl_config *config, bp_comm **comm);

#ifdef __cplusplus
}
#endif
#endif
