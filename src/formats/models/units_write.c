/* Models as bucketpool.units/1. docs/formats.md describes every member. */
#include <bucketpool/formats.h>

#include <stdlib.h>

#include "core/fail.h"
#include "files/json_writer.h"
#include "formats/file.h"
#include "formats/models/units.h"

/* Parameters, or given buckets, by unit. */
typedef struct unit_items {
    size_t *first;   /* of each unit, then of those outside units; SIZE_MAX: none */
    size_t *next;    /* the next item of the same unit, SIZE_MAX: none */
    size_t expected; /* an item with this index follows the one before it in the file, so that it needs no position */
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

/* Ends an item. */
static void end_item(units_writer *w, unit_items *items, size_t index)
{
    if (index != items->expected)
        bp_json_add_number(&w->json, "position", index);
    items->expected = index + 1;
    bp_json_end(&w->json);
}

static bp_status write_parameter(units_writer *w, size_t index)
{
    const bp_parameter *p = &w->model->parameters[index];
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
    const bp_given_bucket *b = &w->model->given_buckets[index];
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
        for (uint32_t role = 0; role < BP_ROLE_BITS; role++) {
            if (b->roles & BP_ROLE_BIT(role))
                add_role(w, NULL, role);
        }
        bp_json_end(json);
    }
    end_item(w, &w->buckets, index);
    return BP_OK;
}

/* Writes the items of a unit, or of "outside" with the index behind the last unit. */
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

/* The order is written when it is not the one that a model has by itself. */
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

static void write_event(units_writer *w, const bp_model_event *e)
{
    bp_json_writer *json = &w->json;
    bp_json_add_object(json, NULL);
    bp_json_add_text(json, e->acquire ? "acquire" : "release", w->model->units[e->unit].name);
    add_role(w, "role", e->role);
    if (e->bucket >= 0)
        bp_json_add_number(json, "bucket", (uint64_t)e->bucket);
    if (e->lane != BP_MODEL_EVENT_NO_LANE && bp_units_lane_name(e->lane) != NULL)
        bp_json_add_text(json, "lane", bp_units_lane_name(e->lane));
    else if (e->lane != BP_MODEL_EVENT_NO_LANE)
        bp_json_add_number(json, "lane", e->lane);
    bp_json_end(json);
}

static void write_schedule(units_writer *w)
{
    if (w->model->event_count == 0)
        return;
    bp_json_add_list(&w->json, "schedule");
    for (size_t i = 0; i < w->model->event_count; i++)
        write_event(w, &w->model->events[i]);
    bp_json_end(&w->json);
}

/* ---- items by unit --------------------------------------------------------------------------------------------------------- */

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

/* Called from the last item to the first. */
static void prepend(unit_items *items, size_t index, size_t list)
{
    items->next[index] = items->first[list];
    items->first[list] = index;
}

static bp_status init_writer(units_writer *w)
{
    const bp_model_info *model = w->model;
    size_t outside = model->unit_count;
    BP_TRY(init_items(&w->parameters, outside, model->parameter_count));
    BP_TRY(init_items(&w->buckets, outside, model->given_bucket_count));
    for (size_t i = model->parameter_count; i-- > 0;) {
        int32_t unit = model->parameters[i].unit;
        prepend(&w->parameters, i, unit != BP_OUTSIDE ? (size_t)unit : outside);
    }
    for (size_t i = model->given_bucket_count; i-- > 0;) {
        int32_t unit = model->given_buckets[i].unit;
        prepend(&w->buckets, i, unit != BP_OUTSIDE ? (size_t)unit : outside);
    }
    return BP_OK;
}

static bp_status write_document(units_writer *w)
{
    BP_TRY(init_writer(w));
    BP_TRY(check_name("model", w->model->name));
    bp_json_add_object(&w->json, NULL);
    bp_json_add_text(&w->json, "format", BP_UNITS_FORMAT);
    bp_json_add_text(&w->json, "model", w->model->name);
    BP_TRY(write_units(w));
    write_order(w);
    write_schedule(w);
    bp_json_end(&w->json);
    return BP_OK;
}

bp_status bp_units_write(const bp_model *model, const char *path)
{
    if (path == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_units_write: no path");
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
