/* One panel of a picture: a role of a plan. */
#ifndef TOOLS_PICTURES_PANEL_H
#define TOOLS_PICTURES_PANEL_H

#include <cairo.h>

#include "pictures/canvas.h"
#include "pictures/layout.h"

/* ---- panels ------------------------------------------------------------------------------------------------------ */

/* Room around the plot of a panel. */
enum { PICTURE_ABOVE = 44, PICTURE_BELOW = 62, PICTURE_LEFT = 52, PICTURE_RIGHT = 84 };

/* Where the plot lies, and how many bytes its height stands for. */
typedef struct picture_box {
    double x, y, width, height;
    double bytes;
    uint64_t like; /* bytes in whose unit the axis is, 0: in that of `bytes` */
} picture_box;

extern const uint32_t picture_kind_colours[PICTURE_KINDS];
#define PICTURE_UNUSED 0xE4E4E4

void picture_panel_draw(cairo_t *cr, const picture_input *input, const picture_layout *layout,
                        const picture_panel *panel, const picture_box *box);

/* ---- their parts ------------------------------------------------------------------------------------------------- */

/* What the parts of a panel have in common. */

/* A panel and where its plot lies. */
typedef struct picture_view {
    cairo_t *cr;
    const picture_input *input;
    const picture_layout *layout;
    const picture_panel *panel;
    const picture_box *box;
} picture_view;

static inline double picture_x(const picture_view *v, size_t step)
{
    return v->box->x + v->box->width * (double)step / (double)v->layout->steps;
}

static inline double picture_y(const picture_view *v, double bytes)
{
    return v->box->y + v->box->height * (1 - bytes / v->box->bytes);
}

static inline void picture_line(const picture_view *v, double x1, double y1, double x2, double y2, double width)
{
    cairo_set_line_width(v->cr, width);
    cairo_move_to(v->cr, x1, y1);
    cairo_line_to(v->cr, x2, y2);
    cairo_stroke(v->cr);
}

static inline const char *picture_unit_name(const picture_view *v, size_t unit)
{
    return bp_buckets_get_info(v->input->buckets)->units[unit].name + v->layout->common_chars;
}

/* 1, 2 or 5 times a power of ten, at least `least`. */
double picture_nice_step(double least);
/* Axes: bytes on the left, units and phases below. */
void picture_draw_memory_axis(const picture_view *v);
void picture_draw_step_axis(const picture_view *v);

#endif
