/* SPDX-License-Identifier: Apache-2.0 */
/* Takes turns between training and generation on one device: before generating, the optimizer's state goes to the
 * host and memory whose bytes are of no use is unmapped; afterwards everything is back at the same addresses, and
 * every byte is checked. docs/guides/offload.md goes through it. */
#include <bucketpool/bucketpool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define UNITS 4
#define NUMEL (1u << 20)
#define ROUNDS 3
#define MAX_REQUESTS 64

static void check(bp_status status)
{
    if (status == BP_OK)
        return;
    fprintf(stderr, "%s: %s\n", bp_status_name(status), bp_error_detail());
    exit(1);
}

/* UNITS layers of one bucket each, with the state that an optimizer needs for them. */
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
    buckets_config.dp = 2;
    buckets_config.roles = BP_ROLE_BIT(BP_ROLE_PARAM) | BP_ROLE_BIT(BP_ROLE_GRAD) | BP_ROLES_STATE;
    check(bp_model_create("phases", &model));
    for (int32_t u = 0; u < UNITS; u++) {
        char name[16];
        uint32_t unit;
        snprintf(name, sizeof name, "layers.%d", u);
        check(bp_model_add_unit(model, name, BP_OUTSIDE, &unit));
        check(bp_model_add_bucket(
            model,
            &(bp_given_bucket){.size = sizeof(bp_given_bucket), .unit = u, .dtype = BP_DTYPE_BF16, .numel = NUMEL}));
    }
    check(bp_buckets_create(model, &buckets_config, buckets));
    check(bp_schedule_create_training(*buckets, &schedule_config, &schedule));
    check(bp_plan_create(*buckets, schedule, &plan_config, &plan));
    bp_schedule_destroy(&schedule);
    bp_model_destroy(&model);
    return plan;
}

typedef struct trainer {
    bp_device *device;
    bp_pool *pool;
    bp_offload *offload;
    bp_stream *compute;
    uint32_t state[MAX_REQUESTS]; /* requests that live as long as training does */
    uint32_t state_count;
} trainer;

static uint64_t device_bytes(const trainer *t)
{
    bp_device_usage usage = {.size = sizeof usage};
    check(bp_device_usage_get(t->device, &usage));
    return usage.committed_bytes;
}

static void start(trainer *t)
{
    bp_buckets *buckets;
    bp_plan *plan = make_plan(&buckets);
    check(bp_device_create_host(NULL, &t->device));
    check(bp_stream_create(t->device, "compute", &t->compute));
    check(bp_pool_create(t->device, plan, NULL, &t->pool));
    const bp_plan_info *info = bp_plan_get_info(plan);
    for (uint32_t id = 0; id < info->request_count; id++) {
        if ((BP_ROLES_STATE & BP_ROLE_BIT(info->requests[id].role)) != 0)
            t->state[t->state_count++] = id;
    }
    check(bp_pool_acquire(t->pool, t->state, t->state_count, t->compute, NULL));
    check(bp_offload_create(t->pool, NULL, &t->offload));
    bp_plan_destroy(&plan);
    bp_buckets_destroy(&buckets);
}

/* A step writes other bytes into each state buffer. */
static void train(const trainer *t, int round)
{
    for (uint32_t i = 0; i < t->state_count; i++) {
        void *address;
        uint64_t bytes;
        check(bp_pool_address(t->pool, t->state[i], &address, &bytes));
        check(bp_stream_fill(t->compute, address, (uint8_t)(16 * round + (int)i + 1), bytes));
    }
}

static void check_bytes(const trainer *t, int round)
{
    check(bp_stream_synchronize(t->compute));
    for (uint32_t i = 0; i < t->state_count; i++) {
        const bp_plan_request *request = &bp_pool_get_info(t->pool)->requests[t->state[i]];
        void *address;
        uint64_t bytes;
        check(bp_pool_address(t->pool, t->state[i], &address, &bytes));
        const uint8_t expected = request->role == BP_ROLE_MAIN_GRAD ? 0 : (uint8_t)(16 * round + (int)i + 1);
        for (uint64_t at = 0; at < bytes; at++) {
            if (((const uint8_t *)address)[at] == expected)
                continue;
            fprintf(stderr, "%s of %s is wrong at byte %llu\n", bp_role_name((bp_role)request->role), request->unit,
                    (unsigned long long)at);
            exit(1);
        }
    }
}

static const struct {
    const char *group;
    uint32_t flags;
} away[] = {{"optimizer", BP_OFFLOAD_KEEP},
            {"main_grad", BP_OFFLOAD_DISCARD},
            {"grad", BP_OFFLOAD_DISCARD},
            {"param", BP_OFFLOAD_DISCARD}};
#define AWAY (sizeof away / sizeof *away)

/* The shards of the parameters stay, for the weights that generation needs. */
static void make_room(const trainer *t)
{
    for (size_t i = 0; i < AWAY; i++)
        check(bp_offload_begin(t->offload, away[i].group, away[i].flags));
    for (size_t i = 0; i < AWAY; i++)
        check(bp_offload_finish(t->offload, away[i].group));
}

static void come_back(const trainer *t)
{
    for (size_t i = 0; i < AWAY; i++)
        check(bp_restore_begin(t->offload, away[i].group, BP_RESTORE_ZERO));
    for (size_t i = 0; i < AWAY; i++)
        check(bp_restore_finish(t->offload, away[i].group));
}

int main(void)
{
    trainer t = {0};
    start(&t);
    for (int round = 0; round < ROUNDS; round++) {
        const uint64_t training = device_bytes(&t);
        train(&t, round);
        make_room(&t);
        printf("round %d: %llu bytes while training, %llu while generating\n", round, (unsigned long long)training,
               (unsigned long long)device_bytes(&t));
        come_back(&t);
        check_bytes(&t, round);
    }
    printf("every byte was right\n");
    bp_offload_destroy(&t.offload);
    bp_pool_destroy(&t.pool);
    bp_stream_destroy(&t.compute);
    bp_device_destroy(&t.device);
}
