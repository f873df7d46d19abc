/* SPDX-License-Identifier: Apache-2.0 */
/* Creation and destruction of the fused head. */
#include "lm_head.h"

#include <bucketpool/core/arith.h>
#include <bucketpool/core/fail.h>
#include <bucketpool/core/structs.h>
#include <bucketpool/cuda.h>
#include <bucketpool/kernels.h>

#include <stdlib.h>

#define DEFAULT_CHUNK 1024

/* Elements of the logits, and of the weight, in a tile of the host: caches keep the logits from product to kernel. */
#define TILE_LOGITS (UINT64_C(2) << 20)
#define TILE_WEIGHT (UINT64_C(4) << 20)

static const bp_lm_head_config lm_head_config_defaults = {.size = sizeof lm_head_config_defaults,
                                                          .max_targets = 1,
                                                          .dtype = BP_DTYPE_BF16,
                                                          .chunk = DEFAULT_CHUNK,
                                                          .targets = BP_TARGETS_ERROR,
                                                          .kernels =
                                                              BP_KERNELS_PLAIN | BP_KERNELS_AVX2 | BP_KERNELS_AVX512};

bp_status bp_lm_head_config_init(bp_lm_head_config *config, size_t size)
{
    return bp_struct_init("bp_lm_head_config_init", config, size, &lm_head_config_defaults,
                          sizeof lm_head_config_defaults);
}

static const bp_lm_head_batch lm_head_batch_defaults = {
    .size = sizeof lm_head_batch_defaults, .hidden = {.dtype = BP_DTYPE_BF16}, .tokens = BP_TOKENS_DEFAULTS};

bp_status bp_lm_head_batch_init(bp_lm_head_batch *batch, size_t size)
{
    return bp_struct_init("bp_lm_head_batch_init", batch, size, &lm_head_batch_defaults, sizeof lm_head_batch_defaults);
}

static const bp_lm_head_gradients lm_head_gradients_defaults = {.size = sizeof lm_head_gradients_defaults,
                                                                .hidden_grad = {.dtype = BP_DTYPE_FP32}};

bp_status bp_lm_head_gradients_init(bp_lm_head_gradients *gradients, size_t size)
{
    return bp_struct_init("bp_lm_head_gradients_init", gradients, size, &lm_head_gradients_defaults,
                          sizeof lm_head_gradients_defaults);
}

/* ---- creation ------------------------------------------------------------------------------------------------------- */

static bp_status lm_head_check_config(const char *call, const bp_lm_head_config *config)
{
    if (config->max_tokens == 0 || config->hidden == 0 || config->vocab == 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: max_tokens %llu, hidden %llu and vocab %llu must not be 0", call,
                       (unsigned long long)config->max_tokens, (unsigned long long)config->hidden,
                       (unsigned long long)config->vocab);
    if (config->chunk < 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: chunk is %lld; use 0 for whole sequences or a positive number",
                       call, (long long)config->chunk);
    if (!bp_is_row_dtype(config->dtype))
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: hidden states and weight are %s; use fp32, bf16 or fp16", call,
                       bp_dtype_name(config->dtype));
    return BP_OK;
}

/* Columns of a tile on the host. */
static uint64_t host_tile(const bp_lm_head *head, uint64_t columns)
{
    const uint64_t max = bp_min_u64(TILE_LOGITS / head->chunk, TILE_WEIGHT / head->hidden);
    const uint64_t tiles = max / BP_TILE_COLUMNS;
    return bp_min_u64(columns, (tiles > 1 ? tiles : 1) * BP_TILE_COLUMNS);
}

static bp_status make_own(bp_device *device, const bp_lm_head_config *config, bp_lm_head *head)
{
    const char *call = "bp_lm_head_create";
    BP_TRY(lm_head_check_config(call, config));
    const uint64_t tokens = config->max_tokens, asked = (uint64_t)config->chunk;
    head->chunk = asked == 0 || asked > tokens ? tokens : asked;
    head->dtype = config->dtype;
    head->hidden = config->hidden;
    head->forward_only = config->forward_only != 0;
    const uint32_t ranks = config->comm != NULL ? bp_comm_get_info(config->comm)->ranks : 1;
    head->sums = ranks > 1 && config->partial_hidden_grad == 0;

    /* products count in 31 bits, and narrowing in place doubles the stride */
    const uint64_t max = INT32_MAX / 2;
    const bool is_host = bp_device_is_host_accessible(device);
    if (head->chunk > max || config->hidden > max || config->vocab > max)
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "%s: pieces of %llu tokens, hidden %llu, vocab %llu: at most %llu of each are possible", call,
                       (unsigned long long)head->chunk, (unsigned long long)config->hidden,
                       (unsigned long long)config->vocab, (unsigned long long)max);
    head->tile = is_host ? host_tile(head, config->vocab) : config->vocab;
    head->chunk_count = is_host || head->chunk == tokens ? 1 : 2;
    if (is_host)
        BP_TRY(bp_products_create_blas(config->threads, head->chunk, head->tile, config->hidden, config->dtype,
                                       &head->products));
    else if (bp_cuda_get_info(device) != NULL)
        BP_TRY(bp_products_create_cublas(device, head->chunk, config->hidden, config->dtype, &head->products));
    else
        return bp_fail(BP_ERR_UNSUPPORTED, "%s: device %s has no matrix products; use a host or cuda device", call,
                       bp_device_name(device));
    if (head->sums && !head->forward_only && is_host) {
        const size_t count = (size_t)ranks * BP_EXCHANGED_NUMEL;
        head->exchanged = calloc(count, sizeof *head->exchanged);
        if (head->exchanged == NULL)
            return bp_fail_memory(count * sizeof *head->exchanged);
    }
    if (is_host)
        return BP_OK;
    BP_TRY(bp_stream_create(device, "lm_head.products", &head->multiplies));
    BP_TRY(bp_event_create(device, &head->moved));
    BP_TRY(bp_event_create(device, &head->graded[0]));
    return bp_event_create(device, &head->graded[1]);
}

static uint64_t chunk_bytes(const bp_lm_head *head)
{
    return head->chunk * head->tile * sizeof(float); /* both factors fit 31 bits */
}

static bp_status make_base(bp_device *device, const bp_lm_head_config *config, bp_status status, bp_lm_head *head)
{
    const uint32_t both = BP_STAGE_PARTIALS | (head->forward_only ? 0 : BP_STAGE_OWN);
    const bool has_sums = (head->sums || head->multiplies == NULL) && !head->forward_only;
    const uint64_t chunk = chunk_bytes(head), sums = has_sums ? head->chunk * head->hidden * sizeof(float) : 0;
    const bp_workspace_need needs[BP_HEAD_WORKSPACES] = {
        {"chunk.0", chunk, both},
        {"chunk.1", head->chunk_count > 1 ? chunk : 0, both},
        {"scratch", head->products != NULL ? head->products->scratch_bytes : 0, both},
        {"hidden_grad", sums, BP_STAGE_OWN}};
    const uint64_t options = (uint64_t)config->max_targets << 40 | (uint64_t)config->dtype << 32 |
                             (uint64_t)config->targets << 8 | (uint64_t)(config->forward_only != 0) << 1 |
                             (uint64_t)(config->partial_hidden_grad != 0);
    const bp_base_config base = {
        .call = "bp_lm_head_create",
        .name = "lm_head",
        .max_tokens = config->max_tokens,
        .max_targets = config->max_targets,
        .shard = {.start = config->vocab_start,
                  .columns = config->vocab,
                  .same = {config->max_tokens, config->hidden, (uint64_t)config->chunk, options}},
        .same = {"max_tokens", "hidden", "chunk", "options (max_targets, dtype, targets, passes)"},
        .comm = config->comm,
        .targets = config->targets,
        .threads = config->threads,
        .kernels = config->kernels,
        .continues = head->tile < config->vocab,
        .needs = needs,
        .need_count = BP_HEAD_WORKSPACES};
    return bp_base_init(device, &base, status, &head->base);
}

/* Products are destroyed before the base, whose stream keeps the device. */
static void lm_head_finish(bp_lm_head *head)
{
    bp_stream_destroy(&head->multiplies); /* waits for its work */
    if (head->products != NULL)
        head->products->ops->destroy(head->products);
    bp_event_destroy(&head->moved);
    bp_event_destroy(&head->graded[0]);
    bp_event_destroy(&head->graded[1]);
    bp_base_finish(&head->base);
    free(head->exchanged);
}

bp_status bp_lm_head_create(bp_device *device, const bp_lm_head_config *config, bp_lm_head **head)
{
    bp_lm_head_config own = lm_head_config_defaults;
    BP_TRY(bp_struct_read("bp_lm_head_create", config, false, &own, sizeof own));
    bp_status status = BP_OK; /* from here on the other ranks must learn of failures */
    if (device == NULL || head == NULL)
        status = bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_lm_head_create: needs a device and an output");
    config = &own;
    bp_lm_head unmade = {0}; /* without memory, the other ranks must still learn of the failure */
    bp_lm_head *made = calloc(1, sizeof *made);
    if (status == BP_OK)
        status = made != NULL ? make_own(device, config, made) : bp_fail_memory(sizeof *made);
    status = make_base(device, config, status, made != NULL ? made : &unmade);
    if (status != BP_OK || made == NULL || head == NULL) { /* without `made` and `head` the status cannot be BP_OK */
        lm_head_finish(made != NULL ? made : &unmade);
        free(made);
        return status;
    }
    const bp_base *base = &made->base;
    const uint64_t chunk = chunk_bytes(made);
    made->info = (bp_lm_head_info){.kernels = base->engine->kernels,
                                   .products = made->products->name,
                                   .threads = base->engine->threads,
                                   .chunk_bytes = chunk,
                                   .other_bytes = base->workspace.bytes - made->chunk_count * chunk,
                                   .workspace_bytes = base->workspace.bytes,
                                   .planned_bytes = base->workspace.planned_bytes,
                                   .vocab = base->shards.vocab,
                                   .pool = base->workspace.pool};
    made->products->own = base->own;
    *head = made;
    return BP_OK;
}

void bp_lm_head_destroy(bp_lm_head **head)
{
    if (head == NULL || *head == NULL)
        return;
    bp_lm_head *gone = *head;
    *head = NULL;
    if (bp_device_is_inherited(gone->base.device)) /* waiting would be for the parent's work */
        return;
    lm_head_finish(gone);
    free(gone);
}

const bp_lm_head_info *bp_lm_head_get_info(const bp_lm_head *head)
{
    return head != NULL ? &head->info : NULL;
}

bp_status bp_lm_head_check(bp_lm_head *head)
{
    if (head == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_lm_head_check: needs a head");
    return bp_base_check(&head->base);
}
