/* Shared by all pictures: text, colours and files, kinds of buckets, panels and axes. */
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
#define PICTURE_MARK 0x9E0142 /* the lower bound and the units that set it */

typedef struct picture_style {
    double size;
    bool bold;
    uint32_t colour; /* 0xRRGGBB */
} picture_style;

void picture_colour(cairo_t *cr, uint32_t colour, double alpha);
/* Uses the current colour. */
void picture_line(cairo_t *cr, double x1, double y1, double x2, double y2, double width);
void picture_fill(cairo_t *cr, uint32_t colour, double alpha, double x, double y, double width, double height);

/* `anchor`: 0 puts the text's left end at x, 0.5 its middle, 1 its right end. Text wider than `room` is cut and gets
 * an ellipsis; 0: unlimited. Bytes that are not UTF-8 become '?', as cairo refuses to draw them. */
void picture_text(cairo_t *cr, const picture_style *style, double x, double y, double anchor, double room,
                  const char *text);
/* Draws from x to the right; text that is too wide loses its beginning, because the end of a path or dotted name
 * says more. */
void picture_text_tail(cairo_t *cr, const picture_style *style, double x, double y, double room, const char *text);
double picture_text_width(cairo_t *cr, const picture_style *style, const char *text);

/* Draws text on a white box. `anchor` 1: its right end is at x. */
void picture_label(cairo_t *cr, const picture_style *style, double x, double y, double anchor, const char *text);

/* Switches dashed lines on or off. */
void picture_dash(cairo_t *cr, bool dashed);

enum { PICTURE_IMAGE_SCALE = 2 }; /* pixels of an image per point */
/* Puts an image at x, y and destroys it. Replaces thousands of boxes that are thinner than a pixel. */
void picture_image(cairo_t *cr, cairo_surface_t *image, double x, double y);

#define PICTURE_BYTES_CHARS 32
/* "436.1 MiB", as in tables. */
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

/* Writes in the format of the path's suffix. Returns NULL, or an error text that is valid until this thread's next call. */
const char *picture_write(const picture_page *page, const output *to);

/* ---- content of a picture of plans, in steps and bytes ---- */

/* Kinds of buckets, each with its colour. A kind is a bucket's name without a trailing number. */
enum { PICTURE_DENSE, PICTURE_EXPERTS, PICTURE_FIRST_HASHED, PICTURE_OTHER = 7, PICTURE_KINDS };
#define PICTURE_KIND_CHARS 40

typedef char picture_kinds[PICTURE_KINDS][PICTURE_KIND_CHARS]; /* "": unused */

/* Index of a bucket's kind, which is added to `kinds`. `role`: its role if the picture has several, else "". */
uint8_t picture_kind_of(const bp_bucket *bucket, const char *role, picture_kinds kinds);

/* ---- layout ------------------------------------------------------------------------------------------------------ */

/* A live range of a request: `bytes` from `offset` in steps [begin, end). */
typedef struct picture_rect {
    uint64_t offset, bytes;
    uint32_t begin, end;
    uint32_t unit;
    uint8_t kind;
} picture_rect;

/* One role of a plan, or all roles of a slab. */
typedef struct picture_panel {
    const bp_plan_info *plan;
    bp_plan_role role;   /* if `is_worked_out`: only role, bytes and bound */
    bool is_worked_out;  /* computed here, as a plan read from a file lacks it */
    bool drawn_before;   /* joint slab, drawn in the row of its first role */
    uint64_t slab_bytes; /* of requests with an address */
    uint64_t live_bytes; /* peak of requests without an address */
    uint64_t *live;      /* bytes without an address, [kind * (steps + 1) + step]; 0 at the last step */
    picture_rect *rects; /* live ranges with an address */
    size_t rect_count;
    uint64_t *starts; /* offsets of buffers in the slab, increasing; empty if the plan has none */
    size_t start_count;
    double used; /* mean live share of the bytes */
} picture_panel;

typedef struct picture_layout {
    picture_panel *panels; /* by role, then plan */
    size_t role_count, plan_count;
    uint32_t roles[BP_ROLE_COUNT];
    size_t steps;
    size_t common_chars; /* length of the prefix of all unit names that is left out */
    picture_kinds kinds;
} picture_layout;

/* true: some requests are allocated on demand. */
static inline bool picture_is_dynamic(const picture_panel *panel)
{
    return panel->live_bytes > 0;
}

/* ---- panels ------------------------------------------------------------------------------------------------------ */

/* Margins of a panel's plot. */
enum { PICTURE_ABOVE = 44, PICTURE_BELOW = 62, PICTURE_LEFT = 52, PICTURE_RIGHT = 84 };

/* Position of the plot, and the bytes of its height. */
typedef struct picture_box {
    double x, y, width, height;
    double bytes;
    uint64_t like; /* the axis has the unit of this many bytes; 0: of `bytes` */
} picture_box;

extern const uint32_t picture_kind_colours[PICTURE_KINDS];
#define PICTURE_UNUSED 0xE4E4E4

void picture_panel_draw(cairo_t *cr, const picture_input *input, const picture_layout *layout,
                        const picture_panel *panel, const picture_box *box);

/* ---- their parts ------------------------------------------------------------------------------------------------- */

/* A panel and the position of its plot. */
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
/* axes.c: bytes on the left, units and phases below. */
void picture_draw_memory_axis(const picture_view *v);
void picture_draw_step_axis(const picture_view *v);

#endif
