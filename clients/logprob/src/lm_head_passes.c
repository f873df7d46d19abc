/* SPDX-License-Identifier: Apache-2.0 */
/* Forward and backward of the fused head, piece by piece. On the host a piece of tokens is taken in tiles of the vocabulary, so that its logits
 * stay small: with the saved statistics the gradient of each tile is independent of the others. */
#include <bucketpool/core/arith.h>
#include <bucketpool/core/fail.h>
#include <bucketpool/core/structs.h>
#include <bucketpool/kernels.h>

#include <string.h>

#include "lm_head.h"

/* ---- pieces ------------------------------------------------------------------------------------------------------ */

/* Tokens [batch, batch + batches) x [first, first + count): part of one sequence, or several whole ones. */
typedef struct piece {
    uint64_t batch, batches, first, count;
    uint64_t token; /* index of the first one; the others follow */
    uint64_t rows;
} piece;

/* A part of 0 is the whole. */
static uint64_t pieces_of(uint64_t whole, uint64_t part)
{
    return part == 0 ? 1 : whole / part + (whole % part != 0);
}

/* Number of pieces of at most `chunk` tokens (not 0). */
static uint64_t piece_count(const bp_tokens_work *all, uint64_t chunk)
{
    const uint64_t sequences =
        chunk / all->sequence; /* whole sequences per piece; 0: a sequence takes several pieces */
    return sequences > 0 ? pieces_of(all->batch, sequences) : all->batch * pieces_of(all->sequence, chunk);
}

static piece piece_at(const bp_tokens_work *all, uint64_t chunk, uint64_t index)
{
    const uint64_t sequences = chunk / all->sequence;
    piece p = {.batches = 1, .count = all->sequence};
    if (sequences > 0) {
        p.batch = index * sequences;
        p.batches = bp_min_u64(sequences, all->batch - p.batch);
    } else {
        const uint64_t pieces = pieces_of(all->sequence, chunk);
        p.batch = index / pieces;
        p.first = index % pieces * chunk;
        p.count = bp_min_u64(chunk, all->sequence - p.first);
    }
    p.token = p.batch * all->sequence + p.first;
    p.rows = p.batches * p.count;
    return p;
}

static const void *piece_view(const void *all, int64_t batch_stride, int64_t stride, const piece *p, int64_t bytes)
{
    if (all == NULL)
        return NULL;
    return (const uint8_t *)all + ((int64_t)p->batch * batch_stride + (int64_t)p->first * stride) * bytes;
}

static bp_tokens_work piece_tokens(const bp_tokens_work *all, const piece *p)
{
    bp_tokens_work tokens = *all;
    tokens.batch = p->batches;
    tokens.sequence = p->count;
    tokens.target = piece_view(all->target, all->target_batch_stride, all->target_stride, p,
                               all->target_is_64 ? sizeof(int64_t) : 4);
    tokens.mask = piece_view(all->mask, all->mask_batch_stride, all->mask_stride, p, 1);
    tokens.temperature = piece_view(all->temperature, all->temperature_batch_stride, all->temperature_stride, p,
                                    sizeof *all->temperature);
    return tokens;
}

static bp_row_mask piece_mask(const bp_tokens_work *all, const piece *p)
{
    return (bp_row_mask){.tokens = piece_tokens(all, p)};
}

static bp_output_work piece_output(const bp_output_work *all, const piece *p)
{
    bp_output_work output = *all;
    if (all->data != NULL)
        output.data += (int64_t)p->batch * all->batch_stride + (int64_t)p->first * all->stride;
    return output;
}

static bp_upstream_work piece_upstream(const bp_upstream_work *all, const piece *p)
{
    bp_upstream_work upstream = *all;
    upstream.data = piece_view(all->data, all->batch_stride, all->stride, p, sizeof *all->data);
    return upstream;
}

static bp_saved_work piece_saved(const bp_saved_work *all, const piece *p)
{
    if (all->max == NULL)
        return *all;
    return (bp_saved_work){.max = all->max + p->token,
                           .log_sum = all->log_sum + p->token,
                           .energy = all->energy == NULL ? NULL : all->energy + p->token};
}

static bp_results_work piece_results(const bp_results_work *all, const piece *p)
{
    bp_results_work results = *all;
    results.logprob = piece_output(&all->logprob, p);
    results.entropy = piece_output(&all->entropy, p);
    results.logsumexp = piece_output(&all->logsumexp, p);
    results.mean_logprob = piece_output(&all->mean_logprob, p);
    results.saved = piece_saved(&all->saved, p);
    return results;
}

static bool can_step(int64_t stride, uint64_t columns)
{
    return stride >= 0 && (uint64_t)stride >= columns && stride <= INT32_MAX;
}

/* Rows of a piece from `row` on that form one matrix: a constant stride that BLAS accepts; at least one. */
static uint64_t piece_matrix(const bp_token_rows *rows, const piece *p, uint64_t row, bp_matrix *matrix)
{
    const int64_t bytes = bp_dtype_bits(rows->dtype) / 8;
    const uint64_t batch = p->batch + row / p->count, token = p->first + row % p->count;
    *matrix = (bp_matrix){.data = (uint8_t *)rows->data +
                                  ((int64_t)batch * rows->batch_stride + (int64_t)token * rows->stride) * bytes,
                          .dtype = rows->dtype};
    if (p->count == 1 && can_step(rows->batch_stride, rows->columns)) {
        matrix->stride = rows->batch_stride;
        return p->rows - row;
    }
    if (p->count > 1 && can_step(rows->stride, rows->columns)) {
        const bool is_one_line = p->batches == 1 || rows->batch_stride == (int64_t)p->count * rows->stride;
        matrix->stride = rows->stride;
        return is_one_line ? p->rows - row : p->count - row % p->count;
    }
    matrix->stride = (int64_t)rows->columns;
    return 1;
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

/* A pass, and the streams of its kernels and products: the same one on the host. */
typedef struct head_pass {
    bp_lm_head *head;
    const bp_head_batch *batch;
    void *scratch;
    bp_stream *stream, *multiplies;
    uint64_t tiles, steps; /* of a piece; of all pieces */
} head_pass;

/* The columns of a tile for the tokens of a piece. */
typedef struct head_step {
    piece piece;
    uint64_t index, tile;
    uint64_t first, columns; /* in the weight of this rank */
    bool is_last;            /* of the piece */
} head_step;

static head_step step_at(const head_pass *pass, uint64_t index)
{
    const bp_lm_head *head = pass->head;
    head_step s = {.index = index, .tile = index % pass->tiles};
    s.piece = piece_at(&pass->batch->tokens, head->chunk, index / pass->tiles);
    s.first = s.tile * head->tile;
    s.columns = bp_min_u64(head->tile, head->base.columns - s.first);
    s.is_last = s.tile + 1 == pass->tiles;
    return s;
}

static uint32_t chunk_of(const head_pass *pass, uint64_t index)
{
    return (uint32_t)(index % pass->head->chunk_count);
}

/* ---- two streams ------------------------------------------------------------------------------------------------- */

#define CALL_WORKSPACES                                                                                                \
    (1u << BP_WORK_PARTIALS | 1u << BP_WORK_GATHERED | ((1u << BP_HEAD_WORKSPACES) - 1) << BP_WORK_OWN)

/* Orders `to` after the work enqueued on `from` so far. */
static bp_status head_order(bp_event *event, bp_stream *from, bp_stream *to)
{
    if (from == to)
        return BP_OK;
    BP_TRY(bp_event_record(event, from));
    return bp_stream_wait(to, event);
}

/* Begins a call: orders the head's stream after `stream` and acquires the scratch memory. */
static bp_status head_fork(bp_lm_head *head, const bp_head_batch *batch, bp_stream *stream, head_pass *pass)
{
    *pass = (head_pass){.head = head,
                        .batch = batch,
                        .stream = stream,
                        .multiplies = head->multiplies != NULL ? head->multiplies : stream,
                        .tiles = pieces_of(head->base.columns, head->tile)};
    pass->steps = piece_count(&batch->tokens, head->chunk) * pass->tiles;
    BP_TRY(bp_workspace_drop(&head->base.workspace, CALL_WORKSPACES, stream, BP_OK));
    BP_TRY(head_order(head->moved, stream, pass->multiplies));
    return bp_workspace_take(&head->base.workspace, BP_WORK_SCRATCH, pass->multiplies, &pass->scratch);
}

/* Orders the caller's stream after the head's. After a failure it releases all workspaces and synchronizes the remaining work. */
static bp_status head_join(const head_pass *pass, bp_status status)
{
    bp_base *base = &pass->head->base;
    if (status == BP_OK)
        status = bp_workspace_give(&base->workspace, BP_WORK_SCRATCH, pass->multiplies);
    bool joined = false;
    if (status == BP_OK) {
        status = head_order(pass->head->moved, pass->multiplies, pass->stream);
        joined = status == BP_OK;
    }
    if (status == BP_OK)
        return BP_OK;
    BP_KEEP_ERROR;
    if (!joined && head_order(pass->head->moved, pass->multiplies, pass->stream) != BP_OK)
        (void)bp_stream_synchronize(pass->multiplies);
    status = bp_workspace_drop(&base->workspace, CALL_WORKSPACES, pass->stream, status);
    if (pass->stream == base->own)
        (void)bp_stream_synchronize(pass->stream);
    return status;
}

/* Computes the logits of a step into a chunk workspace, which it acquires; the call's stream waits for them. */
static bp_status head_logits(const head_pass *pass, const head_step *step, bp_logits_work *logits, void **chunk)
{
    bp_lm_head *head = pass->head;
    const bp_head_batch *batch = pass->batch;
    const piece *p = &step->piece;
    const uint64_t columns = step->columns;
    void *memory;
    BP_TRY(bp_workspace_take(&head->base.workspace, BP_WORK_CHUNK + chunk_of(pass, step->index), pass->multiplies,
                             &memory));
    bp_product_work work = {
        .columns = columns,
        .hidden = head->hidden,
        .b = {bp_matrix_row(&batch->weight, step->first), batch->weight.dtype, batch->weight.stride},
        .adds = batch->bias.data != NULL,
        .scratch = pass->scratch,
        .mask = piece_mask(&batch->tokens, p)};
    if (work.adds) {
        const bp_product_work biases = {.rows = p->rows,
                                        .hidden = columns,
                                        .a = {(float *)batch->bias.data + step->first, BP_DTYPE_FP32, 0},
                                        .c = {memory, BP_DTYPE_FP32, (int64_t)columns}};
        BP_TRY(head->products->ops->place(head->products, &biases, pass->multiplies));
    }
    for (uint64_t row = 0; row < p->rows; row += work.rows) {
        work.rows = piece_matrix(&batch->hidden, p, row, &work.a);
        work.c = (bp_matrix){(float *)memory + row * columns, BP_DTYPE_FP32, (int64_t)columns};
        work.keeps_weight = row > 0;
        work.keeps_hidden = step->tile > 0;
        work.row = work.mask.first = row;
        BP_TRY(head->products->ops->logits(head->products, &work, pass->multiplies));
    }
    *logits = batch->logits;
    logits->data = memory;
    logits->batch_stride = (int64_t)(p->count * columns);
    logits->stride = (int64_t)columns;
    logits->columns = columns;
    logits->first = head->base.start + (int64_t)step->first;
    logits->dtype = BP_DTYPE_FP32;
    *chunk = memory;
    return head_order(head->moved, pass->multiplies, pass->stream);
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

static bp_status forward_step(const head_pass *pass, uint64_t index, const bp_forward_pass *sums,
                              const bp_results_work *results)
{
    bp_base *base = &pass->head->base;
    void *chunk;
    const head_step step = step_at(pass, index);
    const bp_tokens_work tokens = piece_tokens(&pass->batch->tokens, &step.piece);
    const bp_results_work of_piece = piece_results(results, &step.piece);
    bp_forward_work work = bp_forward_work_of(sums, &tokens, step.piece.token, &of_piece);
    work.continues = step.tile > 0;
    BP_TRY(head_logits(pass, &step, &work.logits, &chunk));
    BP_TRY(base->engine->ops->forward(base->engine, &work, pass->stream));
    return bp_workspace_give(&base->workspace, BP_WORK_CHUNK + chunk_of(pass, index), pass->stream);
}

static bp_status forward_enqueue(const char *call, bp_lm_head *head, const bp_head_batch *batch,
                                 const bp_results_work *results, bp_stream *stream)
{
    head_pass pass;
    bp_forward_pass sums;
    bp_status status = head_fork(head, batch, stream, &pass);
    if (status == BP_OK)
        status = bp_base_begin_forward(call, &head->base, &batch->tokens, stream, &sums);
    if (status != BP_OK)
        return head_join(&pass, status);
    for (uint64_t i = 0; status == BP_OK && i < pass.steps; i++)
        status = forward_step(&pass, i, &sums, results);
    status = head_join(&pass, status);
    const bp_status ended = bp_base_end_forward(&head->base, &batch->tokens, &sums, results, stream, status);
    return status == BP_OK && ended != BP_OK ? head_join(&pass, ended) : ended;
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
    bp_base *base = &head->base;
    bp_results_work results = {0};
    BP_TRY(bp_head_check_batch(call, head, &own, &work));
    if (work.token_count == 0)
        return BP_OK;
    BP_TRY(bp_check_outputs(call, &wanted, &work.tokens, &results));
    return bp_base_end(base, stream, forward_enqueue(call, head, &work, &results, bp_base_stream(base, stream)));
}

/* ---- backward: hidden_grad ------------------------------------------------------------------------------------------ */

/* Type of the sums: fp32 if the result can be rounded afterwards. */
static bp_dtype sum_dtype(const bp_lm_head *head, const bp_token_rows *out)
{
    return head->products->ops->place != NULL ? BP_DTYPE_FP32 : out->dtype;
}

/* True if hidden_grad of a piece is made in a workspace and then placed: it is to be summed over ranks, or on the host its rows are not one fp32
 * matrix, to which tiles could be added. */
static bool is_summed(const bp_lm_head *head, const piece *p, const bp_token_rows *out)
{
    bp_matrix direct;
    if (head->sums || head->multiplies != NULL)
        return head->sums;
    return out->dtype != BP_DTYPE_FP32 || piece_matrix(out, p, 0, &direct) < p->rows;
}

/* Multiplies hidden_grad of a step, into the caller's memory or a workspace that the first tile acquires. */
static bp_status head_hidden_grad(const head_pass *pass, const head_step *step, const bp_product_work *product,
                                  const bp_token_rows *out)
{
    bp_workspace *workspace = &pass->head->base.workspace;
    bp_products *products = pass->head->products;
    bp_product_work work = *product;
    work.adds = step->tile > 0;
    if (!is_summed(pass->head, &step->piece, out)) {
        for (uint64_t row = 0; row < step->piece.rows; row += work.rows) {
            work.rows = piece_matrix(out, &step->piece, row, &work.c);
            work.a.data = bp_matrix_row(&product->a, row);
            BP_TRY(products->ops->hidden_grad(products, &work, pass->multiplies));
        }
        return BP_OK;
    }
    void *sums;
    uint64_t bytes;
    if (step->tile == 0)
        BP_TRY(bp_workspace_take(workspace, BP_WORK_SUMS, pass->multiplies, &sums));
    else
        BP_TRY(bp_pool_address(workspace->pool, workspace->ids[BP_WORK_SUMS], &sums, &bytes));
    work.rows = step->piece.rows;
    work.c = (bp_matrix){sums, sum_dtype(pass->head, out), (int64_t)pass->head->hidden};
    BP_TRY(products->ops->hidden_grad(products, &work, pass->multiplies));
    return head_order(pass->head->moved, pass->multiplies, pass->stream);
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

static bp_status place_sums(bp_lm_head *head, const piece *p, const bp_matrix *sums, const bp_token_rows *out,
                            bp_stream *stream)
{
    const bp_products_ops *ops = head->products->ops;
    const uint64_t row_bytes = head->hidden * (bp_dtype_bits(sums->dtype) / 8);
    bp_product_work work = {.hidden = head->hidden, .a = *sums};
    for (uint64_t row = 0; row < p->rows; row += work.rows) {
        work.rows = piece_matrix(out, p, row, &work.c);
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

/* Sums hidden_grad over ranks on the call's stream and places it. Call after enqueuing the next products, to overlap with them. */
static bp_status head_sum(bp_lm_head *head, const piece *p, const bp_token_rows *out, bp_stream *stream)
{
    bp_workspace *workspace = &head->base.workspace;
    void *address;
    uint64_t bytes;
    BP_TRY(bp_pool_address(workspace->pool, workspace->ids[BP_WORK_SUMS], &address, &bytes));
    const bp_matrix sums = {address, sum_dtype(head, out), (int64_t)head->hidden};
    bp_matrix direct;
    const bool is_direct = piece_matrix(out, p, 0, &direct) == p->rows && (uint64_t)direct.stride == head->hidden &&
                           direct.dtype == sums.dtype;
    if (head->sums)
        BP_TRY(sum_over_ranks(head, &sums, is_direct ? direct.data : address, p->rows * head->hidden, stream));
    if (!is_direct)
        BP_TRY(place_sums(head, p, &sums, out, stream));
    return bp_workspace_give(workspace, BP_WORK_SUMS, stream);
}

/* ---- backward: steps ------------------------------------------------------------------------------------------------ */

/* Recomputes the logits of a step, their gradient in place, and the products with it. With two chunk workspaces the next step's logits are
 * multiplied before waiting for this step's gradient, so that kernels overlap products. */
typedef struct backward {
    head_pass pass;
    const bp_head_gradients *out;
    bp_matrix grads[2]; /* of the logits in each chunk workspace */
} backward;

/* If the products take the weight's dtype, the gradient of a row starts where its logits did, in half of their memory. */
static bp_status begin_step(backward *b, uint64_t index)
{
    const head_pass *pass = &b->pass;
    bp_lm_head *head = pass->head;
    bp_engine *engine = head->base.engine;
    const bp_gradient_work *all = &b->out->upstream;
    const bp_dtype dtype = head->products->gradient;
    const head_step step = step_at(pass, index);
    const piece *p = &step.piece;
    bp_gradient_work work = *all;
    void *chunk;
    BP_TRY(head_logits(pass, &step, &work.logits, &chunk));
    work.tokens = piece_tokens(&pass->batch->tokens, p);
    work.saved = piece_saved(&all->saved, p);
    work.logprob = piece_upstream(&all->logprob, p);
    work.entropy = piece_upstream(&all->entropy, p);
    work.logsumexp = piece_upstream(&all->logsumexp, p);
    work.mean_logprob = piece_upstream(&all->mean_logprob, p);
    work.narrows_in_place = dtype != BP_DTYPE_FP32;
    work.out = chunk;
    work.out_dtype = (int32_t)dtype;
    work.out_stride = work.logits.stride * (work.narrows_in_place ? 2 : 1);
    work.out_batch_stride = (int64_t)p->count * work.out_stride;
    b->grads[chunk_of(pass, index)] = (bp_matrix){chunk, dtype, work.out_stride};
    BP_TRY(engine->ops->gradient(engine, &work, pass->stream));
    if (b->out->bias != NULL) {
        const bp_columns_work sums = {.from = chunk,
                                      .stride = work.out_stride,
                                      .rows = p->rows,
                                      .columns = step.columns,
                                      .dtype = work.out_dtype,
                                      .adds = b->out->adds || p->token > 0,
                                      .to = b->out->bias + step.first};
        BP_TRY(engine->ops->columns(engine, &sums, pass->stream));
    }
    return pass->multiplies == pass->stream ? BP_OK
                                            : bp_event_record(head->graded[chunk_of(pass, index)], pass->stream);
}

/* `keeps_gradient`: of all rows, by hidden_grad. */
static bp_status head_weight_grad(const backward *b, const head_step *step, const bp_product_work *product,
                                  bool keeps_gradient)
{
    const head_pass *pass = &b->pass;
    const piece *p = &step->piece;
    bp_products *products = pass->head->products;
    const bp_matrix *grad = &b->out->weight;
    bp_product_work work = *product;
    work.c = (bp_matrix){bp_matrix_row(grad, step->first), grad->dtype, grad->stride};
    work.mask = piece_mask(&pass->batch->tokens, p);
    work.keeps_hidden = step->tile > 0;
    for (uint64_t row = 0; row < p->rows; row += work.rows) {
        work.rows = piece_matrix(&pass->batch->hidden, p, row, &work.b);
        work.a.data = bp_matrix_row(&product->a, row);
        work.row = work.mask.first = row;
        work.adds = b->out->adds || p->token > 0 || row > 0;
        work.keeps_gradient = keeps_gradient && work.rows == p->rows;
        BP_TRY(products->ops->weight_grad(products, &work, pass->multiplies));
    }
    return BP_OK;
}

static bp_status end_step(const backward *b, uint64_t index)
{
    const head_pass *pass = &b->pass;
    bp_lm_head *head = pass->head;
    const bp_token_rows *hidden = &b->out->hidden;
    const bp_matrix *weight = &pass->batch->weight;
    const head_step step = step_at(pass, index);
    const bool wants_hidden = hidden->data != NULL;
    const bp_product_work product = {.columns = step.columns,
                                     .hidden = head->hidden,
                                     .a = b->grads[chunk_of(pass, index)],
                                     .b = {bp_matrix_row(weight, step.first), weight->dtype, weight->stride},
                                     .keeps_weight = true,
                                     .scratch = pass->scratch};
    if (pass->multiplies != pass->stream)
        BP_TRY(bp_stream_wait(pass->multiplies, head->graded[chunk_of(pass, index)]));
    if (wants_hidden)
        BP_TRY(head_hidden_grad(pass, &step, &product, hidden));
    if (b->out->weight.data != NULL)
        BP_TRY(head_weight_grad(b, &step, &product, wants_hidden));
    BP_TRY(bp_workspace_give(&head->base.workspace, BP_WORK_CHUNK + chunk_of(pass, index), pass->multiplies));
    return step.is_last && wants_hidden && is_summed(head, &step.piece, hidden)
               ? head_sum(head, &step.piece, hidden, pass->stream)
               : BP_OK;
}

static bp_status backward_enqueue(bp_lm_head *head, const bp_head_batch *batch, const bp_head_gradients *out,
                                  bp_stream *stream)
{
    backward b = {.out = out};
    bp_status status = head_fork(head, batch, stream, &b.pass);
    const uint64_t ahead = head->chunk_count - 1;
    for (uint64_t i = 0; status == BP_OK && i < b.pass.steps + ahead; i++) {
        if (i < b.pass.steps)
            status = begin_step(&b, i);
        if (status == BP_OK && i >= ahead)
            status = end_step(&b, i - ahead);
    }
    return head_join(&b.pass, status);
}

/* Gradients of no tokens are zero. */
static bp_status clear_gradients(const bp_lm_head *head, const bp_head_gradients *out, bp_stream *stream)
{
    const bp_matrix *grad = &out->weight;
    const uint64_t row_bytes = head->hidden * sizeof(float);
    if (out->bias != NULL)
        BP_TRY(bp_stream_fill(stream, out->bias, 0, head->base.columns * sizeof *out->bias));
    if (grad->data == NULL)
        return BP_OK;
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
    BP_TRY(bp_head_check_batch(call, head, &own, &work));
    BP_TRY(bp_head_check_gradients(call, head, &work, &wanted, &out));
    bp_base *base = &head->base;
    bp_stream *used = bp_base_stream(base, stream);
    BP_TRY(bp_stream_check(used, base->device, call)); /* no workspace is acquired that would check the stream */
    const bool wants_sums = out.weight.data != NULL || out.bias != NULL;
    if (work.token_count != 0 && (out.hidden.data != NULL || wants_sums))
        return bp_base_end(base, stream, backward_enqueue(head, &work, &out, used));
    if (work.token_count == 0 && wants_sums && !out.adds)
        return bp_base_end(base, stream, clear_gradients(head, &out, used));
    return BP_OK;
}
