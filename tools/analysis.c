#include "analysis.h"

#include <stdlib.h>
#include <string.h>

#include "analysis_parts.h"
#include "cli.h"

bp_status analysis_plan_config(const plan_options *options, bp_policy policy, uint64_t alignment,
                               bp_plan_config *config)
{
    bp_status status = bp_plan_config_init(config, sizeof *config);
    config->policy = policy;
    config->copies = options->buffers;
    config->fallback = options->fallback;
    config->alignment = alignment;
    config->joint = options->joint && policy == BP_POLICY_SCHEDULED;
    config->work = options->work;
    return status;
}

bp_status analysis_plan(const analysis *a, const plan_options *options, bp_policy policy, uint64_t alignment,
                        bp_plan **plan)
{
    bp_plan_config config;
    bp_plan *made = NULL;
    bp_status status = analysis_plan_config(options, policy, alignment, &config);
    if (status == BP_OK)
        status = bp_plan_create(a->buckets, a->schedule, &config, &made);
    if (status == BP_OK)
        status = analysis_note(options, a, made);
    if (status == BP_OK)
        *plan = made;
    else
        bp_plan_destroy(&made);
    return status;
}

static bp_status make_plans(const plan_options *options, analysis *a)
{
    bp_status status = BP_OK;
    for (size_t i = 0; status == BP_OK && i < options->policy_count; i++) {
        status = analysis_plan(a, options, options->policies[i], options->alignment, &a->plans[i]);
        a->plan_count += status == BP_OK;
    }
    return status;
}

uint64_t analysis_needed(const analysis *a, const bp_plan *plan)
{
    uint64_t sum = a->state.total;
    const bp_plan_info *info = bp_plan_get_info(plan);
    for (size_t i = 0; i < info->role_count; i++) {
        const bp_plan_role *role = &info->roles[i];
        /* shards in these roles are those that the state counts */
        if (!(BP_ROLES_STATE & BP_ROLE_BIT(role->role)) && __builtin_add_overflow(sum, role->bytes, &sum))
            return UINT64_MAX;
    }
    return sum;
}

static bool is_infeasible(const analysis *a)
{
    for (size_t i = 0; i < a->plan_count; i++) {
        if (!bp_plan_get_info(a->plans[i])->feasible)
            return true;
    }
    return false;
}

static void finish(analysis *a)
{
    free(a->name);
    bp_buckets_destroy(&a->buckets);
    bp_schedule_destroy(&a->schedule);
    for (size_t i = 0; i < a->plan_count; i++)
        bp_plan_destroy(&a->plans[i]);
    *a = (analysis){0};
}

/* Everything but plans. */
static int analyse(const char *path, const plan_options *options, analysis *a)
{
    bp_model *model = NULL;
    int code = analysis_read(path, options, a, &model);
    if (code == EXIT_GO_ON)
        code = analysis_make_schedule(path, options, model, a);
    bp_model_destroy(&model);
    return code;
}

static int plan(const char *path, const plan_options *options, analysis *a)
{
    bp_status status = make_plans(options, a);
    return status == BP_OK ? EXIT_GO_ON : analysis_fail(path, status);
}

/* Options that none of the schedules heeds would be lost without a word. */
static int check_heeded(const plan_options *options, const analysis *analyses, size_t count)
{
    size_t recorded = 0, tensors = 0;
    for (size_t i = 0; i < count; i++) {
        recorded += analyses[i].recorded;
        tensors += analyses[i].tensors;
    }
    if (options->units != NULL && tensors == 0)
        return cli_fail(EXIT_BAD_INPUT, "--units requires safetensors, and %s has units already; leave --units out",
                        analyses[0].name);
    const char *generating = options_schedule_generating(&options->schedule);
    if (generating != NULL && recorded == count)
        return cli_fail(EXIT_BAD_INPUT, "--%s is about generated schedules, and %s brings a recorded one; leave it out",
                        generating, analyses[0].name);
    if (options->schedule.overlap_window > 0 && recorded + options->schedule.other_count == 0)
        return cli_fail(EXIT_BAD_INPUT,
                        "--overlap-window is about recorded schedules, and %s brings none; leave it out",
                        analyses[0].name);
    return EXIT_GO_ON;
}

/* All parts become one analysis, the only one of the list. */
static int share(const plan_options *options, analysis *analyses, size_t *count)
{
    analysis merged = {0};
    int code = analysis_merge(options, analyses, *count, &merged);
    for (size_t i = 0; i < *count; i++)
        finish(&analyses[i]);
    analyses[0] = merged;
    *count = 1;
    return code;
}

int analysis_init_all(const plan_options *options, analysis **analyses, size_t *count, bool *infeasible)
{
    *infeasible = false;
    *count = options->model_count;
    *analyses = calloc(*count, sizeof **analyses);
    if (*analyses == NULL)
        return cli_fail(EXIT_ENVIRONMENT, "out of memory");
    int code = EXIT_GO_ON;
    for (size_t i = 0; code == EXIT_GO_ON && i < *count; i++)
        code = analyse(options->models[i], options, &(*analyses)[i]);
    if (code == EXIT_GO_ON)
        code = check_heeded(options, *analyses, *count);
    for (size_t i = 0; code == EXIT_GO_ON && i < *count && !options->schedule.share; i++)
        code = plan(options->models[i], options, &(*analyses)[i]);
    if (code == EXIT_GO_ON && options->schedule.share) {
        code = share(options, *analyses, count);
        if (code == EXIT_GO_ON)
            code = plan("--share", options, &(*analyses)[0]);
    }
    for (size_t i = 0; code == EXIT_GO_ON && i < *count; i++)
        *infeasible = *infeasible || is_infeasible(&(*analyses)[i]);
    return code;
}

void analysis_finish_all(analysis *analyses, size_t count)
{
    for (size_t i = 0; analyses != NULL && i < count; i++)
        finish(&analyses[i]);
    free(analyses);
}
