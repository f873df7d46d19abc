/* SPDX-License-Identifier: Apache-2.0 */
/* Tables of text cells, printed by libsmartcols. */
#include "shared/sheet.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/print.h"
#include "shared/cli.h"

sheet sheet_new(bool color)
{
    sheet s = {.table = scols_new_table(), .color = color};
    s.failed = s.table == NULL || scols_table_enable_colors(s.table, color) != 0;
    return s;
}

void sheet_add_column(sheet *s, const char *title, bool right)
{
    struct libscols_column *column =
        s->failed ? NULL : scols_table_new_column(s->table, title, 0, right ? SCOLS_FL_RIGHT : 0);
    s->failed = s->failed || column == NULL;
    if (!s->failed && s->color)
        s->failed = scols_cell_set_color(scols_column_get_header(column), "bold") != 0;
}

void sheet_add_columns(sheet *s, const char *titles)
{
    char text[256], *rest = text, *title;
    snprintf(text, sizeof text, "%s", titles);
    while ((title = strsep(&rest, "|")) != NULL)
        sheet_add_column(s, title + (*title == '>'), *title == '>');
}

void sheet_add_line(sheet *s)
{
    s->next = 0;
    s->line = s->failed ? NULL : scols_table_new_line(s->table, NULL);
    s->failed = s->failed || s->line == NULL;
}

void sheet_set_cell(sheet *s, size_t column, const char *text)
{
    char shown[512], *longer = NULL;
    size_t bytes = bp_print(shown, sizeof shown, "%s", text);
    if (bytes >= sizeof shown && (longer = malloc(bytes + 1)) != NULL)
        bp_print(longer, bytes + 1, "%s", text);
    s->failed = s->failed || scols_line_set_data(s->line, column, longer != NULL ? longer : shown) != 0;
    free(longer);
}

void sheet_add_cell(sheet *s, const char *text)
{
    sheet_set_cell(s, s->next++, text);
}

void sheet_add_row(sheet *s, ...)
{
    va_list cells;
    sheet_add_line(s);
    va_start(cells, s);
    for (const char *text; (text = va_arg(cells, const char *)) != NULL;)
        sheet_add_cell(s, text);
    va_end(cells);
}

void sheet_color_line(sheet *s, const char *color)
{
    if (s->color && !s->failed)
        s->failed = scols_line_set_color(s->line, color) != 0;
}

/* Position after the cell's text; NULL where the text is missing. Cells with characters that the library escapes are
 * skipped. */
static const char *find_cell(const char *text, const struct libscols_cell *cell)
{
    const char *data = scols_cell_get_data(cell);
    for (const char *c = data; c != NULL && *c != '\0'; c++) {
        if (*c < ' ' || *c > '~' || *c == '\\')
            return text;
    }
    const char *found = data != NULL ? strstr(text, data) : text;
    return found != NULL && data != NULL ? found + strlen(data) : found;
}

/* When memory runs out, the library silently omits cells. */
static bool has_all_cells(const sheet *s, const char *text)
{
    size_t columns = scols_table_get_ncols(s->table), lines = scols_table_get_nlines(s->table);
    for (size_t i = 0; i < columns && lines > 0 && text != NULL; i++)
        text = find_cell(text, scols_column_get_header(scols_table_get_column(s->table, i)));
    for (size_t line = 0; line < lines; line++) {
        for (size_t i = 0; i < columns && text != NULL; i++)
            text = find_cell(text, scols_line_get_cell(scols_table_get_line(s->table, line), i));
    }
    return text != NULL;
}

int sheet_finish(sheet *s)
{
    char *text = NULL;
    s->failed = s->failed || scols_print_table_to_string(s->table, &text) != 0 || !has_all_cells(s, text);
    scols_unref_table(s->table);
    if (!s->failed && *text != '\0')
        puts(text);
    free(text);
    return s->failed ? cli_fail(EXIT_ENVIRONMENT, "out of memory for a table") : EXIT_GO_ON;
}
