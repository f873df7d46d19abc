/* Plans as bucketpool.plan/1. docs/formats.md describes every member. */
#include <bucketpool/formats.h>

#include <stdio.h>

#include "core/fail.h"
#include "files/json_writer.h"

static void write_slab(bp_json_writer *w, const bp_plan_slab *slab)
{
    bp_json_add_object(w, NULL);
    bp_json_add_text(w, "group", slab->group);
    bp_json_add_number(w, "bytes", slab->bytes);
    bp_json_end(w);
}

static void write_class(bp_json_writer *w, const bp_plan_class *c)
{
    bp_json_add_object(w, NULL);
    bp_json_add_number(w, "slab", c->slab);
    bp_json_add_text(w, "dtype", bp_dtype_name(c->dtype));
    bp_json_add_number(w, "copies", c->copies);
    bp_json_add_number(w, "offset", c->offset);
    bp_json_add_number(w, "stride", c->stride);
    bp_json_add_number(w, "bytes", c->bytes);
    bp_json_end(w);
}

static void write_request(bp_json_writer *w, const bp_plan_request *r)
{
    char name[32];
    snprintf(name, sizeof name, "bucket.%u", r->ordinal);
    bp_json_add_object(w, NULL);
    bp_json_add_text(w, "unit", r->unit);
    bp_json_add_text(w, "bucket", r->bucket != NULL ? r->bucket : name);
    bp_json_add_number(w, "ordinal", r->ordinal);
    bp_json_add_text(w, "role", bp_role_name((bp_role)r->role));
    bp_json_add_text(w, "dtype", bp_dtype_name(r->dtype));
    bp_json_add_number(w, "bytes", r->bytes);
    bp_json_add_number(w, "used_bytes", r->used_bytes);
    if (r->placement == BP_PLACE_PLANNED) {
        bp_json_add_number(w, "slab", r->slab);
        bp_json_add_number(w, "offset", r->offset);
    }
    bp_json_end(w);
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

static void write_plan_document(bp_json_writer *w, const bp_plan_info *plan, const char *fingerprint)
{
    bp_json_add_object(w, NULL);
    bp_json_add_text(w, "format", "bucketpool.plan/1");
    bp_json_add_text(w, "model", plan->model);
    bp_json_add_object(w, "options");
    for (size_t i = 0; i < plan->option_count; i++)
        bp_json_add_text(w, plan->options[i].key, plan->options[i].value);
    bp_json_end(w);
    bp_json_add_text(w, "policy", bp_policy_name(plan->policy));
    bp_json_add_number(w, "copies", plan->copies);
    bp_json_add_number(w, "alignment", plan->alignment);
    bp_json_add_number(w, "bytes", plan->bytes);
    bp_json_add_object(w, "bound");
    bp_json_add_number(w, "lower_bound_bytes", plan->lower_bound_bytes);
    bp_json_add_flag(w, "optimal", plan->optimal);
    bp_json_end(w);
    bp_json_add_list(w, "slabs");
    for (size_t i = 0; i < plan->slab_count; i++)
        write_slab(w, &plan->slabs[i]);
    bp_json_end(w);
    bp_json_add_list(w, "classes");
    for (size_t i = 0; i < plan->class_count; i++)
        write_class(w, &plan->classes[i]);
    bp_json_end(w);
    bp_json_add_list(w, "requests");
    for (size_t i = 0; i < plan->request_count; i++)
        write_request(w, &plan->requests[i]);
    bp_json_end(w);
    bp_json_add_text(w, "fingerprint", fingerprint);
    bp_json_end(w);
}

bp_status bp_plan_write(const bp_plan *plan, const char *path)
{
    if (plan == NULL || path == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_plan_write: needs a plan and a path");
    bp_json_writer writer = {.layout = BP_JSON_FITTED};
    char fingerprint[BP_FINGERPRINT_CHARS];
    BP_TRY(check_saveable(bp_plan_get_info(plan)));
    BP_TRY(bp_plan_fingerprint(plan, fingerprint));
    write_plan_document(&writer, bp_plan_get_info(plan), fingerprint);
    if (writer.has_replaced)
        bp_json_check(&writer,
                      bp_fail(BP_ERR_INVALID_ARGUMENT, "a plan with names that are not UTF-8 cannot be written"));
    return bp_json_save(&writer, path);
}
