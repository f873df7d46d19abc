/* SPDX-License-Identifier: Apache-2.0 */
/* Measurements: a client for rows of one shape, its calls in turns with copies or with the head's matrix products, medians. */
#include "bench/setup.h"

#include <bucketpool/core/fail.h>
#include <bucketpool/lm_head.h>
#include <bucketpool/logprob.h>

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/gemm.h"
#include "shared/cli.h"
#include "shared/machine.h"

typedef struct sample {
    double forward, backward; /* seconds */
} sample;

/* Rows measured by one client: all chunk sizes of a shape, or a single one of the head. */
typedef struct run {
    bench *bench;
    bench_shape *shape;
    bench_row *rows;
    size_t row_count, turns;
    bp_logprob *logprob; /* stored logits; or else the head */
    bp_lm_head *head;
    bp_logprob_batch batch;
    bp_logprob_gradients gradients;
    bp_lm_head_batch head_batch;
    bp_lm_head_gradients head_gradients;
    bp_logprob_outputs outputs;
    bench_products products; /* baseline of the head */
    uint64_t chunk;          /* of the row that is measured */
    uint64_t repeats, product_repeats;
    sample *samples;         /* [row][turn] */
    sample *product_samples; /* [turn] */
    double *copies;          /* stored logits: [turn] */
    size_t *done;            /* [row], turns; fewer than requested after an interrupt */
    size_t copies_done;
} run;

/* ---- times ------------------------------------------------------------------------------------------------------- */

#define MIN_SECONDS 0.005
#define MAX_REPEATS 256

static void skip_rows(bp_token_rows *rows, uint64_t first, uint64_t count)
{
    rows->data = (uint8_t *)rows->data + first * rows->columns * (bp_dtype_bits(rows->dtype) / 8);
    rows->sequence = count;
}

static void skip_values(bp_token_values *values, uint64_t first, uint64_t bytes)
{
    if (values->data != NULL)
        values->data = (uint8_t *)values->data + first * bytes;
}

/* One call for each chunk of tokens; --fused: both passes as the backward one. */
static bp_status call_logits(const run *r, bool backward)
{
    bp_stream *stream = r->bench->device.stream;
    const bool fused = r->bench->options->fused;
    const uint64_t seq = r->shape->seq, piece = bench_chunk_tokens(r->shape, r->chunk);
    for (uint64_t first = 0, count; first < seq && (backward || !fused); first += count) {
        bp_logprob_batch batch = r->batch;
        bp_logprob_outputs outputs = r->outputs;
        bp_logprob_gradients gradients = r->gradients;
        count = seq - first < piece ? seq - first : piece;
        skip_rows(&batch.logits, first, count);
        skip_rows(&gradients.logits_grad, first, count);
        skip_values(&batch.tokens.target, first, 8);
        skip_values(&outputs.logprob, first, 4);
        skip_values(&outputs.entropy, first, 4);
        skip_values(&gradients.logprob_grad, first, 4);
        skip_values(&gradients.entropy_grad, first, 4);
        const uint64_t of_token = outputs.saved_bytes / seq;
        outputs.saved = (uint8_t *)outputs.saved + first * of_token;
        gradients.saved = outputs.saved;
        outputs.saved_bytes = gradients.saved_bytes = count * of_token;
        if (fused)
            BP_TRY(bp_logprob_forward_backward(r->logprob, &batch, &outputs, &gradients, stream));
        else if (backward)
            BP_TRY(bp_logprob_backward(r->logprob, &batch, &gradients, stream));
        else
            BP_TRY(bp_logprob_forward(r->logprob, &batch, &outputs, stream));
    }
    return BP_OK;
}

static bp_status call_head(const run *r, bool backward)
{
    bp_stream *stream = r->bench->device.stream;
    if (r->bench->options->fused)
        return backward ? bp_lm_head_forward_backward(r->head, &r->head_batch, &r->outputs, &r->head_gradients, stream)
                        : BP_OK;
    return backward ? bp_lm_head_backward(r->head, &r->head_batch, &r->head_gradients, stream)
                    : bp_lm_head_forward(r->head, &r->head_batch, &r->outputs, stream);
}

/* One call computes the logits once: its products are those of backward. */
static bp_status call(const run *r, bool products, bool backward)
{
    if (products && r->bench->options->fused && !backward)
        return BP_OK;
    if (products)
        return backward ? bench_products_backward(&r->products) : bench_products_forward(&r->products);
    if (r->head != NULL)
        return call_head(r, backward);
    return call_logits(r, backward);
}

/* Mean of forward and backward over `repeats` consecutive calls; fewer after an interrupt. */
static bp_status measure(const run *r, bool products, uint64_t repeats, sample *taken)
{
    bench *b = r->bench;
    double seconds[2];
    BP_TRY(bp_stream_synchronize(b->device.stream));
    for (int backward = 0; backward <= 1; backward++) {
        double begin = machine_seconds();
        uint64_t done = 0;
        for (; done < repeats && !(done > 0 && interrupt_came()); done++)
            BP_TRY(call(r, products, backward));
        BP_TRY(bp_stream_synchronize(b->device.stream));
        seconds[backward] = (machine_seconds() - begin) / (double)(done > 0 ? done : 1);
    }
    *taken = (sample){seconds[0], seconds[1]};
    progress_show(&b->progress, ++b->measured);
    return BP_OK;
}

/* Repeats per sample, to hide the launch overhead of short calls. */
static uint64_t repeats_of(const sample *taken)
{
    double seconds = taken->forward + taken->backward;
    if (seconds * MAX_REPEATS <= MIN_SECONDS)
        return MAX_REPEATS;
    return seconds >= MIN_SECONDS ? 1 : (uint64_t)(MIN_SECONDS / seconds) + 1;
}

/* Reduces the samples to medians in the row; "interrupted" without samples. */
static bp_status settle(const sample *samples, size_t count, bench_row *row)
{
    if (count == 0) {
        bench_refuse_row(row, "interrupted");
        return BP_OK;
    }
    double *values = calloc(3 * count, sizeof *values);
    if (values == NULL)
        return bp_fail(BP_ERR_NO_HOST_MEMORY, "out of memory for the times");
    for (size_t i = 0; i < count; i++) {
        values[i] = samples[i].forward;
        values[count + i] = samples[i].backward;
        values[2 * count + i] = samples[i].forward + samples[i].backward;
    }
    row->forward_seconds = bench_spread_of(values, count).median;
    row->backward_seconds = bench_spread_of(values + count, count).median;
    row->seconds = bench_spread_of(values + 2 * count, count).median;
    row->measured = true;
    free(values);
    return BP_OK;
}

/* ---- tensors and calls ------------------------------------------------------------------------------------------- */

#define TOKENS_AT_ONCE 4096

/* Writes targets and upstream gradients. */
static bp_status write_tokens(bench *b, const bench_shape *shape)
{
    int64_t target[TOKENS_AT_ONCE];
    float logprob[TOKENS_AT_ONCE], entropy[TOKENS_AT_ONCE];
    for (uint64_t first = 0, count; first < shape->seq; first += count) {
        count = shape->seq - first < TOKENS_AT_ONCE ? shape->seq - first : TOKENS_AT_ONCE;
        for (uint64_t t = 0; t < count; t++) {
            target[t] = bench_target(first + t, shape->vocab);
            logprob[t] = bench_logprob_grad(first + t);
            entropy[t] = bench_entropy_grad(first + t);
        }
        BP_TRY(bench_upload(&b->staging, target, 8 * count, (int64_t *)shape->at[TENSOR_TARGET] + first));
        BP_TRY(bench_upload(&b->staging, logprob, 4 * count, (float *)shape->at[TENSOR_LOGPROB_GRAD] + first));
        if (shape->at[TENSOR_ENTROPY_GRAD] != NULL)
            BP_TRY(bench_upload(&b->staging, entropy, 4 * count, (float *)shape->at[TENSOR_ENTROPY_GRAD] + first));
    }
    return BP_OK;
}

/* Writes the logits, or hidden states and weight. */
static bp_status write_inputs(const run *r)
{
    bench *b = r->bench;
    const bench_options *o = b->options;
    void *const *at = r->shape->at;
    const uint64_t seq = r->shape->seq, vocab = r->shape->vocab;
    if (o->head == 0)
        return bench_fill(&b->staging, bench_pattern_of(BENCH_LOGITS, 0), o->dtype, seq * vocab, at[TENSOR_LOGITS]);
    BP_TRY(bench_fill(&b->staging, bench_pattern_of(BENCH_HIDDEN, 0), o->dtype, seq * o->head, at[TENSOR_HIDDEN]));
    return bench_fill(&b->staging, bench_pattern_of(BENCH_WEIGHT, o->head), o->dtype, vocab * o->head,
                      at[TENSOR_WEIGHT]);
}

static bp_token_values values_at(const run *r, int tensor)
{
    void *address = r->shape->at[tensor];
    return (bp_token_values){.data = address, .stride = address != NULL ? 1 : 0};
}

static bp_token_rows rows_at(const run *r, int tensor, bp_dtype dtype)
{
    const uint64_t head = r->bench->options->head;
    return (bp_token_rows){.data = r->shape->at[tensor],
                           .dtype = dtype,
                           .batch = 1,
                           .sequence = r->shape->seq,
                           .columns = head > 0 ? head : r->shape->vocab};
}

static bp_status make_calls(run *r)
{
    const bench *b = r->bench;
    const bp_dtype dtype = b->options->dtype;
    const bool in_place = b->options->gradient == BENCH_GRADIENT_IN_PLACE;
    void *saved = r->shape->at[TENSOR_SAVED];
    const uint64_t saved_bytes = r->shape->tensors.bytes[TENSOR_SAVED];
    BP_TRY(bp_logprob_batch_init(&r->batch, sizeof r->batch));
    BP_TRY(bp_logprob_outputs_init(&r->outputs, sizeof r->outputs));
    BP_TRY(bp_logprob_gradients_init(&r->gradients, sizeof r->gradients));
    BP_TRY(bp_lm_head_batch_init(&r->head_batch, sizeof r->head_batch));
    BP_TRY(bp_lm_head_gradients_init(&r->head_gradients, sizeof r->head_gradients));
    r->outputs.logprob = values_at(r, TENSOR_LOGPROB);
    r->outputs.entropy = values_at(r, TENSOR_ENTROPY);
    r->outputs.saved = saved;
    r->gradients.saved = r->head_gradients.saved = saved;
    r->outputs.saved_bytes = r->gradients.saved_bytes = r->head_gradients.saved_bytes = saved_bytes;
    r->batch.tokens.target = r->head_batch.tokens.target = values_at(r, TENSOR_TARGET);
    r->gradients.logprob_grad = r->head_gradients.logprob_grad = values_at(r, TENSOR_LOGPROB_GRAD);
    r->gradients.entropy_grad = r->head_gradients.entropy_grad = values_at(r, TENSOR_ENTROPY_GRAD);
    r->batch.logits = rows_at(r, TENSOR_LOGITS, dtype);
    r->gradients.in_place = in_place;
    r->gradients.logits_grad = rows_at(r, in_place ? TENSOR_LOGITS : TENSOR_LOGITS_GRAD, b->gradient_dtype);
    r->head_batch.hidden = rows_at(r, TENSOR_HIDDEN, dtype);
    r->head_batch.weight = r->shape->at[TENSOR_WEIGHT];
    r->head_gradients.hidden_grad = rows_at(r, TENSOR_HIDDEN_GRAD, b->gradient_dtype);
    r->head_gradients.weight_grad = r->shape->at[TENSOR_WEIGHT_GRAD];
    return BP_OK;
}

/* ---- matrix products of the head --------------------------------------------------------------------------------- */

/* Creates and warms up the products; without a library of products, which the head's own are not, there are none. */
static bp_status make_products(run *r)
{
    bench *b = r->bench;
    bench_shape *shape = r->shape;
    void *const *at = shape->at;
    const uint64_t vocab = shape->vocab, size = b->options->head, piece = bench_chunk_tokens(shape, r->rows->chunk);
    const bp_dtype dtype = b->options->dtype, grad_dtype = b->gradient_dtype;
    if (!b->device.cuda && strstr(b->products, "lib") == NULL)
        return BP_OK;
    if (piece > INT_MAX || vocab > INT_MAX / 2 || size > INT_MAX)
        return bp_fail(BP_ERR_UNSUPPORTED, "matrix products of more than 2^30 rows or columns have no baseline");
    BP_TRY(bench_take_tensors(b, shape, TENSOR_PRODUCT, TENSOR_COUNT));
    r->products = (bench_products){.tokens = shape->seq, .hidden_size = size, .vocab = vocab, .piece = piece};
    bench_products *p = &r->products;
    p->hidden = (bench_matrix){at[TENSOR_HIDDEN], dtype, (int)size};
    p->hidden_grad = (bench_matrix){at[TENSOR_HIDDEN_GRAD], grad_dtype, (int)size};
    p->weight = (bench_matrix){at[TENSOR_WEIGHT], dtype, (int)size};
    p->weight_grad = (bench_matrix){at[TENSOR_WEIGHT_GRAD], BP_DTYPE_FP32, (int)size};
    p->logits = p->logits_grad = (bench_matrix){at[TENSOR_PRODUCT], BP_DTYPE_FP32, (int)vocab};
    if (b->device.cuda && dtype != BP_DTYPE_FP32) /* narrowed in place: rows keep their stride */
        p->logits_grad = (bench_matrix){at[TENSOR_PRODUCT], dtype, 2 * (int)vocab};
    p->widened = at[TENSOR_WIDE_HIDDEN] != NULL;
    if (b->device.cuda)
        BP_TRY(bench_gemm_create_cublas(&b->device, at[TENSOR_LIBRARY], BENCH_CUBLAS_BYTES, &p->gemm));
    else
        BP_TRY(bench_gemm_create_blas(bp_lm_head_get_info(r->head)->products, &p->gemm));
    if (p->widened) {
        float *hidden = at[TENSOR_WIDE_HIDDEN], *weight = at[TENSOR_WIDE_WEIGHT];
        p->hidden = (bench_matrix){hidden, BP_DTYPE_FP32, (int)size};
        p->hidden_grad = (bench_matrix){hidden + piece * size, BP_DTYPE_FP32, (int)size};
        p->weight = (bench_matrix){weight, BP_DTYPE_FP32, (int)size};
        BP_TRY(bench_fill(&b->staging, bench_pattern_of(BENCH_HIDDEN, 0), BP_DTYPE_FP32, piece * size, hidden));
        BP_TRY(bench_fill(&b->staging, bench_pattern_of(BENCH_WEIGHT, size), BP_DTYPE_FP32, vocab * size, weight));
    }
    sample first = {0};
    BP_TRY(measure(r, true, 1, &first));
    r->product_repeats = repeats_of(&first);
    return BP_OK;
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* In place, every measurement starts with fresh logits. */
static bp_status measure_row(run *r, uint64_t repeats, sample *taken)
{
    const bool in_place = r->gradients.in_place != 0;
    if (in_place)
        BP_TRY(write_inputs(r));
    return measure(r, false, in_place ? 1 : repeats, taken);
}

/* Warms up a row, checks its results, and records its memory. Outputs and gradients start as NaN. */
static bp_status warm_up(run *r, bench_row *row)
{
    static const int outputs[] = {TENSOR_LOGITS_GRAD, TENSOR_HIDDEN_GRAD, TENSOR_WEIGHT_GRAD,
                                  TENSOR_LOGPROB,     TENSOR_ENTROPY,     TENSOR_SAVED};
    bench *b = r->bench;
    const bench_shape *shape = r->shape;
    sample first = {0};
    for (size_t i = 0; i < sizeof outputs / sizeof *outputs; i++) {
        if (shape->at[outputs[i]] != NULL)
            BP_TRY(bp_stream_fill(b->device.stream, shape->at[outputs[i]], 0xff, shape->tensors.bytes[outputs[i]]));
    }
    r->chunk = row->chunk;
    BP_TRY(measure_row(r, 1, &first));
    r->repeats = repeats_of(&first);
    BP_TRY(bench_row_memory(b, &row->peak_bytes));
    return r->head != NULL ? bench_check_head(b, row) : bench_check_logits(b, row);
}

/* Rotates the starting row from turn to turn. */
static bp_status take_turns(run *r)
{
    for (size_t t = 0; t < r->turns && !interrupt_came(); t++) {
        if (r->head == NULL) {
            BP_TRY(bench_copy_measure(&r->bench->copy, &r->copies[t]));
            r->copies_done = t + 1;
        }
        for (size_t i = 0; i < r->row_count && !interrupt_came(); i++) {
            size_t row = (i + t) % r->row_count;
            r->chunk = r->rows[row].chunk;
            BP_TRY(measure_row(r, r->repeats, &r->samples[row * r->turns + t]));
            if (r->products.gemm != NULL)
                BP_TRY(measure(r, true, r->product_repeats, &r->product_samples[t]));
            r->done[row] = t + 1;
        }
    }
    return BP_OK;
}

static bp_status with_tensors(run *r)
{
    BP_TRY(bench_take_tensors(r->bench, r->shape, 0, TENSOR_PRODUCT));
    BP_TRY(write_tokens(r->bench, r->shape));
    BP_TRY(make_calls(r));
    BP_TRY(write_inputs(r));
    for (size_t i = 0; i < r->row_count && !interrupt_came(); i++)
        BP_TRY(warm_up(r, &r->rows[i]));
    if (r->head != NULL) /* memory was recorded before the products allocate theirs */
        BP_TRY(make_products(r));
    BP_TRY(take_turns(r));
    if (r->products.gemm != NULL) {
        bench_row alone = {0};
        BP_TRY(settle(r->product_samples, r->done[0], &alone));
        r->rows->products_seconds = alone.seconds;
    }
    const double copy = bench_spread_of(r->copies, r->copies_done).median;
    for (size_t i = 0; i < r->row_count; i++) {
        r->rows[i].copy_bytes_per_s = copy;
        BP_TRY(settle(&r->samples[i * r->turns], r->done[i], &r->rows[i]));
    }
    return BP_OK;
}

/* ---- clients ----------------------------------------------------------------------------------------------------- */

/* Creates the client and records its memory, kernels and threads. */
static bp_status make_client(run *r, const char **kernels, uint32_t *threads)
{
    bench *b = r->bench;
    const bench_options *o = b->options;
    uint64_t workspace, planned;
    if (o->head > 0) {
        bp_lm_head_config config;
        BP_TRY(bp_lm_head_config_init(&config, sizeof config));
        config.max_tokens = r->shape->seq;
        config.hidden = o->head;
        config.vocab = r->shape->vocab;
        config.dtype = o->dtype;
        config.chunk = (int64_t)bench_chunk_tokens(r->shape, r->rows->chunk);
        if (o->fused)
            config.passes = BP_LM_HEAD_ONE_CALL;
        config.threads = o->threads;
        if (o->kernels != 0)
            config.kernels = o->kernels;
        BP_TRY(bp_lm_head_create(b->device.device, &config, &r->head));
        const bp_lm_head_info *info = bp_lm_head_get_info(r->head);
        *kernels = info->kernels;
        *threads = info->threads;
        workspace = info->workspace_bytes;
        planned = info->planned_bytes;
        snprintf(b->products, sizeof b->products, "%s", info->products);
    } else {
        bp_logprob_config config;
        BP_TRY(bp_logprob_config_init(&config, sizeof config));
        config.max_tokens = r->shape->seq;
        config.vocab = r->shape->vocab;
        config.threads = o->threads;
        if (o->kernels != 0)
            config.kernels = o->kernels;
        BP_TRY(bp_logprob_create(b->device.device, &config, &r->logprob));
        const bp_logprob_info *info = bp_logprob_get_info(r->logprob);
        *kernels = info->kernels;
        *threads = info->threads;
        workspace = info->workspace_bytes;
        planned = info->planned_bytes;
    }
    for (size_t i = 0; i < r->row_count; i++) {
        r->rows[i].workspace_bytes = workspace;
        r->rows[i].planned_bytes = planned;
    }
    return BP_OK;
}

static int with_client(run *r)
{
    bench *b = r->bench;
    const char *kernels = "", *asked = bench_kernels_name(b->options->kernels);
    uint32_t threads = 0;
    bp_status status = make_client(r, &kernels, &threads);
    if (status == BP_ERR_NO_DEVICE_MEMORY) {
        for (size_t i = 0; i < r->row_count; i++)
            bench_refuse_row(&r->rows[i], bp_error_detail());
        return EXIT_GO_ON;
    }
    if (status != BP_OK)
        return bench_fail(b, status);
    snprintf(b->kernels, sizeof b->kernels, "%s", kernels);
    b->threads = b->copy.threads = threads;
    if (b->options->kernels != 0 && strcmp(kernels, asked) != 0) {
        progress_erase(&b->progress);
        return cli_fail(EXIT_ENVIRONMENT, "--kernels %s: not supported by this machine or build; auto selects %s",
                        asked, kernels);
    }
    status = with_tensors(r);
    bench_gemm_destroy(&r->products.gemm);
    bp_status given = bench_give_tensors(b, r->shape);
    status = status == BP_OK ? given : status;
    return status == BP_OK ? EXIT_GO_ON : bench_fail(b, status);
}

int bench_run(bench *b)
{
    int code = EXIT_GO_ON;
    size_t count = b->options->head > 0 ? 1 : b->options->chunk.count, turns = (size_t)b->options->common.turns;
    for (size_t i = 0; code == EXIT_GO_ON && i < b->row_count; i += count) {
        if (!b->rows[i].shape->fits || interrupt_came())
            continue;
        run r = {.bench = b,
                 .shape = b->rows[i].shape,
                 .rows = &b->rows[i],
                 .row_count = count,
                 .turns = turns,
                 .samples = calloc(count * turns, sizeof(sample)),
                 .product_samples = calloc(turns, sizeof(sample)),
                 .copies = calloc(turns, sizeof(double)),
                 .done = calloc(count, sizeof(size_t))};
        bool has_memory = r.samples != NULL && r.product_samples != NULL && r.copies != NULL && r.done != NULL;
        code = has_memory ? with_client(&r) : cli_fail(EXIT_ENVIRONMENT, "out of memory");
        bp_logprob_destroy(&r.logprob);
        bp_lm_head_destroy(&r.head);
        free(r.samples);
        free(r.product_samples);
        free(r.copies);
        free(r.done);
    }
    return code;
}
