/* The report of `step`: tables, and the document bucketpool.step/1. */
#include "step/step.h"

#include <stdio.h>
#include <string.h>

#include "shared/sheet.h"

static const char *times(uint64_t bytes, uint64_t of)
{
    return of > 0 ? cli_text("%.2f", (double)bytes / (double)of) : "";
}

static const char *share(uint64_t bytes, uint64_t of)
{
    return of > 0 ? cli_text("%.1f %%", 100 * (double)bytes / (double)of) : "";
}

const char *step_place(const step_holder *holder)
{
    const char *slash = strrchr(holder->file, '/');
    const char *file = slash != NULL ? slash + 1 : holder->file;
    if (*holder->file == '\0')
        return "(no frames)";
    if (holder->line == 0)
        return cli_text("%.24s %.20s", file, holder->function);
    return cli_text("%.20s:%llu %.18s", file, (unsigned long long)holder->line, holder->function);
}

static const char *file_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

/* ---- one device ---------------------------------------------------------------------------------------------------- */

static void print_heading(const step_answer *a)
{
    const bp_steps *s = &a->steps;
    const bp_trace *t = a->trace;
    uint64_t span = t->events[t->event_count - 1].time_us - t->events[0].time_us;
    printf("%s, cuda:%u: %zu events in %.3f s, %zu allocations on %zu stream%s\n", file_name(a->path), t->device,
           t->event_count, (double)span / 1e6, a->allocations.count, t->stream_count, t->stream_count == 1 ? "" : "s");
    if (!s->repeats)
        printf("no step repeats: the whole trace is planned as one step\n");
    else
        printf("%zu complete steps of %zu allocations, %s alike\n", s->count,
               s->kinds[s->steps[s->count - 1].kind].allocations, share(s->matched, s->allocations));
    if (s->kind_count > 1)
        printf("%zu kinds of steps, planned together\n", s->kind_count);
    if (a->allocations.replaced > 0)
        printf("%llu allocations were made where one was live: their frees are missing\n",
               (unsigned long long)a->allocations.replaced);
    if (a->failures > 0)
        printf("%llu requests found no memory, the first of %s at event %u\n", (unsigned long long)a->failures,
               cli_bytes(t->events[a->first_failure].bytes), a->first_failure);
    if (a->allocations.unknown > 0)
        printf("%llu events of unknown kinds (\"%.40s\") are left out\n", (unsigned long long)a->allocations.unknown,
               t->unknown_name);
    putchar('\n');
}

static void add_amount(sheet *s, const char *what, uint64_t bytes, const step_answer *a, const char *note)
{
    sheet_add_row(s, what, cli_bytes(bytes), times(bytes, a->peak_bytes), note, NULL);
}

static int print_amounts(const step_answer *a, const step_options *options)
{
    const bp_step_plan *p = &a->plan;
    sheet s = sheet_new(cli_wants_color((cli_color)options->color));
    sheet_add_columns(&s, "MEMORY|>BYTES|>X PEAK|");
    if (a->has_segments)
        add_amount(&s, "recorded", a->recorded_bytes, a, "what PyTorch had from the driver, at most");
    if (a->default_bytes > 0)
        add_amount(&s, "default", a->default_bytes, a, "caching allocator, modelled");
    if (a->expandable_bytes > 0)
        add_amount(&s, "expandable", a->expandable_bytes, a, "expandable segments, modelled");
    add_amount(&s, "planned", p->total_bytes, a, "one address for each allocation of the step");
    add_amount(&s, "  persistent", p->persistent_bytes, a, "live during whole steps");
    add_amount(&s, "  step", p->bytes, a,
               p->bytes == 0 ? "nothing is planned"
               : p->optimal  ? "optimal: no placement takes less"
                             : "");
    add_amount(&s, "  outside", p->outside_bytes, a, "differs between steps, not planned");
    add_amount(&s, "peak live", a->peak_bytes, a, "lower bound: no allocator takes less");
    CLI_TRY(sheet_finish(&s));
    if (a->has_segments && a->departures == 0)
        printf("The model of the caching allocator reproduces all %llu recorded addresses and segments.\n",
               (unsigned long long)a->checked);
    else if (a->has_segments)
        printf("The model of the caching allocator reproduces %llu recorded addresses and segments, and departs from "
               "%llu, first "
               "at event %u.\n",
               (unsigned long long)a->checked, (unsigned long long)a->departures, a->first_departure);
    return EXIT_GO_ON;
}

static int print_causes(const step_answer *a, const step_options *options)
{
    const step_causes *c = &a->causes;
    const struct {
        const char *name, *note;
        uint64_t bytes;
    } rows[] = {{"rounding", "of live blocks", c->rounding},
                {"beside live blocks", "free, in segments that live blocks hold", c->beside_live},
                {"cached", "segments without live blocks", c->cached},
                {"of other streams", "segments without live blocks, of other streams", c->other_stream},
                {"private pools", "free memory of graphs and MemPools", c->private_pool}};
    uint64_t reserved = a->default_at_peak;
    printf("\nAt the peak, the caching allocator has %s from the driver for %s of tensors (modelled)\n",
           cli_bytes(reserved), cli_bytes(a->requested_bytes));
    sheet s = sheet_new(cli_wants_color((cli_color)options->color));
    sheet_add_columns(&s, "CAUSE|>BYTES|>OF RESERVED|");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        sheet_add_row(&s, rows[i].name, cli_bytes(rows[i].bytes), share(rows[i].bytes, reserved), rows[i].note, NULL);
    return sheet_finish(&s);
}

static int print_holders(const step_answer *a, const step_options *options)
{
    size_t shown = a->holder_count < options->holders ? a->holder_count : options->holders;
    printf("\nThe peak: %s live at event %u, %.3f s after the first\n", cli_bytes(a->peak_bytes), a->peak_event,
           (double)(a->trace->events[a->peak_event].time_us - a->trace->events[0].time_us) / 1e6);
    sheet s = sheet_new(cli_wants_color((cli_color)options->color));
    sheet_add_columns(&s, "PLACE|>ALLOCATIONS|>BYTES|>SHARE");
    uint64_t rest = 0;
    size_t allocations = 0;
    for (size_t i = 0; i < a->holder_count; i++) {
        const step_holder *h = &a->holders[i];
        if (i < shown) {
            sheet_add_row(&s, step_place(h), cli_text("%zu", h->allocations), cli_bytes(h->bytes),
                          share(h->bytes, a->peak_bytes), NULL);
            continue;
        }
        rest += h->bytes;
        allocations += h->allocations;
    }
    if (shown < a->holder_count)
        sheet_add_row(&s, cli_text("%zu more places", a->holder_count - shown), cli_text("%zu", allocations),
                      cli_bytes(rest), share(rest, a->peak_bytes), NULL);
    return sheet_finish(&s);
}

int step_report_one(const step_answer *answer, const step_options *options)
{
    print_heading(answer);
    CLI_TRY(print_amounts(answer, options));
    CLI_TRY(print_causes(answer, options));
    return print_holders(answer, options);
}

/* ---- several ------------------------------------------------------------------------------------------------------- */

int step_report_all(const step_answer *answers, size_t count, const step_options *options)
{
    bool has_segments = false;
    for (size_t i = 0; i < count; i++)
        has_segments = has_segments || answers[i].has_segments;
    sheet s = sheet_new(cli_wants_color((cli_color)options->color));
    sheet_add_columns(&s, "FILE|DEVICE|>STEPS|>ALIKE");
    if (has_segments)
        sheet_add_columns(&s, ">RECORDED");
    sheet_add_columns(&s, ">DEFAULT|>EXPANDABLE|>PLANNED|>PEAK LIVE|>X PEAK|PROVEN");
    for (size_t i = 0; i < count; i++) {
        const step_answer *a = &answers[i];
        sheet_add_row(&s, file_name(a->path), cli_text("cuda:%u", a->trace->device), cli_text("%zu", a->steps.count),
                      share(a->steps.matched, a->steps.allocations), NULL);
        if (has_segments)
            sheet_add_cell(&s, a->has_segments ? cli_bytes(a->recorded_bytes) : "");
        sheet_add_cell(&s, cli_bytes(a->default_bytes));
        sheet_add_cell(&s, cli_bytes(a->expandable_bytes));
        sheet_add_cell(&s, cli_bytes(a->plan.total_bytes));
        sheet_add_cell(&s, cli_bytes(a->peak_bytes));
        sheet_add_cell(&s, times(a->plan.total_bytes, a->peak_bytes));
        sheet_add_cell(&s, a->plan.optimal && a->plan.bytes > 0 ? "optimal" : "");
    }
    return sheet_finish(&s);
}

/* ---- JSON ---------------------------------------------------------------------------------------------------------- */

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
        bp_json_add_number(d, "kind", step->kind);
        bp_json_add_number(d, "begin_bytes", step->begin_bytes);
        bp_json_add_number(d, "peak_bytes", step->peak_bytes);
        bp_json_add_number(d, "peak_event", step->peak_event);
        bp_json_end(d);
    }
    bp_json_end(d);
}

static void add_plan(bp_json_writer *d, const bp_step_plan *p)
{
    bp_json_add_object(d, "plan");
    bp_json_add_number(d, "total_bytes", p->total_bytes);
    bp_json_add_number(d, "persistent_bytes", p->persistent_bytes);
    bp_json_add_number(d, "step_bytes", p->bytes);
    bp_json_add_number(d, "outside_bytes", p->outside_bytes);
    bp_json_add_flag(d, "optimal", p->optimal);
    bp_json_add_list(d, "kinds");
    for (size_t i = 0; i < p->kind_count; i++) {
        size_t outside = 0;
        for (size_t k = 0; k < p->kinds[i].count; k++)
            outside += p->kinds[i].items[k].is_outside;
        bp_json_add_object(d, NULL);
        bp_json_add_number(d, "allocations", p->kinds[i].count);
        bp_json_add_number(d, "outside", outside);
        bp_json_add_number(d, "bytes", p->kinds[i].bytes);
        bp_json_add_number(d, "lower_bound_bytes", p->kinds[i].lower_bound_bytes);
        bp_json_add_number(d, "proven_bytes", p->kinds[i].proven_bytes);
        bp_json_add_text(d, "method", p->kinds[i].method);
        bp_json_end(d);
    }
    bp_json_end(d);
    bp_json_end(d);
}

static void add_holders(bp_json_writer *d, const step_answer *a)
{
    bp_json_add_list(d, "holders");
    for (size_t i = 0; i < a->holder_count; i++) {
        const step_holder *h = &a->holders[i];
        bp_json_add_object(d, NULL);
        bp_json_add_text(d, "file", h->file);
        bp_json_add_number(d, "line", h->line);
        bp_json_add_text(d, "function", h->function);
        bp_json_add_number(d, "allocations", h->allocations);
        bp_json_add_number(d, "bytes", h->bytes);
        bp_json_end(d);
    }
    bp_json_end(d);
}

static void add_answer(bp_json_writer *d, const step_answer *a)
{
    bp_json_add_object(d, NULL);
    bp_json_add_text(d, "file", a->path);
    bp_json_add_number(d, "device", a->trace->device);
    bp_json_add_number(d, "events", a->trace->event_count);
    bp_json_add_number(d, "allocations", a->allocations.count);
    bp_json_add_number(d, "live_at_start", a->allocations.live_at_start);
    bp_json_add_number(d, "missing_frees", a->allocations.replaced);
    bp_json_add_number(d, "oom_events", a->failures);
    bp_json_add_number(d, "unknown_events", a->allocations.unknown);
    bp_json_add_flag(d, "repeats", a->steps.repeats);
    bp_json_add_number(d, "step_allocations", a->steps.allocations);
    bp_json_add_number(d, "matched", a->steps.matched);
    add_steps(d, a);
    bp_json_add_number(d, "peak_bytes", a->peak_bytes);
    bp_json_add_number(d, "peak_requested_bytes", a->requested_bytes);
    bp_json_add_number(d, "peak_event", a->peak_event);
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
    bp_json_add_object(d, "causes");
    bp_json_add_number(d, "rounding", a->causes.rounding);
    bp_json_add_number(d, "beside_live", a->causes.beside_live);
    bp_json_add_number(d, "cached", a->causes.cached);
    bp_json_add_number(d, "other_stream", a->causes.other_stream);
    bp_json_add_number(d, "private_pool", a->causes.private_pool);
    bp_json_end(d);
    add_plan(d, &a->plan);
    add_holders(d, a);
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
