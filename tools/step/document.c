/* SPDX-License-Identifier: Apache-2.0 */
/* The document bucketpool.step/1. */
#include "step/step.h"

/* The plan's kind of a recorded step; the first step of a process may be the only one of its kind. */
static size_t kind_of(const step_answer *a, const bp_trace_step *step)
{
    const bp_trace_step *reference = &a->steps.steps[a->steps.kinds[step->kind].reference];
    size_t kind = 0;
    while (kind + 1 < a->plan->kind_count &&
           (a->plan->kinds[kind].is_first || a->references[kind].first != reference->first))
        kind++;
    return kind;
}

static void add_steps(bp_json_writer *d, const step_answer *a)
{
    bp_json_add_list(d, "steps");
    for (size_t i = 0; i < a->steps.count; i++) {
        const bp_trace_step *step = &a->steps.steps[i];
        bp_json_add_object(d, NULL);
        bp_json_add_number(d, "begin_event", step->begin);
        bp_json_add_number(d, "end_event", step->end);
        bp_json_add_number(d, "allocations", step->count);
        bp_json_add_number(d, "matched", step->matched);
        bp_json_add_number(d, "kind", kind_of(a, step));
        bp_json_add_number(d, "begin_bytes", step->begin_bytes);
        bp_json_add_number(d, "peak_bytes", step->peak_bytes);
        bp_json_add_number(d, "peak_event", step->peak_event);
        bp_json_end(d);
    }
    bp_json_end(d);
}

static void add_plan(bp_json_writer *d, const step_answer *a)
{
    const bp_step_plan_info *p = a->plan;
    bp_json_add_object(d, "plan");
    bp_json_add_number(d, "total_bytes", step_planned_bytes(a));
    bp_json_add_number(d, "persistent_bytes", p->persistent_bytes);
    bp_json_add_number(d, "step_bytes", p->bytes);
    bp_json_add_number(d, "windows_bytes", p->bytes - p->bytes_without_windows);
    bp_json_add_number(d, "outside_bytes", p->outside_bytes);
    bp_json_add_flag(d, "optimal", p->optimal);
    bp_json_add_list(d, "kinds");
    for (size_t i = 0; i < p->kind_count; i++) {
        size_t outside = 0;
        for (size_t k = 0; k < p->kinds[i].item_count; k++)
            outside += p->kinds[i].items[k].offset == BP_STEP_OUTSIDE;
        bp_json_add_object(d, NULL);
        bp_json_add_flag(d, "first", p->kinds[i].is_first);
        bp_json_add_number(d, "allocations", p->kinds[i].item_count);
        bp_json_add_number(d, "outside", outside);
        bp_json_add_number(d, "bytes", p->kinds[i].bytes);
        bp_json_add_number(d, "lower_bound_bytes", p->kinds[i].lower_bound_bytes);
        bp_json_add_number(d, "proven_bytes", p->kinds[i].proven_bytes);
        bp_json_add_text(d, "method", p->kinds[i].method);
        bp_json_end(d);
    }
    bp_json_end(d);
    bp_json_add_list(d, "waits");
    for (size_t i = 0; i < p->waits_count; i++) {
        bp_json_add_object(d, NULL);
        bp_json_add_number(d, "waiting", p->streams[p->waits[i].waiting]);
        bp_json_add_number(d, "before", p->streams[p->waits[i].before]);
        bp_json_add_number(d, "waits", p->waits[i].waits);
        bp_json_end(d);
    }
    bp_json_end(d);
    bp_json_end(d);
}

/* NULL: no frame. */
static void add_frame(bp_json_writer *d, const bp_trace_frame *frame)
{
    bp_json_add_text(d, "file", frame != NULL ? frame->file : "");
    bp_json_add_number(d, "line", frame != NULL ? frame->line : 0);
    bp_json_add_text(d, "function", frame != NULL ? frame->function : "");
}

static void add_place(bp_json_writer *d, const step_holder *h)
{
    char module[STEP_NAME_CHARS];
    add_frame(d, h->place != NULL ? h->place->frame : NULL);
    bp_json_add_text(d, "module", step_module(h, module));
    bp_json_add_text(d, "phase", bp_trace_phase_name((bp_trace_phase)h->phase));
    bp_json_add_flag(d, "live_at_start", h->kind == BP_MEMORY_EARLIER);
}

/* "holders", "modules", "phases", "kinds". */
static void add_holders(bp_json_writer *d, const step_holders holders[STEP_GROUPINGS])
{
    static const char *const lists[STEP_GROUPINGS] = {"holders", "modules", "phases", "kinds"};
    static const char *const names[STEP_GROUPINGS] = {"", "module", "phase", "kind"};
    for (unsigned by = 0; by < STEP_GROUPINGS; by++) {
        bp_json_add_list(d, lists[by]);
        for (size_t i = 0; i < holders[by].count; i++) {
            const step_holder *h = &holders[by].all[i];
            char name[STEP_NAME_CHARS];
            bp_json_add_object(d, NULL);
            if (by == STEP_BY_PLACE)
                add_place(d, h);
            else
                bp_json_add_text(d, names[by], step_holder_name(h, (step_grouping)by, name));
            bp_json_add_number(d, "allocations", h->allocations);
            bp_json_add_number(d, "bytes", h->bytes);
            bp_json_end(d);
        }
        bp_json_end(d);
    }
}

/* The request that found no memory with most live bytes; null: none. */
static void add_failure(bp_json_writer *d, const step_answer *a)
{
    if (a->failures == 0) {
        bp_json_add_null(d, "oom");
        return;
    }
    const bp_trace_event *request = &a->trace->events[a->failed.event];
    const size_t frames = request->stack == BP_TRACE_NONE ? 0 : a->trace->stacks[request->stack].count;
    bp_json_add_object(d, "oom");
    bp_json_add_number(d, "event", a->failed.event);
    bp_json_add_number(d, "requested_bytes", request->bytes);
    bp_json_add_number(d, "needed_bytes", a->failed.needed_bytes);
    bp_json_add_number(d, "stream", a->trace->streams[request->stream]);
    bp_json_add_number(d, "device_free_bytes", request->address);
    bp_json_add_number(d, "reserved_bytes", a->failed.reserved_bytes);
    bp_json_add_number(d, "live_bytes", a->at_failure[STEP_BY_PLACE].bytes);
    bp_json_add_number(d, "pending_bytes", a->failed.pending_bytes);
    bp_json_add_list(d, "frames");
    for (size_t i = 0; i < frames; i++) {
        bp_json_add_object(d, NULL);
        add_frame(d, &a->trace->frames[a->trace->stacks[request->stack].frames[i]]);
        bp_json_end(d);
    }
    bp_json_end(d);
    bp_json_add_list(d, "free");
    for (size_t i = 0; i < a->failed.free_count; i++) {
        const bp_free_memory *m = &a->failed.free[i];
        bp_json_add_object(d, NULL);
        bp_json_add_number(d, "stream", m->stream);
        bp_json_add_number(d, "pool", m->pool);
        bp_json_add_flag(d, "small", m->is_small);
        bp_json_add_number(d, "ranges", m->ranges);
        bp_json_add_number(d, "bytes", m->bytes);
        bp_json_add_number(d, "largest_bytes", m->largest_bytes);
        bp_json_end(d);
    }
    bp_json_end(d);
    add_holders(d, a->at_failure);
    bp_json_end(d);
}

static void add_limited(bp_json_writer *d, const char *name, const step_limited *limited)
{
    bp_json_add_object(d, name);
    bp_json_add_number(d, "retries", limited->retries);
    bp_json_add_number(d, "failures", limited->failures);
    bp_json_end(d);
}

/* null without --limit. */
static void add_limit(bp_json_writer *d, const step_answer *a)
{
    if (a->limit == 0) {
        bp_json_add_null(d, "limit");
        return;
    }
    bp_json_add_object(d, "limit");
    bp_json_add_number(d, "bytes", a->limit);
    add_limited(d, "default", &a->default_limited);
    add_limited(d, "expandable", &a->expandable_limited);
    bp_json_end(d);
}

static void add_answer(bp_json_writer *d, const step_answer *a)
{
    static const char *const sources[] = {
        [BP_STEPS_WHOLE] = "whole", [BP_STEPS_REPEATED] = "repeats", [BP_STEPS_MARKED] = "marks"};
    bp_json_add_object(d, NULL);
    bp_json_add_text(d, "file", a->path);
    bp_json_add_number(d, "device", a->trace->device);
    bp_json_add_number(d, "events", a->trace->event_count);
    bp_json_add_number(d, "allocations", a->allocations.count);
    bp_json_add_number(d, "live_at_start", a->allocations.live_at_start);
    bp_json_add_number(d, "missing_frees", a->allocations.replaced);
    bp_json_add_number(d, "oom_events", a->failures);
    bp_json_add_number(d, "unknown_events", a->allocations.unknown);
    bp_json_add_text(d, "steps_from", sources[a->steps.source]);
    bp_json_add_number(d, "step_allocations", a->steps.allocations);
    bp_json_add_number(d, "matched", a->steps.matched);
    add_steps(d, a);
    bp_json_add_number(d, "peak_bytes", a->peak_bytes);
    bp_json_add_number(d, "peak_requested_bytes", a->peak[STEP_BY_PLACE].requested_bytes);
    if (a->peak_event == BP_TRACE_NONE) /* before the first event */
        bp_json_add_null(d, "peak_event");
    else
        bp_json_add_number(d, "peak_event", a->peak_event);
    bp_json_add_number(d, "steps_peak_bytes", step_steps_peak(a));
    if (a->has_segments) {
        bp_json_add_number(d, "recorded_bytes", a->recorded_bytes);
        bp_json_add_number(d, "recorded_at_peak_bytes", a->recorded_at_peak);
    } else {
        bp_json_add_null(d, "recorded_bytes");
        bp_json_add_null(d, "recorded_at_peak_bytes");
    }
    if (a->has_segments) {
        bp_json_add_number(d, "model_reproduced", a->checked);
        bp_json_add_number(d, "model_departures", a->departures);
    } else {
        bp_json_add_null(d, "model_reproduced");
        bp_json_add_null(d, "model_departures");
    }
    bp_json_add_number(d, "default_bytes", a->default_bytes);
    bp_json_add_number(d, "default_at_peak_bytes", a->default_at_peak);
    bp_json_add_number(d, "expandable_bytes", a->expandable_bytes);
    add_limit(d, a);
    bp_json_add_number(d, "empty_caches", a->empty_caches);
    bp_json_add_number(d, "unclear_releases", a->unclear_releases);
    bp_json_add_number(d, "default_least_bytes", a->default_min);
    bp_json_add_number(d, "default_most_bytes", a->default_max);
    bp_json_add_object(d, "causes");
    bp_json_add_number(d, "rounding", a->causes.rounding);
    bp_json_add_number(d, "beside_live", a->causes.beside_live);
    bp_json_add_number(d, "cached", a->causes.cached);
    bp_json_add_number(d, "other_stream", a->causes.other_stream);
    bp_json_add_number(d, "private_pool", a->causes.private_pool);
    bp_json_end(d);
    add_plan(d, a);
    add_holders(d, a->peak);
    add_failure(d, a);
    bp_json_end(d);
}

int step_report_json(const step_answer *answers, size_t count)
{
    bp_json_writer d = {0};
    bp_json_add_object(&d, NULL);
    bp_json_add_text(&d, "format", "bucketpool.step/1");
    bp_json_add_list(&d, "devices");
    for (size_t i = 0; i < count; i++)
        add_answer(&d, &answers[i]);
    bp_json_end(&d);
    bp_json_end(&d);
    return cli_print_json(&d);
}
