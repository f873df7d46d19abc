/* `bucketpool schedule`: one schedule as a table, a document or a picture. */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pictures/schedule.h"
#include "plan/report.h"
#include "schedule/table.h"
#include "schedule/view.h"
#include "shared/cli.h"
#include "shared/outputs.h"

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

/* Prints it to standard output. Returns EXIT_GO_ON or the exit code after a message. */
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

/* ---- the command ------------------------------------------------------------------------------------------------- */

typedef struct command_options {
    plan_options planning; /* first: its tables set it; its policies are not used */
    step_range steps;
    uint32_t roles; /* that are shown */
} command_options;

/* ---- options ------------------------------------------------------------------------------------------------------------- */

/* "12-40", or one step. */
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

static int add_role(const char *word, void *user)
{
    command_options *options = user;
    bp_role role;
    if (bp_role_parse(word, &role) != BP_OK)
        return cli_fail(EXIT_BAD_INPUT, "--role: %s", bp_error_detail());
    options->roles |= BP_ROLE_BIT(role);
    return EXIT_GO_ON;
}

static int parse_roles(const char *name, const char *text, void *options)
{
    return value_list(name, text, add_role, options);
}

#define FIELD(member) offsetof(command_options, member)

static const option_row schedule_table[] = {
    {.kind = OPTION_HEADING, .text = "Output:", .group = 6},
    {"steps", "A-B", "Print these steps (default: of a long schedule the interesting ones)", OPTION_OWN,
     .parse = parse_steps},
    {"role", "LIST", "Show only these of the roles (default: all)", OPTION_OWN, .parse = parse_roles},
    {"json", NULL, "Print a bucketpool.schedule/1 document", OPTION_FLAG, FIELD(planning.json)},
    {"plot", "FILE", "Draw the schedule (.svg, .png or .pdf)", OPTION_PICTURE, FIELD(planning.plot)},
    {"color", "WHEN", "auto, always or never (default auto)", OPTION_COLOR, FIELD(planning.color)},
    OPTION_END,
};

static int check(const command_options *o)
{
    int code = options_check(&o->planning, "schedule");
    if (code != EXIT_GO_ON)
        return code;
    if (o->planning.model_count > 1 && !o->planning.schedule.share)
        return cli_fail(EXIT_BAD_INPUT, "schedule prints one schedule, and %zu models are given; --share makes it one",
                        o->planning.model_count);
    if (o->planning.json && o->steps.given)
        return cli_fail(EXIT_BAD_INPUT, "--steps is about the table; --json prints all steps");
    return EXIT_GO_ON;
}

static int parse(int argc, char **argv, command_options *options)
{
    *options = (command_options){0};
    options_init(&options->planning);
    options->planning.policy_count = 0; /* nothing is placed */
    const options_command reading = {
        .name = "schedule",
        .arguments = "MODEL",
        .text = "Prints when the memory of each unit of MODEL is acquired and released, and how much is live in each "
                "step.\vMODEL is as for plan. Exit: 0 answered, 2 bad input, 3 environment.",
        .tables = {schedule_table, options_planning, options_schedule},
        .options = options,
        .given = &options->planning.given,
        .files = &options->planning.models,
        .file_count = &options->planning.model_count};
    int code = options_read(argc, argv, &reading);
    return code == EXIT_GO_ON ? check(options) : code;
}

/* ---- answering ----------------------------------------------------------------------------------------------------------- */

static int draw(const command_options *o, const schedule_view *v, const output *picture)
{
    if (picture->path == NULL)
        return EXIT_GO_ON;
    char subtitle[SCHEDULE_TEXT_CHARS + 64], schedule[SCHEDULE_TEXT_CHARS];
    snprintf(subtitle, sizeof subtitle, "dp %u, ep %u, tp %u, %s", o->planning.dp, o->planning.ep, o->planning.tp,
             analysis_schedule_text(v->analysed, &o->planning, schedule));
    const char *error = picture_draw_schedule(v, subtitle, picture);
    return error == NULL ? EXIT_GO_ON : cli_fail(EXIT_ENVIRONMENT, "--plot %s: %s", o->planning.plot, error);
}

/* The picture appears when the answer is out. */
static int answer(const command_options *o, const schedule_view *v)
{
    output picture;
    if (o->steps.given && o->steps.last >= v->steps)
        return cli_fail(EXIT_BAD_INPUT, "--steps %u-%u: the schedule has the steps 0 to %u", o->steps.first,
                        o->steps.last, v->steps - 1);
    int code = output_init("--plot", o->planning.plot, &picture);
    if (code == EXIT_GO_ON)
        code = draw(o, v, &picture);
    if (code == EXIT_GO_ON)
        code = outputs_sync(&picture, 1);
    if (code == EXIT_GO_ON)
        code = o->planning.json ? schedule_report_print(v, &o->planning)
                                : schedule_table_print(v, &o->planning, &o->steps);
    if (code == EXIT_GO_ON)
        code = cli_flush();
    if (code == EXIT_GO_ON)
        code = outputs_commit(&picture, 1);
    outputs_finish(&picture, 1);
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
