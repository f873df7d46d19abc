#include "scale_plan.h"

#include <stdbool.h>
#include <stdlib.h>

#include "plan/from_info.h"

uint64_t scaled_bytes(uint64_t bytes, uint64_t scale)
{
    return bytes / scale + (bytes % scale != 0);
}

/* Copies of the plan's arrays, scaled. */
typedef struct arrays {
    bp_plan_slab *slabs;
    bp_plan_class *classes;
    bp_plan_request *requests;
} arrays;

static bool allocate_arrays(const bp_plan_info *plan, arrays *a)
{
    a->slabs = malloc((plan->slab_count + 1) * sizeof *a->slabs);
    a->classes = malloc((plan->class_count + 1) * sizeof *a->classes);
    a->requests = malloc((plan->request_count + 1) * sizeof *a->requests);
    return a->slabs != NULL && a->classes != NULL && a->requests != NULL;
}

static void scale_arrays(const bp_plan_info *plan, uint64_t scale, arrays *a)
{
    for (size_t i = 0; i < plan->slab_count; i++) {
        bp_plan_slab slab = plan->slabs[i];
        slab.bytes = scaled_bytes(slab.bytes, scale);
        a->slabs[i] = slab;
    }
    for (size_t i = 0; i < plan->class_count; i++) {
        bp_plan_class c = plan->classes[i];
        c.offset = scaled_bytes(c.offset, scale);
        c.stride = scaled_bytes(c.stride, scale);
        c.bytes = scaled_bytes(c.bytes, scale);
        a->classes[i] = c;
    }
    for (size_t i = 0; i < plan->request_count; i++) {
        bp_plan_request r = plan->requests[i];
        r.offset = scaled_bytes(r.offset, scale);
        r.bytes = scaled_bytes(r.bytes, scale);
        r.used_bytes = scaled_bytes(r.used_bytes, scale);
        a->requests[i] = r;
    }
}

bp_status scale_plan(const bp_plan *plan, uint64_t scale, bp_plan **scaled)
{
    bp_plan_info info = *bp_plan_get_info(plan);
    arrays a = {0};
    bp_status status = bp_error_record(BP_ERR_NO_HOST_MEMORY, "out of memory for the scaled plan");
    if (allocate_arrays(&info, &a)) {
        scale_arrays(&info, scale, &a);
        info.alignment /= scale;
        info.bytes = scaled_bytes(info.bytes, scale);
        info.lower_bound_bytes = scaled_bytes(info.lower_bound_bytes, scale);
        info.slabs = a.slabs;
        info.classes = a.classes;
        info.requests = a.requests;
        status = bp_plan_from_info(&info, scaled);
    }
    free(a.slabs);
    free(a.classes);
    free(a.requests);
    return status;
}

uint64_t iteration_bytes(const bp_buckets *buckets, const bp_schedule *schedule)
{
    uint64_t sum = 0;
    const bp_buckets_info *info = bp_buckets_get_info(buckets);
    for (size_t i = 0; i < info->request_count; i++) {
        uint64_t bytes, count = bp_schedule_get_info(schedule)->requests[i].interval_count;
        if (__builtin_mul_overflow(info->requests[i].bytes, count, &bytes) || __builtin_add_overflow(sum, bytes, &sum))
            return UINT64_MAX;
    }
    return sum;
}
