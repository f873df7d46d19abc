/* A packing instance as its owner built it: sizes, intervals, added conflicts. */
#ifndef BP_PACKING_PACKING_H
#define BP_PACKING_PACKING_H

#include <bucketpool/pack.h>

#include "core/memory.h"

typedef struct bp_pair {
    uint32_t item, other;
} bp_pair;

struct bp_packing {
    uint64_t *sizes;
    size_t count, capacity;
    bp_packing_interval *lives;
    size_t life_count, life_capacity;
    bp_pair *pairs;
    size_t pair_count, pair_capacity;
    bp_packing_info info; /* shows these arrays */
};

#endif
