/* Client for log-probabilities of targets over logits that may be sharded by vocabulary. */
#include <stdlib.h>

#include "core/arith.h"
#include "core/fail.h"
#include "core/structs.h"
#include "devices/clients.h"
#include "logprob/base.h"

struct bp_logprob {
    bp_base base;
    bp_logprob_info info;
};

/* ---- the client -------------------------------------------------------------------------------------------------- */

static const bp_logprob_config logprob_config_defaults = {.size = sizeof logprob_config_defaults,
                                                          .targets = BP_TARGETS_ANY,
                                                          .kernels =
                                                              BP_KERNELS_PLAIN | BP_KERNELS_AVX2 | BP_KERNELS_AVX512};

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
    const bp_base_config base = {.call = "bp_logprob_create",
                                 .name = "logprob",
                                 .max_tokens = config->max_tokens,
                                 .shard = {.start = config->vocab_start,
                                           .columns = config->vocab,
                                           .same = {config->max_tokens, (uint64_t)config->targets}},
                                 .same = {"max_tokens", "targets"},
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

static const bp_logprob_batch logprob_batch_defaults = {
    .size = sizeof logprob_batch_defaults, .target_dtype = BP_DTYPE_INT64, .temperature = 1};

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

/* The checked batch of forward or backward. `tokens` 0: nothing to do, the rest is unset. */
typedef struct batch_work {
    uint64_t token_count;
    bp_token_rows logits; /* with strides */
    bp_tokens_work tokens;
    bp_logits_work work;
} batch_work;

static bp_status check_batch(const char *call, const bp_logprob *client, const bp_logprob_batch *batch,
                             batch_work *work)
{
    const bp_base *base = &client->base;
    if (batch->chunk < 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: chunk is %lld; use 0 for one piece or a positive number", call,
                       (long long)batch->chunk);
    BP_TRY(bp_check_temperature(call, batch->temperature));
    const uint64_t rows = batch->logits.batch, sequence = batch->logits.sequence;
    batch_work checked = {0};
    BP_TRY(bp_check_tokens(call, rows, sequence, base->max_tokens, &checked.token_count));
    if (checked.token_count != 0) {
        BP_TRY(bp_check_rows(call, "logits", &batch->logits, base->columns, false, &checked.logits));
        BP_TRY(
            bp_check_targets(call, &batch->target, batch->target_dtype, &batch->mask, rows, sequence, &checked.tokens));
        checked.work = (bp_logits_work){.data = checked.logits.data,
                                        .batch_stride = checked.logits.batch_stride,
                                        .stride = checked.logits.stride,
                                        .columns = base->columns,
                                        .first = base->start,
                                        .dtype = (int32_t)checked.logits.dtype,
                                        .scale = 1 / batch->temperature};
    }
    *work = checked;
    return BP_OK;
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

bp_status bp_logprob_forward(bp_logprob *client, const bp_logprob_batch *batch, const bp_logprob_outputs *outputs,
                             bp_stream *stream)
{
    const char *call = "bp_logprob_forward";
    bp_logprob_batch own = logprob_batch_defaults;
    bp_logprob_outputs wanted = logprob_outputs_defaults;
    if (client == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: needs a client", call);
    BP_TRY(bp_struct_read(call, batch, false, &own, sizeof own));
    BP_TRY(bp_struct_read(call, outputs, false, &wanted, sizeof wanted));
    batch_work work;
    bp_outputs_work out;
    BP_TRY(check_batch(call, client, &own, &work));
    if (work.token_count == 0)
        return BP_OK;
    BP_TRY(bp_check_outputs(call, &wanted, work.tokens.batch, work.tokens.sequence, &out));
    bp_base *base = &client->base;
    bp_stream *used = bp_base_stream(base, stream);
    void *partials = NULL;
    bp_status status = bp_workspace_take(&base->workspace, BP_WORK_PARTIALS, used, &partials);
    if (status != BP_OK)
        return bp_base_end(base, stream, status);
    const bp_partials_work sums = {
        .tokens = work.tokens, .logits = work.work, .partials = partials, .with_entropy = wanted.entropy.data != NULL};
    status = base->engine->ops->partials(base->engine, &sums, used);
    if (status == BP_OK)
        status = bp_base_finish_partials(base, &work.tokens, partials, work.work.scale, &out, used);
    else
        (void)bp_workspace_give(&base->workspace, BP_WORK_PARTIALS, used);
    return bp_base_end(base, stream, status);
}

/* ---- backward: reads the logits again and writes their gradient --------------------------------------------------- */

/* The gradient has the logits' shape, and is fp32 or of their dtype. */
static bp_status check_gradient(const char *call, const batch_work *batch, const bp_logprob_gradients *gradients,
                                bp_token_rows *grad)
{
    const bp_token_rows *logits = &batch->logits, *given = &gradients->logits_grad;
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
    if (gradients->in_place && !is_logits)
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "%s: in_place is set, but the gradient (%s at %p, strides %lld and %lld) is not where the "
                       "logits are (%s at %p, "
                       "strides %lld and %lld)",
                       call, bp_dtype_name(grad->dtype), grad->data, (long long)grad->batch_stride,
                       (long long)grad->stride, bp_dtype_name(logits->dtype), logits->data,
                       (long long)logits->batch_stride, (long long)logits->stride);
    if (!gradients->in_place && bp_rows_overlap(logits, grad))
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "%s: the gradient at %p overlaps the logits at %p; set in_place to overwrite them", call,
                       grad->data, logits->data);
    return BP_OK;
}

bp_status bp_logprob_backward(bp_logprob *client, const bp_logprob_batch *batch, const bp_logprob_gradients *gradients,
                              bp_stream *stream)
{
    const char *call = "bp_logprob_backward";
    bp_logprob_batch own = logprob_batch_defaults;
    bp_logprob_gradients wanted = logprob_gradients_defaults;
    if (client == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: needs a client", call);
    BP_TRY(bp_struct_read(call, batch, false, &own, sizeof own));
    BP_TRY(bp_struct_read(call, gradients, false, &wanted, sizeof wanted));
    batch_work checked;
    bp_token_rows grad;
    BP_TRY(check_batch(call, client, &own, &checked));
    if (checked.token_count == 0)
        return BP_OK;
    bp_gradient_work work = {.tokens = checked.tokens, .logits = checked.work};
    BP_TRY(bp_check_upstream(call, &wanted.logprob_grad, &wanted.entropy_grad, wanted.saved, wanted.saved_bytes,
                             checked.tokens.batch, checked.tokens.sequence, &work));
    BP_TRY(check_gradient(call, &checked, &wanted, &grad));
    work.out = grad.data;
    work.out_batch_stride = grad.batch_stride;
    work.out_stride = grad.stride;
    work.out_dtype = (int32_t)grad.dtype;
    bp_base *base = &client->base;
    bp_engine *engine = base->engine;
    bp_stream *used = bp_base_stream(base, stream);
    BP_TRY(bp_stream_check(used, base->device, call)); /* forward's pool checks its stream */
    return bp_base_end(base, stream, engine->ops->gradient(engine, &work, used));
}

/* ---- range: the smallest and largest logit of each token ----------------------------------------------------------------- */

bp_status bp_logprob_range(bp_logprob *client, const bp_logprob_batch *batch, const bp_token_values *least,
                           const bp_token_values *largest, bp_stream *stream)
{
    static const bp_token_values none = {0};
    static int64_t unread;
    const char *call = "bp_logprob_range";
    batch_work checked;
    bp_logprob_batch given = logprob_batch_defaults;
    if (client == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: needs a client", call);
    BP_TRY(bp_struct_read(call, batch, false, &given, sizeof given));
    if (given.target.data == NULL)
        given.target = (bp_token_values){.data = &unread};
    BP_TRY(check_batch(call, client, &given, &checked));
    if (checked.token_count == 0)
        return BP_OK;
    least = least != NULL ? least : &none;
    largest = largest != NULL ? largest : &none;
    BP_TRY(bp_check_values(call, "least", least, checked.tokens.batch, checked.tokens.sequence, true));
    BP_TRY(bp_check_values(call, "largest", largest, checked.tokens.batch, checked.tokens.sequence, true));
    const bp_range_work work = {.tokens = checked.tokens,
                                .logits = checked.work,
                                .least = least->data,
                                .least_batch_stride = least->batch_stride,
                                .least_stride = least->stride,
                                .largest = largest->data,
                                .largest_batch_stride = largest->batch_stride,
                                .largest_stride = largest->stride};
    bp_base *base = &client->base;
    bp_stream *used = bp_base_stream(base, stream);
    BP_TRY(bp_stream_check(used, base->device, call));
    return bp_base_end(base, stream, base->engine->ops->range(base->engine, &work, used));
}
