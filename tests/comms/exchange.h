/* Ranks that are threads exchange host memory: the functions of a callback communicator. */
#ifndef BP_TEST_EXCHANGE_H
#define BP_TEST_EXCHANGE_H

#include <bucketpool/comm.h>

#include <pthread.h>
#include <stdbool.h>

#define EXCHANGE_RANKS 8

/* The meeting place of the ranks of one communicator. A rank that waits for 20 seconds, or `timeout_ms`, gives up, and all with it. */
typedef struct exchange_room {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t ranks, here, leaving;
    uint64_t round;
    const void *given[EXCHANGE_RANKS];
    uint64_t bytes[EXCHANGE_RANKS];
    bool given_up;
    unsigned timeout_ms; /* 0: none: giving up is no time-out */
    uint64_t exchanges;  /* that all took part in */
} exchange_room;

/* The user of a rank's callbacks. */
typedef struct exchange_seat {
    exchange_room *room;
    uint32_t rank;
    unsigned
        fails_nth; /* this rank's nth exchange from now on fails, and with it all that the others wait in or begin; 0: none */
    unsigned aborts, destroys;
} exchange_seat;

void exchange_begin(exchange_room *room, uint32_t ranks);
void exchange_end(exchange_room *room);
/* No collectives. */
bp_comm_callbacks exchange_callbacks(const exchange_seat *seat);

#endif
