#include "model/padding.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "core/arith.h"
#include "core/fail.h"
#include "model/model.h"

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

/* Largest rows first; equal rows keep their order. */
static bp_status sort_by_rows(const bp_parameter **parameters, size_t count)
{
    void *memory;
    BP_TRY(bp_new_array(count, sizeof *parameters, &memory));
    const bp_parameter **from = parameters, **to = memory;
    for (size_t width = 1; width < count; width *= 2) {
        for (size_t begin = 0; begin < count; begin += 2 * width) {
            size_t middle = begin + width < count ? begin + width : count;
            size_t end = begin + 2 * width < count ? begin + 2 * width : count;
            for (size_t i = begin, j = middle, k = begin; k < end; k++) {
                bool left = i < middle && (j == end || row_numel(from[i]) >= row_numel(from[j]));
                to[k] = from[left ? i++ : j++];
            }
        }
        const bp_parameter **swap = from;
        from = to;
        to = swap;
    }
    if (from != parameters)
        memcpy(parameters, from, count * sizeof *parameters);
    free(memory);
    return BP_OK;
}

bp_status bp_split_by_rows(const bp_parameter **parameters, size_t count, size_t *together)
{
    BP_TRY(sort_by_rows(parameters, count));
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

/* The first parameter after `from` whose last, partial chunk fits beside a remnant of `remnant` elements. */
static remaining *find_partner(remaining *items, size_t count, size_t from, uint64_t chunk, uint64_t remnant)
{
    for (size_t i = from; i < count; i++) {
        uint64_t rest = items[i].numel % chunk;
        if (items[i].count > 0 && rest != 0 && remnant + rest <= chunk)
            return &items[i];
    }
    return NULL;
}

/* Places small parameters in a gap of `space` elements, in their order. */
static void fill_gap(remaining *fragments, size_t count, uint64_t space)
{
    for (size_t i = 0; i < count && space > 0; i++) {
        uint64_t fit = fragments[i].numel > 0 ? space / fragments[i].numel : 0;
        uint32_t placed = fit < fragments[i].count ? (uint32_t)fit : fragments[i].count;
        fragments[i].count -= placed;
        space -= placed * fragments[i].numel;
    }
}

/* Elements that the parameters take when each begins on a chunk, partial chunks are shared by two parameters where they fit,
 * and small parameters fill the gaps. Source: Megatron-LM d98e8a64, build_data_parallel_buffer_index. */
static bp_status grid_numel(remaining *items, size_t count, remaining *fragments, size_t fragment_count, uint64_t chunk,
                            uint64_t *numel)
{
    uint64_t end = 0;
    for (size_t i = 0; i < count; i++) {
        remaining *item = &items[i];
        uint64_t remnant = item->numel % chunk, whole;
        if (remnant == 0) {
            if (!bp_mul_u64(item->numel, item->count, &whole) || !bp_add_u64(end, whole, &end))
                return fail_size(item->parameter);
            continue;
        }
        while (item->count > 0) {
            item->count--;
            if (!bp_round_up_u64(item->numel, chunk, &whole) || !bp_add_u64(end, whole, &end))
                return fail_size(item->parameter);
            uint64_t space = chunk - remnant;
            remaining *partner = find_partner(items, count, i, chunk, remnant);
            if (partner != NULL) {
                partner->count--;
                space -= partner->numel % chunk;
                if (!bp_add_u64(end, partner->numel / chunk * chunk, &end))
                    return fail_size(partner->parameter);
            }
            fill_gap(fragments, fragment_count, space);
        }
    }
    for (size_t i = 0; i < fragment_count; i++) {
        if (!bp_add_u64(end, fragments[i].numel * fragments[i].count, &end))
            return fail_size(fragments[i].parameter);
    }
    *numel = end;
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
    remaining *fragments = items + count;
    size_t item_count = 0, fragment_count = 0;
    uint64_t chunk, step, numel;
    BP_TRY(common_chunk(sorted, count, &chunk));
    for (size_t i = 0; i < count; i++) {
        remaining entry = {sorted[i], bp_parameter_numel(sorted[i]), sorted[i]->copies};
        if (entry.numel < chunk)
            fragments[fragment_count++] = entry;
        else
            items[item_count++] = entry;
    }
    BP_TRY(grid_numel(items, item_count, fragments, fragment_count, chunk, &numel));
    if (!bp_mul_u64(chunk, shards, &step) || !bp_round_up_u64(numel, step, padded))
        return fail_size(sorted[0]);
    return BP_OK;
}

static bp_status megatron_numel(const bp_parameter *const *parameters, size_t count, uint32_t shards, uint64_t *padded)
{
    void *sorted, *items;
    BP_TRY(bp_new_array(count, sizeof *parameters, &sorted));
    memcpy(sorted, parameters, count * sizeof *parameters);
    bp_status status = bp_new_array(2 * count, sizeof(remaining), &items);
    if (status == BP_OK) {
        status = sort_by_rows(sorted, count);
        if (status == BP_OK)
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
