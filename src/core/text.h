/* Untrusted text, from files, other ranks and callbacks. Control characters could drive a terminal, and a truncated UTF-8 sequence would
 * break callers that decode. */
#ifndef BP_CORE_TEXT_H
#define BP_CORE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
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

/* As bp_character_bytes, but 0 also for control characters. */
static inline size_t bp_printable_bytes(const unsigned char *text)
{
    bool is_control = text[0] < 0x20 || text[0] == 0x7F || (text[0] == 0xC2 && text[1] < 0xA0);
    return is_control ? 0 : bp_character_bytes(text);
}

/* Replaces control characters and invalid UTF-8 by '?'. */
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
