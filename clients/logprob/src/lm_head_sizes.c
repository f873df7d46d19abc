/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes of the head's pieces and workspaces, from its configuration alone.
 *
 * A piece of tokens after the first one reads and writes weight_grad once more, and a part of the vocabulary after the first one the sums of
 * hidden_grad: both are fp32 and take memory bandwidth from the products. */
#include <bucketpool/core/arith.h>
#include <bucketpool/core/fail.h>
#include <bucketpool/core/structs.h>

#include "lm_head.h"

#define MULTIPLE 64u /* tokens of a piece and columns of a part */
#define LEAST_TOKENS                                                                                                   \
    UINT64_C(512) /* of a piece in forward, which accumulates nothing; twice as many in gradient passes */
#define LEAST_COLUMNS 2048u
#define HOST_TOKENS 2048u
#define ROUNDS 16 /* of fitting several passes into the memory of all */

/* Pools round workspaces up to pages on the host, and to the granularity of physical memory on cuda. */
#define ROUNDED_WORKSPACES (BP_WORK_OWN + BP_HEAD_WORKSPACES)
#define HOST_GRANULARITY (UINT64_C(64) << 10)
#define CUDA_GRANULARITY (UINT64_C(2) << 20)

/* Elements of the logits, and of the weight, in a tile of the host: caches keep the logits from product to kernel. */
#define TILE_LOGITS (UINT64_C(2) << 20)
#define TILE_WEIGHT (UINT64_C(4) << 20)

/* Inputs of sizes. */
typedef struct sizing {
    const bp_lm_head_config *config;
    uint64_t element;  /* bytes of a hidden state or weight */
    uint64_t gradient; /* of a logit's gradient, or, where a step also has the logits, of a logit */
    bool is_host, sums;
} sizing;

static uint64_t above(uint64_t whole, uint64_t part)
{
    return whole / part + (whole % part != 0);
}

static uint64_t multiple_above(uint64_t value)
{
    return above(value, MULTIPLE) * MULTIPLE;
}

uint64_t bp_head_equal(uint64_t whole, uint64_t max)
{
    return whole <= max ? whole : bp_min_u64(max, multiple_above(above(whole, above(whole, max))));
}

uint64_t bp_head_stride(uint64_t columns)
{
    return (columns + 15) / 16 * 16;
}

static uint64_t max_of(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint64_t minus(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

/* Equal pieces of as many of `whole` tokens or columns as fit, but at least `least`. */
static uint64_t equal_within(uint64_t whole, uint64_t bytes, uint64_t each, uint64_t least)
{
    uint64_t max = bp_min_u64(bytes / each, BP_HEAD_MAX);
    if (max >= whole)
        return whole;
    max = max / MULTIPLE * MULTIPLE;
    return bp_head_equal(whole, max > least ? max : least);
}

/* ---- passes ------------------------------------------------------------------------------------------------------ */

/* If two workspaces fit four pieces or more, more of a piece's kernels run beside products. */
static bp_head_shape size_forward(const sizing *s, uint64_t memory)
{
    const uint64_t tokens = s->config->max_tokens, vocab = s->config->vocab;
    const uint64_t fits =
        equal_within(tokens, minus(memory, BP_CUBLAS_BYTES), 2 * sizeof(float) * bp_head_stride(vocab), LEAST_TOKENS);
    const uint64_t wanted = max_of(multiple_above(above(tokens, 4)), 2 * LEAST_TOKENS);
    const uint64_t chosen = bp_head_equal(tokens, bp_min_u64(fits, wanted));
    return (bp_head_shape){chosen, vocab, chosen < tokens ? 2 : 1};
}

/* One workspace: two would halve the pieces, and each piece reads and writes weight_grad. For 8192 tokens, hidden size 4096 and a vocabulary
 * of 128256, where an H200 takes 36 ms for three products and copies 4.3 TB/s: 5 pieces move 19 GB or 4.4 ms, 10 pieces in two workspaces 40 GB
 * or 9.3 ms. Kernels, 2.4 ms, run beside the products of the other half of a piece. */
static bp_head_shape size_one_call(const sizing *s, uint64_t memory)
{
    const bp_lm_head_config *c = s->config;
    const uint64_t each =
        sizeof(float) * (bp_head_stride(c->vocab) + (s->sums ? c->hidden : 0)) + s->element * c->hidden;
    const uint64_t tokens = equal_within(c->max_tokens, minus(memory, BP_CUBLAS_BYTES), each, 2 * LEAST_TOKENS);
    return (bp_head_shape){tokens, c->vocab, 1};
}

/* Columns of a step whose pieces have `tokens`. */
static bp_head_shape size_columns(const sizing *s, uint64_t memory, uint64_t tokens)
{
    const bp_lm_head_config *c = s->config;
    const uint64_t sums = sizeof(float) * c->hidden, copies = s->element * c->hidden;
    const uint64_t rest = minus(memory, BP_CUBLAS_BYTES), whole = tokens * bp_head_stride(c->vocab) * s->gradient;
    if (tokens == c->max_tokens && minus(rest, tokens * (copies + (s->sums ? sums : 0))) >= whole)
        return (bp_head_shape){tokens, c->vocab, 1};
    const uint64_t left = minus(rest, tokens * (copies + sums)), least = bp_min_u64(c->vocab, LEAST_COLUMNS);
    return (bp_head_shape){tokens, equal_within(c->vocab, left, 2 * tokens * s->gradient, least), 2};
}

/* The pieces and parts whose sums take the least bandwidth. */
static bp_head_shape size_backward(const sizing *s, uint64_t memory)
{
    const bp_lm_head_config *c = s->config;
    bp_head_shape best = {0};
    double least = 0;
    for (uint64_t tokens = bp_head_equal(c->max_tokens, BP_HEAD_MAX / MULTIPLE * MULTIPLE);;) {
        const bp_head_shape shape = size_columns(s, memory, tokens);
        const double pieces = (double)above(c->max_tokens, tokens), parts = (double)above(c->vocab, shape.columns);
        const double cost = pieces * (double)c->vocab + parts * (double)c->max_tokens;
        const uint64_t used = tokens * (c->hidden * (sizeof(float) + s->element) + 2 * s->gradient * shape.columns);
        const bool fits = shape.chunks == 1 || used <= minus(memory, BP_CUBLAS_BYTES);
        if (best.tokens == 0 || (fits && (least < 0 || cost < least))) {
            best = shape;
            least = fits ? cost : -1;
        } else if (least < 0) {
            best = shape; /* none fits yet: the smallest */
        }
        if (tokens <= 2 * LEAST_TOKENS)
            return best;
        tokens = multiple_above(above(tokens, 2));
    }
}

/* Columns of a tile on the host, whose products widen no more of the weight at once. */
static uint64_t host_tile(const bp_lm_head_config *config, uint64_t tokens)
{
    const uint64_t max = bp_min_u64(TILE_LOGITS / tokens, TILE_WEIGHT / config->hidden);
    const uint64_t tiles = max / BP_TILE_COLUMNS;
    return bp_min_u64(config->vocab, (tiles > 1 ? tiles : 1) * BP_TILE_COLUMNS);
}

static void size_host(const sizing *s, uint64_t memory, bp_head_plan *plan)
{
    const bp_lm_head_config *c = s->config;
    const uint64_t tokens = bp_head_equal(c->max_tokens, c->chunk > 0 ? (uint64_t)c->chunk : HOST_TOKENS);
    plan->tile = host_tile(c, tokens);
    plan->forward = plan->backward = (bp_head_shape){tokens, plan->tile, 1};
    const uint64_t of_tile = c->dtype == BP_DTYPE_FP32 ? 0 : 2 * sizeof(float) * plan->tile * c->hidden;
    const uint64_t panels = c->dtype == BP_DTYPE_BF16 ? sizeof(uint16_t) * (plan->tile + c->hidden + 128) : 0;
    const uint64_t each = sizeof(float) * (bp_head_stride(c->vocab) + 2 * c->hidden) + panels;
    plan->one_call = (bp_head_shape){
        c->chunk > 0 ? tokens : equal_within(c->max_tokens, minus(memory, of_tile), each, 2 * LEAST_TOKENS), c->vocab,
        1};
}

static void size_cuda(const sizing *s, uint64_t memory, bp_head_plan *plan)
{
    const bp_lm_head_config *c = s->config;
    plan->tile = c->vocab;
    if (c->chunk > 0) {
        const uint64_t tokens = bp_head_equal(c->max_tokens, (uint64_t)c->chunk);
        plan->forward = plan->backward = plan->one_call =
            (bp_head_shape){tokens, c->vocab, tokens < c->max_tokens ? 2 : 1};
        return;
    }
    plan->backward = size_backward(s, memory);
    plan->one_call = size_one_call(s, memory);
    const bool has_backward = (c->passes & BP_LM_HEAD_BACKWARD) != 0;
    const uint64_t others = has_backward ? plan->backward.tokens * c->hidden * (sizeof(float) + s->element) : 0;
    plan->forward = size_forward(s, minus(memory, others));
}

/* ---- workspaces -------------------------------------------------------------------------------------------------- */

static void add_chunks(const bp_head_shape *shape, uint64_t bytes, bp_lm_head_sizes *sizes)
{
    const uint64_t chunk = shape->tokens * bp_head_stride(shape->columns) * bytes;
    sizes->chunk_bytes = max_of(sizes->chunk_bytes, chunk);
    if (shape->chunks > 1)
        sizes->second_chunk_bytes = max_of(sizes->second_chunk_bytes, chunk);
}

static bp_status size_scratch(const sizing *s, const bp_head_plan *plan, uint64_t rows, bp_lm_head_sizes *sizes)
{
    const uint64_t hidden = s->config->hidden;
    if (s->is_host)
        return bp_products_blas_scratch(max_of(rows, plan->forward.tokens), plan->tile, hidden, s->config->dtype,
                                        &sizes->scratch_bytes);
    sizes->scratch_bytes = BP_CUBLAS_BYTES + rows * hidden * s->element;
    return BP_OK;
}

/* Passes that the head does not have become empty. */
static bp_status size_workspaces(const sizing *s, bp_head_plan *plan)
{
    const bp_lm_head_config *c = s->config;
    bp_lm_head_sizes *sizes = &plan->sizes;
    const bool kept = (c->passes & BP_LM_HEAD_KEPT) != 0;
    if ((c->passes & (BP_LM_HEAD_FORWARD | BP_LM_HEAD_KEPT)) == 0)
        plan->forward = (bp_head_shape){0};
    if ((c->passes & (BP_LM_HEAD_BACKWARD | BP_LM_HEAD_KEPT)) == 0)
        plan->backward = (bp_head_shape){0};
    if ((c->passes & BP_LM_HEAD_ONE_CALL) == 0)
        plan->one_call = (bp_head_shape){0};
    const bp_head_shape *forward = &plan->forward, *backward = &plan->backward, *one_call = &plan->one_call;
    const bool has_gradients = backward->tokens != 0 || one_call->tokens != 0;
    const uint64_t rows = max_of(backward->tokens, one_call->tokens);
    const bool in_parts = s->is_host || backward->columns < c->vocab;
    const uint64_t summed =
        max_of(in_parts || s->sums ? backward->tokens : 0, s->is_host || s->sums ? one_call->tokens : 0);
    if ((c->passes & BP_LM_HEAD_FORWARD) != 0)
        add_chunks(forward, sizeof(float), sizes);
    add_chunks(backward, s->gradient, sizes);
    add_chunks(one_call, sizeof(float), sizes);
    sizes->hidden_grad_bytes = summed * c->hidden * sizeof(float);
    if (s->is_host && has_gradients && c->dtype != BP_DTYPE_FP32)
        sizes->weight_grad_bytes = plan->tile * c->hidden * sizeof(float);
    sizes->forward_tokens = (c->passes & BP_LM_HEAD_FORWARD) != 0 || kept ? forward->tokens : 0;
    sizes->backward_tokens = backward->tokens;
    sizes->backward_columns = backward->columns;
    sizes->one_call_tokens = one_call->tokens;
    sizes->piece_tokens = one_call->tokens == 0   ? backward->tokens
                          : backward->tokens == 0 ? one_call->tokens
                                                  : bp_min_u64(backward->tokens, one_call->tokens);
    return size_scratch(s, plan, rows, sizes);
}

/* Sums of tokens, and of all ranks. */
static bp_status size_partials(const char *call, const sizing *s, uint32_t ranks, bool in_parts,
                               bp_lm_head_sizes *sizes)
{
    uint64_t piece, gathered;
    const bp_lm_head_config *c = s->config;
    BP_TRY(bp_base_partials(call, c->max_tokens, c->max_targets, ranks, &piece, &gathered));
    sizes->partials_bytes = ranks > 1 || in_parts ? piece : 0;
    sizes->gathered_bytes = ranks > 1 ? gathered : 0;
    sizes->target_bytes = c->targets == BP_TARGETS_ERROR ? sizeof(uint64_t) : 0;
    return BP_OK;
}

static bp_status sum_sizes(const char *call, bp_lm_head_sizes *sizes)
{
    const uint64_t all[] = {sizes->chunk_bytes,       sizes->second_chunk_bytes, sizes->scratch_bytes,
                            sizes->hidden_grad_bytes, sizes->weight_grad_bytes,  sizes->partials_bytes,
                            sizes->gathered_bytes,    sizes->target_bytes};
    sizes->bytes = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!bp_add_u64(sizes->bytes, all[i], &sizes->bytes))
            return bp_fail(BP_ERR_OVERFLOW, "%s: the workspaces do not fit 64 bits", call);
    return BP_OK;
}

/* ---- the plan ---------------------------------------------------------------------------------------------------- */

static bp_status head_check_config(const char *call, const bp_lm_head_config *config)
{
    const uint32_t known = BP_LM_HEAD_FORWARD | BP_LM_HEAD_BACKWARD | BP_LM_HEAD_ONE_CALL | BP_LM_HEAD_KEPT;
    if (config->max_tokens == 0 || config->hidden == 0 || config->vocab == 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: max_tokens %llu, hidden %llu and vocab %llu must not be 0", call,
                       (unsigned long long)config->max_tokens, (unsigned long long)config->hidden,
                       (unsigned long long)config->vocab);
    if (config->chunk < 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "%s: chunk is %lld; use 0 for pieces that fit memory_bytes or a positive number", call,
                       (long long)config->chunk);
    if (config->passes == 0 || (config->passes & ~known) != 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: passes is 0x%x; use BP_LM_HEAD_ bits", call, config->passes);
    if (!bp_is_row_dtype(config->dtype))
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: hidden states and weight are %s; use fp32, bf16 or fp16", call,
                       bp_dtype_name(config->dtype));
    const uint64_t chunk = bp_min_u64((uint64_t)config->chunk, config->max_tokens);
    if (chunk > BP_HEAD_MAX || config->hidden > BP_HEAD_MAX || config->vocab > BP_HEAD_MAX)
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "%s: pieces of %llu tokens, hidden %llu, vocab %llu: at most %llu of each are possible", call,
                       (unsigned long long)chunk, (unsigned long long)config->hidden, (unsigned long long)config->vocab,
                       (unsigned long long)BP_HEAD_MAX);
    return BP_OK;
}

bp_status bp_head_plan_make(const char *call, const bp_lm_head_config *config, uint32_t ranks, bool is_host,
                            bp_head_plan *plan)
{
    BP_TRY(head_check_config(call, config));
    const uint64_t element = bp_dtype_bits(config->dtype) / 8;
    const sizing s = {.config = config,
                      .element = element,
                      .gradient = is_host || (config->passes & BP_LM_HEAD_BACKWARD) != 0 ? sizeof(float) : element,
                      .is_host = is_host,
                      .sums = ranks > 1 && config->partial_hidden_grad == 0};
    const uint64_t granularity = is_host ? HOST_GRANULARITY : CUDA_GRANULARITY;
    const uint64_t memory = minus(config->memory_bytes, ROUNDED_WORKSPACES * granularity);
    uint64_t of_passes = memory;
    bp_head_plan made;
    for (int round = 0; round < ROUNDS; round++) {
        made = (bp_head_plan){.sizes = {.size = sizeof made.sizes}};
        if (is_host)
            size_host(&s, of_passes, &made);
        else
            size_cuda(&s, of_passes, &made);
        BP_TRY(size_workspaces(&s, &made));
        BP_TRY(size_partials(call, &s, ranks, made.tile < config->vocab, &made.sizes));
        BP_TRY(sum_sizes(call, &made.sizes));
        if (made.sizes.bytes <= memory || of_passes == 0)
            break;
        of_passes = minus(of_passes, made.sizes.bytes - memory);
    }
    *plan = made;
    return BP_OK;
}

bp_status bp_lm_head_estimate(const bp_lm_head_config *config, uint32_t ranks, int32_t is_host, bp_lm_head_sizes *sizes)
{
    const char *call = "bp_lm_head_estimate";
    bp_lm_head_config own;
    bp_head_plan plan;
    BP_TRY(bp_lm_head_config_init(&own, sizeof own));
    BP_TRY(bp_struct_read(call, config, false, &own, sizeof own));
    if (ranks == 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: ranks is 0", call);
    BP_TRY(bp_head_plan_make(call, &own, ranks, is_host != 0, &plan));
    return bp_struct_write(call, &plan.sizes, sizeof plan.sizes, sizes);
}
