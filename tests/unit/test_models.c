/* SPDX-License-Identifier: Apache-2.0 */
/* Views of models and buckets; their structs from older and newer callers. */
#include "support/harness.h"

#include <bucketpool/model.h>

#include <stdio.h>
#include <string.h>

static bp_model *make_model(void)
{
    bp_model *model;
    bp_parameter p;
    assert_ok(bp_model_create("m", &model));
    assert_ok(bp_model_add_unit(model, "a", BP_OUTSIDE, NULL));
    assert_ok(bp_parameter_init(&p, sizeof p));
    p.name = "w";
    p.unit = 0;
    p.dims = 1;
    p.shape[0] = 10;
    p.dtype = BP_DTYPE_FP32;
    assert_ok(bp_model_add_parameter(model, &p));
    return model;
}

TEST(test_model_info)
{
    assert_null(bp_model_get_info(NULL));
    SCOPED(bp_model_destroy) bp_model *model = NULL;
    assert_ok(bp_model_create("m", &model));
    const bp_model_info *info = bp_model_get_info(model);
    assert_string_equal(info->name, "m");
    assert_true(info->unit_count == 0 && info->parameter_count == 0 && info->given_bucket_count == 0 &&
                info->event_count == 0 && info->order_count == 0 && info->note_count == 0 && info->numel == 0);
    for (uint32_t u = 0; u < 40; u++) { /* more than the initial capacity */
        char name[16];
        uint32_t unit = UINT32_MAX;
        snprintf(name, sizeof name, "u%u", u);
        assert_ok(bp_model_add_unit(model, name, u % 2 == 0 ? BP_OUTSIDE : (int32_t)u - 1, &unit));
        assert_int_equal(unit, u);
        bp_given_bucket bucket = {.size = sizeof bucket, .unit = (int32_t)u, .dtype = BP_DTYPE_BF16, .numel = u + 1};
        assert_ok(bp_model_add_bucket(model, &bucket));
        bp_model_event event = {.size = sizeof event, .acquire = 1, .unit = (int32_t)u, .bucket = -1, .lane = 2};
        assert_ok(bp_model_add_event(model, &event));
        assert_ok(bp_model_add_note(model, name));
        info = bp_model_get_info(model);
        assert_true(info->unit_count == u + 1 && info->given_bucket_count == u + 1 && info->event_count == u + 1);
        assert_string_equal(info->units[u].name, name);
        assert_string_equal(info->notes[u], name);
        assert_int_equal(info->units[u].parent, u % 2 == 0 ? BP_OUTSIDE : (int32_t)u - 1);
        assert_true(info->given_buckets[u]->numel == u + 1 && info->given_buckets[u]->size == sizeof bucket);
        assert_true(info->events[u]->unit == (int32_t)u && info->events[u]->lane == 2);
        assert_true(info->order_count == u / 2 + 1 && info->order[u / 2] == u / 2 * 2);
    }
    const uint32_t order[] = {4, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 32, 34, 36, 38};
    assert_ok(bp_model_set_order(model, order, 21));
    info = bp_model_get_info(model);
    assert_int_equal(info->order_count, 21);
    assert_memory_equal(info->order, order, sizeof order);
    assert_int_equal(info->numel, 40 * 41 / 2);
    /* a failed change does not alter the view */
    bp_given_bucket bad = {.size = sizeof bad, .unit = 99, .dtype = BP_DTYPE_BF16};
    assert_int_equal(bp_model_add_bucket(model, &bad), BP_ERR_INVALID_ARGUMENT);
    assert_int_equal(bp_model_get_info(model)->given_bucket_count, 40);
    assert_string_equal(bp_model_get_info(model)->units[39].name, "u39");
}

TEST(test_buckets_info)
{
    assert_null(bp_buckets_get_info(NULL));
    bp_model *model = make_model();
    bp_parameter p;
    assert_ok(bp_parameter_init(&p, sizeof p));
    p.name = "head";
    p.dims = 1;
    p.shape[0] = 7;
    p.dtype = BP_DTYPE_BF16;
    p.flags = BP_PARAMETER_FROZEN;
    assert_ok(bp_model_add_parameter(model, &p));
    bp_buckets_config config;
    SCOPED(bp_buckets_destroy) bp_buckets *buckets = NULL;
    assert_ok(bp_buckets_config_init(&config, sizeof config));
    config.dp = 4;
    assert_ok(bp_buckets_create(model, &config, &buckets));
    bp_model_destroy(&model);
    const bp_buckets_info *info = bp_buckets_get_info(buckets);
    assert_true(info->unit_count == 1 && info->bucket_count == 2 && info->request_count == 2);
    assert_string_equal(info->units[0].name, "a");
    const bp_bucket *b = &info->buckets[0];
    assert_true(b->unit == 0 && b->numel == 10 && b->padded_numel == 12 && b->shards == 4 && b->parameter_count == 1);
    assert_true(b->grad_numel == 10 && b->grad_padded_numel == 12 && b->grad_dtype == BP_DTYPE_FP32);
    assert_string_equal(b->name, "dense");
    assert_true(info->requests[0].role == BP_ROLE_PARAM && info->requests[1].role == BP_ROLE_GRAD);
    assert_true(info->requests[1].bucket == 0 && info->requests[1].numel == 10 && info->requests[1].bytes == 48);
    assert_true(info->buckets[1].unit == BP_OUTSIDE && info->buckets[1].frozen == 1);
    assert_true(info->buckets[1].grad_numel == 0 && info->buckets[1].grad_padded_numel == 0);
    assert_int_equal(info->persistent_bytes, 8 * 2);
}

/* ---- structs of other sizes --------------------------------------------------------------------------------------------- */

/* Input structs of other sizes: missing fields get their defaults, unknown ones must be 0. */
TEST(test_inputs_of_other_sizes)
{
    SCOPED(bp_model_destroy) bp_model *model = make_model();
    union {
        bp_parameter parameter;
        bp_given_bucket bucket;
        bp_model_event event;
        unsigned char bytes[sizeof(bp_parameter) + 64];
    } theirs = {.parameter = {.size = offsetof(bp_parameter, copies), .name = "old", .unit = 0, .dims = 2}};
    theirs.parameter.shape[0] = theirs.parameter.shape[1] = 3;
    theirs.parameter.dtype = BP_DTYPE_BF16;
    memset(theirs.bytes + offsetof(bp_parameter, copies), 0x55,
           sizeof theirs.bytes - offsetof(bp_parameter, copies)); /* the older caller lacks these fields */
    assert_ok(bp_model_add_parameter(model, &theirs.parameter));
    const bp_parameter *added = bp_model_get_info(model)->parameters[1];
    assert_true(added->size == sizeof *added && added->copies == 1 && added->tp_dim == -1 && added->tp_parts == 0 &&
                added->expert_dim == -1);
    memset(&theirs, 0, sizeof theirs);
    assert_ok(bp_parameter_init(&theirs.parameter, sizeof theirs));
    assert_int_equal(theirs.parameter.size, sizeof theirs);
    theirs.parameter.name = "new";
    theirs.parameter.dtype = BP_DTYPE_BF16;
    assert_ok(bp_model_add_parameter(model, &theirs.parameter));
    assert_int_equal(bp_model_get_info(model)->parameters[2]->size, sizeof(bp_parameter));
    theirs.bytes[sizeof theirs.bytes - 1] = 1;
    assert_int_equal(bp_model_add_parameter(model, &theirs.parameter), BP_ERR_UNSUPPORTED);

    memset(&theirs, 0x55, sizeof theirs);
    theirs.bucket =
        (bp_given_bucket){.size = offsetof(bp_given_bucket, padded_numel), .dtype = BP_DTYPE_BF16, .numel = 4};
    memset(theirs.bytes + theirs.bucket.size, 0x55, sizeof theirs.bytes - theirs.bucket.size);
    assert_ok(bp_model_add_bucket(model, &theirs.bucket));
    const bp_given_bucket *bucket = bp_model_get_info(model)->given_buckets[0];
    assert_true(bucket->numel == 4 && bucket->padded_numel == 0 && bucket->roles == 0 && bucket->frozen == 0);

    theirs.event = (bp_model_event){.size = offsetof(bp_model_event, bucket), .acquire = 1};
    memset(theirs.bytes + theirs.event.size, 0x55, sizeof theirs.bytes - theirs.event.size);
    assert_ok(bp_model_add_event(model, &theirs.event));
    const bp_model_event *event = bp_model_get_info(model)->events[0];
    assert_true(event->acquire == 1 && event->bucket == -1 && event->lane == BP_MODEL_EVENT_NO_LANE);

    const size_t none = 0;
    assert_int_equal(bp_model_add_parameter(model, (const bp_parameter *)&none), BP_ERR_INVALID_ARGUMENT);
    assert_int_equal(bp_model_add_bucket(model, NULL), BP_ERR_INVALID_ARGUMENT);
    assert_int_equal(bp_model_add_event(model, NULL), BP_ERR_INVALID_ARGUMENT);
}

TEST(test_configurations_of_other_sizes)
{
    SCOPED(bp_model_destroy) bp_model *model = make_model();
    union {
        bp_buckets_config config;
        unsigned char bytes[sizeof(bp_buckets_config) + 16];
    } theirs;
    memset(&theirs, 0x55, sizeof theirs);
    const size_t older = offsetof(bp_buckets_config, roles);
    assert_ok(bp_buckets_config_init(&theirs.config, older));
    assert_true(theirs.config.size == older && theirs.config.dp == 64 && theirs.bytes[older] == 0x55);
    theirs.config.dp = 2;
    SCOPED(bp_buckets_destroy) bp_buckets *buckets = NULL;
    assert_ok(bp_buckets_create(model, &theirs.config, &buckets));
    assert_int_equal(bp_buckets_get_info(buckets)->request_count, 2); /* roles: the default */
    bp_buckets_destroy(&buckets);
    assert_ok(bp_buckets_config_init(&theirs.config, sizeof theirs));
    assert_int_equal(theirs.bytes[sizeof theirs - 1], 0);
    assert_ok(bp_buckets_create(model, &theirs.config, &buckets));
    bp_buckets_destroy(&buckets);
    theirs.bytes[sizeof theirs - 1] = 1;
    assert_int_equal(bp_buckets_create(model, &theirs.config, &buckets), BP_ERR_UNSUPPORTED);
    assert_int_equal(bp_buckets_config_init(NULL, sizeof theirs), BP_ERR_INVALID_ARGUMENT);
    assert_null(buckets);
    assert_ok(bp_buckets_create(model, NULL, &buckets)); /* the defaults: dp 64 */
    assert_int_equal(bp_buckets_get_info(buckets)->request_count, 2);
    assert_int_equal(bp_buckets_get_info(buckets)->buckets[0].shards, 64);
}

TESTS(NULL, NULL)
