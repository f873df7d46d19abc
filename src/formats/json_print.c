#include "formats/json.h"

#include <stdio.h>
#include <string.h>

#include "formats/written.h"

#define COLUMNS 160

/* jansson's own printing says nothing of an allocation that fails while it measures. */
typedef struct printer {
    bp_written text;
    size_t line; /* where the last line begins */
    size_t stop; /* what is tried on one line ends before */
    bool is_wide;
} printer;

static void add(printer *p, const char *text, size_t bytes)
{
    p->is_wide = p->is_wide || bytes > p->stop - p->text.count;
    if (!p->is_wide)
        bp_written_add(&p->text, text, bytes);
}

static void add_text(printer *p, const char *text)
{
    add(p, text, strlen(text));
}

static void add_quoted(printer *p, const char *text, size_t bytes)
{
    static const char escaped[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
    add(p, "\"", 1);
    for (const char *end = text + bytes; text < end; text++) {
        const char *found = *text != '\0' ? strchr(escaped, *text) : NULL;
        char code[8];
        if (found != NULL) {
            add(p, "\\", 1);
            add(p, &letters[found - escaped], 1);
        } else if ((unsigned char)*text < 0x20) {
            snprintf(code, sizeof code, "\\u%04X", (unsigned)*text);
            add_text(p, code);
        } else {
            add(p, text, 1);
        }
    }
    add(p, "\"", 1);
}

static void add_scalar(printer *p, const json_t *value)
{
    char number[40];
    switch (json_typeof(value)) {
    case JSON_STRING: add_quoted(p, json_string_value(value), json_string_length(value)); break;
    case JSON_INTEGER:
        snprintf(number, sizeof number, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
        add_text(p, number);
        break;
    case JSON_REAL:
        snprintf(number, sizeof number, "%.17g", json_real_value(value));
        add_text(p, number);
        if (strpbrk(number, ".e") == NULL) /* else an integer */
            add_text(p, ".0");
        break;
    default: add_text(p, json_is_true(value) ? "true" : json_is_false(value) ? "false" : "null"); break;
    }
}

static void add_key(printer *p, const char *key)
{
    add_quoted(p, key, strlen(key));
    add(p, ": ", 2);
}

static void add_line(printer *p, int indent)
{
    add(p, "\n", 1);
    p->line = p->text.count;
    for (int i = 0; i < indent; i++)
        add(p, " ", 1);
}

/* On one line, up to where that is too wide. */
static void add_flat(printer *p, json_t *value)
{
    const char *between = "", *key;
    json_t *member;
    size_t i;
    if (json_is_object(value)) {
        add(p, "{", 1);
        json_object_foreach(value, key, member)
        {
            if (p->is_wide)
                return;
            add_text(p, between);
            add_key(p, key);
            add_flat(p, member);
            between = ", ";
        }
        add(p, "}", 1);
    } else if (json_is_array(value)) {
        add(p, "[", 1);
        json_array_foreach(value, i, member)
        {
            if (p->is_wide)
                return;
            add_text(p, between);
            add_flat(p, member);
            between = ", ";
        }
        add(p, "]", 1);
    } else {
        add_scalar(p, value);
    }
}

/* On one line where that has room for it, else a line for each member or element. */
static void add_value(printer *p, json_t *value, int indent)
{
    size_t size = json_is_object(value) ? json_object_size(value) : json_array_size(value);
    size_t begin = p->text.count, column = begin - p->line;
    if (size > 0)
        p->stop = begin + (column < COLUMNS ? COLUMNS - column - 1 : 0);
    add_flat(p, value);
    p->stop = SIZE_MAX;
    if (!p->is_wide)
        return;
    p->is_wide = false;
    p->text.count = begin;
    const char *between = "", *key;
    json_t *member;
    size_t i;
    add(p, json_is_object(value) ? "{" : "[", 1);
    json_object_foreach(value, key, member)
    {
        add_text(p, between);
        add_line(p, indent + 2);
        add_key(p, key);
        add_value(p, member, indent + 2);
        between = ",";
    }
    json_array_foreach(value, i, member)
    {
        add_text(p, between);
        add_line(p, indent + 2);
        add_value(p, member, indent + 2);
        between = ",";
    }
    add_line(p, indent);
    add(p, json_is_object(value) ? "}" : "]", 1);
}

bp_status bp_json_write(json_t *document, const char *path)
{
    printer p = {.stop = SIZE_MAX};
    add_value(&p, document, 0);
    add(&p, "\n", 1);
    return bp_written_finish(&p.text, path);
}
