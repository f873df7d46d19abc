/* SPDX-License-Identifier: Apache-2.0 */
/* Formats text for people: text from outside is shown without control characters, and cut between characters. */
#include "core/print.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "core/text.h"

typedef struct printer {
    char *text;
    size_t room, written, needed;
    bool full;
} printer;

/* Appends bytes that belong together. */
static void put_bytes(printer *p, const char *bytes, size_t count)
{
    p->needed += count;
    p->full = p->full || count >= p->room - p->written;
    if (p->full)
        return;
    memcpy(p->text + p->written, bytes, count);
    p->written += count;
}

static void put_spaces(printer *p, size_t count)
{
    for (; count > 0; count--)
        put_bytes(p, " ", 1);
}

/* Appends text from outside, at most so many bytes of it, or only counts its characters, for `p` NULL. */
static size_t put_text(printer *p, const char *text, size_t max)
{
    size_t characters = 0;
    for (size_t at = 0, step; at < max && text[at] != '\0'; at += step) {
        unsigned char next[5] = {0}; /* a text with a precision need not end */
        size_t there = 0;
        while (there < 4 && there < max - at && text[at + there] != '\0') {
            next[there] = (unsigned char)text[at + there];
            there++;
        }
        size_t bytes = bp_character_bytes(next);
        size_t promised = next[0] < 0xC2 ? 1 : next[0] < 0xE0 ? 2 : next[0] < 0xF0 ? 3 : next[0] < 0xF5 ? 4 : 1;
        if (bytes == 0 && promised > there && there == max - at)
            break; /* the precision cuts a character */
        char shown[16];
        step = bytes > 0 ? bytes : 1;
        size_t count = step;
        if (bytes > 0 && !bp_is_unprintable(bp_code_point(next, bytes)))
            memcpy(shown, next, step);
        else if (bytes > 1)
            count = (size_t)snprintf(shown, sizeof shown, "<U+%04X>", (unsigned)bp_code_point(next, bytes));
        else
            count = (size_t)snprintf(shown, sizeof shown, "<%02X>", (unsigned)next[0]);
        characters += bytes > 0 && count == step ? 1 : count;
        if (p != NULL)
            put_bytes(p, shown, count);
    }
    return characters;
}

/* ---- conversions --------------------------------------------------------------------------------------------------- */

typedef struct conversion {
    char spec[48]; /* without stars */
    size_t length;
    bool left, has_precision;
    size_t width, precision;
    char size[3]; /* "", "l", "ll", ... */
    char kind;
} conversion;

static void add_to_spec(conversion *c, const char *text, size_t count)
{
    if (count < sizeof c->spec - c->length) {
        memcpy(c->spec + c->length, text, count);
        c->length += count;
    }
}

/* The number of a width or precision; false: a negative one of a star. */
static bool read_directive(conversion *c, const char **at, int star, size_t *number)
{
    char digits[16];
    if (**at == '*') {
        ++*at;
        add_to_spec(c, digits, (size_t)snprintf(digits, sizeof digits, "%d", star));
        *number = star < 0 ? (size_t) - (int64_t)star : (size_t)star;
        return star >= 0;
    }
    for (*number = 0; **at >= '0' && **at <= '9'; ++*at) {
        *number = *number * 10 + (size_t)(**at - '0');
        add_to_spec(c, *at, 1);
    }
    return true;
}

typedef union bp_printed {
    long long integer;
    unsigned long long natural;
    double real;
    long double large;
    const void *pointer;
    const char *text;
} bp_printed;

static void put_conversion(printer *p, const conversion *c, bp_printed value)
{
    char shown[512]; /* %f of a double has at most 310 digits and its precision */
    char spec[sizeof c->spec + 4];
    bool whole = strchr("dic", c->kind) != NULL, natural = strchr("uoxX", c->kind) != NULL;
    snprintf(spec, sizeof spec, "%.*s%s%c", (int)c->length, c->spec,
             whole || natural            ? (c->kind == 'c' ? "" : "ll")
             : strcmp(c->size, "L") == 0 ? "L"
                                         : "",
             c->kind);
    int count = 0;
    if (c->kind == 'c')
        count = snprintf(shown, sizeof shown, spec, (int)value.integer);
    else if (whole)
        count = snprintf(shown, sizeof shown, spec, value.integer);
    else if (natural)
        count = snprintf(shown, sizeof shown, spec, value.natural);
    else if (c->kind == 'p')
        count = snprintf(shown, sizeof shown, spec, value.pointer);
    else if (strcmp(c->size, "L") == 0)
        count = snprintf(shown, sizeof shown, spec, value.large);
    else
        count = snprintf(shown, sizeof shown, spec, value.real);
    if (count > 0 && (size_t)count < sizeof shown)
        put_bytes(p, shown, (size_t)count);
}

static void put_argument(printer *p, const conversion *c, const char *text)
{
    size_t max = c->has_precision ? c->precision : SIZE_MAX, characters = 0;
    text = text != NULL ? text : "(null)";
    if (c->width > 0)
        characters = put_text(NULL, text, max);
    size_t padding = c->width > characters ? c->width - characters : 0;
    put_spaces(p, c->left ? 0 : padding);
    put_text(p, text, max);
    put_spaces(p, c->left ? padding : 0);
}

size_t bp_vprint(char *text, size_t room, const char *format, va_list args)
{
    printer p = {.text = text, .room = room};
    for (const char *at = format; *at != '\0';) {
        size_t bytes = bp_character_bytes((const unsigned char *)at);
        if (*at != '%') {
            bytes = bytes > 0 ? bytes : 1;
            put_bytes(&p, at, bytes);
            at += bytes;
            continue;
        }
        conversion c = {.spec = "%", .length = 1};
        for (at++; *at != '\0' && strchr("-+ #0", *at) != NULL; at++) {
            c.left = c.left || *at == '-';
            add_to_spec(&c, at, 1);
        }
        if (!read_directive(&c, &at, *at == '*' ? va_arg(args, int) : 0, &c.width))
            c.left = true;
        if (*at == '.') {
            add_to_spec(&c, at++, 1);
            c.has_precision = read_directive(&c, &at, *at == '*' ? va_arg(args, int) : 0, &c.precision);
        }
        for (size_t i = 0; i < 2 && *at != '\0' && strchr("hlzjtL", *at) != NULL; i++)
            c.size[i] = *at++;
        if (*at == '\0')
            break;
        c.kind = *at++;
        bool is_long = c.size[0] == 'l' && c.size[1] == '\0';
        bool is_longest = strcmp(c.size, "ll") == 0 || c.size[0] == 'j';
        bool is_size = c.size[0] == 'z' || c.size[0] == 't';
        bp_printed value = {0};
        switch (c.kind) {
        case '%': put_bytes(&p, "%", 1); continue;
        case 's': put_argument(&p, &c, va_arg(args, const char *)); continue;
        case 'c': value.integer = va_arg(args, int); break;
        case 'd':
        case 'i':
            value.integer = is_longest ? va_arg(args, long long)
                            : is_size  ? va_arg(args, ptrdiff_t)
                            : is_long  ? va_arg(args, long)
                                       : va_arg(args, int);
            break;
        case 'u':
        case 'o':
        case 'x':
        case 'X':
            value.natural = is_longest ? va_arg(args, unsigned long long)
                            : is_size  ? va_arg(args, size_t)
                            : is_long  ? va_arg(args, unsigned long)
                                       : va_arg(args, unsigned);
            break;
        case 'p': value.pointer = va_arg(args, const void *); break;
        default:
            if (c.size[0] == 'L')
                value.large = va_arg(args, long double);
            else
                value.real = va_arg(args, double);
        }
        put_conversion(&p, &c, value);
    }
    if (room > 0)
        text[p.written] = '\0';
    return p.needed;
}

size_t bp_print(char *text, size_t room, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    size_t needed = bp_vprint(text, room, format, args);
    va_end(args);
    return needed;
}
