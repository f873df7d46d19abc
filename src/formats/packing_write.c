/* Packing instances as CSV, with offsets. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/fail.h"
#include "files/files.h"
#include "formats/packing_rows.h"

static void print_string(bp_output *out, const char *string)
{
    bp_output_add(out, string, strlen(string));
}

static void print_number(bp_output *out, uint64_t number)
{
    char text[24];
    snprintf(text, sizeof text, "%" PRIu64, number);
    print_string(out, text);
}

/* In quotes where it must be, quotes in it doubled. */
static void print_cell(bp_output *out, const char *text)
{
    if (strpbrk(text, ",\"") == NULL) {
        print_string(out, text);
        return;
    }
    bp_output_byte(out, '"');
    for (; *text != '\0'; text++) {
        if (*text == '"')
            bp_output_byte(out, '"');
        bp_output_byte(out, (uint8_t)*text);
    }
    bp_output_byte(out, '"');
}

/* The columns of a row, of the header where `row` is NULL. */
static void print_row(bp_output *out, const bp_packing_file *file, const bp_packing_row *row, uint64_t offset)
{
    for (size_t i = 0; i < file->column_count; i++) {
        bp_packing_column column = file->columns[i];
        if (i > 0)
            bp_output_byte(out, ',');
        if (row == NULL)
            print_string(out, bp_packing_column_names[column]);
        else if (column == BP_COLUMN_OFFSET)
            print_number(out, offset);
        else
            print_cell(out, row->cells[column]);
    }
    if (!file->has_column[BP_COLUMN_OFFSET]) {
        bp_output_byte(out, ',');
        if (row == NULL)
            print_string(out, bp_packing_column_names[BP_COLUMN_OFFSET]);
        else
            print_number(out, offset);
    }
    bp_output_byte(out, '\n');
}

bp_status bp_packing_file_write(const bp_packing_file *file, const uint64_t *offsets, const char *path)
{
    if (file == NULL || offsets == NULL || path == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_packing_file_write: needs a file, offsets and a path");
    bp_output out;
    BP_TRY(bp_output_open(&out, path));
    print_row(&out, file, NULL, 0);
    for (size_t i = 0; i < file->row_count; i++)
        print_row(&out, file, &file->rows[i], offsets[i]);
    bp_status status = bp_output_commit(&out);
    bp_output_finish(&out);
    return status;
}
