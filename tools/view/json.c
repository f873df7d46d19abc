#include "view/json.h"

#include <stdbool.h>
#include <string.h>

/* Bytes of the UTF-8 character here, 0: none begins here. */
static size_t character(const unsigned char *at)
{
    static const uint32_t smallest[5] = {0, 0, 0x80, 0x800, 0x10000};
    size_t bytes = *at < 0x80 ? 1 : *at >= 0xf8 ? 0 : *at >= 0xf0 ? 4 : *at >= 0xe0 ? 3 : *at >= 0xc0 ? 2 : 0;
    uint32_t value = bytes > 1 ? *at & (0x7fu >> bytes) : *at;
    for (size_t i = 1; i < bytes; i++) {
        if ((at[i] & 0xc0) != 0x80)
            return 0;
        value = value << 6 | (at[i] & 0x3f);
    }
    bool good = bytes > 0 && value >= smallest[bytes] && value <= 0x10ffff && (value < 0xd800 || value > 0xdfff);
    return good ? bytes : 0;
}

static bool is_utf8(const char *text)
{
    const unsigned char *at = (const unsigned char *)text;
    while (*at != '\0') {
        size_t bytes = character(at);
        if (bytes == 0)
            return false;
        at += bytes;
    }
    return true;
}

void view_json_text(FILE *file, const char *text)
{
    bool good = is_utf8(text);
    putc('"', file);
    for (const unsigned char *at = (const unsigned char *)text; *at != '\0'; at++) {
        if (*at == '"' || *at == '\\')
            fprintf(file, "\\%c", *at);
        else if (*at < 0x20 || *at == 0x7f || strchr("<>&'", *at) != NULL)
            fprintf(file, "\\u%04x", *at);
        else if (good && at[0] == 0xe2 && at[1] == 0x80 && (at[2] == 0xa8 || at[2] == 0xa9)) {
            fprintf(file, "\\u202%x", at[2] - 0xa0);
            at += 2;
        } else
            putc(*at < 0x80 || good ? *at : '?', file);
    }
    putc('"', file);
}
