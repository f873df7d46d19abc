/* The size of a bucket once its parameters are laid out and padded for sharding. */
#include "model/padding.h"

#include <bucketpool/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/arith.h"
#include "core/fail.h"
#include "core/memory.h"
#include "model/model.h"

/* A tournament of the smallest sizes: leaf i of `leaves` is at smallest[leaves + i], its parents above. */
typedef struct bp_first_fit {
    uint64_t *smallest;
    size_t leaves;
} bp_first_fit;

#define BP_FITS_NOWHERE UINT64_MAX /* the size of an entry that is never found */
#define BP_NO_FIT SIZE_MAX

/* ---- first fit --------------------------------------------------------------------------------------------------- */

/* `count` entries that are never found until they are set. */
static bp_status first_fit_init(bp_first_fit *fit, size_t count)
{
    void *memory;
    size_t leaves = 1;
    while (leaves < count)
        leaves *= 2;
    bp_status status = bp_new_array(2 * leaves, sizeof *fit->smallest, &memory);
    if (status != BP_OK)
        return status;
    fit->smallest = memset(memory, 0xff, 2 * leaves * sizeof *fit->smallest);
    fit->leaves = leaves;
    return BP_OK;
}

static void first_fit_finish(bp_first_fit *fit)
{
    free(fit->smallest);
    *fit = (bp_first_fit){0};
}

static void first_fit_set(bp_first_fit *fit, size_t index, uint64_t size)
{
    size_t at = fit->leaves + index;
    fit->smallest[at] = size;
    for (at /= 2; at > 0; at /= 2) {
        uint64_t left = fit->smallest[2 * at], right = fit->smallest[2 * at + 1];
        fit->smallest[at] = left < right ? left : right;
    }
}

/* The first index from `from` on whose size is at most `limit`, or BP_NO_FIT. `limit` is less than BP_FITS_NOWHERE. */
static size_t first_fit_find(const bp_first_fit *fit, size_t from, uint64_t limit)
{
    if (from >= fit->leaves)
        return BP_NO_FIT;
    size_t at = fit->leaves + from;
    /* up and to the right, until a subtree has one that fits */
    while (fit->smallest[at] > limit) {
        while (at % 2 == 1) /* a right child, or the root: its subtree is done */
            at /= 2;
        if (at == 0)
            return BP_NO_FIT;
        at++;
    }
    while (at < fit->leaves)
        at = fit->smallest[2 * at] <= limit ? 2 * at : 2 * at + 1;
    return at - fit->leaves;
}

/* ---- padding ----------------------------------------------------------------------------------------------------- */

/* Elements of one row: what sharding along the first dimension must not cut. */
static uint64_t row_numel(const bp_parameter *p)
{
    return p->dims > 0 ? bp_parameter_numel(p) / p->shape[0] : 1;
}

static uint64_t total_numel(const bp_parameter *p)
{
    return bp_parameter_numel(p) * p->copies; /* the model has checked it */
}

static bp_status fail_size(const bp_parameter *p)
{
    return bp_fail(BP_ERR_OVERFLOW, "the padded size of the bucket of parameter %s does not fit 64 bits", p->name);
}

/* Rows of the parameter fit chunks of this size: the chunk is one row, or holds whole rows and the parameter whole chunks, or
 * the parameter is smaller than a chunk and fills a gap. Source: Megatron-LM d98e8a64, _get_parameter_groups, step 3. */
static bool fits_chunk(const bp_parameter *p, uint64_t chunk)
{
    uint64_t numel = bp_parameter_numel(p), row = row_numel(p);
    return row == chunk || (chunk % row == 0 && numel % chunk == 0) || numel < chunk;
}

static int by_rows(const void *a, const void *b)
{
    const bp_parameter *x = *(const bp_parameter *const *)a, *y = *(const bp_parameter *const *)b;
    uint64_t x_row = row_numel(x), y_row = row_numel(y);
    if (x_row != y_row)
        return x_row > y_row ? -1 : 1;
    return x < y ? -1 : x > y; /* both lie in the model's array, in its order */
}

void bp_sort_by_rows(const bp_parameter **parameters, size_t count)
{
    qsort(parameters, count, sizeof *parameters, by_rows);
}

bp_status bp_split_by_rows(const bp_parameter **parameters, size_t count, size_t *together)
{
    uint64_t chunk = count > 0 ? row_numel(parameters[0]) : 1;
    void *memory;
    BP_TRY(bp_new_array(count, sizeof *parameters, &memory));
    const bp_parameter **rest = memory;
    size_t taken = 0, left = 0;
    for (size_t i = 0; i < count; i++) {
        if (fits_chunk(parameters[i], chunk))
            parameters[taken++] = parameters[i];
        else
            rest[left++] = parameters[i];
    }
    if (left > 0)
        memcpy(parameters + taken, rest, left * sizeof *parameters);
    free(memory);
    *together = taken;
    return BP_OK;
}

/* ---- Megatron: a grid of chunks ------------------------------------------------------------------------------------- */

/* Identical parameters that still have to be placed. */
typedef struct remaining {
    const bp_parameter *parameter;
    uint64_t numel;
    uint32_t count;
} remaining;

typedef struct grid {
    uint64_t chunk, end;
    remaining *items, *fragments; /* of a chunk and more; smaller */
    size_t item_count, fragment_count;
    bp_first_fit rests;          /* by item: its partial chunk */
    bp_first_fit fragments_left; /* by fragment: its size */
} grid;

/* Whole chunks from here on, for `elements`. */
static bp_status advance(grid *g, uint64_t elements, const bp_parameter *p)
{
    return bp_add_u64(g->end, elements, &g->end) ? BP_OK : fail_size(p);
}

static void take_one(remaining *entry, bp_first_fit *fit, size_t index)
{
    entry->count--;
    if (entry->count == 0)
        first_fit_set(fit, index, BP_FITS_NOWHERE);
}

/* Places small parameters in a gap of `space` elements, in their order. */
static void fill_gap(grid *g, uint64_t space)
{
    size_t at = 0;
    while (space > 0 && (at = first_fit_find(&g->fragments_left, at, space)) != BP_NO_FIT) {
        remaining *fragment = &g->fragments[at];
        uint64_t fit = space / fragment->numel;
        uint32_t placed = fit < fragment->count ? (uint32_t)fit : fragment->count;
        fragment->count -= placed;
        space -= placed * fragment->numel;
        if (fragment->count == 0)
            first_fit_set(&g->fragments_left, at, BP_FITS_NOWHERE);
        at++;
    }
}

/* Places an item that does not end on a chunk, with a partner whose partial chunk fits beside its own. */
static bp_status place_remnant(grid *g, size_t index)
{
    remaining *item = &g->items[index];
    uint64_t remnant = item->numel % g->chunk, space = g->chunk - remnant, whole;
    take_one(item, &g->rests, index);
    if (!bp_round_up_u64(item->numel, g->chunk, &whole))
        return fail_size(item->parameter);
    BP_TRY(advance(g, whole, item->parameter));
    size_t at = first_fit_find(&g->rests, index, space);
    if (at != BP_NO_FIT) {
        remaining *partner = &g->items[at];
        take_one(partner, &g->rests, at);
        space -= partner->numel % g->chunk;
        BP_TRY(advance(g, partner->numel / g->chunk * g->chunk, partner->parameter));
    }
    fill_gap(g, space);
    return BP_OK;
}

/* Elements that the parameters take when each begins on a chunk, partial chunks are shared by two parameters where they fit,
 * and small parameters fill the gaps. Source: Megatron-LM d98e8a64, build_data_parallel_buffer_index. */
static bp_status fill_grid(grid *g)
{
    for (size_t i = 0; i < g->item_count; i++) {
        if (g->items[i].numel % g->chunk != 0)
            first_fit_set(&g->rests, i, g->items[i].numel % g->chunk);
    }
    for (size_t i = 0; i < g->fragment_count; i++)
        first_fit_set(&g->fragments_left, i, g->fragments[i].numel);
    for (size_t i = 0; i < g->item_count; i++) {
        const remaining *item = &g->items[i];
        if (item->numel % g->chunk == 0)
            BP_TRY(advance(g, item->numel * item->count, item->parameter));
        while (item->numel % g->chunk != 0 && item->count > 0)
            BP_TRY(place_remnant(g, i));
    }
    for (size_t i = 0; i < g->fragment_count; i++)
        BP_TRY(advance(g, g->fragments[i].numel * g->fragments[i].count, g->fragments[i].parameter));
    return BP_OK;
}

/* The chunk that all of these parameters fit, the largest rows first. */
static bp_status common_chunk(const bp_parameter *const *sorted, size_t count, uint64_t *chunk)
{
    *chunk = row_numel(sorted[0]);
    for (size_t i = 0; i < count; i++) {
        if (!fits_chunk(sorted[i], *chunk) && !bp_lcm_u64(*chunk, row_numel(sorted[i]), chunk))
            return fail_size(sorted[i]);
    }
    return BP_OK;
}

/* `items` has room for all parameters twice: those of a chunk and more in front, smaller ones behind. */
static bp_status place_on_grid(const bp_parameter *const *sorted, size_t count, uint32_t shards, remaining *items,
                               uint64_t *padded)
{
    grid g = {.items = items, .fragments = items + count};
    uint64_t step;
    BP_TRY(common_chunk(sorted, count, &g.chunk));
    for (size_t i = 0; i < count; i++) {
        remaining entry = {sorted[i], bp_parameter_numel(sorted[i]), sorted[i]->copies};
        if (entry.numel < g.chunk)
            g.fragments[g.fragment_count++] = entry;
        else
            g.items[g.item_count++] = entry;
    }
    bp_status status = first_fit_init(&g.rests, g.item_count);
    if (status == BP_OK)
        status = first_fit_init(&g.fragments_left, g.fragment_count);
    if (status == BP_OK)
        status = fill_grid(&g);
    first_fit_finish(&g.rests);
    first_fit_finish(&g.fragments_left);
    if (status == BP_OK && (!bp_mul_u64(g.chunk, shards, &step) || !bp_round_up_u64(g.end, step, padded)))
        status = fail_size(sorted[0]);
    return status;
}

static bp_status megatron_numel(const bp_parameter *const *parameters, size_t count, uint32_t shards, uint64_t *padded)
{
    void *sorted, *items;
    BP_TRY(bp_new_array(count, sizeof *parameters, &sorted));
    memcpy(sorted, parameters, count * sizeof *parameters);
    bp_status status = bp_new_array(2 * count, sizeof(remaining), &items);
    if (status == BP_OK) {
        bp_sort_by_rows(sorted, count);
        status = place_on_grid(sorted, count, shards, items, padded);
        free(items);
    }
    free(sorted);
    return status;
}

/* ---- the other rules ------------------------------------------------------------------------------------------------ */

/* Every parameter's first dimension padded to a multiple of the shards. Source: PyTorch FSDP2, _fsdp_param.py. */
static bp_status fsdp2_numel(const bp_parameter *const *parameters, size_t count, uint32_t shards, uint64_t *padded)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < count; i++) {
        const bp_parameter *p = parameters[i];
        uint64_t rows;
        if (!bp_round_up_u64(p->dims > 0 ? p->shape[0] : 1, shards, &rows) || !bp_mul_u64(rows, row_numel(p), &rows) ||
            !bp_mul_u64(rows, p->copies, &rows) || !bp_add_u64(sum, rows, &sum))
            return fail_size(p);
    }
    *padded = sum;
    return BP_OK;
}

bp_status bp_padded_numel(bp_padding rule, const bp_parameter *const *parameters, size_t count, uint32_t shards,
                          uint64_t flat_alignment, uint64_t *padded)
{
    uint64_t sum = 0, step;
    for (size_t i = 0; i < count; i++)
        sum += total_numel(parameters[i]); /* part of the model's checked total */
    if (count == 0 || rule == BP_PADDING_GIVEN) {
        *padded = sum;
        return BP_OK;
    }
    if (rule == BP_PADDING_FSDP2)
        return fsdp2_numel(parameters, count, shards, padded);
    if (rule != BP_PADDING_FLAT)
        return megatron_numel(parameters, count, shards, padded);
    if (!bp_mul_u64(flat_alignment, shards, &step) || !bp_round_up_u64(sum, step, padded))
        return fail_size(parameters[0]);
    return BP_OK;
}
