/* SPDX-License-Identifier: Apache-2.0 */
/* The emulated NCCL: a shared object with the names and the ABI of libnccl.so.2. The ranks of a communicator are threads of one
 * process, each with a separate communicator; memory and streams are the emulated driver's. It serves collectives, records
 * what is registered, and remembers which rules (rules.h) its callers broke.
 *
 * Copies without some symbols are in folders beside it: v2_18 (nothing to register with), v2_19 (no windows).
 *
 * What it counts as served from registered memory is emulated only: it follows NCCL's conditions, and says nothing about a gain. */
#ifndef FAKE_NCCL_H
#define FAKE_NCCL_H

#include <bucketpool/nccl.h>

#include "rules.h"

#define FAKE_NCCL_API __attribute__((visibility("default")))
#define FAKE_NCCL_RANKS 16 /* of a communicator, at most */

/* Settings, also read from the environment as FAKE_NCCL="version=22809,share_gpu=1":
 *   version=<code>       what ncclGetVersion says and how registration behaves; the copy's own by default
 *   share_gpu=0|1        ranks may be on one GPU, as if they were processes with different NCCL_HOSTID
 *   same_process=0|1     ranks count as threads of one process, which NCCL does not serve from registered memory
 *   symmetric=0|1        all GPUs reach each other (default 1)
 *   space_mib=<n>        of symmetric address space of a communicator
 *   watchdog_ms=<n>      how long ranks wait for each other (20000)
 * NCCL_LOCAL_REGISTER, NCCL_CUMEM_ENABLE, NCCL_WIN_ENABLE and NCCL_MULTI_RANK_GPU_ENABLE are read when a communicator is made.
 * 0; -1 for a setting that there is not (those before it hold). */
FAKE_NCCL_API int fake_nccl_set(const char *settings);

/* Forgets settings, failures, counts and broken rules, and frees destroyed communicators. Returns the number of
 * others, which stay. No other call of NCCL may run meanwhile. */
FAKE_NCCL_API unsigned fake_nccl_reset(void);

/* The version's functions; the others are NULL. table->size and version are set. */
FAKE_NCCL_API void fake_nccl_table(bp_nccl_functions *table);

/* ---- faults -------------------------------------------------------------------------------------------------------- */

/* The nth call (from 1, counted from now) of `function` by rank `rank` returns `result` and does nothing. `rank` -1:
 * calls of all ranks, and those without a communicator; `function` NULL: any that can fail. Other ranks are not
 * blocked: windows are granted to them, collectives end with an asynchronous error. A deregistration that fails
 * still forgets the registration. One fault at a time. */
FAKE_NCCL_API void fake_nccl_fail(const char *function, unsigned nth, int rank, int result);
/* 1 if the fault has occurred; it occurs once. */
FAKE_NCCL_API int fake_nccl_failed(void);

/* The nth window registration of the rank from now on (1: the next; 0: each; -1: none) succeeds with a NULL window.
 * `rank` -1: any rank. */
FAKE_NCCL_API void fake_nccl_refuse_window(int rank, int nth);

/* Sets the result of ncclCommGetAsyncError for a communicator. */
FAKE_NCCL_API void fake_nccl_break(void *comm, int result);

/* ---- findings ------------------------------------------------------------------------------------------------------ */

FAKE_NCCL_API const char *fake_nccl_rule_name(fake_nccl_rule rule);
FAKE_NCCL_API const char *fake_nccl_rule_sentence(fake_nccl_rule rule);
FAKE_NCCL_API const char *fake_nccl_rule_source(fake_nccl_rule rule);

/* Number of broken rules since the reset; `text` (may be NULL) gets a line for each until it is full. */
FAKE_NCCL_API unsigned fake_nccl_broken(char *text, size_t capacity);
/* Number of times this rule was broken; resets it, for tests that break the rule on purpose. */
FAKE_NCCL_API unsigned fake_nccl_take_broken(fake_nccl_rule rule);

/* Totals of all communicators since the reset. A collective counts once for each rank. */
typedef struct fake_nccl_counts {
    unsigned communicators; /* not destroyed */
    unsigned buffers;       /* registered now; one for each handle */
    unsigned windows;       /* registered now */
    unsigned buffer_calls, window_calls, buffer_ends, window_ends;
    unsigned collectives;
    unsigned symmetric;  /* from symmetric windows; emulated only */
    unsigned registered; /* from other registered memory; emulated only */
    unsigned copied;     /* through NCCL's own buffers */
} fake_nccl_counts;

FAKE_NCCL_API void fake_nccl_count(fake_nccl_counts *counts);
/* Calls of a function since the reset, including failed ones; NULL: of all functions that can fail. */
FAKE_NCCL_API unsigned fake_nccl_calls(const char *function);

/* A registered window; `index` in the order of registration. Returns 0 if there is none. */
typedef struct fake_nccl_window {
    void *comm;
    int rank;
    uint64_t address, bytes;
    int flags;
    void *handle;
} fake_nccl_window;
FAKE_NCCL_API int fake_nccl_window_get(unsigned index, fake_nccl_window *window);
/* The handles of the last deregistered windows, in that order. */
FAKE_NCCL_API void *fake_nccl_ended(unsigned index);

#endif
