#include "whatif.h"

#include <stdlib.h>

#include "analysis_parts.h"
#include "cli.h"

static const bp_plan *scheduled_plan(const analysis *a)
{
    for (size_t i = 0; i < a->plan_count; i++) {
        bp_plan_summary summary = {.size = sizeof summary};
        if (bp_plan_summary_get(a->plans[i], &summary) == BP_OK && summary.policy == BP_POLICY_SCHEDULED)
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
        config.stalls = o->stalls;
        config.work = options->work > 0 ? options->work : config.work;
        config.present = w->plan;
        if (status == BP_OK)
            status = bp_alternatives_create(w->analysed->buckets, &schedule, plan, &config, &w->alternatives);
        code = status == BP_OK ? EXIT_GO_ON : analysis_fail(w->analysed->name, status);
    }
    free(overrides);
    return code;
}

static int trade(const plan_options *options, const bp_plan_config *plan, whatif *w)
{
    const analysis *a = w->analysed;
    bp_tradeoff_config config;
    bp_status status = bp_tradeoff_config_init(&config, sizeof config);
    config.work = options->work > 0 ? options->work : config.work;
    config.present = a->untraded == NULL ? w->plan : NULL;
    if (status == BP_OK)
        status = bp_tradeoff_create(a->buckets, a->untraded != NULL ? a->untraded : a->schedule, plan, &config,
                                    &w->tradeoff);
    if (status == BP_OK)
        status = bp_peaks_create(a->buckets, a->schedule, w->plan, &w->peaks);
    return status == BP_OK ? EXIT_GO_ON : analysis_fail(a->name, status);
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
    return code == EXIT_GO_ON ? trade(options, &plan, w) : code;
}

void whatif_finish(whatif *w)
{
    bp_alternatives_destroy(&w->alternatives);
    bp_peaks_destroy(&w->peaks);
    bp_tradeoff_destroy(&w->tradeoff);
}

/* ---- the curve ------------------------------------------------------------------------------------------------------- */

static bp_tradeoff_point point_at(const bp_tradeoff *tradeoff, size_t index)
{
    bp_tradeoff_point point = {.size = sizeof point};
    if (bp_tradeoff_get(tradeoff, index, &point) != BP_OK)
        point.stalls = UINT32_MAX;
    return point;
}

size_t whatif_point_of(const bp_tradeoff *tradeoff, uint32_t stalls)
{
    size_t point = 0;
    while (point + 1 < bp_tradeoff_count(tradeoff) && point_at(tradeoff, point + 1).stalls <= stalls)
        point++;
    return point;
}

uint64_t whatif_saved(const bp_tradeoff *tradeoff, size_t point)
{
    return point_at(tradeoff, 0).bytes - point_at(tradeoff, point).bytes;
}

size_t whatif_best_bargain(const bp_tradeoff *tradeoff)
{
    size_t best = 0;
    for (size_t i = 1; i < bp_tradeoff_count(tradeoff); i++) {
        double saved = (double)whatif_saved(tradeoff, i), exposed = (double)point_at(tradeoff, i).exposed_bytes;
        if (best == 0 ||
            saved * (double)point_at(tradeoff, best).exposed_bytes > (double)whatif_saved(tradeoff, best) * exposed)
            best = i;
    }
    return best;
}

/* ---- names ----------------------------------------------------------------------------------------------------------- */

bool whatif_request(const whatif *w, uint32_t index, named_request *request)
{
    const bp_buckets *buckets = w->analysed->buckets;
    bp_request r = {.size = sizeof r};
    bp_bucket b = {.size = sizeof b};
    if (bp_buckets_request(buckets, index, &r) != BP_OK || bp_buckets_get(buckets, r.bucket, &b) != BP_OK)
        return false;
    *request = (named_request){bp_buckets_unit_name(buckets, (size_t)b.unit), b.name, b.ordinal, r.role};
    return true;
}
