/* Exact search for a placement within a capacity, for arbitrary conflicts. Which items are tried first decides how long it takes, by
 * orders of magnitude, and no order is good for all instances: the search begins again and again, with other orders and then with
 * orders shaken at random, with growing shares of the work. */
#ifndef BP_PACKING_BRANCH_AND_BOUND_H
#define BP_PACKING_BRANCH_AND_BOUND_H

#include "packing/problem.h"

typedef enum bp_answer { BP_ANSWER_FOUND, BP_ANSWER_IMPOSSIBLE, BP_ANSWER_NONE } bp_answer;

#define BP_SEARCH_ITEMS 4096 /* larger problems are not searched: paths are as deep as there are items */

typedef struct bp_searcher bp_searcher;

/* A search for offsets with which everything ends at or below `capacity`. `fixed`: by item, the only offset that it can have, or
 * BP_NOT_FIXED (placing.h); NULL: all may lie anywhere. A search is made of attempts; another `series` has others, so that asking
 * again is not in vain. Keeps both pointers. */
bp_status bp_searcher_create(const bp_problem *problem, uint64_t capacity, const uint64_t *fixed, uint32_t series,
                             uint64_t *offsets, bp_searcher **searcher);
void bp_searcher_destroy(bp_searcher **searcher);

/* Goes on with the search until it ends or the work does (BP_ANSWER_NONE). `offsets` are the answer when there is one. */
bp_status bp_searcher_run(bp_searcher *searcher, bp_work *work, bp_answer *answer);

#endif
