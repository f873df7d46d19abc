/* What all pictures are drawn with: text, colours and files, kinds of buckets, panels and axes. */
#ifndef TOOLS_PICTURES_CANVAS_H
#define TOOLS_PICTURES_CANVAS_H

#include <bucketpool/bucketpool.h>

#include <cairo.h>
#include <stdbool.h>
#include <stdint.h>

#include "pictures/pictures.h"
#include "shared/outputs.h"

/* ---- text and colours -------------------------------------------------------------------------------------------- */

#define PICTURE_BLACK 0x222222
#define PICTURE_GREY 0x666666
#define PICTURE_MARK 0x9E0142 /* the lower bound and what sets it */

typedef struct picture_style {
    double size;
    bool bold;
    uint32_t colour; /* 0xRRGGBB */
} picture_style;

void picture_colour(cairo_t *cr, uint32_t colour, double alpha);
/* In the present colour. */
void picture_line(cairo_t *cr, double x1, double y1, double x2, double y2, double width);
void picture_fill(cairo_t *cr, uint32_t colour, double alpha, double x, double y, double width, double height);

/* `anchor`: 0 puts the text's left end at x, 0.5 its middle, 1 its right end. What is wider than `room` is cut ("..." in one
 * character); 0: unlimited. Bytes that are not UTF-8 become '?', as cairo refuses to draw them. */
void picture_text(cairo_t *cr, const picture_style *style, double x, double y, double anchor, double room,
                  const char *text);
/* The same from the left, but what is too wide is cut at its beginning: of a path or a dotted name the end says more. */
void picture_text_tail(cairo_t *cr, const picture_style *style, double x, double y, double room, const char *text);
double picture_text_width(cairo_t *cr, const picture_style *style, const char *text);

/* Text on white, so that it can be read on anything. Its right end is at x when `anchor` is 1. */
void picture_label(cairo_t *cr, const picture_style *style, double x, double y, double anchor, const char *text);

/* Lines are dashed from now on, or not any more. */
void picture_dash(cairo_t *cr, bool dashed);

enum { PICTURE_IMAGE_SCALE = 2 }; /* pixels of an image for each point */
/* Puts an image at x, y and destroys it: of so many boxes that it is smaller than they are, and looks the same. */
void picture_image(cairo_t *cr, cairo_surface_t *image, double x, double y);

#define PICTURE_BYTES_CHARS 32
/* "436.1 MiB", as tables have it. */
void picture_format_bytes(uint64_t bytes, char text[PICTURE_BYTES_CHARS]);
/* The name and the bytes of that unit. */
const char *picture_byte_unit(uint64_t bytes, double *unit);

/* ---- files ------------------------------------------------------------------------------------------------------- */

/* Points of an SVG or PDF; a PNG has two pixels for each. */
typedef struct picture_page {
    double width, height;
    void (*draw)(cairo_t *cr, const void *user); /* on white */
    const void *user;
} picture_page;

/* In the format of the ending of the output's path. NULL, or an error text that lives until this thread's next call. */
const char *picture_write(const picture_page *page, const output *to);

/* What a picture of plans shows, in steps and bytes. Nothing here knows how it is drawn. */

/* Kinds of buckets that are told apart: each is a colour. A kind is a bucket's name without a number at its end. */
enum { PICTURE_DENSE, PICTURE_EXPERTS, PICTURE_FIRST_HASHED, PICTURE_OTHER = 7, PICTURE_KINDS };
#define PICTURE_KIND_CHARS 40

typedef char picture_kinds[PICTURE_KINDS][PICTURE_KIND_CHARS]; /* "": not in the picture */

/* The kind of a bucket, named in `kinds` from now on. `role`: of a bucket beside those of another role, else "". */
uint8_t picture_kind_of(const bp_bucket *bucket, const char *role, picture_kinds kinds);

/* ---- layout ------------------------------------------------------------------------------------------------------ */

/* A request while it is live: `bytes` from `offset` in steps [begin, end). */
typedef struct picture_rect {
    uint64_t offset, bytes;
    uint32_t begin, end;
    uint32_t unit;
    uint8_t kind;
} picture_rect;

/* One role of one plan, or all roles that share its slab. */
typedef struct picture_panel {
    const bp_plan_info *plan;
    bp_plan_role role;   /* of a plan that was read from a file: only role, bytes and bound, worked out here */
    bool is_worked_out;  /* of such a plan */
    bool drawn_before;   /* a slab of several roles, in the row of the first of them */
    uint64_t slab_bytes; /* of what has an address */
    uint64_t live_bytes; /* the largest sum of what has none */
    uint64_t *live;      /* what has none, [kind * (steps + 1) + step]; nothing is live at the last one */
    picture_rect *rects; /* what has one */
    size_t rect_count;
    uint64_t *starts; /* where buffers begin in the slab, increasing; empty when the plan has no buffers */
    size_t start_count;
    double used; /* mean share of the bytes that is live */
} picture_panel;

typedef struct picture_layout {
    picture_panel *panels; /* all plans of the first role, all of the next one, ... */
    size_t role_count, plan_count;
    uint32_t roles[BP_ROLE_COUNT];
    size_t steps;
    size_t common_chars; /* that all names of units begin with and that need not be repeated */
    picture_kinds kinds;
} picture_layout;

/* Whether anything lies outside the slab: allocated on demand. */
static inline bool picture_is_dynamic(const picture_panel *panel)
{
    return panel->live_bytes > 0;
}

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
