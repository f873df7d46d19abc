/* SPDX-License-Identifier: Apache-2.0 */
/* Random training programs as events of bp_step_plan_create. */
#ifndef BP_TEST_STEPS_STEP_PROGRAMS_H
#define BP_TEST_STEPS_STEP_PROGRAMS_H

#include <bucketpool/step_plan.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct step_shape {
    unsigned layers;
    unsigned scale;      /* of activations */
    bool evaluates;      /* a forward pass follows the backward pass */
    bool has_streams;    /* layers are gathered on stream 1, and gradients reduced on stream 2 */
    bool frees_late;     /* gradients are freed behind the next forward pass, not behind the optimizer */
    unsigned optimizers; /* marks of a step */
} step_shape;

typedef struct step_program {
    bp_step_event *events;
    size_t count, capacity, marks;
    uint64_t next_address, random;
    uint64_t gradients[64], sizes[64]; /* live */
    size_t gradient_count;
} step_program;

/* Builds a model, whose parameters stay. */
void program_build(step_program *program, uint64_t seed, unsigned layers);
/* Adds a step; the first makes the optimizer's state. */
void program_step(step_program *program, const step_shape *shape);
void program_finish(step_program *program);

#endif
