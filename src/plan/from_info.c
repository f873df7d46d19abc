/* Plans from elsewhere: copied and validated, for readers of saved plans. */
#include <stdlib.h>
#include <string.h>

#include "core/arith.h"
#include "core/fail.h"
#include "plan/plan.h"

/* ---- validation ----------------------------------------------------------------------------------------------------- */

static bp_status plan_fail_request(const bp_plan_info *info, size_t index, const char *what)
{
    char text[BP_PLAN_REQUEST_BYTES];
    return bp_fail(BP_ERR_MISMATCH, "request %zu (%s) %s", index, bp_plan_describe(&info->requests[index], text), what);
}

static bp_status check_request(const bp_plan_info *info, size_t index)
{
    const bp_plan_request *r = &info->requests[index];
    if (r->unit == NULL || bp_dtype_bits(r->dtype) == 0 || r->role >= BP_ROLE_COUNT ||
        (r->placement != BP_PLACE_NONE && r->placement != BP_PLACE_PLANNED && r->placement != BP_PLACE_DYNAMIC))
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "request %zu: no unit, or dtype %d, role %u or placement %d is unknown",
                       index, (int)r->dtype, r->role, (int)r->placement);
    if (r->used_bytes > r->bytes)
        return plan_fail_request(info, index, "uses more bytes than it has");
    if (r->placement != BP_PLACE_PLANNED)
        return BP_OK;
    if (r->slab >= info->slab_count)
        return plan_fail_request(info, index, "lies in a slab that does not exist");
    uint64_t room = info->slabs[r->slab].bytes;
    if (r->bytes == 0)
        return plan_fail_request(info, index, "has an address but no bytes");
    if (r->offset > room || r->bytes > room - r->offset)
        return plan_fail_request(info, index, "reaches beyond its slab");
    if (r->offset % info->alignment != 0)
        return plan_fail_request(info, index, "has an offset that is not aligned");
    return BP_OK;
}

static bp_status check_class(const bp_plan_info *info, size_t index)
{
    const bp_plan_class *c = &info->classes[index];
    const char *what = NULL;
    uint64_t end;
    if (c->slab >= info->slab_count)
        what = "lies in a slab that does not exist";
    else if (c->copies == 0 || c->bytes == 0 || bp_dtype_bits(c->dtype) == 0)
        what = "has no copies, no bytes or no dtype";
    else if (c->copies > 1 && c->stride < c->bytes)
        what = "has copies that overlap";
    else if (c->offset % info->alignment != 0 || (c->copies > 1 && c->stride % info->alignment != 0))
        what = "is not aligned";
    else if (!bp_mul_u64(c->copies - 1, c->stride, &end) || !bp_add_u64(end, c->offset, &end) ||
             !bp_add_u64(end, c->bytes, &end) || end > info->slabs[c->slab].bytes)
        what = "reaches beyond its slab";
    return what == NULL ? BP_OK : bp_fail(BP_ERR_MISMATCH, "class %zu of the plan %s", index, what);
}

static bp_status check_info(const bp_plan_info *info)
{
    if (info->policy < BP_POLICY_DYNAMIC || info->policy > BP_POLICY_SCHEDULED)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "the plan's policy %d is unknown", (int)info->policy);
    if (info->alignment == 0 || (info->alignment & (info->alignment - 1)) != 0)
        return bp_fail(BP_ERR_MISMATCH, "the plan's alignment %llu is no power of two",
                       (unsigned long long)info->alignment);
    if (info->slab_count > UINT16_MAX || info->request_count >= UINT32_MAX)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%zu slabs and %zu requests; a plan has at most %d and %u",
                       info->slab_count, info->request_count, UINT16_MAX, UINT32_MAX - 1);
    for (size_t i = 0; i < info->slab_count; i++) {
        if (info->slabs[i].group == NULL)
            return bp_fail(BP_ERR_INVALID_ARGUMENT, "slab %zu has no release group", i);
    }
    for (size_t i = 0; i < info->request_count; i++)
        BP_TRY(check_request(info, i));
    for (size_t i = 0; i < info->class_count; i++)
        BP_TRY(check_class(info, i));
    return BP_OK;
}

/* ---- copying -------------------------------------------------------------------------------------------------------- */

static bp_status copy_array(const void *from, size_t count, size_t element_bytes, void **copy)
{
    BP_TRY(bp_new_array(count, element_bytes, copy));
    if (count > 0)
        memcpy(*copy, from, count * element_bytes);
    return BP_OK;
}

/* Requests of one unit are neighbours: they share the copy of its name. */
static bp_status plan_copy_names(bp_plan *plan)
{
    const char *before = NULL, *copy = NULL;
    for (size_t i = 0; i < plan->request_count; i++) {
        bp_plan_request *r = &plan->requests[i];
        if (before == NULL || strcmp(before, r->unit) != 0)
            BP_TRY(bp_strings_add(&plan->strings, r->unit, &copy));
        before = r->unit = copy;
        if (r->bucket != NULL)
            BP_TRY(bp_strings_add(&plan->strings, r->bucket, &r->bucket));
    }
    for (size_t i = 0; i < plan->slab_count; i++)
        BP_TRY(bp_strings_add(&plan->strings, plan->slabs[i].group, &plan->slabs[i].group));
    return BP_OK;
}

static bp_status plan_fill(bp_plan *plan, const bp_plan_info *info)
{
    plan->info = *info;
    plan->info.model = plan->info.infeasible_because = "";
    if (info->model != NULL)
        BP_TRY(bp_strings_add(&plan->strings, info->model, &plan->info.model));
    if (info->infeasible_because != NULL)
        BP_TRY(bp_strings_add(&plan->strings, info->infeasible_because, &plan->info.infeasible_because));
    void *memory;
    BP_TRY(copy_array(info->slabs, info->slab_count, sizeof *info->slabs, &memory));
    plan->slabs = memory;
    plan->slab_count = plan->slab_capacity = info->slab_count;
    BP_TRY(copy_array(info->classes, info->class_count, sizeof *info->classes, &memory));
    plan->classes = memory;
    plan->class_count = plan->class_capacity = info->class_count;
    BP_TRY(copy_array(info->requests, info->request_count, sizeof *info->requests, &memory));
    plan->requests = memory;
    plan->request_count = info->request_count;
    BP_TRY(plan_copy_names(plan));
    bp_plan_publish(plan);
    for (size_t i = 0; i < info->option_count; i++)
        BP_TRY(bp_plan_set_option(plan, info->options[i].key, info->options[i].value));
    return bp_plan_make_table(plan);
}

bp_status bp_plan_from_info(const bp_plan_info *info, bp_plan **plan)
{
    if (info == NULL || plan == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_plan_from_info: needs contents and a place for the plan");
    BP_TRY(check_info(info));
    bp_plan *made;
    BP_TRY(bp_plan_new(&made));
    bp_status status = plan_fill(made, info);
    if (status != BP_OK) {
        bp_plan_destroy(&made);
        return status;
    }
    *plan = made;
    return BP_OK;
}
