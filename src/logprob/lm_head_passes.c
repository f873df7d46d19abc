/* Forward and backward of the fused head, chunk by chunk. */
#include "core/fail.h"

#include "core/structs.h"
#include "devices/clients.h"
#include "logprob/arguments.h"
#include "logprob/lm_head.h"

/* ---- sums over ranks --------------------------------------------------------------------------------------------- */

/* What is summed: fp32 where it can be rounded afterwards. */
static bp_dtype sum_dtype(const bp_lm_head *head, const bp_token_rows *out)
{
    return head->products->ops->place != NULL ? BP_DTYPE_FP32 : out->dtype;
}

static bp_status multiply(bp_lm_head *head, const bp_piece *piece, const bp_product_work *product,
                          const bp_token_rows *out)
{
    bp_product_work work = *product;
    for (uint64_t row = 0; row < piece->rows; row += work.rows) {
        work.rows = bp_piece_matrix(out, piece, row, &work.c);
        BP_TRY(head->products->ops->hidden_grad(head->products, &work, head->multiplies));
        work.a.data =
            (uint8_t *)work.a.data + (int64_t)work.rows * work.a.stride * (int64_t)(bp_dtype_bits(work.a.dtype) / 8);
    }
    return BP_OK;
}

/* `to` goes on when `from` has come to this point. */
static bp_status head_order(bp_event *event, bp_stream *from, bp_stream *to)
{
    BP_TRY(bp_event_record(event, from));
    return bp_stream_wait(to, event);
}

/* hidden_grad of a piece: multiplied here, on the head's stream, into the caller's memory or, to be summed, into a workspace. */
static bp_status head_hidden_grad(bp_lm_head *head, const bp_piece *piece, const bp_product_work *product,
                                  const bp_token_rows *out, bp_stream *stream)
{
    void *sums;
    if (!head->sums)
        return multiply(head, piece, product, out);
    BP_TRY(bp_workspace_take(&head->base.workspace, BP_WORK_SUMS, head->multiplies, &sums));
    bp_product_work work = *product;
    work.rows = piece->rows;
    work.c = (bp_matrix){sums, sum_dtype(head, out), (int64_t)head->hidden};
    BP_TRY(head->products->ops->hidden_grad(head->products, &work, head->multiplies));
    return head_order(head->moved, head->multiplies, stream);
}

static bp_status lm_head_sums_place(bp_lm_head *head, const bp_piece *piece, const bp_matrix *sums,
                                    const bp_token_rows *out, bp_stream *stream)
{
    const bp_products_ops *ops = head->products->ops;
    const uint64_t row_bytes = head->hidden * (bp_dtype_bits(sums->dtype) / 8);
    bp_product_work work = {.hidden = head->hidden, .a = *sums};
    for (uint64_t row = 0; row < piece->rows; row += work.rows) {
        work.rows = bp_piece_matrix(out, piece, row, &work.c);
        work.a.data = (uint8_t *)sums->data + row * row_bytes;
        if (ops->place != NULL) {
            BP_TRY(ops->place(head->products, &work, stream));
            continue;
        }
        const uint64_t step = (uint64_t)work.c.stride * (bp_dtype_bits(out->dtype) / 8);
        for (uint64_t r = 0; r < work.rows; r++)
            BP_TRY(bp_stream_copy(stream, (uint8_t *)work.c.data + r * step, (uint8_t *)work.a.data + r * row_bytes,
                                  row_bytes));
    }
    return BP_OK;
}

/* Communicators of callbacks may have no collectives, but every one exchanges host memory. In rank order on every rank. */
static bp_status sum_on_host(const bp_lm_head *head, const float *from, float *to, uint64_t count, bp_stream *stream)
{
    bp_comm *comm = head->base.shards.comm;
    BP_TRY(bp_stream_synchronize(stream));
    for (uint64_t done = 0; done < count; done += BP_EXCHANGED_NUMEL) {
        const uint64_t now = count - done < BP_EXCHANGED_NUMEL ? count - done : BP_EXCHANGED_NUMEL;
        BP_TRY(bp_comm_exchange(comm, from + done, now * sizeof *from, head->exchanged));
        for (uint64_t i = 0; i < now; i++) {
            float sum = head->exchanged[i];
            for (uint32_t rank = 1; rank < head->base.shards.ranks; rank++)
                sum += head->exchanged[rank * now + i];
            to[done + i] = sum;
        }
    }
    return BP_OK;
}

static bp_status sum(const bp_lm_head *head, const bp_matrix *from, void *to, uint64_t count, bp_stream *stream)
{
    bp_status status =
        bp_comm_all_reduce(head->base.shards.comm, from->data, to, count, from->dtype, BP_REDUCE_SUM, stream);
    if (status == BP_ERR_UNSUPPORTED && head->exchanged != NULL && from->dtype == BP_DTYPE_FP32)
        status = sum_on_host(head, from->data, to, count, stream);
    return status;
}

/* The rest of it, on the stream of the call: the sum over ranks. To be called when more products are on their way. */
static bp_status head_sum(bp_lm_head *head, const bp_piece *piece, const bp_token_rows *out, bp_stream *stream)
{
    bp_workspace *workspace = &head->base.workspace;
    void *address;
    uint64_t bytes;
    BP_TRY(bp_pool_address(workspace->pool, workspace->ids[BP_WORK_SUMS], &address, &bytes));
    const bp_matrix sums = {address, sum_dtype(head, out), (int64_t)head->hidden};
    bp_matrix direct;
    const bool is_direct = bp_piece_matrix(out, piece, 0, &direct) == piece->rows &&
                           (uint64_t)direct.stride == head->hidden && direct.dtype == sums.dtype;
    BP_TRY(sum(head, &sums, is_direct ? direct.data : address, piece->rows * head->hidden, stream));
    if (!is_direct)
        BP_TRY(lm_head_sums_place(head, piece, &sums, out, stream));
    return bp_workspace_give(workspace, BP_WORK_SUMS, stream);
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* The fused head's forward pass, and what both passes begin with: the logits of a piece. */

#define CALL_WORKSPACES                                                                                                \
    (1u << BP_WORK_PARTIALS | 1u << BP_WORK_GATHERED | ((1u << BP_HEAD_WORKSPACES) - 1) << BP_WORK_OWN)

/* Begins a call on `stream`: the head's own stream goes on from there, with the scratch memory. */
static bp_status head_fork(bp_lm_head *head, bp_stream *stream, void **scratch)
{
    BP_TRY(bp_workspace_drop(&head->base.workspace, CALL_WORKSPACES, stream));
    BP_TRY(head_order(head->moved, stream, head->multiplies));
    return bp_workspace_take(&head->base.workspace, BP_WORK_SCRATCH, head->multiplies, scratch);
}

/* The caller's stream waits for the head's. After a failure all workspaces are given back, and work that nobody would wait for is waited
 * for here. */
static bp_status head_join(bp_lm_head *head, bp_stream *stream, bp_status status)
{
    bp_workspace *workspace = &head->base.workspace;
    if (status == BP_OK)
        status = bp_workspace_give(workspace, BP_WORK_SCRATCH, head->multiplies);
    bp_status joined = head_order(head->moved, head->multiplies, stream);
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

/* Logits of piece number `index` into a chunk workspace, taken here; `stream` waits for them. */
static bp_status head_logits(bp_lm_head *head, const bp_head_batch *batch, const bp_piece *piece, uint64_t index,
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
    return head_order(head->moved, head->multiplies, stream);
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
    BP_TRY(head_logits(head, batch, &piece, index, scratch, stream, &work.logits, &chunk));
    BP_TRY(engine->ops->partials(engine, &work, stream));
    return bp_workspace_give(&head->base.workspace, BP_WORK_CHUNK + index % 2, stream);
}

static bp_status lm_head_forward_add_pieces(bp_lm_head *head, const bp_head_batch *batch, bool with_entropy,
                                            bp_stream *stream, void **partials)
{
    void *scratch;
    const uint64_t pieces = bp_piece_count(batch->tokens.batch, batch->tokens.sequence, head->chunk);
    bp_status status = head_fork(head, stream, &scratch);
    if (status == BP_OK)
        status = bp_workspace_take(&head->base.workspace, BP_WORK_PARTIALS, stream, partials);
    for (uint64_t i = 0; status == BP_OK && i < pieces; i++)
        status = lm_head_forward_add_piece(head, batch, i, scratch, with_entropy, *partials, stream);
    return head_join(head, stream, status);
}

static bp_status lm_head_forward_enqueue(bp_lm_head *head, const bp_head_batch *batch, const bp_outputs_work *outputs,
                                         bp_stream *stream)
{
    void *partials = NULL;
    BP_TRY(lm_head_forward_add_pieces(head, batch, outputs->outputs->entropy.data != NULL, stream, &partials));
    bp_status status = bp_base_finish_partials(&head->base, &batch->tokens, partials, 1, outputs, stream);
    return status == BP_OK ? BP_OK : head_join(head, stream, status);
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

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* The fused head's backward pass: logits again, their gradient in the same memory, and the products of that. The logits of the next piece
 * are multiplied before this piece's gradient is waited for, so that kernels run beside products. */

typedef struct backward {
    bp_lm_head *head;
    const bp_head_batch *batch;
    const bp_head_gradients *out;
    void *scratch;
    bp_stream *stream;  /* of the call */
    bp_matrix grads[2]; /* of the logits in each chunk workspace */
} backward;

static bp_piece piece_at(const backward *b, uint64_t index)
{
    return bp_piece_at(b->batch->tokens.batch, b->batch->tokens.sequence, b->head->chunk, index);
}

/* Where the products want the weight's dtype, a row's gradient begins where its logits did and takes half of their memory. */
static bp_matrix place_gradient(const bp_lm_head *head, const bp_piece *piece, void *chunk, bp_gradient_work *work)
{
    const bp_dtype dtype = head->products->gradient;
    work->narrows_in_place = dtype != BP_DTYPE_FP32;
    work->out = chunk;
    work->out_dtype = (int32_t)dtype;
    work->out_stride = work->logits.stride * (work->narrows_in_place ? 2 : 1);
    work->out_batch_stride = (int64_t)piece->count * work->out_stride;
    return (bp_matrix){work->out, dtype, work->out_stride};
}

static bp_status begin_piece(backward *b, uint64_t index)
{
    bp_lm_head *head = b->head;
    const bp_gradient_work *all = &b->out->upstream;
    const bp_piece piece = piece_at(b, index);
    bp_gradient_work work = *all;
    void *chunk;
    BP_TRY(head_logits(head, b->batch, &piece, index, b->scratch, b->stream, &work.logits, &chunk));
    work.tokens = bp_piece_tokens(&b->batch->tokens, &piece);
    work.saved = bp_piece_saved(&all->saved, &piece);
    work.logprob_grad =
        bp_piece_values(all->logprob_grad, all->logprob_grad_batch_stride, all->logprob_grad_stride, &piece);
    work.entropy_grad =
        bp_piece_values(all->entropy_grad, all->entropy_grad_batch_stride, all->entropy_grad_stride, &piece);
    b->grads[index % 2] = place_gradient(head, &piece, chunk, &work);
    BP_TRY(head->base.engine->ops->gradient(head->base.engine, &work, b->stream));
    return bp_event_record(head->graded[index % 2], b->stream);
}

static bp_status lm_head_backward_add_weight_grad(backward *b, const bp_piece *piece, const bp_product_work *product,
                                                  bool adds)
{
    bp_products *products = b->head->products;
    const bp_tokens_work tokens = bp_piece_tokens(&b->batch->tokens, piece);
    bp_product_work work = *product;
    work.c = b->out->weight;
    work.mask = (bp_row_mask){.data = tokens.mask,
                              .batch_stride = tokens.mask_batch_stride,
                              .stride = tokens.mask_stride,
                              .count = piece->count};
    for (uint64_t row = 0; row < piece->rows; row += work.rows) {
        work.rows = bp_piece_matrix(&b->batch->hidden, piece, row, &work.b);
        work.mask.first = row;
        work.adds = adds || row > 0;
        BP_TRY(products->ops->weight_grad(products, &work, b->head->multiplies));
        work.a.data =
            (uint8_t *)work.a.data + (int64_t)work.rows * work.a.stride * (int64_t)(bp_dtype_bits(work.a.dtype) / 8);
    }
    return BP_OK;
}

static bp_status end_piece(backward *b, uint64_t index)
{
    bp_lm_head *head = b->head;
    const bp_piece piece = piece_at(b, index);
    const bp_product_work product = {.columns = head->base.columns,
                                     .hidden = head->hidden,
                                     .alpha = b->batch->alpha,
                                     .a = b->grads[index % 2],
                                     .b = b->batch->weight,
                                     .scratch = b->scratch};
    BP_TRY(bp_stream_wait(head->multiplies, head->graded[index % 2]));
    if (b->out->hidden.data != NULL)
        BP_TRY(head_hidden_grad(head, &piece, &product, &b->out->hidden, b->stream));
    if (b->out->weight.data != NULL)
        BP_TRY(lm_head_backward_add_weight_grad(b, &piece, &product, b->out->adds || index > 0));
    BP_TRY(bp_workspace_give(&head->base.workspace, BP_WORK_CHUNK + index % 2, head->multiplies));
    return b->out->hidden.data != NULL && head->sums ? head_sum(head, &piece, &b->out->hidden, b->stream) : BP_OK;
}

static bp_status lm_head_backward_add_pieces(backward *b)
{
    const uint64_t pieces = bp_piece_count(b->batch->tokens.batch, b->batch->tokens.sequence, b->head->chunk);
    BP_TRY(begin_piece(b, 0));
    for (uint64_t i = 0; i < pieces; i++) {
        if (i + 1 < pieces)
            BP_TRY(begin_piece(b, i + 1));
        BP_TRY(end_piece(b, i));
    }
    return BP_OK;
}

static bp_status lm_head_backward_enqueue(bp_lm_head *head, const bp_head_batch *batch, const bp_head_gradients *out,
                                          bp_stream *stream)
{
    backward b = {.head = head, .batch = batch, .out = out, .stream = stream};
    bp_status status = head_fork(head, stream, &b.scratch);
    if (status == BP_OK)
        status = lm_head_backward_add_pieces(&b);
    return head_join(head, stream, status);
}

/* The gradient of no tokens. */
static bp_status clear_weight_grad(const bp_lm_head *head, const bp_matrix *grad, bp_stream *stream)
{
    const uint64_t row_bytes = head->hidden * sizeof(float);
    if ((uint64_t)grad->stride == head->hidden)
        return bp_stream_fill(stream, grad->data, 0, head->base.columns * row_bytes);
    for (uint64_t row = 0; row < head->base.columns; row++)
        BP_TRY(bp_stream_fill(stream, (float *)grad->data + row * (uint64_t)grad->stride, 0, row_bytes));
    return BP_OK;
}

bp_status bp_lm_head_backward(bp_lm_head *head, const bp_lm_head_batch *batch, const bp_lm_head_gradients *gradients,
                              bp_stream *stream)
{
    const char *call = "bp_lm_head_backward";
    bp_lm_head_batch own;
    bp_lm_head_gradients wanted;
    if (head == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: needs a head", call);
    BP_TRY(bp_lm_head_batch_init(&own, sizeof own));
    BP_TRY(bp_lm_head_gradients_init(&wanted, sizeof wanted));
    BP_TRY(bp_struct_read(call, batch, false, &own, sizeof own));
    BP_TRY(bp_struct_read(call, gradients, false, &wanted, sizeof wanted));
    bp_head_batch work;
    bp_head_gradients out;
    BP_TRY(bp_check_head_batch(call, head, &own, &work));
    BP_TRY(bp_check_head_gradients(call, head, &work, &wanted, &out));
    bp_base *base = &head->base;
    bp_stream *used = bp_base_stream(base, stream);
    BP_TRY(bp_stream_check(used, base->device, call)); /* where the pool does not look */
    if (work.token_count != 0 && (out.hidden.data != NULL || out.weight.data != NULL))
        return bp_base_end(base, stream, lm_head_backward_enqueue(head, &work, &out, used));
    if (work.token_count == 0 && out.weight.data != NULL && !out.adds)
        return bp_base_end(base, stream, clear_weight_grad(head, &out.weight, used));
    return BP_OK;
}
