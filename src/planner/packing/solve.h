/* SPDX-License-Identifier: Apache-2.0 */
/* The packing methods for one problem, and the rounds that combine them. */
#ifndef BP_PACKING_SOLVE_H
#define BP_PACKING_SOLVE_H

#include "planner/packing/problem.h"

/* Result of a decision method; neither found nor impossible: out of work. */
typedef struct bp_verdict {
    bool found;      /* `offsets` are a placement within the capacity */
    bool impossible; /* proven that there is none */
    uint64_t proven; /* proven lower bound; 0 unless impossible */
} bp_verdict;

/* First fit in a few orders, then squeaky-wheel optimization (Joslin and Clements 1999): items that end highest move forward in the
 * order, until `target` is reached, a share of the work is spent, or the work ends. At least one order is completed unless the work ends
 * in it. *height is the best height found; UINT64_MAX: none, offsets undefined. */
bp_status bp_first_fit(const bp_timeline *timeline, const bp_item_index *index, uint64_t target, uint64_t share,
                       bp_work *work, uint64_t *offsets, uint64_t *height);

/* ---- without a conflict graph -------------------------------------------------------------------------------------- */

/* The priority passes of best fit on a skyline, for any size of instance. */
typedef struct bp_skyline bp_skyline;

/* `timeline` and `index` outlive the skyline. */
bp_status bp_skyline_create(const bp_timeline *timeline, const bp_item_index *index, bp_skyline **skyline);
void bp_skyline_destroy(bp_skyline **skyline);

/* Runs the next pass of a sequence that depends only on the instance and on the earlier improvements. A pass that stays below `limit`
 * writes the offsets and returns true; others are cut off, as at the end of the work. With UINT64_MAX a pass is never cut off. */
bool bp_skyline_pass(bp_skyline *skyline, uint64_t limit, bp_work *work, uint64_t *offsets);

/* Online best fit in the order of time, an item's gaps filled. *height: UINT64_MAX, offsets undefined: not below `limit`, the work is over,
 * or there are added conflicts. */
bp_status bp_online_fit(const bp_timeline *timeline, uint64_t limit, bp_work *work, uint64_t *offsets,
                        uint64_t *height);

/* ---- branch and bound -------------------------------------------------------------------------------------------------- */

/* Exact search for a placement within a capacity, for arbitrary conflicts. The order in which items are tried changes the run
 * time by orders of magnitude, and no order is good for all instances: the search restarts with other orders, then with randomly perturbed
 * ones, and with growing shares of the work. */

#define BP_SEARCH_ITEMS 4096 /* larger problems are not searched: the recursion is as deep as there are items */
#define BP_NOT_FIXED UINT64_MAX

/* Searches for a placement within `capacity` until it is decided or the work ends. `fixed`: by item, its offset, or BP_NOT_FIXED; NULL:
 * none is fixed. `series` seeds the perturbations, so that a repeated search tries other orders. */
bp_status bp_search(const bp_problem *problem, uint64_t capacity, const uint64_t *fixed, uint32_t series, bp_work *work,
                    uint64_t *offsets, bp_verdict *verdict);

/* ---- order sweep ------------------------------------------------------------------------------------------------------- */

#define BP_SWEEP_WIDTH 16u /* wider conflict graphs are not swept */

/* Searches for a placement within `capacity` until it is decided, the work ends, or the memory does not suffice. With a `dive`, an amount of
 * work, it is likely to find one within it; 0 takes less work, and more memory, to exclude all. */
bp_status bp_sweep(const bp_problem *problem, const bp_order *order, uint64_t capacity, uint64_t dive, bp_work *work,
                   uint64_t *offsets, bp_verdict *verdict);

/* ---- search in windows ------------------------------------------------------------------------------------------------- */

typedef struct bp_windows_config {
    uint64_t capacity;
    uint32_t ahead;  /* least number of items in a window */
    uint64_t share;  /* work of one window */
    uint32_t series; /* as in bp_search */
} bp_windows_config;

/* Large neighbourhood search along the order. An item keeps its offset from `offsets` if it is within the capacity and conflicts with no
 * earlier item (BP_NOT_FIXED is never within). Otherwise the item and the next few are placed by bp_search with the earlier items fixed;
 * if that fails, more and more of the earlier items are freed. For long problems that are hard in a few places. */
bp_status bp_windows(const bp_problem *problem, const bp_order *order, const bp_windows_config *config, bp_work *work,
                     uint64_t *offsets, bp_verdict *verdict);

/* ---- rounds of all ----------------------------------------------------------------------------------------------------- */

typedef struct bp_solution {
    uint64_t *offsets;
    bool placed;        /* offsets are valid */
    uint64_t height;    /* UINT64_MAX without */
    uint64_t bound;     /* the largest sum of sizes that a known clique has */
    uint64_t proven;    /* no placement is lower */
    uint64_t others;    /* height of the components solved before: the total is at least that */
    const char *method; /* name of the method that found the offsets; a static string */
} bp_solution;

/* Improves the solution until its height is at most `target` or proven minimal, or the work ends. Stops early if the proven bound exceeds
 * `ceiling`. `solution` may start with a placement. Instances with more than BP_PROBLEM_CONFLICTS conflicts are solved without a conflict
 * graph. */
bp_status bp_solve(const bp_timeline *timeline, uint64_t target, uint64_t ceiling, bp_work *work,
                   bp_solution *solution);

#endif
