/* Options, names and last steps of the readers of models. */
#ifndef BP_FORMATS_MODELS_READER_H
#define BP_FORMATS_MODELS_READER_H

#include <bucketpool/formats.h>

#include <jansson.h>
#include <stddef.h>

/* Bytes of memory that a reader may allocate for an input of so many bytes: 16 times as many and 256 MiB, at most 2 GiB. An input that needs
 * more is refused, BP_ERR_FORMAT. */
size_t bp_reader_budget(size_t bytes);

/* The options a caller gave, defaults where there are none. Errors: BP_ERR_INVALID_ARGUMENT. */
bp_status bp_reader_options_take(const bp_reader_options *options, bp_reader_options *taken);

/* A model's name: that of the options, else `given` unless NULL, else one made from `path`; free() it. */
bp_status bp_reader_choose_name(const bp_reader_options *options, const char *given, const char *path, char **name);

/* Validates what was read. On success the model is the caller's, else it is destroyed: pass the status so far. */
bp_status bp_reader_hand_over(bp_status status, const char *origin, bp_model *read, bp_model **model);

/* The readers below take checked options. */
bp_status bp_units_from_json(json_t *document, const char *origin, const bp_reader_options *options, bp_model **model);
bp_status bp_config_from_json(json_t *document, const char *origin, const bp_reader_options *options, bp_model **model);
/* The shards are beside `path`. */
bp_status bp_safetensors_from_index(json_t *document, const char *path, const bp_reader_options *options,
                                    bp_model **model);

#endif
