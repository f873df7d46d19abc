/* A packing instance as the solvers see it: items that take space, their neighbours in the conflict graph, and cliques ("sections")
 * that cover every conflict. A section of an instance with intervals only is what is live at one time. */
#ifndef BP_PACKING_PROBLEM_H
#define BP_PACKING_PROBLEM_H

#include <stdbool.h>

#include "packing/instance.h"

/* Lists of small numbers, one list after the other: list i is entries[first[i]] .. entries[first[i + 1]]. */
typedef struct bp_lists {
    uint32_t *first, *entries;
    uint32_t count;
} bp_lists;

void bp_lists_finish(bp_lists *lists);
/* The lists the other way round: for each entry below `entry_limit`, which lists have it, in increasing order. */
bp_status bp_lists_invert(const bp_lists *lists, uint32_t entry_limit, bp_lists *inverse);

typedef struct bp_problem {
    uint32_t count; /* items, in the order in which they are first live */
    uint64_t *sizes;
    uint32_t *origin;   /* number of the item in what this was made from */
    bp_lists sections;  /* items of each, sorted; in the order of time, then what added conflicts need */
    bp_lists memberships; /* sections of each item, sorted */
    bp_lists neighbours;  /* of each item, sorted */
    uint64_t bound;       /* the largest section */
    uint32_t bound_section;
} bp_problem;

/* Errors: BP_ERR_OVERFLOW (a section's sum, or the sum of all sizes, does not fit 64 bits), BP_ERR_UNSUPPORTED (more conflicts than
 * are worth searching), BP_ERR_NO_HOST_MEMORY. */
bp_status bp_problem_init(const bp_packing *packing, bp_problem *problem);
void bp_problem_finish(bp_problem *problem);

/* Items with the same conflicts that conflict with each other become one block: `blocks` has the blocks, block_of[i] says which
 * one item i is in, inner[i] where in it. A placement of the blocks is one of the items. */
bp_status bp_problem_merge(const bp_problem *problem, bp_problem *blocks, uint32_t *block_of, uint64_t *inner);

/* The largest end of an item. */
uint64_t bp_problem_height(const bp_problem *problem, const uint64_t *offsets);

#endif
