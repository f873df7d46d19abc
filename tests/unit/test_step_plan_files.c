/* SPDX-License-Identifier: Apache-2.0 */
/* bucketpool.step_plan/1: round trips, refusal of broken files, and plans of snapshots. The argument is the source directory. */
#include "scratch.h"

#include <jansson.h>

#include "steps/step_programs.h"

static const char *sources;

/* Three streams, three kinds of steps, and a place. */
static bp_step_plan *make_plan(void)
{
    step_program p;
    bp_step_plan *made = NULL, *plan = NULL;
    program_build(&p, 7, 4);
    for (unsigned i = 0; i < 6; i++)
        program_step(&p, &(step_shape){.layers = 4, .scale = 2 + 3 * (i == 3), .has_streams = true, .optimizers = 1});
    assert_ok(bp_step_plan_create(p.events, p.count, NULL, &made));
    bp_step_plan_info info = *bp_step_plan_get_info(made);
    const char *const places[] = {"train.py:12 forward", "a \"quoted\" caf\xc3\xa9"};
    bp_step_plan_kind kinds[BP_STEP_PLAN_KINDS];
    memcpy(kinds, info.kinds, info.kind_count * sizeof *kinds);
    bp_step_plan_item *items = malloc(kinds[0].item_count * sizeof *items);
    assert_non_null(items);
    memcpy(items, kinds[0].items, kinds[0].item_count * sizeof *items);
    items[1].place = 1;
    kinds[0].items = items;
    info.kinds = kinds;
    info.places = places;
    info.place_count = 2;
    info.reserved_before_bytes = 123456;
    assert_ok(bp_step_plan_from_info(&info, &plan));
    free(items);
    bp_step_plan_destroy(&made);
    program_finish(&p);
    return plan;
}

static json_t *document_of(const bp_step_plan *plan)
{
    assert_ok(bp_step_plan_write(plan, in_scratch("plan.json")));
    json_t *document = json_load_file(in_scratch("plan.json"), 0, NULL);
    assert_non_null(document);
    return document;
}

SCRATCH_TEST(round_trip)
{
    SCOPED(bp_step_plan_destroy) bp_step_plan *plan = make_plan();
    SCOPED(bp_step_plan_destroy) bp_step_plan *again = NULL;
    json_t *first = document_of(plan);
    assert_ok(bp_step_plan_read(in_scratch("plan.json"), &again));
    json_t *second = document_of(again);
    assert_true(json_equal(first, second));
    const bp_step_plan_info *a = bp_step_plan_get_info(plan), *b = bp_step_plan_get_info(again);
    assert_int_equal(a->kind_count, 3);
    assert_int_equal(a->stream_count, 3);
    assert_true(a->waits_count > 0 && a->bytes > a->bytes_without_windows);
    assert_int_equal(a->kind_count, b->kind_count);
    assert_int_equal(a->bytes, b->bytes);
    assert_int_equal(a->waits_count, b->waits_count);
    assert_memory_equal(a->waits, b->waits, a->waits_count * sizeof *a->waits);
    assert_string_equal(b->places[1], "a \"quoted\" caf\xc3\xa9");
    size_t outside = 0;
    for (size_t k = 0; k < a->kind_count; k++) {
        const bp_step_plan_kind *x = &a->kinds[k], *y = &b->kinds[k];
        assert_int_equal(x->item_count, y->item_count);
        assert_memory_equal(x->items, y->items, x->item_count * sizeof *x->items);
        assert_int_equal(x->mark_count, y->mark_count);
        assert_memory_equal(x->marks, y->marks, x->mark_count * sizeof *x->marks);
        assert_string_equal(x->method, y->method);
        assert_true(x->is_first == y->is_first && x->steps == y->steps && x->bytes == y->bytes &&
                    x->lower_bound_bytes == y->lower_bound_bytes && x->proven_bytes == y->proven_bytes);
        for (size_t i = 0; i < x->item_count; i++)
            outside += x->items[i].offset == BP_STEP_OUTSIDE;
    }
    assert_true(outside > 0);
    json_decref(first);
    json_decref(second);
}

/* Takes the document. */
static void assert_refused(json_t *document, const char *words)
{
    char *text = json_dumps(document, 0);
    bp_step_plan *plan = NULL;
    assert_fails(bp_step_plan_parse(text, strlen(text), "x.json", &plan), BP_ERR_FORMAT, "x.json", words);
    assert_null(plan);
    free(text);
    json_decref(document);
}

static json_t *kind_of(json_t *document)
{
    return json_array_get(json_object_get(document, "kinds"), 0);
}

static json_t *column(json_t *document, const char *name)
{
    return json_object_get(kind_of(document), name);
}

SCRATCH_TEST(broken_documents)
{
    SCOPED(bp_step_plan_destroy) bp_step_plan *plan = make_plan();
    static const char *const members[] = {"format",
                                          "bytes",
                                          "bytes_without_windows",
                                          "lower_bound_bytes",
                                          "persistent_bytes",
                                          "outside_bytes",
                                          "peak_live_bytes",
                                          "reserved_before_bytes",
                                          "streams",
                                          "waits",
                                          "places",
                                          "kinds"};
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        json_t *document = document_of(plan);
        json_object_del(document, members[i]);
        assert_refused(document, members[i]);
        document = document_of(plan);
        json_object_set_new(document, members[i], json_integer(-1));
        assert_refused(document, members[i]);
    }
    static const char *const of_kind[] = {"steps",        "bytes",       "lower_bound_bytes", "proven_bytes",
                                          "method",       "marks",       "item_bytes",        "offsets",
                                          "item_streams", "item_places", "precede_streams"};
    for (size_t i = 0; i < sizeof of_kind / sizeof *of_kind; i++) {
        json_t *document = document_of(plan);
        json_object_del(kind_of(document), of_kind[i]);
        assert_refused(document, of_kind[i]);
        document = document_of(plan);
        json_object_set_new(kind_of(document), of_kind[i], json_real(1.5));
        assert_refused(document, of_kind[i]);
    }
    json_t *document = document_of(plan);
    json_object_set_new(document, "format", json_string("bucketpool.step_plan/2"));
    assert_refused(document, "bucketpool.step_plan/1");
    document = document_of(plan);
    json_object_set_new(document, "surprise", json_true());
    assert_refused(document, "surprise");
    document = document_of(plan);
    json_object_set_new(document, "kinds", json_array());
    assert_refused(document, "0 kinds");
}

/* An element of a column. */
SCRATCH_TEST(broken_items)
{
    SCOPED(bp_step_plan_destroy) bp_step_plan *plan = make_plan();
    const struct {
        const char *column;
        json_int_t value;
        const char *words;
    } edits[] = {
        {"offsets", 100, "multiples of 512"},
        {"offsets", (json_int_t)1 << 50, "at 1125899906842624"},
        {"offsets", -512, "$.kinds[0].offsets[1]"},
        {"item_bytes", (json_int_t)1 << 62, "item 1 of kind 0"},
        {"item_bytes", 0, "item 1 of kind 0"},
        {"item_streams", 3, "stream 3; there are 3"},
        {"item_streams", (json_int_t)1 << 40, "$.kinds[0].item_streams[1]"},
        {"item_places", 2, "place 2; there are 2"},
        {"precede_streams", 2, "$.kinds[0].precede_streams[1]"},
    };
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        json_t *document = document_of(plan);
        json_array_set_new(column(document, edits[i].column), 1, json_integer(edits[i].value));
        assert_refused(document, edits[i].words);
        document = document_of(plan);
        json_array_remove(column(document, edits[i].column), 0);
        assert_refused(document, "elements, but item_bytes has");
    }
    json_t *document = document_of(plan);
    json_array_set_new(column(document, "item_bytes"), 0, json_null());
    assert_refused(document, "$.kinds[0].item_bytes[0]");
    document = document_of(plan);
    json_array_set_new(column(document, "marks"), 0, json_integer(1000000));
    assert_refused(document, "marks ascend");
    document = document_of(plan);
    json_object_set_new(json_array_get(json_object_get(document, "waits"), 0), "before", json_integer(9));
    assert_refused(document, "streams 0 and 9");
}

SCRATCH_TEST(not_writable)
{
    SCOPED(bp_step_plan_destroy) bp_step_plan *plan = make_plan();
    bp_step_plan_info info = *bp_step_plan_get_info(plan);
    const uint64_t streams[] = {0, 1, UINT64_MAX};
    const char *const places[] = {"a", "b\n"};
    SCOPED(bp_step_plan_destroy) bp_step_plan *with_stream = NULL;
    SCOPED(bp_step_plan_destroy) bp_step_plan *with_place = NULL;
    info.streams = streams;
    assert_ok(bp_step_plan_from_info(&info, &with_stream));
    assert_fails(bp_step_plan_write(with_stream, in_scratch("x.json")), BP_ERR_INVALID_ARGUMENT, "2^63");
    info.streams = bp_step_plan_get_info(plan)->streams;
    info.places = places;
    assert_ok(bp_step_plan_from_info(&info, &with_place));
    assert_fails(bp_step_plan_write(with_place, in_scratch("x.json")), BP_ERR_INVALID_ARGUMENT, "control characters");
    assert_fails(bp_step_plan_write(NULL, "x"), BP_ERR_INVALID_ARGUMENT, "NULL");
    assert_fails(bp_step_plan_write(plan, in_scratch("no/folder.json")), BP_ERR_IO, "folder.json");
    assert_fails(bp_step_plan_read(in_scratch("none.json"), &plan), BP_ERR_IO, "none.json");
}

/* Without a GPU: three steps of a Llama behind its construction. */
SCRATCH_TEST(snapshot)
{
    char path[512];
    SCOPED(bp_step_plan_destroy) bp_step_plan *plan = NULL;
    SCOPED(bp_step_plan_destroy) bp_step_plan *late = NULL;
    bp_step_plan *none = NULL;
    bp_step_plan_config config;
    assert_ok(bp_step_plan_config_init(&config, sizeof config));
    snprintf(path, sizeof path, "%s/examples/files/llama_steps.pickle", sources);
    assert_ok(bp_step_plan_read_snapshot(path, 0, NULL, &plan));
    const bp_step_plan_info *info = bp_step_plan_get_info(plan);
    assert_int_equal(info->kind_count, 2);
    assert_int_equal(info->kinds[0].item_count, 319);
    assert_int_equal(info->kinds[0].steps, 3);
    assert_true(info->kinds[1].is_first && info->kinds[1].item_count == 417);
    assert_int_equal(info->bytes, info->kinds[0].lower_bound_bytes);
    assert_true(info->place_count > 10);
    config.is_from_start = 0;
    assert_ok(bp_step_plan_read_snapshot(path, 0, &config, &late));
    for (size_t k = 0; k < bp_step_plan_get_info(late)->kind_count; k++)
        assert_false(bp_step_plan_get_info(late)->kinds[k].is_first);
    assert_int_equal(bp_step_plan_get_info(late)->persistent_bytes, info->persistent_bytes);
    assert_fails(bp_step_plan_read_snapshot(path, 1, NULL, &none), BP_ERR_FORMAT, "device 1");
    assert_fails(bp_step_plan_read_snapshot(in_scratch("none"), 0, NULL, &none), BP_ERR_IO, "none");
    assert_null(none);
}

int main(int argc, char **argv)
{
    sources = argc > 1 ? argv[1] : ".";
    return run_suite();
}
