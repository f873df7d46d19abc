/* Stands in for picture.c and picture_packing.c where cairo is missing. */
#include "picture.h"
#include "picture_packing.h"

static const char no_cairo[] =
    "this build has no cairo; install its development files and configure again to draw pictures";

const char *picture_draw(const picture_input *input, const char *path)
{
    (void)input;
    (void)path;
    return no_cairo;
}

const char *picture_draw_packing(const packing_picture *input, const char *path)
{
    (void)input;
    (void)path;
    return no_cairo;
}
