/* The options of `plan` and `explain`, and of these the ones that every command takes that plans. */
#include "plan/options.h"

#include <argp.h>
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "gpus.h"
#include "shared/cli.h"
#include "shared/outputs.h"

/* ---- memory of GPUs ---------------------------------------------------------------------------------------------- */

/* MiB as the vendors' tools (nvidia-smi, rocm-smi) report the total of an idle device; what a driver and a context take off is
 * not subtracted. */
static const struct {
    const char *name;
    uint64_t mib;
} gpus[] = {{"a100-40", 40960}, {"a100-80", 81920}, {"h100", 81559},   {"h100-nvl", 95830}, {"h200", 143771},
            {"b200", 183359},   {"b300", 275040},   {"gb200", 189471}, {"mi300x", 196592}};

/* Bytes that an empty device offers; 0 when the name is unknown. */
static uint64_t gpu_bytes(const char *name)
{
    for (size_t i = 0; i < sizeof gpus / sizeof *gpus; i++) {
        if (strcasecmp(gpus[i].name, name) == 0)
            return gpus[i].mib << 20;
    }
    return 0;
}

/* ---- planning ---------------------------------------------------------------------------------------------------- */

/* What every command that plans takes. */

enum {
    OPT_DP = OPTIONS_FIRST_KEY,
    OPT_EP,
    OPT_TP,
    OPT_BUFFERS,
    OPT_BUCKETING,
    OPT_PADDING,
    OPT_LAYOUT,
    OPT_FLAT_ALIGNMENT,
    OPT_ALIGN,
    OPT_PARAM_DTYPE,
    OPT_GRAD_DTYPE,
    OPT_GRAD_COMM_DTYPE,
    OPT_MAIN_GRAD_DTYPE,
    OPT_OPTIMIZER_DTYPE,
    OPT_OPTIMIZER_TENSORS,
    OPT_ROLES,
    OPT_FALLBACK,
    OPT_JOINT,
    OPT_WORK,
    OPT_UNITS,
    OPT_USAGE,
    LAST_PLANNING_KEY = OPT_UNITS,
};

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
    {"main-grad-dtype", OPT_MAIN_GRAD_DTYPE, "T", 0, "Dtype of a rank's shard of the gradients (default fp32)", 0},
    {"optimizer-dtype", OPT_OPTIMIZER_DTYPE, "T", 0, "Dtype of the optimizer's tensors (default fp32)", 0},
    {"optimizer-tensors", OPT_OPTIMIZER_TENSORS, "N", 0,
     "Tensors of the optimizer, each of a shard's size (default 3: main weights and Adam's two moments)", 0},
    {"roles", OPT_ROLES, "LIST", 0,
     "Of param, param_transpose, grad, grad_comm, state, main_grad, optimizer (default param,grad)", 0},
    {0, 0, 0, 0, "Policy:", 4},
    {"buffers", OPT_BUFFERS, "N", 0, "Buffer sets of fixed and max (default: as many as units are live at once)", 0},
    {"fallback", OPT_FALLBACK, "F", 0,
     "Units that do not fit the fixed pool: persistent or dynamic (default persistent)", 0},
    {"joint", OPT_JOINT, 0, 0, "scheduled: all roles but state, main_grad and optimizer share one slab", 0},
    {"work", OPT_WORK, "N", 0, "scheduled: bound of the search in each slab (default: the library's)", 0},
    {"align", OPT_ALIGN, "SIZE", 0, "Alignment of every buffer, a power of two: 256 (the default), 4KiB", 0},
    {"help", '?', 0, 0, "Print this list", -1},
    {"usage", OPT_USAGE, 0, 0, "Print a short usage message", -1},
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

static int add_role(const char *word, void *user)
{
    plan_options *options = user;
    bp_role role;
    if (bp_role_parse(word, &role) != BP_OK)
        return cli_fail(EXIT_BAD_INPUT, "--roles: %s", bp_error_detail());
    options->roles |= BP_ROLE_BIT(role);
    return EXIT_GO_ON;
}

static int parse_align(const char *text, uint64_t *alignment)
{
    if (!cli_parse_bytes(text, alignment) || *alignment > (uint64_t)1 << 40)
        return cli_fail(EXIT_BAD_INPUT, "--align: expected a size from 1 to 1TiB such as 256 or 4KiB, got \"%.40s\"",
                        text);
    if ((*alignment & (*alignment - 1)) != 0)
        return cli_fail(EXIT_BAD_INPUT, "--align %.40s is no power of two", text);
    return EXIT_GO_ON;
}

static int parse_planning(int key, char *text, plan_options *o)
{
    int value = 0, code;
    switch (key) {
    case OPT_DP: return value_u32("dp", text, 1, &o->dp);
    case OPT_EP: return value_u32("ep", text, 1, &o->ep);
    case OPT_TP: return value_u32("tp", text, 1, &o->tp);
    case OPT_BUFFERS: return value_u32("buffers", text, 1, &o->buffers);
    case OPT_FLAT_ALIGNMENT: return value_number("flat-alignment", text, 1, 1u << 30, &o->flat_alignment);
    case OPT_ALIGN: return parse_align(text, &o->alignment);
    case OPT_PARAM_DTYPE: return value_dtype("param-dtype", text, &o->param_dtype);
    case OPT_GRAD_DTYPE: return value_dtype("grad-dtype", text, &o->grad_dtype);
    case OPT_GRAD_COMM_DTYPE: return value_dtype("grad-comm-dtype", text, &o->grad_comm_dtype);
    case OPT_MAIN_GRAD_DTYPE: return value_dtype("main-grad-dtype", text, &o->main_grad_dtype);
    case OPT_OPTIMIZER_DTYPE: return value_dtype("optimizer-dtype", text, &o->optimizer_dtype);
    case OPT_OPTIMIZER_TENSORS: return value_u32("optimizer-tensors", text, 0, &o->optimizer_tensors);
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
    case OPT_JOINT: o->joint = true; return EXIT_GO_ON;
    case OPT_WORK: return value_number("work", text, 1, INT64_MAX, &o->work);
    default: o->units = text; return EXIT_GO_ON;
    }
}

static error_t parse_planning_key(int key, char *text, struct argp_state *state)
{
    plan_options *options = state->input;
    if (key == ARGP_KEY_INIT) {
        state->child_inputs[0] = &options->schedule;
        return 0;
    }
    if (key == ARGP_KEY_ARGS) {
        options->models = state->argv + state->next;
        options->model_count = (size_t)(state->argc - state->next);
        return 0;
    }
    if (key == ARGP_KEY_ERROR)
        options_refuse(state);
    if (key < OPTIONS_FIRST_KEY || key > LAST_PLANNING_KEY)
        return ARGP_ERR_UNKNOWN;
    options->given |= UINT64_C(1) << (key - OPTIONS_FIRST_KEY);
    int code = parse_planning(key, text, options);
    if (code != EXIT_GO_ON)
        exit(code); /* the message is out */
    return 0;
}

static const struct argp_child schedule_child[] = {{&options_schedule_argp, 0, "Schedule:", 3}, {0, 0, 0, 0}};
static const struct argp planning_argp = {planning_table, parse_planning_key, 0, 0, schedule_child, 0, 0};
const struct argp_child options_planning[] = {{&planning_argp, 0, 0, 0}, {0, 0, 0, 0}};

int options_check(const plan_options *o, const char *command)
{
    if (o->model_count == 0)
        return cli_fail(EXIT_BAD_INPUT,
                        "%s: no model; give a config.json, a directory, safetensors, a units.json or a bundled model's "
                        "name",
                        command);
    size_t inputs = 0;
    for (size_t i = 0; i < o->model_count; i++)
        inputs += strcmp(o->models[i], "-") == 0;
    if (inputs > 1)
        return cli_fail(EXIT_BAD_INPUT, "%s: standard input (-) is read once, %zu models are -", command, inputs);
    if (o->dp % o->ep != 0)
        return cli_fail(EXIT_BAD_INPUT, "--dp %u is not a multiple of --ep %u", o->dp, o->ep);
    if (o->schedule.passes == BP_PASSES_EVAL && (o->roles & OPTIONS_EVALUATED_ROLES) == 0)
        return cli_fail(EXIT_BAD_INPUT,
                        "an evaluation has no gradients and nothing that is trained: --roles param or state");
    return options_schedule_check(&o->schedule, o->model_count);
}

static bool is_given(const plan_options *options, int key)
{
    return (options->given >> (key - OPTIONS_FIRST_KEY) & 1) != 0;
}

int options_check_policies(const plan_options *options, const bp_policy *policies, size_t count)
{
    static const struct {
        int key;
        unsigned heeding; /* policies, a bit each */
        const char *option, *policies;
    } rules[] = {{OPT_JOINT, 1u << BP_POLICY_SCHEDULED, "joint", "scheduled"},
                 {OPT_WORK, 1u << BP_POLICY_SCHEDULED, "work", "scheduled"},
                 {OPT_BUFFERS, 1u << BP_POLICY_FIXED | 1u << BP_POLICY_MAX, "buffers", "fixed or max"},
                 {OPT_FALLBACK, 1u << BP_POLICY_FIXED, "fallback", "fixed"}};
    unsigned made = 0;
    for (size_t i = 0; i < count; i++)
        made |= 1u << policies[i];
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        if (is_given(options, rules[i].key) && (made & rules[i].heeding) == 0)
            return cli_fail(EXIT_BAD_INPUT, "--%s requires --policy %s", rules[i].option, rules[i].policies);
    }
    return EXIT_GO_ON;
}

const char *options_making_plans(const plan_options *options)
{
    static const int keys[] = {OPT_BUFFERS, OPT_FALLBACK, OPT_JOINT, OPT_WORK, OPT_ALIGN};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        if (!is_given(options, keys[i]))
            continue;
        for (const struct argp_option *option = planning_table;; option++) {
            if (option->key == keys[i])
                return option->name;
        }
    }
    return NULL;
}

void options_init(plan_options *options)
{
    *options = (plan_options){.policies = {BP_POLICY_DYNAMIC, BP_POLICY_FIXED, BP_POLICY_MAX, BP_POLICY_SCHEDULED},
                              .policy_count = MOST_POLICIES,
                              .dp = 64,
                              .ep = 1,
                              .tp = 1,
                              .flat_alignment = 128,
                              .alignment = 256,
                              .roles = BP_ROLE_BIT(BP_ROLE_PARAM) | BP_ROLE_BIT(BP_ROLE_GRAD),
                              .optimizer_tensors = OPTIONS_OPTIMIZER_TENSORS,
                              .fallback = BP_FALLBACK_PERSISTENT,
                              .color = "auto"};
    options_schedule_init(&options->schedule);
}

void options_finish(plan_options *options)
{
    options_schedule_finish(&options->schedule);
}

/* ---- plan and explain -------------------------------------------------------------------------------------------- */

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
