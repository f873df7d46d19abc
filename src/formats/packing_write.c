/* Packing instances as CSV, with offsets. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/fail.h"
#include "formats/file.h"
#include "formats/packing_file.h"

/* In quotes where it must be, quotes in it doubled. */
static void print_cell(FILE *out, const char *text)
{
    if (strpbrk(text, ",\"") == NULL) {
        fputs(text, out);
        return;
    }
    putc('"', out);
    for (; *text != '\0'; text++) {
        if (*text == '"')
            putc('"', out);
        putc(*text, out);
    }
    putc('"', out);
}

/* The columns of a row, of the header where `row` is NULL. */
static void print_row(FILE *out, const bp_packing_file *file, const bp_packing_row *row, uint64_t offset)
{
    for (size_t i = 0; i < file->column_count; i++) {
        bp_packing_column column = file->columns[i];
        if (i > 0)
            putc(',', out);
        if (row == NULL)
            fputs(bp_packing_column_names[column], out);
        else if (column == BP_COLUMN_OFFSET)
            fprintf(out, "%llu", (unsigned long long)offset);
        else
            print_cell(out, row->cells[column]);
    }
    if (!file->has_column[BP_COLUMN_OFFSET] && row == NULL)
        fprintf(out, ",%s", bp_packing_column_names[BP_COLUMN_OFFSET]);
    else if (!file->has_column[BP_COLUMN_OFFSET])
        fprintf(out, ",%llu", (unsigned long long)offset);
    putc('\n', out);
}

bp_status bp_packing_file_write(const bp_packing_file *file, const uint64_t *offsets, const char *path)
{
    if (file == NULL || offsets == NULL || path == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_packing_file_write: needs a file, offsets and a path");
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    if (out == NULL)
        return bp_fail_memory(BUFSIZ);
    print_row(out, file, NULL, 0);
    for (size_t i = 0; i < file->row_count; i++)
        print_row(out, file, &file->rows[i], offsets[i]);
    int failed = ferror(out);
    failed |= fclose(out);
    bp_status status = failed != 0 ? bp_fail_memory(bytes) : bp_file_write(path, text, bytes);
    free(text);
    return status;
}
