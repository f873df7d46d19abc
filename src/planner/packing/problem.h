/* SPDX-License-Identifier: Apache-2.0 */
/* A packing instance as the solvers see it: items with sizes, their neighbours in the conflict graph, and cliques ("sections") that
 * cover every conflict. Searches are limited by work, not time, so that every machine gets the same result; a unit takes about a
 * nanosecond. */
#ifndef BP_PACKING_PROBLEM_H
#define BP_PACKING_PROBLEM_H

#include "planner/packing/timeline.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- work -------------------------------------------------------------------------------------------------------- */

typedef struct bp_work {
    uint64_t spent, limit;
    bp_pack_progress *progress; /* not NULL */
} bp_work;

static inline bool bp_work_is_over(const bp_work *work)
{
    return work->spent > work->limit || __atomic_load_n(&work->progress->stop, __ATOMIC_RELAXED) != 0;
}

static inline uint64_t bp_work_left(const bp_work *work)
{
    return work->spent < work->limit ? work->limit - work->spent : 0;
}

/* The same work with a limit of `share` from now on. */
static inline bp_work bp_work_part(const bp_work *work, uint64_t share)
{
    uint64_t left = bp_work_left(work);
    return (bp_work){work->spent, work->spent + (share < left ? share : left), work->progress};
}

/* ---- lists ------------------------------------------------------------------------------------------------------- */

/* Lists of numbers in one array (compressed rows): list i is entries[first[i]] .. entries[first[i + 1] - 1]. */
typedef struct bp_lists {
    uint32_t *first, *entries;
    uint32_t count;
} bp_lists;

void bp_lists_finish(bp_lists *lists);

/* Transpose: for each entry below `entry_limit`, the lists that contain it, in increasing order. */
bp_status bp_lists_invert(const bp_lists *lists, uint32_t entry_limit, bp_lists *inverse);

/* True if two lists have the same entries in the same order. */
bool bp_lists_equal(const bp_lists *lists, uint32_t one, uint32_t other);

/* Comparison functions for qsort and bsearch, smaller first: numbers, keyed numbers, pairs. */
int bp_compare_numbers(const void *left, const void *right);

typedef struct bp_keyed {
    uint64_t key;
    uint32_t number;
} bp_keyed;

int bp_compare_keyed(const void *left, const void *right);

static inline int bp_compare_pairs(const void *left, const void *right) /* a hot path of bsearch */
{
    const bp_pair *a = left, *b = right;
    if (a->item != b->item)
        return a->item < b->item ? -1 : 1;
    return (a->other > b->other) - (a->other < b->other);
}

/* Lists under construction, newest last. Zero-initialized: empty. */
typedef struct bp_list_writer {
    bp_lists lists;
    size_t first_capacity, entry_count, entry_capacity;
} bp_list_writer;

/* Begins a list. Errors of both functions: BP_ERR_UNSUPPORTED (too many entries to search), BP_ERR_NO_HOST_MEMORY. */
bp_status bp_list_begin(bp_list_writer *writer);
bp_status bp_list_add(bp_list_writer *writer, uint32_t entry);
/* Moves the lists to `lists` and leaves the writer empty. On other paths bp_lists_finish frees the writer's lists. */
bp_status bp_list_writer_take(bp_list_writer *writer, bp_lists *lists);

/* ---- problems ---------------------------------------------------------------------------------------------------- */

typedef struct bp_problem {
    uint32_t count; /* items, as in the timeline or in the order of the whole */
    uint64_t *sizes;
    bp_lists
        sections; /* sorted items of each: the maximal live sets in the order of time, then cliques for added conflicts */
    bp_lists memberships; /* sections of each item, sorted */
    bp_lists neighbours;  /* of each item, sorted */
    uint64_t bound;       /* largest sum of sizes of a section */
    uint32_t bound_section;
} bp_problem;

/* The conflict graph of a timeline: BP_PROBLEM_CONFLICTS at most. */
#define BP_PROBLEM_CONFLICTS (UINT32_C(1) << 22)
bp_status bp_problem_init(const bp_timeline *timeline, bp_problem *problem);
void bp_problem_finish(bp_problem *problem);

/* Fills count, sizes, origin and sections of an empty problem. */
bp_status bp_sections_find(const bp_timeline *timeline, bp_problem *problem);

/* Each item's neighbours, sorted: the items that share a section with it. */
bp_status bp_find_neighbours(const bp_lists *sections, const bp_lists *memberships, uint32_t count,
                             bp_lists *neighbours);

/* The subproblem of `items`, in increasing order. A lower bound of the subproblem is one of the whole. `number_of`: scratch by item of
 * the whole, BP_NO_ITEM everywhere before and after the call; callers reuse it, as clearing it would take longer than making a small
 * subset. */
bp_status bp_problem_subset(const bp_problem *problem, const uint32_t *items, uint32_t count, uint32_t *number_of,
                            bp_problem *subset);

/* Merges items that conflict with each other and have equal neighbours into blocks. block_of[i]: the block of item i; inner[i]: its
 * offset in the block. A placement of the blocks gives one of the items. */
bp_status bp_problem_merge(const bp_problem *problem, bp_problem *blocks, uint32_t *block_of, uint64_t *inner);

/* An order of the items with a small frontier (items with neighbours still to come), for sweeps and windows. */
typedef struct bp_order {
    uint32_t *items;
    uint32_t *place; /* by item: its position */
    uint32_t *last;  /* by item: the position of its last neighbour, at least its own */
    uint32_t width;  /* largest frontier */
} bp_order;

/* The narrower of two orders: by first live time, which follows the units; and breadth first (Cuthill and McKee 1969), for conflicts
 * without times. */
bp_status bp_order_init(const bp_problem *problem, bp_order *order);
void bp_order_finish(bp_order *order);

#endif
