/* The answers of `bench offload`: a table or a document. */
#include "bench/command/offload.h"

#include <stdio.h>

#include "files/json_writer.h"
#include "shared/cli.h"
#include "shared/sheet.h"

/* ---- the document ------------------------------------------------------------------------------------------------ */

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

/* ---- tables ------------------------------------------------------------------------------------------------------ */

#define CELL_CHARS 32

static const char *plural(uint64_t count)
{
    return count == 1 ? "" : "s";
}

static void print_heading(const bench_offload *b)
{
    const bench_offload_options *o = b->options;
    const bench_groups *g = &b->groups;
    bool color = cli_wants_color(o->color);
    printf("%s%s%s%s; %s", color ? "\033[1m" : "", bp_device_name(b->device.device),
           *b->device.model != '\0' ? ", " : "", b->device.model, cli_bytes(g->bytes));
    printf(" in %u group%s, chunks of %s, kept in %s memory%s\nmedian of %llu turn%s\n\n", g->count, plural(g->count),
           cli_bytes(o->chunk_bytes), b->pinned ? "pinned" : "ordinary", color ? "\033[0m" : "",
           (unsigned long long)b->done, plural(b->done));
}

/* ---- the table ---------------------------------------------------------------------------------------------------------------- */

static void milliseconds(char text[CELL_CHARS], const bench_spread *s)
{
    double ms = 1e3 * s->median;
    snprintf(text, CELL_CHARS, "%.*f ms", ms < 1 ? 4 : ms < 100 ? 2 : 1, ms);
}

static void rate(char text[CELL_CHARS], const bench_offload *b, const bench_spread *s)
{
    snprintf(text, CELL_CHARS, "%.2f", (double)b->groups.bytes / (double)(UINT64_C(1) << 30) / s->median);
}

static void ratio(char text[CELL_CHARS], const bench_spread *s)
{
    snprintf(text, CELL_CHARS, "%.3f", s->median);
}

static void add_way(sheet *s, const bench_offload *b, const char *name, const bench_way *w)
{
    char cells[9][CELL_CHARS] = {""};
    snprintf(cells[0], CELL_CHARS, "%s", name);
    milliseconds(cells[1], &w->whole);
    milliseconds(cells[2], &w->without);
    rate(cells[3], b, &w->whole);
    rate(cells[4], b, &w->copies);
    rate(cells[5], b, &w->plain);
    ratio(cells[6], &w->ratio);
    snprintf(cells[7], CELL_CHARS, "%.3f to %.3f", w->ratio.least, w->ratio.most);
    ratio(cells[8], &w->whole_ratio);
    sheet_add_line(s);
    for (size_t i = 0; i < sizeof cells / sizeof *cells; i++)
        sheet_set_cell(s, i, cells[i]);
}

static int print_table(const bench_offload *b)
{
    static const char *const titles[] = {"",      "TIME",          "WITHOUT COPIES",
                                         "GiB/s", "COPIES GiB/s",  "PLAIN GiB/s",
                                         "RATIO", "LEAST TO MOST", "RATIO OF TIME"};
    sheet s = sheet_new(cli_wants_color(b->options->color));
    for (size_t i = 0; i < sizeof titles / sizeof *titles; i++)
        sheet_add_column(&s, titles[i], i > 0);
    add_way(&s, b, "out", &b->out);
    add_way(&s, b, "back", &b->back);
    return sheet_finish(&s);
}

/* ---- memory ------------------------------------------------------------------------------------------------------------------- */

static void print_moments_table(const char *what, const uint64_t bytes[MOMENT_COUNT])
{
    printf("%s: %s before, %s while kept on the host, %s while discarded, %s after.\n", what,
           cli_bytes(bytes[MOMENT_BEFORE]), cli_bytes(bytes[MOMENT_KEPT]), cli_bytes(bytes[MOMENT_DISCARDED]),
           cli_bytes(bytes[MOMENT_AFTER]));
}

static void print_memory(const bench_offload *b)
{
    const bp_pinned_statistics *s = &b->kept;
    print_moments_table("Memory of the device", b->used);
    print_moments_table(b->device.cuda ? "Used on the GPU, by whomever" : "Resident pages of this process", b->seen);
    printf("Kept bytes take %s of host memory; %s are pinned, which took %.1f ms after %.1f ms of touching.\n",
           cli_bytes(b->host_bytes), cli_bytes(s->pinned_bytes), 1e-6 * (double)s->pin_ns, 1e-6 * (double)s->touch_ns);
    printf("The first time out took %.1f ms, the first time back %.1f ms.\n", 1e3 * b->first[LEG_KEPT_OUT],
           1e3 * b->first[LEG_KEPT_BACK]);
}

int bench_offload_table(const bench_offload *b)
{
    print_heading(b);
    int code = print_table(b);
    if (code == EXIT_GO_ON) {
        putchar('\n');
        print_memory(b);
    }
    return code;
}
