/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of the fused head's arguments. */
#include <bucketpool/core/fail.h>

#include <string.h>

#include "lm_head.h"

/* Checks the weight, or its gradient, as rows of one sequence; products need rows that ascend without overlap. */
static bp_status check_weight(const char *call, const char *name, const bp_lm_head *head, const void *data,
                              bp_dtype dtype, int64_t stride, bp_token_rows *rows)
{
    bp_token_rows given = {
        .dtype = dtype, .batch = 1, .sequence = head->base.columns, .columns = head->hidden, .stride = stride};
    memcpy(&given.data, &data, sizeof data); /* views are of mutable data; the weight is not written */
    BP_TRY(bp_check_rows(call, name, &given, head->hidden, false, rows));
    if (rows->stride < (int64_t)head->hidden || rows->stride > INT32_MAX)
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "%s: %s have rows of %llu elements at a stride of %lld; use a stride of %llu to %d", call, name,
                       (unsigned long long)head->hidden, (long long)rows->stride, (unsigned long long)head->hidden,
                       INT32_MAX);
    return BP_OK;
}

/* Checks the bias, or its gradient. */
static bp_status check_bias(const char *call, const char *name, const bp_lm_head *head, const float *data,
                            bp_token_rows *rows)
{
    const uint64_t columns = head->base.columns;
    bp_token_rows given = {.dtype = BP_DTYPE_FP32, .batch = 1, .sequence = 1, .columns = columns};
    memcpy(&given.data, &data, sizeof data); /* as in check_weight */
    return bp_check_rows(call, name, &given, columns, false, rows);
}

/* Calls with kept logits are among the passes if that is; the others are `pass`. */
static bp_status check_pass(const char *call, const bp_lm_head *head, uint32_t pass, bool is_kept)
{
    static const char *const names[] = {"BP_LM_HEAD_FORWARD", "BP_LM_HEAD_BACKWARD", "BP_LM_HEAD_ONE_CALL",
                                        "BP_LM_HEAD_KEPT"};
    const uint32_t needed = is_kept ? BP_LM_HEAD_KEPT : pass;
    if (is_kept && pass == BP_LM_HEAD_ONE_CALL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: logits are kept for a backward call; leave them out", call);
    if ((head->passes & needed) == 0)
        return bp_fail(BP_ERR_SCHEDULE, "%s: the head was created with passes 0x%x, without %s", call, head->passes,
                       names[__builtin_ctz(needed)]);
    return BP_OK;
}

/* Checks kept logits, whose rows are at strides that products accept. */
static bp_status check_kept(const char *call, const bp_lm_head *head, const bp_lm_head_batch *batch, uint64_t tokens,
                            bp_matrix *kept)
{
    const uint64_t columns = head->base.columns;
    const bp_token_rows given = {.data = batch->logits,
                                 .dtype = BP_DTYPE_FP32,
                                 .batch = 1,
                                 .sequence = tokens,
                                 .columns = columns,
                                 .stride = batch->logits_stride};
    bp_token_rows rows;
    BP_TRY(bp_check_rows(call, "kept logits", &given, columns, false, &rows));
    if (rows.stride < (int64_t)columns || rows.stride > INT32_MAX)
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "%s: kept logits have rows of %llu elements at a stride of %lld; use a stride of %llu to %d",
                       call, (unsigned long long)columns, (long long)rows.stride, (unsigned long long)columns,
                       INT32_MAX);
    *kept = (bp_matrix){rows.data, BP_DTYPE_FP32, rows.stride};
    return BP_OK;
}

bp_status bp_head_check_batch(const char *call, const bp_lm_head *head, uint32_t pass, const bp_lm_head_batch *batch,
                              bp_head_batch *checked)
{
    const bp_token_rows *hidden = &batch->hidden;
    bp_head_batch c = {.logits = {.rounding = (int32_t)batch->tokens.rounding, .cap = batch->tokens.soft_cap}};
    bp_token_rows weight, bias;
    BP_TRY(check_pass(call, head, pass, batch->logits != NULL));
    BP_TRY(bp_check_count(call, hidden->batch, hidden->sequence, head->base.max_tokens, &c.token_count));
    if (hidden->dtype != head->dtype)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: hidden states are %s, but the head was created for %s", call,
                       bp_dtype_name(hidden->dtype), bp_dtype_name(head->dtype));
    BP_TRY(bp_check_tokens(call, &head->base, &batch->tokens, true, hidden->batch, hidden->sequence, &c.tokens));
    if (c.token_count != 0) {
        BP_TRY(bp_check_rows(call, "hidden states", hidden, head->hidden, false, &c.hidden));
        BP_TRY(check_weight(call, "weights", head, batch->weight, head->dtype, batch->weight_stride, &weight));
        c.weight = (bp_matrix){weight.data, weight.dtype, weight.stride};
    }
    if (c.token_count != 0 && batch->bias != NULL) {
        BP_TRY(check_bias(call, "biases", head, batch->bias, &bias));
        c.bias = (bp_matrix){bias.data, BP_DTYPE_FP32, 0};
    }
    if (c.token_count != 0 && batch->logits != NULL)
        BP_TRY(check_kept(call, head, batch, c.token_count, &c.kept));
    *checked = c;
    return BP_OK;
}

static bp_status check_apart(const char *call, const char *name, const bp_token_rows *written, const char *other,
                             const bp_token_rows *read)
{
    if (bp_rows_overlap(written, read))
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: the gradient of %s at %p overlaps the %s at %p", call, name,
                       written->data, other, read->data);
    return BP_OK;
}

static bp_token_rows weight_rows(const bp_lm_head *head, const bp_matrix *weight)
{
    return (bp_token_rows){.data = weight->data,
                           .dtype = weight->dtype,
                           .batch = 1,
                           .sequence = head->base.columns,
                           .columns = head->hidden,
                           .stride = weight->stride};
}

/* `weight_grad`: already checked; data NULL: not wanted. */
static bp_status check_hidden_grad(const char *call, const bp_lm_head *head, const bp_head_batch *batch,
                                   const bp_token_rows *given, const bp_matrix *weight_grad, bp_token_rows *checked)
{
    const bp_token_rows *hidden = &batch->hidden;
    if (given->batch != hidden->batch || given->sequence != hidden->sequence)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: a gradient of %llu x %llu tokens for hidden states of %llu x %llu",
                       call, (unsigned long long)given->batch, (unsigned long long)given->sequence,
                       (unsigned long long)hidden->batch, (unsigned long long)hidden->sequence);
    if (given->dtype != BP_DTYPE_FP32 && given->dtype != head->dtype)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: the gradient is %s for hidden states in %s; use fp32 or %s", call,
                       bp_dtype_name(given->dtype), bp_dtype_name(head->dtype), bp_dtype_name(head->dtype));
    BP_TRY(bp_check_rows(call, "gradients of hidden states", given, head->hidden, true, checked));
    const bp_token_rows weight = weight_rows(head, &batch->weight), beside = weight_rows(head, weight_grad);
    BP_TRY(check_apart(call, "hidden states", checked, "hidden states", hidden));
    BP_TRY(check_apart(call, "hidden states", checked, "weights", &weight));
    if (weight_grad->data == NULL)
        return BP_OK;
    return check_apart(call, "hidden states", checked, "gradients of weights", &beside);
}

/* A narrow gradient is written once: nothing adds to it. */
static bp_status check_weight_dtype(const char *call, const bp_lm_head *head, uint64_t piece_tokens,
                                    const bp_head_batch *batch, const bp_lm_head_gradients *gradients)
{
    const bp_dtype dtype = gradients->weight_grad_dtype;
    const char *name = bp_dtype_name(dtype);
    if (dtype == BP_DTYPE_FP32)
        return BP_OK;
    if (dtype != head->dtype)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: the gradient of weights is %s for weights in %s; use fp32 or %s",
                       call, name, bp_dtype_name(head->dtype), bp_dtype_name(head->dtype));
    if (gradients->accumulate)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: a gradient of weights in %s cannot be added to; use fp32", call,
                       name);
    if (batch->token_count > piece_tokens)
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "%s: a gradient of weights in %s needs the %llu tokens in one piece, which has up to %llu; use "
                       "fp32, or more memory_bytes",
                       call, name, (unsigned long long)batch->token_count, (unsigned long long)piece_tokens);
    return BP_OK;
}

static bp_status check_weight_grad(const char *call, const bp_lm_head *head, const bp_head_batch *batch,
                                   const bp_lm_head_gradients *gradients, bp_matrix *checked)
{
    bp_token_rows grad;
    BP_TRY(check_weight(call, "gradients of weights", head, gradients->weight_grad, gradients->weight_grad_dtype,
                        gradients->weight_grad_stride, &grad));
    if (batch->token_count != 0) {
        const bp_token_rows weight = weight_rows(head, &batch->weight);
        BP_TRY(check_apart(call, "weights", &grad, "weights", &weight));
        BP_TRY(check_apart(call, "weights", &grad, "hidden states", &batch->hidden));
    }
    *checked = (bp_matrix){grad.data, grad.dtype, grad.stride};
    return BP_OK;
}

static bp_status check_bias_grad(const char *call, const bp_lm_head *head, const bp_head_batch *batch, float *data)
{
    bp_token_rows grad, bias = {.dtype = BP_DTYPE_FP32, .batch = 1, .sequence = 1, .columns = head->base.columns};
    BP_TRY(check_bias(call, "gradients of biases", head, data, &grad));
    bias.data = batch->bias.data;
    if (bias.data != NULL)
        BP_TRY(check_apart(call, "biases", &grad, "biases", &bias));
    if (batch->token_count == 0)
        return BP_OK;
    const bp_token_rows weight = weight_rows(head, &batch->weight);
    BP_TRY(check_apart(call, "biases", &grad, "weights", &weight));
    return check_apart(call, "biases", &grad, "hidden states", &batch->hidden);
}

bp_status bp_head_check_gradients(const char *call, const bp_lm_head *head, uint64_t piece_tokens,
                                  const bp_head_batch *batch, const bp_lm_head_gradients *gradients,
                                  bp_head_gradients *checked)
{
    bp_head_gradients c = {.adds = gradients->accumulate != 0, .bias = gradients->bias_grad};
    if (gradients->weight_grad != NULL) {
        BP_TRY(check_weight_dtype(call, head, piece_tokens, batch, gradients));
        BP_TRY(check_weight_grad(call, head, batch, gradients, &c.weight));
    }
    if (gradients->bias_grad != NULL)
        BP_TRY(check_bias_grad(call, head, batch, gradients->bias_grad));
    if (batch->token_count != 0) {
        const bp_logprob_gradients upstream = {.logprob_grad = gradients->logprob_grad,
                                               .entropy_grad = gradients->entropy_grad,
                                               .logsumexp_grad = gradients->logsumexp_grad,
                                               .mean_logprob_grad = gradients->mean_logprob_grad,
                                               .saved = gradients->saved,
                                               .saved_bytes = gradients->saved_bytes};
        BP_TRY(bp_check_gradients(call, &upstream, &batch->tokens, &c.upstream));
        c.upstream.tokens = batch->tokens;
        if (gradients->hidden_grad.data != NULL)
            BP_TRY(check_hidden_grad(call, head, batch, &gradients->hidden_grad, &c.weight, &c.hidden));
    }
    *checked = c;
    return BP_OK;
}
