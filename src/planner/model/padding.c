/* SPDX-License-Identifier: Apache-2.0 */
/* Pads buckets for sharding, by the rules of the runtimes; Megatron's places parameters on a grid of chunks, first fit. */
#include <bucketpool/core/arith.h>
#include <bucketpool/core/fail.h>

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "planner/model/buckets.h"

/* ---- first fit --------------------------------------------------------------------------------------------------- */

/* Tournament tree of the smallest sizes: leaf i is at smallest[leaves + i], its parent at half the index. Finding and setting are O(log
 * leaves). */
typedef struct first_fit {
    uint64_t *smallest;
    size_t leaves;
} first_fit;

#define FITS_NOWHERE UINT64_MAX /* size of an empty entry */
#define NO_FIT SIZE_MAX

/* Starts with `count` empty entries. */
static bp_status first_fit_init(first_fit *fit, size_t count)
{
    size_t leaves = 1;
    while (leaves < count)
        leaves *= 2;
    void *memory;
    BP_TRY(bp_new_array(2 * leaves, sizeof *fit->smallest, &memory));
    fit->smallest = memset(memory, 0xff, 2 * leaves * sizeof *fit->smallest);
    fit->leaves = leaves;
    return BP_OK;
}

static void first_fit_set(first_fit *fit, size_t index, uint64_t size)
{
    size_t at = fit->leaves + index;
    fit->smallest[at] = size;
    for (at /= 2; at > 0; at /= 2) {
        uint64_t left = fit->smallest[2 * at], right = fit->smallest[2 * at + 1];
        fit->smallest[at] = left < right ? left : right;
    }
}

/* The first index from `from` on whose size is at most `limit`, or NO_FIT. `limit` is less than FITS_NOWHERE. */
static size_t first_fit_find(const first_fit *fit, size_t from, uint64_t limit)
{
    if (from >= fit->leaves)
        return NO_FIT;
    size_t at = fit->leaves + from;
    /* up and to the right until a subtree contains a fit */
    while (fit->smallest[at] > limit) {
        while (at % 2 == 1) /* a right child, or the root: its subtree is done */
            at /= 2;
        if (at == 0)
            return NO_FIT;
        at++;
    }
    while (at < fit->leaves)
        at = fit->smallest[2 * at] <= limit ? 2 * at : 2 * at + 1;
    return at - fit->leaves;
}

/* ---- rows of parameters --------------------------------------------------------------------------------------------- */

/* Elements of one row, which sharding along the first dimension must not cut. */
static uint64_t row_numel(const bp_parameter *p)
{
    return p->dims > 0 ? bp_parameter_numel(p) / p->shape[0] : 1;
}

static bp_status fail_size(const bp_parameter *p)
{
    return bp_fail(BP_ERR_OVERFLOW, "the padded size of the bucket of parameter %s does not fit 64 bits", p->name);
}

/* True if chunks of this size do not cut rows: a chunk is one row, or whole rows with the parameter in whole chunks, or the parameter is
 * smaller than a chunk and fills a gap. Source: Megatron-LM d98e8a64, _get_parameter_groups, step 3. */
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
    return x < y ? -1 : x > y; /* both point into the model's array: model order */
}

/* ---- Megatron: a grid of chunks ------------------------------------------------------------------------------------- */

/* Identical parameters that are not placed yet. */
typedef struct remaining {
    const bp_parameter *parameter;
    uint64_t numel;
    uint32_t count;
} remaining;

typedef struct grid {
    uint64_t chunk, end;
    remaining *items, *fragments; /* at least a chunk each; smaller ones */
    size_t item_count, fragment_count;
    first_fit rests;          /* by item: its partial chunk */
    first_fit fragments_left; /* by fragment: its size */
} grid;

/* Reserves whole chunks for `elements`. */
static bp_status advance(grid *g, uint64_t elements, const bp_parameter *p)
{
    return bp_add_u64(g->end, elements, &g->end) ? BP_OK : fail_size(p);
}

static void take_one(remaining *entry, first_fit *fit, size_t index)
{
    entry->count--;
    if (entry->count == 0)
        first_fit_set(fit, index, FITS_NOWHERE);
}

/* Places an item with a partial chunk, together with a partner whose partial chunk fits beside it. */
static bp_status place_remnant(grid *g, size_t index)
{
    remaining *item = &g->items[index];
    uint64_t remnant = item->numel % g->chunk, space = g->chunk - remnant, whole;
    take_one(item, &g->rests, index);
    if (!bp_round_up_u64(item->numel, g->chunk, &whole))
        return fail_size(item->parameter);
    BP_TRY(advance(g, whole, item->parameter));
    size_t at = first_fit_find(&g->rests, index, space);
    if (at != NO_FIT) {
        remaining *partner = &g->items[at];
        take_one(partner, &g->rests, at);
        space -= partner->numel % g->chunk;
        BP_TRY(advance(g, partner->numel / g->chunk * g->chunk, partner->parameter));
    }

    /* small parameters fill the gap, in their order */
    at = 0;
    while (space > 0 && (at = first_fit_find(&g->fragments_left, at, space)) != NO_FIT) {
        remaining *fragment = &g->fragments[at];
        uint64_t fit = space / fragment->numel;
        uint32_t placed = fit < fragment->count ? (uint32_t)fit : fragment->count;
        fragment->count -= placed;
        space -= placed * fragment->numel;
        if (fragment->count == 0)
            first_fit_set(&g->fragments_left, at, FITS_NOWHERE);
        at++;
    }
    return BP_OK;
}

/* Lays out parameters from chunk boundaries: two partial chunks share a chunk where they fit, and small parameters fill the gaps.
 * Source: Megatron-LM d98e8a64, build_data_parallel_buffer_index. */
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

/* `sorted`: by rows. `items`: scratch for 2 * count entries, larger parameters first, then those smaller than a chunk. */
static bp_status place_on_grid(const bp_parameter *const *sorted, size_t count, uint32_t shards, remaining *items,
                               uint64_t *padded)
{
    /* a chunk size that fits every parameter */
    grid g = {.chunk = row_numel(sorted[0]), .items = items, .fragments = items + count};
    for (size_t i = 0; i < count; i++) {
        if (!fits_chunk(sorted[i], g.chunk) && !bp_lcm_u64(g.chunk, row_numel(sorted[i]), &g.chunk))
            return fail_size(sorted[i]);
    }
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
    free(g.rests.smallest);
    free(g.fragments_left.smallest);
    uint64_t step;
    if (status == BP_OK && (!bp_mul_u64(g.chunk, shards, &step) || !bp_round_up_u64(g.end, step, padded)))
        status = fail_size(sorted[0]);
    return status;
}

/* ---- the rules ------------------------------------------------------------------------------------------------------ */

bp_status bp_padded_numel(const bp_buckets_config *config, const bp_parameter *const *parameters, size_t count,
                          uint32_t shards, uint64_t *padded)
{
    uint64_t sum = 0;
    if (count > 0 && (config->padding == BP_PADDING_FSDP2 || config->padding == BP_PADDING_FSDP2_SHARD1)) {
        /* pads each parameter's first dimension to a multiple of the shards; FSDP2 does not pad others. Source: PyTorch FSDP2,
         * _fsdp_param.py. */
        for (size_t i = 0; i < count; i++) {
            const bp_parameter *p = parameters[i];
            uint64_t rows;
            if (config->padding == BP_PADDING_FSDP2_SHARD1 && p->expert_dim == 0 && p->dims > 1) {
                if (p->shape[1] % shards != 0)
                    return bp_fail(BP_ERR_INVALID_ARGUMENT,
                                   "parameter %s: dimension 1 has %llu elements, not a multiple of %u ranks, and FSDP2 "
                                   "does not pad Shard(1); use padding fsdp2, or other ranks",
                                   p->name, (unsigned long long)p->shape[1], shards);
                if (!bp_add_u64(sum, bp_parameter_numel(p) * p->copies, &sum)) /* the product is in the model's total */
                    return fail_size(p);
                continue;
            }
            if (!bp_round_up_u64(p->dims > 0 ? p->shape[0] : 1, shards, &rows) ||
                !bp_mul_u64(rows, row_numel(p), &rows) || !bp_mul_u64(rows, p->copies, &rows) ||
                !bp_add_u64(sum, rows, &sum))
                return fail_size(p);
        }
        *padded = sum;
        return BP_OK;
    }
    if (count == 0 || config->padding == BP_PADDING_GIVEN || config->padding == BP_PADDING_FLAT) {
        for (size_t i = 0; i < count; i++)
            /* cannot wrap: the model checked its total */
            sum += bp_parameter_numel(parameters[i]) * parameters[i]->copies;
        uint64_t step = 1;
        if (count > 0 && config->padding == BP_PADDING_FLAT && !bp_mul_u64(config->flat_alignment, shards, &step))
            return fail_size(parameters[0]);
        return bp_round_up_u64(sum, step, padded) ? BP_OK : fail_size(parameters[0]);
    }
    void *sorted, *items;
    BP_TRY(bp_new_array(count, sizeof *parameters, &sorted));
    memcpy(sorted, parameters, count * sizeof *parameters);
    bp_status status = bp_new_array(2 * count, sizeof(remaining), &items);
    if (status == BP_OK) {
        bp_padding_sort(sorted, count);
        status = place_on_grid(sorted, count, shards, items, padded);
        free(items);
    }
    free(sorted);
    return status;
}

void bp_padding_sort(const bp_parameter **parameters, size_t count)
{
    qsort(parameters, count, sizeof *parameters, by_rows);
}

bp_status bp_padding_split(const bp_parameter **parameters, size_t count, size_t *together)
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
