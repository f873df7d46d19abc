/* The canvas of all pictures: text, sizes and colours, and files that are an SVG, a PNG or a PDF. */
#ifndef TOOLS_PICTURES_CANVAS_H
#define TOOLS_PICTURES_CANVAS_H

#include <cairo.h>
#include <stdbool.h>
#include <stdint.h>

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

/* `anchor`: 0 puts the text's left end at x, 0.5 its middle, 1 its right end. What is wider than `room` is cut ("..." in one
 * character); 0: unlimited. Bytes that are not UTF-8 become '?', as cairo refuses to draw them. */
void picture_text(cairo_t *cr, const picture_style *style, double x, double y, double anchor, double room,
                  const char *text);
/* The same from the left, but what is too wide is cut at its beginning: of a path or a dotted name the end says more. */
void picture_text_tail(cairo_t *cr, const picture_style *style, double x, double y, double room, const char *text);
double picture_text_width(cairo_t *cr, const picture_style *style, const char *text);

#define PICTURE_BYTES_CHARS 32
/* "436.1 MiB", as tables have it. */
void picture_format_bytes(uint64_t bytes, char text[PICTURE_BYTES_CHARS]);
/* The name and the bytes of that unit. */
const char *picture_byte_unit(uint64_t bytes, double *unit);

/* ---- files ------------------------------------------------------------------------------------------------------- */

/* Files of pictures: what is drawn is an SVG, a PNG or a PDF. */

/* Points of an SVG or PDF; a PNG has two pixels for each. */
typedef struct picture_page {
    double width, height;
    void (*draw)(cairo_t *cr, const void *user); /* on white */
    const void *user;
} picture_page;

/* In the format of the ending of the output's path. NULL, or an error text that lives until this thread's next call. */
const char *picture_write(const picture_page *page, const output *to);

#endif
