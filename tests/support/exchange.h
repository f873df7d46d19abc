/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of a callback communicator whose ranks are threads that exchange host memory. */
#ifndef BP_TEST_EXCHANGE_H
#define BP_TEST_EXCHANGE_H

#include <bucketpool/comm.h>

#include <pthread.h>
#include <stdbool.h>

#define EXCHANGE_RANKS 8

/* The rendezvous of a communicator's ranks. A rank that waits longer than 3 minutes, or `timeout_ms`, fails the
 * exchange for all. */
typedef struct exchange_room {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t ranks, here, leaving;
    uint64_t round;
    const void *given[EXCHANGE_RANKS];
    uint64_t bytes[EXCHANGE_RANKS];
    bool given_up;
    unsigned timeout_ms; /* 0: none; the 3 minutes are a failure, not a time-out */
    uint64_t exchanges;  /* completed by all ranks */
} exchange_room;

/* The user of a rank's callbacks. */
typedef struct exchange_seat {
    exchange_room *room;
    uint32_t rank;
    unsigned fails_nth; /* this rank's nth exchange from now on fails, for all ranks that take part; 0: none */
    unsigned aborts, destroys;
} exchange_seat;

void exchange_begin(exchange_room *room, uint32_t ranks);
void exchange_end(exchange_room *room);
/* Without collectives. */
bp_comm_callbacks exchange_callbacks(const exchange_seat *seat);

#endif
