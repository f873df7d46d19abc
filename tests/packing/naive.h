/* SPDX-License-Identifier: Apache-2.0 */
/* Reference model of packing: conflicts, check, peak live sum, optimum; simple code in quadratic time or worse. */
#ifndef BP_TEST_PACKING_NAIVE_H
#define BP_TEST_PACKING_NAIVE_H

#include "instances.h"

#define MAX_TRIED 8 /* largest number of items for the exhaustive search */

/* True if the item takes space: it has a size, and an interval or a conflict. */
bool naive_live(const instance *in, uint32_t item);
/* The conflict matrix, row by row; the caller frees it. */
bool *naive_conflicts(const instance *in);
/* True if the placement is valid and ends at or below `bytes`. */
bool naive_check(const instance *in, const bool *conflicts, const uint64_t *offsets, uint64_t bytes);
/* The largest end of a live item. */
uint64_t naive_height(const instance *in, const uint64_t *offsets);
uint64_t naive_live_sum(const instance *in);
/* The heaviest clique, over all subsets: for few items. */
uint64_t naive_clique(const instance *in);

/* The optimal height, by trying all orders of the items. */
uint64_t naive_optimum(const instance *in);
/* The optimal height, by trying all whole offsets: for few items and small sizes. */
uint64_t naive_grid_optimum(const instance *in);
/* As naive_optimum, with an optimal placement. */
uint64_t naive_placement(const instance *in, uint64_t offsets[MAX_TRIED]);

#endif
