/* One panel of a picture: a role of a plan. */
#ifndef BP_TOOLS_PICTURE_PANEL_H
#define BP_TOOLS_PICTURE_PANEL_H

#include <cairo.h>

#include "picture_layout.h"

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

#endif
