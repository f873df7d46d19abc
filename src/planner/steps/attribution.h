/* SPDX-License-Identifier: Apache-2.0 */
/* Purposes of allocations: the memory of parameters, gradients, the optimizer, activations and collectives. */
#ifndef BP_STEPS_ATTRIBUTION_H
#define BP_STEPS_ATTRIBUTION_H

#include "planner/steps/stack_places.h"
#include "planner/steps/steps.h"

typedef struct bp_attribution {
    uint8_t *kinds;  /* bp_memory_kind, by allocation */
    uint8_t *phases; /* bp_trace_phase, by allocation: when it was made */
} bp_attribution;

/* Kinds that the recording names are taken. Others are derived, from the phase of the allocation and from its live range:
 *  - setup: parameters if it outlives the model's construction, else workspace
 *  - forward, recompute: activations
 *  - backward: gradients if it outlives the backward pass or is freed outside of it, else activations (their gradients)
 *  - optimizer: its state if it outlives the run of the optimizer, else workspace
 *  - buffers of collectives, parameters that FSDP gathered, and workspaces of kernels by their frames
 * O(events). The caller owns
 * the result: bp_attribution_finish. Errors: BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_attribution_init(const bp_trace *trace, const bp_allocations *allocations,
                                     const bp_stack_places *places, bp_attribution *attribution);
BP_API void bp_attribution_finish(bp_attribution *attribution);

/* "optimizer state", "live before the recording", "unknown". */
BP_API const char *bp_memory_kind_name(bp_memory_kind kind);

#endif
