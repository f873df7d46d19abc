/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the readers of models: options, names, final checks, and the tensors of a checkpoint. */
#ifndef BP_FORMATS_MODELS_READER_H
#define BP_FORMATS_MODELS_READER_H

#include <bucketpool/formats.h>

#include <jansson.h>
#include <stddef.h>

/* Most bytes of memory that a reader allocates for an input of `bytes` bytes: 16 times as many plus 256 MiB, at most
 * 2 GiB. An input that needs more is refused with BP_ERR_FORMAT. */
size_t bp_reader_budget(size_t bytes);

/* The caller's options with defaults filled in. Errors: BP_ERR_INVALID_ARGUMENT. */
bp_status bp_reader_options_take(const bp_reader_options *options, bp_reader_options *taken);

/* A model's name: from the options, else `given` unless NULL, else from `path`; free() it. */
bp_status bp_reader_choose_name(const bp_reader_options *options, const char *given, const char *path, char **name);

/* Validates a model if `status` is BP_OK. On success the caller owns it, else it is destroyed. */
bp_status bp_reader_hand_over(bp_status status, const char *origin, bp_model *read, bp_model **model);

/* These readers expect checked options. */
bp_status bp_units_from_json(json_t *document, const char *origin, const bp_reader_options *options, bp_model **model);
bp_status bp_config_from_json(json_t *document, const char *origin, const bp_reader_options *options, bp_model **model);
/* The shards are in the directory of `path`. */
bp_status bp_safetensors_from_index(json_t *document, const char *path, const bp_reader_options *options,
                                    bp_model **model);

typedef struct bp_tensor {
    const char *name; /* lives as long as the table */
    bp_dtype dtype;
    uint32_t dims;
    uint64_t shape[BP_MAX_DIMS]; /* no dimension is 0 */
} bp_tensor;

typedef struct bp_tensors {
    bp_tensor *tensors; /* in order of appearance; tensors without elements are left out */
    size_t count, capacity;
    json_t *files; /* name of each tensor -> number of its file; owns the names */
} bp_tensors;

/* Groups tensors into units, and tensors of experts into copies (see bp_safetensors_read). Errors:
 * BP_ERR_INVALID_ARGUMENT for options->units that cannot be parsed. */
bp_status bp_tensors_to_model(const bp_tensors *tensors, const char *origin, const bp_reader_options *options,
                              bp_model **model);

/* strcmp that compares runs of digits as numbers: layers.9 is before layers.10. Equal numbers compare as text. */
int bp_compare_natural(const char *left, const char *right);

#endif
