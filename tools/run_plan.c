#include "run_plan.h"

#include <bucketpool/formats.h>

#include <unistd.h>

#include "cli.h"
#include "scale_plan.h"

/* What --scale auto aims at: a run in seconds, on a machine that has other things to do. */
#define AUTO_ITERATION_BYTES ((uint64_t)2 << 30)
#define AUTO_MEMORY_SHARE 4

static uint64_t physical_bytes(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    return pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : (uint64_t)1 << 30;
}

static uint64_t memory_for_auto(void)
{
    return physical_bytes() / AUTO_MEMORY_SHARE;
}

/* The smallest power of two that brings `bytes` down to `most`. */
static uint64_t scale_for(uint64_t bytes, uint64_t most)
{
    uint64_t scale = 1;
    while (scaled_bytes(bytes, scale) > most && scale < MOST_SCALE)
        scale *= 2;
    return scale;
}

static uint64_t bytes_of(const bp_plan *plan)
{
    bp_plan_summary summary = {.size = sizeof summary};
    return bp_plan_summary_get(plan, &summary) == BP_OK ? summary.bytes : UINT64_MAX;
}

/* Where to begin looking: what the time of a step asks for. The null device's steps take none. */
static uint64_t first_scale(const run_options *options, const analysis *a)
{
    if (options->scale != 0 || options->device == RUN_NULL)
        return options->scale != 0 ? options->scale : 1;
    return scale_for(iteration_bytes(a->buckets, a->schedule), AUTO_ITERATION_BYTES);
}

/* Planned at an alignment that the scale divides. Larger scales align more, so the fit is looked at again. */
static int plan_here(const run_options *options, const analysis *a, run_plan *plan)
{
    for (plan->scale = first_scale(options, a);; plan->scale *= 2) {
        uint64_t alignment;
        if (__builtin_mul_overflow(options->planning.alignment, plan->scale, &alignment))
            return cli_fail(EXIT_BAD_INPUT, "--align %llu times --scale %llu does not fit 64 bits",
                            (unsigned long long)options->planning.alignment, (unsigned long long)plan->scale);
        bp_plan_destroy(&plan->full);
        bp_status status = analysis_plan(a, &options->planning, options->policy, alignment, &plan->full);
        if (status != BP_OK)
            return cli_fail(status == BP_ERR_NO_HOST_MEMORY ? EXIT_ENVIRONMENT : EXIT_BAD_INPUT, "%s: %s",
                            options->planning.models[0], bp_error_detail());
        bool fits = scaled_bytes(bytes_of(plan->full), plan->scale) <= memory_for_auto();
        if (options->scale != 0 || options->device == RUN_NULL || fits || plan->scale >= MOST_SCALE)
            return EXIT_GO_ON;
    }
}

static int read_plan(const run_options *options, const analysis *a, run_plan *plan)
{
    bp_status status = bp_plan_read(options->plan, &plan->full);
    if (status != BP_OK)
        return cli_fail_status(status);
    if (!options->unchecked) {
        status = bp_plan_check(plan->full, a->buckets, a->schedule);
        if (status != BP_OK)
            return cli_fail(status == BP_ERR_NO_HOST_MEMORY ? EXIT_ENVIRONMENT : EXIT_NEGATIVE,
                            "%s is no plan for %s: %s", options->plan, a->name, bp_error_detail());
    }
    plan->scale = first_scale(options, a);
    uint64_t for_memory = scale_for(bytes_of(plan->full), memory_for_auto());
    if (options->scale == 0 && options->device != RUN_NULL && for_memory > plan->scale)
        plan->scale = for_memory;
    bp_plan_summary summary = {.size = sizeof summary};
    status = bp_plan_summary_get(plan->full, &summary);
    if (status != BP_OK)
        return cli_fail_status(status);
    uint64_t enough = 256 * plan->scale;
    if (summary.alignment % plan->scale != 0)
        return cli_fail(EXIT_BAD_INPUT,
                        "%s has alignment %llu, which scale %llu does not divide: plan it with --align %llu, or run at "
                        "--scale %llu or less",
                        options->plan, (unsigned long long)summary.alignment, (unsigned long long)plan->scale,
                        (unsigned long long)enough, (unsigned long long)summary.alignment);
    return EXIT_GO_ON;
}

int run_plan_init(const run_options *options, const analysis *a, run_plan *plan)
{
    *plan = (run_plan){.scale = 1};
    int code = options->plan != NULL ? read_plan(options, a, plan) : plan_here(options, a, plan);
    if (code != EXIT_GO_ON)
        return code;
    bp_plan_summary summary = {.size = sizeof summary};
    bp_status status = bp_plan_summary_get(plan->full, &summary);
    if (status == BP_OK && !summary.feasible)
        return cli_fail(EXIT_NEGATIVE, "%s is infeasible: %s", bp_policy_name(summary.policy),
                        summary.infeasible_because);
    if (status == BP_OK && !summary.stable && options->graphs != DRIVER_GRAPHS_OFF)
        return cli_fail(EXIT_BAD_INPUT,
                        "--graph needs buckets with addresses that stay, and the plan leaves some dynamic");
    if (status == BP_OK && plan->scale > 1)
        status = scale_plan(plan->full, plan->scale, &plan->scaled);
    return status == BP_OK ? EXIT_GO_ON : cli_fail_status(status);
}

const bp_plan *run_plan_driven(const run_plan *plan)
{
    return plan->scaled != NULL ? plan->scaled : plan->full;
}

void run_plan_finish(run_plan *plan)
{
    bp_plan_destroy(&plan->full);
    bp_plan_destroy(&plan->scaled);
}
