/* Structs that grow: callers that were compiled with an older, shorter layout or with a newer, longer one.
 *
 * A row of a table is one struct of the interface: its size, and a call that reads or fills it. Every row is called with the struct cut off
 * after each field, as older callers have it, and with bytes after its end, as newer ones do. Each struct lies at the end of an allocation
 * of its own size, so that sanitizers see what is read or written beyond it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <bucketpool/bucketpool.h>
#include <bucketpool/cp.h>
#include <bucketpool/lm_head.h>
#include <bucketpool/logprob.h>
#include <bucketpool/loss.h>

#include <stdlib.h>
#include <string.h>

#include "../contract/support.h"

#define MORE 24 /* bytes that a newer layout has after the end of ours */

static kit k;

static void ok(bp_status status)
{
    if (status != BP_OK)
        fail_msg("%s: %s", bp_status_name(status), bp_error_detail());
}

/* ---- schedules and what-ifs -------------------------------------------------------------------------------------------- */

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
        for (uint32_t half = 0; half < 2; half++) {
            const bp_model_event event = {.size = sizeof event,
                                          .acquire = half == 0,
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

static bp_status call_training(void *config)
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

static bp_status call_recorded(void *config)
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

static bp_status call_alternatives_schedule(void *config)
{
    return call_alternatives(config, NULL);
}

static bp_status call_alternatives_own(void *config)
{
    return call_alternatives(NULL, config);
}

/* ---- calls that read a config ------------------------------------------------------------------------------------------ */

static bp_status call_host(void *config)
{
    bp_device *device = NULL;
    bp_status status = bp_device_create_host(config, &device);
    bp_device_destroy(&device);
    return status;
}

/* A driver that is not there: the config has been read when that is found. */
static bp_status call_cuda(void *config)
{
    bp_device *device = NULL;
    ((bp_cuda_config *)config)->driver = "/nowhere/libcuda.so.1";
    bp_status status = bp_device_create_cuda(config, &device);
    return status == BP_ERR_NO_DEVICE ? BP_OK : status;
}

static bp_status call_pinned(void *config)
{
    bp_pinned *pinned = NULL;
    bp_status status = bp_pinned_create(k.device, config, &pinned);
    bp_pinned_destroy(&pinned);
    return status;
}

static bp_status call_offload(void *config)
{
    bp_offload *offload = NULL;
    bp_status status = bp_offload_create(k.pool, config, &offload);
    bp_offload_destroy(&offload);
    return status;
}

static bp_status call_capture(void *config)
{
    bp_capture *capture = NULL;
    bp_status status = bp_capture_begin(k.pool, config, &capture);
    bp_capture_destroy(&capture);
    return status;
}

static bp_status call_profile(void *config)
{
    bp_profile *profile = NULL;
    bp_status status = bp_profile_create(&k.pool, 1, config, &profile);
    bp_profile_destroy(&profile);
    return status;
}

static bp_status call_export(void *config)
{
    void *tensor = NULL;
    ((bp_export_config *)config)->id = param(&k, 0);
    bp_status status = bp_pool_export(k.pool, config, &tensor);
    bp_export_delete(&tensor);
    return status;
}

static bp_status call_registration(void *config)
{
    bp_comm *comm;
    bp_registration *registration = NULL;
    ok(bp_comm_create_self(&comm));
    ((bp_registration_entry *)config)->comm = comm;
    bp_status status = bp_registration_create(k.pool, config, 1, &registration);
    bp_registration_destroy(&registration);
    bp_comm_destroy(&comm);
    return status;
}

static bp_packing *new_packing(void)
{
    bp_packing *packing;
    ok(bp_packing_create(&packing));
    for (size_t i = 0; i < 2; i++) {
        ok(bp_packing_add_item(packing, 10, NULL));
        ok(bp_packing_add_interval(packing, i, 0, 1));
    }
    return packing;
}

static bp_status call_pack(void *config)
{
    bp_packing *packing = new_packing();
    uint64_t offsets[2];
    bp_pack_result result = {.size = sizeof result};
    bp_status status = bp_pack(packing, config, offsets, &result);
    bp_packing_destroy(&packing);
    return status;
}

static bp_status call_logprob(void *config)
{
    bp_logprob *client = NULL;
    ((bp_logprob_config *)config)->max_tokens = 4;
    ((bp_logprob_config *)config)->vocab = 8;
    bp_status status = bp_logprob_create(k.device, config, &client);
    bp_logprob_destroy(&client);
    return status;
}

static bp_status call_cp(void *config)
{
    bp_cp *cp = NULL;
    bp_status status = bp_cp_create(k.device, config, &cp);
    bp_cp_destroy(&cp);
    return status;
}

static bp_status call_split(void *config)
{
    static const int64_t begins[] = {0, 5};
    bp_cp_split *split = NULL;
    bp_cp_split_config *c = config;
    c->cu_seqlens = begins;
    c->sequences = 1;
    bp_status status = bp_cp_split_create(c, &split);
    bp_cp_split_destroy(&split);
    return status;
}

static bp_status call_loss(void *config)
{
    bp_loss *loss = NULL;
    ((bp_loss_config *)config)->max_sequences = 2;
    bp_status status = bp_loss_create(k.device, config, &loss);
    bp_loss_destroy(&loss);
    return status;
}

/* A batch of no tokens, with outputs, gradients or neither as given. */
static bp_status forward_with(const void *batch, const void *outputs, const void *gradients)
{
    bp_logprob_config config;
    bp_logprob *client;
    bp_logprob_batch own_batch;
    bp_logprob_outputs own_outputs;
    ok(bp_logprob_config_init(&config, sizeof config));
    config.max_tokens = 4;
    config.vocab = 8;
    ok(bp_logprob_create(k.device, &config, &client));
    ok(bp_logprob_batch_init(&own_batch, sizeof own_batch));
    own_batch.logits = (bp_token_rows){.dtype = BP_DTYPE_FP32, .columns = 8};
    ok(bp_logprob_outputs_init(&own_outputs, sizeof own_outputs));
    if (batch == NULL)
        batch = &own_batch;
    bp_status status = gradients != NULL
                           ? bp_logprob_backward(client, batch, gradients, NULL)
                           : bp_logprob_forward(client, batch, outputs != NULL ? outputs : &own_outputs, NULL);
    bp_logprob_destroy(&client);
    return status;
}

static bp_status call_batch(void *batch)
{
    ((bp_logprob_batch *)batch)->logits = (bp_token_rows){.dtype = BP_DTYPE_FP32, .columns = 8};
    return forward_with(batch, NULL, NULL);
}

static bp_status call_outputs(void *outputs)
{
    return forward_with(NULL, outputs, NULL);
}

static bp_status call_gradients(void *gradients)
{
    return forward_with(NULL, NULL, gradients);
}

static bp_status call_merge(void *statistics)
{
    bp_loss_statistics total;
    ok(bp_loss_statistics_init(&total, sizeof total));
    return bp_loss_statistics_merge(statistics, &total);
}

/* ---- calls that fill an output ----------------------------------------------------------------------------------------- */

static bp_status fill_usage(void *usage)
{
    return bp_device_usage_get(k.device, usage);
}

static bp_status fill_pinned(void *statistics)
{
    bp_pinned *pinned;
    bp_pinned_config config;
    ok(bp_pinned_config_init(&config, sizeof config));
    config.allocator = BP_PINNED_PLAIN;
    ok(bp_pinned_create(k.device, &config, &pinned));
    bp_status status = bp_pinned_statistics_get(pinned, statistics);
    if (status == BP_OK && ((bp_pinned_statistics *)statistics)->size == sizeof(bp_pinned_statistics))
        ((bp_pinned_statistics *)statistics)->because = NULL; /* of this object alone */
    bp_pinned_destroy(&pinned);
    return status;
}

static bp_status fill_pack(void *result)
{
    bp_packing *packing = new_packing();
    bp_pack_config config;
    uint64_t offsets[2];
    ok(bp_pack_config_init(&config, sizeof config));
    bp_status status = bp_pack(packing, &config, offsets, result);
    bp_packing_destroy(&packing);
    return status;
}

static bp_status fill_fault(void *fault)
{
    static const uint64_t offsets[] = {0, 5};
    bp_packing *packing = new_packing();
    bp_status status = bp_packing_find_fault(packing, offsets, 20, fault);
    bp_packing_destroy(&packing);
    return status;
}

/* ---- the tables -------------------------------------------------------------------------------------------------------- */

typedef struct config_row {
    const char *name;
    size_t size;
    size_t oldest; /* bytes of the shortest struct that the call must take */
    bp_status (*init)(void *config, size_t size);
    bp_status (*call)(void *config); /* with a struct that `init` filled: BP_OK */
} config_row;

typedef struct output_row {
    const char *name;
    size_t size, oldest;
    bp_status (*fill)(void *output);
    size_t told; /* bytes that are the same in each call */
} output_row;

/* Init functions differ in the type of their pointer: calling them through another type is undefined. */
#define INIT(type)                                                                                                     \
    static bp_status init_##type(void *config, size_t size)                                                            \
    {                                                                                                                  \
        return bp_##type##_init(config, size);                                                                         \
    }
INIT(schedule_config)
INIT(recorded_config)
INIT(alternatives_config)
INIT(host_config)
INIT(cuda_config)
INIT(pinned_config)
INIT(offload_config)
INIT(capture_config)
INIT(profile_config)
INIT(export_config)
INIT(registration_entry)
INIT(pack_config)
INIT(logprob_config)
INIT(cp_config)
INIT(cp_split_config)
INIT(loss_config)
INIT(loss_statistics)
INIT(logprob_batch)
INIT(logprob_outputs)
INIT(logprob_gradients)

#define THROUGH(type, field) (offsetof(bp_##type, field) + sizeof(((bp_##type *)NULL)->field))

/* Every layout began with `size` and the fields through `first`. */
#define ROW(type, first, call)                                                                                         \
    {                                                                                                                  \
#call, sizeof(bp_##type), THROUGH(type, first), init_##type, call                                              \
    }
static const config_row rows[] = {
    ROW(schedule_config, prefetch, call_training),
    ROW(schedule_config, prefetch, call_alternatives_schedule),
    ROW(recorded_config, overlap_window, call_recorded),
    ROW(alternatives_config, max_prefetch, call_alternatives_own),
    ROW(host_config, memory_bytes, call_host),
    ROW(cuda_config, driver, call_cuda),
    ROW(pinned_config, allocator, call_pinned),
    ROW(offload_config, pinned, call_offload),
    ROW(capture_config, name, call_capture),
    ROW(profile_config, directory, call_profile),
    ROW(export_config, id, call_export),
    ROW(registration_entry, comm, call_registration),
    ROW(pack_config, capacity, call_pack),
    ROW(logprob_config, vocab, call_logprob),
    ROW(cp_config, comm, call_cp),
    ROW(cp_split_config, sequences, call_split),
    ROW(loss_config, max_sequences, call_loss),
    ROW(loss_statistics, sequences, call_merge),
    ROW(logprob_batch, logits, call_batch),
    ROW(logprob_outputs, logprob, call_outputs),
    ROW(logprob_gradients, logprob_grad, call_gradients),
};
#define ROWS (sizeof rows / sizeof *rows)

static const output_row outputs[] = {
    {"bp_device_usage", sizeof(bp_device_usage), THROUGH(device_usage, committed_bytes), fill_usage,
     THROUGH(device_usage, peak_committed_bytes)},
    {"bp_pinned_statistics", sizeof(bp_pinned_statistics), THROUGH(pinned_statistics, pinned_bytes), fill_pinned,
     THROUGH(pinned_statistics, numa_node)},
    {"bp_pack_result", sizeof(bp_pack_result), THROUGH(pack_result, outcome), fill_pack, sizeof(bp_pack_result)},
    {"bp_packing_fault", sizeof(bp_packing_fault), THROUGH(packing_fault, found), fill_fault,
     THROUGH(packing_fault, other)},
};
#define OUTPUTS (sizeof outputs / sizeof *outputs)

/* ---- configs ----------------------------------------------------------------------------------------------------------- */

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

static void expect(const char *name, size_t bytes, bp_status status, bp_status expected)
{
    if (status != expected)
        fail_msg("%s with a struct of %zu bytes: %s (%s), expected %s", name, bytes, bp_status_name(status),
                 bp_error_detail(), bp_status_name(expected));
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
            expect(row->name, bytes, row->call(config), BP_OK);
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
        expect(row->name, bytes, row->call(config), BP_OK);
        for (size_t i = row->size; i < bytes; i++) {
            config[i] = 1;
            expect(row->name, bytes, row->call(config), BP_ERR_UNSUPPORTED);
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
            expect(row->name, bytes, row->call(config), BP_ERR_INVALID_ARGUMENT);
            expect(row->name, bytes, row->init(config, bytes), BP_ERR_INVALID_ARGUMENT);
        }
        expect(row->name, 0, row->init(NULL, row->size), BP_ERR_INVALID_ARGUMENT);
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

/* Entries of an array follow each other by the caller's size. */
static void test_arrays(void **state)
{
    (void)state;
    struct {
        bp_registration_entry known;
        uint64_t later;
    } entries[2];
    struct {
        size_t size;
        const char *name;
        bp_residency residency;
        uint32_t slabs;
        uint64_t bytes;
    } groups[4] = {{.size = sizeof groups[0]}};
    bp_comm *comms[2];
    for (size_t i = 0; i < 2; i++) {
        ok(bp_comm_create_self(&comms[i]));
        ok(bp_registration_entry_init(&entries[i].known, sizeof entries[i]));
        entries[i].known.comm = comms[i];
        entries[i].known.group = i == 0 ? "param" : "grad";
    }
    bp_registration *registration;
    ok(bp_registration_create(k.pool, &entries[0].known, 2, &registration));
    const bp_registration_info *info = bp_registration_get_info(registration);
    assert_int_equal(info->window_count, 2);
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(info->windows[i].entry, i);
    bp_registration_destroy(&registration);
    entries[1].known.size = sizeof(bp_registration_entry);
    assert_int_equal(bp_registration_create(k.pool, &entries[0].known, 2, &registration), BP_ERR_INVALID_ARGUMENT);
    for (size_t i = 0; i < 2; i++)
        bp_comm_destroy(&comms[i]);
    bp_offload *offload;
    size_t count;
    ok(bp_offload_create(k.pool, NULL, &offload));
    ok(bp_offload_groups(offload, (bp_offload_group *)(void *)groups, 4, &count));
    assert_int_equal(count, 2);
    assert_string_equal(groups[0].name, "param");
    assert_string_equal(groups[1].name, "grad");
    assert_true(groups[1].size == sizeof groups[1] && groups[1].slabs == 1 && groups[1].bytes > 0);
    bp_offload_destroy(&offload);
}

/* ---- outputs ----------------------------------------------------------------------------------------------------------- */

static void test_outputs(void **state)
{
    (void)state;
    for (const output_row *row = outputs; row < outputs + OUTPUTS; row++) {
        unsigned char *whole = calloc(1, row->size);
        assert_non_null(whole);
        memcpy(whole, &row->size, sizeof row->size);
        expect(row->name, row->size, row->fill(whole), BP_OK);
        for (size_t bytes = row->oldest; bytes <= row->size + MORE; bytes += sizeof(uint32_t)) {
            unsigned char *output = malloc(bytes);
            const size_t told = bytes < row->told ? bytes : row->told;
            assert_non_null(output);
            memset(output, 0xa5, bytes);
            memcpy(output, &bytes, sizeof bytes);
            expect(row->name, bytes, row->fill(output), BP_OK);
            assert_int_equal(size_in(output), bytes);
            assert_memory_equal(output + sizeof bytes, whole + sizeof bytes, told - sizeof bytes);
            for (size_t i = row->size; i < bytes; i++)
                assert_int_equal(output[i], 0);
            free(output);
        }
        for (size_t bytes = 0; bytes <= sizeof bytes; bytes += sizeof bytes) {
            memcpy(whole, &bytes, sizeof bytes);
            expect(row->name, bytes, row->fill(whole), BP_ERR_INVALID_ARGUMENT);
        }
        expect(row->name, 0, row->fill(NULL), BP_ERR_INVALID_ARGUMENT);
        free(whole);
    }
}

static int begin(void **state)
{
    (void)state;
    k = begin_kit(new_host(), UNITS, TRAINING, BP_POLICY_MAX, 0);
    bp_pool_config config = pool_config();
    open_pool(&k, &config);
    return 0;
}

static int end(void **state)
{
    (void)state;
    end_kit(&k);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shorter),      cmocka_unit_test(test_longer), cmocka_unit_test(test_no_size),
        cmocka_unit_test(test_fields_count), cmocka_unit_test(test_arrays), cmocka_unit_test(test_outputs),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
