/* The fused head: one for each row, in turns with its matrix products alone. */
#include <bucketpool/lm_head.h>

#include <stdio.h>
#include <stdlib.h>

#include "bench/check.h"
#include "bench/products.h"
#include "bench/run.h"
#include "bench/times.h"
#include "cli.h"
#include "interrupt.h"

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

static bp_status forward(void *user)
{
    head_bench *h = user;
    return bp_lm_head_forward(h->head, &h->batch, &h->outputs, h->bench->device.stream);
}

static bp_status backward(void *user)
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
    const bench_work work = {forward, backward, h, h->bench->device.stream};
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
