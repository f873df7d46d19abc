#include "formats/tensor_units.h"

#include <stdlib.h>
#include <string.h>

#include "core/fail.h"
#include "formats/unit_names.h"

bp_status bp_map_find_or_add(json_t *map, const char *key, size_t count, size_t *index, const char **name)
{
    json_t *found = json_object_get(map, key);
    if (found == NULL && json_object_set_new_nocheck(map, key, json_integer((json_int_t)count)) != 0)
        return bp_fail_memory(strlen(key));
    *index = found != NULL ? (size_t)json_integer_value(found) : count;
    *name = json_object_iter_key(json_object_iter_at(map, key));
    return BP_OK;
}

/* A stack is known by what is before the match and the pattern. */
static bp_status find_stack(bp_tensor_units *units, const char *name, size_t begin, const char *pattern, size_t *stack)
{
    char *key;
    if (asprintf(&key, "%.*s%s", (int)begin, name, pattern) < 0)
        return bp_fail_memory(begin + strlen(pattern) + 1);
    const char *unused = NULL;
    bp_status status = bp_map_find_or_add(units->stacks, key, json_object_size(units->stacks), stack, &unused);
    free(key);
    return status;
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
    BP_TRY(find_stack(units, name, match->begin, pattern, &added.stack));
    char *key = strndup(name, match->end);
    if (key == NULL)
        return bp_fail_memory(match->end + 1);
    size_t index = 0;
    bp_status status = bp_map_find_or_add(units->names, key, units->count, &index, &added.name);
    free(key);
    if (status == BP_OK)
        units->units[units->count++] = added;
    return status;
}

static bp_status find_units_of(bp_tensor_units *units, const bp_unit_patterns *patterns, const char *name,
                               size_t *innermost)
{
    bp_unit_match matches[BP_MOST_UNIT_PATTERNS];
    size_t depth = bp_unit_patterns_match(patterns, name, matches), outer = BP_NO_UNIT;
    for (size_t i = 0; i < depth; i++) {
        json_t *known = json_object_getn(units->names, name, matches[i].end);
        if (known == NULL)
            BP_TRY(tensor_units_add_unit(units, name, &matches[i], patterns->patterns[matches[i].pattern].text, outer));
        outer = known != NULL ? (size_t)json_integer_value(known) : units->count - 1;
    }
    *innermost = outer;
    return BP_OK;
}

/* The enclosing units of `unit` and itself, outermost first; returns their number. */
static size_t lineage(const bp_tensor_unit *unit, const bp_tensor_unit *line[BP_MOST_UNIT_PATTERNS])
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
    const bp_tensor_unit *all = context, *left[BP_MOST_UNIT_PATTERNS], *right[BP_MOST_UNIT_PATTERNS];
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
        unit->outer_unit = unit->outer != BP_NO_UNIT ? &units->units[unit->outer] : NULL;
        units->order[i] = i;
    }
    if (units->count > 0)
        qsort_r(units->order, units->count, sizeof *units->order, compare_units, units->units);
    return BP_OK;
}

bp_status bp_tensor_units_init(bp_tensor_units *units, const bp_tensors *tensors, const char *patterns)
{
    bp_unit_patterns parsed;
    BP_TRY(bp_unit_patterns_init(&parsed, patterns));
    *units = (bp_tensor_units){.names = json_object(), .stacks = json_object()};
    units->of_tensor = calloc(tensors->count + 1, sizeof *units->of_tensor);
    bp_status status = BP_OK;
    if (units->names == NULL || units->stacks == NULL || units->of_tensor == NULL)
        status = bp_fail_memory((tensors->count + 1) * sizeof *units->of_tensor);
    for (size_t i = 0; status == BP_OK && i < tensors->count; i++)
        status = find_units_of(units, &parsed, tensors->tensors[i].name, &units->of_tensor[i]);
    if (status == BP_OK)
        status = sort_units(units);
    bp_unit_patterns_finish(&parsed);
    if (status != BP_OK)
        bp_tensor_units_finish(units);
    return status;
}

void bp_tensor_units_finish(bp_tensor_units *units)
{
    free(units->units);
    free(units->order);
    free(units->of_tensor);
    json_decref(units->names);
    json_decref(units->stacks);
    *units = (bp_tensor_units){0};
}
