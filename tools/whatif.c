#include "whatif.h"

#include <stdlib.h>

#include "analysis_parts.h"
#include "cli.h"

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
