/* A driver from within: driver_make.c makes and unmakes it, driver.c drives. */
#ifndef TOOLS_DRIVER_STATE_H
#define TOOLS_DRIVER_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "driver.h"

/* One bucket to fill or to check, read by a stream's thread some time after it was enqueued. */
typedef struct operation {
    driver *driver;
    unsigned char *address;
    uint64_t bytes, seed;
    uint64_t number; /* in the order of the host */
    uint64_t iteration;
    uint32_t step, request;
} operation;

/* Events of a group: its acquire is in order, its buckets are full. NULL where one stream does both sides. */
typedef struct group_events {
    bp_event *acquired, *filled;
} group_events;

struct driver {
    driver_config config;
    program program;
    uint32_t *ids;
    uint64_t *bytes;
    bp_stream *streams[STREAM_COUNT];
    bp_event *window[MOST_STEPS_AHEAD][STREAM_COUNT];
    group_events *events;      /* by group */
    unsigned char **addresses; /* by request: of the hold it has now */
    void **served;             /* addresses of one call */
    uint32_t *called;          /* ids of one call */
    uint64_t *seeds;           /* by request: of the hold it has now */
    /* Operations live until their step is done. The window says when that is, so that a few iterations' worth is enough. */
    operation *operations, *held_operations;
    size_t operations_each;
    uint64_t arenas, next_operation; /* of the arena in use */
    uint64_t issued;                 /* operations */
    uint64_t steps_issued, started_ns;
    atomic_bool stopped; /* streams pass over what is still queued */
    driver_result result;
    /* written by the streams' threads */
    atomic_uint_least64_t checked, checked_bytes, filled_bytes, corrupted;
    pthread_mutex_t lock; /* of the first corruption */
    uint64_t first_number;
};

#endif
