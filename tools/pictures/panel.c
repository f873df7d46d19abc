/* A panel: heading, plot, brackets and lower bound. */
#include "pictures/canvas.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- kinds of buckets -------------------------------------------------------------------------------------------- */

static void name_kind(const bp_bucket *bucket, char name[PICTURE_KIND_CHARS])
{
    if (bucket->name == NULL) {
        snprintf(name, PICTURE_KIND_CHARS, "bucket.%u", bucket->ordinal);
        return;
    }
    snprintf(name, PICTURE_KIND_CHARS, "%s", bucket->name);
    size_t end = strlen(name);
    while (end > 0 && isdigit((unsigned char)name[end - 1]))
        end--;
    if (end > 1 && name[end - 1] == '.' && name[end] != '\0')
        name[end - 1] = '\0';
}

uint8_t picture_kind_of(const bp_bucket *bucket, const char *role, picture_kinds kinds)
{
    char name[PICTURE_KIND_CHARS];
    name_kind(bucket, name);
    size_t length = strlen(name);
    if (*role != '\0')
        snprintf(name + length, sizeof name - length, ", %s", role);

    /* A name gets the same colour in every picture (FNV-1a hash, then the next free colour). */
    enum { HASHED = PICTURE_OTHER - PICTURE_FIRST_HASHED };
    uint32_t hash = 2166136261u;
    for (const char *c = name; *c != '\0'; c++)
        hash = (hash ^ (uint8_t)*c) * 16777619u;
    size_t kind = PICTURE_OTHER;
    if (strcmp(name, "dense") == 0)
        kind = PICTURE_DENSE;
    else if (strcmp(name, "experts") == 0)
        kind = PICTURE_EXPERTS;
    for (size_t i = 0; kind == PICTURE_OTHER && i < HASHED; i++) {
        size_t candidate = PICTURE_FIRST_HASHED + (hash % HASHED + i) % HASHED;
        if (*kinds[candidate] == '\0' || strcmp(kinds[candidate], name) == 0)
            kind = candidate;
    }
    snprintf(kinds[kind], PICTURE_KIND_CHARS, "%s", kind == PICTURE_OTHER ? "other buckets" : name);
    return (uint8_t)kind;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* Okabe and Ito's palette for colour-blind readers, without its red, which is used for marks. */
const uint32_t picture_kind_colours[PICTURE_KINDS] = {0x0072B2, 0xE69F00, 0x009E73, 0xCC79A7,
                                                      0x56B4E9, 0xF0E442, 0x8A6D3B, 0x5A5A5A};

/* Points. Least height of a rectangle, so that slivers stay visible. */
#define LEAST_HEIGHT 0.8

typedef enum height_class { LOW, HIGH } height_class;

typedef struct extent {
    double x, y, width, height;
} extent;

static extent extent_of(const picture_view *v, const picture_rect *r)
{
    double left = picture_x(v, r->begin), bottom = picture_y(v, (double)r->offset);
    double top = picture_y(v, (double)r->offset + (double)r->bytes);
    return (extent){left, top, picture_x(v, r->end) - left, bottom - top};
}

/* One path for all rectangles of a kind, so that those thinner than a pixel add up to the right shade. */
static void add_rects(const picture_view *v, unsigned kind, height_class wanted)
{
    for (size_t i = 0; i < v->panel->rect_count; i++) {
        extent e = extent_of(v, &v->panel->rects[i]);
        bool low = e.height < LEAST_HEIGHT;
        if (v->panel->rects[i].kind == kind && low == (wanted == LOW))
            cairo_rectangle(v->cr, e.x, low ? e.y + e.height - LEAST_HEIGHT : e.y, e.width,
                            low ? LEAST_HEIGHT : e.height);
    }
}

/* Area of requests without an address, stacked on the slab and on the kinds before. */
static void add_area(const picture_view *v, unsigned kind)
{
    const size_t stride = v->layout->steps + 1;
    for (size_t step = 0; step < v->layout->steps; step++) {
        uint64_t base = v->panel->slab_bytes, bytes = v->panel->live[kind * stride + step];
        for (unsigned k = 0; k < kind; k++)
            base += v->panel->live[k * stride + step];
        double top = picture_y(v, (double)base + (double)bytes), x = picture_x(v, step);
        if (bytes > 0)
            cairo_rectangle(v->cr, x, top, picture_x(v, step + 1) - x, picture_y(v, (double)base) - top);
    }
}

static void fill_memory(const picture_view *v, bool fine)
{
    for (unsigned kind = 0; kind < PICTURE_KINDS; kind++) {
        picture_colour(v->cr, picture_kind_colours[kind], 1);
        add_rects(v, kind, LOW);
        cairo_fill(v->cr);
    }
    for (unsigned kind = 0; kind < PICTURE_KINDS; kind++) {
        uint32_t colour = picture_kind_colours[kind];
        cairo_set_operator(v->cr, fine ? CAIRO_OPERATOR_ADD : CAIRO_OPERATOR_OVER); /* shares of a pixel add up */
        picture_colour(v->cr, colour, 1);
        add_rects(v, kind, HIGH);
        if (picture_is_dynamic(v->panel))
            add_area(v, kind);
        cairo_fill(v->cr);
        if (fine)
            continue;
        picture_colour(v->cr, (colour >> 1 & 0x7f7f7f) + (colour >> 3 & 0x1f1f1f), 1);
        cairo_set_line_width(v->cr, 0.6);

        const double inset = 0.3;
        for (size_t i = 0; i < v->panel->rect_count; i++) {
            extent e = extent_of(v, &v->panel->rects[i]);
            if (v->panel->rects[i].kind == kind && e.width >= 2.5 && e.height >= 2.5)
                cairo_rectangle(v->cr, e.x + inset, e.y + inset, e.width - 2 * inset, e.height - 2 * inset);
        }

        cairo_stroke(v->cr);
    }
}

/* From this number of rectangles on, an image is smaller and looks the same. */
static void fill_memory_as_image(const picture_view *v)
{
    const double scale = PICTURE_IMAGE_SCALE;
    cairo_surface_t *image =
        cairo_image_surface_create(CAIRO_FORMAT_ARGB32, (int)(v->box->width * scale), (int)(v->box->height * scale));
    picture_view inner = *v;
    picture_box box = {0, 0, v->box->width, v->box->height, v->box->bytes};
    inner.cr = cairo_create(image);
    inner.box = &box;
    cairo_scale(inner.cr, scale, scale);
    fill_memory(&inner, true);
    cairo_destroy(inner.cr);
    picture_image(v->cr, image, v->box->x, v->box->y);
}

/* Draws the slab, its buffers and the live ranges. */
static void picture_draw_slab(const picture_view *v)
{
    const picture_panel *p = v->panel;
    double top = picture_y(v, (double)p->slab_bytes), bottom = v->box->y + v->box->height,
           right = v->box->x + v->box->width;
    picture_fill(v->cr, PICTURE_UNUSED, 1, v->box->x, top, v->box->width, bottom - top);
    bool fine = p->rect_count > 4000 || (double)v->layout->steps > 2 * v->box->width;
    if (fine)
        fill_memory_as_image(v);
    else
        fill_memory(v, false);
    double above = bottom;
    for (size_t i = 0; i < p->start_count; i++) {
        double y = picture_y(v, (double)p->starts[i]);
        if (above - y < 3 || y - top < 3) /* lines this close would merge */
            continue;
        picture_colour(v->cr, 0x8c8c8c, 1);
        picture_line(v->cr, v->box->x, y, right, y, 0.4);
        above = y;
    }
    if (!fine) {
        /* Labels, where they fit. */
        for (size_t i = 0; i < v->panel->rect_count; i++) {
            const picture_rect *r = &v->panel->rects[i];
            extent e = extent_of(v, r);
            if (e.width < 24 || e.height < 14)
                continue;
            bool dark = r->kind == PICTURE_DENSE || r->kind >= PICTURE_OTHER - 1;
            picture_style style = {10, false, dark ? 0xffffff : 0x000000};
            const char *name = picture_unit_name(v, r->unit);
            if (picture_text_width(v->cr, &style, name) < e.width - 6)
                picture_text(v->cr, &style, e.x + e.width / 2, e.y + e.height / 2 + 3.5, 0.5, 0, name);
        }
    }
}

/* ---- the lower bound --------------------------------------------------------------------------------------------- */

/* Points. */
enum { SMALLEST_BRACKET = 10, LABEL = 16, WIDEST_BAND = 8 };

static const picture_style heading = {13, true, PICTURE_BLACK}, plain = {11, false, PICTURE_BLACK},
                           bold = {11, true, PICTURE_BLACK}, quiet = {11, false, PICTURE_GREY},
                           mark = {11, true, PICTURE_MARK};

/* "layers.4, layers.5 and 3 more": the units that set the lower bound. */
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
    picture_fill(v->cr, PICTURE_MARK, 0.3, (left + right - width) / 2, v->box->y, width, v->box->height);
}

/* ---- what is where ----------------------------------------------------------------------------------------------- */

/* Draws a bracket with a label on the right of the plot, if it fits. */
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

static void draw_top(const picture_view *v)
{
    char bytes[PICTURE_BYTES_CHARS], text[80];
    double x = v->box->x, y = picture_y(v, (double)v->panel->slab_bytes);
    if (v->panel->slab_bytes > 0) {
        picture_colour(v->cr, PICTURE_BLACK, 1);
        picture_line(v->cr, x, y, x + v->box->width, y, 1.5);
        picture_format_bytes(v->panel->slab_bytes, bytes);
        snprintf(text, sizeof text, "slab %s", bytes);
        picture_label(v->cr, &bold, x + 4, y - 5, 0, text);
    }
    if (picture_is_dynamic(v->panel)) {
        y = picture_y(v, (double)(v->panel->slab_bytes + v->panel->live_bytes));
        picture_format_bytes(v->panel->live_bytes, bytes);
        snprintf(text, sizeof text, "at most %s live%s", bytes, v->panel->slab_bytes > 0 ? " outside the slab" : "");
        picture_label(v->cr, &bold, x + 4, y - 5, 0, text);
    }
}

/* Formats the ratio of bytes and lower bound. */
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

static void draw_memory(const picture_view *v, bool bound_is_labelled)
{
    picture_colour(v->cr, PICTURE_GREY, 1);
    cairo_set_line_width(v->cr, 0.7);
    cairo_rectangle(v->cr, v->box->x, v->box->y, v->box->width, v->box->height);
    cairo_stroke(v->cr);

    if (v->panel->plan->feasible) {
        picture_draw_slab(v);

        const bp_plan_role *role = &v->panel->role;
        char name[40];
        uint64_t set = role->copies > 0 ? role->pool_bytes / role->copies : 0;
        bool apart = picture_y(v, 0) - picture_y(v, (double)set) >= SMALLEST_BRACKET + 2;
        for (uint32_t c = 0; apart && c < role->copies; c++) {
            snprintf(name, sizeof name, "set %u", c + 1);
            draw_bracket(v, c * set, (c + 1) * set, name);
            picture_colour(v->cr, 0x444444, 1);
            if (c > 0)
                picture_line(v->cr, v->box->x, picture_y(v, (double)(c * set)), v->box->x + v->box->width,
                             picture_y(v, (double)(c * set)), 1);
        }
        snprintf(name, sizeof name, "%u sets", role->copies);
        if (!apart && role->copies > 0)
            draw_bracket(v, 0, role->pool_bytes, name);
        draw_bracket(v, role->pool_bytes, role->pool_bytes + role->persistent_bytes, "persistent");
        if (picture_is_dynamic(v->panel))
            draw_bracket(v, v->panel->slab_bytes, v->panel->slab_bytes + v->panel->live_bytes, "on demand");

        draw_top(v);
    } else {
        picture_text(v->cr, &plain, v->box->x + v->box->width / 2, v->box->y + v->box->height / 3, 0.5,
                     v->box->width - 16, v->panel->plan->infeasible_because);
    }

    double y = picture_y(v, (double)v->panel->role.lower_bound_bytes), right = v->box->x + v->box->width;
    draw_bound_step(v);
    picture_colour(v->cr, PICTURE_MARK, 1);
    picture_dash(v->cr, true);
    picture_line(v->cr, v->box->x, y, right, y, 1.5);
    picture_dash(v->cr, false);
    char bytes[PICTURE_BYTES_CHARS], text[64];
    picture_format_bytes(v->panel->role.lower_bound_bytes, bytes);
    snprintf(text, sizeof text, "lower bound %s", bytes);
    /* above the line, unless the label of on-demand memory is there */
    bool taken = picture_is_dynamic(v->panel) && v->box->width < 400 &&
                 fabs(picture_y(v, (double)(v->panel->slab_bytes + v->panel->live_bytes)) - y) < LABEL;
    if (bound_is_labelled)
        picture_label(v->cr, &mark, right - 4, taken ? y + 15 : y - 5, 1, text);
}

/* A plan much smaller than the others of its role is drawn twice: below in the common scale, above it enlarged. */
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

    /* live units of that step, below the axis */
    double middle =
        (picture_x(&v, v.panel->role.lower_bound_step) + picture_x(&v, v.panel->role.lower_bound_step + 1ul)) / 2;
    double bottom = v.box->y + v.box->height;
    picture_colour(v.cr, PICTURE_MARK, 1);
    cairo_move_to(v.cr, middle, bottom + 1);
    cairo_line_to(v.cr, middle + 4, bottom + 8);
    cairo_line_to(v.cr, middle - 4, bottom + 8);
    cairo_fill(v.cr);
    char witnesses[256], text[320];
    name_witnesses(&v, witnesses, sizeof witnesses);
    snprintf(text, sizeof text, "most live at step %u%s", v.panel->role.lower_bound_step, witnesses);
    double wide = fmin(picture_text_width(v.cr, &mark, text), v.box->width);
    double x = fmax(v.box->x, fmin(middle - wide / 2, v.box->x + v.box->width - wide));
    picture_text(v.cr, &mark, x, bottom + 48, 0, v.box->width, text);
}
