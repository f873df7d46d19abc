/* SPDX-License-Identifier: Apache-2.0 */
/* The policies with size classes: they choose a role's classes, and each request's class and copy. */
#include "planner/policy.h"

#include <bucketpool/core/arith.h>
#include <bucketpool/core/fail.h>

#include <stdlib.h>
#include <string.h>

/* ---- dynamic; shared functions ----------------------------------------------------------------------------------- */

static bp_status layout_add_class(bp_role_layout *layout, const bp_class *added)
{
    BP_TRY(bp_grow_array((void **)&layout->classes, &layout->class_capacity, layout->class_count,
                         sizeof *layout->classes));
    layout->classes[layout->class_count++] = *added;
    return BP_OK;
}

/* Aligned size of a request. Errors: BP_ERR_OVERFLOW. */
static bp_status aligned_bytes(const bp_policy_input *input, uint32_t request, uint64_t *bytes)
{
    if (bp_round_up_u64(input->buckets->requests[request].bytes, input->config->alignment, bytes))
        return BP_OK;
    return bp_fail(BP_ERR_OVERFLOW, "request %u does not fit 64 bits when aligned to %llu bytes", request,
                   (unsigned long long)input->config->alignment);
}

/* Adds a persistent class for each of the unit's requests. */
static bp_status layout_add_persistent(const bp_policy_input *input, const bp_live_unit *unit, bp_role_layout *layout)
{
    for (uint32_t i = 0; i < unit->request_count; i++) {
        uint32_t request = unit->first_request + i;
        bp_class own = {.copies = 1, .rank = i, .users = 1, .set_by = request, .kind = BP_BUFFER_PERSISTENT};
        own.dtype = input->buckets->requests[request].dtype;
        BP_TRY(aligned_bytes(input, request, &own.bytes));
        layout->places[request] = (bp_place){(uint32_t)layout->class_count, 0};
        BP_TRY(layout_add_class(layout, &own));
    }
    return BP_OK;
}

bp_status bp_policy_persistent(const bp_policy_input *input, bp_role_layout *layout)
{
    layout->feasible = true;
    for (size_t t = 0; t < input->units->count; t++)
        BP_TRY(layout_add_persistent(input, &input->units->units[t], layout));
    return BP_OK;
}

bp_status bp_policy_dynamic(const bp_policy_input *input, bp_role_layout *layout)
{
    (void)input; /* no classes: the assembly sums the live bytes */
    layout->feasible = true;
    return BP_OK;
}

/* ---- fixed pool -------------------------------------------------------------------------------------------------- */

/* Fixed pool: the most frequent set of units with equal buckets shares buffer sets; the others are persistent or dynamic.
 * Source: Megatron-LM d98e8a64, FixedPoolAllocator. */

/* A unit's buckets in order: units of equal shape share buffers. */
typedef struct shape {
    const bp_request *requests;
    uint32_t count;
    uint32_t unit;
} shape;

static shape shape_of(const bp_policy_input *input, size_t unit)
{
    const bp_live_unit *t = &input->units->units[unit];
    return (shape){input->buckets->requests + t->first_request, t->request_count, (uint32_t)unit};
}

/* 0 if count, dtypes and unpadded sizes are equal in order; otherwise some total order. */
static int compare_shapes(const shape *a, const shape *b)
{
    if (a->count != b->count)
        return a->count < b->count ? -1 : 1;
    for (uint32_t i = 0; i < a->count; i++) {
        const bp_request *x = &a->requests[i], *y = &b->requests[i];
        if (x->numel != y->numel)
            return x->numel < y->numel ? -1 : 1;
        if (x->dtype != y->dtype)
            return x->dtype < y->dtype ? -1 : 1;
    }
    return 0;
}

/* Equal shapes stay in the order of the units. */
static int by_shape(const void *a, const void *b)
{
    const shape *x = a, *y = b;
    int order = compare_shapes(x, y);
    return order != 0 ? order : x->unit < y->unit ? -1 : x->unit > y->unit;
}

/* The most frequent shape; of equally frequent ones that of the first unit. */
static bp_status find_mode(const bp_policy_input *input, shape *mode)
{
    size_t count = input->units->count, best = 0;
    shape *shapes;
    BP_TRY(bp_new_array(count, sizeof(shape), (void **)&shapes));
    for (size_t t = 0; t < count; t++)
        shapes[t] = shape_of(input, t);
    qsort(shapes, count, sizeof *shapes, by_shape);
    for (size_t begin = 0, end; begin < count; begin = end) {
        for (end = begin; end < count && compare_shapes(&shapes[begin], &shapes[end]) == 0;)
            end++;
        if (end - begin > best || (end - begin == best && shapes[begin].unit < mode->unit)) {
            best = end - begin;
            *mode = shapes[begin];
        }
    }
    free(shapes);
    return BP_OK;
}

static bool has_shape(const bp_policy_input *input, size_t unit, const shape *wanted)
{
    shape own = shape_of(input, unit);
    return compare_shapes(&own, wanted) == 0;
}

static bp_status add_shared_classes(const bp_policy_input *input, const bp_live_units *pooled, const uint32_t *copies,
                                    bp_role_layout *layout)
{
    for (uint32_t i = 0; i < pooled->units[0].request_count; i++) {
        uint32_t request = pooled->units[0].first_request + i;
        bp_class shared = {.copies = layout->copies, .rank = i, .set_by = request, .kind = BP_BUFFER_POOLED};
        shared.dtype = input->buckets->requests[request].dtype;
        for (size_t t = 0; t < pooled->count; t++) {
            request = pooled->units[t].first_request + i;
            uint64_t bytes; /* equal unpadded sizes may be padded differently */
            BP_TRY(aligned_bytes(input, request, &bytes));
            if (bytes > shared.bytes) {
                shared.bytes = bytes;
                shared.set_by = request;
            }
            shared.users++;
            layout->places[request] = (bp_place){i, copies[t]};
        }
        BP_TRY(layout_add_class(layout, &shared));
    }
    return BP_OK;
}

static bp_status place_units(const bp_policy_input *input, const shape *mode, const bp_live_units *pooled,
                             uint32_t *copies, bp_role_layout *layout)
{
    const bp_live_units *all = input->units;
    uint32_t used = input->config->copies;
    BP_TRY(bp_live_units_assign_copies(pooled, &used, copies, &layout->proven));
    layout->feasible = used > 0;
    layout->copies = used > 0 ? used : input->config->copies;
    /* as in Megatron, as many buffer sets as units of any shape are live at once, even if fewer would do */
    if (input->config->copies == 0 && layout->copies < all->max_live)
        layout->copies = all->max_live;
    BP_TRY(add_shared_classes(input, pooled, copies, layout));
    for (size_t t = 0; t < all->count && input->config->fallback == BP_FALLBACK_PERSISTENT; t++) {
        if (!has_shape(input, t, mode))
            BP_TRY(layout_add_persistent(input, &all->units[t], layout));
    }
    return BP_OK;
}

bp_status bp_policy_fixed(const bp_policy_input *input, bp_role_layout *layout)
{
    const bp_live_units *all = input->units;
    layout->feasible = true;
    if (all->count == 0)
        return BP_OK;
    shape mode = {0};
    BP_TRY(find_mode(input, &mode));
    bp_live_units pooled = *all; /* the units of the mode's shape; they share the intervals of all units */
    uint32_t *copies = NULL;
    BP_TRY(bp_new_array(all->count, sizeof *pooled.units, (void **)&pooled.units));
    pooled.count = 0;
    for (size_t t = 0; t < all->count; t++) {
        if (has_shape(input, t, &mode))
            pooled.units[pooled.count++] = all->units[t];
    }
    bp_status status = bp_live_units_count_live(&pooled);
    if (status == BP_OK)
        status = bp_new_array(pooled.count, sizeof *copies, (void **)&copies);
    if (status == BP_OK)
        status = place_units(input, &mode, &pooled, copies, layout);
    layout->live_units = pooled.max_live;
    layout->live_step = pooled.max_live_step;
    free(copies);
    free(pooled.units);
    return status;
}

/* ---- max pool ---------------------------------------------------------------------------------------------------- */

/* Max-pool: for each storage dtype a unit's buckets are sorted from large to small, and the k-th buffer holds the largest
 * k-th bucket of any unit. Source: Megatron-LM d98e8a64, MaxPoolAllocator._build_fixed_max_pool (PR 5462). */

/* The classes of each storage dtype, by rank. */
typedef struct rank_table {
    uint32_t *classes[BP_DTYPE_COUNT];
    size_t counts[BP_DTYPE_COUNT], capacities[BP_DTYPE_COUNT];
} rank_table;

typedef struct ranked {
    uint64_t numel;
    uint32_t request;
} ranked;

/* By unpadded elements, the larger first; equal: the larger bucket first. Requests of a unit are in order of buckets. */
static int compare_ranked(const void *a, const void *b)
{
    const ranked *x = a, *y = b;
    if (x->numel != y->numel)
        return x->numel > y->numel ? -1 : 1;
    return x->request > y->request ? -1 : x->request < y->request;
}

static bp_status policy_max_enter(const bp_policy_input *input, uint32_t request, size_t rank, uint32_t copy,
                                  rank_table *ranks, bp_role_layout *layout)
{
    uint8_t dtype = input->buckets->requests[request].dtype;
    if (rank == ranks->counts[dtype]) {
        BP_TRY(bp_grow_array((void **)&ranks->classes[dtype], &ranks->capacities[dtype], rank, sizeof(uint32_t)));
        ranks->classes[dtype][ranks->counts[dtype]++] = (uint32_t)layout->class_count;
        bp_class added = {
            .copies = layout->copies, .rank = (uint32_t)rank, .set_by = request, .kind = BP_BUFFER_POOLED};
        added.dtype = dtype;
        BP_TRY(layout_add_class(layout, &added));
    }
    uint64_t bytes;
    BP_TRY(aligned_bytes(input, request, &bytes));
    uint32_t class_index = ranks->classes[dtype][rank];
    bp_class *c = &layout->classes[class_index];
    if (bytes > c->bytes) {
        c->bytes = bytes;
        c->set_by = request;
    }
    c->users++;
    layout->places[request] = (bp_place){class_index, copy};
    return BP_OK;
}

static bp_status rank_units(const bp_policy_input *input, const uint32_t *copies, ranked *scratch, rank_table *ranks,
                            bp_role_layout *layout)
{
    const bp_request *requests = input->buckets->requests;
    for (size_t t = 0; t < input->units->count; t++) {
        const bp_live_unit *unit = &input->units->units[t];
        uint64_t seen = 0; /* dtypes of this unit that are handled */
        for (uint32_t i = 0; i < unit->request_count; i++) {
            uint8_t dtype = requests[unit->first_request + i].dtype;
            if (seen & 1ull << dtype)
                continue;
            seen |= 1ull << dtype;
            size_t count = 0;
            for (uint32_t k = i; k < unit->request_count; k++) {
                uint32_t request = unit->first_request + k;
                if (requests[request].dtype == dtype)
                    scratch[count++] = (ranked){requests[request].numel, request};
            }
            qsort(scratch, count, sizeof *scratch, compare_ranked);
            for (size_t rank = 0; rank < count; rank++)
                BP_TRY(policy_max_enter(input, scratch[rank].request, rank, copies[t], ranks, layout));
        }
    }
    return BP_OK;
}

bp_status bp_policy_max(const bp_policy_input *input, bp_role_layout *layout)
{
    const bp_live_units *units = input->units;
    layout->feasible = true;
    if (units->count == 0)
        return BP_OK;
    size_t max = 0;
    for (size_t t = 0; t < units->count; t++)
        max = units->units[t].request_count > max ? units->units[t].request_count : max;
    uint32_t *copies = NULL;
    ranked *scratch = NULL;
    bp_status status = bp_new_array(units->count, sizeof *copies, (void **)&copies);
    if (status == BP_OK)
        status = bp_new_array(max, sizeof *scratch, (void **)&scratch);
    uint32_t used = input->config->copies;
    if (status == BP_OK)
        status = bp_live_units_assign_copies(units, &used, copies, &layout->proven);
    layout->live_units = units->max_live;
    layout->live_step = units->max_live_step;
    layout->feasible = used > 0;
    layout->copies = used > 0 ? used : input->config->copies; /* infeasible: report the bytes of the requested copies */
    rank_table ranks = {0};
    if (status == BP_OK)
        status = rank_units(input, copies, scratch, &ranks, layout);
    for (int i = 0; i < BP_DTYPE_COUNT; i++)
        free(ranks.classes[i]);
    free(scratch);
    free(copies);
    return status;
}
