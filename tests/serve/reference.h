/* SPDX-License-Identifier: Apache-2.0 */
/* Reference model of the server of a step plan: a list of live ranges, one of earlier uses, and a vector clock for each stream. It makes
 * the calls, and compares each answer with invariants 1 to 5 of step_serve.h and with its own statistics. Without cmocka, for fuzzers:
 * reference_wrong has the first violation. */
#ifndef BP_TEST_SERVE_REFERENCE_H
#define BP_TEST_SERVE_REFERENCE_H

#include <bucketpool/step_serve.h>

#include <stdbool.h>

typedef struct reference_range {
    uint64_t offset, bytes; /* bytes: as taken */
    uint64_t users;         /* a bit for each stream */
    bp_step_block block;    /* as found when it was handed out */
} reference_range;

/* Freed memory that a stream used, until its clock was `time`. */
typedef struct reference_use {
    uint64_t begin, end, time;
    uint32_t stream;
} reference_use;

typedef struct reference_clock {
    uint64_t times[BP_STEP_STREAMS]; /* work of each stream that is ordered before */
} reference_clock;

/* An event that was recorded. */
typedef struct reference_event {
    uint64_t point;
    reference_clock clock;
} reference_event;

typedef struct reference_stream {
    reference_clock clock;
    reference_event *events;
    size_t event_count, capacity;
} reference_stream;

typedef struct reference {
    bp_step_server *server;
    uint64_t slab_bytes;
    bool has_callbacks, is_paused;
    uint64_t captured; /* streams whose events are refused, a bit each */
    /* Refuses more of them; NULL: none. */
    bool (*refuses)(void *context);
    void *context;

    reference_range *live; /* by offset */
    size_t live_count, live_capacity;
    reference_use *uses;
    size_t use_count, use_capacity;
    reference_stream streams[BP_STEP_STREAMS];

    bp_step_statistics expected; /* without steps, kinds and resyncs */
    uint64_t waits[BP_STEP_STREAMS][BP_STEP_STREAMS];
    uint64_t changes; /* other streams that had used memory, summed over the allocations that got it */
    uint64_t refused; /* by callbacks */
    char wrong[256];  /* the first violation, or "" */
} reference;

/* NULL if a server cannot be created. */
reference *reference_create(const bp_step_plan *plan, bool has_callbacks);
/* The server may have live memory. */
void reference_destroy(reference *r);

/* As the functions of step_serve.h. */
bp_step_outcome reference_allocate(reference *r, uint64_t bytes, uint32_t stream, uint64_t *offset);
bp_step_outcome reference_allocate_anywhere(reference *r, uint64_t bytes, uint32_t stream, uint64_t *offset);
/* Also of an offset where nothing begins. */
void reference_free(reference *r, uint64_t offset);
void reference_use_on(reference *r, uint64_t offset, uint32_t stream);
void reference_mark(reference *r);
void reference_pause(reference *r, bool paused);
void reference_replace(reference *r, const bp_step_plan *plan);

/* Compares all that the server shows. */
void reference_check(reference *r);
/* The first violation, or NULL. */
const char *reference_wrong(const reference *r);

#endif
