/* What a path is, and which reader it goes to. */
#include <bucketpool/formats.h>

#include <stdlib.h>
#include <string.h>

#include "core/fail.h"
#include "formats/detail.h"
#include "formats/file.h"
#include "formats/reader.h"

/* What a JSON document is can be seen from its first members. */
static bp_status read_document(const char *path, json_t *document, const char *text, size_t bytes,
                               const bp_reader_options *options, bp_model **model)
{
    const char *format = json_string_value(json_object_get(document, "format"));
    if (format != NULL && strncmp(format, "bucketpool.units", strlen("bucketpool.units")) == 0)
        return bp_units_parse(text, bytes, path, options, model);
    if (json_object_get(document, "weight_map") != NULL)
        return bp_safetensors_from_index(document, path, options, model);
    if (json_object_get(document, "model_type") != NULL || json_object_get(document, "text_config") != NULL ||
        bp_has_suffix(path, "config.json"))
        return bp_config_from_json(document, path, options, model);
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
    bp_status status = bp_config_load(text, bytes, path, &document);
    if (status == BP_OK)
        status = read_document(path, document, text, bytes, options, model);
    json_decref(document);
    free(text);
    return status;
}

/* The configuration in a directory, or the path itself. *path is NULL when the directory has none. */
static bp_status find_config(const char *directory, char **config)
{
    char *path = NULL;
    BP_TRY(bp_file_join(directory, "config.json", &path));
    bool is_directory = false;
    if (bp_file_is_directory(path, &is_directory) != BP_OK || is_directory) {
        free(path);
        path = NULL;
    }
    *config = path;
    return BP_OK;
}

bp_status bp_model_read(const char *path, const bp_reader_options *options, bp_model **model)
{
    if (path == NULL || model == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_model_read: path and model must not be NULL");
    bp_reader_options taken;
    BP_TRY(bp_reader_options_take(options, &taken));
    bool is_directory = false;
    BP_TRY(bp_file_is_directory(path, &is_directory));
    if (is_directory) {
        char *config = NULL;
        BP_TRY(find_config(path, &config));
        bp_status status = config != NULL ? read_json(config, &taken, model) : bp_safetensors_read(path, &taken, model);
        free(config);
        return status;
    }
    if (bp_has_suffix(path, ".safetensors") || bp_has_suffix(path, ".safetensors.index.json"))
        return bp_safetensors_read(path, &taken, model);
    return read_json(path, &taken, model);
}
