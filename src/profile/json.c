#include "profile/json.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "profile/text.h"

static void escape(bp_output *o, const char *at, size_t length)
{
    char code[8];
    if (length == 1 && (*at == '"' || *at == '\\')) {
        bp_output_byte(o, '\\');
    } else if (length == 1 && ((uint8_t)*at < 0x20 || *at == 0x7f)) {
        snprintf(code, sizeof code, "\\u%04x", (unsigned)(uint8_t)*at);
        bp_output_add(o, code, 6);
        return;
    }
    bp_output_add(o, at, length);
}

void bp_trace_text(bp_output *output, const char *const *pieces, size_t count)
{
    size_t length;
    bool is_valid;
    bp_output_byte(output, '"');
    for (size_t i = 0; i < count; i++) {
        for (const char *at = pieces[i]; (length = bp_text_next(at, &is_valid)) > 0; at += length) {
            if (is_valid)
                escape(output, at, length);
            else
                bp_output_add(output, "\\ufffd", 6);
        }
    }
    bp_output_byte(output, '"');
}

void bp_trace_string(bp_output *output, const char *text)
{
    bp_trace_text(output, &text, 1);
}

void bp_trace_print(bp_output *output, const char *format, ...)
{
    char text[401];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    bp_output_add(output, text, strlen(text));
}
