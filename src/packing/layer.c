#include "packing/layer.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "core/fail.h"
#include "core/memory.h"

#define NONE UINT32_MAX
#define MOST_COMPARED 64 /* states that one is compared with: dropping states saves work, and must not take more */

void bp_layer_clear(bp_layer *layer, uint32_t side)
{
    layer->side = side;
    layer->count = 0;
    if (layer->table_size > 0)
        memset(layer->table, 0xff, layer->table_size * sizeof *layer->table);
}

void bp_layer_finish(bp_layer *layer)
{
    free(layer->cells);
    free(layer->origins);
    free(layer->ranks);
    free(layer->next_of_hash);
    free(layer->table);
    *layer = (bp_layer){0};
}

static size_t matrix_cells(const bp_layer *layer)
{
    return (size_t)layer->side * layer->side;
}

static uint64_t *matrix_of(const bp_layer *layer, size_t state)
{
    return layer->cells + matrix_cells(layer) * state;
}

/* Which items lie above which, hashed: only states that agree in that can replace each other. */
static uint64_t hash_order(const uint64_t *matrix, uint32_t side)
{
    uint64_t hash = side;
    for (uint32_t i = 1; i < side; i++) {
        uint64_t row = 0;
        for (uint32_t j = 1; j < side; j++)
            row = row << 1 | (matrix[i * side + j] != 0);
        hash = (hash ^ row) * UINT64_C(0x9e3779b97f4a7c15);
        hash ^= hash >> 29;
    }
    return hash;
}

static void link_state(bp_layer *layer, uint32_t state)
{
    size_t at = hash_order(matrix_of(layer, state), layer->side) & (layer->table_size - 1);
    layer->next_of_hash[state] = layer->table[at];
    layer->table[at] = state;
}

static bp_status layer_enlarge_table(bp_layer *layer)
{
    size_t size = layer->table_size == 0 ? 64 : 4 * layer->table_size;
    void *memory;
    BP_TRY(bp_new_array(size, sizeof *layer->table, &memory));
    free(layer->table);
    layer->table = memory;
    layer->table_size = size;
    memset(layer->table, 0xff, size * sizeof *layer->table);
    for (uint32_t i = 0; i < layer->count; i++)
        link_state(layer, i);
    return BP_OK;
}

static bp_status enlarge_states(bp_layer *layer)
{
    size_t capacity = 2 * layer->state_capacity + 16;
    void *memory = realloc(layer->origins, capacity * sizeof *layer->origins);
    if (memory == NULL)
        return bp_fail_memory(capacity * sizeof *layer->origins);
    layer->origins = memory;
    memory = realloc(layer->ranks, capacity * sizeof *layer->ranks);
    if (memory == NULL)
        return bp_fail_memory(capacity * sizeof *layer->ranks);
    layer->ranks = memory;
    memory = realloc(layer->next_of_hash, capacity * sizeof *layer->next_of_hash);
    if (memory == NULL)
        return bp_fail_memory(capacity * sizeof *layer->next_of_hash);
    layer->next_of_hash = memory;
    layer->state_capacity = capacity;
    return BP_OK;
}

bp_status bp_layer_room(bp_layer *layer, uint64_t **matrix)
{
    if (layer->count == layer->state_capacity)
        BP_TRY(enlarge_states(layer));
    size_t needed = matrix_cells(layer) * (layer->count + 1);
    if (needed > layer->cell_capacity) {
        size_t capacity = 2 * needed;
        void *memory = realloc(layer->cells, capacity * sizeof *layer->cells);
        if (memory == NULL)
            return bp_fail_memory(capacity * sizeof *layer->cells);
        layer->cells = memory;
        layer->cell_capacity = capacity;
    }
    if (2 * (layer->count + 1) > layer->table_size)
        BP_TRY(layer_enlarge_table(layer));
    *matrix = matrix_of(layer, layer->count);
    return BP_OK;
}

/* Whether every distance of `a` is at most that of `b`: whatever can follow b can follow a. */
static bool is_nowhere_tighter(const uint64_t *a, const uint64_t *b, size_t cells)
{
    for (size_t i = 0; i < cells; i++) {
        if (a[i] > b[i])
            return false;
    }
    return true;
}

bp_status bp_layer_add(bp_layer *layer, uint64_t rank, bp_origin origin, bp_work *work)
{
    size_t cells = matrix_cells(layer);
    uint64_t *mine = matrix_of(layer, layer->count);
    size_t at = hash_order(mine, layer->side) & (layer->table_size - 1);
    uint32_t compared = 0;
    work->spent += cells;
    for (uint32_t i = layer->table[at]; i != NONE && compared < MOST_COMPARED; i = layer->next_of_hash[i], compared++) {
        uint64_t *other = matrix_of(layer, i);
        work->spent += cells / 4 + 1;
        if (is_nowhere_tighter(other, mine, cells))
            return BP_OK;
        if (is_nowhere_tighter(mine, other, cells)) {
            memcpy(other, mine,
                   cells * sizeof *mine); /* of the same hash, if not the same order: it may be found less often */
            layer->origins[i] = origin;
            layer->ranks[i] = rank;
            return BP_OK;
        }
    }
    layer->origins[layer->count] = origin;
    layer->ranks[layer->count] = rank;
    link_state(layer, (uint32_t)layer->count++);
    return BP_OK;
}

typedef struct ranked {
    uint64_t rank;
    uint32_t state;
} ranked;

static int by_rank(const void *left, const void *right)
{
    const ranked *a = left, *b = right;
    if (a->rank != b->rank)
        return a->rank < b->rank ? -1 : 1;
    return (a->state > b->state) - (a->state < b->state);
}

static int by_state(const void *left, const void *right)
{
    const ranked *a = left, *b = right;
    return (a->state > b->state) - (a->state < b->state);
}

bp_status bp_layer_truncate(bp_layer *layer, size_t most)
{
    if (layer->count <= most)
        return BP_OK;
    void *memory;
    BP_TRY(bp_new_array(layer->count, sizeof(ranked), &memory));
    ranked *list = memory;
    for (uint32_t i = 0; i < layer->count; i++)
        list[i] = (ranked){layer->ranks[i], i};
    qsort(list, layer->count, sizeof *list, by_rank);
    qsort(list, most, sizeof *list, by_state); /* so that they can be moved down one by one */
    for (uint32_t i = 0; i < most; i++) {
        memmove(matrix_of(layer, i), matrix_of(layer, list[i].state), matrix_cells(layer) * sizeof *layer->cells);
        layer->origins[i] = layer->origins[list[i].state];
        layer->ranks[i] = layer->ranks[list[i].state];
    }
    layer->count = most;
    memset(layer->table, 0xff, layer->table_size * sizeof *layer->table);
    for (uint32_t i = 0; i < most; i++)
        link_state(layer, i);
    free(list);
    return BP_OK;
}
