/* Two colours: what conflicts only across them lies at the bottom or at the top. */
#ifndef BP_PACKING_PARITY_H
#define BP_PACKING_PARITY_H

#include "packing/problem.h"

/* When no odd cycle of conflicts is in the way, one colour goes to the bottom and the other hangs from the bound, which is optimal.
 * With one unit of prefetch, units in conflict are neighbours, so even ones lie at the bottom and odd ones at the top. */
bp_status bp_parity(const bp_problem *problem, uint64_t *offsets, bool *found);

#endif
