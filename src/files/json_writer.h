/* A JSON writer (RFC 8259): into memory or into an open output. It keeps the nesting and remembers the first failure, so that callers
 * add value after value and ask once, at the end. */
#ifndef BP_FILES_JSON_WRITER_H
#define BP_FILES_JSON_WRITER_H

#include "files/files.h"

#define BP_JSON_MOST_LEVELS 32

typedef enum bp_json_layout {
    BP_JSON_LINES,   /* a line for each member and element; rows on one line */
    BP_JSON_FITTED,  /* one line for each value that ends before column 160, else as BP_JSON_LINES; in memory only */
    BP_JSON_COMPACT, /* no white space but that of bp_json_add_line */
} bp_json_layout;

/* {0} writes lines into memory. Callers set the first four members, read `text`, and free it. */
typedef struct bp_json_writer {
    bp_output *output; /* NULL: memory. It reports its own failures, see files.h */
    bp_json_layout layout;
    const char *replacement; /* of each byte that is not UTF-8: JSON of at most 7 bytes; NULL: "?" */
    bool is_in_page; /* the text may stand in a script element: <, >, &, ' and Unicode's line separators are escaped */

    char *text; /* in memory; not terminated */
    size_t bytes, capacity;
    bp_status status;  /* of the first failure */
    bool has_replaced; /* a byte that is not UTF-8 */
    unsigned depth;
    struct {
        size_t begin; /* in `text` */
        bool is_list, is_row;
    } levels[BP_JSON_MOST_LEVELS]; /* of open objects and lists; the first is the document */
    bool has_any, needs_line;      /* in the innermost one: a value; a line end before the next one */
} bp_json_writer;

/* A member of an object has a key; an element of a list and the document have NULL. A wrong key, a second document, or more than
 * BP_JSON_MOST_LEVELS - 1 levels are BP_ERR_INTERNAL. */
void bp_json_add_object(bp_json_writer *writer, const char *key);
void bp_json_add_list(bp_json_writer *writer, const char *key);
/* A list on a single line. */
void bp_json_add_row(bp_json_writer *writer, const char *key);
/* Closes the innermost object or list. */
void bp_json_end(bp_json_writer *writer);

/* NULL is null. */
void bp_json_add_text(bp_json_writer *writer, const char *key, const char *text);
/* One text, given in pieces. */
void bp_json_add_pieces(bp_json_writer *writer, const char *key, const char *const *pieces, size_t count);
void bp_json_add_number(bp_json_writer *writer, const char *key, uint64_t number);
void bp_json_add_signed(bp_json_writer *writer, const char *key, int64_t number);
/* The number divided by 1000, with three decimals. */
void bp_json_add_thousandths(bp_json_writer *writer, const char *key, uint64_t number);
/* Nine digits; null for infinities and NaN. */
void bp_json_add_real(bp_json_writer *writer, const char *key, double number);
void bp_json_add_flag(bp_json_writer *writer, const char *key, bool flag);
void bp_json_add_null(bp_json_writer *writer, const char *key);
/* The next value, or the next end, begins on a new line. */
void bp_json_add_line(bp_json_writer *writer);

/* True for BP_OK; another status is a failure of the writer, which writes nothing any more. */
bool bp_json_check(bp_json_writer *writer, bp_status status);
/* Ends the document with a line end. Returns the first failure. Errors: BP_ERR_NO_HOST_MEMORY, BP_ERR_INTERNAL (also where an object or
 * a list is open), those of bp_json_check. */
bp_status bp_json_close(bp_json_writer *writer);
/* Closes a writer in memory, frees its text, and replaces the file at `path`. Errors: also those of bp_output_open. */
bp_status bp_json_save(bp_json_writer *writer, const char *path);

#endif
