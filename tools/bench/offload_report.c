/* SPDX-License-Identifier: Apache-2.0 */
/* Output of `bucketpool bench offload`: a table or a JSON document. */
#include "bench/offload.h"

#include <stdio.h>

#include "core/json_writer.h"
#include "shared/cli.h"
#include "shared/sheet.h"

#define CELL_CHARS 64

/* ---- offloads: the document -------------------------------------------------------------------------------------- */

static void print_three(bp_json_writer *d, const char *key, double median, double min, double max)
{
    bp_json_add_object(d, key);
    bp_json_add_real(d, "median", median);
    bp_json_add_real(d, "min", min);
    bp_json_add_real(d, "max", max);
    bp_json_end(d);
}

static void print_spread(bp_json_writer *d, const char *key, const bench_spread *s, double factor)
{
    print_three(d, key, factor * s->median, factor * s->min, factor * s->max);
}

/* The highest rate is that of the shortest turn. */
static void print_rate(bp_json_writer *d, const char *key, const bench_offload *b, const bench_spread *s)
{
    double gib = (double)b->groups.bytes / (double)(UINT64_C(1) << 30);
    print_three(d, key, gib / s->median, gib / s->max, gib / s->min);
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
    snprintf(cells[7], CELL_CHARS, "%.3f to %.3f", w->ratio.min, w->ratio.max);
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
