#include "bench/offload_report.h"

#include <stdio.h>

#include "cli.h"
#include "sheet.h"

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

static void print_moments(const char *what, const uint64_t bytes[MOMENT_COUNT])
{
    printf("%s: %s before, %s while kept on the host, %s while discarded, %s after.\n", what,
           cli_bytes(bytes[MOMENT_BEFORE]), cli_bytes(bytes[MOMENT_KEPT]), cli_bytes(bytes[MOMENT_DISCARDED]),
           cli_bytes(bytes[MOMENT_AFTER]));
}

static void print_memory(const bench_offload *b)
{
    const bp_pinned_statistics *s = &b->kept;
    print_moments("Memory of the device", b->used);
    print_moments(b->device.cuda ? "Used on the GPU, by whomever" : "Resident pages of this process", b->seen);
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
