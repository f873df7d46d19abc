/* What the emulated NCCL keeps, all of it under one lock. Communicators stay in memory until the reset, so that late calls and graphs
 * that still name them are told apart instead of crashing. */
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

/* Ranks that have come to one point of one call. */
typedef enum meeting_kind { MEET_INIT = 1, MEET_WINDOW = 2, MEET_COLLECTIVE = 3 } meeting_kind;

typedef struct meeting {
    struct meeting *next;
    meeting_kind kind;
    uint64_t number, run;
    unsigned here, gone, seen; /* ranks that have come, are done, and have seen that all are */
    bool failed;
    bool came[FAKE_NCCL_RANKS];
    const void *brought[FAKE_NCCL_RANKS]; /* NULL: the rank came to say that it will not take part */
} meeting;

typedef struct communicator communicator;

typedef struct clique {
    struct clique *next;
    unique_id id;
    int ranks;
    communicator *members[FAKE_NCCL_RANKS];
    meeting *meetings;
} clique;

/* What ncclCommRegister gave; also under windows that are no more than that. */
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
    bool symmetric;    /* served from symmetric memory; else as a buffer */
    uint64_t physical; /* memory of its start when it was registered */
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
    bp_register_kind memory; /* how its own rank's memory is registered, for this run */
} operation;

struct communicator {
    communicator *next;
    clique *clique;
    int rank, device;
    void *context;
    bool dead, aborted;
    bool local_register, cumem, win_enable; /* of the environment, when it was made */
    int async_error;
    char last_error[256];
    unsigned running; /* collectives that are enqueued or run */
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

/* Counts a call, and says what it must return instead of doing anything; 0: go on. */
int enter(const char *function, const communicator *comm);
/* Whether this window registration is to be answered with NULL. Under the lock. */
bool is_window_refused(int rank);
void note_ended(void *handle);
void forget_findings(void);
/* Records a broken rule with the facts of the case. Any thread, under the lock or not. */
__attribute__((format(printf, 2, 3))) void broke(fake_nccl_rule rule, const char *format, ...);
/* The result, after its words were kept for ncclGetLastError. Under the lock. */
__attribute__((format(printf, 3, 4))) int fail(communicator *comm, int result, const char *format, ...);

/* ---- communicators ------------------------------------------------------------------------------------------------- */

/* The living communicator, or NULL after a broken rule. */
communicator *find_comm(void *handle, const char *function);

/* The communicator of a call, under the lock; else an error, without it. */
int begin_call(const char *function, void *handle, communicator **comm);

/* Comes to a meeting and waits until all ranks have; then *met is it and has what they brought. Under the lock, given up while waiting. */
int meet(communicator *comm, meeting_kind kind, uint64_t number, uint64_t run, const void *brought, meeting **met);
/* Waits until all ranks are done with what was brought. */
void part(communicator *comm, meeting *met);
/* Tells the others that this rank will not come. */
void stay_offloaded(communicator *comm, meeting_kind kind, uint64_t number, uint64_t run);
void end_meetings(clique *of);

/* ---- registration -------------------------------------------------------------------------------------------------- */

/* How memory of a collective is registered with a communicator: a bp_register_kind, of all of the range. */
bp_register_kind registered_as(const communicator *comm, const void *memory, uint64_t bytes);
/* What is left of the communicator's registrations; true when there was something. */
bool end_registrations(communicator *comm);

/* ---- groups -------------------------------------------------------------------------------------------------------- */

/* Between group start and end work is kept and done at the end: what waits for other ranks on threads of its own, the rest after it. The
 * argument is copied. Outside it is done at once. */
int do_or_defer(int (*work)(void *argument), const void *argument, size_t bytes, bool waits);

/* ---- numbers ------------------------------------------------------------------------------------------------------- */

typedef enum reduction_op { OP_SUM = 0, OP_PROD = 1, OP_MAX = 2, OP_MIN = 3, OP_AVG = 4 } reduction_op;

size_t type_bytes(int dtype); /* 0: not served */
bool is_float(int dtype);
/* Elements `first` to `first + count` of the inputs of all ranks, in rank order, into `result`. */
void reduce(const void *const *inputs, int ranks, size_t first, size_t count, int dtype, int op, void *result);

/* ---- the driver ---------------------------------------------------------------------------------------------------- */

void *driver_current_context(void);
void driver_set_context(void *context);
int driver_current_device(int *device);
int driver_device_count(void);
int driver_retain(int device, void **context); /* the primary one */
void driver_release(int device);
/* The recommended one, of memory like this. */
int driver_granularity(const bp_cu_allocation_prop *prop, size_t *bytes);
int driver_launch(void *stream, void (*function)(void *), void *argument);

#endif
