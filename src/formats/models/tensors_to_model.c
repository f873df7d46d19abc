/* SPDX-License-Identifier: Apache-2.0 */
/* Makes a model of a checkpoint's tensors: units from the tensors' names, and copies of experts. */
#include <bucketpool/core/fail.h>

#include <ctype.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "formats/file.h"
#include "formats/models/reader.h"
#include "planner/model/arch_config.h"

/* ---- names of units ---------------------------------------------------------------------------------------------- */

/* Units are found by patterns of parameter names, such as "layers.N,layers.N.experts.N". */

#define DEFAULT_UNITS "layers.N,h.N,blocks.N"
#define MAX_PATTERNS 16 /* also the deepest nesting of units */

typedef struct bp_unit_pattern {
    const char *text;
    const char *rest; /* the part after the enclosing pattern; without one, all of it */
    int outer;        /* index of the longest pattern that is a prefix of this one; -1: none */
} bp_unit_pattern;

typedef struct bp_unit_patterns {
    char *text;
    size_t count;
    bp_unit_pattern patterns[MAX_PATTERNS];
} bp_unit_patterns;

/* A unit that contains a name. */
typedef struct bp_unit_match {
    size_t begin, end; /* the match is name[begin, end), the unit's name is name[0, end) */
    int pattern;
} bp_unit_match;

/* Bytes of a component: up to a dot or the end. */
static size_t component_bytes(const char *text)
{
    return strcspn(text, ".");
}

/* Errors: BP_ERR_INVALID_ARGUMENT (an empty pattern or component, too many patterns). */
static bp_status unit_patterns_init(bp_unit_patterns *patterns, const char *given)
{
    const char *list = given != NULL ? given : DEFAULT_UNITS;
    *patterns = (bp_unit_patterns){.text = strdup(list)};
    if (patterns->text == NULL)
        return bp_fail_memory(strlen(list) + 1);
    char *next = patterns->text, *text;
    while ((text = strsep(&next, ",")) != NULL) {
        text += strspn(text, " ");
        size_t bytes = strlen(text);
        while (bytes > 0 && text[bytes - 1] == ' ')
            text[--bytes] = '\0';
        bp_status status = BP_OK;
        if (bytes == 0 || text[0] == '.' || text[bytes - 1] == '.' || strstr(text, "..") != NULL || !bp_is_name(text))
            status = bp_fail(
                BP_ERR_INVALID_ARGUMENT,
                "units: \"%.60s\" is not a pattern; expected names with dots and N for a number, as in " DEFAULT_UNITS,
                text);
        else if (patterns->count == MAX_PATTERNS)
            status = bp_fail(BP_ERR_INVALID_ARGUMENT, "units: more than %d patterns", MAX_PATTERNS);
        if (status != BP_OK) {
            free(patterns->text);
            return status;
        }
        patterns->patterns[patterns->count++] = (bp_unit_pattern){.text = text, .rest = text, .outer = -1};
    }

    for (size_t i = 0; i < patterns->count; i++) {
        bp_unit_pattern *inner = &patterns->patterns[i];
        for (size_t o = 0; o < patterns->count; o++) {
            size_t bytes = strlen(patterns->patterns[o].text);
            const char *rest = inner->text + bytes + 1;
            if (strncmp(inner->text, patterns->patterns[o].text, bytes) == 0 && inner->text[bytes] == '.' &&
                rest > inner->rest) {
                inner->rest = rest;
                inner->outer = (int)o;
            }
        }
    }
    return BP_OK;
}

/* Bytes of `name` that `pattern` matches at its beginning; 0: no match. Another component must follow: a unit is a
 * module, not a tensor. */
static size_t match_here(const char *pattern, const char *name)
{
    const char *at = name;
    for (;;) {
        size_t wanted = component_bytes(pattern), found = component_bytes(at);
        bool is_match = wanted == found && memcmp(pattern, at, found) == 0;
        if (wanted == 1 && *pattern == 'N') /* digits of a module number, few enough for an integer */
            is_match = found > 0 && found <= 9 && strspn(at, "0123456789") == found;
        if (!is_match || at[found] == '\0')
            return 0;
        at += found;
        pattern += wanted;
        if (*pattern == '\0')
            return (size_t)(at - name);
        at++;
        pattern++;
    }
}

/* The earliest match of a pattern nested in `outer`, searched from `from`. */
static bool find_match(const bp_unit_patterns *patterns, int outer, const char *name, size_t from, bp_unit_match *match)
{
    bool found = false;
    size_t at = from;
    for (;;) {
        for (size_t i = 0; i < patterns->count; i++) {
            size_t bytes = patterns->patterns[i].outer == outer ? match_here(patterns->patterns[i].rest, name + at) : 0;
            if (bytes > 0 && (!found || at + bytes < match->end)) {
                *match = (bp_unit_match){at, at + bytes, (int)i};
                found = true;
            }
        }
        at += component_bytes(name + at);
        if (name[at] == '\0' || (found && at >= match->end))
            return found;
        at++;
    }
}

/* The units that contain `name`, outermost first; returns their number. */
static size_t match_units(const bp_unit_patterns *patterns, const char *name, bp_unit_match matches[MAX_PATTERNS])
{
    size_t count = 0, from = 0;
    int outer = -1;
    while (count < MAX_PATTERNS && find_match(patterns, outer, name, from, &matches[count])) {
        outer = matches[count].pattern;
        from = matches[count].end + 1;
        count++;
    }
    return count;
}

int bp_compare_natural(const char *left, const char *right)
{
    const char *a = left, *b = right;
    while (*a != '\0' && *b != '\0') {
        if (!isdigit((unsigned char)*a) || !isdigit((unsigned char)*b)) {
            if (*a != *b)
                return (unsigned char)*a < (unsigned char)*b ? -1 : 1;
            a++;
            b++;
            continue;
        }
        a += strspn(a, "0");
        b += strspn(b, "0");
        size_t digits_a = strspn(a, "0123456789"), digits_b = strspn(b, "0123456789");
        if (digits_a != digits_b)
            return digits_a < digits_b ? -1 : 1;
        int order = memcmp(a, b, digits_a);
        if (order != 0)
            return order;
        a += digits_a;
        b += digits_b;
    }
    return *a != *b ? (*a == '\0' ? -1 : 1) : strcmp(left, right);
}

#define NO_UNIT SIZE_MAX

typedef struct bp_tensor_unit {
    const char *name; /* owned by `names` below */
    size_t bytes;     /* of the name */
    size_t outer;     /* index in `units`, NO_UNIT: outermost */
    size_t stack;     /* units with the same pattern and prefix form a stack; stacks are in order of appearance */
    const struct bp_tensor_unit *outer_unit;
} bp_tensor_unit;

typedef struct bp_tensor_units {
    bp_tensor_unit *units; /* in order of appearance */
    size_t count, capacity;
    size_t *order;          /* indices of `units`: outer before inner, by stack, then by number */
    size_t *of_tensor;      /* for each tensor the index of its innermost unit, or NO_UNIT */
    json_t *names, *stacks; /* name -> index, as jansson's objects are hash tables */
} bp_tensor_units;

/* ---- units ------------------------------------------------------------------------------------------------------- */

/* The index of `key` in `map`; a new key gets `count`. *name (may be NULL) is the map's copy of the key. */
static bp_status map_find_or_add(json_t *map, const char *key, size_t count, size_t *index, const char **name)
{
    json_t *found = json_object_get(map, key);
    if (found == NULL && json_object_set_new_nocheck(map, key, json_integer((json_int_t)count)) != 0)
        return bp_fail_memory(strlen(key));
    *index = found != NULL ? (size_t)json_integer_value(found) : count;
    *name = json_object_iter_key(json_object_iter_at(map, key));
    return BP_OK;
}

static bp_status tensor_units_add_unit(bp_tensor_units *units, const char *name, const bp_unit_match *match,
                                       const char *pattern, size_t outer)
{
    if (units->count == units->capacity) {
        size_t wanted = units->capacity > 0 ? 2 * units->capacity : 64;
        bp_tensor_unit *larger = realloc(units->units, wanted * sizeof *larger);
        if (larger == NULL)
            return bp_fail_memory(wanted * sizeof *larger);
        units->units = larger;
        units->capacity = wanted;
    }
    bp_tensor_unit added = {.bytes = match->end, .outer = outer};
    const char *unused = NULL;
    size_t index = 0;
    char *stack, *key; /* prefix and pattern identify a stack */
    if (asprintf(&stack, "%.*s%s", (int)match->begin, name, pattern) < 0)
        // NOLINTNEXTLINE(clang-analyzer-core.NonNullParamChecker): a match has a pattern
        return bp_fail_memory(match->begin + strlen(pattern) + 1);
    bp_status status = map_find_or_add(units->stacks, stack, json_object_size(units->stacks), &added.stack, &unused);
    free(stack);
    if (status != BP_OK)
        return status;
    if ((key = strndup(name, match->end)) == NULL)
        return bp_fail_memory(match->end + 1);
    status = map_find_or_add(units->names, key, units->count, &index, &added.name);
    free(key);
    if (status == BP_OK)
        units->units[units->count++] = added;
    return status;
}

static bp_status find_units_of(bp_tensor_units *units, const bp_unit_patterns *patterns, const char *name,
                               size_t *innermost)
{
    bp_unit_match matches[MAX_PATTERNS];
    size_t depth = match_units(patterns, name, matches), outer = NO_UNIT;
    for (size_t i = 0; i < depth; i++) {
        json_t *known = json_object_getn(units->names, name, matches[i].end);
        if (known == NULL)
            BP_TRY(tensor_units_add_unit(units, name, &matches[i], patterns->patterns[matches[i].pattern].text, outer));
        outer = known != NULL ? (size_t)json_integer_value(known) : units->count - 1;
    }
    *innermost = outer;
    return BP_OK;
}

/* `unit` and its enclosing units, outermost first; returns their number. */
static size_t lineage(const bp_tensor_unit *unit, const bp_tensor_unit *line[MAX_PATTERNS])
{
    size_t depth = 0;
    for (const bp_tensor_unit *u = unit; u != NULL; u = u->outer_unit)
        depth++;
    for (size_t i = depth; i > 0; i--, unit = unit->outer_unit)
        line[i - 1] = unit;
    return depth;
}

static int compare_units(const void *a, const void *b, void *context)
{
    const bp_tensor_unit *all = context, *left[MAX_PATTERNS], *right[MAX_PATTERNS];
    size_t left_depth = lineage(&all[*(const size_t *)a], left), right_depth = lineage(&all[*(const size_t *)b], right);
    for (size_t i = 0; i < left_depth && i < right_depth; i++) {
        if (left[i] == right[i])
            continue;
        if (left[i]->stack != right[i]->stack)
            return left[i]->stack < right[i]->stack ? -1 : 1;
        return bp_compare_natural(left[i]->name, right[i]->name);
    }
    return left_depth < right_depth ? -1 : left_depth > right_depth;
}

static bp_status sort_units(bp_tensor_units *units)
{
    units->order = calloc(units->count + 1, sizeof *units->order);
    if (units->order == NULL)
        return bp_fail_memory((units->count + 1) * sizeof *units->order);
    for (size_t i = 0; i < units->count; i++) {
        bp_tensor_unit *unit = &units->units[i];
        unit->outer_unit = unit->outer != NO_UNIT ? &units->units[unit->outer] : NULL;
        units->order[i] = i;
    }
    if (units->count > 0)
        qsort_r(units->order, units->count, sizeof *units->order, compare_units, units->units);
    return BP_OK;
}

static void tensor_units_finish(bp_tensor_units *units)
{
    free(units->units);
    free(units->order);
    free(units->of_tensor);
    json_decref(units->names);
    json_decref(units->stacks);
    *units = (bp_tensor_units){0};
}

/* `patterns`: as in bp_reader_options. Errors: BP_ERR_INVALID_ARGUMENT for them, BP_ERR_NO_HOST_MEMORY. */
static bp_status tensor_units_init(bp_tensor_units *units, const bp_tensors *tensors, const char *patterns)
{
    bp_unit_patterns parsed;
    BP_TRY(unit_patterns_init(&parsed, patterns));
    *units = (bp_tensor_units){.names = json_object(), .stacks = json_object()};
    units->of_tensor = calloc(tensors->count + 1, sizeof *units->of_tensor);
    bp_status status = BP_OK;
    if (units->names == NULL || units->stacks == NULL || units->of_tensor == NULL)
        status = bp_fail_memory((tensors->count + 1) * sizeof *units->of_tensor);
    for (size_t i = 0; status == BP_OK && i < tensors->count; i++)
        status = find_units_of(units, &parsed, tensors->tensors[i].name, &units->of_tensor[i]);
    if (status == BP_OK)
        status = sort_units(units);
    free(parsed.text);
    if (status != BP_OK)
        tensor_units_finish(units);
    return status;
}

/* ---- the model --------------------------------------------------------------------------------------------------- */

#define NO_RUN SIZE_MAX

/* Tensors whose names differ only in the expert's number. */
typedef struct expert_run {
    const char *name; /* with '*' for the number; owned by `names` of the runs */
    size_t first;     /* index of its first tensor */
    size_t count;
    size_t largest; /* largest expert number */
    bool is_uniform;
} expert_run;

typedef struct expert_runs {
    expert_run *runs;
    size_t count;
    size_t *of_tensor; /* NO_RUN: not a tensor of an expert */
    json_t *names;
} expert_runs;

/* The number after the "experts" component of `name`, searched from `from` (after the unit's name). Numbers with
 * leading zeros do not count: two spellings of one number would hide a missing expert. */
static bool find_expert(const char *name, size_t from, size_t *begin, size_t *end, size_t *number)
{
    const char *digits = strstr(name + from, ".experts.");
    if (digits != NULL)
        digits += strlen(".experts.");
    else if (from == 0 && strncmp(name, "experts.", strlen("experts.")) == 0)
        digits = name + strlen("experts.");
    if (digits == NULL || strchr(name, '*') != NULL)
        return false;
    size_t bytes = strspn(digits, "0123456789");
    if (bytes == 0 || bytes > 6 || digits[bytes] != '.' || (bytes > 1 && *digits == '0'))
        return false;
    *begin = (size_t)(digits - name);
    *end = *begin + bytes;
    *number = (size_t)strtoul(digits, NULL, 10);
    return true;
}

static bp_status add_to_run(expert_runs *runs, const bp_tensors *tensors, size_t tensor, size_t unit_bytes)
{
    const char *name = tensors->tensors[tensor].name, *run_name = NULL;
    size_t begin = 0, end = 0, number = 0, index = 0;
    runs->of_tensor[tensor] = NO_RUN;
    if (!find_expert(name, unit_bytes, &begin, &end, &number))
        return BP_OK;
    char *key;
    if (asprintf(&key, "%.*s*%s", (int)begin, name, name + end) < 0)
        return bp_fail_memory(strlen(name));
    bp_status status = map_find_or_add(runs->names, key, runs->count, &index, &run_name);
    free(key);
    if (status != BP_OK)
        return status;
    if (index == runs->count)
        runs->runs[runs->count++] = (expert_run){.name = run_name, .first = tensor, .is_uniform = true};
    expert_run *run = &runs->runs[index];
    run->count++;
    run->largest = number > run->largest ? number : run->largest;
    const bp_tensor *a = &tensors->tensors[run->first], *b = &tensors->tensors[tensor];
    run->is_uniform = run->is_uniform && a->dtype == b->dtype && a->dims == b->dims &&
                      memcmp(a->shape, b->shape, sizeof a->shape) == 0;
    runs->of_tensor[tensor] = index;
    return BP_OK;
}

static void finish_runs(expert_runs *runs)
{
    free(runs->runs);
    free(runs->of_tensor);
    json_decref(runs->names);
}

static bp_status find_runs(expert_runs *runs, const bp_tensors *tensors, const bp_tensor_units *units)
{
    size_t count = tensors->count + 1;
    *runs = (expert_runs){.names = json_object()};
    runs->runs = calloc(count, sizeof *runs->runs);
    runs->of_tensor = calloc(count, sizeof *runs->of_tensor);
    bp_status status = BP_OK;
    if (runs->names == NULL || runs->runs == NULL || runs->of_tensor == NULL)
        status = bp_fail_memory(count * sizeof *runs->runs);
    for (size_t i = 0; status == BP_OK && i < tensors->count; i++) {
        size_t unit = units->of_tensor[i];
        // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): there are units where a tensor is in one
        status = add_to_run(runs, tensors, i, unit != NO_UNIT ? units->units[unit].bytes : 0);
    }
    if (status != BP_OK)
        finish_runs(runs);
    return status;
}

/* True for weights of matrix multiplications, by the names in published modelling code; `name` starts after the
 * unit's. */
static bool is_gemm(const char *name, uint32_t dims)
{
    static const char *const others[] = {"norm", "router", "gate.weight", "conv", "embed"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        if (strcasestr(name, others[i]) != NULL)
            return false;
    }
    return (bp_has_suffix(name, "weight") || bp_has_suffix(name, "_proj")) &&
           (dims == 2 || (dims == 3 && strstr(name, "experts.") != NULL));
}

static bp_status tensors_to_model_add_parameter(bp_model *model, const bp_tensor *tensor, const expert_run *run,
                                                const bp_tensor_unit *unit, int32_t in_model)
{
    bp_parameter parameter;
    BP_TRY(bp_parameter_init(&parameter, sizeof parameter));
    parameter.name = run != NULL ? run->name : tensor->name;
    parameter.unit = in_model;
    parameter.dtype = tensor->dtype;
    parameter.dims = tensor->dims;
    memcpy(parameter.shape, tensor->shape, sizeof parameter.shape);
    size_t begin = 0, end = 0, number = 0, unit_bytes = unit != NULL ? unit->bytes : 0;
    const char *in_unit = tensor->name + unit_bytes;
    if (unit != NULL && is_gemm(in_unit, tensor->dims))
        parameter.flags |= BP_PARAMETER_GEMM;
    if (run != NULL) {
        parameter.copies = (uint32_t)run->count;
        parameter.flags |= BP_PARAMETER_EXPERT_COPIES;
    } else if (tensor->dims >= 2 && strstr(in_unit, ".experts.") != NULL &&
               !find_expert(tensor->name, unit_bytes, &begin, &end, &number)) {
        parameter.expert_dim = 0; /* one tensor of all experts, stacked along its first dimension */
    }
    return bp_model_add_parameter(model, &parameter);
}

/* Sorts tensors by unit, in stable order; persistent ones come last. `starts` has an entry for each unit of the
 * model and two more. */
static void sort_by_unit(const bp_tensors *tensors, const bp_tensor_units *units, const uint32_t *in_model,
                         size_t *starts, size_t *sorted)
{
    for (int is_counted = 0; is_counted < 2; is_counted++) {
        for (size_t i = 0; i < tensors->count; i++) {
            size_t unit = units->of_tensor[i], place = unit != NO_UNIT ? in_model[unit] : units->count;
            if (is_counted)
                sorted[starts[place]++] = i;
            else
                starts[place + 1]++;
        }
        for (size_t u = 0; !is_counted && u < units->count; u++)
            starts[u + 1] += starts[u];
    }
}

static bp_status add_parameters(bp_model *model, const bp_tensors *tensors, const bp_tensor_units *units,
                                const uint32_t *in_model, const expert_runs *runs, const size_t *sorted)
{
    for (size_t i = 0; i < tensors->count; i++) {
        size_t index = sorted[i], unit = units->of_tensor[index];
        const bp_tensor *tensor = &tensors->tensors[index];
        /* Old checkpoints contain this table, but the modelling code computes it. */
        if (bp_has_suffix(tensor->name, "rotary_emb.inv_freq"))
            continue;
        /* Names are unique, so a run is complete if it has as many tensors as its largest number says. */
        const expert_run *run = runs->of_tensor[index] != NO_RUN ? &runs->runs[runs->of_tensor[index]] : NULL;
        if (run != NULL && (!run->is_uniform || run->count == 1 || run->count != run->largest + 1))
            run = NULL;
        if (run != NULL && run->first != index)
            continue;
        BP_TRY(tensors_to_model_add_parameter(model, tensor, run, unit != NO_UNIT ? &units->units[unit] : NULL,
                                              unit != NO_UNIT ? (int32_t)in_model[unit] : BP_OUTSIDE));
    }
    return BP_OK;
}

static bp_status tensors_to_model_fill_model(bp_model *model, const bp_tensors *tensors, const bp_tensor_units *units,
                                             const expert_runs *runs)
{
    uint32_t *in_model = calloc(units->count + 1, sizeof *in_model);
    size_t *starts = calloc(units->count + 2, sizeof *starts);
    size_t *sorted = calloc(tensors->count + 1, sizeof *sorted);
    bp_status status = BP_OK;
    if (in_model == NULL || starts == NULL || sorted == NULL)
        status = bp_fail_memory((units->count + tensors->count) * sizeof *sorted);
    for (size_t i = 0; status == BP_OK && i < units->count; i++) {
        const bp_tensor_unit *unit = &units->units[units->order[i]];
        int32_t outer = unit->outer != NO_UNIT ? (int32_t)in_model[unit->outer] : BP_OUTSIDE;
        status = bp_model_add_unit(model, unit->name, outer, &in_model[units->order[i]]);
    }
    if (status == BP_OK) {
        sort_by_unit(tensors, units, in_model, starts, sorted);
        status = add_parameters(model, tensors, units, in_model, runs, sorted);
    }
    free(in_model);
    free(starts);
    free(sorted);
    return status;
}

bp_status bp_tensors_to_model(const bp_tensors *tensors, const char *origin, const bp_reader_options *options,
                              bp_model **model)
{
    bp_tensor_units units;
    BP_TRY(tensor_units_init(&units, tensors, options->units));
    expert_runs runs;
    bp_status status = find_runs(&runs, tensors, &units);
    if (status != BP_OK) {
        tensor_units_finish(&units);
        return status;
    }
    char *name = NULL;
    bp_model *created = NULL;
    status = bp_reader_choose_name(options, NULL, origin, &name);
    if (status == BP_OK)
        status = bp_model_create(name, &created);
    if (status == BP_OK)
        status = bp_fail_at(origin, tensors_to_model_fill_model(created, tensors, &units, &runs));
    if (status == BP_OK)
        bp_model_set_published(created);
    status = bp_reader_hand_over(status, origin, created, model);
    finish_runs(&runs);
    tensor_units_finish(&units);
    free(name);
    return status;
}
