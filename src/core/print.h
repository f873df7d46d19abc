/* SPDX-License-Identifier: Apache-2.0 */
/* Formats text for people. The only function that shows text from outside: arguments of %s may have any bytes. */
#ifndef BP_CORE_PRINT_H
#define BP_CORE_PRINT_H

#include <bucketpool/status.h>

#include <stdarg.h>
#include <stddef.h>

/* vsnprintf, except that an argument of %s that is not printable (bp_is_unprintable) or not UTF-8 appears as <1B>, <U+202E> or <FF>, and
 * that precisions and the end of the buffer cut between characters. The format itself is trusted. Returns the bytes that the whole text
 * needs without its end. Conversions: those of C17 except n, and no positions. */
BP_API BP_PRINTF(3, 0) size_t bp_vprint(char *text, size_t room, const char *format, va_list args);
BP_API BP_PRINTF(3, 4) size_t bp_print(char *text, size_t room, const char *format, ...);

#endif
