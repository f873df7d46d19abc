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

static bp_status options_json(const bp_plan *plan, json_t *options)
{
    for (size_t i = 0; i < bp_plan_option_count(plan); i++) {
        const char *key, *value;
        BP_TRY(bp_plan_option(plan, i, &key, &value));
        if (json_object_set_new(options, key, json_string(value)) != 0)
            return fail_json();
    }
    return BP_OK;
}

static bp_status slabs_json(const bp_plan *plan, json_t *slabs)
{
    for (size_t i = 0; i < bp_plan_slab_count(plan); i++) {
        bp_plan_slab slab = {.size = sizeof slab};
        BP_TRY(bp_plan_slab_get(plan, i, &slab));
        if (json_array_append_new(slabs,
                                  json_pack("{s:s, s:I}", "group", slab.group, "bytes", (json_int_t)slab.bytes)) != 0)
            return fail_json();
    }
    return BP_OK;
}

static bp_status assignments_json(const bp_plan *plan, json_t *assignments)
{
    for (size_t i = 0; i < bp_plan_assignment_count(plan); i++) {
        bp_assignment a = {.size = sizeof a};
        BP_TRY(bp_plan_assignment_get(plan, i, &a));
        json_t *predecessors = json_array();
        int failed = predecessors == NULL;
        for (size_t k = 0; k < a.predecessor_count; k++)
            failed |= json_array_append_new(predecessors, json_integer(a.predecessors[k]));
        json_t *item =
            json_pack("{s:s, s:o, s:I, s:s, s:s, s:I, s:I, s:I, s:o}", "unit", a.unit, "bucket",
                      bucket_name(a.bucket, a.ordinal), "ordinal", (json_int_t)a.ordinal, "role",
                      bp_role_name((bp_role)a.role), "dtype", bp_dtype_name(a.dtype), "slab", (json_int_t)a.slab,
                      "offset", (json_int_t)a.offset, "bytes", (json_int_t)a.bytes, "predecessors", predecessors);
        if (json_array_append_new(assignments, item) != 0 || failed)
            return fail_json();
    }
    return BP_OK;
}

static bp_status classes_json(const bp_plan *plan, json_t *classes)
{
    for (size_t i = 0; i < bp_plan_class_count(plan); i++) {
        bp_plan_class c = {.size = sizeof c};
        BP_TRY(bp_plan_class_get(plan, i, &c));
        if (json_array_append_new(classes, json_pack("{s:I, s:s, s:I, s:I, s:I, s:I}", "slab", (json_int_t)c.slab,
                                                     "dtype", bp_dtype_name(c.dtype), "copies", (json_int_t)c.copies,
                                                     "offset", (json_int_t)c.offset, "stride", (json_int_t)c.stride,
                                                     "bytes", (json_int_t)c.bytes)) != 0)
            return fail_json();
    }
    return BP_OK;
}

static bp_status plan_json(const bp_plan *plan, json_t *document)
{
    bp_plan_summary summary = {.size = sizeof summary};
    BP_TRY(bp_plan_summary_get(plan, &summary));
    if (!summary.feasible || !summary.stable)
        return bp_fail(BP_ERR_UNSUPPORTED,
                       "a plan of policy %s %s cannot be saved: its requests have no fixed addresses%s%s",
                       bp_policy_name(summary.policy), summary.feasible ? "with dynamic memory" : "that is infeasible",
                       summary.feasible ? "" : "; ", summary.infeasible_because);
    if (bp_plan_assignment_count(plan) == 0)
        return bp_fail(BP_ERR_UNSUPPORTED, "a plan without requests that are ever live has nothing to save");
    char fingerprint[BP_FINGERPRINT_CHARS];
    BP_TRY(bp_plan_fingerprint(plan, fingerprint));
    json_t *options = json_object(), *slabs = json_array(), *classes = json_array(), *assignments = json_array();
    json_t *bound = json_pack("{s:I, s:b}", "lower_bound_bytes", (json_int_t)summary.lower_bound_bytes, "optimal",
                              (int)summary.optimal);
    /* the document takes over its members at once, so that every way out frees them */
    int failed = json_object_set_new(document, "format", json_string("bucketpool.plan/1")) |
                 json_object_set_new(document, "model", json_string(bp_plan_model(plan))) |
                 json_object_set_new(document, "options", options) |
                 json_object_set_new(document, "policy", json_string(bp_policy_name(summary.policy))) |
                 json_object_set_new(document, "copies", json_integer(summary.copies)) |
                 json_object_set_new(document, "alignment", json_integer((json_int_t)summary.alignment)) |
                 json_object_set_new(document, "bytes", json_integer((json_int_t)summary.bytes)) |
                 json_object_set_new(document, "bound", bound) | json_object_set_new(document, "slabs", slabs) |
                 json_object_set_new(document, "classes", classes) |
                 json_object_set_new(document, "assignments", assignments) |
                 json_object_set_new(document, "fingerprint", json_string(fingerprint));
    if (failed)
        return fail_json();
    BP_TRY(options_json(plan, options));
    BP_TRY(slabs_json(plan, slabs));
    BP_TRY(classes_json(plan, classes));
    return assignments_json(plan, assignments);
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
