/* SPDX-License-Identifier: Apache-2.0 */
/* Selects a reader by the kind of the path; options, names and final checks of all readers. */
#include "formats/models/reader.h"

#include <bucketpool/core/fail.h>
#include <bucketpool/core/structs.h>
#include <bucketpool/formats.h>

#include <stdlib.h>
#include <string.h>

#include "core/kinds.h"
#include "formats/file.h"
#include "formats/json.h"

/* ---- all readers ------------------------------------------------------------------------------------------------- */

size_t bp_reader_budget(size_t bytes)
{
    const size_t max = (size_t)2 << 30, min = (size_t)256 << 20;
    return bytes < (max - min) / 16 ? 16 * bytes + min : max;
}

static const bp_reader_options defaults = {.size = sizeof defaults};

bp_status bp_reader_options_init(bp_reader_options *options, size_t size)
{
    return bp_struct_init("bp_reader_options_init", options, size, &defaults, sizeof defaults);
}

bp_status bp_reader_options_take(const bp_reader_options *options, bp_reader_options *taken)
{
    bp_reader_options read = defaults;
    BP_TRY(bp_struct_read("reader options", options, true, &read, sizeof read));
    if (read.name != NULL && !bp_is_name(read.name))
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "reader options: \"%.60s\" cannot be a model's name", read.name);
    if (read.dtype != BP_DTYPE_NONE && bp_dtype_bits(read.dtype) == 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "reader options: unknown dtype %d", (int)read.dtype);
    *taken = read;
    return BP_OK;
}

bp_status bp_reader_choose_name(const bp_reader_options *options, const char *given, const char *path, char **name)
{
    const char *chosen = options->name != NULL ? options->name : given;
    if (chosen == NULL)
        return bp_file_model_name(path, name);
    char *copy = strdup(chosen);
    if (copy == NULL)
        return bp_fail_memory(strlen(chosen) + 1);
    *name = copy;
    return BP_OK;
}

bp_status bp_reader_hand_over(bp_status status, const char *origin, bp_model *read, bp_model **model)
{
    if (status == BP_OK)
        status = bp_fail_at(origin, bp_model_validate(read));
    if (status == BP_OK)
        *model = read;
    else
        bp_model_destroy(&read);
    return status;
}

/* ---- by the kind of a path --------------------------------------------------------------------------------------- */

static bool is_units(const json_t *document)
{
    const char *format = json_string_value(json_object_get(document, "format"));
    return format != NULL && strncmp(format, "bucketpool.units", strlen("bucketpool.units")) == 0;
}

/* Selects the reader by the members of the document. */
static bp_status read_document(const char *path, json_t *document, const bp_reader_options *options, bp_model **model)
{
    const char *format = json_string_value(json_object_get(document, "format"));
    if (is_units(document))
        return bp_units_from_json(document, path, options, model);
    if (json_object_get(document, "weight_map") != NULL)
        return bp_safetensors_from_index(document, path, options, model);
    if (json_object_get(document, "model_type") != NULL || json_object_get(document, "text_config") != NULL ||
        bp_has_suffix(path, "config.json"))
        return bp_config_from_json(document, path, options, model);
    bp_kind kind = bp_kind_of_document(format);
    if (kind.name != NULL)
        return bp_fail(BP_ERR_FORMAT, "%.300s: %s (%.60s), not a model; %s", path, kind.name, format,
                       kind.next != NULL ? kind.next : "give the MODEL that the command was run with");
    return bp_fail(BP_ERR_FORMAT,
                   "%.300s: not a model%s%.60s%s: expected \"format\": \"bucketpool.units/1\", a published "
                   "configuration with \"model_type\", or a safetensors index with \"weight_map\"",
                   path, format != NULL ? " but \"" : "", format != NULL ? format : "", format != NULL ? "\"" : "");
}

static bp_status read_json(const char *path, const bp_reader_options *options, bp_model **model)
{
    char *text = NULL;
    size_t bytes = 0;
    BP_TRY(bp_file_read(path, BP_LARGEST_JSON_BYTES, &text, &bytes));
    json_t *document = NULL;
    bool not_numbers = false;
    bp_status status = bp_json_parse(text, bytes, path, &not_numbers, &document);
    if (status == BP_OK && not_numbers && is_units(document)) {
        json_decref(document);
        document = NULL;
        status = bp_json_parse(text, bytes, path, NULL, &document); /* fails again, with the place */
    }
    if (status == BP_OK)
        status = read_document(path, document, options, model);
    json_decref(document);
    free(text);
    return status;
}

bp_status bp_model_read(const char *path, const bp_reader_options *options, bp_model **model)
{
    if (path == NULL || model == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_model_read: path and model must not be NULL");
    bp_reader_options taken;
    BP_TRY(bp_reader_options_take(options, &taken));
    bool is_directory = false;
    BP_TRY(bp_file_is_directory(path, &is_directory));
    if (is_directory) { /* A directory is read by its configuration. If that fails, safetensors are not tried: they contain less. */
        char *config = NULL;
        bool exists = false;
        BP_TRY(bp_file_join(path, "config.json", &config));
        bp_status status = bp_file_exists(config, &exists);
        if (status == BP_OK)
            status = exists ? read_json(config, &taken, model) : bp_safetensors_read(path, &taken, model);
        free(config);
        return status;
    }
    if (bp_has_suffix(path, ".safetensors") || bp_has_suffix(path, ".safetensors.index.json"))
        return bp_safetensors_read(path, &taken, model);
    return read_json(path, &taken, model);
}
