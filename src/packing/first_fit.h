/* Placing items one after the other, each as low as it fits. */
#ifndef BP_PACKING_FIRST_FIT_H
#define BP_PACKING_FIRST_FIT_H

#include "packing/problem.h"

/* First fit in a few good orders, then again and again with what ended highest moved forward in the order ("squeaky wheel": Joslin
 * and Clements 1999), until `target` is reached or the work ends. At least one order is tried. *height is the best height found. */
bp_status bp_first_fit(const bp_problem *problem, uint64_t target, bp_work *work, uint64_t *offsets, uint64_t *height);

#endif
