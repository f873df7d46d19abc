#include "bench/memory.h"

#include <stdio.h>
#include <stdlib.h>

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
