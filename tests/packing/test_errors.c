/* SPDX-License-Identifier: Apache-2.0 */
/* Errors, which write no output; the smallest and largest instances. */
#include "support/harness.h"

#include "answers.h"

#include <string.h>

#include "naive.h"

/* ---- building an instance ------------------------------------------------------------------------------------------ */

TEST(test_no_packing)
{
    size_t item = 77, count = 77;
    uint64_t bound = 77;
    uint32_t witness = 77;
    assert_fails(bp_packing_create(NULL), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_packing_add_item(NULL, 1, &item), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_packing_add_interval(NULL, 0, 0, 1), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_packing_add_conflict(NULL, 0, 1), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_packing_bound(NULL, &witness, &count, &bound), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_packing_check(NULL, &bound, 77), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_true(item == 77 && count == 77 && bound == 77 && witness == 77);
    bp_packing_destroy(NULL);
    bp_packing *none = NULL;
    bp_packing_destroy(&none);
    assert_null(none);
}

TEST(test_items_and_intervals)
{
    bp_packing *packing = NULL;
    assert_ok(bp_packing_create(&packing));
    assert_int_equal(bp_packing_get_info(packing)->item_count, 0);
    assert_fails(bp_packing_add_interval(packing, 0, 0, 1), BP_ERR_INVALID_ARGUMENT, "0");
    for (size_t i = 0; i < 5; i++)
        assert_ok(bp_packing_add_item(packing, 100 + i, NULL));
    assert_int_equal(bp_packing_get_info(packing)->item_count, 5);
    assert_int_equal(bp_packing_get_info(packing)->sizes[4], 104);
    assert_null(bp_packing_get_info(NULL));
    assert_fails(bp_packing_add_interval(packing, 5, 0, 1), BP_ERR_INVALID_ARGUMENT, "5");
    assert_fails(bp_packing_add_interval(packing, SIZE_MAX, 0, 1), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_packing_add_interval(packing, (size_t)UINT32_MAX + 1, 0, 1), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_packing_add_interval(packing, 2, 31, 31), BP_ERR_INVALID_ARGUMENT, "2", "31");
    assert_fails(bp_packing_add_interval(packing, 2, 32, 31), BP_ERR_INVALID_ARGUMENT, "2", "31", "32");
    assert_fails(bp_packing_add_interval(packing, 2, UINT64_MAX, 0), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_packing_add_conflict(packing, 0, 5), BP_ERR_INVALID_ARGUMENT, "5");
    assert_fails(bp_packing_add_conflict(packing, 5, 0), BP_ERR_INVALID_ARGUMENT, "5");
    assert_fails(bp_packing_add_conflict(packing, 3, 3), BP_ERR_INVALID_ARGUMENT, "3");
    assert_fails(bp_packing_add_conflict(packing, 0, SIZE_MAX), BP_ERR_INVALID_ARGUMENT, NULL);
    /* The failed calls added nothing. */
    size_t count = 77;
    uint64_t bound = 77;
    assert_ok(bp_packing_bound(packing, NULL, &count, &bound));
    assert_true(count == 0 && bound == 0);
    bp_packing_destroy(&packing);
    assert_null(packing);
}

TEST(test_intervals_are_given_back)
{
    seed(1);
    SCOPED(end_instance)
    instance in = random_instance((random_options){.items = 20, .steps = 30, .intervals = 4, .max_size = 9});
    SCOPED(bp_packing_destroy) bp_packing *packing = make_packing(&in);
    assert_int_equal(bp_packing_get_info(packing)->interval_count, in.interval_count);
    for (uint32_t i = 0; i < in.interval_count; i++) {
        const bp_packing_interval stored = bp_packing_get_info(packing)->intervals[i];
        assert_true(stored.item == in.intervals[i].item && stored.begin == in.intervals[i].begin &&
                    stored.end == in.intervals[i].end);
    }
}

/* ---- calls --------------------------------------------------------------------------------------------------------- */

static instance make_three(void)
{
    instance in = {0};
    for (uint32_t i = 0; i < 3; i++)
        add_interval(&in, add_item(&in, 10), i, i + 2);
    return in;
}

TEST(test_missing_arguments)
{
    SCOPED(end_instance) instance in = make_three();
    SCOPED(bp_packing_destroy) bp_packing *packing = make_packing(&in);
    bp_pack_config config = new_config();
    uint64_t offsets[3] = {77, 77, 77}, bound = 77;
    size_t count = 77;
    bp_pack_result result = {.size = sizeof result, .bytes = 77};
    assert_fails(bp_pack(NULL, &config, offsets, &result), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_pack(packing, &config, NULL, &result), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_pack(packing, &config, offsets, NULL), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_packing_bound(packing, NULL, NULL, &bound), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_packing_bound(packing, NULL, &count, NULL), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_packing_check(packing, NULL, 77), BP_ERR_INVALID_ARGUMENT, NULL);
    bp_packing_fault fault = {.size = sizeof fault, .found = 77};
    assert_fails(bp_packing_find_fault(NULL, offsets, 77, &fault), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_packing_find_fault(packing, NULL, 77, &fault), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_packing_find_fault(packing, offsets, 77, NULL), BP_ERR_INVALID_ARGUMENT, NULL);
    fault.size = sizeof(size_t);
    assert_fails(bp_packing_find_fault(packing, offsets, 77, &fault), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_int_equal(fault.found, 77);
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(offsets[i], 77);
    assert_true(result.bytes == 77 && result.outcome == 0 && bound == 77 && count == 77);
}

/* Without a configuration the defaults apply. */
TEST(test_no_config)
{
    SCOPED(end_instance) instance in = make_three();
    SCOPED(bp_packing_destroy) bp_packing *packing = make_packing(&in);
    SCOPED(end_answer) answer by_default = solve_plainly(&in);
    uint64_t offsets[3] = {77, 77, 77};
    bp_pack_result result = {.size = sizeof result};
    assert_ok(bp_pack(packing, NULL, offsets, &result));
    assert_memory_equal(offsets, by_default.offsets, sizeof offsets);
    assert_true(result.bytes == by_default.result.bytes && result.work == by_default.result.work);
}

TEST(test_struct_sizes)
{
    SCOPED(end_instance) instance in = make_three();
    SCOPED(bp_packing_destroy) bp_packing *packing = make_packing(&in);
    bp_pack_config config;
    memset(&config, 0xA5, sizeof config);
    bp_pack_config before = config;
    assert_fails(bp_pack_config_init(NULL, sizeof config), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_pack_config_init(&config, sizeof(size_t)), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_pack_config_init(&config, 0), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_memory_equal(&config, &before, sizeof config);
    config = new_config();
    assert_true(config.size == sizeof config && config.capacity == 0 && config.work == 0 && config.known == NULL);
    config.size = sizeof(size_t);
    assert_refused(&in, config, BP_ERR_INVALID_ARGUMENT);
    config.size = 0;
    assert_refused(&in, config, BP_ERR_INVALID_ARGUMENT);
    config.size = sizeof config;
    static const size_t too_small[] = {0, 1, sizeof(size_t)};
    for (size_t i = 0; i < sizeof too_small / sizeof *too_small; i++) {
        uint64_t offsets[3] = {77, 77, 77};
        bp_pack_result result = {.size = too_small[i], .bytes = 77, .work = 77};
        assert_fails(bp_pack(packing, &config, offsets, &result), BP_ERR_INVALID_ARGUMENT, NULL);
        assert_true(result.size == too_small[i] && result.bytes == 77 && result.work == 77 && result.outcome == 0);
        assert_true(offsets[0] == 77 && offsets[1] == 77 && offsets[2] == 77);
    }
}

/* ---- small and large ----------------------------------------------------------------------------------------------- */

TEST(test_nothing_to_place)
{
    SCOPED(end_instance) instance in = {0};
    assert_optimum(&in, 0);
    add_item(&in, 10);
    assert_optimum(&in, 0);
    add_interval(&in, add_item(&in, 0), 3, 4);
    assert_optimum(&in, 0);
    add_pair(&in, 0, 1);
    assert_optimum(&in, 0);
}

TEST(test_one_item)
{
    static const uint64_t sizes[] = {1, 2, 255, UINT32_MAX, (uint64_t)UINT32_MAX + 1, INT64_MAX, UINT64_MAX};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        SCOPED(end_instance) instance in = {0};
        add_interval(&in, add_item(&in, sizes[i]), 0, 1);
        assert_optimum(&in, sizes[i]);
        bp_pack_config config = new_config();
        config.capacity = sizes[i];
        SCOPED(end_answer) answer a = solve(&in, config);
        assert_int_equal(a.result.outcome, BP_PACK_PLACED);
        assert_int_equal(a.offsets[0], 0);
    }
}

/* Intervals at both ends of the 64-bit range. */
TEST(test_far_times)
{
    SCOPED(end_instance) instance in = {0};
    add_interval(&in, add_item(&in, 5), 0, UINT64_MAX);
    add_interval(&in, add_item(&in, 7), UINT64_MAX - 1, UINT64_MAX);
    add_interval(&in, add_item(&in, 11), 0, 1);
    add_interval(&in, add_item(&in, 13), 1, UINT64_MAX - 1);
    assert_optimum(&in, 18);
}

TEST(test_sums_that_fit)
{
    SCOPED(end_instance) instance in = {0};
    for (uint32_t i = 0; i < 3; i++)
        add_interval(&in, add_item(&in, UINT64_MAX / 3), i, i + 2);
    assert_optimum(&in, UINT64_MAX / 3 * 2);
    add_interval(&in, 0, 2, 3);
    assert_optimum(&in, UINT64_MAX);
}

TEST(test_sums_that_do_not_fit)
{
    static const uint64_t sizes[][3] = {{UINT64_MAX, 1, 0},
                                        {UINT64_MAX, UINT64_MAX, 0},
                                        {UINT64_MAX / 2 + 1, UINT64_MAX / 2 + 1, 0},
                                        {UINT64_MAX / 3 + 1, UINT64_MAX / 3, UINT64_MAX / 3},
                                        {UINT64_MAX, UINT64_MAX, 2}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        SCOPED(end_instance) instance in = {0};
        for (uint32_t k = 0; k < 3; k++)
            add_interval(&in, add_item(&in, sizes[i][k]), k, 4);
        assert_refused(&in, new_config(), BP_ERR_OVERFLOW);
        bp_pack_config config = new_config();
        config.capacity = UINT64_MAX;
        assert_refused(&in, config, BP_ERR_OVERFLOW);
        SCOPED(bp_packing_destroy) bp_packing *packing = make_packing(&in);
        uint32_t witness[3] = {77, 77, 77};
        size_t count = 77;
        uint64_t bound = 77;
        assert_fails(bp_packing_bound(packing, witness, &count, &bound), BP_ERR_OVERFLOW, NULL);
        assert_true(count == 77 && bound == 77 && witness[0] == 77 && witness[1] == 77 && witness[2] == 77);
    }
}

/* The contract limits the sum of all sizes, also of items that could share bytes. */
TEST(test_sums_of_items_apart)
{
    SCOPED(end_instance) instance in = {0};
    add_interval(&in, add_item(&in, UINT64_MAX), 0, 1);
    add_interval(&in, add_item(&in, 1), 1, 2);
    assert_refused(&in, new_config(), BP_ERR_OVERFLOW);
}

TESTS(NULL, NULL)
