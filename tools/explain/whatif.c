/* The library's what-if answers about an analysed model, and their document, bucketpool.whatif/1. */
#include "explain/whatif.h"

#include <stdlib.h>

#include "plan/analysis_parts.h"
#include "plan/report.h"
#include "shared/cli.h"

/* ---- answers ----------------------------------------------------------------------------------------------------- */

static const bp_plan *scheduled_plan(const analysis *a)
{
    for (size_t i = 0; i < a->plan_count; i++) {
        if (bp_plan_get_info(a->plans[i])->policy == BP_POLICY_SCHEDULED)
            return a->plans[i];
    }
    return NULL;
}

/* The plans of other schedules, where the schedule was made from options and nothing else. */
static int compare(const plan_options *options, const bp_plan_config *plan, whatif *w)
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

int whatif_init(const analysis *a, const plan_options *options, whatif *w)
{
    *w = (whatif){.analysed = a, .plan = scheduled_plan(a)};
    bp_plan_config plan;
    if (w->plan == NULL)
        return EXIT_GO_ON;
    bp_status status = analysis_plan_config(options, BP_POLICY_SCHEDULED, options->alignment, &plan);
    if (status != BP_OK)
        return cli_fail_status(status);
    int code = compare(options, &plan, w);
    if (code != EXIT_GO_ON)
        return code;
    status = bp_peaks_create(a->buckets, a->schedule, w->plan, &w->peaks);
    return status == BP_OK ? EXIT_GO_ON : analysis_fail(a->name, status);
}

void whatif_finish(whatif *w)
{
    bp_alternatives_destroy(&w->alternatives);
    bp_peaks_destroy(&w->peaks);
}

/* ---- the document ------------------------------------------------------------------------------------------------ */

static void print_alternative(bp_json_writer *d, const bp_alternative *a)
{
    bp_json_add_object(d, NULL);
    bp_json_add_flag(d, "present", a->is_present);
    bp_json_add_number(d, "prefetch", a->prefetch);
    bp_json_add_number(d, "prefetch_backward", a->prefetch_backward);
    bp_json_add_text(d, "streams", options_streams_name(a->streams));
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

static void print_holder(bp_json_writer *d, const whatif *w, const bp_peak_holder *holder)
{
    bp_json_add_object(d, NULL);
    bp_json_add_text(d, "unit", bp_buckets_get_info(w->analysed->buckets)->units[holder->unit].name);
    bp_json_add_text(d, "role", bp_role_name((bp_role)holder->role));
    bp_json_add_number(d, "bytes", holder->bytes);
    bp_json_end(d);
}

static void print_peak(bp_json_writer *d, const whatif *w, const bp_peak *peak)
{
    bp_json_add_object(d, NULL);
    report_roles(d, "roles", peak->roles);
    bp_json_add_number(d, "bytes", peak->bytes);
    bp_json_add_number(d, "step", peak->step);
    bp_json_add_list(d, "holders");
    for (size_t i = 0; i < peak->holder_count; i++)
        print_holder(d, w, &peak->holders[i]);
    bp_json_end(d);
    bp_json_add_number(d, "steps", peak->step_count);
    bp_json_add_number(d, "sets", peak->set_count);
    bp_json_add_number(d, "next_bytes", peak->next_bytes);
    bp_json_add_number(d, "next_step", peak->next_step);
    bp_json_add_number(d, "below_bytes", peak->below_bytes);
    bp_json_add_number(d, "below_step", peak->below_step);
    bp_json_end(d);
}

static void print_model(bp_json_writer *d, const whatif *w, const plan_options *options)
{
    bp_json_add_object(d, NULL);
    bp_json_add_text(d, "model", w->analysed->name);
    report_options(d, w->analysed, options);
    if (w->alternatives != NULL) {
        bp_json_add_list(d, "alternatives");
        const bp_alternatives_info *info = bp_alternatives_get_info(w->alternatives);
        for (size_t i = 0; i < info->alternative_count; i++)
            print_alternative(d, &info->alternatives[i]);
        bp_json_end(d);
    } else {
        bp_json_add_null(d, "alternatives");
    }
    bp_json_add_list(d, "peaks");
    const bp_peaks_info *peaks = bp_peaks_get_info(w->peaks);
    for (size_t i = 0; peaks != NULL && i < peaks->peak_count; i++)
        print_peak(d, w, &peaks->peaks[i]);
    bp_json_end(d);
    bp_json_end(d);
}

int whatif_report_print(const whatif *answers, size_t count, const plan_options *options)
{
    bp_json_writer d = {0};
    bp_json_add_object(&d, NULL);
    bp_json_add_text(&d, "format", "bucketpool.whatif/1");
    bp_json_add_list(&d, "models");
    for (size_t i = 0; i < count; i++)
        print_model(&d, &answers[i], options);
    bp_json_end(&d);
    bp_json_end(&d);
    return cli_print_json(&d);
}
