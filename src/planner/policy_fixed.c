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

static bp_status place_tenants(const bp_policy_input *input, uint32_t mode, const uint32_t *copies,
                               bp_role_layout *layout)
{
    const bp_tenant *tenants = input->tenants->tenants;
    for (uint32_t i = 0; i < tenants[mode].request_count; i++) {
        uint32_t request = tenants[mode].first_request + i;
        bp_class shared = {.copies = layout->copies, .rank = i, .set_by = request, .kind = BP_BUFFER_POOLED};
        shared.dtype = input->buckets->requests[request].dtype;
        BP_TRY(bp_layout_add_class(layout, &shared));
    }
    for (size_t t = 0; t < input->tenants->count; t++) {
        if (compare_shapes(input->buckets->requests, &tenants[mode], &tenants[t]) != 0) {
            if (input->config->fallback == BP_FALLBACK_PERSISTENT)
                BP_TRY(bp_layout_add_persistent(input, &tenants[t], layout));
            continue;
        }
        for (uint32_t i = 0; i < tenants[t].request_count; i++) {
            uint32_t request = tenants[t].first_request + i;
            uint64_t bytes; /* equal unpadded sizes may be padded differently */
            BP_TRY(bp_aligned_bytes(input, request, &bytes));
            if (bytes > layout->classes[i].bytes) {
                layout->classes[i].bytes = bytes;
                layout->classes[i].set_by = request;
            }
            layout->classes[i].users++;
            layout->places[request] = (bp_place){i, copies[t]};
        }
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
    BP_TRY(bp_new_array(3 * count, sizeof(uint32_t), &memory));
    uint32_t *order = memory, *scratch = order + count, *copies = scratch + count;
    uint32_t used = input->config->copies;
    /* as Megatron does, as many buffer sets as units of any kind are live at once */
    bp_status status = bp_tenants_assign_copies(input->tenants, &used, copies, &layout->proven);
    layout->feasible = used > 0;
    layout->copies = used > 0 ? used : input->config->copies;
    if (status == BP_OK)
        status = place_tenants(input, find_mode(input, order, scratch), copies, layout);
    free(memory);
    return status;
}
