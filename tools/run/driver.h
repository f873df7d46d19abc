/* The driver of a run: a schedule as a program, the patterns that fill buckets, and who enqueues them. */
#ifndef TOOLS_RUN_DRIVER_H
#define TOOLS_RUN_DRIVER_H

#include <bucketpool/bucketpool.h>

#include <stdbool.h>
#include <stdint.h>

/* A schedule as a list of things to do in each of its steps, in the order in which a host does them: what a driver walks through. docs/concepts/schedules.md says what the roles are; which streams they take is the table in program.c. */

/* The streams of a training step, numbered like the lanes of pool.h. */
#define STREAM_COUNT 4

/* What happens in one step, in this order. A gathered bucket is checked in every step in which its unit computes, and each bucket
 * at least once, as late as possible: in the last step before its release. */
typedef enum program_action {
    ACTION_GATHER,  /* gathered buckets are acquired and filled, those of units ahead too */
    ACTION_COMPUTE, /* gathered buckets are checked */
    ACTION_PRODUCE, /* the others are acquired and filled */
    ACTION_DRAIN,   /* and checked */
    ACTION_RELEASE, /* what the next step does not need any more */
    ACTION_COUNT
} program_action;

typedef struct program_entry {
    uint32_t request, interval;
} program_entry;

/* Requests of one unit that go through the same streams. They are neighbours: one call serves those that begin or end together. */
typedef struct program_group {
    uint32_t first, count;        /* requests */
    int32_t unit;                 /* BP_OUTSIDE: of none */
    uint8_t acquire, fill, check; /* streams */
} program_group;

typedef struct program {
    uint32_t steps, requests;
    program_group *groups;
    uint32_t group_count;
    uint32_t *group_of;                   /* by request */
    size_t *begins[ACTION_COUNT];         /* by step, and one more: where its entries begin */
    program_entry *entries[ACTION_COUNT]; /* by step, then request */
    /* Requests that are live in every step of all iterations (state): acquired once, checked in the last step of each iteration. */
    program_entry *held;
    uint32_t held_count;
    uint64_t fills, checks;     /* of one iteration, without held ones' fills */
    bool streams[STREAM_COUNT]; /* that are in use */
} program;

/* Errors: BP_ERR_NO_HOST_MEMORY, BP_ERR_OVERFLOW. Call program_finish either way. */
bp_status program_init(const bp_buckets *buckets, const bp_schedule *schedule, program *p);
void program_finish(program *p);

/* The stream that requests of a role are acquired on. */
int program_acquire_stream(uint32_t role);

/* Bytes that say whose they are: computed from a seed and an offset, never stored. Equal bytes at equal offsets of two seeds are as rare as chance, so that a bucket which somebody else wrote to does not verify. */

/* The seed of what `request` holds in one of its intervals of one iteration; `run` is the seed of the whole run. */
uint64_t pattern_seed(uint64_t run, uint32_t request, uint64_t iteration, uint32_t interval);

/* The seed of what lies `offset` bytes, a multiple of 8, behind the beginning of a pattern: for memory that is written in pieces. */
uint64_t pattern_seed_at(uint64_t seed, uint64_t offset);

/* Memory of any alignment and size. */
void pattern_fill(void *memory, uint64_t bytes, uint64_t seed);

typedef struct pattern_difference {
    uint64_t offset;
    uint8_t expected, found;
} pattern_difference;

/* Whether every byte is as filled; else *difference is the first that is not. */
bool pattern_check(const void *memory, uint64_t bytes, uint64_t seed, pattern_difference *difference);

/* A number that other bytes, or the same at other places, would as good as never give. Numbers of pieces add up to that of the whole, in
 * any order. */
uint64_t pattern_digest(const void *memory, uint64_t bytes, uint64_t seed);

/* Drives a schedule through a pool, iteration after iteration, as a training loop would: acquires, fills on one stream, checks on the next, releases right after enqueueing the last check. Nothing waits for the device but a window that keeps the host a few steps ahead of it, so a wait that the pool forgets shows up as wrong bytes. Prints nothing. */

/* How many steps the host may be ahead of the streams, as runtimes are: enough for every ordering mistake to show, little enough to
 * report progress and to bound what is in flight. */
#define MOST_STEPS_AHEAD 32

/* What is captured into graphs, and replayed instead of being enqueued again.
 * DRIVER_GRAPHS_ITERATION: a whole iteration. DRIVER_GRAPHS_UNITS: of about half of the units each layer by itself, that is, acquire, fill,
 * check and release of what is released in one step; what the other units need is enqueued around them. */
typedef enum driver_graphs { DRIVER_GRAPHS_OFF, DRIVER_GRAPHS_ITERATION, DRIVER_GRAPHS_UNITS } driver_graphs;

/* Called by the host between steps with how many are done, of all iterations so far. false: stop as soon as possible. */
typedef bool driver_progress(void *user, uint64_t steps_done);

typedef struct driver_config {
    bp_device *device;
    bp_pool *pool; /* of a plan of these buckets; its requests say how many bytes are filled */
    const bp_buckets *buckets;
    const bp_schedule *schedule;
    uint64_t seed;         /* of the patterns */
    bool has_memory;       /* false: addresses are only addresses, nothing is filled or checked */
    uint32_t steps_ahead;  /* 1 to MOST_STEPS_AHEAD */
    bool promises;         /* tell the pool on which stream each request is acquired */
    driver_graphs graphs;  /* needs a device with graphs, and a plan with addresses for every bucket */
    uint32_t max_pause_us; /* before pieces of the streams' work, at random */
    uint64_t piece_bytes;  /* that go through the host at once where it cannot reach the device's memory; 0: 4 MiB */
    driver_progress *progress; /* may be NULL */
    void *user;
} driver_config;

/* A place in the run. */
typedef struct driver_position {
    uint64_t iteration;
    uint32_t step; /* of the schedule */
} driver_position;

/* The first bucket, in the order of the host, that did not hold what it was filled with. */
typedef struct driver_corruption {
    driver_position at;
    uint32_t request;
    pattern_difference difference;
} driver_corruption;

typedef struct driver_result {
    uint64_t iterations; /* finished */
    uint64_t checked, checked_bytes, filled_bytes;
    uint64_t digest;           /* of all bytes that were checked, with whose they were: the same whatever the order */
    uint64_t graphs, launches; /* captured and replayed */
    uint64_t replayed;         /* iterations with graphs */
    uint64_t corrupted;        /* checks that failed */
    driver_corruption first;   /* of them */
    driver_position position;  /* of the host: where a call that failed was made */
    uint64_t calls, call_ns;   /* of the pool by the host: acquire, use and release; and time in them */
    uint64_t wall_ns;          /* of iterations, until the device had done them */
} driver_result;

typedef struct driver driver;

/* Makes the streams: one each for gathers, compute, reduction, outer reduction, where the schedule uses them. The pool must be
 * destroyed first, the driver after it, the device last. Errors: BP_ERR_NO_HOST_MEMORY, what the device and the pool report. */
bp_status driver_create(const driver_config *config, driver **created);
void driver_destroy(driver **destroyed);

/* Acquires and fills what is live all the time. Once, before the first iteration. */
bp_status driver_begin(driver *d);
/* Enqueues one iteration; `eager`: without graphs. The first that is not captures them. Pool steps (bp_pool_set_step) count the schedule's steps through all iterations, from 0.
 * Errors: what pool and device report; the position says where. The streams may still work then. */
bp_status driver_iterate(driver *d, bool eager);
/* Waits for all work, then releases what driver_begin acquired. For a run that went well. Errors: what the device reports,
 * BP_ERR_DEVICE (checks that never ran). */
bp_status driver_end(driver *d);
/* Waits for all work, whatever happened. */
void driver_drain(driver *d);

/* Whether progress asked to stop. */
bool driver_stopped(const driver *d);
/* After driver_end or driver_drain. */
void driver_result_get(const driver *d, driver_result *result);
/* Before that: whether any check has failed so far. */
bool driver_is_corrupted(driver *d);
/* Acquires, uses and releases of one iteration that a trace of it holds. */
size_t driver_trace_entries(const driver *d);
const program *driver_program(const driver *d);

#endif
