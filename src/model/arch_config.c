#include "model/arch_config.h"

#include <stdlib.h>
#include <string.h>

#include "core/fail.h"
#include "core/memory.h"

struct bp_arch_config {
    bp_arch_entry *entries;
    size_t count, capacity;
};

bp_status bp_arch_config_create(bp_arch_config **config)
{
    if (config == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_arch_config_create: config must not be NULL");
    void *memory;
    BP_TRY(bp_new_array(1, sizeof **config, &memory));
    *config = memory;
    return BP_OK;
}

static void clear_entry(bp_arch_entry *entry)
{
    free(entry->key);
    free(entry->unusable_what);
    free(entry->memory);
    *entry = (bp_arch_entry){0};
}

void bp_arch_config_destroy(bp_arch_config **config)
{
    if (config == NULL || *config == NULL)
        return;
    for (size_t i = 0; i < (*config)->count; i++)
        clear_entry(&(*config)->entries[i]);
    free((*config)->entries);
    free(*config);
    *config = NULL;
}

const bp_arch_entry *bp_arch_config_find(const bp_arch_config *config, const char *key, size_t key_length)
{
    for (size_t i = 0; i < config->count; i++) {
        if (strncmp(config->entries[i].key, key, key_length) == 0 && config->entries[i].key[key_length] == '\0')
            return &config->entries[i];
    }
    return NULL;
}

/* Takes over the memory that `entry` owns, also on failure. */
static bp_status put(bp_arch_config *config, const char *key, bp_arch_entry entry)
{
    bp_status status = config != NULL && key != NULL
                           ? bp_copy_string(key, &entry.key)
                           : bp_fail(BP_ERR_INVALID_ARGUMENT, "a value needs a config and a key");
    bp_arch_entry *old = status == BP_OK ? (bp_arch_entry *)bp_arch_config_find(config, key, strlen(key)) : NULL;
    if (status == BP_OK && old == NULL) {
        status = bp_grow_array((void **)&config->entries, &config->capacity, config->count, sizeof *config->entries);
        if (status == BP_OK) {
            old = &config->entries[config->count++];
            *old = (bp_arch_entry){0};
        }
    }
    if (status != BP_OK) {
        clear_entry(&entry);
        return status;
    }
    clear_entry(old);
    *old = entry;
    return BP_OK;
}

bp_status bp_arch_config_set_int(bp_arch_config *config, const char *key, int64_t value)
{
    return put(config, key, (bp_arch_entry){.value = {.kind = BP_VALUE_INT, .number = value}});
}

bp_status bp_arch_config_set_null(bp_arch_config *config, const char *key)
{
    return put(config, key, (bp_arch_entry){.is_null = true});
}

bp_status bp_arch_config_set_string(bp_arch_config *config, const char *key, const char *value)
{
    if (value == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "a string value must not be NULL");
    char *copy;
    BP_TRY(bp_copy_string(value, &copy));
    return put(config, key,
               (bp_arch_entry){.value = {.kind = BP_VALUE_TEXT, .text = copy, .length = strlen(copy)}, .memory = copy});
}

bp_status bp_arch_config_set_ints(bp_arch_config *config, const char *key, const int64_t *values, size_t count)
{
    if (values == NULL && count > 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "a list must not be NULL");
    void *copy;
    BP_TRY(bp_new_array(count, sizeof *values, &copy));
    if (count > 0)
        memcpy(copy, values, count * sizeof *values);
    return put(config, key,
               (bp_arch_entry){.value = {.kind = BP_VALUE_INTS, .numbers = copy, .length = count}, .memory = copy});
}

bp_status bp_arch_config_set_strings(bp_arch_config *config, const char *key, const char *const *values, size_t count)
{
    if (values == NULL && count > 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "a list must not be NULL");
    /* pointers and texts in one block, so that one free() ends both */
    size_t bytes = 0;
    for (size_t i = 0; i < count; i++)
        bytes += sizeof *values + strlen(values[i]) + 1;
    void *memory;
    BP_TRY(bp_new_array(bytes, 1, &memory));
    const char **texts = memory;
    char *at = (char *)(texts + count);
    for (size_t i = 0; i < count; i++) {
        texts[i] = at;
        at = stpcpy(at, values[i]) + 1;
    }
    return put(config, key,
               (bp_arch_entry){.value = {.kind = BP_VALUE_TEXTS, .texts = texts, .length = count}, .memory = memory});
}

bp_status bp_arch_config_set_unusable(bp_arch_config *config, const char *key, const char *what)
{
    char *copy;
    BP_TRY(bp_copy_string(what != NULL ? what : "something no table reads", &copy));
    return put(config, key, (bp_arch_entry){.unusable_what = copy});
}
