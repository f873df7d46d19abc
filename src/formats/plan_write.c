/* Plans as bucketpool.plan/1. docs/formats.md describes every member. */
#include <bucketpool/formats.h>

#include <jansson.h>

#include "core/fail.h"
#include "formats/json.h"

static bp_status fail_json(void)
{
    return bp_fail(BP_ERR_NO_HOST_MEMORY, "out of host memory while writing a plan as JSON");
}

static json_t *bucket_name(const char *bucket, uint32_t ordinal)
{
    return bucket != NULL ? json_string(bucket) : json_sprintf("bucket.%u", ordinal);
}

static bp_status options_json(const bp_plan_info *plan, json_t *options)
{
    for (size_t i = 0; i < plan->option_count; i++) {
        if (json_object_set_new(options, plan->options[i].key, json_string(plan->options[i].value)) != 0)
            return fail_json();
    }
    return BP_OK;
}

static bp_status slabs_json(const bp_plan_info *plan, json_t *slabs)
{
    for (size_t i = 0; i < plan->slab_count; i++) {
        const bp_plan_slab *slab = &plan->slabs[i];
        if (json_array_append_new(slabs,
                                  json_pack("{s:s, s:I}", "group", slab->group, "bytes", (json_int_t)slab->bytes)) != 0)
            return fail_json();
    }
    return BP_OK;
}

static bp_status requests_json(const bp_plan_info *plan, json_t *requests)
{
    for (size_t i = 0; i < plan->request_count; i++) {
        const bp_plan_request *r = &plan->requests[i];
        json_t *item = json_pack("{s:s, s:o, s:I, s:s, s:s, s:I, s:I}", "unit", r->unit, "bucket",
                                 bucket_name(r->bucket, r->ordinal), "ordinal", (json_int_t)r->ordinal, "role",
                                 bp_role_name((bp_role)r->role), "dtype", bp_dtype_name(r->dtype), "bytes",
                                 (json_int_t)r->bytes, "used_bytes", (json_int_t)r->used_bytes);
        int failed = item == NULL;
        if (!failed && r->placement == BP_PLACE_PLANNED)
            failed = json_object_set_new(item, "slab", json_integer(r->slab)) |
                     json_object_set_new(item, "offset", json_integer((json_int_t)r->offset));
        if (json_array_append_new(requests, item) != 0 || failed)
            return fail_json();
    }
    return BP_OK;
}

static bp_status classes_json(const bp_plan_info *plan, json_t *classes)
{
    for (size_t i = 0; i < plan->class_count; i++) {
        const bp_plan_class *c = &plan->classes[i];
        if (json_array_append_new(classes, json_pack("{s:I, s:s, s:I, s:I, s:I, s:I}", "slab", (json_int_t)c->slab,
                                                     "dtype", bp_dtype_name(c->dtype), "copies", (json_int_t)c->copies,
                                                     "offset", (json_int_t)c->offset, "stride", (json_int_t)c->stride,
                                                     "bytes", (json_int_t)c->bytes)) != 0)
            return fail_json();
    }
    return BP_OK;
}

static bp_status check_saveable(const bp_plan_info *plan)
{
    if (!plan->feasible || !plan->stable)
        return bp_fail(BP_ERR_UNSUPPORTED,
                       "a plan of policy %s %s cannot be saved: its requests have no fixed addresses%s%s",
                       bp_policy_name(plan->policy), plan->feasible ? "with dynamic memory" : "that is infeasible",
                       plan->feasible ? "" : "; ", plan->infeasible_because);
    for (size_t i = 0; i < plan->request_count; i++) {
        if (plan->requests[i].placement == BP_PLACE_PLANNED)
            return BP_OK;
    }
    return bp_fail(BP_ERR_UNSUPPORTED, "a plan without requests that are ever live has nothing to save");
}

static bp_status plan_json(const bp_plan *plan, json_t *document)
{
    const bp_plan_info *info = bp_plan_get_info(plan);
    BP_TRY(check_saveable(info));
    char fingerprint[BP_FINGERPRINT_CHARS];
    BP_TRY(bp_plan_fingerprint(plan, fingerprint));
    json_t *options = json_object(), *slabs = json_array(), *classes = json_array(), *requests = json_array();
    json_t *bound = json_pack("{s:I, s:b}", "lower_bound_bytes", (json_int_t)info->lower_bound_bytes, "optimal",
                              (int)info->optimal);
    /* the document takes over its members at once, so that every way out frees them */
    int failed = json_object_set_new(document, "format", json_string("bucketpool.plan/1")) |
                 json_object_set_new(document, "model", json_string(info->model)) |
                 json_object_set_new(document, "options", options) |
                 json_object_set_new(document, "policy", json_string(bp_policy_name(info->policy))) |
                 json_object_set_new(document, "copies", json_integer(info->copies)) |
                 json_object_set_new(document, "alignment", json_integer((json_int_t)info->alignment)) |
                 json_object_set_new(document, "bytes", json_integer((json_int_t)info->bytes)) |
                 json_object_set_new(document, "bound", bound) | json_object_set_new(document, "slabs", slabs) |
                 json_object_set_new(document, "classes", classes) |
                 json_object_set_new(document, "requests", requests) |
                 json_object_set_new(document, "fingerprint", json_string(fingerprint));
    if (failed)
        return fail_json();
    BP_TRY(options_json(info, options));
    BP_TRY(slabs_json(info, slabs));
    BP_TRY(classes_json(info, classes));
    return requests_json(info, requests);
}

bp_status bp_plan_write(const bp_plan *plan, const char *path)
{
    if (plan == NULL || path == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_plan_write: needs a plan and a path");
    json_t *document = json_object();
    if (document == NULL)
        return fail_json();
    bp_status status = plan_json(plan, document);
    if (status == BP_OK)
        status = bp_json_write(document, path);
    json_decref(document);
    return status;
}
