/* SPDX-License-Identifier: Apache-2.0 */
/* Plans and pools for benchmarks. */
#include "pools.h"

#include <stdio.h>
#include <stdlib.h>

#include "measure.h"
#include "planner/from_info.h"

/* ---- plans ------------------------------------------------------------------------------------------------------- */

/* Offset of a request in the slab, and its promised stream. */
typedef struct place {
    uint64_t offset, bytes;
    uint32_t stream;
} place;

static void *array(size_t count, size_t size)
{
    void *made = calloc(count, size);
    if (made == NULL)
        must(BP_ERR_NO_HOST_MEMORY);
    return made;
}

static bp_plan *create_placed_plan(const place *places, uint32_t count, uint64_t slab_bytes)
{
    bp_plan_request *requests = array(count, sizeof *requests);
    for (uint32_t i = 0; i < count; i++)
        requests[i] = (bp_plan_request){.unit = "slab",
                                        .ordinal = i,
                                        .role = BP_ROLE_PARAM,
                                        .dtype = BP_DTYPE_UINT8,
                                        .placement = BP_PLACE_PLANNED,
                                        .offset = places[i].offset,
                                        .bytes = places[i].bytes,
                                        .used_bytes = places[i].bytes};
    const bp_plan_slab slab = {.group = "param", .bytes = slab_bytes};
    const bp_plan_info info = {.policy = BP_POLICY_SCHEDULED,
                               .feasible = 1,
                               .stable = 1,
                               .alignment = 256,
                               .bytes = slab_bytes,
                               .request_count = count,
                               .requests = requests,
                               .slab_count = 1,
                               .slabs = &slab};
    bp_plan *plan;
    must(bp_plan_from_info(&info, &plan));
    free(requests);
    return plan;
}

bp_plan *one_slab_plan(uint64_t bytes)
{
    return create_placed_plan(&(place){.bytes = bytes}, 1, bytes);
}

/* ---- pools ------------------------------------------------------------------------------------------------------- */

#define PIECE 4096u

static void nothing(void *argument)
{
    (void)argument;
}

/* Enqueues some work first, so that the streams' event counts are not zero. */
static void create_device(pool_fixture *w, const pool_fixture_options *options)
{
    w->device = options->device;
    if (w->device == NULL)
        must(options->host ? bp_device_create_host(NULL, &w->device) : bp_device_create_null(&w->device));
    for (uint32_t i = 0; i < WORLD_STREAMS; i++) {
        must(bp_stream_create(w->device, NULL, &w->streams[i]));
        must(bp_stream_call(w->streams[i], nothing, NULL));
        must(bp_stream_synchronize(w->streams[i]));
    }
}

static void create_ids(pool_fixture *w, uint32_t count)
{
    w->count = count;
    w->ids = array(count, sizeof *w->ids);
    for (uint32_t i = 0; i < count; i++)
        w->ids[i] = i;
}

static bp_buckets *create_buckets(uint32_t units, uint32_t buckets, uint64_t bytes)
{
    bp_model *model;
    must(bp_model_create("bench", &model));
    for (uint32_t u = 0; u < units; u++) {
        char name[32];
        uint32_t unit;
        snprintf(name, sizeof name, "layers.%u", u);
        must(bp_model_add_unit(model, name, BP_OUTSIDE, &unit));
        for (uint32_t b = 0; b < buckets; b++) {
            bp_given_bucket bucket = {
                .size = sizeof bucket, .unit = (int32_t)unit, .dtype = BP_DTYPE_BF16, .numel = bytes / 2};
            must(bp_model_add_bucket(model, &bucket));
        }
    }
    bp_buckets_config config;
    must(bp_buckets_config_init(&config, sizeof config));
    config.bucketing = BP_BUCKETING_GIVEN;
    config.padding = BP_PADDING_GIVEN;
    config.roles = BP_ROLE_BIT(BP_ROLE_PARAM);
    bp_buckets *made;
    must(bp_buckets_create(model, &config, &made));
    bp_model_destroy(&model);
    return made;
}

pool_fixture pool_fixture_create(const pool_fixture_options *options)
{
    pool_fixture w = {0};
    create_device(&w, options);
    create_ids(&w, options->units * options->buckets);
    bp_buckets *buckets = create_buckets(options->units, options->buckets, options->bytes);
    bp_schedule_config times;
    bp_schedule *schedule;
    must(bp_schedule_config_init(&times, sizeof times));
    must(bp_schedule_create_training(buckets, &times, &schedule));
    bp_plan_config two_copies;
    bp_plan *plan;
    must(bp_plan_config_init(&two_copies, sizeof two_copies));
    two_copies.copies = 2;
    must(bp_plan_create(buckets, schedule, &two_copies, &plan));
    bp_pool_config config;
    must(bp_pool_config_init(&config, sizeof config));
    if (options->strict != 0)
        config.strict = options->strict;
    config.guard = BP_GUARD_OFF;
    must(bp_pool_create(w.device, plan, &config, &w.pool));
    if (options->promised)
        must(bp_pool_set_stream(w.pool, w.ids, w.count, w.streams[0]));
    bp_plan_destroy(&plan);
    bp_schedule_destroy(&schedule);
    bp_buckets_destroy(&buckets);
    return w;
}

static pool_fixture create_placed(const place *places, uint32_t requests, uint64_t slab_bytes)
{
    pool_fixture w = {0};
    create_device(&w, &(pool_fixture_options){.host = 0});
    create_ids(&w, requests);
    bp_plan *plan = create_placed_plan(places, requests, slab_bytes);
    must(bp_pool_create(w.device, plan, NULL, &w.pool));
    bp_plan_destroy(&plan);
    uint32_t *promised = array(requests, sizeof *promised);
    for (uint32_t stream = 0; stream < WORLD_STREAMS; stream++) {
        uint32_t count = 0;
        for (uint32_t i = 0; i < requests; i++) {
            if (places[i].stream == stream)
                promised[count++] = i;
        }
        must(bp_pool_set_stream(w.pool, promised, count, w.streams[stream]));
    }
    free(promised);
    return w;
}

pool_fixture pool_fixture_create_apart(uint32_t requests, int interleaved)
{
    place *places = array(requests, sizeof *places);
    for (uint32_t i = 0; i < requests; i++)
        places[i] = (place){(uint64_t)i * PIECE, PIECE,
                            interleaved ? i % WORLD_STREAMS : (uint32_t)((uint64_t)i * WORLD_STREAMS / requests)};
    pool_fixture w = create_placed(places, requests, (uint64_t)requests * PIECE);
    free(places);
    return w;
}

pool_fixture pool_fixture_create_overlapping(uint32_t requests, uint32_t deep)
{
    place *places = array(requests, sizeof *places);
    const uint64_t slab_bytes = (uint64_t)2 * deep * PIECE;
    for (uint32_t i = 0; i < requests; i++) {
        const uint64_t bytes = (uint64_t)(i / 2 % deep + 1) * PIECE;
        places[i] = (place){i % 2 == 0 ? 0 : slab_bytes - bytes, bytes, 0};
    }
    pool_fixture w = create_placed(places, requests, slab_bytes);
    free(places);
    return w;
}

void pool_fixture_destroy(pool_fixture *w)
{
    bp_pool_destroy(&w->pool);
    for (uint32_t i = 0; i < WORLD_STREAMS; i++)
        bp_stream_destroy(&w->streams[i]);
    bp_device_destroy(&w->device);
    free(w->ids);
}

/* ---- work on them ------------------------------------------------------------------------------------------------ */

work work_on(const pool_fixture *w, int two_streams)
{
    return (work){w->pool, w->ids, 8, 1, w->streams[0], w->streams[two_streams ? 1 : 0]};
}

void run_pairs(void *user, size_t pairs)
{
    const work k = *(const work *)user;
    void *addresses[8];
    for (size_t i = 0; i < pairs; i++) {
        const uint32_t *ids = k.ids + (i & (k.arrays - 1)) * k.each;
        must(bp_pool_acquire(k.pool, ids, k.each, k.acquiring, addresses));
        must(bp_pool_release(k.pool, ids, k.each, k.releasing));
    }
}

void expect(const pool_fixture *w, const work *k, uint64_t records, uint64_t waits)
{
    work once = *k;
    bp_pool_statistics before = {.size = sizeof before}, after = {.size = sizeof after};
    run_pairs(&once, 64);
    must(bp_pool_statistics_get(w->pool, &before));
    run_pairs(&once, 64);
    must(bp_pool_statistics_get(w->pool, &after));
    if (after.records - before.records == 64 * records && after.waits - before.waits == 64 * waits)
        return;
    fprintf(stderr, "bench: a pair takes %g records and %g waits\n", (double)(after.records - before.records) / 64,
            (double)(after.waits - before.waits) / 64);
    exit(1);
}
