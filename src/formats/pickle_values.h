/* Making the values of a pickle: an arena that is freed as a whole. */
#ifndef BP_FORMATS_PICKLE_VALUES_H
#define BP_FORMATS_PICKLE_VALUES_H

#include "formats/pickle.h"

/* NULL: out of memory. */
void *bp_pickle_allocate(bp_pickle *pickle, size_t bytes);
bp_pickle_value *bp_pickle_new(bp_pickle *pickle, bp_pickle_kind kind);

/* Behind what the value has. false: out of memory, or more than 2^32 - 1. */
bool bp_pickle_append(bp_pickle *pickle, bp_pickle_value *value, bp_pickle_value *const *items, size_t count);

#endif
