/* SPDX-License-Identifier: Apache-2.0 */
/* Tables of text cells on standard output. Failures are remembered and reported by sheet_finish, so callers need not
 * check each call. */
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
/* Titles separated by '|'; a '>' before a title aligns the column to the right. */
void sheet_add_columns(sheet *s, const char *titles);
void sheet_add_line(sheet *s);
/* Adds a line with these cells; NULL ends them. sheet_add_cell adds more. */
__attribute__((sentinel)) void sheet_add_row(sheet *s, ...);
void sheet_add_cell(sheet *s, const char *text);
/* Sets a cell of the newest line. The text is copied. */
void sheet_set_cell(sheet *s, size_t column, const char *text);
void sheet_color_line(sheet *s, const char *color);
/* Prints and frees the table. Returns EXIT_GO_ON, or the exit code after a message. */
int sheet_finish(sheet *s);

#endif
