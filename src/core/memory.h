/* SPDX-License-Identifier: Apache-2.0 */
/* Growing arrays and strings for the planning side. Not used on the paths that serve buckets. */
#ifndef BP_CORE_MEMORY_H
#define BP_CORE_MEMORY_H

#include <bucketpool/status.h>

#include <stddef.h>

/* Zeroed memory for `count` elements; count 0 gives a valid pointer. free() it. */
bp_status bp_new_array(size_t count, size_t element_bytes, void **array);

/* The same on cache lines, for elements of whole lines. */
bp_status bp_new_lines(size_t count, size_t element_bytes, void **array);

/* Makes room for index `count`: doubles `*capacity` until it is larger. */
bp_status bp_grow_array(void **array, size_t *capacity, size_t count, size_t element_bytes);

/* A copy of a string; free() it. */
bp_status bp_copy_string(const char *text, char **copy);

/* Strings that are freed together, at stable addresses. */
typedef struct bp_strings {
    struct bp_string_block *blocks;
} bp_strings;

bp_status bp_strings_add(bp_strings *strings, const char *text, const char **copy);
void bp_strings_finish(bp_strings *strings);

#endif
