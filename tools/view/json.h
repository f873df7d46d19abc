/* JSON, written as it goes, so that numbers keep all 64 bits. */
#ifndef TOOLS_VIEW_JSON_H
#define TOOLS_VIEW_JSON_H

#include <stdint.h>
#include <stdio.h>

/* In quotes, so that it can stand in a page's script, too: neither '<' nor line separators are in it as they are. Bytes that are not ASCII
 * become '?' where the text is not UTF-8 as a whole. */
void view_json_text(FILE *file, const char *text);

#endif
