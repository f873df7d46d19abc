/* SPDX-License-Identifier: Apache-2.0 */
/* Models from published configurations: the interface between the architecture tables (families/families.h) and the reader of
 * config.json. Not installed; the formats library links to it (version node BUCKETPOOL_PRIVATE). */
#ifndef BP_MODEL_ARCH_CONFIG_H
#define BP_MODEL_ARCH_CONFIG_H

#include <bucketpool/model.h>

#include <stdbool.h>

#include "planner/model/expression.h"

/* The value of a key. Texts end with NUL; booleans are the integers 0 and 1. */
typedef struct bp_arch_entry {
    bp_value value;    /* texts and lists live until the model is made */
    bool is_null;      /* an explicit null, which some families treat differently from a missing key */
    char unusable[80]; /* not "": the name of a kind that no table reads; an error only if a table needs the key */
} bp_arch_entry;

/* A published configuration. `find` looks a key up; the key has `length` bytes of a static string and need not be terminated. "a.b" is member b of the
 * object a, "a.#" the number of members of a, "a[].b" the list of the members b of the elements of
 * list a ("a[].b%": in billionths), 0 where one is missing or null, 1 where it is an object. *found is false where the configuration does not have the key. Errors:
 * BP_ERR_NO_HOST_MEMORY. */
typedef struct bp_arch_config {
    bp_status (*find)(void *context, const char *key, size_t length, bp_arch_entry *entry, bool *found);
    void *context;
} bp_arch_config;

/* Builds the parameters of a model from the table of its family ("model_type" in the configuration). Names and shapes are
 * those of the published modelling code; tied embeddings appear once; each multi-token prediction layer is a unit. The caller owns
 * the model.
 * Errors: BP_ERR_UNSUPPORTED (unknown model_type), BP_ERR_INVALID_ARGUMENT (a missing, zero, negative or unusable field, by name),
 * BP_ERR_OVERFLOW, BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_model_from_architecture(const char *name, const bp_arch_config *config, bp_dtype dtype,
                                            bp_model **model);

/* Marks a model whose parameters are those of a checkpoint: bp_model_info.published. */
BP_API void bp_model_set_published(bp_model *model);

/* The i-th known model_type in alphabetical order, NULL past the end. Static strings. */
BP_API const char *bp_arch_model_type(size_t index);

#endif
