/* SPDX-License-Identifier: Apache-2.0 */
/* Plans as tables, and as the document bucketpool.report/1 (docs/reference/formats.md). */
#include "core/print.h"
#include "plan/analysis.h"

#include <stdio.h>
#include <string.h>

#include "shared/cli.h"
#include "shared/sheet.h"

/* ---- totals ------------------------------------------------------------------------------------------------------ */

/* Columns of the table: one for each role, and one for roles that share a slab in a joint plan. */
typedef struct columns {
    uint32_t roles[BP_ROLE_COUNT];
    size_t role_count;
    uint32_t joint; /* roles that share a slab; 0: none */
} columns;

const char *table_ratio_text(uint64_t bytes, uint64_t bound)
{
    return cli_text("%.2f", bound > 0 ? (double)bytes / (double)bound : 1.0);
}

static bool is_joint(const bp_plan_role *role)
{
    return (role->roles & (role->roles - 1)) != 0;
}

/* The plan's bytes or lower bound for a column's roles; "" where the plan has no entry for exactly these roles. */
static const char *bytes_text(const bp_plan_info *plan, uint32_t roles, bool bound)
{
    for (size_t i = 0; i < plan->role_count; i++) {
        if (plan->roles[i].roles == roles)
            return cli_bytes(bound ? plan->roles[i].lower_bound_bytes : plan->roles[i].bytes);
    }
    return "";
}

static void add_roles(sheet *s, const columns *c, const bp_plan_info *plan, bool bound)
{
    for (size_t i = 0; i < c->role_count; i++)
        sheet_add_cell(s, bytes_text(plan, BP_ROLE_BIT(c->roles[i]), bound));
    if (c->joint != 0)
        sheet_add_cell(s, bytes_text(plan, c->joint, bound));
}

static void add_policy(sheet *s, const columns *c, const analysis *a, const plan_options *o, const bp_plan *of)
{
    const bp_plan_info *plan = bp_plan_get_info(of);
    sheet_add_row(s, bp_policy_name(plan->policy), NULL);
    add_roles(s, c, plan, false);
    sheet_add_cell(s, cli_bytes(plan->bytes));
    sheet_add_cell(s, plan->feasible ? table_ratio_text(plan->bytes, plan->lower_bound_bytes) : "-");
    sheet_add_cell(s, !plan->feasible                       ? "-"
                      : !plan->stable                       ? "" /* fragmentation is not counted */
                      : plan->optimal                       ? "optimal"
                      : plan->policy == BP_POLICY_SCHEDULED ? "not proven"
                                                            : "");
    sheet_add_cell(s, !plan->feasible ? "infeasible" : plan->stable ? "one each" : "change");
    if (!plan->feasible)
        sheet_color_line(s, "red");
    else if (plan->stable && plan->optimal)
        sheet_color_line(s, "green");
    if (o->budget > 0) {
        uint64_t needed = analysis_needed(a, of);
        sheet_add_cell(s, cli_bytes(needed));
        sheet_add_cell(s, needed <= o->budget ? "yes" : "no");
    }
}

/* Adds the lower bound of plans with a slab for each role, or of joint ones. */
static void add_bound(sheet *s, const columns *c, const bp_plan_info *plan, const char *name)
{
    if (plan == NULL)
        return;
    sheet_add_row(s, name, NULL);
    add_roles(s, c, plan, true);
    sheet_add_cell(s, cli_bytes(plan->lower_bound_bytes));
    sheet_add_cell(s, "1.00");
}

/* Prints a line for each policy, then the lower bound. Returns EXIT_GO_ON or an exit code. */
static int table_print_totals(const analysis *a, const plan_options *options, bool color)
{
    sheet s = sheet_new(color);

    columns c = {.role_count = 0};
    uint32_t used = 0;
    for (size_t p = 0; p < a->plan_count; p++) {
        const bp_plan_info *plan = bp_plan_get_info(a->plans[p]);
        for (size_t i = 0; i < plan->role_count; i++) {
            const bp_plan_role *role = &plan->roles[i];
            c.joint |= is_joint(role) ? role->roles : 0;
            used |= is_joint(role) ? 0 : role->roles;
        }
    }
    for (uint32_t role = 0; role < BP_ROLE_COUNT; role++) {
        if (used & BP_ROLE_BIT(role))
            c.roles[c.role_count++] = role;
    }

    sheet_add_columns(&s, "POLICY");
    for (size_t i = 0; i < c.role_count; i++)
        sheet_add_column(&s, bp_role_name((bp_role)c.roles[i]), true);
    if (c.joint != 0)
        sheet_add_column(&s, "joint", true);
    sheet_add_columns(&s, options->budget > 0 ? ">TOTAL|>x BOUND|PROVEN|ADDRESSES|>WITH STATE|FITS"
                                              : ">TOTAL|>x BOUND|PROVEN|ADDRESSES");

    const bp_plan_info *apart = NULL, *joint = NULL;
    for (size_t p = 0; p < a->plan_count; p++) {
        const bp_plan_info *plan = bp_plan_get_info(a->plans[p]);
        bool shares = false;
        for (size_t i = 0; i < plan->role_count; i++)
            shares = shares || is_joint(&plan->roles[i]);
        const bp_plan_info **kind = shares ? &joint : &apart;
        *kind = *kind != NULL ? *kind : plan;
        add_policy(&s, &c, a, options, a->plans[p]);
    }
    add_bound(&s, &c, apart, "lower bound");
    add_bound(&s, &c, joint, "joint bound");
    return sheet_finish(&s);
}

/* ---- one model ------------------------------------------------------------------------------------------------------ */

void table_print_heading(const analysis *a, const plan_options *o)
{
    cli_print_title(a->name, cli_wants_color(o->color));
    printf(": %s parameters", cli_count(a->parameters));
    if (a->prediction_parameters > 0)
        printf(" (and %s in prediction layers)", cli_count(a->prediction_parameters));
    printf(" in %zu unit%s and %s %s\n", a->units, a->units == 1 ? "" : "s",
           cli_bytes(a->root_bytes > 0 ? a->root_bytes : a->state.outside),
           a->root_bytes > 0 ? "in the root group" : "outside units");
    if (a->notes[0] != '\0')
        cli_print("%s\n", a->notes);
    char schedule[SCHEDULE_TEXT_CHARS];
    printf("dp %u, ep %u, tp %u, %s; %s buckets, %s padding, %s layout\n\n", o->dp, o->ep, o->tp,
           analysis_schedule_text(a, o, schedule), choice_name(options_bucketings, (int)a->bucketing),
           choice_name(options_paddings, (int)a->padding), choice_name(options_layouts, (int)a->layout));
}

static void add_sum(sheet *s, const char *policy, const char *role, uint64_t bytes, const char *what)
{
    sheet_add_row(s, policy, role, "", "", "", "", cli_bytes(bytes), what, NULL);
}

static void add_role(sheet *s, const bp_plan_info *plan, const bp_plan_role *role)
{
    char text[ROLES_TEXT_CHARS];
    const char *policy = bp_policy_name(plan->policy), *name = names_roles(role->roles, text);
    size_t persistent = 0;
    for (size_t i = 0; i < role->buffer_count; i++) {
        const bp_plan_buffer *b = &role->buffers[i];
        persistent += b->kind == BP_BUFFER_PERSISTENT;
        if (b->kind != BP_BUFFER_POOLED)
            continue;
        char set_by[256];
        const bp_plan_request *largest = &plan->requests[b->set_by];
        bp_print(set_by, sizeof set_by, "%.160s/%.80s", largest->unit, cli_bucket(largest->bucket, largest->ordinal));
        sheet_add_row(s, policy, name, bp_dtype_name(b->dtype), cli_text("%u", b->rank), cli_text("%u", b->copies),
                      cli_bytes(b->bytes), cli_bytes(b->bytes * b->copies), set_by, NULL);
    }
    if (role->buffer_count == 0 && role->pool_bytes > 0)
        add_sum(s, policy, name, role->pool_bytes, "one offset for each bucket");
    char what[96];
    snprintf(what, sizeof what, "%zu bucket%s with separate memory", persistent, cli_plural(persistent));
    if (persistent > 0)
        add_sum(s, policy, name, role->persistent_bytes, what);
    snprintf(what, sizeof what, "allocated on demand, peak in step %u", role->lower_bound_step);
    if (role->dynamic_bytes > 0)
        add_sum(s, policy, name, role->dynamic_bytes,
                role->dynamic_bytes == role->lower_bound_bytes ? what : "allocated on demand, upper limit");
}

static int print_buffers(const analysis *a, bool color)
{
    sheet s = sheet_new(color);
    sheet_add_columns(&s, "POLICY|ROLE|DTYPE|>RANK|>COPIES|>EACH|>TOTAL|SET BY");
    for (size_t p = 0; p < a->plan_count; p++) {
        const bp_plan_info *plan = bp_plan_get_info(a->plans[p]);
        for (size_t i = 0; i < plan->role_count; i++)
            add_role(&s, plan, &plan->roles[i]);
    }
    return sheet_finish(&s);
}

static void print_fit(const char *name, uint64_t needed, const plan_options *o)
{
    bool fits = needed <= o->budget;
    cli_print("%s: %s %s of %s (%s), %s %s activations and other memory.\n", name,
              fits ? "fits" : "does not fit:", cli_bytes(needed), cli_bytes(o->budget), o->budget_name,
              fits ? cli_bytes(o->budget - needed) : cli_bytes(needed - o->budget),
              fits ? "are left for" : "too much before");
}

int table_print_model(const analysis *a, const plan_options *options)
{
    bool color = cli_wants_color(options->color);
    table_print_heading(a, options);
    int code = a->plan_count > 0 ? print_buffers(a, color) : EXIT_GO_ON;
    if (a->plan_count > 0)
        putchar('\n');
    if (code == EXIT_GO_ON && a->plan_count > 0)
        code = table_print_totals(a, options, color);
    for (size_t p = 0; p < a->plan_count; p++) {
        const bp_plan_info *plan = bp_plan_get_info(a->plans[p]);
        if (!plan->feasible)
            cli_print("\n%s is infeasible: %s.\n", bp_policy_name(plan->policy), plan->infeasible_because);
    }
    advice_print_verdict(a);
    if (options->budget > 0) {
        if (a->plan_count > 0)
            putchar('\n');

        const state_bytes *s = &a->state;
        printf("State of one GPU beside the pool: %s = %s %s, parameter shards %s, gradient shards (%s) %s, optimizer "
               "(%u x "
               "%s) %s.\n",
               cli_bytes(s->total), s->unsharded > 0 ? "unsharded parameters" : "outside parameters",
               cli_bytes(s->unsharded > 0 ? s->unsharded : s->outside), cli_bytes(s->param_shards),
               bp_dtype_name(analysis_trained_dtype(options->main_grad_dtype)), cli_bytes(s->grad_shards),
               options->optimizer_tensors, bp_dtype_name(analysis_trained_dtype(options->optimizer_dtype)),
               cli_bytes(s->optimizer));
        if (a->plan_count == 0)
            print_fit("without a pool", a->state.total, options);
        for (size_t p = 0; p < a->plan_count; p++)
            print_fit(bp_policy_name(bp_plan_get_info(a->plans[p])->policy), analysis_needed(a, a->plans[p]), options);
        if (code == EXIT_GO_ON)
            code = advice_print_ranks(a, options);
        putchar('\n');
    }
    return code;
}

/* ---- several models ---------------------------------------------------------------------------------------------- */

int table_print_models(const analysis *analyses, size_t count, const plan_options *options)
{
    sheet s = sheet_new(cli_wants_color(options->color));
    sheet_add_columns(&s, "MODEL|>PARAMETERS|>UNITS|>OUTSIDE|>LOWER BOUND");
    for (size_t p = 0; p < options->policy_count; p++) {
        sheet_add_column(&s, bp_policy_name(options->policies[p]), true);
        sheet_add_columns(&s, options->budget > 0 ? ">x BOUND|FITS" : ">x BOUND");
    }
    for (size_t i = 0; i < count; i++) {
        const analysis *a = &analyses[i];
        sheet_add_row(&s, a->name, cli_count(a->parameters), cli_text("%zu", a->units),
                      cli_bytes(a->state.outside + a->root_bytes), NULL);
        for (size_t p = 0; p < a->plan_count; p++) {
            const bp_plan_info *plan = bp_plan_get_info(a->plans[p]);
            if (p == 0)
                sheet_add_cell(&s, cli_bytes(plan->lower_bound_bytes));
            sheet_add_cell(&s, plan->feasible ? cli_bytes(plan->bytes) : "infeasible");
            sheet_add_cell(&s, plan->feasible ? table_ratio_text(plan->bytes, plan->lower_bound_bytes) : "-");
            if (options->budget > 0)
                sheet_add_cell(&s, analysis_needed(a, a->plans[p]) <= options->budget ? "yes" : "no");
        }
    }
    int code = sheet_finish(&s);
    bool noted = false;
    for (size_t i = 0; code == EXIT_GO_ON && i < count; i++) {
        if (analyses[i].notes[0] == '\0')
            continue;
        fputs(noted ? "" : "\n", stdout);
        cli_print("%s: %s\n", analyses[i].name, analyses[i].notes);
        noted = true;
    }
    return code;
}

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
    bp_json_add_text(d, "passes", choice_name(options_passes, (int)o->passes));
    bp_json_add_flag(d, "keep_after_forward", o->keep_after_forward);
    bp_json_add_flag(d, "recompute", o->recompute);
    bp_json_add_text(d, "streams", choice_name(options_streams, (int)o->streams));
    bp_json_add_text(d, "outside", choice_name(options_outsides, (int)o->outside));
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
    bp_json_add_text(d, "bucketing", choice_name(options_bucketings, (int)a->bucketing));
    bp_json_add_text(d, "padding", choice_name(options_paddings, (int)a->padding));
    bp_json_add_text(d, "layout", choice_name(options_layouts, (int)a->layout));
    bp_json_add_number(d, "buffers", o->buffers);
    bp_json_add_number(d, "alignment", o->alignment);
    bp_json_add_text(d, "fallback", choice_name(options_fallbacks, (int)o->fallback));
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

static void print_role(bp_json_writer *d, const bp_plan_info *plan, const bp_plan_role *role)
{
    bp_json_add_object(d, NULL);
    bp_json_add_text(d, "role", bp_role_name((bp_role)role->role));
    report_roles(d, "roles", role->roles);
    bp_json_add_number(d, "bytes", role->bytes);
    bp_json_add_number(d, "lower_bound_bytes", role->lower_bound_bytes);
    bp_json_add_number(d, "lower_bound_step", role->lower_bound_step);
    bp_json_add_list(d, "witness");
    for (size_t i = 0; i < role->witness_count; i++) {
        uint32_t request = role->witnesses[i];
        const uint64_t mask = plan->alignment - 1;
        bp_json_add_object(d, NULL);
        print_place(d, &plan->requests[request]);
        bp_json_add_number(d, "bytes", (plan->requests[request].bytes + mask) & ~mask);
        bp_json_end(d);
    }
    bp_json_end(d);
    bp_json_add_number(d, "proven_bytes", role->proven_bytes);
    bp_json_add_flag(d, "optimal", role->optimal);
    bp_json_add_text(d, "method", role->method);
    bp_json_add_number(d, "pool_bytes", role->pool_bytes);
    bp_json_add_number(d, "persistent_bytes", role->persistent_bytes);
    bp_json_add_number(d, "dynamic_bytes", role->dynamic_bytes);
    bp_json_add_list(d, "buffers");
    for (size_t i = 0; i < role->buffer_count; i++) {
        const bp_plan_buffer *b = &role->buffers[i];
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
    bp_json_add_number(d, "root_bytes", a->root_bytes);
    bp_json_add_number(d, "units", a->units);
    report_options(d, a, o);
    bp_json_add_object(d, "state_bytes");
    bp_json_add_number(d, "outside", a->state.outside);
    bp_json_add_number(d, "unsharded", a->state.unsharded);
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
