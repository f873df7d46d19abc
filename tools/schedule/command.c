/* SPDX-License-Identifier: Apache-2.0 */
/* `bucketpool schedule`: one schedule as a table, a document or a picture. */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/print.h"
#include "pictures/pictures.h"
#include "plan/analysis.h"
#include "schedule/view.h"
#include "shared/cli.h"
#include "shared/outputs.h"
#include "shared/sheet.h"

#define EVENTS_TEXT_CHARS 512

/* ---- cells ------------------------------------------------------------------------------------------------------- */

#define MAX_NAMES 3 /* units printed by name */

/* Events of one unit in a step: all buckets of some roles, or some buckets of one role. */
typedef struct unit_events {
    const bp_schedule_event *first;
    uint32_t roles;
    bool is_part;
    request_view request; /* the first */
    size_t next;          /* first event of the next unit */
} unit_events;

/* Reads the events in [at, end). */
static unit_events take_unit(const schedule_view *v, size_t at, size_t end)
{
    unit_events u = {.first = &v->events[at], .next = at + 1};
    schedule_view_request(v, u.first->first_request, &u.request);
    u.roles = BP_ROLE_BIT(u.request.request.role);
    u.is_part = schedule_view_is_part(v, u.first);
    for (; !u.is_part && u.next < end; u.next++) {
        const bp_schedule_event *event = &v->events[u.next];
        request_view r;
        if (event->acquire != u.first->acquire || !schedule_view_request(v, event->first_request, &r) ||
            r.bucket.unit != u.request.bucket.unit || schedule_view_is_part(v, event))
            break;
        u.roles |= BP_ROLE_BIT(r.request.role);
    }
    return u;
}

static void append_name(const schedule_view *v, const unit_events *u, char text[EVENTS_TEXT_CHARS])
{
    const char *separator = *text != '\0' ? ", " : "";
    cli_append(text, EVENTS_TEXT_CHARS, "%s%.60s", separator, u->request.unit + v->common_chars);
    if (!u->is_part)
        return;
    cli_append(text, EVENTS_TEXT_CHARS, "/%.40s", cli_bucket(u->request.bucket.name, u->request.bucket.ordinal));
    if (u->first->request_count > 1)
        cli_append(text, EVENTS_TEXT_CHARS, " and %u more", u->first->request_count - 1);
}

/* Names, or number, of units with events in the same roles. */
static void append_group(const schedule_view *v, size_t at, size_t end, const unit_events *like,
                         char text[EVENTS_TEXT_CHARS])
{
    size_t units = 0;
    for (size_t i = at; i < end;) {
        unit_events u = take_unit(v, i, end);
        units += u.roles == like->roles;
        i = u.next;
    }
    for (size_t i = at; i < end && units <= MAX_NAMES;) {
        unit_events u = take_unit(v, i, end);
        if (u.roles == like->roles)
            append_name(v, &u, text);
        i = u.next;
    }
    if (units > MAX_NAMES)
        cli_append(text, EVENTS_TEXT_CHARS, "%s%zu%s", *text != '\0' ? ", " : "", units,
                   like->is_part ? " parts of units" : " units");

    /* " param+grad"; nothing if the schedule has one role */
    const char *separator = " ";
    for (uint32_t role = 0; role < BP_ROLE_COUNT && v->role_count > 1; role++) {
        if (like->roles & BP_ROLE_BIT(role)) {
            cli_append(text, EVENTS_TEXT_CHARS, "%s%s", separator, bp_role_name((bp_role)role));
            separator = "+";
        }
    }
}

/* Formats the acquires or releases of a step: "layers.3 param, layers.4 grad", without the common prefix; "52 units
 * state" for many units; "" for none. */
static const char *schedule_events_text(const schedule_view *v, uint32_t step, bool acquires,
                                        char text[EVENTS_TEXT_CHARS])
{
    size_t at = v->first_event[step], end = v->first_event[step + 1];
    while (at < end && (v->events[at].acquire == 1) != acquires) /* releases come first */
        at++;
    while (end > at && (v->events[end - 1].acquire == 1) != acquires)
        end--;
    *text = '\0';
    uint32_t done[32]; /* sets of roles, at most 32 */
    size_t count = 0;
    for (size_t i = at; i < end;) {
        unit_events u = take_unit(v, i, end);
        bool is_new = true;
        for (size_t k = 0; k < count; k++)
            is_new = is_new && done[k] != u.roles;
        if (is_new) {
            append_group(v, i, end, &u, text);
            done[count++] = u.roles;
        }
        i = u.next;
    }
    return text;
}

/* "layers.3/dense (param)". */
static const char *schedule_request_text(const schedule_view *v, uint32_t request, char text[EVENTS_TEXT_CHARS])
{
    request_view r;
    *text = '\0';
    if (schedule_view_request(v, request, &r))
        bp_print(text, EVENTS_TEXT_CHARS, "%.160s/%.80s (%s)", r.unit, cli_bucket(r.bucket.name, r.bucket.ordinal),
                 bp_role_name((bp_role)r.request.role));
    return text;
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

enum { ALL_UP_TO = 40, MAX_ROWS = 60, BEFORE = 2, AFTER = 2 };

static void show(const schedule_view *v, uint32_t step, bool *shown)
{
    uint32_t first = step > BEFORE ? step - BEFORE : 0;
    for (uint32_t i = first; i < v->steps && i <= step + AFTER; i++)
        shown[i] = true;
}

static bp_phase direction_of(const schedule_view *v, uint32_t index)
{
    return names_direction(&bp_schedule_get_info(v->analysed->schedule)->steps[index]);
}

static uint32_t count_rows(const schedule_view *v, const bool *shown)
{
    uint32_t rows = 0;
    for (uint32_t i = 0; i < v->steps; i++)
        rows += shown[i];
    return rows;
}

/* Sets a flag for each step to print: all steps of a short schedule; of a long one the beginning, the end, the peaks
 * and the first changes of direction, with their neighbours. */
static void schedule_rows_choose(const schedule_view *v, bool *shown)
{
    for (uint32_t i = 0; i < v->steps; i++)
        shown[i] = v->steps <= ALL_UP_TO;
    if (v->steps <= ALL_UP_TO)
        return;
    show(v, 0, shown);
    show(v, v->steps - 1, shown);
    for (size_t i = 0; i < v->role_count; i++)
        show(v, v->roles[i].peak_step, shown);
    uint32_t rows = count_rows(v, shown);
    for (uint32_t i = 1; i < v->steps && rows < MAX_ROWS; i++) {
        if (direction_of(v, i) == direction_of(v, i - 1))
            continue;
        show(v, i, shown);
        rows = count_rows(v, shown);
    }
    for (uint32_t i = 1; i + 1 < v->steps; i++) /* a gap of one step: its own line takes no more room */
        shown[i] = shown[i] || (shown[i - 1] && shown[i + 1]);
}

#define MAX_PAIRS 8 /* printed in the table; the document has all */

/* ---- the steps --------------------------------------------------------------------------------------------------- */

static const char *unit_name(const schedule_view *v, int32_t unit)
{
    return unit >= 0 ? bp_buckets_get_info(v->analysed->buckets)->units[unit].name : "";
}

/* A step of a recorded schedule is one event. */
static bool is_recorded(const schedule_view *v)
{
    return v->analysed->recorded == v->analysed->models;
}

static void add_step(sheet *s, const schedule_view *v, uint32_t index)
{
    char units[256], acquired[EVENTS_TEXT_CHARS], released[EVENTS_TEXT_CHARS];
    bp_step step = bp_schedule_get_info(v->analysed->schedule)->steps[index];
    bp_print(units, sizeof units, "%.120s%s%.120s", unit_name(v, step.unit), step.forward_unit >= 0 ? " | " : "",
             unit_name(v, step.forward_unit) + (step.forward_unit >= 0 ? v->common_chars : 0));
    sheet_add_row(s, cli_text("%u", index), schedule_view_phase_name(step.phase), units,
                  schedule_events_text(v, index, true, acquired),
                  schedule_events_text(v, is_recorded(v) ? index : index + 1, false, released), NULL);
    for (size_t i = 0; i < v->role_count; i++)
        sheet_add_cell(s, cli_bytes(v->roles[i].by_step[index]));

    /* roles with their peak in this step: "param, grad" */
    char text[128] = "";
    for (size_t i = 0; i < v->role_count; i++) {
        if (v->roles[i].peak_step == index && v->roles[i].peak_bytes > 0)
            cli_append(text, sizeof text, "%s%s", *text != '\0' ? ", " : "", schedule_view_role_name(&v->roles[i]));
    }
    sheet_add_cell(s, text);
    if (*text != '\0')
        sheet_color_line(s, "yellow");
}

static int print_steps(const schedule_view *v, const plan_options *options, const bool *shown, const step_range *range)
{
    sheet s = sheet_new(cli_wants_color(options->color));
    sheet_add_columns(&s, is_recorded(v) ? ">STEP|PHASE|UNIT|ACQUIRED|RELEASED"
                                         : ">STEP|PHASE|UNIT|ACQUIRED|RELEASED AFTER");
    for (size_t i = 0; i < v->role_count; i++)
        sheet_add_column(&s, schedule_view_role_name(&v->roles[i]), true);
    sheet_add_columns(&s, "PEAK");
    uint32_t left_out = 0;
    for (uint32_t step = range->first; step <= range->last; step++) {
        left_out += !shown[step];
        if (!shown[step])
            continue;
        if (left_out > 0)
            sheet_add_row(&s, "...", cli_text("%u step%s", left_out, cli_plural(left_out)), NULL);
        left_out = 0;
        add_step(&s, v, step);
    }
    return sheet_finish(&s);
}

/* ---- below ------------------------------------------------------------------------------------------------------- */

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
    for (size_t i = 0; i < count && i < MAX_PAIRS; i++)
        cli_print("  %s after %s\n", schedule_request_text(v, overlaps[i].later, later),
                  schedule_request_text(v, overlaps[i].earlier, earlier));
    if (count > MAX_PAIRS)
        printf("  and %zu more; --json lists all\n", count - MAX_PAIRS);
}

/* Prints heading, peaks, steps, and the overlap pairs. Returns EXIT_GO_ON or an exit code. */
static int schedule_table_print(const schedule_view *v, const plan_options *options, const step_range *range)
{
    step_range all = {0, v->steps - 1, false};
    bool *shown = calloc((size_t)v->steps + 1, sizeof *shown);
    if (shown == NULL)
        return cli_fail(EXIT_ENVIRONMENT, "out of memory");
    schedule_rows_choose(v, shown);
    for (uint32_t i = range->first; range->given && i <= range->last; i++)
        shown[i] = true;
    table_print_heading(v->analysed, options);

    const analysis *a = v->analysed;
    cli_print("%u steps of %zu unit%s; acquired and released on the lanes ", v->steps, a->units,
              a->units == 1 ? "" : "s");

    static const char *const names[] = {"gather", "compute", "reduce", "outer_reduce"};
    uint32_t used = 0;
    for (size_t i = 0; i < v->event_count; i++)
        used |= v->events[i].lane < BP_LANE_COUNT ? 1u << v->events[i].lane : 0;
    const char *separator = "";
    for (uint32_t lane = 0; lane < BP_LANE_COUNT; lane++) {
        if (!(used & 1u << lane))
            continue;
        if (lane < sizeof names / sizeof *names)
            cli_print("%s%s", separator, names[lane]);
        else
            cli_print("%s%u", separator, lane);
        separator = ", ";
    }

    puts(".\nLive at most:");
    for (size_t i = 0; i < v->role_count; i++) {
        char text[STEP_TEXT_CHARS];
        const live_bytes *live = &v->roles[i];
        cli_print("  %s %s in step %u (%s)\n", schedule_view_role_name(live), cli_bytes(live->peak_bytes),
                  live->peak_step, analysis_step_text(a, live->peak_step, text));
    }
    putchar('\n');

    int code = print_steps(v, options, shown, range->given ? range : &all);
    free(shown);
    print_overlaps(v);
    return code;
}

/* ---- the document ------------------------------------------------------------------------------------------------ */

static void print_unit(bp_json_writer *d, const char *key, const schedule_view *v, int32_t unit)
{
    bp_json_add_text(d, key, unit >= 0 ? bp_buckets_get_info(v->analysed->buckets)->units[unit].name : NULL);
}

static void print_request(bp_json_writer *d, const schedule_view *v, size_t index)
{
    request_view r;
    if (!schedule_view_request(v, (uint32_t)index, &r)) {
        bp_json_check(d, BP_ERR_INTERNAL);
        return;
    }
    bp_json_add_object(d, NULL);
    bp_json_add_text(d, "unit", r.unit);
    bp_json_add_text(d, "bucket", cli_bucket(r.bucket.name, r.bucket.ordinal));
    bp_json_add_text(d, "role", bp_role_name((bp_role)r.request.role));
    bp_json_add_number(d, "bytes", r.request.bytes);
    bp_json_end(d);
}

static void print_step(bp_json_writer *d, const schedule_view *v, size_t index)
{
    bp_step step = bp_schedule_get_info(v->analysed->schedule)->steps[index];
    bp_json_add_object(d, NULL);
    bp_json_add_text(d, "phase", schedule_view_phase_name(step.phase));
    print_unit(d, "unit", v, step.unit);
    bp_json_add_object(d, "live_bytes");
    for (size_t i = 0; i < v->role_count; i++)
        bp_json_add_number(d, schedule_view_role_name(&v->roles[i]), v->roles[i].by_step[index]);
    bp_json_end(d);
    if (step.forward_unit >= 0)
        print_unit(d, "forward_unit", v, step.forward_unit);
    bp_json_end(d);
}

static void print_event(bp_json_writer *d, const schedule_view *v, size_t index)
{
    const bp_schedule_event *e = &v->events[index];
    bp_json_add_object(d, NULL);
    bp_json_add_number(d, "step", e->step);
    bp_json_add_flag(d, "acquire", e->acquire);
    bp_json_add_number(d, "lane", e->lane);
    bp_json_add_number(d, "first_request", e->first_request);
    bp_json_add_number(d, "request_count", e->request_count);
    bp_json_end(d);
}

static void print_peak(bp_json_writer *d, const schedule_view *v, size_t index)
{
    const live_bytes *live = &v->roles[index];
    bp_json_add_object(d, NULL);
    bp_json_add_text(d, "role", schedule_view_role_name(live));
    bp_json_add_number(d, "bytes", live->peak_bytes);
    bp_json_add_number(d, "step", live->peak_step);
    bp_json_end(d);
}

static void print_overlap(bp_json_writer *d, const schedule_view *v, size_t index)
{
    const bp_overlap *overlap = &bp_schedule_get_info(v->analysed->schedule)->overlaps[index];
    bp_json_add_object(d, NULL);
    bp_json_add_number(d, "earlier", overlap->earlier);
    bp_json_add_number(d, "later", overlap->later);
    bp_json_end(d);
}

static void print_list(bp_json_writer *d, const char *key, const schedule_view *v, size_t count,
                       void print(bp_json_writer *, const schedule_view *, size_t))
{
    bp_json_add_list(d, key);
    for (size_t i = 0; i < count; i++)
        print(d, v, i);
    bp_json_end(d);
}

/* Prints the document. Returns EXIT_GO_ON, or the exit code after a message. */
static int schedule_report_print(const schedule_view *v, const plan_options *options)
{
    const bp_schedule *schedule = v->analysed->schedule;
    bp_json_writer d = {0};
    bp_json_add_object(&d, NULL);
    bp_json_add_text(&d, "format", "bucketpool.schedule/1");
    bp_json_add_text(&d, "model", v->analysed->name);
    report_options(&d, v->analysed, options);
    print_list(&d, "requests", v, bp_buckets_get_info(v->analysed->buckets)->request_count, print_request);
    print_list(&d, "steps", v, v->steps, print_step);
    print_list(&d, "events", v, v->event_count, print_event);
    print_list(&d, "peaks", v, v->role_count, print_peak);
    print_list(&d, "overlaps", v, bp_schedule_get_info(schedule)->overlap_count, print_overlap);
    bp_json_end(&d);
    return cli_print_json(&d);
}

typedef struct command_options {
    plan_options planning; /* first, as its tables require; its policies are unused */
    step_range steps;
    uint32_t roles; /* to print */
} command_options;

/* ---- options ----------------------------------------------------------------------------------------------------- */

/* Parses "12-40" or "12". */
static int parse_steps(const char *name, const char *text, void *options)
{
    step_range *range = &((command_options *)options)->steps;
    unsigned long long first, last;
    int used = 0;
    range->given = true;
    bool one = sscanf(text, "%9llu%n", &first, &used) == 1 && text[used] == '\0';
    bool both = !one && sscanf(text, "%9llu-%9llu%n", &first, &last, &used) == 2 && text[used] == '\0';
    if ((!one && !both) || *text < '0' || *text > '9' || (both && last < first))
        return cli_fail(EXIT_BAD_INPUT, "--%s: expected A-B with B at least A, got \"%.40s\"", name, text);
    range->first = (uint32_t)first;
    range->last = (uint32_t)(one ? first : last);
    return EXIT_GO_ON;
}

#define FIELD(member) offsetof(command_options, member)

static const option_row schedule_table[] = {
    {.kind = OPTION_HEADING, .text = "Output:", .group = 6},
    {"steps", "A-B", "Print these steps (default: all; of a long schedule the beginning, peaks and end)", OPTION_OWN,
     .parse = parse_steps},
    {"role", "LIST", "Print only these roles (default: all of --roles)", OPTION_SET, FIELD(roles), options_roles},
    {"json", NULL, "Print a bucketpool.schedule/1 document", OPTION_FLAG, FIELD(planning.json)},
    {"plot", "FILE", "Draw the schedule (.svg)", OPTION_PICTURE, FIELD(planning.plot)},
    {"color", "WHEN", "auto, always or never (default auto)", OPTION_CHOICE, FIELD(planning.color), choices_color},
    OPTION_END,
};

static int parse(int argc, char **argv, command_options *options)
{
    *options = (command_options){0};
    options_init(&options->planning);
    options->planning.policy_count = 0; /* no plan is made */
    const options_command reading = {
        .name = "schedule",
        .arguments = "MODEL",
        .text = "Prints the live ranges of the buckets of each unit of MODEL, and the live bytes of each "
                "step.\vMODEL is as for plan. Exit: 0 answered, 2 bad input, 3 environment.",
        .tables = {schedule_table, options_planning, options_schedule},
        .options = options,
        .given = &options->planning.given,
        .files = &options->planning.models,
        .file_count = &options->planning.model_count};
    CLI_TRY(options_read(argc, argv, &reading));

    CLI_TRY(options_check(&options->planning, "schedule"));
    if (options->planning.model_count > 1 && !options->planning.schedule.share)
        return cli_fail(EXIT_BAD_INPUT, "schedule requires one model, got %zu; --share plans several in one pool",
                        options->planning.model_count);
    if (options->planning.json && options->steps.given)
        return cli_fail(EXIT_BAD_INPUT, "--steps cannot be used with --json, which prints all steps; leave one out");
    return EXIT_GO_ON;
}

/* ---- answering --------------------------------------------------------------------------------------------------- */

static int draw(const command_options *o, const schedule_view *v, const output *picture)
{
    if (picture->path == NULL)
        return EXIT_GO_ON;
    char subtitle[SCHEDULE_TEXT_CHARS + 64], schedule[SCHEDULE_TEXT_CHARS];
    bp_print(subtitle, sizeof subtitle, "dp %u, ep %u, tp %u, %s", o->planning.dp, o->planning.ep, o->planning.tp,
             analysis_schedule_text(v->analysed, &o->planning, schedule));
    const char *error = picture_draw_schedule(v, subtitle, picture);
    return error == NULL ? EXIT_GO_ON : cli_fail(EXIT_ENVIRONMENT, "--plot %s: %s", o->planning.plot, error);
}

/* The picture is committed after the report was printed. */
static int answer(const command_options *o, const schedule_view *v)
{
    output picture;
    if (o->steps.given && o->steps.last >= v->steps)
        return cli_fail(EXIT_BAD_INPUT, "--steps: expected steps in [0, %u], got %u-%u", v->steps - 1, o->steps.first,
                        o->steps.last);
    int code = output_init("--plot", o->planning.plot, &picture);
    if (code == EXIT_GO_ON)
        code = draw(o, v, &picture);
    if (code == EXIT_GO_ON)
        code = outputs_sync(&picture, 1);
    if (code == EXIT_GO_ON)
        code = o->planning.json ? schedule_report_print(v, &o->planning)
                                : schedule_table_print(v, &o->planning, &o->steps);
    code = outputs_end(&picture, 1, code);
    return code;
}

int cli_schedule(int argc, char **argv)
{
    command_options options;
    analysis *analyses = NULL;
    size_t count = 0;
    bool infeasible = false;
    int code = parse(argc, argv, &options);
    if (code == EXIT_GO_ON)
        code = analysis_init_all(&options.planning, &analyses, &count, &infeasible);
    if (code == EXIT_GO_ON) {
        schedule_view view;
        code = schedule_view_init(&analyses[0], options.roles != 0 ? options.roles : UINT32_MAX,
                                  options.planning.alignment, &view);
        if (code == EXIT_GO_ON)
            code = answer(&options, &view);
        schedule_view_finish(&view);
    }
    analysis_finish_all(analyses, count);
    options_finish(&options.planning);
    return code == EXIT_GO_ON ? EXIT_ANSWERED : code;
}
