#include <bucketpool/formats.h>

#include <stdlib.h>

#include "core/fail.h"
#include "formats/detail.h"
#include "formats/units.h"

/* A document in the making. jansson's setters take ownership and fail on NULL, so one flag at the end covers every
 * allocation; names have been checked before. */
typedef struct units_writer {
    const bp_model_info *model;
    json_t *root, *units;
    bool has_failed;
} units_writer;

static void set(units_writer *writer, json_t *object, const char *key, json_t *value)
{
    if (json_object_set_new(object, key, value) != 0)
        writer->has_failed = true;
}

static void append(units_writer *writer, json_t *list, json_t *value)
{
    if (json_array_append_new(list, value) != 0)
        writer->has_failed = true;
}

static void set_whole(units_writer *writer, json_t *object, const char *key, uint64_t value)
{
    set(writer, object, key, json_integer((json_int_t)value));
}

static void set_true(units_writer *writer, json_t *object, const char *key, uint32_t is_set)
{
    if (is_set != 0)
        set(writer, object, key, json_true());
}

/* The list `key` of a unit or of "outside", made when it is first asked for. */
static json_t *list_of(units_writer *writer, int32_t unit, const char *key)
{
    json_t *owner =
        unit != BP_OUTSIDE ? json_array_get(writer->units, (size_t)unit) : json_object_get(writer->root, "outside");
    if (owner == NULL) {
        set(writer, writer->root, "outside", json_object());
        owner = json_object_get(writer->root, "outside");
    }
    if (json_object_get(owner, key) == NULL)
        set(writer, owner, key, json_array());
    return json_object_get(owner, key);
}

static bp_status check_name(const char *what, const char *name)
{
    if (bp_is_name(name))
        return BP_OK;
    return bp_fail(BP_ERR_INVALID_ARGUMENT,
                   "%s \"%.*s\" cannot be written: a name is UTF-8, not empty and without control characters", what,
                   BP_QUOTED, name);
}

static bp_status add_units(units_writer *writer)
{
    for (size_t i = 0; i < writer->model->unit_count; i++) {
        const char *name = writer->model->units[i].name;
        BP_TRY(check_name("unit", name));
        json_t *unit = json_object();
        set(writer, unit, "name", json_string(name));
        int32_t parent = writer->model->units[i].parent;
        if (parent != BP_OUTSIDE)
            set(writer, unit, "parent", json_string(writer->model->units[parent].name));
        append(writer, writer->units, unit);
    }
    return BP_OK;
}

static bp_status add_parameter(units_writer *writer, size_t index)
{
    bp_parameter p = writer->model->parameters[index];
    BP_TRY(check_name("parameter", p.name));
    json_t *item = json_object(), *shape = json_array();
    for (uint32_t i = 0; i < p.dims; i++)
        append(writer, shape, json_integer((json_int_t)p.shape[i]));
    set(writer, item, "name", json_string(p.name));
    set(writer, item, "shape", shape);
    set(writer, item, "dtype", json_string(bp_dtype_name(p.dtype)));
    if (p.copies > 1)
        set_whole(writer, item, "copies", p.copies);
    set_true(writer, item, "experts", p.flags & BP_PARAMETER_EXPERT_COPIES);
    set_true(writer, item, "gemm", p.flags & BP_PARAMETER_GEMM);
    set_true(writer, item, "frozen", p.flags & BP_PARAMETER_FROZEN);
    set_true(writer, item, "prediction", p.flags & BP_PARAMETER_PREDICTION);
    set_true(writer, item, "joint", p.flags & BP_PARAMETER_JOINT);
    if (p.tp_dim >= 0)
        set_whole(writer, item, "tp_dim", (uint64_t)p.tp_dim);
    if (p.tp_parts > 0)
        set_whole(writer, item, "tp_parts", p.tp_parts);
    if (p.expert_dim >= 0)
        set_whole(writer, item, "expert_dim", (uint64_t)p.expert_dim);
    set_whole(writer, item, "position", index);
    append(writer, list_of(writer, p.unit, "parameters"), item);
    return BP_OK;
}

static bp_status add_bucket(units_writer *writer, size_t index)
{
    bp_given_bucket b = writer->model->given_buckets[index];
    if (b.name != NULL)
        BP_TRY(check_name("bucket", b.name));
    json_t *owner = json_array_get(writer->units, (size_t)(uint32_t)b.unit);
    if (b.unit != BP_OUTSIDE && json_object_get(owner, "parameters") != NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "unit \"%.*s\" cannot be written: it has parameters and buckets",
                       BP_QUOTED, writer->model->units[b.unit].name);
    json_t *item = json_object(), *roles = json_array();
    if (b.name != NULL)
        set(writer, item, "name", json_string(b.name));
    set(writer, item, "dtype", json_string(bp_dtype_name(b.dtype)));
    set_whole(writer, item, "numel", b.numel);
    if (b.padded_numel > 0)
        set_whole(writer, item, "padded_numel", b.padded_numel);
    set_true(writer, item, "expert", b.expert);
    set_true(writer, item, "frozen", b.frozen);
    for (uint32_t role = 0; role < BP_ROLE_BITS; role++) {
        if (b.roles & BP_ROLE_BIT(role))
            append(writer, roles, role < BP_ROLE_COUNT ? json_string(bp_role_name((bp_role)role)) : json_integer(role));
    }
    if (b.roles != 0)
        set(writer, item, "roles", roles);
    else
        json_decref(roles);
    set_whole(writer, item, "position", index);
    append(writer, list_of(writer, b.unit, "buckets"), item);
    return BP_OK;
}

/* An item that follows the one before it in the file needs no position. */
static void drop_positions(const units_writer *writer, const char *key)
{
    json_int_t next = 0;
    for (size_t i = 0; i <= json_array_size(writer->units); i++) {
        const json_t *owner = i < json_array_size(writer->units) ? json_array_get(writer->units, i)
                                                                 : json_object_get(writer->root, "outside");
        const json_t *items = json_object_get(owner, key);
        for (size_t k = 0; k < json_array_size(items); k++) {
            json_t *item = json_array_get(items, k);
            json_int_t position = json_integer_value(json_object_get(item, "position"));
            if (position == next)
                json_object_del(item, "position");
            next = position + 1;
        }
    }
}

/* The order is written when it is not the one that a model has by itself. */
static void add_order(units_writer *writer)
{
    size_t count = writer->model->order_count, expected = 0, units = writer->model->unit_count;
    const uint32_t *order = writer->model->order;
    bool is_default = true;
    for (size_t i = 0; i < units; i++) {
        if (writer->model->units[i].parent == BP_OUTSIDE) {
            is_default = is_default && expected < count && order[expected] == i;
            expected++;
        }
    }
    if (is_default && expected == count)
        return;
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++)
        append(writer, list, json_string(writer->model->units[order[i]].name));
    set(writer, writer->root, "order", list);
}

static void add_schedule(units_writer *writer)
{
    size_t count = writer->model->event_count;
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++) {
        bp_model_event e = writer->model->events[i];
        json_t *event = json_object();
        set(writer, event, e.acquire ? "acquire" : "release", json_string(writer->model->units[e.unit].name));
        set(writer, event, "role",
            e.role < BP_ROLE_COUNT ? json_string(bp_role_name((bp_role)e.role)) : json_integer(e.role));
        if (e.bucket >= 0)
            set_whole(writer, event, "bucket", (uint64_t)e.bucket);
        if (e.lane != BP_MODEL_EVENT_NO_LANE)
            set(writer, event, "lane",
                bp_units_lane_name(e.lane) != NULL ? json_string(bp_units_lane_name(e.lane)) : json_integer(e.lane));
        append(writer, list, event);
    }
    if (count > 0)
        set(writer, writer->root, "schedule", list);
    else
        json_decref(list);
}

static bp_status fill_document(units_writer *writer)
{
    const char *name = writer->model->name;
    BP_TRY(check_name("model", name));
    set(writer, writer->root, "format", json_string(BP_UNITS_FORMAT));
    set(writer, writer->root, "model", json_string(name));
    set(writer, writer->root, "units", json_incref(writer->units));
    BP_TRY(add_units(writer));
    for (size_t i = 0; i < writer->model->parameter_count; i++)
        BP_TRY(add_parameter(writer, i));
    for (size_t i = 0; i < writer->model->given_bucket_count; i++)
        BP_TRY(add_bucket(writer, i));
    drop_positions(writer, "parameters");
    drop_positions(writer, "buckets");
    add_order(writer);
    add_schedule(writer);
    return BP_OK;
}

bp_status bp_units_write(const bp_model *model, const char *path)
{
    if (path == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_units_write: no path");
    BP_TRY(bp_model_validate(model));
    units_writer writer = {.model = bp_model_get_info(model), .root = json_object(), .units = json_array()};
    bp_status status =
        writer.root != NULL && writer.units != NULL ? fill_document(&writer) : bp_fail_memory(sizeof(json_t));
    if (status == BP_OK && writer.has_failed)
        status = bp_fail_memory(sizeof(json_t));
    if (status == BP_OK)
        status = bp_json_write(writer.root, path);
    json_decref(writer.units);
    json_decref(writer.root);
    return status;
}
