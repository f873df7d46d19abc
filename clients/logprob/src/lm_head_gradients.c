/* SPDX-License-Identifier: Apache-2.0 */
/* The gradients of hidden states and weight: products with the gradient of a step's logits, sums over steps and ranks, and rounding. */
#include <bucketpool/core/arith.h>
#include <bucketpool/core/fail.h>
#include <bucketpool/kernels.h>

#include "lm_head.h"

/* ---- hidden_grad ------------------------------------------------------------------------------------------------- */

/* True if hidden_grad of a piece is summed in a workspace and then placed: over ranks, or where products cannot add to it. BLAS writes fp32
 * only. */
static bool is_summed(const bp_head_pass *pass, const bp_piece *p, const bp_token_rows *out)
{
    bp_matrix direct;
    if (pass->head->sums || (pass->head->multiplies != NULL && pass->parts == 1))
        return pass->head->sums;
    return out->dtype != BP_DTYPE_FP32 || bp_piece_matrix(out, p, 0, &direct) < p->rows;
}

static bp_status sums_address(bp_workspace *workspace, void **sums)
{
    uint64_t bytes;
    return bp_pool_address(workspace->pool, workspace->ids[BP_WORK_SUMS], sums, &bytes);
}

/* Into the caller's memory, or a workspace that the first product of a piece acquires. `p`: the piece or its half, from `row` on. */
static bp_status head_multiply_hidden_grad(const bp_head_pass *pass, const bp_piece *p, uint64_t row,
                                           const bp_product_work *product, const bp_token_rows *out, bool is_summed)
{
    bp_workspace *workspace = &pass->head->base.workspace;
    bp_products *products = pass->head->products;
    bp_product_work work = *product;
    void *sums;
    if (is_summed) {
        if (work.adds || row > 0)
            BP_TRY(sums_address(workspace, &sums));
        else
            BP_TRY(bp_workspace_take(workspace, BP_WORK_SUMS, pass->multiplies, &sums));
        work.rows = p->rows;
        work.c = (bp_matrix){(float *)sums + row * pass->head->hidden, BP_DTYPE_FP32, (int64_t)pass->head->hidden};
        return products->ops->hidden_grad(products, &work, pass->multiplies);
    }
    for (uint64_t r = 0; r < p->rows; r += work.rows) {
        work.rows = bp_piece_matrix(out, p, r, &work.c);
        work.a.data = bp_matrix_row(&product->a, r);
        BP_TRY(products->ops->hidden_grad(products, &work, pass->multiplies));
    }
    return BP_OK;
}

/* Callback communicators may lack collectives, but every communicator exchanges host memory: each rank sums in rank order. */
static bp_status sum_over_ranks(const bp_lm_head *head, const bp_matrix *from, float *to, uint64_t count,
                                bp_stream *stream)
{
    bp_comm *comm = head->base.shards.comm;
    const float *mine = from->data;
    bp_status status = bp_comm_all_reduce(comm, mine, to, count, from->dtype, BP_REDUCE_SUM, stream);
    if (status != BP_ERR_UNSUPPORTED || head->exchanged == NULL || from->dtype != BP_DTYPE_FP32)
        return status;
    BP_TRY(bp_stream_synchronize(stream));
    for (uint64_t done = 0; done < count; done += BP_EXCHANGED_NUMEL) {
        const uint64_t now = bp_min_u64(count - done, BP_EXCHANGED_NUMEL);
        BP_TRY(bp_comm_exchange(comm, mine + done, now * sizeof *mine, head->exchanged));
        for (uint64_t i = 0; i < now; i++) {
            float sum = head->exchanged[i];
            for (uint32_t rank = 1; rank < head->base.shards.ranks; rank++)
                sum += head->exchanged[rank * now + i];
            to[done + i] = sum;
        }
    }
    return BP_OK;
}

static bp_status place_sums(const bp_lm_head *head, const bp_piece *p, const bp_matrix *sums, const bp_token_rows *out,
                            bp_stream *stream)
{
    bp_product_work work = {.hidden = head->hidden};
    for (uint64_t row = 0; row < p->rows; row += work.rows) {
        work.rows = bp_piece_matrix(out, p, row, &work.c);
        work.a = (bp_matrix){bp_matrix_row(sums, row), sums->dtype, sums->stride};
        BP_TRY(head->products->ops->place(head->products, &work, stream));
    }
    return BP_OK;
}

/* Sums hidden_grad over ranks on the call's stream and places it, beside the next products. */
static bp_status finish_hidden_grad(const bp_head_pass *pass, const bp_piece *p, const bp_token_rows *out)
{
    const bp_lm_head *head = pass->head;
    bp_workspace *workspace = &pass->head->base.workspace;
    void *address;
    BP_TRY(bp_head_order(head->moved, pass->multiplies, pass->stream));
    BP_TRY(sums_address(workspace, &address));
    const bp_matrix sums = {address, BP_DTYPE_FP32, (int64_t)head->hidden};
    bp_matrix direct;
    const bool is_direct = head->sums && bp_piece_matrix(out, p, 0, &direct) == p->rows &&
                           (uint64_t)direct.stride == head->hidden && direct.dtype == BP_DTYPE_FP32;
    if (head->sums)
        BP_TRY(sum_over_ranks(head, &sums, is_direct ? direct.data : address, p->rows * head->hidden, pass->stream));
    if (!is_direct)
        BP_TRY(place_sums(head, p, &sums, out, pass->stream));
    return bp_workspace_give(workspace, BP_WORK_SUMS, pass->stream);
}

/* ---- weight_grad ------------------------------------------------------------------------------------------------- */

/* Rows of several matrices are several products, which add, or are copied into one. */
static bp_status head_multiply_weight_grad(const bp_head_pass *pass, const bp_piece *p, const bp_product_work *product)
{
    bp_products *products = pass->head->products;
    bp_product_work work = *product;
    work.mask = (bp_row_mask){.tokens = bp_piece_tokens(&pass->batch->tokens, p)};
    for (uint64_t row = 0; row < p->rows; row += work.rows) {
        work.rows = bp_piece_matrix(&pass->batch->hidden, p, row, &work.b);
        work.a.data = bp_matrix_row(&product->a, row);
        work.row = work.mask.first = row;
        work.joins = products->joins && row + work.rows < p->rows;
        work.adds = product->adds || (row > 0 && !products->joins);
        BP_TRY(products->ops->weight_grad(products, &work, pass->multiplies));
    }
    return BP_OK;
}

/* Rounds the sums of a tile of weight_grad on the host, where BLAS writes fp32 only. */
static bp_status round_weight_grad(const bp_head_pass *pass, const bp_piece *p, const bp_product_work *product)
{
    bp_lm_head *head = pass->head;
    bp_workspace *workspace = &head->base.workspace;
    void *sums;
    bp_product_work work = *product;
    BP_TRY(bp_workspace_take(workspace, BP_WORK_WEIGHT, pass->multiplies, &sums));
    work.c = (bp_matrix){sums, BP_DTYPE_FP32, (int64_t)head->hidden};
    BP_TRY(head_multiply_weight_grad(pass, p, &work));
    const bp_product_work rounded = {.rows = product->columns, .hidden = head->hidden, .a = work.c, .c = product->c};
    BP_TRY(head->products->ops->place(head->products, &rounded, pass->multiplies));
    return bp_workspace_give(workspace, BP_WORK_WEIGHT, pass->multiplies);
}

/* ---- both -------------------------------------------------------------------------------------------------------- */

#define HALVED_ROWS 1024u /* of a piece, at least: products of few rows are slow */

unsigned bp_head_halves(const bp_head_pass *pass, const bp_head_step *step, bp_piece halves[BP_HEAD_HALVES])
{
    const bp_piece *p = &step->piece;
    halves[0] = *p;
    if (pass->shape->chunks > 1 || pass->multiplies == pass->stream || p->rows < HALVED_ROWS)
        return 1;
    halves[0] = bp_piece_half(p, 0);
    halves[1] = bp_piece_half(p, 1);
    return BP_HEAD_HALVES;
}

/* The product of each half of the rows, after its event. */
static bp_status multiply_halves(const bp_head_pass *pass, const bp_head_step *step, const bp_product_work *product,
                                 const bp_token_rows *out, bool is_summed)
{
    bp_piece halves[BP_HEAD_HALVES];
    const unsigned count = bp_head_halves(pass, step, halves);
    for (unsigned h = 0; h < count; h++) {
        const uint64_t row = halves[h].token - step->piece.token;
        bp_product_work work = *product;
        work.a.data = bp_matrix_row(&product->a, row);
        work.rows = halves[h].rows;
        if (pass->multiplies != pass->stream)
            BP_TRY(bp_stream_wait(pass->multiplies,
                                  pass->head->graded[count > 1 ? h : step->index % pass->shape->chunks]));
        if (out->data != NULL)
            BP_TRY(head_multiply_hidden_grad(pass, &halves[h], row, &work, out, is_summed));
    }
    return BP_OK;
}

bp_status bp_head_multiply_gradient(const bp_head_pass *pass, const bp_head_step *step, const bp_matrix *d,
                                    bool has_weight, const bp_head_gradients *out)
{
    const bp_lm_head *head = pass->head;
    const bp_matrix *weight = &pass->batch->weight, *grad = &out->weight;
    const bool wants_hidden = out->hidden.data != NULL, is_host = head->multiplies == NULL;
    const bool sums_hidden = wants_hidden && is_summed(pass, &step->piece, &out->hidden);
    const int64_t element = bp_dtype_bits(d->dtype) / 8;
    for (uint64_t first = 0, columns; first < step->columns; first += columns) {
        columns = bp_min_u64(head->plan.tile, step->columns - first);
        const bool is_first = step->part == 0 && first == 0;
        bp_product_work work = {.rows = step->piece.rows,
                                .columns = columns,
                                .hidden = head->hidden,
                                .a = {(uint8_t *)d->data + (int64_t)first * element, d->dtype, d->stride},
                                .b = {bp_matrix_row(weight, step->first + first), weight->dtype, weight->stride},
                                .adds = !is_first,
                                .scratch = pass->scratch,
                                .keeps_weight = has_weight};
        BP_TRY(multiply_halves(pass, step, &work, &out->hidden, sums_hidden));
        if (grad->data == NULL)
            continue;
        work.c = (bp_matrix){bp_matrix_row(grad, step->first + first), grad->dtype, grad->stride};
        work.adds = out->adds || step->piece.token > 0;
        work.keeps_hidden = !is_first;
        BP_TRY((is_host && grad->dtype != BP_DTYPE_FP32 ? round_weight_grad
                                                        : head_multiply_weight_grad)(pass, &step->piece, &work));
    }
    return step->is_last && sums_hidden ? finish_hidden_grad(pass, &step->piece, &out->hidden) : BP_OK;
}

/* Gradients of no tokens are zero. */
bp_status bp_head_clear_gradients(const bp_lm_head *head, const bp_head_gradients *out, bp_stream *stream)
{
    const bp_matrix *grad = &out->weight;
    const uint64_t row_bytes = head->hidden * (bp_dtype_bits(grad->dtype) / 8);
    if (out->bias != NULL)
        BP_TRY(bp_stream_fill(stream, out->bias, 0, head->base.columns * sizeof *out->bias));
    if (grad->data == NULL)
        return BP_OK;
    if ((uint64_t)grad->stride == head->hidden)
        return bp_stream_fill(stream, grad->data, 0, head->base.columns * row_bytes);
    for (uint64_t row = 0; row < head->base.columns; row++)
        BP_TRY(bp_stream_fill(stream, bp_matrix_row(grad, row), 0, row_bytes));
    return BP_OK;
}
