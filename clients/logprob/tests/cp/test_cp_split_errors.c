/* SPDX-License-Identifier: Apache-2.0 */
/* Batches that cannot be split, and queries that do not fit a split: the error has the sequence and the numbers. */
#include "support/harness.h"

#include <bucketpool/cp.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/scenarios.h"

#define BAD BP_ERR_INVALID_ARGUMENT

static bp_cp_split_config config_of(const int64_t *cu, uint64_t sequences, uint32_t ranks)
{
    bp_cp_split_config config;
    assert_ok(bp_cp_split_config_init(&config, sizeof config));
    config.cu_seqlens = cu;
    config.sequences = sequences;
    config.ranks = ranks;
    return config;
}

/* Refused with these words in the error; the output is unchanged. */
#define assert_no_split(config, status, ...)                                                                           \
    do {                                                                                                               \
        bp_cp_split *no_split = (bp_cp_split *)&no_split;                                                              \
        assert_fails(bp_cp_split_create(config, &no_split), status, __VA_ARGS__);                                      \
        assert_ptr_equal(no_split, &no_split);                                                                         \
    } while (0)

/* ---- arguments ----------------------------------------------------------------------------------------------------- */

static const int64_t GOOD[] = {0, 8, 12};

TEST(defaults_match_the_header)
{
    bp_cp_split_config config;
    memset(&config, 0xee, sizeof config);
    assert_ok(bp_cp_split_config_init(&config, sizeof config));
    assert_true(config.size == sizeof config && config.cu_seqlens == NULL && config.cu_padded == NULL);
    assert_true(config.cu_dtype == BP_DTYPE_INT64 && config.sequences == 0 && config.ranks == 1 && config.rank == 0);
    assert_true(config.multiple == 0 && config.total_multiple == 0 && config.last_is_dummy == 0 && config.comm == NULL);
}

TEST(structs_that_are_too_small_are_refused)
{
    bp_cp_split_config config, before;
    memset(&config, 0xee, sizeof config);
    before = config;
    assert_fails(bp_cp_split_config_init(&config, sizeof(size_t)), BAD, "bp_cp_split_config_init");
    assert_fails(bp_cp_split_config_init(NULL, sizeof config), BAD, "bp_cp_split_config_init");
    assert_memory_equal(&config, &before, sizeof config);
    config = config_of(GOOD, 2, 2);
    config.size = 0;
    assert_no_split(&config, BAD, "bp_cp_split_create");
    config.size = sizeof(size_t);
    assert_no_split(&config, BAD, "bp_cp_split_create");
}

TEST(everything_may_be_missing)
{
    bp_cp_split_config config = config_of(GOOD, 2, 2);
    assert_no_split(NULL, BAD, "bp_cp_split_create");
    assert_fails(bp_cp_split_create(&config, NULL), BAD, "bp_cp_split_create");
    config.cu_seqlens = NULL;
    assert_no_split(&config, BAD, "cu_seqlens");
    bp_cp_split_destroy(NULL);
    bp_cp_split *none = NULL;
    bp_cp_split_destroy(&none);
    assert_null(none);
}

TEST(ranks_must_be_there)
{
    bp_cp_split_config config = config_of(GOOD, 2, 0);
    assert_no_split(&config, BAD, "rank", "0");
    config.ranks = 3;
    config.rank = 3;
    assert_no_split(&config, BAD, "rank", "3");
    config.rank = UINT32_MAX;
    assert_no_split(&config, BAD, "rank", "4294967295", "3");
}

TEST(lengths_are_int32_or_int64)
{
    static const bp_dtype others[] = {BP_DTYPE_NONE, BP_DTYPE_FP32, BP_DTYPE_UINT64, BP_DTYPE_UINT32, BP_DTYPE_INT16};
    bp_cp_split_config config = config_of(GOOD, 2, 2);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        config.cu_dtype = others[i];
        assert_no_split(&config, BAD, bp_dtype_name(others[i]), "int32", "int64");
    }
    config.cu_dtype = (bp_dtype)1000;
    assert_no_split(&config, BAD, "int32", "int64");
}

/* ---- lengths ------------------------------------------------------------------------------------------------------- */

enum { MANY = 60 };

/* Sequences of 100 tokens. */
static void fill_lengths(int64_t *cu)
{
    for (int i = 0; i <= MANY; i++)
        cu[i] = 100 * (int64_t)i;
}

TEST(lengths_begin_with_0)
{
    static const int64_t late[] = {431, 800}, negative[] = {-17, 0, 4};
    bp_cp_split_config config = config_of(late, 1, 2);
    assert_no_split(&config, BAD, "431", "0");
    config = config_of(negative, 2, 2);
    assert_no_split(&config, BAD, "-17", "0");
    config = config_of(late, 0, 2); /* 0 sequences still have a start */
    assert_no_split(&config, BAD, "431", "0");
    static const int32_t narrow[] = {431, 800};
    config = config_of(NULL, 1, 2);
    config.cu_seqlens = narrow;
    config.cu_dtype = BP_DTYPE_INT32;
    assert_no_split(&config, BAD, "431", "0");
}

TEST(lengths_do_not_decrease)
{
    int64_t cu[MANY + 1] = {0};
    int32_t narrow[MANY + 1];
    bp_cp_split_config config = config_of(cu, MANY, 2);
    static const int64_t bad[] = {3699, 0, -1, -5000000000, INT64_MIN};
    for (size_t i = 0; i < 5; i++) {
        char text[32];
        fill_lengths(cu);
        cu[38] = bad[i]; /* sequence 37 goes from 3700 to this */
        snprintf(text, sizeof text, "%lld", (long long)bad[i]);
        assert_no_split(&config, BAD, "sequence 37", "3700", text);
    }
    fill_lengths(cu);
    for (int i = 0; i <= MANY; i++)
        narrow[i] = (int32_t)cu[i];
    narrow[MANY] = INT32_MIN; /* of the last one */
    config.cu_seqlens = narrow;
    config.cu_dtype = BP_DTYPE_INT32;
    assert_no_split(&config, BAD, "sequence 59", "5900", "-2147483648");
}

TEST(padded_lengths_hold_the_sequences)
{
    int64_t cu[MANY + 1] = {0}, padded[MANY + 1] = {0};
    bp_cp_split_config config = config_of(cu, MANY, 2);
    config.cu_padded = padded;
    fill_lengths(cu);
    fill_lengths(padded);
    for (int i = 42; i <= MANY; i++)
        padded[i] -= 4; /* sequence 41 */
    assert_no_split(&config, BAD, "sequence 41", "100", "96");
    fill_lengths(padded);
    for (int i = 42; i <= MANY; i++)
        padded[i] += 2;
    assert_no_split(&config, BAD, "sequence 41", "102", "4");
    fill_lengths(padded);
    padded[20] = 1799; /* sequence 19 starts at 1900 */
    assert_no_split(&config, BAD, "sequence 19", "1900", "1799");
    fill_lengths(padded);
    padded[0] = 44;
    assert_no_split(&config, BAD, "44", "0");
    padded[0] = -4;
    assert_no_split(&config, BAD, "-4", "0");
}

TEST(one_rank_accepts_any_padded_lengths)
{
    static const int64_t cu[] = {0, 3, 8}, padded[] = {0, 5, 10};
    bp_cp_split_config config = config_of(cu, 2, 1);
    bp_cp_split *split = NULL;
    config.cu_padded = padded;
    assert_ok(bp_cp_split_create(&config, &split));
    bp_cp_split_destroy(&split);
    config.ranks = 2;
    assert_no_split(&config, BAD, "sequence 0", "5", "4");
}

/* ---- multiples ----------------------------------------------------------------------------------------------------- */

TEST(multiples_are_checked)
{
    bp_cp_split_config config = config_of(GOOD, 2, 3);
    static const uint64_t wrong[] = {1, 3, 5, 8, 9, 20, UINT64_MAX};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char text[32];
        snprintf(text, sizeof text, "%llu", (unsigned long long)wrong[i]);
        config.multiple = wrong[i];
        assert_no_split(&config, BAD, text, "6");
    }
    config = config_of(GOOD, 2, 2);
    config.multiple = 24;
    config.total_multiple = 36;
    assert_no_split(&config, BAD, "36", "24");
    config.multiple = 0;
    config.total_multiple = 1002; /* must be a multiple of 4 */
    assert_no_split(&config, BAD, "1002", "4");
}

TEST(cu_padded_excludes_multiple)
{
    bp_cp_split_config config = config_of(GOOD, 2, 2);
    config.cu_padded = GOOD;
    config.multiple = 4;
    assert_no_split(&config, BAD, "multiple", "cu_padded");
}

TEST(a_last_dummy_needs_a_sequence)
{
    bp_cp_split_config config = config_of(GOOD, 0, 2);
    config.last_is_dummy = 1;
    assert_no_split(&config, BAD, "dummy");
}

/* ---- limits ---------------------------------------------------------------------------------------------------------- */

TEST(lengths_may_be_near_the_limits)
{
    const int64_t cu[] = {0, 1, INT64_MAX - 3}; /* 2^63 - 4 */
    bp_cp_split_config config = config_of(cu, 2, 2);
    assert_no_split(&config, BP_ERR_OVERFLOW, "multiple", "4"); /* 4 and 2^63 - 4 padded */
    const int64_t whole[] = {0, INT64_MAX - 3};
    config = config_of(whole, 1, 2);
    bp_cp_split *split = NULL;
    assert_ok(bp_cp_split_create(&config, &split));
    const bp_cp_split_info info = *bp_cp_split_get_info(split);
    assert_true(info.padded_tokens == (uint64_t)INT64_MAX - 3 && info.local_tokens == ((uint64_t)INT64_MAX - 3) / 2);
    int32_t narrow[2] = {7, 7};
    int64_t wide[2];
    assert_fails(bp_cp_split_cu_seqlens(split, BP_CP_PACKED, BP_DTYPE_INT32, 2, narrow), BP_ERR_OVERFLOW,
                 "9223372036854775804");
    assert_true(narrow[0] == 7 && narrow[1] == 7);
    assert_ok(bp_cp_split_cu_seqlens(split, BP_CP_LOCAL, BP_DTYPE_INT64, 2, wide));
    assert_true(wide[1] == (INT64_MAX - 3) / 2);
    bp_cp_split_destroy(&split);
}

TEST(padding_may_not_fit)
{
    const int64_t cu[] = {0, INT64_MAX};
    bp_cp_split_config config = config_of(cu, 1, 2);
    assert_no_split(&config, BP_ERR_OVERFLOW, "multiple", "4"); /* 2^63 padded */
    static const int64_t small[] = {0, 1, 2, 3};
    config = config_of(small, 3, 1);
    config.multiple = UINT64_C(1) << 62;
    assert_no_split(&config, BP_ERR_OVERFLOW, "4611686018427387904");
    config.multiple = UINT64_MAX;
    assert_no_split(&config, BP_ERR_OVERFLOW, "18446744073709551615");
    config.multiple = 0;
    config.total_multiple = UINT64_C(1) << 63;
    assert_no_split(&config, BP_ERR_OVERFLOW, "9223372036854775808");
    config.total_multiple = UINT64_MAX;
    assert_no_split(&config, BP_ERR_OVERFLOW, "18446744073709551615");
}

TEST(int32_lengths_are_widened)
{
    static const int32_t cu[] = {0, INT32_MAX};
    bp_cp_split_config config = config_of(NULL, 1, 4);
    bp_cp_split *split = NULL;
    config.cu_seqlens = cu;
    config.cu_dtype = BP_DTYPE_INT32;
    assert_ok(bp_cp_split_create(&config, &split));
    int32_t narrow[2];
    int64_t wide[2];
    assert_ok(bp_cp_split_cu_seqlens(split, BP_CP_PACKED, BP_DTYPE_INT32, 2, narrow));
    assert_int_equal(narrow[1], INT32_MAX);
    assert_fails(bp_cp_split_cu_seqlens(split, BP_CP_PADDED, BP_DTYPE_INT32, 2, narrow), BP_ERR_OVERFLOW, "2147483648");
    assert_ok(bp_cp_split_cu_seqlens(split, BP_CP_PADDED, BP_DTYPE_INT64, 2, wide));
    assert_true(wide[1] == INT64_C(2147483648));
    assert_ok(bp_cp_split_cu_seqlens(split, BP_CP_LOCAL, BP_DTYPE_INT32, 2, narrow));
    assert_int_equal(narrow[1], 536870912);
    bp_cp_split_destroy(&split);
}

/* The maximum number of ranks: cost depends on the sequences only. */
TEST(ranks_may_be_huge)
{
    static const int64_t cu[] = {0, 5, 5};
    bp_cp_split_config config = config_of(cu, 2, UINT32_MAX);
    bp_cp_split *split = NULL;
    config.rank = 1;
    assert_ok(bp_cp_split_create(&config, &split));
    const bp_cp_split_info info = *bp_cp_split_get_info(split);
    assert_true(info.padded_tokens == 2 * (uint64_t)UINT32_MAX && info.local_tokens == 2);
    int64_t map[2];
    assert_ok(bp_cp_split_map(split, BP_CP_PACKED, BP_CP_LOCAL, BP_CP_KEEP, 2, map));
    assert_true(map[0] == 1 && map[1] == -1);
    int64_t back[5];
    assert_ok(bp_cp_split_map(split, BP_CP_GATHERED, BP_CP_PACKED, BP_CP_KEEP, 5, back));
    for (int64_t token = 0; token < 5; token++)
        assert_int_equal(back[token], 2 * token);
    bp_cp_split_destroy(&split);
}

TEST(counts_of_sequences_may_be_huge)
{
    bp_cp_split_config config = config_of(GOOD, UINT64_MAX, 2);
    assert_no_split(&config, BP_ERR_OVERFLOW, "18446744073709551615");
    config.sequences = UINT64_MAX - 1;
    assert_no_split(&config, BP_ERR_OVERFLOW, "18446744073709551614");
    config.sequences = UINT64_C(1) << 61; /* 2^64 bytes of int64 */
    assert_no_split(&config, BP_ERR_OVERFLOW, "2305843009213693952");
}

/* ---- queries --------------------------------------------------------------------------------------------------------- */

TEST(queries_are_checked)
{
    bp_cp_split_config config = config_of(GOOD, 2, 2);
    bp_cp_split *split = NULL;
    int64_t cu[13], before[13];
    memset(cu, 0x77, sizeof cu);
    memcpy(before, cu, sizeof cu);
    assert_ok(bp_cp_split_create(&config, &split));
    assert_fails(bp_cp_split_cu_seqlens(split, BP_CP_GATHERED, BP_DTYPE_INT64, 3, cu), BAD, "gathered");
    assert_fails(bp_cp_split_cu_seqlens(split, (bp_cp_order)9, BP_DTYPE_INT64, 3, cu), BAD, "9");
    assert_fails(bp_cp_split_cu_seqlens(split, BP_CP_PACKED, BP_DTYPE_INT64, 2, cu), BAD, "2", "3");
    assert_fails(bp_cp_split_cu_seqlens(split, BP_CP_PACKED, BP_DTYPE_INT64, 77, cu), BAD, "77", "3");
    assert_fails(bp_cp_split_cu_seqlens(split, BP_CP_PACKED, BP_DTYPE_FP32, 3, cu), BAD, "fp32");
    assert_fails(bp_cp_split_cu_seqlens(split, BP_CP_PACKED, BP_DTYPE_INT64, 3, NULL), BAD, "bp_cp_split_cu_seqlens");
    assert_fails(bp_cp_split_cu_seqlens(NULL, BP_CP_PACKED, BP_DTYPE_INT64, 3, cu), BAD, "bp_cp_split_cu_seqlens");
    assert_fails(bp_cp_split_map(split, BP_CP_PACKED, BP_CP_LOCAL, BP_CP_KEEP, 5, cu), BAD, "5", "6");
    assert_fails(bp_cp_split_map(split, BP_CP_PACKED, BP_CP_LOCAL, BP_CP_KEEP, 12, cu), BAD, "12", "6");
    assert_fails(bp_cp_split_map(split, BP_CP_LOCAL, BP_CP_PACKED, BP_CP_KEEP, 6, cu), BAD, "6", "12");
    assert_fails(bp_cp_split_map(split, BP_CP_LOCAL, BP_CP_LOCAL, BP_CP_NEXT, 6, cu), BAD, "local");
    assert_fails(bp_cp_split_map(split, BP_CP_LOCAL, BP_CP_PACKED, BP_CP_NEXT_WRAPPED, 12, cu), BAD, "local");
    assert_fails(bp_cp_split_map(split, (bp_cp_order)7, BP_CP_LOCAL, BP_CP_KEEP, 6, cu), BAD, "7");
    assert_fails(bp_cp_split_map(split, BP_CP_PACKED, (bp_cp_order)-1, BP_CP_KEEP, 6, cu), BAD, "order");
    assert_fails(bp_cp_split_map(split, BP_CP_PACKED, BP_CP_LOCAL, (bp_cp_shift)3, 6, cu), BAD, "3");
    assert_fails(bp_cp_split_map(split, BP_CP_PACKED, BP_CP_LOCAL, BP_CP_KEEP, 6, NULL), BAD, "bp_cp_split_map");
    assert_fails(bp_cp_split_map(NULL, BP_CP_PACKED, BP_CP_LOCAL, BP_CP_KEEP, 6, cu), BAD, "bp_cp_split_map");
    assert_memory_equal(cu, before, sizeof cu);
    assert_null(bp_cp_split_get_info(NULL));
    bp_cp_split_destroy(&split);
}

TESTS(NULL, NULL)
