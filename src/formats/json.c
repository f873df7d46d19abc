/* SPDX-License-Identifier: Apache-2.0 */
/* A JSON parser (RFC 8259) that builds jansson values. Replaces jansson's own parser, which loses bytes of a token
 * and writes past its buffer when an allocation fails while the token grows (load.c, lex_save), and recurses 2048
 * levels deep. */
#include "formats/json.h"

#include <bucketpool/core/fail.h>

#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/kinds.h"
#include "formats/file.h"
#include "formats/models/reader.h"

/* ---- parsing ----------------------------------------------------------------------------------------------------- */

#define DEEPEST 64
#define LONGEST_NUMBER 500

/* Bytes of a value on a 64-bit machine, with malloc's overhead: jansson 2.14, hashtable.c and value.c. An empty
 * object has a table of eight buckets; strings add their length. */
enum {
    OBJECT_BYTES = 224,
    LIST_BYTES = 128,
    MEMBER_BYTES = 112,
    ELEMENT_BYTES = 16,
    TEXT_BYTES = 80,
    NUMBER_BYTES = 32
};

typedef struct parser {
    const char *text, *at, *end;
    const char *origin;
    unsigned depth;
    size_t taken, budget; /* of the values */
    bool *not_numbers;    /* set if NaN, Infinity or -Infinity occur; NULL: they are refused */
} parser;

/* "<origin>:<line>:<column>: ...", with the position of `where`. */
__attribute__((format(printf, 3, 4))) static bp_status fail_at(const parser *p, const char *where, const char *format,
                                                               ...)
{
    char what[BP_DETAIL_BYTES];
    size_t line = 1, column = 1;
    for (const char *c = p->text; c < where; c++) {
        line += *c == '\n';
        column = *c == '\n' ? 1 : column + (((unsigned char)*c & 0xC0) != 0x80);
    }
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return bp_fail(BP_ERR_FORMAT, "%.300s:%zu:%zu: %s", p->origin, line, column, what);
}

static bp_status fail_expected(const parser *p, const char *expected)
{
    if (p->at == p->end)
        return fail_at(p, p->at, "expected %s, got the end of the text", expected);
    static const char marks[] = " \t\r\n,:[]{}\"";
    size_t length = 1, left = (size_t)(p->end - p->at);
    while (length < left && length < 20 && strchr(marks, p->at[0]) == NULL && strchr(marks, p->at[length]) == NULL)
        length++;
    return fail_at(p, p->at, "expected %s, got '%.*s'", expected, (int)length, p->at);
}

/* Counts the bytes of an allocation before it is made. */
static bp_status charge(parser *p, size_t bytes)
{
    p->taken += bytes;
    if (p->taken <= p->budget)
        return BP_OK;
    return fail_at(
        p, p->at,
        "its values need more than %zu bytes of memory, the limit for a document of %zu bytes; split it, or make "
        "sure that this is the file that you meant",
        p->budget, (size_t)(p->end - p->text));
}

/* A constructor of jansson returned NULL: out of memory (malloc sets errno), or the string is not UTF-8. */
static bp_status fail_made(const parser *p, const char *where, size_t bytes)
{
    return errno == ENOMEM ? bp_fail_memory(bytes) : fail_at(p, where, "a string that is not UTF-8");
}

/* ---- strings ------------------------------------------------------------------------------------------------------------------ */

/* The four digits of "\u1234"; -1 if they are missing. */
static int32_t read_hex(const char *at, const char *end)
{
    int32_t value = 0;
    for (int i = 0; i < 4; i++) {
        char c = at + i < end ? at[i] : '\0';
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0)
            return -1;
        value = value << 4 | digit;
    }
    return value;
}

/* Decodes the escape at the backslash `*at` and moves behind it; NULL if it is invalid. The result is never longer
 * than the escape. */
static char *decode_escape(const char **at, const char *end, char *to)
{
    static const char letters[] = "\"\\/bfnrt", bytes[] = "\"\\/\b\f\n\r\t";
    char letter = (*at)[1];
    const char *found = letter != '\0' ? strchr(letters, letter) : NULL;
    if (found != NULL) {
        *at += 2;
        *to = bytes[found - letters];
        return to + 1;
    }
    int32_t value = letter == 'u' ? read_hex(*at + 2, end) : -1;
    *at += 6;
    if (value >= 0xD800 && value < 0xDC00) { /* the first of a surrogate pair */
        int32_t low = end - *at > 1 && (*at)[0] == '\\' && (*at)[1] == 'u' ? read_hex(*at + 2, end) : -1;
        *at += 6;
        value = low >= 0xDC00 && low < 0xE000 ? 0x10000 + ((value - 0xD800) << 10) + (low - 0xDC00) : -1;
    } else if (value >= 0xDC00 && value < 0xE000) {
        value = -1;
    }
    if (value <= 0) /* a NUL would cut the name */
        return NULL;
    static const unsigned char first[] = {0, 0xC0, 0xE0, 0xF0};
    unsigned more = value < 0x80 ? 0 : value < 0x800 ? 1 : value < 0x10000 ? 2 : 3;
    *to++ = (char)(first[more] | value >> 6 * more);
    while (more-- > 0)
        *to++ = (char)(0x80 | (value >> 6 * more & 0x3F));
    return to;
}

typedef struct string {
    const char *bytes; /* in the document, or `decoded` */
    size_t count;
    char *decoded; /* free() it */
} string;

static bp_status parse_text(parser *p, string *read)
{
    const char *begin = p->at + 1, *close = begin;
    bool escapes = false;
    for (; close < p->end && *close != '"'; close++) {
        if ((unsigned char)*close < 0x20)
            return fail_at(p, close, "control character 0x%02x in a string", (unsigned)(unsigned char)*close);
        if (*close == '\\') {
            escapes = true;
            close += close + 1 < p->end;
        }
    }
    if (close >= p->end)
        return fail_at(p, p->at, "unterminated string");
    *read = (string){begin, (size_t)(close - begin), NULL};
    p->at = close + 1;
    if (!escapes)
        return BP_OK;
    char *decoded = malloc(read->count), *to = decoded;
    if (decoded == NULL)
        return bp_fail_memory(read->count);
    for (const char *from = begin; from < close;) {
        const char *escape = from;
        if (*from != '\\')
            *to++ = *from++;
        else if ((to = decode_escape(&from, close, to)) == NULL) {
            free(decoded);
            return fail_at(p, escape, "invalid escape '%.*s'", close - escape < 6 ? (int)(close - escape) : 6, escape);
        }
    }
    *read = (string){decoded, (size_t)(to - decoded), decoded};
    return BP_OK;
}

/* ---- numbers -------------------------------------------------------------------------------------------------------------------- */

static bool is_digit(const parser *p)
{
    return p->at < p->end && *p->at >= '0' && *p->at <= '9';
}

static bool skip_digits(parser *p)
{
    bool any = is_digit(p);
    while (is_digit(p))
        p->at++;
    return any;
}

static bp_status parse_number(parser *p, json_t **value)
{
    const char *begin = p->at;
    bool real = false;
    p->at += *p->at == '-';
    bool zero = is_digit(p) && *p->at == '0';
    if (zero)
        p->at++;
    else if (!skip_digits(p))
        return fail_expected(p, "a digit");
    if (zero && is_digit(p))
        return fail_at(p, begin, "a number with a leading 0");
    if (p->at < p->end && *p->at == '.') {
        real = true;
        p->at++;
        if (!skip_digits(p))
            return fail_expected(p, "a digit after the point");
    }
    if (p->at < p->end && (*p->at == 'e' || *p->at == 'E')) {
        real = true;
        p->at++;
        p->at += p->at < p->end && (*p->at == '+' || *p->at == '-');
        if (!skip_digits(p))
            return fail_expected(p, "a digit of an exponent");
    }
    if (p->at - begin > LONGEST_NUMBER)
        return fail_at(p, begin, "a number of %zu characters, expected at most %d", (size_t)(p->at - begin),
                       LONGEST_NUMBER);
    if (real) {
        char digits[LONGEST_NUMBER + 8];
        size_t length = (size_t)(p->at - begin);
        memcpy(digits, begin, length);
        digits[length] = '\0';
        char *point = strchr(digits, '.');
        if (point != NULL) /* strtod expects the decimal point of the process's locale */
            *point = *localeconv()->decimal_point;
        double number = strtod(digits, NULL);
        if (!isfinite(number))
            return fail_at(p, begin, "number '%.40s' is too large", digits);
        *value = json_real(number);
        return *value != NULL ? BP_OK : bp_fail_memory(sizeof number);
    }
    bool negative = *begin == '-', fits = true;
    json_int_t number = 0;
    for (const char *c = begin + negative; c < p->at; c++) {
        int digit = negative ? '0' - *c : *c - '0';
        fits = fits && !__builtin_mul_overflow(number, 10, &number) && !__builtin_add_overflow(number, digit, &number);
    }
    if (!fits)
        return fail_at(p, begin, "integer '%.*s' exceeds 64 bits", (int)(p->at - begin < 40 ? p->at - begin : 40),
                       begin);
    *value = json_integer(number);
    return *value != NULL ? BP_OK : bp_fail_memory(sizeof number);
}

/* ---- values --------------------------------------------------------------------------------------------------------------------- */

static bp_status parse_value(parser *p, json_t **value);

static void skip_space(parser *p)
{
    while (p->at < p->end && (*p->at == ' ' || *p->at == '\n' || *p->at == '\t' || *p->at == '\r'))
        p->at++;
}

/* Skips white space and, if the next byte is `byte`, that byte. */
static bool json_parse_take(parser *p, char byte)
{
    skip_space(p);
    if (p->at == p->end || *p->at != byte)
        return false;
    p->at++;
    return true;
}

static bool take_word(parser *p, const char *word)
{
    size_t length = strlen(word);
    if ((size_t)(p->end - p->at) < length || memcmp(p->at, word, length) != 0)
        return false;
    p->at += length;
    return true;
}

static bp_status parse_member(parser *p, json_t *object)
{
    skip_space(p);
    if (p->at == p->end || *p->at != '"')
        return fail_expected(p, "the name of a member");
    const char *where = p->at;
    string key = {0};
    json_t *value = NULL;
    BP_TRY(charge(p, MEMBER_BYTES));
    BP_TRY(parse_text(p, &key));
    bp_status status =
        json_object_getn(object, key.bytes, key.count) == NULL
            ? BP_OK
            : fail_at(p, where, "duplicate member \"%.*s\"", key.count < 60 ? (int)key.count : 60, key.bytes);
    if (status == BP_OK && !json_parse_take(p, ':'))
        status = fail_expected(p, "':'");
    if (status == BP_OK)
        status = parse_value(p, &value);
    errno = 0;
    if (status == BP_OK && json_object_setn_new(object, key.bytes, key.count, value) != 0)
        status = fail_made(p, where, key.count);
    free(key.decoded);
    return status;
}

/* An object, or a list. */
static bp_status parse_values(parser *p, bool object, json_t **made)
{
    const char close = object ? '}' : ']', *where = p->at++;
    if (p->depth == DEEPEST)
        return fail_at(p, where, "nested deeper than %d levels", DEEPEST);
    BP_TRY(charge(p, object ? OBJECT_BYTES : LIST_BYTES));
    json_t *values = object ? json_object() : json_array();
    if (values == NULL)
        return bp_fail_memory(sizeof *values);
    p->depth++;
    bool closed = json_parse_take(p, close);
    bp_status status = BP_OK;
    while (status == BP_OK && !closed) {
        json_t *element = NULL;
        status = object ? parse_member(p, values) : charge(p, ELEMENT_BYTES);
        if (status == BP_OK && !object)
            status = parse_value(p, &element);
        if (status == BP_OK && !object && json_array_append_new(values, element) != 0)
            status = bp_fail_memory(sizeof element);
        closed = status == BP_OK && json_parse_take(p, close);
        if (status == BP_OK && !closed && !json_parse_take(p, ','))
            status = fail_expected(p, object ? "',' or '}'" : "',' or ']'");
    }
    p->depth--;
    if (status == BP_OK)
        *made = values;
    else
        json_decref(values);
    return status;
}

static bp_status parse_value(parser *p, json_t **value)
{
    skip_space(p);
    char first = p->at < p->end ? *p->at : '\0';
    if (first == '{' || first == '[')
        return parse_values(p, first == '{', value);
    if (first == '"') {
        const char *where = p->at;
        string read = {0};
        BP_TRY(charge(p, TEXT_BYTES));
        BP_TRY(parse_text(p, &read));
        p->taken += read.count;
        errno = 0;
        *value = json_stringn(read.bytes, read.count);
        bp_status status = *value != NULL ? BP_OK : fail_made(p, where, read.count);
        free(read.decoded);
        return status;
    }
    if (p->not_numbers != NULL && (take_word(p, "NaN") || take_word(p, "Infinity") || take_word(p, "-Infinity"))) {
        *p->not_numbers = true;
        BP_TRY(charge(p, OBJECT_BYTES));
        *value = json_object();
        return *value != NULL ? BP_OK : bp_fail_memory(sizeof **value);
    }
    if (first == '-' || is_digit(p)) {
        BP_TRY(charge(p, NUMBER_BYTES));
        return parse_number(p, value);
    }
    *value = take_word(p, "true")    ? json_true()
             : take_word(p, "false") ? json_false()
             : take_word(p, "null")  ? json_null()
                                     : NULL;
    return *value != NULL ? BP_OK : fail_expected(p, "a value");
}

bp_status bp_json_parse(const char *text, size_t bytes, const char *origin, bool *not_numbers, json_t **document)
{
    parser p = {.text = text,
                .at = text,
                .end = text + bytes,
                .origin = origin,
                .budget = bp_reader_budget(bytes),
                .not_numbers = not_numbers};
    if (not_numbers != NULL)
        *not_numbers = false;
    if (bytes == 0)
        return bp_fail(BP_ERR_FORMAT, "%.300s: empty, expected a JSON document", origin);
    skip_space(&p);
    bp_kind kind = bp_kind_of_bytes(text, bytes);
    if (kind.name != NULL)
        return bp_fail(BP_ERR_FORMAT, "%.300s: %s; %s%sexpected a JSON document", origin, kind.name,
                       kind.next != NULL ? kind.next : "", kind.next != NULL ? "; " : "");
    if (p.at == p.end || (*p.at != '{' && *p.at != '['))
        return fail_expected(&p, "an object or a list");
    json_t *parsed = NULL;
    BP_TRY(parse_value(&p, &parsed));
    skip_space(&p);
    if (p.at < p.end) {
        json_decref(parsed);
        return fail_expected(&p, "the end of the text");
    }
    *document = parsed;
    return BP_OK;
}

/* ---- walking a document ------------------------------------------------------------------------------------------ */

#define PATH_BYTES 320

bp_json_at bp_json_root(json_t *document, const char *origin)
{
    return (bp_json_at){.value = document, .origin = origin};
}

bp_json_at bp_json_member(const bp_json_at *object, const char *key)
{
    return (bp_json_at){json_object_get(object->value, key), object, key, 0, object->origin};
}

bp_json_at bp_json_element(const bp_json_at *list, size_t index)
{
    return (bp_json_at){json_array_get(list->value, index), list, NULL, index, list->origin};
}

/* Appends the path of `at` to the first `used` bytes of `path`; returns the bytes used. */
static size_t append_path(const bp_json_at *at, char *path, size_t used)
{
    if (at->outer == NULL)
        return used + (size_t)snprintf(path + used, PATH_BYTES - used, "$");
    used = append_path(at->outer, path, used);
    if (used >= PATH_BYTES)
        return used;
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_0123456789";
    const char *key = at->key;
    size_t space = PATH_BYTES - used;
    int added;
    if (key == NULL)
        added = snprintf(path + used, space, "[%zu]", at->index);
    else if (*key != '\0' && strchr("0123456789", *key) == NULL && key[strspn(key, plain)] == '\0')
        added = snprintf(path + used, space, ".%.*s", BP_QUOTED, at->key);
    else
        added = snprintf(path + used, space, "[\"%.*s\"]", BP_QUOTED, at->key);
    return used + (size_t)added;
}

static void where_is(const bp_json_at *at, char where[PATH_BYTES])
{
    int used = snprintf(where, PATH_BYTES, "%.150s: ", at->origin);
    append_path(at, where, (size_t)used);
}

bp_status bp_json_fail(const bp_json_at *at, const char *format, ...)
{
    char where[PATH_BYTES], what[BP_DETAIL_BYTES];
    where_is(at, where);
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return bp_fail(BP_ERR_FORMAT, "%s: %s", where, what);
}

bp_status bp_json_fail_at(const bp_json_at *at, bp_status status)
{
    char where[PATH_BYTES];
    where_is(at, where);
    return bp_fail_at(where, status);
}

void bp_json_describe(const json_t *value, char description[BP_JSON_DESCRIPTION_BYTES])
{
    const size_t space = BP_JSON_DESCRIPTION_BYTES;
    switch (json_typeof(value)) {
    case JSON_OBJECT: snprintf(description, space, "an object"); break;
    case JSON_ARRAY: snprintf(description, space, "a list"); break;
    case JSON_STRING: snprintf(description, space, "\"%.60s\"", json_string_value(value)); break;
    case JSON_INTEGER: snprintf(description, space, "%" JSON_INTEGER_FORMAT, json_integer_value(value)); break;
    case JSON_REAL:
        snprintf(description, space, "a fraction (%.6g)", json_real_value(value));
        if (strpbrk(description + strlen("a fraction ("), ".,en") == NULL) /* written as in JSON: 4.0, not 4 */
            snprintf(description, space, "a fraction (%.1f)", json_real_value(value));
        break;
    case JSON_TRUE: snprintf(description, space, "true"); break;
    case JSON_FALSE: snprintf(description, space, "false"); break;
    case JSON_NULL: snprintf(description, space, "null"); break;
    }
}

bp_status bp_json_fail_kind(const bp_json_at *at, const char *expected)
{
    if (at->value == NULL)
        return bp_json_fail(at, "is missing; expected %s", expected);
    char description[BP_JSON_DESCRIPTION_BYTES];
    bp_json_describe(at->value, description);
    return bp_json_fail(at, "expected %s, got %s", expected, description);
}

bp_status bp_json_expect_object(const bp_json_at *at, const char *const *known)
{
    if (!json_is_object(at->value))
        return bp_json_fail_kind(at, "an object");
    const char *key;
    json_t *value;
    json_object_foreach(at->value, key, value)
    {
        size_t i = 0;
        while (known != NULL && known[i] != NULL && strcmp(known[i], key) != 0)
            i++;
        if (known == NULL || known[i] != NULL)
            continue;
        char list[200];
        size_t used = 0;
        for (i = 0; known[i] != NULL && used < sizeof list; i++)
            used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", i > 0 ? ", " : "", known[i]);
        return bp_json_fail(at, "unknown member \"%.60s\"; known: %s", key, list);
    }
    return BP_OK;
}

bp_status bp_json_expect_list(const bp_json_at *at)
{
    return json_is_array(at->value) ? BP_OK : bp_json_fail_kind(at, "a list");
}

bp_status bp_json_list(const bp_json_at *object, const char *key, size_t max, size_t element_bytes, bp_json_at *list,
                       void *array, size_t *count)
{
    *list = bp_json_member(object, key);
    BP_TRY(bp_json_expect_list(list));
    const size_t n = json_array_size(list->value);
    if (n > max)
        return bp_json_fail(list, "has %zu elements; at most %zu are possible", n, max);
    void *elements = calloc(n + 1, element_bytes);
    if (elements == NULL)
        return bp_fail_memory((n + 1) * element_bytes);
    memcpy(array, &elements, sizeof elements);
    *count = n;
    return BP_OK;
}

bp_status bp_json_name(const bp_json_at *at, const char **name)
{
    if (!json_is_string(at->value))
        return bp_json_fail_kind(at, "a name");
    if (!bp_is_name(json_string_value(at->value)))
        return bp_json_fail_kind(at, "a name, not empty and without control characters");
    *name = json_string_value(at->value);
    return BP_OK;
}

bp_status bp_json_whole(const bp_json_at *at, uint64_t min, uint64_t max, uint64_t *value)
{
    json_int_t number = json_integer_value(at->value);
    if (json_is_integer(at->value) && number >= 0 && (uint64_t)number >= min && (uint64_t)number <= max) {
        *value = (uint64_t)number;
        return BP_OK;
    }
    char expected[80] = "a positive integer";
    if (max < INT64_MAX)
        snprintf(expected, sizeof expected, "an integer from %llu to %llu", (unsigned long long)min,
                 (unsigned long long)max);
    else if (min != 1)
        snprintf(expected, sizeof expected, "an integer of at least %llu", (unsigned long long)min);
    return bp_json_fail_kind(at, expected);
}

bp_status bp_json_flag(const bp_json_at *at, bool *value)
{
    if (at->value == NULL)
        return BP_OK;
    if (!json_is_boolean(at->value))
        return bp_json_fail_kind(at, "true or false");
    *value = json_is_true(at->value);
    return BP_OK;
}

bp_status bp_json_dtype(const bp_json_at *at, bp_dtype *dtype)
{
    const char *name = NULL;
    BP_TRY(bp_json_name(at, &name));
    return bp_json_fail_at(at, bp_dtype_parse(name, dtype));
}
