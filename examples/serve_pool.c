/* SPDX-License-Identifier: Apache-2.0 */
/* Serves a model's parameter buckets from a pool, the way a sharded runtime does: one stream gathers a unit ahead of
 * the other, which computes. docs/concepts/pools.md goes through it. */
#include <bucketpool/bucketpool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define UNITS 6

static void check(bp_status status)
{
    if (status != BP_OK) {
        fprintf(stderr, "%s: %s\n", bp_status_name(status), bp_error_detail());
        exit(1);
    }
}

/* Stands for a layer: reads a gathered bucket in stream order. */
typedef struct layer {
    const uint8_t *parameters;
    uint64_t bytes;
    uint8_t gathered;
    int wrong;
} layer;

static void compute(void *argument)
{
    layer *l = argument;
    for (uint64_t i = 0; i < l->bytes; i++)
        l->wrong += l->parameters[i] != l->gathered;
}

int main(void)
{
    /* units of different sizes, planned for one unit of prefetch */
    bp_model *model;
    bp_buckets *buckets;
    bp_schedule *schedule;
    bp_plan *plan;
    bp_buckets_config buckets_config;
    bp_schedule_config schedule_config;
    bp_plan_config plan_config;
    check(bp_buckets_config_init(&buckets_config, sizeof buckets_config));
    check(bp_schedule_config_init(&schedule_config, sizeof schedule_config));
    check(bp_plan_config_init(&plan_config, sizeof plan_config));
    buckets_config.bucketing = BP_BUCKETING_GIVEN;
    buckets_config.padding = BP_PADDING_GIVEN;
    buckets_config.roles = BP_ROLE_BIT(BP_ROLE_PARAM);
    schedule_config.passes = BP_PASSES_EVAL;
    check(bp_model_create("example", &model));
    for (int32_t u = 0; u < UNITS; u++) {
        char name[16];
        uint32_t unit;
        snprintf(name, sizeof name, "layers.%d", u);
        check(bp_model_add_unit(model, name, BP_OUTSIDE, &unit));
        check(bp_model_add_bucket(model, &(bp_given_bucket){.size = sizeof(bp_given_bucket),
                                                            .unit = u,
                                                            .dtype = BP_DTYPE_BF16,
                                                            .numel = u % 2 == 0 ? 100000 : 400000}));
    }
    check(bp_buckets_create(model, &buckets_config, &buckets));
    check(bp_schedule_create_training(buckets, &schedule_config, &schedule));
    check(bp_plan_create(buckets, schedule, &plan_config, &plan));

    /* the plan made real; the request of unit u is number u */
    bp_device *device;
    bp_pool *pool;
    bp_stream *gather, *computing;
    bp_event *gathered;
    uint32_t ids[UNITS];
    check(bp_device_create_host(NULL, &device));
    check(bp_pool_create(device, plan, NULL, &pool));
    for (uint32_t id = 0; id < UNITS; id++)
        ids[id] = id;
    check(bp_stream_create(device, "gather", &gather));
    check(bp_stream_create(device, "compute", &computing));
    check(bp_event_create(device, &gathered));
    check(bp_pool_set_stream(pool, ids, UNITS, gather)); /* saves events: every acquire is on `gather` */

    layer layers[UNITS];
    memset(layers, 0, sizeof layers);
    void *address;
    check(bp_pool_acquire(pool, &ids[0], 1, gather, &address));
    for (int u = 0; u < UNITS; u++) {
        layer *l = &layers[u];
        l->parameters = address;
        l->gathered = (uint8_t)(u + 1);
        check(bp_pool_address(pool, ids[u], &address, &l->bytes));
        check(bp_stream_fill(gather, address, l->gathered, l->bytes)); /* the all-gather */
        check(bp_event_record(gathered, gather));
        check(bp_stream_wait(computing, gathered));
        check(bp_stream_call(computing, compute, l));
        if (u + 1 < UNITS) /* gathered while this unit computes; its memory was released two units ago */
            check(bp_pool_acquire(pool, &ids[u + 1], 1, gather, &address));
        check(bp_pool_release(pool, &ids[u], 1, computing));
    }
    check(bp_device_synchronize(device));

    int wrong = 0;
    for (int u = 0; u < UNITS; u++)
        wrong += layers[u].wrong;
    bp_pool_statistics s = {.size = sizeof s};
    check(bp_pool_statistics_get(pool, &s));
    printf("%d units through %llu bytes of buffers, %llu waits, %d wrong bytes\n", UNITS,
           (unsigned long long)s.slab_bytes, (unsigned long long)s.waits, wrong);

    bp_event_destroy(&gathered);
    bp_stream_destroy(&computing);
    bp_stream_destroy(&gather);
    bp_pool_destroy(&pool);
    bp_device_destroy(&device);
    bp_plan_destroy(&plan);
    bp_schedule_destroy(&schedule);
    bp_buckets_destroy(&buckets);
    bp_model_destroy(&model);
    return wrong > 0;
}
