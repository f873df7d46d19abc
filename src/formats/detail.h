/* Error details that quote files. Names in a file are somebody else's bytes: control characters would drive a terminal,
 * and half a UTF-8 sequence would break callers that decode the detail. */
#ifndef BP_FORMATS_DETAIL_H
#define BP_FORMATS_DETAIL_H

#include <bucketpool/status.h>

#include <stdbool.h>

/* How much of a quoted name goes into a detail: printf("\"%.*s\"", BP_QUOTED, name). */
#define BP_QUOTED 120

/* As bp_fail; control characters and bytes that are not UTF-8 become '?'. */
__attribute__((format(printf, 2, 3))) bp_status bp_fail_quoting(bp_status status, const char *format, ...);

/* Makes the last detail read "<where>: <detail>". A model that refuses what a file says has been given bad input, so
 * BP_ERR_INVALID_ARGUMENT and BP_ERR_OVERFLOW become BP_ERR_FORMAT; BP_OK and host memory pass unchanged. */
bp_status bp_fail_at(const char *where, bp_status status);

/* Turns control characters and bytes that are not UTF-8 into '?'. */
void bp_make_printable(char *text);

/* True for text that may be a name: not empty, UTF-8, no control characters. */
bool bp_is_name(const char *text);

#endif
