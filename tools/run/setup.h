/* What a run needs: the plan, at the scale that it is driven at, and a pool made of it. */
#ifndef TOOLS_RUN_SETUP_H
#define TOOLS_RUN_SETUP_H

#include "run/driver.h"
#include "run/options.h"
#include "run/plan.h"
#include "shared/progress.h"

/* ---- snapshots of steps ------------------------------------------------------------------------------------------ */

/* All zero: there is no profile, and nothing happens. */
typedef struct run_profile {
    bp_profile *profile;
    const char *directory;
    char failure[512]; /* what kept a file from being written; "" so far */
} run_profile;

/* Where --profile was given. BP_OK, or what bp_profile_create says. */
bp_status run_profile_init(const run_options *options, bp_pool *pool, const bp_plan *plan, run_profile *profile);
/* Before the pool goes. */
void run_profile_finish(run_profile *profile);

/* ---- setting up -------------------------------------------------------------------------------------------------- */

typedef struct run_setup {
    run_plan plan;
    bp_device *device;
    char device_model[64]; /* of a GPU; "" otherwise */
    bp_pool *pool;
    driver *driver;
    uint32_t steps_ahead;
    progress progress;
    run_profile profile;
    uint64_t messages; /* of the pool */
} run_setup;

/* Returns EXIT_GO_ON, or the exit code after a message. Call run_setup_finish either way. The driver calls `go_on`
 * with the setup between steps. */
int run_setup_init(const run_options *options, const analysis *a, driver_progress *go_on, run_setup *setup);
void run_setup_finish(run_setup *setup);

/* The exit code that a status of pool or device stands for. */
int run_exit_code(bp_status status);
/* Prints the detail, with what may help, and returns the exit code. */
int run_fail(const run_options *options, bp_status status, const char *detail);

#endif
