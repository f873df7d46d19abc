/* Stands in for picture.c where cairo is missing. */
#include "picture.h"

const char *picture_draw(const picture_input *input, const char *path)
{
    (void)input;
    (void)path;
    return "this build has no cairo; install its development files and configure again to draw pictures";
}
