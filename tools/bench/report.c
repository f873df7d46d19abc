/* SPDX-License-Identifier: Apache-2.0 */
/* Output of `bucketpool bench logprob`: a table or a JSON document. */
#include <math.h>
#include <stdio.h>

#include "bench/setup.h"
#include "core/json_writer.h"
#include "shared/cli.h"
#include "shared/sheet.h"

/* ---- log-probabilities: figures ---------------------------------------------------------------------------------- */

/* Bytes per logit: read forward, read backward unless in the same call, and its gradient written. */
static uint64_t bytes_per_logit(const bench *b)
{
    return ((b->options->fused ? 1 : 2) * (uint64_t)bp_dtype_bits(b->options->dtype) +
            bp_dtype_bits(b->gradient_dtype)) /
           8;
}

/* Counted bytes per second, over those of copies. */
static double bandwidth_fraction(const bench *b, const bench_row *row)
{
    double counted = (double)bytes_per_logit(b) * (double)row->shape->seq * (double)row->shape->vocab;
    return row->measured && row->copy_bytes_per_s > 0 ? counted / row->seconds / row->copy_bytes_per_s : 0;
}

/* Head: its time over that of its matrix products alone. */
static double products_ratio(const bench_row *row)
{
    return row->products_seconds > 0 ? row->seconds / row->products_seconds : 0;
}

/* ---- log-probabilities: the document ----------------------------------------------------------------------------- */

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
    number_or_null(d, "bytes_per_logit", b->options->head == 0, bytes_per_logit(b));
    real_or_null(d, "bandwidth_fraction", logits, bandwidth_fraction(b, row));
    real_or_null(d, "copy_bytes_per_s", logits, row->copy_bytes_per_s);
    real_or_null(d, "products_ms", head && row->products_seconds > 0, 1e3 * row->products_seconds);
    real_or_null(d, "products_ratio", head && row->products_seconds > 0, products_ratio(row));
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
    bp_json_add_number(&d, "turns", o->common.turns);
    real_or_null(&d, "copy_bytes_per_s", b->copy_bytes_per_s > 0, b->copy_bytes_per_s);
    bp_json_add_text(&d, "dtype", bp_dtype_name(o->dtype));
    bp_json_add_text(&d, "grad_dtype", bench_gradient_name(o->gradient));
    bp_json_add_flag(&d, "entropy", o->entropy);
    bp_json_add_flag(&d, "fused", o->fused);
    number_or_null(&d, "hidden", o->head > 0, o->head);
    bp_json_add_list(&d, "rows");
    for (size_t i = 0; i < b->row_count; i++)
        print_row(&d, b, &b->rows[i]);
    bp_json_end(&d);
    bp_json_end(&d);
    return cli_print_json(&d);
}

/* ---- log-probabilities: the table -------------------------------------------------------------------------------- */

static void print_heading(const bench *b)
{
    const bench_options *o = b->options;
    bool color = cli_wants_color(o->common.color);
    printf("%s", color ? "\033[1m" : "");
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
    printf("%s\n", color ? "\033[0m" : "");
    const char *passes = o->fused ? "both passes in one call, " : "";
    if (o->head > 0)
        printf("%sfused head, hidden size %llu, %s, %s gradient of hidden states", passes, (unsigned long long)o->head,
               bp_dtype_name(o->dtype), bp_dtype_name(b->gradient_dtype));
    else
        printf("%s%s logits, %s gradient%s", passes, bp_dtype_name(o->dtype), bp_dtype_name(b->gradient_dtype),
               o->gradient == BENCH_GRADIENT_IN_PLACE ? " in place" : "");
    printf("%s; ", o->entropy ? ", entropies too" : "");
    if (b->scale > 1)
        printf("sequences divided by %llu%s; ", (unsigned long long)b->scale, o->scale == 0 ? ", picked" : "");
    printf("median of %s%llu turn%s\n\n", interrupt_came() ? "up to " : "", (unsigned long long)o->common.turns,
           o->common.turns == 1 ? "" : "s");
}

#define CELL_CHARS 64
#define LOGPROB_COLUMNS 10
#define SHAPE_COLUMNS 3 /* columns of a shape, also in unmeasured rows */

static void add_row(sheet *s, const bench *b, const bench_row *row)
{
    char cells[LOGPROB_COLUMNS][CELL_CHARS];
    for (size_t i = 0; i < LOGPROB_COLUMNS; i++)
        snprintf(cells[i], CELL_CHARS, "-");
    snprintf(cells[0], CELL_CHARS, "%llu", (unsigned long long)row->shape->seq);
    snprintf(cells[1], CELL_CHARS, "%llu", (unsigned long long)row->shape->vocab);
    snprintf(cells[2], CELL_CHARS, "%llu", (unsigned long long)row->chunk);
    if (row->chunk == 0)
        snprintf(cells[2], CELL_CHARS, "none");
    if (row->measured) {
        size_t next = SHAPE_COLUMNS;
        bench_milliseconds(cells[next++], row->seconds);
        bench_milliseconds(cells[next++], row->forward_seconds);
        bench_milliseconds(cells[next++], row->backward_seconds);
        if (row->products_seconds > 0) {
            bench_milliseconds(cells[next], row->products_seconds);
            snprintf(cells[next + 1], CELL_CHARS, "%.3f", products_ratio(row));
        }
        if (b->options->head > 0)
            next += 2;
        snprintf(cells[next++], CELL_CHARS, "%s", cli_bytes(row->peak_bytes));
        snprintf(cells[next++], CELL_CHARS, "%s", cli_bytes(row->workspace_bytes));
        if (b->options->head == 0) {
            snprintf(cells[next++], CELL_CHARS, "%llu", (unsigned long long)bytes_per_logit(b));
            snprintf(cells[next], CELL_CHARS, "%.1f %%", 100 * bandwidth_fraction(b, row));
        }
    }
    sheet_add_line(s);
    for (size_t i = 0; i < LOGPROB_COLUMNS; i++)
        sheet_set_cell(s, i, cells[i]);
    if (*row->error != '\0') {
        sheet_set_cell(s, LOGPROB_COLUMNS, row->error);
        sheet_color_line(s, "red");
    }
}

int bench_report_table(const bench *b)
{
    static const char *const logits[LOGPROB_COLUMNS] = {"SEQUENCE", "VOCABULARY", "CHUNK",     "TIME",    "FORWARD",
                                                        "BACKWARD", "PEAK",       "WORKSPACE", "B/LOGIT", "BANDWIDTH"};
    static const char *const head[LOGPROB_COLUMNS] = {"SEQUENCE", "VOCABULARY", "CHUNK",      "TIME", "FORWARD",
                                                      "BACKWARD", "PRODUCTS",   "x PRODUCTS", "PEAK", "WORKSPACE"};
    bool has_errors = false;
    print_heading(b);
    sheet s = sheet_new(cli_wants_color(b->options->common.color));
    for (size_t i = 0; i < LOGPROB_COLUMNS; i++)
        sheet_add_column(&s, b->options->head > 0 ? head[i] : logits[i], true);
    for (size_t i = 0; i < b->row_count; i++)
        has_errors = has_errors || *b->rows[i].error != '\0';
    if (has_errors)
        sheet_add_column(&s, "", false);
    for (size_t i = 0; i < b->row_count; i++)
        add_row(&s, b, &b->rows[i]);
    return sheet_finish(&s);
}
