/* The units that tensors lie in, in the order of a model. */
#ifndef BP_FORMATS_TENSOR_UNITS_H
#define BP_FORMATS_TENSOR_UNITS_H

#include <stddef.h>

#include "formats/tensors.h"

#define BP_NO_UNIT SIZE_MAX

typedef struct bp_tensor_unit {
    const char *name; /* owned by `names` below */
    size_t bytes;     /* of the name */
    size_t outer;     /* index in `units`, BP_NO_UNIT: outermost */
    size_t stack;     /* units numbered by one pattern behind one prefix form a stack; stacks in order of appearance */
    const struct bp_tensor_unit *outer_unit;
} bp_tensor_unit;

typedef struct bp_tensor_units {
    bp_tensor_unit *units; /* in order of appearance */
    size_t count, capacity;
    size_t *order;          /* indices of `units`: outer before inner, stack after stack, by number within one */
    size_t *of_tensor;      /* for each tensor the index of its innermost unit, or BP_NO_UNIT */
    json_t *names, *stacks; /* name -> index: jansson's objects are hash tables */
} bp_tensor_units;

/* `patterns`: as in bp_reader_options. Errors: BP_ERR_INVALID_ARGUMENT for them, BP_ERR_NO_HOST_MEMORY. */
bp_status bp_tensor_units_init(bp_tensor_units *units, const bp_tensors *tensors, const char *patterns);
void bp_tensor_units_finish(bp_tensor_units *units);

/* The index of `key` in `map`; a new key gets `count`. *name (not NULL) is the map's own copy of the key. */
bp_status bp_map_find_or_add(json_t *map, const char *key, size_t count, size_t *index, const char **name);

#endif
