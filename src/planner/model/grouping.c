/* SPDX-License-Identifier: Apache-2.0 */
/* Groups a model's parameters into buckets by the bucketing rule of a runtime. */
#include <bucketpool/core/arith.h>
#include <bucketpool/core/fail.h>

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "planner/model/buckets.h"

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
    const bp_buckets *buckets; /* with the units */
    group *groups;
    size_t count, capacity;
    bp_parameter *local;   /* the parameters, with the configured dtypes */
    int32_t *outermost;    /* by unit: its outermost parent, or itself */
    int32_t *first, *last; /* by unit, then one entry for persistent parameters; -1: no group */
} grouping;

static bp_status add_to_group(grouping *g, const bp_parameter *p, const group *key)
{
    size_t unit = key->unit >= 0 ? (size_t)key->unit : g->buckets->unit_count;
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
    size_t units = g->buckets->unit_count;
    BP_TRY(bp_new_array(2 * (units + 1), sizeof *g->first, &memory));
    g->first = memset(memory, 0xff, 2 * (units + 1) * sizeof *g->first);
    g->last = g->first + units + 1;
    BP_TRY(bp_new_array(model->unit_count, sizeof *g->outermost, &memory));
    g->outermost = memory;
    for (size_t u = 0; u < model->unit_count; u++) /* parents come first */
        g->outermost[u] = model->units[u].parent >= 0 ? g->outermost[model->units[u].parent] : (int32_t)u;
    bool packs = g->config->bucketing == BP_BUCKETING_FSDP2;
    for (size_t i = 0; i < model->parameter_count; i++) {
        bp_parameter *p = &g->local[i];
        *p = *model->parameters[i];
        bp_dtype asked = g->config->param_dtype;
        bool converts = asked != BP_DTYPE_NONE && bp_dtype_is_float(p->dtype);
        if (converts && (!bp_dtype_is_fp8(asked) || p->flags & BP_PARAMETER_GEMM))
            p->dtype = asked;
        /* Megatron recognizes experts by name; packed buckets separate them only with expert parallelism */
        bool expert = strstr(p->name, ".experts.") != NULL;
        if (packs)
            expert = g->config->ep > 1 && (expert || p->flags & BP_PARAMETER_EXPERT_COPIES || p->expert_dim >= 0);
        group key = {.unit = p->unit < 0 ? g->buckets->root
                             : packs     ? p->unit
                                         : g->outermost[p->unit],
                     .dtype = p->dtype,
                     .expert = expert,
                     .frozen = (p->flags & BP_PARAMETER_FROZEN) != 0 || !bp_dtype_is_float(p->dtype)};
        BP_TRY(add_to_group(g, p, &key));
    }
    return BP_OK;
}

/* ---- sizes of a bucket ---------------------------------------------------------------------------------------------- */

/* The dtype that holds gradients of both: FSDP2 reduces a group in one dtype. Source: torch.promote_types. */
static bp_dtype promoted(bp_dtype a, bp_dtype b)
{
    if (a == BP_DTYPE_NONE || a == b)
        return b;
    if (bp_dtype_bits(a) == bp_dtype_bits(b)) /* bf16 and fp16 */
        return BP_DTYPE_FP32;
    return bp_dtype_bits(a) > bp_dtype_bits(b) ? a : b;
}

/* Sizes of a packed bucket: parameters of several dtypes as bytes. */
static bp_status size_packed(const grouping *g, const group *from, size_t count, uint32_t shards, bp_bucket *bucket)
{
    bucket->dtype = BP_DTYPE_UINT8;
    bucket->grad_dtype = BP_DTYPE_NONE;
    for (size_t i = 0; i < count; i++) {
        const bp_parameter *p = from->parameters[i];
        uint64_t padded, bytes, padded_bytes, numel = bp_parameter_numel(p) * p->copies;
        BP_TRY(bp_padded_numel(g->config, &p, 1, shards, &padded));
        BP_TRY(bp_dtype_bytes(p->dtype, numel, &bytes));
        BP_TRY(bp_dtype_bytes(p->dtype, padded, &padded_bytes));
        bool has_gradient = !(p->flags & BP_PARAMETER_FROZEN) && bp_dtype_is_float(p->dtype);
        if (has_gradient)
            bucket->grad_dtype = promoted(bucket->grad_dtype, bp_gradient_dtype(g->config, p->dtype));
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
    bp_status status = bp_padded_numel(g->config, from->parameters, count, shards, &bucket->padded_numel);
    if (status == BP_OK)
        status = bp_padded_numel(g->config, trainable, trainable_count, shards, &bucket->grad_padded_numel);
    free(memory);
    return status;
}

/* ---- making buckets ------------------------------------------------------------------------------------------------- */

/* A hostile model could split a group into so many buckets that it would take hours. */
#define MAX_SPLITS 10000

/* Makes the buckets of one group; `before` counts the unit's buckets so far. Names: "experts", "experts.frozen"; "dense.fp32" if an earlier
 * group of the unit differs only in dtype; "dense.1", "dense.2" for the further buckets of a group. */
static bp_status make_buckets(const grouping *g, group *from, bool dtype_in_name, bp_buckets *buckets, uint32_t *before)
{
    bool splits = g->config->padding == BP_PADDING_MEGATRON_SPLIT && from->dtype != BP_DTYPE_NONE;
    if (splits)
        bp_padding_sort(from->parameters, from->count);
    for (uint32_t made = 0; from->count > 0; made++) {
        size_t together = from->count;
        if (splits)
            BP_TRY(bp_padding_split(from->parameters, from->count, &together));
        if (made == MAX_SPLITS)
            return bp_fail(BP_ERR_UNSUPPORTED, "unit \"%s\" splits into more than %d buckets of different rows",
                           from->unit >= 0 ? buckets->units[from->unit].name : "(outside)", MAX_SPLITS);
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
    for (size_t u = 0; u <= buckets->unit_count; u++) {
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
    grouping g = {.model = model, .config = config, .buckets = buckets};
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
