/* Makes the device, the plan at its scale, and the pool of a run. */
#include "run/setup.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "run/plan.h"
#include "shared/cli.h"
#include "shared/machine.h"

#define MOST_MESSAGES 3 /* that are printed of a pool that warns */

int run_exit_code(bp_status status)
{
    switch (status) {
    case BP_ERR_SCHEDULE:
    case BP_ERR_MISMATCH:
    case BP_ERR_CAPTURE:
    case BP_ERR_INFEASIBLE: return EXIT_NEGATIVE;
    case BP_ERR_NO_HOST_MEMORY:
    case BP_ERR_NO_DEVICE_MEMORY:
    case BP_ERR_NO_DEVICE:
    case BP_ERR_INTERNAL:
    case BP_ERR_DEVICE:
    case BP_ERR_COMM:
    case BP_ERR_TIMEOUT: return EXIT_ENVIRONMENT;
    default: return EXIT_BAD_INPUT;
    }
}

int run_fail(const run_options *options, bp_status status, const char *detail)
{
    const char *advice = status == BP_ERR_NO_DEVICE_MEMORY && options->scale == 1 ? "; --scale auto takes less" : "";
    return cli_fail(run_exit_code(status), "%s%s", detail, advice);
}

/* ---- device and pool ------------------------------------------------------------------------------------------------------- */

/* What a run may take: not the last page. Dynamic memory that a stream has not got round to freeing counts as free already, so that
 * what is really in use may be twice what the device counts. */
static uint64_t memory_limit(bool dynamic)
{
    uint64_t available = machine_available_bytes();
    return dynamic ? available / 16 * 7 : available / 8 * 7;
}

/* The less of its peak fits, the fewer steps may the host be ahead of what frees it. */
static uint32_t steps_ahead(const bp_plan_info *plan, uint64_t limit)
{
    if (plan->stable || limit == 0)
        return MOST_STEPS_AHEAD;
    uint64_t steps = limit / (plan->bytes + 1);
    return steps < 1 ? 1 : steps < MOST_STEPS_AHEAD ? (uint32_t)steps : MOST_STEPS_AHEAD;
}

/* A plan without addresses is known to take too much before hours of running. */
static bp_status check_room(const bp_plan_info *plan, uint64_t limit, const char *whose)
{
    char text[160];
    if (plan->stable || limit == 0 || plan->bytes <= limit)
        return BP_OK;
    snprintf(text, sizeof text, "the plan takes %s at most, and of the %s memory a run may have %s",
             cli_bytes(plan->bytes), whose, cli_bytes(limit));
    return bp_error_record(BP_ERR_NO_DEVICE_MEMORY, text);
}

static bp_status make_host(const run_options *options, const bp_plan_info *plan, run_setup *setup)
{
    bp_host_config config;
    bp_status status = bp_host_config_init(&config, sizeof config);
    if (status != BP_OK)
        return status;
    config.memory_bytes = memory_limit(!plan->stable);
    config.max_delay_us = options->delay_us;
    config.delay_seed = options->seed;
    setup->steps_ahead = steps_ahead(plan, config.memory_bytes);
    status = check_room(plan, config.memory_bytes, "machine's");
    return status == BP_OK ? bp_device_create_host(&config, &setup->device) : status;
}

static bp_status make_cuda(const run_options *options, const bp_plan_info *plan, run_setup *setup)
{
    bp_cuda_config config;
    bp_status status = bp_cuda_config_init(&config, sizeof config);
    config.ordinal = options->ordinal;
    if (status == BP_OK)
        status = bp_device_create_cuda(&config, &setup->device);
    if (status != BP_OK)
        return status;
    const bp_cuda_info *info = bp_cuda_get_info(setup->device);
    snprintf(setup->device_model, sizeof setup->device_model, "%s", info->name);
    setup->steps_ahead = steps_ahead(plan, info->total_bytes / 8 * 7);
    return check_room(plan, info->total_bytes / 8 * 7, "device's");
}

static bp_status make_device(const run_options *options, run_setup *setup)
{
    const bp_plan_info *plan = bp_plan_get_info(run_plan_driven(&setup->plan));
    setup->steps_ahead = MOST_STEPS_AHEAD;
    switch (options->device) {
    case RUN_NULL: return bp_device_create_null(&setup->device);
    case RUN_CUDA: return make_cuda(options, plan, setup);
    default: return make_host(options, plan, setup);
    }
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
    bp_status status = bp_pool_config_init(&config, sizeof config);
    if (status != BP_OK)
        return status;
    config.name = a->name;
    config.strict = options->strict;
    if (options->guard)
        config.guard = BP_GUARD_ON;
    if (options->nvtx)
        config.annotate = BP_ANNOTATE_ON;
    config.extra_requests = 0;
    config.on_message = show_message;
    config.user = setup;
    return bp_pool_create(setup->device, run_plan_driven(&setup->plan), &config, &setup->pool);
}

static bp_status make_driver(const run_options *options, const analysis *a, driver_progress *go_on, run_setup *setup)
{
    const driver_config config = {.device = setup->device,
                                  .pool = setup->pool,
                                  .buckets = a->buckets,
                                  .schedule = a->schedule,
                                  .seed = options->seed,
                                  .has_memory = options->device != RUN_NULL,
                                  .steps_ahead = setup->steps_ahead,
                                  .promises = options->promises,
                                  .graphs = options->graphs,
                                  .max_pause_us = options->device == RUN_CUDA ? options->delay_us : 0,
                                  .progress = go_on,
                                  .user = setup};
    return driver_create(&config, &setup->driver);
}

int run_setup_init(const run_options *options, const analysis *a, driver_progress *go_on, run_setup *setup)
{
    *setup = (run_setup){0};
    int code = run_plan_init(options, a, &setup->plan);
    if (code != EXIT_GO_ON)
        return code;
    bp_status status = make_device(options, setup);
    if (status == BP_OK)
        status = make_pool(options, a, setup);
    if (status == BP_OK)
        status = make_driver(options, a, go_on, setup);
    if (status == BP_OK)
        status = run_profile_init(options, setup->pool, run_plan_driven(&setup->plan), &setup->profile);
    if (status == BP_OK)
        return EXIT_GO_ON;
    return run_fail(options, status, bp_error_detail());
}

void run_setup_finish(run_setup *setup)
{
    run_profile_finish(&setup->profile);
    bp_pool_destroy(&setup->pool);
    driver_destroy(&setup->driver);
    bp_device_destroy(&setup->device);
    run_plan_finish(&setup->plan);
    *setup = (run_setup){0};
}
