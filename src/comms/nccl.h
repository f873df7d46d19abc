/* NCCL communicators from within: the caller's, through the functions of the copy of NCCL that made it. */
#ifndef BP_COMMS_NCCL_H
#define BP_COMMS_NCCL_H

#include <bucketpool/nccl.h>

#include <pthread.h>

#include "comms/comm.h"
#include "devices/cuda.h"

/* ncclResult_t, as far as it is told apart. */
enum { BP_NCCL_SUCCESS = 0, BP_NCCL_IN_PROGRESS = 7 };

/* NCCL_VERSION_CODE of the first version that has it. */
enum {
    BP_NCCL_BUFFERS = 21900,
    BP_NCCL_BUFFERS_SHARP = 22100,   /* buffers are used by InfiniBand SHARP too */
    BP_NCCL_BUFFERS_GENERAL = 22300, /* and between the GPUs of a node */
    BP_NCCL_BUFFERS_NETWORK = 22400, /* and for collectives across the network */
    BP_NCCL_WINDOWS = 22700,
    /* What is answered where there is no window: before, one that is only a buffer; then the buffer's handle; then NULL. */
    BP_NCCL_BUFFER_WINDOWS = 22800,
    BP_NCCL_NULL_WINDOWS = 22900
};

typedef struct bp_nccl {
    bp_nccl_functions f;
    void *comm;
    bp_device *device;
    bp_comm *control; /* NULL: exchanges go over NCCL itself */
    char *name;
    int rank, ranks, version;
    char version_name[32];
    bp_register_kind best;
    uint32_t lacks;
    pthread_mutex_t asking; /* who asks it for its state does so before it is aborted, or not at all */
    bool aborted;
    bool unsettled; /* an exchange failed, and its work may still be on its way */
    bool stuck;     /* timed out, or failed on its way: the work may never end, unless NCCL is aborted */
    bool entered;
    bp_cuda_scope scope; /* between bp_nccl_enter and bp_nccl_leave */
    uint64_t timeout_ms; /* 0: none */
    struct bp_nccl *next_stuck;
    /* Of exchanges over NCCL itself: a piece of this rank, followed by those of all. */
    bp_stream *stream;
    uint8_t *memory;
    uint8_t *staging;    /* the same on the host: what work of the stream reads and writes outlives the call */
    unsigned started;    /* exchanges */
    atomic_uint arrived; /* those whose work is over; counted by the stream where there is a time-out */
    void *granted; /* what NCCL writes, maybe after a call that was given up because the communicator was aborted */
    /* A registered address that is not on the device's recommended granularity; NULL: all were. */
    const void *unaligned;
} bp_nccl;

/* BP_OK, or BP_ERR_COMM with NCCL's words. Waits for calls of communicators that do not block. Errors: BP_ERR_TIMEOUT too. */
bp_status bp_nccl_check(bp_nccl *nccl, int result, const char *call);

/* Fills the table from the copy of NCCL that this process has loaded. Loads nothing. Errors: BP_ERR_UNSUPPORTED (none is loaded; several are:
 * names their files; older than 2.19), BP_ERR_NO_HOST_MEMORY. */
bp_status bp_nccl_find(bp_nccl_functions *functions);

/* Waits for work of an exchange that failed half-way. Errors: BP_ERR_TIMEOUT. */
bp_status bp_nccl_exchange_settle(bp_nccl *nccl);

/* The communicator's functions, in the file of their subject. */
/* Whether a communicator (of any provider) is of NCCL and exchanges over NCCL itself. */
bool bp_nccl_exchanges_on_device(const bp_comm *comm);
bp_status bp_nccl_register(void *self, void *address, uint64_t bytes, bp_register_kind kind, void **handle,
                           const char **because);
bp_status bp_nccl_deregister(void *self, bp_register_kind kind, void *handle);
void bp_nccl_warnings(void *self, bp_register_kind kind, uint32_t traffic,
                      void (*tell)(void *user, const char *sentence), void *user);

/* A rank that fails while the others are registering leaves them waiting in NCCL. So what can fail before is done before they say that
 * they are ready: between the two the communicator's device is current. Nothing where the communicator is not of NCCL. */
bp_status bp_nccl_enter(bp_comm *comm);
void bp_nccl_leave(bp_comm *comm);

/* Errors: BP_ERR_MISMATCH, the pool's memory is not of the communicator's GPU. Nothing where the communicator is not of NCCL. */
bp_status bp_nccl_check_pool(const bp_comm *comm, const bp_pool *pool);

#endif
