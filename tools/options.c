#include "options.h"

#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "gpus.h"
#include "outputs.h"
#include "values.h"

enum {
    OPT_POLICY = OPTIONS_COMMAND_KEY,
    OPT_BUDGET,
    OPT_GPU,
    OPT_JSON,
    OPT_PLOT,
    OPT_COLOR,
};

/* What only `plan` and `explain` take. */
static const struct argp_option plan_table[] = {
    {"policy", OPT_POLICY, "LIST", 0, "Of dynamic, fixed, max, scheduled (default: all)", 4},
    {0, 0, 0, 0, "Budget:", 5},
    {"budget", OPT_BUDGET, "SIZE", 0, "Memory of one GPU, e.g. 80GiB: says whether the model's state fits", 0},
    {"gpu", OPT_GPU, "NAME", 0, "The same by name: " GPU_NAMES, 0},
    {0, 0, 0, 0, "Output:", 6},
    {"json", OPT_JSON, 0, 0, "Print a document: bucketpool.report/1, of explain bucketpool.whatif/1", 0},
    {"plot", OPT_PLOT, "FILE", 0, "plan: draw the pool (.svg, .png or .pdf)", 0},
    {"output", 'o', "PLAN", 0,
     "plan: write it (of the one policy named, or of scheduled); -: on standard output, instead of the tables", 0},
    {"color", OPT_COLOR, "WHEN", 0, "auto, always or never (default auto)", 0},
    {0, 0, 0, 0, 0, 0},
};

static int add_policy(const char *word, void *user)
{
    plan_options *options = user;
    bp_policy policy;
    if (bp_policy_parse(word, &policy) != BP_OK)
        return cli_fail(EXIT_BAD_INPUT, "--policy: %s", bp_error_detail());
    for (size_t i = 0; i < options->policy_count; i++) {
        if (options->policies[i] == policy)
            return EXIT_GO_ON;
    }
    options->policies[options->policy_count++] = policy;
    return EXIT_GO_ON;
}

static int parse_gpu(const char *text, plan_options *options)
{
    options->budget = gpu_bytes(text);
    options->budget_name = text;
    if (options->budget == 0)
        return cli_fail(EXIT_BAD_INPUT, "--gpu: \"%.40s\" is unknown; known: %s (or give --budget)", text, GPU_NAMES);
    return EXIT_GO_ON;
}

static int parse_own(int key, char *text, plan_options *o)
{
    switch (key) {
    case OPT_POLICY:
        o->policy_count = 0;
        o->policies_named = true;
        return value_list("policy", text, add_policy, o);
    case OPT_COLOR: return value_color(text, &o->color);
    case OPT_BUDGET:
        o->budget_name = text;
        if (!cli_parse_bytes(text, &o->budget))
            return cli_fail(EXIT_BAD_INPUT, "--budget: expected a size such as 80GiB, got \"%.40s\"", text);
        if (o->budget < 1 << 20)
            return cli_fail(EXIT_BAD_INPUT,
                            "--budget: \"%.40s\" is less than 1 MiB; write the unit, for example %.40sGiB", text, text);
        return EXIT_GO_ON;
    case OPT_GPU: return parse_gpu(text, o);
    case OPT_JSON: o->json = true; return EXIT_GO_ON;
    case OPT_PLOT: o->plot = text; return EXIT_GO_ON;
    default: o->output = text; return EXIT_GO_ON;
    }
}

static error_t parse_own_key(int key, char *text, struct argp_state *state)
{
    if (key == ARGP_KEY_INIT) {
        state->child_inputs[0] = state->input;
        return 0;
    }
    if (key != 'o' && (key < OPT_POLICY || key > OPT_COLOR))
        return ARGP_ERR_UNKNOWN;
    int code = parse_own(key, text, state->input);
    if (code != EXIT_GO_ON)
        exit(code); /* the message is out */
    return 0;
}

static bool makes_scheduled(const plan_options *o)
{
    bool makes = false;
    for (size_t i = 0; i < o->policy_count; i++)
        makes = makes || o->policies[i] == BP_POLICY_SCHEDULED;
    return makes;
}

static int check_own(const plan_options *o, const char *command)
{
    size_t plans = o->schedule.share ? 1 : o->model_count; /* of a policy */
    if (o->output != NULL && (plans > 1 || (o->policies_named && o->policy_count > 1)))
        return cli_fail(EXIT_BAD_INPUT, "-o writes one plan: give one model and one --policy");
    if (o->output != NULL && value_file("-o", o->output) != EXIT_GO_ON)
        return EXIT_BAD_INPUT;
    if (output_is_standard(o->output) && o->json)
        return cli_fail(EXIT_BAD_INPUT, "--json and -o - both write to standard output; give -o a file");
    if (o->plot != NULL && value_picture("--plot", o->plot) != EXIT_GO_ON)
        return EXIT_BAD_INPUT;
    if (o->output != NULL && o->plot != NULL && strcmp(o->output, o->plot) == 0)
        return cli_fail(EXIT_BAD_INPUT, "-o and --plot name the same file, %s", o->plot);
    if (o->output != NULL && o->policies_named && o->policies[0] == BP_POLICY_DYNAMIC)
        return cli_fail(EXIT_BAD_INPUT,
                        "-o writes addresses, and policy dynamic has none; name fixed, max or scheduled");
    bool explains = strcmp(command, "explain") == 0;
    if (explains && o->output != NULL)
        return cli_fail(EXIT_BAD_INPUT, "explain writes no plan; -o belongs to plan");
    if (explains && o->plot != NULL)
        return cli_fail(EXIT_BAD_INPUT, "explain draws nothing; --plot belongs to plan");
    if (explains && o->json && !makes_scheduled(o))
        return cli_fail(EXIT_BAD_INPUT, "--json of explain is about policy scheduled, which --policy leaves out");
    if (options_check_policies(o, o->policies, o->policy_count) != EXIT_GO_ON)
        return EXIT_BAD_INPUT;
    if (o->plot != NULL && plans > 1)
        return cli_fail(EXIT_BAD_INPUT, "--plot draws one model, %zu are given", o->model_count);
    return EXIT_GO_ON;
}

int options_parse(int argc, char **argv, const char *command, plan_options *options)
{
    options_init(options);
    bool plans = strcmp(command, "plan") == 0;
    const struct argp argp = {
        plan_table,
        parse_own_key,
        "MODEL...",
        plans
            ? "Prints the memory that gathering and reducing the units of MODEL takes, policy by policy, and how "
              "little it "
              "could take.\vMODEL is a config.json, a directory with one or with safetensors files, a safetensors file "
              "or "
              "index, a units.json, one of these on standard input (-), or the name of a bundled model such as "
              "Llama-3.1-8B. Exit: 0 answered, 1 infeasible, 2 bad input, 3 environment."
            : "Says which unit sets which buffer of MODEL, why the policies differ, what other schedules would take, "
              "and which units set the peak.\vMODEL is as for plan.",
        options_planning,
        0,
        0};
    int code = options_read(argc, argv, command, &argp, options);
    if (code == EXIT_GO_ON)
        code = options_check(options, command);
    return code == EXIT_GO_ON ? check_own(options, command) : code;
}
