/* Packing instances as CSV, with offsets. */
#include <string.h>

#include "core/fail.h"
#include "formats/packing_rows.h"
#include "formats/written.h"

/* In quotes where it must be, quotes in it doubled. */
static void print_cell(bp_written *out, const char *text)
{
    if (strpbrk(text, ",\"") == NULL) {
        bp_written_add_string(out, text);
        return;
    }
    bp_written_add(out, "\"", 1);
    for (; *text != '\0'; text++) {
        if (*text == '"')
            bp_written_add(out, "\"", 1);
        bp_written_add(out, text, 1);
    }
    bp_written_add(out, "\"", 1);
}

/* The columns of a row, of the header where `row` is NULL. */
static void print_row(bp_written *out, const bp_packing_file *file, const bp_packing_row *row, uint64_t offset)
{
    for (size_t i = 0; i < file->column_count; i++) {
        bp_packing_column column = file->columns[i];
        if (i > 0)
            bp_written_add(out, ",", 1);
        if (row == NULL)
            bp_written_add_string(out, bp_packing_column_names[column]);
        else if (column == BP_COLUMN_OFFSET)
            bp_written_add_number(out, "%llu", (unsigned long long)offset);
        else
            print_cell(out, row->cells[column]);
    }
    if (!file->has_column[BP_COLUMN_OFFSET] && row == NULL)
        bp_written_add_number(out, ",%s", bp_packing_column_names[BP_COLUMN_OFFSET]);
    else if (!file->has_column[BP_COLUMN_OFFSET])
        bp_written_add_number(out, ",%llu", (unsigned long long)offset);
    bp_written_add(out, "\n", 1);
}

bp_status bp_packing_file_write(const bp_packing_file *file, const uint64_t *offsets, const char *path)
{
    if (file == NULL || offsets == NULL || path == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_packing_file_write: needs a file, offsets and a path");
    bp_written out = {0};
    print_row(&out, file, NULL, 0);
    for (size_t i = 0; i < file->row_count; i++)
        print_row(&out, file, &file->rows[i], offsets[i]);
    return bp_written_finish(&out, path);
}
