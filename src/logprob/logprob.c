/* Log-probabilities of logits: the client's life. */
#include "logprob/logprob.h"

#include <stdlib.h>

#include "core/arith.h"
#include "core/fail.h"
#include "core/structs.h"
#include "devices/clients.h"

#define PLANE_BYTES 4u /* of a saved value */

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
    bp_status status = BP_OK; /* from here on the other ranks learn of failures */
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
    if (status != BP_OK || made == NULL || client == NULL) { /* without either BP_OK was never to be had */
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
    if (bp_device_is_inherited(gone->base.device)) /* work of the parent would be waited for */
        return;
    bp_base_finish(&gone->base);
    free(gone);
}

const bp_logprob_info *bp_logprob_get_info(const bp_logprob *client)
{
    return client != NULL ? &client->info : NULL;
}

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
