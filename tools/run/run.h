/* SPDX-License-Identifier: Apache-2.0 */
/* `bucketpool run`: options, plan, setup, report and trace. */
#ifndef TOOLS_RUN_RUN_H
#define TOOLS_RUN_RUN_H

#include <bucketpool/bucketpool.h>

#include "plan/analysis.h"
#include "plan/options.h"
#include "run/driver.h"
#include "shared/progress.h"

typedef enum run_device { RUN_HOST, RUN_NULL, RUN_CUDA } run_device;

typedef struct run_options {
    plan_options planning; /* first, as its tables require; one model, policies are unused */
    bp_policy policy;
    bool policy_named;
    run_device device;
    int32_t ordinal;  /* of a cuda device */
    uint64_t steps;   /* iterations */
    uint64_t scale;   /* a power of two; 0: auto */
    const char *plan; /* a plan file; NULL: plan here */
    bool unchecked;
    bp_strict strict;
    bool guard, promises, nvtx;
    driver_graphs graphs;
    uint32_t delay_us;
    uint64_t seed;
    const char *trace;
    const char *profile; /* folder of snapshots; NULL: none */
    uint64_t *profile_steps;
    size_t profile_step_count;
    uint64_t max_entries; /* events of a snapshot; 0: the default */
    bool json, dump;
} run_options;

/* Reads the arguments after the command's name. Returns EXIT_GO_ON, or the exit code after a message. */
int run_options_parse(int argc, char **argv, run_options *options);
void run_options_finish(run_options *options);

const char *run_graphs_name(const run_options *options);
const char *run_strict_name(const run_options *options);

#define MAX_SCALE (1u << 30)

/* ---- the plan of a run ------------------------------------------------------------------------------------------- */

typedef struct run_plan {
    bp_plan *full;
    bp_plan *scaled; /* NULL when the scale is 1 */
    uint64_t scale;
} run_plan;

/* Makes or reads the plan and checks that it is feasible and valid for the model. Returns EXIT_GO_ON, or the exit
 * code after a message. Call run_plan_finish either way. */
int run_plan_init(const run_options *options, const analysis *a, run_plan *plan);
void run_plan_finish(run_plan *plan);

/* The plan of the pool: the scaled one if there is one. */
const bp_plan *run_plan_driven(const run_plan *plan);

/* ---- snapshots of steps ------------------------------------------------------------------------------------------ */

/* All zero without --profile. */
typedef struct run_profile {
    bp_profile *profile;
    const char *directory;
    char failure[512]; /* first failure; "": none */
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

/* ---- the report: lines, or the document bucketpool.run/1 (docs/reference/formats.md) ---- */

typedef struct run_outcome {
    driver_result result;
    bp_pool_statistics statistics;
    uint64_t sequence_hash, sequence_acquires;
    bp_status status; /* of the call that ended the run; BP_OK: none */
    char detail[512]; /* of `status` */
    bool interrupted;
} run_outcome;

/* Describes the failed call or the first corrupted bucket; "": the run succeeded. Returns `text`. */
const char *run_failure_text(const run_setup *setup, const analysis *a, const run_outcome *outcome, char text[1024]);

/* Both print to standard output and return EXIT_GO_ON or the exit code after a message. */
int run_report_lines(const run_options *options, const run_setup *setup, const analysis *a, const run_outcome *outcome);
int run_report_json(const run_options *options, const run_setup *setup, const analysis *a, const run_outcome *outcome);

/* ---- traces ---- */

/* Makes a model with the buckets of the run and a recorded schedule: the pool's trace of steps first_step to
 * last_step. Requests that are held during the whole run are acquired before these events and released after them.
 * The caller owns the model. Errors: those of bp_pool_trace_to_model and of building models. */
bp_status trace_model(const char *name, const bp_buckets *buckets, const bp_pool *pool, const program *p,
                      uint64_t first_step, uint64_t last_step, bp_model **model);

#endif
