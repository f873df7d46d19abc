/* The fused head's backward pass: logits again, their gradient in the same memory, and the products of that. The logits of the next piece
 * are multiplied before this piece's gradient is waited for, so that kernels run beside products. */
#include "core/fail.h"
#include "core/structs.h"
#include "devices/clients.h"
#include "logprob/lm_head.h"

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
    BP_TRY(bp_head_logits(head, b->batch, &piece, index, b->scratch, b->stream, &work.logits, &chunk));
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
        BP_TRY(bp_head_hidden_grad(head, &piece, &product, &b->out->hidden, b->stream));
    if (b->out->weight.data != NULL)
        BP_TRY(lm_head_backward_add_weight_grad(b, &piece, &product, b->out->adds || index > 0));
    BP_TRY(bp_workspace_give(&head->base.workspace, BP_WORK_CHUNK + index % 2, head->multiplies));
    return b->out->hidden.data != NULL && head->sums ? bp_head_sum(head, &piece, &b->out->hidden, b->stream) : BP_OK;
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
    bp_status status = bp_head_fork(head, stream, &b.scratch);
    if (status == BP_OK)
        status = lm_head_backward_add_pieces(&b);
    return bp_head_join(head, stream, status);
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
