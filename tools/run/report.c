/* SPDX-License-Identifier: Apache-2.0 */
/* The report of `run`: lines, or the document bucketpool.run/1. */
#include "core/print.h"
#include "run/run.h"

#include <stdio.h>
#include <string.h>

#include "plan/analysis.h"
#include "shared/cli.h"

static double seconds(uint64_t ns)
{
    return 1e-9 * (double)ns;
}

/* 0 if no time has passed. */
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
    const bp_buckets_info *info = bp_buckets_get_info(a->buckets);
    if (request >= info->request_count)
        return (request_names){"", "", ""};
    bp_request r = info->requests[request];
    bp_bucket b = info->buckets[r.bucket];
    return (request_names){info->units[b.unit].name, cli_bucket(b.name, b.ordinal), bp_role_name((bp_role)r.role)};
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
    bp_print(place, sizeof place, "training step %llu, schedule step %u (%s)", (unsigned long long)at.iteration + 1,
             at.step, analysis_step_text(a, at.step, what));
    if (was_refused(outcome)) {
        bp_print(text, 1024, "%s: %s", place, outcome->detail);
    } else if (outcome->result.corrupted > 0) {
        const driver_corruption *c = &outcome->result.first;
        request_names names = names_of(a, c->request);
        bp_print(text, 1024, "%s: %.120s/%.80s (%s) is corrupted: byte %llu of %llu is 0x%02x instead of 0x%02x", place,
                 names.unit, names.bucket, names.role, (unsigned long long)c->difference.offset,
                 (unsigned long long)bp_pool_get_info(setup->pool)->requests[c->request].bytes, c->difference.found,
                 c->difference.expected);
    }
    return text;
}

/* ---- lines ------------------------------------------------------------------------------------------------------- */

static void print_scale(const run_options *o, const run_setup *setup, const bp_plan_info *plan)
{
    if (setup->plan.scale == 1)
        return;
    cli_print_line("scale", "%llu%s: sizes and offsets divided, planned at alignment %llu",
                   (unsigned long long)setup->plan.scale, o->scale == 0 ? ", picked" : "",
                   (unsigned long long)plan->alignment);
}

static void print_memory(const run_setup *setup, const run_outcome *outcome)
{
    const bp_pool_statistics *s = &outcome->statistics;
    if (setup->plan.scale == 1)
        cli_print_line("memory", "%s of slabs, %s live at most", cli_bytes(s->slab_bytes),
                       cli_bytes(s->peak_live_bytes));
    else
        cli_print_line("memory", "%s of slabs, %s live at most (times %llu: %s)", cli_bytes(s->slab_bytes),
                       cli_bytes(s->peak_live_bytes), (unsigned long long)setup->plan.scale,
                       cli_bytes(s->peak_live_bytes * setup->plan.scale));
}

static void print_order(const run_outcome *outcome)
{
    const bp_pool_statistics *s = &outcome->statistics;
    cli_print_line("order", "%llu waits for %llu release events, %llu elided; %llu deviations",
                   (unsigned long long)s->waits, (unsigned long long)s->records, (unsigned long long)s->elided,
                   (unsigned long long)s->deviations);
}

static void print_graphs(const run_options *o, const run_outcome *outcome)
{
    const driver_result *r = &outcome->result;
    if (o->graphs != DRIVER_GRAPHS_OFF)
        cli_print_line("graphs", "%s: %llu captured, %llu launches; %llu training steps replayed, %llu without graphs",
                       run_graphs_name(o), (unsigned long long)r->graphs, (unsigned long long)r->launches,
                       (unsigned long long)r->replayed, (unsigned long long)(r->iterations - r->replayed));
}

static void print_verdict(const run_options *o, const run_outcome *outcome)
{
    const driver_result *r = &outcome->result;
    if (o->device == RUN_NULL) {
        puts("not verified: device null has no memory");
        return;
    }
    cli_print_line("digest", "%016llx of all checked bytes", (unsigned long long)r->digest);
    printf("%llu corrupted buckets of %llu checked (%s)\n", (unsigned long long)r->corrupted,
           (unsigned long long)r->checked, cli_bytes(r->checked_bytes));
}

int run_report_lines(const run_options *o, const run_setup *setup, const analysis *a, const run_outcome *outcome)
{
    const bp_pool_statistics *s = &outcome->statistics;
    const driver_result *r = &outcome->result;
    const bp_plan_info *plan = bp_plan_get_info(setup->plan.full);
    table_print_heading(a, &o->planning);
    cli_print_line("device", "%s%s%s", bp_device_name(setup->device), *setup->device_model != '\0' ? ", " : "",
                   setup->device_model);
    cli_print_line("plan", "policy %s, %s, %.2f x the bound of %s", bp_policy_name(plan->policy),
                   cli_bytes(plan->bytes),
                   plan->lower_bound_bytes > 0 ? (double)plan->bytes / (double)plan->lower_bound_bytes : 1.0,
                   cli_bytes(plan->lower_bound_bytes));
    cli_print_line("pool", "strict %s%s%s%s", run_strict_name(o), o->guard ? ", guarded" : "",
                   o->promises ? "" : ", no promised streams",
                   bp_pool_get_info(setup->pool)->annotated ? ", annotated" : "");
    print_scale(o, setup, plan);
    print_memory(setup, outcome);
    cli_print_line("steps", "%llu of %llu training steps with %zu steps of the schedule, %.2f s",
                   (unsigned long long)r->iterations, (unsigned long long)o->steps,
                   bp_schedule_get_info(a->schedule)->step_count, seconds(r->wall_ns));
    cli_print_line("acquires", "%llu, with %llu releases, in %.3f ms of calls: %.2f million per second",
                   (unsigned long long)s->acquires, (unsigned long long)s->releases, 1e3 * seconds(r->call_ns),
                   1e-6 * per_second(s->acquires, r->call_ns));
    print_order(outcome);
    print_graphs(o, outcome);
    print_verdict(o, outcome);
    return EXIT_GO_ON;
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static void print_plan(bp_json_writer *d, const run_setup *setup)
{
    const bp_plan_info *plan = bp_plan_get_info(setup->plan.full);
    char fingerprint[BP_FINGERPRINT_CHARS];
    if (!bp_json_check(d, bp_plan_fingerprint(setup->plan.full, fingerprint)))
        return;
    bp_json_add_object(d, "plan");
    bp_json_add_text(d, "policy", bp_policy_name(plan->policy));
    bp_json_add_number(d, "bytes", plan->bytes);
    bp_json_add_number(d, "lower_bound_bytes", plan->lower_bound_bytes);
    bp_json_add_flag(d, "stable", plan->stable);
    bp_json_add_number(d, "copies", plan->copies);
    bp_json_add_number(d, "alignment", plan->alignment);
    bp_json_add_text(d, "fingerprint", fingerprint);
    bp_json_end(d);
}

static void print_hash(bp_json_writer *d, const char *key, uint64_t hash)
{
    char text[17];
    snprintf(text, sizeof text, "%016llx", (unsigned long long)hash);
    bp_json_add_text(d, key, text);
}

static void print_result(bp_json_writer *d, const run_options *o, const run_outcome *outcome)
{
    const driver_result *r = &outcome->result;
    bp_json_add_object(d, "sequence");
    print_hash(d, "hash", outcome->sequence_hash);
    bp_json_add_number(d, "acquires", outcome->sequence_acquires);
    bp_json_end(d);
    bp_json_add_object(d, "graphs");
    bp_json_add_number(d, "captured", r->graphs);
    bp_json_add_number(d, "launches", r->launches);
    bp_json_add_number(d, "replayed_steps", r->replayed);
    bp_json_end(d);
    bp_json_add_object(d, "time");
    bp_json_add_real(d, "seconds", seconds(r->wall_ns));
    bp_json_add_real(d, "call_seconds", seconds(r->call_ns));
    bp_json_add_number(d, "calls", r->calls);
    bp_json_add_real(d, "acquires_per_second", per_second(outcome->statistics.acquires, r->call_ns));
    bp_json_end(d);
    bp_json_add_object(d, "verification");
    bp_json_add_flag(d, "verified", o->device != RUN_NULL);
    bp_json_add_number(d, "checked_buckets", r->checked);
    bp_json_add_number(d, "checked_bytes", r->checked_bytes);
    bp_json_add_number(d, "corrupted_buckets", r->corrupted);
    print_hash(d, "digest", r->digest);
    bp_json_end(d);
}

static void print_failure(bp_json_writer *d, const run_setup *setup, const analysis *a, const run_outcome *outcome)
{
    char text[1024];
    const driver_corruption *c = &outcome->result.first;
    if (*run_failure_text(setup, a, outcome, text) == '\0') {
        bp_json_add_null(d, "failure");
        return;
    }
    driver_position at = position_of(outcome);
    bp_json_add_object(d, "failure");
    bp_json_add_text(d, "kind", was_refused(outcome) ? "refused" : "corrupted");
    bp_json_add_text(d, "detail", text);
    bp_json_add_number(d, "training_step", at.iteration + 1);
    bp_json_add_number(d, "schedule_step", at.step);
    if (was_refused(outcome)) {
        bp_json_add_text(d, "status", bp_status_name(outcome->status));
    } else {
        request_names names = names_of(a, c->request);
        bp_json_add_text(d, "unit", names.unit);
        bp_json_add_text(d, "bucket", names.bucket);
        bp_json_add_text(d, "role", names.role);
        bp_json_add_number(d, "offset", c->difference.offset);
        bp_json_add_number(d, "expected", c->difference.expected);
        bp_json_add_number(d, "found", c->difference.found);
    }
    bp_json_end(d);
}

int run_report_json(const run_options *o, const run_setup *setup, const analysis *a, const run_outcome *outcome)
{
    bp_json_writer d = {0};
    bp_json_add_object(&d, NULL);
    bp_json_add_text(&d, "format", "bucketpool.run/1");
    bp_json_add_text(&d, "model", a->name);
    report_options(&d, a, &o->planning);
    print_plan(&d, setup);

    bp_json_add_object(&d, "run");
    bp_json_add_text(&d, "device", bp_device_name(setup->device));
    bp_json_add_text(&d, "device_model", *setup->device_model != '\0' ? setup->device_model : NULL);
    bp_json_add_number(&d, "steps", o->steps);
    bp_json_add_number(&d, "schedule_steps", bp_schedule_get_info(a->schedule)->step_count);
    bp_json_add_number(&d, "scale", setup->plan.scale);
    bp_json_add_flag(&d, "scale_picked", o->scale == 0);
    bp_json_add_text(&d, "strict", run_strict_name(o));
    bp_json_add_flag(&d, "guard", o->guard);
    bp_json_add_flag(&d, "promised_streams", o->promises);
    bp_json_add_flag(&d, "annotated", bp_pool_get_info(setup->pool)->annotated);
    bp_json_add_text(&d, "graph", run_graphs_name(o));
    bp_json_add_number(&d, "delay_us", o->delay_us);
    bp_json_add_number(&d, "seed", o->seed);
    bp_json_end(&d);

    bp_json_add_number(&d, "finished_steps", outcome->result.iterations);
    bp_json_add_flag(&d, "interrupted", outcome->interrupted);

    const bp_pool_statistics *s = &outcome->statistics;
    bp_json_add_object(&d, "statistics");
    bp_json_add_number(&d, "slab_bytes", s->slab_bytes);
    bp_json_add_number(&d, "peak_live_bytes", s->peak_live_bytes);
    bp_json_add_number(&d, "requests", s->requests);
    bp_json_add_number(&d, "acquires", s->acquires);
    bp_json_add_number(&d, "repeated", s->repeated);
    bp_json_add_number(&d, "releases", s->releases);
    bp_json_add_number(&d, "refused", s->refused);
    bp_json_add_number(&d, "records", s->records);
    bp_json_add_number(&d, "elided", s->elided);
    bp_json_add_number(&d, "waits", s->waits);
    bp_json_add_number(&d, "deviations", s->deviations);
    bp_json_add_number(&d, "dynamic", s->dynamic);
    bp_json_end(&d);

    print_result(&d, o, outcome);
    print_failure(&d, setup, a, outcome);
    bp_json_end(&d);
    return cli_print_json(&d);
}
