/* The state of the stack machine, for its parts. */
#ifndef BP_FORMATS_PICKLE_MACHINE_H
#define BP_FORMATS_PICKLE_MACHINE_H

#include "formats/pickle_values.h"

enum { BP_PICKLE_MOST_MARKS = 1000, BP_PICKLE_LEAST_PROTOCOL = 2, BP_PICKLE_MOST_PROTOCOL = 5 };

typedef struct bp_pickle_machine {
    const char *origin;
    const unsigned char *begin, *at, *end;
    size_t opcode_at;
    bp_pickle pickle;
    bp_pickle_value **stack,
        **memo; /* the stack grows by a value for each opcode at most: it never needs more than the bytes */
    size_t stack_count, stack_capacity, memo_count, memo_capacity;
    size_t marks[BP_PICKLE_MOST_MARKS]; /* how high the stack was */
    size_t mark_count;
    bp_pickle_value *none, *booleans[2];
} bp_pickle_machine;

/* BP_ERR_FORMAT with the origin and where the opcode is. A macro for the reason that bp_fail is one. */
__attribute__((format(printf, 2, 3))) void bp_pickle_record(const bp_pickle_machine *m, const char *format, ...);
#define bp_pickle_fail(m, ...) (bp_pickle_record((m), __VA_ARGS__), BP_ERR_FORMAT)

/* The opcode's next bytes; the next `bytes` (at most 8), as a little-endian number. */
bp_status bp_pickle_take(bp_pickle_machine *m, uint64_t bytes, const unsigned char **argument);
bp_status bp_pickle_take_number(bp_pickle_machine *m, size_t bytes, uint64_t *number);

/* That so many values are above the last mark. */
bp_status bp_pickle_need(const bp_pickle_machine *m, size_t count);
/* NULL: out of memory. */
bp_status bp_pickle_push(bp_pickle_machine *m, bp_pickle_value *value);

/* pickle_scalars.c: an argument of the opcode becomes a value. */
bp_status bp_pickle_push_unsigned(bp_pickle_machine *m, size_t bytes);
bp_status bp_pickle_push_signed(bp_pickle_machine *m, uint64_t bytes);
bp_status bp_pickle_push_long(bp_pickle_machine *m, size_t length_bytes);
bp_status bp_pickle_push_float(bp_pickle_machine *m);
bp_status bp_pickle_push_text(bp_pickle_machine *m, bp_pickle_kind kind, size_t length_bytes);

/* pickle_refused.c: an opcode that is not of plain data, by what it would do. */
bp_status bp_pickle_refuse(const bp_pickle_machine *m, unsigned char opcode);

#endif
