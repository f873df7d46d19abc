/* SPDX-License-Identifier: Apache-2.0 */
/* A hash map from addresses to pointers: open addressing with linear probing, O(1) expected. */
#ifndef BP_STEPS_ADDRESS_MAP_H
#define BP_STEPS_ADDRESS_MAP_H

#include <bucketpool/core/fail.h>

#include <stdint.h>
#include <stdlib.h>

#include "core/hash.h"
#include "core/memory.h"

typedef struct bp_address_entry {
    uint64_t address;
    void *value; /* NULL: unused */
} bp_address_entry;

typedef struct bp_address_map {
    bp_address_entry *entries;
    size_t capacity, count; /* the capacity is 0 or a power of two */
} bp_address_map;

static inline size_t bp_address_slot(const bp_address_map *map, uint64_t address)
{
    return bp_hash_number(address) & (map->capacity - 1);
}

/* The entry of the address, or the unused one where it belongs. The map has a capacity. */
static inline bp_address_entry *bp_address_entry_of(const bp_address_map *map, uint64_t address)
{
    size_t slot = bp_address_slot(map, address);
    while (map->entries[slot].value != NULL && map->entries[slot].address != address)
        slot = (slot + 1) & (map->capacity - 1);
    return &map->entries[slot];
}

static inline void *bp_address_map_get(const bp_address_map *map, uint64_t address)
{
    return map->capacity == 0 ? NULL : bp_address_entry_of(map, address)->value;
}

/* Replaces the value of an address that is there. Errors: BP_ERR_NO_HOST_MEMORY. */
static inline bp_status bp_address_map_set(bp_address_map *map, uint64_t address, void *value)
{
    if (map->count >= map->capacity / 2) {
        bp_address_map larger = {.capacity = map->capacity == 0 ? 64 : map->capacity * 2};
        BP_TRY(bp_new_array(larger.capacity, sizeof *larger.entries, (void **)&larger.entries));
        for (size_t i = 0; i < map->capacity; i++) {
            if (map->entries[i].value != NULL)
                *bp_address_entry_of(&larger, map->entries[i].address) = map->entries[i];
        }
        larger.count = map->count;
        free(map->entries);
        *map = larger;
    }
    bp_address_entry *entry = bp_address_entry_of(map, address);
    map->count += entry->value == NULL;
    *entry = (bp_address_entry){address, value};
    return BP_OK;
}

/* Takes the value out of the map; NULL if there was none. Later entries move back, so that no marks of removed ones remain. */
static inline void *bp_address_map_take(bp_address_map *map, uint64_t address)
{
    if (map->capacity == 0)
        return NULL;
    bp_address_entry *entry = bp_address_entry_of(map, address);
    void *value = entry->value;
    if (value == NULL)
        return NULL;
    map->count--;
    size_t mask = map->capacity - 1, hole = (size_t)(entry - map->entries);
    for (size_t next = (hole + 1) & mask; map->entries[next].value != NULL; next = (next + 1) & mask) {
        size_t home = bp_address_slot(map, map->entries[next].address);
        if (((next - home) & mask) >= ((next - hole) & mask)) {
            map->entries[hole] = map->entries[next];
            hole = next;
        }
    }
    map->entries[hole].value = NULL;
    return value;
}

static inline void bp_address_map_finish(bp_address_map *map)
{
    free(map->entries);
    *map = (bp_address_map){0};
}

#endif
