/* The options of `run`: those of planning, and how the plan is driven. */
#ifndef TOOLS_RUN_OPTIONS_H
#define TOOLS_RUN_OPTIONS_H

#include "plan/options.h"
#include "run/driver.h"

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

#endif
