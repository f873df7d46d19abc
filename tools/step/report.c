/* SPDX-License-Identifier: Apache-2.0 */
/* The report of `step`: tables. */
#include "core/print.h"
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

/* ---- one device ---------------------------------------------------------------------------------------------------- */

/* The steps are not those of the peak. */
static bool misses_peak(const step_answer *a)
{
    return a->steps.count > 0 && a->peak_bytes > step_steps_peak(a);
}

static void print_warnings(const step_answer *a, const char *prefix)
{
    const bool are_several = a->steps.count > 1;
    if (misses_peak(a))
        cli_print("%sWarning: the peak of the recording, %s, is not in %s, which reach%s %s\n", prefix,
                  cli_bytes(a->peak_bytes), are_several ? "the steps after the first" : "the step",
                  are_several ? "" : "es", cli_bytes(step_steps_peak(a)));
    if (a->allocations.replaced > 0)
        cli_print("%s%llu of the allocations %s made where one was live: the free of that one is missing\n", prefix,
                  (unsigned long long)a->allocations.replaced, a->allocations.replaced == 1 ? "was" : "were");
    if (a->allocations.unknown > 0)
        cli_print("%s%llu event%s of unknown kinds (\"%.40s\") left out\n", prefix,
                  (unsigned long long)a->allocations.unknown, cli_plural(a->allocations.unknown),
                  a->trace->unknown_name);
}

static void print_heading(const step_answer *a)
{
    const bp_steps *s = &a->steps;
    const bp_trace *t = a->trace;
    uint64_t span = t->events[t->event_count - 1].time_us - t->events[0].time_us;
    cli_print("%s, cuda:%u: %zu event%s in %.3f s, %zu allocation%s on %zu stream%s\n", bp_trace_file_name(a->path),
              t->device, t->event_count, cli_plural(t->event_count), (double)span / 1e6, a->allocations.count,
              cli_plural(a->allocations.count), t->stream_count, cli_plural(t->stream_count));
    size_t min = SIZE_MAX, max = 0;
    for (size_t i = 0; i < s->count; i++) {
        min = s->steps[i].count < min ? s->steps[i].count : min;
        max = s->steps[i].count > max ? s->steps[i].count : max;
    }
    const char *counts = min == max ? cli_text("%zu", max) : cli_text("%zu to %zu", min, max);
    if (s->count == 0)
        puts("No allocations were recorded");
    else if (s->source == BP_STEPS_WHOLE)
        puts("No marks of steps, and nothing that repeats has forward, backward and the peak: the whole recording is "
             "one "
             "step");
    else
        cli_print("%zu %s step%s of %s allocations, %s alike\n", s->count,
                  s->source == BP_STEPS_MARKED ? "marked" : "complete", s->count == 1 ? "" : "s", counts,
                  share(s->matched, s->allocations));
    print_warnings(a, "");
    if (a->allocations.live_at_start > 0)
        printf("%zu allocation%s live before the oldest event\n", a->allocations.live_at_start,
               a->allocations.live_at_start == 1 ? " was" : "s were");
    if (s->kind_count > 1)
        printf("%zu kinds of steps, planned together\n", s->kind_count);
    putchar('\n');
}

/* `of`: the peak that the row is compared with. */
static void add_amount(sheet *s, const char *what, uint64_t bytes, uint64_t of, const char *note)
{
    sheet_add_row(s, what, cli_bytes(bytes), times(bytes, of), note, NULL);
}

/* The quality of the slab. */
static const char *proof_of(const bp_step_plan_info *p)
{
    uint64_t proven = 0;
    for (size_t i = 0; i < p->kind_count; i++)
        proven = p->kinds[i].proven_bytes > proven ? p->kinds[i].proven_bytes : proven;
    if (p->bytes == 0)
        return "nothing is planned";
    if (p->optimal || proven == 0)
        return p->optimal ? "optimal: no placement takes less" : "";
    return cli_text("at most %.2f %% above the least", 100 * (double)(p->bytes - proven) / (double)proven);
}

static void print_streams(const step_answer *a)
{
    const bp_step_plan_info *p = a->plan;
    if (a->handle == NULL && a->steps.count > 0)
        printf("Not planned: %zu streams; a plan has %u at most.\n", a->trace->stream_count, BP_STEP_PLAN_STREAMS);
    if (a->handle != NULL && step_planned_bytes(a) < step_steps_peak(a))
        puts("The plan takes less than was live: it uses memory again when its tensor is gone, and waits for the "
             "streams "
             "that record_stream named.");
    enum { LISTED_PAIRS = 6 };
    bool is_listed[BP_STEP_PLAN_STREAMS * BP_STEP_PLAN_STREAMS] = {false};
    for (size_t i = 0; i < p->waits_count && i < LISTED_PAIRS; i++) { /* the largest */
        size_t best = SIZE_MAX;
        for (size_t k = 0; k < p->waits_count; k++)
            best = !is_listed[k] && (best == SIZE_MAX || p->waits[k].waits > p->waits[best].waits) ? k : best;
        is_listed[best] = true;
        cli_print("%s%llu of stream %llu for %llu", i == 0 ? "Waits of a step, where memory changes streams: " : ", ",
                  (unsigned long long)p->waits[best].waits, (unsigned long long)p->streams[p->waits[best].waiting],
                  (unsigned long long)p->streams[p->waits[best].before]);
    }
    uint64_t others = 0;
    for (size_t i = 0; i < p->waits_count; i++)
        others += is_listed[i] ? 0 : p->waits[i].waits;
    if (others > 0)
        cli_print(", %llu of %zu other pairs", (unsigned long long)others, p->waits_count - LISTED_PAIRS);
    if (p->waits_count > 0)
        putchar('\n');
}

static void print_limited(const step_answer *a, const char *name, const step_limited *limited)
{
    if (limited->failures > 0)
        cli_print("With %s, %s finds no memory for %llu request%s.\n", cli_bytes(a->limit), name,
                  (unsigned long long)limited->failures, cli_plural(limited->failures));
    else if (limited->retries > 0)
        cli_print("With %s, %s runs, and releases its unused memory %llu time%s to do so.\n", cli_bytes(a->limit), name,
                  (unsigned long long)limited->retries, cli_plural(limited->retries));
    else
        cli_print("With %s, %s runs.\n", cli_bytes(a->limit), name);
}

static int print_amounts(const step_answer *a, const step_options *options)
{
    const bp_step_plan_info *p = a->plan;
    const uint64_t peak = a->peak_bytes, planned = misses_peak(a) ? step_steps_peak(a) : peak;
    sheet s = sheet_new(cli_wants_color((cli_color)options->color));
    sheet_add_columns(&s, "MEMORY|>BYTES|>X PEAK|");
    if (a->has_segments)
        add_amount(&s, "recorded", a->recorded_bytes, peak, "what PyTorch had from the driver, at most");
    if (a->default_bytes > 0)
        add_amount(&s, "default", a->default_bytes, peak, "caching allocator, modelled");
    if (a->expandable_bytes > 0)
        add_amount(&s, "expandable", a->expandable_bytes, peak, "expandable segments, modelled");
    if (a->handle != NULL) {
        add_amount(&s, "planned", step_planned_bytes(a), planned,
                   misses_peak(a) ? "one address for each allocation of the steps, times their peak"
                                  : "one address for each allocation of the step");
        add_amount(&s, "  persistent", p->persistent_bytes, planned, "live during whole steps");
        add_amount(&s, "  step", p->bytes, planned, proof_of(p));
        if (p->bytes > p->bytes_without_windows)
            add_amount(&s, "    windows", p->bytes - p->bytes_without_windows, planned,
                       "of it, so that other streams need not wait");
        add_amount(&s, "  outside", p->outside_bytes, planned,
                   a->steps.source == BP_STEPS_WHOLE ? "live before the recording, and freed in it"
                                                     : "differs between steps, not planned");
    }
    if (misses_peak(a))
        add_amount(&s, "  peak live", planned, planned, "of the steps: no plan of them takes less");
    add_amount(&s, "peak live", peak, peak,
               misses_peak(a) ? "of the recording" : "lower bound: no allocator takes less");
    CLI_TRY(sheet_finish(&s));
    print_streams(a);
    if (a->limit > 0) {
        print_limited(a, "the caching allocator", &a->default_limited);
        print_limited(a, "the caching allocator with expandable segments", &a->expandable_limited);
    }
    if (a->empty_caches > 0)
        printf("The models follow %llu calls of torch.cuda.empty_cache.\n", (unsigned long long)a->empty_caches);
    if (a->default_min != a->default_max)
        printf("%llu releases of memory are of empty_cache, or for allocations that found none: the recording does not "
               "tell. Default is %s or %s.\n",
               (unsigned long long)a->unclear_releases, cli_bytes(a->default_min), cli_bytes(a->default_max));
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
    cli_print("\nAt the peak, the caching allocator has %s from the driver for %s of tensors (modelled)\n",
              cli_bytes(reserved), cli_bytes(a->peak[STEP_BY_PLACE].requested_bytes));
    sheet s = sheet_new(cli_wants_color((cli_color)options->color));
    sheet_add_columns(&s, "CAUSE|>BYTES|>OF RESERVED|");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        sheet_add_row(&s, rows[i].name, cli_bytes(rows[i].bytes), share(rows[i].bytes, reserved), rows[i].note, NULL);
    return sheet_finish(&s);
}

static bool has_modules(const step_holders *holders)
{
    for (size_t i = 0; i < holders->count; i++) {
        if (holders->all[i].place != NULL && holders->all[i].place->module_bytes > 0)
            return true;
    }
    return false;
}

int step_report_holders(const step_holders *holders, const step_options *options)
{
    static const char *const titles[STEP_GROUPINGS] = {"PLACE", "MODULE", "PHASE", "KIND"};
    static const char *const groups[STEP_GROUPINGS] = {"places", "modules", "phases", "kinds"};
    const bool by_place = options->by == STEP_BY_PLACE, modules = by_place && has_modules(holders);
    size_t shown = holders->count < options->holders ? holders->count : options->holders, allocations = 0;
    uint64_t rest = 0;
    sheet s = sheet_new(cli_wants_color((cli_color)options->color));
    sheet_add_columns(&s, titles[options->by]);
    if (modules)
        sheet_add_columns(&s, "MODULE");
    if (by_place)
        sheet_add_columns(&s, "PHASE");
    sheet_add_columns(&s, ">ALLOCATIONS|>BYTES|>SHARE");
    for (size_t i = 0; i < holders->count; i++) {
        const step_holder *h = &holders->all[i];
        char name[STEP_NAME_CHARS], module[STEP_NAME_CHARS];
        if (i >= shown) {
            rest += h->bytes;
            allocations += h->allocations;
            continue;
        }
        sheet_add_row(&s, step_holder_name(h, (step_grouping)options->by, name), NULL);
        if (modules)
            sheet_add_cell(&s, step_module(h, module));
        if (by_place)
            sheet_add_cell(&s, h->phase == BP_TRACE_PHASE_UNKNOWN ? "" : bp_trace_phase_name((bp_trace_phase)h->phase));
        sheet_add_cell(&s, cli_text("%zu", h->allocations));
        sheet_add_cell(&s, cli_bytes(h->bytes));
        sheet_add_cell(&s, share(h->bytes, holders->bytes));
    }
    if (shown < holders->count) {
        sheet_add_row(&s, cli_text("%zu more %s", holders->count - shown, groups[options->by]), NULL);
        if (modules)
            sheet_add_cell(&s, "");
        if (by_place)
            sheet_add_cell(&s, "");
        sheet_add_cell(&s, cli_text("%zu", allocations));
        sheet_add_cell(&s, cli_bytes(rest));
        sheet_add_cell(&s, share(rest, holders->bytes));
    }
    return sheet_finish(&s);
}

static int print_peak(const step_answer *a, const step_options *options)
{
    if (a->peak_event == BP_TRACE_NONE)
        cli_print("\nThe peak: %s live before the first event\n", cli_bytes(a->peak_bytes));
    else
        cli_print("\nThe peak: %s live at event %u, %.3f s after the first\n", cli_bytes(a->peak_bytes), a->peak_event,
                  (double)(a->trace->events[a->peak_event].time_us - a->trace->events[0].time_us) / 1e6);
    return step_report_holders(&a->peak[options->by], options);
}

int step_report_one(const step_answer *answer, const step_options *options)
{
    print_heading(answer);
    if (answer->failures > 0)
        CLI_TRY(step_report_failure(answer, options));
    CLI_TRY(print_amounts(answer, options));
    CLI_TRY(print_causes(answer, options));
    /* The live bytes of the failed request were printed, and mostly are the peak. */
    bool is_told = answer->failures > 0 && answer->at_failure[STEP_BY_PLACE].bytes == answer->peak_bytes;
    return is_told ? EXIT_GO_ON : print_peak(answer, options);
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
        sheet_add_row(&s, bp_trace_file_name(a->path), cli_text("cuda:%u", a->trace->device),
                      cli_text("%zu", a->steps.count), share(a->steps.matched, a->steps.allocations), NULL);
        if (has_segments)
            sheet_add_cell(&s, a->has_segments ? cli_bytes(a->recorded_bytes) : "");
        sheet_add_cell(&s, cli_bytes(a->default_bytes));
        sheet_add_cell(&s, cli_bytes(a->expandable_bytes));
        sheet_add_cell(&s, a->handle != NULL ? cli_bytes(step_planned_bytes(a)) : "");
        sheet_add_cell(&s, cli_bytes(a->peak_bytes));
        sheet_add_cell(&s, a->handle != NULL
                               ? times(step_planned_bytes(a), misses_peak(a) ? step_steps_peak(a) : a->peak_bytes)
                               : "");
        sheet_add_cell(&s, a->plan->optimal && a->plan->bytes > 0 ? "optimal" : "");
    }
    CLI_TRY(sheet_finish(&s));
    for (size_t i = 0; i < count; i++) {
        char prefix[256];
        bp_print(prefix, sizeof prefix, "%.200s, cuda:%u: ", bp_trace_file_name(answers[i].path),
                 answers[i].trace->device);
        print_warnings(&answers[i], prefix);
        if (answers[i].failures == 0)
            continue;
        cli_print("\n%s", prefix);
        CLI_TRY(step_report_failure(&answers[i], options));
    }
    return EXIT_GO_ON;
}
