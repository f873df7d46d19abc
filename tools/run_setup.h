/* What a run needs: the plan, at the scale that it is driven at, and a pool made of it with every request bound. */
#ifndef TOOLS_RUN_SETUP_H
#define TOOLS_RUN_SETUP_H

#include "analysis.h"
#include "driver.h"
#include "progress.h"
#include "run_options.h"

typedef struct run_setup {
    bp_plan *plan;   /* at full size */
    bp_plan *scaled; /* what the pool is made of; NULL when the scale is 1 */
    uint64_t scale;
    bp_device *device;
    bp_pool *pool;
    driver *driver;
    uint32_t *ids;   /* by request */
    uint64_t *bytes; /* by request, scaled */
    progress progress;
    uint64_t messages; /* of the pool */
} run_setup;

/* Returns EXIT_GO_ON, or the exit code after a message. Call run_setup_finish either way. The driver calls `go_on`
 * with the setup between steps. */
int run_setup_init(const run_options *options, const analysis *a, driver_progress *go_on, run_setup *setup);
void run_setup_finish(run_setup *setup);

/* The exit code that a status of pool or device stands for. */
int run_exit_code(bp_status status);

#endif
