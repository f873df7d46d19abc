/* Python's pickles, as far as they are data: None, booleans, integers, floats, strings, bytes, lists, tuples and dictionaries of
 * protocols 2 to 5. Whatever names a global, calls or builds objects is refused; nothing is ever run.
 * Source of the format: Python's pickletools module, which describes every opcode. */
#ifndef BP_FORMATS_PICKLE_H
#define BP_FORMATS_PICKLE_H

#include <bucketpool/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum bp_pickle_kind {
    BP_PICKLE_NONE,
    BP_PICKLE_BOOL,
    BP_PICKLE_INTEGER,
    BP_PICKLE_FLOAT,
    BP_PICKLE_STRING,
    BP_PICKLE_BYTES,
    BP_PICKLE_LIST,
    BP_PICKLE_TUPLE,
    BP_PICKLE_DICTIONARY
} bp_pickle_kind;

typedef struct bp_pickle_value bp_pickle_value;
struct bp_pickle_value {
    uint8_t kind;
    bool is_negative; /* integers: the value is -magnitude */
    uint32_t count;   /* bytes of text; items; of dictionaries, keys and values in turn */
    union {
        uint64_t magnitude; /* of booleans 0 or 1 */
        double real;
        const char *text; /* into the data that was parsed, without a terminator */
        bp_pickle_value **items;
    };
};

/* Values, and what they are made of. A value may be in several places, also in itself. */
typedef struct bp_pickle {
    const bp_pickle_value *value;
    struct bp_pickle_block *blocks;
} bp_pickle;

#define BP_PICKLE_MOST_BYTES ((size_t)512 << 20)

/* The values live until bp_pickle_finish and as long as `data`. `origin` names it in errors: "<origin>: byte <offset>: <what>".
 * Errors: BP_ERR_FORMAT, BP_ERR_NO_HOST_MEMORY. On error there is nothing to finish. */
bp_status bp_pickle_parse(const void *data, size_t bytes, const char *origin, bp_pickle *pickle);
void bp_pickle_finish(bp_pickle *pickle);

/* A dictionary's value for a key, the last where it is there twice; NULL: none, no dictionary, or one of more than
 * BP_PICKLE_MOST_MEMBERS members, which has other things in it than names of members. */
#define BP_PICKLE_MOST_MEMBERS 64
const bp_pickle_value *bp_pickle_find(const bp_pickle_value *dictionary, const char *key);

/* Lists and tuples are one to readers. */
static inline bool bp_pickle_is_list(const bp_pickle_value *value)
{
    return value != NULL && (value->kind == BP_PICKLE_LIST || value->kind == BP_PICKLE_TUPLE);
}

#endif
