/* A table of text cells on standard output. It remembers whether anything failed, so that callers add lines without asking each time. */
#ifndef TOOLS_SHARED_SHEET_H
#define TOOLS_SHARED_SHEET_H

#include <libsmartcols.h>
#include <stdbool.h>
#include <stddef.h>

typedef struct sheet {
    struct libscols_table *table;
    struct libscols_line *line;
    size_t next; /* cell of the newest line */
    bool color, failed;
} sheet;

sheet sheet_new(bool color);
void sheet_add_column(sheet *s, const char *title, bool right);
/* Titles with bars between them; a column whose title has > before it is set to the right. */
void sheet_add_columns(sheet *s, const char *titles);
void sheet_add_line(sheet *s);
/* A line of these cells, the last one followed by NULL; sheet_add_cell adds to it. */
__attribute__((sentinel)) void sheet_add_row(sheet *s, ...);
void sheet_add_cell(sheet *s, const char *text);
/* Of the newest line. The text is copied. */
void sheet_set_cell(sheet *s, size_t column, const char *text);
void sheet_color_line(sheet *s, const char *color);
/* Prints and frees it. Returns EXIT_GO_ON, or the exit code after a message. */
int sheet_finish(sheet *s);

#endif
