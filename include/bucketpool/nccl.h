/** @file
 * NCCL communicators of the caller, through the caller's own copy of NCCL.
 *
 * A second copy of NCCL in a process is unsafe (group state, function pointers and the layout of a communicator belong to the copy that
 * made it), so this library never loads one: functions come from the caller's table, or from the one copy that is loaded already.
 *
 * What is used follows the version: buffers from 2.19, windows from 2.27; older than 2.19 is refused. */
#ifndef BUCKETPOOL_NCCL_H
#define BUCKETPOOL_NCCL_H

#include <bucketpool/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Functions of one copy, by their own names; without NCCL's types: results, data types and reductions are int, handles are pointers,
 * streams are CUstream. Those marked may be NULL. */
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
    void *comm;                         /**< ncclComm_t; stays the caller's */
    const bp_nccl_functions *functions; /**< copied; NULL: of the one copy of NCCL that this process has loaded */
    bp_device *device;                  /**< the cuda device of the communicator's GPU */
    bp_comm *
        control; /**< exchanges go over it, with the same ranks in the same order; NULL: over NCCL itself, on a stream of its own */
    const char *name; /**< in messages; copied. NULL: "nccl" */
    /** As comm.h says, of exchanges over NCCL itself and of calls that NCCL answers with ncclInProgress. NCCL does not tell which ranks are
     * missing: a control communicator may, with a time-out of its own. */
    uint32_t timeout_ms;
} bp_nccl_config;

/** The defaults. size: sizeof of the struct. */
BP_API bp_status bp_nccl_config_init(bp_nccl_config *config, size_t size);

/** Wraps a communicator. Not collective. Errors: BP_ERR_INVALID_ARGUMENT (an incomplete table, a control communicator of other ranks, a
 * communicator that NCCL calls broken), BP_ERR_UNSUPPORTED (without a table: no copy of NCCL is loaded, or several are: names
 * their files; NCCL older than 2.19), BP_ERR_MISMATCH (another GPU than the
 * device's: names both), BP_ERR_NO_HOST_MEMORY, BP_ERR_NO_DEVICE_MEMORY. */
BP_API bp_status bp_comm_create_nccl(const bp_nccl_config *config, bp_comm **comm);

#ifdef __cplusplus
}
#endif
#endif
