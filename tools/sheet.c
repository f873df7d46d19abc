#include "sheet.h"

#include "cli.h"

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

void sheet_add_line(sheet *s)
{
    s->line = s->failed ? NULL : scols_table_new_line(s->table, NULL);
    s->failed = s->failed || s->line == NULL;
}

void sheet_set_cell(sheet *s, size_t column, const char *text)
{
    s->failed = s->failed || scols_line_set_data(s->line, column, text) != 0;
}

void sheet_color_line(sheet *s, const char *color)
{
    if (s->color && !s->failed)
        s->failed = scols_line_set_color(s->line, color) != 0;
}

int sheet_finish(sheet *s)
{
    s->failed = s->failed || scols_print_table(s->table) != 0;
    scols_unref_table(s->table);
    return s->failed ? cli_fail(EXIT_ENVIRONMENT, "the table could not be printed") : EXIT_GO_ON;
}
