/* A driver from within: driver.c makes, drives and unmakes it, driver_bytes.c is what its streams do, driver_graph.c
 * captures and replays. */
#ifndef TOOLS_RUN_DRIVER_STATE_H
#define TOOLS_RUN_DRIVER_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "run/driver.h"

/* Page-locked memory that one stream's bytes go through, a piece at a time: the order of the stream keeps pieces apart. */
typedef struct staging {
    unsigned char *memory; /* NULL: the host reaches the device's memory */
    uint64_t bytes;
} staging;

/* What is written on the eager path, and what graphs write: a graph's branches may run beside the streams that they were captured on,
 * but graphs run one after the other. */
enum { STAGING_EAGER, STAGING_GRAPHS, STAGING_KINDS };

/* Where a request is, and what it was filled with. */
typedef struct hold {
    unsigned char *address;
    uint64_t iteration;
    uint32_t interval;
    bool always; /* from driver_begin to driver_end */
} hold;

/* One bucket to fill or to check, read by a stream's thread some time after it was enqueued; in a graph again and again. */
typedef struct operation {
    driver *driver;
    hold hold;
    uint64_t bytes;
    unsigned char *staged; /* NULL: the bucket itself */
    uint64_t piece;        /* bytes at once */
    uint64_t number;       /* in the order of the host, in one step */
    uint64_t iteration;    /* where it is enqueued */
    uint32_t step, request;
    bool replayed; /* of a graph: the iteration is that of the run */
    bool wrong;    /* a piece was, belongs to the stream's thread like the next one */
    uint64_t done; /* bytes of the bucket */
} operation;

/* Events of a group: its acquire is in order, its buckets are full. NULL where one stream does both sides. */
typedef struct group_events {
    bp_event *acquired, *filled;
} group_events;

/* What the host may be ahead: a step, or an iteration that is one launch. */
typedef struct window_slot {
    bp_event *events[STREAM_COUNT];
    uint64_t steps; /* of the schedule that are done with it */
} window_slot;

/* A graph, and what the pool knows of it. */
typedef struct driver_graph {
    bp_graph *graph; /* NULL: there was nothing to capture */
    bp_capture *capture;
} driver_graph;

struct driver {
    driver_config config;
    program program;
    const bp_plan_request *requests; /* of the pool */
    bp_stream *streams[STREAM_COUNT];
    staging staging[STAGING_KINDS][STREAM_COUNT];
    window_slot window[MOST_STEPS_AHEAD];
    group_events *events; /* by group */
    hold *holds;          /* by request */
    void **served;        /* addresses of one call */
    uint32_t *called;     /* ids of one call */
    /* Operations live until their step is done. The window says when that is, so that a few iterations' worth is enough. */
    operation *operations, *held_operations;
    size_t operations_each;
    uint64_t arenas, next_operation; /* of the arena in use */
    uint64_t issued;                 /* operations of this step */
    uint64_t eager_iterations;
    uint64_t slots_issued, steps_issued, started_ns;
    /* Graphs: one, or by step. Their operations stay. */
    driver_graph *graphs;
    size_t graph_count;
    operation *captured_operations;
    uint64_t next_captured;
    bool *replayed;   /* by request: it is in graphs of units */
    size_t *interval; /* by request: where its checks begin */
    uint32_t *checks; /* of each interval of a request */
    uint32_t *owned;  /* ids that graphs find live */
    bp_event *forks, *joins[STREAM_COUNT];
    bool capturing, captured;
    bool replaying;                    /* this iteration */
    atomic_uint_least64_t replay_time; /* the iteration that graphs are in, counted by the stream that launches them */
    atomic_bool stopped;               /* streams pass over what is still queued */
    driver_result result;
    /* written by the streams' threads */
    atomic_uint_least64_t checked, checked_bytes, filled_bytes, corrupted, digest;
    pthread_mutex_t lock; /* of the first corruption */
    uint64_t first_number;
};

/* Graphs begin on this stream and are launched on it: every schedule has it. */
#define LAUNCH_STREAM BP_LANE_COMPUTE

/* Both enqueue; the operation must live until the work is done. */
bp_status driver_enqueue_fill(operation *o, bp_stream *stream);
bp_status driver_enqueue_check(operation *o, bp_stream *stream);
/* Work of a stream: the iteration that graphs launched from now on are in has begun. `argument` is the driver. */
void driver_next_iteration(void *argument);

/* All actions of a step. */
bp_status driver_act(driver *d, uint32_t step);
/* How many of `entries` belong to one call; their ids are in d->called. */
size_t driver_batch(driver *d, const program_entry *entries, size_t count);
bp_status driver_begin_batch(driver *d, const program_entry *entries, size_t count, operation *held);
bp_status driver_check_entry(driver *d, const program_entry *entry);
bp_status driver_release_batch(driver *d, const program_entry *entries, size_t count);
/* The check stream of a group waits until its buckets are full. */
bp_status driver_order_checks(driver *d, uint32_t group);
void driver_count_call(driver *d, uint64_t began);
uint64_t driver_now_ns(void);

bp_status driver_graphs_make(driver *d);
/* Once, when nothing is live but what is held all the time. */
bp_status driver_graphs_capture(driver *d);
/* Launches graph number `index`, when it has anything. */
bp_status driver_graph_launch(driver *d, size_t index);
void driver_graphs_destroy(driver *d);

#endif
