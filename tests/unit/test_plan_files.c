/* bucketpool.plan/1: what is written is read back as the same plan, and nothing else is read at all. */
#include "scratch.h"

#include <jansson.h>

/* A plan of four units with two roles, so that copies, slabs and predecessors all appear. */
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
    assert_string_equal(bp_plan_model(a), bp_plan_model(b));
    bp_plan_summary s = {.size = sizeof s}, t = {.size = sizeof t};
    assert_int_equal(bp_plan_summary_get(a, &s), BP_OK);
    assert_int_equal(bp_plan_summary_get(b, &t), BP_OK);
    assert_int_equal(s.bytes, t.bytes);
    assert_int_equal(s.lower_bound_bytes, t.lower_bound_bytes);
    assert_int_equal(s.policy, t.policy);
    assert_int_equal(s.copies, t.copies);
    assert_int_equal(s.optimal, t.optimal);
    assert_int_equal(bp_plan_assignment_count(a), bp_plan_assignment_count(b));
    for (size_t i = 0; i < bp_plan_assignment_count(a); i++) {
        bp_assignment p = {.size = sizeof p}, q = {.size = sizeof q};
        assert_int_equal(bp_plan_assignment_get(a, i, &p), BP_OK);
        assert_int_equal(bp_plan_assignment_get(b, i, &q), BP_OK);
        assert_int_equal(p.predecessor_count, q.predecessor_count);
        if (p.predecessor_count > 0)
            assert_memory_equal(p.predecessors, q.predecessors, p.predecessor_count * sizeof *p.predecessors);
    }
}

static void test_round_trip(void **state)
{
    (void)state;
    bp_plan *plan = make_plan(), *read = NULL;
    bp_plan_slab slab = {.size = sizeof slab};
    assert_int_equal(bp_plan_set_group(plan, 0, "actor's"), BP_OK);
    assert_int_equal(bp_plan_write(plan, in_scratch("plan.json")), BP_OK);
    assert_int_equal(bp_plan_read(in_scratch("plan.json"), &read), BP_OK);
    assert_same_plan(plan, read);
    const char *key, *value;
    assert_int_equal(bp_plan_option_count(read), 1);
    assert_int_equal(bp_plan_option(read, 0, &key, &value), BP_OK);
    assert_string_equal(key, "dp");
    assert_string_equal(value, "1");
    assert_int_equal(bp_plan_slab_get(read, 0, &slab), BP_OK);
    assert_string_equal(slab.group, "actor's");
    bp_plan_destroy(&read);
    bp_plan_destroy(&plan);
}

/* The plan's file as a document to be broken. */
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

static json_t *assignment(json_t *document, size_t index)
{
    json_t *found = json_array_get(json_object_get(document, "assignments"), index);
    assert_non_null(found);
    return found;
}

static void test_edited_assignments(void **state)
{
    (void)state;
    /* every number that places or sizes a bucket is covered by the fingerprint, even where the plan stays well-formed */
    static const struct {
        const char *member;
        json_int_t value;
        const char *word;
    } edits[] = {{"offset", 256, "fingerprint"},
                 {"bytes", 1998, "fingerprint"},
                 {"ordinal", 7, "fingerprint"},
                 {"offset", 100, "not aligned"},
                 {"offset", 1 << 30, "beyond its slab"},
                 {"bytes", 1 << 30, "beyond its slab"},
                 {"slab", 9, "does not exist"},
                 {"offset", -256, "offset"},
                 {"bytes", 0, "bytes"}};
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        json_t *document = plan_document();
        json_object_set_new(assignment(document, 0), edits[i].member, json_integer(edits[i].value));
        assert_refused(document, edits[i].word);
    }
    json_t *document = plan_document();
    json_object_set_new(assignment(document, 0), "unit", json_string("z"));
    assert_refused(document, "fingerprint");
    document = plan_document();
    json_object_set_new(assignment(document, 0), "dtype", json_string("fp16"));
    assert_refused(document, "fingerprint");
    document = plan_document();
    json_object_set_new(assignment(document, 0), "role", json_string("gradient"));
    assert_refused(document, "$.assignments[0].role");
    document = plan_document();
    json_array_append_new(json_object_get(document, "assignments"), json_deep_copy(assignment(document, 1)));
    assert_refused(document, "occurs twice");
    document = plan_document();
    json_array_append_new(json_object_get(assignment(document, 0), "predecessors"), json_integer(99));
    assert_refused(document, "$.assignments[0].predecessors");
    document = plan_document();
    json_array_append_new(json_object_get(assignment(document, 0), "predecessors"), json_integer(0));
    assert_refused(document, "predecessor");
}

static void test_broken_documents(void **state)
{
    (void)state;
    static const char *const members[] = {"format", "model", "policy",      "copies",      "alignment", "bytes",
                                          "bound",  "slabs", "assignments", "fingerprint", "options"};
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
    document = plan_document(); /* never written: it has no addresses */
    json_object_set_new(document, "policy", json_string("dynamic"));
    assert_refused(document, "$.policy");
    document = plan_document();
    json_object_set_new(document, "alignment", json_integer(3));
    assert_refused(document, "power of two");
    document = plan_document();
    json_object_set_new(document, "assignments", json_array());
    assert_refused(document, "$.assignments");
}

/* One request, which follows nobody. */
static void test_no_predecessors(void **state)
{
    (void)state;
    bp_plan_summary summary = {
        .size = sizeof summary, .feasible = 1, .stable = 1, .policy = BP_POLICY_MAX, .alignment = 256, .bytes = 256};
    const bp_plan_slab slab = {.size = sizeof slab, .group = "param", .bytes = 256};
    const bp_assignment only = {.size = sizeof only, .unit = "a", .dtype = BP_DTYPE_BF16, .bytes = 256};
    bp_assignment found = {.size = sizeof found, .predecessors = (const uint32_t *)&summary, .predecessor_count = 9};
    bp_plan_builder *builder;
    bp_plan *plan, *read = NULL;
    assert_int_equal(bp_plan_builder_create(&summary, &builder), BP_OK);
    assert_int_equal(bp_plan_builder_add_slab(builder, &slab), BP_OK);
    assert_int_equal(bp_plan_builder_add_assignment(builder, &only), BP_OK);
    assert_int_equal(bp_plan_builder_finish(&builder, &plan), BP_OK);
    assert_int_equal(bp_plan_set_model(plan, "one"), BP_OK);
    assert_int_equal(bp_plan_assignment_get(plan, 0, &found), BP_OK);
    assert_int_equal(found.predecessor_count, 0);
    assert_null(found.predecessors);
    assert_int_equal(bp_plan_write(plan, in_scratch("plan.json")), BP_OK);
    assert_int_equal(bp_plan_read(in_scratch("plan.json"), &read), BP_OK);
    assert_same_plan(plan, read);
    bp_plan_destroy(&read);
    bp_plan_destroy(&plan);
}

static void test_unsaveable_plans(void **state)
{
    (void)state;
    bp_plan *plan = NULL;
    assert_int_equal(bp_plan_write(NULL, "x"), BP_ERR_INVALID_ARGUMENT);
    assert_int_equal(bp_plan_read(in_scratch("missing.json"), &plan), BP_ERR_IO);
    assert_null(plan);
    plan = make_plan();
    assert_int_equal(bp_plan_write(plan, in_scratch("no/folder/plan.json")), BP_ERR_IO);
    bp_plan_destroy(&plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_round_trip, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_edited_assignments, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_broken_documents, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_no_predecessors, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_unsaveable_plans, scratch_setup, scratch_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
