/* SPDX-License-Identifier: Apache-2.0 */
/* Generates instances of known optimum: a rectangle of bytes and steps, cut into boxes without holes. */
#ifndef BP_TEST_PACKING_PLANTED_H
#define BP_TEST_PACKING_PLANTED_H

#include "instances.h"

typedef struct planted {
    instance in;
    uint64_t *offsets; /* the planted placement, one per item */
    uint64_t bytes;    /* its height: the live sum of every step */
} planted;

typedef struct planted_options {
    uint32_t items; /* wanted; fewer if nothing is left to cut */
    uint64_t bytes, steps;
    bool wheels; /* also non-guillotine cuts: four boxes around a fifth */
    bool gaps;   /* also items with a gap in time, filled by others */
    bool pairs;  /* also added conflicts between items that share no bytes */
} planted_options;

planted plant(planted_options options);
void end_planted(planted *p);

#endif
