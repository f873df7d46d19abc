/* `bucketpool run`: a plan made real, driven through whole training steps, and every byte checked. */
#include "run/setup.h"

#include <bucketpool/formats.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "run/report.h"
#include "run/trace_model.h"
#include "shared/cli.h"
#include "shared/outputs.h"

/* ---- snapshots of steps ------------------------------------------------------------------------------------------ */

bp_status run_profile_init(const run_options *options, bp_pool *pool, const bp_plan *plan, run_profile *profile)
{
    bp_profile_config config;
    *profile = (run_profile){.directory = options->profile};
    if (options->profile == NULL)
        return BP_OK;
    bp_status status = bp_profile_config_init(&config, sizeof config);
    if (status != BP_OK)
        return status;
    config.directory = options->profile;
    config.profile_steps = options->profile_steps;
    config.profile_step_count = options->profile_step_count;
    config.formats = BP_PROFILE_PICKLE | BP_PROFILE_TRACE;
    config.plans = &plan;
    return bp_profile_create(&pool, 1, &config, &profile->profile);
}

/* The first failure is told at the end. */
static void note(run_profile *profile, bp_status status)
{
    if (status != BP_OK && profile->failure[0] == '\0')
        snprintf(profile->failure, sizeof profile->failure, "%s", bp_error_detail());
}

/* A training step begins; after the last one. The run goes on whatever happens. */
static void run_profile_step(run_profile *profile, uint64_t step)
{
    if (profile->profile != NULL)
        note(profile, bp_profile_step(profile->profile, step));
}

static void run_profile_end(run_profile *profile)
{
    if (profile->profile != NULL && bp_profile_get_info(profile->profile)->recording)
        note(profile, bp_profile_stop(profile->profile));
}

/* EXIT_GO_ON, or the exit code after a message about what could not be written. */
static int run_profile_judge(const run_profile *profile)
{
    if (profile->failure[0] == '\0')
        return EXIT_GO_ON;
    return cli_fail(EXIT_ENVIRONMENT, "--profile %s: %s", profile->directory, profile->failure);
}

void run_profile_finish(run_profile *profile)
{
    bp_profile_destroy(&profile->profile);
}

/* ---- the command ------------------------------------------------------------------------------------------------- */

static bool go_on(void *user, uint64_t steps_done)
{
    run_setup *setup = user;
    progress_show(&setup->progress, steps_done);
    return !interrupt_came();
}

/* ---- driving ------------------------------------------------------------------------------------------------------------- */

/* The 1st, 4th, 7th, ... training step, and one that is traced: replays pass by the pool. */
static bool is_eager(const run_options *options, uint64_t step)
{
    return options->graphs == DRIVER_GRAPHS_OFF || step % 3 == 0 ||
           (options->trace != NULL && step + 1 == options->steps);
}

static bp_status iterate(const run_options *options, run_setup *setup)
{
    driver *d = setup->driver;
    bp_status status = driver_begin(d);
    for (uint64_t i = 0; status == BP_OK && i < options->steps; i++) {
        if (driver_stopped(d) || driver_is_corrupted(d))
            break;
        if (options->trace != NULL && i + 1 == options->steps)
            status = bp_pool_trace_start(setup->pool, driver_trace_entries(d), 0);
        run_profile_step(&setup->profile, i);
        if (status == BP_OK)
            status = driver_iterate(d, is_eager(options, i));
    }
    if (options->trace != NULL)
        bp_pool_trace_stop(setup->pool);
    return status;
}

static int drive(const run_options *options, const analysis *a, run_setup *setup, run_outcome *outcome)
{
    progress_init(&setup->progress, "step", options->steps * bp_schedule_get_info(a->schedule)->step_count);
    interrupt_watch();
    bp_status status = iterate(options, setup);
    if (status == BP_OK)
        status = driver_end(setup->driver);
    outcome->status = status;
    if (status != BP_OK) {
        snprintf(outcome->detail, sizeof outcome->detail, "%s", bp_error_detail());
        driver_drain(setup->driver);
    }
    run_profile_end(&setup->profile);
    progress_erase(&setup->progress);
    outcome->interrupted = driver_stopped(setup->driver);
    driver_result_get(setup->driver, &outcome->result);
    outcome->statistics.size = sizeof outcome->statistics;
    status = bp_pool_statistics_get(setup->pool, &outcome->statistics);
    if (status == BP_OK)
        status = bp_pool_sequence(setup->pool, &outcome->sequence_hash, &outcome->sequence_acquires);
    return status == BP_OK ? EXIT_GO_ON : cli_fail_status(status);
}

/* ---- answering ------------------------------------------------------------------------------------------------------------ */

/* The last step's events. */
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

static int print(const run_options *options, const run_setup *setup, const analysis *a, const run_outcome *outcome)
{
    return options->json ? run_report_json(options, setup, a, outcome) : run_report_lines(options, setup, a, outcome);
}

/* The verdict, on standard error when it is not good. */
static int judge(const run_options *options, const run_setup *setup, const analysis *a, const run_outcome *outcome)
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

/* The trace appears when the run went well and the answer is out. */
static int answer(const run_options *options, const analysis *a, const run_setup *setup, const run_outcome *outcome)
{
    output trace;
    bool finished = outcome->status == BP_OK && outcome->result.corrupted == 0 && !outcome->interrupted;
    if (outcome->status != BP_OK && run_exit_code(outcome->status) != EXIT_NEGATIVE) /* says nothing about the plan */
        return run_fail(options, outcome->status, outcome->detail);
    int code = output_init("--trace", finished ? options->trace : NULL, &trace);
    if (code == EXIT_GO_ON && trace.path != NULL)
        code = write_trace(options, a, setup, &trace);
    if (code == EXIT_GO_ON)
        code = outputs_sync(&trace, 1);
    if (code == EXIT_GO_ON)
        code = print(options, setup, a, outcome);
    if (code == EXIT_GO_ON)
        code = cli_flush();
    if (code == EXIT_GO_ON)
        code = outputs_commit(&trace, 1);
    outputs_finish(&trace, 1);
    if (code == EXIT_GO_ON)
        code = judge(options, setup, a, outcome);
    return code == EXIT_GO_ON ? run_profile_judge(&setup->profile) : code;
}

static int run(const run_options *options, const analysis *a)
{
    run_setup setup;
    run_outcome outcome = {0};
    int code = run_setup_init(options, a, go_on, &setup);
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
