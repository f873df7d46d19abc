/* The policies that need no more than a few lines, and what all of them share. */
#include "planner/policy.h"

#include "core/arith.h"
#include "core/fail.h"

bp_status bp_layout_add_class(bp_role_layout *layout, const bp_class *added)
{
    BP_TRY(bp_grow_array((void **)&layout->classes, &layout->class_capacity, layout->class_count,
                         sizeof *layout->classes));
    layout->classes[layout->class_count++] = *added;
    return BP_OK;
}

bp_status bp_aligned_bytes(const bp_policy_input *input, uint32_t request, uint64_t *bytes)
{
    if (bp_round_up_u64(input->buckets->requests[request].bytes, input->config->alignment, bytes))
        return BP_OK;
    return bp_fail(BP_ERR_OVERFLOW, "request %u does not fit 64 bits when aligned to %llu bytes", request,
                   (unsigned long long)input->config->alignment);
}

bp_status bp_layout_add_persistent(const bp_policy_input *input, const bp_tenant *tenant, bp_role_layout *layout)
{
    for (uint32_t i = 0; i < tenant->request_count; i++) {
        uint32_t request = tenant->first_request + i;
        bp_class own = {.copies = 1, .rank = i, .users = 1, .set_by = request, .kind = BP_BUFFER_PERSISTENT};
        own.dtype = input->buckets->requests[request].dtype;
        BP_TRY(bp_aligned_bytes(input, request, &own.bytes));
        layout->places[request] = (bp_place){(uint32_t)layout->class_count, 0};
        BP_TRY(bp_layout_add_class(layout, &own));
    }
    return BP_OK;
}

bp_status bp_policy_persistent(const bp_policy_input *input, bp_role_layout *layout)
{
    layout->feasible = true;
    for (size_t t = 0; t < input->tenants->count; t++)
        BP_TRY(bp_layout_add_persistent(input, &input->tenants->tenants[t], layout));
    return BP_OK;
}

bp_status bp_policy_dynamic(const bp_policy_input *input, bp_role_layout *layout)
{
    (void)input; /* what is live is allocated, whatever it is: the assembly sums it up */
    layout->feasible = true;
    return BP_OK;
}
