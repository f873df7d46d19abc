/* Cliques that cover every conflict of an instance. */
#ifndef BP_PACKING_SECTIONS_H
#define BP_PACKING_SECTIONS_H

#include "packing/problem.h"

/* Fills count, sizes, origin and sections of an empty problem. */
bp_status bp_sections_find(const bp_packing *packing, bp_problem *problem);

/* Every item's neighbours, sorted: those it shares a section with. */
bp_status bp_find_neighbours(const bp_lists *sections, const bp_lists *memberships, uint32_t count,
                             bp_lists *neighbours);

#endif
