/* SPDX-License-Identifier: Apache-2.0 */
/* `bucketpool pack`: packs instances or checks placements. Prints lines, a table or a document; writes a picture and
 * a CSV file. */
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/json_writer.h"
#include "core/print.h"
#include "formats/packing_file.h"
#include "pictures/pictures.h"
#include "shared/cli.h"
#include "shared/options.h"
#include "shared/outputs.h"
#include "shared/progress.h"
#include "shared/sheet.h"

typedef struct pack_options {
    char **files;
    size_t file_count;
    uint64_t capacity; /* 0: as small as possible */
    uint64_t work;     /* 0: the default */
    bool check, json;
    const char *plot, *output;
    cli_color color;
} pack_options;

/* ---- answers ----------------------------------------------------------------------------------------------------- */

typedef struct pack_answer {
    const char *path;
    bp_packing_file *file;
    bp_pack_result result;
    uint64_t *offsets; /* of the placement, when there is one */
    uint32_t *witness; /* items that set the bound */
    size_t witness_count;
    char fault[400]; /* --check: why the offsets are not valid; "": valid */
} pack_answer;

#define PACK_REASON_CHARS 640 /* see pack_answer_reason */

/* State of the proof, such as "proven optimal: the bound is reached". */
#define PACK_PROOF_CHARS 80

/* Characters of an id in a message. */
#define ID_CHARS 60

/* Prints the file and the library's detail. Returns the exit code. */
static int fail_about(const char *path, bp_status status)
{
    char text[1024];
    bp_print(text, sizeof text, "%.400s: %s", path, bp_error_detail());
    return cli_fail_status(bp_error_record(status, text));
}

static size_t item_count(const pack_answer *a)
{
    return bp_packing_get_info(bp_packing_file_packing(a->file))->item_count;
}

/* Reads a file. Returns EXIT_GO_ON or an exit code. Call pack_answer_finish either way. */
static int pack_answer_init(const char *path, const pack_options *options, pack_answer *answer)
{
    bool is_input = strcmp(path, "-") == 0;
    *answer = (pack_answer){.path = is_input ? "stdin" : path, .result = {.size = sizeof answer->result}};
    bp_status status = bp_packing_file_read(is_input ? "/dev/stdin" : path, &answer->file);
    if (status != BP_OK)
        return cli_fail_status(status);
    if (options->check && bp_packing_file_offsets(answer->file) == NULL)
        return cli_fail(EXIT_BAD_INPUT, "%.400s: no column \"offset\" to check; `bucketpool pack FILE -o CSV` adds one",
                        path);

    uint64_t capacity = options->capacity;
    const bp_packing *packing = bp_packing_file_packing(answer->file);
    for (size_t i = 0; capacity > 0 && i < item_count(answer); i++) {
        if (bp_packing_get_info(packing)->sizes[i] > capacity)
            return cli_fail(EXIT_BAD_INPUT, "%.400s: --capacity %llu is less than the size of item \"%.*s\", %llu",
                            answer->path, (unsigned long long)capacity, ID_CHARS, bp_packing_file_id(answer->file, i),
                            (unsigned long long)bp_packing_get_info(packing)->sizes[i]);
    }
    return EXIT_GO_ON;
}

static void pack_answer_finish(pack_answer *answer)
{
    bp_packing_file_destroy(&answer->file);
    free(answer->offsets);
    free(answer->witness);
    *answer = (pack_answer){0};
}

static int find_bound(pack_answer *a)
{
    uint64_t bound;
    bp_status status = bp_packing_bound(bp_packing_file_packing(a->file), a->witness, &a->witness_count, &bound);
    if (status != BP_OK)
        return fail_about(a->path, status);
    a->result.bound = bound;
    return EXIT_GO_ON;
}

/* ---- packing ----------------------------------------------------------------------------------------------------- */

/* There is a valid placement. */
static bool pack_answer_is_placed(const pack_answer *answer)
{
    return answer->result.outcome == BP_PACK_PLACED && *answer->fault == '\0';
}

/* Checks the result of the search before it is reported. */
static int verify(const pack_answer *a, uint64_t capacity)
{
    uint64_t max = capacity > 0 && capacity < a->result.bytes ? capacity : a->result.bytes;
    bp_status status = bp_packing_check(bp_packing_file_packing(a->file), a->offsets, max);
    if (status == BP_ERR_MISMATCH)
        return cli_fail(EXIT_NEGATIVE,
                        "%.400s: internal error, the computed placement is not valid: %s; please report it", a->path,
                        bp_error_detail());
    return status == BP_OK ? EXIT_GO_ON : fail_about(a->path, status);
}

static bp_pack_progress search; /* of the running search; SIGINT ends it */

static void describe_search(const void *user, char text[PROGRESS_DETAIL_CHARS])
{
    (void)user;
    uint64_t bytes = __atomic_load_n(&search.bytes, __ATOMIC_RELAXED);
    uint64_t proven = __atomic_load_n(&search.proven, __ATOMIC_RELAXED);
    if (bytes > 0 && proven > 0)
        snprintf(text, PROGRESS_DETAIL_CHARS, ", best %llu, %.2f %% above the proven minimum",
                 (unsigned long long)bytes, bytes > proven ? 100 * (double)(bytes - proven) / (double)proven : 0);
}

static int pack(pack_answer *a, const pack_options *options)
{
    bp_pack_config config;
    bp_status status = bp_pack_config_init(&config, sizeof config);
    config.capacity = options->capacity;
    config.work = options->work;
    config.progress = &search;
    search.bytes = search.proven = 0;
    if (status == BP_OK)
        status = bp_pack(bp_packing_file_packing(a->file), &config, a->offsets, &a->result);
    if (status != BP_OK)
        return fail_about(a->path, status);
    return pack_answer_is_placed(a) ? verify(a, options->capacity) : EXIT_GO_ON;
}

/* ---- checking ---------------------------------------------------------------------------------------------------- */

static void describe_fault(pack_answer *a, const bp_packing_fault *fault, uint64_t max)
{
    const bp_packing *packing = bp_packing_file_packing(a->file);
    const char *one = bp_packing_file_id(a->file, fault->item), *other = bp_packing_file_id(a->file, fault->other);
    unsigned long long size = bp_packing_get_info(packing)->sizes[fault->item], at = a->offsets[fault->item];
    if (fault->item == fault->other)
        bp_print(a->fault, sizeof a->fault, "item \"%.*s\" takes %llu at %llu and ends above the capacity of %llu",
                 ID_CHARS, one, size, at, (unsigned long long)max);
    else
        bp_print(a->fault, sizeof a->fault,
                 "items \"%.*s\" (%llu at %llu) and \"%.*s\" (%llu at %llu) share bytes and are live at the same time",
                 ID_CHARS, one, size, at, ID_CHARS, other,
                 (unsigned long long)bp_packing_get_info(packing)->sizes[fault->other],
                 (unsigned long long)a->offsets[fault->other]);
}

static int check_offsets(pack_answer *a, uint64_t capacity)
{
    const bp_packing *packing = bp_packing_file_packing(a->file);
    bp_packing_fault fault = {.size = sizeof fault};
    uint64_t total = 0;
    memcpy(a->offsets, bp_packing_file_offsets(a->file), item_count(a) * sizeof *a->offsets);
    for (size_t i = 0; i < item_count(a); i++) {
        uint64_t size = bp_packing_get_info(packing)->sizes[i],
                 end = a->offsets[i] + size; /* does not overflow: the reader checked it */
        total = size > 0 && end > total ? end : total;
    }
    uint64_t max = capacity > 0 ? capacity : total;
    bp_status status = bp_packing_find_fault(packing, a->offsets, max, &fault);
    if (status != BP_OK)
        return fail_about(a->path, status);
    if (fault.found)
        describe_fault(a, &fault, max);
    a->result.outcome = BP_PACK_PLACED;
    a->result.bytes = total;
    a->result.proven = a->result.bound;
    a->result.optimal = !fault.found && total == a->result.bound;
    return EXIT_GO_ON;
}

/* ---- both -------------------------------------------------------------------------------------------------------- */

/* Packs or checks. Returns EXIT_GO_ON, also when nothing fits or the offsets are not valid, or an exit code. */
static int pack_answer_find(pack_answer *answer, const pack_options *options)
{
    answer->offsets = calloc(item_count(answer), sizeof *answer->offsets);
    answer->witness = calloc(item_count(answer), sizeof *answer->witness);
    if (answer->offsets == NULL || answer->witness == NULL)
        return cli_fail(EXIT_ENVIRONMENT, "out of memory");
    progress p;
    char what[160];
    bp_print(what, sizeof what, "%s: %s %zu item%s", answer->path, options->check ? "checking" : "packing",
             item_count(answer), cli_plural(item_count(answer)));
    progress_watch(&p, what, describe_search, NULL);
    int code = find_bound(answer);
    if (code == EXIT_GO_ON)
        code = options->check ? check_offsets(answer, options->capacity) : pack(answer, options);
    progress_unwatch(&p);
    return code;
}

/* A placement was found, even if above the capacity. A proof of infeasibility needs none. */
static bool pack_answer_has_total(const pack_answer *answer)
{
    return answer->result.outcome == BP_PACK_PLACED || answer->result.bytes > 0;
}

static void pack_answer_reason(const pack_answer *answer, const pack_options *options, char reason[PACK_REASON_CHARS])
{
    const bp_pack_result *r = &answer->result;
    unsigned long long capacity = options->capacity, bound = r->bound, proven = r->proven, bytes = r->bytes;
    *reason = '\0';
    if (*answer->fault != '\0')
        bp_print(reason, PACK_REASON_CHARS, "%s", answer->fault);
    else if (r->outcome == BP_PACK_INFEASIBLE && r->bound > options->capacity)
        snprintf(reason, PACK_REASON_CHARS,
                 "infeasible, proven: %zu items that are live at the same time take %llu, the capacity is %llu",
                 answer->witness_count, bound, capacity);
    else if (r->outcome == BP_PACK_INFEASIBLE)
        snprintf(reason, PACK_REASON_CHARS,
                 "infeasible, proven: no placement takes less than %llu, the capacity is %llu", proven, capacity);
    else if (r->outcome == BP_PACK_NOT_FOUND)
        snprintf(reason, PACK_REASON_CHARS,
                 "not found within %llu steps of work: the best placement takes %llu, the capacity is %llu",
                 (unsigned long long)r->work, bytes, capacity);
}

/* Excess of the total over the lower bound, in percent. */
static double pack_answer_gap(const pack_answer *answer)
{
    const bp_pack_result *r = &answer->result;
    if (r->bytes <= r->bound)
        return 0;
    return 100 * (double)(r->bytes - r->bound) / (double)(r->bound > 0 ? r->bound : 1);
}

static const char *gap_text(const pack_answer *a)
{
    double gap = pack_answer_gap(a);
    return gap > 0 && gap < 0.01 ? "< 0.01 %" : cli_text("%.*f %%", gap > 0 ? 2 : 0, gap);
}

static void pack_proof_text(const pack_answer *answer, char text[PACK_PROOF_CHARS])
{
    const bp_pack_result *r = &answer->result;
    if (*answer->fault != '\0')
        snprintf(text, PACK_PROOF_CHARS, "none: the offsets are not valid");
    else if (r->outcome == BP_PACK_PLACED && r->optimal)
        bp_print(text, PACK_PROOF_CHARS, "proven optimal: the %s",
                 r->bytes == r->bound ? "bound is reached" : "search is exhausted");
    else if (r->outcome == BP_PACK_INFEASIBLE)
        snprintf(text, PACK_PROOF_CHARS, "no placement takes less than %llu", (unsigned long long)r->proven);
    else
        snprintf(text, PACK_PROOF_CHARS, "not proven: no placement takes less than %llu",
                 (unsigned long long)r->proven);
}

/* ---- lines ------------------------------------------------------------------------------------------------------- */

static void print_amount(const char *label, uint64_t amount, const char *more)
{
    cli_print_line(label, "%llu (%s)%s", (unsigned long long)amount, cli_bytes(amount), more);
}

/* "" when nothing was placed. */
static const char *method_text(const pack_answer *a)
{
    return a->result.method != NULL ? a->result.method : "";
}

static const char *capacity_text(const pack_answer *a)
{
    return a->result.outcome == BP_PACK_INFEASIBLE  ? ": infeasible, proven"
           : a->result.outcome == BP_PACK_NOT_FOUND ? ": not found within the work limit"
           : pack_answer_is_placed(a)               ? ": fits"
                                                    : "";
}

/* Prints the report of a single file. */
static int pack_report_lines(const pack_answer *answer, const pack_options *options)
{
    const bp_pack_result *r = &answer->result;
    char more[64];

    bool color = cli_wants_color(options->color);
    const bp_packing *packing = bp_packing_file_packing(answer->file);
    size_t items = bp_packing_get_info(packing)->item_count, intervals = bp_packing_get_info(packing)->interval_count;
    cli_print_title(answer->path, color);
    cli_print(": %zu item%s, live in %zu interval%s\n\n", items, cli_plural(items), intervals, cli_plural(intervals));

    if (pack_answer_has_total(answer))
        print_amount(r->outcome == BP_PACK_PLACED ? "total" : "best", r->bytes, "");
    bp_print(more, sizeof more, ", %zu item%s live at the same time", answer->witness_count,
             cli_plural(answer->witness_count));
    print_amount("bound", r->bound, more);
    if (pack_answer_has_total(answer))
        cli_print_line("gap", "%s", gap_text(answer));
    if (options->capacity > 0)
        print_amount("capacity", options->capacity, capacity_text(answer));

    char proof[PACK_PROOF_CHARS];
    pack_proof_text(answer, proof);
    cli_print_line("proof", "%s", proof);
    if (options->check)
        cli_print_line("offsets", "%s", pack_answer_is_placed(answer) ? "valid" : "not valid");
    else
        cli_print_line("method", "%s%s%s steps of work", method_text(answer), *method_text(answer) != '\0' ? ", " : "",
                       cli_count(answer->result.work));

    return EXIT_GO_ON;
}

/* ---- a table ----------------------------------------------------------------------------------------------------- */

static const char *verdict_text(const pack_answer *a)
{
    const bp_pack_result *r = &a->result;
    if (*a->fault != '\0')
        return "not valid";
    if (r->outcome != BP_PACK_PLACED)
        return r->outcome == BP_PACK_INFEASIBLE ? "infeasible" : "not found";
    return !r->optimal ? "no" : r->bytes == r->bound ? "bound reached" : "search exhausted";
}

/* Prints a line for each file. */
static int pack_report_table(const pack_answer *answers, size_t count, const pack_options *options)
{
    sheet s = sheet_new(cli_wants_color(options->color));
    size_t proven = 0;
    sheet_add_columns(&s, options->check ? "FILE|>ITEMS|>TOTAL|>BOUND|>GAP|PROVEN"
                                         : "FILE|>ITEMS|>TOTAL|>BOUND|>GAP|PROVEN|METHOD");
    for (size_t i = 0; i < count; i++) {
        const pack_answer *a = &answers[i];
        bool has_total = pack_answer_has_total(a), is_placed = pack_answer_is_placed(a);
        sheet_add_row(&s, a->path, cli_text("%zu", item_count(a)),
                      has_total ? cli_text("%llu", (unsigned long long)a->result.bytes) : "-",
                      cli_text("%llu", (unsigned long long)a->result.bound), has_total ? gap_text(a) : "-",
                      verdict_text(a), options->check ? NULL : method_text(a), NULL);
        if (!is_placed)
            sheet_color_line(&s, "red");
        else if (a->result.optimal)
            sheet_color_line(&s, "green");
        proven += is_placed && a->result.optimal;
    }
    int code = sheet_finish(&s);
    if (code == EXIT_GO_ON)
        printf("\n%zu of %zu proven optimal\n", proven, count);
    return code;
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static const char *outcome_text(const pack_answer *a, const pack_options *options)
{
    if (options->check)
        return *a->fault == '\0' ? "holds" : "does_not_hold";
    return a->result.outcome == BP_PACK_PLACED       ? "placed"
           : a->result.outcome == BP_PACK_INFEASIBLE ? "infeasible"
                                                     : "not_found";
}

static void print_answer(bp_json_writer *d, const pack_answer *a, const pack_options *options)
{
    const bp_pack_result *r = &a->result;
    char reason[PACK_REASON_CHARS];
    pack_answer_reason(a, options, reason);
    size_t items = item_count(a);
    bp_json_add_object(d, NULL);
    bp_json_add_text(d, "file", a->path);
    bp_json_add_number(d, "items", items);
    bp_json_add_text(d, "outcome", outcome_text(a, options));
    bp_json_add_text(d, "reason", *reason != '\0' ? reason : NULL);
    if (pack_answer_has_total(a)) {
        bp_json_add_number(d, "total", r->bytes);
        bp_json_add_real(d, "gap_percent", pack_answer_gap(a));
    } else {
        bp_json_add_null(d, "total");
        bp_json_add_null(d, "gap_percent");
    }
    bp_json_add_number(d, "bound", r->bound);
    bp_json_add_number(d, "proven", r->proven);
    bp_json_add_flag(d, "optimal", r->optimal);
    bp_json_add_text(d, "method", r->method);
    bp_json_add_number(d, "work", r->work);
    bp_json_add_row(d, "witness");
    for (size_t i = 0; i < a->witness_count; i++)
        bp_json_add_text(d, NULL, bp_packing_file_id(a->file, a->witness[i]));
    bp_json_end(d);
    if (r->outcome == BP_PACK_PLACED) {
        bp_json_add_row(d, "offsets");
        for (size_t i = 0; i < items; i++)
            bp_json_add_number(d, NULL, a->offsets[i]);
        bp_json_end(d);
    } else {
        bp_json_add_null(d, "offsets");
    }
    bp_json_end(d);
}

/* bucketpool.pack/1 */
static int pack_report_json(const pack_answer *answers, size_t count, const pack_options *options)
{
    bp_json_writer d = {0};
    bp_json_add_object(&d, NULL);
    bp_json_add_text(&d, "format", "bucketpool.pack/1");
    if (options->capacity > 0)
        bp_json_add_number(&d, "capacity", options->capacity);
    else
        bp_json_add_null(&d, "capacity");
    bp_json_add_list(&d, "files");
    for (size_t i = 0; i < count; i++)
        print_answer(&d, &answers[i], options);
    bp_json_end(&d);
    bp_json_end(&d);
    return cli_print_json(&d);
}

/* ---- options ----------------------------------------------------------------------------------------------------- */

#define FIELD(member) offsetof(pack_options, member)

static const option_row pack_table[] = {
    {.kind = OPTION_HEADING, .text = "Packing:", .group = 1},
    {"capacity", "N", "Find any placement of at most N, in the unit of the sizes, instead of the smallest", OPTION_U64,
     FIELD(capacity), .min = 1},
    {"work", "N",
     "Limit of the search, in steps of very roughly a nanosecond; the result does not depend on the machine",
     OPTION_U64, FIELD(work), .min = 1},
    {"check", NULL, "Check the offsets in FILE instead of packing", OPTION_FLAG, FIELD(check)},
    {.kind = OPTION_HEADING, .text = "Output:", .group = 2},
    {"json", NULL, "Print a bucketpool.pack/1 document", OPTION_FLAG, FIELD(json)},
    {"plot", "FILE", "Draw the placement (.svg)", OPTION_PICTURE, FIELD(plot)},
    {"output", "CSV", "Write the rows of FILE with an offset column; -: to standard output instead of the report",
     OPTION_FILE, FIELD(output), .letter = 'o'},
    {"color", "WHEN", "auto, always or never (default auto)", OPTION_CHOICE, FIELD(color), choices_color},
    OPTION_END,
};

static int check(const pack_options *o)
{
    if (o->file_count == 0)
        return cli_fail(EXIT_BAD_INPUT,
                        "pack: no file given; give a CSV file with the columns id, lower, upper and size");
    if (o->file_count > 1 && (o->output != NULL || o->plot != NULL))
        return cli_fail(EXIT_BAD_INPUT, "%s requires one file, got %zu", o->output != NULL ? "-o" : "--plot",
                        o->file_count);
    if (o->check && (o->output != NULL || o->work > 0))
        return cli_fail(EXIT_BAD_INPUT, "%s cannot be used with --check; leave one out",
                        o->output != NULL ? "-o" : "--work");
    size_t inputs = 0;
    for (size_t i = 0; i < o->file_count; i++)
        inputs += strcmp(o->files[i], "-") == 0;
    if (inputs > 1)
        return cli_fail(EXIT_BAD_INPUT, "pack: only one file can be standard input (-), got %zu", inputs);
    if (output_is_standard(o->output) && o->json)
        return cli_fail(EXIT_BAD_INPUT, "--json and -o - both write to standard output; give -o a file");
    if (o->output != NULL && o->plot != NULL && strcmp(o->output, o->plot) == 0)
        return cli_fail(EXIT_BAD_INPUT, "-o and --plot name the same file, %s", o->plot);
    return EXIT_GO_ON;
}

/* Reads the arguments after the command's name. Returns EXIT_GO_ON, or the exit code after a message. */
static int pack_options_parse(int argc, char **argv, pack_options *options)
{
    *options = (pack_options){0};
    const options_command reading = {
        .name = "pack",
        .arguments = "FILE...",
        .text =
            "Packs the items of FILE: assigns offsets such that items with overlapping live ranges share no bytes, and "
            "minimises the total.\vFILE is CSV (-: standard input): a header with the columns id, "
            "lower, upper, size and optionally gaps and offset, and a row for each item. An item is live in [lower, "
            "upper) "
            "without its gaps. Exit: 0 placed, or the offsets are valid; 1 nothing fits the capacity, "
            "nothing that fits was found, or the offsets are not valid; 2 bad input, 3 environment.",
        .tables = {pack_table},
        .options = options,
        .files = &options->files,
        .file_count = &options->file_count};
    CLI_TRY(options_read(argc, argv, &reading));
    return check(options);
}

/* ---- the command ------------------------------------------------------------------------------------------------- */

static const char *id_of(const void *user, size_t item, char text[PICTURE_LABEL_CHARS])
{
    (void)text;
    return bp_packing_file_id(user, item);
}

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
    bp_print(title, sizeof title, "%.120s: %zu item%s", slash != NULL ? slash + 1 : a->path, item_count(a),
             cli_plural(item_count(a)));
    pack_proof_text(a, proof);
    const packing_picture input = {.title = title,
                                   .proof = proof,
                                   .packing = bp_packing_file_packing(a->file),
                                   .offsets = a->offsets,
                                   .total = a->result.bytes,
                                   .bound = a->result.bound,
                                   .label = id_of,
                                   .user = a->file,
                                   .unit = "time"};
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

/* Prints a line to standard error for each file without a valid placement. Returns the exit code. */
static int report_failures(const pack_answer *answers, const pack_options *options)
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

/* Files are committed after all of them were written and the report was printed. */
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
    code = outputs_end(outputs, 2, code);
    return code == EXIT_GO_ON ? report_failures(answers, options) : code;
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
    interrupt_watch(&search.stop);
    for (size_t i = 0; code == EXIT_GO_ON && i < options.file_count; i++)
        code = pack_answer_find(&answers[i], &options);
    if (code == EXIT_GO_ON && interrupt_came())
        cli_fail(code, "interrupted: the report has the best placement so far");
    if (code == EXIT_GO_ON)
        code = answer(answers, &options);
    for (size_t i = 0; i < options.file_count; i++)
        pack_answer_finish(&answers[i]);
    free(answers);
    interrupt_pass_on();
    return code;
}
