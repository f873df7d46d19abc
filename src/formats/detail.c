#include "formats/detail.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "core/fail.h"

/* Bytes of the well-formed UTF-8 sequence at `text` (RFC 3629), 0 for anything else and for control characters. */
static size_t printable_bytes(const unsigned char *text)
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

bool bp_is_name(const char *text)
{
    const unsigned char *at = (const unsigned char *)text;
    if (*at == '\0')
        return false;
    while (*at != '\0') {
        size_t bytes = printable_bytes(at);
        if (bytes == 0)
            return false;
        at += bytes;
    }
    return true;
}

void bp_make_printable(char *text)
{
    for (unsigned char *at = (unsigned char *)text; *at != '\0';) {
        size_t bytes = printable_bytes(at);
        if (bytes == 0)
            *at = '?';
        at += bytes > 0 ? bytes : 1;
    }
}

bp_status bp_fail_quoting(bp_status status, const char *format, ...)
{
    char detail[BP_DETAIL_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(detail, sizeof detail, format, args);
    va_end(args);
    bp_make_printable(detail);
    return bp_error_record(status, detail);
}

bp_status bp_fail_at(const char *where, bp_status status)
{
    if (status == BP_OK || status == BP_ERR_NO_HOST_MEMORY)
        return status;
    bool is_input = status == BP_ERR_INVALID_ARGUMENT || status == BP_ERR_OVERFLOW;
    return bp_fail_quoting(is_input ? BP_ERR_FORMAT : status, "%.320s: %s", where, bp_error_detail());
}
