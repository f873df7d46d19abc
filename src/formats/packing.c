/* Packing instances as CSV. docs/formats.md describes every column. */
#include <bucketpool/status.h>

#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/arith.h"
#include "core/fail.h"
#include "files/files.h"
#include "formats/file.h"
#include "formats/packing_file.h"

typedef struct bp_csv_place {
    size_t line, column; /* from 1; columns count characters */
} bp_csv_place;

typedef struct bp_csv_field {
    const char *text; /* without its quotes, terminated by a NUL */
    bp_csv_place place;
    bool is_last; /* of its row */
} bp_csv_field;

typedef struct bp_csv {
    const char *origin;
    const char *at, *end;
    bp_csv_place place; /* of `at` */
    char *room;         /* where the next field's text goes */
} bp_csv;

/* BP_ERR_FORMAT with "<origin>:<line>:<column>: <what>". */
__attribute__((format(printf, 3, 4))) bp_status bp_csv_fail(const bp_csv *csv, bp_csv_place place, const char *format,
                                                            ...);

typedef enum bp_packing_column {
    BP_COLUMN_ID,
    BP_COLUMN_LOWER,
    BP_COLUMN_UPPER,
    BP_COLUMN_SIZE,
    BP_COLUMN_GAPS,
    BP_COLUMN_OFFSET,
    BP_COLUMN_COUNT
} bp_packing_column;

extern const char *const bp_packing_column_names[BP_COLUMN_COUNT];

typedef struct bp_packing_row {
    const char *cells[BP_COLUMN_COUNT]; /* as given; NULL: no such column */
    size_t id_at;                       /* where in its line the id stands */
} bp_packing_row;

struct bp_packing_file {
    bp_packing *packing;
    bp_packing_column columns[BP_COLUMN_COUNT]; /* in the order of the file */
    size_t column_count;
    bool has_column[BP_COLUMN_COUNT];
    bp_packing_row *rows; /* row i is line i + 2 */
    uint64_t *offsets;    /* of the rows */
    size_t row_count, row_capacity;
    char *text; /* of the cells */
};

/* ---- CSV --------------------------------------------------------------------------------------------------------- */

bp_status bp_csv_fail(const bp_csv *csv, bp_csv_place place, const char *format, ...)
{
    char what[BP_DETAIL_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return bp_fail(BP_ERR_FORMAT, "%.300s:%zu:%zu: %s", csv->origin, place.line, place.column, what);
}

/* `room` has `bytes` + 1 bytes and lives as long as the fields' texts. */
static void csv_init(bp_csv *csv, const char *text, size_t bytes, const char *origin, char *room)
{
    static const char mark[] = "\xEF\xBB\xBF";
    size_t passed = bytes >= sizeof mark - 1 && memcmp(text, mark, sizeof mark - 1) == 0 ? sizeof mark - 1 : 0;
    *csv = (bp_csv){origin, text + passed, text + bytes, {1, 1}, room};
}

/* Between rows: there is no further one. */
static bool csv_is_at_end(const bp_csv *csv)
{
    return csv->at == csv->end;
}

/* Of the line end at this place, 0: there is none. */
static size_t line_end_bytes(const bp_csv *csv)
{
    size_t left = (size_t)(csv->end - csv->at);
    if (left > 0 && csv->at[0] == '\n')
        return 1;
    return left > 1 && csv->at[0] == '\r' && csv->at[1] == '\n' ? 2 : 0;
}

static bool is_field_end(const bp_csv *csv)
{
    return csv->at == csv->end || *csv->at == ',' || line_end_bytes(csv) > 0;
}

/* The byte at this place becomes one of the field. */
static bp_status take_byte(bp_csv *csv)
{
    unsigned char byte = (unsigned char)*csv->at;
    if (byte < 0x20 || byte == 0x7F)
        return bp_csv_fail(csv, csv->place, "control byte 0x%02x; expected text, with commas between fields", byte);
    *csv->room++ = (char)byte;
    csv->at++;
    csv->place.column += (byte & 0xC0) != 0x80;
    return BP_OK;
}

static void pass_byte(bp_csv *csv)
{
    csv->at++;
    csv->place.column++;
}

static bp_status read_plain(bp_csv *csv)
{
    while (!is_field_end(csv)) {
        if (*csv->at == '"')
            return bp_csv_fail(csv, csv->place,
                               "a quote inside a field without quotes; put the field in quotes and double those in it");
        BP_TRY(take_byte(csv));
    }
    return BP_OK;
}

/* Behind the opening quote, which stands at `opening`. */
static bp_status read_quoted(bp_csv *csv, bp_csv_place opening)
{
    for (;;) {
        if (csv_is_at_end(csv) || line_end_bytes(csv) > 0)
            return bp_csv_fail(csv, opening, "a quote that is not closed on its line");
        if (*csv->at == '"') {
            pass_byte(csv);
            if (csv_is_at_end(csv) || *csv->at != '"')
                break;
        }
        BP_TRY(take_byte(csv));
    }
    if (!is_field_end(csv))
        return bp_csv_fail(csv, csv->place, "expected a comma or the end of the line behind the closing quote");
    return BP_OK;
}

static bp_status csv_next(bp_csv *csv, bp_csv_field *field)
{
    bp_csv_place begin = csv->place;
    bool is_quoted = !csv_is_at_end(csv) && *csv->at == '"';
    if (is_quoted)
        pass_byte(csv);
    bp_csv_field read = {.text = csv->room, .place = csv->place};
    BP_TRY(is_quoted ? read_quoted(csv, begin) : read_plain(csv));
    *csv->room++ = '\0';
    size_t line_end = line_end_bytes(csv);
    read.is_last = csv_is_at_end(csv) || line_end > 0;
    if (line_end > 0) {
        csv->at += line_end;
        csv->place = (bp_csv_place){csv->place.line + 1, 1};
    } else if (!read.is_last) {
        pass_byte(csv); /* the comma */
    }
    *field = read;
    return BP_OK;
}

/* ---- gaps -------------------------------------------------------------------------------------------------------- */

/* Gaps of items: "4-6 9-12" are [4, 6) and [9, 12). */

typedef struct gap {
    uint64_t begin, end;
    size_t at; /* in the field */
} gap;

/* Takes the digits at `*text` and moves behind them. false: there are none, or the number does not fit 64 bits. */
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

static bp_csv_place place_in(const bp_csv_field *field, size_t at)
{
    return (bp_csv_place){field->place.line, field->place.column + at}; /* one byte characters so far */
}

/* Reads the range at `*text`, behind which a space or the end follows. */
static bp_status read_gap(const bp_csv *csv, const bp_csv_field *field, const char **text, gap *read)
{
    const char *at = *text;
    size_t length = strcspn(at, " ");
    *read = (gap){.at = (size_t)(at - field->text)};
    bool is_range = take_number(&at, &read->begin) && *at++ == '-' && take_number(&at, &read->end);
    if (!is_range || at != *text + length)
        return bp_csv_fail(csv, place_in(field, read->at),
                           "gap \"%.*s\"; expected ranges as in \"4-6 9-12\" of whole numbers of 64 bits",
                           (int)(length < 40 ? length : 40), *text);
    *text = at;
    return BP_OK;
}

static bp_status check_gap(const bp_csv *csv, const bp_csv_field *field, const gap *g, uint64_t begin, uint64_t end)
{
    unsigned long long first = g->begin, last = g->end;
    if (last <= first)
        return bp_csv_fail(csv, place_in(field, g->at), "gap %llu-%llu %s; expected an end behind its beginning", first,
                           last, last < first ? "ends before it begins" : "is empty");
    if (first < begin || last > end)
        return bp_csv_fail(csv, place_in(field, g->at), "gap %llu-%llu is not inside the interval %llu-%llu", first,
                           last, (unsigned long long)begin, (unsigned long long)end);
    return BP_OK;
}

static bp_status check_overlap(const bp_csv *csv, const bp_csv_field *field, const gap *g, const gap *before)
{
    if (g->begin >= before->end)
        return BP_OK;
    const gap *later = g->at > before->at ? g : before, *earlier = g->at > before->at ? before : g;
    return bp_csv_fail(csv, place_in(field, later->at), "gap %llu-%llu overlaps gap %llu-%llu",
                       (unsigned long long)later->begin, (unsigned long long)later->end,
                       (unsigned long long)earlier->begin, (unsigned long long)earlier->end);
}

/* The gaps of the field in order of time, into room for all of them. */
static bp_status read_gaps(const bp_csv *csv, const bp_csv_field *field, uint64_t begin, uint64_t end, gap *gaps,
                           size_t *count)
{
    const char *text = field->text;
    *count = 0;
    while (*(text += strspn(text, " ")) != '\0') {
        BP_TRY(read_gap(csv, field, &text, &gaps[*count]));
        BP_TRY(check_gap(csv, field, &gaps[*count], begin, end));
        ++*count;
    }
    qsort(gaps, *count, sizeof *gaps, packing_gaps_by_begin);
    for (size_t i = 1; i < *count; i++)
        BP_TRY(check_overlap(csv, field, &gaps[i], &gaps[i - 1]));
    return BP_OK;
}

static bp_status add_between(bp_packing *packing, size_t item, uint64_t begin, uint64_t end, const gap *gaps,
                             size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (gaps[i].begin > begin)
            BP_TRY(bp_packing_add_interval(packing, item, begin, gaps[i].begin));
        begin = gaps[i].end;
    }
    return begin < end ? bp_packing_add_interval(packing, item, begin, end) : BP_OK;
}

static uint64_t covered(const gap *gaps, size_t count)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += gaps[i].end - gaps[i].begin;
    return sum;
}

/* Adds the intervals that item `item` is live in: [begin, end) without the gaps of `field`, NULL for none. */
static bp_status packing_add_life(bp_packing *packing, size_t item, uint64_t begin, uint64_t end, const bp_csv *csv,
                                  const bp_csv_field *field)
{
    if (field == NULL)
        return bp_packing_add_interval(packing, item, begin, end);
    size_t most = strlen(field->text) / 4 + 1, count; /* "1-2 3-4" */
    gap *gaps = calloc(most, sizeof *gaps);
    if (gaps == NULL)
        return bp_fail_memory(most * sizeof *gaps);
    bp_status status = read_gaps(csv, field, begin, end, gaps, &count);
    if (status == BP_OK && covered(gaps, count) == end - begin)
        status = bp_csv_fail(csv, field->place, "the gaps leave nothing of the interval %llu-%llu",
                             (unsigned long long)begin, (unsigned long long)end);
    if (status == BP_OK)
        status = add_between(packing, item, begin, end, gaps, count);
    free(gaps);
    return status;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* Packing instances from CSV. docs/formats.md describes every column. */

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
    if (csv_is_at_end(&r->csv))
        return bp_csv_fail(&r->csv, begin, "empty; expected a line with the columns " EXPECTED_COLUMNS);
    while (!field.is_last) {
        BP_TRY(csv_next(&r->csv, &field));
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
        BP_TRY(csv_next(&r->csv, &field));
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
    if (!take_number(&text, number) || *text != '\0')
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
    uint64_t lower = 0, upper = 0, size = 0;
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
    return packing_add_life(file->packing, file->row_count, lower, upper, &r->csv, gaps);
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
    if (csv_is_at_end(&r->csv))
        return bp_csv_fail(&r->csv, r->csv.place, "no rows; expected an item behind the header");
    while (!csv_is_at_end(&r->csv))
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
    csv_init(&reader.csv, text, bytes, origin, reader.file->text);
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

/* ---- writing ----------------------------------------------------------------------------------------------------- */

/* Packing instances as CSV, with offsets. */

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
