/* SPDX-License-Identifier: Apache-2.0 */
/* Plans with partial overlaps, by hand or by first fit. */
#ifndef BP_TEST_CONTRACT_OVERLAPS_H
#define BP_TEST_CONTRACT_OVERLAPS_H

#include "support/pools.h"

#define MAX_PLACES 40

typedef struct place {
    uint64_t offset, bytes;
} place;

bool places_overlap(const place *a, const place *b);

/* First fit for requests that are live in random intervals of a synthetic schedule. */
uint32_t random_places(place *places);

/* A pool of these places, called "r0.", "r1.", ...; ids are their indices. `config` may be NULL. */
kit open_places(bp_device *device, const place *places, uint32_t count, const bp_pool_config *config);

#endif
