/* The layers of packing for one problem: structure, exact methods, improvement. */
#ifndef BP_PACKING_SOLVE_H
#define BP_PACKING_SOLVE_H

#include "packing/problem.h"

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
