/* SPDX-License-Identifier: Apache-2.0 */
/* Random programs whose steps repeat, their plans, and runs of them through the reference model (reference.h), exact or with deviations.
 * Random numbers are those of support/scenarios.h. */
#ifndef BP_TEST_SERVE_PROGRAMS_H
#define BP_TEST_SERVE_PROGRAMS_H

#include "reference.h"

#define PROGRAM_KINDS 4

/* ---- programs ------------------------------------------------------------------------------------------------------ */

typedef struct step_op {
    bp_step_action action;
    uint32_t item; /* of the kind; of marks: 0 */
} step_op;

typedef struct step_script {
    step_op *ops;
    size_t op_count;
    bp_step_plan_item *items;
    size_t item_count;
    /* By item: it is freed before this op of the next step. 0: in its step. */
    uint32_t *carried;
    uint32_t marks[3];
    size_t mark_count;
} step_script;

typedef struct program {
    step_script kinds[PROGRAM_KINDS];
    size_t kind_count;
    bool is_first;                         /* kind 0 comes once, and has no mark at its beginning */
    uint32_t stream_count, default_stream; /* default_stream: may be stream_count, for none */
    uint64_t slab_bytes;
} program;

typedef struct program_options {
    uint32_t items, kinds, streams;
    uint32_t sizes; /* different sizes */
    bool without_marks;
    bool has_large; /* blocks that cover the addresses of many others */
} program_options;

/* Kinds have a common beginning, and then an allocation that no other kind has. Live ranges that are carried and those of all kinds are
 * packed into one slab. */
program *program_create(const program_options *options);
void program_destroy(program **p);

/* A plan with the program's items; `is_wrong`: at random offsets, in other orders, with other streams and marks. */
bp_step_plan *program_plan(const program *p, bool is_wrong);

/* ---- runs ---------------------------------------------------------------------------------------------------------- */

/* Chances of each allocation, free, mark or op in 1000. */
typedef struct run_deviations {
    uint32_t omits, inserts, swaps, frees_late, drops_marks, adds_marks, leaves; /* leaves: the step ends there */
    uint32_t uses, pauses, anywhere, captures, mistakes;
} run_deviations;

typedef struct run_op {
    uint32_t action, key, stream;
    uint64_t bytes;
    uint64_t planned; /* offset */
    uint32_t carried; /* freed before this op of the next step; 0: by an op */
    uint32_t delay;   /* freed so many ops later; 0: by an op */
} run_op;

/* An allocation that is live, in the slab or elsewhere. */
typedef struct run_live {
    uint64_t offset, due;
    uint32_t key, step, carried;
    bool is_served;
} run_live;

typedef struct runner {
    const program *program;
    reference *r;
    run_deviations deviations;
    uint32_t streams[BP_STEP_PLAN_STREAMS]; /* of the caller, by stream of the program */
    run_op *ops;
    size_t op_count, op_capacity, at;
    run_live *live;
    size_t live_count, live_capacity;
    uint32_t step;
    uint64_t tick, planned, served, missed; /* missed: planned, and not served at its address */
} runner;

void runner_init(runner *run, const program *p, reference *r, const run_deviations *deviations);
void runner_finish(runner *run);
/* Prepares the next step, of a random kind. */
void runner_begin(runner *run);
/* Runs the next op. False: the step has ended. */
bool runner_advance(runner *run);
/* A whole step. */
void runner_step(runner *run);
/* Frees everything. */
void runner_free_all(runner *run);

#endif
