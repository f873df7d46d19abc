#include "formats/csv.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/fail.h"
#include "formats/detail.h"

bp_status bp_csv_fail(const bp_csv *csv, bp_csv_place place, const char *format, ...)
{
    char what[BP_DETAIL_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return bp_fail(BP_ERR_FORMAT, "%.300s:%zu:%zu: %s", csv->origin, place.line, place.column, what);
}

void bp_csv_init(bp_csv *csv, const char *text, size_t bytes, const char *origin, char *room)
{
    static const char mark[] = "\xEF\xBB\xBF";
    size_t passed = bytes >= sizeof mark - 1 && memcmp(text, mark, sizeof mark - 1) == 0 ? sizeof mark - 1 : 0;
    *csv = (bp_csv){origin, text + passed, text + bytes, {1, 1}, room};
}

bool bp_csv_is_at_end(const bp_csv *csv)
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
        if (bp_csv_is_at_end(csv) || line_end_bytes(csv) > 0)
            return bp_csv_fail(csv, opening, "a quote that is not closed on its line");
        if (*csv->at == '"') {
            pass_byte(csv);
            if (bp_csv_is_at_end(csv) || *csv->at != '"')
                break;
        }
        BP_TRY(take_byte(csv));
    }
    if (!is_field_end(csv))
        return bp_csv_fail(csv, csv->place, "expected a comma or the end of the line behind the closing quote");
    return BP_OK;
}

bp_status bp_csv_next(bp_csv *csv, bp_csv_field *field)
{
    bp_csv_place begin = csv->place;
    bool is_quoted = !bp_csv_is_at_end(csv) && *csv->at == '"';
    if (is_quoted)
        pass_byte(csv);
    bp_csv_field read = {.text = csv->room, .place = csv->place};
    BP_TRY(is_quoted ? read_quoted(csv, begin) : read_plain(csv));
    *csv->room++ = '\0';
    size_t line_end = line_end_bytes(csv);
    read.is_last = bp_csv_is_at_end(csv) || line_end > 0;
    if (line_end > 0) {
        csv->at += line_end;
        csv->place = (bp_csv_place){csv->place.line + 1, 1};
    } else if (!read.is_last) {
        pass_byte(csv); /* the comma */
    }
    *field = read;
    return BP_OK;
}
