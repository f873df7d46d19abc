#include "run_profile.h"

#include <stdio.h>

#include "cli.h"

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

void run_profile_step(run_profile *profile, uint64_t step)
{
    if (profile->profile != NULL)
        note(profile, bp_profile_step(profile->profile, step));
}

void run_profile_end(run_profile *profile)
{
    if (profile->profile != NULL && bp_profile_get_info(profile->profile)->recording)
        note(profile, bp_profile_stop(profile->profile));
}

int run_profile_judge(const run_profile *profile)
{
    if (profile->failure[0] == '\0')
        return EXIT_GO_ON;
    return cli_fail(EXIT_ENVIRONMENT, "--profile %s: %s", profile->directory, profile->failure);
}

void run_profile_finish(run_profile *profile)
{
    bp_profile_destroy(&profile->profile);
}
