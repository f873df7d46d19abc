/* Packing instances from CSV. docs/formats.md describes every column. */
#include <stdlib.h>
#include <string.h>

#include "core/arith.h"
#include "core/fail.h"
#include "formats/detail.h"
#include "formats/file.h"
#include "formats/packing_rows.h"

#define EXPECTED_COLUMNS "id, lower, upper, size and optionally gaps and offset"

const char *const bp_packing_column_names[BP_COLUMN_COUNT] = {"id", "lower", "upper", "size", "gaps", "offset"};

typedef struct packing_reader {
    bp_csv csv;
    bp_packing_file *file;
    uint64_t size_sum;
} packing_reader;

/* ---- the header ------------------------------------------------------------------------------------------------------- */

static bp_status read_column(packing_reader *r, const bp_csv_field *field)
{
    bp_packing_file *file = r->file;
    int column = 0;
    while (column < BP_COLUMN_COUNT && strcmp(field->text, bp_packing_column_names[column]) != 0)
        column++;
    if (column == BP_COLUMN_COUNT)
        return bp_csv_fail(&r->csv, field->place, "unknown column \"%.40s\"; expected " EXPECTED_COLUMNS, field->text);
    if (file->has_column[column])
        return bp_csv_fail(&r->csv, field->place, "column \"%s\" a second time", field->text);
    file->has_column[column] = true;
    file->columns[file->column_count++] = (bp_packing_column)column;
    return BP_OK;
}

static bp_status read_header(packing_reader *r)
{
    bp_csv_place begin = r->csv.place;
    bp_csv_field field = {0};
    if (bp_csv_is_at_end(&r->csv))
        return bp_csv_fail(&r->csv, begin, "empty; expected a line with the columns " EXPECTED_COLUMNS);
    while (!field.is_last) {
        BP_TRY(bp_csv_next(&r->csv, &field));
        BP_TRY(read_column(r, &field));
    }
    for (int column = 0; column <= BP_COLUMN_SIZE; column++) {
        if (!r->file->has_column[column])
            return bp_csv_fail(&r->csv, begin, "no column \"%s\"; expected " EXPECTED_COLUMNS,
                               bp_packing_column_names[column]);
    }
    return BP_OK;
}

/* ---- rows ------------------------------------------------------------------------------------------------------------- */

static bp_status reserve_row(bp_packing_file *file)
{
    if (file->row_count < file->row_capacity)
        return BP_OK;
    size_t wanted = file->row_capacity > 0 ? 2 * file->row_capacity : 64;
    bp_packing_row *rows = realloc(file->rows, wanted * sizeof *rows);
    if (rows == NULL)
        return bp_fail_memory(wanted * sizeof *rows);
    file->rows = rows;
    uint64_t *offsets = realloc(file->offsets, wanted * sizeof *offsets);
    if (offsets == NULL)
        return bp_fail_memory(wanted * sizeof *offsets);
    file->offsets = offsets;
    file->row_capacity = wanted;
    return BP_OK;
}

/* Reads the fields of a row, by column. */
static bp_status packing_read_fields(packing_reader *r, bp_csv_field fields[BP_COLUMN_COUNT])
{
    const bp_packing_file *file = r->file;
    bp_csv_field field = {0};
    for (size_t i = 0; !field.is_last; i++) {
        BP_TRY(bp_csv_next(&r->csv, &field));
        if (i == 0 && field.is_last && *field.text == '\0')
            return bp_csv_fail(&r->csv, field.place, "an empty line; expected an item with %zu fields",
                               file->column_count);
        if (i == file->column_count)
            return bp_csv_fail(&r->csv, field.place, "a field more than the %zu columns", file->column_count);
        if (field.is_last && i + 1 < file->column_count)
            return bp_csv_fail(&r->csv, field.place, "the row ends with field %zu of %zu, \"%s\"", i + 1,
                               file->column_count, bp_packing_column_names[file->columns[i]]);
        fields[file->columns[i]] = field;
    }
    return BP_OK;
}

static bp_status packing_read_number(const packing_reader *r, const bp_csv_field *fields, bp_packing_column column,
                                     uint64_t *number)
{
    const char *text = fields[column].text;
    if (!bp_take_number(&text, number) || *text != '\0')
        return bp_csv_fail(&r->csv, fields[column].place, "%s \"%.40s\"; expected a whole number from 0 to %llu",
                           bp_packing_column_names[column], fields[column].text, (unsigned long long)UINT64_MAX);
    return BP_OK;
}

static bp_status check_id(const packing_reader *r, const bp_csv_field *id)
{
    if (*id->text == '\0')
        return bp_csv_fail(&r->csv, id->place, "an empty id; expected a name that no other item has");
    if (!bp_is_name(id->text))
        return bp_csv_fail(&r->csv, id->place, "id \"%.*s\" is not UTF-8 without control characters", BP_QUOTED,
                           id->text);
    return BP_OK;
}

static bp_status packing_read_offset(const packing_reader *r, const bp_csv_field *fields, uint64_t size,
                                     uint64_t *offset)
{
    const bp_csv_field *field = &fields[BP_COLUMN_OFFSET];
    uint64_t end;
    if (*field->text == '\0')
        return bp_csv_fail(&r->csv, field->place,
                           "item \"%.*s\" has no offset; give every item one, or leave the column out", BP_QUOTED,
                           fields[BP_COLUMN_ID].text);
    BP_TRY(packing_read_number(r, fields, BP_COLUMN_OFFSET, offset));
    if (!bp_add_u64(*offset, size, &end))
        return bp_csv_fail(&r->csv, field->place, "offset %llu: an item of size %llu ends there behind %llu",
                           (unsigned long long)*offset, (unsigned long long)size, (unsigned long long)UINT64_MAX);
    return BP_OK;
}

static bp_status packing_read_add_item(packing_reader *r, const bp_csv_field *fields)
{
    bp_packing_file *file = r->file;
    const bp_csv_field *gaps = file->has_column[BP_COLUMN_GAPS] ? &fields[BP_COLUMN_GAPS] : NULL;
    uint64_t lower, upper, size;
    BP_TRY(check_id(r, &fields[BP_COLUMN_ID]));
    BP_TRY(packing_read_number(r, fields, BP_COLUMN_LOWER, &lower));
    BP_TRY(packing_read_number(r, fields, BP_COLUMN_UPPER, &upper));
    BP_TRY(packing_read_number(r, fields, BP_COLUMN_SIZE, &size));
    if (upper <= lower)
        return bp_csv_fail(&r->csv, fields[BP_COLUMN_UPPER].place,
                           "upper %llu is not above lower %llu; an item is live from lower until before upper",
                           (unsigned long long)upper, (unsigned long long)lower);
    if (!bp_add_u64(r->size_sum, size, &r->size_sum))
        return bp_csv_fail(&r->csv, fields[BP_COLUMN_SIZE].place,
                           "size %llu: the sizes so far add up to more than %llu, the most of 64 bits",
                           (unsigned long long)size, (unsigned long long)UINT64_MAX);
    if (file->has_column[BP_COLUMN_OFFSET])
        BP_TRY(packing_read_offset(r, fields, size, &file->offsets[file->row_count]));
    BP_TRY(bp_fail_at(r->csv.origin, bp_packing_add_item(file->packing, size, NULL)));
    return bp_packing_add_life(file->packing, file->row_count, lower, upper, &r->csv, gaps);
}

static bp_status read_row(packing_reader *r)
{
    bp_packing_file *file = r->file;
    bp_csv_field fields[BP_COLUMN_COUNT] = {0};
    BP_TRY(packing_read_fields(r, fields));
    BP_TRY(reserve_row(file));
    BP_TRY(packing_read_add_item(r, fields));
    bp_packing_row *row = &file->rows[file->row_count++];
    for (size_t column = 0; column < BP_COLUMN_COUNT; column++)
        row->cells[column] = fields[column].text;
    row->id_at = fields[BP_COLUMN_ID].place.column;
    return BP_OK;
}

/* ---- the whole file --------------------------------------------------------------------------------------------------- */

static int by_id(const void *left, const void *right)
{
    const bp_packing_row *a = *(const bp_packing_row *const *)left, *b = *(const bp_packing_row *const *)right;
    int order = strcmp(a->cells[BP_COLUMN_ID], b->cells[BP_COLUMN_ID]);
    return order != 0 ? order : (a > b) - (a < b);
}

/* The first row with the id of an earlier one, NULL: there is none. */
static const bp_packing_row *find_repeated(const bp_packing_row **sorted, size_t count, const bp_packing_row **earlier)
{
    const bp_packing_row *found = NULL;
    for (size_t i = 1; i < count; i++) {
        bool is_repeated = strcmp(sorted[i]->cells[BP_COLUMN_ID], sorted[i - 1]->cells[BP_COLUMN_ID]) == 0;
        if (is_repeated && (found == NULL || sorted[i] < found)) {
            found = sorted[i];
            *earlier = sorted[i - 1];
        }
    }
    return found;
}

static bp_status check_ids_differ(const packing_reader *r)
{
    const bp_packing_file *file = r->file;
    const bp_packing_row **sorted = calloc(file->row_count, sizeof *sorted), *earlier = NULL;
    if (sorted == NULL)
        return bp_fail_memory(file->row_count * sizeof *sorted);
    for (size_t i = 0; i < file->row_count; i++)
        sorted[i] = &file->rows[i];
    qsort(sorted, file->row_count, sizeof *sorted, by_id);
    const bp_packing_row *repeated = find_repeated(sorted, file->row_count, &earlier);
    free(sorted);
    if (repeated == NULL)
        return BP_OK;
    bp_csv_place place = {(size_t)(repeated - file->rows) + 2, repeated->id_at};
    return bp_csv_fail(&r->csv, place, "id \"%.*s\" a second time, line %zu has it", BP_QUOTED,
                       repeated->cells[BP_COLUMN_ID], (size_t)(earlier - file->rows) + 2);
}

static bp_status packing_read_file(packing_reader *r)
{
    BP_TRY(bp_packing_create(&r->file->packing));
    BP_TRY(read_header(r));
    if (bp_csv_is_at_end(&r->csv))
        return bp_csv_fail(&r->csv, r->csv.place, "no rows; expected an item behind the header");
    while (!bp_csv_is_at_end(&r->csv))
        BP_TRY(read_row(r));
    return check_ids_differ(r);
}

bp_status bp_packing_file_parse(const char *text, size_t bytes, const char *origin, bp_packing_file **file)
{
    if (text == NULL || origin == NULL || file == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_packing_file_parse: text, origin and file must not be NULL");
    packing_reader reader = {.file = calloc(1, sizeof *reader.file)};
    if (reader.file == NULL)
        return bp_fail_memory(sizeof *reader.file);
    reader.file->text = malloc(bytes + 1);
    bp_csv_init(&reader.csv, text, bytes, origin, reader.file->text);
    bp_status status = reader.file->text != NULL ? packing_read_file(&reader) : bp_fail_memory(bytes + 1);
    if (status == BP_OK)
        *file = reader.file;
    else
        bp_packing_file_destroy(&reader.file);
    return status;
}

bp_status bp_packing_file_read(const char *path, bp_packing_file **file)
{
    if (path == NULL || file == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_packing_file_read: needs a path and a place for the file");
    char *text;
    size_t bytes;
    BP_TRY(bp_file_read(path, BP_LARGEST_CSV_BYTES, &text, &bytes));
    bp_status status = bp_packing_file_parse(text, bytes, path, file);
    free(text);
    return status;
}

void bp_packing_file_destroy(bp_packing_file **file)
{
    if (file == NULL || *file == NULL)
        return;
    bp_packing_destroy(&(*file)->packing);
    free((*file)->rows);
    free((*file)->offsets);
    free((*file)->text);
    free(*file);
    *file = NULL;
}

const bp_packing *bp_packing_file_packing(const bp_packing_file *file)
{
    return file != NULL ? file->packing : NULL;
}

const char *bp_packing_file_id(const bp_packing_file *file, size_t item)
{
    return file != NULL && item < file->row_count ? file->rows[item].cells[BP_COLUMN_ID] : NULL;
}

const uint64_t *bp_packing_file_offsets(const bp_packing_file *file)
{
    return file != NULL && file->has_column[BP_COLUMN_OFFSET] ? file->offsets : NULL;
}
