/* `bucketpool pack`: packs instances or checks placements; lines, table, report, picture and CSV file. */
#include "pack/answer.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pack/report.h"
#include "pictures/packing.h"
#include "shared/cli.h"
#include "shared/options.h"
#include "shared/outputs.h"

/* ---- options ----------------------------------------------------------------------------------------------------- */

#define FIELD(member) offsetof(pack_options, member)

static const option_row pack_table[] = {
    {.kind = OPTION_HEADING, .text = "Packing:", .group = 1},
    {"capacity", "N", "Find a placement that takes no more, in the unit of the sizes, instead of the smallest",
     OPTION_U64, FIELD(capacity), .least = 1},
    {"work", "N", "Steps of search at most, very roughly nanoseconds; the same steps on every machine", OPTION_U64,
     FIELD(work), .least = 1},
    {"check", NULL, "Check the offsets that FILE has, instead of packing", OPTION_FLAG, FIELD(check)},
    {.kind = OPTION_HEADING, .text = "Output:", .group = 2},
    {"json", NULL, "Print a bucketpool.pack/1 document", OPTION_FLAG, FIELD(json)},
    {"plot", "FILE", "Draw the placement (.svg, .png or .pdf)", OPTION_PICTURE, FIELD(plot)},
    {"output", "CSV", "Write the rows of FILE with an offset column; -: on standard output, instead of the lines",
     OPTION_FILE, FIELD(output), .letter = 'o'},
    {"color", "WHEN", "auto, always or never (default auto)", OPTION_COLOR, FIELD(color)},
    OPTION_END,
};

static int check(const pack_options *o)
{
    if (o->file_count == 0)
        return cli_fail(EXIT_BAD_INPUT, "pack: no file; give a CSV file with the columns id, lower, upper and size");
    if (o->file_count > 1 && (o->output != NULL || o->plot != NULL))
        return cli_fail(EXIT_BAD_INPUT, "%s is about one file, %zu are given", o->output != NULL ? "-o" : "--plot",
                        o->file_count);
    if (o->check && (o->output != NULL || o->work > 0))
        return cli_fail(EXIT_BAD_INPUT, "--check looks at the offsets that are there; leave %s out",
                        o->output != NULL ? "-o" : "--work");
    size_t inputs = 0;
    for (size_t i = 0; i < o->file_count; i++)
        inputs += strcmp(o->files[i], "-") == 0;
    if (inputs > 1)
        return cli_fail(EXIT_BAD_INPUT, "pack: standard input (-) is read once, %zu files are -", inputs);
    if (output_is_standard(o->output) && o->json)
        return cli_fail(EXIT_BAD_INPUT, "--json and -o - both write to standard output; give -o a file");
    if (o->output != NULL && o->plot != NULL && strcmp(o->output, o->plot) == 0)
        return cli_fail(EXIT_BAD_INPUT, "-o and --plot name the same file, %s", o->plot);
    return EXIT_GO_ON;
}

/* Reads the arguments after the command's name. Returns EXIT_GO_ON, or the exit code after a message. */
static int pack_options_parse(int argc, char **argv, pack_options *options)
{
    *options = (pack_options){.color = "auto"};
    const options_command reading = {
        .name = "pack",
        .arguments = "FILE...",
        .text =
            "Finds offsets for the items of FILE, so that items which are live at the same time share no bytes and "
            "the total is as small as can be found.\vFILE is CSV (-: standard input): a header with the columns id, "
            "lower, upper, size and optionally gaps and offset, and a row for each item. It is live from lower until "
            "before upper, but for its gaps. Exit: 0 placed, or the offsets hold; 1 nothing fits the capacity, "
            "nothing that fits was found, or the offsets do not hold; 2 bad input, 3 environment.",
        .tables = {pack_table},
        .options = options,
        .files = &options->files,
        .file_count = &options->file_count};
    int code = options_read(argc, argv, &reading);
    return code == EXIT_GO_ON ? check(options) : code;
}

/* ---- the command ------------------------------------------------------------------------------------------------- */

static int write_files(const pack_answer *a, const pack_options *options, const output *csv, const output *picture)
{
    if (csv->path != NULL) {
        bp_status status = bp_packing_file_write(a->file, a->offsets, csv->written);
        if (status == BP_ERR_IO)
            return output_fail(csv, strerror(errno));
        if (status != BP_OK)
            return cli_fail_status(status);
    }
    if (picture->path == NULL)
        return EXIT_GO_ON;
    char title[256], proof[PACK_PROOF_CHARS];
    const char *slash = strrchr(a->path, '/');
    snprintf(title, sizeof title, "%.120s: %zu items", slash != NULL ? slash + 1 : a->path,
             bp_packing_get_info(bp_packing_file_packing(a->file))->item_count);
    pack_proof_text(a, proof);
    const packing_picture input = {title, proof, a->file, a->offsets, a->result.bytes, a->result.bound};
    const char *error = picture_draw_packing(&input, picture);
    return error == NULL ? EXIT_GO_ON : cli_fail(EXIT_ENVIRONMENT, "--plot %s: %s", options->plot, error);
}

static int print(const pack_answer *answers, const pack_options *options)
{
    if (output_is_standard(options->output))
        return EXIT_GO_ON;
    if (options->json)
        return pack_report_json(answers, options->file_count, options);
    if (options->file_count > 1)
        return pack_report_table(answers, options->file_count, options);
    return pack_report_lines(&answers[0], options);
}

/* A line on standard error for each file without a placement that holds. */
static int judge(const pack_answer *answers, const pack_options *options)
{
    int code = EXIT_ANSWERED;
    char reason[PACK_REASON_CHARS];
    for (size_t i = 0; i < options->file_count; i++) {
        if (pack_answer_is_placed(&answers[i]))
            continue;
        pack_answer_reason(&answers[i], options, reason);
        code = cli_fail(EXIT_NEGATIVE, "%.400s: %s", answers[i].path, reason);
    }
    return code;
}

/* Files appear when all of them were written and the answer is out. */
static int answer(const pack_answer *answers, const pack_options *options)
{
    output outputs[2] = {{0}}, *csv = &outputs[0], *picture = &outputs[1];
    bool placed = pack_answer_is_placed(&answers[0]); /* files are of one instance */
    int code = output_init("-o", placed ? options->output : NULL, csv);
    if (code == EXIT_GO_ON)
        code = output_init("--plot", placed ? options->plot : NULL, picture);
    if (code == EXIT_GO_ON)
        code = write_files(&answers[0], options, csv, picture);
    if (code == EXIT_GO_ON)
        code = outputs_sync(outputs, 2);
    if (code == EXIT_GO_ON)
        code = print(answers, options);
    if (code == EXIT_GO_ON)
        code = cli_flush();
    if (code == EXIT_GO_ON)
        code = outputs_commit(outputs, 2);
    outputs_finish(outputs, 2);
    return code == EXIT_GO_ON ? judge(answers, options) : code;
}

int cli_pack(int argc, char **argv)
{
    pack_options options;
    int code = pack_options_parse(argc, argv, &options);
    if (code != EXIT_GO_ON)
        return code;
    pack_answer *answers = calloc(options.file_count, sizeof *answers);
    if (answers == NULL)
        return cli_fail(EXIT_ENVIRONMENT, "out of memory");
    for (size_t i = 0; code == EXIT_GO_ON && i < options.file_count; i++)
        code = pack_answer_init(options.files[i], &options, &answers[i]);
    for (size_t i = 0; code == EXIT_GO_ON && i < options.file_count; i++)
        code = pack_answer_find(&answers[i], &options);
    if (code == EXIT_GO_ON)
        code = answer(answers, &options);
    for (size_t i = 0; i < options.file_count; i++)
        pack_answer_finish(&answers[i]);
    free(answers);
    return code;
}
