/* SPDX-License-Identifier: Apache-2.0 */
/* A JSON writer (RFC 8259) into memory or an open output. Tracks the nesting and keeps the first failure, so callers
 * check once, at the end. */
#ifndef BP_FILES_JSON_WRITER_H
#define BP_FILES_JSON_WRITER_H

#include "core/files.h"

#define BP_JSON_MAX_LEVELS 32

typedef enum bp_json_layout {
    BP_JSON_LINES,   /* a line for each member and element; rows on one line */
    BP_JSON_FITTED,  /* one line for each value that ends before column 160, else as BP_JSON_LINES; in memory only */
    BP_JSON_COMPACT, /* no white space except line ends of bp_json_add_line */
} bp_json_layout;

/* {0} writes lines into memory. Callers set the first four members, and read and free `text`. */
typedef struct bp_json_writer {
    bp_output *output; /* NULL: memory; an output reports its own failures (files.h) */
    bp_json_layout layout;
    const char *replacement; /* JSON text of at most 7 bytes for each byte that is not UTF-8; NULL: "?" */
    bool is_in_page;         /* for a script element: <, >, &, ' and Unicode's line separators are escaped */

    char *text; /* in memory; not terminated */
    size_t bytes, capacity;
    bp_status status;  /* of the first failure */
    bool has_replaced; /* a byte was not UTF-8 */
    unsigned depth;
    struct {
        size_t begin; /* in `text` */
        bool is_list, is_row;
    } levels[BP_JSON_MAX_LEVELS]; /* open objects and lists; the first is the document */
    bool has_any, needs_line;     /* innermost level: has a value; the next value starts a line */
} bp_json_writer;

/* Members of an object have a key; elements of a list and the document pass NULL. A wrong key, a second document, or
 * more than BP_JSON_MOST_LEVELS - 1 levels are BP_ERR_INTERNAL. */
void bp_json_add_object(bp_json_writer *writer, const char *key);
void bp_json_add_list(bp_json_writer *writer, const char *key);
/* A list on one line. */
void bp_json_add_row(bp_json_writer *writer, const char *key);
/* Closes the innermost object or list. */
void bp_json_end(bp_json_writer *writer);

/* A NULL text is written as null. */
void bp_json_add_text(bp_json_writer *writer, const char *key, const char *text);
/* One text from several pieces. */
void bp_json_add_pieces(bp_json_writer *writer, const char *key, const char *const *pieces, size_t count);
void bp_json_add_number(bp_json_writer *writer, const char *key, uint64_t number);
void bp_json_add_signed(bp_json_writer *writer, const char *key, int64_t number);
/* number / 1000, with three decimals. */
void bp_json_add_thousandths(bp_json_writer *writer, const char *key, uint64_t number);
/* Nine digits; infinities and NaN are null. */
void bp_json_add_real(bp_json_writer *writer, const char *key, double number);
void bp_json_add_flag(bp_json_writer *writer, const char *key, bool flag);
void bp_json_add_null(bp_json_writer *writer, const char *key);
/* Puts a line end before the next value or end. */
void bp_json_add_line(bp_json_writer *writer);

/* True for BP_OK; any other status is kept as the writer's failure, and stops all further output. */
bool bp_json_check(bp_json_writer *writer, bp_status status);
/* Ends the document with a line end and returns the first failure. Errors: BP_ERR_NO_HOST_MEMORY, BP_ERR_INTERNAL
 * (also if an object or a list is open), statuses given to bp_json_check. */
bp_status bp_json_close(bp_json_writer *writer);
/* Closes a writer in memory, frees its text, and replaces the file at `path`. Errors: also those of bp_output_open. */
bp_status bp_json_save(bp_json_writer *writer, const char *path);

#endif
