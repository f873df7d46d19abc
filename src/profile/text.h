/* Names in files: whatever bytes they have, what is written is UTF-8. A text is given as pieces that are written one after the other. */
#ifndef BP_PROFILE_TEXT_H
#define BP_PROFILE_TEXT_H

#include <stdbool.h>

#include "files/files.h"

/* The next character of `text`: its bytes there (0: the end), and whether they are a character of UTF-8; if not, it is one byte, for which U+FFFD
 * is written. */
size_t bp_text_next(const char *text, bool *is_valid);

/* Bytes of the text as written. */
size_t bp_text_bytes(const char *const *pieces, size_t count);
void bp_text_write(bp_output *output, const char *const *pieces, size_t count);

#endif
