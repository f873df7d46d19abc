/* The naive references: conflicts, the check, the largest live sum, the optimum. Everything quadratic or worse. */
#ifndef BP_TEST_PACKING_NAIVE_H
#define BP_TEST_PACKING_NAIVE_H

#include "instances.h"

#define MOST_TRIED 8 /* items of an instance that the optimum is searched for */

/* Takes space: it has a size and is live. */
bool naive_live(const instance *in, uint32_t item);
/* Which items conflict, row by row; free() it. */
bool *naive_conflicts(const instance *in);
/* Whether a placement is right. */
bool naive_check(const instance *in, const bool *conflicts, const uint64_t *offsets, uint64_t bytes);
/* The largest end of a live item. */
uint64_t naive_height(const instance *in, const uint64_t *offsets);
uint64_t naive_live_sum(const instance *in);
/* The largest sum of sizes of items that all conflict, over all sets of items: for few of them. */
uint64_t naive_clique(const instance *in);

/* The least bytes of a placement, by trying orders of the items. */
uint64_t naive_optimum(const instance *in);
/* The same, by trying all whole offsets: for few items and small sizes. */
uint64_t naive_grid_optimum(const instance *in);
/* As naive_optimum, and a placement of that many bytes. */
uint64_t naive_placement(const instance *in, uint64_t offsets[MOST_TRIED]);

#endif
