/* SPDX-License-Identifier: Apache-2.0 */
/* Turns a family's table and a configuration into a model: compiles the table's expressions once, reads the fields, then
 * walks the layers. */
#include <bucketpool/core/fail.h>

#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "planner/model/arch_config.h"
#include "planner/model/expression.h"
#include "planner/model/families/families.h"
#include "planner/model/model.h"

/* A larger number means a hostile file: refusing it later would take minutes and gigabytes. */
#define MAX_LAYERS 100000
#define MAX_FIELDS 64
#define MAX_NAME 256

/* Scope slots before the family's own fields. */
enum { SLOT_LAYER, SLOT_PREDICTION, SLOT_HEAD, SLOT_LABELS, SLOTS };

/* One row of a table with its expressions compiled. */
typedef struct compiled_tensor {
    const bp_arch_tensor *row;
    bp_expression *shape[BP_MAX_DIMS];
    uint32_t dims;
    bp_expression *when, *copies, *bias, *split_parts;
    int32_t split; /* dimension, -1: replicated */
} compiled_tensor;

typedef struct compiled_table {
    compiled_tensor *tensors;
    size_t count, capacity;
} compiled_table;

typedef struct builder {
    const bp_arch_family *family;
    const bp_arch_config *config;
    const char *model_type;
    bp_model *model;
    bp_dtype dtype;
    const char *names[MAX_FIELDS];
    const char *labels[MAX_FIELDS]; /* the first key of a field that is read, else NULL */
    bp_value values[MAX_FIELDS];
    bp_expression *layer_fields[MAX_FIELDS]; /* by slot; NULL for fields that are read once */
    bp_scope scope;
    compiled_table first, last, other_heads, layer, prediction_first, prediction_last;
    int64_t layer_count;
    bool has_own_head; /* the tensors of BP_ARCH_HEAD */
    char prefix[32];   /* of the base model's names, which a model without head does not have: "model." */
} builder;

/* ---- compiling ---------------------------------------------------------------------------------------------------- */

static void destroy_table(compiled_table *table)
{
    for (size_t t = 0; t < table->count; t++) {
        compiled_tensor *tensor = &table->tensors[t];
        for (uint32_t i = 0; i < tensor->dims; i++)
            bp_expression_destroy(&tensor->shape[i]);
        bp_expression_destroy(&tensor->when);
        bp_expression_destroy(&tensor->copies);
        bp_expression_destroy(&tensor->bias);
        bp_expression_destroy(&tensor->split_parts);
    }
    free(table->tensors);
}

static bp_status compile_optional(const builder *b, const char *source, bp_expression **expression)
{
    return source != NULL ? bp_expression_create(source, &b->scope, expression) : BP_OK;
}

/* Appends the rows of one table (NULL: none). */
static bp_status compile_table(builder *b, const bp_arch_tensor *rows, compiled_table *table)
{
    for (const bp_arch_tensor *row = rows; row != NULL && row->name != NULL; row++) {
        BP_TRY(bp_grow_array((void **)&table->tensors, &table->capacity, table->count, sizeof *table->tensors));
        compiled_tensor *tensor = &table->tensors[table->count++];
        *tensor = (compiled_tensor){.row = row, .split = *row->split != '\0' ? row->split[0] - '0' : -1};

        /* Splits "heads*head_dim; hidden" at the semicolons. The pieces are stored with the model's strings, which live long enough. */
        const char *copy;
        BP_TRY(bp_strings_add(&b->model->strings, row->shape, &copy));
        char *rest = (char *)copy, *piece;
        while ((piece = strsep(&rest, ";")) != NULL) {
            if (tensor->dims == BP_MAX_DIMS)
                return bp_fail(BP_ERR_INTERNAL, "tensor %s has more than %d dimensions", row->name, BP_MAX_DIMS);
            BP_TRY(bp_expression_create(piece + strspn(piece, " "), &b->scope, &tensor->shape[tensor->dims]));
            tensor->dims++;
        }
        BP_TRY(compile_optional(b, row->when, &tensor->when));
        BP_TRY(compile_optional(b, row->copies, &tensor->copies));
        BP_TRY(compile_optional(b, row->bias, &tensor->bias));
        BP_TRY(compile_optional(b, strchr(row->split, ':') != NULL ? row->split + 2 : NULL, &tensor->split_parts));
    }
    return BP_OK;
}

/* ---- fields ------------------------------------------------------------------------------------------------------- */

static bp_status find_key(const bp_arch_config *config, const char *key, size_t length, bp_arch_entry *entry,
                          bool *found)
{
    *entry = (bp_arch_entry){0};
    *found = false;
    return config->find(config->context, key, length, entry, found);
}

static bp_status read_present(const bp_arch_field *field, const char *key, const bp_arch_entry *entry, bp_value *value)
{
    static const char *const expected[] = {
        "a positive integer", "an integer that is not negative",      "true or false",
        "a list or a text",   "a positive integer or a list of them", "an integer"};
    const bp_value *v = &entry->value;
    bool good = entry->unusable[0] == '\0';
    switch (field->kind) {
    case BP_FIELD_SIZE: good = good && v->kind == BP_VALUE_INT && v->number > 0; break;
    case BP_FIELD_COUNT: good = good && v->kind == BP_VALUE_INT && v->number >= 0; break;
    case BP_FIELD_FLAG: good = good && v->kind == BP_VALUE_INT && (v->number == 0 || v->number == 1); break;
    case BP_FIELD_INTEGER: good = good && v->kind == BP_VALUE_INT; break;
    case BP_FIELD_EACH: good = good && (v->kind == BP_VALUE_INTS || (v->kind == BP_VALUE_INT && v->number > 0)); break;
    default: good = good && v->kind != BP_VALUE_INT; break;
    }
    if (good) {
        *value = *v;
        return BP_OK;
    }
    char got[64];
    switch (v->kind) {
    case BP_VALUE_INT: snprintf(got, sizeof got, "%lld", (long long)v->number); break;
    case BP_VALUE_TEXT: snprintf(got, sizeof got, "\"%.40s\"", v->text); break;
    case BP_VALUE_INTS:
    case BP_VALUE_TEXTS: snprintf(got, sizeof got, "a list"); break;
    default: snprintf(got, sizeof got, "%.60s", entry->unusable); break;
    }
    return bp_fail(BP_ERR_INVALID_ARGUMENT, "field \"%s\": expected %s, got %s", key, expected[field->kind], got);
}

/* The value of `source` in the fields read so far; "-" means no value. */
static bp_status compute_field(builder *b, const char *source, bp_value *value)
{
    if (strcmp(source, "-") == 0) {
        *value = (bp_value){.kind = BP_VALUE_MISSING};
        return BP_OK;
    }
    bp_expression *expression;
    BP_TRY(bp_expression_create(source, &b->scope, &expression));
    bp_status status = bp_expression_value(expression, &b->scope, value);
    bp_expression_destroy(&expression);
    return status;
}

/* Two names of one field with different numbers: a note says which of them counts. */
static bp_status compare_alternative(const builder *b, const char *key, const bp_value *value, const char *other,
                                     const bp_arch_entry *entry)
{
    if (value->kind != BP_VALUE_INT || entry->value.kind != BP_VALUE_INT || value->number == entry->value.number)
        return BP_OK;
    char note[200];
    snprintf(note, sizeof note, "%.*s %lld differs from %.60s %lld, which was read", (int)strcspn(other, "|"), other,
             (long long)entry->value.number, key, (long long)value->number);
    return bp_model_add_note(b->model, note);
}

static bp_status read_field(builder *b, const bp_arch_field *field, bp_value *value)
{
    if (field->keys == NULL)
        return compute_field(b, field->missing, value);
    /* The first of the alternatives "a|b" that the configuration has, else one that is null. All are looked up, so that none of them
     * counts as unread. */
    char key[MAX_NAME];
    bool is_null = false, is_auto = false, has_read = false;
    snprintf(key, sizeof key, "%.*s", (int)strcspn(field->keys, "|"), field->keys);
    for (const char *at = field->keys; at != NULL; at = strchr(at, '|') != NULL ? strchr(at, '|') + 1 : NULL) {
        bp_arch_entry entry;
        bool found;
        size_t length = strcspn(at, "|");
        BP_TRY(find_key(b->config, at, length, &entry, &found));
        is_null = is_null || (found && entry.is_null);
        if (has_read && found && !is_auto)
            BP_TRY(compare_alternative(b, key, value, at, &entry));
        if (!found || entry.is_null || has_read)
            continue;
        has_read = true;
        snprintf(key, sizeof key, "%.*s", (int)length, at);
        /* "auto" asks for the value that is computed when the key is missing */
        is_auto =
            field->kind == BP_FIELD_SIZE && entry.value.kind == BP_VALUE_TEXT && strcmp(entry.value.text, "auto") == 0;
        if (!is_auto)
            BP_TRY(read_present(field, key, &entry, value));
    }
    if (has_read && !is_auto)
        return BP_OK;
    const char *source = is_null && !is_auto && field->null != NULL ? field->null : field->missing;
    if (source == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "field \"%s\" is %s; model_type \"%s\" requires it", key,
                       is_null || is_auto ? "null" : "missing", b->model_type);
    return compute_field(b, source, value);
}

/* ---- heads -------------------------------------------------------------------------------------------------------- */

/* Finds "a" among the texts "a|b" separated by '|'. */
static bool is_among(const char *texts, const char *text)
{
    size_t length = strlen(text);
    for (const char *at = texts; at != NULL; at = strchr(at, '|') != NULL ? strchr(at, '|') + 1 : NULL) {
        if (strcspn(at, "|") == length && strncmp(at, text, length) == 0)
            return true;
    }
    return false;
}

static bool ends_with_one(const char *name, const char *ends)
{
    for (const char *at = ends; at != NULL; at = strchr(at, '|') != NULL ? strchr(at, '|') + 1 : NULL) {
        size_t length = strcspn(at, "|");
        if (strlen(name) >= length && strncmp(name + strlen(name) - length, at, length) == 0)
            return true;
    }
    return false;
}

static bool contains_one(const char *name, const char *const *parts)
{
    while (*parts != NULL && strstr(name, *parts) == NULL)
        parts++;
    return *parts != NULL;
}

/* The head of a class, by the end of its name: LlamaForCausalLM, Qwen3ForSequenceClassification, T5EncoderModel, MistralModel. A class
 * with another end has the family's own head if its name says so, else none; then *is_known is false. */
static const char *head_of(const bp_arch_family *family, const char *name, bool *is_known)
{
    static const struct {
        const char *end, *head;
    } ends[] = {{"ForSequenceClassification", "sequence"},
                {"ForTokenClassification", "token"},
                {"ForQuestionAnswering", "question"},
                {"EncoderModel", "encoder"},
                {"Model", "none"}};
    static const char *const own[] = {"CausalLM", "ConditionalGeneration", "LMHead", "MaskedLM", "PreTraining", NULL};
    static const char *const added[] = {"Reward", "Critic", "Value", "Classif", "Rank", "Heads", NULL};
    const char *heads = family->heads != NULL ? family->heads : "none|sequence|token|question";
    const char *classes =
        family->classes != NULL ? family->classes : "ForCausalLM|ForConditionalGeneration|LMHeadModel";
    *is_known = true;
    if (ends_with_one(name, classes))
        return "lm";
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        bool adds = strcmp(ends[i].end, "Model") == 0 && contains_one(name, added);
        if (ends_with_one(name, ends[i].end) && is_among(heads, ends[i].head) && !adds)
            return ends[i].head;
    }
    *is_known = false;
    return contains_one(name, own) ? "lm" : "none";
}

/* Sets `head`, `labels` and the prefix of names. A configuration without "architectures" has the family's own head. */
static bp_status architecture_read_head(builder *b)
{
    static const bp_arch_field labels = {"labels", "num_labels|id2label.#", BP_FIELD_SIZE, "2", "2"};
    const char *head = "lm", *class = NULL;
    bool is_known = true, found;
    bp_arch_entry entry;
    BP_TRY(find_key(b->config, "architectures", strlen("architectures"), &entry, &found));
    if (found && entry.value.kind == BP_VALUE_TEXTS && entry.value.length > 0)
        class = entry.value.texts[0];
    if (class != NULL)
        head = head_of(b->family, class, &is_known);
    b->has_own_head = strcmp(head, "lm") == 0;
    b->values[SLOT_HEAD] = (bp_value){.kind = BP_VALUE_TEXT, .text = head, .length = strlen(head)};
    b->values[SLOT_LABELS] = (bp_value){.kind = BP_VALUE_INT, .number = 2};
    if (!b->has_own_head)
        BP_TRY(read_field(b, &labels, &b->values[SLOT_LABELS]));

    /* MistralModel has "layers.0" where MistralForCausalLM has "model.layers.0". */
    size_t base = strcspn(b->family->layer_name, ".") + 1;
    if ((strcmp(head, "none") == 0 || strcmp(head, "encoder") == 0) && base < sizeof b->prefix &&
        strncmp(b->family->first->name, b->family->layer_name, base) == 0)
        memcpy(b->prefix, b->family->layer_name, base);
    if (is_known)
        return BP_OK;
    char note[256];
    snprintf(note, sizeof note, "architectures names %.100s, a class that is not known: planned %s", class,
             b->has_own_head ? "with the head of language models" : "without a head");
    return bp_model_add_note(b->model, note);
}

/* ---- the configuration -------------------------------------------------------------------------------------------- */

static bp_status architecture_read_fields(builder *b)
{
    b->names[SLOT_LAYER] = "layer";
    b->names[SLOT_PREDICTION] = "prediction";
    b->names[SLOT_HEAD] = "head";
    b->names[SLOT_LABELS] = "labels";
    b->values[SLOT_LAYER] = b->values[SLOT_PREDICTION] = (bp_value){.kind = BP_VALUE_INT};
    b->scope = (bp_scope){b->names, b->values, SLOTS, b->labels};
    BP_TRY(architecture_read_head(b));
    for (const bp_arch_field *field = b->family->fields; field->name != NULL; field++) {
        size_t slot = b->scope.count;
        if (slot == MAX_FIELDS)
            return bp_fail(BP_ERR_INTERNAL, "family %s has more than %d fields", b->family->model_types[0], MAX_FIELDS);
        if (field->kind == BP_FIELD_LAYER || field->kind == BP_FIELD_CHECK)
            BP_TRY(bp_expression_create(field->missing, &b->scope, &b->layer_fields[slot]));
        else
            BP_TRY(read_field(b, field, &b->values[slot]));
        b->names[slot] = field->name;
        if (field->keys != NULL && field->kind != BP_FIELD_CHECK) {
            char first[MAX_NAME];
            snprintf(first, sizeof first, "%.*s", (int)strcspn(field->keys, "|"), field->keys);
            BP_TRY(bp_strings_add(&b->model->strings, first, &b->labels[slot]));
        }
        b->scope.count++;
    }
    return BP_OK;
}

/* ---- tensors ------------------------------------------------------------------------------------------------------ */

static bp_status holds(const builder *b, const bp_expression *condition, bool otherwise, bool *truth)
{
    int64_t number = otherwise;
    if (condition != NULL)
        BP_TRY(bp_expression_number(condition, &b->scope, &number));
    *truth = number != 0;
    return BP_OK;
}

static bp_status positive(const builder *b, const bp_expression *expression, const char *tensor, int64_t max,
                          int64_t *number)
{
    BP_TRY(bp_expression_number(expression, &b->scope, number));
    if (*number < 1 || *number > max)
        return bp_fail(*number < 1 ? BP_ERR_INVALID_ARGUMENT : BP_ERR_OVERFLOW, "tensor %s: a size of %lld is %s",
                       tensor, (long long)*number, *number < 1 ? "not positive" : "too large");
    return BP_OK;
}

static bp_status architecture_add_tensor(builder *b, const compiled_tensor *tensor, const char *prefix, int32_t unit,
                                         uint32_t flags)
{
    bool there, has_bias;
    const bp_arch_tensor *row = tensor->row;
    BP_TRY(holds(b, tensor->when, true, &there));
    if (!there || (row->flags & BP_ARCH_HEAD && !b->has_own_head))
        return BP_OK;
    char name[MAX_NAME];
    bool linear = (row->flags & BP_ARCH_LINEAR) != 0, absolute = *row->name == '^';
    const char *before = absolute ? "" : prefix, *own_name = row->name + absolute;
    if (*before == '\0' && strncmp(own_name, b->prefix, strlen(b->prefix)) == 0)
        own_name += strlen(b->prefix);
    snprintf(name, sizeof name, "%s%s%s", before, own_name, linear ? ".weight" : "");
    bp_parameter p;
    BP_TRY(bp_parameter_init(&p, sizeof p));
    p.name = name;
    p.unit = unit;
    p.dims = tensor->dims;
    p.dtype = b->dtype;
    p.flags = flags | (unit != BP_OUTSIDE && row->flags & BP_ARCH_GEMM ? BP_PARAMETER_GEMM : 0);
    p.expert_dim = row->flags & BP_ARCH_EXPERT_STACK ? 0 : -1;
    p.tp_dim = tensor->split;
    int64_t number;
    for (uint32_t i = 0; i < tensor->dims; i++) {
        BP_TRY(positive(b, tensor->shape[i], name, INT64_MAX, &number));
        p.shape[i] = (uint64_t)number;
    }
    if (tensor->copies != NULL) {
        BP_TRY(positive(b, tensor->copies, name, UINT32_MAX, &number));
        p.copies = (uint32_t)number;
        if (!(row->flags & BP_ARCH_PLAIN_COPIES))
            p.flags |= BP_PARAMETER_EXPERT_COPIES;
    }
    if (tensor->split_parts != NULL) {
        BP_TRY(positive(b, tensor->split_parts, name, UINT32_MAX, &number));
        p.tp_parts = (uint32_t)number;
    }
    BP_TRY(bp_model_add_parameter(b->model, &p));
    BP_TRY(holds(b, tensor->bias, false, &has_bias));
    if (!has_bias)
        return BP_OK;
    snprintf(name, sizeof name, "%s%s.bias", before, own_name);
    p.dims = 1;
    p.flags &= ~(uint32_t)BP_PARAMETER_GEMM;
    if (p.tp_dim != 0) { /* a row-parallel weight has a replicated bias */
        p.tp_dim = -1;
        p.tp_parts = 0;
    }
    return bp_model_add_parameter(b->model, &p);
}

static bp_status add_table(builder *b, const compiled_table *table, const char *prefix, int32_t unit, uint32_t flags)
{
    for (size_t i = 0; i < table->count; i++)
        BP_TRY(architecture_add_tensor(b, &table->tensors[i], prefix, unit, flags));
    return BP_OK;
}

static bp_status count_layers(builder *b, const char *source, int64_t *count)
{
    *count = 0;
    if (source == NULL)
        return BP_OK;
    bp_value value;
    BP_TRY(compute_field(b, source, &value));
    if (value.number > MAX_LAYERS)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%lld layers; at most %d are supported", (long long)value.number,
                       MAX_LAYERS);
    *count = value.number;
    return BP_OK;
}

static bp_status add_layer(builder *b, int64_t layer, int64_t prediction)
{
    const bp_arch_family *family = b->family;
    bool predicts = prediction >= 0;
    const char *stack = family->layer_name;
    int64_t number = layer;
    if (predicts && family->prediction_name != NULL) {
        stack = family->prediction_name;
        number = prediction;
    } else if (!predicts && layer >= b->layer_count) {
        stack = family->decoder_name;
        number = layer - b->layer_count;
    }
    if (strncmp(stack, b->prefix, strlen(b->prefix)) == 0)
        stack += strlen(b->prefix);
    char name[MAX_NAME], prefix[MAX_NAME + 1];
    snprintf(name, sizeof name, "%s%lld", stack, (long long)number);
    snprintf(prefix, sizeof prefix, "%s.", name);
    uint32_t unit, flags = predicts ? BP_PARAMETER_PREDICTION : 0;
    BP_TRY(bp_model_add_unit(b->model, name, BP_OUTSIDE, &unit));
    b->values[SLOT_PREDICTION].number = predicts ? prediction : 0;
    b->values[SLOT_LAYER].number = layer;
    for (size_t slot = SLOTS; slot < b->scope.count; slot++) {
        if (b->layer_fields[slot] == NULL)
            continue;
        BP_TRY(bp_expression_value(b->layer_fields[slot], &b->scope, &b->values[slot]));
        const bp_arch_field *field = &family->fields[slot - SLOTS];
        if (field->kind == BP_FIELD_CHECK && b->values[slot].number == 0)
            return bp_fail(BP_ERR_INVALID_ARGUMENT, "layer %lld %s", (long long)layer, field->keys);
    }
    if (predicts)
        BP_TRY(add_table(b, &b->prediction_first, prefix, (int32_t)unit, flags | BP_PARAMETER_JOINT));
    BP_TRY(add_table(b, &b->layer, prefix, (int32_t)unit, flags));
    return predicts ? add_table(b, &b->prediction_last, prefix, (int32_t)unit, flags | BP_PARAMETER_JOINT) : BP_OK;
}

/* Publishers' names for the number of multi-token prediction layers. */
static const char *const prediction_keys[] = {"num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules",
                                              "num_mtp_layers", "mtp_num_layers"};

/* Looks the fields up, so that they do not count as unread. */
static bp_status look_up_ignored(const builder *b)
{
    for (const char *at = b->family->ignored; at != NULL; at = strchr(at, '|') != NULL ? strchr(at, '|') + 1 : NULL) {
        bp_arch_entry entry;
        bool found;
        BP_TRY(find_key(b->config, at, strcspn(at, "|"), &entry, &found));
    }
    return BP_OK;
}

static bp_status architecture_build(builder *b)
{
    const bp_arch_family *family = b->family;
    int64_t layers, decoder_layers, predictions;
    BP_TRY(architecture_read_fields(b));
    BP_TRY(look_up_ignored(b));
    BP_TRY(compile_table(b, family->first, &b->first));
    for (int i = 0; i < BP_ARCH_BLOCKS && family->layer[i] != NULL; i++)
        BP_TRY(compile_table(b, family->layer[i], &b->layer));
    BP_TRY(compile_table(b, family->prediction_first, &b->prediction_first));
    BP_TRY(compile_table(b, family->prediction_last, &b->prediction_last));
    BP_TRY(compile_table(b, family->last, &b->last));
    BP_TRY(compile_table(b, family->other_heads != NULL ? family->other_heads : bp_arch_classifiers, &b->other_heads));
    BP_TRY(count_layers(b, "layers", &layers));
    BP_TRY(count_layers(b, family->decoder_layers, &decoder_layers));
    BP_TRY(count_layers(b, family->predictions, &predictions));
    b->layer_count = layers;
    if (layers < 1)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "the model has no layers");
    BP_TRY(add_table(b, &b->first, "", BP_OUTSIDE, 0));
    for (int64_t i = 0; i < layers + decoder_layers; i++)
        BP_TRY(add_layer(b, i, -1));
    for (int64_t i = 0; i < predictions; i++)
        BP_TRY(add_layer(b, layers + i, i));
    BP_TRY(add_table(b, &b->last, "", BP_OUTSIDE, 0));
    BP_TRY(add_table(b, &b->other_heads, "", BP_OUTSIDE, 0));

    /* A note says which prediction layers of the configuration the family's table does not count. */
    for (size_t i = 0; family->predictions == NULL && i < sizeof prediction_keys / sizeof *prediction_keys; i++) {
        bp_arch_entry entry;
        bool found;
        BP_TRY(find_key(b->config, prediction_keys[i], strlen(prediction_keys[i]), &entry, &found));
        if (!found || entry.value.kind != BP_VALUE_INT || entry.value.number < 1)
            continue;
        char note[160];
        snprintf(note, sizeof note, "not counted: %lld multi-token prediction layer%s (%s)",
                 (long long)entry.value.number, entry.value.number == 1 ? "" : "s", prediction_keys[i]);
        BP_TRY(bp_model_add_note(b->model, note));
    }
    return BP_OK;
}

/* ---- the list of families ----------------------------------------------------------------------------------------- */

/* Selection: the smallest name that is larger than the one before, index + 1 times. */
const char *bp_arch_model_type(size_t index)
{
    const char *last = "", *next;
    do {
        next = NULL;
        for (const bp_arch_family *const *table = bp_arch_families; *table != NULL; table++) {
            for (const bp_arch_family *family = *table; family->source != NULL; family++) {
                for (const char *const *type = family->model_types; *type != NULL; type++) {
                    if (strcmp(*type, last) > 0 && (next == NULL || strcmp(*type, next) < 0))
                        next = *type;
                }
            }
        }
        last = next;
    } while (next != NULL && index-- > 0);
    return next;
}

static bp_status find_family(builder *b)
{
    bp_arch_entry entry;
    bool found;
    BP_TRY(find_key(b->config, "model_type", strlen("model_type"), &entry, &found));
    if (!found || entry.value.kind != BP_VALUE_TEXT)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "field \"model_type\" is %s", found ? "not a text" : "missing");
    b->model_type = entry.value.text;
    for (const bp_arch_family *const *table = bp_arch_families; *table != NULL; table++) {
        for (const bp_arch_family *family = *table; family->source != NULL; family++) {
            for (const char *const *type = family->model_types; *type != NULL; type++) {
                if (strcmp(*type, b->model_type) == 0) {
                    b->family = family;
                    return BP_OK;
                }
            }
        }
    }
    return bp_fail(
        BP_ERR_UNSUPPORTED,
        "unknown model_type \"%.60s\"; plan the model's safetensors, or the units.json that "
        "`python3 -m bucketpool describe CONFIG -o units.json` writes (docs/reference/models.md lists the known types)",
        b->model_type);
}

bp_status bp_model_from_architecture(const char *name, const bp_arch_config *config, bp_dtype dtype, bp_model **model)
{
    if (config == NULL || model == NULL || bp_dtype_bits(dtype) == 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_model_from_architecture: needs a configuration and a dtype");
    builder b = {.config = config, .dtype = dtype};
    BP_TRY(find_family(&b));
    BP_TRY(bp_model_create(name, &b.model));
    bp_status status = architecture_build(&b);
    for (size_t i = 0; i < MAX_FIELDS; i++)
        bp_expression_destroy(&b.layer_fields[i]);
    destroy_table(&b.first);
    destroy_table(&b.last);
    destroy_table(&b.other_heads);
    destroy_table(&b.layer);
    destroy_table(&b.prediction_first);
    destroy_table(&b.prediction_last);
    if (status != BP_OK) {
        bp_model_destroy(&b.model);
        return status;
    }
    bp_model_set_published(b.model);
    *model = b.model;
    return BP_OK;
}
