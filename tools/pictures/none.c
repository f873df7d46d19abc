/* Pictures in a build without cairo: all fail. */
#include "pictures/pictures.h"

static const char no_cairo[] =
    "this build has no cairo; install its development files and configure again to draw pictures";

const char *picture_draw(const picture_input *input, const output *to)
{
    (void)input;
    (void)to;
    return no_cairo;
}

const char *picture_draw_packing(const packing_picture *input, const output *to)
{
    (void)input;
    (void)to;
    return no_cairo;
}

const char *picture_draw_schedule(const schedule_view *view, const char *subtitle, const output *to)
{
    (void)view;
    (void)subtitle;
    (void)to;
    return no_cairo;
}

const char *picture_draw_snapshot(const snapshot_picture *input, const output *to)
{
    (void)input;
    (void)to;
    return no_cairo;
}

const char *picture_draw_flame(const snapshot_picture *input, const output *to)
{
    (void)input;
    (void)to;
    return no_cairo;
}
