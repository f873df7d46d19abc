/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of bp_steps_init: the allocations as tokens, live bytes, and the three ways to find steps. */
#ifndef BP_STEPS_STEP_FINDER_H
#define BP_STEPS_STEP_FINDER_H

#include "planner/steps/stack_places.h"
#include "planner/steps/steps.h"

typedef struct bp_step_finder {
    const bp_trace *trace;
    const bp_allocations *allocations;
    const bp_allocation *made; /* those that the trace has the begin of */
    size_t count;
    uint64_t *tokens; /* by allocation: size and stream */
    uint32_t *ends;   /* bp_allocations_ends */
    uint64_t *live;   /* rounded bytes before each allocation, and at the end */
    const bp_stack_places *places;
    bp_steps *steps;
} bp_step_finder;

/* Mixes the bits of a value (finalizer of splitmix64, Steele and others 2014). */
static inline uint64_t bp_step_mix(uint64_t value)
{
    value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9u;
    value = (value ^ value >> 27) * 0x94d049bb133111ebu;
    return value ^ value >> 31;
}

/* True if two steps are of one kind: nine of ten of the longer one's allocations agree. `orders`: room for the
 * allocations of `step`. */
bool bp_steps_are_alike(const bp_step_finder *f, const bp_trace_step *step, const bp_trace_step *reference,
                        uint32_t *orders);

/* Aligns a step with a reference step: orders of its allocations in the reference, or BP_TRACE_NONE. Returns how many
 * have one. O(n + d^2) for d <= 2048 differences. */
size_t bp_steps_align(const bp_step_finder *f, const bp_trace_step *step, const bp_trace_step *reference,
                      uint32_t *orders);

/* Appends the steps between cuts, which are allocations that do not decrease, and measures them. `steps`: room for
 * count - 1. Returns how many. */
size_t bp_steps_between(const bp_step_finder *f, const size_t *cuts, size_t count, bp_trace_step *steps);

/* The ends of optimizers: base->steps gets them. Errors: BP_ERR_NO_HOST_MEMORY. */
bp_status bp_steps_find_optimizer_ends(const bp_step_finder *base);

/* Cuts at the annotations of the trace, or at its marks. `cuts`: room for one more than there are annotations and marks,
 * and for two. Sets *count to 0 if the trace has no marks of steps. Errors: BP_ERR_NO_HOST_MEMORY. */
bp_status bp_steps_cut_at_marks(const bp_step_finder *f, size_t *cuts, size_t *count);

/* Finds steps that repeat without marks: base->steps gets them, or stays empty. Errors: BP_ERR_NO_HOST_MEMORY. */
bp_status bp_steps_find_period(const bp_step_finder *base);

#endif
