/* Values of a published configuration by key. */
#ifndef BP_MODEL_ARCH_CONFIG_H
#define BP_MODEL_ARCH_CONFIG_H

#include <bucketpool/model.h>

#include <stdbool.h>

#include "model/expression.h"

typedef struct bp_arch_entry {
    char *key;
    bp_value value;      /* lists and texts point into `memory` */
    char *unusable_what; /* set: the key is there, but of a kind no table reads */
    bool is_null;
    void *memory;
} bp_arch_entry;

/* NULL when the key is not there. */
const bp_arch_entry *bp_arch_config_find(const bp_arch_config *config, const char *key, size_t key_length);

#endif
