/* The options of `run`. */
#include "run/options.h"

#include <argp.h>
#include <stdlib.h>
#include <string.h>

#include "run/plan.h"
#include "shared/cli.h"

enum {
    OPT_POLICY = OPTIONS_COMMAND_KEY,
    OPT_PLAN,
    OPT_UNCHECKED,
    OPT_DEVICE,
    OPT_GRAPH,
    OPT_STEPS,
    OPT_SCALE,
    OPT_STRICT,
    OPT_GUARD,
    OPT_NO_PROMISES,
    OPT_NVTX,
    OPT_DELAY,
    OPT_SEED,
    OPT_JSON,
    OPT_TRACE,
    OPT_PROFILE,
    OPT_PROFILE_STEPS,
    OPT_DUMP
};

static const struct argp_option run_table[] = {
    {"policy", OPT_POLICY, "P", 0, "dynamic, fixed, max or scheduled (default scheduled)", 4},
    {"plan", OPT_PLAN, "FILE", 0, "A plan that `bucketpool plan -o` wrote, instead of planning here", 0},
    {"unchecked", OPT_UNCHECKED, 0, 0, "Do not check the plan of --plan against the model first: let the pool find out",
     0},
    {0, 0, 0, 0, "Run:", 5},
    {"device", OPT_DEVICE, "D", 0,
     "host: real memory and threads as streams; null: bookkeeping without memory, nothing "
     "is verified; cuda or cuda:N: a GPU (default host)",
     0},
    {"graph", OPT_GRAPH, "WHAT", 0,
     "iteration: whole training steps are captured as one graph and replayed; units: half of the units are, layer "
     "by layer; off (default). The 1st, 4th, 7th, ... training step runs without graphs",
     0},
    {"steps", OPT_STEPS, "N", 0, "Training steps (default 3)", 0},
    {"scale", OPT_SCALE, "S", 0,
     "Divides the finished plan's offsets and sizes by S, a power of two; auto: so that it fits this machine and runs "
     "in "
     "seconds (default 1)",
     0},
    {"delay", OPT_DELAY, "US", 0, "Streams pause at random, up to this many microseconds (default 0)", 0},
    {"seed", OPT_SEED, "N", 0, "Of the patterns and the pauses (default 1)", 0},
    {0, 0, 0, 0, "Pool:", 6},
    {"strict", OPT_STRICT, "HOW", 0,
     "What happens when a bucket's buffer is held while another copy is free: off, warn or error (default error)", 0},
    {"guard", OPT_GUARD, 0, 0, "Guard mode: touching released memory traps, writes past the end are found", 0},
    {"no-promises", OPT_NO_PROMISES, 0, 0, "Do not tell the pool which stream acquires which bucket", 0},
    {"nvtx", OPT_NVTX, 0, 0,
     "NVTX ranges and memory regions, for profilers and compute-sanitizer (default: where one of them is attached)", 0},
    {0, 0, 0, 0, "Output:", 7},
    {"json", OPT_JSON, 0, 0, "Print a bucketpool.run/1 document", 0},
    {"trace", OPT_TRACE, "FILE", 0, "Write the last step's acquires and releases as a units.json that `plan` plans", 0},
    {"profile", OPT_PROFILE, "DIR", 0,
     "Write snapshots (for `bucketpool view` and pytorch.org/memory_viz) and traces (for Perfetto) of some training "
     "steps "
     "into DIR/step_N",
     0},
    {"profile-steps", OPT_PROFILE_STEPS, "LIST", 0, "Which training steps --profile records, from 0 (default 0,1)", 0},
    {"dump", OPT_DUMP, 0, 0, "When the run fails, print who holds memory", 0},
    {0, 0, 0, 0, 0, 0},
};

static const choice devices[] = {{"host", RUN_HOST}, {"null", RUN_NULL}, {"cuda", RUN_CUDA}, {0, 0}};
static const choice graphs[] = {
    {"off", DRIVER_GRAPHS_OFF}, {"iteration", DRIVER_GRAPHS_ITERATION}, {"units", DRIVER_GRAPHS_UNITS}, {0, 0}};
static const choice policies[] = {{"dynamic", BP_POLICY_DYNAMIC},
                                  {"fixed", BP_POLICY_FIXED},
                                  {"max", BP_POLICY_MAX},
                                  {"scheduled", BP_POLICY_SCHEDULED},
                                  {0, 0}};
static const choice stricts[] = {{"off", BP_STRICT_OFF}, {"warn", BP_STRICT_WARN}, {"error", BP_STRICT_ERROR}, {0, 0}};

const char *run_graphs_name(const run_options *options)
{
    return choice_name(graphs, (int)options->graphs);
}

const char *run_strict_name(const run_options *options)
{
    return choice_name(stricts, (int)options->strict);
}

static int parse_scale(const char *text, uint64_t *scale)
{
    *scale = 0;
    if (strcmp(text, "auto") == 0)
        return EXIT_GO_ON;
    int code = value_number("scale", text, 1, MOST_SCALE, scale);
    if (code == EXIT_GO_ON && (*scale & (*scale - 1)) != 0)
        return cli_fail(EXIT_BAD_INPUT, "--scale %s is no power of two", text);
    return code;
}

static int add_profile_step(const char *word, void *user)
{
    run_options *o = user;
    uint64_t step;
    int code = value_number("profile-steps", word, 0, INT64_MAX, &step);
    if (code != EXIT_GO_ON)
        return code;
    uint64_t *steps = realloc(o->profile_steps, (o->profile_step_count + 1) * sizeof *steps);
    if (steps == NULL)
        return cli_fail(EXIT_ENVIRONMENT, "out of memory for the steps of --profile-steps");
    o->profile_steps = steps;
    steps[o->profile_step_count++] = step;
    return EXIT_GO_ON;
}

static int parse_one(int key, char *text, run_options *o)
{
    int value = 0, code;
    uint64_t number = 0;
    switch (key) {
    case OPT_POLICY:
        code = value_choice("policy", text, policies, &value);
        o->policy = (bp_policy)value;
        o->policy_named = true;
        return code;
    case OPT_PLAN: o->plan = text; return EXIT_GO_ON;
    case OPT_UNCHECKED: o->unchecked = true; return EXIT_GO_ON;
    case OPT_DEVICE:
        code = value_device(text, devices, &value, &o->ordinal);
        o->device = (run_device)value;
        return code;
    case OPT_GRAPH:
        code = value_choice("graph", text, graphs, &value);
        o->graphs = (driver_graphs)value;
        return code;
    case OPT_STEPS: return value_number("steps", text, 1, 1000000000, &o->steps);
    case OPT_SCALE: return parse_scale(text, &o->scale);
    case OPT_DELAY:
        code = value_number("delay", text, 0, 1000000, &number);
        o->delay_us = (uint32_t)number;
        return code;
    case OPT_SEED: return value_number("seed", text, 0, INT64_MAX, &o->seed);
    case OPT_STRICT:
        code = value_choice("strict", text, stricts, &value);
        o->strict = (bp_strict)value;
        return code;
    case OPT_GUARD: o->guard = true; return EXIT_GO_ON;
    case OPT_NVTX: o->nvtx = true; return EXIT_GO_ON;
    case OPT_NO_PROMISES: o->promises = false; return EXIT_GO_ON;
    case OPT_JSON: o->json = true; return EXIT_GO_ON;
    case OPT_TRACE: o->trace = text; return value_file("--trace", text);
    case OPT_PROFILE:
        o->profile = text;
        return *text != '\0' ? EXIT_GO_ON : cli_fail(EXIT_BAD_INPUT, "--profile \"\" names no folder");
    case OPT_PROFILE_STEPS: return value_list("profile-steps", text, add_profile_step, o);
    default: o->dump = true; return EXIT_GO_ON;
    }
}

static error_t parse_key(int key, char *text, struct argp_state *state)
{
    run_options *options = state->input;
    if (key == ARGP_KEY_INIT) {
        state->child_inputs[0] = &options->planning;
        return 0;
    }
    if (key < OPT_POLICY || key > OPT_DUMP)
        return ARGP_ERR_UNKNOWN;
    int code = parse_one(key, text, options);
    if (code != EXIT_GO_ON)
        exit(code); /* the message is out */
    return 0;
}

static int check_device(const run_options *o)
{
    if (o->guard && o->device != RUN_HOST)
        return cli_fail(EXIT_BAD_INPUT, "--guard needs memory that the host can reach: %s",
                        o->device == RUN_NULL ? "the null device has none" : "run it on device host");
    if (o->graphs == DRIVER_GRAPHS_OFF)
        return EXIT_GO_ON;
    if (o->device != RUN_CUDA)
        return cli_fail(EXIT_BAD_INPUT, "--graph needs a device with graphs: --device cuda");
    if (o->policy == BP_POLICY_DYNAMIC && o->plan == NULL)
        return cli_fail(EXIT_BAD_INPUT, "--graph needs buckets with addresses that stay, and policy dynamic has none");
    if (o->steps < 2)
        return cli_fail(EXIT_BAD_INPUT, "--graph replays from the second training step on: use --steps 2 or more");
    return EXIT_GO_ON;
}

static int check(const run_options *o)
{
    int code = options_check(&o->planning, "run");
    if (code != EXIT_GO_ON)
        return code;
    if (o->planning.model_count > 1 && !o->planning.schedule.share)
        return cli_fail(EXIT_BAD_INPUT, "run drives one model, %zu are given; --share makes them share a pool",
                        o->planning.model_count);
    for (size_t i = 0; o->plan != NULL && strcmp(o->plan, "-") == 0 && i < o->planning.model_count; i++) {
        if (strcmp(o->planning.models[i], "-") == 0)
            return cli_fail(EXIT_BAD_INPUT,
                            "run: standard input (-) is read once, and both the model and --plan are -");
    }
    const char *making = o->policy_named ? "policy" : options_making_plans(&o->planning);
    if (o->plan != NULL && making != NULL)
        return cli_fail(EXIT_BAD_INPUT, "--%s cannot be used with --plan, which brings a finished plan; leave --%s out",
                        making, making);
    if (options_check_policies(&o->planning, &o->policy, 1) != EXIT_GO_ON)
        return EXIT_BAD_INPUT;
    if (o->unchecked && o->plan == NULL)
        return cli_fail(EXIT_BAD_INPUT, "--unchecked is about the plan of --plan, and there is none");
    if (o->profile_step_count > 0 && o->profile == NULL)
        return cli_fail(EXIT_BAD_INPUT, "--profile-steps is about the snapshots of --profile, and there are none");
    if (o->profile != NULL && o->trace != NULL)
        return cli_fail(EXIT_BAD_INPUT, "--profile and --trace cannot record one run together; leave one out");
    return check_device(o);
}

int run_options_parse(int argc, char **argv, run_options *options)
{
    *options = (run_options){
        .policy = BP_POLICY_SCHEDULED, .steps = 3, .scale = 1, .strict = BP_STRICT_ERROR, .promises = true, .seed = 1};
    options_init(&options->planning);
    options->planning.policy_count = 0; /* planned after the scale is known */
    static const struct argp argp = {
        run_table,
        parse_key,
        "MODEL",
        "Plans MODEL and drives the plan through a real pool: whole training steps on several streams, in which every "
        "bucket is filled with a pattern of its own and checked before it is released.\vMODEL is as for plan. Exit: 0 "
        "every "
        "byte was right, 1 a byte was wrong, a call was refused or there is no plan, 2 bad input, 3 environment.",
        options_planning,
        0,
        0};
    int code = options_read(argc, argv, "run", &argp, options);
    return code == EXIT_GO_ON ? check(options) : code;
}

void run_options_finish(run_options *options)
{
    free(options->profile_steps);
    options_finish(&options->planning);
}
