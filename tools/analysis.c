#include "analysis.h"

#include <bucketpool/formats.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

/* Bytes an element of main gradients and optimizer state takes: fp32 gradients, fp32 master parameter and two fp32 moments,
 * as Megatron's distributed optimizer keeps them for Adam. */
#define GRAD_SHARD_BYTES 4
#define OPTIMIZER_BYTES 12

/* The model as one rank of tp and ep holds it, in the layout asked for. Destroys what it was made from. */
static bp_status localise(const plan_options *options, analysis *a, bp_model **model)
{
    bp_model *next = NULL;
    bp_status status = bp_model_with_layout(*model, a->layout, &next);
    if (status == BP_OK) {
        bp_model_destroy(model);
        *model = next;
        a->parameters = bp_model_numel(*model);
        a->prediction_parameters = bp_model_prediction_numel(*model);
        status = bp_model_shard(*model, options->tp, options->ep, &next);
    }
    if (status == BP_OK) {
        bp_model_destroy(model);
        *model = next;
    }
    return status;
}

static bp_status make_buckets(const plan_options *options, const bp_model *model, analysis *a)
{
    bp_buckets_config config;
    bp_status status = bp_buckets_config_init(&config, sizeof config);
    if (status != BP_OK)
        return status;
    config.bucketing = a->bucketing;
    config.padding = a->padding;
    config.dp = options->dp;
    config.ep = options->ep;
    config.flat_alignment = options->flat_alignment;
    config.param_dtype = options->param_dtype;
    config.grad_dtype = options->grad_dtype;
    config.grad_comm_dtype = options->grad_comm_dtype;
    config.roles = options->roles;
    if (options->eval)
        config.roles &= BP_ROLE_BIT(BP_ROLE_PARAM) | BP_ROLE_BIT(BP_ROLE_STATE);
    return bp_buckets_create(model, &config, &a->buckets);
}

static bp_status make_schedule(const plan_options *options, const bp_model *model, analysis *a)
{
    a->recorded = bp_model_event_count(model) > 0;
    if (a->recorded)
        return bp_schedule_create_recorded(model, a->buckets, NULL, &a->schedule);
    bp_schedule_config config;
    bp_status status = bp_schedule_config_init(&config, sizeof config);
    if (status != BP_OK)
        return status;
    config.prefetch = options->prefetch;
    config.grad_units = options->grad_units;
    config.passes = options->eval ? BP_PASSES_EVAL : BP_PASSES_TRAIN;
    return bp_schedule_create_training(a->buckets, &config, &a->schedule);
}

/* What a saved plan remembers of how it was made. */
static bp_status note_options(const plan_options *o, const analysis *a, bp_plan *plan)
{
    char text[32];
    bp_status status = bp_plan_set_option(plan, "bucketing", options_bucketing_name(a->bucketing));
    if (status == BP_OK)
        status = bp_plan_set_option(plan, "padding", options_padding_name(a->padding));
    if (status == BP_OK)
        status = bp_plan_set_option(plan, "layout", options_layout_name(a->layout));
    const struct {
        const char *key;
        uint64_t value;
    } numbers[] = {{"dp", o->dp},           {"ep", o->ep},
                   {"tp", o->tp},           {"prefetch", o->prefetch},
                   {"buffers", o->buffers}, {"grad_units", o->grad_units},
                   {"eval", o->eval}};
    if (status == BP_OK)
        status = bp_plan_set_option(plan, "schedule", a->recorded ? "recorded" : o->eval ? "evaluation" : "training");
    for (size_t i = 0; status == BP_OK && i < sizeof numbers / sizeof *numbers; i++) {
        snprintf(text, sizeof text, "%llu", (unsigned long long)numbers[i].value);
        status = bp_plan_set_option(plan, numbers[i].key, text);
    }
    const struct {
        const char *key;
        bp_dtype dtype;
    } dtypes[] = {
        {"param_dtype", o->param_dtype}, {"grad_dtype", o->grad_dtype}, {"grad_comm_dtype", o->grad_comm_dtype}};
    for (size_t i = 0; status == BP_OK && i < sizeof dtypes / sizeof *dtypes; i++) {
        if (dtypes[i].dtype != BP_DTYPE_NONE)
            status = bp_plan_set_option(plan, dtypes[i].key, bp_dtype_name(dtypes[i].dtype));
    }
    return status;
}

bp_status analysis_plan(const analysis *a, const plan_options *options, bp_policy policy, uint64_t alignment,
                        bp_plan **plan)
{
    bp_plan_config config;
    bp_plan *made = NULL;
    bp_status status = bp_plan_config_init(&config, sizeof config);
    config.policy = policy;
    config.copies = options->buffers;
    config.fallback = options->fallback;
    config.alignment = alignment;
    if (status == BP_OK)
        status = bp_plan_create(a->buckets, a->schedule, &config, &made);
    if (status == BP_OK)
        status = note_options(options, a, made);
    if (status == BP_OK)
        *plan = made;
    else
        bp_plan_destroy(&made);
    return status;
}

static bp_status make_plans(const plan_options *options, analysis *a)
{
    bp_status status = BP_OK;
    for (size_t i = 0; status == BP_OK && i < options->policy_count; i++) {
        status = analysis_plan(a, options, options->policies[i], options->alignment, &a->plans[i]);
        a->plan_count += status == BP_OK;
    }
    return status;
}

/* Sums what one GPU holds beside the pool; false when it does not fit 64 bits. */
static bool sum_state(analysis *a, bool trains)
{
    uint64_t shard_numel = 0;
    state_bytes *s = &a->state;
    s->outside = bp_buckets_outside_bytes(a->buckets);
    for (size_t i = 0; i < bp_buckets_count(a->buckets); i++) {
        bp_bucket b = {.size = sizeof b};
        if (bp_buckets_get(a->buckets, i, &b) != BP_OK)
            return false;
        uint64_t numel = b.padded_numel / b.shards + (b.padded_numel % b.shards != 0), bytes;
        uint64_t trained = b.grad_padded_numel / b.shards + (b.grad_padded_numel % b.shards != 0);
        if (bp_dtype_bytes(b.dtype, numel, &bytes) != BP_OK ||
            __builtin_add_overflow(s->param_shards, bytes, &s->param_shards) ||
            (trains && __builtin_add_overflow(shard_numel, trained, &shard_numel)))
            return false;
        a->units += b.unit >= 0 && b.ordinal == 0;
    }
    return !__builtin_mul_overflow(shard_numel, (uint64_t)GRAD_SHARD_BYTES, &s->grad_shards) &&
           !__builtin_mul_overflow(shard_numel, (uint64_t)OPTIMIZER_BYTES, &s->optimizer) &&
           !__builtin_add_overflow(s->outside, s->param_shards, &s->total) &&
           !__builtin_add_overflow(s->total, s->grad_shards, &s->total) &&
           !__builtin_add_overflow(s->total, s->optimizer, &s->total);
}

uint64_t analysis_needed(const analysis *a, const bp_plan *plan)
{
    uint64_t sum = a->state.total;
    for (size_t i = 0; i < bp_plan_role_count(plan); i++) {
        bp_plan_role role = {.size = sizeof role};
        if (bp_plan_role_get(plan, i, &role) != BP_OK)
            return UINT64_MAX;
        /* shards in the state role are those that the state counts */
        if (role.role != BP_ROLE_STATE && __builtin_add_overflow(sum, role.bytes, &sum))
            return UINT64_MAX;
    }
    return sum;
}

const char *analysis_schedule_text(const analysis *a, const plan_options *options, char text[64])
{
    if (a->recorded)
        snprintf(text, 64, "recorded schedule of %zu events", bp_schedule_step_count(a->schedule));
    else
        snprintf(text, 64, "prefetch %u", options->prefetch);
    return text;
}

static bool is_infeasible(const analysis *a)
{
    for (size_t i = 0; i < a->plan_count; i++) {
        bp_plan_summary summary = {.size = sizeof summary};
        if (bp_plan_summary_get(a->plans[i], &summary) != BP_OK || !summary.feasible)
            return true;
    }
    return false;
}

static void choose_rules(const plan_options *options, const bp_model *model, analysis *a)
{
    bool gives = bp_model_given_bucket_count(model) > 0 && bp_model_parameter_count(model) == 0;
    a->bucketing = options->bucketing != 0 ? options->bucketing : gives ? BP_BUCKETING_GIVEN : BP_BUCKETING_MEGATRON;
    a->padding = options->padding != 0                   ? options->padding
                 : a->bucketing == BP_BUCKETING_MEGATRON ? BP_PADDING_MEGATRON_LCM
                 : a->bucketing == BP_BUCKETING_FSDP2    ? BP_PADDING_FSDP2
                                                         : BP_PADDING_GIVEN;
    a->layout = options->layout != 0                    ? options->layout
                : a->bucketing == BP_BUCKETING_MEGATRON ? BP_LAYOUT_MEGATRON
                                                        : BP_LAYOUT_HF;
}

static int analyse(const char *path, const plan_options *options, analysis *a)
{
    *a = (analysis){0};
    bp_reader_options reader;
    bp_model *model = NULL;
    bp_status status = bp_reader_options_init(&reader, sizeof reader);
    reader.units = options->units;
    if (status == BP_OK)
        status = bp_model_read(path, &reader, &model);
    if (status != BP_OK)
        return cli_fail_status(status);
    choose_rules(options, model, a);
    a->name = strdup(bp_model_name(model));
    status = localise(options, a, &model);
    if (status == BP_OK)
        status = make_buckets(options, model, a);
    if (status == BP_OK)
        status = make_schedule(options, model, a);
    if (status == BP_OK)
        status = make_plans(options, a);
    bp_model_destroy(&model);
    if (a->name == NULL)
        return cli_fail(EXIT_ENVIRONMENT, "out of memory");
    if (status != BP_OK)
        return cli_fail(status == BP_ERR_NO_HOST_MEMORY ? EXIT_ENVIRONMENT : EXIT_BAD_INPUT, "%s: %s", path,
                        bp_error_detail());
    if (!sum_state(a, !options->eval))
        return cli_fail(EXIT_BAD_INPUT, "%s: the model's state does not fit 64 bits", path);
    return EXIT_GO_ON;
}

static void finish(analysis *a)
{
    free(a->name);
    bp_buckets_destroy(&a->buckets);
    bp_schedule_destroy(&a->schedule);
    for (size_t i = 0; i < a->plan_count; i++)
        bp_plan_destroy(&a->plans[i]);
    *a = (analysis){0};
}

int analysis_init_all(const plan_options *options, analysis **analyses, bool *infeasible)
{
    *infeasible = false;
    *analyses = calloc(options->model_count, sizeof **analyses);
    if (*analyses == NULL)
        return cli_fail(EXIT_ENVIRONMENT, "out of memory");
    for (size_t i = 0; i < options->model_count; i++) {
        int code = analyse(options->models[i], options, &(*analyses)[i]);
        if (code != EXIT_GO_ON)
            return code;
        *infeasible = *infeasible || is_infeasible(&(*analyses)[i]);
    }
    return EXIT_GO_ON;
}

void analysis_finish_all(analysis *analyses, size_t count)
{
    for (size_t i = 0; analyses != NULL && i < count; i++)
        finish(&analyses[i]);
    free(analyses);
}
