/* The fused head's forward pass, and what both passes begin with: the logits of a piece. */
#include "core/fail.h"
#include "core/structs.h"
#include "logprob/arguments.h"
#include "logprob/lm_head.h"

#define CALL_WORKSPACES                                                                                                \
    (1u << BP_WORK_PARTIALS | 1u << BP_WORK_GATHERED | ((1u << BP_HEAD_WORKSPACES) - 1) << BP_WORK_OWN)

bp_status bp_head_order(bp_event *event, bp_stream *from, bp_stream *to)
{
    BP_TRY(bp_event_record(event, from));
    return bp_stream_wait(to, event);
}

bp_status bp_head_fork(bp_lm_head *head, bp_stream *stream, void **scratch)
{
    BP_TRY(bp_workspace_drop(&head->base.workspace, CALL_WORKSPACES, stream));
    BP_TRY(bp_head_order(head->moved, stream, head->multiplies));
    return bp_workspace_take(&head->base.workspace, BP_WORK_SCRATCH, head->multiplies, scratch);
}

bp_status bp_head_join(bp_lm_head *head, bp_stream *stream, bp_status status)
{
    bp_workspace *workspace = &head->base.workspace;
    if (status == BP_OK)
        status = bp_workspace_give(workspace, BP_WORK_SCRATCH, head->multiplies);
    bp_status joined = bp_head_order(head->moved, head->multiplies, stream);
    if (joined != BP_OK)
        (void)bp_stream_synchronize(head->multiplies);
    if (status == BP_OK)
        status = joined;
    if (status == BP_OK)
        return BP_OK;
    (void)bp_workspace_drop(workspace, CALL_WORKSPACES, stream);
    if (stream == head->base.own)
        (void)bp_stream_synchronize(stream);
    return status;
}

bp_status bp_head_logits(bp_lm_head *head, const bp_head_batch *batch, const bp_piece *piece, uint64_t index,
                         void *scratch, bp_stream *stream, bp_logits_work *logits, void **chunk)
{
    const uint64_t columns = head->base.columns;
    void *memory;
    BP_TRY(bp_workspace_take(&head->base.workspace, BP_WORK_CHUNK + index % 2, head->multiplies, &memory));
    bp_product_work work = {
        .columns = columns, .hidden = head->hidden, .alpha = batch->alpha, .b = batch->weight, .scratch = scratch};
    for (uint64_t row = 0; row < piece->rows; row += work.rows) {
        work.rows = bp_piece_matrix(&batch->hidden, piece, row, &work.a);
        work.c = (bp_matrix){(float *)memory + row * columns, BP_DTYPE_FP32, (int64_t)columns};
        BP_TRY(head->products->ops->logits(head->products, &work, head->multiplies));
    }
    *logits = (bp_logits_work){.data = memory,
                               .batch_stride = (int64_t)(piece->count * columns),
                               .stride = (int64_t)columns,
                               .columns = columns,
                               .first = head->base.start,
                               .dtype = BP_DTYPE_FP32,
                               .scale = 1}; /* the temperature is in them */
    *chunk = memory;
    return bp_head_order(head->moved, head->multiplies, stream);
}

static bp_status lm_head_forward_add_piece(bp_lm_head *head, const bp_head_batch *batch, uint64_t index, void *scratch,
                                           bool with_entropy, bp_partial *partials, bp_stream *stream)
{
    bp_engine *engine = head->base.engine;
    void *chunk;
    const bp_piece piece = bp_piece_at(batch->tokens.batch, batch->tokens.sequence, head->chunk, index);
    bp_partials_work work = {.tokens = bp_piece_tokens(&batch->tokens, &piece),
                             .partials = partials + piece.token,
                             .with_entropy = with_entropy};
    BP_TRY(bp_head_logits(head, batch, &piece, index, scratch, stream, &work.logits, &chunk));
    BP_TRY(engine->ops->partials(engine, &work, stream));
    return bp_workspace_give(&head->base.workspace, BP_WORK_CHUNK + index % 2, stream);
}

static bp_status lm_head_forward_add_pieces(bp_lm_head *head, const bp_head_batch *batch, bool with_entropy,
                                            bp_stream *stream, void **partials)
{
    void *scratch;
    const uint64_t pieces = bp_piece_count(batch->tokens.batch, batch->tokens.sequence, head->chunk);
    bp_status status = bp_head_fork(head, stream, &scratch);
    if (status == BP_OK)
        status = bp_workspace_take(&head->base.workspace, BP_WORK_PARTIALS, stream, partials);
    for (uint64_t i = 0; status == BP_OK && i < pieces; i++)
        status = lm_head_forward_add_piece(head, batch, i, scratch, with_entropy, *partials, stream);
    return bp_head_join(head, stream, status);
}

static bp_status lm_head_forward_enqueue(bp_lm_head *head, const bp_head_batch *batch, const bp_outputs_work *outputs,
                                         bp_stream *stream)
{
    void *partials = NULL;
    BP_TRY(lm_head_forward_add_pieces(head, batch, outputs->outputs->entropy.data != NULL, stream, &partials));
    bp_status status = bp_base_finish_partials(&head->base, &batch->tokens, partials, 1, outputs, stream);
    return status == BP_OK ? BP_OK : bp_head_join(head, stream, status);
}

bp_status bp_lm_head_forward(bp_lm_head *head, const bp_lm_head_batch *batch, const bp_logprob_outputs *outputs,
                             bp_stream *stream)
{
    const char *call = "bp_lm_head_forward";
    bp_lm_head_batch own;
    bp_logprob_outputs wanted;
    if (head == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: needs a head", call);
    BP_TRY(bp_lm_head_batch_init(&own, sizeof own));
    BP_TRY(bp_logprob_outputs_init(&wanted, sizeof wanted));
    BP_TRY(bp_struct_read(call, batch, false, &own, sizeof own));
    BP_TRY(bp_struct_read(call, outputs, false, &wanted, sizeof wanted));
    bp_head_batch work;
    bp_outputs_work out;
    BP_TRY(bp_check_head_batch(call, head, &own, &work));
    if (work.token_count == 0)
        return BP_OK;
    BP_TRY(bp_check_outputs(call, &wanted, work.tokens.batch, work.tokens.sequence, &out));
    bp_base *base = &head->base;
    return bp_base_end(base, stream, lm_head_forward_enqueue(head, &work, &out, bp_base_stream(base, stream)));
}
