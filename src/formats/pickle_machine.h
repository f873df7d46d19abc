/* The state of the stack machine, for its parts. */
#ifndef BP_FORMATS_PICKLE_MACHINE_H
#define BP_FORMATS_PICKLE_MACHINE_H

#include "formats/pickle.h"

#define BP_PICKLE_IS_CONTAINER 0x80000000u
#define BP_PICKLE_MOST_COUNT 0x3fffffffu /* of bp_pickle_container; a pickle has fewer bytes */

enum { BP_PICKLE_MOST_MARKS = 1000, BP_PICKLE_LEAST_PROTOCOL = 2, BP_PICKLE_MOST_PROTOCOL = 5 };

/* The place in the data that is read, for arguments of opcodes and for errors. */
typedef struct bp_pickle_cursor {
    const char *origin;
    const unsigned char *begin, *at, *end;
    size_t opcode_at;
} bp_pickle_cursor;

typedef struct bp_pickle_array {
    void *memory;
    size_t count, capacity; /* in elements */
} bp_pickle_array;

typedef struct bp_pickle_machine {
    bp_pickle_cursor c;
    bp_pickle_array stack, memo, items; /* of bp_pickle_ref; the memo's count is the next number of MEMOIZE */
    bp_pickle_array containers;
    size_t budget, granted;             /* bytes that all arrays may have, and have */
    size_t marks[BP_PICKLE_MOST_MARKS]; /* heights of the stack */
    size_t mark_count;
} bp_pickle_machine;

/* BP_ERR_FORMAT with the origin and the place of the opcode. A macro for the reason that bp_fail is one. */
__attribute__((format(printf, 2, 3))) void bp_pickle_record(const bp_pickle_cursor *c, const char *format, ...);
#define bp_pickle_fail(c, ...) (bp_pickle_record((c), __VA_ARGS__), BP_ERR_FORMAT)

/* The opcode's next bytes; the next `bytes` (at most 8), as a little-endian number. */
bp_status bp_pickle_take(bp_pickle_cursor *c, uint64_t bytes, const unsigned char **argument);
bp_status bp_pickle_take_number(bp_pickle_cursor *c, size_t bytes, uint64_t *number);

/* Fails unless so many values are above the last mark. */
bp_status bp_pickle_need(const bp_pickle_machine *m, size_t count);

/* pickle_values.c: decodes a scalar, whose arguments follow the cursor. *is_scalar is false of another opcode, which leaves the rest alone. */
bp_status bp_pickle_decode(bp_pickle_cursor *c, unsigned char opcode, bool *is_scalar, bp_pickle_value *value);

/* pickle_refused.c: an opcode that is not of plain data, by its effect. */
bp_status bp_pickle_refuse(const bp_pickle_machine *m, unsigned char opcode);

#endif
