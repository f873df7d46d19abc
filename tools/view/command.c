/* `bucketpool view`: what snapshots say, as tables, JSON, a page and pictures. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "outputs.h"
#include "picture_snapshot.h"
#include "progress.h"
#include "view/files.h"
#include "view/page.h"
#include "view/report.h"

enum { OUTPUT_HTML, OUTPUT_SVG, OUTPUT_FLAME, OUTPUT_COUNT };
static const char *const output_options[OUTPUT_COUNT] = {"--html", "--plot", "--flame"};

static int draw(const view_file *file, int which, const output *to)
{
    char label[VIEW_LABEL_CHARS], step[VIEW_LABEL_CHARS], title[2 * VIEW_LABEL_CHARS + 80];
    const view_pool *pool = view_file_highest(file);
    view_file_label(file, label);
    view_file_step(file, step);
    snprintf(title, sizeof title, "%.60s, %s%s%s", pool->info->name, label, *step != '\0' ? ", " : "", step);
    const snapshot_picture input = {title, pool};
    const char *error = which == OUTPUT_SVG ? picture_draw_snapshot(&input, to) : picture_draw_flame(&input, to);
    return error == NULL ? EXIT_GO_ON : cli_fail(EXIT_ENVIRONMENT, "%s %s: %s", to->option, to->path, error);
}

static int write_files(const view_file *files, size_t count, output *outputs)
{
    int code = EXIT_GO_ON;
    if (outputs[OUTPUT_HTML].path != NULL && !view_page_write(files, count, &outputs[OUTPUT_HTML].file))
        return output_fail(&outputs[OUTPUT_HTML], strerror(ENOMEM));
    for (int i = OUTPUT_SVG; code == EXIT_GO_ON && i < OUTPUT_COUNT; i++) {
        if (outputs[i].path != NULL)
            code = draw(&files[0], i, &outputs[i]);
    }
    return code;
}

static int print(const view_file *files, size_t count, const view_options *options)
{
    int code = options->json ? view_report_json(files, count)
               : count > 1   ? view_report_files(files, count, options)
                             : view_report_file(&files[0], options);
    return code == EXIT_GO_ON ? cli_flush() : code;
}

/* Files appear when all of them were written and the answer is out. */
static int answer(const view_file *files, const view_options *options)
{
    const char *const paths[OUTPUT_COUNT] = {options->html, options->plot, options->flame};
    output outputs[OUTPUT_COUNT] = {{0}};
    int code = EXIT_GO_ON;
    for (int i = 0; i < OUTPUT_COUNT && code == EXIT_GO_ON; i++)
        code = output_init(output_options[i], paths[i], &outputs[i]);
    if (code == EXIT_GO_ON)
        code = write_files(files, options->file_count, outputs);
    if (code == EXIT_GO_ON)
        code = outputs_sync(outputs, OUTPUT_COUNT);
    if (code == EXIT_GO_ON)
        code = print(files, options->file_count, options);
    if (code == EXIT_GO_ON)
        code = outputs_commit(outputs, OUTPUT_COUNT);
    outputs_finish(outputs, OUTPUT_COUNT);
    return code == EXIT_GO_ON ? EXIT_ANSWERED : code;
}

static int read_files(const view_options *options, view_file *files)
{
    progress p;
    int code = EXIT_GO_ON;
    progress_init(&p, "file", options->file_count);
    for (size_t i = 0; code == EXIT_GO_ON && i < options->file_count; i++) {
        progress_show(&p, i);
        bp_snapshot *snapshot = NULL;
        bp_status status = bp_snapshot_read(options->files[i], &snapshot);
        if (status != BP_OK || i + 1 == options->file_count)
            progress_erase(&p); /* before a message */
        code =
            status == BP_OK ? view_file_init(options->files[i], options, snapshot, &files[i]) : cli_fail_status(status);
    }
    progress_erase(&p);
    return code;
}

int cli_view(int argc, char **argv)
{
    view_options options;
    int code = view_options_parse(argc, argv, &options);
    if (code != EXIT_GO_ON)
        return code;
    view_file *files = calloc(options.file_count, sizeof *files);
    if (files == NULL)
        return cli_fail(EXIT_ENVIRONMENT, "out of memory");
    code = read_files(&options, files);
    if (code == EXIT_GO_ON)
        code = answer(files, &options);
    for (size_t i = 0; i < options.file_count; i++)
        view_file_finish(&files[i]);
    free(files);
    return code;
}
