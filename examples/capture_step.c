/* SPDX-License-Identifier: Apache-2.0 */
/* Captures a step that gathers layers through a pool into a CUDA graph, registers the pool's memory with a communicator, and replays the
 * graph with eager steps between. Needs a GPU; exits 77 without one. docs/guides/cuda_graphs.md goes through it. */
#include <bucketpool/bucketpool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define UNITS 4
#define BYTES 65536
#define STEPS 6

static void check(bp_status status)
{
    if (status == BP_OK)
        return;
    fprintf(stderr, "%s: %s\n", bp_status_name(status), bp_error_detail());
    exit(status == BP_ERR_NO_DEVICE ? 77 : 1);
}

/* UNITS layers of one bucket each, planned for one unit of prefetch. */
static bp_plan *make_plan(bp_buckets **buckets)
{
    bp_model *model;
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
    check(bp_model_create("captured", &model));
    for (int32_t u = 0; u < UNITS; u++) {
        char name[16];
        uint32_t unit;
        snprintf(name, sizeof name, "layers.%d", u);
        check(bp_model_add_unit(model, name, BP_OUTSIDE, &unit));
        check(bp_model_add_bucket(
            model, &(bp_given_bucket){
                       .size = sizeof(bp_given_bucket), .unit = u, .dtype = BP_DTYPE_BF16, .numel = BYTES / 2}));
    }
    check(bp_buckets_create(model, &buckets_config, buckets));
    check(bp_schedule_create_training(*buckets, &schedule_config, &schedule));
    check(bp_plan_create(*buckets, schedule, &plan_config, &plan));
    bp_schedule_destroy(&schedule);
    bp_model_destroy(&model);
    return plan;
}

typedef struct step {
    bp_pool *pool;
    bp_stream *gather, *compute;
    bp_event *gathered[UNITS], *fork, *join;
    uint8_t *shards, *results; /* page-locked host memory; inputs and outputs */
} step;

/* One step, eager or inside a capture: the calls are the same. */
static void run(const step *s)
{
    check(bp_event_record(s->fork, s->compute));
    check(bp_stream_wait(s->gather, s->fork));
    for (uint32_t u = 0; u < UNITS; u++) { /* the request of unit u is number u */
        void *address;
        check(bp_pool_acquire(s->pool, &u, 1, s->gather, &address));
        check(bp_stream_copy(s->gather, address, s->shards + (size_t)u * BYTES, BYTES)); /* the all-gather */
        check(bp_event_record(s->gathered[u], s->gather));
        check(bp_stream_wait(s->compute, s->gathered[u]));
        check(bp_stream_copy(s->compute, s->results + (size_t)u * BYTES, address, BYTES)); /* the layer */
        check(bp_pool_release(s->pool, &u, 1, s->compute));
    }
    check(bp_event_record(s->join, s->gather));
    check(bp_stream_wait(s->compute, s->join));
}

int main(void)
{
    bp_device *device;
    check(bp_device_create_cuda(NULL, &device));
    bp_buckets *buckets;
    bp_plan *plan = make_plan(&buckets);
    step s = {0};
    check(bp_pool_create(device, plan, NULL, &s.pool));
    check(bp_stream_create(device, "gather", &s.gather));
    check(bp_stream_create(device, "compute", &s.compute));
    for (int u = 0; u < UNITS; u++)
        check(bp_event_create(device, &s.gathered[u]));
    check(bp_event_create(device, &s.fork));
    check(bp_event_create(device, &s.join));
    s.shards = aligned_alloc((size_t)sysconf(_SC_PAGESIZE), 2 * UNITS * BYTES);
    if (s.shards == NULL)
        return 1;
    s.results = s.shards + UNITS * BYTES;
    check(bp_device_pin(device, s.shards, 2 * UNITS * BYTES));

    /* windows before graphs: their addresses become part of captured collectives. A runtime wraps its NCCL communicator (nccl.h) */
    bp_comm *comm;
    bp_registration *registration;
    bp_registration_entry entry;
    check(bp_comm_create_self(&comm));
    check(bp_registration_entry_init(&entry, sizeof entry));
    entry.comm = comm;
    check(bp_registration_create(s.pool, &entry, 1, &registration));
    char report[2048];
    size_t needed;
    check(bp_registration_report(registration, report, sizeof report, &needed));
    printf("%s", report);

    bp_capture *capture;
    bp_graph *graph;
    check(bp_capture_begin(s.pool, NULL, &capture));
    check(bp_graph_begin(s.compute));
    run(&s);
    check(bp_graph_end(s.compute, &graph));
    check(bp_capture_end(capture));

    int wrong = 0;
    for (int n = 0; n < STEPS; n++) {
        memset(s.shards, n + 1, UNITS * BYTES);
        if (n % 3 == 0) {
            run(&s);
        } else {
            check(bp_capture_before_launch(capture, s.compute));
            check(bp_graph_launch(graph, s.compute));
            check(bp_capture_launched(capture, s.compute));
        }
        check(bp_stream_synchronize(s.compute));
        wrong += memcmp(s.shards, s.results, UNITS * BYTES) != 0;
    }
    const bp_capture_info summary = *bp_capture_get_info(capture);
    printf("%d steps, %llu of them launches of a graph with %llu acquires; %d wrong\n", STEPS,
           (unsigned long long)summary.launches, (unsigned long long)summary.acquires, wrong);

    bp_graph_destroy(&graph);
    bp_capture_destroy(&capture);
    bp_registration_destroy(&registration);
    bp_comm_destroy(&comm);
    check(bp_device_unpin(device, s.shards, 2 * UNITS * BYTES));
    free(s.shards);
    bp_event_destroy(&s.join);
    bp_event_destroy(&s.fork);
    for (int u = 0; u < UNITS; u++)
        bp_event_destroy(&s.gathered[u]);
    bp_stream_destroy(&s.compute);
    bp_stream_destroy(&s.gather);
    bp_pool_destroy(&s.pool);
    bp_plan_destroy(&plan);
    bp_buckets_destroy(&buckets);
    bp_device_destroy(&device);
    return wrong > 0;
}
