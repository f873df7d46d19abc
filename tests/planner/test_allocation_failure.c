/* SPDX-License-Identifier: Apache-2.0 */
/* Fails each allocation between configuration and plan in turn. The call must return the error, write no output, leak nothing (address
 * sanitizer) and leave its inputs usable.
 *
 * Linked with support/shortage.c against the static library. */
#include "support/harness.h"

#include <bucketpool/whatif.h>

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "planner/model/arch_config.h"
#include "planner/plan.h"
#include "support/shortage.h"

static bp_status find_value(void *context, const char *key, size_t length, bp_arch_entry *entry, bool *found)
{
    (void)context;
    static const struct {
        const char *key;
        int64_t value;
    } values[] = {{"hidden_size", 64},        {"intermediate_size", 256}, {"num_hidden_layers", 2},
                  {"num_attention_heads", 8}, {"num_key_value_heads", 4}, {"vocab_size", 1000},
                  {"tie_word_embeddings", 0}};
    *found = strlen("model_type") == length && memcmp(key, "model_type", length) == 0;
    if (*found)
        entry->value = (bp_value){.kind = BP_VALUE_TEXT, .text = "llama", .length = strlen("llama")};
    for (size_t i = 0; !*found && i < sizeof values / sizeof *values; i++) {
        *found = strlen(values[i].key) == length && memcmp(key, values[i].key, length) == 0;
        entry->value = (bp_value){.kind = BP_VALUE_INT, .number = values[i].value};
    }
    return BP_OK;
}

static void copy_plan(const bp_plan *plan)
{
    char before[BP_FINGERPRINT_CHARS], after[BP_FINGERPRINT_CHARS];
    SCOPED(bp_plan_destroy) bp_plan *again = NULL;
    FAIL_EACH_OUT(again, bp_plan_from_info(bp_plan_get_info(plan), &again));
    assert_ok(bp_plan_fingerprint(plan, before));
    assert_ok(bp_plan_fingerprint(again, after));
    assert_string_equal(before, after);
}

static void plan_all(const bp_buckets *buckets, const bp_schedule *schedule)
{
    for (int policy = BP_POLICY_DYNAMIC; policy <= BP_POLICY_SCHEDULED; policy++) {
        for (uint32_t copies = 0; copies <= 1; copies++) {
            bp_plan_config config;
            assert_ok(bp_plan_config_init(&config, sizeof config));
            config.policy = (bp_policy)policy;
            config.copies = copies; /* with 1 the plans are infeasible and have a reason */
            config.fallback = copies == 0 ? BP_FALLBACK_PERSISTENT : BP_FALLBACK_DYNAMIC;
            config.joint = copies; /* of scheduled plans */
            config.work = 1 << 16;
            SCOPED(bp_plan_destroy) bp_plan *plan = NULL;
            FAIL_EACH_OUT(plan, bp_plan_create(buckets, schedule, &config, &plan));
            FAIL_EACH(bp_plan_set_model(plan, "model"));
            FAIL_EACH(bp_plan_set_option(plan, "dp", "8"));
            FAIL_EACH(bp_plan_set_option(plan, "dp", "16"));
            FAIL_EACH(bp_plan_set_option(plan, "ep", "2"));
            FAIL_EACH(bp_plan_set_option(plan, "dp", NULL));
            char fingerprint[BP_FINGERPRINT_CHARS];
            FAIL_EACH(bp_plan_fingerprint(plan, fingerprint));
            copy_plan(plan);
            if (bp_plan_get_info(plan)->feasible && bp_plan_get_info(plan)->stable)
                FAIL_EACH(bp_plan_check(plan, buckets, schedule));
        }
    }
}

/* Merged schedules and other copies of a schedule. */
static void remake_all(const bp_buckets *buckets, const bp_schedule *schedule)
{
    const bp_schedule *schedules[] = {schedule, schedule};
    bp_schedule *merged;
    FAIL_EACH_OUT(merged, bp_schedule_create_merged(schedules, 2, &merged));
    bp_schedule_destroy(&merged);
    const bp_buckets *parts[] = {buckets, buckets};
    static const char *const names[] = {"policy", "reference"};
    SCOPED(bp_buckets_destroy) bp_buckets *both = NULL;
    FAIL_EACH_OUT(both, bp_buckets_create_merged(parts, names, 2, &both));
    SCOPED(bp_schedule_destroy) bp_schedule *of_part = NULL;
    FAIL_EACH_OUT(of_part, bp_schedule_create_embedded(schedule, both, 1, &of_part));
}

/* Alternatives and peaks. */
static void compare_all(const bp_buckets *buckets, const bp_schedule *schedule, const bp_schedule_config *timing)
{
    bp_plan_config config;
    bp_alternatives_config others;
    assert_ok(bp_plan_config_init(&config, sizeof config));
    assert_ok(bp_alternatives_config_init(&others, sizeof others));
    config.work = others.work = 1000;
    others.max_prefetch = 0;
    bp_alternatives *alternatives;
    FAIL_EACH_OUT(alternatives, bp_alternatives_create(buckets, timing, &config, &others, &alternatives));
    bp_alternatives_destroy(&alternatives);
    SCOPED(bp_plan_destroy) bp_plan *plan = NULL;
    SCOPED(bp_peaks_destroy) bp_peaks *peaks = NULL;
    config.policy = BP_POLICY_SCHEDULED;
    FAIL_EACH_OUT(plan, bp_plan_create(buckets, schedule, &config, &plan));
    FAIL_EACH_OUT(peaks, bp_peaks_create(buckets, schedule, plan, &peaks));
}

static void schedule_all(const bp_buckets *buckets)
{
    bp_schedule_config config;
    assert_ok(bp_schedule_config_init(&config, sizeof config));
    SCOPED(bp_schedule_destroy) bp_schedule *schedule = NULL;
    FAIL_EACH_OUT(schedule, bp_schedule_create_training(buckets, &config, &schedule));
    plan_all(buckets, schedule);
    remake_all(buckets, schedule);
    if (bp_buckets_get_info(buckets)->unit_count <= 2) /* more would take long */
        compare_all(buckets, schedule, &config);
    bp_schedule_destroy(&schedule);
    const bp_unit_prefetch override = {0, 3, 2};
    config.passes = BP_PASSES_BOTH;
    config.streams = BP_STREAMS_UNIFIED;
    config.microbatches = 2;
    config.combined = 1;
    config.overrides = &override;
    config.override_count = 1;
    FAIL_EACH_OUT(schedule, bp_schedule_create_training(buckets, &config, &schedule));
}

static void record_with_window(const bp_model *model, const bp_buckets *buckets)
{
    bp_recorded_config config;
    assert_ok(bp_recorded_config_init(&config, sizeof config));
    config.overlap_window = 2;
    SCOPED(bp_schedule_destroy) bp_schedule *schedule = NULL;
    FAIL_EACH_OUT(schedule, bp_schedule_create_recorded(model, buckets, &config, &schedule));
    assert_true(bp_schedule_get_info(schedule)->overlap_count > 0);
    remake_all(buckets, schedule);
}

/* Every bucketing and padding, with plans for one of them. Unsupported combinations may fail before or after allocating. */
static void bucket_all(const bp_model *model, bp_bucketing only)
{
    size_t made = 0;
    for (int bucketing = BP_BUCKETING_MEGATRON; bucketing <= BP_BUCKETING_GIVEN; bucketing++) {
        for (int padding = BP_PADDING_MEGATRON_LCM; padding <= BP_PADDING_FSDP2_SHARD1; padding++) {
            bp_buckets_config config;
            assert_ok(bp_buckets_config_init(&config, sizeof config));
            config.bucketing = (bp_bucketing)bucketing;
            config.padding = (bp_padding)padding;
            config.dp = 4;
            config.roles = BP_ROLE_BIT(BP_ROLE_PARAM) | BP_ROLE_BIT(BP_ROLE_GRAD) | BP_ROLES_STATE;
            SCOPED(bp_buckets_destroy) bp_buckets *buckets = NULL;
            if (bp_buckets_create(model, &config, &buckets) != BP_OK)
                continue;
            bp_buckets_destroy(&buckets);
            made++;
            FAIL_EACH_OUT(buckets, bp_buckets_create(model, &config, &buckets));
            if (bucketing == (int)only && padding == BP_PADDING_MEGATRON_LCM)
                schedule_all(buckets);
            if (bucketing == BP_BUCKETING_FSDP2 && padding == BP_PADDING_FSDP2) {
                SCOPED(bp_schedule_destroy) bp_schedule *schedule = NULL;
                FAIL_EACH_OUT(schedule, bp_schedule_create_training(buckets, NULL, &schedule));
            }
        }
    }
    assert_true(made >= 5);
}

TEST(test_architecture)
{
    const bp_arch_config config = {find_value, NULL};
    SCOPED(bp_model_destroy) bp_model *model = NULL, *laid_out = NULL, *shard = NULL;
    FAIL_EACH_OUT(model, bp_model_from_architecture("tiny", &config, BP_DTYPE_BF16, &model));
    assert_int_equal(bp_model_get_info(model)->unit_count, 2);
    FAIL_EACH_OUT(laid_out, bp_model_with_layout(model, BP_LAYOUT_STACKED, &laid_out));
    bp_model_destroy(&laid_out);
    FAIL_EACH_OUT(laid_out, bp_model_with_layout(model, BP_LAYOUT_MEGATRON, &laid_out));
    FAIL_EACH_OUT(shard, bp_model_shard(laid_out, 2, 1, &shard));
    FAIL_EACH(bp_model_validate(shard));
    bucket_all(shard, BP_BUCKETING_MEGATRON);
}

/* Nested and repeated units, given buckets and events: features that architecture tables do not use. */
TEST(test_hand_made)
{
    SCOPED(bp_model_destroy) bp_model *model = NULL;
    FAIL_EACH_OUT(model, bp_model_create("hand-made", &model));
    uint32_t order[20], unit = 0;
    for (uint32_t u = 0; u < 10; u++) {
        char name[16];
        snprintf(name, sizeof name, "unit.%u", u);
        FAIL_EACH(bp_model_add_unit(model, name, BP_OUTSIDE, &unit));
        assert_int_equal(unit, u);
        order[u] = order[19 - u] = u;
        for (uint32_t b = 0; b <= u % 3; b++) {
            snprintf(name, sizeof name, "bucket.%u", b);
            bp_given_bucket bucket = {.size = sizeof bucket,
                                      .name = b == 0 ? NULL : name,
                                      .unit = (int32_t)u,
                                      .dtype = b == 1 ? BP_DTYPE_FP32 : BP_DTYPE_BF16,
                                      .numel = 100 + 10 * u + b};
            FAIL_EACH(bp_model_add_bucket(model, &bucket));
        }
    }
    FAIL_EACH(bp_model_add_unit(model, "unit.9.inner", 9, &unit));
    bp_given_bucket bucket = {.size = sizeof bucket, .unit = 10, .dtype = BP_DTYPE_FP16, .numel = 5};
    FAIL_EACH(bp_model_add_bucket(model, &bucket));
    bp_parameter parameter;
    assert_ok(bp_parameter_init(&parameter, sizeof parameter));
    parameter.name = "embedding";
    parameter.dtype = BP_DTYPE_BF16;
    parameter.dims = 1;
    parameter.shape[0] = 10;
    FAIL_EACH(bp_model_add_parameter(model, &parameter));
    /* Each unit is acquired while the previous one is live. */
    for (int32_t i = 0; i < 12; i++) {
        bp_model_event event = {.size = sizeof event,
                                .acquire = 1,
                                .unit = i,
                                .bucket = -1,
                                .role = BP_ROLE_PARAM,
                                .lane = BP_MODEL_EVENT_NO_LANE};
        if (i < 11)
            FAIL_EACH(bp_model_add_event(model, &event));
        event.acquire = 0;
        event.unit = i - 1;
        if (i > 0)
            FAIL_EACH(bp_model_add_event(model, &event));
    }
    FAIL_EACH(bp_model_set_order(model, order, 20));
    FAIL_EACH(bp_model_validate(model));
    assert_int_equal(bp_model_get_info(model)->unit_count, 11);
    assert_int_equal(bp_model_get_info(model)->given_bucket_count, 20);
    assert_int_equal(bp_model_get_info(model)->event_count, 22);
    assert_int_equal(bp_model_get_info(model)->parameter_count, 1);
    uint64_t numel = 5 + 10;
    for (uint32_t u = 0; u < 10; u++)
        for (uint32_t b = 0; b <= u % 3; b++)
            numel += 100 + 10 * u + b;
    assert_int_equal(bp_model_get_info(model)->numel, numel);
    bucket_all(model, BP_BUCKETING_GIVEN);

    bp_buckets_config config;
    assert_ok(bp_buckets_config_init(&config, sizeof config));
    config.bucketing = BP_BUCKETING_GIVEN;
    config.roles = BP_ROLE_BIT(BP_ROLE_PARAM);
    SCOPED(bp_buckets_destroy) bp_buckets *buckets = NULL;
    FAIL_EACH_OUT(buckets, bp_buckets_create(model, &config, &buckets));
    bp_schedule *schedule;
    FAIL_EACH_OUT(schedule, bp_schedule_create_recorded(model, buckets, NULL, &schedule));
    plan_all(buckets, schedule);
    bp_schedule_destroy(&schedule);
    record_with_window(model, buckets);
}

/* Different units, live in pairs that form odd cycles: copies need the exact search. */
TEST(test_odd_cycle)
{
    SCOPED(bp_model_destroy) bp_model *model = NULL;
    FAIL_EACH_OUT(model, bp_model_create("cycle", &model));
    for (uint32_t u = 0; u < 6; u++) {
        char name[16];
        snprintf(name, sizeof name, "unit.%u", u);
        FAIL_EACH(bp_model_add_unit(model, name, BP_OUTSIDE, NULL));
        bp_given_bucket bucket = {.size = sizeof bucket, .unit = (int32_t)u, .dtype = BP_DTYPE_BF16, .numel = 100 + u};
        FAIL_EACH(bp_model_add_bucket(model, &bucket));
    }
    /* A greedy pass over 0, 1, 2 .. gives the ends 0 and 1 of the path 0-2-3-1 one copy, and 3 then needs a third. */
    static const int8_t pairs[][2] = {{0, 2}, {2, 3}, {3, 1}, {4, 5}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        for (int k = 0; k < 4; k++) {
            bp_model_event event = {.size = sizeof event,
                                    .acquire = k < 2,
                                    .unit = pairs[i][k % 2],
                                    .bucket = -1,
                                    .role = BP_ROLE_PARAM,
                                    .lane = BP_MODEL_EVENT_NO_LANE};
            FAIL_EACH(bp_model_add_event(model, &event));
        }
    }
    bp_buckets_config config;
    assert_ok(bp_buckets_config_init(&config, sizeof config));
    config.bucketing = BP_BUCKETING_GIVEN;
    config.roles = BP_ROLE_BIT(BP_ROLE_PARAM);
    SCOPED(bp_buckets_destroy) bp_buckets *buckets = NULL;
    FAIL_EACH_OUT(buckets, bp_buckets_create(model, &config, &buckets));
    SCOPED(bp_schedule_destroy) bp_schedule *schedule = NULL;
    FAIL_EACH_OUT(schedule, bp_schedule_create_recorded(model, buckets, NULL, &schedule));
    plan_all(buckets, schedule);
}

/* Guards against a build in which the wraps are not linked. */
TEST(test_failures_happened)
{
    assert_true(shortage.failures > 1000);
}

TESTS(NULL, NULL)
