#include "run_setup.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "machine.h"
#include "run_plan.h"
#include "scale_plan.h"

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
    bp_status status = bp_plan_summary_get(setup->plan.full, &summary);
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
        if (is_dynamic(setup->plan.full, &summary, bind.unit, bind.ordinal, bind.role, &next))
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
        setup->bytes[i] = scaled_bytes(r.bytes, setup->plan.scale);
    }
    if (setup->plan.scaled != NULL)
        return bind_scaled(options, a, setup);
    return bp_pool_bind_buckets(setup->pool, a->buckets, options->lanes, setup->ids);
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
static uint32_t steps_ahead(const bp_plan_summary *plan, uint64_t limit)
{
    if (plan->stable || limit == 0)
        return MOST_STEPS_AHEAD;
    uint64_t steps = limit / (plan->bytes + 1);
    return steps < 1 ? 1 : steps < MOST_STEPS_AHEAD ? (uint32_t)steps : MOST_STEPS_AHEAD;
}

/* A plan without addresses is known to take too much before hours of running. */
static bp_status check_room(const bp_plan_summary *plan, uint64_t limit, const char *whose)
{
    char text[160];
    if (plan->stable || limit == 0 || plan->bytes <= limit)
        return BP_OK;
    snprintf(text, sizeof text, "the plan takes %s at most, and of the %s memory a run may have %s",
             cli_bytes(plan->bytes), whose, cli_bytes(limit));
    return bp_error_record(BP_ERR_NO_DEVICE_MEMORY, text);
}

static bp_status make_host(const run_options *options, const bp_plan_summary *plan, run_setup *setup)
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

static bp_status make_cuda(const run_options *options, const bp_plan_summary *plan, run_setup *setup)
{
    bp_cuda_config config;
    bp_cuda_info info = {.size = sizeof info};
    bp_status status = bp_cuda_config_init(&config, sizeof config);
    config.ordinal = options->ordinal;
    if (status == BP_OK)
        status = bp_device_create_cuda(&config, &setup->device);
    if (status == BP_OK)
        status = bp_cuda_info_get(setup->device, &info);
    if (status != BP_OK)
        return status;
    snprintf(setup->device_model, sizeof setup->device_model, "%s", info.name);
    setup->steps_ahead = steps_ahead(plan, info.total_bytes / 8 * 7);
    return check_room(plan, info.total_bytes / 8 * 7, "device's");
}

static bp_status make_device(const run_options *options, run_setup *setup)
{
    bp_plan_summary summary = {.size = sizeof summary};
    bp_status status = bp_plan_summary_get(run_plan_driven(&setup->plan), &summary);
    setup->steps_ahead = MOST_STEPS_AHEAD;
    if (status != BP_OK)
        return status;
    switch (options->device) {
    case RUN_NULL: return bp_device_create_null(&setup->device);
    case RUN_CUDA: return make_cuda(options, &summary, setup);
    default: return make_host(options, &summary, setup);
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
    size_t requests = bp_buckets_request_count(a->buckets);
    bp_status status = bp_pool_config_init(&config, sizeof config);
    if (status != BP_OK)
        return status;
    config.name = a->name;
    config.selection = options->selection;
    config.strict = options->strict;
    if (options->guard)
        config.guard = BP_GUARD_ON;
    if (options->nvtx)
        config.annotate = BP_ANNOTATE_ON;
    if (requests > config.extra_requests) /* dynamic ones are not in the plan */
        config.extra_requests = requests < UINT32_MAX ? (uint32_t)requests : UINT32_MAX;
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
                                  .ids = setup->ids,
                                  .bytes = setup->bytes,
                                  .seed = options->seed,
                                  .has_memory = options->device != RUN_NULL,
                                  .steps_ahead = setup->steps_ahead,
                                  .lanes = options->lanes,
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
        status = bind_requests(options, a, setup);
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
    free(setup->ids);
    free(setup->bytes);
    *setup = (run_setup){0};
}
