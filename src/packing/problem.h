/* A packing instance as the solvers see it: items that take space, their neighbours in the conflict graph, and cliques ("sections")
 * that cover every conflict. A section of an instance with intervals only is what is live at one time. */
#ifndef BP_PACKING_PROBLEM_H
#define BP_PACKING_PROBLEM_H

#include "packing/instance.h"
#include "packing/lists.h"

#define BP_NO_ITEM UINT32_MAX

typedef struct bp_problem {
    uint32_t count; /* items, in the order in which they are first live */
    uint64_t *sizes;
    uint32_t *origin;     /* number of the item in what this was made from */
    bp_lists sections;    /* items of each, sorted; in the order of time, then what added conflicts need */
    bp_lists memberships; /* sections of each item, sorted */
    bp_lists neighbours;  /* of each item, sorted */
    uint64_t bound;       /* the largest section */
    uint32_t bound_section;
} bp_problem;

/* Errors: BP_ERR_OVERFLOW (the sum of all sizes does not fit 64 bits), BP_ERR_UNSUPPORTED (more conflicts than are worth
 * searching), BP_ERR_NO_HOST_MEMORY. */
bp_status bp_problem_init(const bp_packing *packing, bp_problem *problem);
void bp_problem_finish(bp_problem *problem);

/* The problem of some of the items, which are in increasing order. A placement of all has one of these in it, so what is proven of the
 * smaller problem holds for the larger. `number_of`, by item of the whole, is BP_NO_ITEM everywhere before and after: many small subsets
 * of a large problem share it, as each would take longer to clear it than to be made. */
bp_status bp_problem_subset(const bp_problem *problem, const uint32_t *items, uint32_t count, uint32_t *number_of,
                            bp_problem *subset);

/* The parts of the problem that no conflict joins, in the order of their first items. The caller finishes each and frees the array. */
bp_status bp_problem_split(const bp_problem *problem, bp_problem **parts, uint32_t *count);

/* Items with the same conflicts that conflict with each other become one block: `blocks` has the blocks, block_of[i] says which one
 * item i is in, inner[i] where in it. A placement of the blocks is one of the items. */
bp_status bp_problem_merge(const bp_problem *problem, bp_problem *blocks, uint32_t *block_of, uint64_t *inner);

/* The largest end of an item. */
uint64_t bp_problem_height(const bp_problem *problem, const uint64_t *offsets);

#endif
