#include "report.h"

#include <jansson.h>
#include <stdio.h>

#include "cli.h"

#define SIZE(value) ((json_int_t)(value))

/* NULL from any of these is an allocation that failed; json_*_new and "s:o" pass it on, so that the top sees it. */

static json_t *dtype_json(bp_dtype dtype)
{
    return dtype != BP_DTYPE_NONE ? json_string(bp_dtype_name(dtype)) : json_null();
}

json_t *report_roles(uint32_t mask)
{
    json_t *roles = json_array();
    for (unsigned role = 0; role < BP_ROLE_COUNT; role++) {
        if (mask & BP_ROLE_BIT(role))
            json_array_append_new(roles, json_string(bp_role_name((bp_role)role)));
    }
    return roles;
}

/* What --unit-prefetch says, by unit. */
static json_t *unit_prefetch_json(const schedule_options *o)
{
    json_t *units = json_object();
    for (size_t i = 0; i < o->unit_prefetch_count; i++) {
        const unit_prefetch *u = &o->unit_prefetches[i];
        json_object_set_new(units, u->unit,
                            json_pack("{s:I, s:I}", "forward", SIZE(u->forward), "backward", SIZE(u->backward)));
    }
    return units;
}

static json_t *schedule_options_json(const schedule_options *o)
{
    bool same = o->prefetch_backward == BP_PREFETCH_SAME;
    json_t *others = json_array();
    for (size_t i = 0; i < o->other_count; i++)
        json_array_append_new(others, json_string(o->others[i]));
    return json_pack("{s:I, s:I, s:o, s:I, s:b, s:s, s:b, s:b, s:s, s:s, s:I, s:b, s:I, s:I, s:o, s:b}", "prefetch",
                     SIZE(o->prefetch), "prefetch_backward", SIZE(same ? o->prefetch : o->prefetch_backward),
                     "unit_prefetch", unit_prefetch_json(o), "grad_units", SIZE(o->grad_units), "eval",
                     (int)(o->passes == BP_PASSES_EVAL), "passes", options_passes_name(o->passes), "keep_after_forward",
                     (int)o->keep_after_forward, "recompute", (int)o->recompute, "streams",
                     options_streams_name(o->streams), "outside", options_outside_name(o->outside), "microbatches",
                     SIZE(o->microbatches), "combined", (int)o->combined, "overlap_window", SIZE(o->overlap_window),
                     "allow_stalls", SIZE(o->stalls), "schedules", others, "share", (int)o->share);
}

json_t *report_options(const analysis *a, const plan_options *o)
{
    json_t *options =
        json_pack("{s:I, s:I, s:I, s:s, s:s, s:s, s:I, s:I, s:s, s:b, s:I, s:o, s:o, s:o, s:o, s:o, s:I, s:o}", "dp",
                  SIZE(o->dp), "ep", SIZE(o->ep), "tp", SIZE(o->tp), "bucketing", options_bucketing_name(a->bucketing),
                  "padding", options_padding_name(a->padding), "layout", options_layout_name(a->layout), "buffers",
                  SIZE(o->buffers), "alignment", SIZE(o->alignment), "fallback", options_fallback_name(o->fallback),
                  "joint", (int)o->joint, "work", SIZE(o->work), "param_dtype", dtype_json(o->param_dtype),
                  "grad_dtype", dtype_json(o->grad_dtype), "grad_comm_dtype", dtype_json(o->grad_comm_dtype),
                  "main_grad_dtype", dtype_json(o->main_grad_dtype), "optimizer_dtype", dtype_json(o->optimizer_dtype),
                  "optimizer_tensors", SIZE(o->optimizer_tensors), "roles", report_roles(o->roles));
    json_t *schedule = schedule_options_json(&o->schedule);
    json_object_set_new(schedule, "schedule", json_string(analysis_schedule_kind(a, &o->schedule)));
    if (json_object_update(options, schedule) != 0) {
        json_decref(options);
        options = NULL;
    }
    json_decref(schedule);
    return options;
}

static json_t *buffer_json(const bp_plan *plan, size_t role, size_t index)
{
    static const char *const kinds[] = {"", "pooled", "persistent", "dynamic"};
    bp_plan_buffer b = {.size = sizeof b};
    if (bp_plan_buffer_get(plan, role, index, &b) != BP_OK)
        return NULL;
    return json_pack("{s:s, s:I, s:I, s:I, s:{s:s, s:s}, s:s, s:I}", "dtype", bp_dtype_name(b.dtype), "rank",
                     SIZE(b.rank), "copies", SIZE(b.copies), "bytes", SIZE(b.bytes), "set_by", "unit", b.set_by_unit,
                     "bucket", cli_bucket(b.set_by_bucket, b.set_by_ordinal), "kind", kinds[b.kind], "users",
                     SIZE(b.tenants));
}

static json_t *role_json(const bp_plan *plan, size_t index)
{
    bp_plan_role role = {.size = sizeof role};
    if (bp_plan_role_get(plan, index, &role) != BP_OK)
        return NULL;
    json_t *buffers = json_array(), *witness = json_array();
    for (size_t i = 0; i < role.buffers; i++)
        json_array_append_new(buffers, buffer_json(plan, index, i));
    for (size_t i = 0; i < bp_plan_witness_count(plan, index); i++) {
        bp_plan_witness w = {.size = sizeof w};
        if (bp_plan_witness_get(plan, index, i, &w) == BP_OK)
            json_array_append_new(witness, json_pack("{s:s, s:s, s:I}", "unit", w.unit, "bucket",
                                                     cli_bucket(w.bucket, w.ordinal), "bytes", SIZE(w.bytes)));
    }
    return json_pack("{s:s, s:o, s:I, s:I, s:I, s:o, s:I, s:b, s:s, s:I, s:I, s:I, s:o}", "role",
                     bp_role_name((bp_role)role.role), "roles", report_roles(role.roles), "bytes", SIZE(role.bytes),
                     "lower_bound_bytes", SIZE(role.lower_bound_bytes), "lower_bound_step", SIZE(role.lower_bound_step),
                     "witness", witness, "proven_bytes", SIZE(role.proven_bytes), "optimal", (int)role.optimal,
                     "method", role.method, "pool_bytes", SIZE(role.pool_bytes), "persistent_bytes",
                     SIZE(role.persistent_bytes), "dynamic_bytes", SIZE(role.dynamic_bytes), "buffers", buffers);
}

static json_t *wait_json(const bp_plan *plan, size_t index)
{
    bp_plan_wait w = {.size = sizeof w};
    if (bp_plan_wait_get(plan, index, &w) != BP_OK)
        return NULL;
    return json_pack("{s:I, s:s, s:s, s:s, s:{s:s, s:s, s:s}, s:I}", "step", SIZE(w.step), "unit", w.unit, "bucket",
                     cli_bucket(w.bucket, w.ordinal), "role", bp_role_name((bp_role)w.role), "for", "unit", w.for_unit,
                     "bucket", cli_bucket(w.for_bucket, w.for_ordinal), "role", bp_role_name((bp_role)w.for_role),
                     "exposed_bytes", SIZE(w.exposed_bytes));
}

static json_t *policy_json(const analysis *a, const bp_plan *plan, const plan_options *o)
{
    bp_plan_summary s = {.size = sizeof s};
    if (bp_plan_summary_get(plan, &s) != BP_OK)
        return NULL;
    json_t *roles = json_array(), *waits = json_array();
    for (size_t i = 0; i < bp_plan_role_count(plan); i++)
        json_array_append_new(roles, role_json(plan, i));
    for (size_t i = 0; i < bp_plan_wait_count(plan); i++)
        json_array_append_new(waits, wait_json(plan, i));
    json_t *policy =
        json_pack("{s:s, s:I, s:I, s:b, s:b, s:b, s:I, s:o, s:o}", "policy", bp_policy_name(s.policy), "bytes",
                  SIZE(s.bytes), "lower_bound_bytes", SIZE(s.lower_bound_bytes), "optimal", (int)s.optimal, "feasible",
                  (int)s.feasible, "stable", (int)s.stable, "copies", SIZE(s.copies), "roles", roles, "waits", waits);
    if (!s.feasible)
        json_object_set_new(policy, "infeasible_because", json_string(s.infeasible_because));
    if (o->budget > 0) {
        uint64_t needed = analysis_needed(a, plan);
        json_object_set_new(policy, "needed_bytes", json_integer(SIZE(needed)));
        json_object_set_new(policy, "fits", json_boolean(needed <= o->budget));
    }
    return policy;
}

static json_t *model_json(const analysis *a, const plan_options *o)
{
    json_t *policies = json_array();
    for (size_t i = 0; i < a->plan_count; i++)
        json_array_append_new(policies, policy_json(a, a->plans[i], o));
    json_t *model =
        json_pack("{s:s, s:I, s:I, s:I, s:I, s:o, s:{s:I, s:I, s:I, s:I}, s:o}", "model", a->name, "parameters",
                  SIZE(a->parameters), "prediction_parameters", SIZE(a->prediction_parameters), "outside_bytes",
                  SIZE(a->state.outside), "units", SIZE(a->units), "options", report_options(a, o), "state_bytes",
                  "outside", SIZE(a->state.outside), "param_shards", SIZE(a->state.param_shards), "grad_shards",
                  SIZE(a->state.grad_shards), "optimizer", SIZE(a->state.optimizer), "policies", policies);
    if (a->notes[0] != '\0')
        json_object_set_new(model, "notes", json_string(a->notes));
    if (o->budget > 0)
        json_object_set_new(model, "budget_bytes", json_integer(SIZE(o->budget)));
    return model;
}

int report_print(const analysis *analyses, size_t count, const plan_options *options)
{
    json_t *models = json_array();
    bool failed = false;
    for (size_t i = 0; i < count; i++)
        failed |= json_array_append_new(models, model_json(&analyses[i], options)) != 0;
    json_t *report = json_pack("{s:s, s:o}", "format", "bucketpool.report/1", "models", models);
    failed |= report == NULL || json_dumpf(report, stdout, JSON_INDENT(2)) != 0 || putchar('\n') == EOF ||
              fflush(stdout) != 0;
    json_decref(report);
    return failed ? cli_fail(EXIT_ENVIRONMENT, "the report could not be written") : EXIT_GO_ON;
}
