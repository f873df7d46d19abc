/* One attempt of the search: branching over what begins at the lowest height. */
#ifndef BP_PACKING_BRANCHING_H
#define BP_PACKING_BRANCHING_H

#include "packing/placing.h"

/* How the next section is chosen. BP_PICK_ITEM: not at all; the preferred item begins there or does not. */
typedef enum bp_pick { BP_PICK_FEWEST, BP_PICK_TIGHTEST, BP_PICK_ITEM, BP_PICK_COUNT } bp_pick;

typedef struct bp_search {
    bp_placing placing;
    uint32_t *rank;       /* by item: in the order of preference */
    uint32_t *candidates; /* by section that the latest count saw: items that may begin now */
    uint32_t *arena;      /* lists of items, last in first out */
    size_t arena_used, arena_capacity;
    bp_pick pick;
} bp_search;

/* Items of a part, in the arena; those that were placed since are passed over. */
typedef struct bp_part {
    size_t first, count;
} bp_part;

/* Puts an item into the arena. False, and the search is stopped: no memory. */
bool bp_search_remember(bp_search *search, uint32_t item);

/* Places the items of the part, which are in the order of their first sections: solves what is left of it in parts that do not meet in
 * time. False: it cannot be, or the search has stopped. */
bool bp_search_parts(bp_search *search, bp_part of);

#endif
