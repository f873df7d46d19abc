#include "run_setup.h"

#include <bucketpool/formats.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"
#include "scale_plan.h"

/* What --scale auto aims at: a run in seconds, on a machine that has other things to do. */
#define AUTO_ITERATION_BYTES ((uint64_t)2 << 30)
#define AUTO_MEMORY_SHARE 4

#define MOST_MESSAGES 3 /* that are printed of a pool that warns */

int run_exit_code(bp_status status)
{
    switch (status) {
    case BP_ERR_SCHEDULE:
    case BP_ERR_MISMATCH:
    case BP_ERR_INFEASIBLE: return EXIT_NEGATIVE;
    case BP_ERR_NO_HOST_MEMORY:
    case BP_ERR_NO_DEVICE_MEMORY:
    case BP_ERR_NO_DEVICE:
    case BP_ERR_INTERNAL: return EXIT_ENVIRONMENT;
    default: return EXIT_BAD_INPUT;
    }
}

/* ---- the plan ------------------------------------------------------------------------------------------------------------ */

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

static uint64_t plan_bytes(const bp_plan *plan)
{
    bp_plan_summary summary = {.size = sizeof summary};
    return bp_plan_summary_get(plan, &summary) == BP_OK ? summary.bytes : UINT64_MAX;
}

/* Where to begin looking: what the time of a step asks for. The null device's steps take none. */
static uint64_t first_scale(const run_options *options, const analysis *a)
{
    if (options->scale != 0 || options->null_device)
        return options->scale != 0 ? options->scale : 1;
    return scale_for(iteration_bytes(a->buckets, a->schedule), AUTO_ITERATION_BYTES);
}

/* Planned at an alignment that the scale divides. Larger scales align more, so the fit is looked at again. */
static int plan_here(const run_options *options, const analysis *a, run_setup *setup)
{
    for (setup->scale = first_scale(options, a);; setup->scale *= 2) {
        uint64_t alignment;
        if (__builtin_mul_overflow(options->planning.alignment, setup->scale, &alignment))
            return cli_fail(EXIT_BAD_INPUT, "--align %llu times --scale %llu does not fit 64 bits",
                            (unsigned long long)options->planning.alignment, (unsigned long long)setup->scale);
        bp_plan_destroy(&setup->plan);
        bp_status status = analysis_plan(a, &options->planning, options->policy, alignment, &setup->plan);
        if (status != BP_OK)
            return cli_fail(status == BP_ERR_NO_HOST_MEMORY ? EXIT_ENVIRONMENT : EXIT_BAD_INPUT, "%s: %s",
                            options->planning.models[0], bp_error_detail());
        bool fits = scaled_bytes(plan_bytes(setup->plan), setup->scale) <= memory_for_auto();
        if (options->scale != 0 || options->null_device || fits || setup->scale >= MOST_SCALE)
            return EXIT_GO_ON;
    }
}

static int read_plan(const run_options *options, const analysis *a, run_setup *setup)
{
    bp_status status = bp_plan_read(options->plan, &setup->plan);
    if (status != BP_OK)
        return cli_fail_status(status);
    if (!options->unchecked) {
        status = bp_plan_check(setup->plan, a->buckets, a->schedule);
        if (status != BP_OK)
            return cli_fail(status == BP_ERR_NO_HOST_MEMORY ? EXIT_ENVIRONMENT : EXIT_NEGATIVE,
                            "%s is no plan for %s: %s", options->plan, a->name, bp_error_detail());
    }
    setup->scale = first_scale(options, a);
    uint64_t for_memory = scale_for(plan_bytes(setup->plan), memory_for_auto());
    if (options->scale == 0 && !options->null_device && for_memory > setup->scale)
        setup->scale = for_memory;
    bp_plan_summary summary = {.size = sizeof summary};
    status = bp_plan_summary_get(setup->plan, &summary);
    if (status != BP_OK)
        return cli_fail_status(status);
    if (summary.alignment % setup->scale != 0)
        return cli_fail(EXIT_BAD_INPUT,
                        "%s has alignment %llu, which scale %llu does not divide: plan it with --align %llu, or run at "
                        "--scale %llu or less",
                        options->plan, (unsigned long long)summary.alignment, (unsigned long long)setup->scale,
                        (unsigned long long)(256 * setup->scale), (unsigned long long)summary.alignment);
    return EXIT_GO_ON;
}

static int make_plan(const run_options *options, const analysis *a, run_setup *setup)
{
    int code = options->plan != NULL ? read_plan(options, a, setup) : plan_here(options, a, setup);
    if (code != EXIT_GO_ON)
        return code;
    bp_plan_summary summary = {.size = sizeof summary};
    bp_status status = bp_plan_summary_get(setup->plan, &summary);
    if (status == BP_OK && !summary.feasible)
        return cli_fail(EXIT_NEGATIVE, "%s is infeasible: %s", bp_policy_name(summary.policy),
                        summary.infeasible_because);
    if (status == BP_OK && setup->scale > 1)
        status = scale_plan(setup->plan, setup->scale, &setup->scaled);
    return status == BP_OK ? EXIT_GO_ON : cli_fail_status(status);
}

/* ---- binding ------------------------------------------------------------------------------------------------------------- */

/* Which requests the plan has no place for, because it leaves them to be allocated at each acquire. Assignments are in the order of
 * requests in the plans that do so, which are made here. */
static bool is_dynamic(const bp_plan *plan, const bp_plan_summary *summary, const char *unit, uint32_t ordinal,
                       uint32_t role, size_t *next)
{
    bp_assignment a = {.size = sizeof a};
    if (summary->policy == BP_POLICY_DYNAMIC || summary->stable)
        return summary->policy == BP_POLICY_DYNAMIC;
    if (*next >= bp_plan_assignment_count(plan) || bp_plan_assignment_get(plan, *next, &a) != BP_OK ||
        a.ordinal != ordinal || a.role != role || strcmp(a.unit, unit) != 0)
        return true;
    ++*next;
    return false;
}

/* What bp_pool_bind_buckets does, with scaled sizes. */
static bp_status bind_scaled(const run_options *options, const analysis *a, run_setup *setup)
{
    bp_plan_summary summary = {.size = sizeof summary};
    size_t next = 0;
    bp_status status = bp_plan_summary_get(setup->plan, &summary);
    for (size_t i = 0; status == BP_OK && i < bp_buckets_request_count(a->buckets); i++) {
        bp_request r = {.size = sizeof r};
        bp_bucket b = {.size = sizeof b};
        bp_bind bind;
        status = bp_bind_init(&bind, sizeof bind);
        if (status == BP_OK)
            status = bp_buckets_request(a->buckets, i, &r);
        if (status == BP_OK)
            status = bp_buckets_get(a->buckets, r.bucket, &b);
        if (status != BP_OK)
            break;
        bool gathered = r.role == BP_ROLE_PARAM || r.role == BP_ROLE_PARAM_TRANSPOSE;
        bind.unit = bp_buckets_unit_name(a->buckets, (size_t)b.unit);
        bind.ordinal = b.ordinal;
        bind.role = r.role;
        bind.dtype = r.dtype;
        bind.bytes = bind.used_bytes = setup->bytes[i];
        bind.acquire_lane = !options->lanes ? BP_LANE_ANY : gathered ? BP_LANE_GATHER : BP_LANE_COMPUTE;
        if (is_dynamic(setup->plan, &summary, bind.unit, bind.ordinal, bind.role, &next))
            bind.placement = BP_PLACE_DYNAMIC;
        status = bp_pool_bind(setup->pool, &bind, &setup->ids[i]);
    }
    return status;
}

static bp_status bind_requests(const run_options *options, const analysis *a, run_setup *setup)
{
    size_t count = bp_buckets_request_count(a->buckets);
    setup->ids = calloc(count + 1, sizeof *setup->ids);
    setup->bytes = calloc(count + 1, sizeof *setup->bytes);
    if (setup->ids == NULL || setup->bytes == NULL)
        return bp_error_record(BP_ERR_NO_HOST_MEMORY, "out of memory for the requests");
    for (size_t i = 0; i < count; i++) {
        bp_request r = {.size = sizeof r};
        bp_status status = bp_buckets_request(a->buckets, i, &r);
        if (status != BP_OK)
            return status;
        setup->bytes[i] = scaled_bytes(r.bytes, setup->scale);
    }
    if (setup->scaled != NULL)
        return bind_scaled(options, a, setup);
    return bp_pool_bind_buckets(setup->pool, a->buckets, options->lanes, setup->ids);
}

/* ---- device and pool ------------------------------------------------------------------------------------------------------- */

/* What can be had without swapping, 0 when the system does not say. */
static uint64_t available_bytes(void)
{
    unsigned long long kib = 0;
    char line[128];
    FILE *file = fopen("/proc/meminfo", "re");
    while (file != NULL && kib == 0 && fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, "MemAvailable:", 13) == 0)
            kib = strtoull(line + 13, NULL, 10);
    }
    if (file != NULL)
        fclose(file);
    return (uint64_t)kib << 10;
}

static bp_status make_device(const run_options *options, bp_device **device)
{
    if (options->null_device)
        return bp_device_create_null(device);
    bp_host_config config;
    bp_status status = bp_host_config_init(&config, sizeof config);
    if (status != BP_OK)
        return status;
    config.memory_bytes = available_bytes();
    config.max_delay_us = options->delay_us;
    config.delay_seed = options->seed;
    return bp_device_create_host(&config, device);
}

static void show_message(void *user, const char *text)
{
    run_setup *setup = user;
    if (setup->messages++ >= MOST_MESSAGES)
        return;
    progress_erase(&setup->progress);
    cli_fail(0, "%s", text);
}

static bp_status make_pool(const run_options *options, const analysis *a, run_setup *setup)
{
    bp_pool_config config;
    size_t requests = bp_buckets_request_count(a->buckets);
    bp_status status = bp_pool_config_init(&config, sizeof config);
    if (status != BP_OK)
        return status;
    config.name = a->name;
    config.selection = options->selection;
    config.strict = options->strict;
    if (options->guard)
        config.guard = BP_GUARD_ON;
    if (requests > config.extra_requests) /* dynamic ones are not in the plan */
        config.extra_requests = requests < UINT32_MAX ? (uint32_t)requests : UINT32_MAX;
    config.on_message = show_message;
    config.user = setup;
    return bp_pool_create(setup->device, setup->scaled != NULL ? setup->scaled : setup->plan, &config, &setup->pool);
}

static bp_status make_driver(const run_options *options, const analysis *a, driver_progress *go_on, run_setup *setup)
{
    const driver_config config = {.device = setup->device,
                                  .pool = setup->pool,
                                  .buckets = a->buckets,
                                  .schedule = a->schedule,
                                  .ids = setup->ids,
                                  .bytes = setup->bytes,
                                  .seed = options->seed,
                                  .has_memory = !options->null_device,
                                  .lanes = options->lanes,
                                  .progress = go_on,
                                  .user = setup};
    return driver_create(&config, &setup->driver);
}

int run_setup_init(const run_options *options, const analysis *a, driver_progress *go_on, run_setup *setup)
{
    *setup = (run_setup){.scale = 1};
    int code = make_plan(options, a, setup);
    if (code != EXIT_GO_ON)
        return code;
    bp_status status = make_device(options, &setup->device);
    if (status == BP_OK)
        status = make_pool(options, a, setup);
    if (status == BP_OK)
        status = bind_requests(options, a, setup);
    if (status == BP_OK)
        status = make_driver(options, a, go_on, setup);
    if (status == BP_OK)
        return EXIT_GO_ON;
    const char *advice = status == BP_ERR_NO_DEVICE_MEMORY && options->scale == 1 ? "; --scale auto takes less" : "";
    return cli_fail(run_exit_code(status), "%s%s", bp_error_detail(), advice);
}

void run_setup_finish(run_setup *setup)
{
    bp_pool_destroy(&setup->pool);
    driver_destroy(&setup->driver);
    bp_device_destroy(&setup->device);
    bp_plan_destroy(&setup->plan);
    bp_plan_destroy(&setup->scaled);
    free(setup->ids);
    free(setup->bytes);
    *setup = (run_setup){0};
}
