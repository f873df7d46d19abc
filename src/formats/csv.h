/* CSV as RFC 4180 has it, strictly: commas between fields, a line end (LF or CRLF) behind each row, perhaps not the last; a field in
 * quotes may have commas, and quotes doubled. A UTF-8 byte order mark at the beginning is passed over. Control characters are
 * refused everywhere, so that a row is a line. */
#ifndef BP_FORMATS_CSV_H
#define BP_FORMATS_CSV_H

#include <bucketpool/status.h>

#include <stdbool.h>
#include <stddef.h>

typedef struct bp_csv_place {
    size_t line, column; /* from 1; columns count characters */
} bp_csv_place;

typedef struct bp_csv_field {
    const char *text; /* without its quotes, terminated by a NUL */
    bp_csv_place place;
    bool is_last; /* of its row */
} bp_csv_field;

typedef struct bp_csv {
    const char *origin;
    const char *at, *end;
    bp_csv_place place; /* of `at` */
    char *room;         /* where the next field's text goes */
} bp_csv;

/* `room` has `bytes` + 1 bytes and lives as long as the fields' texts. */
void bp_csv_init(bp_csv *csv, const char *text, size_t bytes, const char *origin, char *room);
/* Between rows: there is no further one. */
bool bp_csv_is_at_end(const bp_csv *csv);
bp_status bp_csv_next(bp_csv *csv, bp_csv_field *field);

/* BP_ERR_FORMAT with "<origin>:<line>:<column>: <what>". */
__attribute__((format(printf, 3, 4))) bp_status bp_csv_fail(const bp_csv *csv, bp_csv_place place, const char *format,
                                                            ...);

#endif
