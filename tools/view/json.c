#include "view/json.h"

#include <stdbool.h>
#include <string.h>

#include "document.h"

void view_json_text(FILE *file, const char *text)
{
    bool good = document_is_utf8(text);
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
