/* `bucketpool run`: its options, its plan, what it sets up, and what it reports. */
#ifndef TOOLS_RUN_RUN_H
#define TOOLS_RUN_RUN_H

#include <bucketpool/bucketpool.h>

#include "plan/analysis.h"
#include "plan/options.h"
#include "run/driver.h"
#include "shared/progress.h"

/* The options of `run`: those of planning, and how the plan is driven. */

typedef enum run_device { RUN_HOST, RUN_NULL, RUN_CUDA } run_device;

typedef struct run_options {
    plan_options planning; /* first: its tables set it; of one model, its policies are not used */
    bp_policy policy;
    bool policy_named;
    run_device device;
    int32_t ordinal;  /* of a cuda device */
    uint64_t steps;   /* iterations */
    uint64_t scale;   /* a power of two, 0: picked */
    const char *plan; /* a plan file, NULL: planned here */
    bool unchecked;
    bp_strict strict;
    bool guard, promises, nvtx;
    driver_graphs graphs;
    uint32_t delay_us;
    uint64_t seed;
    const char *trace;
    const char *profile; /* folder of snapshots, NULL: none */
    uint64_t *profile_steps;
    size_t profile_step_count;
    bool json, dump;
} run_options;

/* Reads the arguments after the command's name. Returns EXIT_GO_ON, or the exit code after a message. */
int run_options_parse(int argc, char **argv, run_options *options);
void run_options_finish(run_options *options);

const char *run_graphs_name(const run_options *options);
const char *run_strict_name(const run_options *options);

/* The plan of a run: made here or read from a file, and divided by the scale. */

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

/* ---- snapshots of steps ------------------------------------------------------------------------------------------ */

/* All zero: there is no profile, and nothing happens. */
typedef struct run_profile {
    bp_profile *profile;
    const char *directory;
    char failure[512]; /* what kept a file from being written; "" so far */
} run_profile;

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

/* What a run found, as lines for people and as the document bucketpool.run/1: docs/reference/formats.md describes every member. */

typedef struct run_outcome {
    driver_result result;
    bp_pool_statistics statistics;
    uint64_t sequence_hash, sequence_acquires;
    bp_status status; /* of the call that ended the run, BP_OK: none did */
    char detail[512]; /* of it */
    bool interrupted;
} run_outcome;

/* What ended the run or was wrong, in a sentence; "" when all went well. */
const char *run_failure_text(const run_setup *setup, const analysis *a, const run_outcome *outcome, char text[1024]);

/* Both print to standard output and return EXIT_GO_ON or the exit code after a message. */
int run_report_lines(const run_options *options, const run_setup *setup, const analysis *a, const run_outcome *outcome);
int run_report_json(const run_options *options, const run_setup *setup, const analysis *a, const run_outcome *outcome);

/* What a pool recorded, as a model with an explicit schedule that `bucketpool plan` plans. */

/* A model called `name` with the buckets of the run as they are (the options that made them need not be given again) and the recorded
 * events of the pool's steps first_step to last_step; what is held all the time is live around them. The caller owns the model.
 * Errors: those of bp_pool_trace_to_model and of building models. */
bp_status trace_model(const char *name, const bp_buckets *buckets, const bp_pool *pool, const program *p,
                      uint64_t first_step, uint64_t last_step, bp_model **model);

#endif
