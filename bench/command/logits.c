/* Log-probabilities of logits that are there: a client for each shape, and its chunk sizes in turns. */
#include <bucketpool/logprob.h>

#include <stdlib.h>
#include <string.h>

#include "bench/command/device.h"
#include "bench/command/report.h"
#include "bench/command/setup.h"
#include "shared/cli.h"

/* One shape. */
typedef struct logits_bench {
    bench *bench;
    bench_shape *shape;
    bench_row *rows; /* of its chunk sizes */
    bp_logprob *client;
    bp_logprob_batch batch;
    bp_logprob_outputs outputs;
    bp_logprob_gradients gradients;
    uint64_t repeats;
    bench_sample *samples; /* by row and turn */
    double *copies;        /* by turn */
    size_t *done;          /* turns by row, fewer than asked for when an interrupt came */
    size_t copies_done;
} logits_bench;

static bool is_in_place(const logits_bench *l)
{
    return l->bench->options->gradient == BENCH_GRADIENT_IN_PLACE;
}

static bp_status forward(void *user)
{
    logits_bench *l = user;
    return bp_logprob_forward(l->client, &l->batch, &l->outputs, l->bench->device.stream);
}

static bp_status backward(void *user)
{
    logits_bench *l = user;
    return bp_logprob_backward(l->client, &l->batch, &l->gradients, l->bench->device.stream);
}

/* ---- setting up ------------------------------------------------------------------------------------------------------------- */

static bp_token_values values_at(void *address)
{
    return (bp_token_values){.data = address, .stride = address != NULL ? 1 : 0};
}

static bp_token_rows rows_at(const bench_shape *shape, void *address, bp_dtype dtype)
{
    return (bp_token_rows){
        .data = address, .dtype = dtype, .batch = 1, .sequence = shape->seq, .columns = shape->vocab};
}

static bp_status make_calls(logits_bench *l)
{
    const bench_options *o = l->bench->options;
    void *const *at = l->shape->at;
    bp_status status = bp_logprob_batch_init(&l->batch, sizeof l->batch);
    if (status == BP_OK)
        status = bp_logprob_outputs_init(&l->outputs, sizeof l->outputs);
    if (status == BP_OK)
        status = bp_logprob_gradients_init(&l->gradients, sizeof l->gradients);
    if (status != BP_OK)
        return status;
    l->batch.logits = rows_at(l->shape, at[TENSOR_LOGITS], o->dtype);
    l->batch.target = values_at(at[TENSOR_TARGET]);
    l->outputs.logprob = values_at(at[TENSOR_LOGPROB]);
    l->outputs.entropy = values_at(at[TENSOR_ENTROPY]);
    l->outputs.saved = at[TENSOR_SAVED];
    l->outputs.saved_bytes = l->shape->tensors.bytes[TENSOR_SAVED];
    l->gradients.logprob_grad = values_at(at[TENSOR_LOGPROB_GRAD]);
    l->gradients.entropy_grad = values_at(at[TENSOR_ENTROPY_GRAD]);
    l->gradients.saved = at[TENSOR_SAVED];
    l->gradients.saved_bytes = l->outputs.saved_bytes;
    l->gradients.in_place = is_in_place(l);
    l->gradients.logits_grad =
        rows_at(l->shape, is_in_place(l) ? at[TENSOR_LOGITS] : at[TENSOR_LOGITS_GRAD], bench_gradient_dtype(o));
    return BP_OK;
}

static bp_status make_client(logits_bench *l)
{
    const bench_options *o = l->bench->options;
    bp_logprob_config config;
    bp_status status = bp_logprob_config_init(&config, sizeof config);
    if (status != BP_OK)
        return status;
    config.max_tokens = l->shape->seq;
    config.vocab = l->shape->vocab;
    config.threads = o->threads;
    if (o->kernels != 0)
        config.kernels = o->kernels;
    return bp_logprob_create(l->bench->device.device, &config, &l->client);
}

static bp_status write_logits(logits_bench *l)
{
    return bench_fill(&l->bench->staging, bench_logits_pattern(), l->bench->options->dtype,
                      l->shape->seq * l->shape->vocab, l->shape->at[TENSOR_LOGITS]);
}

/* ---- measuring -------------------------------------------------------------------------------------------------------------- */

static bp_status measure(logits_bench *l, const bench_row *row, uint64_t repeats, bench_sample *sample)
{
    const bench_work work = {forward, backward, l, l->bench->device.stream};
    bp_status status = is_in_place(l) ? write_logits(l) : BP_OK;
    l->batch.chunk = (int64_t)row->chunk;
    if (status == BP_OK)
        status = bench_time(&work, is_in_place(l) ? 1 : repeats, sample);
    if (status == BP_OK)
        progress_show(&l->bench->progress, ++l->bench->measured);
    return status;
}

/* Pages are touched, code is loaded, results are checked, and it is seen what memory that took. */
static bp_status warm_up(logits_bench *l, bench_row *row)
{
    bench *b = l->bench;
    bench_sample sample = {0};
    const bp_logprob_info *info = bp_logprob_get_info(l->client);
    bp_status status = bench_poison(b, l->shape);
    if (status == BP_OK)
        status = measure(l, row, 1, &sample);
    if (status == BP_OK)
        status = bench_row_memory(b, &row->peak_bytes);
    if (status == BP_OK)
        status = bench_check_logits(b, row);
    row->workspace_bytes = info->workspace_bytes;
    row->planned_bytes = info->planned_bytes;
    l->repeats = bench_repeats(&sample);
    return status;
}

/* Who begins changes from turn to turn. */
static bp_status take_turns(logits_bench *l)
{
    bench *b = l->bench;
    size_t rows = b->options->chunk.count, turns = (size_t)b->options->turns;
    bp_status status = BP_OK;
    for (size_t t = 0; status == BP_OK && t < turns && !interrupt_came(); t++) {
        status = bench_copy_measure(&b->copy, &l->copies[t]);
        l->copies_done = t + 1;
        for (size_t i = 0; status == BP_OK && i < rows && !interrupt_came(); i++) {
            size_t r = (i + t) % rows;
            status = measure(l, &l->rows[r], l->repeats, &l->samples[r * turns + t]);
            l->done[r] = t + 1;
        }
    }
    return status;
}

static bp_status measure_rows(logits_bench *l)
{
    bench *b = l->bench;
    size_t rows = b->options->chunk.count, turns = (size_t)b->options->turns;
    bp_status status = write_logits(l);
    for (size_t i = 0; status == BP_OK && i < rows && !interrupt_came(); i++)
        status = warm_up(l, &l->rows[i]);
    if (status == BP_OK)
        status = take_turns(l);
    if (status != BP_OK)
        return status;
    double copy = bench_median(l->copies, l->copies_done);
    for (size_t i = 0; status == BP_OK && i < rows; i++) {
        l->rows[i].copy_bytes_per_s = copy;
        status = bench_settle(&l->samples[i * turns], l->done[i], &l->rows[i]);
    }
    return status;
}

static bp_status with_tensors(logits_bench *l)
{
    bp_status status = bench_take_shape(l->bench, l->shape);
    if (status == BP_OK)
        status = make_calls(l);
    if (status == BP_OK)
        status = measure_rows(l);
    bp_status given = bench_give_shape(l->bench, l->shape);
    return status == BP_OK ? given : status;
}

/* ---- shapes ------------------------------------------------------------------------------------------------------------------- */

static int run_client(logits_bench *l)
{
    bench *b = l->bench;
    bp_status status = make_client(l);
    if (status == BP_ERR_NO_DEVICE_MEMORY) {
        for (size_t i = 0; i < b->options->chunk.count; i++)
            bench_refuse_row(&l->rows[i], bp_error_detail());
        return EXIT_GO_ON;
    }
    if (status != BP_OK)
        return bench_fail(b, status);
    const bp_logprob_info *info = bp_logprob_get_info(l->client);
    int code = bench_note_kernels(b, info->kernels, info->threads);
    if (code != EXIT_GO_ON)
        return code;
    status = with_tensors(l);
    return status == BP_OK ? EXIT_GO_ON : bench_fail(b, status);
}

static int run_shape(bench *b, size_t shape)
{
    size_t rows = b->options->chunk.count, turns = (size_t)b->options->turns;
    logits_bench l = {.bench = b,
                      .shape = &b->shapes[shape],
                      .rows = &b->rows[shape * rows],
                      .samples = calloc(rows * turns, sizeof(bench_sample)),
                      .copies = calloc(turns, sizeof(double)),
                      .done = calloc(rows, sizeof(size_t))};
    bool has_memory = l.samples != NULL && l.copies != NULL && l.done != NULL;
    int code = has_memory ? run_client(&l) : cli_fail(EXIT_ENVIRONMENT, "out of memory");
    bp_logprob_destroy(&l.client);
    free(l.samples);
    free(l.copies);
    free(l.done);
    return code;
}

int bench_run_logits(bench *b)
{
    int code = EXIT_GO_ON;
    for (size_t i = 0; code == EXIT_GO_ON && i < b->shape_count; i++) {
        if (b->shapes[i].fits && !interrupt_came())
            code = run_shape(b, i);
    }
    return code;
}
