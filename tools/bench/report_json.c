#include <jansson.h>
#include <stdio.h>

#include "bench/report.h"
#include "cli.h"

#define SIZE(value) ((json_int_t)(value))

/* NULL from any of these is an allocation that failed; "s:o" passes it on, so that the top sees it. */

static json_t *real_or_null(bool known, double value)
{
    return known ? json_real(value) : json_null();
}

static json_t *size_or_null(bool known, uint64_t value)
{
    return known ? json_integer(SIZE(value)) : json_null();
}

static json_t *row_json(const bench *b, const bench_row *row)
{
    bool known = row->measured, logits = known && b->options->head == 0, head = known && b->options->head > 0;
    const char *error = *row->error != '\0' ? row->error : NULL;
    return json_pack("{s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:s?}", "seq",
                     SIZE(row->shape->seq), "vocab", SIZE(row->shape->vocab), "chunk", SIZE(row->chunk), "unscaled_seq",
                     SIZE(row->shape->unscaled_seq), "time_ms", real_or_null(known, 1e3 * row->seconds), "forward_ms",
                     real_or_null(known, 1e3 * row->forward_seconds), "backward_ms",
                     real_or_null(known, 1e3 * row->backward_seconds), "peak_bytes",
                     size_or_null(known, row->peak_bytes), "workspace_bytes", size_or_null(known, row->workspace_bytes),
                     "planned_workspace_bytes", size_or_null(known, row->planned_bytes), "bytes_per_logit",
                     size_or_null(b->options->head == 0, bench_bytes_per_logit(b->options)), "bandwidth_fraction",
                     real_or_null(logits, bench_row_bandwidth_fraction(b->options, row)), "copy_bytes_per_s",
                     real_or_null(logits, row->copy_bytes_per_s), "products_ms",
                     real_or_null(head, 1e3 * row->products_seconds), "products_ratio",
                     real_or_null(head, bench_row_products_ratio(row)), "error", error);
}

static json_t *rows_json(const bench *b)
{
    json_t *rows = json_array();
    for (size_t i = 0; i < b->row_count; i++) {
        if (json_array_append_new(rows, row_json(b, &b->rows[i])) != 0) {
            json_decref(rows);
            return NULL;
        }
    }
    return rows;
}

static json_t *text_or_null(const char *text)
{
    return *text != '\0' ? json_string(text) : json_null();
}

int bench_report_json(const bench *b)
{
    const bench_options *o = b->options;
    json_t *report = json_pack(
        "{s:s, s:s, s:s, s:o, s:o, s:o, s:I, s:I, s:b, s:I, s:o, s:s, s:s, s:b, s:o, s:o}", "format",
        "bucketpool.bench/1", "bench", "logprob", "device", bp_device_name(b->device.device), "device_model",
        text_or_null(b->device.model), "kernels", text_or_null(b->kernels), "products", text_or_null(b->products),
        "threads", SIZE(b->threads), "scale", SIZE(b->scale), "scale_picked", (int)(o->scale == 0), "turns",
        SIZE(o->turns), "copy_bytes_per_s", real_or_null(b->copy_bytes_per_s > 0, b->copy_bytes_per_s), "dtype",
        bp_dtype_name(o->dtype), "grad_dtype", bench_gradient_name(o->gradient), "entropy", (int)o->entropy, "hidden",
        size_or_null(o->head > 0, o->head), "rows", rows_json(b));
    bool failed = report == NULL || json_dumpf(report, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) != 0 ||
                  putchar('\n') == EOF || fflush(stdout) != 0;
    json_decref(report);
    return failed ? cli_fail(EXIT_ENVIRONMENT, "the report could not be written") : EXIT_GO_ON;
}
