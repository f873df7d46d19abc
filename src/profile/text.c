#include "profile/text.h"

#include <string.h>

#define REPLACEMENT "\xef\xbf\xbd"

/* How many bytes a character that begins so has, 0: none begins so; and what its second byte may be (RFC 3629). */
static size_t sequence(uint8_t first, uint8_t *least, uint8_t *most)
{
    *least = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
    *most = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
    if (first < 0x80)
        return 1;
    if (first < 0xc2 || first > 0xf4)
        return 0;
    return first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
}

size_t bp_text_next(const char *text, bool *is_valid)
{
    const uint8_t *bytes = (const uint8_t *)text;
    uint8_t least, most;
    *is_valid = true;
    if (bytes[0] == 0)
        return 0;
    size_t length = sequence(bytes[0], &least, &most);
    for (size_t i = 1; i < length; i++) { /* ends at the terminator at the latest */
        if (bytes[i] < (i == 1 ? least : 0x80) || bytes[i] > (i == 1 ? most : 0xbf))
            length = 0;
    }
    *is_valid = length > 0;
    return length > 0 ? length : 1;
}

size_t bp_text_bytes(const char *const *pieces, size_t count)
{
    size_t bytes = 0, length;
    bool is_valid;
    for (size_t i = 0; i < count; i++)
        for (const char *at = pieces[i]; (length = bp_text_next(at, &is_valid)) > 0; at += length)
            bytes += is_valid ? length : strlen(REPLACEMENT);
    return bytes;
}

void bp_text_write(bp_output *output, const char *const *pieces, size_t count)
{
    size_t length;
    bool is_valid;
    for (size_t i = 0; i < count; i++)
        for (const char *at = pieces[i]; (length = bp_text_next(at, &is_valid)) > 0; at += length)
            bp_output_add(output, is_valid ? at : REPLACEMENT, is_valid ? length : strlen(REPLACEMENT));
}
