/* From a file to buckets: what is planned, and what lies beside the pool. */
#include <bucketpool/formats.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "analysis_parts.h"
#include "cli.h"
#include "models.h"

static void choose_rules(const plan_options *options, const bp_model *model, analysis *a)
{
    bool gives = bp_model_get_info(model)->given_bucket_count > 0 && bp_model_get_info(model)->parameter_count == 0;
    a->bucketing = options->bucketing != 0 ? options->bucketing : gives ? BP_BUCKETING_GIVEN : BP_BUCKETING_MEGATRON;
    a->padding = options->padding != 0                   ? options->padding
                 : a->bucketing == BP_BUCKETING_MEGATRON ? BP_PADDING_MEGATRON_LCM
                 : a->bucketing == BP_BUCKETING_FSDP2    ? BP_PADDING_FSDP2
                                                         : BP_PADDING_GIVEN;
    a->layout = options->layout != 0                    ? options->layout
                : a->bucketing == BP_BUCKETING_MEGATRON ? BP_LAYOUT_MEGATRON
                                                        : BP_LAYOUT_HF;
}

static void copy_notes(const bp_model *model, analysis *a)
{
    const bp_model_info *info = bp_model_get_info(model);
    size_t used = 0;
    for (size_t i = 0; i < info->note_count && used < sizeof a->notes; i++)
        used += (size_t)snprintf(a->notes + used, sizeof a->notes - used, "%s%s", i > 0 ? "; " : "", info->notes[i]);
}

/* The model as one rank of tp and ep holds it, in the layout asked for. Destroys what it was made from. */
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
    config.main_grad_dtype = options->main_grad_dtype;
    config.optimizer_dtype = options->optimizer_dtype;
    config.optimizer_tensors = options->optimizer_tensors;
    config.roles = options->roles;
    if (options->schedule.passes == BP_PASSES_EVAL)
        config.roles &= OPTIONS_EVALUATED_ROLES;
    return bp_buckets_create(model, &config, &a->buckets);
}

int analysis_fail(const char *path, bp_status status)
{
    return cli_fail(status == BP_ERR_NO_HOST_MEMORY ? EXIT_ENVIRONMENT : EXIT_BAD_INPUT, "%s: %s", path,
                    bp_error_detail());
}

static int read_model(const char *given, const plan_options *options, analysis *a, bp_model **model)
{
    char *path;
    int code = models_find(given, &path);
    if (code != EXIT_GO_ON)
        return code;
    bp_reader_options reader;
    bp_status status = bp_reader_options_init(&reader, sizeof reader);
    reader.units = options->units;
    a->tensors = options->units != NULL && models_has_tensors(path);
    if (status == BP_OK)
        status = bp_model_read(path, &reader, model);
    free(path);
    return status == BP_OK ? EXIT_GO_ON : cli_fail_status(status);
}

int analysis_read(const char *path, const plan_options *options, analysis *a, bp_model **model)
{
    int code = read_model(path, options, a, model);
    if (code != EXIT_GO_ON)
        return code;
    choose_rules(options, *model, a);
    copy_notes(*model, a);
    a->name = strdup(bp_model_get_info(*model)->name);
    if (a->name == NULL)
        return cli_fail(EXIT_ENVIRONMENT, "out of memory");
    bp_status status = localise(options, a, model);
    if (status == BP_OK)
        status = make_buckets(options, *model, a);
    if (status != BP_OK)
        return analysis_fail(path, status);
    return analysis_sum_state(options, a)
               ? EXIT_GO_ON
               : cli_fail(EXIT_BAD_INPUT, "%s: the model's state does not fit 64 bits", path);
}

bp_dtype analysis_trained_dtype(bp_dtype asked)
{
    return asked != BP_DTYPE_NONE ? asked : BP_DTYPE_FP32;
}

static uint64_t shard_of(uint64_t numel, uint32_t shards)
{
    return numel / shards + (numel % shards != 0);
}

/* `tensors` of `numel` elements each. */
static bool add_tensors(bp_dtype dtype, uint64_t numel, uint64_t tensors, uint64_t *sum)
{
    uint64_t bytes;
    return bp_dtype_bytes(dtype, numel, &bytes) == BP_OK && !__builtin_mul_overflow(bytes, tensors, &bytes) &&
           !__builtin_add_overflow(*sum, bytes, sum);
}

bool analysis_sum_state(const plan_options *options, analysis *a)
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
        a->units += b.unit >= 0 && b.ordinal == 0;
    }
    return !__builtin_add_overflow(s->outside, s->param_shards, &s->total) &&
           !__builtin_add_overflow(s->total, s->grad_shards, &s->total) &&
           !__builtin_add_overflow(s->total, s->optimizer, &s->total);
}
