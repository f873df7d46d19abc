/* The answers of `bench logprob`: a table or a document. */
#include "bench/command/report.h"

#include <math.h>
#include <stdio.h>

#include "files/json_writer.h"
#include "shared/cli.h"
#include "shared/sheet.h"

/* ---- the document ------------------------------------------------------------------------------------------------ */

static void real_or_null(bp_json_writer *d, const char *key, bool known, double value)
{
    bp_json_add_real(d, key, known ? value : NAN);
}

static void number_or_null(bp_json_writer *d, const char *key, bool known, uint64_t value)
{
    if (known)
        bp_json_add_number(d, key, value);
    else
        bp_json_add_null(d, key);
}

static void text_or_null(bp_json_writer *d, const char *key, const char *text)
{
    bp_json_add_text(d, key, *text != '\0' ? text : NULL);
}

static void print_row(bp_json_writer *d, const bench *b, const bench_row *row)
{
    bool known = row->measured, logits = known && b->options->head == 0, head = known && b->options->head > 0;
    bp_json_add_object(d, NULL);
    bp_json_add_number(d, "seq", row->shape->seq);
    bp_json_add_number(d, "vocab", row->shape->vocab);
    bp_json_add_number(d, "chunk", row->chunk);
    bp_json_add_number(d, "unscaled_seq", row->shape->unscaled_seq);
    real_or_null(d, "time_ms", known, 1e3 * row->seconds);
    real_or_null(d, "forward_ms", known, 1e3 * row->forward_seconds);
    real_or_null(d, "backward_ms", known, 1e3 * row->backward_seconds);
    number_or_null(d, "peak_bytes", known, row->peak_bytes);
    number_or_null(d, "workspace_bytes", known, row->workspace_bytes);
    number_or_null(d, "planned_workspace_bytes", known, row->planned_bytes);
    number_or_null(d, "bytes_per_logit", b->options->head == 0, bench_bytes_per_logit(b->options));
    real_or_null(d, "bandwidth_fraction", logits, bench_row_bandwidth_fraction(b->options, row));
    real_or_null(d, "copy_bytes_per_s", logits, row->copy_bytes_per_s);
    real_or_null(d, "products_ms", head, 1e3 * row->products_seconds);
    real_or_null(d, "products_ratio", head, bench_row_products_ratio(row));
    text_or_null(d, "error", row->error);
    bp_json_end(d);
}

int bench_report_json(const bench *b)
{
    const bench_options *o = b->options;
    bp_json_writer d = {0};
    bp_json_add_object(&d, NULL);
    bp_json_add_text(&d, "format", "bucketpool.bench/1");
    bp_json_add_text(&d, "bench", "logprob");
    bp_json_add_text(&d, "device", bp_device_name(b->device.device));
    text_or_null(&d, "device_model", b->device.model);
    text_or_null(&d, "kernels", b->kernels);
    text_or_null(&d, "products", b->products);
    bp_json_add_number(&d, "threads", b->threads);
    bp_json_add_number(&d, "scale", b->scale);
    bp_json_add_flag(&d, "scale_picked", o->scale == 0);
    bp_json_add_number(&d, "turns", o->turns);
    real_or_null(&d, "copy_bytes_per_s", b->copy_bytes_per_s > 0, b->copy_bytes_per_s);
    bp_json_add_text(&d, "dtype", bp_dtype_name(o->dtype));
    bp_json_add_text(&d, "grad_dtype", bench_gradient_name(o->gradient));
    bp_json_add_flag(&d, "entropy", o->entropy);
    number_or_null(&d, "hidden", o->head > 0, o->head);
    bp_json_add_list(&d, "rows");
    for (size_t i = 0; i < b->row_count; i++)
        print_row(&d, b, &b->rows[i]);
    bp_json_end(&d);
    bp_json_end(&d);
    return cli_print_json(&d);
}

/* ---- tables ------------------------------------------------------------------------------------------------------ */

#define CELL_CHARS 64
#define MOST_COLUMNS 12

/* ---- the heading ------------------------------------------------------------------------------------------------------------ */

static void print_machine(const bench *b)
{
    if (b->device.cuda)
        printf("cuda, %s", b->device.model);
    else if (*b->kernels != '\0')
        printf("host, %s kernels, %u thread%s", b->kernels, b->threads, b->threads == 1 ? "" : "s");
    else
        printf("host");
    if (*b->products != '\0')
        printf(", products by %s", b->products);
    if (b->copy_bytes_per_s > 0)
        printf("; copies at %.1f GB/s, read and written", 1e-9 * b->copy_bytes_per_s);
}

static void print_heading(const bench *b)
{
    const bench_options *o = b->options;
    bool color = cli_wants_color(o->color);
    printf("%s", color ? "\033[1m" : "");
    print_machine(b);
    printf("%s\n", color ? "\033[0m" : "");
    if (o->head > 0)
        printf("fused head, hidden size %llu, %s, %s gradient of hidden states", (unsigned long long)o->head,
               bp_dtype_name(o->dtype), bp_dtype_name(bench_gradient_dtype(o)));
    else
        printf("%s logits, %s gradient%s", bp_dtype_name(o->dtype), bp_dtype_name(bench_gradient_dtype(o)),
               o->gradient == BENCH_GRADIENT_IN_PLACE ? " in their place" : "");
    printf("%s; ", o->entropy ? ", entropies too" : "");
    if (b->scale > 1)
        printf("sequences divided by %llu%s; ", (unsigned long long)b->scale, o->scale == 0 ? ", picked" : "");
    printf("median of %s%llu turn%s\n\n", interrupt_came() ? "up to " : "", (unsigned long long)o->turns,
           o->turns == 1 ? "" : "s");
}

/* ---- the table ---------------------------------------------------------------------------------------------------------------- */

static void milliseconds(char text[CELL_CHARS], double seconds)
{
    double ms = 1e3 * seconds;
    snprintf(text, CELL_CHARS, "%.*f ms", ms < 1 ? 4 : ms < 100 ? 2 : 1, ms);
}

/* What stands in every row. */
static size_t shape_cells(const bench_row *row, char cells[][CELL_CHARS])
{
    snprintf(cells[0], CELL_CHARS, "%llu", (unsigned long long)row->shape->seq);
    snprintf(cells[1], CELL_CHARS, "%llu", (unsigned long long)row->shape->vocab);
    if (row->chunk == 0)
        snprintf(cells[2], CELL_CHARS, "none");
    else
        snprintf(cells[2], CELL_CHARS, "%llu", (unsigned long long)row->chunk);
    return 3;
}

static void figure_cells(const bench *b, const bench_row *row, size_t next, char cells[][CELL_CHARS])
{
    milliseconds(cells[next++], row->seconds);
    milliseconds(cells[next++], row->forward_seconds);
    milliseconds(cells[next++], row->backward_seconds);
    if (b->options->head > 0) {
        milliseconds(cells[next++], row->products_seconds);
        snprintf(cells[next++], CELL_CHARS, "%.3f", bench_row_products_ratio(row));
    }
    snprintf(cells[next++], CELL_CHARS, "%s", cli_bytes(row->peak_bytes));
    snprintf(cells[next++], CELL_CHARS, "%s", cli_bytes(row->workspace_bytes));
    if (b->options->head == 0) {
        snprintf(cells[next++], CELL_CHARS, "%llu", (unsigned long long)bench_bytes_per_logit(b->options));
        snprintf(cells[next], CELL_CHARS, "%.1f %%", 100 * bench_row_bandwidth_fraction(b->options, row));
    }
}

static void add_row(sheet *s, const bench *b, const bench_row *row, size_t columns)
{
    char cells[MOST_COLUMNS][CELL_CHARS] = {""};
    size_t next = shape_cells(row, cells);
    if (row->measured)
        figure_cells(b, row, next, cells);
    sheet_add_line(s);
    for (size_t i = 0; i < columns; i++)
        sheet_set_cell(s, i, row->measured || i < next ? cells[i] : "-");
    if (*row->error != '\0') {
        sheet_set_cell(s, columns, row->error);
        sheet_color_line(s, "red");
    }
}

static bool has_errors(const bench *b)
{
    bool has = false;
    for (size_t i = 0; i < b->row_count; i++)
        has = has || *b->rows[i].error != '\0';
    return has;
}

int bench_report_table(const bench *b)
{
    static const char *const logits[] = {"SEQUENCE", "VOCABULARY", "CHUNK",     "TIME",    "FORWARD",
                                         "BACKWARD", "PEAK",       "WORKSPACE", "B/LOGIT", "BANDWIDTH"};
    static const char *const head[] = {"SEQUENCE", "VOCABULARY", "CHUNK",      "TIME", "FORWARD",
                                       "BACKWARD", "PRODUCTS",   "x PRODUCTS", "PEAK", "WORKSPACE"};
    const char *const *titles = b->options->head > 0 ? head : logits;
    size_t columns = sizeof logits / sizeof *logits;
    print_heading(b);
    sheet s = sheet_new(cli_wants_color(b->options->color));
    for (size_t i = 0; i < columns; i++)
        sheet_add_column(&s, titles[i], true);
    if (has_errors(b))
        sheet_add_column(&s, "", false);
    for (size_t i = 0; i < b->row_count; i++)
        add_row(&s, b, &b->rows[i], columns);
    return sheet_finish(&s);
}
