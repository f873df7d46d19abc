/* Snapshots and traces of some training steps of a run. */
#ifndef TOOLS_RUN_PROFILE_H
#define TOOLS_RUN_PROFILE_H

#include "run_options.h"

/* All zero: there is no profile, and nothing happens. */
typedef struct run_profile {
    bp_profile *profile;
    const char *directory;
    char failure[512]; /* what kept a file from being written; "" so far */
} run_profile;

/* Where --profile was given. BP_OK, or what bp_profile_create says. */
bp_status run_profile_init(const run_options *options, bp_pool *pool, const bp_plan *plan, run_profile *profile);
/* A training step begins; after the last one. The run goes on whatever happens. */
void run_profile_step(run_profile *profile, uint64_t step);
void run_profile_end(run_profile *profile);
/* EXIT_GO_ON, or the exit code after a message about what could not be written. */
int run_profile_judge(const run_profile *profile);
/* Before the pool goes. */
void run_profile_finish(run_profile *profile);

#endif
