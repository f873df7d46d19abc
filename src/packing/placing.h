/* Items that are placed from the bottom up, what follows from that for those that are left, and taking it back. */
#ifndef BP_PACKING_PLACING_H
#define BP_PACKING_PLACING_H

#include "packing/problem.h"

#define BP_NOT_FIXED UINT64_MAX

/* One thing to undo: a value that was `old`, or, without a place, the placing of item `old`. */
typedef struct bp_change {
    uint64_t *where, old;
} bp_change;

typedef struct bp_placing {
    const bp_problem *p;
    uint64_t capacity;
    const uint64_t *fixed; /* by item: the only offset it can have, BP_NOT_FIXED; NULL: none is fixed */
    uint64_t *offsets;
    bool *placed;
    uint64_t *supported;       /* by item: the highest end of a placed neighbour */
    uint64_t *lowest;          /* by item: it does not begin lower; at least `supported`, unless fixed */
    uint64_t *floor_of, *rest; /* by section: where what is left may begin, and its sizes' sum */
    uint32_t *stamp;           /* by section: the latest pass that saw it */
    uint32_t stamps;
    uint32_t *raised; /* items that a placing raised, and their `lowest` before */
    uint64_t *before;
    bp_change *trail;
    size_t trail_count, trail_capacity;
    bp_work work;
    bool stopped; /* the work ended, or memory */
    bp_status status;
} bp_placing;

/* Keeps the pointers `fixed` and `offsets`, which have room for all items. */
bp_status bp_placing_init(const bp_problem *problem, uint64_t capacity, const uint64_t *fixed, uint64_t *offsets,
                          bp_placing *placing);
void bp_placing_finish(bp_placing *placing);
/* Back to where nothing is placed, with new work. False: what is fixed cannot be. */
bool bp_placing_begin(bp_placing *placing, bp_work work);

static inline bool bp_is_fixed(const bp_placing *p, uint32_t item)
{
    return p->fixed != NULL && p->fixed[item] != BP_NOT_FIXED;
}

void bp_placing_stop(bp_placing *s, bp_status status);

/* All of these answer false where no room is left; what was changed until then is for bp_placing_undo. */
bool bp_place(bp_placing *placing, uint32_t item, uint64_t at);
/* The item begins at `lowest` at least. */
bool bp_raise(bp_placing *placing, uint32_t item, uint64_t lowest);
/* The sections whose floor the item held at `before`, each once a stamp. */
bool bp_check_sections_of(bp_placing *placing, uint32_t item, uint64_t before);

/* The lowest end that a neighbour can have that is not placed yet: what does not rest on the placed ones rests on that or higher. */
uint64_t bp_next_support(bp_placing *s, uint32_t item);

/* Takes back all changes since there were `mark` of them in the trail. */
void bp_placing_undo(bp_placing *s, size_t mark);

#endif
