/* SPDX-License-Identifier: Apache-2.0 */
/* `bucketpool plan`: tables, report, picture and plan file. */
#include <bucketpool/formats.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/print.h"
#include "formats/snapshots/trace_file.h"
#include "pictures/pictures.h"
#include "plan/analysis.h"
#include "shared/cli.h"
#include "shared/outputs.h"

/* The plan that -o writes: of the single --policy, else of scheduled. */
static const bp_plan *plan_to_write(const analysis *a, const plan_options *options)
{
    for (size_t i = 0; i < a->plan_count; i++) {
        if (options->policies[i] == BP_POLICY_SCHEDULED)
            return a->plans[i];
    }
    return a->plans[0];
}

static int write_files(const analysis *a, const plan_options *options, const output *plan, const output *picture)
{
    if (plan->path != NULL) {
        bp_status status = bp_plan_write(plan_to_write(a, options), plan->written);
        if (status == BP_ERR_IO)
            return output_fail(plan, strerror(errno));
        if (status == BP_ERR_UNSUPPORTED)
            return cli_fail(options->fallback == BP_FALLBACK_DYNAMIC ? EXIT_BAD_INPUT : EXIT_NEGATIVE, "-o: %s",
                            bp_error_detail());
        if (status != BP_OK)
            return cli_fail_status(status);
    }
    if (picture->path == NULL)
        return EXIT_GO_ON;
    char title[512], schedule[SCHEDULE_TEXT_CHARS];
    bp_print(title, sizeof title, "%.120s\ndp %u, ep %u, tp %u, %s", a->name, options->dp, options->ep, options->tp,
             analysis_schedule_text(a, options, schedule));
    const picture_input input = {
        title, a->buckets, a->schedule, (const bp_plan *const *)a->plans, a->plan_count, plan_to_write(a, options)};
    const char *error = picture_draw(&input, picture);
    return error == NULL ? EXIT_GO_ON : cli_fail(EXIT_ENVIRONMENT, "--plot %s: %s", options->plot, error);
}

static int print(const analysis *analyses, size_t count, const plan_options *options)
{
    if (output_is_standard(options->output))
        return EXIT_GO_ON;
    if (options->json)
        return report_print(analyses, count, options);
    if (count > 1)
        return table_print_models(analyses, count, options);
    return table_print_model(&analyses[0], options);
}

/* Some policy of each model fits the budget, if there is one. */
static bool all_fit(const analysis *analyses, size_t count, const plan_options *options)
{
    for (size_t m = 0; options->budget > 0 && m < count; m++) {
        bool fits = analyses[m].plan_count == 0 && analyses[m].state.total <= options->budget;
        for (size_t p = 0; p < analyses[m].plan_count; p++)
            fits = fits || analysis_needed(&analyses[m], analyses[m].plans[p]) <= options->budget;
        if (!fits)
            return false;
    }
    return true;
}

/* Files are committed after all of them were written and the report was printed. */
static int answer(const analysis *analyses, size_t count, const plan_options *options)
{
    output outputs[2] = {{0}}, *plan = &outputs[0], *picture = &outputs[1];
    int code = output_init("-o", options->output, plan);
    if (code == EXIT_GO_ON)
        code = output_init("--plot", options->plot, picture);
    if (code == EXIT_GO_ON)
        code = write_files(&analyses[0], options, plan, picture);
    if (code == EXIT_GO_ON)
        code = outputs_sync(outputs, 2);
    if (code == EXIT_GO_ON)
        code = print(analyses, count, options);
    code = outputs_end(outputs, 2, code);
    return code;
}

/* An argument is a snapshot of PyTorch's memory: then `plan` is `step`. */
static bool names_snapshot(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (argv[i][0] != '-' && bp_trace_file_is_pickle(argv[i]))
            return true;
    }
    return false;
}

int cli_plan(int argc, char **argv)
{
    if (names_snapshot(argc, argv))
        return cli_step(argc, argv);
    plan_options options;
    analysis *analyses = NULL;
    size_t count = 0;
    bool infeasible = false;
    int code = options_parse(argc, argv, "plan", &options);
    if (code == EXIT_GO_ON)
        code = analysis_init_all(&options, &analyses, &count, &infeasible);
    if (code == EXIT_GO_ON)
        code = answer(analyses, count, &options);
    if (code == EXIT_GO_ON && !all_fit(analyses, count, &options))
        code = EXIT_NEGATIVE;
    analysis_finish_all(analyses, count);
    options_finish(&options);
    return code != EXIT_GO_ON ? code : infeasible ? EXIT_NEGATIVE : EXIT_ANSWERED;
}
