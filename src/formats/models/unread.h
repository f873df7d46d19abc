/* SPDX-License-Identifier: Apache-2.0 */
/* Fields of a configuration that no table read. */
#ifndef BP_FORMATS_MODELS_UNREAD_H
#define BP_FORMATS_MODELS_UNREAD_H

#include <bucketpool/model.h>

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* The keys that a table looked up. A table has at most 64 fields with a few alternatives each. */
typedef struct bp_looked_up_key {
    const char *name; /* static, not terminated */
    size_t length;
    bool found;
} bp_looked_up_key;

typedef struct bp_looked_up {
    bp_looked_up_key keys[512];
    size_t count;
} bp_looked_up;

typedef struct bp_unread_part {
    const json_t *object;
    bool (*is_other)(const char *key,
                     const json_t *value); /* a member that is none of the model's, or that another note names */
} bp_unread_part;

/* Adds a note that names the members of the parts that were not looked up, and that may decide sizes or are misspelt, and one about quantization_config.
 * `dtype`: that of the parameters. */
bp_status bp_note_unread(const bp_unread_part *parts, size_t count, const bp_looked_up *looked, bp_dtype dtype,
                         bp_model *model);

#endif
