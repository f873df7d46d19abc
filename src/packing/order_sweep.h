/* The order sweep: exact for narrow conflict graphs, however long. */
#ifndef BP_PACKING_ORDER_SWEEP_H
#define BP_PACKING_ORDER_SWEEP_H

#include "packing/order.h"
#include "packing/problem.h"

#define BP_SWEEP_WIDTH 16u /* wider graphs are not swept */

typedef struct bp_sweep_result {
    bool found;      /* a placement within the capacity: `offsets` are written */
    bool impossible; /* proven that there is none */
    uint64_t proven; /* nothing takes less; 0 unless impossible */
} bp_sweep_result;

/* Looks for a placement within `capacity`, keeping at most `most_states` states at a time; with fewer it may miss one, and then
 * proves nothing. */
bp_status bp_sweep(const bp_problem *problem, const bp_order *order, uint64_t capacity, size_t most_states,
                   bp_work *work, uint64_t *offsets, bp_sweep_result *result);

#endif
