/* The device, the shapes and their memory. */
#include "bench/command/setup.h"

#include <bucketpool/logprob.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/command/device.h"
#include "shared/cli.h"
#include "shared/machine.h"

/* ---- memory ------------------------------------------------------------------------------------------------------ */

#define ALIGNMENT 256u
#define NO_ID UINT32_MAX

uint64_t bench_tensors_bytes(const bench_tensors *tensors)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < BENCH_MOST_TENSORS; i++) {
        uint64_t bytes = tensors->bytes[i];
        if (bytes > UINT64_MAX - ALIGNMENT ||
            __builtin_add_overflow(sum, (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT, &sum))
            return UINT64_MAX;
    }
    return sum;
}

/* ---- the plan -------------------------------------------------------------------------------------------------------------- */

/* A unit for each shape, a bucket of bytes for each tensor. */
static bp_status add_shape(bp_model *model, size_t shape, const bench_tensors *tensors)
{
    char name[32];
    uint32_t unit = 0;
    snprintf(name, sizeof name, "shape.%zu", shape);
    bp_status status = bp_model_add_unit(model, name, BP_OUTSIDE, &unit);
    for (size_t i = 0; status == BP_OK && i < BENCH_MOST_TENSORS; i++) {
        const bp_given_bucket bucket = {.size = sizeof bucket,
                                        .unit = (int32_t)unit,
                                        .dtype = BP_DTYPE_UINT8,
                                        .numel = tensors->bytes[i],
                                        .roles = BP_ROLE_BIT(BP_ROLE_PARAM)};
        if (tensors->bytes[i] > 0)
            status = bp_model_add_bucket(model, &bucket);
    }
    return status;
}

/* Units run one after the other, and none is gathered ahead. */
static bp_status make_buckets(const char *name, const bench_tensors *tensors, size_t shapes, bp_buckets **buckets)
{
    bp_buckets_config config;
    bp_model *model = NULL;
    bp_status status = bp_model_create(name, &model);
    for (size_t i = 0; status == BP_OK && i < shapes; i++)
        status = add_shape(model, i, &tensors[i]);
    if (status == BP_OK)
        status = bp_buckets_config_init(&config, sizeof config);
    if (status == BP_OK) {
        config.bucketing = BP_BUCKETING_GIVEN;
        config.padding = BP_PADDING_GIVEN;
        config.roles = BP_ROLE_BIT(BP_ROLE_PARAM);
        status = bp_buckets_create(model, &config, buckets);
    }
    bp_model_destroy(&model);
    return status;
}

static bp_status make_plan(const bp_buckets *buckets, bp_plan **plan)
{
    bp_schedule_config schedule_config;
    bp_plan_config plan_config;
    bp_schedule *schedule = NULL;
    bp_status status = bp_schedule_config_init(&schedule_config, sizeof schedule_config);
    if (status == BP_OK) {
        schedule_config.passes = BP_PASSES_EVAL;
        schedule_config.prefetch = 0;
        status = bp_schedule_create_training(buckets, &schedule_config, &schedule);
    }
    if (status == BP_OK)
        status = bp_plan_config_init(&plan_config, sizeof plan_config);
    if (status == BP_OK) {
        plan_config.policy = BP_POLICY_SCHEDULED;
        plan_config.alignment = ALIGNMENT;
        status = bp_plan_create(buckets, schedule, &plan_config, plan);
    }
    bp_schedule_destroy(&schedule);
    return status;
}

/* ---- the pool -------------------------------------------------------------------------------------------------------------- */

/* Ids in order of shapes and tensors, spread out to where tensors without bytes have a place, too. */
static bp_status place_ids(const bench_tensors *tensors, bench_memory *memory)
{
    uint32_t next = 0;
    memory->ids = calloc(memory->shapes * BENCH_MOST_TENSORS, sizeof *memory->ids);
    if (memory->ids == NULL)
        return bp_error_record(BP_ERR_NO_HOST_MEMORY, "out of memory for the tensors");
    for (size_t s = 0; s < memory->shapes; s++) {
        for (size_t i = 0; i < BENCH_MOST_TENSORS; i++)
            memory->ids[s * BENCH_MOST_TENSORS + i] = tensors[s].bytes[i] > 0 ? next++ : NO_ID;
    }
    return BP_OK;
}

static bp_status make_pool(bp_device *device, const bp_buckets *buckets, const bench_tensors *tensors,
                           bench_memory *memory)
{
    bp_plan *plan = NULL;
    bp_status status = make_plan(buckets, &plan);
    if (status == BP_OK)
        status = bp_pool_create(device, plan, NULL, &memory->pool);
    if (status == BP_OK)
        status = place_ids(tensors, memory);
    bp_plan_destroy(&plan);
    return status;
}

bp_status bench_memory_init(bp_device *device, const char *name, const bench_tensors *tensors, size_t shapes,
                            bench_memory *memory)
{
    bp_buckets *buckets = NULL;
    *memory = (bench_memory){.shapes = shapes};
    if (shapes == 0)
        return BP_OK;
    bp_status status = make_buckets(name, tensors, shapes, &buckets);
    if (status == BP_OK)
        status = make_pool(device, buckets, tensors, memory);
    bp_buckets_destroy(&buckets);
    return status;
}

void bench_memory_finish(bench_memory *memory)
{
    bp_pool_destroy(&memory->pool);
    free(memory->ids);
    *memory = (bench_memory){0};
}

bp_status bench_memory_take(bench_memory *memory, size_t shape, size_t tensor, bp_stream *stream, void **address)
{
    uint32_t id = memory->ids[shape * BENCH_MOST_TENSORS + tensor];
    *address = NULL;
    return id != NO_ID ? bp_pool_acquire(memory->pool, &id, 1, stream, address) : BP_OK;
}

bp_status bench_memory_give(bench_memory *memory, size_t shape, size_t tensor, bp_stream *stream)
{
    uint32_t id = memory->ids[shape * BENCH_MOST_TENSORS + tensor];
    return id != NO_ID ? bp_pool_release(memory->pool, &id, 1, stream) : BP_OK;
}

bp_status bench_memory_held(const bench_memory *memory, uint64_t *bytes)
{
    bp_pool_statistics statistics = {.size = sizeof statistics};
    bp_status status = bp_pool_statistics_get(memory->pool, &statistics);
    if (status == BP_OK)
        *bytes = statistics.live_bytes;
    return status;
}

/* ---- setting up -------------------------------------------------------------------------------------------------- */

#define WIDENED_ROWS UINT64_C(4096) /* at a time, on the host */

uint64_t bench_bytes_per_logit(const bench_options *options)
{
    return (2 * (uint64_t)bp_dtype_bits(options->dtype) + bp_dtype_bits(bench_gradient_dtype(options))) / 8;
}

double bench_row_bandwidth_fraction(const bench_options *options, const bench_row *row)
{
    double counted = (double)bench_bytes_per_logit(options) * (double)row->shape->seq * (double)row->shape->vocab;
    return row->measured && row->copy_bytes_per_s > 0 ? counted / row->seconds / row->copy_bytes_per_s : 0;
}

double bench_row_products_ratio(const bench_row *row)
{
    return row->products_seconds > 0 ? row->seconds / row->products_seconds : 0;
}

uint64_t bench_chunk_tokens(const bench_shape *shape, uint64_t chunk)
{
    return chunk == 0 || chunk > shape->seq ? shape->seq : chunk;
}

int bench_fail(bench *b, bp_status status)
{
    progress_erase(&b->progress);
    if (status == BP_ERR_UNSUPPORTED) /* by this build or this machine */
        return cli_fail(EXIT_ENVIRONMENT, "%s", bp_error_detail());
    return cli_fail_status(status);
}

void bench_refuse_row(bench_row *row, const char *why)
{
    snprintf(row->error, sizeof row->error, "%s", why);
}

/* ---- shapes -------------------------------------------------------------------------------------------------------------- */

/* The most tokens that one piece of any row has. */
static uint64_t most_chunk_tokens(const bench_options *o, const bench_shape *shape)
{
    uint64_t most = 0;
    for (size_t i = 0; i < o->chunk.count; i++) {
        uint64_t tokens = bench_chunk_tokens(shape, o->chunk.values[i]);
        most = tokens > most ? tokens : most;
    }
    return most;
}

/* Options were checked: none of these products overflows. */
static bp_status size_tensors(const bench_options *o, bench_shape *shape)
{
    uint64_t *bytes = shape->tensors.bytes, logits = shape->seq * shape->vocab;
    uint64_t width = bp_dtype_bits(o->dtype) / 8, grad_width = bp_dtype_bits(bench_gradient_dtype(o)) / 8;
    bytes[TENSOR_TARGET] = 8 * shape->seq;
    bytes[TENSOR_LOGPROB] = bytes[TENSOR_LOGPROB_GRAD] = 4 * shape->seq;
    bytes[TENSOR_ENTROPY] = bytes[TENSOR_ENTROPY_GRAD] = o->entropy ? 4 * shape->seq : 0;
    if (o->head == 0) {
        bytes[TENSOR_LOGITS] = width * logits;
        bytes[TENSOR_LOGITS_GRAD] = o->gradient == BENCH_GRADIENT_IN_PLACE ? 0 : grad_width * logits;
    } else {
        bytes[TENSOR_HIDDEN] = width * shape->seq * o->head;
        bytes[TENSOR_WEIGHT] = width * shape->vocab * o->head;
        bytes[TENSOR_HIDDEN_GRAD] = grad_width * shape->seq * o->head;
        bytes[TENSOR_WEIGHT_GRAD] = 4 * shape->vocab * o->head;
        uint64_t rows = most_chunk_tokens(o, shape);
        bool widens = !o->cuda && o->dtype != BP_DTYPE_FP32;
        bytes[TENSOR_PRODUCT] = 4 * rows * shape->vocab;
        bytes[TENSOR_WIDE_HIDDEN] = widens ? 2 * 4 * rows * o->head : 0; /* hidden states, and their gradient */
        bytes[TENSOR_LIBRARY] = o->cuda ? BENCH_CUBLAS_BYTES : 0;
        bytes[TENSOR_WIDE_WEIGHT] = widens ? 4 * shape->vocab * o->head : 0;
    }
    return bp_logprob_saved_bytes(shape->seq, o->entropy, &bytes[TENSOR_SAVED]);
}

static uint64_t largest(const bench_list *list)
{
    uint64_t most = 0;
    for (size_t i = 0; i < list->count; i++)
        most = list->values[i] > most ? list->values[i] : most;
    return most;
}

static uint64_t scaled(uint64_t seq, uint64_t scale)
{
    return seq / scale > 0 ? seq / scale : 1;
}

/* Logits and gradient of the largest shape in half of what is free. */
static uint64_t pick_scale(const bench *b)
{
    const bench_options *o = b->options;
    uint64_t width = bp_dtype_bits(o->dtype) / 8, grad_width = bp_dtype_bits(bench_gradient_dtype(o)) / 8, scale = 1;
    if (o->gradient == BENCH_GRADIENT_IN_PLACE)
        grad_width = 0;
    uint64_t seq = largest(&o->seq), row_bytes = largest(&o->vocab) * (width + grad_width);
    while (scaled(seq, scale) > 1 && scaled(seq, scale) * row_bytes > b->device.free_bytes / 2)
        scale *= 2;
    return scale;
}

static bp_status make_shapes(bench *b)
{
    const bench_options *o = b->options;
    bp_status status = BP_OK;
    b->scale = o->scale > 0 ? o->scale : pick_scale(b);
    b->shapes = calloc(o->seq.count * o->vocab.count, sizeof *b->shapes);
    b->rows = calloc(o->seq.count * o->vocab.count * o->chunk.count, sizeof *b->rows);
    if (b->shapes == NULL || b->rows == NULL)
        return bp_error_record(BP_ERR_NO_HOST_MEMORY, "out of memory for the shapes");
    for (size_t s = 0; s < o->seq.count; s++) {
        for (size_t v = 0; status == BP_OK && v < o->vocab.count; v++) {
            bench_shape *shape = &b->shapes[b->shape_count++];
            *shape = (bench_shape){.seq = scaled(o->seq.values[s], b->scale),
                                   .unscaled_seq = o->seq.values[s],
                                   .vocab = o->vocab.values[v]};
            status = size_tensors(o, shape);
            for (size_t c = 0; c < o->chunk.count; c++)
                b->rows[b->row_count++] = (bench_row){.shape = shape, .chunk = o->chunk.values[c]};
        }
    }
    return status;
}

/* ---- memory -------------------------------------------------------------------------------------------------------------- */

/* What the client of a shape works in, about: only there to leave it room. */
static uint64_t client_bytes(const bench *b, const bench_shape *shape)
{
    const bench_options *o = b->options;
    uint64_t tokens = 16 * shape->seq;
    if (o->head == 0)
        return tokens;
    uint64_t library = b->device.cuda ? BENCH_CUBLAS_BYTES : 4 * WIDENED_ROWS * o->head;
    return tokens + 2 * shape->tensors.bytes[TENSOR_PRODUCT] + library;
}

/* As the device hands it out: UINT64_MAX when it does not fit 64 bits. */
static uint64_t wanted_bytes(const bench *b, const bench_shape *shape)
{
    uint64_t tensors = bench_tensors_bytes(&shape->tensors), client = client_bytes(b, shape);
    uint64_t step = b->device.granularity;
    if (tensors > UINT64_MAX / 4 || client > UINT64_MAX / 4)
        return UINT64_MAX;
    return (tensors + step - 1) / step * step + (client + step - 1) / step * step;
}

static void refuse_shape(bench *b, bench_shape *shape, uint64_t there)
{
    char text[BENCH_ERROR_CHARS];
    uint64_t wanted = wanted_bytes(b, shape);
    if (wanted == UINT64_MAX)
        snprintf(text, sizeof text, "needs more bytes than 64 bits count, %s are free", cli_bytes(there));
    else
        snprintf(text, sizeof text, "needs %s (%llu bytes), %s (%llu bytes) are free", cli_bytes(wanted),
                 (unsigned long long)wanted, cli_bytes(there), (unsigned long long)there);
    shape->fits = false;
    for (size_t i = 0; i < b->row_count; i++) {
        if (b->rows[i].shape == shape)
            bench_refuse_row(&b->rows[i], text);
    }
}

static bench_shape *largest_shape(bench *b)
{
    bench_shape *found = NULL;
    uint64_t most = 0;
    for (size_t i = 0; i < b->shape_count; i++) {
        uint64_t bytes = wanted_bytes(b, &b->shapes[i]);
        if (b->shapes[i].fits && bytes > most) {
            most = bytes;
            found = &b->shapes[i];
        }
    }
    return found;
}

static bp_status make_memory(bench *b)
{
    bench_tensors *tensors = calloc(b->shape_count + 1, sizeof *tensors);
    size_t count = 0;
    if (tensors == NULL)
        return bp_error_record(BP_ERR_NO_HOST_MEMORY, "out of memory for the shapes");
    for (size_t i = 0; i < b->shape_count; i++) {
        if (!b->shapes[i].fits)
            continue;
        b->shapes[i].place = count;
        tensors[count++] = b->shapes[i].tensors;
    }
    bp_status status = bench_memory_init(b->device.device, "bench", tensors, count, &b->memory);
    free(tensors);
    return status;
}

/* One slab for the largest shape that fits. A device may have less than it says, or not in one piece. */
static bp_status fit_shapes(bench *b)
{
    uint64_t there = b->device.free_bytes - bench_copy_bytes(&b->device);
    for (size_t i = 0; i < b->shape_count; i++) {
        b->shapes[i].fits = true;
        if (wanted_bytes(b, &b->shapes[i]) > there)
            refuse_shape(b, &b->shapes[i], there);
    }
    bp_status status = make_memory(b);
    bench_shape *shape;
    while (status == BP_ERR_NO_DEVICE_MEMORY && (shape = largest_shape(b)) != NULL) {
        bench_memory_finish(&b->memory);
        refuse_shape(b, shape, there);
        status = make_memory(b);
    }
    return status;
}

int bench_init(const bench_options *options, bench *b)
{
    *b = (bench){.options = options};
    bp_status status = bench_device_init(options->cuda, options->ordinal, &b->device);
    if (status == BP_OK)
        status = make_shapes(b);
    if (status == BP_OK)
        status = bench_copy_init(&b->device, &b->copy);
    if (status == BP_OK)
        status = fit_shapes(b);
    if (status == BP_OK)
        status = bench_staging_init(&b->device, &b->staging);
    if (status == BP_OK)
        status = bench_device_used(&b->device, &b->idle_bytes);
    return status == BP_OK ? EXIT_GO_ON : bench_fail(b, status);
}

void bench_finish(bench *b)
{
    bench_staging_finish(&b->staging);
    bench_memory_finish(&b->memory);
    bench_copy_finish(&b->copy);
    bench_device_finish(&b->device);
    free(b->rows);
    free(b->shapes);
}

/* ---- a shape's turn ------------------------------------------------------------------------------------------------------ */

#define TOKENS_AT_ONCE 4096

static bp_status write_tokens(bench *b, const bench_shape *shape)
{
    int64_t target[TOKENS_AT_ONCE];
    float logprob[TOKENS_AT_ONCE], entropy[TOKENS_AT_ONCE];
    bp_status status = BP_OK;
    for (uint64_t first = 0, count; status == BP_OK && first < shape->seq; first += count) {
        count = shape->seq - first < TOKENS_AT_ONCE ? shape->seq - first : TOKENS_AT_ONCE;
        for (uint64_t t = 0; t < count; t++) {
            target[t] = bench_target(first + t, shape->vocab);
            logprob[t] = bench_logprob_grad(first + t);
            entropy[t] = bench_entropy_grad(first + t);
        }
        status = bench_upload(&b->staging, target, 8 * count, (int64_t *)shape->at[TENSOR_TARGET] + first);
        if (status == BP_OK)
            status = bench_upload(&b->staging, logprob, 4 * count, (float *)shape->at[TENSOR_LOGPROB_GRAD] + first);
        if (status == BP_OK && shape->at[TENSOR_ENTROPY_GRAD] != NULL)
            status = bench_upload(&b->staging, entropy, 4 * count, (float *)shape->at[TENSOR_ENTROPY_GRAD] + first);
    }
    return status;
}

bp_status bench_take_shape(bench *b, bench_shape *shape)
{
    bp_status status = BP_OK;
    for (size_t i = 0; status == BP_OK && i < TENSOR_COUNT; i++)
        status = bench_memory_take(&b->memory, shape->place, i, b->device.stream, &shape->at[i]);
    return status == BP_OK ? write_tokens(b, shape) : status;
}

bp_status bench_give_shape(bench *b, bench_shape *shape)
{
    bp_status status = BP_OK;
    for (size_t i = 0; status == BP_OK && i < TENSOR_COUNT; i++)
        status = bench_memory_give(&b->memory, shape->place, i, b->device.stream);
    return status;
}

bp_status bench_row_memory(const bench *b, uint64_t *bytes)
{
    uint64_t held = 0, used = 0;
    bp_status status = bench_memory_held(&b->memory, &held);
    if (status == BP_OK)
        status = bench_device_used(&b->device, &used);
    if (status == BP_OK)
        *bytes = held + used - b->idle_bytes;
    return status;
}

/* ---- runs -------------------------------------------------------------------------------------------------------- */

#define LEAST_SECONDS 0.005
#define MOST_REPEATS 256

bp_status bench_time(const bench_work *work, uint64_t repeats, bench_sample *sample)
{
    bp_status status = bp_stream_synchronize(work->stream);
    double begin = machine_seconds();
    uint64_t done = 0;
    for (; status == BP_OK && done < repeats && !(done > 0 && interrupt_came()); done++)
        status = work->forward(work->user);
    double forwards = (double)(done > 0 ? done : 1);
    if (status == BP_OK)
        status = bp_stream_synchronize(work->stream);
    double middle = machine_seconds();
    for (done = 0; status == BP_OK && done < repeats && !(done > 0 && interrupt_came()); done++)
        status = work->backward(work->user);
    if (status == BP_OK)
        status = bp_stream_synchronize(work->stream);
    sample->forward = (middle - begin) / forwards;
    sample->backward = (machine_seconds() - middle) / (double)(done > 0 ? done : 1);
    return status;
}

uint64_t bench_repeats(const bench_sample *sample)
{
    double seconds = sample->forward + sample->backward;
    if (seconds * MOST_REPEATS <= LEAST_SECONDS)
        return MOST_REPEATS;
    return seconds >= LEAST_SECONDS ? 1 : (uint64_t)(LEAST_SECONDS / seconds) + 1;
}

bp_status bench_settle(const bench_sample *samples, size_t count, bench_row *row)
{
    if (count == 0) {
        bench_refuse_row(row, "interrupted");
        return BP_OK;
    }
    double *values = calloc(3 * count, sizeof *values);
    if (values == NULL)
        return bp_error_record(BP_ERR_NO_HOST_MEMORY, "out of memory for the times");
    for (size_t i = 0; i < count; i++) {
        values[i] = samples[i].forward;
        values[count + i] = samples[i].backward;
        values[2 * count + i] = samples[i].forward + samples[i].backward;
    }
    row->forward_seconds = bench_median(values, count);
    row->backward_seconds = bench_median(values + count, count);
    row->seconds = bench_median(values + 2 * count, count);
    row->measured = true;
    free(values);
    return BP_OK;
}

bp_status bench_poison(bench *b, const bench_shape *shape)
{
    static const int outputs[] = {TENSOR_LOGITS_GRAD, TENSOR_HIDDEN_GRAD, TENSOR_WEIGHT_GRAD,
                                  TENSOR_LOGPROB,     TENSOR_ENTROPY,     TENSOR_SAVED};
    bp_status status = BP_OK;
    for (size_t i = 0; status == BP_OK && i < sizeof outputs / sizeof *outputs; i++) {
        if (shape->at[outputs[i]] != NULL)
            status = bp_stream_fill(b->device.stream, shape->at[outputs[i]], 0xff, shape->tensors.bytes[outputs[i]]);
    }
    return status;
}

int bench_note_kernels(bench *b, const char *kernels, uint32_t threads)
{
    const bench_options *o = b->options;
    snprintf(b->kernels, sizeof b->kernels, "%s", kernels);
    b->threads = b->copy.threads = threads;
    if (o->kernels == 0 || strcmp(kernels, bench_kernels_name(o->kernels)) == 0)
        return EXIT_GO_ON;
    progress_erase(&b->progress);
    return cli_fail(EXIT_ENVIRONMENT, "--kernels %s: this machine, or this build, has none; auto takes %s",
                    bench_kernels_name(o->kernels), kernels);
}
