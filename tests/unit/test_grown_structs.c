/* Structs that grow: callers that were compiled with an older, shorter layout or with a newer, longer one.
 *
 * A row of the table is one config of the interface: its size, its init function, and a call that reads it. Every row is called with
 * the struct cut off after each field, as older callers have it, and with bytes after its end, as newer ones do. Each struct lies at
 * the end of an allocation of its own size, so that sanitizers see what is read or written beyond it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <bucketpool/bucketpool.h>

#include <stdlib.h>
#include <string.h>

#define MORE 24 /* bytes that a newer layout has after the end of ours */

static void ok(bp_status status)
{
    if (status != BP_OK)
        fail_msg("%s: %s", bp_status_name(status), bp_error_detail());
}

/* ---- what the calls work on -------------------------------------------------------------------------------------------- */

/* Two units, acquired and released one after the other. */
static bp_model *make_model(void)
{
    bp_model *model;
    ok(bp_model_create("two", &model));
    for (int32_t u = 0; u < 2; u++) {
        const bp_given_bucket bucket = {.size = sizeof bucket, .unit = u, .dtype = BP_DTYPE_FP32, .numel = 100};
        uint32_t index;
        ok(bp_model_add_unit(model, u == 0 ? "first" : "second", BP_OUTSIDE, &index));
        ok(bp_model_add_bucket(model, &bucket));
        for (uint32_t k = 0; k < 2; k++) {
            const bp_model_event event = {.size = sizeof event,
                                          .acquire = k == 0,
                                          .unit = u,
                                          .bucket = -1,
                                          .role = BP_ROLE_PARAM,
                                          .lane = BP_MODEL_EVENT_NO_LANE};
            ok(bp_model_add_event(model, &event));
        }
    }
    return model;
}

static bp_buckets *make_buckets(const bp_model *model)
{
    bp_buckets_config config;
    bp_buckets *buckets;
    ok(bp_buckets_config_init(&config, sizeof config));
    config.roles = BP_ROLE_BIT(BP_ROLE_PARAM);
    ok(bp_buckets_create(model, &config, &buckets));
    return buckets;
}

static bp_status call_training(const void *config)
{
    bp_model *model = make_model();
    bp_buckets *buckets = make_buckets(model);
    bp_schedule *schedule = NULL;
    bp_status status = bp_schedule_create_training(buckets, config, &schedule);
    bp_schedule_destroy(&schedule);
    bp_buckets_destroy(&buckets);
    bp_model_destroy(&model);
    return status;
}

static bp_status call_recorded(const void *config)
{
    bp_model *model = make_model();
    bp_buckets *buckets = make_buckets(model);
    bp_schedule *schedule = NULL;
    bp_status status = bp_schedule_create_recorded(model, buckets, config, &schedule);
    bp_schedule_destroy(&schedule);
    bp_buckets_destroy(&buckets);
    bp_model_destroy(&model);
    return status;
}

/* With one of the two configs as given, and defaults for the other. */
static bp_status call_alternatives(const bp_schedule_config *timing, const bp_alternatives_config *config)
{
    bp_schedule_config default_timing;
    bp_plan_config plan;
    bp_alternatives_config default_config;
    ok(bp_schedule_config_init(&default_timing, sizeof default_timing));
    ok(bp_plan_config_init(&plan, sizeof plan));
    ok(bp_alternatives_config_init(&default_config, sizeof default_config));
    bp_model *model = make_model();
    bp_buckets *buckets = make_buckets(model);
    bp_alternatives *alternatives = NULL;
    bp_status status = bp_alternatives_create(buckets, timing != NULL ? timing : &default_timing, &plan,
                                              config != NULL ? config : &default_config, &alternatives);
    bp_alternatives_destroy(&alternatives);
    bp_buckets_destroy(&buckets);
    bp_model_destroy(&model);
    return status;
}

static bp_status call_alternatives_schedule(const void *config)
{
    return call_alternatives(config, NULL);
}

static bp_status call_alternatives_own(const void *config)
{
    return call_alternatives(NULL, config);
}

/* ---- the table --------------------------------------------------------------------------------------------------------- */

typedef struct config_row {
    const char *name;
    size_t size;
    size_t oldest; /* bytes of the shortest struct that the call must take */
    bp_status (*init)(void *config, size_t size);
    bp_status (*call)(const void *config); /* with a struct that `init` filled: BP_OK */
} config_row;

/* Init functions differ in the type of their pointer: calling them through another type is undefined. */
#define INIT(type)                                                                                                     \
    static bp_status init_##type(void *config, size_t size)                                                            \
    {                                                                                                                  \
        return bp_##type##_init(config, size);                                                                         \
    }
INIT(schedule_config)
INIT(recorded_config)
INIT(alternatives_config)

/* Every layout began with `size` and the field `first`. */
#define ROW(type, first, call)                                                                                         \
    {                                                                                                                  \
#call, sizeof(bp_##type), offsetof(bp_##type, first) + sizeof(((bp_##type *)NULL)->first), init_##type, call   \
    }
static const config_row rows[] = {
    ROW(schedule_config, prefetch, call_training),
    ROW(schedule_config, prefetch, call_alternatives_schedule),
    ROW(recorded_config, overlap_window, call_recorded),
    ROW(alternatives_config, max_prefetch, call_alternatives_own),
};
#define ROWS (sizeof rows / sizeof *rows)

/* ---- the tests ----------------------------------------------------------------------------------------------------------- */

/* A config of `bytes` bytes, filled by init. */
static unsigned char *new_config(const config_row *row, size_t bytes)
{
    unsigned char *config = malloc(bytes);
    assert_non_null(config);
    memset(config, 0xa5, bytes);
    ok(row->init(config, bytes));
    return config;
}

static size_t size_in(const void *config)
{
    size_t size;
    memcpy(&size, config, sizeof size);
    return size;
}

static void expect(const config_row *row, size_t bytes, bp_status status, bp_status expected)
{
    if (status != expected)
        fail_msg("%s with a struct of %zu bytes of %zu: %s (%s), expected %s", row->name, bytes, row->size,
                 bp_status_name(status), bp_error_detail(), bp_status_name(expected));
}

/* An older caller has the first fields only: the others have their defaults. */
static void test_shorter(void **state)
{
    (void)state;
    for (const config_row *row = rows; row < rows + ROWS; row++) {
        unsigned char *whole = new_config(row, row->size);
        for (size_t bytes = row->oldest; bytes <= row->size; bytes += sizeof(uint32_t)) {
            unsigned char *config = new_config(row, bytes);
            assert_int_equal(size_in(config), bytes);
            assert_memory_equal(config + sizeof(size_t), whole + sizeof(size_t), bytes - sizeof(size_t));
            expect(row, bytes, row->call(config), BP_OK);
            free(config);
        }
        free(whole);
    }
}

/* A newer caller has fields that we do not know: 0 means that they are not used. */
static void test_longer(void **state)
{
    (void)state;
    for (const config_row *row = rows; row < rows + ROWS; row++) {
        size_t bytes = row->size + MORE;
        unsigned char *config = new_config(row, bytes);
        assert_int_equal(size_in(config), bytes);
        for (size_t i = row->size; i < bytes; i++)
            assert_int_equal(config[i], 0);
        expect(row, bytes, row->call(config), BP_OK);
        for (size_t i = row->size; i < bytes; i++) {
            config[i] = 1;
            expect(row, bytes, row->call(config), BP_ERR_UNSUPPORTED);
            config[i] = 0;
        }
        free(config);
    }
}

/* A size that was never set. */
static void test_no_size(void **state)
{
    (void)state;
    for (const config_row *row = rows; row < rows + ROWS; row++) {
        unsigned char *config = new_config(row, row->size);
        for (size_t bytes = 0; bytes <= sizeof bytes; bytes += sizeof bytes) {
            memcpy(config, &bytes, sizeof bytes);
            expect(row, bytes, row->call(config), BP_ERR_INVALID_ARGUMENT);
            expect(row, bytes, row->init(config, bytes), BP_ERR_INVALID_ARGUMENT);
        }
        expect(row, 0, row->init(NULL, row->size), BP_ERR_INVALID_ARGUMENT);
        free(config);
    }
}

/* What an older caller does set counts. */
static void test_fields_count(void **state)
{
    (void)state;
    bp_model *model = make_model();
    bp_buckets *buckets = make_buckets(model);
    for (uint32_t prefetch = 0; prefetch <= 1; prefetch++) {
        const struct {
            size_t size;
            uint32_t prefetch, grad_units;
        } old = {sizeof old, prefetch, 2};
        bp_schedule *schedule;
        ok(bp_schedule_create_training(buckets, (const void *)&old, &schedule));
        const bp_schedule_info *info = bp_schedule_get_info(schedule);
        assert_int_equal(info->step_count, 4);
        assert_int_equal(info->requests[1].intervals[0].begin, 1 - prefetch);
        bp_schedule_destroy(&schedule);
    }
    bp_buckets_destroy(&buckets);
    bp_model_destroy(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shorter),
        cmocka_unit_test(test_longer),
        cmocka_unit_test(test_no_size),
        cmocka_unit_test(test_fields_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
