#include <math.h>

#include "bench/report.h"
#include "cli.h"
#include "document.h"

static void real_or_null(document *d, const char *key, bool known, double value)
{
    document_real(d, key, known ? value : NAN);
}

static void number_or_null(document *d, const char *key, bool known, uint64_t value)
{
    if (known)
        document_number(d, key, value);
    else
        document_null(d, key);
}

static void text_or_null(document *d, const char *key, const char *text)
{
    document_text(d, key, *text != '\0' ? text : NULL);
}

static void print_row(document *d, const bench *b, const bench_row *row)
{
    bool known = row->measured, logits = known && b->options->head == 0, head = known && b->options->head > 0;
    document_object(d, NULL);
    document_number(d, "seq", row->shape->seq);
    document_number(d, "vocab", row->shape->vocab);
    document_number(d, "chunk", row->chunk);
    document_number(d, "unscaled_seq", row->shape->unscaled_seq);
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
    document_end(d);
}

int bench_report_json(const bench *b)
{
    const bench_options *o = b->options;
    document d = document_new();
    document_object(&d, NULL);
    document_text(&d, "format", "bucketpool.bench/1");
    document_text(&d, "bench", "logprob");
    document_text(&d, "device", bp_device_name(b->device.device));
    text_or_null(&d, "device_model", b->device.model);
    text_or_null(&d, "kernels", b->kernels);
    text_or_null(&d, "products", b->products);
    document_number(&d, "threads", b->threads);
    document_number(&d, "scale", b->scale);
    document_flag(&d, "scale_picked", o->scale == 0);
    document_number(&d, "turns", o->turns);
    real_or_null(&d, "copy_bytes_per_s", b->copy_bytes_per_s > 0, b->copy_bytes_per_s);
    document_text(&d, "dtype", bp_dtype_name(o->dtype));
    document_text(&d, "grad_dtype", bench_gradient_name(o->gradient));
    document_flag(&d, "entropy", o->entropy);
    number_or_null(&d, "hidden", o->head > 0, o->head);
    document_list(&d, "rows");
    for (size_t i = 0; i < b->row_count; i++)
        print_row(&d, b, &b->rows[i]);
    document_end(&d);
    document_end(&d);
    return document_finish(&d);
}
