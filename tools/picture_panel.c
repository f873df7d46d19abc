#include "picture_panel.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "picture_text.h"

/* Okabe and Ito's colours, told apart by colour-blind readers, without their red: that is the marks'. */
const uint32_t picture_kind_colours[PICTURE_KINDS] = {0x0072B2, 0xE69F00, 0x009E73, 0xCC79A7,
                                                      0x56B4E9, 0xF0E442, 0x8A6D3B, 0x5A5A5A};

static const picture_style heading = {13, true, PICTURE_BLACK}, plain = {11, false, PICTURE_BLACK},
                           quiet = {11, false, PICTURE_GREY}, mark = {11, true, PICTURE_MARK};

/* Points. */
enum { SMALLEST_BRACKET = 10, LONGEST_NAME = 120, LABEL = 16 };

typedef struct view {
    cairo_t *cr;
    const picture_input *input;
    const picture_layout *layout;
    const picture_panel *panel;
    const picture_box *box;
} view;

static double x_of(const view *v, size_t step)
{
    return v->box->x + v->box->width * (double)step / (double)v->layout->steps;
}

static double y_of(const view *v, double bytes)
{
    return v->box->y + v->box->height * (1 - bytes / v->box->bytes);
}

static void draw_line(const view *v, double x1, double y1, double x2, double y2, double width)
{
    cairo_set_line_width(v->cr, width);
    cairo_move_to(v->cr, x1, y1);
    cairo_line_to(v->cr, x2, y2);
    cairo_stroke(v->cr);
}

/* ---- memory ---------------------------------------------------------------------------------------------------------- */

/* The rectangles of a kind, as one path: what is thinner than a pixel then adds up to the right shade. */
static void add_rects(const view *v, uint8_t kind, double thinnest, double inset)
{
    for (size_t i = 0; i < v->panel->rect_count; i++) {
        const picture_rect *r = &v->panel->rects[i];
        double x = x_of(v, r->begin), width = x_of(v, r->end) - x;
        double y = y_of(v, (double)r->offset + (double)r->bytes), height = y_of(v, (double)r->offset) - y;
        if (r->kind == kind && width >= thinnest && height >= thinnest)
            cairo_rectangle(v->cr, x + inset, y + inset, width - 2 * inset, height - 2 * inset);
    }
}

/* The area of what has no address, on top of the slab and of the kinds before. */
static void add_area(const view *v, uint8_t kind)
{
    const size_t stride = v->layout->steps + 1;
    for (size_t step = 0; step < v->layout->steps; step++) {
        uint64_t base = v->panel->slab_bytes, bytes = v->panel->live[kind * stride + step];
        for (uint8_t k = 0; k < kind; k++)
            base += v->panel->live[k * stride + step];
        double top = y_of(v, (double)(base + bytes)), x = x_of(v, step);
        if (bytes > 0)
            cairo_rectangle(v->cr, x, top, x_of(v, step + 1) - x, y_of(v, (double)base) - top);
    }
}

static void fill_memory(const view *v)
{
    for (uint8_t kind = 0; kind < PICTURE_KINDS; kind++) {
        uint32_t colour = picture_kind_colours[kind];
        picture_colour(v->cr, colour, 1);
        add_rects(v, kind, 0, 0);
        if (picture_is_dynamic(v->panel))
            add_area(v, kind);
        cairo_fill(v->cr);
        uint32_t darker = (colour >> 1 & 0x7f7f7f) + (colour >> 3 & 0x1f1f1f);
        picture_colour(v->cr, darker, 1);
        cairo_set_line_width(v->cr, 0.6);
        add_rects(v, kind, 2.5, 0.3);
        cairo_stroke(v->cr);
    }
}

/* So many rectangles that they are thinner than a pixel: an image of them is smaller, and looks the same. */
static void fill_memory_as_image(const view *v)
{
    const double scale = 2;
    cairo_surface_t *image =
        cairo_image_surface_create(CAIRO_FORMAT_ARGB32, (int)(v->box->width * scale), (int)(v->box->height * scale));
    view inner = *v;
    picture_box box = {0, 0, v->box->width * scale, v->box->height * scale, v->box->bytes};
    inner.cr = cairo_create(image);
    inner.box = &box;
    fill_memory(&inner);
    cairo_save(v->cr);
    cairo_translate(v->cr, v->box->x, v->box->y);
    cairo_scale(v->cr, 1 / scale, 1 / scale);
    cairo_set_source_surface(v->cr, image, 0, 0);
    cairo_paint(v->cr);
    cairo_restore(v->cr);
    cairo_destroy(inner.cr);
    cairo_surface_destroy(image);
}

static const char *unit_name(const view *v, uint32_t unit)
{
    return bp_buckets_unit_name(v->input->buckets, unit) + v->layout->common_chars;
}

/* Names in the rectangles that have room for them. */
static void name_rects(const view *v)
{
    for (size_t i = 0; i < v->panel->rect_count; i++) {
        const picture_rect *r = &v->panel->rects[i];
        double x = x_of(v, r->begin), width = x_of(v, r->end) - x;
        double y = y_of(v, (double)r->offset + (double)r->bytes), height = y_of(v, (double)r->offset) - y;
        if (width < 24 || height < 14)
            continue;
        picture_style style = {10, false, r->kind == PICTURE_DENSE || r->kind >= PICTURE_OTHER - 1 ? 0xffffff : 0x000000};
        const char *name = unit_name(v, r->unit);
        if (picture_text_width(v->cr, &style, name) < width - 6)
            picture_text(v->cr, &style, x + width / 2, y + height / 2 + 3.5, 0.5, 0, name);
    }
}

static void draw_slab(const view *v)
{
    const picture_panel *p = v->panel;
    double top = y_of(v, (double)p->slab_bytes), bottom = v->box->y + v->box->height, right = v->box->x + v->box->width;
    picture_colour(v->cr, PICTURE_UNUSED, 1);
    cairo_rectangle(v->cr, v->box->x, top, v->box->width, bottom - top);
    cairo_fill(v->cr);
    bool fine = p->rect_count > 4000 || (double)v->layout->steps > 2 * v->box->width;
    (fine ? fill_memory_as_image : fill_memory)(v);
    double above = bottom;
    for (size_t i = 0; i < p->start_count; i++) {
        double y = y_of(v, (double)p->starts[i]);
        if (above - y < 3 || y - top < 3) /* lines that close are a grey area */
            continue;
        picture_colour(v->cr, 0x8c8c8c, 1);
        draw_line(v, v->box->x, y, right, y, 0.4);
        above = y;
    }
    if (!fine)
        name_rects(v);
}

/* ---- axes ------------------------------------------------------------------------------------------------------------ */

/* 1, 2 or 5 times a power of ten, at least `least`. */
static double nice_step(double least)
{
    double power = pow(10, floor(log10(least)));
    double ratio = least / power;
    return power * (ratio <= 1.0001 ? 1 : ratio <= 2.0001 ? 2 : ratio <= 5.0001 ? 5 : 10);
}

static void draw_memory_axis(const view *v)
{
    double unit;
    const char *name = picture_byte_unit((uint64_t)v->box->bytes, &unit);
    double step = nice_step(v->box->bytes / unit * 40 / v->box->height);
    int decimals = step < 1 ? (int)ceil(-log10(step) - 0.0001) : 0;
    for (unsigned i = 0; i * step * unit <= v->box->bytes; i++) {
        double y = y_of(v, i * step * unit);
        picture_colour(v->cr, 0xd8d8d8, 1);
        draw_line(v, v->box->x - 4, y, v->box->x + v->box->width, y, 0.5);
        char text[32];
        snprintf(text, sizeof text, "%.*f", i > 0 ? decimals : 0, i * step);
        picture_text(v->cr, &quiet, v->box->x - 7, y + 4, 1, 0, text);
    }
    picture_text(v->cr, &quiet, v->box->x - 7, v->box->y - 6, 1, 0, name);
}

static bool step_at(const view *v, size_t index, bp_step *step)
{
    step->size = sizeof *step;
    return index < v->layout->steps && bp_schedule_step(v->input->schedule, index, step) == BP_OK && step->unit >= 0;
}

/* Every how many units there is room for a name. */
static uint32_t name_stride(const view *v)
{
    size_t runs = 0;
    double widest = 0;
    int32_t before = -1;
    bp_step step;
    for (size_t i = 0; i < v->layout->steps; i++) {
        runs += step_at(v, i, &step) && step.unit != before;
        before = step.unit;
    }
    size_t units = bp_buckets_unit_count(v->input->buckets);
    for (size_t u = 0; u < units; u += units / 100 + 1)
        widest = fmax(widest, picture_text_width(v->cr, &quiet, unit_name(v, (uint32_t)u)));
    return (uint32_t)nice_step(fmax(1, (fmin(widest, LONGEST_NAME) + 10) * (double)runs / v->box->width));
}

static void draw_unit_names(const view *v)
{
    uint32_t stride = name_stride(v);
    double bottom = v->box->y + v->box->height, free_from = v->box->x - 30;
    bp_step step, next;
    size_t begin = 0;
    for (size_t i = 0; i < v->layout->steps; i++) {
        if (!step_at(v, i, &step) || (step_at(v, i + 1, &next) && next.unit == step.unit && next.phase == step.phase))
            continue;
        double middle = (x_of(v, begin) + x_of(v, i + 1)) / 2;
        begin = i + 1;
        if ((uint32_t)step.unit % stride != 0)
            continue;
        const char *name = unit_name(v, (uint32_t)step.unit);
        double width = fmin(picture_text_width(v->cr, &quiet, name), LONGEST_NAME);
        double left = fmin(fmax(middle - width / 2, v->box->x - 4), v->box->x + v->box->width + 20 - width);
        if (left < free_from)
            continue;
        picture_colour(v->cr, PICTURE_GREY, 1);
        draw_line(v, middle, bottom, middle, bottom + 4, 0.7);
        picture_text(v->cr, &quiet, left, bottom + 17, 0, LONGEST_NAME, name);
        free_from = left + width + 8;
    }
}

static void draw_phases(const view *v)
{
    static const char *const names[] = {"forward", "backward", "recorded events"};
    double bottom = v->box->y + v->box->height;
    bp_step step, next;
    size_t begin = 0;
    for (size_t i = 0; i < v->layout->steps; i++) {
        if (!step_at(v, i, &step) || (step_at(v, i + 1, &next) && next.phase == step.phase))
            continue;
        double left = x_of(v, begin), right = x_of(v, i + 1);
        picture_colour(v->cr, PICTURE_GREY, 1);
        if (begin > 0) {
            draw_line(v, left, v->box->y, left, bottom, 0.7);
            draw_line(v, left, bottom + 22, left, bottom + 34, 0.7);
        }
        const char *name = (size_t)step.phase < sizeof names / sizeof *names ? names[step.phase] : "";
        if (picture_text_width(v->cr, &plain, name) < right - left)
            picture_text(v->cr, &plain, (left + right) / 2, bottom + 32, 0.5, 0, name);
        begin = i + 1;
    }
}

/* ---- the lower bound -------------------------------------------------------------------------------------------------- */

/* "layers.4, layers.5 and 3 more": the units that are live where the bound is set. */
static void name_witnesses(const view *v, char *text, size_t room)
{
    size_t units = 0, length = 0;
    const char *before = "";
    *text = '\0';
    for (size_t i = 0; i < bp_plan_witness_count(v->panel->plan, v->panel->role_index); i++) {
        bp_plan_witness witness = {.size = sizeof witness};
        if (bp_plan_witness_get(v->panel->plan, v->panel->role_index, i, &witness) != BP_OK ||
            strcmp(witness.unit, before) == 0)
            continue;
        before = witness.unit;
        if (units++ < 3 && length < room)
            length += (size_t)snprintf(text + length, room - length, "%s%s", units == 1 ? ": " : ", ",
                                       witness.unit + v->layout->common_chars);
    }
    if (units > 3 && length < room)
        snprintf(text + length, room - length, " and %zu more", units - 3);
}

static void draw_bound_step(const view *v)
{
    double left = x_of(v, v->panel->role.lower_bound_step), right = x_of(v, v->panel->role.lower_bound_step + 1ul);
    double width = fmax(right - left, 2);
    picture_colour(v->cr, PICTURE_MARK, 0.3);
    cairo_rectangle(v->cr, (left + right - width) / 2, v->box->y, width, v->box->height);
    cairo_fill(v->cr);
}

/* What is live in that step, below the axis. */
static void draw_bound_names(const view *v)
{
    double middle = (x_of(v, v->panel->role.lower_bound_step) + x_of(v, v->panel->role.lower_bound_step + 1ul)) / 2;
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
static void draw_label(const view *v, const picture_style *style, double x, double y, double anchor, const char *text)
{
    double width = picture_text_width(v->cr, style, text) + 8;
    picture_colour(v->cr, 0xffffff, 0.85);
    cairo_rectangle(v->cr, x - anchor * width, y - 11, width, 14);
    cairo_fill(v->cr);
    picture_text(v->cr, style, x + 4 - 8 * anchor, y, anchor, 0, text);
}

static void draw_bound(const view *v, bool labelled)
{
    double y = y_of(v, (double)v->panel->role.lower_bound_bytes), right = v->box->x + v->box->width;
    const double dashes[] = {7, 4};
    draw_bound_step(v);
    picture_colour(v->cr, PICTURE_MARK, 1);
    cairo_set_dash(v->cr, dashes, 2, 0);
    draw_line(v, v->box->x, y, right, y, 1.5);
    cairo_set_dash(v->cr, NULL, 0, 0);
    char bytes[PICTURE_BYTES_CHARS], text[64];
    picture_format_bytes(v->panel->role.lower_bound_bytes, bytes);
    snprintf(text, sizeof text, "lower bound %s", bytes);
    if (labelled)
        draw_label(v, &mark, right - 4, y - 5, 1, text);
}

/* ---- what is where ---------------------------------------------------------------------------------------------------- */

/* A bracket on the right of the plot, where there is room for its name. */
static void draw_bracket(const view *v, uint64_t from, uint64_t to, const char *name)
{
    double x = v->box->x + v->box->width + 6, low = y_of(v, (double)from) - 1, high = y_of(v, (double)to) + 1;
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

static void draw_brackets(const view *v)
{
    const bp_plan_role *role = &v->panel->role;
    char name[40];
    uint64_t set = role->copies > 0 ? role->pool_bytes / role->copies : 0;
    bool apart = y_of(v, 0) - y_of(v, (double)set) >= SMALLEST_BRACKET + 2;
    for (uint32_t c = 0; apart && c < role->copies; c++) {
        snprintf(name, sizeof name, "set %u", c + 1);
        draw_bracket(v, c * set, (c + 1) * set, name);
        picture_colour(v->cr, 0x444444, 1);
        if (c > 0)
            draw_line(v, v->box->x, y_of(v, (double)(c * set)), v->box->x + v->box->width, y_of(v, (double)(c * set)), 1);
    }
    snprintf(name, sizeof name, "%u sets", role->copies);
    if (!apart)
        draw_bracket(v, 0, role->pool_bytes, name);
    draw_bracket(v, role->pool_bytes, role->pool_bytes + role->persistent_bytes, "persistent");
    if (picture_is_dynamic(v->panel))
        draw_bracket(v, v->panel->slab_bytes, v->panel->slab_bytes + v->panel->live_bytes, "on demand");
}

static void draw_top(const view *v)
{
    char bytes[PICTURE_BYTES_CHARS], text[80];
    double x = v->box->x, y = y_of(v, (double)v->panel->slab_bytes);
    if (v->panel->slab_bytes > 0) {
        picture_colour(v->cr, PICTURE_BLACK, 1);
        draw_line(v, x, y, x + v->box->width, y, 1.5);
        picture_format_bytes(v->panel->slab_bytes, bytes);
        snprintf(text, sizeof text, "slab %s", bytes);
        picture_style bold = {11, true, PICTURE_BLACK};
        draw_label(v, &bold, x + 4, y - 5, 0, text);
    }
    if (picture_is_dynamic(v->panel)) {
        y = y_of(v, (double)(v->panel->slab_bytes + v->panel->live_bytes));
        picture_format_bytes(v->panel->live_bytes, bytes);
        snprintf(text, sizeof text, "at most %s live%s", bytes, v->panel->slab_bytes > 0 ? " outside the slab" : "");
        picture_style bold = {11, true, PICTURE_BLACK};
        draw_label(v, &bold, x + 4, y - 5, 0, text);
    }
}

/* How the bytes compare with the lower bound. */
static void compare(const bp_plan_role *role, char *text, size_t room)
{
    char more[PICTURE_BYTES_CHARS];
    if (role->bytes <= role->lower_bound_bytes) {
        snprintf(text, room, "no plan can take less");
        return;
    }
    picture_format_bytes(role->bytes - role->lower_bound_bytes, more);
    snprintf(text, room, "%.2f \u00d7 the lower bound, %s more",
             (double)role->bytes / (double)(role->lower_bound_bytes > 0 ? role->lower_bound_bytes : 1), more);
}

static void draw_heading(const view *v)
{
    const picture_panel *p = v->panel;
    char text[200], bytes[PICTURE_BYTES_CHARS], sets[40] = "", compared[80];
    double room = v->box->width + PICTURE_RIGHT;
    picture_format_bytes(p->role.bytes, bytes);
    if (p->role.copies > 0 && p->role.pool_bytes > 0)
        snprintf(sets, sizeof sets, " with %u buffer set%s", p->role.copies, p->role.copies > 1 ? "s" : "");
    snprintf(text, sizeof text, "%s, policy %s%s: %s", bp_role_name((bp_role)p->role.role),
             bp_policy_name(p->summary.policy), sets, p->summary.feasible ? bytes : "impossible");
    picture_text(v->cr, &heading, v->box->x, v->box->y - 26, 0, room, text);
    if (!p->summary.feasible)
        return;
    compare(&p->role, compared, sizeof compared);
    snprintf(text, sizeof text, "%s; %.0f%% in use on average%s", compared, 100 * p->used,
             p->slab_bytes == 0 ? "; no stable addresses" : "");
    picture_text(v->cr, &quiet, v->box->x, v->box->y - 10, 0, room, text);
}

static void draw_frame(const view *v)
{
    picture_colour(v->cr, PICTURE_GREY, 1);
    cairo_set_line_width(v->cr, 0.7);
    cairo_rectangle(v->cr, v->box->x, v->box->y, v->box->width, v->box->height);
    cairo_stroke(v->cr);
}

static void draw_memory(const view *v, bool bound_is_labelled)
{
    draw_frame(v);
    if (v->panel->summary.feasible) {
        draw_slab(v);
        draw_brackets(v);
        draw_top(v);
    } else {
        picture_text(v->cr, &plain, v->box->x + v->box->width / 2, v->box->y + v->box->height / 3, 0.5, v->box->width - 16,
                     v->panel->summary.infeasible_because);
    }
    draw_bound(v, bound_is_labelled);
}

/* A plan that is small beside the others of its role: below in the common scale, above it as large as there is room. */
static bool draw_enlarged(const view *v)
{
    picture_box low = *v->box, high = *v->box;
    view common = *v, larger = *v;
    common.box = &low;
    larger.box = &high;
    low.y = y_of(v, (double)v->panel->role.bytes) - LABEL - 4;
    low.height = v->box->y + v->box->height - low.y;
    low.bytes = v->box->bytes * low.height / v->box->height;
    high.height = low.y - LABEL - 4 - high.y;
    high.bytes = (double)v->panel->role.bytes * high.height / (high.height - LABEL - 4);
    if (high.height < 6 * LABEL || high.height < 2 * low.height)
        return false;
    draw_memory_axis(&larger);
    draw_memory(&larger, true);
    draw_memory(&common, false);
    picture_text(v->cr, &quiet, low.x + low.width, low.y - 4, 1, 0, "in the scale of the other plans:");
    return true;
}

void picture_panel_draw(cairo_t *cr, const picture_input *input, const picture_layout *layout, const picture_panel *panel,
                        const picture_box *box)
{
    view v = {cr, input, layout, panel, box};
    draw_heading(&v);
    if (!panel->summary.feasible || !draw_enlarged(&v)) {
        draw_memory_axis(&v);
        draw_memory(&v, true);
    }
    draw_phases(&v);
    draw_unit_names(&v);
    draw_bound_names(&v);
}
