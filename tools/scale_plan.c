#include "scale_plan.h"

uint64_t scaled_bytes(uint64_t bytes, uint64_t scale)
{
    return bytes / scale + (bytes % scale != 0);
}

static bp_status add_slabs(const bp_plan *plan, uint64_t scale, bp_plan_builder *builder)
{
    bp_status status = BP_OK;
    for (size_t i = 0; status == BP_OK && i < bp_plan_slab_count(plan); i++) {
        bp_plan_slab slab = {.size = sizeof slab};
        status = bp_plan_slab_get(plan, i, &slab);
        slab.bytes = scaled_bytes(slab.bytes, scale);
        if (status == BP_OK)
            status = bp_plan_builder_add_slab(builder, &slab);
    }
    return status;
}

static bp_status add_classes(const bp_plan *plan, uint64_t scale, bp_plan_builder *builder)
{
    bp_status status = BP_OK;
    for (size_t i = 0; status == BP_OK && i < bp_plan_class_count(plan); i++) {
        bp_plan_class c = {.size = sizeof c};
        status = bp_plan_class_get(plan, i, &c);
        c.offset = scaled_bytes(c.offset, scale);
        c.stride = scaled_bytes(c.stride, scale);
        c.bytes = scaled_bytes(c.bytes, scale);
        if (status == BP_OK)
            status = bp_plan_builder_add_class(builder, &c);
    }
    return status;
}

static bp_status add_assignments(const bp_plan *plan, uint64_t scale, bp_plan_builder *builder)
{
    bp_status status = BP_OK;
    for (size_t i = 0; status == BP_OK && i < bp_plan_assignment_count(plan); i++) {
        bp_assignment a = {.size = sizeof a};
        status = bp_plan_assignment_get(plan, i, &a);
        a.offset = scaled_bytes(a.offset, scale);
        a.bytes = scaled_bytes(a.bytes, scale);
        if (status == BP_OK)
            status = bp_plan_builder_add_assignment(builder, &a);
    }
    return status;
}

bp_status scale_plan(const bp_plan *plan, uint64_t scale, bp_plan **scaled)
{
    bp_plan_summary summary = {.size = sizeof summary};
    bp_plan_builder *builder = NULL;
    bp_status status = bp_plan_summary_get(plan, &summary);
    if (status != BP_OK)
        return status;
    summary.alignment /= scale;
    summary.bytes = scaled_bytes(summary.bytes, scale);
    summary.lower_bound_bytes = scaled_bytes(summary.lower_bound_bytes, scale);
    status = bp_plan_builder_create(&summary, &builder);
    if (status == BP_OK)
        status = add_slabs(plan, scale, builder);
    if (status == BP_OK)
        status = add_classes(plan, scale, builder);
    if (status == BP_OK)
        status = add_assignments(plan, scale, builder);
    bp_plan *made = NULL;
    if (status == BP_OK)
        status = bp_plan_builder_finish(&builder, &made);
    bp_plan_builder_destroy(&builder);
    if (status == BP_OK)
        status = bp_plan_set_model(made, bp_plan_model(plan));
    if (status == BP_OK)
        *scaled = made;
    else
        bp_plan_destroy(&made);
    return status;
}

uint64_t iteration_bytes(const bp_buckets *buckets, const bp_schedule *schedule)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < bp_buckets_request_count(buckets); i++) {
        bp_request r = {.size = sizeof r};
        uint64_t bytes, count = bp_schedule_get_info(schedule)->requests[i].interval_count;
        if (bp_buckets_request(buckets, i, &r) != BP_OK || __builtin_mul_overflow(r.bytes, count, &bytes) ||
            __builtin_add_overflow(sum, bytes, &sum))
            return UINT64_MAX;
    }
    return sum;
}
