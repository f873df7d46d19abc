/* Plans whose buffers overlap partly, by hand or by first fit. */
#ifndef BP_TEST_CONTRACT_OVERLAPS_H
#define BP_TEST_CONTRACT_OVERLAPS_H

#include "support.h"

#define MOST_PLACES 40
#define MOST_PLACE_BYTES 16384 /* of a slab */

typedef struct place {
    uint64_t offset, bytes;
} place;

/* What the plan says of predecessors. Every order must be right, whatever it says. */
typedef enum lists { ALL_OF_THEM, REDUCED, NO_LISTS } lists;

bool places_overlap(const place *a, const place *b);

/* First fit, for requests that are live in random intervals of a made-up schedule. */
uint32_t random_places(place *places);

/* A pool of these places, called "r0.", "r1.", ...; ids are their numbers. `config` may be NULL. */
kit open_places(bp_device *device, const place *places, uint32_t count, lists kind, const bp_pool_config *config);

#endif
