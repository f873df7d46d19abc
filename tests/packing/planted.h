/* Instances whose optimum is known because they were made from a placement without holes: a rectangle of bytes and steps, cut up. */
#ifndef BP_TEST_PACKING_PLANTED_H
#define BP_TEST_PACKING_PLANTED_H

#include "instances.h"

typedef struct planted {
    instance in;
    uint64_t *offsets; /* of the placement, one per item */
    uint64_t bytes;    /* of it: the sum live in every step */
} planted;

typedef struct planted_options {
    uint32_t items; /* so many, or fewer where nothing is left to cut */
    uint64_t bytes, steps;
    bool wheels; /* also cuts that no line goes through: four boxes around a fifth */
    bool gaps;   /* also items with a gap, which others fill */
    bool pairs;  /* conflicts are added between items that share no bytes in the placement */
} planted_options;

planted plant(planted_options options);
void end_planted(planted *p);

#endif
