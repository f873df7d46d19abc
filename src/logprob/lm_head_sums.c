/* hidden_grad, and its sum over the ranks of the vocabulary. Ranks sum piece by piece in memory without gaps, so that their collectives are
 * the same whatever strides each of them has. */
#include "core/fail.h"
#include "logprob/lm_head.h"

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

bp_status bp_head_hidden_grad(bp_lm_head *head, const bp_piece *piece, const bp_product_work *product,
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
    return bp_head_order(head->moved, head->multiplies, stream);
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

bp_status bp_head_sum(bp_lm_head *head, const bp_piece *piece, const bp_token_rows *out, bp_stream *stream)
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
