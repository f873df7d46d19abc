/* SPDX-License-Identifier: Apache-2.0 */
/* Structs that grow: callers that were compiled with an older, shorter layout or with a newer, longer one.
 *
 * A table row has a struct's size and a call that reads or fills it. Each call gets the struct truncated after each field, as from older
 * callers, and with extra bytes, as from newer ones. Each struct is an allocation of exactly its size, so that sanitizers detect
 * accesses beyond it. */
#include "support/harness.h"

#include <bucketpool/bucketpool.h>
#include <bucketpool/cp.h>
#include <bucketpool/lm_head.h>
#include <bucketpool/logprob.h>
#include <bucketpool/loss.h>

#include <stdlib.h>
#include <string.h>

#include "grown_calls.h"

#define MORE 24 /* extra bytes of a newer layout */

/* ---- configs ----------------------------------------------------------------------------------------------------------- */

static unsigned char *new_config(const config_row *row, size_t bytes)
{
    unsigned char *config = malloc(bytes);
    assert_non_null(config);
    memset(config, row->init != NULL ? 0xa5 : 0, bytes);
    if (row->init != NULL)
        assert_ok(row->init(config, bytes));
    else
        memcpy(config, &bytes, sizeof bytes);
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
    if (status == BP_ERR_UNSUPPORTED && strstr(bp_error_detail(), "no BLAS library") != NULL)
        return; /* without BLAS the fused head is unsupported */
    if (status != expected)
        fail_msg("%s with a struct of %zu bytes: %s (%s), expected %s", name, bytes, bp_status_name(status),
                 bp_error_detail(), bp_status_name(expected));
}

/* Older callers have the first fields only: the others get their defaults. */
TEST(test_shorter)
{
    for (const config_row *row = GROWN_CONFIGS; row < GROWN_CONFIGS + GROWN_CONFIG_COUNT; row++) {
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

/* Newer callers have unknown fields, which must be 0. */
TEST(test_longer)
{
    for (const config_row *row = GROWN_CONFIGS; row < GROWN_CONFIGS + GROWN_CONFIG_COUNT; row++) {
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

/* size is not set. */
TEST(test_no_size)
{
    for (const config_row *row = GROWN_CONFIGS; row < GROWN_CONFIGS + GROWN_CONFIG_COUNT; row++) {
        unsigned char *config = new_config(row, row->size);
        for (size_t bytes = 0; bytes <= sizeof bytes; bytes += sizeof bytes) {
            memcpy(config, &bytes, sizeof bytes);
            expect(row->name, bytes, row->call(config), BP_ERR_INVALID_ARGUMENT);
            if (row->init != NULL)
                expect(row->name, bytes, row->init(config, bytes), BP_ERR_INVALID_ARGUMENT);
        }
        if (row->init != NULL)
            expect(row->name, 0, row->init(NULL, row->size), BP_ERR_INVALID_ARGUMENT);
        free(config);
    }
}

/* Fields that older callers set have an effect. */
TEST(test_fields_count)
{
    bp_model *model = two_units();
    bp_buckets *buckets = buckets_of(model);
    for (uint32_t prefetch = 0; prefetch <= 1; prefetch++) {
        const struct {
            size_t size;
            uint32_t prefetch, grad_units;
        } old = {sizeof old, prefetch, 2};
        bp_schedule *schedule;
        assert_ok(bp_schedule_create_training(buckets, (const void *)&old, &schedule));
        const bp_schedule_info *info = bp_schedule_get_info(schedule);
        assert_int_equal(info->step_count, 4);
        assert_int_equal(info->requests[1].intervals[0].begin, 1 - prefetch);
        bp_schedule_destroy(&schedule);
    }
    bp_buckets_destroy(&buckets);
    bp_model_destroy(&model);
}

/* The stride of an array is the caller's struct size. */
TEST(test_arrays)
{
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
        assert_ok(bp_comm_create_self(&comms[i]));
        assert_ok(bp_registration_entry_init(&entries[i].known, sizeof entries[i]));
        entries[i].known.comm = comms[i];
        entries[i].known.group = i == 0 ? "param" : "grad";
    }
    bp_registration *registration;
    assert_ok(bp_registration_create(grown.pool, &entries[0].known, 2, &registration));
    const bp_registration_info *info = bp_registration_get_info(registration);
    assert_int_equal(info->window_count, 2);
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(info->windows[i].entry, i);
    bp_registration_destroy(&registration);
    entries[1].known.size = sizeof(bp_registration_entry);
    assert_int_equal(bp_registration_create(grown.pool, &entries[0].known, 2, &registration), BP_ERR_INVALID_ARGUMENT);
    for (size_t i = 0; i < 2; i++)
        bp_comm_destroy(&comms[i]);
    bp_offload *offload;
    size_t count;
    assert_ok(bp_offload_create(grown.pool, NULL, &offload));
    assert_ok(bp_offload_groups(offload, (bp_offload_group *)(void *)groups, 4, &count));
    assert_int_equal(count, 2);
    assert_string_equal(groups[0].name, "param");
    assert_string_equal(groups[1].name, "grad");
    assert_true(groups[1].size == sizeof groups[1] && groups[1].slabs == 1 && groups[1].bytes > 0);
    bp_offload_destroy(&offload);
}

/* ---- outputs ----------------------------------------------------------------------------------------------------------- */

TEST(test_outputs)
{
    for (const output_row *row = GROWN_OUTPUTS; row < GROWN_OUTPUTS + GROWN_OUTPUT_COUNT; row++) {
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
    grown = begin_kit(new_host(), UNITS, TRAINING, BP_POLICY_MAX, 0);
    bp_pool_config config = pool_config();
    open_pool(&grown, &config);
    return 0;
}

static int end(void **state)
{
    (void)state;
    end_kit(&grown);
    return 0;
}

TESTS(begin, end)
