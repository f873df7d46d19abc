/* Writes bucketpool.report/1. */
#include "plan/report.h"

#include "shared/cli.h"

static void dtype(bp_json_writer *d, const char *key, bp_dtype value)
{
    bp_json_add_text(d, key, value != BP_DTYPE_NONE ? bp_dtype_name(value) : NULL);
}

void report_roles(bp_json_writer *d, const char *key, uint32_t mask)
{
    bp_json_add_list(d, key);
    for (unsigned role = 0; role < BP_ROLE_COUNT; role++) {
        if (mask & BP_ROLE_BIT(role))
            bp_json_add_text(d, NULL, bp_role_name((bp_role)role));
    }
    bp_json_end(d);
}

static void schedule_options_members(bp_json_writer *d, const schedule_options *o)
{
    bool same = o->prefetch_backward == BP_PREFETCH_SAME;
    bp_json_add_number(d, "prefetch", o->prefetch);
    bp_json_add_number(d, "prefetch_backward", same ? o->prefetch : o->prefetch_backward);
    bp_json_add_object(d, "unit_prefetch");
    for (size_t i = 0; i < o->unit_prefetch_count; i++) {
        const unit_prefetch *u = &o->unit_prefetches[i];
        bp_json_add_object(d, u->unit);
        bp_json_add_number(d, "forward", u->forward);
        bp_json_add_number(d, "backward", u->backward);
        bp_json_end(d);
    }
    bp_json_end(d);
    bp_json_add_number(d, "grad_units", o->grad_units);
    bp_json_add_flag(d, "eval", o->passes == BP_PASSES_EVAL);
    bp_json_add_text(d, "passes", options_passes_name(o->passes));
    bp_json_add_flag(d, "keep_after_forward", o->keep_after_forward);
    bp_json_add_flag(d, "recompute", o->recompute);
    bp_json_add_text(d, "streams", options_streams_name(o->streams));
    bp_json_add_text(d, "outside", options_outside_name(o->outside));
    bp_json_add_number(d, "microbatches", o->microbatches);
    bp_json_add_flag(d, "combined", o->combined);
    bp_json_add_number(d, "overlap_window", o->overlap_window);
    bp_json_add_list(d, "schedules");
    for (size_t i = 0; i < o->other_count; i++)
        bp_json_add_text(d, NULL, o->others[i]);
    bp_json_end(d);
    bp_json_add_flag(d, "share", o->share);
}

void report_options(bp_json_writer *d, const analysis *a, const plan_options *o)
{
    bp_json_add_object(d, "options");
    bp_json_add_number(d, "dp", o->dp);
    bp_json_add_number(d, "ep", o->ep);
    bp_json_add_number(d, "tp", o->tp);
    bp_json_add_text(d, "bucketing", options_bucketing_name(a->bucketing));
    bp_json_add_text(d, "padding", options_padding_name(a->padding));
    bp_json_add_text(d, "layout", options_layout_name(a->layout));
    bp_json_add_number(d, "buffers", o->buffers);
    bp_json_add_number(d, "alignment", o->alignment);
    bp_json_add_text(d, "fallback", options_fallback_name(o->fallback));
    bp_json_add_flag(d, "joint", o->joint);
    bp_json_add_number(d, "work", o->work);
    dtype(d, "param_dtype", o->param_dtype);
    dtype(d, "grad_dtype", o->grad_dtype);
    dtype(d, "grad_comm_dtype", o->grad_comm_dtype);
    dtype(d, "main_grad_dtype", o->main_grad_dtype);
    dtype(d, "optimizer_dtype", o->optimizer_dtype);
    bp_json_add_number(d, "optimizer_tensors", o->optimizer_tensors);
    report_roles(d, "roles", o->roles);
    schedule_options_members(d, &o->schedule);
    bp_json_add_text(d, "schedule", analysis_schedule_kind(a, &o->schedule));
    bp_json_end(d);
}

static void print_place(bp_json_writer *d, const bp_plan_request *r)
{
    bp_json_add_text(d, "unit", r->unit);
    bp_json_add_text(d, "bucket", cli_bucket(r->bucket, r->ordinal));
}

static void print_buffer(bp_json_writer *d, const bp_plan_info *plan, const bp_plan_buffer *b)
{
    bp_json_add_object(d, NULL);
    bp_json_add_text(d, "dtype", bp_dtype_name(b->dtype));
    bp_json_add_number(d, "rank", b->rank);
    bp_json_add_number(d, "copies", b->copies);
    bp_json_add_number(d, "bytes", b->bytes);
    bp_json_add_object(d, "set_by");
    print_place(d, &plan->requests[b->set_by]);
    bp_json_end(d);
    bp_json_add_text(d, "kind", b->kind == BP_BUFFER_POOLED ? "pooled" : "persistent");
    bp_json_add_number(d, "users", b->users);
    bp_json_end(d);
}

static void print_witness(bp_json_writer *d, const bp_plan_info *plan, uint32_t request)
{
    const uint64_t mask = plan->alignment - 1;
    bp_json_add_object(d, NULL);
    print_place(d, &plan->requests[request]);
    bp_json_add_number(d, "bytes", (plan->requests[request].bytes + mask) & ~mask);
    bp_json_end(d);
}

static void print_role(bp_json_writer *d, const bp_plan_info *plan, const bp_plan_role *role)
{
    bp_json_add_object(d, NULL);
    bp_json_add_text(d, "role", bp_role_name((bp_role)role->role));
    report_roles(d, "roles", role->roles);
    bp_json_add_number(d, "bytes", role->bytes);
    bp_json_add_number(d, "lower_bound_bytes", role->lower_bound_bytes);
    bp_json_add_number(d, "lower_bound_step", role->lower_bound_step);
    bp_json_add_list(d, "witness");
    for (size_t i = 0; i < role->witness_count; i++)
        print_witness(d, plan, role->witnesses[i]);
    bp_json_end(d);
    bp_json_add_number(d, "proven_bytes", role->proven_bytes);
    bp_json_add_flag(d, "optimal", role->optimal);
    bp_json_add_text(d, "method", role->method);
    bp_json_add_number(d, "pool_bytes", role->pool_bytes);
    bp_json_add_number(d, "persistent_bytes", role->persistent_bytes);
    bp_json_add_number(d, "dynamic_bytes", role->dynamic_bytes);
    bp_json_add_list(d, "buffers");
    for (size_t i = 0; i < role->buffer_count; i++)
        print_buffer(d, plan, &role->buffers[i]);
    bp_json_end(d);
    bp_json_end(d);
}

static void print_policy(bp_json_writer *d, const analysis *a, const bp_plan *of, const plan_options *o)
{
    const bp_plan_info *plan = bp_plan_get_info(of);
    bp_json_add_object(d, NULL);
    bp_json_add_text(d, "policy", bp_policy_name(plan->policy));
    bp_json_add_number(d, "bytes", plan->bytes);
    bp_json_add_number(d, "lower_bound_bytes", plan->lower_bound_bytes);
    bp_json_add_flag(d, "optimal", plan->optimal);
    bp_json_add_flag(d, "feasible", plan->feasible);
    bp_json_add_flag(d, "stable", plan->stable);
    bp_json_add_number(d, "copies", plan->copies);
    bp_json_add_list(d, "roles");
    for (size_t i = 0; i < plan->role_count; i++)
        print_role(d, plan, &plan->roles[i]);
    bp_json_end(d);
    if (!plan->feasible)
        bp_json_add_text(d, "infeasible_because", plan->infeasible_because);
    if (o->budget > 0) {
        uint64_t needed = analysis_needed(a, of);
        bp_json_add_number(d, "needed_bytes", needed);
        bp_json_add_flag(d, "fits", needed <= o->budget);
    }
    bp_json_end(d);
}

static void print_model(bp_json_writer *d, const analysis *a, const plan_options *o)
{
    bp_json_add_object(d, NULL);
    bp_json_add_text(d, "model", a->name);
    bp_json_add_number(d, "parameters", a->parameters);
    bp_json_add_number(d, "prediction_parameters", a->prediction_parameters);
    bp_json_add_number(d, "outside_bytes", a->state.outside);
    bp_json_add_number(d, "units", a->units);
    report_options(d, a, o);
    bp_json_add_object(d, "state_bytes");
    bp_json_add_number(d, "outside", a->state.outside);
    bp_json_add_number(d, "param_shards", a->state.param_shards);
    bp_json_add_number(d, "grad_shards", a->state.grad_shards);
    bp_json_add_number(d, "optimizer", a->state.optimizer);
    bp_json_end(d);
    bp_json_add_list(d, "policies");
    for (size_t i = 0; i < a->plan_count; i++)
        print_policy(d, a, a->plans[i], o);
    bp_json_end(d);
    if (a->notes[0] != '\0')
        bp_json_add_text(d, "notes", a->notes);
    if (o->budget > 0)
        bp_json_add_number(d, "budget_bytes", o->budget);
    bp_json_end(d);
}

int report_print(const analysis *analyses, size_t count, const plan_options *options)
{
    bp_json_writer d = {0};
    bp_json_add_object(&d, NULL);
    bp_json_add_text(&d, "format", "bucketpool.report/1");
    bp_json_add_list(&d, "models");
    for (size_t i = 0; i < count; i++)
        print_model(&d, &analyses[i], options);
    bp_json_end(&d);
    bp_json_end(&d);
    return cli_print_json(&d);
}
