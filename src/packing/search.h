/* Exact search for a placement within a capacity, for arbitrary conflicts. */
#ifndef BP_PACKING_SEARCH_H
#define BP_PACKING_SEARCH_H

#include "packing/problem.h"
#include "packing/work.h"

typedef enum bp_answer { BP_ANSWER_FOUND, BP_ANSWER_IMPOSSIBLE, BP_ANSWER_NONE } bp_answer;

#define BP_SEARCH_ITEMS 4096 /* larger problems are not searched: paths are as deep as there are items */

/* Looks for offsets with which everything ends at or below `capacity`. BP_ANSWER_NONE: the work ended first. A search is made of
 * attempts; another `series` has others, so that asking again is not in vain. */
bp_status bp_search(const bp_problem *problem, uint64_t capacity, uint32_t series, bp_work *work, uint64_t *offsets,
                    bp_answer *answer);

#endif
