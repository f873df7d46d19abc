/* SPDX-License-Identifier: Apache-2.0 */
/* Reads safetensors: the files of a checkpoint, their headers and tensors. Source of the format:
 * github.com/huggingface/safetensors, README, "Format". */
#include <bucketpool/core/arith.h>
#include <bucketpool/core/fail.h>
#include <bucketpool/formats.h>

#include <dirent.h>
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "formats/file.h"
#include "formats/json.h"
#include "formats/models/reader.h"

typedef struct bp_shards {
    char *directory;
    char **names; /* sorted naturally */
    size_t count;
} bp_shards;

/* ---- files of a checkpoint --------------------------------------------------------------------------------------- */

#define INDEX_SUFFIX ".safetensors.index.json"

static void shards_finish(bp_shards *shards)
{
    for (size_t i = 0; i < shards->count; i++)
        free(shards->names[i]);
    free(shards->names);
    free(shards->directory);
    *shards = (bp_shards){0};
}

static int shards_compare_names(const void *a, const void *b)
{
    return bp_compare_natural(*(char *const *)a, *(char *const *)b);
}

/* Moves the keys of an object to the shards' names. */
static bp_status take_names(bp_shards *shards, json_t *names)
{
    size_t count = json_object_size(names);
    shards->names = calloc(count + 1, sizeof *shards->names);
    if (shards->names == NULL)
        return bp_fail_memory((count + 1) * sizeof *shards->names);
    const char *name;
    json_t *value;
    json_object_foreach(names, name, value)
    {
        shards->names[shards->count] = strdup(name);
        if (shards->names[shards->count] == NULL)
            return bp_fail_memory(strlen(name) + 1);
        shards->count++;
    }
    qsort(shards->names, shards->count, sizeof *shards->names, shards_compare_names);
    return BP_OK;
}

static bp_status collect_shards(const bp_json_at *weight_map, json_t *names)
{
    BP_TRY(bp_json_expect_object(weight_map, NULL));
    const char *key;
    json_t *value;
    json_object_foreach(weight_map->value, key, value)
    {
        bp_json_at entry = {value, weight_map, key, 0, weight_map->origin};
        const char *name = NULL;
        BP_TRY(bp_json_name(&entry, &name));
        /* an index may name only files in its directory: other paths could read files of other users */
        if (strchr(name, '/') != NULL || strstr(name, "..") != NULL || name[0] == '.')
            return bp_json_fail_kind(&entry, "the name of a file in the directory of the index");
        if (json_object_set_nocheck(names, name, value) != 0)
            return bp_fail_memory(strlen(name));
    }
    if (json_object_size(names) == 0)
        return bp_json_fail(weight_map, "names no tensors");
    return BP_OK;
}

/* The files in the weight_map of an index. Errors: BP_ERR_FORMAT, also for names that lead out of the directory. */
static bp_status shards_from_index(bp_shards *shards, const bp_json_at *weight_map)
{
    *shards = (bp_shards){0};
    json_t *names = json_object();
    if (names == NULL)
        return bp_fail_memory(sizeof *names);
    bp_status status = collect_shards(weight_map, names);
    if (status == BP_OK)
        status = bp_file_directory(weight_map->origin, &shards->directory);
    if (status == BP_OK)
        status = take_names(shards, names);
    json_decref(names);
    if (status != BP_OK)
        shards_finish(shards);
    return status;
}

/* Sorts the directory's entries into index files and others. */
static bp_status list_files(const char *directory, json_t *indices, json_t *files)
{
    DIR *entries = opendir(directory);
    if (entries == NULL)
        return bp_fail(BP_ERR_IO, "%.300s: cannot be listed: %s", directory, strerror(errno));
    bp_status status = BP_OK;
    const struct dirent *entry;
    while (status == BP_OK && (errno = 0, entry = readdir(entries)) != NULL) {
        bool is_index = bp_has_suffix(entry->d_name, INDEX_SUFFIX);
        if (entry->d_name[0] == '.' || (!is_index && !bp_has_suffix(entry->d_name, ".safetensors")))
            continue;
        if (json_object_set_new_nocheck(is_index ? indices : files, entry->d_name, json_true()) != 0)
            status = bp_fail_memory(strlen(entry->d_name));
    }
    if (status == BP_OK && errno != 0)
        status = bp_fail(BP_ERR_IO, "%.300s: cannot be listed: %s", directory, strerror(errno));
    closedir(entries);
    return status;
}

/* "model-00002-of-00007.safetensors": the number after "-of-"; 0 for other names. */
static unsigned long total_of(const char *name)
{
    const char *of = strstr(name, "-of-");
    for (const char *next = of; next != NULL; next = strstr(next + 1, "-of-"))
        of = next;
    if (of == NULL)
        return 0;
    char *end;
    unsigned long total = strtoul(of + 4, &end, 10);
    return strcmp(end, ".safetensors") == 0 ? total : 0;
}

/* Chooses between the index files and the safetensors files of a directory. */
static bp_status choose_files(bp_shards *shards, json_t *indices, json_t *files, char **index)
{
    const char *only = "model" INDEX_SUFFIX;
    if (json_object_size(indices) == 1)
        only = json_object_iter_key(json_object_iter(indices));
    else if (json_object_size(indices) > 1 && json_object_get(indices, only) == NULL)
        return bp_fail(BP_ERR_FORMAT, "%.300s: has %zu index files; name the one to read", shards->directory,
                       json_object_size(indices));
    if (json_object_size(indices) > 0)
        return bp_file_join(shards->directory, only, index);
    if (json_object_get(files, "model.safetensors") != NULL) {
        json_object_clear(files);
        if (json_object_set_new(files, "model.safetensors", json_true()) != 0)
            return bp_fail_memory(sizeof *files);
    }
    if (json_object_size(files) == 0)
        return bp_fail(BP_ERR_FORMAT, "%.300s: has neither config.json nor safetensors files", shards->directory);
    BP_TRY(take_names(shards, files));
    unsigned long total = total_of(shards->names[0]);
    for (size_t i = 0; i < shards->count; i++) {
        if (total_of(shards->names[i]) != total)
            return BP_OK; /* not one numbered set; duplicate tensors are detected later */
    }
    if (total == 0 || total == shards->count)
        return BP_OK;
    return bp_fail(BP_ERR_FORMAT, "%.200s: %zu shards like %.100s, expected %lu", shards->directory, shards->count,
                   shards->names[0], total);
}

/* The files of a directory. *index is the path of its only index file (free() it; then there are no shards), or
 * NULL: the shards are model.safetensors alone, else all *.safetensors, complete if they are numbered. Errors:
 * BP_ERR_FORMAT (several index files, missing shards, no files), BP_ERR_IO. */
static bp_status shards_from_directory(bp_shards *shards, const char *directory, char **index)
{
    *shards = (bp_shards){.directory = strdup(directory)};
    json_t *indices = json_object(), *files = json_object();
    char *found = NULL;
    bp_status status = BP_OK;
    if (shards->directory == NULL || indices == NULL || files == NULL)
        status = bp_fail_memory(strlen(directory) + 1);
    if (status == BP_OK)
        status = list_files(directory, indices, files);
    if (status == BP_OK)
        status = choose_files(shards, indices, files, &found);
    json_decref(indices);
    json_decref(files);
    if (status == BP_OK)
        *index = found;
    else
        shards_finish(shards);
    return status;
}

/* Fails unless the tensors found (name -> index of shard) are exactly those of the weight map, each in its file. */
static bp_status shards_check(const bp_shards *shards, const bp_json_at *weight_map, json_t *found)
{
    const char *key;
    json_t *value;
    json_object_foreach(weight_map->value, key, value)
    {
        bp_json_at entry = {value, weight_map, key, 0, weight_map->origin};
        json_t *file = json_object_get(found, key);
        if (file == NULL)
            return bp_json_fail(&entry, "no shard has this tensor; it should be in %.*s", BP_QUOTED,
                                json_string_value(value));
        const char *name = shards->names[json_integer_value(file)];
        if (strcmp(name, json_string_value(value)) != 0)
            return bp_json_fail(&entry, "should be in %.*s, is in %.*s", BP_QUOTED, json_string_value(value), BP_QUOTED,
                                name);
    }
    if (json_object_size(found) == json_object_size(weight_map->value))
        return BP_OK;
    json_object_foreach(found, key, value)
    {
        if (json_object_get(weight_map->value, key) == NULL)
            return bp_json_fail(weight_map, "lacks \"%.*s\", which is in %.*s", BP_QUOTED, key, BP_QUOTED,
                                shards->names[json_integer_value(value)]);
    }
    return bp_fail(BP_ERR_INTERNAL, "shards_check: %zu tensors, %zu in the index", json_object_size(found),
                   json_object_size(weight_map->value));
}

/* ---- tensors of a header ------------------------------------------------------------------------------------------ */

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

/* The range of a tensor's data, to find overlaps and gaps. */
typedef struct extent {
    uint64_t begin, end;
    const char *name;
} extent;

static bp_status tensors_init(bp_tensors *tensors)
{
    *tensors = (bp_tensors){.files = json_object()};
    return tensors->files != NULL ? BP_OK : bp_fail_memory(sizeof(json_t));
}

static void tensors_finish(bp_tensors *tensors)
{
    free(tensors->tensors);
    json_decref(tensors->files);
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

/* Reads the shape and computes its bytes. */
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
        return bp_json_fail(&at, "%llu bits are not a whole number of bytes", (unsigned long long)bits);
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
        return bp_json_fail(&at, "ends at byte %llu of the data, which has %llu bytes; the file is truncated",
                            (unsigned long long)place->end, (unsigned long long)data_bytes);
    if (place->end - place->begin != bytes)
        return bp_json_fail(&at, "covers %llu bytes, dtype and shape need %llu",
                            (unsigned long long)(place->end - place->begin), (unsigned long long)bytes);
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
    if (!bp_is_name(entry->key))
        return bp_json_fail(entry, "expected a tensor name, not empty and without control characters");
    if (json_object_get(tensors->files, entry->key) != NULL)
        return bp_json_fail(entry, "this tensor was in an earlier file too");
    if (json_object_set_new_nocheck(tensors->files, entry->key, json_integer((json_int_t)file)) != 0)
        return bp_fail_memory(strlen(entry->key));
    tensor.name = place->name = json_object_iter_key(json_object_iter_at(tensors->files, entry->key));
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

/* Fails unless the tensors cover every byte of the data exactly once. */
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

static bp_status add_entries(bp_tensors *tensors, const bp_json_at *root, uint64_t data_bytes, size_t file,
                             extent *places)
{
    size_t count = 0;
    const char *key;
    json_t *value;
    json_object_foreach(root->value, key, value)
    {
        bp_json_at entry = {value, root, key, 0, root->origin};
        if (strcmp(key, "__metadata__") != 0) {
            BP_TRY(tensors_add_tensor(tensors, &entry, data_bytes, file, &places[count++]));
            continue;
        }
        BP_TRY(bp_json_expect_object(&entry, NULL));
        const char *name;
        json_t *text;
        json_object_foreach(value, name, text)
        {
            bp_json_at at = bp_json_member(&entry, name);
            if (!json_is_string(text))
                return bp_json_fail_kind(&at, "a string");
        }
    }
    return check_extents(places, count, data_bytes, root->origin);
}

/* Adds the tensors of one header. `data_bytes`: size of the data that follows it; `file`: the file's number. Errors:
 * BP_ERR_FORMAT naming the tensor, BP_ERR_UNSUPPORTED for more than BP_MAX_DIMS dimensions. */
static bp_status tensors_add_header(bp_tensors *tensors, const char *header, size_t bytes, uint64_t data_bytes,
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
    size_t needed = tensors->count + count + 1;
    if (status == BP_OK && (tensors->tensors == NULL || tensors->capacity < needed)) {
        size_t wanted = 2 * tensors->capacity > needed ? 2 * tensors->capacity : needed;
        bp_tensor *larger = realloc(tensors->tensors, wanted * sizeof *larger);
        if (larger != NULL) {
            tensors->tensors = larger;
            tensors->capacity = wanted;
        } else {
            status = bp_fail_memory(wanted * sizeof *larger);
        }
    }
    if (status == BP_OK)
        status = add_entries(tensors, &root, data_bytes, file, places);
    free(places);
    json_decref(document);
    return status;
}

/* ---- headers ----------------------------------------------------------------------------------------------------- */

/* The format's own limit (github.com/huggingface/safetensors, MAX_HEADER_SIZE). */
#define LARGEST_HEADER_BYTES 100000000u
#define LENGTH_BYTES 8

/* Decodes and checks the header's length, the first 8 bytes of a file. */
static bp_status read_length(const unsigned char *data, size_t bytes, uint64_t file_bytes, const char *origin,
                             uint64_t *length)
{
    if (bytes < LENGTH_BYTES)
        return bp_fail(BP_ERR_FORMAT, "%.300s: %zu bytes, a safetensors file has at least %d", origin, bytes,
                       LENGTH_BYTES + 2);
    uint64_t value = 0;
    for (int i = 0; i < LENGTH_BYTES; i++)
        value |= (uint64_t)data[i] << 8 * i;
    if (value > LARGEST_HEADER_BYTES)
        return bp_fail(BP_ERR_FORMAT,
                       "%.300s: a header of %llu bytes, at most %u are allowed; is this a safetensors file?", origin,
                       (unsigned long long)value, LARGEST_HEADER_BYTES);
    if (value > file_bytes - LENGTH_BYTES)
        return bp_fail(BP_ERR_FORMAT, "%.300s: a header of %llu bytes in a file of %llu bytes; the file is truncated",
                       origin, (unsigned long long)value, (unsigned long long)file_bytes);
    *length = value;
    return BP_OK;
}

static bp_status add_file(bp_tensors *tensors, const char *path, size_t file)
{
    unsigned char prefix[LENGTH_BYTES];
    size_t got = 0;
    uint64_t file_bytes = 0, length = 0;
    BP_TRY(bp_file_read_at(path, 0, sizeof prefix, prefix, &got, &file_bytes));
    BP_TRY(read_length(prefix, got, file_bytes, path, &length));
    char *header = malloc(length + 1);
    if (header == NULL)
        return bp_fail_memory(length + 1);
    bp_status status = bp_file_read_at(path, LENGTH_BYTES, length, header, &got, &file_bytes);
    if (status == BP_OK && (got < length || file_bytes < LENGTH_BYTES + length))
        status = bp_fail(BP_ERR_IO, "%.300s: became shorter while it was read", path);
    if (status == BP_OK)
        status = tensors_add_header(tensors, header, length, file_bytes - LENGTH_BYTES - length, path, file);
    free(header);
    return status;
}

/* Reads the shards, compares them with the weight map (NULL: none), and makes the model. */
static bp_status read_shards(const bp_shards *shards, const bp_json_at *weight_map, const char *path,
                             const bp_reader_options *options, bp_model **model)
{
    bp_tensors tensors;
    BP_TRY(tensors_init(&tensors));
    bp_status status = BP_OK;
    for (size_t i = 0; status == BP_OK && i < shards->count; i++) {
        char *name = NULL;
        status = bp_file_join(shards->directory, shards->names[i], &name);
        if (status == BP_OK)
            status = add_file(&tensors, name, i);
        free(name);
    }
    if (status == BP_OK && weight_map != NULL)
        status = shards_check(shards, weight_map, tensors.files);
    if (status == BP_OK)
        status = bp_tensors_to_model(&tensors, path, options, model);
    tensors_finish(&tensors);
    return status;
}

bp_status bp_safetensors_from_index(json_t *document, const char *path, const bp_reader_options *options,
                                    bp_model **model)
{
    bp_json_at root = bp_json_root(document, path), weight_map = bp_json_member(&root, "weight_map");
    bp_shards shards;
    BP_TRY(shards_from_index(&shards, &weight_map));
    bp_status status = read_shards(&shards, &weight_map, path, options, model);
    shards_finish(&shards);
    return status;
}

static bp_status read_index(const char *path, const bp_reader_options *options, bp_model **model)
{
    char *text = NULL;
    size_t bytes = 0;
    BP_TRY(bp_file_read(path, BP_LARGEST_JSON_BYTES, &text, &bytes));
    json_t *document = NULL;
    bp_status status = bp_json_parse(text, bytes, path, NULL, &document);
    free(text);
    if (status == BP_OK)
        status = bp_safetensors_from_index(document, path, options, model);
    json_decref(document);
    return status;
}

bp_status bp_safetensors_read(const char *path, const bp_reader_options *options, bp_model **model)
{
    if (path == NULL || model == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_safetensors_read: path and model must not be NULL");
    bp_reader_options taken;
    BP_TRY(bp_reader_options_take(options, &taken));
    bool is_directory = false;
    BP_TRY(bp_file_is_directory(path, &is_directory));
    if (is_directory) {
        bp_shards shards;
        char *index = NULL;
        BP_TRY(shards_from_directory(&shards, path, &index));
        bp_status status =
            index != NULL ? read_index(index, &taken, model) : read_shards(&shards, NULL, path, &taken, model);
        shards_finish(&shards);
        free(index);
        return status;
    }
    if (bp_has_suffix(path, ".json"))
        return read_index(path, &taken, model);
    bp_tensors tensors;
    BP_TRY(tensors_init(&tensors));
    bp_status status = add_file(&tensors, path, 0);
    if (status == BP_OK)
        status = bp_tensors_to_model(&tensors, path, &taken, model);
    tensors_finish(&tensors);
    return status;
}

bp_status bp_safetensors_parse(const void *data, size_t bytes, uint64_t file_bytes, const char *origin,
                               const bp_reader_options *options, bp_model **model)
{
    if (data == NULL || origin == NULL || model == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_safetensors_parse: data, origin and model must not be NULL");
    if (bytes > file_bytes)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_safetensors_parse: %zu bytes of a file of %llu", bytes,
                       (unsigned long long)file_bytes);
    bp_reader_options taken;
    BP_TRY(bp_reader_options_take(options, &taken));
    uint64_t length = 0;
    BP_TRY(read_length(data, bytes, file_bytes, origin, &length));
    if (bytes - LENGTH_BYTES < length)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%.300s: %zu bytes given, the header ends at %llu", origin, bytes,
                       (unsigned long long)length + LENGTH_BYTES);
    bp_tensors tensors;
    BP_TRY(tensors_init(&tensors));
    bp_status status = tensors_add_header(&tensors, (const char *)data + LENGTH_BYTES, (size_t)length,
                                          file_bytes - LENGTH_BYTES - length, origin, 0);
    if (status == BP_OK)
        status = bp_tensors_to_model(&tensors, origin, &taken, model);
    tensors_finish(&tensors);
    return status;
}
