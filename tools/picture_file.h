/* Pictures as files. */
#ifndef BP_TOOLS_PICTURE_FILE_H
#define BP_TOOLS_PICTURE_FILE_H

#include <cairo.h>

typedef void picture_painter(cairo_t *cr, const void *user);

/* Paints a page of so many points into a file whose ending says the format: .svg, .png or .pdf. The file is there whole or not at
 * all. NULL, or an error text that lives until this thread's next call. */
const char *picture_save(double width, double height, picture_painter *paint, const void *user, const char *path);

#endif
