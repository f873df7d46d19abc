/* Error details that quote files, whose bytes bp_error_record makes printable, and names in files. */
#ifndef BP_FORMATS_DETAIL_H
#define BP_FORMATS_DETAIL_H

#include <bucketpool/status.h>

#include <stdbool.h>

/* How much of a quoted name goes into a detail: printf("\"%.*s\"", BP_QUOTED, name). */
#define BP_QUOTED 120

/* Makes the last detail read "<where>: <detail>". A model that refuses what a file says has been given bad input, so
 * BP_ERR_INVALID_ARGUMENT and BP_ERR_OVERFLOW become BP_ERR_FORMAT; BP_OK and host memory pass unchanged. */
bp_status bp_fail_at(const char *where, bp_status status);

/* True for text that may be a name: not empty, UTF-8, no control characters. */
bool bp_is_name(const char *text);

#endif
