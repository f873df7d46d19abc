/* SPDX-License-Identifier: Apache-2.0 */
/* Models as bucketpool.units/1, read and written. docs/reference/formats.md describes every member. */
#include <bucketpool/core/fail.h>
#include <bucketpool/formats.h>
#include <bucketpool/schedule.h>

#include <stdlib.h>
#include <string.h>

#include "core/json_writer.h"
#include "formats/file.h"
#include "formats/json.h"
#include "formats/models/reader.h"

#define UNITS_FORMAT "bucketpool.units/1"
#define ROLE_BITS 32 /* a bucket's roles are bits of a uint32_t */

/* NULL: the lane has a number only. */
static const char *lane_name(uint32_t lane)
{
    static const char *const names[] = {"gather", "compute", "reduce", "outer_reduce"};
    return lane <= BP_LANE_OUTER_REDUCE ? names[lane] : NULL;
}

/* State of reading a document. */
typedef struct units_reader {
    bp_model *model;
    json_t *units;   /* name -> index */
    json_t *buckets; /* for each unit, then for persistent parameters: name -> ordinal */
} units_reader;

/* ---- parameters and buckets -------------------------------------------------------------------------------------- */

/* The index of an item in the model, with its place in the file: an element of a unit's list. The list after the
 * last unit holds the persistent parameters. */
typedef struct item_place {
    size_t list, element;
    bool is_taken;
} item_place;

/* A role by its name, or by the number of a runtime's own role. */
static bp_status units_read_role(const bp_json_at *at, uint64_t max, uint32_t *role)
{
    uint64_t number = 0;
    bp_role known = BP_ROLE_PARAM;
    if (json_is_integer(at->value)) {
        BP_TRY(bp_json_whole(at, 0, max, &number));
        *role = (uint32_t)number;
        return BP_OK;
    }
    const char *name = NULL;
    BP_TRY(bp_json_name(at, &name));
    BP_TRY(bp_json_fail_at(at, bp_role_parse(name, &known)));
    *role = (uint32_t)known;
    return BP_OK;
}

/* The optional member `key`; leaves *value unchanged if it is absent. */
static bp_status read_optional(const bp_json_at *object, const char *key, uint64_t min, uint64_t max, uint64_t *value)
{
    bp_json_at at = bp_json_member(object, key);
    return at.value != NULL ? bp_json_whole(&at, min, max, value) : BP_OK;
}

static bp_status read_dimension(const bp_json_at *object, const char *key, uint32_t dims, int32_t *dimension)
{
    uint64_t value = 0;
    if (bp_json_member(object, key).value == NULL)
        return BP_OK;
    BP_TRY(read_optional(object, key, 0, dims > 0 ? dims - 1 : 0, &value));
    *dimension = (int32_t)value; /* the model refuses the dimension of a scalar */
    return BP_OK;
}

static bp_status read_flag(const bp_json_at *object, const char *key, uint32_t bit, uint32_t *flags)
{
    bp_json_at at = bp_json_member(object, key);
    bool is_set = false;
    BP_TRY(bp_json_flag(&at, &is_set));
    *flags |= is_set ? bit : 0;
    return BP_OK;
}

static bp_status units_add_parameter(units_reader *reader, const bp_json_at *item, int32_t unit)
{
    static const char *const known[] = {"name",       "shape",   "dtype",    "frozen",   "copies",
                                        "gemm",       "experts", "tp_dim",   "tp_parts", "expert_dim",
                                        "prediction", "joint",   "position", NULL};
    bp_parameter p;
    BP_TRY(bp_parameter_init(&p, sizeof p));
    BP_TRY(bp_json_expect_object(item, known));
    bp_json_at name = bp_json_member(item, "name"), shape = bp_json_member(item, "shape");
    bp_json_at dtype = bp_json_member(item, "dtype");
    uint64_t copies = 1, parts = 0;
    p.unit = unit;
    BP_TRY(bp_json_name(&name, &p.name));
    BP_TRY(bp_json_expect_list(&shape));
    size_t dims = json_array_size(shape.value);
    if (dims > BP_MAX_DIMS)
        return bp_json_fail(&shape, "%zu dimensions, at most %d are supported", dims, BP_MAX_DIMS);
    p.dims = (uint32_t)dims;
    for (uint32_t i = 0; i < p.dims; i++) {
        bp_json_at dimension = bp_json_element(&shape, i);
        BP_TRY(bp_json_whole(&dimension, 1, INT64_MAX, &p.shape[i]));
    }
    BP_TRY(bp_json_dtype(&dtype, &p.dtype));
    BP_TRY(read_optional(item, "copies", 1, UINT32_MAX, &copies));
    BP_TRY(read_optional(item, "tp_parts", 1, UINT32_MAX, &parts));
    BP_TRY(read_dimension(item, "tp_dim", p.dims, &p.tp_dim));
    BP_TRY(read_dimension(item, "expert_dim", p.dims, &p.expert_dim));
    BP_TRY(read_flag(item, "frozen", BP_PARAMETER_FROZEN, &p.flags));
    BP_TRY(read_flag(item, "gemm", BP_PARAMETER_GEMM, &p.flags));
    BP_TRY(read_flag(item, "prediction", BP_PARAMETER_PREDICTION, &p.flags));
    BP_TRY(read_flag(item, "joint", BP_PARAMETER_JOINT, &p.flags));
    BP_TRY(read_flag(item, "experts", BP_PARAMETER_EXPERT_COPIES, &p.flags));
    p.copies = (uint32_t)copies;
    p.tp_parts = (uint32_t)parts;
    return bp_json_fail_at(item, bp_model_add_parameter(reader->model, &p));
}

static bp_status units_add_bucket(units_reader *reader, const bp_json_at *item, int32_t unit)
{
    static const char *const known[] = {"name",  "dtype",    "numel", "padded_numel", "expert", "frozen",
                                        "roles", "position", NULL};
    bp_given_bucket b = {.size = sizeof b, .unit = unit};
    BP_TRY(bp_json_expect_object(item, known));
    bp_json_at name = bp_json_member(item, "name"), dtype = bp_json_member(item, "dtype");
    bp_json_at numel = bp_json_member(item, "numel"), roles = bp_json_member(item, "roles");
    if (name.value != NULL)
        BP_TRY(bp_json_name(&name, &b.name));
    BP_TRY(bp_json_dtype(&dtype, &b.dtype));
    BP_TRY(bp_json_whole(&numel, 0, INT64_MAX, &b.numel));
    BP_TRY(read_optional(item, "padded_numel", b.numel, INT64_MAX, &b.padded_numel));
    BP_TRY(read_flag(item, "expert", 1, &b.expert));
    BP_TRY(read_flag(item, "frozen", 1, &b.frozen));
    if (roles.value != NULL)
        BP_TRY(bp_json_expect_list(&roles));
    if (roles.value != NULL && json_array_size(roles.value) == 0)
        return bp_json_fail(&roles, "is empty; leave it out for all roles");
    for (size_t i = 0; i < json_array_size(roles.value); i++) {
        bp_json_at element = bp_json_element(&roles, i);
        uint32_t role = 0;
        BP_TRY(units_read_role(&element, ROLE_BITS - 1, &role));
        b.roles |= BP_ROLE_BIT(role);
    }

    /* the bucket's name in the schedule; the model's default if it has none */
    size_t outside = json_array_size(reader->buckets) - 1;
    json_t *names = json_array_get(reader->buckets, unit == BP_OUTSIDE ? outside : (size_t)unit);
    size_t ordinal = json_object_size(names);
    char number[32];
    snprintf(number, sizeof number, "bucket.%zu", ordinal);
    const char *called = b.name != NULL ? b.name : number;
    if (json_object_get(names, called) != NULL)
        return bp_json_fail(item, "bucket \"%.60s\" occurs twice in its unit", called);
    if (json_object_set_new_nocheck(names, called, json_integer((json_int_t)ordinal)) != 0)
        return bp_fail_memory(strlen(called));
    return bp_json_fail_at(item, bp_model_add_bucket(reader->model, &b));
}

static bp_json_at owner_of(const bp_json_at *units, const bp_json_at *outside, size_t list)
{
    return list < json_array_size(units->value) ? bp_json_element(units, list) : *outside;
}

/* Adds the items of all lists named `key` to the model. An item's index is its "position", or one after the previous
 * item of the file. */
static bp_status add_in_order(units_reader *reader, const bp_json_at *units, const bp_json_at *outside, const char *key,
                              bp_status (*add)(units_reader *reader, const bp_json_at *item, int32_t unit))
{
    size_t total = 0, unit_count = json_array_size(units->value);
    for (size_t list = 0; list <= unit_count; list++) {
        bp_json_at owner = owner_of(units, outside, list), items = bp_json_member(&owner, key);
        if (items.value != NULL)
            BP_TRY(bp_json_expect_list(&items));
        total += json_array_size(items.value);
    }
    item_place *places = calloc(total + 1, sizeof *places);
    if (places == NULL)
        return bp_fail_memory((total + 1) * sizeof *places);
    uint64_t next = 0;
    bp_status status = BP_OK;
    for (size_t list = 0; list <= unit_count; list++) {
        bp_json_at owner = owner_of(units, outside, list), items = bp_json_member(&owner, key);
        for (size_t i = 0; status == BP_OK && i < json_array_size(items.value); i++) {
            bp_json_at item = bp_json_element(&items, i);
            status = read_optional(&item, "position", 0, total - 1, &next);
            if (status == BP_OK && (next >= total || places[next].is_taken))
                status = bp_json_fail(&item, "place %llu of %zu is %s; see \"position\"", (unsigned long long)next,
                                      total, next < total ? "taken" : "none");
            if (status == BP_OK)
                places[next++] = (item_place){list, i, true};
        }
    }
    for (size_t i = 0; status == BP_OK && i < total; i++) {
        bp_json_at owner = owner_of(units, outside, places[i].list), items = bp_json_member(&owner, key);
        bp_json_at item = bp_json_element(&items, places[i].element);
        status = add(reader, &item, places[i].list < unit_count ? (int32_t)places[i].list : BP_OUTSIDE);
    }
    free(places);
    return status;
}

/* ---- documents --------------------------------------------------------------------------------------------------- */

/* The index of the unit that `at` names. */
static bp_status units_find(const units_reader *reader, const bp_json_at *at, uint32_t *unit)
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

/* Adds a unit without its parameters and buckets, which are added when all units are known. */
static bp_status units_add_unit(units_reader *reader, const bp_json_at *unit)
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
        BP_TRY(units_find(reader, &parent_at, &parent));
    if (bp_json_member(unit, "parameters").value != NULL && bp_json_member(unit, "buckets").value != NULL)
        return bp_json_fail(unit, "has parameters and buckets; a unit has one or the other");
    int32_t outer = parent_at.value != NULL ? (int32_t)parent : BP_OUTSIDE;
    BP_TRY(bp_json_fail_at(unit, bp_model_add_unit(reader->model, name, outer, &index)));
    if (json_object_set_new_nocheck(reader->units, name, json_integer((json_int_t)index)) != 0)
        return bp_fail_memory(strlen(name));
    return BP_OK;
}

static bp_status read_order(units_reader *reader, const bp_json_at *order)
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
        status = units_find(reader, &element, &units[i]);
    }
    if (status == BP_OK)
        status = bp_json_fail_at(order, bp_model_set_order(reader->model, units, count));
    free(units);
    return status;
}

static bp_status add_event(units_reader *reader, const bp_json_at *event)
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
    BP_TRY(units_find(reader, e.acquire ? &acquire : &release, &unit));
    e.unit = (int32_t)unit;
    BP_TRY(units_read_role(&role, UINT32_MAX, &e.role));

    /* a bucket by its ordinal, or by its name in the unit */
    uint64_t number = 0;
    const char *name = json_string_value(bucket.value);
    if (name != NULL) {
        const json_t *found = json_object_get(json_array_get(reader->buckets, unit), name);
        if (found == NULL)
            return bp_json_fail(
                &bucket, "unit \"%.*s\" has no bucket \"%.*s\" in this file; buckets made of parameters go by number",
                60, bp_model_get_info(reader->model)->units[unit].name, 60, name);
        e.bucket = (int32_t)json_integer_value(found);
    } else if (bucket.value != NULL) {
        BP_TRY(bp_json_whole(&bucket, 0, INT32_MAX, &number));
        e.bucket = (int32_t)number;
    }

    /* a lane by its name, or by the number of a runtime's own lane */
    name = json_string_value(lane.value);
    if (name != NULL) {
        e.lane = 0;
        while (lane_name(e.lane) != NULL && strcmp(name, lane_name(e.lane)) != 0)
            e.lane++;
        if (lane_name(e.lane) == NULL)
            return bp_json_fail(
                &lane, "unknown lane \"%.40s\"; known: gather, compute, reduce, outer_reduce, or a number below %u",
                name, BP_LANE_COUNT);
    } else if (lane.value != NULL) {
        BP_TRY(bp_json_whole(&lane, 0, BP_LANE_COUNT - 1, &number));
        e.lane = (uint32_t)number;
    }
    return bp_json_fail_at(event, bp_model_add_event(reader->model, &e));
}

static bp_status read_lists(units_reader *reader, const bp_json_at *root)
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
    for (size_t i = 0; i <= json_array_size(units.value); i++) {
        if (json_array_append_new(reader->buckets, json_object()) != 0)
            return bp_fail_memory(sizeof(json_t *));
    }
    BP_TRY(add_in_order(reader, &units, &outside, "parameters", units_add_parameter));
    BP_TRY(add_in_order(reader, &units, &outside, "buckets", units_add_bucket));
    BP_TRY(read_order(reader, &order));
    if (schedule.value != NULL)
        BP_TRY(bp_json_expect_list(&schedule));
    for (size_t i = 0; i < json_array_size(schedule.value); i++) {
        bp_json_at event = bp_json_element(&schedule, i);
        BP_TRY(add_event(reader, &event));
    }
    return BP_OK;
}

static bp_status create_model(units_reader *reader, const bp_json_at *root, const bp_reader_options *options)
{
    static const char *const known[] = {"format", "model", "units", "outside", "order", "schedule", NULL};
    BP_TRY(bp_json_expect_object(root, NULL));
    bp_json_at format_at = bp_json_member(root, "format"), model_at = bp_json_member(root, "model");
    const char *format = NULL, *given = NULL;
    BP_TRY(bp_json_name(&format_at, &format));
    if (strcmp(format, UNITS_FORMAT) != 0)
        return bp_json_fail_kind(&format_at, "\"" UNITS_FORMAT "\"");
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
    units_reader reader = {.units = json_object(), .buckets = json_array()};
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

/* ---- writing ----------------------------------------------------------------------------------------------------- */

/* Parameters, or explicit buckets, by unit. */
typedef struct unit_items {
    size_t *first;   /* of each unit, then of the persistent ones; SIZE_MAX: none */
    size_t *next;    /* the next item of the same unit; SIZE_MAX: none */
    size_t expected; /* an item with this index directly follows the previous one of the file and needs no "position" */
} unit_items;

typedef struct units_writer {
    const bp_model_info *model;
    unit_items parameters, buckets;
    bp_json_writer json;
} units_writer;

static bp_status check_name(const char *what, const char *name)
{
    if (bp_is_name(name))
        return BP_OK;
    return bp_fail(BP_ERR_INVALID_ARGUMENT,
                   "%s \"%.*s\" cannot be written: a name is UTF-8, not empty and without control characters", what,
                   BP_QUOTED, name);
}

static void add_true(units_writer *w, const char *key, bool is_set)
{
    if (is_set)
        bp_json_add_flag(&w->json, key, true);
}

static void add_positive(units_writer *w, const char *key, uint64_t number)
{
    if (number > 0)
        bp_json_add_number(&w->json, key, number);
}

static void add_role(units_writer *w, const char *key, uint32_t role)
{
    if (role < BP_ROLE_COUNT)
        bp_json_add_text(&w->json, key, bp_role_name((bp_role)role));
    else
        bp_json_add_number(&w->json, key, role);
}

static void end_item(units_writer *w, unit_items *items, size_t index)
{
    if (index != items->expected)
        bp_json_add_number(&w->json, "position", index);
    items->expected = index + 1;
    bp_json_end(&w->json);
}

static bp_status write_parameter(units_writer *w, size_t index)
{
    const bp_parameter *p = w->model->parameters[index];
    bp_json_writer *json = &w->json;
    BP_TRY(check_name("parameter", p->name));
    bp_json_add_object(json, NULL);
    bp_json_add_text(json, "name", p->name);
    bp_json_add_list(json, "shape");
    for (uint32_t i = 0; i < p->dims; i++)
        bp_json_add_number(json, NULL, p->shape[i]);
    bp_json_end(json);
    bp_json_add_text(json, "dtype", bp_dtype_name(p->dtype));
    if (p->copies > 1)
        bp_json_add_number(json, "copies", p->copies);
    add_true(w, "experts", p->flags & BP_PARAMETER_EXPERT_COPIES);
    add_true(w, "gemm", p->flags & BP_PARAMETER_GEMM);
    add_true(w, "frozen", p->flags & BP_PARAMETER_FROZEN);
    add_true(w, "prediction", p->flags & BP_PARAMETER_PREDICTION);
    add_true(w, "joint", p->flags & BP_PARAMETER_JOINT);
    if (p->tp_dim >= 0)
        bp_json_add_number(json, "tp_dim", (uint64_t)p->tp_dim);
    add_positive(w, "tp_parts", p->tp_parts);
    if (p->expert_dim >= 0)
        bp_json_add_number(json, "expert_dim", (uint64_t)p->expert_dim);
    end_item(w, &w->parameters, index);
    return BP_OK;
}

static bp_status write_bucket(units_writer *w, size_t index)
{
    const bp_given_bucket *b = w->model->given_buckets[index];
    bp_json_writer *json = &w->json;
    bp_json_add_object(json, NULL);
    if (b->name != NULL) {
        BP_TRY(check_name("bucket", b->name));
        bp_json_add_text(json, "name", b->name);
    }
    bp_json_add_text(json, "dtype", bp_dtype_name(b->dtype));
    bp_json_add_number(json, "numel", b->numel);
    add_positive(w, "padded_numel", b->padded_numel);
    add_true(w, "expert", b->expert);
    add_true(w, "frozen", b->frozen);
    if (b->roles != 0) {
        bp_json_add_list(json, "roles");
        for (uint32_t role = 0; role < ROLE_BITS; role++) {
            if (b->roles & BP_ROLE_BIT(role))
                add_role(w, NULL, role);
        }
        bp_json_end(json);
    }
    end_item(w, &w->buckets, index);
    return BP_OK;
}

/* Writes the items of a unit, or of "outside" for the index after the last unit. */
static bp_status write_items(units_writer *w, size_t unit)
{
    size_t parameter = w->parameters.first[unit], bucket = w->buckets.first[unit];
    if (parameter != SIZE_MAX && bucket != SIZE_MAX && unit < w->model->unit_count)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "unit \"%.*s\" cannot be written: it has parameters and buckets",
                       BP_QUOTED, w->model->units[unit].name);
    if (parameter != SIZE_MAX) {
        bp_json_add_list(&w->json, "parameters");
        for (; parameter != SIZE_MAX; parameter = w->parameters.next[parameter])
            BP_TRY(write_parameter(w, parameter));
        bp_json_end(&w->json);
    }
    if (bucket != SIZE_MAX) {
        bp_json_add_list(&w->json, "buckets");
        for (; bucket != SIZE_MAX; bucket = w->buckets.next[bucket])
            BP_TRY(write_bucket(w, bucket));
        bp_json_end(&w->json);
    }
    return BP_OK;
}

static bp_status write_units(units_writer *w)
{
    const bp_model_info *model = w->model;
    bp_json_add_list(&w->json, "units");
    for (size_t i = 0; i < model->unit_count; i++) {
        BP_TRY(check_name("unit", model->units[i].name));
        bp_json_add_object(&w->json, NULL);
        bp_json_add_text(&w->json, "name", model->units[i].name);
        if (model->units[i].parent != BP_OUTSIDE)
            bp_json_add_text(&w->json, "parent", model->units[model->units[i].parent].name);
        BP_TRY(write_items(w, i));
        bp_json_end(&w->json);
    }
    bp_json_end(&w->json);
    size_t outside = model->unit_count;
    if (w->parameters.first[outside] == SIZE_MAX && w->buckets.first[outside] == SIZE_MAX)
        return BP_OK;
    bp_json_add_object(&w->json, "outside");
    BP_TRY(write_items(w, outside));
    bp_json_end(&w->json);
    return BP_OK;
}

/* The order is written only if it differs from the model's default. */
static void write_order(units_writer *w)
{
    size_t count = w->model->order_count, expected = 0, units = w->model->unit_count;
    const uint32_t *order = w->model->order;
    bool is_default = true;
    for (size_t i = 0; i < units; i++) {
        if (w->model->units[i].parent == BP_OUTSIDE) {
            is_default = is_default && expected < count && order[expected] == i;
            expected++;
        }
    }
    if (is_default && expected == count)
        return;
    bp_json_add_list(&w->json, "order");
    for (size_t i = 0; i < count; i++)
        bp_json_add_text(&w->json, NULL, w->model->units[order[i]].name);
    bp_json_end(&w->json);
}

static void write_schedule(units_writer *w)
{
    bp_json_writer *json = &w->json;
    if (w->model->event_count > 0)
        bp_json_add_list(json, "schedule");
    for (size_t i = 0; i < w->model->event_count; i++) {
        const bp_model_event *e = w->model->events[i];
        bp_json_add_object(json, NULL);
        bp_json_add_text(json, e->acquire ? "acquire" : "release", w->model->units[e->unit].name);
        add_role(w, "role", e->role);
        if (e->bucket >= 0)
            bp_json_add_number(json, "bucket", (uint64_t)e->bucket);
        if (e->lane != BP_MODEL_EVENT_NO_LANE && lane_name(e->lane) != NULL)
            bp_json_add_text(json, "lane", lane_name(e->lane));
        else if (e->lane != BP_MODEL_EVENT_NO_LANE)
            bp_json_add_number(json, "lane", e->lane);
        bp_json_end(json);
    }
    if (w->model->event_count > 0)
        bp_json_end(json);
}

static bp_status init_items(unit_items *items, size_t units, size_t count)
{
    items->first = calloc(units + 1, sizeof *items->first);
    items->next = calloc(count + 1, sizeof *items->next);
    if (items->first == NULL || items->next == NULL)
        return bp_fail_memory((units + count + 2) * sizeof *items->first);
    for (size_t i = 0; i <= units; i++)
        items->first[i] = SIZE_MAX;
    return BP_OK;
}

/* Must be called from the last item to the first. */
static void prepend(unit_items *items, size_t index, size_t list)
{
    items->next[index] = items->first[list];
    items->first[list] = index;
}

static bp_status write_document(units_writer *w)
{
    const bp_model_info *model = w->model;
    size_t outside = model->unit_count;
    BP_TRY(init_items(&w->parameters, outside, model->parameter_count));
    BP_TRY(init_items(&w->buckets, outside, model->given_bucket_count));
    for (size_t i = model->parameter_count; i-- > 0;) {
        int32_t unit = model->parameters[i]->unit;
        prepend(&w->parameters, i, unit != BP_OUTSIDE ? (size_t)unit : outside);
    }
    for (size_t i = model->given_bucket_count; i-- > 0;) {
        int32_t unit = model->given_buckets[i]->unit;
        prepend(&w->buckets, i, unit != BP_OUTSIDE ? (size_t)unit : outside);
    }
    BP_TRY(check_name("model", model->name));
    bp_json_add_object(&w->json, NULL);
    bp_json_add_text(&w->json, "format", UNITS_FORMAT);
    bp_json_add_text(&w->json, "model", model->name);
    BP_TRY(write_units(w));
    write_order(w);
    write_schedule(w);
    bp_json_end(&w->json);
    return BP_OK;
}

bp_status bp_units_write(const bp_model *model, const char *path)
{
    if (path == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_units_write: path must not be NULL");
    BP_TRY(bp_model_validate(model));
    units_writer writer = {.model = bp_model_get_info(model), .json = {.layout = BP_JSON_FITTED}};
    bp_status status = write_document(&writer);
    if (status == BP_OK)
        status = bp_json_save(&writer.json, path);
    else
        free(writer.json.text);
    free(writer.parameters.first);
    free(writer.parameters.next);
    free(writer.buckets.first);
    free(writer.buckets.next);
    return status;
}
