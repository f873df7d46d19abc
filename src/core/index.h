/* SPDX-License-Identifier: Apache-2.0 */
/* A hash table of entries that the caller keeps in an array and compares: open addressing with linear probing, O(1) expected. Entries are
 * found in no order that a result may depend on, as the key of the hashes differs between processes.
 *
 *     bp_index_search search = bp_index_start(bp_hash(text, bytes));
 *     for (uint32_t entry; bp_index_next(&index, &search, &entry);) {
 *         if (entries[entry] is the text)
 *             return entry;
 *     }
 *     BP_TRY(bp_index_add(&index, search.hash, entry_count++)); */
#ifndef BP_CORE_INDEX_H
#define BP_CORE_INDEX_H

#include <bucketpool/core/fail.h>

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "core/hash.h"

typedef struct bp_index_slot {
    uint32_t entry; /* from 1; 0: free */
    uint32_t hash;  /* the low half */
} bp_index_slot;

typedef struct bp_index {
    bp_index_slot *slots;
    size_t capacity, count; /* the capacity is 0 or a power of two, and at most three quarters are taken */
} bp_index;

typedef struct bp_index_search {
    uint32_t hash;
    size_t probes;
} bp_index_search;

static inline bp_index_search bp_index_start(uint64_t hash)
{
    return (bp_index_search){.hash = (uint32_t)hash};
}

/* The next entry whose hash is that of the search; false: there is none. */
static inline bool bp_index_next(const bp_index *index, bp_index_search *search, uint32_t *entry)
{
    while (index->capacity > 0) {
        const bp_index_slot *slot = &index->slots[(search->hash + search->probes++) & (index->capacity - 1)];
        if (slot->entry == 0)
            return false;
        if (slot->hash != search->hash)
            continue;
        *entry = slot->entry - 1;
        return true;
    }
    return false;
}

static inline void bp_index_put(bp_index *index, bp_index_slot added)
{
    size_t at = added.hash & (index->capacity - 1);
    while (index->slots[at].entry != 0)
        at = (at + 1) & (index->capacity - 1);
    index->slots[at] = added;
}

/* Slots that the table has after the next bp_index_add. */
static inline size_t bp_index_next_capacity(const bp_index *index)
{
    bool fits = 4 * (index->count + 1) <= 3 * index->capacity;
    return fits ? index->capacity : index->capacity == 0 ? 64 : 2 * index->capacity;
}

/* Adds an entry below UINT32_MAX, without a look whether it is there. Errors: BP_ERR_NO_HOST_MEMORY. */
static inline bp_status bp_index_add(bp_index *index, uint32_t hash, uint32_t entry)
{
    size_t capacity = bp_index_next_capacity(index);
    if (capacity != index->capacity) {
        bp_index larger = {
            .slots = calloc(capacity, sizeof *larger.slots), .capacity = capacity, .count = index->count};
        if (larger.slots == NULL)
            return bp_fail_memory(capacity * sizeof *larger.slots);
        for (size_t i = 0; i < index->capacity; i++) {
            if (index->slots[i].entry != 0)
                bp_index_put(&larger, index->slots[i]);
        }
        free(index->slots);
        *index = larger;
    }
    bp_index_put(index, (bp_index_slot){.entry = entry + 1, .hash = hash});
    index->count++;
    return BP_OK;
}

static inline void bp_index_finish(bp_index *index)
{
    free(index->slots);
    *index = (bp_index){0};
}

#endif
