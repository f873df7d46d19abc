/* The forward pass: one read of the logits, one exchange. */
#include "core/fail.h"
#include "core/structs.h"
#include "logprob/arguments.h"
#include "logprob/logprob.h"

bp_status bp_check_batch(const char *call, const bp_logprob *client, const bp_logprob_batch *batch, bp_batch_work *work)
{
    const bp_base *base = &client->base;
    if (batch->chunk < 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: chunk %lld is negative: 0 is one piece", call,
                       (long long)batch->chunk);
    BP_TRY(bp_check_temperature(call, batch->temperature));
    const uint64_t rows = batch->logits.batch, sequence = batch->logits.sequence;
    bp_batch_work checked = {0};
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

static bp_status forward_enqueue(bp_base *base, const bp_batch_work *batch, const bp_outputs_work *outputs,
                                 bp_stream *stream)
{
    void *partials;
    BP_TRY(bp_workspace_take(&base->workspace, BP_WORK_PARTIALS, stream, &partials));
    const bp_partials_work work = {.tokens = batch->tokens,
                                   .logits = batch->work,
                                   .partials = partials,
                                   .with_entropy = outputs->outputs->entropy.data != NULL};
    bp_status status = base->engine->ops->partials(base->engine, &work, stream);
    if (status != BP_OK) {
        (void)bp_workspace_give(&base->workspace, BP_WORK_PARTIALS, stream);
        return status;
    }
    return bp_base_finish_partials(base, &batch->tokens, partials, batch->work.scale, outputs, stream);
}

bp_status bp_logprob_forward(bp_logprob *client, const bp_logprob_batch *batch, const bp_logprob_outputs *outputs,
                             bp_stream *stream)
{
    const char *call = "bp_logprob_forward";
    bp_logprob_batch own;
    bp_logprob_outputs wanted;
    if (client == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: needs a client", call);
    BP_TRY(bp_logprob_batch_init(&own, sizeof own));
    BP_TRY(bp_logprob_outputs_init(&wanted, sizeof wanted));
    BP_TRY(bp_struct_read(call, batch, false, &own, sizeof own));
    BP_TRY(bp_struct_read(call, outputs, false, &wanted, sizeof wanted));
    bp_batch_work work;
    bp_outputs_work out;
    BP_TRY(bp_check_batch(call, client, &own, &work));
    if (work.token_count == 0)
        return BP_OK;
    BP_TRY(bp_check_outputs(call, &wanted, work.tokens.batch, work.tokens.sequence, &out));
    bp_base *base = &client->base;
    return bp_base_end(base, stream, forward_enqueue(base, &work, &out, bp_base_stream(base, stream)));
}
