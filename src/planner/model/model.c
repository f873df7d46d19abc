/* SPDX-License-Identifier: Apache-2.0 */
/* bp_model: adds units, parameters, buckets and events, with validation; shows the contents. */
#include "planner/model/model.h"

#include <bucketpool/core/arith.h>
#include <bucketpool/core/fail.h>
#include <bucketpool/core/structs.h>
#include <bucketpool/schedule.h>

#include <stdlib.h>
#include <string.h>

#include "core/text.h"
#include "planner/model/arch_config.h"

/* Sizes stay below 2^63 bits, so that sums of a few of them cannot wrap and signed callers are safe. */
#define LARGEST_BITS (UINT64_MAX >> 1)

static const bp_parameter default_parameter = {
    .size = sizeof default_parameter, .unit = BP_OUTSIDE, .copies = 1, .tp_dim = -1, .expert_dim = -1};
static const bp_given_bucket default_bucket = {.size = sizeof default_bucket, .unit = BP_OUTSIDE};
static const bp_model_event default_event = {
    .size = sizeof default_event, .bucket = -1, .lane = BP_MODEL_EVENT_NO_LANE};

bp_status bp_parameter_init(bp_parameter *parameter, size_t size)
{
    return bp_struct_init("bp_parameter_init", parameter, size, &default_parameter, sizeof default_parameter);
}

/* Updates the public info; called after every change. */
static void model_publish(bp_model *model)
{
    model->info = (bp_model_info){.name = model->name,
                                  .unit_count = model->unit_count,
                                  .units = model->units,
                                  .parameter_count = model->parameter_count,
                                  .parameters = model->parameters,
                                  .given_bucket_count = model->bucket_count,
                                  .given_buckets = model->buckets,
                                  .event_count = model->event_count,
                                  .events = model->events,
                                  .order_count = model->order_count,
                                  .order = model->order,
                                  .note_count = model->note_count,
                                  .notes = model->notes,
                                  .numel = model->numel,
                                  .prediction_numel = model->prediction_numel,
                                  .published = model->published};
}

/* Publishes the arrays because growing may move them, and the caller may fail before it publishes. */
static bp_status model_make_room(bp_model *model, void **array, size_t *capacity, size_t count, size_t element_bytes)
{
    bp_status status = bp_grow_array(array, capacity, count, element_bytes);
    model_publish(model);
    return status;
}

/* Puts a copy of an element, which stays where it is, after the last one; model_count makes it the last. */
static bp_status model_append(bp_model *model, const void ***array, size_t *capacity, size_t count, const void *element,
                              size_t bytes)
{
    BP_TRY(model_make_room(model, (void **)array, capacity, count, sizeof **array));
    void *copy;
    BP_TRY(bp_new_array(1, bytes, &copy));
    (*array)[count] = memcpy(copy, element, bytes);
    return BP_OK;
}

/* Counts the appended element, or drops it where the rest of the call failed. */
static bp_status model_count(const void **array, size_t *count, bp_status status)
{
    if (status == BP_OK)
        ++*count;
    else
        free((void *)array[*count]);
    return status;
}

static void model_free(const void **array, size_t count)
{
    for (size_t i = 0; i < count; i++)
        free((void *)array[i]);
    free((void *)array);
}

const bp_model_info *bp_model_get_info(const bp_model *model)
{
    return model != NULL ? &model->info : NULL;
}

bp_status bp_model_create(const char *name, bp_model **model)
{
    if (name == NULL || *name == '\0' || model == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_model_create: a model needs a name");
    void *memory;
    BP_TRY(bp_new_array(1, sizeof(bp_model), &memory));
    bp_model *created = memory;
    bp_status status = bp_strings_add(&created->strings, name, &created->name);
    if (status != BP_OK) {
        bp_model_destroy(&created);
        return status;
    }
    model_publish(created);
    *model = created;
    return BP_OK;
}

void bp_model_destroy(bp_model **model)
{
    if (model == NULL || *model == NULL)
        return;
    bp_strings_finish(&(*model)->strings);
    free((*model)->units);
    model_free((const void **)(*model)->parameters, (*model)->parameter_count);
    model_free((const void **)(*model)->buckets, (*model)->bucket_count);
    model_free((const void **)(*model)->events, (*model)->event_count);
    free((*model)->order);
    free((void *)(*model)->notes);
    free(*model);
    *model = NULL;
}

bp_status bp_model_add_unit(bp_model *model, const char *name, int32_t parent, uint32_t *unit)
{
    if (model == NULL || name == NULL || *name == '\0')
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_model_add_unit: a unit needs a model and a name");
    if (parent < BP_OUTSIDE || (parent >= 0 && (size_t)parent >= model->unit_count))
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "unit \"%s\": parent %d is not an earlier unit", name, parent);
    if (model->unit_count >= INT32_MAX)
        return bp_fail(BP_ERR_OVERFLOW, "more than %d units", INT32_MAX);
    BP_TRY(
        model_make_room(model, (void **)&model->units, &model->unit_capacity, model->unit_count, sizeof *model->units));
    if (!model->order_is_set && parent == BP_OUTSIDE)
        BP_TRY(model_make_room(model, (void **)&model->order, &model->order_capacity, model->order_count,
                               sizeof *model->order));
    bp_unit *added = &model->units[model->unit_count];
    BP_TRY(bp_strings_add(&model->strings, name, &added->name));
    added->parent = parent;
    if (!model->order_is_set && parent == BP_OUTSIDE)
        model->order[model->order_count++] = (uint32_t)model->unit_count;
    if (unit != NULL)
        *unit = (uint32_t)model->unit_count;
    model->unit_count++;
    model_publish(model);
    return BP_OK;
}

static bp_status check_unit(const bp_model *model, const char *what, const char *name, int32_t unit)
{
    if (unit >= BP_OUTSIDE && (unit < 0 || (size_t)unit < model->unit_count))
        return BP_OK;
    return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s \"%s\": unit %d does not exist, there are %zu", what, name, unit,
                   model->unit_count);
}

/* Adds `numel` elements of `bits` bits to the model's totals. Errors: BP_ERR_OVERFLOW. */
static bp_status add_to_totals(bp_model *model, const char *what, const char *name, uint64_t numel, uint32_t bits,
                               int prediction)
{
    uint64_t total_bits, total;
    if (!bp_mul_u64(numel, bits, &total_bits) || total_bits > LARGEST_BITS)
        return bp_fail(BP_ERR_OVERFLOW, "%s \"%s\": %llu elements of %u bits are too large", what, name,
                       (unsigned long long)numel, bits);
    uint64_t *counter = prediction ? &model->prediction_numel : &model->numel;
    if (!bp_add_u64(*counter, numel, &total) || total > LARGEST_BITS / 64)
        return bp_fail(BP_ERR_OVERFLOW, "%s \"%s\": the model's total size does not fit 63 bits", what, name);
    *counter = total;
    return BP_OK;
}

uint64_t bp_parameter_numel(const bp_parameter *parameter)
{
    uint64_t numel = 1;
    for (uint32_t i = 0; i < parameter->dims; i++)
        numel *= parameter->shape[i];
    return numel;
}

bp_status bp_model_add_parameter(bp_model *model, const bp_parameter *parameter)
{
    bp_parameter p = default_parameter;
    BP_TRY(bp_struct_read("bp_model_add_parameter", parameter, false, &p, sizeof p));
    if (model == NULL || p.name == NULL || *p.name == '\0')
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_model_add_parameter: a parameter needs a model and a name");
    BP_TRY(check_unit(model, "parameter", p.name, p.unit));
    if (bp_dtype_bits(p.dtype) == 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "parameter \"%s\": unknown dtype %d", p.name, (int)p.dtype);
    if (p.dims > BP_MAX_DIMS)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "parameter \"%s\": %u dimensions, at most %d are supported", p.name,
                       p.dims, BP_MAX_DIMS);
    if (p.tp_dim >= (int32_t)p.dims || p.expert_dim >= (int32_t)p.dims)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "parameter \"%s\": splits dimension %d of %u", p.name,
                       p.tp_dim > p.expert_dim ? p.tp_dim : p.expert_dim, p.dims);
    if (p.copies > BP_MAX_COPIES)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "parameter \"%s\": %u copies, at most %d are supported", p.name,
                       p.copies, BP_MAX_COPIES);
    if (p.copies > 1 && strchr(p.name, '*') == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "parameter \"%s\": %u copies need a '*' in the name", p.name, p.copies);
    if (p.copies == 0)
        p.copies = 1;
    uint64_t numel = p.copies;
    for (uint32_t i = 0; i < p.dims; i++) {
        if (p.shape[i] == 0)
            return bp_fail(BP_ERR_INVALID_ARGUMENT, "parameter \"%s\": dimension %u is 0", p.name, i);
        if (!bp_mul_u64(numel, p.shape[i], &numel))
            return bp_fail(BP_ERR_OVERFLOW, "parameter \"%s\": the product of its dimensions does not fit 64 bits",
                           p.name);
    }
    BP_TRY(bp_strings_add(&model->strings, p.name, &p.name));
    BP_TRY(model_append(model, (const void ***)&model->parameters, &model->parameter_capacity, model->parameter_count,
                        &p, sizeof p));
    BP_TRY(model_count(
        (const void **)model->parameters, &model->parameter_count,
        add_to_totals(model, "parameter", p.name, numel, bp_dtype_bits(p.dtype), p.flags & BP_PARAMETER_PREDICTION)));
    model_publish(model);
    return BP_OK;
}

bp_status bp_model_add_bucket(bp_model *model, const bp_given_bucket *bucket)
{
    bp_given_bucket b = default_bucket;
    BP_TRY(bp_struct_read("bp_model_add_bucket", bucket, false, &b, sizeof b));
    if (model == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_model_add_bucket: model must not be NULL");
    const char *name = b.name != NULL ? b.name : "(unnamed)";
    BP_TRY(check_unit(model, "bucket", name, b.unit));
    if (bp_dtype_bits(b.dtype) == 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bucket \"%s\": unknown dtype %d", name, (int)b.dtype);
    if (b.padded_numel != 0 && b.padded_numel < b.numel)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bucket \"%s\": padded_numel %llu is smaller than numel %llu", name,
                       (unsigned long long)b.padded_numel, (unsigned long long)b.numel);
    if (b.name != NULL)
        BP_TRY(bp_strings_add(&model->strings, b.name, &b.name));
    uint64_t padding = b.padded_numel > b.numel ? b.padded_numel - b.numel : 0;
    if (padding > LARGEST_BITS / 64)
        return bp_fail(BP_ERR_OVERFLOW, "bucket \"%s\": padded_numel %llu is too large", name,
                       (unsigned long long)b.padded_numel);
    BP_TRY(model_append(model, (const void ***)&model->buckets, &model->bucket_capacity, model->bucket_count, &b,
                        sizeof b));
    BP_TRY(model_count((const void **)model->buckets, &model->bucket_count,
                       add_to_totals(model, "bucket", name, b.numel, bp_dtype_bits(b.dtype), 0)));
    model_publish(model);
    return BP_OK;
}

bp_status bp_model_add_event(bp_model *model, const bp_model_event *event)
{
    bp_model_event e = default_event;
    BP_TRY(bp_struct_read("bp_model_add_event", event, false, &e, sizeof e));
    if (model == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_model_add_event: model must not be NULL");
    if (e.unit < 0 || (size_t)e.unit >= model->unit_count)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "event %zu: unit %d does not exist, there are %zu", model->event_count,
                       e.unit, model->unit_count);
    if (e.lane >= BP_LANE_COUNT && e.lane != BP_MODEL_EVENT_NO_LANE)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "event %zu: lane %u, there are %u", model->event_count, e.lane,
                       BP_LANE_COUNT);
    BP_TRY(
        model_append(model, (const void ***)&model->events, &model->event_capacity, model->event_count, &e, sizeof e));
    model->event_count++;
    model_publish(model);
    return BP_OK;
}

bp_status bp_model_set_order(bp_model *model, const uint32_t *units, size_t count)
{
    if (model == NULL || units == NULL || count == 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_model_set_order: an order needs a model and at least one unit");
    void *memory;
    BP_TRY(bp_new_array(model->unit_count, 1, &memory));
    unsigned char *seen = memory;
    for (size_t i = 0; i < count; i++) {
        if (units[i] >= model->unit_count) {
            free(seen);
            return bp_fail(BP_ERR_INVALID_ARGUMENT, "order: entry %zu is unit %u, there are %zu units", i, units[i],
                           model->unit_count);
        }
        seen[units[i]] = 1;
    }
    for (size_t u = 0; u < model->unit_count; u++) {
        if (!seen[u] && model->units[u].parent == BP_OUTSIDE) {
            free(seen);
            return bp_fail(BP_ERR_INVALID_ARGUMENT, "order: unit \"%s\" never runs", model->units[u].name);
        }
    }
    free(seen);
    BP_TRY(bp_new_array(count, sizeof *units, &memory));
    free(model->order);
    model->order = memcpy(memory, units, count * sizeof *units);
    model->order_count = model->order_capacity = count;
    model->order_is_set = 1;
    model_publish(model);
    return BP_OK;
}

static int model_compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Finds a name that occurs twice: BP_ERR_INVALID_ARGUMENT naming it. */
static bp_status check_unique(const char **names, size_t count, const char *what)
{
    qsort(names, count, sizeof *names, model_compare_names);
    for (size_t i = 1; i < count; i++) {
        if (strcmp(names[i - 1], names[i]) == 0)
            return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s \"%s\" occurs twice", what, names[i]);
    }
    return BP_OK;
}

static int compare_buckets(const void *a, const void *b)
{
    const bp_given_bucket *x = *(const bp_given_bucket *const *)a, *y = *(const bp_given_bucket *const *)b;
    if (x->unit != y->unit)
        return x->unit < y->unit ? -1 : 1;
    if (x->name == NULL || y->name == NULL)
        return (x->name != NULL) - (y->name != NULL);
    return strcmp(x->name, y->name);
}

bp_status bp_model_validate(const bp_model *model)
{
    if (model == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_model_validate: no model");
    if (model->parameter_count == 0 && model->bucket_count == 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "model \"%s\" is empty: it has no parameters and no buckets",
                       model->name);
    void *memory;
    BP_TRY(bp_new_array(model->parameter_count + model->unit_count, sizeof(char *), &memory));
    const char **names = memory;
    for (size_t i = 0; i < model->parameter_count; i++)
        names[i] = model->parameters[i]->name;
    bp_status status = check_unique(names, model->parameter_count, "parameter");
    for (size_t i = 0; i < model->unit_count; i++)
        names[i] = model->units[i].name;
    if (status == BP_OK)
        status = check_unique(names, model->unit_count, "unit");
    free(names);
    BP_TRY(status);

    /* given names are unique in their unit */
    BP_TRY(bp_new_array(model->bucket_count, sizeof(bp_given_bucket *), &memory));
    const bp_given_bucket **sorted = memory;
    for (size_t i = 0; i < model->bucket_count; i++)
        sorted[i] = model->buckets[i];
    qsort(sorted, model->bucket_count, sizeof *sorted, compare_buckets);
    for (size_t i = 1; status == BP_OK && i < model->bucket_count; i++) {
        if (sorted[i]->name != NULL && compare_buckets(&sorted[i - 1], &sorted[i]) == 0)
            status = bp_fail(BP_ERR_INVALID_ARGUMENT, "bucket \"%s\" occurs twice in unit \"%s\"", sorted[i]->name,
                             sorted[i]->unit >= 0 ? model->units[sorted[i]->unit].name : "(outside)");
    }
    free(sorted);
    return status;
}

bp_status bp_model_add_note(bp_model *model, const char *note)
{
    if (model == NULL || note == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_model_add_note: model and note must not be NULL");
    BP_TRY(
        model_make_room(model, (void **)&model->notes, &model->note_capacity, model->note_count, sizeof *model->notes));
    BP_TRY(bp_strings_add(&model->strings, note, &model->notes[model->note_count]));
    bp_make_printable((char *)model->notes[model->note_count]); /* notes quote names from files */
    model->note_count++;
    model_publish(model);
    return BP_OK;
}

void bp_model_set_published(bp_model *model)
{
    model->published = 1;
    model_publish(model);
}

bp_status bp_model_copy_frame(const bp_model *model, bp_model **out)
{
    bp_model *copy;
    BP_TRY(bp_model_create(model->name, &copy));
    bp_status status = BP_OK;
    for (size_t i = 0; status == BP_OK && i < model->unit_count; i++)
        status = bp_model_add_unit(copy, model->units[i].name, model->units[i].parent, NULL);
    if (status == BP_OK && model->order_is_set)
        status = bp_model_set_order(copy, model->order, model->order_count);
    for (size_t i = 0; status == BP_OK && i < model->bucket_count; i++)
        status = bp_model_add_bucket(copy, model->buckets[i]);
    for (size_t i = 0; status == BP_OK && i < model->event_count; i++)
        status = bp_model_add_event(copy, model->events[i]);
    for (size_t i = 0; status == BP_OK && i < model->note_count; i++)
        status = bp_model_add_note(copy, model->notes[i]);
    if (model->published)
        bp_model_set_published(copy);
    if (status != BP_OK) {
        bp_model_destroy(&copy);
        return status;
    }
    *out = copy;
    return BP_OK;
}
