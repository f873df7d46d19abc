/* SPDX-License-Identifier: Apache-2.0 */
/* Creation and destruction of the fused head. */
#include "lm_head.h"

#include <bucketpool/core/arith.h>
#include <bucketpool/core/fail.h>
#include <bucketpool/core/structs.h>
#include <bucketpool/cuda.h>
#include <bucketpool/kernels.h>

#include <stdlib.h>

#define DEFAULT_MEMORY (UINT64_C(1) << 30)

static const bp_lm_head_config lm_head_config_defaults = {.size = sizeof lm_head_config_defaults,
                                                          .max_targets = 1,
                                                          .dtype = BP_DTYPE_BF16,
                                                          .memory_bytes = DEFAULT_MEMORY,
                                                          .targets = BP_TARGETS_ERROR,
                                                          .kernels = BP_KERNELS_ALL,
                                                          .passes = BP_LM_HEAD_FORWARD | BP_LM_HEAD_BACKWARD};

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
                                                                .hidden_grad = {.dtype = BP_DTYPE_FP32},
                                                                .weight_grad_dtype = BP_DTYPE_FP32};

bp_status bp_lm_head_gradients_init(bp_lm_head_gradients *gradients, size_t size)
{
    return bp_struct_init("bp_lm_head_gradients_init", gradients, size, &lm_head_gradients_defaults,
                          sizeof lm_head_gradients_defaults);
}

/* ---- creation ------------------------------------------------------------------------------------------------------- */

/* Collective. Pieces of tokens are those of the largest shard, because ranks exchange the sums of each. */
static bp_status largest_shard(const char *call, const bp_lm_head_config *config, bp_status status, uint64_t *largest)
{
    static const char *const nothing[] = {NULL};
    const bp_rank_words mine = {.status = status, .values = {config->vocab}};
    bp_rank_words few[BP_FEW_RANKS], *told;
    BP_TRY(bp_rank_words_take(call, config->comm, BP_MAX_RANKS, few, &told));
    status = bp_ranks_exchange(call, config->comm, &mine, nothing, told);
    const uint32_t ranks = bp_is_alone(config->comm) ? 1 : bp_comm_get_info(config->comm)->ranks;
    *largest = 0;
    for (uint32_t r = 0; status == BP_OK && r < ranks; r++)
        *largest = told[r].values[0] > *largest ? told[r].values[0] : *largest;
    bp_rank_words_give(few, told);
    return status;
}

static bp_status head_make_plan(const bp_lm_head_config *config, uint64_t largest, bool is_host, bp_head_plan *plan)
{
    const char *call = "bp_lm_head_create";
    bp_lm_head_config own = *config;
    if (config->vocab == 0) /* for its message */
        largest = 0;
    own.vocab = largest;
    BP_TRY(bp_head_plan_make(call, &own, bp_is_alone(config->comm) ? 1 : bp_comm_get_info(config->comm)->ranks, is_host,
                             plan));
    bp_head_shape *const shapes[] = {&plan->forward, &plan->backward, &plan->one_call};
    for (int i = 0; i < 3; i++)
        shapes[i]->columns = bp_min_u64(shapes[i]->columns, config->vocab);
    plan->tile = bp_min_u64(plan->tile, config->vocab);
    return BP_OK;
}

static bp_status make_own(bp_device *device, const bp_lm_head_config *config, uint64_t largest, bp_lm_head *head)
{
    const char *call = "bp_lm_head_create";
    const bool is_host = bp_device_is_host_accessible(device);
    bp_head_plan *plan = &head->plan;
    BP_TRY(head_make_plan(config, largest, is_host, plan));
    const bool has_gradients = plan->sizes.piece_tokens != 0;
    const uint64_t tokens = plan->forward.tokens > plan->one_call.tokens ? plan->forward.tokens : plan->one_call.tokens;
    const uint64_t graded =
        plan->backward.tokens > plan->one_call.tokens ? plan->backward.tokens : plan->one_call.tokens;
    head->dtype = config->dtype;
    head->hidden = config->hidden;
    head->passes = config->passes;
    const uint32_t ranks = config->comm != NULL ? bp_comm_get_info(config->comm)->ranks : 1;
    head->sums = ranks > 1 && config->partial_hidden_grad == 0;
    if (is_host)
        BP_TRY(bp_products_create_blas(config->threads, tokens > graded ? tokens : graded, plan->tile, config->hidden,
                                       config->dtype, &head->products));
    else if (bp_cuda_get_info(device) != NULL)
        BP_TRY(bp_products_create_cublas(device, graded, config->hidden, config->dtype, &head->products));
    else
        return bp_fail(BP_ERR_UNSUPPORTED, "%s: device %s has no matrix products; use a host or cuda device", call,
                       bp_device_name(device));
    if (head->sums && has_gradients && is_host) {
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

static bp_status make_base(bp_device *device, const bp_lm_head_config *config, bp_status status, bp_lm_head *head)
{
    const bp_lm_head_sizes *sizes = &head->plan.sizes;
    /* one call finishes the sums of a piece while it has its logits, and gradients of the piece before */
    const uint32_t during = (config->passes & BP_LM_HEAD_ONE_CALL) != 0 ? BP_STAGE_FINISH : 0;
    const uint32_t graded = BP_STAGE_OWN | during;
    const uint32_t both = BP_STAGE_PARTIALS | during | (sizes->piece_tokens == 0 ? 0 : BP_STAGE_OWN);
    const bp_workspace_need needs[BP_HEAD_WORKSPACES] = {
        {"chunk.0", sizes->chunk_bytes, both},
        {"chunk.1", sizes->second_chunk_bytes, both},
        {"scratch", head->products != NULL ? head->products->scratch_bytes : 0, both},
        {"hidden_grad", sizes->hidden_grad_bytes, graded},
        {"weight_grad", sizes->weight_grad_bytes, graded}};
    const uint64_t options = (uint64_t)config->max_targets << 40 | (uint64_t)config->dtype << 32 |
                             (uint64_t)config->targets << 8 | (uint64_t)config->passes << 1 |
                             (uint64_t)(config->partial_hidden_grad != 0);
    const bp_base_config base = {
        .call = "bp_lm_head_create",
        .name = "lm_head",
        .max_tokens = config->max_tokens,
        .max_targets = config->max_targets,
        .shard = {.start = config->vocab_start,
                  .columns = config->vocab,
                  .same = {config->max_tokens, config->hidden, (uint64_t)config->chunk, config->memory_bytes, options}},
        .same = {"max_tokens", "hidden", "chunk", "memory_bytes", "options (max_targets, dtype, targets, passes)"},
        .comm = config->comm,
        .targets = config->targets,
        .threads = config->threads,
        .kernels = config->kernels,
        .continues = head->plan.forward.columns < config->vocab,
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
    uint64_t largest;
    BP_TRY(largest_shard("bp_lm_head_create", config, status, &largest));
    bp_lm_head unmade = {0}; /* without memory, the other ranks must still learn of the failure */
    bp_lm_head *made = calloc(1, sizeof *made);
    status = made != NULL ? make_own(device, config, largest, made) : bp_fail_memory(sizeof *made);
    status = make_base(device, config, status, made != NULL ? made : &unmade);
    if (status != BP_OK || made == NULL) { /* without `made` the status cannot be BP_OK */
        lm_head_finish(made != NULL ? made : &unmade);
        free(made);
        return status;
    }
    const bp_base *base = &made->base;
    made->info = (bp_lm_head_info){.kernels = base->engine->kernels,
                                   .products = made->products->name,
                                   .threads = base->engine->threads,
                                   .piece_tokens = made->plan.sizes.piece_tokens,
                                   .sizes = &made->plan.sizes,
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
