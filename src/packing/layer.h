/* The states of the order sweep after one of its steps. */
#ifndef BP_PACKING_LAYER_H
#define BP_PACKING_LAYER_H

#include "packing/work.h"

#include <bucketpool/status.h>

#include <stddef.h>

/* How a state came about: the state of the step before, and which of its items the new one was put above, as bits. */
typedef struct bp_origin {
    uint32_t parent, below;
} bp_origin;

/* A state of w items is a matrix with w + 1 rows and columns: [0][1 + i] is how far item i begins above the floor at least,
 * [1 + i][0] how far its beginning is below the ceiling at least, [1 + i][1 + j] how far item j begins above item i; 0 where nothing
 * is said. */
typedef struct bp_layer {
    uint64_t *cells; /* the matrices, one after the other */
    bp_origin *origins;
    uint64_t *ranks; /* smaller is better: which states are kept when there are too many */
    uint32_t *next_of_hash;
    size_t count;
    uint32_t side; /* rows of a matrix */
    size_t cell_capacity, state_capacity;
    uint32_t *table; /* by hash: a state, linked through next_of_hash */
    size_t table_size;
} bp_layer;

/* Empties the layer for matrices of `side` rows. */
void bp_layer_clear(bp_layer *layer, uint32_t side);
void bp_layer_finish(bp_layer *layer);

/* Room for the matrix of one more state, which bp_layer_add then adds or forgets. */
bp_status bp_layer_room(bp_layer *layer, uint64_t **matrix);

/* Adds the state in the room, unless another of the same order is nowhere tighter. It replaces one that is nowhere looser. */
bp_status bp_layer_add(bp_layer *layer, uint64_t rank, bp_origin origin, bp_work *work);

/* Keeps the `most` states of the best ranks; what is equally good in the order in which it came. */
bp_status bp_layer_truncate(bp_layer *layer, size_t most);

#endif
