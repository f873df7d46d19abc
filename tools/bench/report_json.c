#include <math.h>

#include "bench/report.h"
#include "cli.h"
#include "files/json_writer.h"

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
