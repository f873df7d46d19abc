#include "formats/json.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/fail.h"
#include "formats/detail.h"

#define PATH_BYTES 320

bp_json_at bp_json_root(json_t *document, const char *origin)
{
    return (bp_json_at){.value = document, .origin = origin};
}

bp_json_at bp_json_member(const bp_json_at *object, const char *key)
{
    return (bp_json_at){json_object_get(object->value, key), object, key, 0, object->origin};
}

bp_json_at bp_json_element(const bp_json_at *list, size_t index)
{
    return (bp_json_at){json_array_get(list->value, index), list, NULL, index, list->origin};
}

static bool is_plain_key(const char *key)
{
    return strspn(key, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_") == strlen(key) &&
           *key != '\0' && (*key < '0' || *key > '9');
}

/* Appends the path to `at` behind the `used` bytes that are there; returns the bytes then used. */
static size_t append_path(const bp_json_at *at, char *path, size_t used)
{
    if (at->outer == NULL)
        return used + (size_t)snprintf(path + used, PATH_BYTES - used, "$");
    used = append_path(at->outer, path, used);
    if (used >= PATH_BYTES)
        return used;
    size_t space = PATH_BYTES - used;
    int added;
    if (at->key == NULL)
        added = snprintf(path + used, space, "[%zu]", at->index);
    else if (is_plain_key(at->key))
        added = snprintf(path + used, space, ".%.*s", BP_QUOTED, at->key);
    else
        added = snprintf(path + used, space, "[\"%.*s\"]", BP_QUOTED, at->key);
    return used + (size_t)added;
}

static void where_is(const bp_json_at *at, char where[PATH_BYTES])
{
    int used = snprintf(where, PATH_BYTES, "%.150s: ", at->origin);
    append_path(at, where, (size_t)used);
}

bp_status bp_json_fail(const bp_json_at *at, const char *format, ...)
{
    char where[PATH_BYTES], what[BP_DETAIL_BYTES];
    where_is(at, where);
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return bp_fail(BP_ERR_FORMAT, "%s: %s", where, what);
}

bp_status bp_json_fail_at(const bp_json_at *at, bp_status status)
{
    char where[PATH_BYTES];
    where_is(at, where);
    return bp_fail_at(where, status);
}

void bp_json_describe(const json_t *value, char description[BP_JSON_DESCRIPTION_BYTES])
{
    const size_t space = BP_JSON_DESCRIPTION_BYTES;
    switch (json_typeof(value)) {
    case JSON_OBJECT: snprintf(description, space, "an object"); break;
    case JSON_ARRAY: snprintf(description, space, "a list"); break;
    case JSON_STRING: snprintf(description, space, "\"%.60s\"", json_string_value(value)); break;
    case JSON_INTEGER: snprintf(description, space, "%" JSON_INTEGER_FORMAT, json_integer_value(value)); break;
    case JSON_REAL:
        snprintf(description, space, "a fraction (%.6g)", json_real_value(value));
        if (strpbrk(description + strlen("a fraction ("), ".,en") == NULL) /* as JSON has it: 4.0, not 4 */
            snprintf(description, space, "a fraction (%.1f)", json_real_value(value));
        break;
    case JSON_TRUE: snprintf(description, space, "true"); break;
    case JSON_FALSE: snprintf(description, space, "false"); break;
    case JSON_NULL: snprintf(description, space, "null"); break;
    }
}

bp_status bp_json_fail_kind(const bp_json_at *at, const char *expected)
{
    if (at->value == NULL)
        return bp_json_fail(at, "is missing; expected %s", expected);
    char description[BP_JSON_DESCRIPTION_BYTES];
    bp_json_describe(at->value, description);
    return bp_json_fail(at, "expected %s, got %s", expected, description);
}

bp_status bp_json_expect_object(const bp_json_at *at, const char *const *known)
{
    if (!json_is_object(at->value))
        return bp_json_fail_kind(at, "an object");
    const char *key;
    json_t *value;
    json_object_foreach(at->value, key, value)
    {
        size_t i = 0;
        while (known != NULL && known[i] != NULL && strcmp(known[i], key) != 0)
            i++;
        if (known == NULL || known[i] != NULL)
            continue;
        char list[200];
        size_t used = 0;
        for (i = 0; known[i] != NULL && used < sizeof list; i++)
            used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", i > 0 ? ", " : "", known[i]);
        return bp_json_fail(at, "unknown member \"%.60s\"; known: %s", key, list);
    }
    return BP_OK;
}

bp_status bp_json_expect_list(const bp_json_at *at)
{
    return json_is_array(at->value) ? BP_OK : bp_json_fail_kind(at, "a list");
}

bp_status bp_json_name(const bp_json_at *at, const char **name)
{
    if (!json_is_string(at->value))
        return bp_json_fail_kind(at, "a name");
    if (!bp_is_name(json_string_value(at->value)))
        return bp_json_fail_kind(at, "a name, not empty and without control characters");
    *name = json_string_value(at->value);
    return BP_OK;
}

bp_status bp_json_whole(const bp_json_at *at, uint64_t least, uint64_t most, uint64_t *value)
{
    json_int_t number = json_integer_value(at->value);
    if (json_is_integer(at->value) && number >= 0 && (uint64_t)number >= least && (uint64_t)number <= most) {
        *value = (uint64_t)number;
        return BP_OK;
    }
    char expected[80] = "a positive integer";
    if (most < INT64_MAX)
        snprintf(expected, sizeof expected, "an integer from %llu to %llu", (unsigned long long)least,
                 (unsigned long long)most);
    else if (least != 1)
        snprintf(expected, sizeof expected, "an integer of at least %llu", (unsigned long long)least);
    return bp_json_fail_kind(at, expected);
}

bp_status bp_json_flag(const bp_json_at *at, bool *value)
{
    if (at->value == NULL)
        return BP_OK;
    if (!json_is_boolean(at->value))
        return bp_json_fail_kind(at, "true or false");
    *value = json_is_true(at->value);
    return BP_OK;
}

bp_status bp_json_dtype(const bp_json_at *at, bp_dtype *dtype)
{
    const char *name = NULL;
    BP_TRY(bp_json_name(at, &name));
    return bp_json_fail_at(at, bp_dtype_parse(name, dtype));
}
