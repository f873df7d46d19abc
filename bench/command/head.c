/* The fused head: one for each row, in turns with its matrix products alone. */
#include <bucketpool/lm_head.h>

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "bench/command/device.h"
#include "bench/command/gemm.h"
#include "bench/command/report.h"
#include "bench/command/setup.h"
#include "shared/cli.h"

typedef struct bench_products bench_products;

/* ---- products ---------------------------------------------------------------------------------------------------- */

struct bench_products {
    bench *bench;
    const bench_shape *shape;
    uint64_t chunk; /* tokens */
    bench_gemm *gemm;
    void *logits, *wide_hidden, *wide_weight, *library;
};

/* ---- matrices of a piece --------------------------------------------------------------------------------------------------- */

static bench_matrix matrix(void *data, uint64_t row, bp_dtype dtype, uint64_t columns)
{
    uint64_t bytes = row * columns * bp_dtype_bits(dtype) / 8;
    return (bench_matrix){(uint8_t *)data + bytes, dtype, (int)columns};
}

static bench_matrix hidden_of(const bench_products *p, uint64_t first)
{
    const bench_options *o = p->bench->options;
    if (p->wide_hidden != NULL)
        return matrix(p->wide_hidden, 0, BP_DTYPE_FP32, o->head);
    return matrix(p->shape->at[TENSOR_HIDDEN], first, o->dtype, o->head);
}

static bench_matrix weight_of(const bench_products *p)
{
    const bench_options *o = p->bench->options;
    if (p->wide_weight != NULL)
        return matrix(p->wide_weight, 0, BP_DTYPE_FP32, o->head);
    return matrix(p->shape->at[TENSOR_WEIGHT], 0, o->dtype, o->head);
}

/* Behind the widened hidden states, where there are some. */
static bench_matrix hidden_grad_of(const bench_products *p, uint64_t first)
{
    const bench_options *o = p->bench->options;
    if (p->wide_hidden != NULL)
        return matrix(p->wide_hidden, p->chunk, BP_DTYPE_FP32, o->head);
    return matrix(p->shape->at[TENSOR_HIDDEN_GRAD], first, bench_gradient_dtype(o), o->head);
}

/* Narrowed in place: rows stay where they are. */
static bench_matrix logits_grad_of(const bench_products *p)
{
    bool narrow = p->gemm->gradient != BP_DTYPE_NONE && p->gemm->gradient != BP_DTYPE_FP32;
    return (bench_matrix){p->logits, narrow ? p->gemm->gradient : BP_DTYPE_FP32,
                          (int)p->shape->vocab * (narrow ? 2 : 1)};
}

/* ---- products ---------------------------------------------------------------------------------------------------------------- */

static bp_status multiply_logits(const bench_products *p, uint64_t first, int rows)
{
    int vocab = (int)p->shape->vocab, hidden = (int)p->bench->options->head;
    const bench_gemm_work work = {.m = rows,
                                  .n = vocab,
                                  .k = hidden,
                                  .a = hidden_of(p, first),
                                  .b = weight_of(p),
                                  .b_across = true,
                                  .c = matrix(p->logits, 0, BP_DTYPE_FP32, p->shape->vocab)};
    return p->gemm->ops->run(p->gemm, &work);
}

static bp_status multiply_gradients(const bench_products *p, uint64_t first, int rows)
{
    int vocab = (int)p->shape->vocab, hidden = (int)p->bench->options->head;
    const bench_gemm_work hidden_grad = {
        .m = rows, .n = hidden, .k = vocab, .a = logits_grad_of(p), .b = weight_of(p), .c = hidden_grad_of(p, first)};
    const bench_gemm_work weight_grad = {
        .m = vocab,
        .n = hidden,
        .k = rows,
        .a = logits_grad_of(p),
        .a_across = true,
        .b = hidden_of(p, first),
        .c = matrix(p->shape->at[TENSOR_WEIGHT_GRAD], 0, BP_DTYPE_FP32, p->bench->options->head),
        .adds = first > 0};
    bp_status status = p->gemm->ops->run(p->gemm, &hidden_grad);
    return status == BP_OK ? p->gemm->ops->run(p->gemm, &weight_grad) : status;
}

static bp_status forward(void *user)
{
    const bench_products *p = user;
    bp_status status = BP_OK;
    for (uint64_t first = 0; status == BP_OK && first < p->shape->seq; first += p->chunk) {
        uint64_t left = p->shape->seq - first;
        status = multiply_logits(p, first, (int)(left < p->chunk ? left : p->chunk));
    }
    return status;
}

static bp_status backward(void *user)
{
    const bench_products *p = user;
    bp_status status = BP_OK;
    for (uint64_t first = 0; status == BP_OK && first < p->shape->seq; first += p->chunk) {
        uint64_t left = p->shape->seq - first;
        int rows = (int)(left < p->chunk ? left : p->chunk);
        status = multiply_logits(p, first, rows);
        if (status == BP_OK)
            status = multiply_gradients(p, first, rows);
    }
    return status;
}

/* One product a piece forward, three backward: logits again, and two gradients. */
static bench_work bench_products_work(bench_products *products)
{
    return (bench_work){forward, backward, products, products->bench->device.stream};
}

/* ---- making them --------------------------------------------------------------------------------------------------------------- */

static bp_status take(bench_products *p, int tensor, void **address)
{
    bench *b = p->bench;
    return bench_memory_take(&b->memory, p->shape->place, (size_t)tensor, b->device.stream, address);
}

static bp_status make_gemm(bench_products *p)
{
    const bench *b = p->bench;
    if (!b->device.cuda)
        return bench_gemm_create_cblas(&p->gemm);
    return bench_gemm_create_cublas(&b->device, b->options->ordinal, b->options->dtype, p->library, BENCH_CUBLAS_BYTES,
                                    &p->gemm);
}

static bp_status widen(bench_products *p)
{
    bench *b = p->bench;
    uint64_t hidden = b->options->head;
    bp_status status = BP_OK;
    if (p->wide_hidden != NULL)
        status = bench_fill(&b->staging, bench_hidden_pattern(), BP_DTYPE_FP32, p->chunk * hidden, p->wide_hidden);
    if (status == BP_OK && p->wide_weight != NULL)
        status = bench_fill(&b->staging, bench_weight_pattern(hidden), BP_DTYPE_FP32, p->shape->vocab * hidden,
                            p->wide_weight);
    return status;
}

static bp_status check_sizes(const bench_products *p)
{
    uint64_t vocab = p->shape->vocab, hidden = p->bench->options->head;
    if (p->chunk <= INT_MAX && vocab <= INT_MAX / 2 && hidden <= INT_MAX)
        return BP_OK;
    return bp_error_record(BP_ERR_UNSUPPORTED, "matrix products of more than 2^30 rows or columns are not compared");
}

/* At the shape's tensors, which are held. Errors: BP_ERR_UNSUPPORTED (the head's library is not in this process). */
static bp_status bench_products_create(bench *b, const bench_shape *shape, uint64_t chunk, bench_products **products)
{
    bench_products *p = calloc(1, sizeof *p);
    if (p == NULL)
        return bp_error_record(BP_ERR_NO_HOST_MEMORY, "out of memory for matrix products");
    *p = (bench_products){.bench = b, .shape = shape, .chunk = bench_chunk_tokens(shape, chunk)};
    *products = p;
    bp_status status = check_sizes(p);
    if (status == BP_OK)
        status = take(p, TENSOR_PRODUCT, &p->logits);
    if (status == BP_OK)
        status = take(p, TENSOR_WIDE_HIDDEN, &p->wide_hidden);
    if (status == BP_OK)
        status = take(p, TENSOR_WIDE_WEIGHT, &p->wide_weight);
    if (status == BP_OK)
        status = take(p, TENSOR_LIBRARY, &p->library);
    if (status == BP_OK)
        status = make_gemm(p);
    return status == BP_OK ? widen(p) : status;
}

static void give(bench_products *p, int tensor, const void *address)
{
    bench *b = p->bench;
    if (address != NULL)
        (void)bench_memory_give(&b->memory, p->shape->place, (size_t)tensor, b->device.stream);
}

static void bench_products_destroy(bench_products **products)
{
    bench_products *p = *products;
    if (p == NULL)
        return;
    if (p->gemm != NULL)
        p->gemm->ops->destroy(p->gemm);
    give(p, TENSOR_PRODUCT, p->logits);
    give(p, TENSOR_WIDE_HIDDEN, p->wide_hidden);
    give(p, TENSOR_WIDE_WEIGHT, p->wide_weight);
    give(p, TENSOR_LIBRARY, p->library);
    free(p);
    *products = NULL;
}

/* ---- the fused head ---------------------------------------------------------------------------------------------- */

typedef struct head_bench {
    bench *bench;
    bench_shape *shape;
    bench_row *row;
    bp_lm_head *head;
    bp_lm_head_batch batch;
    bp_logprob_outputs outputs;
    bp_lm_head_gradients gradients;
    bench_products *products;
    bench_sample *samples, *product_samples; /* by turn */
    size_t done;                             /* turns, fewer than asked for when an interrupt came */
} head_bench;

static bp_status head_forward(void *user)
{
    head_bench *h = user;
    return bp_lm_head_forward(h->head, &h->batch, &h->outputs, h->bench->device.stream);
}

static bp_status head_backward(void *user)
{
    head_bench *h = user;
    return bp_lm_head_backward(h->head, &h->batch, &h->gradients, h->bench->device.stream);
}

/* ---- setting up ------------------------------------------------------------------------------------------------------------- */

static bp_status make_head(head_bench *h)
{
    const bench_options *o = h->bench->options;
    bp_lm_head_config config;
    bp_status status = bp_lm_head_config_init(&config, sizeof config);
    if (status != BP_OK)
        return status;
    config.max_tokens = h->shape->seq;
    config.hidden = o->head;
    config.vocab = h->shape->vocab;
    config.dtype = o->dtype;
    config.chunk = (int64_t)h->row->chunk;
    config.threads = o->threads;
    if (o->kernels != 0)
        config.kernels = o->kernels;
    return bp_lm_head_create(h->bench->device.device, &config, &h->head);
}

static bp_token_values values_at(void *address)
{
    return (bp_token_values){.data = address, .stride = address != NULL ? 1 : 0};
}

static bp_token_rows rows_at(const head_bench *h, void *address, bp_dtype dtype)
{
    return (bp_token_rows){
        .data = address, .dtype = dtype, .batch = 1, .sequence = h->shape->seq, .columns = h->bench->options->head};
}

static bp_status make_calls(head_bench *h)
{
    const bench_options *o = h->bench->options;
    void *const *at = h->shape->at;
    bp_status status = bp_lm_head_batch_init(&h->batch, sizeof h->batch);
    if (status == BP_OK)
        status = bp_logprob_outputs_init(&h->outputs, sizeof h->outputs);
    if (status == BP_OK)
        status = bp_lm_head_gradients_init(&h->gradients, sizeof h->gradients);
    if (status != BP_OK)
        return status;
    h->batch.hidden = rows_at(h, at[TENSOR_HIDDEN], o->dtype);
    h->batch.weight = at[TENSOR_WEIGHT];
    h->batch.target = values_at(at[TENSOR_TARGET]);
    h->outputs.logprob = values_at(at[TENSOR_LOGPROB]);
    h->outputs.entropy = values_at(at[TENSOR_ENTROPY]);
    h->outputs.saved = at[TENSOR_SAVED];
    h->outputs.saved_bytes = h->shape->tensors.bytes[TENSOR_SAVED];
    h->gradients.logprob_grad = values_at(at[TENSOR_LOGPROB_GRAD]);
    h->gradients.entropy_grad = values_at(at[TENSOR_ENTROPY_GRAD]);
    h->gradients.saved = at[TENSOR_SAVED];
    h->gradients.saved_bytes = h->outputs.saved_bytes;
    h->gradients.hidden_grad = rows_at(h, at[TENSOR_HIDDEN_GRAD], bench_gradient_dtype(o));
    h->gradients.weight_grad = at[TENSOR_WEIGHT_GRAD];
    return BP_OK;
}

static bp_status write_inputs(head_bench *h)
{
    bench *b = h->bench;
    const bench_options *o = b->options;
    bp_status status =
        bench_fill(&b->staging, bench_hidden_pattern(), o->dtype, h->shape->seq * o->head, h->shape->at[TENSOR_HIDDEN]);
    if (status == BP_OK)
        status = bench_fill(&b->staging, bench_weight_pattern(o->head), o->dtype, h->shape->vocab * o->head,
                            h->shape->at[TENSOR_WEIGHT]);
    return status;
}

/* ---- measuring -------------------------------------------------------------------------------------------------------------- */

static bp_status measure(head_bench *h, const bench_work *work, uint64_t repeats, bench_sample *sample)
{
    bp_status status = bench_time(work, repeats, sample);
    if (status == BP_OK)
        progress_show(&h->bench->progress, ++h->bench->measured);
    return status;
}

/* Memory is what it is before the products alone bring their own. */
static bp_status warm_up(head_bench *h, const bench_work *work, bench_sample *sample)
{
    bench *b = h->bench;
    bp_status status = bench_poison(b, h->shape);
    if (status == BP_OK)
        status = measure(h, work, 1, sample);
    if (status == BP_OK)
        status = bench_row_memory(b, &h->row->peak_bytes);
    if (status == BP_OK)
        status = bench_check_head(b, h->row);
    return status;
}

static bp_status take_turns(head_bench *h, const bench_work *work)
{
    bench_sample sample = {0}, products_sample = {0};
    bp_status status = warm_up(h, work, &sample);
    if (status == BP_OK)
        status = bench_products_create(h->bench, h->shape, h->row->chunk, &h->products);
    if (status != BP_OK)
        return status;
    const bench_work products = bench_products_work(h->products);
    status = measure(h, &products, 1, &products_sample);
    for (size_t t = 0; status == BP_OK && t < h->bench->options->turns && !interrupt_came(); t++) {
        status = measure(h, work, bench_repeats(&sample), &h->samples[t]);
        if (status == BP_OK)
            status = measure(h, &products, bench_repeats(&products_sample), &h->product_samples[t]);
        h->done = t + 1;
    }
    return status;
}

static bp_status settle(head_bench *h)
{
    bench_row alone = {0};
    bp_status status = bench_settle(h->product_samples, h->done, &alone);
    h->row->products_seconds = alone.seconds;
    return status == BP_OK ? bench_settle(h->samples, h->done, h->row) : status;
}

static bp_status with_tensors(head_bench *h)
{
    const bench_work work = {head_forward, head_backward, h, h->bench->device.stream};
    bp_status status = bench_take_shape(h->bench, h->shape);
    if (status == BP_OK)
        status = make_calls(h);
    if (status == BP_OK)
        status = write_inputs(h);
    if (status == BP_OK)
        status = take_turns(h, &work);
    if (status == BP_OK)
        status = settle(h);
    bench_products_destroy(&h->products);
    bp_status given = bench_give_shape(h->bench, h->shape);
    return status == BP_OK ? given : status;
}

/* ---- rows --------------------------------------------------------------------------------------------------------------------- */

static int run_head(head_bench *h)
{
    bench *b = h->bench;
    bp_status status = make_head(h);
    if (status == BP_ERR_NO_DEVICE_MEMORY) {
        bench_refuse_row(h->row, bp_error_detail());
        return EXIT_GO_ON;
    }
    if (status != BP_OK)
        return bench_fail(b, status);
    const bp_lm_head_info *info = bp_lm_head_get_info(h->head);
    int code = bench_note_kernels(b, info->kernels, info->threads);
    if (code != EXIT_GO_ON)
        return code;
    snprintf(b->products, sizeof b->products, "%s", info->products);
    h->row->workspace_bytes = info->workspace_bytes;
    h->row->planned_bytes = info->planned_bytes;
    status = with_tensors(h);
    return status == BP_OK ? EXIT_GO_ON : bench_fail(b, status);
}

static int run_row(bench *b, size_t row)
{
    size_t turns = (size_t)b->options->turns;
    head_bench h = {.bench = b,
                    .shape = &b->shapes[row / b->options->chunk.count],
                    .row = &b->rows[row],
                    .samples = calloc(turns, sizeof(bench_sample)),
                    .product_samples = calloc(turns, sizeof(bench_sample))};
    int code =
        h.samples != NULL && h.product_samples != NULL ? run_head(&h) : cli_fail(EXIT_ENVIRONMENT, "out of memory");
    bp_lm_head_destroy(&h.head);
    free(h.samples);
    free(h.product_samples);
    return code;
}

int bench_run_head(bench *b)
{
    int code = EXIT_GO_ON;
    for (size_t i = 0; code == EXIT_GO_ON && i < b->row_count; i++) {
        if (b->rows[i].shape->fits && !interrupt_came())
            code = run_row(b, i);
    }
    return code;
}
