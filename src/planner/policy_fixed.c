/* Fixed pool: the most frequent set of units with equal buckets shares buffer sets; the rest is persistent or dynamic.
 * Source: Megatron-LM d98e8a64, FixedPoolAllocator. */
#include "planner/policy.h"

#include <stdlib.h>

#include "core/fail.h"

/* Same number of buckets with, in order, the same dtypes and unpadded sizes: 0. Otherwise any total order. */
static int compare_shapes(const bp_request_data *requests, const bp_tenant *a, const bp_tenant *b)
{
    if (a->request_count != b->request_count)
        return a->request_count < b->request_count ? -1 : 1;
    for (uint32_t i = 0; i < a->request_count; i++) {
        const bp_request_data *x = &requests[a->first_request + i], *y = &requests[b->first_request + i];
        if (x->numel != y->numel)
            return x->numel < y->numel ? -1 : 1;
        if (x->dtype != y->dtype)
            return x->dtype < y->dtype ? -1 : 1;
    }
    return 0;
}

/* Sorts tenant indices by shape, then index, without recursion or a context argument for qsort: bottom-up merge sort. */
static void sort_by_shape(const bp_policy_input *input, uint32_t *order, uint32_t *scratch)
{
    const bp_tenant *tenants = input->tenants->tenants;
    size_t count = input->tenants->count;
    for (size_t width = 1; width < count; width *= 2) {
        for (size_t begin = 0; begin < count; begin += 2 * width) {
            size_t middle = begin + width < count ? begin + width : count;
            size_t end = begin + 2 * width < count ? begin + 2 * width : count;
            for (size_t i = begin, j = middle, k = begin; k < end; k++) {
                bool left = i < middle && (j == end || compare_shapes(input->buckets->requests, &tenants[order[i]],
                                                                      &tenants[order[j]]) <= 0);
                scratch[k] = order[left ? i++ : j++];
            }
        }
        for (size_t i = 0; i < count; i++)
            order[i] = scratch[i];
    }
}

/* The first-seen tenant of the most frequent shape. */
static uint32_t find_mode(const bp_policy_input *input, uint32_t *order, uint32_t *scratch)
{
    const bp_tenant *tenants = input->tenants->tenants;
    size_t count = input->tenants->count, best = 0;
    uint32_t mode = 0;
    for (size_t i = 0; i < count; i++)
        order[i] = (uint32_t)i;
    sort_by_shape(input, order, scratch);
    for (size_t begin = 0, end; begin < count; begin = end) {
        for (end = begin; end < count &&
                          compare_shapes(input->buckets->requests, &tenants[order[begin]], &tenants[order[end]]) == 0;)
            end++;
        if (end - begin > best || (end - begin == best && order[begin] < mode)) {
            best = end - begin;
            mode = order[begin];
        }
    }
    return mode;
}

/* The tenants of the mode's shape, as a set of their own; the intervals are those of all tenants. */
static bp_status choose_pooled(const bp_policy_input *input, uint32_t mode, bp_tenants *pooled)
{
    const bp_tenants *all = input->tenants;
    void *memory;
    BP_TRY(bp_new_array(all->count, sizeof *pooled->tenants, &memory));
    *pooled = *all;
    pooled->tenants = memory;
    pooled->count = 0;
    for (size_t t = 0; t < all->count; t++) {
        if (compare_shapes(input->buckets->requests, &all->tenants[mode], &all->tenants[t]) == 0)
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

static bp_status place_tenants(const bp_policy_input *input, const bp_tenants *pooled, uint32_t *copies,
                               bp_role_layout *layout)
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
        if (compare_shapes(input->buckets->requests, &pooled->tenants[0], &all->tenants[t]) != 0)
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
    void *memory;
    BP_TRY(bp_new_array(2 * count, sizeof(uint32_t), &memory));
    uint32_t *order = memory, *scratch = order + count;
    bp_tenants pooled;
    bp_status status = choose_pooled(input, find_mode(input, order, scratch), &pooled);
    if (status == BP_OK) {
        status = place_tenants(input, &pooled, order, layout); /* the order has served: copies take its place */
        layout->live_units = pooled.most_live;
        layout->live_step = pooled.most_live_step;
        free(pooled.tenants);
    }
    free(memory);
    return status;
}
