/* The methods of packing one problem, and their rounds. */
#ifndef BP_PACKING_SOLVE_H
#define BP_PACKING_SOLVE_H

#include "packing/problem.h"

/* An answer of methods that decide one capacity; neither: the work ended. */
typedef struct bp_verdict {
    bool found;      /* `offsets` are a placement within the capacity */
    bool impossible; /* proven that there is none */
    uint64_t proven; /* nothing takes less; 0 unless impossible */
} bp_verdict;

/* First fit in a few good orders, then again and again with what ended highest moved forward in the order ("squeaky wheel": Joslin
 * and Clements 1999), until `target` is reached or the work ends. At least one order is tried. *height is the best height found. */
bp_status bp_first_fit(const bp_problem *problem, uint64_t target, bp_work *work, uint64_t *offsets, uint64_t *height);

/* ---- branch and bound -------------------------------------------------------------------------------------------------- */

/* Exact search for a placement within a capacity, for arbitrary conflicts. Which items are tried first decides how long it takes, by
 * orders of magnitude, and no order is good for all instances: the search begins again and again, with other orders and then with
 * orders shaken at random, with growing shares of the work. */

#define BP_SEARCH_ITEMS 4096 /* larger problems are not searched: paths are as deep as there are items */
#define BP_NOT_FIXED UINT64_MAX

/* Looks for offsets with which everything ends at or below `capacity`, until it has an answer or the work ends.
 * `fixed`: by item, the only offset that it can have, or BP_NOT_FIXED; NULL: all may lie anywhere. A search is made of
 * attempts; another `series` has others, so that asking again is not in vain. */
bp_status bp_search(const bp_problem *problem, uint64_t capacity, const uint64_t *fixed, uint32_t series, bp_work *work,
                    uint64_t *offsets, bp_verdict *verdict);

/* ---- order sweep ------------------------------------------------------------------------------------------------------- */

#define BP_SWEEP_WIDTH 16u /* wider graphs are not swept */

/* Looks for a placement within `capacity`. Exact for narrow conflict graphs, however long; where there are more states
 * than may be kept, it may miss a placement, and then proves nothing. */
bp_status bp_sweep(const bp_problem *problem, const bp_order *order, uint64_t capacity, bp_work *work,
                   uint64_t *offsets, bp_verdict *verdict);

/* ---- search in windows ------------------------------------------------------------------------------------------------- */

typedef struct bp_windows_config {
    uint64_t capacity;
    uint32_t ahead;  /* items that a window has at least */
    uint64_t share;  /* work of one window */
    uint32_t series; /* as in bp_search */
} bp_windows_config;

/* Goes along the order. An item stays where it is in `offsets`, unless that is above the capacity or in the way of what
 * was placed before it (BP_NOT_FIXED is above). Else it is searched for a place together with the next few, while what
 * was placed before stays; failing that, together with more and more of it. For long problems, which are hard in a few
 * places. */
bp_status bp_windows(const bp_problem *problem, const bp_order *order, const bp_windows_config *config, bp_work *work,
                     uint64_t *offsets, bp_verdict *verdict);

/* ---- rounds of all ----------------------------------------------------------------------------------------------------- */

typedef struct bp_solution {
    uint64_t *offsets;
    bool placed;        /* there are offsets */
    uint64_t height;    /* UINT64_MAX without */
    uint64_t proven;    /* no placement is lower */
    const char *method; /* what found the offsets; a static string */
} bp_solution;

/* Improves the solution until its height is at most `target` (lower is of no use), or proven to be the least, or the work ends. Stops
 * early when more than `ceiling` is proven. `solution` may come with a placement. */
bp_status bp_solve(const bp_problem *problem, uint64_t target, uint64_t ceiling, bp_work *work, bp_solution *solution);

#endif
