/* The fused head: its life. */
#include "logprob/lm_head.h"

#include <bucketpool/cuda.h>

#include <stdlib.h>
#include <string.h>

#include "core/arith.h"
#include "core/fail.h"
#include "core/structs.h"
#include "devices/clients.h"
#include "logprob/arguments.h"

/* ---- arguments --------------------------------------------------------------------------------------------------- */

/* Rows of the weight, or of its gradient, as rows of one sequence; products need them apart and in order. */
static bp_status check_weight(const char *call, const char *name, const bp_lm_head *head, const void *data,
                              bp_dtype dtype, int64_t stride, bp_token_rows *rows)
{
    bp_token_rows given = {
        .dtype = dtype, .batch = 1, .sequence = head->base.columns, .columns = head->hidden, .stride = stride};
    memcpy(&given.data, &data, sizeof data); /* views may be written; the weight is not */
    BP_TRY(bp_check_rows(call, name, &given, head->hidden, false, rows));
    if (rows->stride < (int64_t)head->hidden || rows->stride > INT32_MAX)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: %s have rows of %llu elements at a stride of %lld: %llu to %d",
                       call, name, (unsigned long long)head->hidden, (long long)rows->stride,
                       (unsigned long long)head->hidden, INT32_MAX);
    return BP_OK;
}

bp_status bp_check_head_batch(const char *call, const bp_lm_head *head, const bp_lm_head_batch *batch,
                              bp_head_batch *checked)
{
    const bp_token_rows *hidden = &batch->hidden;
    bp_head_batch c = {.alpha = 1 / batch->temperature};
    bp_token_rows weight;
    BP_TRY(bp_check_temperature(call, batch->temperature));
    BP_TRY(bp_check_tokens(call, hidden->batch, hidden->sequence, head->base.max_tokens, &c.token_count));
    if (hidden->dtype != head->dtype)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: hidden states are %s, the head is made for %s", call,
                       bp_dtype_name(hidden->dtype), bp_dtype_name(head->dtype));
    if (c.token_count != 0) {
        BP_TRY(bp_check_rows(call, "hidden states", hidden, head->hidden, false, &c.hidden));
        BP_TRY(check_weight(call, "weights", head, batch->weight, head->dtype, batch->weight_stride, &weight));
        BP_TRY(bp_check_targets(call, &batch->target, batch->target_dtype, &batch->mask, hidden->batch,
                                hidden->sequence, &c.tokens));
        c.weight = (bp_matrix){weight.data, weight.dtype, weight.stride};
    }
    *checked = c;
    return BP_OK;
}

static bp_status check_apart(const char *call, const char *name, const bp_token_rows *written, const char *other,
                             const bp_token_rows *read)
{
    if (bp_rows_meet(written, read))
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: the gradient of %s at %p lies among the %s at %p", call, name,
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

/* `weight_grad`: checked; data NULL: not wanted. */
static bp_status check_hidden_grad(const char *call, const bp_lm_head *head, const bp_head_batch *batch,
                                   const bp_token_rows *given, const bp_matrix *weight_grad, bp_token_rows *checked)
{
    const bp_token_rows *hidden = &batch->hidden;
    if (given->batch != hidden->batch || given->sequence != hidden->sequence)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: a gradient of %llu x %llu tokens for hidden states of %llu x %llu",
                       call, (unsigned long long)given->batch, (unsigned long long)given->sequence,
                       (unsigned long long)hidden->batch, (unsigned long long)hidden->sequence);
    if (given->dtype != BP_DTYPE_FP32 && given->dtype != head->dtype)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: a gradient in %s of hidden states in %s: fp32 and %s are possible",
                       call, bp_dtype_name(given->dtype), bp_dtype_name(head->dtype), bp_dtype_name(head->dtype));
    BP_TRY(bp_check_rows(call, "gradients of hidden states", given, head->hidden, true, checked));
    const bp_token_rows weight = weight_rows(head, &batch->weight), beside = weight_rows(head, weight_grad);
    BP_TRY(check_apart(call, "hidden states", checked, "hidden states", hidden));
    BP_TRY(check_apart(call, "hidden states", checked, "weights", &weight));
    if (weight_grad->data == NULL)
        return BP_OK;
    return check_apart(call, "hidden states", checked, "gradients of weights", &beside);
}

static bp_status check_weight_grad(const char *call, const bp_lm_head *head, const bp_head_batch *batch,
                                   const bp_lm_head_gradients *gradients, bp_matrix *checked)
{
    bp_token_rows grad;
    BP_TRY(check_weight(call, "gradients of weights", head, gradients->weight_grad, BP_DTYPE_FP32,
                        gradients->weight_grad_stride, &grad));
    *checked = (bp_matrix){grad.data, grad.dtype, grad.stride};
    if (batch->token_count == 0)
        return BP_OK;
    const bp_token_rows weight = weight_rows(head, &batch->weight);
    BP_TRY(check_apart(call, "weights", &grad, "weights", &weight));
    return check_apart(call, "weights", &grad, "hidden states", &batch->hidden);
}

bp_status bp_check_head_gradients(const char *call, const bp_lm_head *head, const bp_head_batch *batch,
                                  const bp_lm_head_gradients *gradients, bp_head_gradients *checked)
{
    bp_head_gradients c = {.adds = gradients->accumulate != 0};
    if (head->forward_only)
        return bp_fail(BP_ERR_SCHEDULE, "%s: the head was made for forward only (forward_only)", call);
    if (gradients->weight_grad != NULL)
        BP_TRY(check_weight_grad(call, head, batch, gradients, &c.weight));
    if (batch->token_count != 0) {
        BP_TRY(bp_check_upstream(call, &gradients->logprob_grad, &gradients->entropy_grad, gradients->saved,
                                 gradients->saved_bytes, batch->tokens.batch, batch->tokens.sequence, &c.upstream));
        if (gradients->hidden_grad.data != NULL)
            BP_TRY(check_hidden_grad(call, head, batch, &gradients->hidden_grad, &c.weight, &c.hidden));
    }
    *checked = c;
    return BP_OK;
}

/* ---- pieces ------------------------------------------------------------------------------------------------------ */

/* Whole sequences in one piece; 0: a sequence takes several pieces. */
static uint64_t sequences_in(uint64_t sequence, uint64_t chunk)
{
    return chunk / sequence;
}

static uint64_t pieces_of(uint64_t whole, uint64_t part)
{
    return whole / part + (whole % part != 0);
}

uint64_t bp_piece_count(uint64_t batch, uint64_t sequence, uint64_t chunk)
{
    if (batch == 0 || sequence == 0)
        return 0;
    const uint64_t sequences = sequences_in(sequence, chunk);
    return sequences > 0 ? pieces_of(batch, sequences) : batch * pieces_of(sequence, chunk);
}

bp_piece bp_piece_at(uint64_t batch, uint64_t sequence, uint64_t chunk, uint64_t index)
{
    const uint64_t sequences = sequences_in(sequence, chunk);
    bp_piece piece = {.batches = 1, .count = sequence};
    if (sequences > 0) {
        piece.batch = index * sequences;
        piece.batches = bp_least_u64(sequences, batch - piece.batch);
    } else {
        const uint64_t pieces = pieces_of(sequence, chunk);
        piece.batch = index / pieces;
        piece.first = index % pieces * chunk;
        piece.count = bp_least_u64(chunk, sequence - piece.first);
    }
    piece.token = piece.batch * sequence + piece.first;
    piece.rows = piece.batches * piece.count;
    return piece;
}

/* ---- views of a piece ----------------------------------------------------------------------------------------------- */

static const void *at(const void *all, int64_t batch_stride, int64_t stride, const bp_piece *piece, int64_t bytes)
{
    if (all == NULL)
        return NULL;
    return (const uint8_t *)all + ((int64_t)piece->batch * batch_stride + (int64_t)piece->first * stride) * bytes;
}

bp_tokens_work bp_piece_tokens(const bp_tokens_work *all, const bp_piece *piece)
{
    bp_tokens_work tokens = *all;
    tokens.batch = piece->batches;
    tokens.sequence = piece->count;
    tokens.target =
        at(all->target, all->target_batch_stride, all->target_stride, piece, all->target_is_64 ? sizeof(int64_t) : 4);
    tokens.mask = at(all->mask, all->mask_batch_stride, all->mask_stride, piece, 1);
    return tokens;
}

bp_saved_work bp_piece_saved(const bp_saved_work *all, const bp_piece *piece)
{
    return (bp_saved_work){.max = all->max + piece->token,
                           .log_sum = all->log_sum + piece->token,
                           .energy = all->energy == NULL ? NULL : all->energy + piece->token};
}

const float *bp_piece_values(const float *all, int64_t batch_stride, int64_t stride, const bp_piece *piece)
{
    return at(all, batch_stride, stride, piece, sizeof *all);
}

/* ---- rows as matrices ----------------------------------------------------------------------------------------------- */

static bool can_step(int64_t stride, uint64_t columns)
{
    return stride >= 0 && (uint64_t)stride >= columns && stride <= INT32_MAX;
}

uint64_t bp_piece_matrix(const bp_token_rows *rows, const bp_piece *piece, uint64_t row, bp_matrix *matrix)
{
    const int64_t bytes = bp_dtype_bits(rows->dtype) / 8;
    const uint64_t batch = piece->batch + row / piece->count, token = piece->first + row % piece->count;
    *matrix = (bp_matrix){.data = (uint8_t *)rows->data +
                                  ((int64_t)batch * rows->batch_stride + (int64_t)token * rows->stride) * bytes,
                          .dtype = rows->dtype};
    if (piece->count == 1 && can_step(rows->batch_stride, rows->columns)) {
        matrix->stride = rows->batch_stride;
        return piece->rows - row;
    }
    if (piece->count > 1 && can_step(rows->stride, rows->columns)) {
        const bool is_one_line = piece->batches == 1 || rows->batch_stride == (int64_t)piece->count * rows->stride;
        matrix->stride = rows->stride;
        return is_one_line ? piece->rows - row : piece->count - row % piece->count;
    }
    matrix->stride = (int64_t)rows->columns;
    return 1;
}

/* ---- the head ---------------------------------------------------------------------------------------------------- */

#define DEFAULT_CHUNK 1024

static const bp_lm_head_config lm_head_config_defaults = {.size = sizeof lm_head_config_defaults,
                                                          .dtype = BP_DTYPE_BF16,
                                                          .chunk = DEFAULT_CHUNK,
                                                          .targets = BP_TARGETS_ANY,
                                                          .kernels =
                                                              BP_KERNELS_PLAIN | BP_KERNELS_AVX2 | BP_KERNELS_AVX512};

bp_status bp_lm_head_config_init(bp_lm_head_config *config, size_t size)
{
    return bp_struct_init("bp_lm_head_config_init", config, size, &lm_head_config_defaults,
                          sizeof lm_head_config_defaults);
}

static const bp_lm_head_batch lm_head_batch_defaults = {.size = sizeof lm_head_batch_defaults,
                                                        .hidden = {.dtype = BP_DTYPE_BF16},
                                                        .target_dtype = BP_DTYPE_INT64,
                                                        .temperature = 1};

bp_status bp_lm_head_batch_init(bp_lm_head_batch *batch, size_t size)
{
    return bp_struct_init("bp_lm_head_batch_init", batch, size, &lm_head_batch_defaults, sizeof lm_head_batch_defaults);
}

static const bp_lm_head_gradients lm_head_gradients_defaults = {.size = sizeof lm_head_gradients_defaults,
                                                                .hidden_grad = {.dtype = BP_DTYPE_FP32}};

bp_status bp_lm_head_gradients_init(bp_lm_head_gradients *gradients, size_t size)
{
    return bp_struct_init("bp_lm_head_gradients_init", gradients, size, &lm_head_gradients_defaults,
                          sizeof lm_head_gradients_defaults);
}

/* ---- creation ------------------------------------------------------------------------------------------------------- */

static bp_status lm_head_check_config(const char *call, const bp_lm_head_config *config)
{
    if (config->max_tokens == 0 || config->hidden == 0 || config->vocab == 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: max_tokens %llu, hidden %llu, vocab %llu: none may be 0", call,
                       (unsigned long long)config->max_tokens, (unsigned long long)config->hidden,
                       (unsigned long long)config->vocab);
    if (config->chunk < 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: chunk %lld is negative: 0 is a whole sequence", call,
                       (long long)config->chunk);
    if (!bp_is_row_dtype(config->dtype))
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "%s: dtype %s of hidden states and weight: fp32, bf16 and fp16 are possible", call,
                       bp_dtype_name(config->dtype));
    return BP_OK;
}

/* Products count in 31 bits, and narrowed gradients are twice as far from each other. */
static bp_status lm_head_check_sizes(const char *call, const bp_lm_head_config *config, uint64_t chunk)
{
    const uint64_t most = INT32_MAX / 2;
    if (chunk > most || config->hidden > most || config->vocab > most)
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "%s: pieces of %llu tokens, hidden %llu, vocab %llu: at most %llu of each are possible", call,
                       (unsigned long long)chunk, (unsigned long long)config->hidden, (unsigned long long)config->vocab,
                       (unsigned long long)most);
    return BP_OK;
}

static bp_status make_products(bp_device *device, const bp_lm_head_config *config, bp_lm_head *head)
{
    if (bp_device_is_host_accessible(device))
        return bp_products_create_blas(head->chunk, config->vocab, config->hidden, config->dtype, &head->products);
    if (bp_cuda_get_info(device) != NULL)
        return bp_products_create_cublas(device, head->chunk, config->hidden, config->dtype, &head->products);
    return bp_fail(BP_ERR_UNSUPPORTED,
                   "bp_lm_head_create: there are no matrix products for device %s: host and cuda have some",
                   bp_device_name(device));
}

static bp_status make_exchanged(const bp_device *device, const bp_comm *comm, bp_lm_head *head)
{
    if (!head->sums || head->forward_only || !bp_device_is_host_accessible(device))
        return BP_OK;
    const size_t count = (size_t)bp_comm_get_info(comm)->ranks * BP_EXCHANGED_NUMEL;
    head->exchanged = calloc(count, sizeof *head->exchanged);
    return head->exchanged != NULL ? BP_OK : bp_fail_memory(count * sizeof *head->exchanged);
}

static bp_status make_own(bp_device *device, const bp_lm_head_config *config, bp_lm_head *head)
{
    const char *call = "bp_lm_head_create";
    BP_TRY(lm_head_check_config(call, config));
    const uint64_t most = config->max_tokens, asked = (uint64_t)config->chunk;
    head->chunk = asked == 0 || asked > most ? most : asked;
    head->chunk_count = head->chunk < most ? 2 : 1;
    head->dtype = config->dtype;
    head->hidden = config->hidden;
    head->forward_only = config->forward_only != 0;
    head->sums = config->comm != NULL && bp_comm_get_info(config->comm)->ranks > 1 && config->partial_hidden_grad == 0;
    BP_TRY(lm_head_check_sizes(call, config, head->chunk));
    BP_TRY(make_products(device, config, head));
    BP_TRY(make_exchanged(device, config->comm, head));
    BP_TRY(bp_stream_create(device, "lm_head.products", &head->multiplies));
    BP_TRY(bp_event_create(device, &head->moved));
    BP_TRY(bp_event_create(device, &head->graded[0]));
    return bp_event_create(device, &head->graded[1]);
}

static uint64_t chunk_bytes(const bp_lm_head *head, uint64_t vocab)
{
    return head->chunk * vocab * sizeof(float); /* 31 bits each */
}

static bp_status make_base(bp_device *device, const bp_lm_head_config *config, bp_status status, bp_lm_head *head)
{
    const uint32_t both = BP_STAGE_PARTIALS | (head->forward_only ? 0 : BP_STAGE_OWN);
    const uint64_t chunk = chunk_bytes(head, config->vocab);
    const uint64_t sums = head->sums && !head->forward_only ? head->chunk * head->hidden * sizeof(float) : 0;
    const bp_workspace_need needs[BP_HEAD_WORKSPACES] = {
        {"chunk.0", chunk, both},
        {"chunk.1", head->chunk_count > 1 ? chunk : 0, both},
        {"scratch", head->products != NULL ? head->products->scratch_bytes : 0, both},
        {"hidden_grad", sums, BP_STAGE_OWN}};
    const uint64_t options = (uint64_t)config->dtype << 32 | (uint64_t)config->targets << 8 |
                             (uint64_t)(config->forward_only != 0) << 1 | (uint64_t)(config->partial_hidden_grad != 0);
    const bp_base_config base = {
        .call = "bp_lm_head_create",
        .name = "lm_head",
        .max_tokens = config->max_tokens,
        .shard = {.start = config->vocab_start,
                  .columns = config->vocab,
                  .same = {config->max_tokens, config->hidden, (uint64_t)config->chunk, options}},
        .same = {"max_tokens", "hidden", "chunk", "options (dtype, targets, passes)"},
        .comm = config->comm,
        .targets = config->targets,
        .threads = config->threads,
        .kernels = config->kernels,
        .needs = needs,
        .need_count = BP_HEAD_WORKSPACES};
    return bp_base_init(device, &base, status, &head->base);
}

/* Products need the device, which the base's stream keeps. */
static void lm_head_finish(bp_lm_head *head)
{
    bp_stream_destroy(&head->multiplies); /* waits for it */
    if (head->products != NULL)
        head->products->ops->destroy(head->products);
    bp_event_destroy(&head->moved);
    bp_event_destroy(&head->graded[0]);
    bp_event_destroy(&head->graded[1]);
    bp_base_finish(&head->base);
    free(head->exchanged);
}

static void lm_head_describe(bp_lm_head *head)
{
    const bp_base *base = &head->base;
    const uint64_t chunk = chunk_bytes(head, base->columns);
    head->info = (bp_lm_head_info){.kernels = base->engine->kernels,
                                   .products = head->products->name,
                                   .threads = base->engine->threads,
                                   .chunk_bytes = chunk,
                                   .other_bytes = base->workspace.bytes - head->chunk_count * chunk,
                                   .workspace_bytes = base->workspace.bytes,
                                   .planned_bytes = base->workspace.planned_bytes,
                                   .vocab = base->shards.vocab,
                                   .pool = base->workspace.pool};
}

bp_status bp_lm_head_create(bp_device *device, const bp_lm_head_config *config, bp_lm_head **head)
{
    bp_lm_head_config own = lm_head_config_defaults;
    BP_TRY(bp_struct_read("bp_lm_head_create", config, false, &own, sizeof own));
    bp_status status = BP_OK; /* from here on the other ranks learn of failures */
    if (device == NULL || head == NULL)
        status = bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_lm_head_create: needs a device and an output");
    config = &own;
    bp_lm_head unmade = {0}; /* where there is no memory, the other ranks must still learn of it */
    bp_lm_head *made = calloc(1, sizeof *made);
    if (status == BP_OK)
        status = made != NULL ? make_own(device, config, made) : bp_fail_memory(sizeof *made);
    status = make_base(device, config, status, made != NULL ? made : &unmade);
    if (status != BP_OK || made == NULL || head == NULL) { /* without either BP_OK was never to be had */
        lm_head_finish(made != NULL ? made : &unmade);
        free(made);
        return status;
    }
    lm_head_describe(made);
    *head = made;
    return BP_OK;
}

void bp_lm_head_destroy(bp_lm_head **head)
{
    if (head == NULL || *head == NULL)
        return;
    bp_lm_head *gone = *head;
    *head = NULL;
    if (bp_device_is_inherited(gone->base.device)) /* work of the parent would be waited for */
        return;
    lm_head_finish(gone);
    free(gone);
}

/* ---- what it is ----------------------------------------------------------------------------------------------------- */

const bp_lm_head_info *bp_lm_head_get_info(const bp_lm_head *head)
{
    return head != NULL ? &head->info : NULL;
}

bp_status bp_lm_head_check(bp_lm_head *head)
{
    if (head == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_lm_head_check: needs a head");
    return bp_base_check(&head->base);
}
