/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks as threads of the test: an exchange with a deadline, and a provider with scripted registrations. */
#ifndef BP_TEST_COMMS_RANKS_H
#define BP_TEST_COMMS_RANKS_H

#include <bucketpool/comm_ops.h>

#include <pthread.h>
#include <stdbool.h>

#define MAX_RANKS 4
#define MAX_LOGGED 2048

/* A barrier through which ranks exchange data. */
typedef struct barrier {
    pthread_mutex_t lock;
    pthread_cond_t turned;
    uint32_t ranks, arrived;
    uint64_t turn, bytes, met;
    bool uneven; /* the ranks passed different sizes */
    uint8_t slots[MAX_RANKS][4096];
} barrier;

void barrier_init(barrier *m, uint32_t ranks);

typedef struct registered {
    void *address;
    uint64_t bytes;
    bp_register_kind kind;
    bool live;
} registered;

/* A rank's communicator. */
typedef struct rank {
    barrier *at;
    barrier *joint; /* NULL, or the barrier at which ranks register windows collectively, as in NCCL */
    uint32_t number;
    bp_register_kind best;
    uint32_t lacks;
    uint64_t version;
    uint32_t refused; /* bits 1 << kind: registered with BP_OK, but without a handle */
    int fail_at;      /* this registration (from 1) fails; 0: none */
    int exchange_fails_at;
    bp_status exchange_fails_with; /* BP_OK means BP_ERR_COMM */
    int registrations, exchanges, deregistrations, wrong;
    registered log[MAX_LOGGED];
    size_t logged;
    int ended[MAX_LOGGED]; /* log entries in order of deregistration */
    bool destroyed, aborted;
    char because[64];
} rank;

extern const bp_comm_ops RANK_OPS;

size_t live_windows(const rank *r);

/* Runs `work` on a thread for each of `count` ranks. */
void run_ranks(uint32_t count, void (*work)(void *user, uint32_t rank), void *user);

#endif
