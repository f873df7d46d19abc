/* The backward pass: reads the logits again and writes their gradient. */
#include "core/fail.h"
#include "core/structs.h"
#include "devices/clients.h"
#include "logprob/arguments.h"
#include "logprob/logprob.h"

static bp_status check_in_place(const char *call, const bp_token_rows *logits, const bp_token_rows *grad)
{
    if (grad->data == logits->data && grad->dtype == logits->dtype && grad->batch_stride == logits->batch_stride &&
        grad->stride == logits->stride)
        return BP_OK;
    return bp_fail(
        BP_ERR_INVALID_ARGUMENT,
        "%s: in place, but the gradient (%s at %p, strides %lld and %lld) is not where the logits are (%s at %p, "
        "strides %lld and %lld)",
        call, bp_dtype_name(grad->dtype), grad->data, (long long)grad->batch_stride, (long long)grad->stride,
        bp_dtype_name(logits->dtype), logits->data, (long long)logits->batch_stride, (long long)logits->stride);
}

/* The gradient's rows are [batch, sequence, columns] as the logits' are; its dtype is fp32 or theirs. */
static bp_status check_gradient(const char *call, const bp_batch_work *batch, const bp_logprob_gradients *gradients,
                                bp_token_rows *grad)
{
    const bp_token_rows *logits = &batch->logits, *given = &gradients->logits_grad;
    if (given->batch != logits->batch || given->sequence != logits->sequence)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: a gradient of %llu x %llu tokens for logits of %llu x %llu", call,
                       (unsigned long long)given->batch, (unsigned long long)given->sequence,
                       (unsigned long long)logits->batch, (unsigned long long)logits->sequence);
    if (given->dtype != BP_DTYPE_FP32 && given->dtype != logits->dtype)
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "%s: a gradient in %s of logits in %s: it may be fp32 or the logits' dtype", call,
                       bp_dtype_name(given->dtype), bp_dtype_name(logits->dtype));
    BP_TRY(bp_check_rows(call, "gradients", given, logits->columns, true, grad));
    if (gradients->in_place)
        return check_in_place(call, logits, grad);
    if (bp_rows_meet(logits, grad))
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "%s: the gradient at %p lies among the logits at %p: in_place allows to overwrite them", call,
                       grad->data, logits->data);
    return BP_OK;
}

bp_status bp_logprob_backward(bp_logprob *client, const bp_logprob_batch *batch, const bp_logprob_gradients *gradients,
                              bp_stream *stream)
{
    const char *call = "bp_logprob_backward";
    bp_logprob_batch own;
    bp_logprob_gradients wanted;
    if (client == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: needs a client", call);
    BP_TRY(bp_logprob_batch_init(&own, sizeof own));
    BP_TRY(bp_logprob_gradients_init(&wanted, sizeof wanted));
    BP_TRY(bp_struct_read(call, batch, false, &own, sizeof own));
    BP_TRY(bp_struct_read(call, gradients, false, &wanted, sizeof wanted));
    bp_batch_work checked;
    bp_token_rows grad;
    BP_TRY(bp_check_batch(call, client, &own, &checked));
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
    BP_TRY(bp_stream_check(used, base->device, call)); /* forward's pool looks */
    return bp_base_end(base, stream, engine->ops->gradient(engine, &work, used));
}
