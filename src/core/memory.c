/* SPDX-License-Identifier: Apache-2.0 */
/* Growing arrays and strings, with checked sizes. */
#include "core/memory.h"

#include <bucketpool/core/fail.h>

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

bp_status bp_new_array(size_t count, size_t element_bytes, void **array)
{
    void *memory = calloc(count > 0 ? count : 1, element_bytes);
    if (memory == NULL)
        return bp_fail_memory(count > SIZE_MAX / element_bytes ? SIZE_MAX : count * element_bytes);
    *array = memory;
    return BP_OK;
}

bp_status bp_new_lines(size_t count, size_t element_bytes, void **array)
{
    const size_t bytes = (count > 0 ? count : 1) * element_bytes;
    if (count > SIZE_MAX / element_bytes)
        return bp_fail_memory(SIZE_MAX);
    void *memory = aligned_alloc(64, bytes);
    if (memory == NULL)
        return bp_fail_memory(bytes);
    *array = memset(memory, 0, bytes);
    return BP_OK;
}

bp_status bp_grow_array(void **array, size_t *capacity, size_t count, size_t element_bytes)
{
    if (count < *capacity)
        return BP_OK;
    size_t wanted = *capacity > 0 ? *capacity : 8;
    while (wanted <= count) {
        if (wanted > SIZE_MAX / 2 / element_bytes)
            return bp_fail_memory(SIZE_MAX);
        wanted *= 2;
    }
    void *memory = realloc(*array, wanted * element_bytes);
    if (memory == NULL)
        return bp_fail_memory(wanted * element_bytes);
    *array = memory;
    *capacity = wanted;
    return BP_OK;
}

bp_status bp_copy_string(const char *text, char **copy)
{
    char *memory = strdup(text);
    if (memory == NULL)
        return bp_fail_memory(strlen(text) + 1);
    *copy = memory;
    return BP_OK;
}

struct bp_string_block {
    struct bp_string_block *next;
    size_t used;
    size_t capacity;
    char text[];
};

bp_status bp_strings_add(bp_strings *strings, const char *text, const char **copy)
{
    size_t bytes = strlen(text) + 1;
    struct bp_string_block *block = strings->blocks;
    if (block == NULL || block->capacity - block->used < bytes) {
        size_t capacity = bytes > 4000 ? bytes : 4000;
        block = malloc(sizeof *block + capacity);
        if (block == NULL)
            return bp_fail_memory(sizeof *block + capacity);
        block->next = strings->blocks;
        block->used = 0;
        block->capacity = capacity;
        strings->blocks = block;
    }
    *copy = memcpy(block->text + block->used, text, bytes);
    block->used += bytes;
    return BP_OK;
}

void bp_strings_finish(bp_strings *strings)
{
    while (strings->blocks != NULL) {
        struct bp_string_block *block = strings->blocks;
        strings->blocks = block->next;
        free(block);
    }
}
