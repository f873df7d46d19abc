/* SPDX-License-Identifier: Apache-2.0 */
/* Internals of the driver: driver.c creates and drives it, driver_bytes.c has the work of its streams,
 * driver_graph.c captures and replays. */
#ifndef TOOLS_RUN_DRIVER_STATE_H
#define TOOLS_RUN_DRIVER_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "run/driver.h"

/* Page-locked staging memory of one stream, used for one piece at a time in stream order. */
typedef struct staging {
    unsigned char *memory; /* NULL: the host can reach device memory */
    uint64_t bytes;
} staging;

/* Eager work and graphs stage separately: branches of a graph may run beside the streams they were captured on.
 * Graphs run one after the other, so they share their staging memory. */
enum { STAGING_EAGER, STAGING_GRAPHS, STAGING_KINDS };

/* Address and content of an acquired request. */
typedef struct hold {
    unsigned char *address;
    uint64_t iteration;
    uint32_t interval;
    bool always; /* from driver_begin to driver_end */
} hold;

/* A fill or check of a bucket. A stream's thread reads it after it was enqueued, and at each replay of its graph. */
typedef struct operation {
    driver *driver;
    hold hold;
    uint64_t bytes;
    unsigned char *staged; /* NULL: the bucket itself */
    uint64_t piece;        /* bytes of a piece */
    uint64_t number;       /* order of the host within a step */
    uint64_t iteration;    /* in which it was enqueued */
    uint32_t step, request;
    bool replayed; /* in a graph: `iteration` is taken at replay */
    bool wrong;    /* a piece did not match; `wrong` and `done` are used by the stream's thread only */
    uint64_t done; /* bytes of the bucket */
} operation;

/* Events of a group: acquired, filled. NULL where one stream does both. */
typedef struct group_events {
    bp_event *acquired, *filled;
} group_events;

/* A unit of the host's window: a step, or an iteration launched as one graph. */
typedef struct window_slot {
    bp_event *events[STREAM_COUNT];
    uint64_t steps; /* steps of the schedule in it */
} window_slot;

/* A graph and its capture by the pool. */
typedef struct driver_graph {
    bp_graph *graph; /* NULL: nothing to capture */
    bp_capture *capture;
} driver_graph;

struct driver {
    driver_config config;
    program program;
    const bp_plan_request *requests; /* of the pool */
    bp_stream *streams[STREAM_COUNT];
    staging staging[STAGING_KINDS][STREAM_COUNT];
    window_slot window[MAX_STEPS_AHEAD];
    group_events *events; /* by group */
    hold *holds;          /* by request */
    void **served;        /* addresses of one call */
    uint32_t *called;     /* ids of one call */
    /* Operations live until their step leaves the window, so arenas of a few iterations suffice. */
    operation *operations, *held_operations;
    size_t operations_each;
    uint64_t arenas, next_operation; /* of the arena in use */
    uint64_t issued;                 /* operations of this step */
    uint64_t eager_iterations;
    uint64_t slots_issued, steps_issued, started_ns;
    /* Graphs: one, or by step. Their operations live as long as the driver. */
    driver_graph *graphs;
    size_t graph_count;
    operation *captured_operations;
    uint64_t next_captured;
    bool *replayed;   /* by request: in graphs of units */
    size_t *interval; /* by request: first entry in `checks` */
    uint32_t *checks; /* of each interval of a request */
    uint32_t *owned;  /* ids that are live when a graph begins */
    bp_event *forks, *joins[STREAM_COUNT];
    bool capturing, captured;
    bool replaying;                    /* this iteration */
    atomic_uint_least64_t replay_time; /* iteration of the running graphs, counted by the launch stream */
    atomic_bool stopped;               /* streams skip queued work */
    driver_result result;
    /* written by the streams' threads */
    atomic_uint_least64_t checked, checked_bytes, filled_bytes, corrupted, digest;
    pthread_mutex_t lock; /* of the first corruption */
    uint64_t first_number;
};

/* Stream on which graphs are captured and launched: every schedule uses it. */
#define LAUNCH_STREAM BP_LANE_COMPUTE

/* Both enqueue; the operation must live until the work is done. */
bp_status driver_enqueue_fill(operation *o, bp_stream *stream);
bp_status driver_enqueue_check(operation *o, bp_stream *stream);
/* Stream callback: advances replay_time for graphs launched later. `argument` is the driver. */
void driver_next_iteration(void *argument);

/* Enqueues all actions of a step. */
bp_status driver_act(driver *d, uint32_t step);
/* Returns the number of leading `entries` for one call; their ids are in d->called. */
size_t driver_batch(driver *d, const program_entry *entries, size_t count);
bp_status driver_begin_batch(driver *d, const program_entry *entries, size_t count, operation *held);
bp_status driver_check_entry(driver *d, const program_entry *entry);
bp_status driver_release_batch(driver *d, const program_entry *entries, size_t count);
/* Orders the check stream of a group after its fills. */
bp_status driver_order_checks(driver *d, uint32_t group);
void driver_count_call(driver *d, uint64_t began);
uint64_t driver_now_ns(void);

bp_status driver_graphs_make(driver *d);
/* Call once, when only requests of the whole run are live. */
bp_status driver_graphs_capture(driver *d);
/* Launches graph `index` unless it is empty. */
bp_status driver_graph_launch(driver *d, size_t index);
void driver_graphs_destroy(driver *d);

#endif
