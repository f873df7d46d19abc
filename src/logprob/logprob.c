/* Log-probabilities of logits: the client's life. */
#include "logprob/logprob.h"

#include <stdlib.h>

#include "core/arith.h"
#include "core/fail.h"

#define PLANE_BYTES 4u /* of a saved value */

bp_status bp_logprob_config_init(bp_logprob_config *config, size_t size)
{
    if (config == NULL || size < sizeof *config)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_logprob_config_init: size %zu, expected at least %zu", size,
                       sizeof *config);
    *config = (bp_logprob_config){.size = sizeof *config,
                                  .targets = BP_TARGETS_ANY,
                                  .kernels = BP_KERNELS_PLAIN | BP_KERNELS_AVX2 | BP_KERNELS_AVX512};
    return BP_OK;
}

bp_status bp_logprob_create(bp_device *device, const bp_logprob_config *config, bp_logprob **client)
{
    bp_status status = BP_OK;
    if (device == NULL || config == NULL || config->size < sizeof *config || client == NULL)
        status =
            bp_fail(BP_ERR_INVALID_ARGUMENT,
                    "bp_logprob_create: needs a device, a configuration of %zu bytes and an output", sizeof *config);
    if (config == NULL || config->size < sizeof *config)
        return status; /* else the other ranks learn of it */
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
    if (status != BP_OK || client == NULL) { /* without it BP_OK was never to be had */
        free(made);
        return status;
    }
    *client = made;
    return BP_OK;
}

void bp_logprob_destroy(bp_logprob **client)
{
    if (client == NULL || *client == NULL)
        return;
    bp_logprob *gone = *client;
    *client = NULL;
    if (bp_device_is_inherited(gone->base.device)) /* work of the parent would be waited for */
        return;
    bp_base_finish(&gone->base);
    free(gone);
}

bp_status bp_logprob_info_get(const bp_logprob *client, bp_logprob_info *info)
{
    if (client == NULL || info == NULL || info->size < sizeof *info)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_logprob_info_get: needs a client and an output of %zu bytes",
                       sizeof *info);
    const bp_base *base = &client->base;
    *info = (bp_logprob_info){.size = sizeof *info,
                              .kernels = base->engine->kernels,
                              .threads = base->engine->threads,
                              .workspace_bytes = base->workspace.bytes,
                              .planned_bytes = base->workspace.planned_bytes,
                              .vocab = base->shards.vocab};
    return BP_OK;
}

bp_pool *bp_logprob_pool(const bp_logprob *client)
{
    return client == NULL ? NULL : client->base.workspace.pool;
}

bp_status bp_logprob_batch_init(bp_logprob_batch *batch, size_t size)
{
    if (batch == NULL || size < sizeof *batch)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_logprob_batch_init: size %zu, expected at least %zu", size,
                       sizeof *batch);
    *batch = (bp_logprob_batch){.size = sizeof *batch, .target_dtype = BP_DTYPE_INT64, .temperature = 1};
    return BP_OK;
}

bp_status bp_logprob_outputs_init(bp_logprob_outputs *outputs, size_t size)
{
    if (outputs == NULL || size < sizeof *outputs)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_logprob_outputs_init: size %zu, expected at least %zu", size,
                       sizeof *outputs);
    *outputs = (bp_logprob_outputs){.size = sizeof *outputs};
    return BP_OK;
}

bp_status bp_logprob_gradients_init(bp_logprob_gradients *gradients, size_t size)
{
    if (gradients == NULL || size < sizeof *gradients)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_logprob_gradients_init: size %zu, expected at least %zu", size,
                       sizeof *gradients);
    *gradients = (bp_logprob_gradients){.size = sizeof *gradients, .logits_grad = {.dtype = BP_DTYPE_FP32}};
    return BP_OK;
}

bp_status bp_logprob_saved_bytes(uint64_t tokens, int with_entropy, uint64_t *bytes)
{
    if (bytes == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_logprob_saved_bytes: needs an output");
    uint64_t needed;
    if (!bp_mul_u64(tokens, (with_entropy ? 3 : 2) * PLANE_BYTES, &needed))
        return bp_fail(BP_ERR_OVERFLOW, "what is saved of %llu tokens does not fit 64 bits",
                       (unsigned long long)tokens);
    *bytes = needed;
    return BP_OK;
}

bp_status bp_logprob_check(bp_logprob *client)
{
    if (client == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_logprob_check: needs a client");
    return bp_base_check(&client->base);
}
