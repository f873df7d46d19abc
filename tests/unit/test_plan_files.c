/* SPDX-License-Identifier: Apache-2.0 */
/* bucketpool.plan/1: round trips, and refusal of every changed file. */
#include "scratch.h"

#include <jansson.h>

#include "planner/plan.h"

/* A plan of four units with two roles, so that copies, slabs and classes all appear. */
static bp_plan *make_plan(void)
{
    static const char text[] = "{\"format\": \"bucketpool.units/1\", \"model\": \"tiny\", \"units\": ["
                               "{\"name\": \"a\", \"buckets\": [{\"dtype\": \"bf16\", \"numel\": 1000}, {\"name\": "
                               "\"x\", \"dtype\": \"fp32\", \"numel\": 10}]},"
                               "{\"name\": \"b\", \"buckets\": [{\"dtype\": \"bf16\", \"numel\": 3000}]},"
                               "{\"name\": \"c\", \"buckets\": [{\"dtype\": \"bf16\", \"numel\": 2000}]},"
                               "{\"name\": \"d\", \"buckets\": [{\"dtype\": \"bf16\", \"numel\": 1000}, {\"dtype\": "
                               "\"fp32\", \"numel\": 77}]}]}";
    bp_model *model;
    bp_buckets *buckets;
    bp_schedule *schedule;
    bp_plan *plan;
    bp_buckets_config buckets_config;
    bp_schedule_config schedule_config;
    bp_plan_config config;
    assert_int_equal(bp_units_parse(text, strlen(text), "text", NULL, &model), BP_OK);
    assert_int_equal(bp_buckets_config_init(&buckets_config, sizeof buckets_config), BP_OK);
    buckets_config.bucketing = BP_BUCKETING_GIVEN;
    buckets_config.padding = BP_PADDING_GIVEN;
    assert_int_equal(bp_buckets_create(model, &buckets_config, &buckets), BP_OK);
    assert_int_equal(bp_schedule_config_init(&schedule_config, sizeof schedule_config), BP_OK);
    assert_int_equal(bp_schedule_create_training(buckets, &schedule_config, &schedule), BP_OK);
    assert_int_equal(bp_plan_config_init(&config, sizeof config), BP_OK);
    assert_int_equal(bp_plan_create(buckets, schedule, &config, &plan), BP_OK);
    assert_int_equal(bp_plan_set_option(plan, "dp", "1"), BP_OK);
    bp_schedule_destroy(&schedule);
    bp_buckets_destroy(&buckets);
    bp_model_destroy(&model);
    return plan;
}

static void assert_same_plan(const bp_plan *a, const bp_plan *b)
{
    char x[BP_FINGERPRINT_CHARS], y[BP_FINGERPRINT_CHARS];
    assert_int_equal(bp_plan_fingerprint(a, x), BP_OK);
    assert_int_equal(bp_plan_fingerprint(b, y), BP_OK);
    assert_string_equal(x, y);
    const bp_plan_info *s = bp_plan_get_info(a), *t = bp_plan_get_info(b);
    assert_string_equal(s->model, t->model);
    assert_int_equal(s->bytes, t->bytes);
    assert_int_equal(s->lower_bound_bytes, t->lower_bound_bytes);
    assert_int_equal(s->policy, t->policy);
    assert_int_equal(s->copies, t->copies);
    assert_int_equal(s->optimal, t->optimal);
    assert_int_equal(s->request_count, t->request_count);
    for (size_t i = 0; i < s->request_count; i++) {
        const bp_plan_request *p = &s->requests[i], *q = &t->requests[i];
        assert_string_equal(p->unit, q->unit);
        assert_true(p->ordinal == q->ordinal && p->role == q->role && p->dtype == q->dtype);
        assert_true(p->placement == q->placement && p->slab == q->slab && p->offset == q->offset);
        assert_true(p->bytes == q->bytes && p->used_bytes == q->used_bytes);
    }
}

SCRATCH_TEST(test_round_trip)
{
    SCOPED(bp_plan_destroy) bp_plan *plan = make_plan(), *read = NULL;
    assert_int_equal(bp_plan_set_group(plan, 0, "actor's"), BP_OK);
    assert_int_equal(bp_plan_write(plan, in_scratch("plan.json")), BP_OK);
    assert_int_equal(bp_plan_read(in_scratch("plan.json"), &read), BP_OK);
    assert_same_plan(plan, read);
    const bp_plan_info *info = bp_plan_get_info(read);
    assert_int_equal(info->option_count, 1);
    assert_string_equal(info->options[0].key, "dp");
    assert_string_equal(info->options[0].value, "1");
    assert_string_equal(info->slabs[0].group, "actor's");
}

/* The plan's file as a mutable document. */
static json_t *plan_document(void)
{
    bp_plan *plan = make_plan();
    assert_int_equal(bp_plan_write(plan, in_scratch("plan.json")), BP_OK);
    bp_plan_destroy(&plan);
    json_t *document = json_load_file(in_scratch("plan.json"), 0, NULL);
    assert_non_null(document);
    return document;
}

static void assert_refused(json_t *document, const char *word)
{
    char *text = json_dumps(document, 0);
    bp_plan *plan = NULL;
    assert_int_equal(bp_plan_parse(text, strlen(text), "broken.json", &plan), BP_ERR_FORMAT);
    assert_null(plan);
    if (strstr(bp_error_detail(), word) == NULL || strstr(bp_error_detail(), "broken.json") == NULL)
        fail_msg("\"%s\" is not in \"%s\"", word, bp_error_detail());
    free(text);
    json_decref(document);
}

static json_t *request(json_t *document, size_t index)
{
    json_t *found = json_array_get(json_object_get(document, "requests"), index);
    assert_non_null(found);
    return found;
}

SCRATCH_TEST(test_edited_requests)
{
    /* every number that places or sizes a bucket is covered by the fingerprint, even where the plan stays well-formed */
    static const struct {
        const char *member;
        json_int_t value;
        const char *word;
    } edits[] = {{"offset", 256, "fingerprint"},
                 {"bytes", 2002, "fingerprint"},
                 {"bytes", 1998, "used_bytes"}, /* less than used_bytes */
                 {"used_bytes", 1998, "fingerprint"},
                 {"used_bytes", 2001, "used_bytes"},
                 {"ordinal", 7, "fingerprint"},
                 {"offset", 100, "not aligned"},
                 {"offset", 1 << 30, "beyond its slab"},
                 {"bytes", 1 << 30, "beyond its slab"},
                 {"slab", 9, "does not exist"},
                 {"offset", -256, "offset"},
                 {"bytes", 0, "bytes"}};
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        json_t *document = plan_document();
        json_object_set_new(request(document, 0), edits[i].member, json_integer(edits[i].value));
        assert_refused(document, edits[i].word);
    }
    json_t *document = plan_document();
    json_object_set_new(request(document, 0), "unit", json_string("z"));
    assert_refused(document, "fingerprint");
    document = plan_document();
    json_object_set_new(request(document, 0), "dtype", json_string("fp16"));
    assert_refused(document, "fingerprint");
    document = plan_document();
    json_object_set_new(request(document, 0), "role", json_string("gradient"));
    assert_refused(document, "$.requests[0].role");
    document = plan_document();
    json_array_append_new(json_object_get(document, "requests"), json_deep_copy(request(document, 1)));
    assert_refused(document, "occurs twice");
    static const char *const parts[] = {"slab", "offset"}; /* half of an address */
    for (size_t i = 0; i < 2; i++) {
        document = plan_document();
        json_object_del(request(document, 0), parts[i]);
        assert_refused(document, parts[i]);
    }
    document = plan_document();
    json_object_del(request(document, 0), "slab"); /* no memory, like an unused request */
    json_object_del(request(document, 0), "offset");
    assert_refused(document, "fingerprint");
    document = plan_document();
    json_array_remove(json_object_get(document, "requests"), 0);
    assert_refused(document, "fingerprint");
    static const char *const members[] = {"unit", "bucket", "ordinal", "role", "dtype", "bytes", "used_bytes"};
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        document = plan_document();
        json_object_del(request(document, 0), members[i]);
        assert_refused(document, members[i]);
    }
}

/* Changes the leaf number *left below a value, counted down; true when it is done. */
static bool edit_leaf(json_t *value, size_t *left)
{
    const char *key;
    json_t *member;
    size_t index;
    json_object_foreach(value, key, member)
    {
        if (json_is_boolean(member) && (*left)-- == 0)
            return json_object_set_new(value, key, json_boolean(!json_boolean_value(member))) == 0;
        if (!json_is_boolean(member) && edit_leaf(member, left))
            return true;
    }
    json_array_foreach(value, index, member)
    {
        if (edit_leaf(member, left))
            return true;
    }
    if (json_is_integer(value) && (*left)-- == 0)
        return json_integer_set(value, json_integer_value(value) ^ 1) == 0;
    if (json_is_string(value) && (*left)-- == 0) {
        const char *was = json_string_value(value);
        char text[100] = "max";
        if (strcmp(was, "fixed") != 0) {
            snprintf(text, sizeof text, "%.90s", was);
            text[0] = text[0] == 'a' ? 'b' : 'a';
        }
        return json_string_set(value, text) == 0;
    }
    return false;
}

/* Nothing in a saved plan is believed without a check. */
SCRATCH_TEST(test_every_leaf)
{
    size_t edited = 0;
    for (;; edited++) {
        size_t left = edited;
        json_t *document = plan_document();
        if (!edit_leaf(document, &left)) {
            json_decref(document);
            break;
        }
        assert_refused(document, "broken.json");
    }
    assert_in_range(edited, 80, 200);
}

SCRATCH_TEST(test_broken_documents)
{
    static const char *const members[] = {"format", "model", "policy",   "copies",      "alignment", "bytes",
                                          "bound",  "slabs", "requests", "fingerprint", "checksum",  "options"};
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        json_t *document = plan_document();
        json_object_del(document, members[i]);
        assert_refused(document, members[i]);
    }
    json_t *document = plan_document();
    json_object_set_new(document, "format", json_string("bucketpool.plan/2"));
    assert_refused(document, "bucketpool.plan/1");
    document = plan_document();
    json_object_set_new(document, "surprise", json_true());
    assert_refused(document, "surprise");
    document = plan_document(); /* such plans are not written: they have no addresses */
    json_object_set_new(document, "policy", json_string("dynamic"));
    assert_refused(document, "$.policy");
    document = plan_document();
    json_object_set_new(document, "alignment", json_integer(3));
    assert_refused(document, "power of two");
    document = plan_document();
    json_object_set_new(document, "requests", json_array());
    assert_refused(document, "$.requests");
}

/* Texts that would not survive a round trip are refused. */
SCRATCH_TEST(test_texts_that_are_not_utf8)
{
    SCOPED(bp_plan_destroy) bp_plan *plan = make_plan();
    assert_ok(bp_plan_set_option(plan, "note", "\xc3"));
    assert_fails(bp_plan_write(plan, in_scratch("no.json")), BP_ERR_INVALID_ARGUMENT, "UTF-8");
    assert_int_equal(access(in_scratch("no.json"), F_OK), -1);
}

/* Unused gradients of an evaluation have no address in plan and file. */
SCRATCH_TEST(test_unused_requests)
{
    const bp_plan_request requests[] = {
        {.unit = "a", .dtype = BP_DTYPE_BF16, .placement = BP_PLACE_PLANNED, .bytes = 256},
        {.unit = "a", .role = BP_ROLE_GRAD, .dtype = BP_DTYPE_FP32, .bytes = 512}};
    const bp_plan_slab slab = {.group = "param", .bytes = 256};
    const bp_plan_info info = {.model = "one",
                               .policy = BP_POLICY_MAX,
                               .feasible = 1,
                               .stable = 1,
                               .alignment = 256,
                               .bytes = 256,
                               .request_count = 2,
                               .requests = requests,
                               .slab_count = 1,
                               .slabs = &slab};
    SCOPED(bp_plan_destroy) bp_plan *plan = NULL, *read = NULL;
    assert_int_equal(bp_plan_from_info(&info, &plan), BP_OK);
    assert_int_equal(bp_plan_write(plan, in_scratch("plan.json")), BP_OK);
    assert_int_equal(bp_plan_read(in_scratch("plan.json"), &read), BP_OK);
    assert_same_plan(plan, read);
    assert_int_equal(bp_plan_get_info(read)->requests[1].placement, BP_PLACE_NONE);
    uint32_t id = 9;
    assert_int_equal(bp_plan_find(read, "a", 0, BP_ROLE_GRAD, BP_DTYPE_FP32, 512, &id), BP_ERR_MISMATCH);
    assert_int_equal(id, 9);
}

SCRATCH_TEST(test_unsaveable_plans)
{
    SCOPED(bp_plan_destroy) bp_plan *plan = NULL;
    assert_int_equal(bp_plan_write(NULL, "x"), BP_ERR_INVALID_ARGUMENT);
    assert_int_equal(bp_plan_read(in_scratch("missing.json"), &plan), BP_ERR_IO);
    assert_null(plan);
    plan = make_plan();
    assert_int_equal(bp_plan_write(plan, in_scratch("no/folder/plan.json")), BP_ERR_IO);
    bp_plan_destroy(&plan);
    const bp_plan_request request = {.unit = "a", .dtype = BP_DTYPE_BF16, .bytes = 256};
    bp_plan_info info = {
        .model = "m", .policy = BP_POLICY_MAX, .stable = 1, .alignment = 256, .request_count = 1, .requests = &request};
    assert_int_equal(bp_plan_from_info(&info, &plan), BP_OK);
    assert_int_equal(bp_plan_write(plan, in_scratch("plan.json")), BP_ERR_UNSUPPORTED); /* infeasible */
    bp_plan_destroy(&plan);
    info.feasible = 1;
    assert_int_equal(bp_plan_from_info(&info, &plan), BP_OK);
    assert_int_equal(bp_plan_write(plan, in_scratch("plan.json")), BP_ERR_UNSUPPORTED); /* no request is ever live */
}

TESTS(NULL, NULL)
