/* Plans whose buffers overlap partly. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>

#include "overlaps.h"

bool places_overlap(const place *a, const place *b)
{
    return a->offset < b->offset + b->bytes && b->offset < a->offset + a->bytes;
}

/* The latest users of each byte, if requests come in their order over and over. */
static uint32_t reduced_list(const place *places, uint32_t count, uint32_t of, uint32_t *list)
{
    bool seen[MOST_PLACE_BYTES] = {false};
    uint32_t length = 0;
    for (uint32_t back = 1; back < count; back++) {
        uint32_t i = (of + count - back) % count;
        bool first = false;
        for (uint64_t b = places[i].offset; b < places[i].offset + places[i].bytes; b++) {
            if (b >= places[of].offset && b < places[of].offset + places[of].bytes && !seen[b]) {
                first = true;
                seen[b] = true;
            }
        }
        if (first)
            list[length++] = i;
    }
    return length;
}

static bp_plan *plan_of(const place *places, uint32_t count, lists kind)
{
    bp_plan_summary summary = {
        .size = sizeof summary, .policy = BP_POLICY_SCHEDULED, .feasible = 1, .stable = 1, .alignment = 256};
    bp_plan_slab slab = {.size = sizeof slab, .group = "param"};
    for (uint32_t i = 0; i < count; i++)
        if (slab.bytes < places[i].offset + aligned(places[i].bytes))
            slab.bytes = places[i].offset + aligned(places[i].bytes);
    assert_true(slab.bytes <= MOST_PLACE_BYTES);
    summary.bytes = slab.bytes;
    bp_plan_builder *builder = NULL;
    assert_ok(bp_plan_builder_create(&summary, &builder));
    assert_ok(bp_plan_builder_add_slab(builder, &slab));
    for (uint32_t i = 0; i < count; i++) {
        char unit[16];
        uint32_t list[MOST_PLACES], length = 0;
        snprintf(unit, sizeof unit, "r%u.", i);
        if (kind == REDUCED)
            length = reduced_list(places, count, i, list);
        for (uint32_t j = 0; j < count && kind == ALL_OF_THEM; j++)
            if (j != i && places_overlap(&places[i], &places[j]))
                list[length++] = j;
        bp_assignment a = {.size = sizeof a,
                           .unit = unit,
                           .role = BP_ROLE_PARAM,
                           .dtype = BP_DTYPE_UINT8,
                           .offset = places[i].offset,
                           .bytes = places[i].bytes,
                           .predecessors = list,
                           .predecessor_count = length};
        assert_ok(bp_plan_builder_add_assignment(builder, &a));
    }
    bp_plan *plan = NULL;
    assert_ok(bp_plan_builder_finish(&builder, &plan));
    return plan;
}

kit open_places(bp_device *device, const place *places, uint32_t count, lists kind, const bp_pool_config *config)
{
    kit k = begin_kit(device, NULL, TRAINING, BP_POLICY_SCHEDULED, 0);
    k.plan = plan_of(places, count, kind);
    assert_ok(bp_pool_create(device, k.plan, config, &k.pool));
    assert_string_equal(bp_pool_allocator_name(k.pool), "scheduled");
    bp_pool_slab slab = {.size = sizeof slab};
    assert_ok(bp_pool_slab_get(k.pool, 0, &slab));
    for (uint32_t i = 0; i < count; i++) {
        char unit[16];
        uint32_t id = UINT32_MAX;
        snprintf(unit, sizeof unit, "r%u.", i);
        bp_bind bind = bind_of(unit, 0, BP_ROLE_PARAM, BP_DTYPE_UINT8, places[i].bytes);
        assert_ok(bp_pool_bind(k.pool, &bind, &id));
        assert_int_equal(id, i);
        if (config == NULL || config->guard != BP_GUARD_ON) /* which sets buffers apart */
            assert_ptr_equal(address_of(&k, id), (char *)slab.address + places[i].offset);
    }
    return k;
}

uint32_t random_places(place *places)
{
    uint32_t count = 6 + random_below(MOST_PLACES - 6), begin[MOST_PLACES], end[MOST_PLACES];
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
