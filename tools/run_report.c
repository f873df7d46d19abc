#include "run_report.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "cli.h"
#include "report.h"
#include "table.h"

#define SIZE(value) ((json_int_t)(value))

static double seconds(uint64_t ns)
{
    return 1e-9 * (double)ns;
}

/* 0 when no time has passed. */
static double per_second(uint64_t count, uint64_t ns)
{
    return ns > 0 ? (double)count / seconds(ns) : 0;
}

/* A bucket's unit and name, and its role. */
typedef struct request_names {
    const char *unit, *bucket, *role;
} request_names;

static request_names names_of(const analysis *a, uint32_t request)
{
    bp_request r = {.size = sizeof r};
    bp_bucket b = {.size = sizeof b};
    if (bp_buckets_request(a->buckets, request, &r) != BP_OK || bp_buckets_get(a->buckets, r.bucket, &b) != BP_OK)
        return (request_names){"", "", ""};
    return (request_names){bp_buckets_unit_name(a->buckets, (size_t)b.unit), cli_bucket(b.name, b.ordinal),
                           bp_role_name((bp_role)r.role)};
}

static bool was_refused(const run_outcome *outcome)
{
    return outcome->status != BP_OK;
}

static driver_position position_of(const run_outcome *outcome)
{
    return was_refused(outcome) ? outcome->result.position : outcome->result.first.at;
}

const char *run_failure_text(const run_setup *setup, const analysis *a, const run_outcome *outcome, char text[1024])
{
    driver_position at = position_of(outcome);
    char place[STEP_TEXT_CHARS + 64], what[STEP_TEXT_CHARS];
    *text = '\0';
    snprintf(place, sizeof place, "training step %llu, schedule step %u (%s)", (unsigned long long)at.iteration + 1,
             at.step, analysis_step_text(a, at.step, what));
    if (was_refused(outcome)) {
        snprintf(text, 1024, "%s: %s", place, outcome->detail);
    } else if (outcome->result.corrupted > 0) {
        const driver_corruption *c = &outcome->result.first;
        request_names names = names_of(a, c->request);
        snprintf(text, 1024, "%s: %.120s/%.80s (%s) is corrupted: byte %llu of %llu is 0x%02x instead of 0x%02x", place,
                 names.unit, names.bucket, names.role, (unsigned long long)c->difference.offset,
                 (unsigned long long)setup->bytes[c->request], c->difference.found, c->difference.expected);
    }
    return text;
}

/* ---- lines ------------------------------------------------------------------------------------------------------------------ */

/* "acquires     1404, ..." */
__attribute__((format(printf, 2, 3))) static void print_line(const char *label, const char *format, ...)
{
    va_list args;
    printf("%-10s", label);
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    putchar('\n');
}

static void print_scale(const run_options *o, const run_setup *setup, const bp_plan_summary *summary)
{
    if (setup->plan.scale == 1)
        return;
    print_line("scale", "%llu%s: sizes and offsets divided, planned at alignment %llu",
               (unsigned long long)setup->plan.scale, o->scale == 0 ? ", picked" : "",
               (unsigned long long)summary->alignment);
}

static void print_memory(const run_setup *setup, const run_outcome *outcome)
{
    const bp_pool_statistics *s = &outcome->statistics;
    if (setup->plan.scale == 1)
        print_line("memory", "%s of slabs, %s live at most", cli_bytes(s->slab_bytes), cli_bytes(s->peak_live_bytes));
    else
        print_line("memory", "%s of slabs, %s live at most (times %llu: %s)", cli_bytes(s->slab_bytes),
                   cli_bytes(s->peak_live_bytes), (unsigned long long)setup->plan.scale,
                   cli_bytes(s->peak_live_bytes * setup->plan.scale));
}

static void print_order(const run_outcome *outcome)
{
    const bp_pool_statistics *s = &outcome->statistics;
    print_line("order", "%llu waits for %llu recorded release points, %llu elided; %llu deviations",
               (unsigned long long)s->waits, (unsigned long long)s->records, (unsigned long long)s->elided,
               (unsigned long long)s->deviations);
}

static void print_graphs(const run_options *o, const run_outcome *outcome)
{
    const driver_result *r = &outcome->result;
    if (o->graphs != DRIVER_GRAPHS_OFF)
        print_line("graphs", "%s: %llu captured, %llu launches; %llu training steps replayed, %llu without graphs",
                   run_graphs_name(o), (unsigned long long)r->graphs, (unsigned long long)r->launches,
                   (unsigned long long)r->replayed, (unsigned long long)(r->iterations - r->replayed));
}

static void print_verdict(const run_options *o, const run_outcome *outcome)
{
    const driver_result *r = &outcome->result;
    if (o->device == RUN_NULL) {
        puts("not verified: the null device has no memory");
        return;
    }
    print_line("digest", "%016llx of all checked bytes", (unsigned long long)r->digest);
    printf("%llu corrupted buckets of %llu checked (%s)\n", (unsigned long long)r->corrupted,
           (unsigned long long)r->checked, cli_bytes(r->checked_bytes));
}

int run_report_lines(const run_options *o, const run_setup *setup, const analysis *a, const run_outcome *outcome)
{
    const bp_pool_statistics *s = &outcome->statistics;
    const driver_result *r = &outcome->result;
    bp_plan_summary summary = {.size = sizeof summary};
    bp_status status = bp_plan_summary_get(setup->plan.full, &summary);
    if (status != BP_OK)
        return cli_fail_status(status);
    table_print_heading(a, &o->planning);
    print_line("device", "%s%s%s", bp_device_name(setup->device), *setup->device_model != '\0' ? ", " : "",
               setup->device_model);
    print_line("plan", "policy %s, %s, %.2f x the bound of %s", bp_policy_name(summary.policy),
               cli_bytes(summary.bytes),
               summary.lower_bound_bytes > 0 ? (double)summary.bytes / (double)summary.lower_bound_bytes : 1.0,
               cli_bytes(summary.lower_bound_bytes));
    print_line("pool", "allocator %s, %s copies, strict %s%s%s%s", bp_pool_allocator_name(setup->pool),
               run_selection_name(o), run_strict_name(o), o->guard ? ", guarded" : "", o->lanes ? "" : ", no lanes",
               bp_pool_is_annotated(setup->pool) ? ", annotated" : "");
    print_scale(o, setup, &summary);
    print_memory(setup, outcome);
    print_line("steps", "%llu of %llu training steps with %zu steps of the schedule, %.2f s",
               (unsigned long long)r->iterations, (unsigned long long)o->steps, bp_schedule_step_count(a->schedule),
               seconds(r->wall_ns));
    print_line("acquires", "%llu, and %llu releases, in %.3f ms of calls: %.2f million a second",
               (unsigned long long)s->acquires, (unsigned long long)s->releases, 1e3 * seconds(r->call_ns),
               1e-6 * per_second(s->acquires, r->call_ns));
    print_order(outcome);
    print_graphs(o, outcome);
    print_verdict(o, outcome);
    return EXIT_GO_ON;
}

/* ---- JSON --------------------------------------------------------------------------------------------------------------------- */

static json_t *plan_json(const run_setup *setup)
{
    bp_plan_summary s = {.size = sizeof s};
    char fingerprint[BP_FINGERPRINT_CHARS];
    if (bp_plan_summary_get(setup->plan.full, &s) != BP_OK ||
        bp_plan_fingerprint(setup->plan.full, fingerprint) != BP_OK)
        return NULL;
    return json_pack("{s:s, s:I, s:I, s:b, s:I, s:I, s:s}", "policy", bp_policy_name(s.policy), "bytes", SIZE(s.bytes),
                     "lower_bound_bytes", SIZE(s.lower_bound_bytes), "stable", (int)s.stable, "copies", SIZE(s.copies),
                     "alignment", SIZE(s.alignment), "fingerprint", fingerprint);
}

static json_t *run_json(const run_options *o, const run_setup *setup, const analysis *a)
{
    return json_pack("{s:s, s:s?, s:s, s:I, s:I, s:I, s:b, s:s, s:s, s:b, s:b, s:b, s:s, s:I, s:I}", "device",
                     bp_device_name(setup->device), "device_model",
                     *setup->device_model != '\0' ? setup->device_model : NULL, "allocator",
                     bp_pool_allocator_name(setup->pool), "steps", SIZE(o->steps), "schedule_steps",
                     SIZE(bp_schedule_step_count(a->schedule)), "scale", SIZE(setup->plan.scale), "scale_picked",
                     (int)(o->scale == 0), "selection", run_selection_name(o), "strict", run_strict_name(o), "guard",
                     (int)o->guard, "lanes", (int)o->lanes, "annotated", (int)bp_pool_is_annotated(setup->pool),
                     "graph", run_graphs_name(o), "delay_us", SIZE(o->delay_us), "seed", SIZE(o->seed));
}

static json_t *statistics_json(const run_outcome *outcome)
{
    const bp_pool_statistics *s = &outcome->statistics;
    const struct {
        const char *name;
        uint64_t value;
    } members[] = {{"slab_bytes", s->slab_bytes}, {"peak_live_bytes", s->peak_live_bytes},
                   {"requests", s->requests},     {"acquires", s->acquires},
                   {"repeated", s->repeated},     {"releases", s->releases},
                   {"refused", s->refused},       {"records", s->records},
                   {"elided", s->elided},         {"waits", s->waits},
                   {"deviations", s->deviations}, {"dynamic", s->dynamic}};
    json_t *statistics = json_object();
    for (size_t i = 0; i < sizeof members / sizeof *members; i++)
        json_object_set_new(statistics, members[i].name, json_integer(SIZE(members[i].value)));
    return statistics;
}

static json_t *time_json(const run_outcome *outcome)
{
    const driver_result *r = &outcome->result;
    return json_pack("{s:f, s:f, s:I, s:f}", "seconds", seconds(r->wall_ns), "call_seconds", seconds(r->call_ns),
                     "calls", SIZE(r->calls), "acquires_per_second",
                     per_second(outcome->statistics.acquires, r->call_ns));
}

static json_t *graphs_json(const run_outcome *outcome)
{
    const driver_result *r = &outcome->result;
    return json_pack("{s:I, s:I, s:I}", "captured", SIZE(r->graphs), "launches", SIZE(r->launches), "replayed_steps",
                     SIZE(r->replayed));
}

static json_t *verification_json(const run_options *o, const run_outcome *outcome)
{
    const driver_result *r = &outcome->result;
    char digest[17];
    snprintf(digest, sizeof digest, "%016llx", (unsigned long long)r->digest);
    return json_pack("{s:b, s:I, s:I, s:I, s:s}", "verified", (int)(o->device != RUN_NULL), "checked_buckets",
                     SIZE(r->checked), "checked_bytes", SIZE(r->checked_bytes), "corrupted_buckets", SIZE(r->corrupted),
                     "digest", digest);
}

static json_t *failure_json(const run_setup *setup, const analysis *a, const run_outcome *outcome)
{
    char text[1024];
    const driver_corruption *c = &outcome->result.first;
    if (*run_failure_text(setup, a, outcome, text) == '\0')
        return json_null();
    driver_position at = position_of(outcome);
    json_t *failure =
        json_pack("{s:s, s:s, s:I, s:I}", "kind", was_refused(outcome) ? "refused" : "corrupted", "detail", text,
                  "training_step", SIZE(at.iteration + 1), "schedule_step", SIZE(at.step));
    if (was_refused(outcome)) {
        json_object_set_new(failure, "status", json_string(bp_status_name(outcome->status)));
        return failure;
    }
    request_names names = names_of(a, c->request);
    json_object_set_new(failure, "unit", json_string(names.unit));
    json_object_set_new(failure, "bucket", json_string(names.bucket));
    json_object_set_new(failure, "role", json_string(names.role));
    json_object_set_new(failure, "offset", json_integer(SIZE(c->difference.offset)));
    json_object_set_new(failure, "expected", json_integer(c->difference.expected));
    json_object_set_new(failure, "found", json_integer(c->difference.found));
    return failure;
}

int run_report_json(const run_options *o, const run_setup *setup, const analysis *a, const run_outcome *outcome)
{
    char hash[17];
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)outcome->sequence_hash);
    json_t *report = json_pack(
        "{s:s, s:s, s:o, s:o, s:o, s:I, s:b, s:o, s:{s:s, s:I}, s:o, s:o, s:o, s:o}", "format", "bucketpool.run/1",
        "model", a->name, "options", report_options(a, &o->planning), "plan", plan_json(setup), "run",
        run_json(o, setup, a), "finished_steps", SIZE(outcome->result.iterations), "interrupted",
        (int)outcome->interrupted, "statistics", statistics_json(outcome), "sequence", "hash", hash, "acquires",
        SIZE(outcome->sequence_acquires), "graphs", graphs_json(outcome), "time", time_json(outcome), "verification",
        verification_json(o, outcome), "failure", failure_json(setup, a, outcome));
    bool failed = report == NULL || json_dumpf(report, stdout, JSON_INDENT(2)) != 0 || putchar('\n') == EOF ||
                  fflush(stdout) != 0;
    json_decref(report);
    return failed ? cli_fail(EXIT_ENVIRONMENT, "the report could not be written") : EXIT_GO_ON;
}
