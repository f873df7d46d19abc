/* SPDX-License-Identifier: Apache-2.0 */
/* The generator of training schedules: run order of the units, passes over it, and the rules of the two runtimes. */
#ifndef BP_SCHEDULE_TRAINING_H
#define BP_SCHEDULE_TRAINING_H

#include <bucketpool/schedule.h>

#include <stdbool.h>

#include "planner/schedule/schedule.h"

/* One run of a unit: its place in the forward order, and the place of the last unit nested in it, or its own. */
typedef struct bp_unit_run {
    uint32_t place, last;
    uint32_t unit;
} bp_unit_run;

typedef struct bp_run_order {
    bp_unit_run *runs; /* of units with memory, sorted by place */
    size_t count, capacity;
    bool *holds_memory; /* units with at least one bucket that is not empty */
    uint32_t *of_units; /* the lists by unit, one array */
    uint32_t *first_of_unit, *last_of_unit;
    uint32_t *child, *sibling; /* nested units: first child, next sibling */
    uint32_t *newest_run;
    uint32_t *holder;          /* the innermost enclosing unit with memory */
    uint32_t *of_runs;         /* the lists by run, one array */
    uint32_t *next, *previous; /* runs of a unit, first to last and back */
} bp_run_order;

#define BP_NO_RUN UINT32_MAX

/* The root group, if there is one, runs first and encloses all others. Call bp_run_order_finish either way. */
bp_status bp_run_order_init(const bp_buckets *buckets, bp_run_order *order);
void bp_run_order_finish(bp_run_order *order);

/* A pass runs every place of the run order once: forward, backward (last place first) or both at the same time. Prefetch does not cross
 * passes. */
typedef struct bp_axis_pass {
    uint32_t begin, first, end; /* steps: begin of the pass, its first unit, after its last unit */
    uint32_t width;             /* steps per unit */
    bool forward, backward, evaluation;
} bp_axis_pass;

/* A training step of a pipeline with an evaluation after it. */
#define BP_MAX_PASSES 9

typedef struct bp_time_axis {
    bp_axis_pass passes[BP_MAX_PASSES];
    uint32_t count;
    uint32_t places; /* per pass */
} bp_time_axis;

/* Limit against hostile models: 2^24 runs forward and backward. */
#define BP_MAX_STEPS (1u << 25)

/* A unit's prefetch depths. */
typedef struct bp_depth {
    uint32_t forward, backward;
    bool is_override;
} bp_depth;

/* Row-wise: fp8 parameters with a transpose for backward. */
typedef enum bp_liveness {
    BP_LIVE_PARAM,
    BP_LIVE_ROW_WISE,
    BP_LIVE_TRANSPOSE,
    BP_LIVE_GRADIENT,
    BP_LIVE_ALWAYS
} bp_liveness;

/* Events of a backward pass of FSDP2, each a step: the pre-backward of a unit, and its post-backward. */
typedef struct bp_backward_events {
    uint32_t *memory;        /* of the arrays below */
    uint32_t *enter, *leave; /* by run: the event's number */
    uint32_t *turn;          /* by run: its index in `entered` */
    uint32_t *entered;       /* runs in the order of pre-backward */
    uint32_t *reducing;      /* runs with gradients in the order of post-backward */
    uint32_t *reduction;     /* by run: its index in `reducing` */
    uint32_t reducing_count;
    bool gathers_first; /* a step before: the first unit is gathered in its own pre-backward */
} bp_backward_events;

typedef struct bp_generator {
    const bp_buckets *buckets;
    const bp_schedule_config *config;
    bp_schedule *schedule;
    bp_run_order order;
    bp_time_axis axis;
    bp_depth *depths;    /* by unit */
    bool *has_transpose; /* by bucket */
    bp_backward_events events;
} bp_generator;

/* Adds a use on the group's default lanes. */
bp_status bp_generator_add_use(bp_generator *g, const bp_request_group *group, bp_use use);

/* Errors: BP_ERR_UNSUPPORTED (more than BP_MAX_STEPS). */
bp_status bp_generator_check_steps(const bp_generator *g, uint64_t steps);

/* fsdp2.c: the steps of all passes, then the uses of a group in them. */
bp_status bp_fsdp2_check_config(const bp_schedule_config *config);
bp_status bp_fsdp2_add_steps(bp_generator *g);
bp_status bp_fsdp2_add_live(bp_generator *g, const bp_request_group *group, bp_liveness live);

#endif
