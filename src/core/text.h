/* SPDX-License-Identifier: Apache-2.0 */
/* Untrusted text, from files, arguments, other ranks and callbacks. Control characters could drive a terminal, bidirectional marks reorder
 * what is read, and a truncated UTF-8 sequence would break callers that decode. */
#ifndef BP_CORE_TEXT_H
#define BP_CORE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Bytes of the well-formed UTF-8 sequence at `text` (RFC 3629), else 0. `text` is NUL-terminated; NUL counts as a character. */
static inline size_t bp_character_bytes(const unsigned char *text)
{
    unsigned char first = text[0], low = 0x80, high = 0xBF;
    if (first < 0x80)
        return 1;
    if (first < 0xC2 || first > 0xF4)
        return 0;
    size_t bytes = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
    if (first == 0xE0)
        low = 0xA0; /* shorter encodings exist */
    else if (first == 0xED)
        high = 0x9F; /* surrogates */
    else if (first == 0xF0)
        low = 0x90;
    else if (first == 0xF4)
        high = 0x8F;
    if (text[1] < low || text[1] > high)
        return 0;
    for (size_t i = 2; i < bytes; i++) {
        if (text[i] < 0x80 || text[i] > 0xBF)
            return 0;
    }
    return bytes;
}

/* The code point of a well-formed sequence of so many bytes. */
static inline uint32_t bp_code_point(const unsigned char *text, size_t bytes)
{
    uint32_t point = bytes == 1 ? text[0] : text[0] & (0x7Fu >> bytes);
    for (size_t i = 1; i < bytes; i++)
        point = point << 6 | (text[i] & 0x3Fu);
    return point;
}

/* True for control characters, bidirectional marks, separators of lines, and characters without a width; the joiners U+200C and U+200D,
 * which words and emoji need, are kept. */
static inline bool bp_is_unprintable(uint32_t point)
{
    static const struct {
        uint32_t first, last;
    } ranges[] = {{0, 0x1F},        {0x7F, 0x9F},     {0x61C, 0x61C},   {0x200B, 0x200B}, {0x200E, 0x200F},
                  {0x2028, 0x202E}, {0x2060, 0x206F}, {0xFEFF, 0xFEFF}, {0xFFF9, 0xFFFB}, {0xE0000, 0xE007F}};
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        if (point <= ranges[i].last)
            return point >= ranges[i].first;
    }
    return false;
}

/* As bp_character_bytes, but 0 also for characters that are not printable. */
static inline size_t bp_printable_bytes(const unsigned char *text)
{
    size_t bytes = bp_character_bytes(text);
    return bytes > 0 && bp_is_unprintable(bp_code_point(text, bytes)) ? 0 : bytes;
}

/* Replaces bytes that are not printable by '?', byte by byte. core/print.h shows it instead, where there is room. */
static inline void bp_make_printable(char *text)
{
    for (unsigned char *at = (unsigned char *)text; *at != '\0';) {
        size_t bytes = bp_printable_bytes(at);
        if (bytes == 0)
            *at = '?';
        at += bytes > 0 ? bytes : 1;
    }
}

/* Output of text lines to a buffer that may be too small: keeps the whole lines that fit, counts all bytes. */

typedef struct bp_lines {
    char *text;
    size_t capacity, written;
    size_t needed; /* with the terminator */
    bool full;
} bp_lines;

/* `text` may be NULL when capacity is 0. */
static inline void bp_lines_init(bp_lines *lines, char *text, size_t capacity)
{
    *lines = (bp_lines){.text = text, .capacity = capacity, .needed = 1};
    if (capacity > 0)
        text[0] = '\0';
}

static inline void bp_lines_add(bp_lines *lines, const char *line)
{
    size_t bytes = strlen(line);
    lines->needed += bytes;
    lines->full = lines->full || lines->written + bytes + 1 > lines->capacity;
    if (lines->full)
        return;
    memcpy(lines->text + lines->written, line, bytes + 1);
    lines->written += bytes;
}

#endif
