/* Communicators as the rest of this folder sees them: a provider's table with what all of them share. */
#ifndef BP_COMMS_COMM_H
#define BP_COMMS_COMM_H

#include <bucketpool/comm_ops.h>

#include <stdatomic.h>
#include <stdbool.h>

#include "core/process.h"

/* Memory that is registered with a communicator, or about to be. The owner of the range keeps it; its address stays. */
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

/* bp_error_record keeps so much. */
#define BP_COMM_DETAIL_BYTES 512

struct bp_comm {
    bp_comm_ops table;      /* the provider's, copied */
    const bp_comm_ops *ops; /* that table */
    void *self;
    bp_comm_traits traits;
    char *name;
    bp_comm_info info;
    bp_process process; /* that made it: for its peers a forked child is not there */
    /* The caller's; one for each registration, and for each communicator that exchanges over it. */
    atomic_uint references;
    atomic_int state;
    bp_comm_range *ranges;                  /* registered with it; one call at a time */
    uint8_t *records;                       /* room for one record of each rank, so that agreeing needs no memory */
    char first_error[BP_COMM_DETAIL_BYTES]; /* of BP_COMM_BROKEN */
};

#define BP_COMM_RECORD_BYTES 768u /* the same in all versions of this library */

void bp_comm_retain(bp_comm *comm);
void bp_comm_release(bp_comm *comm);

static inline bool bp_comm_is_alive(const bp_comm *comm)
{
    return atomic_load_explicit(&((bp_comm *)comm)->state, memory_order_acquire) == BP_COMM_ALIVE;
}

/* Its owner has aborted it or given it up, and goes on without it. A communicator that timed out keeps failing instead. */
static inline bool bp_comm_was_ended(const bp_comm *comm)
{
    const int state = atomic_load_explicit(&((bp_comm *)comm)->state, memory_order_acquire);
    return state == BP_COMM_ABORTED || state == BP_COMM_FORGOTTEN;
}

/* BP_OK, or the error of no communicator, one that was aborted, or one that timed out. */
bp_status bp_comm_check(const bp_comm *comm, const char *function);

/* bp_comm_exchange whose error says what it was for. A time-out breaks the communicator. */
bp_status bp_comm_agree(bp_comm *comm, const char *what, const void *mine, uint64_t bytes, void *all);

/* Registration with the detail seen to. */
bp_status bp_comm_register(bp_comm *comm, void *address, uint64_t bytes, bp_register_kind kind, void **handle,
                           const char **because);
bp_status bp_comm_deregister(bp_comm *comm, bp_register_kind kind, void *handle);

#endif
