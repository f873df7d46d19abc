#include "formats/pickle_values.h"

#include <stdlib.h>
#include <string.h>

enum { BLOCK_BYTES = 1 << 16, ALIGNMENT = 8 };

typedef struct bp_pickle_block {
    struct bp_pickle_block *next;
    size_t used, capacity;
    _Alignas(ALIGNMENT) char memory[];
} bp_pickle_block;

void *bp_pickle_allocate(bp_pickle *pickle, size_t bytes)
{
    size_t rounded = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    bp_pickle_block *block = pickle->blocks;
    if (block == NULL || block->capacity - block->used < rounded) {
        size_t capacity = rounded > BLOCK_BYTES ? rounded : BLOCK_BYTES;
        block = malloc(sizeof *block + capacity);
        if (block == NULL)
            return NULL;
        *block = (bp_pickle_block){.next = pickle->blocks, .capacity = capacity};
        pickle->blocks = block;
    }
    void *memory = block->memory + block->used;
    block->used += rounded;
    return memory;
}

void bp_pickle_finish(bp_pickle *pickle)
{
    while (pickle->blocks != NULL) {
        bp_pickle_block *next = pickle->blocks->next;
        free(pickle->blocks);
        pickle->blocks = next;
    }
    pickle->value = NULL;
}

bp_pickle_value *bp_pickle_new(bp_pickle *pickle, bp_pickle_kind kind)
{
    bp_pickle_value *value = bp_pickle_allocate(pickle, sizeof *value);
    if (value != NULL)
        *value = (bp_pickle_value){.kind = (uint8_t)kind};
    return value;
}

/* Lists grow by powers of two, which need not be written down. Tuples and what comes at once take what they need. */
static size_t capacity_for(size_t count)
{
    size_t capacity = 4;
    while (capacity < count)
        capacity *= 2;
    return count == 0 ? 0 : capacity;
}

bool bp_pickle_append(bp_pickle *pickle, bp_pickle_value *value, bp_pickle_value *const *items, size_t count)
{
    size_t total = value->count + count;
    if (total > UINT32_MAX)
        return false;
    if (capacity_for(total) > capacity_for(value->count)) {
        bp_pickle_value **larger = bp_pickle_allocate(pickle, capacity_for(total) * sizeof(bp_pickle_value *));
        if (larger == NULL)
            return false;
        if (value->count > 0)
            memcpy(larger, value->items, value->count * sizeof(bp_pickle_value *));
        value->items = larger;
    }
    if (count > 0)
        memcpy(value->items + value->count, items, count * sizeof(bp_pickle_value *));
    value->count = (uint32_t)total;
    return true;
}

const bp_pickle_value *bp_pickle_find(const bp_pickle_value *dictionary, const char *key)
{
    size_t length = strlen(key);
    if (dictionary == NULL || dictionary->kind != BP_PICKLE_DICTIONARY ||
        dictionary->count > 2 * BP_PICKLE_MOST_MEMBERS)
        return NULL;
    for (size_t i = dictionary->count; i > 0; i -= 2) {
        const bp_pickle_value *name = dictionary->items[i - 2];
        if (name->kind == BP_PICKLE_STRING && name->count == length && memcmp(name->text, key, length) == 0)
            return dictionary->items[i - 1];
    }
    return NULL;
}
