/* The options of `view`. */
#ifndef TOOLS_VIEW_ARGUMENTS_H
#define TOOLS_VIEW_ARGUMENTS_H

#include <stdbool.h>
#include <stddef.h>

typedef struct view_options {
    char **files;
    size_t file_count;
    bool json;
    const char *html, *plot, *flame, *pool, *color; /* pool NULL: all, in pictures the one with the highest peak */
} view_options;

#endif
