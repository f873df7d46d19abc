/* SPDX-License-Identifier: Apache-2.0 */
/* Packs instances with more conflicts than the conflict graph takes, and asserts the contract without quadratic memory. */
#ifndef BP_TEST_PACKING_LARGE_H
#define BP_TEST_PACKING_LARGE_H

#include "answers.h"

#define WORK UINT64_C(4000000) /* a few passes */

typedef struct subject {
    const instance *in;
    bp_packing *packing;
    uint64_t bound, *offsets; /* of the latest result */
} subject;

/* Peak live bytes of some items; NULL: of all. */
uint64_t peak_of(const instance *in, const bool *chosen);

/* Creates the packing, and checks its bound and witness. */
subject start_subject(const instance *in);
void end_subject(subject *s);

/* Packs, and asserts that the numbers, the outcome and the placement fit together. */
bp_pack_result pack(subject *s, uint64_t work, uint64_t capacity, const uint64_t *known);

/* Packs with growing work, capacities and known placements; returns the result without them. */
bp_pack_result try_large(const instance *in);

/* `items` of 1 to 1000 bytes with up to `intervals` live ranges, half of the time on average. */
instance random_large(uint32_t items, uint32_t intervals);

#endif
