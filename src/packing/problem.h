/* A packing instance as the solvers see it: items that take space, their neighbours in the conflict graph, and cliques ("sections") that cover
 * every conflict. Work bounds a search instead of time, so that it ends at the same place on every machine: about a nanosecond a unit. */
#ifndef BP_PACKING_PROBLEM_H
#define BP_PACKING_PROBLEM_H

#include <bucketpool/pack.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- instances as their owners build them --------------------------------------------------------------------------- */

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
    bp_packing_info info; /* shows these arrays */
};

/* ---- work -------------------------------------------------------------------------------------------------------- */

typedef struct bp_work {
    uint64_t spent, limit;
} bp_work;

static inline bool bp_work_is_over(const bp_work *work)
{
    return work->spent > work->limit;
}

static inline uint64_t bp_work_left(const bp_work *work)
{
    return work->spent < work->limit ? work->limit - work->spent : 0;
}

/* The same work with an earlier end. */
static inline bp_work bp_work_part(const bp_work *work, uint64_t share)
{
    uint64_t left = bp_work_left(work);
    return (bp_work){work->spent, work->spent + (share < left ? share : left)};
}

/* ---- lists ------------------------------------------------------------------------------------------------------- */

/* Lists of small numbers in one array: list i is entries[first[i]] .. entries[first[i + 1] - 1]. */
typedef struct bp_lists {
    uint32_t *first, *entries;
    uint32_t count;
} bp_lists;

void bp_lists_finish(bp_lists *lists);

/* The lists the other way round: for each entry below `entry_limit`, which lists have it, in increasing order. */
bp_status bp_lists_invert(const bp_lists *lists, uint32_t entry_limit, bp_lists *inverse);

/* Whether two lists have the same entries in the same order. */
bool bp_lists_equal(const bp_lists *lists, uint32_t one, uint32_t other);

uint64_t bp_hash_list(const uint32_t *entries, uint32_t count);

/* For qsort and bsearch over numbers, over numbers that go by a key, and over pairs (inline, as many are looked for),
 * smaller first. */
int bp_compare_numbers(const void *left, const void *right);

typedef struct bp_keyed {
    uint64_t key;
    uint32_t number;
} bp_keyed;

int bp_compare_keyed(const void *left, const void *right);

static inline int bp_compare_pairs(const void *left, const void *right)
{
    const bp_pair *a = left, *b = right;
    if (a->item != b->item)
        return a->item < b->item ? -1 : 1;
    return (a->other > b->other) - (a->other < b->other);
}

/* Lists that are being written, the newest last. All zeros: none. */
typedef struct bp_list_writer {
    bp_lists lists;
    size_t first_capacity, entry_count, entry_capacity;
} bp_list_writer;

/* Begins a list. Errors of both: BP_ERR_UNSUPPORTED (more entries than are worth searching), BP_ERR_NO_HOST_MEMORY. */
bp_status bp_list_begin(bp_list_writer *writer);
bp_status bp_list_add(bp_list_writer *writer, uint32_t entry);
/* Hands the lists over, and leaves none. The writer's own are freed with bp_lists_finish where this is not reached. */
bp_status bp_list_writer_take(bp_list_writer *writer, bp_lists *lists);

/* ---- problems ---------------------------------------------------------------------------------------------------- */

#define BP_NO_ITEM UINT32_MAX

typedef struct bp_problem {
    uint32_t count; /* items, in the order in which they are first live */
    uint64_t *sizes;
    uint32_t *origin; /* number of the item in what this was made from */
    bp_lists
        sections; /* items of each, sorted; in the order of time (what is live at once), then what added conflicts need */
    bp_lists memberships; /* sections of each item, sorted */
    bp_lists neighbours;  /* of each item, sorted */
    uint64_t bound;       /* the largest section */
    uint32_t bound_section;
} bp_problem;

/* Errors: BP_ERR_OVERFLOW (the sum of all sizes does not fit 64 bits), BP_ERR_UNSUPPORTED (more conflicts than are worth
 * searching), BP_ERR_NO_HOST_MEMORY. */
bp_status bp_problem_init(const bp_packing *packing, bp_problem *problem);
void bp_problem_finish(bp_problem *problem);

/* Fills count, sizes, origin and sections of an empty problem. */
bp_status bp_sections_find(const bp_packing *packing, bp_problem *problem);

/* Every item's neighbours, sorted: those it shares a section with. */
bp_status bp_find_neighbours(const bp_lists *sections, const bp_lists *memberships, uint32_t count,
                             bp_lists *neighbours);

/* The problem of some of the items, which are in increasing order. A placement of all has one of these in it, so what is proven of the
 * smaller problem holds for the larger. `number_of`, by item of the whole, is BP_NO_ITEM everywhere before and after: many small subsets
 * of a large problem share it, as each would take longer to clear it than to be made. */
bp_status bp_problem_subset(const bp_problem *problem, const uint32_t *items, uint32_t count, uint32_t *number_of,
                            bp_problem *subset);

/* The parts of the problem that no conflict joins, in the order of their first items. The caller finishes each and frees the array. */
bp_status bp_problem_split(const bp_problem *problem, bp_problem **parts, uint32_t *count);

/* Items with the same conflicts that conflict with each other become one block: `blocks` has the blocks, block_of[i] says which one
 * item i is in, inner[i] where in it. A placement of the blocks is one of the items. */
bp_status bp_problem_merge(const bp_problem *problem, bp_problem *blocks, uint32_t *block_of, uint64_t *inner);

/* The largest end of an item. */
uint64_t bp_problem_height(const bp_problem *problem, const uint64_t *offsets);

/* An order of the items in which few of them wait for neighbours at a time: what sweeps and windows go along. */
typedef struct bp_order {
    uint32_t *items;
    uint32_t *place; /* by item: its position */
    uint32_t *last;  /* by item: the position of its last neighbour, at least its own */
    uint32_t width;  /* the most items that wait for neighbours at a time */
} bp_order;

/* The better of two orders: as the items are first live, which is that of the units; and breadth first from neighbour to neighbour
 * (Cuthill and McKee 1969), which needs no time. */
bp_status bp_order_init(const bp_problem *problem, bp_order *order);
void bp_order_finish(bp_order *order);

#endif
