/* A schedule as a list of things to do in each of its steps, in the order in which a host does them: what a driver walks through.
 * docs/schedules.md says what the roles are; which streams they take is the table in program.c. */
#ifndef TOOLS_RUN_PROGRAM_H
#define TOOLS_RUN_PROGRAM_H

#include <bucketpool/bucketpool.h>

#include <stdbool.h>

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

#endif
