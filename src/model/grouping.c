/* Groups a model's parameters into buckets by the bucketing rule of a runtime, and computes their layout and padding for sharding. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "core/arith.h"
#include "core/fail.h"
#include "model/buckets.h"

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

/* ---- padding ----------------------------------------------------------------------------------------------------- */

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

/* ---- grouping ------------------------------------------------------------------------------------------------------- */

/* Parameters that will share a bucket, unless the padding rule splits them. */
typedef struct group {
    const bp_parameter **parameters;
    size_t count, capacity;
    int32_t unit;
    bp_dtype dtype; /* BP_DTYPE_NONE: mixed */
    bool expert, frozen;
    int32_t next; /* the unit's next group, -1: none */
} group;

typedef struct grouping {
    const bp_model *model;
    const bp_buckets_config *config;
    group *groups;
    size_t count, capacity;
    bp_parameter *local;   /* the parameters, with the configured dtypes */
    int32_t *outermost;    /* by unit: its outermost parent, or itself */
    int32_t *first, *last; /* by unit, then one entry for persistent parameters; -1: no group */
} grouping;

static bp_status add_to_group(grouping *g, const bp_parameter *p, const group *key)
{
    size_t unit = key->unit >= 0 ? (size_t)key->unit : g->model->unit_count;
    bool packs = g->config->bucketing == BP_BUCKETING_FSDP2;
    group *mine = NULL;
    for (int32_t at = g->first[unit]; mine == NULL && at >= 0; at = g->groups[at].next) {
        group *other = &g->groups[at];
        // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): a unit with a first group has groups
        if (other->expert == key->expert && (packs || (other->dtype == key->dtype && other->frozen == key->frozen)))
            mine = other;
    }
    if (mine == NULL) {
        BP_TRY(bp_grow_array((void **)&g->groups, &g->capacity, g->count, sizeof *g->groups));
        mine = &g->groups[g->count];
        *mine = *key;
        mine->next = -1;
        *(g->first[unit] < 0 ? &g->first[unit] : &g->groups[g->last[unit]].next) = (int32_t)g->count;
        g->last[unit] = (int32_t)g->count++;
    }
    BP_TRY(bp_grow_array((void **)&mine->parameters, &mine->capacity, mine->count, sizeof *mine->parameters));
    mine->parameters[mine->count++] = p;
    if (mine->dtype != key->dtype)
        mine->dtype = BP_DTYPE_NONE;
    mine->frozen = mine->frozen && key->frozen; /* a packed bucket has gradients as soon as one parameter has */
    return BP_OK;
}

static bp_status group_parameters(grouping *g)
{
    const bp_model *model = g->model;
    void *memory;
    BP_TRY(bp_new_array(model->parameter_count, sizeof *g->local, &memory));
    g->local = memory;
    BP_TRY(bp_new_array(2 * (model->unit_count + 1), sizeof *g->first, &memory));
    g->first = memset(memory, 0xff, 2 * (model->unit_count + 1) * sizeof *g->first);
    g->last = g->first + model->unit_count + 1;
    BP_TRY(bp_new_array(model->unit_count, sizeof *g->outermost, &memory));
    g->outermost = memory;
    for (size_t u = 0; u < model->unit_count; u++) /* parents come first */
        g->outermost[u] = model->units[u].parent >= 0 ? g->outermost[model->units[u].parent] : (int32_t)u;
    bool packs = g->config->bucketing == BP_BUCKETING_FSDP2;
    for (size_t i = 0; i < model->parameter_count; i++) {
        bp_parameter *p = &g->local[i];
        *p = model->parameters[i];
        bp_dtype asked = g->config->param_dtype;
        bool converts = asked != BP_DTYPE_NONE && bp_dtype_is_float(p->dtype);
        if (converts && (!bp_dtype_is_fp8(asked) || p->flags & BP_PARAMETER_GEMM))
            p->dtype = asked;
        /* experts are recognized by name, as in Megatron; packed buckets separate them only with expert parallelism */
        bool expert = strstr(p->name, ".experts.") != NULL && (!packs || g->config->ep > 1);
        group key = {.unit = packs         ? p->unit
                             : p->unit < 0 ? BP_OUTSIDE
                                           : g->outermost[p->unit],
                     .dtype = p->dtype,
                     .expert = expert,
                     .frozen = (p->flags & BP_PARAMETER_FROZEN) != 0 || !bp_dtype_is_float(p->dtype)};
        BP_TRY(add_to_group(g, p, &key));
    }
    return BP_OK;
}

/* ---- sizes of a bucket ---------------------------------------------------------------------------------------------- */

/* Padded elements of one bucket over `shards` ranks, under any rule but BP_PADDING_MEGATRON_SPLIT, which splits buckets.
 * Errors: BP_ERR_OVERFLOW naming the first parameter. */
static bp_status padded_numel(const bp_buckets_config *config, const bp_parameter *const *parameters, size_t count,
                              uint32_t shards, uint64_t *padded)
{
    uint64_t sum = 0;
    if (count > 0 && config->padding == BP_PADDING_FSDP2) {
        /* pads each parameter's first dimension to a multiple of the shards. Source: PyTorch FSDP2, _fsdp_param.py. */
        for (size_t i = 0; i < count; i++) {
            const bp_parameter *p = parameters[i];
            uint64_t rows;
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
        qsort(sorted, count, sizeof *parameters, by_rows);
        status = place_on_grid(sorted, count, shards, items, padded);
        free(items);
    }
    free(sorted);
    return status;
}

/* Sizes of a packed bucket: parameters of several dtypes as bytes. */
static bp_status size_packed(const grouping *g, const group *from, size_t count, uint32_t shards, bp_bucket *bucket)
{
    bucket->dtype = BP_DTYPE_UINT8;
    bucket->grad_dtype = BP_DTYPE_NONE;
    for (size_t i = 0; i < count; i++) {
        const bp_parameter *p = from->parameters[i];
        uint64_t padded, bytes, padded_bytes, numel = bp_parameter_numel(p) * p->copies;
        BP_TRY(padded_numel(g->config, &p, 1, shards, &padded));
        BP_TRY(bp_dtype_bytes(p->dtype, numel, &bytes));
        BP_TRY(bp_dtype_bytes(p->dtype, padded, &padded_bytes));
        bool has_gradient = !(p->flags & BP_PARAMETER_FROZEN) && bp_dtype_is_float(p->dtype);
        if (has_gradient && bucket->grad_dtype == BP_DTYPE_NONE)
            bucket->grad_dtype = bp_gradient_dtype(g->config, p->dtype);
        if (!bp_add_u64(bucket->numel, bytes, &bucket->numel) ||
            !bp_add_u64(bucket->padded_numel, padded_bytes, &bucket->padded_numel) ||
            !bp_add_u64(bucket->grad_padded_numel, has_gradient ? padded : 0, &bucket->grad_padded_numel))
            return bp_fail(BP_ERR_OVERFLOW, "the bucket of parameter %s does not fit 64 bits", p->name);
        bucket->grad_numel += has_gradient ? numel : 0;
    }
    return BP_OK;
}

static bp_status size_uniform(const grouping *g, const group *from, size_t count, uint32_t shards, bp_bucket *bucket)
{
    void *memory;
    BP_TRY(bp_new_array(count, sizeof *from->parameters, &memory));
    const bp_parameter **trainable = memory;
    size_t trainable_count = 0;
    for (size_t i = 0; i < count; i++) {
        const bp_parameter *p = from->parameters[i];
        uint64_t numel = bp_parameter_numel(p) * p->copies;
        bucket->numel += numel;
        if (!(p->flags & BP_PARAMETER_FROZEN)) {
            trainable[trainable_count++] = p;
            bucket->grad_numel += numel;
        }
    }
    bucket->dtype = from->dtype;
    bucket->grad_dtype = bp_gradient_dtype(g->config, from->dtype);
    bp_status status = padded_numel(g->config, from->parameters, count, shards, &bucket->padded_numel);
    if (status == BP_OK)
        status = padded_numel(g->config, trainable, trainable_count, shards, &bucket->grad_padded_numel);
    free(memory);
    return status;
}

/* ---- making buckets ------------------------------------------------------------------------------------------------- */

/* Stable partition of parameters sorted by rows: the first `together` share a bucket under BP_PADDING_MEGATRON_SPLIT. */
static bp_status split_by_rows(const bp_parameter **parameters, size_t count, size_t *together)
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

/* A hostile model could split a group into so many buckets that it would take hours. */
#define MOST_SPLITS 10000

/* Makes the buckets of one group; `before` counts the unit's buckets so far. Names: "experts", "experts.frozen"; "dense.fp32" if an earlier
 * group of the unit differs only in dtype; "dense.1", "dense.2" for the further buckets of a group. */
static bp_status make_buckets(const grouping *g, group *from, bool dtype_in_name, bp_buckets *buckets, uint32_t *before)
{
    bool splits = g->config->padding == BP_PADDING_MEGATRON_SPLIT && from->dtype != BP_DTYPE_NONE;
    if (splits)
        qsort(from->parameters, from->count, sizeof *from->parameters, by_rows);
    for (uint32_t made = 0; from->count > 0; made++) {
        size_t together = from->count;
        if (splits)
            BP_TRY(split_by_rows(from->parameters, from->count, &together));
        if (made == MOST_SPLITS)
            return bp_fail(BP_ERR_UNSUPPORTED, "unit \"%s\" splits into more than %d buckets of different rows",
                           from->unit >= 0 ? g->model->units[from->unit].name : "(outside)", MOST_SPLITS);
        uint32_t shards = from->expert ? g->config->dp / g->config->ep : g->config->dp;
        bp_bucket bucket = {.unit = from->unit,
                            .ordinal = *before,
                            .shards = shards,
                            .parameter_count = (uint32_t)together,
                            .expert = from->expert,
                            .frozen = from->frozen,
                            .roles = ~0u};
        if (from->dtype != BP_DTYPE_NONE)
            BP_TRY(size_uniform(g, from, together, shards, &bucket));
        else
            BP_TRY(size_packed(g, from, together, shards, &bucket));
        char name[64];
        int used =
            snprintf(name, sizeof name, "%s%s", bucket.expert ? "experts" : "dense", bucket.frozen ? ".frozen" : "");
        if (dtype_in_name)
            used += snprintf(name + used, sizeof name - (size_t)used, ".%s", bp_dtype_name(bucket.dtype));
        if (made > 0)
            snprintf(name + used, sizeof name - (size_t)used, ".%u", made);
        BP_TRY(bp_strings_add(&buckets->strings, name, &bucket.name));
        BP_TRY(bp_buckets_append(buckets, &bucket));
        (*before)++;
        from->count -= together;
        memmove(from->parameters, from->parameters + together, from->count * sizeof *from->parameters);
    }
    return BP_OK;
}

static bp_status make_all_buckets(const grouping *g, bp_buckets *buckets)
{
    for (size_t u = 0; u <= g->model->unit_count; u++) {
        bool seen[2][2] = {{false}};
        uint32_t before = 0;
        for (int32_t at = g->first[u]; at >= 0; at = g->groups[at].next) {
            group *from = &g->groups[at];
            // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): a unit with a first group has groups
            bool *is_second = &seen[from->expert][from->frozen];
            BP_TRY(make_buckets(g, from, *is_second, buckets, &before));
            *is_second = true;
        }
    }
    return BP_OK;
}

/* Order: by unit, those of persistent parameters last; within a unit, the order in which the groups appeared. */
bp_status bp_buckets_derive(const bp_model *model, const bp_buckets_config *config, bp_buckets *buckets)
{
    grouping g = {.model = model, .config = config};
    bp_status status = group_parameters(&g);
    if (status == BP_OK)
        status = make_all_buckets(&g, buckets);
    for (size_t i = 0; i < g.count; i++)
        free(g.groups[i].parameters);
    free(g.groups);
    free(g.local);
    free(g.outermost);
    free(g.first);
    return status;
}
