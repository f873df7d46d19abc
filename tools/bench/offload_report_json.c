#include <jansson.h>
#include <stdio.h>

#include "bench/offload_report.h"
#include "cli.h"

#define SIZE(value) ((json_int_t)(value))

/* NULL from any of these is an allocation that failed; "s:o" passes it on, so that the top sees it. */

static json_t *spread_json(const bench_spread *s, double factor)
{
    return json_pack("{s:f, s:f, s:f}", "median", factor * s->median, "min", factor * s->least, "max",
                     factor * s->most);
}

/* The fastest turn is the one that took the least time. */
static json_t *rate_json(const bench_offload *b, const bench_spread *s)
{
    double gib = (double)b->groups.bytes / (double)(UINT64_C(1) << 30);
    return json_pack("{s:f, s:f, s:f}", "median", gib / s->median, "min", gib / s->most, "max", gib / s->least);
}

static json_t *way_json(const bench_offload *b, const bench_way *w, double first)
{
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:f}", "gib_per_s", rate_json(b, &w->whole),
                     "copy_gib_per_s", rate_json(b, &w->copies), "plain_gib_per_s", rate_json(b, &w->plain), "ratio",
                     spread_json(&w->ratio, 1), "whole_ratio", spread_json(&w->whole_ratio, 1), "ms",
                     spread_json(&w->whole, 1e3), "without_copy_ms", spread_json(&w->without, 1e3), "copy_ms",
                     spread_json(&w->copies, 1e3), "plain_ms", spread_json(&w->plain, 1e3), "first_ms", 1e3 * first);
}

static json_t *moments_json(const uint64_t bytes[MOMENT_COUNT])
{
    return json_pack("{s:I, s:I, s:I, s:I}", "before", SIZE(bytes[MOMENT_BEFORE]), "kept", SIZE(bytes[MOMENT_KEPT]),
                     "discarded", SIZE(bytes[MOMENT_DISCARDED]), "after", SIZE(bytes[MOMENT_AFTER]));
}

static json_t *backing_json(const bench_offload *b)
{
    const bp_pinned_statistics *s = &b->kept;
    return json_pack("{s:s, s:s, s:I, s:I, s:I, s:f, s:f}", "asked", bench_backing_name(b->options->backing), "used",
                     b->pinned ? "pinned" : "staged", "host_bytes", SIZE(b->host_bytes), "pinned_bytes",
                     SIZE(s->pinned_bytes), "huge_bytes", SIZE(s->huge_bytes), "pin_ms", 1e-6 * (double)s->pin_ns,
                     "touch_ms", 1e-6 * (double)s->touch_ns);
}

int bench_offload_json(const bench_offload *b)
{
    const bench_offload_options *o = b->options;
    const bench_groups *g = &b->groups;
    const char *model = *b->device.model != '\0' ? b->device.model : NULL, *error = *b->wrong != '\0' ? b->wrong : NULL;
    json_t *report =
        json_pack("{s:s, s:s, s:s, s:s?, s:I, s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:s?}", "format",
                  "bucketpool.bench/1", "bench", "offload", "device", bp_device_name(b->device.device), "device_model",
                  model, "bytes", SIZE(g->bytes), "groups", SIZE(g->count), "parts", SIZE(g->part_count), "chunk_bytes",
                  SIZE(o->chunk_bytes), "turns", SIZE(b->done), "out", way_json(b, &b->out, b->first[LEG_KEPT_OUT]),
                  "back", way_json(b, &b->back, b->first[LEG_KEPT_BACK]), "backing", backing_json(b), "device_bytes",
                  moments_json(b->used), b->device.cuda ? "gpu_used_bytes" : "resident_bytes", moments_json(b->seen),
                  "error", error);
    bool failed = report == NULL || json_dumpf(report, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) != 0 ||
                  putchar('\n') == EOF || fflush(stdout) != 0;
    json_decref(report);
    return failed ? cli_fail(EXIT_ENVIRONMENT, "the report could not be written") : EXIT_GO_ON;
}
