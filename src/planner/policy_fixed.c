/* Fixed pool: the most frequent set of units with equal buckets shares buffer sets; the rest is persistent or dynamic.
 * Source: Megatron-LM d98e8a64, FixedPoolAllocator. */
#include "planner/policy.h"

#include <stdlib.h>

#include "core/fail.h"

/* The buckets of a tenant, in order: what must be equal for units to share buffers. */
typedef struct shape {
    const bp_request *requests;
    uint32_t count;
    uint32_t tenant;
} shape;

static shape shape_of(const bp_policy_input *input, size_t tenant)
{
    const bp_tenant *t = &input->tenants->tenants[tenant];
    return (shape){input->buckets->requests + t->first_request, t->request_count, (uint32_t)tenant};
}

/* Same number of buckets with, in order, the same dtypes and unpadded sizes: 0. Otherwise any total order. */
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

/* Equal shapes in the order in which they were seen. */
static int by_shape(const void *a, const void *b)
{
    const shape *x = a, *y = b;
    int order = compare_shapes(x, y);
    return order != 0 ? order : x->tenant < y->tenant ? -1 : x->tenant > y->tenant;
}

/* The most frequent shape, as its first-seen tenant has it. */
static bp_status find_mode(const bp_policy_input *input, shape *mode)
{
    size_t count = input->tenants->count, best = 0;
    void *memory;
    BP_TRY(bp_new_array(count, sizeof(shape), &memory));
    shape *shapes = memory;
    for (size_t t = 0; t < count; t++)
        shapes[t] = shape_of(input, t);
    qsort(shapes, count, sizeof *shapes, by_shape);
    for (size_t begin = 0, end; begin < count; begin = end) {
        for (end = begin; end < count && compare_shapes(&shapes[begin], &shapes[end]) == 0;)
            end++;
        if (end - begin > best || (end - begin == best && shapes[begin].tenant < mode->tenant)) {
            best = end - begin;
            *mode = shapes[begin];
        }
    }
    free(shapes);
    return BP_OK;
}

static bool has_shape(const bp_policy_input *input, size_t tenant, const shape *wanted)
{
    shape own = shape_of(input, tenant);
    return compare_shapes(&own, wanted) == 0;
}

/* The tenants of the mode's shape, as a set of their own; the intervals are those of all tenants. */
static bp_status choose_pooled(const bp_policy_input *input, const shape *mode, bp_tenants *pooled)
{
    const bp_tenants *all = input->tenants;
    void *memory;
    BP_TRY(bp_new_array(all->count, sizeof *pooled->tenants, &memory));
    *pooled = *all;
    pooled->tenants = memory;
    pooled->count = 0;
    for (size_t t = 0; t < all->count; t++) {
        if (has_shape(input, t, mode))
            pooled->tenants[pooled->count++] = all->tenants[t];
    }
    bp_status status = bp_tenants_count_live(pooled);
    if (status != BP_OK)
        free(pooled->tenants);
    return status;
}

static bp_status add_shared_classes(const bp_policy_input *input, const bp_tenants *pooled, const uint32_t *copies,
                                    bp_role_layout *layout)
{
    for (uint32_t i = 0; i < pooled->tenants[0].request_count; i++) {
        uint32_t request = pooled->tenants[0].first_request + i;
        bp_class shared = {.copies = layout->copies, .rank = i, .set_by = request, .kind = BP_BUFFER_POOLED};
        shared.dtype = input->buckets->requests[request].dtype;
        for (size_t t = 0; t < pooled->count; t++) {
            request = pooled->tenants[t].first_request + i;
            uint64_t bytes; /* equal unpadded sizes may be padded differently */
            BP_TRY(bp_aligned_bytes(input, request, &bytes));
            if (bytes > shared.bytes) {
                shared.bytes = bytes;
                shared.set_by = request;
            }
            shared.users++;
            layout->places[request] = (bp_place){i, copies[t]};
        }
        BP_TRY(bp_layout_add_class(layout, &shared));
    }
    return BP_OK;
}

static bp_status place_tenants(const bp_policy_input *input, const shape *mode, const bp_tenants *pooled,
                               uint32_t *copies, bp_role_layout *layout)
{
    const bp_tenants *all = input->tenants;
    uint32_t used = input->config->copies;
    BP_TRY(bp_tenants_assign_copies(pooled, &used, copies, &layout->proven));
    layout->feasible = used > 0;
    layout->copies = used > 0 ? used : input->config->copies;
    /* as Megatron does, as many buffer sets as units of any kind are live at once, even where fewer would do */
    if (input->config->copies == 0 && layout->copies < all->most_live)
        layout->copies = all->most_live;
    BP_TRY(add_shared_classes(input, pooled, copies, layout));
    for (size_t t = 0; t < all->count && input->config->fallback == BP_FALLBACK_PERSISTENT; t++) {
        if (!has_shape(input, t, mode))
            BP_TRY(bp_layout_add_persistent(input, &all->tenants[t], layout));
    }
    return BP_OK;
}

bp_status bp_policy_fixed(const bp_policy_input *input, bp_role_layout *layout)
{
    size_t count = input->tenants->count;
    layout->feasible = true;
    if (count == 0)
        return BP_OK;
    shape mode = {0};
    BP_TRY(find_mode(input, &mode));
    bp_tenants pooled;
    BP_TRY(choose_pooled(input, &mode, &pooled));
    void *copies;
    bp_status status = bp_new_array(pooled.count, sizeof(uint32_t), &copies);
    if (status == BP_OK) {
        status = place_tenants(input, &mode, &pooled, copies, layout);
        free(copies);
    }
    layout->live_units = pooled.most_live;
    layout->live_step = pooled.most_live_step;
    free(pooled.tenants);
    return status;
}
