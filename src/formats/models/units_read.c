/* Reads bucketpool.units/1. docs/formats.md describes the format. */
#include <bucketpool/formats.h>
#include <bucketpool/schedule.h>

#include <stdlib.h>
#include <string.h>

#include "core/fail.h"
#include "formats/models/reader.h"
#include "formats/models/units.h"

/* ---- parameters and buckets -------------------------------------------------------------------------------------- */

typedef bp_status add_item(bp_units_reader *reader, const bp_json_at *item, int32_t unit);

/* The item at a place of the model: an element of a unit's list. The list after those of all units is that of persistent parameters. */
typedef struct item_place {
    size_t list, element;
    bool is_taken;
} item_place;

/* A role: its name, or a number for a runtime's own. */
static bp_status units_role(const bp_json_at *at, uint64_t most, uint32_t *role)
{
    uint64_t number = 0;
    bp_role known = BP_ROLE_PARAM;
    if (json_is_integer(at->value)) {
        BP_TRY(bp_json_whole(at, 0, most, &number));
        *role = (uint32_t)number;
        return BP_OK;
    }
    const char *name = NULL;
    BP_TRY(bp_json_name(at, &name));
    BP_TRY(bp_json_fail_at(at, bp_role_parse(name, &known)));
    *role = (uint32_t)known;
    return BP_OK;
}

static bp_status units_items_read_shape(const bp_json_at *at, bp_parameter *parameter)
{
    BP_TRY(bp_json_expect_list(at));
    if (json_array_size(at->value) > BP_MAX_DIMS)
        return bp_json_fail(at, "%zu dimensions, at most %d are supported", json_array_size(at->value), BP_MAX_DIMS);
    parameter->dims = (uint32_t)json_array_size(at->value);
    for (uint32_t i = 0; i < parameter->dims; i++) {
        bp_json_at dimension = bp_json_element(at, i);
        BP_TRY(bp_json_whole(&dimension, 1, INT64_MAX, &parameter->shape[i]));
    }
    return BP_OK;
}

/* The optional member `key`; absent leaves *value alone. */
static bp_status read_optional(const bp_json_at *object, const char *key, uint64_t least, uint64_t most,
                               uint64_t *value)
{
    bp_json_at at = bp_json_member(object, key);
    return at.value != NULL ? bp_json_whole(&at, least, most, value) : BP_OK;
}

static bp_status read_dimension(const bp_json_at *object, const char *key, uint32_t dims, int32_t *dimension)
{
    uint64_t value = 0;
    if (bp_json_member(object, key).value == NULL)
        return BP_OK;
    BP_TRY(read_optional(object, key, 0, dims > 0 ? dims - 1 : 0, &value));
    *dimension = (int32_t)value; /* the model refuses a dimension of a scalar */
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

static bp_status units_items_add_parameter(bp_units_reader *reader, const bp_json_at *item, int32_t unit)
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
    BP_TRY(units_items_read_shape(&shape, &p));
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

static bp_status units_items_read_roles(const bp_json_at *at, uint32_t *roles)
{
    if (at->value == NULL)
        return BP_OK;
    BP_TRY(bp_json_expect_list(at));
    if (json_array_size(at->value) == 0)
        return bp_json_fail(at, "is empty; leave it out for all roles");
    for (size_t i = 0; i < json_array_size(at->value); i++) {
        bp_json_at element = bp_json_element(at, i);
        uint32_t role = 0;
        BP_TRY(units_role(&element, BP_ROLE_BITS - 1, &role));
        *roles |= BP_ROLE_BIT(role);
    }
    return BP_OK;
}

/* Notes a bucket's name for the schedule; an unnamed bucket is called as the model calls it. */
static bp_status note_bucket(const bp_units_reader *reader, const bp_json_at *item, const bp_given_bucket *bucket)
{
    json_t *units = reader->buckets;
    size_t outside = json_array_size(units) - 1;
    json_t *names = json_array_get(units, bucket->unit == BP_OUTSIDE ? outside : (size_t)bucket->unit);
    size_t ordinal = json_object_size(names);
    char number[32];
    snprintf(number, sizeof number, "bucket.%zu", ordinal);
    const char *name = bucket->name != NULL ? bucket->name : number;
    if (json_object_get(names, name) != NULL)
        return bp_json_fail(item, "bucket \"%.60s\" occurs twice in its unit", name);
    if (json_object_set_new_nocheck(names, name, json_integer((json_int_t)ordinal)) != 0)
        return bp_fail_memory(strlen(name));
    return BP_OK;
}

static bp_status units_items_add_bucket(bp_units_reader *reader, const bp_json_at *item, int32_t unit)
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
    BP_TRY(units_items_read_roles(&roles, &b.roles));
    BP_TRY(note_bucket(reader, item, &b));
    return bp_json_fail_at(item, bp_model_add_bucket(reader->model, &b));
}

static bp_json_at owner_of(const bp_json_at *units, const bp_json_at *outside, size_t list)
{
    return list < json_array_size(units->value) ? bp_json_element(units, list) : *outside;
}

/* Adds the sizes of all lists called `key`. */
static bp_status count_items(const bp_json_at *units, const bp_json_at *outside, const char *key, size_t *total)
{
    for (size_t list = 0; list <= json_array_size(units->value); list++) {
        bp_json_at owner = owner_of(units, outside, list), items = bp_json_member(&owner, key);
        if (items.value != NULL)
            BP_TRY(bp_json_expect_list(&items));
        *total += json_array_size(items.value);
    }
    return BP_OK;
}

/* Finds the place of every item: that of "position", without it the one behind the item before it in the file. */
static bp_status place_items(const bp_json_at *units, const bp_json_at *outside, const char *key, item_place *places,
                             size_t total)
{
    uint64_t next = 0;
    for (size_t list = 0; list <= json_array_size(units->value); list++) {
        bp_json_at owner = owner_of(units, outside, list), items = bp_json_member(&owner, key);
        for (size_t i = 0; i < json_array_size(items.value); i++) {
            bp_json_at item = bp_json_element(&items, i);
            BP_TRY(read_optional(&item, "position", 0, total - 1, &next));
            if (next >= total || places[next].is_taken)
                return bp_json_fail(&item, "place %llu of %zu is %s; see \"position\"", (unsigned long long)next, total,
                                    next < total ? "taken" : "none");
            places[next++] = (item_place){list, i, true};
        }
    }
    return BP_OK;
}

static bp_status add_in_order(bp_units_reader *reader, const bp_json_at *units, const bp_json_at *outside,
                              const char *key, add_item *add)
{
    size_t total = 0, unit_count = json_array_size(units->value);
    BP_TRY(count_items(units, outside, key, &total));
    item_place *places = calloc(total + 1, sizeof *places);
    if (places == NULL)
        return bp_fail_memory((total + 1) * sizeof *places);
    bp_status status = place_items(units, outside, key, places, total);
    for (size_t i = 0; status == BP_OK && i < total; i++) {
        bp_json_at owner = owner_of(units, outside, places[i].list), items = bp_json_member(&owner, key);
        bp_json_at item = bp_json_element(&items, places[i].element);
        status = add(reader, &item, places[i].list < unit_count ? (int32_t)places[i].list : BP_OUTSIDE);
    }
    free(places);
    return status;
}

/* Adds the parameters and the buckets of all units and of `outside`, which may be absent, to the model. */
static bp_status units_add_items(bp_units_reader *reader, const bp_json_at *units, const bp_json_at *outside)
{
    for (size_t i = 0; i <= json_array_size(units->value); i++) {
        if (json_array_append_new(reader->buckets, json_object()) != 0)
            return bp_fail_memory(sizeof(json_t *));
    }
    BP_TRY(add_in_order(reader, units, outside, "parameters", units_items_add_parameter));
    return add_in_order(reader, units, outside, "buckets", units_items_add_bucket);
}

/* ---- documents --------------------------------------------------------------------------------------------------- */

/* The index of the unit that `at` names. */
static bp_status units_find(const bp_units_reader *reader, const bp_json_at *at, uint32_t *unit)
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
        BP_TRY(units_find(reader, &parent_at, &parent));
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
        status = units_find(reader, &element, &units[i]);
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
    BP_TRY(units_find(reader, e.acquire ? &acquire : &release, &unit));
    e.unit = (int32_t)unit;
    BP_TRY(units_role(&role, UINT32_MAX, &e.role));
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
    BP_TRY(units_add_items(reader, &units, &outside));
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
