/* Text into a place that may be too small: whole lines are kept, all are counted. */
#ifndef BP_CORE_LINES_H
#define BP_CORE_LINES_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

typedef struct bp_lines {
    char *text;
    size_t capacity, written;
    size_t needed; /* with the terminator */
    bool full;
} bp_lines;

/* `text` may be NULL when capacity is 0. */
static inline void bp_lines_init(bp_lines *lines, char *text, size_t capacity)
{
    *lines = (bp_lines){.text = text, .capacity = capacity, .needed = 1};
    if (capacity > 0)
        text[0] = '\0';
}

static inline void bp_lines_add(bp_lines *lines, const char *line)
{
    size_t bytes = strlen(line);
    lines->needed += bytes;
    lines->full = lines->full || lines->written + bytes + 1 > lines->capacity;
    if (lines->full)
        return;
    memcpy(lines->text + lines->written, line, bytes + 1);
    lines->written += bytes;
}

#endif
