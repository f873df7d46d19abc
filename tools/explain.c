/* `bucketpool explain`: sentences and tables, or a document. */
#include <stdio.h>
#include <stdlib.h>

#include "cli.h"
#include "explain_parts.h"
#include "whatif_report.h"

static int explain(const whatif *w, const plan_options *options)
{
    explain_policies(w->analysed, options);
    if (w->plan == NULL)
        return EXIT_GO_ON;
    int code = explain_alternatives(w, cli_wants_color(options->color));
    explain_peaks(w);
    return code;
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

static int ask(const analysis *analyses, size_t count, const plan_options *options)
{
    whatif *answers = calloc(count, sizeof *answers);
    if (answers == NULL)
        return cli_fail(EXIT_ENVIRONMENT, "out of memory");
    int code = EXIT_GO_ON;
    for (size_t i = 0; code == EXIT_GO_ON && i < count; i++)
        code = whatif_init(&analyses[i], options, &answers[i]);
    if (code == EXIT_GO_ON)
        code = print(answers, count, options);
    if (code == EXIT_GO_ON)
        code = cli_flush();
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
