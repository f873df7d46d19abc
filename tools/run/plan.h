/* The plan of a run: made here or read from a file, and divided by the scale. */
#ifndef TOOLS_RUN_PLAN_H
#define TOOLS_RUN_PLAN_H

#include <bucketpool/bucketpool.h>

#include "plan/analysis.h"
#include "run/options.h"

/* ---- scaling ----------------------------------------------------------------------------------------------------- */

#define MOST_SCALE (1u << 30)

/* ---- the plan of a run ------------------------------------------------------------------------------------------- */

typedef struct run_plan {
    bp_plan *full;
    bp_plan *scaled; /* NULL when the scale is 1 */
    uint64_t scale;
} run_plan;

/* Returns EXIT_GO_ON, or the exit code after a message: also when there is no plan, or it does not hold for the model. Call
 * run_plan_finish either way. */
int run_plan_init(const run_options *options, const analysis *a, run_plan *plan);
void run_plan_finish(run_plan *plan);

/* The one that the pool is made of. */
const bp_plan *run_plan_driven(const run_plan *plan);

#endif
