/* SPDX-License-Identifier: Apache-2.0 */
/* `bucketpool run`: drives training steps through a pool of the plan and checks every byte. */
#include "core/print.h"
#include "run/run.h"

#include <bucketpool/core/fail.h>
#include <bucketpool/formats.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/cli.h"
#include "shared/machine.h"
#include "shared/outputs.h"

#define MAX_MESSAGES 3 /* of the pool's warnings to print */

/* The exit code of a status of pool or device. */
static int run_exit_code(bp_status status)
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

/* Prints the detail with advice. Returns the exit code. */
static int run_fail(const run_options *options, bp_status status, const char *detail)
{
    const char *advice = status == BP_ERR_NO_DEVICE_MEMORY && options->scale == 1 ? "; --scale auto takes less" : "";
    return cli_fail(run_exit_code(status), "%s%s", detail, advice);
}

/* ---- device and pool --------------------------------------------------------------------------------------------- */

/* Steps that the host may run ahead: a dynamic plan holds the memory of each of them. */
static uint32_t steps_ahead(const bp_plan_info *plan, uint64_t limit)
{
    if (plan->stable || limit == 0)
        return MAX_STEPS_AHEAD;
    uint64_t steps = limit / (plan->bytes + 1);
    return steps < 1 ? 1 : steps < MAX_STEPS_AHEAD ? (uint32_t)steps : MAX_STEPS_AHEAD;
}

/* Checks the peak of a dynamic plan before the run rather than hours into it. */
static bp_status check_room(const bp_plan_info *plan, uint64_t limit, const char *whose)
{
    char text[160];
    if (plan->stable || limit == 0 || plan->bytes <= limit)
        return BP_OK;
    bp_print(text, sizeof text, "the plan takes up to %s, but a run may use only %s of the %s memory",
             cli_bytes(plan->bytes), cli_bytes(limit), whose);
    return bp_error_record(BP_ERR_NO_DEVICE_MEMORY, text);
}

static bp_status make_host(const run_options *options, const bp_plan_info *plan, run_setup *setup)
{
    bp_host_config config;
    BP_TRY(bp_host_config_init(&config, sizeof config));
    bool dynamic = !plan->stable;
    uint64_t available = machine_available_bytes();
    config.memory_bytes = dynamic ? available / 16 * 7 : available / 8 * 7;
    config.max_delay_us = options->delay_us;
    config.delay_seed = options->seed;
    setup->steps_ahead = steps_ahead(plan, config.memory_bytes);
    BP_TRY(check_room(plan, config.memory_bytes, "machine's"));
    return bp_device_create_host(&config, &setup->device);
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
    bp_print(setup->device_model, sizeof setup->device_model, "%s", info->name);
    setup->steps_ahead = steps_ahead(plan, info->total_bytes / 8 * 7);
    return check_room(plan, info->total_bytes / 8 * 7, "device's");
}

static bp_status make_device(const run_options *options, run_setup *setup)
{
    const bp_plan_info *plan = bp_plan_get_info(run_plan_driven(&setup->plan));
    setup->steps_ahead = MAX_STEPS_AHEAD;
    switch (options->device) {
    case RUN_NULL: return bp_device_create_null(&setup->device);
    case RUN_CUDA: return make_cuda(options, plan, setup);
    default: return make_host(options, plan, setup);
    }
}

static void show_message(void *user, const char *text)
{
    run_setup *setup = user;
    if (setup->messages++ >= MAX_MESSAGES)
        return;
    progress_erase(&setup->progress);
    cli_fail(0, "%s", text);
}

/* Refuses a folder that cannot be written, before the run. Returns EXIT_GO_ON or an exit code. */
static int check_profile_folder(const char *folder)
{
    struct stat about;
    char *existing = strdup(folder);
    if (existing == NULL)
        return cli_fail(EXIT_ENVIRONMENT, "out of memory");
    while (stat(existing, &about) != 0 && errno == ENOENT && strcmp(existing, "/") != 0 && strcmp(existing, ".") != 0) {
        char *slash = strrchr(existing, '/');
        if (slash == NULL)
            memcpy(existing, ".", 2); /* it had a name */
        else
            slash[slash == existing] = '\0';
    }
    int error = stat(existing, &about) != 0          ? errno
                : !S_ISDIR(about.st_mode)            ? ENOTDIR
                : access(existing, W_OK | X_OK) != 0 ? errno
                                                     : 0;
    int code = error == 0 ? EXIT_GO_ON
                          : cli_fail(EXIT_ENVIRONMENT, "--profile %.200s: %.200s cannot be written: %s", folder,
                                     existing, strerror(error));
    free(existing);
    return code;
}

/* Creates the profile of --profile, if given. Returns the status of bp_profile_create. */
static bp_status run_profile_init(const run_options *options, bp_pool *pool, const bp_plan *plan, run_profile *profile)
{
    bp_profile_config config;
    *profile = (run_profile){.directory = options->profile};
    if (options->profile == NULL)
        return BP_OK;
    BP_TRY(bp_profile_config_init(&config, sizeof config));
    config.directory = options->profile;
    config.profile_steps = options->profile_steps;
    config.profile_step_count = options->profile_step_count;
    config.max_entries = options->max_entries;
    config.formats = BP_PROFILE_PICKLE | BP_PROFILE_TRACE;
    config.plans = &plan;
    return bp_profile_create(&pool, 1, &config, &profile->profile);
}

/* Returns EXIT_GO_ON, or the exit code after a message. Call run_setup_finish either way. The driver calls `keeps_running`
 * with the setup between steps. */
static int run_setup_init(const run_options *options, const analysis *a, driver_progress *keeps_running,
                          run_setup *setup)
{
    *setup = (run_setup){0};
    if (options->profile != NULL)
        CLI_TRY(check_profile_folder(options->profile));
    CLI_TRY(run_plan_init(options, a, &setup->plan));
    bp_pool_config config;
    bp_status status = make_device(options, setup);
    if (status == BP_OK)
        status = bp_pool_config_init(&config, sizeof config);
    if (status == BP_OK) {
        config.name = a->name;
        config.strict = options->strict;
        if (options->guard)
            config.guard = BP_GUARD_ON;
        if (options->nvtx)
            config.annotate = BP_ANNOTATE_ON;
        config.extra_requests = 0;
        config.on_message = show_message;
        config.user = setup;
        status = bp_pool_create(setup->device, run_plan_driven(&setup->plan), &config, &setup->pool);
    }
    if (status == BP_OK) {
        const driver_config driving = {.device = setup->device,
                                       .pool = setup->pool,
                                       .buckets = a->buckets,
                                       .schedule = a->schedule,
                                       .seed = options->seed,
                                       .has_memory = options->device != RUN_NULL,
                                       .steps_ahead = setup->steps_ahead,
                                       .promises = options->promises,
                                       .graphs = options->graphs,
                                       .max_pause_us = options->device == RUN_CUDA ? options->delay_us : 0,
                                       .progress = keeps_running,
                                       .user = setup};
        status = driver_create(&driving, &setup->driver);
    }
    if (status == BP_OK)
        status = run_profile_init(options, setup->pool, run_plan_driven(&setup->plan), &setup->profile);
    if (status == BP_OK)
        return EXIT_GO_ON;
    return run_fail(options, status, bp_error_detail());
}

static void run_setup_finish(run_setup *setup)
{
    /* must precede the pool */
    run_profile *profile = &setup->profile;
    bp_profile_destroy(&profile->profile);
    bp_pool_destroy(&setup->pool);
    driver_destroy(&setup->driver);
    bp_device_destroy(&setup->device);
    run_plan_finish(&setup->plan);
    *setup = (run_setup){0};
}

/* ---- snapshots of steps ------------------------------------------------------------------------------------------ */

/* Keeps the first failure for the end of the run. */
static void note(run_profile *profile, bp_status status)
{
    if (status != BP_OK && profile->failure[0] == '\0')
        bp_print(profile->failure, sizeof profile->failure, "%s", bp_error_detail());
}

static bool show_progress(void *user, uint64_t steps_done)
{
    run_setup *setup = user;
    progress_show(&setup->progress, steps_done);
    return !interrupt_came();
}

/* ---- driving ----------------------------------------------------------------------------------------------------- */

/* Training steps 1, 4, 7, ... run without graphs, and a traced one: replays do not call the pool. */
static bool is_eager(const run_options *options, uint64_t step)
{
    return options->graphs == DRIVER_GRAPHS_OFF || step % 3 == 0 ||
           (options->trace != NULL && step + 1 == options->steps);
}

static int drive(const run_options *options, const analysis *a, run_setup *setup, run_outcome *outcome)
{
    progress_init(&setup->progress, "step", options->steps * bp_schedule_get_info(a->schedule)->step_count);
    interrupt_watch(NULL);

    driver *d = setup->driver;
    bp_status status = driver_begin(d);
    for (uint64_t i = 0; status == BP_OK && i < options->steps; i++) {
        if (driver_stopped(d) || driver_is_corrupted(d))
            break;
        if (options->trace != NULL && i + 1 == options->steps)
            status = bp_pool_trace_start(setup->pool, driver_trace_entries(d), 0);
        /* A failure of the profile does not end the run. */
        run_profile *profile = &setup->profile;
        if (profile->profile != NULL)
            note(profile, bp_profile_step(profile->profile, i));
        if (status == BP_OK)
            status = driver_iterate(d, is_eager(options, i));
    }
    if (options->trace != NULL)
        bp_pool_trace_stop(setup->pool);

    if (status == BP_OK)
        status = driver_end(setup->driver);
    outcome->status = status;
    if (status != BP_OK) {
        bp_print(outcome->detail, sizeof outcome->detail, "%s", bp_error_detail());
        driver_drain(setup->driver);
    }
    run_profile *profile = &setup->profile;
    if (profile->profile != NULL && bp_profile_get_info(profile->profile)->recording)
        note(profile, bp_profile_stop(profile->profile));
    progress_erase(&setup->progress);
    outcome->interrupted = driver_stopped(setup->driver);
    driver_result_get(setup->driver, &outcome->result);
    outcome->statistics.size = sizeof outcome->statistics;
    status = bp_pool_statistics_get(setup->pool, &outcome->statistics);
    if (status == BP_OK)
        status = bp_pool_sequence(setup->pool, &outcome->sequence_hash, &outcome->sequence_acquires);
    return status == BP_OK ? EXIT_GO_ON : cli_fail_status(status);
}

/* ---- answering --------------------------------------------------------------------------------------------------- */

/* Writes the acquires and releases of the last training step. */
static int write_trace(const run_options *options, const analysis *a, const run_setup *setup, const output *file)
{
    uint64_t steps = bp_schedule_get_info(a->schedule)->step_count, first = (options->steps - 1) * steps;
    bp_model *model = NULL;
    bp_status status =
        trace_model(a->name, a->buckets, setup->pool, driver_program(setup->driver), first, first + steps - 1, &model);
    if (status == BP_OK)
        status = bp_units_write(model, file->written);
    bp_model_destroy(&model);
    if (status == BP_ERR_IO)
        return output_fail(file, strerror(errno));
    return status == BP_OK ? EXIT_GO_ON : cli_fail_status(status);
}

static void print_holders(const bp_pool *pool)
{
    size_t needed = 0;
    if (bp_pool_dump(pool, NULL, 0, &needed) != BP_OK)
        return;
    char *text = calloc(needed + 1, 1);
    if (text != NULL && bp_pool_dump(pool, text, needed + 1, &needed) == BP_OK)
        fputs(text, stderr);
    free(text);
}

/* Prints a failed verdict to standard error. Returns EXIT_GO_ON or an exit code. */
static int report_verdict(const run_options *options, const run_setup *setup, const analysis *a,
                          const run_outcome *outcome)
{
    char text[1024];
    if (*run_failure_text(setup, a, outcome, text) != '\0') {
        cli_fail(EXIT_NEGATIVE, "%s", text);
        if (options->dump)
            print_holders(setup->pool);
        return EXIT_NEGATIVE;
    }
    if (outcome->interrupted)
        cli_fail(EXIT_GO_ON, "interrupted in training step %llu of %llu",
                 (unsigned long long)outcome->result.iterations + 1, (unsigned long long)options->steps);
    return EXIT_GO_ON;
}

/* The trace is committed after a successful run whose report was printed. */
static int answer(const run_options *options, const analysis *a, const run_setup *setup, const run_outcome *outcome)
{
    output trace;
    bool finished = outcome->status == BP_OK && outcome->result.corrupted == 0 && !outcome->interrupted;
    if (outcome->status != BP_OK && run_exit_code(outcome->status) != EXIT_NEGATIVE) /* not a verdict on the plan */
        return run_fail(options, outcome->status, outcome->detail);
    int code = output_init("--trace", finished ? options->trace : NULL, &trace);
    if (code == EXIT_GO_ON && trace.path != NULL)
        code = write_trace(options, a, setup, &trace);
    if (code == EXIT_GO_ON)
        code = outputs_sync(&trace, 1);
    if (code == EXIT_GO_ON)
        code =
            options->json ? run_report_json(options, setup, a, outcome) : run_report_lines(options, setup, a, outcome);
    code = outputs_end(&trace, 1, code);
    if (code == EXIT_GO_ON)
        code = report_verdict(options, setup, a, outcome);

    if (code != EXIT_GO_ON)
        return code;
    const run_profile *profile = &setup->profile;
    if (profile->failure[0] == '\0')
        return EXIT_GO_ON;
    return cli_fail(EXIT_ENVIRONMENT, "--profile %s: %s", profile->directory, profile->failure);
}

static int run(const run_options *options, const analysis *a)
{
    run_setup setup;
    run_outcome outcome = {0};
    int code = run_setup_init(options, a, show_progress, &setup);
    if (code == EXIT_GO_ON)
        code = drive(options, a, &setup, &outcome);
    if (code == EXIT_GO_ON)
        code = answer(options, a, &setup, &outcome);
    run_setup_finish(&setup);
    return code;
}

int cli_run(int argc, char **argv)
{
    run_options options;
    analysis *analyses = NULL;
    size_t count = 0;
    bool infeasible = false;
    int code = run_options_parse(argc, argv, &options);
    if (code == EXIT_GO_ON)
        code = analysis_init_all(&options.planning, &analyses, &count, &infeasible);
    if (code == EXIT_GO_ON)
        code = run(&options, &analyses[0]);
    analysis_finish_all(analyses, count);
    run_options_finish(&options);
    interrupt_pass_on();
    return code == EXIT_GO_ON ? EXIT_ANSWERED : code;
}
