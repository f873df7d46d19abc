#include "options.h"

#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "gpus.h"
#include "values.h"

enum {
    OPT_DP = OPTIONS_FIRST_KEY,
    OPT_EP,
    OPT_TP,
    OPT_PREFETCH,
    OPT_BUFFERS,
    OPT_BUCKETING,
    OPT_PADDING,
    OPT_LAYOUT,
    OPT_FLAT_ALIGNMENT,
    OPT_ALIGN,
    OPT_PARAM_DTYPE,
    OPT_GRAD_DTYPE,
    OPT_GRAD_COMM_DTYPE,
    OPT_ROLES,
    OPT_FALLBACK,
    OPT_EVAL,
    OPT_GRAD_UNITS,
    OPT_UNITS,
    OPT_USAGE,
    LAST_PLANNING_KEY = OPT_UNITS,
    OPT_POLICY = OPTIONS_COMMAND_KEY,
    OPT_BUDGET,
    OPT_GPU,
    OPT_JSON,
    OPT_SVG,
    OPT_COLOR,
};

/* What every command that plans takes. */
static const struct argp_option planning_table[] = {
    {0, 0, 0, 0, "Parallelism:", 1},
    {"dp", OPT_DP, "N", 0, "Data-parallel ranks that a dense bucket is sharded over (default 64)", 0},
    {"ep", OPT_EP, "N", 0, "Expert-parallel ranks; must divide dp (default 1)", 0},
    {"tp", OPT_TP, "N", 0, "Tensor-parallel ranks (default 1)", 0},
    {0, 0, 0, 0, "Buckets:", 2},
    {"bucketing", OPT_BUCKETING, "RULE", 0,
     "megatron, fsdp2 or given (default: given where the model gives buckets, else "
     "megatron)",
     0},
    {"padding", OPT_PADDING, "RULE", 0,
     "megatron-lcm, megatron-split, flat, given or fsdp2 (default: the bucketing's own)", 0},
    {"flat-alignment", OPT_FLAT_ALIGNMENT, "N", 0,
     "Elements a shard is a multiple of with --padding flat (default 128)", 0},
    {"layout", OPT_LAYOUT, "L", 0, "Module layout: megatron or hf (default: megatron with megatron bucketing, else hf)",
     0},
    {"units", OPT_UNITS, "PATTERNS", 0, "Unit names in safetensors, N for the number (default layers.N,h.N,blocks.N)",
     0},
    {"param-dtype", OPT_PARAM_DTYPE, "T", 0,
     "Dtype of parameters; fp8 for GEMM weights in units (default: the model's)", 0},
    {"grad-dtype", OPT_GRAD_DTYPE, "T", 0, "Dtype of gradients (default: the parameter's)", 0},
    {"grad-comm-dtype", OPT_GRAD_COMM_DTYPE, "T", 0, "Dtype gradients are communicated in; overrides --grad-dtype", 0},
    {"roles", OPT_ROLES, "LIST", 0, "Of param, param_transpose, grad, grad_comm, state (default param,grad)", 0},
    {0, 0, 0, 0, "Schedule:", 3},
    {"prefetch", OPT_PREFETCH, "N", 0, "Units gathered ahead of the one that computes (default 1)", 0},
    {"grad-units", OPT_GRAD_UNITS, "N", 0, "Units whose gradients are live while their reduction drains (default 2)",
     0},
    {"eval", OPT_EVAL, 0, 0, "Forward only", 0},
    {0, 0, 0, 0, "Policy:", 4},
    {"buffers", OPT_BUFFERS, "N", 0, "Buffer sets of fixed and max (default: as many as units are live at once)", 0},
    {"fallback", OPT_FALLBACK, "F", 0,
     "Units that do not fit the fixed pool: persistent or dynamic (default persistent)", 0},
    {"align", OPT_ALIGN, "BYTES", 0, "Alignment of every buffer, a power of two (default 256)", 0},
    {"help", '?', 0, 0, "Print this list", -1},
    {"usage", OPT_USAGE, 0, 0, "Print a short usage message", -1},
    {0, 0, 0, 0, 0, 0},
};

/* What only `plan` and `explain` take. */
static const struct argp_option plan_table[] = {
    {"policy", OPT_POLICY, "LIST", 0, "Of dynamic, fixed, max (default: all)", 4},
    {0, 0, 0, 0, "Budget:", 5},
    {"budget", OPT_BUDGET, "SIZE", 0, "Memory of one GPU, e.g. 80GiB: says whether the model's state fits", 0},
    {"gpu", OPT_GPU, "NAME", 0, "The same by name: " GPU_NAMES, 0},
    {0, 0, 0, 0, "Output:", 6},
    {"json", OPT_JSON, 0, 0, "Print a bucketpool.report/1 document", 0},
    {"svg", OPT_SVG, "FILE", 0, "Draw the pool (.svg, .png or .pdf)", 0},
    {"output", 'o', "PLAN", 0, "Write the plan (of the one policy named, or of max)", 0},
    {"color", OPT_COLOR, "WHEN", 0, "auto, always or never (default auto)", 0},
    {0, 0, 0, 0, 0, 0},
};

static const choice bucketings[] = {
    {"megatron", BP_BUCKETING_MEGATRON}, {"fsdp2", BP_BUCKETING_FSDP2}, {"given", BP_BUCKETING_GIVEN}, {0, 0}};
static const choice paddings[] = {{"megatron-lcm", BP_PADDING_MEGATRON_LCM},
                                  {"megatron-split", BP_PADDING_MEGATRON_SPLIT},
                                  {"flat", BP_PADDING_FLAT},
                                  {"given", BP_PADDING_GIVEN},
                                  {"fsdp2", BP_PADDING_FSDP2},
                                  {0, 0}};
static const choice layouts[] = {{"hf", BP_LAYOUT_HF}, {"megatron", BP_LAYOUT_MEGATRON}, {0, 0}};
static const choice fallbacks[] = {{"persistent", BP_FALLBACK_PERSISTENT}, {"dynamic", BP_FALLBACK_DYNAMIC}, {0, 0}};
static const choice colors[] = {{"auto", 0}, {"always", 1}, {"never", 2}, {0, 0}};

const char *options_bucketing_name(bp_bucketing bucketing)
{
    return choice_name(bucketings, (int)bucketing);
}

const char *options_padding_name(bp_padding padding)
{
    return choice_name(paddings, (int)padding);
}

const char *options_layout_name(bp_layout layout)
{
    return choice_name(layouts, (int)layout);
}

const char *options_fallback_name(bp_fallback fallback)
{
    return choice_name(fallbacks, (int)fallback);
}

static int add_policy(const char *word, void *user)
{
    plan_options *options = user;
    bp_policy policy;
    if (bp_policy_parse(word, &policy) != BP_OK)
        return cli_fail(EXIT_BAD_INPUT, "--policy: %s", bp_error_detail());
    if (policy == BP_POLICY_SCHEDULED)
        return cli_fail(EXIT_BAD_INPUT,
                        "--policy: plans of policy scheduled are not made by this version; known: dynamic, "
                        "fixed, max");
    for (size_t i = 0; i < options->policy_count; i++) {
        if (options->policies[i] == policy)
            return EXIT_GO_ON;
    }
    options->policies[options->policy_count++] = policy;
    return EXIT_GO_ON;
}

static int add_role(const char *word, void *user)
{
    plan_options *options = user;
    bp_role role;
    if (bp_role_parse(word, &role) != BP_OK)
        return cli_fail(EXIT_BAD_INPUT, "--roles: %s", bp_error_detail());
    options->roles |= BP_ROLE_BIT(role);
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

static int parse_planning(int key, char *text, plan_options *o)
{
    int value = 0, code;
    switch (key) {
    case OPT_DP: return value_u32("dp", text, 1, &o->dp);
    case OPT_EP: return value_u32("ep", text, 1, &o->ep);
    case OPT_TP: return value_u32("tp", text, 1, &o->tp);
    case OPT_PREFETCH: return value_u32("prefetch", text, 0, &o->prefetch);
    case OPT_BUFFERS: return value_u32("buffers", text, 1, &o->buffers);
    case OPT_GRAD_UNITS: return value_u32("grad-units", text, 1, &o->grad_units);
    case OPT_FLAT_ALIGNMENT: return value_number("flat-alignment", text, 1, 1u << 30, &o->flat_alignment);
    case OPT_ALIGN: return value_number("align", text, 1, (uint64_t)1 << 40, &o->alignment);
    case OPT_PARAM_DTYPE: return value_dtype("param-dtype", text, &o->param_dtype);
    case OPT_GRAD_DTYPE: return value_dtype("grad-dtype", text, &o->grad_dtype);
    case OPT_GRAD_COMM_DTYPE: return value_dtype("grad-comm-dtype", text, &o->grad_comm_dtype);
    case OPT_ROLES: o->roles = 0; return value_list("roles", text, add_role, o);
    case OPT_BUCKETING:
        code = value_choice("bucketing", text, bucketings, &value);
        o->bucketing = (bp_bucketing)value;
        return code;
    case OPT_PADDING:
        code = value_choice("padding", text, paddings, &value);
        o->padding = (bp_padding)value;
        return code;
    case OPT_LAYOUT:
        code = value_choice("layout", text, layouts, &value);
        o->layout = (bp_layout)value;
        return code;
    case OPT_FALLBACK:
        code = value_choice("fallback", text, fallbacks, &value);
        o->fallback = (bp_fallback)value;
        return code;
    case OPT_EVAL: o->eval = true; return EXIT_GO_ON;
    default: o->units = text; return EXIT_GO_ON;
    }
}

static error_t parse_planning_key(int key, char *text, struct argp_state *state)
{
    plan_options *options = state->input;
    if (key == ARGP_KEY_ARGS) {
        options->models = state->argv + state->next;
        options->model_count = (size_t)(state->argc - state->next);
        return 0;
    }
    if (key == ARGP_KEY_ERROR) { /* an unknown option or a missing value: argp's own message is off */
        const char *near = state->next > 1 ? state->argv[state->next - 1] : "";
        exit(cli_fail(EXIT_BAD_INPUT, "%s: \"%.60s\" is no option, or its value is missing; see --help", state->name,
                      near));
    }
    if (key < OPTIONS_FIRST_KEY || key > LAST_PLANNING_KEY)
        return ARGP_ERR_UNKNOWN;
    int code = parse_planning(key, text, options);
    if (code != EXIT_GO_ON)
        exit(code); /* the message is out */
    return 0;
}

static const struct argp planning_argp = {planning_table, parse_planning_key, 0, 0, 0, 0, 0};
const struct argp_child options_planning[] = {{&planning_argp, 0, 0, 0}, {0, 0, 0, 0}};

static int parse_own(int key, char *text, plan_options *o)
{
    int value = 0;
    switch (key) {
    case OPT_POLICY:
        o->policy_count = 0;
        o->policies_named = true;
        return value_list("policy", text, add_policy, o);
    case OPT_COLOR: o->color = text; return value_choice("color", text, colors, &value);
    case OPT_BUDGET:
        o->budget_name = text;
        return cli_parse_bytes(text, &o->budget)
                   ? EXIT_GO_ON
                   : cli_fail(EXIT_BAD_INPUT, "--budget: expected a size such as 80GiB, got \"%.40s\"", text);
    case OPT_GPU: return parse_gpu(text, o);
    case OPT_JSON: o->json = true; return EXIT_GO_ON;
    case OPT_SVG: o->svg = text; return EXIT_GO_ON;
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

int options_check(const plan_options *o, const char *command)
{
    if (o->model_count == 0)
        return cli_fail(EXIT_BAD_INPUT, "%s: no model; give a config.json, a directory, safetensors or a units.json",
                        command);
    if (o->dp % o->ep != 0)
        return cli_fail(EXIT_BAD_INPUT, "--dp %u is not a multiple of --ep %u", o->dp, o->ep);
    if ((o->alignment & (o->alignment - 1)) != 0)
        return cli_fail(EXIT_BAD_INPUT, "--align %llu is no power of two", (unsigned long long)o->alignment);
    return EXIT_GO_ON;
}

static int check_own(const plan_options *o, const char *command)
{
    if (o->output != NULL && (o->model_count > 1 || (o->policies_named && o->policy_count > 1)))
        return cli_fail(EXIT_BAD_INPUT, "-o writes one plan: give one model and one --policy");
    if (o->output != NULL && value_file("-o", o->output) != EXIT_GO_ON)
        return EXIT_BAD_INPUT;
    if (o->svg != NULL && value_file("--svg", o->svg) != EXIT_GO_ON)
        return EXIT_BAD_INPUT;
    if (o->output != NULL && o->svg != NULL && strcmp(o->output, o->svg) == 0)
        return cli_fail(EXIT_BAD_INPUT, "-o and --svg name the same file, %s", o->svg);
    if (o->output != NULL && o->policies_named && o->policies[0] == BP_POLICY_DYNAMIC)
        return cli_fail(EXIT_BAD_INPUT, "-o writes addresses, and policy dynamic has none; name fixed or max");
    if (strcmp(command, "explain") == 0 && (o->json || o->svg != NULL || o->output != NULL))
        return cli_fail(EXIT_BAD_INPUT, "explain prints sentences; --json, --svg and -o belong to plan");
    if (o->svg != NULL && o->model_count > 1)
        return cli_fail(EXIT_BAD_INPUT, "--svg draws one model, %zu are given", o->model_count);
    return EXIT_GO_ON;
}

void options_init(plan_options *options)
{
    *options = (plan_options){.policies = {BP_POLICY_DYNAMIC, BP_POLICY_FIXED, BP_POLICY_MAX},
                              .policy_count = MOST_POLICIES,
                              .dp = 64,
                              .ep = 1,
                              .tp = 1,
                              .prefetch = 1,
                              .grad_units = 2,
                              .flat_alignment = 128,
                              .alignment = 256,
                              .roles = BP_ROLE_BIT(BP_ROLE_PARAM) | BP_ROLE_BIT(BP_ROLE_GRAD),
                              .fallback = BP_FALLBACK_PERSISTENT,
                              .color = "auto"};
}

int options_read(int argc, char **argv, const char *command, const struct argp *argp, void *input)
{
    char name[64];
    snprintf(name, sizeof name, "bucketpool %s", command);
    argv[0] = name;
    for (int i = 1; i < argc; i++) { /* with its errors off, argp would swallow its help too */
        bool usage = strcmp(argv[i], "--usage") == 0;
        if (usage || strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-?") == 0) {
            argp_help(argp, stdout, usage ? ARGP_HELP_USAGE : ARGP_HELP_STD_HELP, name);
            int code = cli_flush();
            return code == EXIT_GO_ON ? EXIT_ANSWERED : code;
        }
    }
    argp_parse(argp, argc, argv, ARGP_NO_ERRS | ARGP_NO_HELP, 0, input);
    argv[0] = NULL;
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
              "index, or a units.json. Exit: 0 answered, 1 infeasible, 2 bad input, 3 environment."
            : "Says in sentences which unit sets which buffer of MODEL, and why the policies differ.\vMODEL is as for "
              "plan.",
        options_planning,
        0,
        0};
    int code = options_read(argc, argv, command, &argp, options);
    if (code == EXIT_GO_ON)
        code = options_check(options, command);
    return code == EXIT_GO_ON ? check_own(options, command) : code;
}
