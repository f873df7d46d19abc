/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL communicators inside the library: one of the caller's, and the functions of the copy of NCCL that made it. */
#ifndef BP_COMMS_NCCL_H
#define BP_COMMS_NCCL_H

#include <bucketpool/nccl.h>

#include <pthread.h>

#include "comms/comm.h"
#include "devices/cuda.h"

/* The values of ncclResult_t that matter here. */
enum { BP_NCCL_SUCCESS = 0, BP_NCCL_IN_PROGRESS = 7 };

/* NCCL_VERSION_CODE of the first version with each feature. */
enum {
    BP_NCCL_BUFFERS = 21900,
    BP_NCCL_BUFFERS_SHARP = 22100,   /* InfiniBand SHARP uses buffers */
    BP_NCCL_BUFFERS_GENERAL = 22300, /* collectives between the GPUs of a node use them */
    BP_NCCL_BUFFERS_NETWORK = 22400, /* collectives across the network use them */
    BP_NCCL_WINDOWS = 22700,
    /* Result of ncclCommWindowRegister when no window is granted: older versions make a plain buffer; then it is the
     * buffer's handle; then NULL. */
    BP_NCCL_BUFFER_WINDOWS = 22800,
    BP_NCCL_NULL_WINDOWS = 22900
};

typedef struct bp_nccl {
    bp_nccl_functions f;
    void *comm;
    bp_device *device;
    bp_comm *control; /* exchanges over it; NULL: over NCCL itself */
    char *name;
    int rank, ranks, version;
    char version_name[32];
    bp_register_kind best;
    uint32_t lacks;
    pthread_mutex_t asking; /* held while NCCL is asked for its state, and during the abort */
    bool aborted;
    bool unsettled; /* an exchange failed, and its work may still run */
    bool stuck;     /* an exchange timed out or failed in flight: unless NCCL is aborted, its work may never end */
    bool entered;
    bp_cuda_scope scope; /* between bp_nccl_enter and bp_nccl_leave */
    uint64_t timeout_ms; /* 0: unlimited */
    struct bp_nccl *next_stuck;
    /* For exchanges over NCCL itself: a piece of this rank, followed by the pieces of all ranks. */
    bp_stream *stream;
    uint8_t *memory;
    uint8_t *staging;    /* the same on the host; work of the stream uses it after the call has returned */
    unsigned started;    /* exchanges that were enqueued */
    atomic_uint arrived; /* exchanges whose work is done; counted by the stream if there is a time-out */
    void *granted;       /* output of registration calls; NCCL may write it after the call was abandoned by an abort */
    /* A registered address that is not a multiple of the device's recommended granularity; NULL: none. */
    const void *unaligned;
} bp_nccl;

/* Errors: BP_ERR_COMM with NCCL's text, BP_ERR_TIMEOUT. Waits for the calls of nonblocking communicators. */
bp_status bp_nccl_check(bp_nccl *nccl, int result, const char *call);

/* Fills the table from the copy of NCCL that this process has loaded. Loads nothing. Errors: BP_ERR_UNSUPPORTED
 * (none is loaded; several are, and their files are named; older than 2.19), BP_ERR_NO_HOST_MEMORY. */
bp_status bp_nccl_find(bp_nccl_functions *functions);

/* Waits for work of an exchange that failed in flight. Errors: BP_ERR_TIMEOUT. */
bp_status bp_nccl_exchange_settle(bp_nccl *nccl);

/* True for a communicator (of any provider) of NCCL that exchanges over NCCL itself. */
bool bp_nccl_exchanges_on_device(const bp_comm *comm);
bp_status bp_nccl_register(void *self, void *address, uint64_t bytes, bp_register_kind kind, void **handle,
                           const char **because);
bp_status bp_nccl_deregister(void *self, bp_register_kind kind, void *handle);
void bp_nccl_warnings(void *self, bp_register_kind kind, uint32_t traffic,
                      void (*tell)(void *user, const char *sentence), void *user);

/* A rank that fails during a registration leaves the others waiting in NCCL. So the steps that can fail are done
 * before the ranks agree to register: bp_nccl_enter makes the device current until bp_nccl_leave. No effect on
 * communicators of other providers. */
bp_status bp_nccl_enter(bp_comm *comm);
void bp_nccl_leave(bp_comm *comm);

/* Errors: BP_ERR_MISMATCH, the pool's memory is not on the communicator's GPU. BP_OK for communicators of other
 * providers. */
bp_status bp_nccl_check_pool(const bp_comm *comm, const bp_pool *pool);

#endif
