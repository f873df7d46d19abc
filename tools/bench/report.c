/* Output of the benchmarks: a table or a JSON document. */
#include <math.h>
#include <stdio.h>

#include "bench/offload.h"
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
    real_or_null(d, "products_ms", head, 1e3 * row->products_seconds);
    real_or_null(d, "products_ratio", head, products_ratio(row));
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
    if (o->head > 0)
        printf("fused head, hidden size %llu, %s, %s gradient of hidden states", (unsigned long long)o->head,
               bp_dtype_name(o->dtype), bp_dtype_name(b->gradient_dtype));
    else
        printf("%s%s logits, %s gradient%s", o->fused ? "both passes in one call, " : "", bp_dtype_name(o->dtype),
               bp_dtype_name(b->gradient_dtype), o->gradient == BENCH_GRADIENT_IN_PLACE ? " in place" : "");
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
        if (b->options->head > 0) {
            bench_milliseconds(cells[next++], row->products_seconds);
            snprintf(cells[next++], CELL_CHARS, "%.3f", products_ratio(row));
        }
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

/* ---- offloads: the document -------------------------------------------------------------------------------------- */

static void print_three(bp_json_writer *d, const char *key, double median, double least, double most)
{
    bp_json_add_object(d, key);
    bp_json_add_real(d, "median", median);
    bp_json_add_real(d, "min", least);
    bp_json_add_real(d, "max", most);
    bp_json_end(d);
}

static void print_spread(bp_json_writer *d, const char *key, const bench_spread *s, double factor)
{
    print_three(d, key, factor * s->median, factor * s->least, factor * s->most);
}

/* The highest rate is that of the shortest turn. */
static void print_rate(bp_json_writer *d, const char *key, const bench_offload *b, const bench_spread *s)
{
    double gib = (double)b->groups.bytes / (double)(UINT64_C(1) << 30);
    print_three(d, key, gib / s->median, gib / s->most, gib / s->least);
}

static void print_way(bp_json_writer *d, const char *key, const bench_offload *b, const bench_way *w, double first)
{
    bp_json_add_object(d, key);
    print_rate(d, "gib_per_s", b, &w->whole);
    print_rate(d, "copy_gib_per_s", b, &w->copies);
    print_rate(d, "plain_gib_per_s", b, &w->plain);
    print_spread(d, "ratio", &w->ratio, 1);
    print_spread(d, "whole_ratio", &w->whole_ratio, 1);
    print_spread(d, "ms", &w->whole, 1e3);
    print_spread(d, "without_copy_ms", &w->without, 1e3);
    print_spread(d, "copy_ms", &w->copies, 1e3);
    print_spread(d, "plain_ms", &w->plain, 1e3);
    bp_json_add_real(d, "first_ms", 1e3 * first);
    bp_json_end(d);
}

static void add_moments(bp_json_writer *d, const char *key, const uint64_t bytes[MOMENT_COUNT])
{
    bp_json_add_object(d, key);
    bp_json_add_number(d, "before", bytes[MOMENT_BEFORE]);
    bp_json_add_number(d, "kept", bytes[MOMENT_KEPT]);
    bp_json_add_number(d, "discarded", bytes[MOMENT_DISCARDED]);
    bp_json_add_number(d, "after", bytes[MOMENT_AFTER]);
    bp_json_end(d);
}

static void print_backing(bp_json_writer *d, const bench_offload *b)
{
    const bp_pinned_statistics *s = &b->kept;
    bp_json_add_object(d, "backing");
    bp_json_add_text(d, "asked", bench_backing_name(b->options->backing));
    bp_json_add_text(d, "used", b->pinned ? "pinned" : "staged");
    bp_json_add_number(d, "host_bytes", b->host_bytes);
    bp_json_add_number(d, "pinned_bytes", s->pinned_bytes);
    bp_json_add_number(d, "huge_bytes", s->huge_bytes);
    bp_json_add_real(d, "pin_ms", 1e-6 * (double)s->pin_ns);
    bp_json_add_real(d, "touch_ms", 1e-6 * (double)s->touch_ns);
    bp_json_end(d);
}

int bench_offload_json(const bench_offload *b)
{
    const bench_groups *g = &b->groups;
    bp_json_writer d = {0};
    bp_json_add_object(&d, NULL);
    bp_json_add_text(&d, "format", "bucketpool.bench/1");
    bp_json_add_text(&d, "bench", "offload");
    bp_json_add_text(&d, "device", bp_device_name(b->device.device));
    bp_json_add_text(&d, "device_model", *b->device.model != '\0' ? b->device.model : NULL);
    bp_json_add_number(&d, "bytes", g->bytes);
    bp_json_add_number(&d, "groups", g->count);
    bp_json_add_number(&d, "parts", g->part_count);
    bp_json_add_number(&d, "chunk_bytes", b->options->chunk_bytes);
    bp_json_add_number(&d, "turns", b->done);
    print_way(&d, "out", b, &b->out, b->first[LEG_KEPT_OUT]);
    print_way(&d, "back", b, &b->back, b->first[LEG_KEPT_BACK]);
    print_backing(&d, b);
    add_moments(&d, "device_bytes", b->used);
    add_moments(&d, b->device.cuda ? "gpu_used_bytes" : "resident_bytes", b->seen);
    bp_json_add_text(&d, "error", *b->wrong != '\0' ? b->wrong : NULL);
    bp_json_end(&d);
    return cli_print_json(&d);
}

/* ---- offloads: the table ----------------------------------------------------------------------------------------- */

static const char *plural(uint64_t count)
{
    return count == 1 ? "" : "s";
}

static void add_way(sheet *s, const bench_offload *b, const char *name, const bench_way *w)
{
    char cells[9][CELL_CHARS];
    double gib = (double)b->groups.bytes / (double)(UINT64_C(1) << 30);
    snprintf(cells[0], CELL_CHARS, "%s", name);
    bench_milliseconds(cells[1], w->whole.median);
    bench_milliseconds(cells[2], w->without.median);
    snprintf(cells[3], CELL_CHARS, "%.2f", gib / w->whole.median);
    snprintf(cells[4], CELL_CHARS, "%.2f", gib / w->copies.median);
    snprintf(cells[5], CELL_CHARS, "%.2f", gib / w->plain.median);
    snprintf(cells[6], CELL_CHARS, "%.3f", w->ratio.median);
    snprintf(cells[7], CELL_CHARS, "%.3f to %.3f", w->ratio.least, w->ratio.most);
    snprintf(cells[8], CELL_CHARS, "%.3f", w->whole_ratio.median);
    sheet_add_line(s);
    for (size_t i = 0; i < sizeof cells / sizeof *cells; i++)
        sheet_set_cell(s, i, cells[i]);
}

static void print_moments(const char *what, const uint64_t bytes[MOMENT_COUNT])
{
    printf("%s: %s before, %s while kept on the host, %s while discarded, %s after.\n", what,
           cli_bytes(bytes[MOMENT_BEFORE]), cli_bytes(bytes[MOMENT_KEPT]), cli_bytes(bytes[MOMENT_DISCARDED]),
           cli_bytes(bytes[MOMENT_AFTER]));
}

int bench_offload_table(const bench_offload *b)
{
    static const char *const titles[] = {"",      "TIME",  "WITHOUT COPIES", "GiB/s", "COPIES GiB/s", "PLAIN GiB/s",
                                         "RATIO", "RANGE", "RATIO OF TIME"};
    const bench_offload_options *o = b->options;
    const bench_groups *g = &b->groups;
    const bp_pinned_statistics *kept = &b->kept;
    bool color = cli_wants_color(o->common.color);
    printf("%s%s%s%s; %s", color ? "\033[1m" : "", bp_device_name(b->device.device),
           *b->device.model != '\0' ? ", " : "", b->device.model, cli_bytes(g->bytes));
    printf(" in %u group%s, chunks of %s, kept in %s memory%s\nmedian of %llu turn%s\n\n", g->count, plural(g->count),
           cli_bytes(o->chunk_bytes), b->pinned ? "pinned" : "ordinary", color ? "\033[0m" : "",
           (unsigned long long)b->done, plural(b->done));
    sheet s = sheet_new(color);
    for (size_t i = 0; i < sizeof titles / sizeof *titles; i++)
        sheet_add_column(&s, titles[i], i > 0);
    add_way(&s, b, "out", &b->out);
    add_way(&s, b, "back", &b->back);
    int code = sheet_finish(&s);
    if (code != EXIT_GO_ON)
        return code;
    putchar('\n');
    print_moments("Memory of the device", b->used);
    print_moments(b->device.cuda ? "Used on the GPU, by all processes" : "Resident pages of this process", b->seen);
    printf("Kept bytes take %s of host memory; %s are pinned, in %.1f ms after touching them in %.1f ms.\n",
           cli_bytes(b->host_bytes), cli_bytes(kept->pinned_bytes), 1e-6 * (double)kept->pin_ns,
           1e-6 * (double)kept->touch_ns);
    printf("The first offload took %.1f ms, the first restore %.1f ms.\n", 1e3 * b->first[LEG_KEPT_OUT],
           1e3 * b->first[LEG_KEPT_BACK]);
    return EXIT_GO_ON;
}
