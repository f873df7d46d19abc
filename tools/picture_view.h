/* What the parts of a panel have in common. */
#ifndef BP_TOOLS_PICTURE_VIEW_H
#define BP_TOOLS_PICTURE_VIEW_H

#include "picture_panel.h"
#include "picture_text.h"

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

/* picture_memory.c: the slab, its buffers and what is live. */
void picture_draw_slab(const picture_view *v);
/* 1, 2 or 5 times a power of ten, at least `least`. */
double picture_nice_step(double least);
/* picture_axes.c: bytes on the left; units and phases below. */
void picture_draw_memory_axis(const picture_view *v);
void picture_draw_step_axis(const picture_view *v);

#endif
