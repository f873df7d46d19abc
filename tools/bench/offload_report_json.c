#include "bench/offload_report.h"
#include "cli.h"
#include "document.h"

static void print_three(document *d, const char *key, double median, double least, double most)
{
    document_object(d, key);
    document_real(d, "median", median);
    document_real(d, "min", least);
    document_real(d, "max", most);
    document_end(d);
}

static void print_spread(document *d, const char *key, const bench_spread *s, double factor)
{
    print_three(d, key, factor * s->median, factor * s->least, factor * s->most);
}

/* The fastest turn is the one that took the least time. */
static void print_rate(document *d, const char *key, const bench_offload *b, const bench_spread *s)
{
    double gib = (double)b->groups.bytes / (double)(UINT64_C(1) << 30);
    print_three(d, key, gib / s->median, gib / s->most, gib / s->least);
}

static void print_way(document *d, const char *key, const bench_offload *b, const bench_way *w, double first)
{
    document_object(d, key);
    print_rate(d, "gib_per_s", b, &w->whole);
    print_rate(d, "copy_gib_per_s", b, &w->copies);
    print_rate(d, "plain_gib_per_s", b, &w->plain);
    print_spread(d, "ratio", &w->ratio, 1);
    print_spread(d, "whole_ratio", &w->whole_ratio, 1);
    print_spread(d, "ms", &w->whole, 1e3);
    print_spread(d, "without_copy_ms", &w->without, 1e3);
    print_spread(d, "copy_ms", &w->copies, 1e3);
    print_spread(d, "plain_ms", &w->plain, 1e3);
    document_real(d, "first_ms", 1e3 * first);
    document_end(d);
}

static void print_moments(document *d, const char *key, const uint64_t bytes[MOMENT_COUNT])
{
    document_object(d, key);
    document_number(d, "before", bytes[MOMENT_BEFORE]);
    document_number(d, "kept", bytes[MOMENT_KEPT]);
    document_number(d, "discarded", bytes[MOMENT_DISCARDED]);
    document_number(d, "after", bytes[MOMENT_AFTER]);
    document_end(d);
}

static void print_backing(document *d, const bench_offload *b)
{
    const bp_pinned_statistics *s = &b->kept;
    document_object(d, "backing");
    document_text(d, "asked", bench_backing_name(b->options->backing));
    document_text(d, "used", b->pinned ? "pinned" : "staged");
    document_number(d, "host_bytes", b->host_bytes);
    document_number(d, "pinned_bytes", s->pinned_bytes);
    document_number(d, "huge_bytes", s->huge_bytes);
    document_real(d, "pin_ms", 1e-6 * (double)s->pin_ns);
    document_real(d, "touch_ms", 1e-6 * (double)s->touch_ns);
    document_end(d);
}

int bench_offload_json(const bench_offload *b)
{
    const bench_groups *g = &b->groups;
    document d = document_new();
    document_object(&d, NULL);
    document_text(&d, "format", "bucketpool.bench/1");
    document_text(&d, "bench", "offload");
    document_text(&d, "device", bp_device_name(b->device.device));
    document_text(&d, "device_model", *b->device.model != '\0' ? b->device.model : NULL);
    document_number(&d, "bytes", g->bytes);
    document_number(&d, "groups", g->count);
    document_number(&d, "parts", g->part_count);
    document_number(&d, "chunk_bytes", b->options->chunk_bytes);
    document_number(&d, "turns", b->done);
    print_way(&d, "out", b, &b->out, b->first[LEG_KEPT_OUT]);
    print_way(&d, "back", b, &b->back, b->first[LEG_KEPT_BACK]);
    print_backing(&d, b);
    print_moments(&d, "device_bytes", b->used);
    print_moments(&d, b->device.cuda ? "gpu_used_bytes" : "resident_bytes", b->seen);
    document_text(&d, "error", *b->wrong != '\0' ? b->wrong : NULL);
    document_end(&d);
    return document_finish(&d);
}
