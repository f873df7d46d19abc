/* SPDX-License-Identifier: Apache-2.0 */
/* Packing instances as CSV. docs/reference/formats.md describes every column. */
#include <bucketpool/core/arith.h>
#include <bucketpool/core/fail.h>

#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/files.h"
#include "formats/file.h"
#include "formats/packing_file.h"

typedef struct csv_place {
    size_t line, column; /* from 1; columns count characters */
} csv_place;

typedef struct csv_field {
    const char *text; /* without its quotes, NUL-terminated */
    csv_place place;
    bool is_last; /* in its row */
} csv_field;

typedef struct csv_text {
    const char *origin;
    const char *at, *end;
    csv_place place; /* position of `at` */
    char *room;      /* buffer for the next field's text */
} csv_text;

typedef enum bp_packing_column {
    BP_COLUMN_ID,
    BP_COLUMN_LOWER,
    BP_COLUMN_UPPER,
    BP_COLUMN_SIZE,
    BP_COLUMN_GAPS,
    BP_COLUMN_OFFSET,
    BP_COLUMN_COUNT
} bp_packing_column;

static const char *const column_names[BP_COLUMN_COUNT] = {"id", "lower", "upper", "size", "gaps", "offset"};

typedef struct bp_packing_row {
    const char *cells[BP_COLUMN_COUNT]; /* the fields of the row, unparsed; NULL: no such column */
    size_t id_at;                       /* offset of the id in its line */
} bp_packing_row;

struct bp_packing_file {
    bp_packing *packing;
    bp_packing_column columns[BP_COLUMN_COUNT]; /* in the file's order */
    size_t column_count;
    bool has_column[BP_COLUMN_COUNT];
    bp_packing_row *rows; /* row i is at line i + 2 */
    uint64_t *offsets;    /* by row */
    size_t row_count, row_capacity;
    char *text; /* storage of the cells */
};

/* ---- CSV --------------------------------------------------------------------------------------------------------- */

__attribute__((format(printf, 3, 4))) static void csv_record(const csv_text *csv, csv_place place, const char *format,
                                                             ...)
{
    char what[BP_DETAIL_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    (void)bp_fail(BP_ERR_FORMAT, "%.300s:%zu:%zu: %s", csv->origin, place.line, place.column, what);
}

/* BP_ERR_FORMAT with "<origin>:<line>:<column>: <what>". A macro, as bp_fail is, so that static analysis sees the
 * constant status. */
#define csv_fail(csv, place, ...) (csv_record((csv), (place), __VA_ARGS__), BP_ERR_FORMAT)

/* True at the end of the text. Valid between rows only. */
static bool csv_is_at_end(const csv_text *csv)
{
    return csv->at == csv->end;
}

/* Bytes of the line end at this place; 0: there is none. */
static size_t line_end_bytes(const csv_text *csv)
{
    size_t left = (size_t)(csv->end - csv->at);
    if (left > 0 && csv->at[0] == '\n')
        return 1;
    return left > 1 && csv->at[0] == '\r' && csv->at[1] == '\n' ? 2 : 0;
}

static bool is_field_end(const csv_text *csv)
{
    return csv->at == csv->end || *csv->at == ',' || line_end_bytes(csv) > 0;
}

/* Appends the byte at this place to the field. */
static bp_status take_byte(csv_text *csv)
{
    unsigned char byte = (unsigned char)*csv->at;
    if (byte < 0x20 || byte == 0x7F)
        return csv_fail(csv, csv->place, "control byte 0x%02x; expected text, with commas between fields", byte);
    *csv->room++ = (char)byte;
    csv->at++;
    csv->place.column += (byte & 0xC0) != 0x80;
    return BP_OK;
}

static void pass_byte(csv_text *csv)
{
    csv->at++;
    csv->place.column++;
}

static bp_status csv_next(csv_text *csv, csv_field *field)
{
    csv_place begin = csv->place;
    bool is_quoted = !csv_is_at_end(csv) && *csv->at == '"', is_open = is_quoted;
    if (is_quoted)
        pass_byte(csv);
    csv_field read = {.text = csv->room, .place = csv->place};
    while (is_open || !is_field_end(csv)) {
        if (csv_is_at_end(csv) || line_end_bytes(csv) > 0)
            return csv_fail(csv, begin, "a quote is not closed on its line");
        if (*csv->at == '"' && !is_quoted)
            return csv_fail(csv, csv->place,
                            "a quote inside a field without quotes; put the field in quotes and double those in it");
        if (*csv->at == '"') {
            pass_byte(csv);
            is_open = !csv_is_at_end(csv) && *csv->at == '"';
            if (!is_open)
                break;
        }
        BP_TRY(take_byte(csv));
    }
    if (!is_field_end(csv))
        return csv_fail(csv, csv->place, "expected a comma or the end of the line after the closing quote");
    *csv->room++ = '\0';
    size_t line_end = line_end_bytes(csv);
    read.is_last = csv_is_at_end(csv) || line_end > 0;
    if (line_end > 0) {
        csv->at += line_end;
        csv->place = (csv_place){csv->place.line + 1, 1};
    } else if (!read.is_last) {
        pass_byte(csv); /* the comma */
    }
    *field = read;
    return BP_OK;
}

/* ---- gaps -------------------------------------------------------------------------------------------------------- */

/* "4-6" is [4, 6). */
typedef struct gap {
    uint64_t begin, end;
    size_t at; /* offset in the field */
} gap;

/* Parses the digits at `*text` and moves behind them. False: no digits, or more than 64 bits. */
static bool take_number(const char **text, uint64_t *number)
{
    const char *at = *text;
    uint64_t value = 0;
    for (; *at >= '0' && *at <= '9'; at++) {
        if (!bp_mul_u64(value, 10, &value) || !bp_add_u64(value, (uint64_t)(*at - '0'), &value))
            return false;
    }
    if (at == *text)
        return false;
    *text = at;
    *number = value;
    return true;
}

static int packing_gaps_by_begin(const void *left, const void *right)
{
    const gap *a = left, *b = right;
    if (a->begin != b->begin)
        return a->begin < b->begin ? -1 : 1;
    return (a->at > b->at) - (a->at < b->at);
}

static csv_place place_in(const csv_field *field, size_t at)
{
    return (csv_place){field->place.line, field->place.column + at}; /* only ASCII precedes it, so bytes are columns */
}

/* Reads the gaps of the field, sorted by time, into an array with room for all of them. */
static bp_status read_gaps(const csv_text *csv, const csv_field *field, uint64_t begin, uint64_t end, gap *gaps,
                           size_t *count)
{
    const char *text = field->text;
    *count = 0;
    while (*(text += strspn(text, " ")) != '\0') {
        gap *g = &gaps[*count];
        const char *at = text;
        size_t length = strcspn(text, " ");
        csv_place place = place_in(field, g->at = (size_t)(text - field->text));
        bool is_range = take_number(&at, &g->begin) && *at++ == '-' && take_number(&at, &g->end);
        if (!is_range || at != text + length)
            return csv_fail(csv, place, "gap \"%.*s\"; expected ranges of 64-bit integers, as in \"4-6 9-12\"",
                            (int)(length < 40 ? length : 40), text);
        unsigned long long first = g->begin, last = g->end;
        if (last <= first)
            return csv_fail(csv, place, "gap %llu-%llu %s; expected an end after its beginning", first, last,
                            last < first ? "ends before it begins" : "is empty");
        if (first < begin || last > end)
            return csv_fail(csv, place, "gap %llu-%llu is not inside the interval %llu-%llu", first, last,
                            (unsigned long long)begin, (unsigned long long)end);
        text = at;
        ++*count;
    }
    qsort(gaps, *count, sizeof *gaps, packing_gaps_by_begin);
    for (size_t i = 1; i < *count; i++) {
        const gap *g = &gaps[i], *before = &gaps[i - 1];
        if (g->begin >= before->end)
            continue;
        const gap *later = g->at > before->at ? g : before, *earlier = g->at > before->at ? before : g;
        return csv_fail(csv, place_in(field, later->at), "gap %llu-%llu overlaps gap %llu-%llu",
                        (unsigned long long)later->begin, (unsigned long long)later->end,
                        (unsigned long long)earlier->begin, (unsigned long long)earlier->end);
    }
    return BP_OK;
}

/* Adds the live ranges of item `item`: [begin, end) without the gaps in `field` (NULL: none). */
static bp_status packing_add_life(bp_packing *packing, size_t item, uint64_t begin, uint64_t end, const csv_text *csv,
                                  const csv_field *field)
{
    if (field == NULL)
        return bp_packing_add_interval(packing, item, begin, end);
    size_t max = strlen(field->text) / 4 + 1, count; /* the shortest gap takes 4 bytes: "1-2 3-4" */
    gap *gaps = calloc(max, sizeof *gaps);
    if (gaps == NULL)
        return bp_fail_memory(max * sizeof *gaps);
    bp_status status = read_gaps(csv, field, begin, end, gaps, &count);
    uint64_t left = end - begin, from = begin;
    for (size_t i = 0; status == BP_OK && i < count; i++)
        left -= gaps[i].end - gaps[i].begin;
    if (status == BP_OK && left == 0)
        status = csv_fail(csv, field->place, "the gaps leave nothing of the interval %llu-%llu",
                          (unsigned long long)begin, (unsigned long long)end);
    for (size_t i = 0; status == BP_OK && i < count; i++) {
        if (gaps[i].begin > from)
            status = bp_packing_add_interval(packing, item, from, gaps[i].begin);
        from = gaps[i].end;
    }
    if (status == BP_OK && from < end)
        status = bp_packing_add_interval(packing, item, from, end);
    free(gaps);
    return status;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

#define EXPECTED_COLUMNS "id, lower, upper, size and optionally gaps and offset"

typedef struct table_reader {
    csv_text csv;
    bp_packing_file *file;
    uint64_t size_sum;
} table_reader;

static bp_status read_header(table_reader *r)
{
    bp_packing_file *file = r->file;
    csv_place begin = r->csv.place;
    csv_field field = {0};
    if (csv_is_at_end(&r->csv))
        return csv_fail(&r->csv, begin, "empty; expected a line with the columns " EXPECTED_COLUMNS);
    while (!field.is_last) {
        BP_TRY(csv_next(&r->csv, &field));
        int column = 0;
        while (column < BP_COLUMN_COUNT && strcmp(field.text, column_names[column]) != 0)
            column++;
        if (column == BP_COLUMN_COUNT)
            return csv_fail(&r->csv, field.place, "unknown column \"%.40s\"; expected " EXPECTED_COLUMNS, field.text);
        if (file->has_column[column])
            return csv_fail(&r->csv, field.place, "duplicate column \"%s\"", field.text);
        file->has_column[column] = true;
        file->columns[file->column_count++] = (bp_packing_column)column;
    }
    for (int column = 0; column <= BP_COLUMN_SIZE; column++) {
        if (!file->has_column[column])
            return csv_fail(&r->csv, begin, "no column \"%s\"; expected " EXPECTED_COLUMNS, column_names[column]);
    }
    return BP_OK;
}

/* Reads the fields of a row into an array by column. */
static bp_status packing_read_fields(table_reader *r, csv_field fields[BP_COLUMN_COUNT])
{
    const bp_packing_file *file = r->file;
    csv_field field = {0};
    for (size_t i = 0; !field.is_last; i++) {
        BP_TRY(csv_next(&r->csv, &field));
        if (i == 0 && field.is_last && *field.text == '\0')
            return csv_fail(&r->csv, field.place, "an empty line; expected an item with %zu fields",
                            file->column_count);
        if (i == file->column_count)
            return csv_fail(&r->csv, field.place, "more fields than the %zu columns", file->column_count);
        if (field.is_last && i + 1 < file->column_count)
            return csv_fail(&r->csv, field.place, "the row ends at field %zu of %zu, \"%s\"", i + 1, file->column_count,
                            column_names[file->columns[i]]);
        fields[file->columns[i]] = field;
    }
    return BP_OK;
}

static bp_status packing_read_number(const table_reader *r, const csv_field *fields, bp_packing_column column,
                                     uint64_t *number)
{
    const char *text = fields[column].text;
    if (!take_number(&text, number) || *text != '\0')
        return csv_fail(&r->csv, fields[column].place, "%s \"%.40s\"; expected a whole number from 0 to %llu",
                        column_names[column], fields[column].text, (unsigned long long)UINT64_MAX);
    return BP_OK;
}

static bp_status packing_read_add_item(table_reader *r, const csv_field *fields)
{
    bp_packing_file *file = r->file;
    const csv_field *id = &fields[BP_COLUMN_ID], *offset = &fields[BP_COLUMN_OFFSET];
    const csv_field *gaps = file->has_column[BP_COLUMN_GAPS] ? &fields[BP_COLUMN_GAPS] : NULL;
    uint64_t lower = 0, upper = 0, size = 0, end;
    if (*id->text == '\0')
        return csv_fail(&r->csv, id->place, "an empty id; expected a unique name");
    if (!bp_is_name(id->text))
        return csv_fail(&r->csv, id->place, "id \"%.*s\" is not UTF-8 without control characters", BP_QUOTED, id->text);
    BP_TRY(packing_read_number(r, fields, BP_COLUMN_LOWER, &lower));
    BP_TRY(packing_read_number(r, fields, BP_COLUMN_UPPER, &upper));
    BP_TRY(packing_read_number(r, fields, BP_COLUMN_SIZE, &size));
    if (upper <= lower)
        return csv_fail(&r->csv, fields[BP_COLUMN_UPPER].place,
                        "upper %llu is not above lower %llu; an item is live in [lower, upper)",
                        (unsigned long long)upper, (unsigned long long)lower);
    if (!bp_add_u64(r->size_sum, size, &r->size_sum))
        return csv_fail(&r->csv, fields[BP_COLUMN_SIZE].place, "size %llu: the sum of the sizes exceeds %llu (64 bits)",
                        (unsigned long long)size, (unsigned long long)UINT64_MAX);
    if (file->has_column[BP_COLUMN_OFFSET]) {
        uint64_t *number = &file->offsets[file->row_count];
        if (*offset->text == '\0')
            return csv_fail(&r->csv, offset->place,
                            "item \"%.*s\" has no offset; give every item one, or leave the column out", BP_QUOTED,
                            id->text);
        BP_TRY(packing_read_number(r, fields, BP_COLUMN_OFFSET, number));
        if (!bp_add_u64(*number, size, &end))
            return csv_fail(&r->csv, offset->place, "offset %llu: an item of size %llu would end after %llu",
                            (unsigned long long)*number, (unsigned long long)size, (unsigned long long)UINT64_MAX);
    }
    BP_TRY(bp_fail_at(r->csv.origin, bp_packing_add_item(file->packing, size, NULL)));
    return packing_add_life(file->packing, file->row_count, lower, upper, &r->csv, gaps);
}

static bp_status read_row(table_reader *r)
{
    bp_packing_file *file = r->file;
    csv_field fields[BP_COLUMN_COUNT] = {0};
    BP_TRY(packing_read_fields(r, fields));
    if (file->row_count == file->row_capacity) {
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
    }
    BP_TRY(packing_read_add_item(r, fields));
    bp_packing_row *row = &file->rows[file->row_count++];
    for (size_t column = 0; column < BP_COLUMN_COUNT; column++)
        row->cells[column] = fields[column].text;
    row->id_at = fields[BP_COLUMN_ID].place.column;
    return BP_OK;
}

static int by_id(const void *left, const void *right)
{
    const bp_packing_row *a = *(const bp_packing_row *const *)left, *b = *(const bp_packing_row *const *)right;
    int order = strcmp(a->cells[BP_COLUMN_ID], b->cells[BP_COLUMN_ID]);
    return order != 0 ? order : (a > b) - (a < b);
}

/* Refuses the first row that repeats an id. */
static bp_status check_ids_differ(const table_reader *r)
{
    const bp_packing_file *file = r->file;
    const bp_packing_row **sorted = calloc(file->row_count, sizeof *sorted), *repeated = NULL, *earlier = NULL;
    if (sorted == NULL)
        return bp_fail_memory(file->row_count * sizeof *sorted);
    for (size_t i = 0; i < file->row_count; i++)
        sorted[i] = &file->rows[i];
    qsort(sorted, file->row_count, sizeof *sorted, by_id);
    for (size_t i = 1; i < file->row_count; i++) {
        bool is_repeated = strcmp(sorted[i]->cells[BP_COLUMN_ID], sorted[i - 1]->cells[BP_COLUMN_ID]) == 0;
        if (is_repeated && (repeated == NULL || sorted[i] < repeated)) {
            repeated = sorted[i];
            earlier = sorted[i - 1];
        }
    }
    free(sorted);
    if (repeated == NULL)
        return BP_OK;
    csv_place place = {(size_t)(repeated - file->rows) + 2, repeated->id_at};
    return csv_fail(&r->csv, place, "duplicate id \"%.*s\", used on line %zu", BP_QUOTED, repeated->cells[BP_COLUMN_ID],
                    (size_t)(earlier - file->rows) + 2);
}

static bp_status packing_read_file(table_reader *r)
{
    BP_TRY(bp_packing_create(&r->file->packing));
    BP_TRY(read_header(r));
    if (csv_is_at_end(&r->csv))
        return csv_fail(&r->csv, r->csv.place, "no rows; expected an item after the header");
    while (!csv_is_at_end(&r->csv))
        BP_TRY(read_row(r));
    return check_ids_differ(r);
}

bp_status bp_packing_file_parse(const char *text, size_t bytes, const char *origin, bp_packing_file **file)
{
    if (text == NULL || origin == NULL || file == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_packing_file_parse: text, origin and file must not be NULL");
    static const char mark[] = "\xEF\xBB\xBF"; /* byte order mark of UTF-8, skipped */
    size_t passed = bytes >= sizeof mark - 1 && memcmp(text, mark, sizeof mark - 1) == 0 ? sizeof mark - 1 : 0;
    table_reader reader = {.file = calloc(1, sizeof *reader.file)};
    if (reader.file == NULL)
        return bp_fail_memory(sizeof *reader.file);
    reader.file->text = malloc(bytes + 1);
    reader.csv = (csv_text){origin, text + passed, text + bytes, {1, 1}, reader.file->text};
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
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_packing_file_read: path and file must not be NULL");
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

/* ---- writing ----------------------------------------------------------------------------------------------------- */

/* Writes a row, or the header if `row` is NULL; a new offset column comes last. */
static void print_row(bp_output *out, const bp_packing_file *file, const bp_packing_row *row, uint64_t offset)
{
    char number[24];
    snprintf(number, sizeof number, "%" PRIu64, offset);
    size_t count = file->column_count + !file->has_column[BP_COLUMN_OFFSET];
    for (size_t i = 0; i < count; i++) {
        bp_packing_column column = i < file->column_count ? file->columns[i] : BP_COLUMN_OFFSET;
        const char *cell = row == NULL                  ? column_names[column]
                           : column == BP_COLUMN_OFFSET ? number
                                                        : row->cells[column];
        if (i > 0)
            bp_output_byte(out, ',');
        if (strpbrk(cell, ",\"") == NULL) {
            bp_output_add(out, cell, strlen(cell));
            continue;
        }
        /* quoted if necessary, with quotes doubled */
        bp_output_byte(out, '"');
        for (; *cell != '\0'; cell++) {
            if (*cell == '"')
                bp_output_byte(out, '"');
            bp_output_byte(out, (uint8_t)*cell);
        }
        bp_output_byte(out, '"');
    }
    bp_output_byte(out, '\n');
}

bp_status bp_packing_file_write(const bp_packing_file *file, const uint64_t *offsets, const char *path)
{
    if (file == NULL || offsets == NULL || path == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_packing_file_write: file, offsets and path must not be NULL");
    bp_output out;
    BP_TRY(bp_output_open(&out, path));
    print_row(&out, file, NULL, 0);
    for (size_t i = 0; i < file->row_count; i++)
        print_row(&out, file, &file->rows[i], offsets[i]);
    bp_status status = bp_output_commit(&out);
    bp_output_finish(&out);
    return status;
}
