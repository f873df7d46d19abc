/* SPDX-License-Identifier: Apache-2.0 */
/* `bucketpool explain`: sentences and tables, or the document bucketpool.whatif/1. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plan/analysis.h"
#include "shared/cli.h"
#include "shared/sheet.h"

typedef struct whatif {
    const analysis *analysed;
    const bp_plan *plan;           /* of policy scheduled; NULL: not in --policy, no answers */
    bp_alternatives *alternatives; /* NULL: recorded or merged schedule */
    bp_peaks *peaks;
} whatif;

/* ---- answers ----------------------------------------------------------------------------------------------------- */

static const bp_plan *scheduled_plan(const analysis *a)
{
    for (size_t i = 0; i < a->plan_count; i++) {
        if (bp_plan_get_info(a->plans[i])->policy == BP_POLICY_SCHEDULED)
            return a->plans[i];
    }
    return NULL;
}

/* Plans of other schedules, for a schedule generated from options alone. */
static int compare_schedules(const plan_options *options, const bp_plan_config *plan, whatif *w)
{
    const schedule_options *o = &options->schedule;
    bp_alternatives_config config;
    bp_schedule_config schedule;
    if (w->analysed->models > 1 || w->analysed->recorded > 0 || o->other_count > 0)
        return EXIT_GO_ON;
    bp_unit_prefetch *overrides = calloc(o->unit_prefetch_count + 1, sizeof *overrides);
    if (overrides == NULL)
        return cli_fail(EXIT_ENVIRONMENT, "out of memory");
    int code = analysis_schedule_config(w->analysed, o, overrides, &schedule);
    if (code == EXIT_GO_ON) {
        bp_status status = bp_alternatives_config_init(&config, sizeof config);
        config.work = options->work > 0 ? options->work : config.work;
        config.present = w->plan;
        if (status == BP_OK)
            status = bp_alternatives_create(w->analysed->buckets, &schedule, plan, &config, &w->alternatives);
        code = status == BP_OK ? EXIT_GO_ON : analysis_fail(w->analysed->name, status);
    }
    free(overrides);
    return code;
}

/* Returns EXIT_GO_ON, or the exit code after a message. Call whatif_finish either way. */
static int whatif_init(const analysis *a, const plan_options *options, whatif *w)
{
    *w = (whatif){.analysed = a, .plan = scheduled_plan(a)};
    bp_plan_config plan;
    if (w->plan == NULL)
        return EXIT_GO_ON;
    bp_status status = analysis_plan_config(options, BP_POLICY_SCHEDULED, options->alignment, &plan);
    if (status != BP_OK)
        return cli_fail_status(status);
    CLI_TRY(compare_schedules(options, &plan, w));
    status = bp_peaks_create(a->buckets, a->schedule, w->plan, &w->peaks);
    return status == BP_OK ? EXIT_GO_ON : analysis_fail(a->name, status);
}

/* ---- bucketpool.whatif/1 (docs/reference/formats.md) ------------------------------------------------------------- */

static void document_peak(bp_json_writer *d, const whatif *w, const bp_peak *peak)
{
    bp_json_add_object(d, NULL);
    report_roles(d, "roles", peak->roles);
    bp_json_add_number(d, "bytes", peak->bytes);
    bp_json_add_number(d, "step", peak->step);
    bp_json_add_list(d, "holders");
    for (size_t i = 0; i < peak->holder_count; i++) {
        const bp_peak_holder *holder = &peak->holders[i];
        bp_json_add_object(d, NULL);
        bp_json_add_text(d, "unit", bp_buckets_get_info(w->analysed->buckets)->units[holder->unit].name);
        bp_json_add_text(d, "role", bp_role_name((bp_role)holder->role));
        bp_json_add_number(d, "bytes", holder->bytes);
        bp_json_end(d);
    }
    bp_json_end(d);
    bp_json_add_number(d, "steps", peak->step_count);
    bp_json_add_number(d, "sets", peak->set_count);
    bp_json_add_number(d, "next_bytes", peak->next_bytes);
    bp_json_add_number(d, "next_step", peak->next_step);
    bp_json_add_number(d, "below_bytes", peak->below_bytes);
    bp_json_add_number(d, "below_step", peak->below_step);
    bp_json_end(d);
}

static void document_model(bp_json_writer *d, const whatif *w, const plan_options *options)
{
    bp_json_add_object(d, NULL);
    bp_json_add_text(d, "model", w->analysed->name);
    report_options(d, w->analysed, options);
    if (w->alternatives != NULL) {
        bp_json_add_list(d, "alternatives");
        const bp_alternatives_info *info = bp_alternatives_get_info(w->alternatives);
        for (size_t i = 0; i < info->alternative_count; i++) {
            const bp_alternative *a = &info->alternatives[i];
            bp_json_add_object(d, NULL);
            bp_json_add_flag(d, "present", a->is_present);
            bp_json_add_number(d, "prefetch", a->prefetch);
            bp_json_add_number(d, "prefetch_backward", a->prefetch_backward);
            bp_json_add_text(d, "streams", choice_name(options_streams, (int)a->streams));
            bp_json_add_flag(d, "joint", a->joint);
            bp_json_add_number(d, "bytes", a->bytes);
            bp_json_add_number(d, "lower_bound_bytes", a->lower_bound_bytes);
            bp_json_add_number(d, "proven_bytes", a->proven_bytes);
            bp_json_add_flag(d, "optimal", a->optimal);
            if (a->max_bytes > 0)
                bp_json_add_number(d, "max_bytes", a->max_bytes);
            else
                bp_json_add_null(d, "max_bytes");
            bp_json_add_number(d, "live_bytes", a->live_bytes);
            bp_json_end(d);
        }
        bp_json_end(d);
    } else {
        bp_json_add_null(d, "alternatives");
    }
    bp_json_add_list(d, "peaks");
    const bp_peaks_info *peaks = bp_peaks_get_info(w->peaks);
    for (size_t i = 0; peaks != NULL && i < peaks->peak_count; i++)
        document_peak(d, w, &peaks->peaks[i]);
    bp_json_end(d);
    bp_json_end(d);
}

/* Prints the answers about all models to standard output. Returns EXIT_GO_ON or the exit code after a message. */
static int whatif_report_print(const whatif *answers, size_t count, const plan_options *options)
{
    bp_json_writer d = {0};
    bp_json_add_object(&d, NULL);
    bp_json_add_text(&d, "format", "bucketpool.whatif/1");
    bp_json_add_list(&d, "models");
    for (size_t i = 0; i < count; i++)
        document_model(&d, &answers[i], options);
    bp_json_end(&d);
    bp_json_end(&d);
    return cli_print_json(&d);
}

/* ---- policies ---------------------------------------------------------------------------------------------------- */

static void explain_bound(const analysis *a, const bp_plan_info *plan, const bp_plan_role *role)
{
    char text[STEP_TEXT_CHARS], roles[ROLES_TEXT_CHARS];

    /* Requests are sorted by unit. */
    size_t units = 0;
    for (size_t i = 0; i < role->witness_count; i++) {
        const char *unit = plan->requests[role->witnesses[i]].unit;
        units += i == 0 || strcmp(unit, plan->requests[role->witnesses[i - 1]].unit) != 0;
    }

    cli_print("%s: no plan takes less than %s (%llu bytes). %zu unit%s hold%s this much at once in step %u (%s):\n",
              names_roles(role->roles, roles), cli_bytes(role->lower_bound_bytes),
              (unsigned long long)role->lower_bound_bytes, units, cli_plural(units), units == 1 ? "s" : "",
              role->lower_bound_step, analysis_step_text(a, role->lower_bound_step, text));

    const uint64_t mask = plan->alignment - 1;
    uint64_t sum = 0;
    for (size_t i = 0; i < role->witness_count; i++) {
        const bp_plan_request *r = &plan->requests[role->witnesses[i]];
        sum += (r->bytes + mask) & ~mask;
        if (i + 1 < role->witness_count && strcmp(r->unit, plan->requests[role->witnesses[i + 1]].unit) == 0)
            continue;
        cli_print("    %s holds %s\n", r->unit, cli_bytes(sum));
        sum = 0;
    }
}

static void explain_buffers(const bp_plan_info *plan, const bp_plan_role *role)
{
    for (size_t i = 0; i < role->buffer_count; i++) {
        const bp_plan_buffer *b = &role->buffers[i];
        const bp_plan_request *largest = &plan->requests[b->set_by];
        if (b->kind != BP_BUFFER_POOLED)
            continue;
        const char *bucket = cli_bucket(largest->bucket, largest->ordinal);
        cli_print("    %u x %s of %s for the %s%s bucket of a unit: ", b->copies, cli_bytes(b->bytes),
                  bp_dtype_name(b->dtype),
                  b->rank == 0   ? "largest"
                  : b->rank == 1 ? "second largest"
                                 : "next smaller",
                  plan->policy == BP_POLICY_FIXED ? " (by position)" : "");
        if (b->users > 1)
            cli_print("%s/%s sets the size, %u buckets share it.\n", largest->unit, bucket, b->users);
        else
            cli_print("only %s/%s uses it.\n", largest->unit, bucket);
    }
}

/* The plan's entry for any of these roles; NULL: none. */
static const bp_plan_role *find_role(const bp_plan_info *plan, uint32_t roles)
{
    for (size_t i = 0; i < plan->role_count; i++) {
        if ((plan->roles[i].roles & roles) != 0)
            return &plan->roles[i];
    }
    return NULL;
}

/* Proof state of a plan of policy scheduled. */
static void explain_placement(const bp_plan_role *role)
{
    printf(": each bucket has one offset, shared with buckets that are not live at the same time.\n");
    if (role->optimal && role->bytes > role->lower_bound_bytes)
        puts("    The search proved that no plan takes less, although this is above the bound.");
    else if (role->optimal)
        puts("    No plan takes less.");
    else
        cli_print("    Not proven optimal: every plan takes at least %s.\n", cli_bytes(role->proven_bytes));
}

/* Explains the size of `roles` under a policy. The roles may share a slab with others. */
static void explain_policy(const bp_plan_info *plan, uint32_t roles)
{
    char text[ROLES_TEXT_CHARS];
    const bp_plan_role *role = find_role(plan, roles);
    if (role == NULL)
        return;
    const char *policy = bp_policy_name(plan->policy);
    if (role->roles != roles && !(roles & BP_ROLE_BIT(role->role))) {
        cli_print("  %s places it in the slab of %s.\n", policy, bp_role_name((bp_role)role->role));
        return;
    }
    bool joint = role->roles != roles;
    cli_print("  %s takes %s%s%s, %.2f x %s bound", policy, cli_bytes(role->bytes), joint ? " for " : "",
              joint ? names_roles(role->roles, text) : "",
              role->lower_bound_bytes > 0 ? (double)role->bytes / (double)role->lower_bound_bytes : 1.0,
              joint ? "their joint" : "the");
    if (BP_ROLES_STATE & BP_ROLE_BIT(role->role)) {
        puts(": it is live in every step, so shards share no memory.");
        return;
    }
    switch (plan->policy) {
    case BP_POLICY_DYNAMIC:
        puts(": memory is allocated and freed with each unit; fragmentation comes on top. Addresses change: no CUDA "
             "graphs, no registered buffers.");
        break;
    case BP_POLICY_FIXED:
        cli_print(": %s are shared by the units of the most frequent kind in %u set%s.\n", cli_bytes(role->pool_bytes),
                  role->copies, cli_plural(role->copies));
        explain_buffers(plan, role);
        if (role->persistent_bytes > 0)
            cli_print("    All other units differ from that kind and have separate memory: %s that no other unit can "
                      "use.\n",
                      cli_bytes(role->persistent_bytes));
        if (role->dynamic_bytes > 0)
            cli_print(
                "    All other units differ from that kind and are allocated on demand: at most %s, without stable "
                "addresses.\n",
                cli_bytes(role->dynamic_bytes));
        break;
    case BP_POLICY_MAX:
        if (role->copies == 1)
            puts(": its single set must hold the largest unit of every kind at once.");
        else
            printf(": each of the %u sets must hold the largest unit of every kind at once.\n", role->copies);
        explain_buffers(plan, role);
        if (role->bytes > role->lower_bound_bytes)
            cli_print("    %s above the bound: units that are live together are rarely all as large as the largest.\n",
                      cli_bytes(role->bytes - role->lower_bound_bytes));
        break;
    case BP_POLICY_SCHEDULED: explain_placement(role); break;
    }
    if (!plan->feasible)
        cli_print("    The plan is infeasible: %s.\n", plan->infeasible_because);
}

/* Two roles of a plan have the same sizes and the same buffers, set by the same buckets. */
static bool same_role(const bp_plan_info *plan, const bp_plan_role *x, const bp_plan_role *y)
{
    if (x->bytes != y->bytes || x->lower_bound_bytes != y->lower_bound_bytes || x->live_units != y->live_units ||
        x->buffer_count != y->buffer_count)
        return false;
    for (size_t i = 0; i < x->buffer_count; i++) {
        const bp_plan_buffer *a = &x->buffers[i], *b = &y->buffers[i];
        const bp_plan_request *one = &plan->requests[a->set_by], *other = &plan->requests[b->set_by];
        if (a->bytes != b->bytes || a->copies != b->copies || a->users != b->users || a->dtype != b->dtype ||
            one->ordinal != other->ordinal || strcmp(one->unit, other->unit) != 0)
            return false;
    }
    return true;
}

/* A role equals the one before it under every policy with buffers, as gradients in the parameters' dtype do. */
static bool same_as_before(const analysis *a, size_t index)
{
    bool any_buffers = false;
    if (index == 0)
        return false;
    const bp_plan_role *roles = bp_plan_get_info(a->plans[0])->roles;
    for (size_t p = 0; p < a->plan_count; p++) {
        const bp_plan_info *plan = bp_plan_get_info(a->plans[p]);
        const bp_plan_role *one = find_role(plan, roles[index - 1].roles), *other = find_role(plan, roles[index].roles);
        if (one == other) /* one slab for both */
            continue;
        if (one == NULL || other == NULL || !same_role(plan, one, other))
            return false;
        any_buffers = any_buffers || other->buffer_count > 0;
    }
    return any_buffers;
}

static void explain_repetition(const analysis *a, const bp_plan_role *before, const bp_plan_role *role)
{
    char text[STEP_TEXT_CHARS];
    cli_print("%s: the same buffers as %s, set by the same buckets. The bound of %s is first reached in "
              "step %u (%s).\n",
              bp_role_name((bp_role)role->role), bp_role_name((bp_role)before->role),
              cli_bytes(role->lower_bound_bytes), role->lower_bound_step,
              analysis_step_text(a, role->lower_bound_step, text));
}

/* ---- peaks ------------------------------------------------------------------------------------------------------- */

enum { MAX_HOLDERS = 6 }; /* printed by name */

static void print_step(const whatif *w, uint32_t step)
{
    char text[STEP_TEXT_CHARS];
    cli_print("step %u (%s)", step, analysis_step_text(w->analysed, step, text));
}

static void explain_peak(const whatif *w, const bp_peak *peak)
{
    char roles[ROLES_TEXT_CHARS];
    cli_print("%s: ", names_roles(peak->roles, roles));

    /* "layers.75 (975.0 MiB) and layers.76 (975.0 MiB)"; with the role in a joint slab. */
    bool joint = (peak->roles & (peak->roles - 1)) != 0;
    size_t named = peak->holder_count > MAX_HOLDERS ? MAX_HOLDERS - 1 : peak->holder_count;
    for (size_t i = 0; i < named; i++) {
        bp_peak_holder holder = peak->holders[i];
        cli_print("%s%s (%s%s%s)",
                  i == 0                        ? ""
                  : i + 1 == peak->holder_count ? " and "
                                                : ", ",
                  bp_buckets_get_info(w->analysed->buckets)->units[holder.unit].name,
                  joint ? bp_role_name((bp_role)holder.role) : "", joint ? " " : "", cli_bytes(holder.bytes));
    }
    if (named < peak->holder_count)
        printf(" and %zu more", peak->holder_count - named);

    if (peak->step_count == 0) {
        cli_print(" set the peak of %s. They are not live in one step, but the overlap window keeps them from sharing "
                  "memory.\n",
                  cli_bytes(peak->bytes));
        return;
    }
    cli_print(" set%s the peak of %s in ", peak->holder_count == 1 ? "s" : "", cli_bytes(peak->bytes));
    print_step(w, peak->step);
    putchar('.');

    uint64_t lower = peak->set_count > 1 ? peak->below_bytes : peak->next_bytes;
    uint32_t step = peak->set_count > 1 ? peak->below_step : peak->next_step;
    if (peak->set_count > 1)
        cli_print(" %u other set%s of units reach%s the same peak, %u steps in all.", peak->set_count - 1,
                  peak->set_count == 2 ? "" : "s", peak->set_count == 2 ? "es" : "", peak->step_count);
    if (lower == 0) {
        puts(" All steps hold as much.");
        return;
    }
    cli_print(" %s the peak would be %s, %s less, in ",
              peak->set_count > 1       ? "Without any of these sets"
              : peak->holder_count == 1 ? "Without it"
                                        : "If they were not live at once,",
              cli_bytes(lower), cli_bytes(peak->bytes - lower));
    print_step(w, step);
    puts(".");
}

/* ---- alternatives ------------------------------------------------------------------------------------------------ */

static const bp_alternative *find_present(const bp_alternatives_info *info)
{
    size_t i = 0;
    while (i + 1 < info->alternative_count && !info->alternatives[i].is_present)
        i++;
    return &info->alternatives[i];
}

/* Prints the smallest plan with the present prefetch depth. */
static void print_best(const bp_alternatives_info *info, const bp_alternative *present)
{
    bp_alternative best = *present;
    for (size_t i = 0; i < info->alternative_count; i++) {
        const bp_alternative *a = &info->alternatives[i];
        if (a->prefetch == present->prefetch && a->prefetch_backward == present->prefetch_backward &&
            a->bytes < best.bytes)
            best = *a;
    }
    if (best.bytes == present->bytes) {
        puts("With the present prefetch, no other schedule takes less.");
        return;
    }
    cli_print("With the present prefetch, %s streams and %s take %s, %s less.\n",
              choice_name(options_streams, (int)best.streams),
              best.joint ? "one slab for all roles" : "a slab for each role", cli_bytes(best.bytes),
              cli_bytes(present->bytes - best.bytes));
}

/* Prints a table and a summary of other schedules. Returns EXIT_GO_ON, or the exit code after a message. */
static int explain_alternatives(const whatif *w, bool color)
{
    puts("\nPlans of other schedules");
    if (w->alternatives == NULL) {
        cli_print("Not compared: the schedule is %s.\n",
                  w->analysed->models > 1 ? "merged from several models" : "recorded");
        return EXIT_GO_ON;
    }
    const bp_alternatives_info *info = bp_alternatives_get_info(w->alternatives);
    const bp_alternative *present = find_present(info);
    sheet s = sheet_new(color);
    sheet_add_columns(&s, "PREFETCH|STREAMS|SLABS|>SCHEDULED|PROVEN|>LIVE|>MAX|>x PRESENT|");
    for (size_t i = 0; i < info->alternative_count; i++) {
        const bp_alternative *a = &info->alternatives[i];
        bool same = a->prefetch == a->prefetch_backward;
        sheet_add_row(
            &s, same ? cli_text("%u", a->prefetch) : cli_text("%u, backward %u", a->prefetch, a->prefetch_backward),
            choice_name(options_streams, (int)a->streams), a->joint ? "joint" : "by role", cli_bytes(a->bytes),
            a->optimal ? "optimal" : "not proven", cli_bytes(a->live_bytes),
            a->max_bytes > 0 ? cli_bytes(a->max_bytes) : "infeasible", table_ratio_text(a->bytes, present->bytes),
            a->is_present ? "present" : "", NULL);
        if (a->is_present)
            sheet_color_line(&s, "green");
    }
    int code = sheet_finish(&s);
    puts("LIVE is the peak of live bytes over all roles: no allocator takes less. MAX has a slab for each role.");

    bool proven = true;
    for (size_t i = 0; i < info->alternative_count; i++)
        proven = proven && (info->alternatives[i].optimal || info->alternatives[i].is_present);
    if (!proven)
        puts("Plans that are not proven had a short search; plan may find less with the same options.");

    print_best(info, present);
    return code;
}

/* ---- the command ------------------------------------------------------------------------------------------------- */

static int explain(const whatif *w, const plan_options *options)
{
    const analysis *a = w->analysed;
    cli_print("%s has %s parameters in %zu unit%s; ", a->name, cli_count(a->parameters), a->units,
              cli_plural(a->units));
    if (a->root_bytes > 0)
        cli_print("%s are in the root group.\n", cli_bytes(a->root_bytes));
    else
        cli_print("%s of persistent parameters lie outside units.\n", cli_bytes(a->state.outside));
    if (a->notes[0] != '\0')
        cli_print("%s: %s.\n", a->name, a->notes);
    char schedule[SCHEDULE_TEXT_CHARS];
    cli_print("Planned for dp %u, ep %u, tp %u, %s", options->dp, options->ep, options->tp,
              analysis_schedule_text(a, options, schedule));
    if (a->recorded == 0)
        printf(": an iteration has %zu steps of compute", bp_schedule_get_info(a->schedule)->step_count);
    puts(".");
    const bp_plan_info *first = bp_plan_get_info(a->plans[0]);
    for (size_t i = 0; i < first->role_count; i++) {
        putchar('\n');
        if (same_as_before(a, i)) {
            explain_repetition(a, &first->roles[i - 1], &first->roles[i]);
            continue;
        }
        explain_bound(a, first, &first->roles[i]);
        for (size_t p = 0; p < a->plan_count; p++)
            explain_policy(bp_plan_get_info(a->plans[p]), first->roles[i].roles);
    }

    if (w->plan == NULL)
        return EXIT_GO_ON;
    int code = explain_alternatives(w, cli_wants_color(options->color));

    puts("\nUnits that set the peak");
    const bp_peaks_info *info = bp_peaks_get_info(w->peaks);
    for (size_t i = 0; i < info->peak_count; i++) {
        if (info->peaks[i].bytes > 0 && (info->peaks[i].roles & ~BP_ROLES_STATE) != 0)
            explain_peak(w, &info->peaks[i]);
    }

    return code;
}

static int print(const whatif *answers, size_t count, const plan_options *options)
{
    if (options->json)
        return whatif_report_print(answers, count, options);
    int code = EXIT_GO_ON;
    for (size_t i = 0; code == EXIT_GO_ON && i < count; i++) {
        if (i > 0)
            putchar('\n');
        code = explain(&answers[i], options);
    }
    return code;
}

static int ask(const analysis *analyses, size_t count, const plan_options *options)
{
    for (size_t i = 0; i < count; i++) {
        if (analyses[i].single_ranks)
            return cli_fail(EXIT_BAD_INPUT, "%s: nothing to explain: %s", analyses[i].name, analyses[i].notes);
    }
    whatif *answers = calloc(count + 1, sizeof *answers);
    if (answers == NULL)
        return cli_fail(EXIT_ENVIRONMENT, "out of memory");
    int code = EXIT_GO_ON;
    for (size_t i = 0; code == EXIT_GO_ON && i < count; i++)
        code = whatif_init(&analyses[i], options, &answers[i]);
    if (code == EXIT_GO_ON)
        code = print(answers, count, options);
    if (code == EXIT_GO_ON)
        code = cli_flush();
    for (size_t i = 0; i < count; i++) {
        whatif *w = &answers[i];
        bp_alternatives_destroy(&w->alternatives);
        bp_peaks_destroy(&w->peaks);
    }
    free(answers);
    return code;
}

int cli_explain(int argc, char **argv)
{
    plan_options options;
    analysis *analyses = NULL;
    size_t count = 0;
    bool infeasible = false;
    int code = options_parse(argc, argv, "explain", &options);
    if (code == EXIT_GO_ON)
        code = analysis_init_all(&options, &analyses, &count, &infeasible);
    if (code == EXIT_GO_ON)
        code = ask(analyses, count, &options);
    analysis_finish_all(analyses, count);
    options_finish(&options);
    return code != EXIT_GO_ON ? code : infeasible ? EXIT_NEGATIVE : EXIT_ANSWERED;
}
