#include "picture.h"

#include <cairo.h>
#include <stdio.h>
#include <string.h>

#include "names.h"
#include "picture_file.h"
#include "picture_layout.h"
#include "picture_panel.h"
#include "picture_text.h"

/* Points. */
enum { MARGIN = 16, GAP = 28, LINE = 18, WIDTH = 880, PLOT_HEIGHT = 210, MOST_COLUMNS = 2, LEGEND_GAP = 20 };
#define WIDEST_LETTER 6.5 /* on average, of legends */

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
    double top;            /* where the panels begin */
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

static void add_text(char *text, size_t room, const char *added)
{
    size_t length = strlen(text);
    if (length < room)
        snprintf(text + length, room - length, "%s", added);
}

/* "Panels differ in role (param, grad) and policy (fixed, max); steps and colours are the same." */
static void name_differences(page *p)
{
    const picture_layout *layout = p->layout;
    char *text = p->differences, roles[ROLES_TEXT_CHARS];
    const size_t room = sizeof p->differences;
    if (layout->role_count * layout->plan_count < 2)
        return;
    add_text(text, room, "Panels differ in ");
    for (size_t role = 0; layout->role_count > 1 && role < layout->role_count; role++) {
        add_text(text, room, role == 0 ? "role (" : ", ");
        add_text(text, room, names_roles(layout->panels[role * layout->plan_count].role.roles, roles));
    }
    add_text(text, room, layout->role_count > 1 ? ")" : "");
    for (size_t plan = 0; layout->plan_count > 1 && plan < layout->plan_count; plan++) {
        add_text(text, room, plan > 0 ? ", " : layout->role_count > 1 ? " and policy (" : "policy (");
        add_text(text, room, bp_policy_name(layout->panels[plan].plan->policy));
    }
    add_text(text, room,
             layout->plan_count > 1 ? "); steps and colours are the same." : "; steps and colours are the same.");
}

/* Breaks lines by an estimate: the height of the page is known before anything can be measured. */
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

static void arrange_legend(page *p)
{
    double x = MARGIN;
    p->legend_lines = 1;
    for (size_t kind = 0; kind < PICTURE_KINDS; kind++) {
        if (*p->layout->kinds[kind] != '\0')
            add_legend(p, ICON_BOX, picture_kind_colours[kind], p->layout->kinds[kind], &x);
    }
    add_legend(p, ICON_BOX, PICTURE_UNUSED, "reserved, unused", &x);
    add_legend(p, ICON_BAND, PICTURE_MARK, "the step that needs the most", &x);
    add_legend(p, ICON_DASHES, PICTURE_MARK, "what that step needs: the lower bound", &x);
}

/* Pages are as wide as documents show them, so that their text keeps its size. */
static page arrange(const picture_input *input, const picture_layout *layout)
{
    page p = {.input = input, .layout = layout, .width = WIDTH};
    name_differences(&p);
    arrange_legend(&p);
    p.columns = layout->plan_count < MOST_COLUMNS ? layout->plan_count : MOST_COLUMNS;
    p.rows = (layout->plan_count + p.columns - 1) / p.columns;
    p.plot_width = (WIDTH - 2.0 * MARGIN) / (double)p.columns - PICTURE_LEFT - PICTURE_RIGHT;
    p.top = MARGIN + LINE * (double)(title_lines(input->title) + (*p.differences != '\0') + p.legend_lines - 1) + GAP;
    p.height = p.top + (double)(p.rows * layout->role_count) * (PICTURE_ABOVE + PLOT_HEIGHT + PICTURE_BELOW) + LINE +
               GAP + MARGIN;
    return p;
}

static void draw_title(cairo_t *cr, const page *p)
{
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
}

static void draw_legend_icon(cairo_t *cr, const legend_entry *entry, double x, double y)
{
    const double dashes[] = {7, 4};
    picture_colour(cr, entry->colour, entry->icon == ICON_BAND ? 0.3 : 1);
    if (entry->icon != ICON_DASHES) {
        cairo_rectangle(cr, x, y - 10, entry->icon == ICON_BAND ? 5 : 18, 12);
        cairo_fill(cr);
        return;
    }
    cairo_set_dash(cr, dashes, 2, 0);
    cairo_set_line_width(cr, 1.5);
    cairo_move_to(cr, x, y - 4);
    cairo_line_to(cr, x + icon_widths[ICON_DASHES], y - 4);
    cairo_stroke(cr);
    cairo_set_dash(cr, NULL, 0, 0);
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

/* The most that any plan of a role takes or needs. */
static double most_bytes(const picture_layout *layout, size_t role)
{
    uint64_t most = 1;
    for (size_t i = role * layout->plan_count; i < (role + 1) * layout->plan_count; i++) {
        const picture_panel *panel = &layout->panels[i];
        if (panel->drawn_before)
            continue;
        uint64_t bytes = panel->plan->feasible ? panel->role.bytes : 0;
        bytes = panel->role.lower_bound_bytes > bytes ? panel->role.lower_bound_bytes : bytes;
        most = bytes > most ? bytes : most;
    }
    return (double)most;
}

static void draw_page(cairo_t *cr, const void *user)
{
    const page *p = user;
    draw_title(cr, p);
    draw_legend(cr, p);
    const picture_layout *layout = p->layout;
    for (size_t role = 0; role < layout->role_count; role++) {
        double bytes = most_bytes(layout, role);
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
        page p = arrange(input, &layout);
        const picture_page drawn = {p.width, p.height, draw_page, &p};
        error = picture_write(&drawn, to);
    }
    picture_layout_finish(&layout);
    return error;
}
