/* SPDX-License-Identifier: Apache-2.0 */
/* `bucketpool view`: reports snapshots as tables, JSON, a page and pictures. */
#include "core/print.h"
#include "view/view.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "pictures/pictures.h"
#include "shared/cli.h"
#include "shared/inputs.h"
#include "shared/options.h"
#include "shared/outputs.h"
#include "shared/progress.h"

/* Reads a snapshot of pools, or of PyTorch's allocator. Returns EXIT_GO_ON, or the exit code after a message. */
static int read_snapshot(const char *path, view_file *file, progress *p)
{
    *file = (view_file){.path = path};
    const char *other = input_other_kind(path);
    if (other != NULL) {
        progress_erase(p);
        return cli_fail(EXIT_BAD_INPUT, "%.300s: %s", path, other);
    }
    bp_status status = bp_trace_file_read(path, &file->traces);
    bool is_of_pools = status == BP_OK && bp_trace_file_get_info(file->traces)->is_of_pools, is_read = status == BP_OK;
    if (is_of_pools) {
        bp_trace_file_destroy(&file->traces);
        status = bp_snapshot_read(path, &file->snapshot);
        file->info = bp_snapshot_get_info(file->snapshot);
    } else if (is_read) {
        status = view_recording_init(file->traces, &file->recording);
        file->info = &file->recording.info;
    }
    if (status == BP_OK)
        return EXIT_GO_ON;
    progress_erase(p);
    if (is_read && !is_of_pools && status != BP_ERR_NO_HOST_MEMORY)
        return cli_fail(EXIT_BAD_INPUT, "%.300s: %s", path, bp_error_detail());
    return cli_fail_status(status);
}

/* Reads a file and plays the selected pools. Returns EXIT_GO_ON, or the exit code after a message. Call view_file_finish either way. */
/* A pool that the file does not have: its names, or the nearest. */
static int fail_pool(const char *path, const char *pool, const bp_snapshot_info *info)
{
    const char *names[16];
    char text[400] = "";
    size_t count = 0;
    for (; count < info->pool_count && count < sizeof names / sizeof *names; count++) {
        names[count] = info->pools[count].name;
        cli_append(text, sizeof text, "%s%.40s", count > 0 ? ", " : "", names[count]);
    }
    return cli_fail(EXIT_BAD_INPUT, "%.300s: unknown pool \"%.60s\"%s; the file has %s%s", path, pool,
                    cli_suggestion("", cli_nearest(pool, names, count)), text, count < info->pool_count ? ", ..." : "");
}

static int view_file_init(const char *path, const view_options *options, view_file *file, progress *p)
{
    int code = read_snapshot(path, file, p);
    if (code != EXIT_GO_ON || file->info == NULL)
        return code;
    file->pools = calloc(file->info->pool_count + 1, sizeof *file->pools);
    if (file->pools == NULL)
        return cli_fail(EXIT_ENVIRONMENT, "out of memory");
    for (size_t i = 0; i < file->info->pool_count; i++) {
        if (options->pool != NULL && strcmp(file->info->pools[i].name, options->pool) != 0)
            continue;
        bp_status status = view_pool_init(file->info, i, &file->pools[file->pool_count++]);
        if (status == BP_ERR_FORMAT)
            return cli_fail(EXIT_BAD_INPUT, "%.300s: %s", path, bp_error_detail());
        if (status != BP_OK)
            return cli_fail_status(status);
    }
    if (file->pool_count == 0 && options->pool != NULL)
        return fail_pool(path, options->pool, file->info);
    if (file->pool_count == 0)
        return cli_fail(EXIT_BAD_INPUT, "%.300s: the snapshot has no pools", path);
    return EXIT_GO_ON;
}

static void view_file_finish(view_file *file)
{
    for (size_t i = 0; i < file->pool_count; i++)
        view_pool_finish(&file->pools[i]);
    free(file->pools);
    bp_snapshot_destroy(&file->snapshot);
    view_recording_finish(&file->recording);
    bp_trace_file_destroy(&file->traces);
    *file = (view_file){0};
}

void view_file_label(const view_file *file, char label[VIEW_LABEL_CHARS])
{
    const char *slash = strrchr(file->path, '/');
    if (!file->info->is_ours)
        bp_print(label, VIEW_LABEL_CHARS, "%.100s", slash != NULL ? slash + 1 : file->path);
    else
        bp_print(label, VIEW_LABEL_CHARS, "rank %u%s%.70s", file->info->rank,
                 *file->info->coordinates != '\0' ? " " : "", file->info->coordinates);
}

void view_file_step(const view_file *file, char text[VIEW_LABEL_CHARS])
{
    *text = '\0';
    if (file->info->has_step)
        snprintf(text, VIEW_LABEL_CHARS, "step %llu", (unsigned long long)file->info->step);
    else if (*file->info->label != '\0')
        bp_print(text, VIEW_LABEL_CHARS, "%.100s", file->info->label);
}

/* The pool with the highest peak; NULL: no pools. */
static const view_pool *view_file_highest(const view_file *file)
{
    const view_pool *highest = file->pool_count > 0 ? &file->pools[0] : NULL;
    for (size_t i = 1; i < file->pool_count; i++) {
        if (file->pools[i].peak_bytes > highest->peak_bytes)
            highest = &file->pools[i];
    }
    return highest;
}

const char *view_time(uint64_t time_ns)
{
    static const struct {
        const char *unit;
        double ns;
    } units[] = {{"s", 1e9}, {"ms", 1e6}, {"us", 1e3}};
    for (size_t i = 0; i < 3; i++) {
        if ((double)time_ns >= units[i].ns)
            return cli_text("%.3f %s", (double)time_ns / units[i].ns, units[i].unit);
    }
    return cli_text("%llu ns", (unsigned long long)time_ns);
}

/* ---- options ----------------------------------------------------------------------------------------------------- */

#define FIELD(member) offsetof(view_options, member)

static const option_row view_table[] = {
    {.kind = OPTION_HEADING, .text = "Input:", .group = 1},
    {"pool", "NAME", "Report only this pool", OPTION_TEXT, FIELD(pool)},
    {.kind = OPTION_HEADING, .text = "Output:", .group = 2},
    {"html", "PAGE", "Write an interactive page: a single file that needs no network", OPTION_FILE, FIELD(html)},
    {"plot", "FILE", "Draw addresses over time (.svg)", OPTION_PICTURE, FIELD(plot)},
    {"flame", "FILE", "Draw the peak by roles, units and buckets (.svg)", OPTION_PICTURE, FIELD(flame)},
    {"json", NULL, "Print a bucketpool.view/1 document", OPTION_FLAG, FIELD(json)},
    {"color", "WHEN", "auto, always or never (default auto)", OPTION_CHOICE, FIELD(color), choices_color},
    OPTION_END,
};

static int check(const view_options *o)
{
    const struct {
        const char *option, *path;
    } outputs[] = {{"--html", o->html}, {"--plot", o->plot}, {"--flame", o->flame}};
    if (o->file_count == 0)
        return cli_fail(EXIT_BAD_INPUT, "view: no file given; give snapshots such as DIR/step_0/*.pickle");
    for (size_t i = 0; i < 3; i++) {
        for (size_t k = 0; k < i; k++) {
            if (outputs[i].path != NULL && outputs[k].path != NULL && strcmp(outputs[i].path, outputs[k].path) == 0)
                return cli_fail(EXIT_BAD_INPUT, "%s and %s name the same file, %s", outputs[k].option,
                                outputs[i].option, outputs[i].path);
        }
    }
    return EXIT_GO_ON;
}

/* With the files of folders. */
static int check_files(const view_options *o)
{
    if (o->file_count > 1 && (o->plot != NULL || o->flame != NULL))
        return cli_fail(EXIT_BAD_INPUT, "%s requires one file, got %zu", o->plot != NULL ? "--plot" : "--flame",
                        o->file_count);

    /* `--html *.pickle` would overwrite the first snapshot with the page. */
    struct stat page, input;
    if (o->html == NULL)
        return EXIT_GO_ON;
    const char *ending = strrchr(o->html, '.');
    bool is_input = ending != NULL && strcmp(ending, ".pickle") == 0;
    bool is_there = stat(o->html, &page) == 0;
    for (size_t i = 0; is_there && !is_input && i < o->file_count; i++)
        is_input = stat(o->files[i], &input) == 0 && input.st_dev == page.st_dev && input.st_ino == page.st_ino;
    if (is_input)
        return cli_fail(EXIT_BAD_INPUT, "--html: \"%.300s\" is a snapshot; give the page to write, such as page.html",
                        o->html);
    return EXIT_GO_ON;
}

/* Reads the arguments after the command's name. Returns EXIT_GO_ON, or the exit code after a message. */
static int view_options_parse(int argc, char **argv, view_options *options)
{
    *options = (view_options){0};
    const options_command reading = {
        .name = "view",
        .arguments = "FILE...",
        .text =
            "Reports snapshots of pools, of one rank or several: live bytes, the peak and the units that set it, and "
            "the free memory "
            "at the peak.\vFILE is a pickle written by a profile (docs/reference/snapshot_files.md) or by PyTorch's "
            "allocator. It is parsed as data; no code in it runs. Pictures show the "
            "pool with the highest peak, or --pool. A folder stands for its snapshots. Of several files those "
            "that can be read are reported. Exit: 0 answered, 2 bad input "
            "(also of one of several files), "
            "3 environment.",
        .tables = {view_table},
        .options = options,
        .files = &options->files,
        .file_count = &options->file_count};
    CLI_TRY(options_read(argc, argv, &reading));
    return check(options);
}

/* ---- the command ------------------------------------------------------------------------------------------------- */

enum { OUTPUT_HTML, OUTPUT_SVG, OUTPUT_FLAME, OUTPUT_COUNT };
static const char *const output_options[OUTPUT_COUNT] = {"--html", "--plot", "--flame"};

static int write_files(const view_file *files, size_t count, output *outputs)
{
    int code = EXIT_GO_ON;
    if (outputs[OUTPUT_HTML].path != NULL && !view_page_write(files, count, &outputs[OUTPUT_HTML].file))
        return output_fail(&outputs[OUTPUT_HTML], strerror(ENOMEM));
    for (int i = OUTPUT_SVG; code == EXIT_GO_ON && i < OUTPUT_COUNT; i++) {
        if (outputs[i].path != NULL) {
            const view_file *file = &files[0];
            const output *to = &outputs[i];
            char label[VIEW_LABEL_CHARS], step[VIEW_LABEL_CHARS], title[2 * VIEW_LABEL_CHARS + 80];
            const view_pool *pool = view_file_highest(file);
            if (pool == NULL || pool->info == NULL)
                return cli_fail(EXIT_BAD_INPUT, "%s %s: the snapshot has no pool to draw", to->option, to->path);
            view_file_label(file, label);
            view_file_step(file, step);
            bp_print(title, sizeof title, "%.60s, %s%s%s", pool->info->name, label, *step != '\0' ? ", " : "", step);
            const snapshot_picture input = {title, pool};
            const char *error = i == OUTPUT_SVG ? picture_draw_snapshot(&input, to) : picture_draw_flame(&input, to);
            code = error == NULL ? EXIT_GO_ON : cli_fail(EXIT_ENVIRONMENT, "%s %s: %s", to->option, to->path, error);
        }
    }
    return code;
}

/* Files are committed after all of them were written and the report was printed. */
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
    if (code == EXIT_GO_ON) {
        size_t count = options->file_count;
        code = options->json ? view_report_json(files, count)
               : count > 1   ? view_report_files(files, count, options)
                             : view_report_file(&files[0], options);
    }
    code = outputs_end(outputs, OUTPUT_COUNT, code);
    return code == EXIT_GO_ON ? EXIT_ANSWERED : code;
}

/* Of several files those that can be read are reported. */
static int read_and_answer(const input_files *inputs, view_options *options)
{
    view_file *files = calloc(inputs->count + 1, sizeof *files);
    if (files == NULL)
        return cli_fail(EXIT_ENVIRONMENT, "out of memory");
    progress p;
    int code = EXIT_GO_ON;
    size_t count = 0;
    progress_init(&p, "file", inputs->count);
    for (size_t i = 0; code == EXIT_GO_ON && i < inputs->count; i++) {
        progress_show(&p, i);
        int failure = view_file_init(inputs->all[i], options, &files[count], &p);
        if (failure == EXIT_GO_ON)
            count++;
        else
            view_file_finish(&files[count]);
        if (failure != EXIT_GO_ON && (failure != EXIT_BAD_INPUT || inputs->count == 1))
            code = failure;
    }
    progress_erase(&p);
    options->file_count = count;
    if (code == EXIT_GO_ON)
        code = count > 0 ? answer(files, options) : EXIT_BAD_INPUT;
    if (code == EXIT_ANSWERED && count < inputs->count)
        code = EXIT_BAD_INPUT;
    for (size_t i = 0; i < count; i++)
        view_file_finish(&files[i]);
    free(files);
    return code;
}

int cli_view(int argc, char **argv)
{
    view_options options;
    input_files inputs;
    CLI_TRY(view_options_parse(argc, argv, &options));
    int code = input_files_init("view", options.files, options.file_count, &inputs);
    options.files = inputs.all;
    options.file_count = inputs.count;
    if (code == EXIT_GO_ON)
        code = check_files(&options);
    if (code == EXIT_GO_ON)
        code = read_and_answer(&inputs, &options);
    input_files_finish(&inputs);
    return code;
}
