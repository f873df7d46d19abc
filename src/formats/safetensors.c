#include <bucketpool/formats.h>

#include <stdlib.h>
#include <string.h>

#include "core/fail.h"
#include "formats/detail.h"
#include "formats/file.h"
#include "formats/json.h"
#include "formats/reader.h"
#include "formats/shards.h"
#include "formats/tensors.h"

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
        return bp_fail(BP_ERR_FORMAT, "%.300s: a header of %llu bytes in a file of %llu; is it cut?", origin,
                       (unsigned long long)value, (unsigned long long)file_bytes);
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
        status = bp_tensors_add_header(tensors, header, length, file_bytes - LENGTH_BYTES - length, path, file);
    free(header);
    return status;
}

static bp_status add_shards(bp_tensors *tensors, const bp_shards *shards)
{
    for (size_t i = 0; i < shards->count; i++) {
        char *path = NULL;
        BP_TRY(bp_file_join(shards->directory, shards->names[i], &path));
        bp_status status = add_file(tensors, path, i);
        free(path);
        if (status != BP_OK)
            return status;
    }
    return BP_OK;
}

/* Reads the shards, compares them with the weight map unless it is NULL, and makes the model. */
static bp_status read_shards(const bp_shards *shards, const bp_json_at *weight_map, const char *path,
                             const bp_reader_options *options, bp_model **model)
{
    bp_tensors tensors;
    BP_TRY(bp_tensors_init(&tensors));
    bp_status status = add_shards(&tensors, shards);
    if (status == BP_OK && weight_map != NULL)
        status = bp_shards_check(shards, weight_map, tensors.files);
    if (status == BP_OK)
        status = bp_tensors_to_model(&tensors, path, options, model);
    bp_tensors_finish(&tensors);
    return status;
}

bp_status bp_safetensors_from_index(json_t *document, const char *path, const bp_reader_options *options,
                                    bp_model **model)
{
    bp_json_at root = bp_json_root(document, path), weight_map = bp_json_member(&root, "weight_map");
    bp_shards shards;
    BP_TRY(bp_shards_from_index(&shards, &weight_map));
    bp_status status = read_shards(&shards, &weight_map, path, options, model);
    bp_shards_finish(&shards);
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

static bp_status safetensors_read_directory(const char *path, const bp_reader_options *options, bp_model **model)
{
    bp_shards shards;
    char *index = NULL;
    BP_TRY(bp_shards_from_directory(&shards, path, &index));
    bp_status status =
        index != NULL ? read_index(index, options, model) : read_shards(&shards, NULL, path, options, model);
    bp_shards_finish(&shards);
    free(index);
    return status;
}

static bp_status safetensors_read_file(const char *path, const bp_reader_options *options, bp_model **model)
{
    bp_tensors tensors;
    BP_TRY(bp_tensors_init(&tensors));
    bp_status status = add_file(&tensors, path, 0);
    if (status == BP_OK)
        status = bp_tensors_to_model(&tensors, path, options, model);
    bp_tensors_finish(&tensors);
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
    if (is_directory)
        return safetensors_read_directory(path, &taken, model);
    return bp_has_suffix(path, ".json") ? read_index(path, &taken, model) : safetensors_read_file(path, &taken, model);
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
    BP_TRY(bp_tensors_init(&tensors));
    bp_status status = bp_tensors_add_header(&tensors, (const char *)data + LENGTH_BYTES, (size_t)length,
                                             file_bytes - LENGTH_BYTES - length, origin, 0);
    if (status == BP_OK)
        status = bp_tensors_to_model(&tensors, origin, &taken, model);
    bp_tensors_finish(&tensors);
    return status;
}
