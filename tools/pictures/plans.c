/* The picture of memory plans: addresses of requests in the slabs over steps. */
#include "pictures/pictures.h"

#include <cairo.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pictures/canvas.h"
#include "shared/cli.h"

static const char no_memory[] = "out of memory while laying out the picture";

/* ---- panels ---------------------------------------------------------------------------------------------------------- */

/* A request, its bucket and its place in the plan. */
typedef struct found_request {
    bp_request request;
    bp_bucket bucket;
    const bp_interval *intervals;
    size_t interval_count;
} found_request;

static found_request find_request(const picture_input *input, size_t index)
{
    const bp_buckets_info *buckets = bp_buckets_get_info(input->buckets);
    const bp_scheduled_request *live = &bp_schedule_get_info(input->schedule)->requests[index];
    const bp_request *request = &buckets->requests[index];
    return (found_request){*request, buckets->buckets[request->bucket], live->intervals, live->interval_count};
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Offsets of buffers. Some request of each buffer begins at its offset. Plans without buffers get no lines. */
static const char *find_starts(picture_panel *panel)
{
    if (panel->role.buffer_count == 0 || panel->rect_count == 0)
        return NULL;
    panel->starts = malloc(panel->rect_count * sizeof *panel->starts);
    if (panel->starts == NULL)
        return no_memory;
    for (size_t i = 0; i < panel->rect_count; i++)
        panel->starts[i] = panel->rects[i].offset;
    qsort(panel->starts, panel->rect_count, sizeof *panel->starts, by_value);
    for (size_t i = 0; i < panel->rect_count; i++) {
        if (i == 0 || panel->starts[i] != panel->starts[panel->start_count - 1])
            panel->starts[panel->start_count++] = panel->starts[i];
    }
    return NULL;
}

/* Allocates the intervals of the role and the live sums. `total`: live bytes with and without an address. */
static const char *allocate(const picture_input *input, const picture_layout *layout, picture_panel *panel,
                            uint64_t **total)
{
    size_t intervals = 1;
    for (size_t r = 0; r < bp_buckets_get_info(input->buckets)->request_count; r++)
        intervals += bp_schedule_get_info(input->schedule)->requests[r].interval_count;
    panel->rects = calloc(intervals, sizeof *panel->rects);
    panel->live = calloc((layout->steps + 1) * PICTURE_KINDS, sizeof *panel->live);
    *total = calloc(layout->steps + 1, sizeof **total);
    return panel->rects == NULL || panel->live == NULL || *total == NULL ? no_memory : NULL;
}

/* Adds changes at the beginning of steps (steps + 1 entries); add_up makes prefix sums of them. */
static void add_live(const found_request *found, uint64_t bytes, uint64_t *changes)
{
    for (size_t k = 0; k < found->interval_count; k++) {
        changes[found->intervals[k].begin] += bytes;
        changes[found->intervals[k].end] -= bytes;
    }
}

static void sum_changes(uint64_t *changes, size_t count)
{
    for (size_t i = 1; i < count; i++)
        changes[i] += changes[i - 1];
}

static void place(const bp_plan_request *planned, const found_request *found, uint8_t kind, picture_panel *panel)
{
    panel->slab_bytes = panel->plan->slabs[planned->slab].bytes;
    for (size_t k = 0; k < found->interval_count; k++)
        panel->rects[panel->rect_count++] = (picture_rect){.offset = planned->offset,
                                                           .bytes = planned->bytes,
                                                           .begin = found->intervals[k].begin,
                                                           .end = found->intervals[k].end,
                                                           .unit = (uint32_t)found->bucket.unit,
                                                           .kind = kind};
}

/* Places the role's requests at their addresses; the rest is dynamic. */
static const char *place_requests(const picture_input *input, picture_layout *layout, picture_panel *panel,
                                  uint64_t *total)
{
    const uint64_t mask = panel->plan->alignment - 1;
    if (panel->plan->request_count != bp_buckets_get_info(input->buckets)->request_count)
        return "a plan has other requests than these buckets: it was made for another model";
    for (size_t r = 0; r < panel->plan->request_count && !panel->drawn_before; r++) {
        const bp_plan_request *planned = &panel->plan->requests[r];
        if (!(panel->role.roles & BP_ROLE_BIT(planned->role)))
            continue;
        const found_request found = find_request(input, r);
        const char *role = planned->role != panel->role.role ? bp_role_name((bp_role)planned->role) : "";
        uint8_t kind = picture_kind_of(&found.bucket, role, layout->kinds);
        uint64_t bytes = (planned->bytes + mask) & ~mask;
        add_live(&found, bytes, total);
        if (planned->placement == BP_PLACE_PLANNED)
            place(planned, &found, kind, panel);
        else if (panel->plan->feasible)
            add_live(&found, bytes, panel->live + kind * (layout->steps + 1));
    }
    return NULL;
}

static const char *init_panel(const picture_input *input, picture_layout *layout, const bp_plan *plan, uint32_t role,
                              picture_panel *panel)
{
    panel->plan = bp_plan_get_info(plan);
    panel->is_worked_out = true;
    panel->role = (bp_plan_role){.role = role, .roles = BP_ROLE_BIT(role)};
    for (size_t i = 0; i < panel->plan->role_count && panel->is_worked_out; i++) {
        panel->is_worked_out = !(panel->plan->roles[i].roles & BP_ROLE_BIT(role));
        if (!panel->is_worked_out)
            panel->role = panel->plan->roles[i];
    }
    panel->drawn_before = panel->role.role != role;
    uint64_t *total = NULL;
    const char *error = allocate(input, layout, panel, &total);
    if (error == NULL)
        error = place_requests(input, layout, panel, total);
    if (error == NULL) {
        /* Sums over steps, and figures that a plan read from a file lacks. */
        sum_changes(total, layout->steps + 1);
        for (size_t kind = 0; kind < PICTURE_KINDS; kind++)
            sum_changes(panel->live + kind * (layout->steps + 1), layout->steps + 1);
        uint64_t most = 0;
        uint32_t most_step = 0;
        double sum = 0;
        for (size_t step = 0; step < layout->steps; step++) {
            uint64_t dynamic = 0;
            for (size_t kind = 0; kind < PICTURE_KINDS; kind++)
                dynamic += panel->live[kind * (layout->steps + 1) + step];
            panel->live_bytes = dynamic > panel->live_bytes ? dynamic : panel->live_bytes;
            if (total[step] > most) {
                most = total[step];
                most_step = (uint32_t)step;
            }
            sum += (double)total[step];
        }
        if (panel->is_worked_out) {
            panel->role.bytes = panel->slab_bytes + panel->live_bytes;
            panel->role.lower_bound_bytes = most;
            panel->role.lower_bound_step = most_step;
        }
        if (panel->role.bytes > 0)
            panel->used = sum / (double)panel->role.bytes / (double)layout->steps;

        error = find_starts(panel);
    }
    free(total);
    return error;
}

/* true: in every plan the role shares the slab of an earlier role, whose row shows it. */
static bool is_always_drawn_before(const picture_input *input, uint32_t role)
{
    size_t plans = 0;
    for (size_t p = 0; p < input->plan_count; p++) {
        bool drawn = false;
        const bp_plan_info *plan = bp_plan_get_info(input->plans[p]);
        for (size_t i = 0; i < plan->role_count; i++)
            drawn = drawn || (plan->roles[i].role != role && (plan->roles[i].roles & BP_ROLE_BIT(role)));
        plans += drawn;
    }
    return plans == input->plan_count;
}

/* Returns NULL or an error text. Call the finish function either way. */
static const char *picture_layout_init(const picture_input *input, picture_layout *layout)
{
    *layout =
        (picture_layout){.plan_count = input->plan_count, .steps = bp_schedule_get_info(input->schedule)->step_count};
    if (input->plan_count == 0)
        return "there is nothing to draw: no plans";
    layout->common_chars = names_common_chars(input->buckets);

    /* The roles that the schedule uses, in increasing order. */
    bool used[BP_ROLE_COUNT] = {false};
    for (size_t r = 0; r < bp_buckets_get_info(input->buckets)->request_count; r++) {
        found_request found = find_request(input, r);
        if (found.request.role < BP_ROLE_COUNT && found.interval_count > 0)
            used[found.request.role] = true;
    }
    for (uint32_t role = 0; role < BP_ROLE_COUNT; role++) {
        if (used[role] && !is_always_drawn_before(input, role))
            layout->roles[layout->role_count++] = role;
    }
    const char *error = layout->role_count > 0 ? NULL : "there is nothing to draw: no memory is ever live";

    if (error != NULL)
        return error;
    layout->panels = calloc(layout->role_count * layout->plan_count, sizeof *layout->panels);
    if (layout->panels == NULL)
        return no_memory;
    for (size_t r = 0; r < layout->role_count; r++) {
        for (size_t p = 0; p < layout->plan_count; p++) {
            picture_panel *panel = &layout->panels[r * layout->plan_count + p];
            error = init_panel(input, layout, input->plans[p], layout->roles[r], panel);
            if (error != NULL)
                return error;
        }
    }
    return NULL;
}

static void picture_layout_finish(picture_layout *layout)
{
    for (size_t i = 0; layout->panels != NULL && i < layout->role_count * layout->plan_count; i++) {
        free(layout->panels[i].rects);
        free(layout->panels[i].live);
        free(layout->panels[i].starts);
    }
    free(layout->panels);
    *layout = (picture_layout){0};
}

/* Points. */
enum { MARGIN = 16, GAP = 28, LINE = 18, WIDTH = 880, PLOT_HEIGHT = 210, MOST_COLUMNS = 2, LEGEND_GAP = 20 };
#define WIDEST_LETTER 6.5 /* mean of legends */

/* ---- the page -------------------------------------------------------------------------------------------------------- */

typedef enum icon { ICON_BOX, ICON_BAND, ICON_DASHES } icon;
static const double icon_widths[] = {[ICON_BOX] = 18, [ICON_BAND] = 5, [ICON_DASHES] = 29};

typedef struct legend_entry {
    icon icon;
    uint32_t colour;
    const char *text;
    size_t line;
} legend_entry;

typedef struct page {
    const picture_input *input;
    const picture_layout *layout;
    size_t columns, rows; /* rows of one role */
    double plot_width, width, height;
    double top;            /* of the panels */
    char differences[320]; /* between the panels */
    legend_entry legend[PICTURE_KINDS + 3];
    size_t legend_count, legend_lines;
} page;

static size_t title_lines(const char *title)
{
    size_t lines = title != NULL && *title != '\0';
    for (; lines > 0 && *title != '\0'; title++)
        lines += *title == '\n';
    return lines;
}

/* "Panels differ in role (param, grad) and policy (fixed, max); steps and colours are the same." */
static void name_differences(page *p)
{
    const picture_layout *layout = p->layout;
    char *text = p->differences, roles[ROLES_TEXT_CHARS];
    const size_t room = sizeof p->differences;
    if (layout->role_count * layout->plan_count < 2)
        return;
    cli_append(text, room, "%s", "Panels differ in ");
    for (size_t role = 0; layout->role_count > 1 && role < layout->role_count; role++) {
        cli_append(text, room, "%s", role == 0 ? "role (" : ", ");
        cli_append(text, room, "%s", names_roles(layout->panels[role * layout->plan_count].role.roles, roles));
    }
    cli_append(text, room, "%s", layout->role_count > 1 ? ")" : "");
    for (size_t plan = 0; layout->plan_count > 1 && plan < layout->plan_count; plan++) {
        cli_append(text, room, "%s", plan > 0 ? ", " : layout->role_count > 1 ? " and policy (" : "policy (");
        cli_append(text, room, "%s", bp_policy_name(layout->panels[plan].plan->policy));
    }
    cli_append(text, room, "%s",
               layout->plan_count > 1 ? "); steps and colours are the same." : "; steps and colours are the same.");
}

/* Breaks lines by an estimate, because the height of the page is needed before text can be measured. */
static void add_legend(page *p, icon shown, uint32_t colour, const char *text, double *x)
{
    double width = icon_widths[shown] + 6 + WIDEST_LETTER * (double)strlen(text);
    if (*x > MARGIN && *x + width > WIDTH - MARGIN) {
        p->legend_lines++;
        *x = MARGIN;
    }
    p->legend[p->legend_count++] = (legend_entry){shown, colour, text, p->legend_lines - 1};
    *x += width + LEGEND_GAP;
}

static void draw_legend_icon(cairo_t *cr, const legend_entry *entry, double x, double y)
{
    picture_colour(cr, entry->colour, entry->icon == ICON_BAND ? 0.3 : 1);
    if (entry->icon != ICON_DASHES) {
        cairo_rectangle(cr, x, y - 10, entry->icon == ICON_BAND ? 5 : 18, 12);
        cairo_fill(cr);
        return;
    }
    picture_dash(cr, true);
    picture_line(cr, x, y - 4, x + icon_widths[ICON_DASHES], y - 4, 1.5);
    picture_dash(cr, false);
}

static void draw_legend(cairo_t *cr, const page *p)
{
    const picture_style style = {11, false, PICTURE_BLACK};
    double x = MARGIN, y = p->top - GAP + 16 - LINE * (double)(p->legend_lines - 1);
    for (size_t i = 0, line = 0; i < p->legend_count; i++) {
        const legend_entry *entry = &p->legend[i];
        if (entry->line != line) {
            line = entry->line;
            x = MARGIN;
            y += LINE;
        }
        draw_legend_icon(cr, entry, x, y);
        x += icon_widths[entry->icon] + 6;
        picture_text(cr, &style, x, y, 0, 0, entry->text);
        x += picture_text_width(cr, &style, entry->text) + LEGEND_GAP;
    }
}

static void draw_footnote(cairo_t *cr, const page *p)
{
    const picture_style style = {11, false, PICTURE_GREY};
    char text[400], outside[PICTURE_BYTES_CHARS], kept[160] = "";
    double y = p->height - MARGIN;
    uint64_t persistent_bytes = bp_buckets_get_info(p->input->buckets)->persistent_bytes;
    picture_format_bytes(persistent_bytes, outside);
    if (persistent_bytes > 0)
        snprintf(kept, sizeof kept, "Not shown: %s of parameters outside units, which are gathered once and kept.",
                 outside);
    bool mixed = (double)p->layout->steps > p->plot_width;
    snprintf(text, sizeof text,
             "Rightwards: the steps of one iteration. Upwards: addresses. A coloured box is a bucket while it is "
             "live.%s",
             mixed ? " Steps are thinner than a pixel: their colours mix." : "");
    picture_text(cr, &style, MARGIN, *kept != '\0' ? y - LINE : y, 0, p->width - 2 * MARGIN, text);
    picture_text(cr, &style, MARGIN, y, 0, p->width - 2 * MARGIN, kept);
}

static void draw_page(cairo_t *cr, const void *user)
{
    const page *p = user;

    picture_style style = {17, true, PICTURE_BLACK};
    const char *line = p->input->title;
    for (size_t i = 0; i < title_lines(p->input->title); i++) {
        char text[400];
        size_t length = strcspn(line, "\n");
        snprintf(text, sizeof text, "%.*s", (int)(length < 400 ? length : 400), line);
        picture_text(cr, &style, MARGIN, MARGIN + 12 + LINE * (double)i, 0, p->width - 2 * MARGIN, text);
        style = (picture_style){12, false, PICTURE_GREY};
        line += length + 1;
    }
    const picture_style quiet = {12, false, PICTURE_GREY};
    picture_text(cr, &quiet, MARGIN, MARGIN + 12 + LINE * (double)title_lines(p->input->title), 0,
                 p->width - 2 * MARGIN, p->differences);

    draw_legend(cr, p);
    const picture_layout *layout = p->layout;
    for (size_t role = 0; role < layout->role_count; role++) {
        /* Largest bytes of a role over all plans. */
        uint64_t most = 1;
        for (size_t i = role * layout->plan_count; i < (role + 1) * layout->plan_count; i++) {
            const picture_panel *panel = &layout->panels[i];
            if (panel->drawn_before)
                continue;
            uint64_t bytes = panel->plan->feasible ? panel->role.bytes : 0;
            bytes = panel->role.lower_bound_bytes > bytes ? panel->role.lower_bound_bytes : bytes;
            most = bytes > most ? bytes : most;
        }
        double bytes = (double)most;

        for (size_t plan = 0; plan < layout->plan_count; plan++) {
            size_t column = plan % p->columns, row = role * p->rows + plan / p->columns;
            picture_box box = {.width = p->plot_width, .height = PLOT_HEIGHT};
            box.x = MARGIN + PICTURE_LEFT + (double)column * (PICTURE_LEFT + p->plot_width + PICTURE_RIGHT);
            box.y = p->top + PICTURE_ABOVE + (double)row * (PICTURE_ABOVE + PLOT_HEIGHT + PICTURE_BELOW);
            box.bytes = bytes * PLOT_HEIGHT / (PLOT_HEIGHT - 24); /* room for a label above the top */
            picture_panel_draw(cr, p->input, layout, &layout->panels[role * layout->plan_count + plan], &box);
        }
    }
    draw_footnote(cr, p);
}

const char *picture_draw(const picture_input *input, const output *to)
{
    picture_layout layout;
    const char *error = picture_layout_init(input, &layout);
    if (error == NULL) {
        /* Pages have the width of documents, so that text keeps its size. */
        page p = {.input = input, .layout = &layout, .width = WIDTH};
        name_differences(&p);

        double x = MARGIN;
        p.legend_lines = 1;
        for (size_t kind = 0; kind < PICTURE_KINDS; kind++) {
            if (*p.layout->kinds[kind] != '\0')
                add_legend(&p, ICON_BOX, picture_kind_colours[kind], p.layout->kinds[kind], &x);
        }
        add_legend(&p, ICON_BOX, PICTURE_UNUSED, "reserved, unused", &x);
        add_legend(&p, ICON_BAND, PICTURE_MARK, "the step that needs the most", &x);
        add_legend(&p, ICON_DASHES, PICTURE_MARK, "what that step needs: the lower bound", &x);

        p.columns = layout.plan_count < MOST_COLUMNS ? layout.plan_count : MOST_COLUMNS;
        p.rows = (layout.plan_count + p.columns - 1) / p.columns;
        p.plot_width = (WIDTH - 2.0 * MARGIN) / (double)p.columns - PICTURE_LEFT - PICTURE_RIGHT;
        p.top =
            MARGIN + LINE * (double)(title_lines(input->title) + (*p.differences != '\0') + p.legend_lines - 1) + GAP;
        p.height = p.top + (double)(p.rows * layout.role_count) * (PICTURE_ABOVE + PLOT_HEIGHT + PICTURE_BELOW) + LINE +
                   GAP + MARGIN;

        const picture_page drawn = {p.width, p.height, draw_page, &p};
        error = picture_write(&drawn, to);
    }
    picture_layout_finish(&layout);
    return error;
}
