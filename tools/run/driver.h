/* SPDX-License-Identifier: Apache-2.0 */
/* The driver of a run: compiles a schedule to a program, fills buckets with patterns, and enqueues the work of each
 * step. */
#ifndef TOOLS_RUN_DRIVER_H
#define TOOLS_RUN_DRIVER_H

#include <bucketpool/bucketpool.h>

#include <stdbool.h>
#include <stdint.h>

/* ---- the program of a schedule ----------------------------------------------------------------------------------- */

/* The actions of each step, in the order of the host. program.c maps roles to streams. */

/* The streams of a training step, numbered like the lanes of pool.h. */
#define STREAM_COUNT 4

/* Actions of a step, in this order. A gathered bucket is checked in every step in which its unit computes. Every
 * bucket is also checked in the last step before its release. */
typedef enum program_action {
    ACTION_GATHER,  /* gathered buckets are acquired and filled, prefetched ones included */
    ACTION_COMPUTE, /* gathered buckets are checked */
    ACTION_PRODUCE, /* all other buckets are acquired and filled */
    ACTION_DRAIN,   /* and checked */
    ACTION_RELEASE, /* buckets whose interval ends */
    ACTION_COUNT
} program_action;

typedef struct program_entry {
    uint32_t request, interval;
} program_entry;

/* Consecutive requests of one unit with the same streams. One call serves those that begin or end together. */
typedef struct program_group {
    uint32_t first, count;        /* requests */
    int32_t unit;                 /* BP_OUTSIDE: none */
    uint8_t acquire, fill, check; /* streams */
} program_group;

typedef struct program {
    uint32_t steps, requests;
    program_group *groups;
    uint32_t group_count;
    uint32_t *group_of;                   /* by request */
    size_t *begins[ACTION_COUNT];         /* by step, one more than steps: first entry of the step */
    program_entry *entries[ACTION_COUNT]; /* by step, then request */
    /* Requests that are live in every step of all iterations (state): acquired once, checked in the last step of
     * each iteration. */
    program_entry *held;
    uint32_t held_count;
    uint64_t fills, checks;     /* of one iteration, without the fills of `held` */
    bool streams[STREAM_COUNT]; /* in use */
} program;

/* Errors: BP_ERR_NO_HOST_MEMORY, BP_ERR_OVERFLOW. Call program_finish either way. */
bp_status program_init(const bp_buckets *buckets, const bp_schedule *schedule, program *p);
void program_finish(program *p);

/* The stream that requests of a role are acquired on. */
int program_acquire_stream(uint32_t role);

/* ---- patterns: bytes computed from a seed and an offset, so that a write by another request is detected ---- */

/* Seed of the content of `request` in an interval of an iteration; `run` is the seed of the run. */
uint64_t pattern_seed(uint64_t run, uint32_t request, uint64_t iteration, uint32_t interval);

/* Seed of the rest of a pattern from `offset` (a multiple of 8) on, for memory that is written in pieces. */
uint64_t pattern_seed_at(uint64_t seed, uint64_t offset);

/* `memory` may have any alignment and size. */
void pattern_fill(void *memory, uint64_t bytes, uint64_t seed);

typedef struct pattern_difference {
    uint64_t offset;
    uint8_t expected, found;
} pattern_difference;

/* true: all bytes match the pattern; else *difference is the first mismatch. */
bool pattern_check(const void *memory, uint64_t bytes, uint64_t seed, pattern_difference *difference);

/* Hash of the bytes and their positions. The hash of a whole is the sum of the hashes of its pieces, in any order. */
uint64_t pattern_digest(const void *memory, uint64_t bytes, uint64_t seed);

/* ---- the driver -------------------------------------------------------------------------------------------------- */

/* For each bucket, acquires, fills on one stream, checks on the next, and releases right after enqueueing the last
 * check. The host waits for the device only to stay within a window of steps, so a wait that the pool omits shows up
 * as wrong bytes. Prints nothing. */

/* Steps that the host may run ahead of the streams: enough to expose ordering errors, few enough to report progress
 * and to bound the memory of work in flight. */
#define MAX_STEPS_AHEAD 32

/* Work that is captured into graphs and replayed. DRIVER_GRAPHS_ITERATION: a whole iteration in one graph.
 * DRIVER_GRAPHS_UNITS: for about half of the units, one graph for each step: acquire, fill, check and release of the
 * buckets released in it. The work of other units is enqueued around these graphs. */
typedef enum driver_graphs { DRIVER_GRAPHS_OFF, DRIVER_GRAPHS_ITERATION, DRIVER_GRAPHS_UNITS } driver_graphs;

/* Called by the host between steps with the number of finished steps of all iterations. false: stop as soon as possible. */
typedef bool driver_progress(void *user, uint64_t steps_done);

typedef struct driver_config {
    bp_device *device;
    bp_pool *pool; /* its plan is of these buckets and gives the bytes to fill */
    const bp_buckets *buckets;
    const bp_schedule *schedule;
    uint64_t seed;             /* of the patterns */
    bool has_memory;           /* false: nothing is filled or checked */
    uint32_t steps_ahead;      /* 1 to MAX_STEPS_AHEAD */
    bool promises;             /* promise the pool the acquire stream of each request */
    driver_graphs graphs;      /* requires a device with graphs and a plan with stable addresses */
    uint32_t max_pause_us;     /* longest random pause before a piece of a stream's work */
    uint64_t piece_bytes;      /* staged at once if the host cannot reach device memory; 0: 4 MiB */
    driver_progress *progress; /* may be NULL */
    void *user;
} driver_config;

typedef struct driver_position {
    uint64_t iteration;
    uint32_t step; /* of the schedule */
} driver_position;

/* The first failed check, in the order of the host. */
typedef struct driver_corruption {
    driver_position at;
    uint32_t request;
    pattern_difference difference;
} driver_corruption;

typedef struct driver_result {
    uint64_t iterations; /* finished */
    uint64_t checked, checked_bytes, filled_bytes;
    uint64_t digest;           /* of all checked bytes and their seeds, in any order */
    uint64_t graphs, launches; /* captured and replayed */
    uint64_t replayed;         /* iterations with graphs */
    uint64_t corrupted;        /* checks that failed */
    driver_corruption first;   /* failed check */
    driver_position position;  /* of the host: place of a failed call */
    uint64_t calls, call_ns;   /* acquires, uses and releases by the host, and their time */
    uint64_t wall_ns;          /* of iterations, until the device finished */
} driver_result;

typedef struct driver driver;

/* Creates the streams that the schedule uses (all-gather, compute, reduce-scatter, outer all-reduce). Destroy the
 * pool first, then the driver, then the device. Errors: BP_ERR_NO_HOST_MEMORY, those of device and pool. */
bp_status driver_create(const driver_config *config, driver **created);
void driver_destroy(driver **destroyed);

/* Acquires and fills the requests that are live during the whole run. Call once, before the first iteration. */
bp_status driver_begin(driver *d);
/* Enqueues one iteration; `eager`: without graphs. The first iteration that is not eager captures the graphs. Pool
 * steps (bp_pool_set_step) count the steps of all iterations from 0. Errors: those of pool and device; the result
 * has the position. Streams may still be busy then. */
bp_status driver_iterate(driver *d, bool eager);
/* After a successful run: waits for all work, then releases the requests of driver_begin. Errors: those of the
 * device, BP_ERR_DEVICE (a check did not run). */
bp_status driver_end(driver *d);
/* Waits for all work, also after a failure. */
void driver_drain(driver *d);

/* true: `progress` returned false. */
bool driver_stopped(const driver *d);
/* Call after driver_end or driver_drain. */
void driver_result_get(const driver *d, driver_result *result);
/* true: a check failed so far. May be called during the run. */
bool driver_is_corrupted(driver *d);
/* Entries of a trace of one iteration: acquires, uses and releases. */
size_t driver_trace_entries(const driver *d);
const program *driver_program(const driver *d);

#endif
