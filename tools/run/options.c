/* SPDX-License-Identifier: Apache-2.0 */
/* The options of `run`. */
#include "run/run.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "shared/cli.h"

static const choice devices[] = {{"host", RUN_HOST}, {"null", RUN_NULL}, {"cuda", RUN_CUDA}, {0, 0}};
static const choice graphs[] = {
    {"off", DRIVER_GRAPHS_OFF}, {"iteration", DRIVER_GRAPHS_ITERATION}, {"units", DRIVER_GRAPHS_UNITS}, {0, 0}};
static const choice stricts[] = {{"off", BP_STRICT_OFF}, {"warn", BP_STRICT_WARN}, {"error", BP_STRICT_ERROR}, {0, 0}};

const char *run_graphs_name(const run_options *options)
{
    return choice_name(graphs, (int)options->graphs);
}

const char *run_strict_name(const run_options *options)
{
    return choice_name(stricts, (int)options->strict);
}

static int parse_policy(const char *name, const char *text, void *options)
{
    run_options *o = options;
    int value = 0, code = value_choice(name, text, options_policies, &value);
    o->policy = (bp_policy)value;
    o->policy_named = true;
    return code;
}

static int parse_device(const char *name, const char *text, void *options)
{
    run_options *o = options;
    int value = 0, code = value_device(text, devices, &value, &o->ordinal);
    (void)name;
    o->device = (run_device)value;
    return code;
}

static int parse_scale(const char *name, const char *text, void *options)
{
    uint64_t *scale = &((run_options *)options)->scale;
    *scale = 0;
    if (strcmp(text, "auto") == 0)
        return EXIT_GO_ON;
    int code = value_number(name, text, 1, MAX_SCALE, scale);
    if (code == EXIT_GO_ON && (*scale & (*scale - 1)) != 0)
        return cli_fail(EXIT_BAD_INPUT, "--%s: expected a power of two, got \"%s\"", name, text);
    return code;
}

static int parse_profile(const char *name, const char *text, void *options)
{
    ((run_options *)options)->profile = text;
    return *text != '\0' ? EXIT_GO_ON : cli_fail(EXIT_BAD_INPUT, "--%s: expected a folder, got \"\"", name);
}

static int add_profile_step(const char *word, void *user)
{
    run_options *o = user;
    uint64_t step;
    CLI_TRY(value_number("profile-steps", word, 0, INT64_MAX, &step));
    uint64_t *steps = realloc(o->profile_steps, (o->profile_step_count + 1) * sizeof *steps);
    if (steps == NULL)
        return cli_fail(EXIT_ENVIRONMENT, "out of memory for the steps of --profile-steps");
    o->profile_steps = steps;
    steps[o->profile_step_count++] = step;
    return EXIT_GO_ON;
}

static int parse_profile_steps(const char *name, const char *text, void *options)
{
    return value_list(name, text, add_profile_step, options);
}

#define MAX_ENTRIES (UINT64_C(1) << 30) /* of bp_profile_config.max_entries */
#define FIELD(member) offsetof(run_options, member)

static const option_row run_table[] = {
    {"policy", "P", "dynamic, fixed, max or scheduled (default scheduled)", OPTION_OWN, .choices = options_policies,
     .parse = parse_policy, .group = 4},
    {"plan", "FILE", "Use a plan written by `bucketpool plan -o` instead of planning", OPTION_TEXT, FIELD(plan)},
    {"unchecked", NULL, "Do not check the plan of --plan against the model; the pool reports deviations", OPTION_FLAG,
     FIELD(unchecked)},
    {.kind = OPTION_HEADING, .text = "Run:", .group = 5},
    {"device", "D",
     "host: host memory, threads as streams; null: addresses only, nothing is verified; cuda or cuda:N: a GPU (default "
     "host)",
     OPTION_OWN, .choices = devices, .parse = parse_device},
    {"graph", "WHAT",
     "iteration: capture a whole training step as one CUDA graph and replay it; units: one graph for each step of half "
     "of the units; "
     "off (default). Training steps 1, 4, 7, ... run without graphs",
     OPTION_CHOICE, FIELD(graphs), graphs},
    {"steps", "N", "Training steps (default 3)", OPTION_U64, FIELD(steps), .min = 1, .max = 1000000000},
    {"scale", "S",
     "Divide the plan's offsets and sizes by S, a power of two; auto: the smallest S that fits this machine and runs "
     "in seconds (default 1)",
     OPTION_OWN, .parse = parse_scale},
    {"delay", "US", "Streams pause at random for up to US microseconds (default 0)", OPTION_U32, FIELD(delay_us),
     .max = 1000000},
    {"seed", "N", "Seed of patterns and pauses (default 1)", OPTION_U64, FIELD(seed), .max = INT64_MAX},
    {.kind = OPTION_HEADING, .text = "Pool:", .group = 6},
    {"strict", "HOW",
     "Where the planned copy of a bucket is held and another one is free: error (default), warn or off", OPTION_CHOICE,
     FIELD(strict), stricts},
    {"guard", NULL, "Guard mode: access to released memory faults, writes past the end are reported", OPTION_FLAG,
     FIELD(guard)},
    {"no-promises", NULL, "Do not promise the pool which stream acquires which bucket", OPTION_UNFLAG, FIELD(promises)},
    {"nvtx", NULL,
     "Emit NVTX ranges and memory regions for profilers and compute-sanitizer (default: if one is attached)",
     OPTION_FLAG, FIELD(nvtx)},
    {.kind = OPTION_HEADING, .text = "Output:", .group = 7},
    {"json", NULL, "Print a bucketpool.run/1 document", OPTION_FLAG, FIELD(json)},
    {"trace", "FILE", "Write the last step's acquires and releases as a units.json, to be planned by `plan`",
     OPTION_FILE, FIELD(trace)},
    {"profile", "DIR",
     "Write a snapshot (for `bucketpool view` and pytorch.org/memory_viz) and a trace (for Perfetto) of each training "
     "step in "
     "--profile-steps to DIR/step_N",
     OPTION_OWN, .parse = parse_profile},
    {"profile-steps", "LIST", "Training steps to profile, from 0 (default 0,1)", OPTION_OWN,
     .parse = parse_profile_steps},
    {"max-entries", "N",
     "Acquires and releases that a snapshot holds, rounded up to a power of two; the newest are kept (default 100000)",
     OPTION_U64, FIELD(max_entries), .min = 1, .max = MAX_ENTRIES},
    {"dump", NULL, "When the run fails, print the holders of memory", OPTION_FLAG, FIELD(dump)},
    OPTION_END,
};

static int check(const run_options *o)
{
    CLI_TRY(options_check(&o->planning, "run"));
    if (o->planning.model_count > 1 && !o->planning.schedule.share)
        return cli_fail(EXIT_BAD_INPUT, "run requires one model, got %zu; --share plans several in one pool",
                        o->planning.model_count);
    for (size_t i = 0; o->plan != NULL && strcmp(o->plan, "-") == 0 && i < o->planning.model_count; i++) {
        if (strcmp(o->planning.models[i], "-") == 0)
            return cli_fail(EXIT_BAD_INPUT, "run: the model and --plan cannot both be standard input (-)");
    }
    const char *making = o->policy_named ? "policy" : options_given_of(&o->planning, OPTION_MAKES_PLANS);
    if (o->plan != NULL && making != NULL)
        return cli_fail(EXIT_BAD_INPUT, "--%s cannot be used with --plan, whose plan is finished; leave --%s out",
                        making, making);
    if (options_check_policies(&o->planning, &o->policy, 1) != EXIT_GO_ON)
        return EXIT_BAD_INPUT;
    if (o->unchecked && o->plan == NULL)
        return cli_fail(EXIT_BAD_INPUT, "--unchecked requires --plan");
    if (o->profile_step_count > 0 && o->profile == NULL)
        return cli_fail(EXIT_BAD_INPUT, "--profile-steps requires --profile");
    if (o->max_entries > 0 && o->profile == NULL)
        return cli_fail(EXIT_BAD_INPUT, "--max-entries requires --profile");
    if (o->profile != NULL && o->trace != NULL)
        return cli_fail(EXIT_BAD_INPUT, "--profile cannot be used with --trace; leave one out");

    if (o->guard && o->device != RUN_HOST)
        return cli_fail(EXIT_BAD_INPUT, "--guard requires --device host");
    if (o->graphs == DRIVER_GRAPHS_OFF)
        return EXIT_GO_ON;
    if (o->device != RUN_CUDA)
        return cli_fail(EXIT_BAD_INPUT, "--graph requires --device cuda");
    if (o->policy == BP_POLICY_DYNAMIC && o->plan == NULL)
        return cli_fail(EXIT_BAD_INPUT,
                        "--graph requires stable addresses, and policy dynamic has none; use --policy scheduled");
    if (o->steps < 2)
        return cli_fail(EXIT_BAD_INPUT,
                        "--graph requires --steps 2 or more: graphs are replayed from the second training step on");
    return EXIT_GO_ON;
}

int run_options_parse(int argc, char **argv, run_options *options)
{
    *options = (run_options){
        .policy = BP_POLICY_SCHEDULED, .steps = 3, .scale = 1, .strict = BP_STRICT_ERROR, .promises = true, .seed = 1};
    options_init(&options->planning);
    options->planning.policy_count = 0; /* planned after the scale is known */
    const options_command reading = {
        .name = "run",
        .arguments = "MODEL",
        .text = "Plans MODEL and drives training steps through a real pool on several streams. Every bucket is filled "
                "with a pattern "
                "and checked before it is released.\vMODEL is as for "
                "plan. Exit: 0 all bytes right, 1 a byte was wrong, a call failed or the plan is infeasible, 2 bad "
                "input, 3 environment.",
        .tables = {run_table, options_planning, options_schedule},
        .options = options,
        .given = &options->planning.given,
        .files = &options->planning.models,
        .file_count = &options->planning.model_count};
    CLI_TRY(options_read(argc, argv, &reading));
    return check(options);
}

void run_options_finish(run_options *options)
{
    free(options->profile_steps);
    options_finish(&options->planning);
}
