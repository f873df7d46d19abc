/* Forward and backward of the fused head, piece by piece. */
#include <string.h>

#include "core/arith.h"
#include "core/fail.h"
#include "core/structs.h"
#include "devices/clients.h"
#include "logprob/lm_head.h"

/* ---- arguments --------------------------------------------------------------------------------------------------- */

/* Checked hidden states and weight of a call. `token_count` 0: the rest is unset. */
typedef struct head_batch {
    uint64_t token_count;
    bp_token_rows hidden; /* with strides */
    bp_matrix weight;
    bp_matrix bias; /* one row, at stride 0; data NULL: none */
    bp_tokens_work tokens;
    bp_logits_work logits; /* how they are made: rounding and cap; the rest is unset */
} head_batch;

/* Checked outputs of a backward call. */
typedef struct head_gradients {
    bp_token_rows hidden; /* data NULL: not wanted */
    bp_matrix weight;     /* data NULL: not wanted */
    float *bias;          /* NULL: not wanted */
    bool adds;
    bp_gradient_work upstream; /* of all tokens, without logits and `out` */
} head_gradients;

/* Checks the weight, or its gradient, as rows of one sequence; products need rows that ascend without overlap. */
static bp_status check_weight(const char *call, const char *name, const bp_lm_head *head, const void *data,
                              bp_dtype dtype, int64_t stride, bp_token_rows *rows)
{
    bp_token_rows given = {
        .dtype = dtype, .batch = 1, .sequence = head->base.columns, .columns = head->hidden, .stride = stride};
    memcpy(&given.data, &data, sizeof data); /* views are of mutable data; the weight is not written */
    BP_TRY(bp_check_rows(call, name, &given, head->hidden, false, rows));
    if (rows->stride < (int64_t)head->hidden || rows->stride > INT32_MAX)
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "%s: %s have rows of %llu elements at a stride of %lld; use a stride of %llu to %d", call, name,
                       (unsigned long long)head->hidden, (long long)rows->stride, (unsigned long long)head->hidden,
                       INT32_MAX);
    return BP_OK;
}

/* Checks the bias, or its gradient. */
static bp_status check_bias(const char *call, const char *name, const bp_lm_head *head, const float *data,
                            bp_token_rows *rows)
{
    const uint64_t columns = head->base.columns;
    bp_token_rows given = {.dtype = BP_DTYPE_FP32, .batch = 1, .sequence = 1, .columns = columns};
    memcpy(&given.data, &data, sizeof data); /* as in check_weight */
    return bp_check_rows(call, name, &given, columns, false, rows);
}

static bp_status check_head_batch(const char *call, const bp_lm_head *head, const bp_lm_head_batch *batch,
                                  head_batch *checked)
{
    const bp_token_rows *hidden = &batch->hidden;
    head_batch c = {.logits = {.rounding = (int32_t)batch->tokens.rounding, .cap = batch->tokens.soft_cap}};
    bp_token_rows weight, bias;
    BP_TRY(bp_check_count(call, hidden->batch, hidden->sequence, head->base.max_tokens, &c.token_count));
    if (hidden->dtype != head->dtype)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: hidden states are %s, but the head was created for %s", call,
                       bp_dtype_name(hidden->dtype), bp_dtype_name(head->dtype));
    BP_TRY(bp_check_tokens(call, &batch->tokens, head->base.max_targets, hidden->batch, hidden->sequence, &c.tokens));
    if (c.token_count != 0) {
        BP_TRY(bp_check_rows(call, "hidden states", hidden, head->hidden, false, &c.hidden));
        BP_TRY(check_weight(call, "weights", head, batch->weight, head->dtype, batch->weight_stride, &weight));
        c.weight = (bp_matrix){weight.data, weight.dtype, weight.stride};
    }
    if (c.token_count != 0 && batch->bias != NULL) {
        BP_TRY(check_bias(call, "biases", head, batch->bias, &bias));
        if (head->products->ops->place == NULL)
            return bp_fail(BP_ERR_UNSUPPORTED, "%s: a bias needs CUDA kernels, which this build does not have", call);
        c.bias = (bp_matrix){bias.data, BP_DTYPE_FP32, 0};
    }
    *checked = c;
    return BP_OK;
}

static bp_status check_apart(const char *call, const char *name, const bp_token_rows *written, const char *other,
                             const bp_token_rows *read)
{
    if (bp_rows_overlap(written, read))
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: the gradient of %s at %p overlaps the %s at %p", call, name,
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

/* `weight_grad`: already checked; data NULL: not wanted. */
static bp_status check_hidden_grad(const char *call, const bp_lm_head *head, const head_batch *batch,
                                   const bp_token_rows *given, const bp_matrix *weight_grad, bp_token_rows *checked)
{
    const bp_token_rows *hidden = &batch->hidden;
    if (given->batch != hidden->batch || given->sequence != hidden->sequence)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: a gradient of %llu x %llu tokens for hidden states of %llu x %llu",
                       call, (unsigned long long)given->batch, (unsigned long long)given->sequence,
                       (unsigned long long)hidden->batch, (unsigned long long)hidden->sequence);
    if (given->dtype != BP_DTYPE_FP32 && given->dtype != head->dtype)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: the gradient is %s for hidden states in %s; use fp32 or %s", call,
                       bp_dtype_name(given->dtype), bp_dtype_name(head->dtype), bp_dtype_name(head->dtype));
    BP_TRY(bp_check_rows(call, "gradients of hidden states", given, head->hidden, true, checked));
    const bp_token_rows weight = weight_rows(head, &batch->weight), beside = weight_rows(head, weight_grad);
    BP_TRY(check_apart(call, "hidden states", checked, "hidden states", hidden));
    BP_TRY(check_apart(call, "hidden states", checked, "weights", &weight));
    if (weight_grad->data == NULL)
        return BP_OK;
    return check_apart(call, "hidden states", checked, "gradients of weights", &beside);
}

static bp_status check_weight_grad(const char *call, const bp_lm_head *head, const head_batch *batch,
                                   const bp_lm_head_gradients *gradients, bp_matrix *checked)
{
    bp_token_rows grad;
    BP_TRY(check_weight(call, "gradients of weights", head, gradients->weight_grad, BP_DTYPE_FP32,
                        gradients->weight_grad_stride, &grad));
    if (batch->token_count != 0) {
        const bp_token_rows weight = weight_rows(head, &batch->weight);
        BP_TRY(check_apart(call, "weights", &grad, "weights", &weight));
        BP_TRY(check_apart(call, "weights", &grad, "hidden states", &batch->hidden));
    }
    *checked = (bp_matrix){grad.data, grad.dtype, grad.stride};
    return BP_OK;
}

static bp_status check_bias_grad(const char *call, const bp_lm_head *head, const head_batch *batch, float *data)
{
    bp_token_rows grad, bias = {.dtype = BP_DTYPE_FP32, .batch = 1, .sequence = 1, .columns = head->base.columns};
    BP_TRY(check_bias(call, "gradients of biases", head, data, &grad));
    bias.data = batch->bias.data;
    if (bias.data != NULL)
        BP_TRY(check_apart(call, "biases", &grad, "biases", &bias));
    if (batch->token_count == 0)
        return BP_OK;
    const bp_token_rows weight = weight_rows(head, &batch->weight);
    BP_TRY(check_apart(call, "biases", &grad, "weights", &weight));
    return check_apart(call, "biases", &grad, "hidden states", &batch->hidden);
}

static bp_status check_head_gradients(const char *call, const bp_lm_head *head, const head_batch *batch,
                                      const bp_lm_head_gradients *gradients, head_gradients *checked)
{
    head_gradients c = {.adds = gradients->accumulate != 0, .bias = gradients->bias_grad};
    if (head->forward_only)
        return bp_fail(BP_ERR_SCHEDULE, "%s: the head was created with forward_only", call);
    if (gradients->weight_grad != NULL)
        BP_TRY(check_weight_grad(call, head, batch, gradients, &c.weight));
    if (gradients->bias_grad != NULL)
        BP_TRY(check_bias_grad(call, head, batch, gradients->bias_grad));
    if (batch->token_count != 0) {
        const bp_logprob_gradients upstream = {.logprob_grad = gradients->logprob_grad,
                                               .entropy_grad = gradients->entropy_grad,
                                               .logsumexp_grad = gradients->logsumexp_grad,
                                               .mean_logprob_grad = gradients->mean_logprob_grad,
                                               .saved = gradients->saved,
                                               .saved_bytes = gradients->saved_bytes};
        BP_TRY(bp_check_gradients(call, &upstream, &batch->tokens, &c.upstream));
        c.upstream.vocab = head->base.shards.vocab;
        if (gradients->hidden_grad.data != NULL)
            BP_TRY(check_hidden_grad(call, head, batch, &gradients->hidden_grad, &c.weight, &c.hidden));
    }
    *checked = c;
    return BP_OK;
}

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
        p.batches = bp_least_u64(sequences, all->batch - p.batch);
    } else {
        const uint64_t pieces = pieces_of(all->sequence, chunk);
        p.batch = index / pieces;
        p.first = index % pieces * chunk;
        p.count = bp_least_u64(chunk, all->sequence - p.first);
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

/* ---- two streams ------------------------------------------------------------------------------------------------- */

#define CALL_WORKSPACES                                                                                                \
    (1u << BP_WORK_PARTIALS | 1u << BP_WORK_GATHERED | ((1u << BP_HEAD_WORKSPACES) - 1) << BP_WORK_OWN)

/* Orders `to` after the work enqueued on `from` so far. */
static bp_status head_order(bp_event *event, bp_stream *from, bp_stream *to)
{
    BP_TRY(bp_event_record(event, from));
    return bp_stream_wait(to, event);
}

/* Begins a call: orders the head's stream after `stream` and acquires the scratch memory. */
static bp_status head_fork(bp_lm_head *head, bp_stream *stream, void **scratch)
{
    BP_TRY(bp_workspace_drop(&head->base.workspace, CALL_WORKSPACES, stream));
    BP_TRY(head_order(head->moved, stream, head->multiplies));
    return bp_workspace_take(&head->base.workspace, BP_WORK_SCRATCH, head->multiplies, scratch);
}

/* Orders the caller's stream after the head's. After a failure it releases all workspaces and synchronizes the remaining work. */
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

/* Computes the logits of piece `index` into a chunk workspace, which it acquires; `stream` waits for them. */
static bp_status head_logits(bp_lm_head *head, const head_batch *batch, const piece *p, uint64_t index, void *scratch,
                             bp_stream *stream, bp_logits_work *logits, void **chunk)
{
    const uint64_t columns = head->base.columns;
    void *memory;
    BP_TRY(bp_workspace_take(&head->base.workspace, BP_WORK_CHUNK + index % 2, head->multiplies, &memory));
    bp_product_work work = {.columns = columns,
                            .hidden = head->hidden,
                            .b = batch->weight,
                            .adds = batch->bias.data != NULL,
                            .scratch = scratch};
    if (work.adds) {
        const bp_product_work biases = {
            .rows = p->rows, .hidden = columns, .a = batch->bias, .c = {memory, BP_DTYPE_FP32, (int64_t)columns}};
        BP_TRY(head->products->ops->place(head->products, &biases, head->multiplies));
    }
    for (uint64_t row = 0; row < p->rows; row += work.rows) {
        work.rows = piece_matrix(&batch->hidden, p, row, &work.a);
        work.c = (bp_matrix){(float *)memory + row * columns, BP_DTYPE_FP32, (int64_t)columns};
        BP_TRY(head->products->ops->logits(head->products, &work, head->multiplies));
    }
    *logits = batch->logits;
    logits->data = memory;
    logits->batch_stride = (int64_t)(p->count * columns);
    logits->stride = (int64_t)columns;
    logits->columns = columns;
    logits->first = head->base.start;
    logits->dtype = BP_DTYPE_FP32;
    *chunk = memory;
    return head_order(head->moved, head->multiplies, stream);
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

static bp_status forward_piece(bp_lm_head *head, const head_batch *batch, uint64_t index, void *scratch,
                               const bp_forward_pass *pass, const bp_results_work *results, bp_stream *stream)
{
    bp_engine *engine = head->base.engine;
    void *chunk;
    const piece p = piece_at(&batch->tokens, head->chunk, index);
    const bp_tokens_work tokens = piece_tokens(&batch->tokens, &p);
    const bp_results_work of_piece = piece_results(results, &p);
    bp_forward_work work = bp_forward_work_of(pass, &tokens, p.token, &of_piece);
    BP_TRY(head_logits(head, batch, &p, index, scratch, stream, &work.logits, &chunk));
    BP_TRY(engine->ops->forward(engine, &work, stream));
    return bp_workspace_give(&head->base.workspace, BP_WORK_CHUNK + index % 2, stream);
}

static bp_status forward_enqueue(const char *call, bp_lm_head *head, const head_batch *batch,
                                 const bp_results_work *results, bp_stream *stream)
{
    bp_forward_pass pass;
    void *scratch;
    bp_status status = head_fork(head, stream, &scratch);
    if (status == BP_OK)
        status = bp_base_begin_forward(call, &head->base, &batch->tokens, stream, &pass);
    if (status != BP_OK)
        return head_join(head, stream, status);
    const uint64_t pieces = piece_count(&batch->tokens, head->chunk);
    for (uint64_t i = 0; status == BP_OK && i < pieces; i++)
        status = forward_piece(head, batch, i, scratch, &pass, results, stream);
    status = head_join(head, stream, status);
    const bp_status ended = bp_base_end_forward(&head->base, &batch->tokens, &pass, results, stream, status);
    return status == BP_OK && ended != BP_OK ? head_join(head, stream, ended) : ended;
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
    head_batch work;
    bp_base *base = &head->base;
    bp_results_work results = bp_base_results(base);
    BP_TRY(check_head_batch(call, head, &own, &work));
    if (work.token_count == 0)
        return BP_OK;
    BP_TRY(bp_check_outputs(call, &wanted, &work.tokens, &results));
    return bp_base_end(base, stream, forward_enqueue(call, head, &work, &results, bp_base_stream(base, stream)));
}

/* ---- backward: hidden_grad, summed over ranks -------------------------------------------------------------------- */

/* Type of the sums: fp32 if the result can be rounded afterwards. */
static bp_dtype sum_dtype(const bp_lm_head *head, const bp_token_rows *out)
{
    return head->products->ops->place != NULL ? BP_DTYPE_FP32 : out->dtype;
}

/* Multiplies hidden_grad of a piece on the head's stream, into the caller's memory or, if it is to be summed, into a workspace. */
static bp_status head_hidden_grad(bp_lm_head *head, const piece *p, const bp_product_work *product,
                                  const bp_token_rows *out, bp_stream *stream)
{
    bp_products *products = head->products;
    bp_product_work work = *product;
    if (!head->sums) {
        for (uint64_t row = 0; row < p->rows; row += work.rows) {
            work.rows = piece_matrix(out, p, row, &work.c);
            work.a.data = bp_matrix_row(&product->a, row);
            BP_TRY(products->ops->hidden_grad(products, &work, head->multiplies));
        }
        return BP_OK;
    }
    void *sums;
    BP_TRY(bp_workspace_take(&head->base.workspace, BP_WORK_SUMS, head->multiplies, &sums));
    work.rows = p->rows;
    work.c = (bp_matrix){sums, sum_dtype(head, out), (int64_t)head->hidden};
    BP_TRY(products->ops->hidden_grad(products, &work, head->multiplies));
    return head_order(head->moved, head->multiplies, stream);
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
        const uint64_t now = bp_least_u64(count - done, BP_EXCHANGED_NUMEL);
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

/* Sums hidden_grad over ranks on the call's stream. Call after enqueuing the next products, to overlap with them. */
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
    BP_TRY(sum_over_ranks(head, &sums, is_direct ? direct.data : address, p->rows * head->hidden, stream));
    if (!is_direct)
        BP_TRY(place_sums(head, p, &sums, out, stream));
    return bp_workspace_give(workspace, BP_WORK_SUMS, stream);
}

/* ---- backward: pieces -------------------------------------------------------------------------------------------- */

/* Recomputes the logits of a piece, their gradient in place, and the products with it. The next piece's logits are multiplied before
 * waiting for this piece's gradient, so that kernels overlap products. */
typedef struct backward {
    bp_lm_head *head;
    const head_batch *batch;
    const head_gradients *out;
    void *scratch;
    bp_stream *stream;  /* of the call */
    bp_matrix grads[2]; /* of the logits in each chunk workspace */
} backward;

/* If the products take the weight's dtype, the gradient of a row starts where its logits did, in half of their memory. */
static bp_status begin_piece(backward *b, uint64_t index)
{
    bp_lm_head *head = b->head;
    bp_engine *engine = head->base.engine;
    const bp_gradient_work *all = &b->out->upstream;
    const bp_dtype dtype = head->products->gradient;
    const piece p = piece_at(&b->batch->tokens, head->chunk, index);
    bp_gradient_work work = *all;
    void *chunk;
    BP_TRY(head_logits(head, b->batch, &p, index, b->scratch, b->stream, &work.logits, &chunk));
    work.tokens = piece_tokens(&b->batch->tokens, &p);
    work.saved = piece_saved(&all->saved, &p);
    work.logprob = piece_upstream(&all->logprob, &p);
    work.entropy = piece_upstream(&all->entropy, &p);
    work.logsumexp = piece_upstream(&all->logsumexp, &p);
    work.mean_logprob = piece_upstream(&all->mean_logprob, &p);
    work.narrows_in_place = dtype != BP_DTYPE_FP32;
    work.out = chunk;
    work.out_dtype = (int32_t)dtype;
    work.out_stride = work.logits.stride * (work.narrows_in_place ? 2 : 1);
    work.out_batch_stride = (int64_t)p.count * work.out_stride;
    b->grads[index % 2] = (bp_matrix){chunk, dtype, work.out_stride};
    BP_TRY(engine->ops->gradient(engine, &work, b->stream));
    if (b->out->bias != NULL) {
        const bp_columns_work sums = {.from = chunk,
                                      .stride = work.out_stride,
                                      .rows = p.rows,
                                      .columns = head->base.columns,
                                      .dtype = work.out_dtype,
                                      .adds = b->out->adds || index > 0,
                                      .to = b->out->bias};
        BP_TRY(engine->ops->columns(engine, &sums, b->stream));
    }
    return bp_event_record(head->graded[index % 2], b->stream);
}

static bp_status head_weight_grad(const backward *b, const piece *p, const bp_product_work *product, bool adds)
{
    bp_products *products = b->head->products;
    const bp_tokens_work tokens = piece_tokens(&b->batch->tokens, p);
    bp_product_work work = *product;
    work.c = b->out->weight;
    work.mask = (bp_row_mask){
        .data = tokens.mask, .batch_stride = tokens.mask_batch_stride, .stride = tokens.mask_stride, .count = p->count};
    for (uint64_t row = 0; row < p->rows; row += work.rows) {
        work.rows = piece_matrix(&b->batch->hidden, p, row, &work.b);
        work.a.data = bp_matrix_row(&product->a, row);
        work.mask.first = row;
        work.adds = adds || row > 0;
        BP_TRY(products->ops->weight_grad(products, &work, b->head->multiplies));
    }
    return BP_OK;
}

static bp_status end_piece(const backward *b, uint64_t index)
{
    bp_lm_head *head = b->head;
    const piece p = piece_at(&b->batch->tokens, head->chunk, index);
    const bp_product_work product = {.columns = head->base.columns,
                                     .hidden = head->hidden,
                                     .a = b->grads[index % 2],
                                     .b = b->batch->weight,
                                     .scratch = b->scratch};
    BP_TRY(bp_stream_wait(head->multiplies, head->graded[index % 2]));
    if (b->out->hidden.data != NULL)
        BP_TRY(head_hidden_grad(head, &p, &product, &b->out->hidden, b->stream));
    if (b->out->weight.data != NULL)
        BP_TRY(head_weight_grad(b, &p, &product, b->out->adds || index > 0));
    BP_TRY(bp_workspace_give(&head->base.workspace, BP_WORK_CHUNK + index % 2, head->multiplies));
    return b->out->hidden.data != NULL && head->sums ? head_sum(head, &p, &b->out->hidden, b->stream) : BP_OK;
}

static bp_status backward_enqueue(backward *b)
{
    const uint64_t pieces = piece_count(&b->batch->tokens, b->head->chunk);
    bp_status status = head_fork(b->head, b->stream, &b->scratch);
    if (status == BP_OK)
        status = begin_piece(b, 0);
    for (uint64_t i = 0; status == BP_OK && i < pieces; i++) {
        if (i + 1 < pieces)
            status = begin_piece(b, i + 1);
        if (status == BP_OK)
            status = end_piece(b, i);
    }
    return head_join(b->head, b->stream, status);
}

/* Gradients of no tokens are zero. */
static bp_status clear_gradients(const bp_lm_head *head, const head_gradients *out, bp_stream *stream)
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
    head_batch work;
    head_gradients out;
    BP_TRY(check_head_batch(call, head, &own, &work));
    BP_TRY(check_head_gradients(call, head, &work, &wanted, &out));
    bp_base *base = &head->base;
    bp_stream *used = bp_base_stream(base, stream);
    BP_TRY(bp_stream_check(used, base->device, call)); /* no workspace is acquired that would check the stream */
    const bool wants_sums = out.weight.data != NULL || out.bias != NULL;
    if (work.token_count != 0 && (out.hidden.data != NULL || wants_sums))
        return bp_base_end(base, stream,
                           backward_enqueue(&(backward){.head = head, .batch = &work, .out = &out, .stream = used}));
    if (work.token_count == 0 && wants_sums && !out.adds)
        return bp_base_end(base, stream, clear_gradients(head, &out, used));
    return BP_OK;
}
