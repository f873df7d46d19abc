/* JSON, as far as traces need it. */
#ifndef BP_PROFILE_JSON_H
#define BP_PROFILE_JSON_H

#include "files/files.h"

/* A string in quotes, of UTF-8 whatever the pieces have. */
void bp_trace_text(bp_output *output, const char *const *pieces, size_t count);
void bp_trace_string(bp_output *output, const char *text);
/* What is not a string: at most 400 bytes. */
__attribute__((format(printf, 2, 3))) void bp_trace_print(bp_output *output, const char *format, ...);

#endif
