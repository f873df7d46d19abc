/* Files of pictures: what is drawn is an SVG, a PNG or a PDF. */
#ifndef BP_TOOLS_PICTURE_FILE_H
#define BP_TOOLS_PICTURE_FILE_H

#include <cairo.h>

#include "outputs.h"

/* Points of an SVG or PDF; a PNG has two pixels for each. */
typedef struct picture_page {
    double width, height;
    void (*draw)(cairo_t *cr, const void *user); /* on white */
    const void *user;
} picture_page;

/* In the format of the ending of the output's path. NULL, or an error text that lives until this thread's next call. */
const char *picture_write(const picture_page *page, const output *to);

#endif
