/* SPDX-License-Identifier: Apache-2.0 */
/* A parser for Python pickles that hold plain data only: None, booleans, integers, floats, strings, bytes, lists,
 * tuples and dictionaries of protocols 2 to 5. Opcodes that name globals, call or build objects are refused; nothing
 * is executed. Source of the format: Python's pickletools module, which describes every opcode.
 *
 * A reference takes 8 bytes: scalars stay in the data and are decoded at each access, containers are ranges of an
 * array of references. A trace of a million events takes about twice as much memory as its file. A reader of larger
 * files passes a reducer, which takes records (events, frames) as soon as they are complete: they take 16 bytes then. */
#ifndef BP_FORMATS_SNAPSHOTS_PICKLE_H
#define BP_FORMATS_SNAPSHOTS_PICKLE_H

#include <bucketpool/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum bp_pickle_kind {
    BP_PICKLE_ABSENT, /* a missing member or item */
    BP_PICKLE_NONE,
    BP_PICKLE_BOOL,
    BP_PICKLE_INTEGER,
    BP_PICKLE_FLOAT,
    BP_PICKLE_STRING,
    BP_PICKLE_BYTES,
    BP_PICKLE_LIST,
    BP_PICKLE_TUPLE,
    BP_PICKLE_DICTIONARY,
    BP_PICKLE_TOKEN /* a list or dictionary that a reducer has taken; magnitude: its token */
} bp_pickle_kind;

/* For a scalar the offset of its opcode in the data; for a container its number, with the highest bit set; for a text
 * that a reducer has interned its index, with the second bit set. */
typedef uint64_t bp_pickle_ref;
#define BP_PICKLE_NO_REF UINT64_MAX /* of an absent value */

typedef struct bp_pickle_value {
    uint8_t kind;
    bool is_negative; /* integers: the value is -magnitude */
    uint32_t count;   /* bytes of text; items; for dictionaries, keys and values alternate */
    union {
        uint64_t magnitude; /* booleans: 0 or 1 */
        double real;
        const char *text; /* points into the data, or into a reducer's memory; not terminated */
        const bp_pickle_ref *items;
    };
    uint32_t interned; /* of a string that a reducer has interned: its index; else BP_PICKLE_NOT_INTERNED */
} bp_pickle_value;
#define BP_PICKLE_NOT_INTERNED UINT32_MAX

typedef struct bp_pickle_container {
    uint32_t first;                 /* index of its first item in the array of all items; a token */
    uint32_t count : 30, shape : 2; /* its kind is BP_PICKLE_LIST + shape */
} bp_pickle_container;

/* A container may occur in several places, even inside itself. */
typedef struct bp_pickle {
    const unsigned char *data;
    size_t bytes;
    bp_pickle_container *containers;
    bp_pickle_ref *items;
    bp_pickle_ref root;
    size_t granted;                          /* bytes of the budget that parsing used */
    const struct bp_pickle_reducer *reducer; /* has the texts; NULL: none */
} bp_pickle;

typedef struct bp_pickle_text {
    const char *text;
    size_t bytes;
} bp_pickle_text;

/* Functions of a reader that take values out of the pickle while it is parsed. */
typedef struct bp_pickle_reducer {
    void *context;
    /* Returns the index of a text, which does not point into the data any more (bp_pickle.reducer->texts). */
    bp_status (*intern)(void *context, const char *text, size_t bytes, uint32_t *index);
    /* Offers the items of a list or dictionary. A list of many items comes in parts; `token`: what the earlier parts
     * became, or BP_PICKLE_NO_TOKEN. Sets *token to take the items, or leaves BP_PICKLE_NO_TOKEN. begin: offset in the
     * data before the items; scalars between it and the end of the items are not used again if they are taken. */
    bp_status (*reduce)(void *context, const bp_pickle *pickle, bp_pickle_kind kind, const bp_pickle_ref *items,
                        size_t count, size_t begin, size_t end, uint32_t *token);
    const bp_pickle_text *texts; /* by index */
} bp_pickle_reducer;
#define BP_PICKLE_NO_TOKEN UINT32_MAX

#define BP_PICKLE_MAX_BYTES ((size_t)512 << 20)

/* Allocates at most `budget` bytes. The pickle lives until bp_pickle_finish and needs `data` and `reducer` (NULL: none)
 * until then. `origin`: name of the data in errors, "<origin>: byte <offset>: <what>". Errors: BP_ERR_FORMAT,
 * BP_ERR_NO_HOST_MEMORY, and those of the reducer; then there is nothing to finish. */
bp_status bp_pickle_parse(const void *data, size_t bytes, size_t budget, const char *origin,
                          const bp_pickle_reducer *reducer, bp_pickle *pickle);
void bp_pickle_finish(bp_pickle *pickle);

bp_pickle_value bp_pickle_get(const bp_pickle *pickle, bp_pickle_ref ref);

/* The value of a key in a dictionary; the last one if the key is repeated. BP_PICKLE_NO_REF if there is none, the
 * value is not a dictionary, or it has more than BP_PICKLE_MOST_MEMBERS members (then it is a table, not a record). */
#define BP_PICKLE_MAX_MEMBERS 64
bp_pickle_ref bp_pickle_find(const bp_pickle *pickle, bp_pickle_value dictionary, const char *key);

/* True for lists and tuples. */
static inline bool bp_pickle_is_list(bp_pickle_value value)
{
    return value.kind == BP_PICKLE_LIST || value.kind == BP_PICKLE_TUPLE;
}

#endif
