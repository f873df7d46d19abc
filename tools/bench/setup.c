/* SPDX-License-Identifier: Apache-2.0 */
/* Setup of `bench logprob`: the shapes that fit the device, and their memory. */
#include "bench/setup.h"

#include <bucketpool/core/fail.h>
#include <bucketpool/logprob.h>

#include <stdio.h>
#include <stdlib.h>

#include "shared/cli.h"

/* ---- memory ------------------------------------------------------------------------------------------------------ */

#define ALIGNMENT 256u
#define NO_ID UINT32_MAX

/* One unit per shape, one bucket of bytes per tensor. */
static bp_status add_shapes(bp_model *model, const bench_tensors *tensors, size_t shapes)
{
    for (size_t s = 0; s < shapes; s++) {
        char name[32];
        uint32_t unit = 0;
        snprintf(name, sizeof name, "shape.%zu", s);
        BP_TRY(bp_model_add_unit(model, name, BP_OUTSIDE, &unit));
        for (size_t i = 0; i < BENCH_MAX_TENSORS; i++) {
            const bp_given_bucket bucket = {.size = sizeof bucket,
                                            .unit = (int32_t)unit,
                                            .dtype = BP_DTYPE_UINT8,
                                            .numel = tensors[s].bytes[i],
                                            .roles = BP_ROLE_BIT(BP_ROLE_PARAM)};
            if (bucket.numel > 0)
                BP_TRY(bp_model_add_bucket(model, &bucket));
        }
    }
    return BP_OK;
}

static bp_status make_buckets(const char *name, const bench_tensors *tensors, size_t shapes, bp_buckets **buckets)
{
    bp_buckets_config config;
    bp_model *model = NULL;
    BP_TRY(bp_buckets_config_init(&config, sizeof config));
    BP_TRY(bp_model_create(name, &model));
    config.bucketing = BP_BUCKETING_GIVEN;
    config.padding = BP_PADDING_GIVEN;
    config.roles = BP_ROLE_BIT(BP_ROLE_PARAM);
    bp_status status = add_shapes(model, tensors, shapes);
    if (status == BP_OK)
        status = bp_buckets_create(model, &config, buckets);
    bp_model_destroy(&model);
    return status;
}

/* Units run in sequence with prefetch 0. */
static bp_status make_plan(const bp_buckets *buckets, bp_plan **plan)
{
    bp_schedule_config schedule_config;
    bp_plan_config plan_config;
    bp_schedule *schedule = NULL;
    BP_TRY(bp_schedule_config_init(&schedule_config, sizeof schedule_config));
    BP_TRY(bp_plan_config_init(&plan_config, sizeof plan_config));
    schedule_config.passes = BP_PASSES_EVAL;
    schedule_config.prefetch = 0;
    plan_config.policy = BP_POLICY_SCHEDULED;
    plan_config.alignment = ALIGNMENT;
    BP_TRY(bp_schedule_create_training(buckets, &schedule_config, &schedule));
    bp_status status = bp_plan_create(buckets, schedule, &plan_config, plan);
    bp_schedule_destroy(&schedule);
    return status;
}

bp_status bench_memory_init(bp_device *device, const char *name, const bench_tensors *tensors, size_t shapes,
                            bench_memory *memory)
{
    bp_buckets *buckets = NULL;
    bp_plan *plan = NULL;
    uint32_t next = 0;
    *memory = (bench_memory){.shapes = shapes};
    if (shapes == 0)
        return BP_OK;
    bp_status status = make_buckets(name, tensors, shapes, &buckets);
    if (status == BP_OK)
        status = make_plan(buckets, &plan);
    if (status == BP_OK)
        status = bp_pool_create(device, plan, NULL, &memory->pool);
    bp_plan_destroy(&plan);
    bp_buckets_destroy(&buckets);
    if (status != BP_OK)
        return status;
    memory->ids = calloc(shapes * BENCH_MAX_TENSORS, sizeof *memory->ids);
    if (memory->ids == NULL)
        return bp_fail(BP_ERR_NO_HOST_MEMORY, "out of memory for the tensors");
    for (size_t s = 0; s < shapes; s++) { /* plan order; tensors without bytes have an entry, too */
        for (size_t i = 0; i < BENCH_MAX_TENSORS; i++)
            memory->ids[s * BENCH_MAX_TENSORS + i] = tensors[s].bytes[i] > 0 ? next++ : NO_ID;
    }
    return BP_OK;
}

void bench_memory_finish(bench_memory *memory)
{
    bp_pool_destroy(&memory->pool);
    free(memory->ids);
    *memory = (bench_memory){0};
}

bp_status bench_memory_take(bench_memory *memory, size_t shape, size_t tensor, bp_stream *stream, void **address)
{
    uint32_t id = memory->ids[shape * BENCH_MAX_TENSORS + tensor];
    *address = NULL;
    return id != NO_ID ? bp_pool_acquire(memory->pool, &id, 1, stream, address) : BP_OK;
}

/* ---- shapes ------------------------------------------------------------------------------------------------------ */

#define WIDENED_ROWS UINT64_C(4096) /* per chunk, on the host */

uint64_t bench_chunk_tokens(const bench_shape *shape, uint64_t chunk)
{
    return chunk == 0 || chunk > shape->seq ? shape->seq : chunk;
}

/* The options are validated: no product overflows. */
static bp_status size_tensors(const bench *b, bench_shape *shape)
{
    const bench_options *o = b->options;
    uint64_t *bytes = shape->tensors.bytes, logits = shape->seq * shape->vocab;
    uint64_t width = bp_dtype_bits(o->dtype) / 8, grad_width = bp_dtype_bits(b->gradient_dtype) / 8;
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
        uint64_t rows = 0; /* of the largest piece */
        for (size_t i = 0; i < o->chunk.count; i++) {
            uint64_t tokens = bench_chunk_tokens(shape, o->chunk.values[i]);
            rows = tokens > rows ? tokens : rows;
        }
        bool widens = !o->common.cuda && o->dtype != BP_DTYPE_FP32;
        bytes[TENSOR_PRODUCT] = 4 * rows * shape->vocab;
        bytes[TENSOR_WIDE_HIDDEN] = widens ? 2 * 4 * rows * o->head : 0; /* hidden states, and their gradient */
        bytes[TENSOR_WIDE_WEIGHT] = widens ? 4 * shape->vocab * o->head : 0;
        bytes[TENSOR_LIBRARY] = o->common.cuda ? BENCH_CUBLAS_BYTES : 0;
    }
    return bp_logprob_saved_bytes(shape->seq, o->entropy, &bytes[TENSOR_SAVED]);
}

uint64_t bench_largest(const bench_list *list)
{
    uint64_t max = 0;
    for (size_t i = 0; i < list->count; i++)
        max = list->values[i] > max ? list->values[i] : max;
    return max;
}

static uint64_t scaled(uint64_t seq, uint64_t scale)
{
    return seq / scale > 0 ? seq / scale : 1;
}

/* The smallest scale with which logits and gradient of the largest shape take at most half of the free memory. */
static uint64_t pick_scale(const bench *b)
{
    const bench_options *o = b->options;
    uint64_t width = bp_dtype_bits(o->dtype) / 8, grad_width = bp_dtype_bits(b->gradient_dtype) / 8, scale = 1;
    if (o->gradient == BENCH_GRADIENT_IN_PLACE)
        grad_width = 0;
    uint64_t seq = bench_largest(&o->seq), row_bytes = bench_largest(&o->vocab) * (width + grad_width);
    while (scaled(seq, scale) > 1 && scaled(seq, scale) * row_bytes > b->device.free_bytes / 2)
        scale *= 2;
    return scale;
}

static bp_status make_shapes(bench *b)
{
    const bench_options *o = b->options;
    b->scale = o->scale > 0 ? o->scale : pick_scale(b);
    b->shapes = calloc(o->seq.count * o->vocab.count, sizeof *b->shapes);
    b->rows = calloc(o->seq.count * o->vocab.count * o->chunk.count, sizeof *b->rows);
    if (b->shapes == NULL || b->rows == NULL)
        return bp_fail(BP_ERR_NO_HOST_MEMORY, "out of memory for the shapes");
    for (size_t s = 0; s < o->seq.count; s++) {
        for (size_t v = 0; v < o->vocab.count; v++) {
            bench_shape *shape = &b->shapes[b->shape_count++];
            *shape = (bench_shape){.seq = scaled(o->seq.values[s], b->scale),
                                   .unscaled_seq = o->seq.values[s],
                                   .vocab = o->vocab.values[v]};
            BP_TRY(size_tensors(b, shape));
            for (size_t c = 0; c < o->chunk.count; c++)
                b->rows[b->row_count++] = (bench_row){.shape = shape, .chunk = o->chunk.values[c]};
        }
    }
    return BP_OK;
}

/* ---- shapes that fit --------------------------------------------------------------------------------------------- */

/* Bytes as the device allocates them, plus an estimate of the client's workspaces; UINT64_MAX if more than 64 bits. */
static uint64_t wanted_bytes(const bench *b, const bench_shape *shape)
{
    const bench_options *o = b->options;
    uint64_t tensors = 0, client = 16 * shape->seq, step = b->device.granularity;
    for (size_t i = 0; i < BENCH_MAX_TENSORS; i++) { /* as the pool allocates them, each rounded up */
        uint64_t bytes = shape->tensors.bytes[i];
        if (bytes > UINT64_MAX - ALIGNMENT ||
            __builtin_add_overflow(tensors, (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT, &tensors))
            return UINT64_MAX;
    }
    if (o->head > 0)
        client += 2 * shape->tensors.bytes[TENSOR_PRODUCT] +
                  (b->device.cuda ? BENCH_CUBLAS_BYTES : 4 * WIDENED_ROWS * o->head);
    if (tensors > UINT64_MAX / 4 || client > UINT64_MAX / 4)
        return UINT64_MAX;
    return (tensors + step - 1) / step * step + (client + step - 1) / step * step;
}

void bench_refuse_row(bench_row *row, const char *why)
{
    snprintf(row->error, sizeof row->error, "%s", why);
}

static void refuse_shape(bench *b, bench_shape *shape, uint64_t there)
{
    char text[BENCH_ERROR_CHARS];
    uint64_t wanted = wanted_bytes(b, shape);
    if (wanted == UINT64_MAX)
        snprintf(text, sizeof text, "needs more than 64 bits of bytes, but %s are free", cli_bytes(there));
    else
        snprintf(text, sizeof text, "needs %s (%llu bytes), but %s (%llu bytes) are free", cli_bytes(wanted),
                 (unsigned long long)wanted, cli_bytes(there), (unsigned long long)there);
    shape->fits = false;
    for (size_t i = 0; i < b->row_count; i++) {
        if (b->rows[i].shape == shape)
            bench_refuse_row(&b->rows[i], text);
    }
}

static bp_status make_memory(bench *b)
{
    bench_tensors *tensors = calloc(b->shape_count + 1, sizeof *tensors);
    size_t count = 0;
    if (tensors == NULL)
        return bp_fail(BP_ERR_NO_HOST_MEMORY, "out of memory for the shapes");
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

/* Allocates one slab for the largest shape that fits, retrying with smaller ones, as a device may have less than it reports, or fragmented. */
static bp_status fit_shapes(bench *b)
{
    uint64_t there = b->device.free_bytes - bench_copy_bytes(&b->device);
    for (size_t i = 0; i < b->shape_count; i++) {
        b->shapes[i].fits = true;
        if (wanted_bytes(b, &b->shapes[i]) > there)
            refuse_shape(b, &b->shapes[i], there);
    }
    for (;;) {
        bp_status status = make_memory(b);
        bench_shape *found = NULL;
        uint64_t max = 0;
        for (size_t i = 0; status == BP_ERR_NO_DEVICE_MEMORY && i < b->shape_count; i++) {
            uint64_t bytes = wanted_bytes(b, &b->shapes[i]);
            if (b->shapes[i].fits && bytes > max) {
                max = bytes;
                found = &b->shapes[i];
            }
        }
        if (found == NULL)
            return status;
        bench_memory_finish(&b->memory);
        refuse_shape(b, found, there);
    }
}

/* ---- a bench ----------------------------------------------------------------------------------------------------- */

int bench_fail(bench *b, bp_status status)
{
    progress_erase(&b->progress);
    if (status == BP_ERR_UNSUPPORTED) /* in this build or on this machine */
        return cli_fail(EXIT_ENVIRONMENT, "%s", bp_error_detail());
    return cli_fail_status(status);
}

static bp_status init(bench *b)
{
    BP_TRY(bench_device_init(b->options->common.cuda, b->options->common.ordinal, &b->device));
    BP_TRY(make_shapes(b));
    BP_TRY(bench_copy_init(&b->device, &b->copy));
    BP_TRY(fit_shapes(b));
    BP_TRY(bench_staging_init(&b->device, &b->staging));
    return bench_device_used(&b->device, &b->idle_bytes);
}

int bench_init(const bench_options *options, bench *b)
{
    *b = (bench){.options = options,
                 .gradient_dtype = options->gradient == BENCH_GRADIENT_FP32 ? BP_DTYPE_FP32 : options->dtype};
    bp_status status = init(b);
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

bp_status bench_take_tensors(bench *b, bench_shape *shape, size_t first, size_t end)
{
    for (size_t i = first; i < end; i++)
        BP_TRY(bench_memory_take(&b->memory, shape->place, i, b->device.stream, &shape->at[i]));
    return BP_OK;
}

bp_status bench_give_tensors(bench *b, bench_shape *shape)
{
    for (size_t i = 0; i < TENSOR_COUNT; i++) {
        if (shape->at[i] == NULL)
            continue;
        shape->at[i] = NULL;
        BP_TRY(
            bp_pool_release(b->memory.pool, &b->memory.ids[shape->place * BENCH_MAX_TENSORS + i], 1, b->device.stream));
    }
    return BP_OK;
}

bp_status bench_row_memory(const bench *b, uint64_t *bytes)
{
    uint64_t used = 0;
    bp_pool_statistics statistics = {.size = sizeof statistics};
    BP_TRY(bp_pool_statistics_get(b->memory.pool, &statistics));
    BP_TRY(bench_device_used(&b->device, &used));
    *bytes = statistics.live_bytes + used - b->idle_bytes;
    return BP_OK;
}
