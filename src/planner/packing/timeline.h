/* SPDX-License-Identifier: Apache-2.0 */
/* The instance in time: items with sizes, live ranges in steps, and added conflicts. Its memory is linear in the instance; the conflict
 * graph of problem.h is quadratic. */
#ifndef BP_PACKING_TIMELINE_H
#define BP_PACKING_TIMELINE_H

#include <bucketpool/pack.h>

#include <stddef.h>
#include <stdint.h>

typedef struct bp_pair {
    uint32_t item, other;
} bp_pair;

struct bp_packing {
    uint64_t *sizes;
    size_t count, capacity;
    bp_packing_interval *lives;
    size_t life_count, life_capacity;
    bp_pair *pairs; /* added conflicts */
    size_t pair_count, pair_capacity;
    bp_packing_info info; /* points to these arrays */
};

#define BP_NO_ITEM UINT32_MAX

/* A live range: the steps [begin, end). */
typedef struct bp_life {
    uint32_t begin, end, item;
} bp_life;

/* One connected component of the conflict graph. A step lasts from the first begin after an end to the next end, so each step has one live
 * set, which is maximal. Items have a size and a conflict or live range, and are numbered by first live time; those that only have added
 * conflicts come last. */
typedef struct bp_timeline {
    uint32_t count;
    uint64_t *sizes;
    uint32_t *origin; /* by item: its number in the packing */
    bp_life *lives;   /* by begin; those of one item do not overlap */
    uint32_t life_count, steps;
    bp_pair *pairs; /* added conflicts, each once */
    size_t pair_count;
    uint64_t bound;      /* peak live bytes, and at least the largest size */
    uint32_t bound_step; /* the first step that reaches the peak */
    uint32_t bound_item; /* an item of the size `bound` without a live range; BP_NO_ITEM: the peak is the bound */
    uint64_t conflicts;  /* overlaps of live ranges, and added conflicts: at least the number of conflicting pairs */
} bp_timeline;

typedef struct bp_timelines {
    bp_timeline all; /* owns the arrays, which are grouped by part */
    bp_timeline *parts;
    uint32_t count;
} bp_timelines;

/* The components of a packing, in the order of their first items, by disjoint sets: O(n log n) for sorting the times. Errors:
 * BP_ERR_OVERFLOW (the sum of all sizes does not fit 64 bits; over 2^31 live ranges), BP_ERR_NO_HOST_MEMORY. */
bp_status bp_timelines_init(const bp_packing *packing, bp_timelines *timelines);
void bp_timelines_finish(bp_timelines *timelines);

/* The largest end of an item. */
uint64_t bp_timeline_height(const bp_timeline *timeline, const uint64_t *offsets);

/* The live ranges and the added conflicts of each item: lives[first_life[i]] .. lives[first_life[i + 1] - 1] are numbers of live ranges,
 * pairs[first_pair[i]] .. items. */
typedef struct bp_item_index {
    uint32_t *first_life, *lives;
    uint32_t *first_pair, *pairs;
} bp_item_index;

bp_status bp_item_index_init(const bp_timeline *timeline, bp_item_index *index);
void bp_item_index_finish(bp_item_index *index);

/* Steps in which an item is live. */
uint64_t bp_item_life(const bp_timeline *timeline, const bp_item_index *index, uint32_t item);

/* The live ranges in the order of their ends: their numbers, a counting sort. */
bp_status bp_timeline_ends(const bp_timeline *timeline, uint32_t **by_end);

#endif
