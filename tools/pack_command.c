/* `bucketpool pack`: packs instances or checks placements; lines, table, report, picture and CSV file. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "outputs.h"
#include "pack_answer.h"
#include "pack_report.h"
#include "picture_packing.h"

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
