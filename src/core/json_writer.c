/* SPDX-License-Identifier: Apache-2.0 */
/* The JSON writer: nesting, escapes, numbers, and the first failure. */
#include "core/json_writer.h"

#include <bucketpool/core/fail.h>

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "core/text.h"

#define COLUMNS 160

/* ---- text ------------------------------------------------------------------------------------------------------------------ */

static void add(bp_json_writer *w, const char *text, size_t bytes)
{
    if (w->status != BP_OK || bytes == 0)
        return;
    if (w->output != NULL) {
        bp_output_add(w->output, text, bytes);
        return;
    }
    if (bytes > w->capacity - w->bytes) {
        size_t capacity = 2 * w->capacity + bytes + 4096;
        char *larger = realloc(w->text, capacity);
        if (larger == NULL) {
            w->status = bp_fail_memory(capacity);
            return;
        }
        w->text = larger;
        w->capacity = capacity;
    }
    memcpy(w->text + w->bytes, text, bytes);
    w->bytes += bytes;
}

static void add_string(bp_json_writer *w, const char *string)
{
    add(w, string, strlen(string));
}

/* At most 47 bytes. */
__attribute__((format(printf, 2, 3))) static void add_formatted(bp_json_writer *w, const char *format, ...)
{
    char text[48];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    add_string(w, text);
}

/* Prints the escape of the character at `at`, of `bytes` bytes (0: not UTF-8). False: it needs none. */
static bool escape_of(const bp_json_writer *w, const char *at, size_t bytes, char escape[8])
{
    static const char escaped[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
    const char *found = strchr(escaped, *at);
    bool is_control = (uint8_t)*at < 0x20 || *at == 0x7f;
    if (found != NULL)
        snprintf(escape, 8, "\\%c", letters[found - escaped]);
    else if (bytes == 0)
        snprintf(escape, 8, "%s", w->replacement != NULL ? w->replacement : "?");
    else if (is_control || (w->is_in_page && strchr("<>&'", *at) != NULL))
        snprintf(escape, 8, "\\u%04x", (unsigned)(uint8_t)*at);
    else if (w->is_in_page && bytes == 3 && (memcmp(at, "\xe2\x80\xa8", 3) == 0 || memcmp(at, "\xe2\x80\xa9", 3) == 0))
        snprintf(escape, 8, "\\u202%c", at[2] == '\xa8' ? '8' : '9');
    else
        return false;
    return true;
}

static void add_escaped(bp_json_writer *w, const char *text)
{
    const char *from = text;
    char escape[8];
    for (const char *at = text; *at != '\0';) {
        size_t bytes = bp_character_bytes((const unsigned char *)at);
        bool is_escaped = escape_of(w, at, bytes, escape);
        w->has_replaced = w->has_replaced || bytes == 0;
        if (is_escaped) {
            add(w, from, (size_t)(at - from));
            add_string(w, escape);
        }
        at += bytes > 0 ? bytes : 1;
        from = is_escaped ? at : from;
    }
    add_string(w, from);
}

static void add_quoted(bp_json_writer *w, const char *const *pieces, size_t count)
{
    add(w, "\"", 1);
    for (size_t i = 0; i < count; i++)
        add_escaped(w, pieces[i]);
    add(w, "\"", 1);
}

/* ---- nesting --------------------------------------------------------------------------------------------------------------- */

static void add_line_end(bp_json_writer *w)
{
    add(w, "\n", 1);
    for (unsigned i = 0; w->layout != BP_JSON_COMPACT && i < w->depth; i++)
        add(w, "  ", 2);
    w->needs_line = false;
}

static void fail_use(bp_json_writer *w, const char *what)
{
    if (w->status == BP_OK)
        w->status = bp_fail(BP_ERR_INTERNAL, "JSON writer: %s", what);
}

/* Adds everything before a value: comma, white space, key. */
static void begin(bp_json_writer *w, const char *key)
{
    bool is_row = w->levels[w->depth].is_row, wants_key = w->depth > 0 && !w->levels[w->depth].is_list;
    if ((key != NULL) != wants_key || (w->depth == 0 && w->has_any))
        fail_use(w, wants_key     ? "a member without a key"
                    : key != NULL ? "a key outside an object"
                                  : "a second document");
    if (w->depth > 0 && w->has_any)
        add(w, ",", 1);
    if (w->needs_line || (w->depth > 0 && !is_row && w->layout != BP_JSON_COMPACT))
        add_line_end(w);
    else if (w->has_any && w->layout != BP_JSON_COMPACT)
        add(w, " ", 1);
    w->has_any = true;
    if (key != NULL) {
        add_quoted(w, &key, 1);
        add_string(w, w->layout == BP_JSON_COMPACT ? ":" : ": ");
    }
}

static void begin_level(bp_json_writer *w, const char *key, bool is_list, bool is_row)
{
    begin(w, key);
    if (w->depth + 1 == BP_JSON_MAX_LEVELS)
        fail_use(w, "more than 31 levels");
    if (w->status != BP_OK)
        return;
    w->depth++;
    w->levels[w->depth].begin = w->bytes;
    w->levels[w->depth].is_list = is_list;
    w->levels[w->depth].is_row = is_row;
    w->has_any = false;
    add(w, is_list ? "[" : "{", 1);
}

/* Joins the lines of the value that has just ended into one if it fits. All its line ends are layout, because texts
 * are escaped. */
static void fit(bp_json_writer *w, size_t first)
{
    char line[COLUMNS];
    size_t column = 0, count = 0;
    while (column < COLUMNS && column < first && w->text[first - column - 1] != '\n')
        column++;
    for (size_t i = first; i < w->bytes; i++) {
        if (column + count + 1 >= COLUMNS) /* with a trailing comma */
            return;
        if (w->text[i] != '\n') {
            line[count++] = w->text[i];
            continue;
        }
        bool is_behind_comma = w->text[i - 1] == ',';
        while (w->text[i + 1] == ' ')
            i++;
        if (is_behind_comma)
            line[count++] = ' ';
    }
    memcpy(w->text + first, line, count);
    w->bytes = first + count;
}

void bp_json_end(bp_json_writer *writer)
{
    bp_json_writer *w = writer;
    if (w->depth == 0)
        fail_use(w, "an end without an open object or list");
    if (w->status != BP_OK)
        return;
    bool is_list = w->levels[w->depth].is_list, is_row = w->levels[w->depth].is_row;
    size_t first = w->levels[w->depth--].begin;
    if (w->needs_line || (w->has_any && !is_row && w->layout != BP_JSON_COMPACT))
        add_line_end(w);
    add(w, is_list ? "]" : "}", 1);
    w->has_any = true;
    if (w->layout == BP_JSON_FITTED && w->status == BP_OK)
        fit(w, first);
}

/* ---- values ---------------------------------------------------------------------------------------------------------------- */

void bp_json_add_object(bp_json_writer *writer, const char *key)
{
    begin_level(writer, key, false, false);
}

void bp_json_add_list(bp_json_writer *writer, const char *key)
{
    begin_level(writer, key, true, false);
}

void bp_json_add_row(bp_json_writer *writer, const char *key)
{
    begin_level(writer, key, true, true);
}

void bp_json_add_pieces(bp_json_writer *writer, const char *key, const char *const *pieces, size_t count)
{
    begin(writer, key);
    add_quoted(writer, pieces, count);
}

void bp_json_add_text(bp_json_writer *writer, const char *key, const char *text)
{
    if (text != NULL)
        bp_json_add_pieces(writer, key, &text, 1);
    else
        bp_json_add_null(writer, key);
}

void bp_json_add_number(bp_json_writer *writer, const char *key, uint64_t number)
{
    begin(writer, key);
    add_formatted(writer, "%" PRIu64, number);
}

void bp_json_add_signed(bp_json_writer *writer, const char *key, int64_t number)
{
    begin(writer, key);
    add_formatted(writer, "%" PRId64, number);
}

void bp_json_add_thousandths(bp_json_writer *writer, const char *key, uint64_t number)
{
    begin(writer, key);
    add_formatted(writer, "%" PRIu64 ".%03" PRIu64, number / 1000, number % 1000);
}

void bp_json_add_real(bp_json_writer *writer, const char *key, double number)
{
    char text[40] = "null";
    if (isfinite(number))
        snprintf(text, sizeof text, "%.9g", number);
    bool is_whole = isfinite(number) && strpbrk(text, ".e") == NULL;
    begin(writer, key);
    add_formatted(writer, "%s%s", text, is_whole ? ".0" : "");
}

void bp_json_add_flag(bp_json_writer *writer, const char *key, bool flag)
{
    begin(writer, key);
    add_string(writer, flag ? "true" : "false");
}

void bp_json_add_null(bp_json_writer *writer, const char *key)
{
    begin(writer, key);
    add_string(writer, "null");
}

void bp_json_add_line(bp_json_writer *writer)
{
    writer->needs_line = true;
}

/* ---- the end --------------------------------------------------------------------------------------------------------------- */

bool bp_json_check(bp_json_writer *writer, bp_status status)
{
    if (writer->status == BP_OK)
        writer->status = status;
    return status == BP_OK;
}

bp_status bp_json_close(bp_json_writer *writer)
{
    if (writer->depth > 0 || !writer->has_any)
        fail_use(writer, "an unfinished document");
    add(writer, "\n", 1);
    return writer->status;
}

bp_status bp_json_save(bp_json_writer *writer, const char *path)
{
    bp_output output;
    bp_status status = bp_json_close(writer);
    if (status == BP_OK)
        status = bp_output_open(&output, path);
    if (status == BP_OK) {
        bp_output_add(&output, writer->text, writer->bytes);
        status = bp_output_commit(&output);
        bp_output_finish(&output);
    }
    free(writer->text);
    writer->text = NULL;
    return status;
}
