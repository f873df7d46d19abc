#include "document.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

bool document_is_utf8(const char *text)
{
    const unsigned char *at = (const unsigned char *)text;
    while (*at != '\0') {
        size_t bytes = cli_character_bytes(at);
        if (bytes == 0)
            return false;
        at += bytes;
    }
    return true;
}

/* ---- what everything is written with ------------------------------------------------------------------------------------------- */

static void fail_memory(document *d)
{
    if (d->code == EXIT_GO_ON)
        d->code = cli_fail(EXIT_ENVIRONMENT, "out of memory");
}

static void add(document *d, const char *text, size_t bytes)
{
    if (d->code != EXIT_GO_ON)
        return;
    if (bytes > d->capacity - d->bytes) {
        size_t capacity = 2 * d->capacity + bytes + 4096;
        char *larger = realloc(d->text, capacity);
        if (larger == NULL) {
            fail_memory(d);
            return;
        }
        d->text = larger;
        d->capacity = capacity;
    }
    memcpy(d->text + d->bytes, text, bytes);
    d->bytes += bytes;
}

static void add_text(document *d, const char *text)
{
    add(d, text, strlen(text));
}

static void add_quoted(document *d, const char *text)
{
    static const char escaped[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
    bool good = document_is_utf8(text);
    add(d, "\"", 1);
    for (; *text != '\0'; text++) {
        unsigned char byte = (unsigned char)*text;
        const char *found = strchr(escaped, byte);
        char code[8];
        if (found != NULL) {
            add(d, "\\", 1);
            add(d, &letters[found - escaped], 1);
        } else if (byte < 0x20) {
            snprintf(code, sizeof code, "\\u%04X", byte);
            add_text(d, code);
        } else {
            add(d, byte < 0x80 || good ? text : "?", 1);
        }
    }
    add(d, "\"", 1);
}

static void add_line(document *d)
{
    add(d, "\n", 1);
    for (unsigned i = 0; i < d->depth; i++)
        add(d, "  ", 2);
}

static bool is_in(const document *d, uint32_t kinds)
{
    return d->depth > 0 && (kinds & UINT32_C(1) << d->depth) != 0;
}

/* What stands before a value: the comma behind the one before it, the line, its key. */
static void begin(document *d, const char *key)
{
    if (d->depth > 0 && !d->is_first)
        add(d, ",", 1);
    if (is_in(d, d->rows) && !d->is_first)
        add(d, " ", 1);
    else if (d->depth > 0 && !is_in(d, d->rows))
        add_line(d);
    d->is_first = false;
    if (key != NULL) {
        add_quoted(d, key);
        add(d, ": ", 2);
    }
}

static void open_level(document *d, const char *key, bool list, bool row)
{
    begin(d, key);
    add(d, list ? "[" : "{", 1);
    uint32_t bit = UINT32_C(1) << ++d->depth;
    d->lists = list ? d->lists | bit : d->lists & ~bit;
    d->rows = row ? d->rows | bit : d->rows & ~bit;
    d->is_first = true;
}

/* ---- the members ---------------------------------------------------------------------------------------------------------------- */

document document_new(void)
{
    return (document){.code = EXIT_GO_ON};
}

void document_object(document *d, const char *key)
{
    open_level(d, key, false, false);
}

void document_list(document *d, const char *key)
{
    open_level(d, key, true, false);
}

void document_row(document *d, const char *key)
{
    open_level(d, key, true, true);
}

void document_end(document *d)
{
    bool list = is_in(d, d->lists), row = is_in(d, d->rows);
    d->depth--;
    if (!d->is_first && !row)
        add_line(d);
    add(d, list ? "]" : "}", 1);
    d->is_first = false;
}

void document_text(document *d, const char *key, const char *text)
{
    begin(d, key);
    if (text != NULL)
        add_quoted(d, text);
    else
        add_text(d, "null");
}

void document_number(document *d, const char *key, uint64_t number)
{
    char text[24];
    snprintf(text, sizeof text, "%llu", (unsigned long long)number);
    begin(d, key);
    add_text(d, text);
}

void document_real(document *d, const char *key, double number)
{
    char text[40] = "null";
    if (isfinite(number))
        snprintf(text, sizeof text, "%.9g", number);
    begin(d, key);
    add_text(d, text);
    if (isfinite(number) && strpbrk(text, ".e") == NULL)
        add_text(d, ".0");
}

void document_flag(document *d, const char *key, bool flag)
{
    begin(d, key);
    add_text(d, flag ? "true" : "false");
}

void document_null(document *d, const char *key)
{
    document_text(d, key, NULL);
}

bool document_check(document *d, bp_status status)
{
    if (status == BP_ERR_NO_HOST_MEMORY)
        fail_memory(d);
    else if (status != BP_OK && d->code == EXIT_GO_ON)
        d->code = cli_fail_status(status);
    return status == BP_OK;
}

int document_finish(document *d)
{
    add(d, "\n", 1);
    int code = d->code;
    if (code == EXIT_GO_ON) {
        fwrite(d->text, 1, d->bytes, stdout);
        code = cli_flush();
    }
    free(d->text);
    return code;
}
