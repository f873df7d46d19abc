/* SPDX-License-Identifier: Apache-2.0 */
/* The page of every picture, written as SVG: text, shapes, legends, the axis of bytes, kinds of buckets. */
#ifndef TOOLS_PICTURES_CANVAS_H
#define TOOLS_PICTURES_CANVAS_H

#include <bucketpool/bucketpool.h>

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "pictures/pictures.h"
#include "shared/outputs.h"

/* Points. A page of 640 whose text has 14 is readable on a screen of 420 pixels: 9 pixels. */
enum {
    PICTURE_WIDTH = 640,
    PICTURE_MARGIN = 16,
    PICTURE_INNER = PICTURE_WIDTH - 2 * PICTURE_MARGIN,
    PICTURE_LEFT = 92, /* where plots begin */
    PICTURE_PLOT = PICTURE_WIDTH - PICTURE_LEFT - PICTURE_MARGIN,
    PICTURE_LINE = 20,
    PICTURE_TEXT = 14
};

#define PICTURE_BLACK 0x222222
#define PICTURE_GREY 0x606060
#define PICTURE_UNUSED 0xE4E4E4
#define PICTURE_MARK 0x9E0142 /* the lower bound and the peak */

typedef struct picture {
    char *text; /* the body so far */
    size_t length, capacity;
    double y;        /* the first free line */
    double legend_x; /* of the next entry; 0: a new line */
    bool failed;     /* out of memory */
} picture;

/* Appends to the body. */
__attribute__((format(printf, 2, 3))) void picture_print(picture *p, const char *format, ...);

/* Draws a page from the top down, and leaves its height in `y`. Returns NULL, or an error text that is valid until this
 * thread's next call. */
const char *picture_write(void (*draw)(picture *p, const void *user), const void *user, const output *to);

/* ---- text -------------------------------------------------------------------------------------------------------- */

typedef struct picture_style {
    double size;
    bool bold;
    uint32_t colour; /* 0xRRGGBB */
} picture_style;

extern const picture_style picture_heading, picture_plain, picture_bold, picture_quiet, picture_mark;

/* Widest extent of the text in the usual sans-serif fonts. */
double picture_text_width(const picture_style *style, const char *text);

/* Draws on the base line y. `anchor`: 0 puts the text's left end at x, 0.5 its middle, 1 its right end. Text wider than
 * `room` is cut and gets an ellipsis. Bytes that are not printable UTF-8 become '?'. */
void picture_text(picture *p, const picture_style *style, double x, double y, double anchor, double room,
                  const char *text);
/* Draws from x to the right; text that is too wide loses its beginning, because the end of a path or dotted name
 * says more. */
void picture_text_tail(picture *p, const picture_style *style, double x, double y, double room, const char *text);
/* Writes lines as wide as the page, broken at spaces. */
void picture_paragraph(picture *p, const picture_style *style, const char *text);
/* Writes the first line of `title` as heading, the rest below it. */
void picture_title(picture *p, const char *title);

#define PICTURE_BYTES_CHARS 32
/* "436.1 MiB", as in tables. */
const char *picture_format_bytes(uint64_t bytes, char text[PICTURE_BYTES_CHARS]);

/* ---- shapes ------------------------------------------------------------------------------------------------------ */

typedef struct picture_box {
    double x, y, width, height;
    double bytes; /* of its height, if it is a plot */
    uint8_t colour;
} picture_box;

void picture_fill(picture *p, uint32_t colour, double alpha, double x, double y, double width, double height);
void picture_line(picture *p, uint32_t colour, double x1, double y1, double x2, double y2, double width, bool dashed);
/* Writes a number of a path. */
void picture_number(picture *p, double value);

/* Colours of boxes: kinds of buckets, then memory that is not mapped. */
enum { PICTURE_KINDS = 8, PICTURE_GONE = PICTURE_KINDS, PICTURE_COLOURS };
extern const uint32_t picture_colours[PICTURE_COLOURS];
/* The colour of text in a box. */
uint32_t picture_ink(uint32_t colour);

/* Fills boxes in a plot, later colours on top. Many boxes become runs of half a point in which the first box wins:
 * fewer shapes, whose number is bounded by the area. */
void picture_boxes(picture *p, const picture_box *plot, const picture_box *boxes, size_t count);
/* true: picture_boxes draws runs, and labels in boxes would not fit. */
bool picture_is_coarse(size_t count);

/* ---- legends and axes -------------------------------------------------------------------------------------------- */

typedef enum picture_icon {
    PICTURE_ICON_BOX,
    PICTURE_ICON_LINE,
    PICTURE_ICON_DASHES,
    PICTURE_ICON_UPRIGHT
} picture_icon;
void picture_legend(picture *p, picture_icon icon, uint32_t colour, const char *text);
void picture_legend_end(picture *p);

/* 1, 2 or 5 times a power of ten, at least `least`. */
double picture_nice_step(double min);
/* Writes bytes on the left of a plot, with their unit. */
void picture_memory_axis(picture *p, const picture_box *plot);
/* A mark below a plot, and text that is left out where it would leave the page. */
void picture_tick(picture *p, double x, double bottom, const char *text);

/* Names phases and units below a plot of a schedule's steps; moves `y` behind them. */
void picture_step_axis(picture *p, const picture_box *plot, const bp_buckets *buckets, const bp_schedule *schedule,
                       size_t common_chars);

/* ---- kinds of buckets -------------------------------------------------------------------------------------------- */

enum { PICTURE_DENSE, PICTURE_EXPERTS, PICTURE_FIRST_HASHED, PICTURE_OTHER = PICTURE_KINDS - 1 };
#define PICTURE_KIND_CHARS 40

/* A kind is a bucket's name without a trailing number. */
typedef char picture_kinds[PICTURE_KINDS][PICTURE_KIND_CHARS]; /* "": unused */

/* Index of a bucket's kind, which is added to `kinds`. `role`: its role if the picture has several, else "". */
uint8_t picture_kind_of(const bp_bucket *bucket, const char *role, picture_kinds kinds);
/* Writes the kinds that are used. */
void picture_kinds_legend(picture *p, picture_kinds kinds);

#endif
