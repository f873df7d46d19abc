/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators inside the library: a provider's table, and the state that all providers have. */
#ifndef BP_COMMS_COMM_H
#define BP_COMMS_COMM_H

#include <bucketpool/comm_ops.h>

#include <stdatomic.h>
#include <stdbool.h>

#include "core/process.h"

/* Memory that is registered with a communicator, or about to be. Owned by the registration; its address must not
 * change. */
typedef struct bp_comm_range {
    const uint8_t *address;
    uint64_t bytes;
    const char *owner; /* a pool's name */
    struct bp_comm_range *next;
} bp_comm_range;

typedef enum bp_comm_state {
    BP_COMM_ALIVE = 0,
    BP_COMM_ABORTED = 1,
    BP_COMM_FORGOTTEN = 2,
    BP_COMM_BROKEN = 3 /* an agreement timed out */
} bp_comm_state;

/* bp_error_record keeps at most this many bytes. */
#define BP_COMM_DETAIL_BYTES 512

struct bp_comm {
    bp_comm_ops table;      /* copy of the provider's */
    const bp_comm_ops *ops; /* points to `table` */
    void *self;
    bp_comm_traits traits;
    char *name;
    bp_comm_info info;
    bp_process process; /* the process that made it; a forked child is unknown to its peers */
    /* One of the caller, one for each registration, one for each communicator that exchanges over this one. */
    atomic_uint references;
    atomic_int state;
    bp_comm_range *ranges;                  /* registered with it; one call at a time */
    uint8_t *records;                       /* room for a record of each rank, so that an agreement allocates nothing */
    char first_error[BP_COMM_DETAIL_BYTES]; /* detail of the error that broke it (BP_COMM_BROKEN) */
};

#define BP_COMM_RECORD_BYTES 768u /* the same in all versions of this library */

void bp_comm_retain(bp_comm *comm);
void bp_comm_release(bp_comm *comm);

static inline bool bp_comm_is_alive(const bp_comm *comm)
{
    return atomic_load_explicit(&((bp_comm *)comm)->state, memory_order_acquire) == BP_COMM_ALIVE;
}

/* True after bp_comm_abort or bp_comm_forget. A communicator that timed out is not ended: its calls keep failing. */
static inline bool bp_comm_was_ended(const bp_comm *comm)
{
    const int state = atomic_load_explicit(&((bp_comm *)comm)->state, memory_order_acquire);
    return state == BP_COMM_ABORTED || state == BP_COMM_FORGOTTEN;
}

/* BP_OK, or the error: comm is NULL, was aborted, or has timed out. */
bp_status bp_comm_check(const bp_comm *comm, const char *function);

/* bp_comm_exchange with `what` in its errors. A time-out breaks the communicator. */
bp_status bp_comm_agree(bp_comm *comm, const char *what, const void *mine, uint64_t bytes, void *all);

/* The provider's function, with a detail recorded for every error. */
bp_status bp_comm_register(bp_comm *comm, void *address, uint64_t bytes, bp_register_kind kind, void **handle,
                           const char **because);
bp_status bp_comm_deregister(bp_comm *comm, bp_register_kind kind, void *handle);

#endif
