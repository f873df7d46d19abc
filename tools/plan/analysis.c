/* SPDX-License-Identifier: Apache-2.0 */
/* Builds buckets, schedule and plans of a model from its file and the options. */
#include "plan/analysis.h"

#include <bucketpool/core/fail.h>
#include <bucketpool/formats.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/cli.h"

/* ---- options as text --------------------------------------------------------------------------------------------- */

static bp_status note_number(bp_plan *plan, const char *key, uint64_t value)
{
    char text[32];
    snprintf(text, sizeof text, "%" PRIu64, value);
    return bp_plan_set_option(plan, key, text);
}

static bp_status note_numbers(const plan_options *o, bp_plan *plan)
{
    const schedule_options *s = &o->schedule;
    const struct {
        const char *key;
        uint64_t value, unasked; /* default, which is not recorded; UINT64_MAX: always recorded */
    } numbers[] = {{"dp", o->dp, UINT64_MAX},
                   {"ep", o->ep, UINT64_MAX},
                   {"tp", o->tp, UINT64_MAX},
                   {"prefetch", s->prefetch, UINT64_MAX},
                   {"prefetch_backward", s->prefetch_backward, BP_PREFETCH_SAME},
                   {"buffers", o->buffers, UINT64_MAX},
                   {"grad_units", s->grad_units, UINT64_MAX},
                   {"eval", s->passes == BP_PASSES_EVAL, UINT64_MAX},
                   {"keep_after_forward", s->keep_after_forward, 0},
                   {"recompute", s->recompute, 0},
                   {"microbatches", s->microbatches, 0},
                   {"combined", s->combined, 0},
                   {"overlap_window", s->overlap_window, 0},
                   {"optimizer_tensors", o->optimizer_tensors, OPTIONS_OPTIMIZER_TENSORS},
                   {"joint", o->joint, 0},
                   {"work", o->work, 0},
                   {"share", s->share, 0}};
    bp_status status = BP_OK;
    for (size_t i = 0; status == BP_OK && i < sizeof numbers / sizeof *numbers; i++) {
        if (numbers[i].value != numbers[i].unasked)
            status = note_number(plan, numbers[i].key, numbers[i].value);
    }
    return status;
}

const char *analysis_schedule_kind(const analysis *a, const schedule_options *o)
{
    static const char *const kinds[] = {
        [BP_PASSES_TRAIN] = "training", [BP_PASSES_EVAL] = "evaluation", [BP_PASSES_BOTH] = "training and evaluation"};
    return a->recorded == a->models ? "recorded" : a->recorded > 0 ? "mixed" : kinds[o->passes];
}

static bp_status note_schedule(const schedule_options *o, const analysis *a, bp_plan *plan)
{
    BP_TRY(bp_plan_set_option(plan, "schedule", analysis_schedule_kind(a, o)));
    if (o->streams != BP_STREAMS_SEPARATE)
        BP_TRY(bp_plan_set_option(plan, "streams", choice_name(options_streams, (int)o->streams)));
    if (o->outside != BP_OUTSIDE_PREFETCHES_NOTHING)
        BP_TRY(bp_plan_set_option(plan, "outside", choice_name(options_outsides, (int)o->outside)));
    if (o->other_count > 0)
        BP_TRY(note_number(plan, "schedules", o->other_count));

    /* "layers.3=2:1" as an option "unit_prefetch.layers.3" with value "2:1". */
    bp_status status = BP_OK;
    for (size_t i = 0; status == BP_OK && i < o->unit_prefetch_count; i++) {
        char key[256], value[32];
        snprintf(key, sizeof key, "unit_prefetch.%.200s", o->unit_prefetches[i].unit);
        snprintf(value, sizeof value, "%u:%u", o->unit_prefetches[i].forward, o->unit_prefetches[i].backward);
        status = bp_plan_set_option(plan, key, value);
    }
    return status;
}

/* Records model, rules and options in the plan. */
static bp_status analysis_note(const plan_options *options, const analysis *a, bp_plan *plan)
{
    BP_TRY(bp_plan_set_model(plan, a->name));
    BP_TRY(bp_plan_set_option(plan, "bucketing", choice_name(options_bucketings, (int)a->bucketing)));
    BP_TRY(bp_plan_set_option(plan, "padding", choice_name(options_paddings, (int)a->padding)));
    BP_TRY(bp_plan_set_option(plan, "layout", choice_name(options_layouts, (int)a->layout)));
    BP_TRY(note_schedule(&options->schedule, a, plan));
    BP_TRY(note_numbers(options, plan));

    const struct {
        const char *key;
        bp_dtype dtype;
    } dtypes[] = {{"param_dtype", options->param_dtype},
                  {"grad_dtype", options->grad_dtype},
                  {"grad_comm_dtype", options->grad_comm_dtype},
                  {"main_grad_dtype", options->main_grad_dtype},
                  {"optimizer_dtype", options->optimizer_dtype}};
    bp_status status = BP_OK;
    for (size_t i = 0; status == BP_OK && i < sizeof dtypes / sizeof *dtypes; i++) {
        if (dtypes[i].dtype != BP_DTYPE_NONE)
            status = bp_plan_set_option(plan, dtypes[i].key, bp_dtype_name(dtypes[i].dtype));
    }
    return status;
}

/* ---- from a file to buckets -------------------------------------------------------------------------------------- */

static void choose_rules(const plan_options *options, const bp_model *model, analysis *a)
{
    for (size_t i = 0; i < bp_model_get_info(model)->parameter_count; i++)
        a->separate_experts |= (bp_model_get_info(model)->parameters[i]->flags & BP_PARAMETER_EXPERT_COPIES) != 0;
    bool gives = bp_model_get_info(model)->given_bucket_count > 0 && bp_model_get_info(model)->parameter_count == 0;
    a->bucketing = options->bucketing != 0 ? options->bucketing : gives ? BP_BUCKETING_GIVEN : BP_BUCKETING_MEGATRON;
    bool stacks = a->bucketing == BP_BUCKETING_FSDP2 && bp_model_get_info(model)->published;
    a->padding = options->padding != 0                   ? options->padding
                 : a->bucketing == BP_BUCKETING_MEGATRON ? BP_PADDING_MEGATRON_LCM
                 : a->bucketing == BP_BUCKETING_FSDP2    ? BP_PADDING_FSDP2
                                                         : BP_PADDING_GIVEN;
    a->layout = options->layout != 0                    ? options->layout
                : a->bucketing == BP_BUCKETING_MEGATRON ? BP_LAYOUT_MEGATRON
                : stacks                                ? BP_LAYOUT_STACKED
                                                        : BP_LAYOUT_HF;
}

/* Replaces the model by the shard of one tp and ep rank, in the chosen layout. */
static bp_status localise(const plan_options *options, analysis *a, bp_model **model)
{
    bp_model *next = NULL;
    bp_status status = bp_model_with_layout(*model, a->layout, &next);
    if (status == BP_OK) {
        bp_model_destroy(model);
        *model = next;
        a->parameters = bp_model_get_info(*model)->numel;
        a->prediction_parameters = bp_model_get_info(*model)->prediction_numel;
        status = bp_model_shard(*model, options->tp, options->ep, &next);
    }
    if (status == BP_OK) {
        bp_model_destroy(model);
        *model = next;
    }
    return status;
}

int analysis_fail(const char *path, bp_status status)
{
    return cli_fail(status == BP_ERR_NO_HOST_MEMORY ? EXIT_ENVIRONMENT : EXIT_BAD_INPUT, "%s: %s", path,
                    bp_error_detail());
}

static int read_model(const char *given, const plan_options *options, analysis *a, bp_model **model)
{
    char *path;
    const char *name;
    CLI_TRY(models_find(given, &path, &name));
    bp_reader_options reader;
    bp_status status = bp_reader_options_init(&reader, sizeof reader);
    reader.name = name;
    reader.strict = options->strict;
    reader.units = options->units;
    a->tensors = options->units != NULL && models_has_tensors(path);
    if (status == BP_OK)
        status = bp_model_read(path, &reader, model);
    free(path);
    return status == BP_OK ? EXIT_GO_ON : cli_fail_status(status);
}

bp_dtype analysis_trained_dtype(bp_dtype asked)
{
    return asked != BP_DTYPE_NONE ? asked : BP_DTYPE_FP32;
}

static uint64_t shard_of(uint64_t numel, uint32_t shards)
{
    return numel / shards + (numel % shards != 0);
}

/* Adds the bytes of `tensors` tensors of `numel` elements; false on overflow. */
static bool add_tensors(bp_dtype dtype, uint64_t numel, uint64_t tensors, uint64_t *sum)
{
    uint64_t bytes;
    return bp_dtype_bytes(dtype, numel, &bytes) == BP_OK && !__builtin_mul_overflow(bytes, tensors, &bytes) &&
           !__builtin_add_overflow(*sum, bytes, sum);
}

/* Merged models have a root group each, "<model>/(root)". */
static bool is_root_group(const bp_buckets_info *info, int32_t unit)
{
    const char *name = info->units[unit].name, *slash = strrchr(name, '/');
    return strcmp(slash != NULL ? slash + 1 : name, "(root)") == 0;
}

static int fail_state(const char *path)
{
    return cli_fail(EXIT_BAD_INPUT, "%s: the bytes of the model state exceed 64 bits", path);
}

/* FSDP2 copies gathered parameters out of the pool's buffers: those of the units that compute, which are nested, and of
 * the root group, or with keep_after_forward of all units. Returns EXIT_GO_ON, or the exit code after a message. */
static int sum_unsharded(const char *path, const plan_options *options, analysis *a)
{
    const bp_buckets_info *info = bp_buckets_get_info(a->buckets);
    uint64_t *bytes = calloc(info->unit_count + 1, sizeof *bytes), sum = 0, max = 0;
    bool fits = true;
    if (bytes == NULL)
        return cli_fail(EXIT_ENVIRONMENT, "out of memory");
    for (size_t i = 0; fits && i < info->bucket_count; i++) {
        const bp_bucket *b = &info->buckets[i];
        if (b->unit >= 0 && b->shards > 1)
            fits = add_tensors(b->dtype, b->padded_numel, 1, &bytes[b->unit]) &&
                   add_tensors(b->dtype, b->padded_numel, 1, &sum);
    }
    for (size_t u = 0; fits && u < info->unit_count; u++) {
        int32_t parent = info->units[u].parent;
        bytes[u] += parent >= 0 ? bytes[parent] : 0; /* parents come first; nothing exceeds the sum */
        uint64_t root = info->root >= 0 && (int32_t)u != info->root ? bytes[info->root] : 0;
        max = bytes[u] + root > max ? bytes[u] + root : max;
    }
    free(bytes);
    a->state.unsharded = options->schedule.keep_after_forward ? sum : max;
    return fits ? EXIT_GO_ON : fail_state(path);
}

/* Computes the model state of one GPU outside the pool; false on overflow. */
static bool analysis_sum_state(const plan_options *options, analysis *a)
{
    bool trains = options->schedule.passes != BP_PASSES_EVAL;
    bp_dtype main_grad = analysis_trained_dtype(options->main_grad_dtype),
             optimizer = analysis_trained_dtype(options->optimizer_dtype);
    state_bytes *s = &a->state;
    const bp_buckets_info *info = bp_buckets_get_info(a->buckets);
    s->outside = info->persistent_bytes;
    for (size_t i = 0; i < info->bucket_count; i++) {
        bp_bucket b = info->buckets[i];
        uint64_t trained = trains && !b.frozen ? shard_of(b.grad_padded_numel, b.shards) : 0;
        if (!add_tensors(b.dtype, shard_of(b.padded_numel, b.shards), 1, &s->param_shards) ||
            !add_tensors(main_grad, trained, 1, &s->grad_shards) ||
            !add_tensors(optimizer, trained, options->optimizer_tensors, &s->optimizer))
            return false;
        a->units += b.unit >= 0 && b.ordinal == 0 && !is_root_group(info, b.unit);
        if (b.unit >= 0 && is_root_group(info, b.unit) && !add_tensors(b.dtype, b.padded_numel, 1, &a->root_bytes))
            return false;
    }
    return !__builtin_add_overflow(s->outside, s->unsharded, &s->total) &&
           !__builtin_add_overflow(s->total, s->param_shards, &s->total) &&
           !__builtin_add_overflow(s->total, s->grad_shards, &s->total) &&
           !__builtin_add_overflow(s->total, s->optimizer, &s->total);
}

int analysis_read(const char *path, const plan_options *options, analysis *a, bp_model **model)
{
    CLI_TRY(read_model(path, options, a, model));
    choose_rules(options, *model, a);

    a->name = strdup(bp_model_get_info(*model)->name);
    if (a->name == NULL)
        return cli_fail(EXIT_ENVIRONMENT, "out of memory");
    bp_buckets_config config;
    bp_status status = localise(options, a, model);
    if (status == BP_OK)
        status = bp_buckets_config_init(&config, sizeof config);
    if (status != BP_OK)
        return analysis_fail(path, status);
    const bp_model_info *info = bp_model_get_info(*model);
    for (size_t i = 0; i < info->note_count; i++)
        cli_append(a->notes, sizeof a->notes, "%s%s", i > 0 ? "; " : "", info->notes[i]);
    config.bucketing = a->bucketing;
    config.padding = a->padding;
    config.dp = options->dp;
    config.ep = options->ep;
    config.flat_alignment = options->flat_alignment;
    config.param_dtype = options->param_dtype;
    config.grad_dtype = options->grad_dtype;
    config.grad_comm_dtype = options->grad_comm_dtype;
    config.main_grad_dtype = options->main_grad_dtype;
    config.optimizer_dtype = options->optimizer_dtype;
    config.optimizer_tensors = options->optimizer_tensors;
    config.roles = options->roles;
    if (options->schedule.passes == BP_PASSES_EVAL)
        config.roles &= OPTIONS_EVALUATED_ROLES;
    status = bp_buckets_create(*model, &config, &a->buckets);
    if (status != BP_OK)
        return analysis_fail(path, status);
    analysis_note_buckets(options, *model, a);
    if (a->bucketing == BP_BUCKETING_FSDP2 && info->event_count == 0)
        CLI_TRY(sum_unsharded(path, options, a));
    return analysis_sum_state(options, a) ? EXIT_GO_ON : fail_state(path);
}

/* ---- models that share a pool ------------------------------------------------------------------------------------ */

/* The last component of a path, which prefixes unit names: "<part>/<unit>". */
static const char *short_name(const analysis *part)
{
    const char *slash = strrchr(part->name, '/');
    const char *name = slash != NULL ? slash + 1 : part->name;
    return *name != '\0' ? name : "model";
}

/* Names of the models. Repeated names get a number, so that a model can share with a copy of itself. */
static bool name_parts(const analysis *parts, size_t count, char **names)
{
    for (size_t i = 0; i < count; i++) {
        size_t same = 1;
        char number[32] = "";
        for (size_t k = 0; k < i; k++)
            same += strcmp(short_name(&parts[k]), short_name(&parts[i])) == 0;
        if (same > 1)
            snprintf(number, sizeof number, "#%zu", same);
        if (asprintf(&names[i], "%s%s", short_name(&parts[i]), number) < 0) {
            names[i] = NULL;
            return false;
        }
    }
    return true;
}

static bool join_names(char *const *names, size_t count, char **joined)
{
    size_t room = 1;
    for (size_t i = 0; i < count; i++)
        room += strlen(names[i]) + 3;
    *joined = calloc(room, 1);
    for (size_t i = 0; *joined != NULL && i < count; i++)
        cli_append(*joined, room, "%s%s", i > 0 ? " + " : "", names[i]);
    return *joined != NULL;
}

static bp_status merge_buckets(const analysis *parts, size_t count, char *const *names, analysis *merged)
{
    const bp_buckets **buckets = calloc(count, sizeof *buckets);
    if (buckets == NULL)
        return bp_error_record(BP_ERR_NO_HOST_MEMORY, "out of memory for the models' buckets");
    for (size_t i = 0; i < count; i++)
        buckets[i] = parts[i].buckets;
    bp_status status = bp_buckets_create_merged(buckets, (const char *const *)names, count, &merged->buckets);
    free(buckets);
    return status;
}

static bp_status merge_schedules(const analysis *parts, size_t count, analysis *merged)
{
    bp_schedule **schedules = calloc(count, sizeof *schedules);
    if (schedules == NULL)
        return bp_error_record(BP_ERR_NO_HOST_MEMORY, "out of memory for the models' schedules");
    bp_status status = BP_OK;
    for (size_t i = 0; status == BP_OK && i < count; i++)
        status = bp_schedule_create_embedded(parts[i].schedule, merged->buckets, i, &schedules[i]);
    if (status == BP_OK)
        status = bp_schedule_create_merged((const bp_schedule *const *)schedules, count, &merged->schedule);
    for (size_t i = 0; i < count; i++)
        bp_schedule_destroy(&schedules[i]);
    free(schedules);
    return status;
}

/* Merges the parts into one analysis: the models share a pool and run one after the other. */
static int analysis_merge(const plan_options *options, const analysis *parts, size_t count, analysis *merged)
{
    char **names = calloc(count, sizeof *names);
    int code = EXIT_GO_ON;
    if (names == NULL || !name_parts(parts, count, names) || !join_names(names, count, &merged->name))
        code = cli_fail(EXIT_ENVIRONMENT, "out of memory");

    /* A rule is kept if all parts agree on it. */
    merged->bucketing = parts[0].bucketing;
    merged->padding = parts[0].padding;
    merged->layout = parts[0].layout;
    for (size_t i = 0; i < count; i++) {
        if (parts[i].bucketing != merged->bucketing)
            merged->bucketing = 0;
        if (parts[i].padding != merged->padding)
            merged->padding = 0;
        if (parts[i].layout != merged->layout)
            merged->layout = 0;
        merged->recorded += parts[i].recorded;
        merged->models += parts[i].models;
        if (parts[i].state.unsharded > merged->state.unsharded) /* they run one after the other */
            merged->state.unsharded = parts[i].state.unsharded;
        merged->single_ranks = parts[i].single_ranks && (i == 0 || merged->single_ranks);
        merged->parameters += parts[i].parameters;
        merged->prediction_parameters += parts[i].prediction_parameters;
        size_t used = strlen(merged->notes);
        if (parts[i].notes[0] != '\0')
            snprintf(merged->notes + used, sizeof merged->notes - used, "%s%s: %s", used > 0 ? "; " : "", parts[i].name,
                     parts[i].notes);
    }

    if (code == EXIT_GO_ON) {
        bp_status status = merge_buckets(parts, count, names, merged);
        if (status == BP_OK)
            status = merge_schedules(parts, count, merged);
        code = status == BP_OK ? EXIT_GO_ON : analysis_fail("--share", status);
    }
    if (code == EXIT_GO_ON && !analysis_sum_state(options, merged))
        code = cli_fail(EXIT_BAD_INPUT, "--share: the bytes of the models' state exceed 64 bits");
    for (size_t i = 0; names != NULL && i < count; i++)
        free(names[i]);
    free(names);
    return code;
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

bp_status analysis_plan_config(const plan_options *options, bp_policy policy, uint64_t alignment,
                               bp_plan_config *config)
{
    bp_status status = bp_plan_config_init(config, sizeof *config);
    config->policy = policy;
    config->copies = options->buffers;
    config->fallback = options->fallback;
    config->alignment = alignment;
    config->joint = options->joint && policy == BP_POLICY_SCHEDULED;
    config->work = options->work;
    return status;
}

bp_status analysis_plan(const analysis *a, const plan_options *options, bp_policy policy, uint64_t alignment,
                        bp_plan **plan)
{
    bp_plan_config config;
    bp_plan *made = NULL;
    bp_status status = analysis_plan_config(options, policy, alignment, &config);
    if (status == BP_OK)
        status = bp_plan_create(a->buckets, a->schedule, &config, &made);
    if (status == BP_OK)
        status = analysis_note(options, a, made);
    if (status == BP_OK)
        *plan = made;
    else
        bp_plan_destroy(&made);
    return status;
}

uint64_t analysis_needed(const analysis *a, const bp_plan *plan)
{
    uint64_t sum = a->state.total;
    const bp_plan_info *info = bp_plan_get_info(plan);
    for (size_t i = 0; i < info->role_count; i++) {
        const bp_plan_role *role = &info->roles[i];
        /* shards in these roles are those that the state counts */
        if (!(BP_ROLES_STATE & BP_ROLE_BIT(role->role)) && __builtin_add_overflow(sum, role->bytes, &sum))
            return UINT64_MAX;
    }
    return sum;
}

static bool is_infeasible(const analysis *a)
{
    for (size_t i = 0; i < a->plan_count; i++) {
        if (!bp_plan_get_info(a->plans[i])->feasible)
            return true;
    }
    return false;
}

void analysis_finish(analysis *a)
{
    free(a->name);
    bp_buckets_destroy(&a->buckets);
    bp_schedule_destroy(&a->schedule);
    for (size_t i = 0; i < a->plan_count; i++)
        bp_plan_destroy(&a->plans[i]);
    *a = (analysis){0};
}

/* Everything but plans. */
static int analyse(const char *path, const plan_options *options, analysis *a)
{
    bp_model *model = NULL;
    int code = analysis_read(path, options, a, &model);
    if (code == EXIT_GO_ON)
        code = analysis_make_schedule(path, options, model, a);
    bp_model_destroy(&model);
    return code;
}

static int plan(const char *path, const plan_options *options, analysis *a)
{
    bp_status status = BP_OK;
    if (a->single_ranks && options->output == NULL && options->plot == NULL)
        return EXIT_GO_ON; /* a note says that there is nothing to plan */
    for (size_t i = 0; status == BP_OK && i < options->policy_count; i++) {
        status = analysis_plan(a, options, options->policies[i], options->alignment, &a->plans[i]);
        a->plan_count += status == BP_OK;
    }

    return status == BP_OK ? EXIT_GO_ON : analysis_fail(path, status);
}

/* Options that none of the schedules heeds would be lost without a word. */
static int check_heeded(const plan_options *options, const analysis *analyses, size_t count)
{
    size_t recorded = 0, tensors = 0;
    for (size_t i = 0; i < count; i++) {
        recorded += analyses[i].recorded;
        tensors += analyses[i].tensors;
    }
    if (options->units != NULL && tensors == 0)
        return cli_fail(EXIT_BAD_INPUT, "--units requires safetensors, and %s has units already; leave --units out",
                        analyses[0].name);
    const char *generating = options_schedule_generating(options);
    if (generating != NULL && recorded == count)
        return cli_fail(EXIT_BAD_INPUT, "--%s requires a generated schedule, and %s has a recorded one; leave --%s out",
                        generating, analyses[0].name, generating);
    if (options->schedule.overlap_window > 0 && recorded + options->schedule.other_count == 0)
        return cli_fail(EXIT_BAD_INPUT,
                        "--overlap-window requires a recorded schedule, and %s has none; leave --overlap-window out",
                        analyses[0].name);
    return EXIT_GO_ON;
}

/* Replaces the list of analyses by their merge. */
static int share(const plan_options *options, analysis *analyses, size_t *count)
{
    analysis merged = {0};
    int code = analysis_merge(options, analyses, *count, &merged);
    for (size_t i = 0; i < *count; i++)
        analysis_finish(&analyses[i]);
    analyses[0] = merged;
    *count = 1;
    return code;
}

int analysis_init_all(const plan_options *options, analysis **analyses, size_t *count, bool *infeasible)
{
    *infeasible = false;
    *count = options->model_count;
    *analyses = calloc(*count, sizeof **analyses);
    if (*analyses == NULL)
        return cli_fail(EXIT_ENVIRONMENT, "out of memory");
    int code = EXIT_GO_ON;
    for (size_t i = 0; code == EXIT_GO_ON && i < *count; i++)
        code = analyse(options->models[i], options, &(*analyses)[i]);
    if (code == EXIT_GO_ON)
        code = check_heeded(options, *analyses, *count);
    for (size_t i = 0; code == EXIT_GO_ON && i < *count; i++)
        code = advice_note_options(options->models[i], options, &(*analyses)[i]);
    for (size_t i = 0; code == EXIT_GO_ON && i < *count && !options->schedule.share; i++)
        code = plan(options->models[i], options, &(*analyses)[i]);
    if (code == EXIT_GO_ON && options->schedule.share) {
        code = share(options, *analyses, count);
        if (code == EXIT_GO_ON)
            code = plan("--share", options, &(*analyses)[0]);
    }
    for (size_t i = 0; code == EXIT_GO_ON && i < *count; i++)
        *infeasible = *infeasible || is_infeasible(&(*analyses)[i]);
    return code;
}

void analysis_finish_all(analysis *analyses, size_t count)
{
    for (size_t i = 0; analyses != NULL && i < count; i++)
        analysis_finish(&analyses[i]);
    free(analyses);
}
