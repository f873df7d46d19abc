/* What lies where: rectangles of live requests, areas of what has no address. */
#include "picture_view.h"

#include <math.h>

/* Okabe and Ito's colours, told apart by colour-blind readers, without their red: that is the marks'. */
const uint32_t picture_kind_colours[PICTURE_KINDS] = {0x0072B2, 0xE69F00, 0x009E73, 0xCC79A7,
                                                      0x56B4E9, 0xF0E442, 0x8A6D3B, 0x5A5A5A};

/* Points. What is less high is drawn so high: a sliver of memory should be seen. */
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

/* The rectangles of a kind become one path: what is thinner than a pixel then adds up to the right shade. */
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

static void add_edges(const picture_view *v, unsigned kind)
{
    const double inset = 0.3;
    for (size_t i = 0; i < v->panel->rect_count; i++) {
        extent e = extent_of(v, &v->panel->rects[i]);
        if (v->panel->rects[i].kind == kind && e.width >= 2.5 && e.height >= 2.5)
            cairo_rectangle(v->cr, e.x + inset, e.y + inset, e.width - 2 * inset, e.height - 2 * inset);
    }
}

/* The area of what has no address, on top of the slab and of the kinds before. */
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
        add_edges(v, kind);
        cairo_stroke(v->cr);
    }
}

/* So many rectangles that they are thinner than a pixel: an image of them is smaller, and looks the same. */
static void fill_memory_as_image(const picture_view *v)
{
    const double scale = 2;
    cairo_surface_t *image =
        cairo_image_surface_create(CAIRO_FORMAT_ARGB32, (int)(v->box->width * scale), (int)(v->box->height * scale));
    picture_view inner = *v;
    picture_box box = {0, 0, v->box->width, v->box->height, v->box->bytes};
    inner.cr = cairo_create(image);
    inner.box = &box;
    cairo_scale(inner.cr, scale, scale);
    fill_memory(&inner, true);
    cairo_save(v->cr);
    cairo_translate(v->cr, v->box->x, v->box->y);
    cairo_scale(v->cr, 1 / scale, 1 / scale);
    cairo_set_source_surface(v->cr, image, 0, 0);
    cairo_paint(v->cr);
    cairo_restore(v->cr);
    cairo_destroy(inner.cr);
    cairo_surface_destroy(image);
}

/* Names in the rectangles that have room for them. */
static void name_rects(const picture_view *v)
{
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

void picture_draw_slab(const picture_view *v)
{
    const picture_panel *p = v->panel;
    double top = picture_y(v, (double)p->slab_bytes), bottom = v->box->y + v->box->height,
           right = v->box->x + v->box->width;
    picture_colour(v->cr, PICTURE_UNUSED, 1);
    cairo_rectangle(v->cr, v->box->x, top, v->box->width, bottom - top);
    cairo_fill(v->cr);
    bool fine = p->rect_count > 4000 || (double)v->layout->steps > 2 * v->box->width;
    if (fine)
        fill_memory_as_image(v);
    else
        fill_memory(v, false);
    double above = bottom;
    for (size_t i = 0; i < p->start_count; i++) {
        double y = picture_y(v, (double)p->starts[i]);
        if (above - y < 3 || y - top < 3) /* lines that close are a grey area */
            continue;
        picture_colour(v->cr, 0x8c8c8c, 1);
        picture_line(v, v->box->x, y, right, y, 0.4);
        above = y;
    }
    if (!fine)
        name_rects(v);
}
