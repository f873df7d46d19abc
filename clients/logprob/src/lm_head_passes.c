/* SPDX-License-Identifier: Apache-2.0 */
/* Passes of the fused head, step by step: a piece of tokens and a part of the vocabulary, whose logits are in a chunk workspace. With the saved
 * statistics, the gradient of each part is independent of the others. */
#include <bucketpool/core/arith.h>
#include <bucketpool/core/fail.h>
#include <bucketpool/core/structs.h>
#include <bucketpool/kernels.h>

#include "lm_head.h"

static bp_head_step step_at(const bp_head_pass *pass, uint64_t index)
{
    bp_head_step s = {.index = index, .part = index % pass->parts};
    s.piece = bp_piece_at(&pass->batch->tokens, pass->size, index / pass->parts);
    s.first = s.part * pass->shape->columns;
    s.columns = bp_min_u64(pass->shape->columns, pass->head->base.columns - s.first);
    s.is_last = s.part + 1 == pass->parts;
    return s;
}

static uint32_t chunk_of(const bp_head_pass *pass, uint64_t index)
{
    return BP_WORK_CHUNK + (uint32_t)(index % pass->shape->chunks);
}

/* ---- two streams ------------------------------------------------------------------------------------------------- */

#define CALL_WORKSPACES                                                                                                \
    (1u << BP_WORK_PARTIALS | 1u << BP_WORK_GATHERED | ((1u << BP_HEAD_WORKSPACES) - 1) << BP_WORK_OWN)

/* Orders `to` after the work enqueued on `from` so far. */
bp_status bp_head_order(bp_event *event, bp_stream *from, bp_stream *to)
{
    if (from == to)
        return BP_OK;
    BP_TRY(bp_event_record(event, from));
    return bp_stream_wait(to, event);
}

/* Begins a call: orders the head's stream after `stream` and acquires the scratch memory. */
static bp_status head_fork(bp_lm_head *head, const bp_head_batch *batch, const bp_head_shape *shape, bp_stream *stream,
                           bp_head_pass *pass)
{
    *pass = (bp_head_pass){.head = head,
                           .batch = batch,
                           .shape = shape,
                           .stream = stream,
                           .multiplies = head->multiplies != NULL ? head->multiplies : stream,
                           .size = bp_piece_size(&batch->tokens, shape->tokens),
                           .parts = bp_pieces_of(head->base.columns, shape->columns)};
    pass->steps = bp_piece_count(&batch->tokens, pass->size) * pass->parts;
    BP_TRY(bp_workspace_drop(&head->base.workspace, CALL_WORKSPACES, stream, BP_OK));
    BP_TRY(bp_head_order(head->moved, stream, pass->multiplies));
    return bp_workspace_take(&head->base.workspace, BP_WORK_SCRATCH, pass->multiplies, &pass->scratch);
}

/* Orders the caller's stream after the head's. After a failure it releases all workspaces and synchronizes the remaining work. */
static bp_status head_join(const bp_head_pass *pass, bp_status status)
{
    bp_base *base = &pass->head->base;
    if (status == BP_OK)
        status = bp_workspace_give(&base->workspace, BP_WORK_SCRATCH, pass->multiplies);
    bool joined = false;
    if (status == BP_OK) {
        status = bp_head_order(pass->head->moved, pass->multiplies, pass->stream);
        joined = status == BP_OK;
    }
    if (status == BP_OK)
        return BP_OK;
    BP_KEEP_ERROR;
    if (!joined && bp_head_order(pass->head->moved, pass->multiplies, pass->stream) != BP_OK)
        (void)bp_stream_synchronize(pass->multiplies);
    status = bp_workspace_drop(&base->workspace, CALL_WORKSPACES, pass->stream, status);
    if (pass->stream == base->own)
        (void)bp_stream_synchronize(pass->stream);
    return status;
}

/* ---- logits ------------------------------------------------------------------------------------------------------ */

/* Computes the logits of a step; the call's stream waits for them. */
static bp_status head_multiply_logits(const bp_head_pass *pass, const bp_head_step *step, const bp_matrix *logits)
{
    const bp_lm_head *head = pass->head;
    const bp_head_batch *batch = pass->batch;
    const bp_products_ops *ops = head->products->ops;
    const bp_piece *p = &step->piece;
    for (uint64_t first = 0, columns; first < step->columns; first += columns) {
        columns = bp_min_u64(head->plan.tile, step->columns - first);
        const uint64_t column = step->first + first;
        const bp_matrix to = {(float *)logits->data + first, BP_DTYPE_FP32, logits->stride};
        bp_product_work work = {.columns = columns,
                                .hidden = head->hidden,
                                .b = {bp_matrix_row(&batch->weight, column), batch->weight.dtype, batch->weight.stride},
                                .adds = batch->bias.data != NULL,
                                .scratch = pass->scratch,
                                .mask = {.tokens = bp_piece_tokens(&batch->tokens, p)}};
        if (work.adds) {
            const bp_product_work biases = {.rows = p->rows,
                                            .hidden = columns,
                                            .a = {(float *)batch->bias.data + column, BP_DTYPE_FP32, 0},
                                            .c = to};
            BP_TRY(ops->place(head->products, &biases, pass->multiplies));
        }
        for (uint64_t row = 0; row < p->rows; row += work.rows) {
            work.rows = bp_piece_matrix(&batch->hidden, p, row, &work.a);
            work.c = (bp_matrix){bp_matrix_row(&to, row), BP_DTYPE_FP32, to.stride};
            work.keeps_weight = row > 0;
            work.keeps_hidden = step->part > 0 || first > 0;
            work.row = work.mask.first = row;
            BP_TRY(ops->logits(head->products, &work, pass->multiplies));
        }
    }
    return bp_head_order(head->moved, pass->multiplies, pass->stream);
}

/* The kept logits of a step, or a chunk workspace for them. */
static bp_status logits_memory(const bp_head_pass *pass, const bp_head_step *step, bp_matrix *logits)
{
    const bp_matrix *kept = &pass->batch->kept;
    void *memory;
    if (kept->data != NULL) {
        memory = (float *)bp_matrix_row(kept, step->piece.token) + step->first;
        *logits = (bp_matrix){memory, BP_DTYPE_FP32, kept->stride};
        return BP_OK;
    }
    BP_TRY(bp_workspace_take(&pass->head->base.workspace, chunk_of(pass, step->index), pass->multiplies, &memory));
    *logits = (bp_matrix){memory, BP_DTYPE_FP32, (int64_t)bp_head_stride(step->columns)};
    return BP_OK;
}

/* Logits of a step for kernels. */
static bp_logits_work head_logits_work(const bp_head_pass *pass, const bp_head_step *step, const bp_matrix *logits)
{
    bp_logits_work work = pass->batch->logits;
    work.data = logits->data;
    work.batch_stride = (int64_t)step->piece.count * logits->stride;
    work.stride = logits->stride;
    work.columns = step->columns;
    work.first = pass->head->base.start + (int64_t)step->first;
    work.dtype = BP_DTYPE_FP32;
    return work;
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

static bp_status forward_step(const bp_head_pass *pass, uint64_t index, const bp_forward_pass *sums,
                              const bp_results_work *results)
{
    bp_base *base = &pass->head->base;
    bp_matrix logits;
    const bp_head_step step = step_at(pass, index);
    const bp_tokens_work tokens = bp_piece_tokens(&pass->batch->tokens, &step.piece);
    const bp_results_work of_piece = bp_piece_results(results, &step.piece);
    bp_forward_work work = bp_forward_work_of(sums, &tokens, step.piece.token, &of_piece);
    BP_TRY(logits_memory(pass, &step, &logits));
    BP_TRY(head_multiply_logits(pass, &step, &logits));
    work.continues = step.part > 0;
    work.logits = head_logits_work(pass, &step, &logits);
    BP_TRY(base->engine->ops->forward(base->engine, &work, pass->stream));
    return pass->batch->kept.data != NULL ? BP_OK
                                          : bp_workspace_give(&base->workspace, chunk_of(pass, index), pass->stream);
}

static bp_status forward_enqueue(const char *call, bp_lm_head *head, const bp_head_batch *batch,
                                 const bp_results_work *results, bp_stream *stream)
{
    bp_head_pass pass;
    bp_forward_pass sums;
    bp_status status = head_fork(head, batch, &head->plan.forward, stream, &pass);
    if (status == BP_OK)
        status = bp_base_begin_forward(call, &head->base, &batch->tokens, pass.parts > 1, stream, &sums);
    if (status != BP_OK)
        return head_join(&pass, status);
    for (uint64_t i = 0; status == BP_OK && i < pass.steps; i++)
        status = forward_step(&pass, i, &sums, results);
    status = head_join(&pass, status);
    const bp_status ended = bp_base_end_forward(&head->base, &batch->tokens, &sums, results, stream, status);
    return status == BP_OK && ended != BP_OK ? head_join(&pass, ended) : ended;
}

/* ---- gradients --------------------------------------------------------------------------------------------------- */

/* The gradient of a step's logits, and the products with it. With two chunk workspaces the next step's logits are multiplied before waiting for
 * this step's gradient, so that kernels overlap products. */
typedef struct gradient_pass {
    const char *call;
    bp_head_pass pass;
    const bp_head_gradients *out;
    const bp_results_work *results; /* of one call; NULL: of forward, in `saved` */
    bp_forward_pass sums;           /* of one call without ranks */
    bp_matrix d[2];                 /* gradients of the logits in each chunk workspace */
} gradient_pass;

/* Both passes over the logits of a piece, which are whole rows. Ranks exchange its sums. */
static bp_status run_one_call(const gradient_pass *g, const bp_head_step *step, const bp_gradient_work *gradient)
{
    bp_base *base = &g->pass.head->base;
    bp_stream *stream = g->pass.stream;
    const bp_engine_ops *ops = base->engine->ops;
    const bp_results_work results = bp_piece_results(g->results, &step->piece);
    if (base->shards.comm == NULL) {
        bp_fused_work work = {.forward = bp_forward_work_of(&g->sums, &gradient->tokens, step->piece.token, &results),
                              .gradient = *gradient};
        work.forward.logits = gradient->logits;
        return ops->fused(base->engine, &work, stream);
    }
    bp_forward_pass sums;
    BP_TRY(bp_base_begin_forward(g->call, base, &gradient->tokens, false, stream, &sums));
    bp_forward_work work = bp_forward_work_of(&sums, &gradient->tokens, 0, &results);
    work.logits = gradient->logits;
    BP_TRY(bp_base_end_forward(base, &gradient->tokens, &sums, &results, stream,
                               ops->forward(base->engine, &work, stream)));
    return ops->gradient(base->engine, gradient, stream);
}

/* Logits of rows that begin at `logits`, their gradient at `d`: of a step, or of half of its piece. */
static bp_status grade_rows(const gradient_pass *g, const bp_head_step *step, const bp_matrix *logits,
                            const bp_matrix *d)
{
    const bp_head_pass *pass = &g->pass;
    bp_engine *engine = pass->head->base.engine;
    const bp_piece *p = &step->piece;
    const bool is_kept = pass->batch->kept.data != NULL;
    bp_gradient_work work = bp_piece_gradient(&g->out->upstream, p);
    if (!is_kept)
        BP_TRY(head_multiply_logits(pass, step, logits));
    work.logits = head_logits_work(pass, step, logits);
    work.narrows_in_place = !is_kept && d->dtype != BP_DTYPE_FP32;
    work.out = d->data;
    work.out_dtype = (int32_t)d->dtype;
    work.out_stride = d->stride;
    work.out_batch_stride = (int64_t)p->count * d->stride;
    BP_TRY(g->results != NULL ? run_one_call(g, step, &work) : engine->ops->gradient(engine, &work, pass->stream));
    if (g->out->bias == NULL)
        return BP_OK;
    const bp_columns_work sums = {.from = d->data,
                                  .stride = d->stride,
                                  .rows = p->rows,
                                  .columns = step->columns,
                                  .dtype = work.out_dtype,
                                  .adds = g->out->adds || p->token > 0,
                                  .to = g->out->bias + step->first};
    return engine->ops->columns(engine, &sums, pass->stream);
}

/* In place the gradient of a row starts where its logits did, in as much of their memory as its dtype takes. */
static bp_status begin_step(gradient_pass *g, uint64_t index)
{
    const bp_head_pass *pass = &g->pass;
    bp_lm_head *head = pass->head;
    const bool is_kept = pass->batch->kept.data != NULL;
    const bp_dtype dtype = head->products->gradient;
    const bp_head_step step = step_at(pass, index);
    const uint64_t turn = index % pass->shape->chunks;
    const int64_t narrowing = is_kept || dtype == BP_DTYPE_FP32 ? 1 : 2;
    bp_matrix logits;
    bp_piece halves[BP_HEAD_HALVES];
    BP_TRY(logits_memory(pass, &step, &logits));
    void *memory = logits.data;
    if (is_kept)
        BP_TRY(bp_workspace_take(&head->base.workspace, chunk_of(pass, index), pass->stream, &memory));
    g->d[turn] = (bp_matrix){memory, dtype, (int64_t)bp_head_stride(step.columns) * narrowing};
    const unsigned count = bp_head_halves(pass, &step, halves);
    for (unsigned h = 0; h < count; h++) {
        const uint64_t row = halves[h].token - step.piece.token;
        const bp_matrix from = {bp_matrix_row(&logits, row), logits.dtype, logits.stride};
        const bp_matrix to = {bp_matrix_row(&g->d[turn], row), dtype, g->d[turn].stride};
        bp_head_step part = step;
        part.piece = halves[h];
        BP_TRY(grade_rows(g, &part, &from, &to));
        if (pass->multiplies != pass->stream)
            BP_TRY(bp_event_record(head->graded[count > 1 ? h : turn], pass->stream));
    }
    return BP_OK;
}

static bp_status end_step(const gradient_pass *g, uint64_t index)
{
    const bp_head_pass *pass = &g->pass;
    const bp_head_step step = step_at(pass, index);
    const bool has_weight = pass->batch->kept.data == NULL && step.columns <= pass->head->plan.tile;
    BP_TRY(bp_head_multiply_gradient(pass, &step, &g->d[index % pass->shape->chunks], has_weight, g->out));
    return bp_workspace_give(&pass->head->base.workspace, chunk_of(pass, index), pass->multiplies);
}

static bp_status gradient_steps(gradient_pass *g, bp_status status)
{
    const uint64_t ahead = g->pass.shape->chunks - 1;
    for (uint64_t i = 0; status == BP_OK && i < g->pass.steps + ahead; i++) {
        if (i < g->pass.steps)
            status = begin_step(g, i);
        if (status == BP_OK && i >= ahead)
            status = end_step(g, i - ahead);
    }
    return head_join(&g->pass, status);
}

static bp_status backward_enqueue(const char *call, bp_lm_head *head, const bp_head_batch *batch,
                                  const bp_head_gradients *out, bp_stream *stream)
{
    gradient_pass g = {.call = call, .out = out};
    const bp_status status = head_fork(head, batch, &head->plan.backward, stream, &g.pass);
    return gradient_steps(&g, status);
}

static bp_status both_enqueue(const char *call, bp_lm_head *head, const bp_head_batch *batch,
                              const bp_results_work *results, const bp_head_gradients *out, bp_stream *stream)
{
    bp_base *base = &head->base;
    gradient_pass g = {.call = call, .out = out, .results = results};
    bp_status status = head_fork(head, batch, &head->plan.one_call, stream, &g.pass);
    if (base->shards.comm != NULL)
        return gradient_steps(&g, status);
    if (status == BP_OK)
        status = bp_base_begin_forward(call, base, &batch->tokens, false, stream, &g.sums);
    if (status != BP_OK)
        return head_join(&g.pass, status);
    status = gradient_steps(&g, status);
    const bp_status ended = bp_base_end_forward(base, &batch->tokens, &g.sums, results, stream, status);
    return status == BP_OK && ended != BP_OK ? head_join(&g.pass, ended) : ended;
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

static bp_status head_read_batch(const char *call, const bp_lm_head *head, uint32_t pass, const bp_lm_head_batch *batch,
                                 bp_head_batch *work)
{
    bp_lm_head_batch own;
    if (head == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: needs a head", call);
    BP_TRY(bp_lm_head_batch_init(&own, sizeof own));
    BP_TRY(bp_struct_read(call, batch, false, &own, sizeof own));
    return bp_head_check_batch(call, head, pass, &own, work);
}

static bp_status head_read_outputs(const char *call, const bp_logprob_outputs *outputs, bp_logprob_outputs *own)
{
    BP_TRY(bp_logprob_outputs_init(own, sizeof *own));
    return bp_struct_read(call, outputs, false, own, sizeof *own);
}

static bp_status head_read_gradients(const char *call, const bp_lm_head_gradients *gradients, bp_lm_head_gradients *own)
{
    BP_TRY(bp_lm_head_gradients_init(own, sizeof *own));
    return bp_struct_read(call, gradients, false, own, sizeof *own);
}

bp_status bp_lm_head_forward(bp_lm_head *head, const bp_lm_head_batch *batch, const bp_logprob_outputs *outputs,
                             bp_stream *stream)
{
    const char *call = "bp_lm_head_forward";
    bp_head_batch work;
    bp_logprob_outputs wanted;
    bp_results_work results = {0};
    BP_TRY(head_read_batch(call, head, BP_LM_HEAD_FORWARD, batch, &work));
    BP_TRY(head_read_outputs(call, outputs, &wanted));
    if (work.token_count == 0)
        return BP_OK;
    BP_TRY(bp_check_outputs(call, &wanted, &work.tokens, &results));
    bp_base *base = &head->base;
    return bp_base_end(base, stream, forward_enqueue(call, head, &work, &results, bp_base_stream(base, stream)));
}

static bool wants_sums(const bp_head_gradients *out)
{
    return out->weight.data != NULL || out->bias != NULL;
}

static bp_status end_without_tokens(bp_lm_head *head, const bp_head_gradients *out, bp_stream *given, bp_stream *used)
{
    if (!wants_sums(out) || out->adds)
        return BP_OK;
    return bp_base_end(&head->base, given, bp_head_clear_gradients(head, out, used));
}

bp_status bp_lm_head_backward(bp_lm_head *head, const bp_lm_head_batch *batch, const bp_lm_head_gradients *gradients,
                              bp_stream *stream)
{
    const char *call = "bp_lm_head_backward";
    bp_head_batch work;
    bp_lm_head_gradients wanted;
    bp_head_gradients out;
    BP_TRY(head_read_batch(call, head, BP_LM_HEAD_BACKWARD, batch, &work));
    BP_TRY(head_read_gradients(call, gradients, &wanted));
    BP_TRY(bp_head_check_gradients(call, head, head->plan.backward.tokens, &work, &wanted, &out));
    bp_base *base = &head->base;
    bp_stream *used = bp_base_stream(base, stream);
    BP_TRY(bp_stream_check(used, base->device, call)); /* no workspace is acquired that would check the stream */
    if (work.token_count == 0)
        return end_without_tokens(head, &out, stream, used);
    return out.hidden.data != NULL || wants_sums(&out)
               ? bp_base_end(base, stream, backward_enqueue(call, head, &work, &out, used))
               : BP_OK;
}

bp_status bp_lm_head_forward_backward(bp_lm_head *head, const bp_lm_head_batch *batch,
                                      const bp_logprob_outputs *outputs, const bp_lm_head_gradients *gradients,
                                      bp_stream *stream)
{
    const char *call = "bp_lm_head_forward_backward";
    bp_head_batch work;
    bp_logprob_outputs results_wanted;
    bp_lm_head_gradients wanted;
    bp_results_work results = {0};
    bp_head_gradients out;
    BP_TRY(head_read_batch(call, head, BP_LM_HEAD_ONE_CALL, batch, &work));
    BP_TRY(head_read_outputs(call, outputs, &results_wanted));
    BP_TRY(head_read_gradients(call, gradients, &wanted));
    BP_TRY(bp_check_one_call(call, &results_wanted, wanted.saved, &wanted.entropy_grad));
    wanted.saved = results_wanted.saved;
    wanted.saved_bytes = results_wanted.saved_bytes;
    if (work.token_count != 0)
        BP_TRY(bp_check_outputs(call, &results_wanted, &work.tokens, &results));
    BP_TRY(bp_head_check_gradients(call, head, head->plan.one_call.tokens, &work, &wanted, &out));
    bp_base *base = &head->base;
    bp_stream *used = bp_base_stream(base, stream);
    BP_TRY(bp_stream_check(used, base->device, call));
    if (work.token_count == 0)
        return end_without_tokens(head, &out, stream, used);
    return bp_base_end(base, stream, both_enqueue(call, head, &work, &results, &out, used));
}
