/* SPDX-License-Identifier: Apache-2.0 */
/* Models, buckets, schedules and plans of the planner tests. */
#include "support/harness.h"

#include <bucketpool/plan.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "planner/plan.h"
#include "scenarios.h"

const scenario_options DEFAULTS = {.roles = PARAM | GRAD, .prefetch = 1, .grad_units = 2};
const scenario_options PARAM_ONLY = {.roles = PARAM, .prefetch = 1, .grad_units = 2};

/* xorshift64* */
static uint64_t random_state;

uint32_t random_below(uint32_t limit)
{
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return (uint32_t)((random_state * UINT64_C(0x2545F4914F6CDD1D) >> 32) % limit);
}

void seed(uint64_t value)
{
    random_state = value * UINT64_C(0x9E3779B97F4A7C15) + 1;
}

bp_model *new_model(void)
{
    bp_model *model = NULL;
    assert_ok(bp_model_create("hand-made", &model));
    return model;
}

int32_t add_unit(bp_model *model, const char *name, int32_t parent)
{
    uint32_t unit;
    assert_ok(bp_model_add_unit(model, name, parent, &unit));
    return (int32_t)unit;
}

int32_t add_numbered_unit(bp_model *model, uint32_t number)
{
    char name[16];
    snprintf(name, sizeof name, "u%u", number);
    return add_unit(model, name, BP_OUTSIDE);
}

void add_bucket(bp_model *model, int32_t unit, bp_dtype dtype, uint64_t numel, uint64_t padded_numel)
{
    bp_given_bucket bucket = {
        .size = sizeof bucket, .unit = unit, .dtype = dtype, .numel = numel, .padded_numel = padded_numel};
    assert_ok(bp_model_add_bucket(model, &bucket));
}

bp_status try_event(bp_model *model, uint32_t acquire, int32_t unit, int32_t bucket)
{
    bp_model_event event = {.size = sizeof event,
                            .acquire = acquire,
                            .unit = unit,
                            .bucket = bucket,
                            .role = BP_ROLE_PARAM,
                            .lane = BP_MODEL_EVENT_NO_LANE};
    return bp_model_add_event(model, &event);
}

void add_event(bp_model *model, uint32_t acquire, int32_t unit, int32_t bucket)
{
    assert_ok(try_event(model, acquire, unit, bucket));
}

bp_model *random_model(uint32_t units)
{
    static const bp_dtype dtypes[] = {BP_DTYPE_BF16, BP_DTYPE_FP32};
    static const uint64_t sizes[] = {100, 300};
    bp_model *model = new_model();
    for (uint32_t u = 0; u < units; u++) {
        int32_t unit = add_numbered_unit(model, u);
        for (uint32_t buckets = 1 + random_below(3); buckets > 0; buckets--) {
            uint64_t numel = sizes[random_below(2)];
            add_bucket(model, unit, dtypes[random_below(2)], numel, numel + (random_below(3) == 0 ? 256 : 0));
        }
    }
    return model;
}

void record_randomly(bp_model *model, bool by_bucket)
{
    size_t requests = 0;
    int32_t unit_of[MAX_REQUESTS], bucket_of[MAX_REQUESTS];
    bool live[MAX_REQUESTS] = {false}, used[MAX_REQUESTS] = {false};
    for (int32_t u = 0; u < (int32_t)bp_model_get_info(model)->unit_count; u++) {
        int32_t ordinal = 0;
        for (size_t b = 0; b < bp_model_get_info(model)->given_bucket_count; b++) {
            bp_given_bucket bucket = *bp_model_get_info(model)->given_buckets[b];
            if (bucket.unit != u || (!by_bucket && ordinal > 0))
                continue;
            unit_of[requests] = u;
            bucket_of[requests++] = by_bucket ? ordinal++ : (ordinal++, -1);
        }
    }
    for (size_t events = 3 * requests + random_below(8); events > 0; events--) {
        size_t i = random_below((uint32_t)requests);
        live[i] = !live[i];
        used[i] = true;
        add_event(model, live[i], unit_of[i], bucket_of[i]);
    }
    for (size_t i = 0; i < requests; i++) {
        if (!used[i])
            add_event(model, live[i] = true, unit_of[i], bucket_of[i]);
        if (live[i])
            add_event(model, 0, unit_of[i], bucket_of[i]);
    }
}

bp_model *make_mixed(void)
{
    bp_model *model = new_model();
    for (uint32_t u = 0; u < 6; u++) {
        int32_t unit = add_numbered_unit(model, u);
        add_bucket(model, unit, BP_DTYPE_BF16, 900 + 100 * (u % 2), 1024 + 128 * (u % 3));
        if (u % 3 == 0)
            add_bucket(model, unit, BP_DTYPE_FP32, 50, 64);
        if (u % 2 == 0)
            add_bucket(model, unit, BP_DTYPE_BF16, 3000, 4096);
        add_bucket(model, unit, BP_DTYPE_BF16, 0, 0);
    }
    add_bucket(model, BP_OUTSIDE, BP_DTYPE_BF16, 100000, 0);
    return model;
}

bp_model *make_fp8(void)
{
    bp_model *model = new_model();
    for (uint32_t u = 0; u < 5; u++) {
        int32_t unit = add_numbered_unit(model, u);
        add_bucket(model, unit, u == 3 ? BP_DTYPE_FP8_E5M2 : BP_DTYPE_FP8_E4M3, 4000 + u, 4352);
        add_bucket(model, unit, BP_DTYPE_BF16, 64, 0);
    }
    return model;
}

scenario make_scenario(bp_model *model, scenario_options options)
{
    scenario s = {.model = model};
    bp_buckets_config config;
    assert_ok(bp_buckets_config_init(&config, sizeof config));
    config.bucketing = BP_BUCKETING_GIVEN;
    config.padding = BP_PADDING_GIVEN;
    config.dp = 1; /* a shard is the whole bucket */
    config.roles = options.roles;
    config.grad_dtype = options.grad_dtype;
    config.grad_comm_dtype = options.grad_comm_dtype;
    assert_ok(bp_buckets_create(model, &config, &s.buckets));
    if (options.recorded) {
        assert_ok(bp_schedule_create_recorded(model, s.buckets, NULL, &s.schedule));
        return s;
    }
    bp_schedule_config timing;
    assert_ok(bp_schedule_config_init(&timing, sizeof timing));
    timing.prefetch = options.prefetch;
    timing.grad_units = options.grad_units;
    timing.passes = options.eval ? BP_PASSES_EVAL : BP_PASSES_TRAIN;
    assert_ok(bp_schedule_create_training(s.buckets, &timing, &s.schedule));
    return s;
}

void free_scenario(scenario *s)
{
    bp_schedule_destroy(&s->schedule);
    bp_buckets_destroy(&s->buckets);
    bp_model_destroy(&s->model);
}

const bp_interval *intervals_of(const bp_schedule *schedule, size_t request, size_t *count)
{
    const bp_schedule_info *info = bp_schedule_get_info(schedule);
    assert_true(request < info->request_count);
    *count = info->requests[request].interval_count;
    return info->requests[request].intervals;
}

bool requests_conflict(const bp_schedule *schedule, size_t a, size_t b)
{
    size_t count[2];
    const bp_interval *x = intervals_of(schedule, a, &count[0]);
    const bp_interval *y = intervals_of(schedule, b, &count[1]);
    for (size_t i = 0; i < count[0]; i++)
        for (size_t k = 0; k < count[1]; k++)
            if (x[i].begin < y[k].end && y[k].begin < x[i].end)
                return true;
    return false;
}

scenario scenario_of_kinds(const char *kinds)
{
    bp_model *model = new_model();
    for (uint32_t u = 0; kinds[u] != '\0'; u++)
        add_bucket(model, add_numbered_unit(model, u), BP_DTYPE_FP32, 100 * (uint64_t)(kinds[u] - 'x' + 1), 0);
    return make_scenario(model, PARAM_ONLY);
}

bp_plan_config plan_config(bp_policy policy, uint32_t copies, bp_fallback fallback)
{
    bp_plan_config config;
    assert_ok(bp_plan_config_init(&config, sizeof config));
    assert_int_equal(config.alignment, ALIGNMENT);
    config.policy = policy;
    config.copies = copies;
    config.fallback = fallback;
    return config;
}

bp_plan *make_plan(const scenario *s, bp_policy policy, uint32_t copies, bp_fallback fallback)
{
    bp_plan_config config = plan_config(policy, copies, fallback);
    bp_plan *plan = NULL;
    assert_ok(bp_plan_create(s->buckets, s->schedule, &config, &plan));
    return plan;
}

bp_plan *make_max(const scenario *s, uint32_t copies)
{
    return make_plan(s, BP_POLICY_MAX, copies, BP_FALLBACK_PERSISTENT);
}

uint64_t aligned(uint64_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static void *copy_array(const void *array, size_t count, size_t element_bytes)
{
    void *copy = malloc(count * element_bytes + 1);
    assert_non_null(copy);
    if (count > 0)
        memcpy(copy, array, count * element_bytes);
    return copy;
}

contents copy_contents(const bp_plan *plan)
{
    contents c = {.info = *bp_plan_get_info(plan)};
    c.info.requests = c.requests = copy_array(c.info.requests, c.info.request_count, sizeof *c.requests);
    c.info.slabs = c.slabs = copy_array(c.info.slabs, c.info.slab_count, sizeof *c.slabs);
    c.info.classes = c.classes = copy_array(c.info.classes, c.info.class_count, sizeof *c.classes);
    return c;
}

void free_contents(contents *c)
{
    free(c->requests);
    free(c->slabs);
    free(c->classes);
}

bp_plan *copy_plan(const bp_plan *plan)
{
    bp_plan *copy = NULL;
    assert_ok(bp_plan_from_info(bp_plan_get_info(plan), &copy));
    return copy;
}
