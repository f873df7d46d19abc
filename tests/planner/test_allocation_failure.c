/* Fails each allocation between configuration and plan in turn. The call must return the error, write no output, leak nothing (address
 * sanitizer) and leave its inputs usable.
 *
 * Linked with -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=strdup against the static library. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <bucketpool/whatif.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "planner/model/arch_config.h"
#include "planner/plan.h"

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *memory, size_t bytes);
char *__real_strdup(const char *text);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);
char *__wrap_strdup(const char *text);

static size_t until_failure; /* 0: no failure; 1: the next allocation fails */
static bool keeps_failing;   /* all later allocations fail, too */
static bool has_failed;
static size_t failures; /* injected so far */

static bool fails(void)
{
    if (has_failed && keeps_failing)
        return true;
    if (until_failure == 0 || --until_failure > 0)
        return false;
    has_failed = true;
    return true;
}

void *__wrap_malloc(size_t bytes)
{
    return fails() ? NULL : __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    return fails() ? NULL : __real_calloc(count, bytes);
}

void *__wrap_realloc(void *memory, size_t bytes)
{
    return fails() ? NULL : __real_realloc(memory, bytes);
}

char *__wrap_strdup(const char *text)
{
    return fails() ? NULL : __real_strdup(text);
}

static void start_failing(size_t nth, bool keep)
{
    has_failed = false;
    keeps_failing = keep;
    until_failure = nth;
}

/* Stops injecting; true if an allocation failed since the start. */
static bool stop_failing(void)
{
    bool failed = has_failed;
    has_failed = false;
    until_failure = 0;
    failures += failed;
    return failed;
}

static void assert_status(bp_status status, bool failed, const char *call, int line)
{
    if (status == (failed ? BP_ERR_NO_HOST_MEMORY : BP_OK))
        return;
    print_error("%s: an allocation %s, status \"%s\": %s\n", call, failed ? "failed" : "did not fail",
                bp_status_name(status), bp_error_detail());
    _fail(__FILE__, line);
}

/* Repeats the call, each time with a later failure, until no allocation fails: first single failures, then with all later ones. */
#define RETRY(call)                                                                                                    \
    do {                                                                                                               \
        bool failed = true;                                                                                            \
        for (size_t nth = 1; failed; nth++) {                                                                          \
            start_failing((nth + 1) / 2, nth % 2 == 0);                                                                \
            bp_status status = (call);                                                                                 \
            failed = stop_failing();                                                                                   \
            assert_status(status, failed, #call, __LINE__);                                                            \
        }                                                                                                              \
    } while (0)

/* The same for a call that creates `out`, which must not change on failure. */
#define RETRY_OUT(out, call)                                                                                           \
    do {                                                                                                               \
        bool failed = true;                                                                                            \
        for (size_t nth = 1; failed; nth++) {                                                                          \
            (out) = (void *)&failed;                                                                                   \
            start_failing((nth + 1) / 2, nth % 2 == 0);                                                                \
            bp_status status = (call);                                                                                 \
            failed = stop_failing();                                                                                   \
            assert_status(status, failed, #call, __LINE__);                                                            \
            assert_int_equal((void *)(out) == (void *)&failed, failed);                                                \
        }                                                                                                              \
    } while (0)

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
    bp_plan *again;
    RETRY_OUT(again, bp_plan_from_info(bp_plan_get_info(plan), &again));
    assert_int_equal(bp_plan_fingerprint(plan, before), BP_OK);
    assert_int_equal(bp_plan_fingerprint(again, after), BP_OK);
    assert_string_equal(before, after);
    bp_plan_destroy(&again);
}

static void plan_all(const bp_buckets *buckets, const bp_schedule *schedule)
{
    for (int policy = BP_POLICY_DYNAMIC; policy <= BP_POLICY_SCHEDULED; policy++) {
        for (uint32_t copies = 0; copies <= 1; copies++) {
            bp_plan_config config;
            assert_int_equal(bp_plan_config_init(&config, sizeof config), BP_OK);
            config.policy = (bp_policy)policy;
            config.copies = copies; /* with 1 the plans are infeasible and have a reason */
            config.fallback = copies == 0 ? BP_FALLBACK_PERSISTENT : BP_FALLBACK_DYNAMIC;
            config.joint = copies; /* of scheduled plans */
            config.work = 1 << 16;
            bp_plan *plan;
            RETRY_OUT(plan, bp_plan_create(buckets, schedule, &config, &plan));
            RETRY(bp_plan_set_model(plan, "model"));
            RETRY(bp_plan_set_option(plan, "dp", "8"));
            RETRY(bp_plan_set_option(plan, "dp", "16"));
            RETRY(bp_plan_set_option(plan, "ep", "2"));
            RETRY(bp_plan_set_option(plan, "dp", NULL));
            char fingerprint[BP_FINGERPRINT_CHARS];
            RETRY(bp_plan_fingerprint(plan, fingerprint));
            copy_plan(plan);
            if (bp_plan_get_info(plan)->feasible && bp_plan_get_info(plan)->stable)
                RETRY(bp_plan_check(plan, buckets, schedule));
            bp_plan_destroy(&plan);
        }
    }
}

/* Merged schedules and other copies of a schedule. */
static void remake_all(const bp_buckets *buckets, const bp_schedule *schedule)
{
    const bp_schedule *schedules[] = {schedule, schedule};
    bp_schedule *merged;
    RETRY_OUT(merged, bp_schedule_create_merged(schedules, 2, &merged));
    bp_schedule_destroy(&merged);
    const bp_buckets *parts[] = {buckets, buckets};
    static const char *const names[] = {"policy", "reference"};
    bp_buckets *both;
    RETRY_OUT(both, bp_buckets_create_merged(parts, names, 2, &both));
    bp_schedule *of_part;
    RETRY_OUT(of_part, bp_schedule_create_embedded(schedule, both, 1, &of_part));
    bp_schedule_destroy(&of_part);
    bp_buckets_destroy(&both);
}

/* Alternatives and peaks. */
static void compare_all(const bp_buckets *buckets, const bp_schedule *schedule, const bp_schedule_config *timing)
{
    bp_plan_config config;
    bp_alternatives_config others;
    assert_int_equal(bp_plan_config_init(&config, sizeof config), BP_OK);
    assert_int_equal(bp_alternatives_config_init(&others, sizeof others), BP_OK);
    config.work = others.work = 1000;
    others.max_prefetch = 0;
    bp_alternatives *alternatives;
    RETRY_OUT(alternatives, bp_alternatives_create(buckets, timing, &config, &others, &alternatives));
    bp_alternatives_destroy(&alternatives);
    bp_plan *plan;
    bp_peaks *peaks;
    config.policy = BP_POLICY_SCHEDULED;
    RETRY_OUT(plan, bp_plan_create(buckets, schedule, &config, &plan));
    RETRY_OUT(peaks, bp_peaks_create(buckets, schedule, plan, &peaks));
    bp_peaks_destroy(&peaks);
    bp_plan_destroy(&plan);
}

static void schedule_all(const bp_buckets *buckets)
{
    bp_schedule_config config;
    assert_int_equal(bp_schedule_config_init(&config, sizeof config), BP_OK);
    bp_schedule *schedule;
    RETRY_OUT(schedule, bp_schedule_create_training(buckets, &config, &schedule));
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
    RETRY_OUT(schedule, bp_schedule_create_training(buckets, &config, &schedule));
    bp_schedule_destroy(&schedule);
}

static void record_with_window(const bp_model *model, const bp_buckets *buckets)
{
    bp_recorded_config config;
    assert_int_equal(bp_recorded_config_init(&config, sizeof config), BP_OK);
    config.overlap_window = 2;
    bp_schedule *schedule;
    RETRY_OUT(schedule, bp_schedule_create_recorded(model, buckets, &config, &schedule));
    assert_true(bp_schedule_get_info(schedule)->overlap_count > 0);
    remake_all(buckets, schedule);
    bp_schedule_destroy(&schedule);
}

/* Every bucketing and padding, with plans for one of them. Unsupported combinations may fail before or after allocating. */
static void bucket_all(const bp_model *model, bp_bucketing only)
{
    size_t made = 0;
    for (int bucketing = BP_BUCKETING_MEGATRON; bucketing <= BP_BUCKETING_GIVEN; bucketing++) {
        for (int padding = BP_PADDING_MEGATRON_LCM; padding <= BP_PADDING_FSDP2_SHARD1; padding++) {
            bp_buckets_config config;
            assert_int_equal(bp_buckets_config_init(&config, sizeof config), BP_OK);
            config.bucketing = (bp_bucketing)bucketing;
            config.padding = (bp_padding)padding;
            config.dp = 4;
            config.roles = BP_ROLE_BIT(BP_ROLE_PARAM) | BP_ROLE_BIT(BP_ROLE_GRAD) | BP_ROLES_STATE;
            bp_buckets *buckets = NULL;
            if (bp_buckets_create(model, &config, &buckets) != BP_OK)
                continue;
            bp_buckets_destroy(&buckets);
            made++;
            RETRY_OUT(buckets, bp_buckets_create(model, &config, &buckets));
            if (bucketing == (int)only && padding == BP_PADDING_MEGATRON_LCM)
                schedule_all(buckets);
            if (bucketing == BP_BUCKETING_FSDP2 && padding == BP_PADDING_FSDP2) {
                bp_schedule *schedule;
                RETRY_OUT(schedule, bp_schedule_create_training(buckets, NULL, &schedule));
                bp_schedule_destroy(&schedule);
            }
            bp_buckets_destroy(&buckets);
        }
    }
    assert_true(made >= 5);
}

static void test_architecture(void **state)
{
    (void)state;
    const bp_arch_config config = {find_value, NULL};
    bp_model *model, *laid_out, *shard;
    RETRY_OUT(model, bp_model_from_architecture("tiny", &config, BP_DTYPE_BF16, &model));
    assert_int_equal(bp_model_get_info(model)->unit_count, 2);
    RETRY_OUT(laid_out, bp_model_with_layout(model, BP_LAYOUT_STACKED, &laid_out));
    bp_model_destroy(&laid_out);
    RETRY_OUT(laid_out, bp_model_with_layout(model, BP_LAYOUT_MEGATRON, &laid_out));
    RETRY_OUT(shard, bp_model_shard(laid_out, 2, 1, &shard));
    RETRY(bp_model_validate(shard));
    bucket_all(shard, BP_BUCKETING_MEGATRON);
    bp_model_destroy(&shard);
    bp_model_destroy(&laid_out);
    bp_model_destroy(&model);
}

/* Nested and repeated units, given buckets and events: features that architecture tables do not use. */
static void test_hand_made(void **state)
{
    (void)state;
    bp_model *model;
    RETRY_OUT(model, bp_model_create("hand-made", &model));
    uint32_t order[20], unit = 0;
    for (uint32_t u = 0; u < 10; u++) {
        char name[16];
        snprintf(name, sizeof name, "unit.%u", u);
        RETRY(bp_model_add_unit(model, name, BP_OUTSIDE, &unit));
        assert_int_equal(unit, u);
        order[u] = order[19 - u] = u;
        for (uint32_t b = 0; b <= u % 3; b++) {
            snprintf(name, sizeof name, "bucket.%u", b);
            bp_given_bucket bucket = {.size = sizeof bucket,
                                      .name = b == 0 ? NULL : name,
                                      .unit = (int32_t)u,
                                      .dtype = b == 1 ? BP_DTYPE_FP32 : BP_DTYPE_BF16,
                                      .numel = 100 + 10 * u + b};
            RETRY(bp_model_add_bucket(model, &bucket));
        }
    }
    RETRY(bp_model_add_unit(model, "unit.9.inner", 9, &unit));
    bp_given_bucket bucket = {.size = sizeof bucket, .unit = 10, .dtype = BP_DTYPE_FP16, .numel = 5};
    RETRY(bp_model_add_bucket(model, &bucket));
    bp_parameter parameter;
    assert_int_equal(bp_parameter_init(&parameter, sizeof parameter), BP_OK);
    parameter.name = "embedding";
    parameter.dtype = BP_DTYPE_BF16;
    parameter.dims = 1;
    parameter.shape[0] = 10;
    RETRY(bp_model_add_parameter(model, &parameter));
    /* Each unit is acquired while the previous one is live. */
    for (int32_t i = 0; i < 12; i++) {
        bp_model_event event = {.size = sizeof event,
                                .acquire = 1,
                                .unit = i,
                                .bucket = -1,
                                .role = BP_ROLE_PARAM,
                                .lane = BP_MODEL_EVENT_NO_LANE};
        if (i < 11)
            RETRY(bp_model_add_event(model, &event));
        event.acquire = 0;
        event.unit = i - 1;
        if (i > 0)
            RETRY(bp_model_add_event(model, &event));
    }
    RETRY(bp_model_set_order(model, order, 20));
    RETRY(bp_model_validate(model));
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
    assert_int_equal(bp_buckets_config_init(&config, sizeof config), BP_OK);
    config.bucketing = BP_BUCKETING_GIVEN;
    config.roles = BP_ROLE_BIT(BP_ROLE_PARAM);
    bp_buckets *buckets;
    RETRY_OUT(buckets, bp_buckets_create(model, &config, &buckets));
    bp_schedule *schedule;
    RETRY_OUT(schedule, bp_schedule_create_recorded(model, buckets, NULL, &schedule));
    plan_all(buckets, schedule);
    bp_schedule_destroy(&schedule);
    record_with_window(model, buckets);
    bp_buckets_destroy(&buckets);
    bp_model_destroy(&model);
}

/* Different units, live in pairs that form odd cycles: copies need the exact search. */
static void test_odd_cycle(void **state)
{
    (void)state;
    bp_model *model;
    RETRY_OUT(model, bp_model_create("cycle", &model));
    for (uint32_t u = 0; u < 6; u++) {
        char name[16];
        snprintf(name, sizeof name, "unit.%u", u);
        RETRY(bp_model_add_unit(model, name, BP_OUTSIDE, NULL));
        bp_given_bucket bucket = {.size = sizeof bucket, .unit = (int32_t)u, .dtype = BP_DTYPE_BF16, .numel = 100 + u};
        RETRY(bp_model_add_bucket(model, &bucket));
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
            RETRY(bp_model_add_event(model, &event));
        }
    }
    bp_buckets_config config;
    assert_int_equal(bp_buckets_config_init(&config, sizeof config), BP_OK);
    config.bucketing = BP_BUCKETING_GIVEN;
    config.roles = BP_ROLE_BIT(BP_ROLE_PARAM);
    bp_buckets *buckets;
    RETRY_OUT(buckets, bp_buckets_create(model, &config, &buckets));
    bp_schedule *schedule;
    RETRY_OUT(schedule, bp_schedule_create_recorded(model, buckets, NULL, &schedule));
    plan_all(buckets, schedule);
    bp_schedule_destroy(&schedule);
    bp_buckets_destroy(&buckets);
    bp_model_destroy(&model);
}

/* Guards against a build in which the wraps are not linked. */
static void test_failures_happened(void **state)
{
    (void)state;
    assert_true(failures > 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_architecture),
        cmocka_unit_test(test_hand_made),
        cmocka_unit_test(test_odd_cycle),
        cmocka_unit_test(test_failures_happened),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
