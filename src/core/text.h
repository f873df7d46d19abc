/* Text from elsewhere: files, other ranks, callbacks. Control characters would drive a terminal, and half a UTF-8 sequence would break
 * callers that decode. */
#ifndef BP_CORE_TEXT_H
#define BP_CORE_TEXT_H

#include <stddef.h>

/* Bytes of the well-formed UTF-8 sequence at `text` (RFC 3629), 0 for anything else and for control characters. */
static inline size_t bp_printable_bytes(const unsigned char *text)
{
    unsigned char first = text[0], low = 0x80, high = 0xBF;
    if (first < 0x80)
        return first >= 0x20 && first != 0x7F ? 1 : 0;
    size_t bytes = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
    if (first < 0xC2 || first > 0xF4)
        return 0;
    if (first == 0xC2 || first == 0xE0)
        low = 0xA0; /* U+0080 to U+009F are controls; shorter encodings exist */
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

/* Turns control characters and bytes that are not UTF-8 into '?'. */
static inline void bp_make_printable(char *text)
{
    for (unsigned char *at = (unsigned char *)text; *at != '\0';) {
        size_t bytes = bp_printable_bytes(at);
        if (bytes == 0)
            *at = '?';
        at += bytes > 0 ? bytes : 1;
    }
}

#endif
