#include "bench/offload_report.h"
#include "cli.h"
#include "files/json_writer.h"

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

/* The fastest turn is the one that took the least time. */
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

static void print_moments(bp_json_writer *d, const char *key, const uint64_t bytes[MOMENT_COUNT])
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
    print_moments(&d, "device_bytes", b->used);
    print_moments(&d, b->device.cuda ? "gpu_used_bytes" : "resident_bytes", b->seen);
    bp_json_add_text(&d, "error", *b->wrong != '\0' ? b->wrong : NULL);
    bp_json_end(&d);
    return cli_print_json(&d);
}
