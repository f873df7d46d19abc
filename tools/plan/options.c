/* SPDX-License-Identifier: Apache-2.0 */
/* The options of `plan` and `explain`, and those of all commands that plan. */
#include "plan/options.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/cli.h"
#include "shared/outputs.h"

const choice options_passes[] = {
    {"train", BP_PASSES_TRAIN}, {"eval", BP_PASSES_EVAL}, {"both", BP_PASSES_BOTH}, {0, 0}};
const choice options_streams[] = {{"separate", BP_STREAMS_SEPARATE}, {"unified", BP_STREAMS_UNIFIED}, {0, 0}};
const choice options_outsides[] = {
    {"nothing", BP_OUTSIDE_PREFETCHES_NOTHING}, {"successor", BP_OUTSIDE_PREFETCHES_SUCCESSOR}, {0, 0}};

/* Grows the array behind the pointer `array` by one element; false: out of memory. */
static bool grow(void *array, size_t count, size_t each)
{
    void *memory;
    memcpy(&memory, array, sizeof memory);
    memory = reallocarray(memory, count + 1, each);
    if (memory == NULL)
        return false;
    memcpy(array, &memory, sizeof memory);
    return true;
}

/* Parses "layers.3=2" or "layers.3=2:1". The value BP_PREFETCH_SAME is reserved. */
static int add_unit_prefetch(const char *word, void *user)
{
    schedule_options *o = &((plan_options *)user)->schedule;
    char *unit = strdup(word);
    if (unit == NULL || !grow(&o->unit_prefetches, o->unit_prefetch_count, sizeof *o->unit_prefetches)) {
        free(unit);
        return cli_fail(EXIT_ENVIRONMENT, "out of memory");
    }
    unit_prefetch *added = &o->unit_prefetches[o->unit_prefetch_count++];
    *added = (unit_prefetch){.unit = unit};
    char *forward = strrchr(unit, '='), *backward = forward != NULL ? strchr(forward, ':') : NULL;
    if (forward == NULL || forward == unit)
        return cli_fail(EXIT_BAD_INPUT, "--unit-prefetch: expected UNIT=F or UNIT=F:B, got \"%.80s\"", word);
    *forward++ = '\0';
    if (backward != NULL)
        *backward++ = '\0';
    int code = value_u32("unit-prefetch", forward, 0, &added->forward);
    uint64_t number = added->forward;
    if (code == EXIT_GO_ON && backward != NULL)
        code = value_number("unit-prefetch", backward, 0, BP_PREFETCH_SAME - 1, &number);
    added->backward = (uint32_t)number;
    return code;
}

static int parse_unit_prefetches(const char *name, const char *text, void *options)
{
    return value_list(name, text, add_unit_prefetch, options);
}

static int add_other(const char *word, void *user)
{
    schedule_options *o = &((plan_options *)user)->schedule;
    char *copy = strdup(word);
    if (copy == NULL || !grow(&o->others, o->other_count, sizeof *o->others)) {
        free(copy);
        return cli_fail(EXIT_ENVIRONMENT, "out of memory");
    }
    o->others[o->other_count++] = copy;
    return EXIT_GO_ON;
}

static int parse_others(const char *name, const char *text, void *options)
{
    return value_list(name, text, add_other, options);
}

static int parse_eval(const char *name, const char *text, void *options)
{
    (void)name;
    (void)text;
    ((plan_options *)options)->schedule.passes = BP_PASSES_EVAL;
    return EXIT_GO_ON;
}

#define FIELD(member) offsetof(plan_options, member)

/* --eval also selects roles and state, so it has an effect on recorded schedules too. */
const option_row options_schedule[] = {
    {.kind = OPTION_HEADING, .text = "Schedule:", .group = 3},
    {"prefetch", "N", "Prefetch depth: units all-gathered before the one that computes (default 1)", OPTION_U32,
     FIELD(schedule.prefetch), .applies = OPTION_GENERATES},
    {"prefetch-backward", "N", "Prefetch depth in backward (default: as forward)", OPTION_U32,
     FIELD(schedule.prefetch_backward), .max = BP_PREFETCH_SAME - 1, .applies = OPTION_GENERATES},
    {"unit-prefetch", "UNIT=F[:B],...",
     "Prefetch depth of UNIT: F in forward, B in backward (default: F); may be repeated", OPTION_OWN,
     .parse = parse_unit_prefetches, .applies = OPTION_GENERATES},
    {"grad-units", "N", "Units whose gradient buckets are live at once until reduce-scatter is done (default 2)",
     OPTION_U32, FIELD(schedule.grad_units), .min = 1, .applies = OPTION_GENERATES},
    {"passes", "P", "train, eval, or both (a training step, then an evaluation) (default train)", OPTION_CHOICE,
     FIELD(schedule.passes), options_passes, .applies = OPTION_GENERATES},
    {"eval", NULL, "Forward only: --passes eval", OPTION_OWN, .parse = parse_eval},
    {"keep-after-forward", NULL, "Keep parameters gathered from forward to backward", OPTION_FLAG,
     FIELD(schedule.keep_after_forward), .applies = OPTION_GENERATES},
    {"recompute", NULL, "Backward recomputes activations: fp8 models also gather row-wise parameters there",
     OPTION_FLAG, FIELD(schedule.recompute), .applies = OPTION_GENERATES},
    {"streams", "S",
     "separate: all-gathers and reduce-scatters on their own streams; unified: one stream for both (default separate)",
     OPTION_CHOICE, FIELD(schedule.streams), options_streams, .applies = OPTION_GENERATES},
    {"outside", "O", "Prefetch by parameters outside units: nothing or successor (default nothing)", OPTION_CHOICE,
     FIELD(schedule.outside), options_outsides, .applies = OPTION_GENERATES},
    {"microbatches", "M", "Microbatches in flight in a 1F1B pipeline stage (default: no pipeline)", OPTION_U32,
     FIELD(schedule.microbatches), .min = 1, .max = BP_MAX_MICROBATCHES, .applies = OPTION_GENERATES},
    {"combined", NULL, "Overlap the forward of one microbatch with the backward of another (combined 1F1B)",
     OPTION_FLAG, FIELD(schedule.combined), .applies = OPTION_GENERATES},
    {"overlap-window", "N",
     "Recorded schedules: do not reuse memory released on one lane for the next N units of another lane (default 0)",
     OPTION_U32, FIELD(schedule.overlap_window)},
    {"schedules", "FILE,...",
     "More recorded schedules (units.json) of the same units and buckets; the plan is valid for them too", OPTION_OWN,
     .parse = parse_others},
    {"share", NULL, "The MODELs share one pool and run one after the other", OPTION_FLAG, FIELD(schedule.share)},
    OPTION_END,
};

static void options_schedule_init(schedule_options *options)
{
    *options = (schedule_options){.prefetch = 1, .prefetch_backward = BP_PREFETCH_SAME, .grad_units = 2};
}

static void options_schedule_finish(schedule_options *options)
{
    for (size_t i = 0; i < options->unit_prefetch_count; i++)
        free(options->unit_prefetches[i].unit);
    for (size_t i = 0; i < options->other_count; i++)
        free(options->others[i]);
    free(options->unit_prefetches);
    free(options->others);
    *options = (schedule_options){0};
}

/* Checks the combination of options for this number of models. Returns EXIT_GO_ON, or the exit code after a message. */
static int options_schedule_check(const schedule_options *o, size_t models)
{
    if (o->share && models < 2)
        return cli_fail(EXIT_BAD_INPUT, "--share requires at least 2 models, got %zu", models);
    if (o->other_count > 0 && models > 1)
        return cli_fail(EXIT_BAD_INPUT, "--schedules requires one model, got %zu", models);
    if (o->passes == BP_PASSES_EVAL && (o->microbatches > 0 || o->combined))
        return cli_fail(EXIT_BAD_INPUT, "--%s requires --passes train or both",
                        o->combined ? "combined" : "microbatches");
    return EXIT_GO_ON;
}

const char *options_schedule_generating(const plan_options *o)
{
    for (size_t i = 0; i < o->given.count; i++) {
        const option_row *row = o->given.rows[i];
        bool evaluates = row->field == FIELD(schedule.passes) && o->schedule.passes == BP_PASSES_EVAL;
        if ((row->applies & OPTION_GENERATES) != 0 && !evaluates)
            return row->name;
    }
    return NULL;
}

/* ---- planning ---------------------------------------------------------------------------------------------------- */

const choice options_bucketings[] = {
    {"megatron", BP_BUCKETING_MEGATRON}, {"fsdp2", BP_BUCKETING_FSDP2}, {"given", BP_BUCKETING_GIVEN}, {0, 0}};
const choice options_paddings[] = {{"megatron-lcm", BP_PADDING_MEGATRON_LCM},
                                   {"megatron-split", BP_PADDING_MEGATRON_SPLIT},
                                   {"flat", BP_PADDING_FLAT},
                                   {"given", BP_PADDING_GIVEN},
                                   {"fsdp2", BP_PADDING_FSDP2},
                                   {"fsdp2-shard1", BP_PADDING_FSDP2_SHARD1},
                                   {0, 0}};
const choice options_layouts[] = {
    {"hf", BP_LAYOUT_HF}, {"megatron", BP_LAYOUT_MEGATRON}, {"stacked", BP_LAYOUT_STACKED}, {0, 0}};
const choice options_policies[] = {{"dynamic", BP_POLICY_DYNAMIC},
                                   {"fixed", BP_POLICY_FIXED},
                                   {"max", BP_POLICY_MAX},
                                   {"scheduled", BP_POLICY_SCHEDULED},
                                   {0, 0}};
const choice options_roles[] = {{"param", BP_ROLE_PARAM},         {"param_transpose", BP_ROLE_PARAM_TRANSPOSE},
                                {"grad", BP_ROLE_GRAD},           {"grad_comm", BP_ROLE_GRAD_COMM},
                                {"state", BP_ROLE_STATE},         {"main_grad", BP_ROLE_MAIN_GRAD},
                                {"optimizer", BP_ROLE_OPTIMIZER}, {0, 0}};
const choice options_fallbacks[] = {{"persistent", BP_FALLBACK_PERSISTENT}, {"dynamic", BP_FALLBACK_DYNAMIC}, {0, 0}};

static int parse_align(const char *name, const char *text, void *options)
{
    uint64_t *alignment = &((plan_options *)options)->alignment;
    if (!cli_parse_bytes(text, alignment) || *alignment > (uint64_t)1 << 40)
        return cli_fail(EXIT_BAD_INPUT, "--%s: expected a size in [1, 1TiB] such as 256 or 4KiB, got \"%.40s\"", name,
                        text);
    if ((*alignment & (*alignment - 1)) != 0)
        return cli_fail(EXIT_BAD_INPUT, "--%s: expected a power of two, got \"%.40s\"", name, text);
    return EXIT_GO_ON;
}

#define SCHEDULED OPTION_POLICY(BP_POLICY_SCHEDULED)
#define FIXED OPTION_POLICY(BP_POLICY_FIXED)
#define MAX OPTION_POLICY(BP_POLICY_MAX)

const option_row options_planning[] = {
    {.kind = OPTION_HEADING, .text = "Parallelism:", .group = 1},
    {"dp", "N", "Data-parallel ranks: a dense bucket has a shard on each (default 64)", OPTION_U32, FIELD(dp),
     .min = 1},
    {"ep", "N", "Expert-parallel ranks; must divide --dp (default 1)", OPTION_U32, FIELD(ep), .min = 1},
    {"tp", "N", "Tensor-parallel ranks (default 1)", OPTION_U32, FIELD(tp), .min = 1},
    {.kind = OPTION_HEADING, .text = "Buckets:", .group = 2},
    {"bucketing", "RULE",
     "megatron, fsdp2, or given: the buckets of a units.json (default: given if the model has buckets, else megatron)",
     OPTION_CHOICE, FIELD(bucketing), options_bucketings},
    {"padding", "RULE",
     "megatron-lcm, megatron-split, flat, given, fsdp2, fsdp2-shard1 (Shard(1) for stacked experts) (default: by "
     "--bucketing)",
     OPTION_CHOICE, FIELD(padding), options_paddings},
    {"flat-alignment", "N", "--padding flat: shards are multiples of N elements (default 128)", OPTION_U64,
     FIELD(flat_alignment), .min = 1, .max = 1u << 30},
    {"layout", "L",
     "Module layout: megatron, hf, stacked (transformers 5) (default: by --bucketing; fsdp2: stacked, units.json hf)",
     OPTION_CHOICE, FIELD(layout), options_layouts},
    {"units", "PATTERNS", "Safetensors: patterns of unit names, N for the number (default layers.N,h.N,blocks.N)",
     OPTION_TEXT, FIELD(units)},
    {"param-dtype", "T", "Dtype of parameters; fp8: of GEMM weights in units (default: the model's)", OPTION_DTYPE,
     FIELD(param_dtype)},
    {"grad-dtype", "T", "Dtype of gradients (default: the parameter's)", OPTION_DTYPE, FIELD(grad_dtype)},
    {"grad-comm-dtype", "T", "Dtype of gradients in reduce-scatter (default: --grad-dtype)", OPTION_DTYPE,
     FIELD(grad_comm_dtype)},
    {"main-grad-dtype", "T", "Dtype of gradient shards (default fp32)", OPTION_DTYPE, FIELD(main_grad_dtype)},
    {"optimizer-dtype", "T", "Dtype of optimizer tensors (default fp32)", OPTION_DTYPE, FIELD(optimizer_dtype)},
    {"optimizer-tensors", "N", "Optimizer tensors for each shard (default 3: main weights and Adam's two moments)",
     OPTION_U32, FIELD(optimizer_tensors)},
    {"roles", "LIST",
     "Roles to plan, of param, param_transpose, grad, grad_comm, state, main_grad, optimizer (default param,grad)",
     OPTION_SET, FIELD(roles), options_roles},
    {.kind = OPTION_HEADING, .text = "Policy:", .group = 4},
    {"buffers", "N", "fixed, max: buffer sets (default: the largest number of units live at once)", OPTION_U32,
     FIELD(buffers), .min = 1, .applies = OPTION_MAKES_PLANS | FIXED | MAX},
    {"fallback", "F", "fixed: memory of units that do not fit the pool, persistent or dynamic (default persistent)",
     OPTION_CHOICE, FIELD(fallback), options_fallbacks, .applies = OPTION_MAKES_PLANS | FIXED},
    {"joint", NULL, "scheduled: one slab for all roles but state, main_grad and optimizer", OPTION_FLAG, FIELD(joint),
     .applies = OPTION_MAKES_PLANS | SCHEDULED},
    {"work", "N", "scheduled: limit of the search in each slab, in units of work (default: the library's)", OPTION_U64,
     FIELD(work), .min = 1, .max = INT64_MAX, .applies = OPTION_MAKES_PLANS | SCHEDULED},
    {"align", "SIZE", "Alignment of every buffer, a power of two such as 4KiB (default 256)", OPTION_OWN,
     .parse = parse_align, .applies = OPTION_MAKES_PLANS},
    OPTION_END,
};

int options_check(const plan_options *o, const char *command)
{
    if (o->model_count == 0)
        return cli_fail(
            EXIT_BAD_INPUT,
            "%s: no model given; give a config.json, a directory, safetensors, a units.json or a bundled model's "
            "name",
            command);
    size_t inputs = 0;
    for (size_t i = 0; i < o->model_count; i++)
        inputs += strcmp(o->models[i], "-") == 0;
    if (inputs > 1)
        return cli_fail(EXIT_BAD_INPUT, "%s: only one model can be standard input (-), got %zu", command, inputs);
    if (o->dp % o->ep != 0)
        return cli_fail(EXIT_BAD_INPUT, "--dp %u is not a multiple of --ep %u", o->dp, o->ep);
    if (o->schedule.passes == BP_PASSES_EVAL && (o->roles & OPTIONS_EVALUATED_ROLES) == 0)
        return cli_fail(EXIT_BAD_INPUT, "--passes eval has only the roles param and state; add one of them to --roles");
    return options_schedule_check(&o->schedule, o->model_count);
}

int options_check_policies(const plan_options *options, const bp_policy *policies, size_t count)
{
    static const bp_policy all[] = {BP_POLICY_FIXED, BP_POLICY_MAX, BP_POLICY_SCHEDULED};
    for (size_t i = 0; i < options->given.count; i++) {
        const option_row *row = options->given.rows[i];
        unsigned made = 0, heeding = row->applies & (FIXED | MAX | SCHEDULED);
        for (size_t p = 0; p < count; p++)
            made |= OPTION_POLICY(policies[p]);
        if (heeding == 0 || (made & heeding) != 0)
            continue;
        char names[64] = "";
        for (size_t p = 0; p < sizeof all / sizeof *all; p++) {
            if ((heeding & OPTION_POLICY(all[p])) != 0)
                cli_append(names, sizeof names, "%s%s", names[0] != '\0' ? " or " : "", bp_policy_name(all[p]));
        }
        return cli_fail(EXIT_BAD_INPUT, "--%s requires --policy %s", row->name, names);
    }
    return EXIT_GO_ON;
}

const char *options_given_of(const plan_options *options, unsigned applies)
{
    for (size_t i = 0; i < options->given.count; i++) {
        if ((options->given.rows[i]->applies & applies) != 0)
            return options->given.rows[i]->name;
    }
    return NULL;
}

void options_init(plan_options *options)
{
    *options = (plan_options){.policies = {BP_POLICY_DYNAMIC, BP_POLICY_FIXED, BP_POLICY_MAX, BP_POLICY_SCHEDULED},
                              .policy_count = MAX_POLICIES,
                              .dp = 64,
                              .ep = 1,
                              .tp = 1,
                              .flat_alignment = 128,
                              .alignment = 256,
                              .roles = BP_ROLE_BIT(BP_ROLE_PARAM) | BP_ROLE_BIT(BP_ROLE_GRAD),
                              .optimizer_tensors = OPTIONS_OPTIMIZER_TENSORS,
                              .fallback = BP_FALLBACK_PERSISTENT};
    options_schedule_init(&options->schedule);
}

void options_finish(plan_options *options)
{
    options_schedule_finish(&options->schedule);
}

/* ---- plan and explain -------------------------------------------------------------------------------------------- */

static int add_policy(const char *word, void *user)
{
    plan_options *options = user;
    int value = 0;
    CLI_TRY(value_choice("policy", word, options_policies, &value));
    for (size_t i = 0; i < options->policy_count; i++) {
        if (options->policies[i] == (bp_policy)value)
            return EXIT_GO_ON;
    }
    options->policies[options->policy_count++] = (bp_policy)value;
    return EXIT_GO_ON;
}

static int parse_policies(const char *name, const char *text, void *options)
{
    ((plan_options *)options)->policy_count = 0;
    ((plan_options *)options)->policies_named = true;
    return value_list(name, text, add_policy, options);
}

/* The last of --budget and --gpu counts. */
static void name_budget(const char *name, const char *text, plan_options *o)
{
    if (o->budget_option != NULL && strcmp(o->budget_option, name) != 0)
        snprintf(o->overridden, sizeof o->overridden, "--%s %.40s", o->budget_option, o->budget_name);
    else
        o->overridden[0] = '\0';
    o->budget_option = name;
    o->budget_name = text;
}

static int parse_budget(const char *name, const char *text, void *options)
{
    plan_options *o = options;
    name_budget(name, text, o);
    if (!cli_parse_bytes(text, &o->budget))
        return cli_fail(EXIT_BAD_INPUT, "--%s: expected a size such as 80GiB, got \"%.40s\"", name, text);
    if (o->budget < 1 << 20)
        return cli_fail(EXIT_BAD_INPUT, "--%s: \"%.40s\" is less than 1 MiB; write the unit, for example %.40sGiB",
                        name, text, text);
    return EXIT_GO_ON;
}

/* Total MiB of an idle device, as nvidia-smi and rocm-smi report it. The memory of driver and context is not subtracted. */
static const choice gpus[] = {{"a100-40", 40960},  {"a100-80", 81920},
                              {"l40s", 46068},     {"h20", 97871},
                              {"h800", 81559},     {"h100", 81559},
                              {"h100-nvl", 95830}, {"h200", 143771},
                              {"b200", 183359},    {"b300", 275040},
                              {"gb200", 189471},   {"gb300", 284208},
                              {"mi300x", 196592},  {0, 0}};

static int parse_gpu(const char *name, const char *text, void *options)
{
    plan_options *o = options;
    int mib = 0;
    CLI_TRY(value_choice(name, text, gpus, &mib));
    o->budget = (uint64_t)mib << 20;
    name_budget(name, text, o);
    return EXIT_GO_ON;
}

static const option_row plan_table[] = {
    {"strict", NULL,
     "Refuse a config.json with parts that are not counted or fields that are not read, instead of a note", OPTION_FLAG,
     FIELD(strict), .group = 4},
    {"policy", "LIST", "Policies, of dynamic, fixed, max, scheduled (default: all)", OPTION_OWN,
     .choices = options_policies, .parse = parse_policies, .group = 4},
    {.kind = OPTION_HEADING, .text = "Budget:", .group = 5},
    {"budget", "SIZE", "Memory of one GPU such as 80GiB: report whether pool and model state fit", OPTION_OWN,
     .parse = parse_budget},
    {"gpu", "NAME",
     "--budget by name: a100-40, a100-80, l40s, h20, h800, h100, h100-nvl, h200, b200, b300, gb200, gb300, mi300x",
     OPTION_OWN, .choices = gpus, .parse = parse_gpu},
    {.kind = OPTION_HEADING, .text = "Output:", .group = 6},
    {"json", NULL, "Print a bucketpool.report/1 document (explain: bucketpool.whatif/1)", OPTION_FLAG, FIELD(json)},
    {"plot", "FILE", "plan: draw the policies and the pool (.svg)", OPTION_PICTURE, FIELD(plot)},
    {"output", "PLAN",
     "plan: write the plan of the policy (default scheduled) to a file; -: to standard output instead of the tables",
     OPTION_FILE, FIELD(output), .letter = 'o'},
    {"color", "WHEN", "auto, always or never (default auto)", OPTION_CHOICE, FIELD(color), choices_color},
    OPTION_END,
};

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
        return cli_fail(EXIT_BAD_INPUT, "-o writes one plan; give one model and one --policy");
    if (output_is_standard(o->output) && o->json)
        return cli_fail(EXIT_BAD_INPUT, "--json and -o - both write to standard output; give -o a file");
    if (o->output != NULL && o->plot != NULL && strcmp(o->output, o->plot) == 0)
        return cli_fail(EXIT_BAD_INPUT, "-o and --plot name the same file, %s", o->plot);
    if (o->output != NULL && o->policies_named && o->policies[0] == BP_POLICY_DYNAMIC)
        return cli_fail(EXIT_BAD_INPUT,
                        "-o: policy dynamic has no addresses to write; use --policy fixed, max or scheduled");
    bool explains = strcmp(command, "explain") == 0;
    if (explains && o->output != NULL)
        return cli_fail(EXIT_BAD_INPUT, "-o is an option of plan, not of explain; run bucketpool plan -o");
    if (explains && o->plot != NULL)
        return cli_fail(EXIT_BAD_INPUT, "--plot is an option of plan, not of explain; run bucketpool plan --plot");
    if (explains && o->json && !makes_scheduled(o))
        return cli_fail(EXIT_BAD_INPUT, "explain --json requires --policy scheduled");
    if (options_check_policies(o, o->policies, o->policy_count) != EXIT_GO_ON)
        return EXIT_BAD_INPUT;
    if (o->plot != NULL && plans > 1)
        return cli_fail(EXIT_BAD_INPUT, "--plot requires one model, got %zu", o->model_count);
    return EXIT_GO_ON;
}

int options_parse(int argc, char **argv, const char *command, plan_options *options)
{
    options_init(options);
    bool plans = strcmp(command, "plan") == 0;
    const options_command reading = {
        .name = command,
        .arguments = "MODEL...",
        .text = plans ? "Prints the memory of the communication buffers of MODEL under each policy, and a lower "
                        "bound.\vMODEL is a config.json, a directory with one or with safetensors files, a "
                        "safetensors file or index, a units.json, one of these on standard input (-), or the name of a "
                        "bundled model such as Llama-3.1-8B. Exit: 0 answered, 1 infeasible or over the budget, 2 bad "
                        "input, 3 environment."
                      : "Explains which units set the size of each buffer of MODEL, why the policies differ, how much "
                        "other schedules "
                        "take, and which units set the peak.\vMODEL is as for plan.",
        .tables = {plan_table, options_planning, options_schedule},
        .options = options,
        .given = &options->given,
        .files = &options->models,
        .file_count = &options->model_count};
    CLI_TRY(options_read(argc, argv, &reading));
    CLI_TRY(options_check(options, command));
    return check_own(options, command);
}
