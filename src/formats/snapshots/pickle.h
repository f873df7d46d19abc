/* Python's pickles, as far as they are data: None, booleans, integers, floats, strings, bytes, lists, tuples and dictionaries of
 * protocols 2 to 5. An opcode that names a global, calls or builds objects is refused; nothing is ever run.
 * Source of the format: Python's pickletools module, which describes every opcode.
 *
 * A reference takes 4 bytes: scalars stay in the data and are decoded when they are asked for, containers are ranges of an array of references.
 * A trace of a million events takes about as much memory as its file. */
#ifndef BP_FORMATS_SNAPSHOTS_PICKLE_H
#define BP_FORMATS_SNAPSHOTS_PICKLE_H

#include <bucketpool/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum bp_pickle_kind {
    BP_PICKLE_ABSENT, /* a member or an item that is not there */
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

/* Of a scalar the offset of its opcode in the data; of a container its number, with the highest bit set. */
typedef uint32_t bp_pickle_ref;
#define BP_PICKLE_NO_REF UINT32_MAX /* an absent value */

typedef struct bp_pickle_value {
    uint8_t kind;
    bool is_negative; /* integers: the value is -magnitude */
    uint32_t count;   /* bytes of text; items; of dictionaries, keys and values in turn */
    union {
        uint64_t magnitude; /* of booleans 0 or 1 */
        double real;
        const char *text; /* into the data that was parsed, without a terminator */
        const bp_pickle_ref *items;
    };
} bp_pickle_value;

typedef struct bp_pickle_container {
    uint32_t first;                 /* its items in the array of all */
    uint32_t count : 30, shape : 2; /* its kind is BP_PICKLE_LIST + shape */
} bp_pickle_container;

/* A container may be in several places, also in itself. */
typedef struct bp_pickle {
    const unsigned char *data;
    size_t bytes;
    bp_pickle_container *containers;
    bp_pickle_ref *items;
    bp_pickle_ref root;
    size_t granted; /* bytes of the budget that parsing took */
} bp_pickle;

#define BP_PICKLE_MOST_BYTES ((size_t)512 << 20)

/* Allocates at most `budget` bytes. The pickle lives until bp_pickle_finish and needs `data` until then. `origin` names the data in errors:
 * "<origin>: byte <offset>: <what>". Errors: BP_ERR_FORMAT, BP_ERR_NO_HOST_MEMORY. On error there is nothing to finish. */
bp_status bp_pickle_parse(const void *data, size_t bytes, size_t budget, const char *origin, bp_pickle *pickle);
void bp_pickle_finish(bp_pickle *pickle);

bp_pickle_value bp_pickle_get(const bp_pickle *pickle, bp_pickle_ref ref);

/* A dictionary's value for a key, the last where it is there twice; BP_PICKLE_NO_REF: none, no dictionary, or one of more than
 * BP_PICKLE_MOST_MEMBERS members, which has other things in it than names of members. */
#define BP_PICKLE_MOST_MEMBERS 64
bp_pickle_ref bp_pickle_find(const bp_pickle *pickle, bp_pickle_value dictionary, const char *key);

/* Lists and tuples are one to readers. */
static inline bool bp_pickle_is_list(bp_pickle_value value)
{
    return value.kind == BP_PICKLE_LIST || value.kind == BP_PICKLE_TUPLE;
}

#endif
