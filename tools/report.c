#include "report.h"

#include "cli.h"

static void dtype(document *d, const char *key, bp_dtype value)
{
    document_text(d, key, value != BP_DTYPE_NONE ? bp_dtype_name(value) : NULL);
}

void report_roles(document *d, const char *key, uint32_t mask)
{
    document_list(d, key);
    for (unsigned role = 0; role < BP_ROLE_COUNT; role++) {
        if (mask & BP_ROLE_BIT(role))
            document_text(d, NULL, bp_role_name((bp_role)role));
    }
    document_end(d);
}

static void schedule_options_members(document *d, const schedule_options *o)
{
    bool same = o->prefetch_backward == BP_PREFETCH_SAME;
    document_number(d, "prefetch", o->prefetch);
    document_number(d, "prefetch_backward", same ? o->prefetch : o->prefetch_backward);
    document_object(d, "unit_prefetch");
    for (size_t i = 0; i < o->unit_prefetch_count; i++) {
        const unit_prefetch *u = &o->unit_prefetches[i];
        document_object(d, u->unit);
        document_number(d, "forward", u->forward);
        document_number(d, "backward", u->backward);
        document_end(d);
    }
    document_end(d);
    document_number(d, "grad_units", o->grad_units);
    document_flag(d, "eval", o->passes == BP_PASSES_EVAL);
    document_text(d, "passes", options_passes_name(o->passes));
    document_flag(d, "keep_after_forward", o->keep_after_forward);
    document_flag(d, "recompute", o->recompute);
    document_text(d, "streams", options_streams_name(o->streams));
    document_text(d, "outside", options_outside_name(o->outside));
    document_number(d, "microbatches", o->microbatches);
    document_flag(d, "combined", o->combined);
    document_number(d, "overlap_window", o->overlap_window);
    document_list(d, "schedules");
    for (size_t i = 0; i < o->other_count; i++)
        document_text(d, NULL, o->others[i]);
    document_end(d);
    document_flag(d, "share", o->share);
}

void report_options(document *d, const analysis *a, const plan_options *o)
{
    document_object(d, "options");
    document_number(d, "dp", o->dp);
    document_number(d, "ep", o->ep);
    document_number(d, "tp", o->tp);
    document_text(d, "bucketing", options_bucketing_name(a->bucketing));
    document_text(d, "padding", options_padding_name(a->padding));
    document_text(d, "layout", options_layout_name(a->layout));
    document_number(d, "buffers", o->buffers);
    document_number(d, "alignment", o->alignment);
    document_text(d, "fallback", options_fallback_name(o->fallback));
    document_flag(d, "joint", o->joint);
    document_number(d, "work", o->work);
    dtype(d, "param_dtype", o->param_dtype);
    dtype(d, "grad_dtype", o->grad_dtype);
    dtype(d, "grad_comm_dtype", o->grad_comm_dtype);
    dtype(d, "main_grad_dtype", o->main_grad_dtype);
    dtype(d, "optimizer_dtype", o->optimizer_dtype);
    document_number(d, "optimizer_tensors", o->optimizer_tensors);
    report_roles(d, "roles", o->roles);
    schedule_options_members(d, &o->schedule);
    document_text(d, "schedule", analysis_schedule_kind(a, &o->schedule));
    document_end(d);
}

static void print_place(document *d, const bp_plan_request *r)
{
    document_text(d, "unit", r->unit);
    document_text(d, "bucket", cli_bucket(r->bucket, r->ordinal));
}

static void print_buffer(document *d, const bp_plan_info *plan, const bp_plan_buffer *b)
{
    document_object(d, NULL);
    document_text(d, "dtype", bp_dtype_name(b->dtype));
    document_number(d, "rank", b->rank);
    document_number(d, "copies", b->copies);
    document_number(d, "bytes", b->bytes);
    document_object(d, "set_by");
    print_place(d, &plan->requests[b->set_by]);
    document_end(d);
    document_text(d, "kind", b->kind == BP_BUFFER_POOLED ? "pooled" : "persistent");
    document_number(d, "users", b->users);
    document_end(d);
}

static void print_witness(document *d, const bp_plan_info *plan, uint32_t request)
{
    const uint64_t mask = plan->alignment - 1;
    document_object(d, NULL);
    print_place(d, &plan->requests[request]);
    document_number(d, "bytes", (plan->requests[request].bytes + mask) & ~mask);
    document_end(d);
}

static void print_role(document *d, const bp_plan_info *plan, const bp_plan_role *role)
{
    document_object(d, NULL);
    document_text(d, "role", bp_role_name((bp_role)role->role));
    report_roles(d, "roles", role->roles);
    document_number(d, "bytes", role->bytes);
    document_number(d, "lower_bound_bytes", role->lower_bound_bytes);
    document_number(d, "lower_bound_step", role->lower_bound_step);
    document_list(d, "witness");
    for (size_t i = 0; i < role->witness_count; i++)
        print_witness(d, plan, role->witnesses[i]);
    document_end(d);
    document_number(d, "proven_bytes", role->proven_bytes);
    document_flag(d, "optimal", role->optimal);
    document_text(d, "method", role->method);
    document_number(d, "pool_bytes", role->pool_bytes);
    document_number(d, "persistent_bytes", role->persistent_bytes);
    document_number(d, "dynamic_bytes", role->dynamic_bytes);
    document_list(d, "buffers");
    for (size_t i = 0; i < role->buffer_count; i++)
        print_buffer(d, plan, &role->buffers[i]);
    document_end(d);
    document_end(d);
}

static void print_policy(document *d, const analysis *a, const bp_plan *of, const plan_options *o)
{
    const bp_plan_info *plan = bp_plan_get_info(of);
    document_object(d, NULL);
    document_text(d, "policy", bp_policy_name(plan->policy));
    document_number(d, "bytes", plan->bytes);
    document_number(d, "lower_bound_bytes", plan->lower_bound_bytes);
    document_flag(d, "optimal", plan->optimal);
    document_flag(d, "feasible", plan->feasible);
    document_flag(d, "stable", plan->stable);
    document_number(d, "copies", plan->copies);
    document_list(d, "roles");
    for (size_t i = 0; i < plan->role_count; i++)
        print_role(d, plan, &plan->roles[i]);
    document_end(d);
    if (!plan->feasible)
        document_text(d, "infeasible_because", plan->infeasible_because);
    if (o->budget > 0) {
        uint64_t needed = analysis_needed(a, of);
        document_number(d, "needed_bytes", needed);
        document_flag(d, "fits", needed <= o->budget);
    }
    document_end(d);
}

static void print_model(document *d, const analysis *a, const plan_options *o)
{
    document_object(d, NULL);
    document_text(d, "model", a->name);
    document_number(d, "parameters", a->parameters);
    document_number(d, "prediction_parameters", a->prediction_parameters);
    document_number(d, "outside_bytes", a->state.outside);
    document_number(d, "units", a->units);
    report_options(d, a, o);
    document_object(d, "state_bytes");
    document_number(d, "outside", a->state.outside);
    document_number(d, "param_shards", a->state.param_shards);
    document_number(d, "grad_shards", a->state.grad_shards);
    document_number(d, "optimizer", a->state.optimizer);
    document_end(d);
    document_list(d, "policies");
    for (size_t i = 0; i < a->plan_count; i++)
        print_policy(d, a, a->plans[i], o);
    document_end(d);
    if (a->notes[0] != '\0')
        document_text(d, "notes", a->notes);
    if (o->budget > 0)
        document_number(d, "budget_bytes", o->budget);
    document_end(d);
}

int report_print(const analysis *analyses, size_t count, const plan_options *options)
{
    document d = document_new();
    document_object(&d, NULL);
    document_text(&d, "format", "bucketpool.report/1");
    document_list(&d, "models");
    for (size_t i = 0; i < count; i++)
        print_model(&d, &analyses[i], options);
    document_end(&d);
    document_end(&d);
    return document_finish(&d);
}
