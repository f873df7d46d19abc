#include "formats/units.h"

#include <bucketpool/formats.h>
#include <bucketpool/schedule.h>

#include <stdlib.h>
#include <string.h>

#include "core/fail.h"
#include "formats/reader.h"

bp_status bp_units_find(const bp_units_reader *reader, const bp_json_at *at, uint32_t *unit)
{
    const char *name = NULL;
    BP_TRY(bp_json_name(at, &name));
    const json_t *found = json_object_get(reader->units, name);
    if (found == NULL)
        return bp_json_fail(at, "\"%.*s\" is not the name of a unit%s", 80, name,
                            strcmp(at->key != NULL ? at->key : "", "parent") == 0 ? " before this one" : "");
    *unit = (uint32_t)json_integer_value(found);
    return BP_OK;
}

/* A unit by itself; its parameters and buckets are added when all units are known. */
static bp_status units_add_unit(bp_units_reader *reader, const bp_json_at *unit)
{
    static const char *const known[] = {"name", "parent", "parameters", "buckets", NULL};
    BP_TRY(bp_json_expect_object(unit, known));
    bp_json_at name_at = bp_json_member(unit, "name"), parent_at = bp_json_member(unit, "parent");
    const char *name = NULL;
    uint32_t parent = 0, index = 0;
    BP_TRY(bp_json_name(&name_at, &name));
    if (json_object_get(reader->units, name) != NULL)
        return bp_json_fail(&name_at, "unit \"%.*s\" occurs twice", 80, name);
    if (parent_at.value != NULL)
        BP_TRY(bp_units_find(reader, &parent_at, &parent));
    if (bp_json_member(unit, "parameters").value != NULL && bp_json_member(unit, "buckets").value != NULL)
        return bp_json_fail(unit, "has parameters and buckets; a unit has one or the other");
    int32_t outer = parent_at.value != NULL ? (int32_t)parent : BP_OUTSIDE;
    BP_TRY(bp_json_fail_at(unit, bp_model_add_unit(reader->model, name, outer, &index)));
    if (json_object_set_new_nocheck(reader->units, name, json_integer((json_int_t)index)) != 0)
        return bp_fail_memory(strlen(name));
    return BP_OK;
}

static bp_status read_order(bp_units_reader *reader, const bp_json_at *order)
{
    if (order->value == NULL)
        return BP_OK;
    BP_TRY(bp_json_expect_list(order));
    size_t count = json_array_size(order->value);
    uint32_t *units = calloc(count + 1, sizeof *units);
    if (units == NULL)
        return bp_fail_memory((count + 1) * sizeof *units);
    bp_status status = BP_OK;
    for (size_t i = 0; status == BP_OK && i < count; i++) {
        bp_json_at element = bp_json_element(order, i);
        status = bp_units_find(reader, &element, &units[i]);
    }
    if (status == BP_OK)
        status = bp_json_fail_at(order, bp_model_set_order(reader->model, units, count));
    free(units);
    return status;
}

/* The bucket of an event: an ordinal, or the name of a bucket given in the unit. */
static bp_status read_event_bucket(const bp_units_reader *reader, const bp_json_at *at, int32_t unit, int32_t *bucket)
{
    uint64_t ordinal = 0;
    if (!json_is_string(at->value)) {
        BP_TRY(bp_json_whole(at, 0, INT32_MAX, &ordinal));
        *bucket = (int32_t)ordinal;
        return BP_OK;
    }
    const char *name = json_string_value(at->value);
    const json_t *found = json_object_get(json_array_get(reader->buckets, (size_t)unit), name);
    if (found == NULL)
        return bp_json_fail(
            at, "unit \"%.*s\" has no bucket \"%.*s\" in this file; buckets made of parameters go by number", 60,
            bp_model_get_info(reader->model)->units[unit].name, 60, name);
    *bucket = (int32_t)json_integer_value(found);
    return BP_OK;
}

const char *bp_units_lane_name(uint32_t lane)
{
    static const char *const names[] = {"gather", "compute", "reduce", "outer_reduce"};
    return lane <= BP_LANE_OUTER_REDUCE ? names[lane] : NULL;
}

/* A lane: its name, or a number for a runtime's own. */
static bp_status read_lane(const bp_json_at *at, uint32_t *lane)
{
    uint64_t number = 0;
    if (!json_is_string(at->value)) {
        BP_TRY(bp_json_whole(at, 0, BP_LANE_COUNT - 1, &number));
        *lane = (uint32_t)number;
        return BP_OK;
    }
    for (uint32_t i = 0; bp_units_lane_name(i) != NULL; i++) {
        if (strcmp(json_string_value(at->value), bp_units_lane_name(i)) == 0) {
            *lane = i;
            return BP_OK;
        }
    }
    return bp_json_fail(at, "\"%.40s\" is no lane; known: gather, compute, reduce, outer_reduce, or a number below %u",
                        json_string_value(at->value), BP_LANE_COUNT);
}

static bp_status add_event(bp_units_reader *reader, const bp_json_at *event)
{
    static const char *const known[] = {"acquire", "release", "role", "bucket", "lane", NULL};
    BP_TRY(bp_json_expect_object(event, known));
    bp_json_at acquire = bp_json_member(event, "acquire"), release = bp_json_member(event, "release");
    bp_json_at role = bp_json_member(event, "role"), bucket = bp_json_member(event, "bucket");
    bp_json_at lane = bp_json_member(event, "lane");
    if ((acquire.value == NULL) == (release.value == NULL))
        return bp_json_fail(event, "expected one of \"acquire\" and \"release\"");
    bp_model_event e = {
        .size = sizeof e, .acquire = acquire.value != NULL, .bucket = -1, .lane = BP_MODEL_EVENT_NO_LANE};
    uint32_t unit = 0;
    BP_TRY(bp_units_find(reader, e.acquire ? &acquire : &release, &unit));
    e.unit = (int32_t)unit;
    BP_TRY(bp_units_role(&role, UINT32_MAX, &e.role));
    if (bucket.value != NULL)
        BP_TRY(read_event_bucket(reader, &bucket, e.unit, &e.bucket));
    if (lane.value != NULL)
        BP_TRY(read_lane(&lane, &e.lane));
    return bp_json_fail_at(event, bp_model_add_event(reader->model, &e));
}

static bp_status read_lists(bp_units_reader *reader, const bp_json_at *root)
{
    static const char *const known_outside[] = {"parameters", "buckets", NULL};
    bp_json_at units = bp_json_member(root, "units"), outside = bp_json_member(root, "outside");
    bp_json_at order = bp_json_member(root, "order"), schedule = bp_json_member(root, "schedule");
    BP_TRY(bp_json_expect_list(&units));
    for (size_t i = 0; i < json_array_size(units.value); i++) {
        bp_json_at unit = bp_json_element(&units, i);
        BP_TRY(units_add_unit(reader, &unit));
    }
    if (outside.value != NULL)
        BP_TRY(bp_json_expect_object(&outside, known_outside));
    BP_TRY(bp_units_add_items(reader, &units, &outside));
    BP_TRY(read_order(reader, &order));
    if (schedule.value != NULL)
        BP_TRY(bp_json_expect_list(&schedule));
    for (size_t i = 0; i < json_array_size(schedule.value); i++) {
        bp_json_at event = bp_json_element(&schedule, i);
        BP_TRY(add_event(reader, &event));
    }
    return BP_OK;
}

static bp_status create_model(bp_units_reader *reader, const bp_json_at *root, const bp_reader_options *options)
{
    static const char *const known[] = {"format", "model", "units", "outside", "order", "schedule", NULL};
    BP_TRY(bp_json_expect_object(root, NULL));
    bp_json_at format_at = bp_json_member(root, "format"), model_at = bp_json_member(root, "model");
    const char *format = NULL, *given = NULL;
    BP_TRY(bp_json_name(&format_at, &format));
    if (strcmp(format, BP_UNITS_FORMAT) != 0)
        return bp_json_fail_kind(&format_at, "\"" BP_UNITS_FORMAT "\"");
    BP_TRY(bp_json_expect_object(root, known));
    if (model_at.value != NULL)
        BP_TRY(bp_json_name(&model_at, &given));
    char *name = NULL;
    BP_TRY(bp_reader_choose_name(options, given, root->origin, &name));
    bp_status status = bp_model_create(name, &reader->model);
    free(name);
    return status;
}

bp_status bp_units_from_json(json_t *document, const char *origin, const bp_reader_options *options, bp_model **model)
{
    bp_json_at root = bp_json_root(document, origin);
    bp_units_reader reader = {.units = json_object(), .buckets = json_array()};
    bp_status status = reader.units != NULL && reader.buckets != NULL ? BP_OK : bp_fail_memory(sizeof(json_t));
    if (status == BP_OK)
        status = create_model(&reader, &root, options);
    if (status == BP_OK)
        status = read_lists(&reader, &root);
    json_decref(reader.units);
    json_decref(reader.buckets);
    return bp_reader_hand_over(status, origin, reader.model, model);
}

bp_status bp_units_parse(const char *text, size_t bytes, const char *origin, const bp_reader_options *options,
                         bp_model **model)
{
    if (text == NULL || origin == NULL || model == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_units_parse: text, origin and model must not be NULL");
    bp_reader_options taken;
    BP_TRY(bp_reader_options_take(options, &taken));
    json_t *document = NULL;
    BP_TRY(bp_json_parse(text, bytes, origin, NULL, &document));
    bp_status status = bp_units_from_json(document, origin, &taken, model);
    json_decref(document);
    return status;
}
