#include "allocators/known.h"

#include <string.h>

#include "core/arith.h"
#include "core/fail.h"

/* FNV-1a of the name, then ordinal and role: the same on every rank. */
static uint64_t key_of(const char *unit, uint32_t ordinal, uint32_t role)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (; *unit != '\0'; unit++)
        hash = (hash ^ (uint8_t)*unit) * 0x100000001b3u;
    hash = (hash ^ ordinal) * 0x9e3779b97f4a7c15u;
    hash = (hash ^ hash >> 29 ^ role) * 0xbf58476d1ce4e5b9u;
    return hash ^ hash >> 32;
}

/* The place of a request in the table, or the empty one where it would be. */
static size_t find_place(const bp_pool *pool, uint64_t key, const char *unit, uint32_t ordinal, uint32_t role)
{
    size_t at = key & (pool->table_size - 1);
    for (; pool->table[at] != 0; at = (at + 1) & (pool->table_size - 1)) {
        const bp_known *k = &pool->known[pool->table[at] - 1];
        if (k->key == key && k->ordinal == ordinal && k->role == role && strcmp(k->unit, unit) == 0)
            break;
    }
    return at;
}

uint32_t bp_known_find(const bp_pool *pool, const char *unit, uint32_t ordinal, uint32_t role)
{
    size_t at = find_place(pool, key_of(unit, ordinal, role), unit, ordinal, role);
    return pool->table[at] == 0 ? BP_NONE : pool->table[at] - 1;
}

bp_status bp_known_add(bp_pool *pool, const bp_known *added, uint32_t *index)
{
    bp_known *k = &pool->known[pool->known_count];
    *k = *added;
    /* neighbours are mostly of one unit: they share its name */
    const char *before = pool->known_count > 0 ? k[-1].unit : NULL;
    if (before != NULL && strcmp(before, added->unit) == 0)
        k->unit = before;
    else
        BP_TRY(bp_strings_add(&pool->strings, added->unit, &k->unit));
    if (added->bucket != NULL)
        BP_TRY(bp_strings_add(&pool->strings, added->bucket, &k->bucket));
    k->key = key_of(k->unit, k->ordinal, k->role);
    k->id = BP_NONE;
    pool->table[find_place(pool, k->key, k->unit, k->ordinal, k->role)] = pool->known_count + 1;
    *index = pool->known_count++;
    return BP_OK;
}

bp_status bp_known_init(bp_pool *pool, const bp_plan *plan, uint32_t extra)
{
    size_t planned = bp_plan_assignment_count(plan);
    void *memory;
    if (planned > UINT32_MAX / 4 || extra > UINT32_MAX / 4)
        return bp_fail(BP_ERR_UNSUPPORTED, "%zu requests and %u extra ones are more than a pool serves", planned,
                       extra);
    pool->known_capacity = (uint32_t)planned + extra;
    BP_TRY(bp_new_array(pool->known_capacity, sizeof *pool->known, &memory));
    pool->known = memory;
    pool->table_size = 16;
    while (pool->table_size < 2 * (size_t)pool->known_capacity)
        pool->table_size *= 2;
    BP_TRY(bp_new_array(pool->table_size, sizeof *pool->table, &memory));
    pool->table = memory;
    for (size_t i = 0; i < planned; i++) {
        bp_assignment a = {.size = sizeof a};
        BP_TRY(bp_plan_assignment_get(plan, i, &a));
        uint32_t index;
        BP_TRY(bp_known_add(pool,
                            &(bp_known){.unit = a.unit,
                                        .bucket = a.bucket,
                                        .bytes = a.bytes,
                                        .ordinal = a.ordinal,
                                        .role = a.role,
                                        .dtype = a.dtype,
                                        .class_index = BP_NONE},
                            &index));
    }
    pool->planned_count = (uint32_t)planned;
    return BP_OK;
}
