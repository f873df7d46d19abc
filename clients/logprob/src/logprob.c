/* SPDX-License-Identifier: Apache-2.0 */
/* Client for log-probabilities of targets over logits that may be sharded by vocabulary. */
#include <bucketpool/core/arith.h>
#include <bucketpool/core/fail.h>
#include <bucketpool/core/structs.h>
#include <bucketpool/kernels.h>

#include <stdlib.h>

#include "base.h"

struct bp_logprob {
    bp_base base;
    bp_logprob_info info;
};

/* ---- the client -------------------------------------------------------------------------------------------------- */

_Static_assert(BP_LOGPROB_MAX_TARGETS == BP_MAX_TARGETS, "kernels keep the targets of a token in fixed arrays");

static const bp_logprob_config logprob_config_defaults = {
    .size = sizeof logprob_config_defaults, .max_targets = 1, .targets = BP_TARGETS_ERROR, .kernels = BP_KERNELS_ALL};

bp_status bp_logprob_config_init(bp_logprob_config *config, size_t size)
{
    return bp_struct_init("bp_logprob_config_init", config, size, &logprob_config_defaults,
                          sizeof logprob_config_defaults);
}

bp_status bp_logprob_create(bp_device *device, const bp_logprob_config *config, bp_logprob **client)
{
    bp_logprob_config own = logprob_config_defaults;
    BP_TRY(bp_struct_read("bp_logprob_create", config, false, &own, sizeof own));
    bp_status status = BP_OK; /* from here on the other ranks must learn of failures */
    if (device == NULL || client == NULL)
        status = bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_logprob_create: needs a device and an output");
    config = &own;
    const bp_base_config base = {
        .call = "bp_logprob_create",
        .name = "logprob",
        .max_tokens = config->max_tokens,
        .max_targets = config->max_targets,
        .shard = {.start = config->vocab_start,
                  .columns = config->vocab,
                  .same = {config->max_tokens, config->max_targets, (uint64_t)config->targets}},
        .same = {"max_tokens", "max_targets", "targets"},
        .comm = config->comm,
        .targets = config->targets,
        .threads = config->threads,
        .kernels = config->kernels};
    bp_logprob *made = calloc(1, sizeof *made);
    if (status == BP_OK && made == NULL)
        status = bp_fail_memory(sizeof *made);
    status = bp_base_init(device, &base, status, made != NULL ? &made->base : &(bp_base){0});
    if (status != BP_OK || made == NULL ||
        client == NULL) { /* without `made` and `client` the status cannot be BP_OK */
        free(made);
        return status;
    }
    made->info = (bp_logprob_info){.kernels = made->base.engine->kernels,
                                   .threads = made->base.engine->threads,
                                   .workspace_bytes = made->base.workspace.bytes,
                                   .planned_bytes = made->base.workspace.planned_bytes,
                                   .vocab = made->base.shards.vocab,
                                   .pool = made->base.workspace.pool};
    *client = made;
    return BP_OK;
}

void bp_logprob_destroy(bp_logprob **client)
{
    if (client == NULL || *client == NULL)
        return;
    bp_logprob *gone = *client;
    *client = NULL;
    if (bp_device_is_inherited(gone->base.device)) /* waiting would be for the parent's work */
        return;
    bp_base_finish(&gone->base);
    free(gone);
}

const bp_logprob_info *bp_logprob_get_info(const bp_logprob *client)
{
    return client != NULL ? &client->info : NULL;
}

const char *bp_logprob_cuda_codes(void)
{
    return BP_CUDA_CODES;
}

bp_status bp_logprob_check(bp_logprob *client)
{
    if (client == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_logprob_check: needs a client");
    return bp_base_check(&client->base);
}

bp_status bp_logprob_saved_bytes(uint64_t tokens, int with_entropy, uint64_t *bytes)
{
    if (bytes == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_logprob_saved_bytes: needs an output");
    uint64_t needed;
    if (!bp_mul_u64(tokens, (with_entropy ? 3 : 2) * sizeof(float), &needed))
        return bp_fail(BP_ERR_OVERFLOW, "the saved statistics of %llu tokens do not fit 64 bits",
                       (unsigned long long)tokens);
    *bytes = needed;
    return BP_OK;
}

/* ---- batches ----------------------------------------------------------------------------------------------------- */

static const bp_logprob_batch logprob_batch_defaults = {.size = sizeof logprob_batch_defaults,
                                                        .tokens = BP_TOKENS_DEFAULTS};

bp_status bp_logprob_batch_init(bp_logprob_batch *batch, size_t size)
{
    return bp_struct_init("bp_logprob_batch_init", batch, size, &logprob_batch_defaults, sizeof logprob_batch_defaults);
}

static const bp_logprob_outputs logprob_outputs_defaults = {.size = sizeof logprob_outputs_defaults};

bp_status bp_logprob_outputs_init(bp_logprob_outputs *outputs, size_t size)
{
    return bp_struct_init("bp_logprob_outputs_init", outputs, size, &logprob_outputs_defaults,
                          sizeof logprob_outputs_defaults);
}

static const bp_logprob_gradients logprob_gradients_defaults = {.size = sizeof logprob_gradients_defaults,
                                                                .logits_grad = {.dtype = BP_DTYPE_FP32}};

bp_status bp_logprob_gradients_init(bp_logprob_gradients *gradients, size_t size)
{
    return bp_struct_init("bp_logprob_gradients_init", gradients, size, &logprob_gradients_defaults,
                          sizeof logprob_gradients_defaults);
}

/* The checked batch of a call. `token_count` 0: nothing to do, the rest is unset. */
typedef struct batch_work {
    uint64_t token_count;
    bp_token_rows logits; /* with strides */
    bp_tokens_work tokens;
    bp_logits_work work;
} batch_work;

static bp_logits_work logits_work(const bp_base *base, const bp_token_rows *rows, const bp_logprob_tokens *tokens)
{
    return (bp_logits_work){.data = rows->data,
                            .batch_stride = rows->batch_stride,
                            .stride = rows->stride,
                            .columns = base->columns,
                            .first = base->start,
                            .dtype = (int32_t)rows->dtype,
                            .rounding = (int32_t)tokens->rounding,
                            .cap = tokens->soft_cap};
}

static bp_status check_batch(const char *call, const bp_logprob *client, const bp_logprob_batch *batch,
                             bool reads_targets, batch_work *work)
{
    const bp_base *base = &client->base;
    const uint64_t rows = batch->logits.batch, sequence = batch->logits.sequence;
    batch_work checked = {0};
    BP_TRY(bp_check_count(call, rows, sequence, base->max_tokens, &checked.token_count));
    BP_TRY(bp_check_rows(call, "logits", &batch->logits, base->columns, false, &checked.logits));
    BP_TRY(bp_check_tokens(call, base, &batch->tokens, reads_targets, rows, sequence, &checked.tokens));
    checked.work = logits_work(base, &checked.logits, &batch->tokens);
    *work = checked;
    return BP_OK;
}

/* Reads and checks the batch of a call on a client. */
static bp_status read_batch(const char *call, const bp_logprob *client, const bp_logprob_batch *batch,
                            bool reads_targets, batch_work *work)
{
    bp_logprob_batch own = logprob_batch_defaults;
    if (client == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: needs a client", call);
    BP_TRY(bp_struct_read(call, batch, false, &own, sizeof own));
    return check_batch(call, client, &own, reads_targets, work);
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

static bp_status read_outputs(const char *call, const bp_logprob_outputs *outputs, const bp_tokens_work *tokens,
                              bp_results_work *results)
{
    bp_logprob_outputs wanted = logprob_outputs_defaults;
    BP_TRY(bp_struct_read(call, outputs, false, &wanted, sizeof wanted));
    *results = (bp_results_work){0};
    return tokens->batch * tokens->sequence == 0 ? BP_OK : bp_check_outputs(call, &wanted, tokens, results);
}

static bp_status run_forward(const char *call, bp_base *base, const bp_tokens_work *tokens,
                             const bp_logits_work *logits, const bp_results_work *results, bp_stream *stream)
{
    bp_forward_pass pass;
    BP_TRY(bp_base_begin_forward(call, base, tokens, false, stream, &pass));
    bp_forward_work work = bp_forward_work_of(&pass, tokens, 0, results);
    work.logits = *logits;
    return bp_base_end_forward(base, tokens, &pass, results, stream,
                               base->engine->ops->forward(base->engine, &work, stream));
}

bp_status bp_logprob_forward(bp_logprob *client, const bp_logprob_batch *batch, const bp_logprob_outputs *outputs,
                             bp_stream *stream)
{
    const char *call = "bp_logprob_forward";
    batch_work work;
    bp_results_work results;
    BP_TRY(read_batch(call, client, batch, true, &work));
    BP_TRY(read_outputs(call, outputs, &work.tokens, &results));
    if (work.token_count == 0)
        return BP_OK;
    bp_base *base = &client->base;
    return bp_base_end(base, stream,
                       run_forward(call, base, &work.tokens, &work.work, &results, bp_base_stream(base, stream)));
}

/* ---- backward: reads the logits again and writes their gradient --------------------------------------------------- */

/* The gradient has the logits' shape, and is fp32 or of their dtype. */
static bp_status check_gradient(const char *call, const bp_token_rows *logits, const bp_token_rows *given,
                                bool in_place, bp_token_rows *grad)
{
    if (given->batch != logits->batch || given->sequence != logits->sequence)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: a gradient of %llu x %llu tokens for logits of %llu x %llu", call,
                       (unsigned long long)given->batch, (unsigned long long)given->sequence,
                       (unsigned long long)logits->batch, (unsigned long long)logits->sequence);
    if (given->dtype != BP_DTYPE_FP32 && given->dtype != logits->dtype)
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "%s: the gradient is %s for logits in %s; use fp32 or the logits' dtype", call,
                       bp_dtype_name(given->dtype), bp_dtype_name(logits->dtype));
    BP_TRY(bp_check_rows(call, "gradients", given, logits->columns, true, grad));
    const bool is_logits = grad->data == logits->data && grad->dtype == logits->dtype &&
                           grad->batch_stride == logits->batch_stride && grad->stride == logits->stride;
    if (in_place && !is_logits)
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "%s: in_place is set, but the gradient (%s at %p, strides %lld and %lld) is not where the "
                       "logits are (%s at %p, "
                       "strides %lld and %lld)",
                       call, bp_dtype_name(grad->dtype), grad->data, (long long)grad->batch_stride,
                       (long long)grad->stride, bp_dtype_name(logits->dtype), logits->data,
                       (long long)logits->batch_stride, (long long)logits->stride);
    if (!in_place && bp_rows_overlap(logits, grad))
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "%s: the gradient at %p overlaps the logits at %p; set in_place to overwrite them", call,
                       grad->data, logits->data);
    return BP_OK;
}

/* `saved`: of the forward pass in the same call, or NULL. */
static bp_status read_gradients(const char *call, const bp_logprob_gradients *gradients,
                                const bp_logprob_outputs *outputs, const batch_work *batch, bp_gradient_work *work)
{
    bp_logprob_gradients wanted = logprob_gradients_defaults;
    bp_token_rows grad;
    BP_TRY(bp_struct_read(call, gradients, false, &wanted, sizeof wanted));
    if (outputs != NULL) {
        bp_logprob_outputs of_forward = logprob_outputs_defaults;
        BP_TRY(bp_struct_read(call, outputs, false, &of_forward, sizeof of_forward));
        BP_TRY(bp_check_one_call(call, &of_forward, wanted.saved, &wanted.entropy_grad));
        wanted.saved = of_forward.saved;
        wanted.saved_bytes = of_forward.saved_bytes;
    }
    if (batch->token_count == 0)
        return BP_OK;
    *work = (bp_gradient_work){.tokens = batch->tokens, .logits = batch->work};
    BP_TRY(bp_check_gradients(call, &wanted, &batch->tokens, work));
    BP_TRY(check_gradient(call, &batch->logits, &wanted.logits_grad, wanted.in_place != 0, &grad));
    work->out = grad.data;
    work->out_batch_stride = grad.batch_stride;
    work->out_stride = grad.stride;
    work->out_dtype = (int32_t)grad.dtype;
    return BP_OK;
}

bp_status bp_logprob_backward(bp_logprob *client, const bp_logprob_batch *batch, const bp_logprob_gradients *gradients,
                              bp_stream *stream)
{
    const char *call = "bp_logprob_backward";
    batch_work checked;
    bp_gradient_work work;
    BP_TRY(read_batch(call, client, batch, true, &checked));
    BP_TRY(read_gradients(call, gradients, NULL, &checked, &work));
    if (checked.token_count == 0)
        return BP_OK;
    bp_base *base = &client->base;
    bp_stream *used = bp_base_stream(base, stream);
    BP_TRY(bp_stream_check(used, base->device, call));
    return bp_base_end(base, stream, base->engine->ops->gradient(base->engine, &work, used));
}

/* ---- both passes in one call ----------------------------------------------------------------------------------------- */

static bp_status run_both(const char *call, bp_base *base, const batch_work *batch, const bp_results_work *results,
                          const bp_gradient_work *gradient, bp_stream *stream)
{
    const bp_engine_ops *ops = base->engine->ops;
    if (base->shards.comm != NULL) {
        BP_TRY(run_forward(call, base, &batch->tokens, &batch->work, results, stream));
        return ops->gradient(base->engine, gradient, stream);
    }
    bp_forward_pass pass;
    BP_TRY(bp_base_begin_forward(call, base, &batch->tokens, false, stream, &pass));
    bp_fused_work work = {.forward = bp_forward_work_of(&pass, &batch->tokens, 0, results), .gradient = *gradient};
    work.forward.logits = batch->work;
    return bp_base_end_forward(base, &batch->tokens, &pass, results, stream, ops->fused(base->engine, &work, stream));
}

bp_status bp_logprob_forward_backward(bp_logprob *client, const bp_logprob_batch *batch,
                                      const bp_logprob_outputs *outputs, const bp_logprob_gradients *gradients,
                                      bp_stream *stream)
{
    const char *call = "bp_logprob_forward_backward";
    batch_work checked;
    bp_results_work results;
    bp_gradient_work work;
    BP_TRY(read_batch(call, client, batch, true, &checked));
    BP_TRY(read_outputs(call, outputs, &checked.tokens, &results));
    BP_TRY(read_gradients(call, gradients, outputs, &checked, &work));
    if (checked.token_count == 0)
        return BP_OK;
    bp_base *base = &client->base;
    return bp_base_end(base, stream, run_both(call, base, &checked, &results, &work, bp_base_stream(base, stream)));
}

/* ---- divergences ------------------------------------------------------------------------------------------------------- */

static const bp_logprob_divergence_args divergence_defaults = {
    .size = sizeof divergence_defaults, .reference = {.dtype = BP_DTYPE_BF16}, .logits_grad = {.dtype = BP_DTYPE_FP32}};

bp_status bp_logprob_divergence_args_init(bp_logprob_divergence_args *args, size_t size)
{
    return bp_struct_init("bp_logprob_divergence_args_init", args, size, &divergence_defaults,
                          sizeof divergence_defaults);
}

#define DIVERGENCE_PLANES 5 /* max and log-sum of both rows, and KL(p || m) */

bp_status bp_logprob_divergence_saved_bytes(uint64_t tokens, uint64_t *bytes)
{
    if (bytes == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_logprob_divergence_saved_bytes: needs an output");
    uint64_t needed;
    if (!bp_mul_u64(tokens, DIVERGENCE_PLANES * sizeof(float), &needed))
        return bp_fail(BP_ERR_OVERFLOW, "the saved statistics of %llu tokens do not fit 64 bits",
                       (unsigned long long)tokens);
    *bytes = needed;
    return BP_OK;
}

/* The checked arguments of both calls; without tokens the last three are unset. */
typedef struct divergence_work {
    bp_logprob_divergence_args args;
    bp_logits_work reference;
    bp_saved_work logits_saved, reference_saved;
    float *kept;
} divergence_work;

static bp_status read_divergence(const char *call, const bp_logprob *client, const bp_logprob_batch *batch,
                                 const bp_logprob_divergence_args *args, batch_work *checked, divergence_work *work)
{
    bp_logprob_batch own = logprob_batch_defaults;
    *work = (divergence_work){.args = divergence_defaults};
    if (client == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: needs a client", call);
    BP_TRY(bp_struct_read(call, batch, false, &own, sizeof own));
    BP_TRY(bp_struct_read(call, args, false, &work->args, sizeof work->args));
    BP_TRY(check_batch(call, client, &own, false, checked));
    const bp_token_rows *logits = &checked->logits, *given = &work->args.reference;
    if (!(work->args.beta >= 0 && work->args.beta <= 1))
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: beta %g is outside [0, 1]", call, (double)work->args.beta);
    if (given->batch != logits->batch || given->sequence != logits->sequence)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: a reference of %llu x %llu tokens for logits of %llu x %llu", call,
                       (unsigned long long)given->batch, (unsigned long long)given->sequence,
                       (unsigned long long)logits->batch, (unsigned long long)logits->sequence);
    if (checked->token_count == 0)
        return BP_OK;
    if (given->dtype != logits->dtype)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: the reference is %s for logits in %s; use one dtype", call,
                       bp_dtype_name(given->dtype), bp_dtype_name(logits->dtype));
    bp_token_rows reference;
    uint64_t needed;
    float *planes;
    const uint64_t count = checked->token_count;
    BP_TRY(bp_check_rows(call, "reference logits", given, client->base.columns, false, &reference));
    if (work->args.saved == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: saved is missing; pass 20 bytes a token", call);
    BP_TRY(bp_logprob_divergence_saved_bytes(count, &needed));
    BP_TRY(bp_check_saved(call, work->args.saved, work->args.saved_bytes, needed, count, "of a divergence", &planes));
    work->args.reference = reference; /* with strides */
    work->reference = logits_work(&client->base, &reference, &own.tokens);
    work->logits_saved = (bp_saved_work){.max = planes, .log_sum = planes + count};
    work->reference_saved = (bp_saved_work){.max = planes + 2 * count, .log_sum = planes + 3 * count};
    work->kept = planes + 4 * count;
    return BP_OK;
}

/* Statistics of both rows, then sums over them; over several ranks, each is exchanged. */
static bp_status run_divergence(const char *call, bp_base *base, const batch_work *batch, const divergence_work *work,
                                const bp_output_work *output, bp_stream *stream)
{
    const bp_results_work logits = {.saved = work->logits_saved}, reference = {.saved = work->reference_saved};
    BP_TRY(run_forward(call, base, &batch->tokens, &batch->work, &logits, stream));
    BP_TRY(run_forward(call, base, &batch->tokens, &work->reference, &reference, stream));
    const bp_engine_ops *ops = base->engine->ops;
    bp_workspace *workspace = &base->workspace;
    bp_divergence_work sums = {.tokens = batch->tokens,
                               .logits = batch->work,
                               .reference = work->reference,
                               .logits_saved = work->logits_saved,
                               .reference_saved = work->reference_saved,
                               .beta = work->args.beta,
                               .results = {.divergence = *output, .kept = work->kept}};
    if (base->shards.comm == NULL)
        return ops->divergence(base->engine, &sums, stream);
    void *mine = NULL, *all = NULL; /* smaller than the partials */
    BP_TRY(bp_workspace_take(workspace, BP_WORK_PARTIALS, stream, &mine));
    sums.sums = mine;
    bp_status status = ops->divergence(base->engine, &sums, stream);
    if (status == BP_OK)
        status = bp_workspace_take(workspace, BP_WORK_GATHERED, stream, &all);
    if (status == BP_OK)
        status =
            bp_gather_bytes(base->device, base->shards.comm, mine, batch->token_count * sizeof *sums.sums, all, stream);
    const bp_divergence_finish_work finish = {.tokens = batch->tokens,
                                              .sums = all,
                                              .ranks = base->shards.ranks,
                                              .beta = work->args.beta,
                                              .results = sums.results};
    if (status == BP_OK)
        status = ops->divergence_finish(base->engine, &finish, stream);
    return bp_workspace_drop(workspace, 1u << BP_WORK_PARTIALS | 1u << BP_WORK_GATHERED, stream, status);
}

bp_status bp_logprob_divergence(bp_logprob *client, const bp_logprob_batch *batch,
                                const bp_logprob_divergence_args *args, bp_stream *stream)
{
    const char *call = "bp_logprob_divergence";
    batch_work checked;
    divergence_work work;
    bp_output_work output;
    BP_TRY(read_divergence(call, client, batch, args, &checked, &work));
    if (checked.token_count == 0)
        return BP_OK;
    BP_TRY(bp_check_output(call, "divergences", &work.args.divergence, &checked.tokens, 1, &output));
    bp_base *base = &client->base;
    return bp_base_end(base, stream,
                       run_divergence(call, base, &checked, &work, &output, bp_base_stream(base, stream)));
}

bp_status bp_logprob_divergence_backward(bp_logprob *client, const bp_logprob_batch *batch,
                                         const bp_logprob_divergence_args *args, bp_stream *stream)
{
    const char *call = "bp_logprob_divergence_backward";
    batch_work checked;
    divergence_work work;
    bp_token_rows grad;
    bp_upstream_work upstream;
    BP_TRY(read_divergence(call, client, batch, args, &checked, &work));
    if (checked.token_count == 0)
        return BP_OK;
    BP_TRY(bp_check_upstream(call, "upstream gradients of divergences", &work.args.divergence_grad, &checked.tokens, 1,
                             &upstream));
    BP_TRY(check_gradient(call, &checked.logits, &work.args.logits_grad, work.args.in_place != 0, &grad));
    if (bp_rows_overlap(&work.args.reference, &grad))
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: the gradient at %p overlaps the reference logits at %p", call,
                       grad.data, work.args.reference.data);
    const bp_divergence_gradient_work gradient = {.tokens = checked.tokens,
                                                  .logits = checked.work,
                                                  .reference = work.reference,
                                                  .logits_saved = work.logits_saved,
                                                  .reference_saved = work.reference_saved,
                                                  .beta = work.args.beta,
                                                  .kept = work.kept,
                                                  .upstream = upstream,
                                                  .out = grad.data,
                                                  .out_batch_stride = grad.batch_stride,
                                                  .out_stride = grad.stride,
                                                  .out_dtype = (int32_t)grad.dtype};
    bp_base *base = &client->base;
    bp_stream *used = bp_base_stream(base, stream);
    BP_TRY(bp_stream_check(used, base->device, call));
    return bp_base_end(base, stream, base->engine->ops->divergence_gradient(base->engine, &gradient, used));
}

/* ---- range: the smallest and largest logit of each token ----------------------------------------------------------------- */

bp_status bp_logprob_range(bp_logprob *client, const bp_logprob_batch *batch, const bp_token_values *min,
                           const bp_token_values *largest, bp_stream *stream)
{
    static const bp_token_values none = {0};
    const char *call = "bp_logprob_range";
    batch_work checked;
    BP_TRY(read_batch(call, client, batch, false, &checked));
    if (checked.token_count == 0)
        return BP_OK;
    min = min != NULL ? min : &none;
    largest = largest != NULL ? largest : &none;
    BP_TRY(bp_check_values(call, "least", min, checked.tokens.batch, checked.tokens.sequence, true));
    BP_TRY(bp_check_values(call, "largest", largest, checked.tokens.batch, checked.tokens.sequence, true));
    const bp_range_work work = {.tokens = checked.tokens,
                                .logits = checked.work,
                                .min = min->data,
                                .min_batch_stride = min->batch_stride,
                                .min_stride = min->stride,
                                .largest = largest->data,
                                .largest_batch_stride = largest->batch_stride,
                                .largest_stride = largest->stride};
    bp_base *base = &client->base;
    bp_stream *used = bp_base_stream(base, stream);
    BP_TRY(bp_stream_check(used, base->device, call));
    return bp_base_end(base, stream, base->engine->ops->range(base->engine, &work, used));
}
