/* What callers of the fused head hand over, checked. */
#include <string.h>

#include "core/fail.h"
#include "logprob/arguments.h"
#include "logprob/lm_head.h"

/* Rows of the weight, or of its gradient, as rows of one sequence; products need them apart and in order. */
static bp_status check_weight(const char *call, const char *name, const bp_lm_head *head, const void *data,
                              bp_dtype dtype, int64_t stride, bp_token_rows *rows)
{
    bp_token_rows given = {
        .dtype = dtype, .batch = 1, .sequence = head->base.columns, .columns = head->hidden, .stride = stride};
    memcpy(&given.data, &data, sizeof data); /* views may be written; the weight is not */
    BP_TRY(bp_check_rows(call, name, &given, head->hidden, false, rows));
    if (rows->stride < (int64_t)head->hidden || rows->stride > INT32_MAX)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: %s have rows of %llu elements at a stride of %lld: %llu to %d",
                       call, name, (unsigned long long)head->hidden, (long long)rows->stride,
                       (unsigned long long)head->hidden, INT32_MAX);
    return BP_OK;
}

bp_status bp_check_head_batch(const char *call, const bp_lm_head *head, const bp_lm_head_batch *batch,
                              bp_head_batch *checked)
{
    const bp_token_rows *hidden = &batch->hidden;
    bp_head_batch c = {.alpha = 1 / batch->temperature};
    bp_token_rows weight;
    BP_TRY(bp_check_temperature(call, batch->temperature));
    BP_TRY(bp_check_tokens(call, hidden->batch, hidden->sequence, head->base.max_tokens, &c.token_count));
    if (hidden->dtype != head->dtype)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: hidden states are %s, the head is made for %s", call,
                       bp_dtype_name(hidden->dtype), bp_dtype_name(head->dtype));
    if (c.token_count != 0) {
        BP_TRY(bp_check_rows(call, "hidden states", hidden, head->hidden, false, &c.hidden));
        BP_TRY(check_weight(call, "weights", head, batch->weight, head->dtype, batch->weight_stride, &weight));
        BP_TRY(bp_check_targets(call, &batch->target, batch->target_dtype, &batch->mask, hidden->batch,
                                hidden->sequence, &c.tokens));
        c.weight = (bp_matrix){weight.data, weight.dtype, weight.stride};
    }
    *checked = c;
    return BP_OK;
}

static bp_status check_apart(const char *call, const char *name, const bp_token_rows *written, const char *other,
                             const bp_token_rows *read)
{
    if (bp_rows_meet(written, read))
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: the gradient of %s at %p lies among the %s at %p", call, name,
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

/* `weight_grad`: checked; data NULL: not wanted. */
static bp_status check_hidden_grad(const char *call, const bp_lm_head *head, const bp_head_batch *batch,
                                   const bp_token_rows *given, const bp_matrix *weight_grad, bp_token_rows *checked)
{
    const bp_token_rows *hidden = &batch->hidden;
    if (given->batch != hidden->batch || given->sequence != hidden->sequence)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: a gradient of %llu x %llu tokens for hidden states of %llu x %llu",
                       call, (unsigned long long)given->batch, (unsigned long long)given->sequence,
                       (unsigned long long)hidden->batch, (unsigned long long)hidden->sequence);
    if (given->dtype != BP_DTYPE_FP32 && given->dtype != head->dtype)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: a gradient in %s of hidden states in %s: fp32 and %s are possible",
                       call, bp_dtype_name(given->dtype), bp_dtype_name(head->dtype), bp_dtype_name(head->dtype));
    BP_TRY(bp_check_rows(call, "gradients of hidden states", given, head->hidden, true, checked));
    const bp_token_rows weight = weight_rows(head, &batch->weight), beside = weight_rows(head, weight_grad);
    BP_TRY(check_apart(call, "hidden states", checked, "hidden states", hidden));
    BP_TRY(check_apart(call, "hidden states", checked, "weights", &weight));
    if (weight_grad->data == NULL)
        return BP_OK;
    return check_apart(call, "hidden states", checked, "gradients of weights", &beside);
}

static bp_status check_weight_grad(const char *call, const bp_lm_head *head, const bp_head_batch *batch,
                                   const bp_lm_head_gradients *gradients, bp_matrix *checked)
{
    bp_token_rows grad;
    BP_TRY(check_weight(call, "gradients of weights", head, gradients->weight_grad, BP_DTYPE_FP32,
                        gradients->weight_grad_stride, &grad));
    *checked = (bp_matrix){grad.data, grad.dtype, grad.stride};
    if (batch->token_count == 0)
        return BP_OK;
    const bp_token_rows weight = weight_rows(head, &batch->weight);
    BP_TRY(check_apart(call, "weights", &grad, "weights", &weight));
    return check_apart(call, "weights", &grad, "hidden states", &batch->hidden);
}

bp_status bp_check_head_gradients(const char *call, const bp_lm_head *head, const bp_head_batch *batch,
                                  const bp_lm_head_gradients *gradients, bp_head_gradients *checked)
{
    bp_head_gradients c = {.adds = gradients->accumulate != 0};
    if (head->forward_only)
        return bp_fail(BP_ERR_SCHEDULE, "%s: the head was made for forward only (forward_only)", call);
    if (gradients->weight_grad != NULL)
        BP_TRY(check_weight_grad(call, head, batch, gradients, &c.weight));
    if (batch->token_count != 0) {
        BP_TRY(bp_check_upstream(call, &gradients->logprob_grad, &gradients->entropy_grad, gradients->saved,
                                 gradients->saved_bytes, batch->tokens.batch, batch->tokens.sequence, &c.upstream));
        if (gradients->hidden_grad.data != NULL)
            BP_TRY(check_hidden_grad(call, head, batch, &gradients->hidden_grad, &c.weight, &c.hidden));
    }
    *checked = c;
    return BP_OK;
}
