#include "picture_text.h"

#include <stdio.h>
#include <string.h>

#include "core/text.h"

#define LONGEST_TEXT 512

void picture_colour(cairo_t *cr, uint32_t colour, double alpha)
{
    cairo_set_source_rgba(cr, (colour >> 16) / 255.0, (colour >> 8 & 255) / 255.0, (colour & 255) / 255.0, alpha);
}

static void clean(const char *text, char cleaned[LONGEST_TEXT])
{
    size_t at = 0;
    while (*text != '\0' && at + 5 < LONGEST_TEXT) {
        size_t bytes = bp_printable_bytes((const unsigned char *)text);
        if (bytes == 0) {
            cleaned[at++] = '?';
            text++;
            continue;
        }
        memcpy(cleaned + at, text, bytes);
        at += bytes;
        text += bytes;
    }
    cleaned[at] = '\0';
}

static double advance(cairo_t *cr, const picture_style *style, const char *cleaned)
{
    cairo_text_extents_t extents = {0};
    cairo_select_font_face(cr, "sans-serif", CAIRO_FONT_SLANT_NORMAL,
                           style->bold ? CAIRO_FONT_WEIGHT_BOLD : CAIRO_FONT_WEIGHT_NORMAL);
    cairo_set_font_size(cr, style->size);
    cairo_text_extents(cr, cleaned, &extents);
    return extents.x_advance;
}

double picture_text_width(cairo_t *cr, const picture_style *style, const char *text)
{
    char cleaned[LONGEST_TEXT];
    clean(text, cleaned);
    return advance(cr, style, cleaned);
}

void picture_text_tail(cairo_t *cr, const picture_style *style, double x, double y, double room, const char *text)
{
    char cleaned[LONGEST_TEXT], shown[LONGEST_TEXT + 4];
    size_t length = strlen(text);
    text += length >= LONGEST_TEXT - 5 ? length - (LONGEST_TEXT - 6) : 0;
    clean(text, cleaned);
    const char *from = cleaned;
    memcpy(shown, cleaned, strlen(cleaned) + 1);
    while (advance(cr, style, shown) > room && *from != '\0') {
        do
            from++;
        while (((unsigned char)*from & 0xc0) == 0x80);
        snprintf(shown, sizeof shown, "\u2026%s", from);
    }
    picture_text(cr, style, x, y, 0, 0, shown);
}

void picture_text(cairo_t *cr, const picture_style *style, double x, double y, double anchor, double room,
                  const char *text)
{
    char cleaned[LONGEST_TEXT + 4];
    clean(text, cleaned);
    size_t length = strlen(cleaned);
    double width = advance(cr, style, cleaned);
    while (room > 0 && width > room && length > 0) {
        do
            length--;
        while (length > 0 && ((unsigned char)cleaned[length] & 0xc0) == 0x80);
        memcpy(cleaned + length, "\u2026", sizeof "\u2026");
        width = advance(cr, style, cleaned);
    }
    picture_colour(cr, style->colour, 1);
    cairo_move_to(cr, x - anchor * width, y);
    cairo_show_text(cr, cleaned);
    cairo_new_path(cr);
}

const char *picture_byte_unit(uint64_t bytes, double *unit)
{
    static const char *const names[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    size_t i = sizeof names / sizeof *names - 1;
    while (i > 0 && bytes < 1ull << 10 * i)
        i--;
    *unit = (double)(1ull << 10 * i);
    return names[i];
}

void picture_format_bytes_as(uint64_t bytes, uint64_t like, char text[PICTURE_BYTES_CHARS])
{
    double unit;
    const char *name = picture_byte_unit(like, &unit);
    double value = (double)bytes / unit;
    int decimals = unit == 1 || bytes == 0 ? 0 : value < 10 ? 3 : value < 100 ? 2 : 1;
    snprintf(text, PICTURE_BYTES_CHARS, "%.*f %s", decimals, value, name);
}

void picture_format_bytes(uint64_t bytes, char text[PICTURE_BYTES_CHARS])
{
    picture_format_bytes_as(bytes, bytes, text);
}
