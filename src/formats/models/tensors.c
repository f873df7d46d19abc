/* The tensors of a checkpoint, and the units that their names say they belong to. */
#include "formats/models/tensors.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "core/arith.h"
#include "core/fail.h"
#include "formats/file.h"
#include "formats/json.h"

/* ---- names of units ---------------------------------------------------------------------------------------------- */

/* Bytes of a component: up to a dot or the end. */
static size_t component_bytes(const char *text)
{
    return strcspn(text, ".");
}

/* True when `text` is `outer` and further components; *rest is what follows. */
static bool lies_inside(const char *text, const char *outer, const char **rest)
{
    size_t bytes = strlen(outer);
    if (strncmp(text, outer, bytes) != 0 || text[bytes] != '.')
        return false;
    *rest = text + bytes + 1;
    return true;
}

static bp_status add_pattern(bp_unit_patterns *patterns, char *text)
{
    text += strspn(text, " ");
    size_t bytes = strlen(text);
    while (bytes > 0 && text[bytes - 1] == ' ')
        text[--bytes] = '\0';
    if (bytes == 0 || text[0] == '.' || text[bytes - 1] == '.' || strstr(text, "..") != NULL || !bp_is_name(text))
        return bp_fail(
            BP_ERR_INVALID_ARGUMENT,
            "units: \"%.60s\" is no pattern; expected names with dots and N for a number, as in " BP_DEFAULT_UNITS,
            text);
    if (patterns->count == BP_MOST_UNIT_PATTERNS)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "units: more than %d patterns", BP_MOST_UNIT_PATTERNS);
    patterns->patterns[patterns->count++] = (bp_unit_pattern){.text = text, .rest = text, .outer = -1};
    return BP_OK;
}

static void find_outer_patterns(bp_unit_patterns *patterns)
{
    for (size_t i = 0; i < patterns->count; i++) {
        bp_unit_pattern *inner = &patterns->patterns[i];
        for (size_t o = 0; o < patterns->count; o++) {
            const char *rest;
            if (lies_inside(inner->text, patterns->patterns[o].text, &rest) && rest > inner->rest) {
                inner->rest = rest;
                inner->outer = (int)o;
            }
        }
    }
}

bp_status bp_unit_patterns_init(bp_unit_patterns *patterns, const char *text)
{
    *patterns = (bp_unit_patterns){.text = strdup(text != NULL ? text : BP_DEFAULT_UNITS)};
    if (patterns->text == NULL)
        return bp_fail_memory(strlen(text != NULL ? text : BP_DEFAULT_UNITS) + 1);
    bp_status status = BP_OK;
    char *next = patterns->text, *pattern;
    while (status == BP_OK && (pattern = strsep(&next, ",")) != NULL)
        status = add_pattern(patterns, pattern);
    if (status != BP_OK) {
        bp_unit_patterns_finish(patterns);
        return status;
    }
    find_outer_patterns(patterns);
    return BP_OK;
}

void bp_unit_patterns_finish(bp_unit_patterns *patterns)
{
    free(patterns->text);
    *patterns = (bp_unit_patterns){0};
}

/* A module number: digits, few enough to be one. */
static bool is_number(const char *text, size_t bytes)
{
    if (bytes == 0 || bytes > 9)
        return false;
    for (size_t i = 0; i < bytes; i++) {
        if (!isdigit((unsigned char)text[i]))
            return false;
    }
    return true;
}

/* Bytes that `pattern` matches at the beginning of `name`, 0 for no match. A component must follow: the unit is a
 * module, not the tensor itself. */
static size_t match_here(const char *pattern, const char *name)
{
    const char *at = name;
    for (;;) {
        size_t wanted = component_bytes(pattern), found = component_bytes(at);
        bool is_match =
            wanted == 1 && *pattern == 'N' ? is_number(at, found) : wanted == found && memcmp(pattern, at, found) == 0;
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

/* The match inside pattern `outer` that ends first, searched from `from`. */
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

size_t bp_unit_patterns_match(const bp_unit_patterns *patterns, const char *name,
                              bp_unit_match matches[BP_MOST_UNIT_PATTERNS])
{
    size_t count = 0, from = 0;
    int outer = -1;
    while (count < BP_MOST_UNIT_PATTERNS && find_match(patterns, outer, name, from, &matches[count])) {
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

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

/* github.com/huggingface/safetensors, safetensors/src/tensor.rs, enum Dtype (0.6); the FNUZ variants of fp8 differ in
 * their encoding only. */
static const struct {
    const char *name;
    bp_dtype dtype;
} dtypes[] = {
    {"BOOL", BP_DTYPE_BOOL},
    {"F4", BP_DTYPE_FP4_E2M1},
    {"F6_E2M3", BP_DTYPE_FP6_E2M3},
    {"F6_E3M2", BP_DTYPE_FP6_E3M2},
    {"U8", BP_DTYPE_UINT8},
    {"I8", BP_DTYPE_INT8},
    {"F8_E5M2", BP_DTYPE_FP8_E5M2},
    {"F8_E4M3", BP_DTYPE_FP8_E4M3},
    {"F8_E5M2FNUZ", BP_DTYPE_FP8_E5M2},
    {"F8_E4M3FNUZ", BP_DTYPE_FP8_E4M3},
    {"F8_E8M0", BP_DTYPE_FP8_E8M0},
    {"I16", BP_DTYPE_INT16},
    {"U16", BP_DTYPE_UINT16},
    {"F16", BP_DTYPE_FP16},
    {"BF16", BP_DTYPE_BF16},
    {"I32", BP_DTYPE_INT32},
    {"U32", BP_DTYPE_UINT32},
    {"F32", BP_DTYPE_FP32},
    {"C64", BP_DTYPE_COMPLEX64},
    {"F64", BP_DTYPE_FP64},
    {"I64", BP_DTYPE_INT64},
    {"U64", BP_DTYPE_UINT64},
};

/* The place of a tensor's data, to find overlaps and holes. */
typedef struct extent {
    uint64_t begin, end;
    const char *name;
} extent;

bp_status bp_tensors_init(bp_tensors *tensors)
{
    *tensors = (bp_tensors){.files = json_object()};
    return tensors->files != NULL ? BP_OK : bp_fail_memory(sizeof(json_t));
}

void bp_tensors_finish(bp_tensors *tensors)
{
    free(tensors->tensors);
    json_decref(tensors->files);
    *tensors = (bp_tensors){0};
}

static bp_status tensors_reserve(bp_tensors *tensors, size_t more)
{
    if (tensors->capacity - tensors->count >= more)
        return BP_OK;
    size_t wanted = tensors->count + more;
    if (wanted < 2 * tensors->capacity)
        wanted = 2 * tensors->capacity;
    bp_tensor *larger = realloc(tensors->tensors, wanted * sizeof *larger);
    if (larger == NULL)
        return bp_fail_memory(wanted * sizeof *larger);
    tensors->tensors = larger;
    tensors->capacity = wanted;
    return BP_OK;
}

static bp_status read_dtype(const bp_json_at *entry, bp_dtype *dtype)
{
    bp_json_at at = bp_json_member(entry, "dtype");
    const char *name = NULL;
    BP_TRY(bp_json_name(&at, &name));
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        if (strcmp(dtypes[i].name, name) == 0) {
            *dtype = dtypes[i].dtype;
            return BP_OK;
        }
    }
    char known[200];
    size_t used = 0;
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes && used < sizeof known; i++)
        used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", i > 0 ? ", " : "", dtypes[i].name);
    return bp_json_fail(&at, "unknown dtype \"%.40s\"; known: %s", name, known);
}

/* The shape, and the bytes that it takes. */
static bp_status tensors_read_shape(const bp_json_at *entry, bp_tensor *tensor, uint64_t *bytes)
{
    bp_json_at at = bp_json_member(entry, "shape");
    BP_TRY(bp_json_expect_list(&at));
    size_t dims = json_array_size(at.value);
    if (dims > BP_MAX_DIMS) {
        bp_json_fail(&at, "%zu dimensions, at most %d are supported", dims, BP_MAX_DIMS);
        return BP_ERR_UNSUPPORTED;
    }
    uint64_t bits = bp_dtype_bits(tensor->dtype);
    bool fits = true, empty = false;
    for (size_t i = 0; i < dims; i++) {
        bp_json_at dimension = bp_json_element(&at, i);
        BP_TRY(bp_json_whole(&dimension, 0, INT64_MAX, &tensor->shape[i]));
        empty = empty || tensor->shape[i] == 0;
        fits = fits && bp_mul_u64(bits, tensor->shape[i], &bits);
    }
    if (!fits && !empty)
        return bp_json_fail(&at, "the tensor's size does not fit 64 bits");
    if (!empty && bits % 8 != 0)
        return bp_json_fail(&at, "%llu bits are no whole number of bytes", (unsigned long long)bits);
    tensor->dims = (uint32_t)dims;
    *bytes = empty ? 0 : bits / 8;
    return BP_OK;
}

static bp_status read_offsets(const bp_json_at *entry, uint64_t bytes, uint64_t data_bytes, extent *place)
{
    bp_json_at at = bp_json_member(entry, "data_offsets");
    BP_TRY(bp_json_expect_list(&at));
    if (json_array_size(at.value) != 2)
        return bp_json_fail(&at, "expected two offsets, got %zu", json_array_size(at.value));
    bp_json_at begin = bp_json_element(&at, 0), end = bp_json_element(&at, 1);
    BP_TRY(bp_json_whole(&begin, 0, INT64_MAX, &place->begin));
    BP_TRY(bp_json_whole(&end, 0, INT64_MAX, &place->end));
    if (place->begin > place->end)
        return bp_json_fail(&at, "begins at %llu, behind its end %llu", (unsigned long long)place->begin,
                            (unsigned long long)place->end);
    if (place->end > data_bytes)
        return bp_json_fail(&at, "ends at byte %llu of %llu that the file has; is it cut?",
                            (unsigned long long)place->end, (unsigned long long)data_bytes);
    if (place->end - place->begin != bytes)
        return bp_json_fail(&at, "covers %llu bytes, dtype and shape need %llu",
                            (unsigned long long)(place->end - place->begin), (unsigned long long)bytes);
    return BP_OK;
}

/* Notes the name and gives the address that it has as long as the table. */
static bp_status add_name(bp_tensors *tensors, const bp_json_at *entry, size_t file, const char **name)
{
    if (!bp_is_name(entry->key))
        return bp_json_fail(entry, "expected a tensor name, not empty and without control characters");
    if (json_object_get(tensors->files, entry->key) != NULL)
        return bp_json_fail(entry, "this tensor was in an earlier file too");
    if (json_object_set_new_nocheck(tensors->files, entry->key, json_integer((json_int_t)file)) != 0)
        return bp_fail_memory(strlen(entry->key));
    *name = json_object_iter_key(json_object_iter_at(tensors->files, entry->key));
    return BP_OK;
}

static bp_status tensors_add_tensor(bp_tensors *tensors, const bp_json_at *entry, uint64_t data_bytes, size_t file,
                                    extent *place)
{
    bp_tensor tensor = {0};
    uint64_t bytes = 0;
    BP_TRY(bp_json_expect_object(entry, NULL));
    BP_TRY(read_dtype(entry, &tensor.dtype));
    BP_TRY(tensors_read_shape(entry, &tensor, &bytes));
    BP_TRY(read_offsets(entry, bytes, data_bytes, place));
    BP_TRY(add_name(tensors, entry, file, &tensor.name));
    place->name = tensor.name;
    if (bytes > 0)
        tensors->tensors[tensors->count++] = tensor;
    return BP_OK;
}

static int compare_extents(const void *a, const void *b)
{
    const extent *left = a, *right = b;
    if (left->begin != right->begin)
        return left->begin < right->begin ? -1 : 1;
    return left->end < right->end ? -1 : left->end > right->end;
}

/* The data of a file is its tensors', each byte of it once. */
static bp_status check_extents(extent *places, size_t count, uint64_t data_bytes, const char *origin)
{
    qsort(places, count, sizeof *places, compare_extents);
    uint64_t reached = 0;
    for (size_t i = 0; i < count; i++) {
        if (places[i].begin < reached)
            return bp_fail(BP_ERR_FORMAT, "%.150s: the data of \"%.*s\" and \"%.*s\" overlap at byte %llu", origin,
                           BP_QUOTED, places[i - 1].name, BP_QUOTED, places[i].name,
                           (unsigned long long)places[i].begin);
        if (places[i].begin > reached)
            return bp_fail(BP_ERR_FORMAT, "%.300s: bytes %llu to %llu before \"%.*s\" belong to no tensor", origin,
                           (unsigned long long)reached, (unsigned long long)places[i].begin, BP_QUOTED, places[i].name);
        reached = places[i].end;
    }
    if (reached != data_bytes)
        return bp_fail(BP_ERR_FORMAT, "%.300s: %llu bytes behind the last tensor belong to none", origin,
                       (unsigned long long)(data_bytes - reached));
    return BP_OK;
}

static bp_status check_metadata(const bp_json_at *metadata)
{
    BP_TRY(bp_json_expect_object(metadata, NULL));
    const char *key;
    json_t *value;
    json_object_foreach(metadata->value, key, value)
    {
        bp_json_at at = bp_json_member(metadata, key);
        if (!json_is_string(value))
            return bp_json_fail_kind(&at, "a string");
    }
    return BP_OK;
}

static bp_status add_entries(bp_tensors *tensors, const bp_json_at *root, uint64_t data_bytes, size_t file,
                             extent *places)
{
    size_t count = 0;
    const char *key;
    json_t *value;
    json_object_foreach(root->value, key, value)
    {
        bp_json_at entry = {value, root, key, 0, root->origin};
        if (strcmp(key, "__metadata__") == 0)
            BP_TRY(check_metadata(&entry));
        else
            BP_TRY(tensors_add_tensor(tensors, &entry, data_bytes, file, &places[count++]));
    }
    return check_extents(places, count, data_bytes, root->origin);
}

bp_status bp_tensors_add_header(bp_tensors *tensors, const char *header, size_t bytes, uint64_t data_bytes,
                                const char *origin, size_t file)
{
    json_t *document = NULL;
    BP_TRY(bp_json_parse(header, bytes, origin, NULL, &document));
    bp_json_at root = bp_json_root(document, origin);
    size_t count = json_object_size(document);
    extent *places = calloc(count + 1, sizeof *places);
    bp_status status = places != NULL ? BP_OK : bp_fail_memory((count + 1) * sizeof *places);
    if (status == BP_OK)
        status = bp_json_expect_object(&root, NULL);
    if (status == BP_OK)
        status = tensors_reserve(tensors, count);
    if (status == BP_OK)
        status = add_entries(tensors, &root, data_bytes, file, places);
    free(places);
    json_decref(document);
    return status;
}
