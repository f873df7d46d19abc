/* `bucketpool explain`: sentences and tables, a document or a picture. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "explain_parts.h"
#include "outputs.h"
#include "picture_tradeoff.h"
#include "whatif_report.h"

static int explain(const whatif *w, const plan_options *options)
{
    bool color = cli_wants_color(options->color);
    explain_policies(w->analysed, options);
    if (w->plan == NULL)
        return EXIT_GO_ON;
    int code = explain_alternatives(w, color);
    explain_peaks(w);
    return code == EXIT_GO_ON ? explain_tradeoff(w, options, color) : code;
}

static int print(const whatif *answers, size_t count, const plan_options *options)
{
    if (options->json)
        return whatif_report_print(answers, count, options);
    int code = EXIT_GO_ON;
    for (size_t i = 0; code == EXIT_GO_ON && i < count; i++) {
        if (i > 0)
            putchar('\n');
        code = explain(&answers[i], options);
    }
    return code;
}

static int draw(const whatif *w, const plan_options *options, const output *picture)
{
    if (picture->path == NULL)
        return EXIT_GO_ON;
    char subtitle[SCHEDULE_TEXT_CHARS + 64], schedule[SCHEDULE_TEXT_CHARS];
    snprintf(subtitle, sizeof subtitle, "dp %u, ep %u, tp %u, %s%s", options->dp, options->ep, options->tp,
             analysis_schedule_text(w->analysed, options, schedule), options->joint ? ", joint slab" : "");
    const tradeoff_picture input = {w->analysed->name, subtitle, w->tradeoff, whatif_best_bargain(w->tradeoff)};
    const char *error = picture_draw_tradeoff(&input, picture);
    return error == NULL ? EXIT_GO_ON : cli_fail(EXIT_ENVIRONMENT, "--plot %s: %s", options->plot, error);
}

/* The picture appears when the answer is out. */
static int answer(const whatif *answers, size_t count, const plan_options *options)
{
    output picture;
    int code = output_init("--plot", options->plot, &picture);
    if (code == EXIT_GO_ON)
        code = draw(&answers[0], options, &picture);
    if (code == EXIT_GO_ON)
        code = outputs_sync(&picture, 1);
    if (code == EXIT_GO_ON)
        code = print(answers, count, options);
    if (code == EXIT_GO_ON)
        code = cli_flush();
    if (code == EXIT_GO_ON)
        code = outputs_commit(&picture, 1);
    outputs_finish(&picture, 1);
    return code;
}

static int ask(const analysis *analyses, size_t count, const plan_options *options)
{
    whatif *answers = calloc(count, sizeof *answers);
    if (answers == NULL)
        return cli_fail(EXIT_ENVIRONMENT, "out of memory");
    int code = EXIT_GO_ON;
    for (size_t i = 0; code == EXIT_GO_ON && i < count; i++)
        code = whatif_init(&analyses[i], options, &answers[i]);
    if (code == EXIT_GO_ON)
        code = answer(answers, count, options);
    for (size_t i = 0; i < count; i++)
        whatif_finish(&answers[i]);
    free(answers);
    return code;
}

int cli_explain(int argc, char **argv)
{
    plan_options options;
    analysis *analyses = NULL;
    size_t count = 0;
    bool infeasible = false;
    int code = options_parse(argc, argv, "explain", &options);
    if (code == EXIT_GO_ON)
        code = analysis_init_all(&options, &analyses, &count, &infeasible);
    if (code == EXIT_GO_ON)
        code = ask(analyses, count, &options);
    analysis_finish_all(analyses, count);
    options_finish(&options);
    return code != EXIT_GO_ON ? code : infeasible ? EXIT_NEGATIVE : EXIT_ANSWERED;
}
