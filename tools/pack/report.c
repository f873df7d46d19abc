/* The answers of `pack`: lines, a table or a document. */
#include "pack/report.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "files/json_writer.h"
#include "shared/cli.h"
#include "shared/sheet.h"

#define GAP_CHARS 32

static const char *gap_text(const pack_answer *a, char text[GAP_CHARS])
{
    double gap = pack_answer_gap(a);
    if (gap > 0 && gap < 0.01)
        snprintf(text, GAP_CHARS, "< 0.01 %%");
    else
        snprintf(text, GAP_CHARS, "%.*f %%", gap > 0 ? 2 : 0, gap);
    return text;
}

void pack_proof_text(const pack_answer *answer, char text[PACK_PROOF_CHARS])
{
    const bp_pack_result *r = &answer->result;
    if (*answer->fault != '\0')
        snprintf(text, PACK_PROOF_CHARS, "none: the offsets do not hold");
    else if (r->outcome == BP_PACK_PLACED && r->optimal)
        snprintf(text, PACK_PROOF_CHARS, "proven optimal: the %s",
                 r->bytes == r->bound ? "bound is reached" : "search is exhausted");
    else if (r->outcome == BP_PACK_INFEASIBLE)
        snprintf(text, PACK_PROOF_CHARS, "no placement takes less than %llu", (unsigned long long)r->proven);
    else
        snprintf(text, PACK_PROOF_CHARS, "not proven: no placement takes less than %llu",
                 (unsigned long long)r->proven);
}

static const char *plural(size_t count)
{
    return count == 1 ? "" : "s";
}

/* ---- lines ------------------------------------------------------------------------------------------------------------------ */

__attribute__((format(printf, 2, 3))) static void print_line(const char *label, const char *format, ...)
{
    va_list args;
    printf("%-10s", label);
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    putchar('\n');
}

static void print_amount(const char *label, uint64_t amount, const char *more)
{
    print_line(label, "%llu (%s)%s", (unsigned long long)amount, cli_bytes(amount), more);
}

static void print_heading(const pack_answer *a, const pack_options *options)
{
    bool color = cli_wants_color(options->color);
    const bp_packing *packing = bp_packing_file_packing(a->file);
    size_t items = bp_packing_get_info(packing)->item_count, intervals = bp_packing_get_info(packing)->interval_count;
    printf("%s%s%s: %zu item%s, live in %zu interval%s\n\n", color ? "\033[1m" : "", a->path, color ? "\033[0m" : "",
           items, plural(items), intervals, plural(intervals));
}

/* "" when nothing was placed. */
static const char *method_text(const pack_answer *a)
{
    return a->result.method != NULL ? a->result.method : "";
}

static const char *capacity_text(const pack_answer *a)
{
    return a->result.outcome == BP_PACK_INFEASIBLE  ? ": infeasible, proven"
           : a->result.outcome == BP_PACK_NOT_FOUND ? ": not found within the work budget"
           : pack_answer_is_placed(a)               ? ": fits"
                                                    : "";
}

static void print_proof(const pack_answer *a, const pack_options *options)
{
    char proof[PACK_PROOF_CHARS];
    pack_proof_text(a, proof);
    print_line("proof", "%s", proof);
    if (options->check)
        print_line("offsets", "%s", pack_answer_is_placed(a) ? "hold" : "do not hold");
    else
        print_line("method", "%s%s%s steps of work", method_text(a), *method_text(a) != '\0' ? ", " : "",
                   cli_count(a->result.work));
}

int pack_report_lines(const pack_answer *answer, const pack_options *options)
{
    const bp_pack_result *r = &answer->result;
    char more[64], gap[GAP_CHARS];
    print_heading(answer, options);
    if (pack_answer_has_total(answer))
        print_amount(r->outcome == BP_PACK_PLACED ? "total" : "best", r->bytes, "");
    snprintf(more, sizeof more, ", %zu item%s live at the same time", answer->witness_count,
             plural(answer->witness_count));
    print_amount("bound", r->bound, more);
    if (pack_answer_has_total(answer))
        print_line("gap", "%s", gap_text(answer, gap));
    if (options->capacity > 0)
        print_amount("capacity", options->capacity, capacity_text(answer));
    print_proof(answer, options);
    return EXIT_GO_ON;
}

/* ---- a table ---------------------------------------------------------------------------------------------------------------- */

static const char *verdict_text(const pack_answer *a)
{
    const bp_pack_result *r = &a->result;
    if (*a->fault != '\0')
        return "does not hold";
    if (r->outcome != BP_PACK_PLACED)
        return r->outcome == BP_PACK_INFEASIBLE ? "infeasible" : "not found";
    return !r->optimal ? "no" : r->bytes == r->bound ? "bound reached" : "search exhausted";
}

static void add_answer(sheet *s, const pack_answer *a, bool with_method)
{
    char items[24], total[24], bound[24], gap[GAP_CHARS];
    snprintf(items, sizeof items, "%zu", bp_packing_get_info(bp_packing_file_packing(a->file))->item_count);
    snprintf(total, sizeof total, "%llu", (unsigned long long)a->result.bytes);
    snprintf(bound, sizeof bound, "%llu", (unsigned long long)a->result.bound);
    sheet_add_line(s);
    bool has_total = pack_answer_has_total(a);
    const char *const cells[] = {
        a->path,         items,         has_total ? total : "-", bound, has_total ? gap_text(a, gap) : "-",
        verdict_text(a), method_text(a)};
    for (size_t i = 0; i < (with_method ? 7 : 6); i++)
        sheet_set_cell(s, i, cells[i]);
    if (!pack_answer_is_placed(a))
        sheet_color_line(s, "red");
    else if (a->result.optimal)
        sheet_color_line(s, "green");
}

int pack_report_table(const pack_answer *answers, size_t count, const pack_options *options)
{
    static const char *const titles[] = {"FILE", "ITEMS", "TOTAL", "BOUND", "GAP", "PROVEN", "METHOD"};
    sheet s = sheet_new(cli_wants_color(options->color));
    size_t proven = 0;
    for (size_t i = 0; i < (options->check ? 6 : 7); i++)
        sheet_add_column(&s, titles[i], i >= 1 && i <= 4);
    for (size_t i = 0; i < count; i++) {
        add_answer(&s, &answers[i], !options->check);
        proven += pack_answer_is_placed(&answers[i]) && answers[i].result.optimal;
    }
    int code = sheet_finish(&s);
    if (code == EXIT_GO_ON)
        printf("\n%zu of %zu proven optimal\n", proven, count);
    return code;
}

/* ---- JSON ----------------------------------------------------------------------------------------------------------------------- */

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
    size_t items = bp_packing_get_info(bp_packing_file_packing(a->file))->item_count;
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

int pack_report_json(const pack_answer *answers, size_t count, const pack_options *options)
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
