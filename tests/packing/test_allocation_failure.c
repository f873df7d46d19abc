/* SPDX-License-Identifier: Apache-2.0 */
/* Fails each allocation of building, bounding, packing and checking in turn, alone and with all later ones. The call must return the
 * error, write nothing, leak nothing (address sanitizer), and succeed when repeated.
 *
 * Linked with support/shortage.c against the static library. */
#include "support/harness.h"

#include <stdlib.h>
#include <string.h>

#include "answers.h"
#include "planted.h"
#include "support/brief.h"
#include "support/shortage.h"

static bp_packing *build(const instance *in)
{
    bp_packing *packing;
    FAIL_EACH_OUT(packing, bp_packing_create(&packing));
    for (uint32_t i = 0; i < in->count; i++) {
        size_t item = SIZE_MAX;
        FAIL_EACH(bp_packing_add_item(packing, in->sizes[i], &item));
        assert_int_equal(item, i); /* failed calls added nothing */
    }
    for (uint32_t i = 0; i < in->interval_count; i++)
        FAIL_EACH(
            bp_packing_add_interval(packing, in->intervals[i].item, in->intervals[i].begin, in->intervals[i].end));
    for (uint32_t i = 0; i < in->pair_count; i++)
        FAIL_EACH(bp_packing_add_conflict(packing, in->pairs[i].item, in->pairs[i].other));
    assert_int_equal(bp_packing_get_info(packing)->item_count, in->count);
    return packing;
}

static void try_bound(const instance *in, const bp_packing *packing)
{
    uint32_t *witness = calloc(in->count + 1, sizeof *witness);
    assert_non_null(witness);
    bool failed = true;
    for (unsigned nth = 1; failed; nth++) {
        size_t count = 77;
        uint64_t bound = 77;
        memset(witness, 0xA5, in->count * sizeof *witness);
        begin_shortage(nth);
        failed = MET_SHORTAGE(bp_packing_bound(packing, witness, &count, &bound));
        for (uint32_t i = 0; failed && i < in->count; i++)
            assert_int_equal(witness[i], 0xA5A5A5A5);
        if (failed)
            assert_true(count == 77 && bound == 77);
        else
            assert_true(bound == bound_of(in));
    }
    free(witness);
}

/* After all failures the result equals that of a run without failures. */
static void try_pack(const instance *in, bp_pack_config config)
{
    SCOPED(end_answer) answer plain = solve(in, config);
    SCOPED(bp_packing_destroy) bp_packing *packing = build(in);
    try_bound(in, packing);
    uint64_t *offsets = calloc(in->count + 1, sizeof *offsets);
    assert_non_null(offsets);
    bool failed = true;
    for (unsigned nth = 1; failed; nth++) {
        bp_pack_result result, before;
        memset(&result, 0xA5, sizeof result);
        result.size = sizeof result;
        before = result;
        memset(offsets, 0xA5, in->count * sizeof *offsets);
        begin_shortage(nth);
        failed = MET_SHORTAGE(bp_pack(packing, &config, offsets, &result));
        if (failed)
            assert_memory_equal(&result, &before, sizeof result);
        for (uint32_t i = 0; failed && i < in->count; i++)
            assert_true(offsets[i] == UINT64_C(0xA5A5A5A5A5A5A5A5));
        if (failed)
            continue;
        assert_true(result.bytes == plain.result.bytes && result.work == plain.result.work);
        assert_memory_equal(offsets, plain.offsets, in->count * sizeof *offsets);
    }
    if (plain.result.outcome == BP_PACK_PLACED)
        FAIL_EACH(bp_packing_check(packing, offsets, plain.result.bytes));
    free(offsets);
}

static void try_configs(const instance *in)
{
    bp_pack_config config = new_config();
    config.work = 100000;
    try_pack(in, config);
    config.capacity = bound_of(in);
    try_pack(in, config);
    uint64_t *pile = calloc(in->count + 1, sizeof *pile), bytes = 0;
    assert_non_null(pile);
    for (uint32_t i = 0; i < in->count; i++) {
        pile[i] = bytes;
        bytes += in->sizes[i];
    }
    config.capacity = 0;
    config.known = pile;
    try_pack(in, config);
    free(pile);
}

/* A chain of units, forward and backward; each conflicts with the next `ahead`. */
static instance make_chain(uint32_t units, uint32_t ahead)
{
    instance in = {0};
    for (uint32_t u = 0; u < units; u++) {
        uint32_t item = add_item(&in, random_between(1, 1000));
        add_interval(&in, item, u, u + ahead + 1);
        add_interval(&in, item, 3 * units - u, 3 * units - u + ahead + 1);
    }
    return in;
}

TEST(test_chains)
{
    seed(1);
    for (uint32_t ahead = 0; ahead <= 3; ahead++) {
        SCOPED(end_instance) instance in = make_chain(20, ahead);
        try_configs(&in);
    }
}

TEST(test_random)
{
    seed(2);
    for (int i = 0, times = share_of(12); i < times; i++) {
        SCOPED(end_instance)
        instance in = random_instance((random_options){.items = (uint32_t)random_between(1, 25),
                                                       .steps = 30,
                                                       .intervals = 3,
                                                       .min_size = 1,
                                                       .max_size = 1000,
                                                       .pairs = i % 2 * 20,
                                                       .empty = true,
                                                       .never_live = true});
        try_configs(&in);
    }
}

TEST(test_planted)
{
    seed(3);
    for (int i = 0, times = share_of(6); i < times; i++) {
        SCOPED(end_planted)
        planted p =
            plant((planted_options){.items = 24, .bytes = 1000, .steps = 30, .wheels = true, .gaps = i % 2 > 0});
        try_configs(&p.in);
    }
}

/* Connected components that are disjoint in time. */
TEST(test_parts)
{
    seed(4);
    SCOPED(end_instance) instance in = {0};
    for (uint32_t part = 0; part < 4; part++)
        for (uint32_t i = 0; i < 6; i++) {
            uint64_t begin = 100 * part + random_below(10);
            add_interval(&in, add_item(&in, random_between(1, 99)), begin, begin + random_between(1, 9));
        }
    try_configs(&in);
}

/* Too many conflicts for the conflict graph: skyline and first fit on columns. */
TEST(test_large)
{
    seed(5);
    SCOPED(end_instance)
    instance in = random_instance(
        (random_options){.items = 3000, .steps = 6000, .intervals = 3, .min_size = 1, .max_size = 1000});
    bp_pack_config config = new_config();
    config.work = 50000000;
    try_pack(&in, config);
}

/* Guards against a build in which the wraps are not linked. */
TEST(test_failures_happened)
{
    assert_true(shortage.failures > 1000);
}

TESTS(NULL, NULL)
