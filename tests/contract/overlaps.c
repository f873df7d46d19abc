/* SPDX-License-Identifier: Apache-2.0 */
/* Plans whose buffers overlap partly. */
#include <stdio.h>

#include "overlaps.h"
#include "planner/plan.h"

bool places_overlap(const place *a, const place *b)
{
    return a->offset < b->offset + b->bytes && b->offset < a->offset + a->bytes;
}

kit open_places(bp_device *device, const place *places, uint32_t count, const bp_pool_config *config)
{
    kit k = begin_kit(device, NULL, TRAINING, BP_POLICY_SCHEDULED, 0);
    bp_plan_request requests[MAX_PLACES];
    char units[MAX_PLACES][16];
    bp_plan_slab slab = {.group = "param"};
    for (uint32_t i = 0; i < count; i++) {
        snprintf(units[i], sizeof units[i], "r%u.", i);
        requests[i] = (bp_plan_request){.unit = units[i],
                                        .role = BP_ROLE_PARAM,
                                        .dtype = BP_DTYPE_UINT8,
                                        .placement = BP_PLACE_PLANNED,
                                        .offset = places[i].offset,
                                        .bytes = places[i].bytes,
                                        .used_bytes = places[i].bytes};
        if (slab.bytes < places[i].offset + aligned(places[i].bytes))
            slab.bytes = places[i].offset + aligned(places[i].bytes);
    }
    const bp_plan_info info = {.policy = BP_POLICY_SCHEDULED,
                               .feasible = 1,
                               .stable = 1,
                               .alignment = ALIGNMENT,
                               .bytes = slab.bytes,
                               .request_count = count,
                               .requests = requests,
                               .slab_count = 1,
                               .slabs = &slab};
    assert_ok(bp_plan_from_info(&info, &k.plan));
    assert_ok(bp_pool_create(device, k.plan, config, &k.pool));
    const char *begin = bp_pool_get_info(k.pool)->slabs[0].address;
    for (uint32_t i = 0; i < count; i++) {
        if (config == NULL || config->guard != BP_GUARD_ON) /* guard mode spaces buffers out */
            assert_ptr_equal(address_of(&k, i), begin + places[i].offset);
    }
    return k;
}

uint32_t random_places(place *places)
{
    uint32_t count = 6 + random_below(MAX_PLACES - 6), begin[MAX_PLACES], end[MAX_PLACES];
    for (uint32_t i = 0; i < count; i++) {
        begin[i] = i;
        end[i] = i + 1 + random_below(5);
        places[i].bytes = 1 + random_below(1500);
        for (places[i].offset = 0;; places[i].offset += 256) {
            bool fits = true;
            place padded = {places[i].offset, aligned(places[i].bytes)};
            for (uint32_t j = 0; j < i; j++)
                fits = fits && !(begin[i] < end[j] && begin[j] < end[i] && places_overlap(&padded, &places[j]));
            if (fits)
                break;
        }
    }
    return count;
}
