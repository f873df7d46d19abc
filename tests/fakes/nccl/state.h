/* SPDX-License-Identifier: Apache-2.0 */
/* State of the emulated NCCL, all under one lock. Communicators stay allocated until the reset, so that late calls,
 * and graphs that still refer to them, are detected instead of crashing. */
#ifndef FAKE_NCCL_STATE_H
#define FAKE_NCCL_STATE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "devices/cuda_driver.h"

#include "abi.h"

/* ncclResult_t */
enum {
    NCCL_SUCCESS = 0,
    NCCL_CUDA_ERROR = 1,
    NCCL_SYSTEM_ERROR = 2,
    NCCL_INTERNAL_ERROR = 3,
    NCCL_INVALID_ARGUMENT = 4,
    NCCL_INVALID_USAGE = 5,
    NCCL_REMOTE_ERROR = 6
};

enum { NCCL_WIN_SYMMETRIC = 1, NCCL_WIN_ALIGNMENT = 4096 };

typedef struct settings {
    int version;
    int share_gpu, same_process, symmetric;
    uint64_t space_bytes;
    int watchdog_ms;
} settings;

/* Ranks that meet in one call. */
typedef enum meeting_kind { MEET_INIT = 1, MEET_WINDOW = 2, MEET_COLLECTIVE = 3 } meeting_kind;

typedef struct meeting {
    struct meeting *next;
    meeting_kind kind;
    uint64_t number, run;
    unsigned here, gone, seen; /* ranks that have arrived, have left, have seen that all left */
    bool failed;
    bool came[FAKE_NCCL_RANKS];
    const void *brought[FAKE_NCCL_RANKS]; /* NULL: the rank declared that it will not take part */
} meeting;

typedef struct communicator communicator;

typedef struct clique {
    struct clique *next;
    unique_id id;
    int ranks;
    communicator *members[FAKE_NCCL_RANKS];
    meeting *meetings;
} clique;

/* The result of ncclCommRegister; also of windows that are granted as buffers only. */
typedef struct buffer {
    struct buffer *next;
    uint64_t begin, end; /* whole pages */
    unsigned references;
} buffer;

typedef struct registered_window {
    struct registered_window *next;
    communicator *comm;
    uint64_t address, bytes;
    uint64_t space; /* bytes of symmetric address space */
    int flags;
    bool symmetric;    /* else granted as a buffer */
    uint64_t physical; /* physical memory of its first page at registration */
} window;

typedef struct operation {
    struct operation *next;
    communicator *comm;
    int kind; /* an operation_kind */
    const void *from;
    void *to;
    size_t count;
    int dtype, reduction;
    uint64_t number, run;
    bool captured;
    bp_register_kind memory; /* registration kind of the rank's memory in this run */
} operation;

struct communicator {
    communicator *next;
    clique *clique;
    int rank, device;
    void *context;
    bool dead, aborted;
    bool local_register, cumem, win_enable; /* read from the environment at creation */
    int async_error;
    char last_error[256];
    unsigned running; /* collectives that are queued or running */
    uint64_t collective_number, window_number;
    uint64_t space_used;
    buffer *buffers;
    window *windows;
    operation *operations;
};

typedef struct fake_state {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    settings set;
    communicator *communicators;
    clique *cliques;
    fake_nccl_counts counts;
} fake_state;

extern fake_state fake;

void fake_lock(void);
void fake_unlock(void);

/* ---- control ------------------------------------------------------------------------------------------------------- */

/* Counts a call, and returns the result of a failure on demand; 0: the call continues. */
int enter(const char *function, const communicator *comm);
/* True if this window registration must return NULL. Under the lock. */
bool is_window_refused(int rank);
void note_ended(void *handle);
void forget_findings(void);
/* Records a broken rule and its details. Any thread, with or without the lock. */
__attribute__((format(printf, 2, 3))) void broke(fake_nccl_rule rule, const char *format, ...);
/* Returns the result and keeps its text for ncclGetLastError. Under the lock. */
__attribute__((format(printf, 3, 4))) int fail(communicator *comm, int result, const char *format, ...);

/* ---- communicators ------------------------------------------------------------------------------------------------- */

/* A communicator that is not destroyed; else records a broken rule and returns NULL. */
communicator *find_comm(void *handle, const char *function);

/* Finds the communicator of a call and takes the lock; on an error it does not. */
int begin_call(const char *function, void *handle, communicator **comm);

/* Waits for all ranks; then *met has what each brought. Under the lock, which is released while waiting. */
int meet(communicator *comm, meeting_kind kind, uint64_t number, uint64_t run, const void *brought, meeting **met);
/* Waits until no rank needs what was brought. */
void part(communicator *comm, meeting *met);
/* Declares that this rank will not take part. */
void stay_away(communicator *comm, meeting_kind kind, uint64_t number, uint64_t run);
void end_meetings(clique *of);

/* ---- registration -------------------------------------------------------------------------------------------------- */

/* The registration kind of a whole range: a bp_register_kind. */
bp_register_kind registered_as(const communicator *comm, const void *memory, uint64_t bytes);
/* Ends the communicator's remaining registrations; true if there were any. */
bool end_registrations(communicator *comm);

/* ---- groups -------------------------------------------------------------------------------------------------------- */

/* Inside a group, work is deferred to its end: collective work runs on separate threads, the rest after it. Copies
 * the argument. Outside a group it runs at once. */
int do_or_defer(int (*work)(void *argument), const void *argument, size_t bytes, bool waits);

/* ---- numbers ------------------------------------------------------------------------------------------------------- */

typedef enum reduction_op { OP_SUM = 0, OP_PROD = 1, OP_MAX = 2, OP_MIN = 3, OP_AVG = 4 } reduction_op;

size_t type_bytes(int dtype); /* 0: unsupported */
bool is_float(int dtype);
/* Reduces elements `first` to `first + count` of all ranks' inputs, in rank order, into `result`. */
void reduce(const void *const *inputs, int ranks, size_t first, size_t count, int dtype, int op, void *result);

/* ---- the driver ---------------------------------------------------------------------------------------------------- */

void *driver_current_context(void);
void driver_set_context(void *context);
int driver_current_device(int *device);
int driver_device_count(void);
int driver_retain(int device, void **context); /* the primary context */
void driver_release(int device);
/* The recommended granularity for such memory. */
int driver_granularity(const bp_cu_allocation_prop *prop, size_t *bytes);
int driver_launch(void *stream, void (*function)(void *), void *argument);

#endif
