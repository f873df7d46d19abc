#include "schedule_table.h"

#include <stdio.h>
#include <stdlib.h>

#include "cli.h"
#include "schedule_rows.h"
#include "schedule_text.h"
#include "sheet.h"
#include "table.h"

#define MOST_PAIRS 8 /* that are printed; the document has all */

/* ---- above --------------------------------------------------------------------------------------------------------------- */

static void print_lanes(const schedule_view *v)
{
    static const char *const names[] = {"gather", "compute", "reduce", "outer_reduce"};
    uint32_t used = 0;
    for (size_t i = 0; i < v->event_count; i++)
        used |= v->events[i].lane < BP_LANE_COUNT ? 1u << v->events[i].lane : 0;
    const char *separator = "";
    for (uint32_t lane = 0; lane < BP_LANE_COUNT; lane++) {
        if (!(used & 1u << lane))
            continue;
        if (lane < sizeof names / sizeof *names)
            printf("%s%s", separator, names[lane]);
        else
            printf("%s%u", separator, lane);
        separator = ", ";
    }
}

static void print_summary(const schedule_view *v)
{
    const analysis *a = v->analysed;
    printf("%u steps of %zu unit%s; acquired and released on the lanes ", v->steps, a->units, a->units == 1 ? "" : "s");
    print_lanes(v);
    puts(".\nLive at most:");
    for (size_t i = 0; i < v->role_count; i++) {
        char text[STEP_TEXT_CHARS];
        const live_bytes *live = &v->roles[i];
        printf("  %s %s in step %u (%s)\n", schedule_view_role_name(live), cli_bytes(live->peak_bytes), live->peak_step,
               analysis_step_text(a, live->peak_step, text));
    }
    putchar('\n');
}

/* ---- the steps ----------------------------------------------------------------------------------------------------------- */

static const char *unit_name(const schedule_view *v, int32_t unit)
{
    return unit >= 0 ? bp_buckets_get_info(v->analysed->buckets)->units[unit].name : "";
}

static void set_units(sheet *s, size_t column, const schedule_view *v, const bp_step *step)
{
    char text[256];
    snprintf(text, sizeof text, "%.120s%s%.120s", unit_name(v, step->unit), step->forward_unit >= 0 ? " | " : "",
             unit_name(v, step->forward_unit) + (step->forward_unit >= 0 ? v->common_chars : 0));
    sheet_set_cell(s, column, text);
}

/* "param, grad" where they are most. */
static void set_peaks(sheet *s, size_t column, const schedule_view *v, uint32_t step)
{
    char text[128] = "";
    size_t length = 0;
    for (size_t i = 0; i < v->role_count; i++) {
        if (v->roles[i].peak_step == step && v->roles[i].peak_bytes > 0)
            length += (size_t)snprintf(text + length, sizeof text - length, "%s%s", length > 0 ? ", " : "",
                                       schedule_view_role_name(&v->roles[i]));
    }
    sheet_set_cell(s, column, text);
    if (length > 0)
        sheet_color_line(s, "yellow");
}

/* A step of a recording is the event itself, an acquire or a release. */
static bool is_recorded(const schedule_view *v)
{
    return v->analysed->recorded == v->analysed->models;
}

static void add_step(sheet *s, const schedule_view *v, uint32_t index)
{
    char text[EVENTS_TEXT_CHARS];
    bp_step step = bp_schedule_get_info(v->analysed->schedule)->steps[index];
    sheet_add_line(s);
    snprintf(text, sizeof text, "%u", index);
    sheet_set_cell(s, 0, text);
    sheet_set_cell(s, 1, schedule_view_phase_name(step.phase));
    set_units(s, 2, v, &step);
    sheet_set_cell(s, 3, schedule_events_text(v, index, true, text));
    sheet_set_cell(s, 4, schedule_events_text(v, is_recorded(v) ? index : index + 1, false, text));
    for (size_t i = 0; i < v->role_count; i++)
        sheet_set_cell(s, 5 + i, cli_bytes(v->roles[i].by_step[index]));
    set_peaks(s, 5 + v->role_count, v, index);
}

static void add_gap(sheet *s, uint32_t steps)
{
    char text[48];
    sheet_add_line(s);
    sheet_set_cell(s, 0, "...");
    snprintf(text, sizeof text, "%u steps", steps);
    sheet_set_cell(s, 1, text);
}

static int print_steps(const schedule_view *v, const plan_options *options, const bool *shown, const step_range *range)
{
    sheet s = sheet_new(cli_wants_color(options->color));
    const char *const titles[] = {"STEP", "PHASE", "UNIT", "ACQUIRED", is_recorded(v) ? "RELEASED" : "RELEASED AFTER"};
    for (size_t i = 0; i < sizeof titles / sizeof *titles; i++)
        sheet_add_column(&s, titles[i], i == 0);
    for (size_t i = 0; i < v->role_count; i++)
        sheet_add_column(&s, schedule_view_role_name(&v->roles[i]), true);
    sheet_add_column(&s, "PEAK", false);
    uint32_t left_out = 0;
    for (uint32_t step = range->first; step <= range->last; step++) {
        left_out += !shown[step];
        if (!shown[step])
            continue;
        if (left_out > 0)
            add_gap(&s, left_out);
        left_out = 0;
        add_step(&s, v, step);
    }
    return sheet_finish(&s);
}

/* ---- below --------------------------------------------------------------------------------------------------------------- */

static void print_overlaps(const schedule_view *v)
{
    size_t count = bp_schedule_get_info(v->analysed->schedule)->overlap_count;
    const bp_overlap *overlaps = bp_schedule_get_info(v->analysed->schedule)->overlaps;
    char earlier[EVENTS_TEXT_CHARS], later[EVENTS_TEXT_CHARS];
    if (count == 0)
        return;
    printf(
        "\n%zu pair%s never live together, but kept apart: the later one is acquired under the earlier one's work.\n",
        count, count == 1 ? " is" : "s are");
    for (size_t i = 0; i < count && i < MOST_PAIRS; i++)
        printf("  %s after %s\n", schedule_request_text(v, overlaps[i].later, later),
               schedule_request_text(v, overlaps[i].earlier, earlier));
    if (count > MOST_PAIRS)
        printf("  and %zu more; --json lists all\n", count - MOST_PAIRS);
}

int schedule_table_print(const schedule_view *v, const plan_options *options, const step_range *range)
{
    step_range all = {0, v->steps - 1, false};
    bool *shown = calloc((size_t)v->steps + 1, sizeof *shown);
    if (shown == NULL)
        return cli_fail(EXIT_ENVIRONMENT, "out of memory");
    schedule_rows_choose(v, shown);
    for (uint32_t i = range->first; range->given && i <= range->last; i++)
        shown[i] = true;
    table_print_heading(v->analysed, options);
    print_summary(v);
    int code = print_steps(v, options, shown, range->given ? range : &all);
    free(shown);
    print_overlaps(v);
    return code;
}
