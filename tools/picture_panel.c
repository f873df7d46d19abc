/* A panel as a whole: its heading, plot, axes, brackets and lower bound. */
#include "picture_view.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "names.h"

/* Points. */
enum { SMALLEST_BRACKET = 10, LABEL = 16, WIDEST_BAND = 8 };

static const picture_style heading = {13, true, PICTURE_BLACK}, plain = {11, false, PICTURE_BLACK},
                           bold = {11, true, PICTURE_BLACK}, quiet = {11, false, PICTURE_GREY},
                           mark = {11, true, PICTURE_MARK};

/* ---- the lower bound -------------------------------------------------------------------------------------------------- */

/* "layers.4, layers.5 and 3 more": the units that are live where the bound is set. */
static void name_witnesses(const picture_view *v, char *text, size_t room)
{
    size_t units = 0, length = 0;
    const char *before = "";
    *text = '\0';
    for (size_t i = 0; i < v->panel->role.witness_count; i++) {
        const char *unit = v->panel->plan->requests[v->panel->role.witnesses[i]].unit;
        if (strcmp(unit, before) == 0)
            continue;
        before = unit;
        size_t skipped = strlen(before) > v->layout->common_chars ? v->layout->common_chars : 0;
        if (units++ < 3 && length < room)
            length +=
                (size_t)snprintf(text + length, room - length, "%s%s", units == 1 ? ": " : ", ", before + skipped);
    }
    if (units > 3 && length < room)
        snprintf(text + length, room - length, " and %zu more", units - 3);
}

static void draw_bound_step(const picture_view *v)
{
    double left = picture_x(v, v->panel->role.lower_bound_step),
           right = picture_x(v, v->panel->role.lower_bound_step + 1ul);
    double width = fmin(fmax(right - left, 2), WIDEST_BAND);
    picture_colour(v->cr, PICTURE_MARK, 0.3);
    cairo_rectangle(v->cr, (left + right - width) / 2, v->box->y, width, v->box->height);
    cairo_fill(v->cr);
}

/* What is live in that step, below the axis. */
static void draw_bound_names(const picture_view *v)
{
    double middle =
        (picture_x(v, v->panel->role.lower_bound_step) + picture_x(v, v->panel->role.lower_bound_step + 1ul)) / 2;
    double bottom = v->box->y + v->box->height;
    picture_colour(v->cr, PICTURE_MARK, 1);
    cairo_move_to(v->cr, middle, bottom + 1);
    cairo_line_to(v->cr, middle + 4, bottom + 8);
    cairo_line_to(v->cr, middle - 4, bottom + 8);
    cairo_fill(v->cr);
    char witnesses[256], text[320];
    name_witnesses(v, witnesses, sizeof witnesses);
    snprintf(text, sizeof text, "most live at step %u%s", v->panel->role.lower_bound_step, witnesses);
    double wide = fmin(picture_text_width(v->cr, &mark, text), v->box->width);
    double x = fmax(v->box->x, fmin(middle - wide / 2, v->box->x + v->box->width - wide));
    picture_text(v->cr, &mark, x, bottom + 48, 0, v->box->width, text);
}

/* Text on white, so that it can be read on anything. Its right end is at x when `anchor` is 1. */
static void draw_label(const picture_view *v, const picture_style *style, double x, double y, double anchor,
                       const char *text)
{
    double width = picture_text_width(v->cr, style, text) + 8;
    picture_colour(v->cr, 0xffffff, 0.85);
    cairo_rectangle(v->cr, x - anchor * width, y - 11, width, 14);
    cairo_fill(v->cr);
    picture_text(v->cr, style, x + 4 - 8 * anchor, y, anchor, 0, text);
}

static void draw_bound(const picture_view *v, bool labelled)
{
    double y = picture_y(v, (double)v->panel->role.lower_bound_bytes), right = v->box->x + v->box->width;
    const double dashes[] = {7, 4};
    draw_bound_step(v);
    picture_colour(v->cr, PICTURE_MARK, 1);
    cairo_set_dash(v->cr, dashes, 2, 0);
    picture_line(v, v->box->x, y, right, y, 1.5);
    cairo_set_dash(v->cr, NULL, 0, 0);
    char bytes[PICTURE_BYTES_CHARS], text[64];
    picture_format_bytes(v->panel->role.lower_bound_bytes, bytes);
    snprintf(text, sizeof text, "lower bound %s", bytes);
    /* above the line, unless what is allocated on demand has its label there */
    bool taken = picture_is_dynamic(v->panel) && v->box->width < 400 &&
                 fabs(picture_y(v, (double)(v->panel->slab_bytes + v->panel->live_bytes)) - y) < LABEL;
    if (labelled)
        draw_label(v, &mark, right - 4, taken ? y + 15 : y - 5, 1, text);
}

/* ---- what is where ---------------------------------------------------------------------------------------------------- */

/* A bracket on the right of the plot, where there is room for its name. */
static void draw_bracket(const picture_view *v, uint64_t from, uint64_t to, const char *name)
{
    double x = v->box->x + v->box->width + 6, low = picture_y(v, (double)from) - 1, high = picture_y(v, (double)to) + 1;
    if (low - high < SMALLEST_BRACKET)
        return;
    picture_colour(v->cr, PICTURE_GREY, 1);
    cairo_set_line_width(v->cr, 1);
    cairo_move_to(v->cr, x - 3, low);
    cairo_line_to(v->cr, x, low);
    cairo_line_to(v->cr, x, high);
    cairo_line_to(v->cr, x - 3, high);
    cairo_stroke(v->cr);
    picture_text(v->cr, &plain, x + 5, (low + high) / 2 + 4, 0, PICTURE_RIGHT - 12, name);
}

static void draw_brackets(const picture_view *v)
{
    const bp_plan_role *role = &v->panel->role;
    char name[40];
    uint64_t set = role->copies > 0 ? role->pool_bytes / role->copies : 0;
    bool apart = picture_y(v, 0) - picture_y(v, (double)set) >= SMALLEST_BRACKET + 2;
    for (uint32_t c = 0; apart && c < role->copies; c++) {
        snprintf(name, sizeof name, "set %u", c + 1);
        draw_bracket(v, c * set, (c + 1) * set, name);
        picture_colour(v->cr, 0x444444, 1);
        if (c > 0)
            picture_line(v, v->box->x, picture_y(v, (double)(c * set)), v->box->x + v->box->width,
                         picture_y(v, (double)(c * set)), 1);
    }
    snprintf(name, sizeof name, "%u sets", role->copies);
    if (!apart && role->copies > 0)
        draw_bracket(v, 0, role->pool_bytes, name);
    draw_bracket(v, role->pool_bytes, role->pool_bytes + role->persistent_bytes, "persistent");
    if (picture_is_dynamic(v->panel))
        draw_bracket(v, v->panel->slab_bytes, v->panel->slab_bytes + v->panel->live_bytes, "on demand");
}

static void draw_top(const picture_view *v)
{
    char bytes[PICTURE_BYTES_CHARS], text[80];
    double x = v->box->x, y = picture_y(v, (double)v->panel->slab_bytes);
    if (v->panel->slab_bytes > 0) {
        picture_colour(v->cr, PICTURE_BLACK, 1);
        picture_line(v, x, y, x + v->box->width, y, 1.5);
        picture_format_bytes(v->panel->slab_bytes, bytes);
        snprintf(text, sizeof text, "slab %s", bytes);
        draw_label(v, &bold, x + 4, y - 5, 0, text);
    }
    if (picture_is_dynamic(v->panel)) {
        y = picture_y(v, (double)(v->panel->slab_bytes + v->panel->live_bytes));
        picture_format_bytes(v->panel->live_bytes, bytes);
        snprintf(text, sizeof text, "at most %s live%s", bytes, v->panel->slab_bytes > 0 ? " outside the slab" : "");
        draw_label(v, &bold, x + 4, y - 5, 0, text);
    }
}

/* How the bytes compare with the lower bound. */
static void compare(const bp_plan_role *role, char *text, size_t room)
{
    char more[PICTURE_BYTES_CHARS];
    if (role->bytes <= role->lower_bound_bytes || role->optimal) {
        snprintf(text, room, "no plan can take less");
        return;
    }
    picture_format_bytes(role->bytes - role->lower_bound_bytes, more);
    double ratio = (double)role->bytes / (double)(role->lower_bound_bytes > 0 ? role->lower_bound_bytes : 1);
    snprintf(text, room, "%.*f \u00d7 the lower bound, %s more", ratio < 10 ? 2 : ratio < 100 ? 1 : 0, ratio, more);
}

static void draw_heading(const picture_view *v)
{
    const picture_panel *p = v->panel;
    char text[200], bytes[PICTURE_BYTES_CHARS], roles[ROLES_TEXT_CHARS], sets[40] = "", compared[80], used[24];
    double room = v->box->width + PICTURE_RIGHT;
    picture_format_bytes(p->role.bytes, bytes);
    if (p->role.copies > 0 && p->role.pool_bytes > 0)
        snprintf(sets, sizeof sets, " with %u buffer set%s", p->role.copies, p->role.copies > 1 ? "s" : "");
    snprintf(text, sizeof text, "%s, policy %s%s: %s", names_roles(p->role.roles, roles),
             bp_policy_name(p->plan->policy), sets,
             p->drawn_before     ? "in one slab, drawn above"
             : p->plan->feasible ? bytes
                                 : "impossible");
    picture_text(v->cr, &heading, v->box->x, v->box->y - 26, 0, room, text);
    if (!p->plan->feasible || p->drawn_before)
        return;
    compare(&p->role, compared, sizeof compared);
    if (p->used < 0.001)
        snprintf(used, sizeof used, "less than 0.1%%");
    else
        snprintf(used, sizeof used, "%.*f%%", p->used < 0.095 ? 1 : 0, 100 * p->used);
    snprintf(text, sizeof text, "%s; %s in use on average%s", compared, used,
             p->slab_bytes == 0 ? "; no stable addresses" : "");
    picture_text(v->cr, &quiet, v->box->x, v->box->y - 10, 0, room, text);
}

static void draw_frame(const picture_view *v)
{
    picture_colour(v->cr, PICTURE_GREY, 1);
    cairo_set_line_width(v->cr, 0.7);
    cairo_rectangle(v->cr, v->box->x, v->box->y, v->box->width, v->box->height);
    cairo_stroke(v->cr);
}

static void draw_memory(const picture_view *v, bool bound_is_labelled)
{
    draw_frame(v);
    if (v->panel->plan->feasible) {
        picture_draw_slab(v);
        draw_brackets(v);
        draw_top(v);
    } else {
        picture_text(v->cr, &plain, v->box->x + v->box->width / 2, v->box->y + v->box->height / 3, 0.5,
                     v->box->width - 16, v->panel->plan->infeasible_because);
    }
    draw_bound(v, bound_is_labelled);
}

/* A plan that is small beside the others of its role: below in the common scale, above it as large as there is room. */
static bool draw_enlarged(const picture_view *v)
{
    picture_box low = *v->box, high = *v->box;
    picture_view common = *v, larger = *v;
    common.box = &low;
    larger.box = &high;
    low.y = picture_y(v, (double)v->panel->role.bytes) - LABEL - 4;
    low.height = v->box->y + v->box->height - low.y;
    low.bytes = v->box->bytes * low.height / v->box->height;
    high.height = low.y - LABEL - 4 - high.y;
    high.bytes = (double)v->panel->role.bytes * high.height / (high.height - LABEL - 4);
    if (high.height < 6 * LABEL || high.height < 2 * low.height)
        return false;
    picture_draw_memory_axis(&larger);
    draw_memory(&larger, true);
    draw_memory(&common, false);
    picture_text(v->cr, &quiet, low.x + low.width, low.y - 4, 1, 0, "in the scale of the other plans:");
    return true;
}

void picture_panel_draw(cairo_t *cr, const picture_input *input, const picture_layout *layout,
                        const picture_panel *panel, const picture_box *box)
{
    picture_view v = {cr, input, layout, panel, box};
    draw_heading(&v);
    if (panel->drawn_before)
        return;
    if (!panel->plan->feasible || !draw_enlarged(&v)) {
        picture_draw_memory_axis(&v);
        draw_memory(&v, true);
    }
    picture_draw_step_axis(&v);
    draw_bound_names(&v);
}
