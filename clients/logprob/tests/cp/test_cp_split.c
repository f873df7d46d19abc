/* SPDX-License-Identifier: Apache-2.0 */
/* Splits of batches: lengths, orders and maps against the reference split, and against golden values. */
#include "support/harness.h"

#include "../support/reference_splits.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/scenarios.h"

static const uint32_t RANKS[] = {1, 2, 3, 4, 8};
#define RANKS_COUNT (sizeof RANKS / sizeof *RANKS)

static bp_cp_split *new_split(const split_options *options)
{
    bp_cp_split *split = NULL;
    assert_ok(split_of(options, &split));
    assert_non_null(split);
    return split;
}

static bp_cp_split_info info_of(const bp_cp_split *split)
{
    const bp_cp_split_info info = *bp_cp_split_get_info(split);
    return info;
}

/* ---- multiples ----------------------------------------------------------------------------------------------------- */

static void assert_multiple(uint32_t ranks, uint32_t tp, int fp8, uint64_t expected)
{
    uint64_t multiple = 0;
    assert_ok(bp_cp_multiple(ranks, tp, fp8, &multiple));
    assert_int_equal(multiple, expected);
}

TEST(multiples_are_the_least)
{
    for (uint32_t ranks = 1; ranks <= 9; ranks++) {
        for (uint32_t tp = 1; tp <= 9; tp++) {
            const uint64_t plain = (ranks == 1 ? 1 : 2 * ranks) * (uint64_t)tp;
            uint64_t narrow = 1;
            while (narrow % plain != 0 || narrow % (16 * (uint64_t)ranks) != 0)
                narrow++;
            assert_multiple(ranks, tp, 0, plain);
            assert_multiple(ranks, tp, 1, narrow);
        }
    }
    assert_multiple(1, 1, 0, 1);
    assert_multiple(2, 1, 1, 32);
    assert_multiple(4, 2, 0, 16);
    assert_multiple(4, 5, 1, 320);
}

TEST(multiples_may_be_huge)
{
    uint64_t multiple = 77;
    assert_multiple(UINT32_MAX, 1, 1, 16 * (uint64_t)UINT32_MAX);
    assert_multiple(UINT32_MAX, UINT32_C(1) << 31, 0, (uint64_t)UINT32_MAX << 32);
    assert_multiple(UINT32_MAX, UINT32_C(1) << 31, 1, (uint64_t)UINT32_MAX << 32);
    assert_fails(bp_cp_multiple(UINT32_MAX, UINT32_MAX, 0, &multiple), BP_ERR_OVERFLOW, "4294967295");
    assert_fails(bp_cp_multiple(UINT32_MAX, INT32_MAX, 1, &multiple), BP_ERR_OVERFLOW, "4294967295", "2147483647");
    assert_fails(bp_cp_multiple(0, 1, 0, &multiple), BP_ERR_INVALID_ARGUMENT, "0");
    assert_fails(bp_cp_multiple(2, 0, 0, &multiple), BP_ERR_INVALID_ARGUMENT, "0");
    assert_fails(bp_cp_multiple(2, 1, 0, NULL), BP_ERR_INVALID_ARGUMENT, "bp_cp_multiple");
    assert_int_equal(multiple, 77);
}

/* ---- golden values --------------------------------------------------------------------------------------------------- */

static const uint64_t GOLDEN[] = {8, 4};
static const int64_t GOLDEN_HANDS[2][6] = {{0, 1, 6, 7, 8, 11}, {2, 3, 4, 5, 9, 10}};

TEST(golden_split)
{
    for (uint32_t rank = 0; rank < 2; rank++) {
        const split_options options = {.lengths = GOLDEN, .sequences = 2, .ranks = 2, .rank = rank};
        bp_cp_split *split = new_split(&options);
        int64_t map[6], gathered[12], cu[3];
        assert_ok(bp_cp_split_map(split, BP_CP_PACKED, BP_CP_LOCAL, BP_CP_KEEP, 6, map));
        assert_memory_equal(map, GOLDEN_HANDS[rank], sizeof map);
        assert_ok(bp_cp_split_map(split, BP_CP_PACKED, BP_CP_GATHERED, BP_CP_KEEP, 12, gathered));
        assert_memory_equal(gathered, GOLDEN_HANDS, sizeof gathered);
        assert_ok(bp_cp_split_cu_seqlens(split, BP_CP_LOCAL, BP_DTYPE_INT64, 3, cu));
        assert_true(cu[0] == 0 && cu[1] == 4 && cu[2] == 6);
        uint8_t anywhere[1 + sizeof cu];
        assert_ok(bp_cp_split_cu_seqlens(split, BP_CP_LOCAL, BP_DTYPE_INT64, 3, anywhere + 1));
        assert_memory_equal(anywhere + 1, cu, sizeof cu);
        const bp_cp_split_info info = info_of(split);
        assert_true(info.ranks == 2 && info.rank == rank && info.sequences == 2 && info.data_sequences == 2);
        assert_true(info.data_tokens == 12 && info.packed_tokens == 12 && info.padded_tokens == 12);
        assert_true(info.local_tokens == 6 && info.longest == 8);
        bp_cp_split_destroy(&split);
        assert_null(split);
    }
}

/* Differs from rolling the whole batch at the last token of each sequence only. */
TEST(shifts_stay_inside_each_sequence)
{
    const split_options options = {.lengths = GOLDEN, .sequences = 2, .ranks = 2, .rank = 0};
    bp_cp_split *split = new_split(&options);
    int64_t next[12], wrapped[12];
    assert_ok(bp_cp_split_map(split, BP_CP_PACKED, BP_CP_PACKED, BP_CP_NEXT, 12, next));
    assert_ok(bp_cp_split_map(split, BP_CP_PACKED, BP_CP_PACKED, BP_CP_NEXT_WRAPPED, 12, wrapped));
    for (int64_t token = 0; token < 12; token++) {
        const int64_t rolled = (token + 1) % 12;
        const bool is_last = token == 7 || token == 11;
        assert_int_equal(next[token], is_last ? -1 : rolled);
        assert_int_equal(wrapped[token], token == 7 ? 0 : token == 11 ? 8 : rolled);
    }
    bp_cp_split_destroy(&split);
}

TEST(orders_have_names)
{
    assert_string_equal(bp_cp_order_name(BP_CP_PACKED), "packed");
    assert_string_equal(bp_cp_order_name(BP_CP_PADDED), "padded");
    assert_string_equal(bp_cp_order_name(BP_CP_LOCAL), "local");
    assert_string_equal(bp_cp_order_name(BP_CP_GATHERED), "gathered");
    assert_string_equal(bp_cp_order_name((bp_cp_order)4), "invalid");
    assert_string_equal(bp_cp_order_name((bp_cp_order)-1), "invalid");
}

/* ---- against the reference split ------------------------------------------------------------------------------------- */

static void check_info(const bp_cp_split *split, const reference_split *d, const split_options *options)
{
    const bp_cp_split_info info = info_of(split);
    const uint64_t data = options->sequences - (options->last_is_dummy ? 1 : 0);
    uint64_t tokens = 0, longest = 0;
    for (uint64_t i = 0; i < data; i++)
        tokens += d->lengths[i];
    for (uint64_t i = 0; i < d->sequences; i++)
        longest = d->padded[i] > longest ? d->padded[i] : longest;
    assert_int_equal(info.ranks, d->ranks);
    assert_int_equal(info.rank, d->rank);
    assert_int_equal(info.sequences, d->sequences);
    assert_int_equal(info.data_sequences, data);
    assert_int_equal(info.data_tokens, tokens);
    assert_int_equal(info.packed_tokens, d->count[BP_CP_PACKED]);
    assert_int_equal(info.padded_tokens, d->count[BP_CP_PADDED]);
    assert_int_equal(info.local_tokens, d->count[BP_CP_LOCAL]);
    assert_int_equal(info.longest, longest);
}

static void check_cu(const bp_cp_split *split, const reference_split *d, bp_cp_order order)
{
    const uint64_t count = d->sequences + 1;
    int64_t *wide = malloc(count * sizeof *wide), ends = 0;
    int32_t *narrow = malloc(count * sizeof *narrow);
    assert_non_null(wide);
    assert_non_null(narrow);
    assert_ok(bp_cp_split_cu_seqlens(split, order, BP_DTYPE_INT64, count, wide));
    assert_ok(bp_cp_split_cu_seqlens(split, order, BP_DTYPE_INT32, count, narrow));
    for (uint64_t i = 0; i < count; i++) {
        for (uint64_t at = (uint64_t)ends; at < d->count[order] && i > 0 && d->places[order][at].sequence == i - 1;
             at++)
            ends++;
        assert_int_equal(wide[i], ends);
        assert_int_equal(narrow[i], ends);
    }
    free(wide);
    free(narrow);
}

static void check_map(const bp_cp_split *split, const reference_split *d, bp_cp_order from, bp_cp_order to,
                      bp_cp_shift shift)
{
    const uint64_t count = d->count[to];
    int64_t *expected = reference_map(d, from, to, shift), *map = malloc((count + 1) * sizeof *map);
    assert_non_null(map);
    map[count] = 77;
    if (can_shift(d, from, shift)) {
        assert_ok(bp_cp_split_map(split, from, to, shift, count, map));
        assert_memory_equal(map, expected, count * sizeof *map);
    } else {
        assert_fails(bp_cp_split_map(split, from, to, shift, count, map), BP_ERR_INVALID_ARGUMENT, "local");
    }
    assert_int_equal(map[count], 77);
    free(expected);
    free(map);
}

static void check_split(const split_options *options)
{
    reference_split d = new_reference_split(options);
    bp_cp_split *split = new_split(options);
    check_info(split, &d, options);
    check_cu(split, &d, BP_CP_PACKED);
    check_cu(split, &d, BP_CP_PADDED);
    check_cu(split, &d, BP_CP_LOCAL);
    for (int from = 0; from < ORDERS; from++)
        for (int to = 0; to < ORDERS; to++)
            for (int shift = 0; shift < SHIFTS; shift++)
                check_map(split, &d, (bp_cp_order)from, (bp_cp_order)to, (bp_cp_shift)shift);
    bp_cp_split_destroy(&split);
    free_reference_split(&d);
}

static void check_ranks(split_options options)
{
    const uint64_t multiple = options.multiple;
    for (size_t i = 0; i < RANKS_COUNT; i++) {
        options.ranks = RANKS[i];
        options.multiple = multiple == 0 ? 0 : multiple * (RANKS[i] == 1 ? 1 : 2 * RANKS[i]);
        for (options.rank = 0; options.rank < options.ranks; options.rank++)
            check_split(&options);
    }
}

TEST(every_order_matches_the_reference)
{
    static const uint64_t lengths[] = {5, 0, 16, 1, 33, 0, 0, 48, 2};
    for (uint64_t sequences = 0; sequences <= 9; sequences++) {
        check_ranks((split_options){.lengths = lengths, .sequences = sequences});
        check_ranks((split_options){.lengths = lengths, .sequences = sequences, .cu_dtype = BP_DTYPE_INT32});
    }
    seed(17);
    for (int round = 0; round < 12; round++) {
        const uint64_t sequences = 1 + random_below(20);
        uint64_t *ragged = random_lengths(sequences, 70);
        check_ranks((split_options){.lengths = ragged, .sequences = sequences, .multiple = random_below(4)});
        free(ragged);
    }
}

TEST(one_rank_needs_no_multiple)
{
    static const uint64_t lengths[] = {5, 1, 0, 7};
    static const uint64_t padded[] = {5, 3, 1, 9};
    for (uint64_t multiple = 0; multiple <= 7; multiple++)
        check_split(&(split_options){.lengths = lengths, .sequences = 4, .ranks = 1, .multiple = multiple});
    check_split(&(split_options){.lengths = lengths, .padded = padded, .sequences = 4, .ranks = 1});
}

TEST(callers_may_have_padded)
{
    static const uint64_t lengths[] = {5, 0, 16, 1, 48};
    static const uint64_t padded[] = {48, 48, 96, 48, 48};
    for (uint64_t sequences = 0; sequences <= 5; sequences++)
        check_ranks((split_options){.lengths = lengths, .padded = padded, .sequences = sequences});
    check_ranks((split_options){.lengths = padded, .padded = padded, .sequences = 5, .cu_dtype = BP_DTYPE_INT32});
}

/* Appended dummies, and the caller's. */
TEST(dummies_are_split_and_not_counted)
{
    static const uint64_t lengths[] = {5, 0, 16, 1, 33};
    for (uint64_t sequences = 0; sequences <= 5; sequences++) {
        for (uint64_t total = 48; total <= 480; total += 48)
            check_ranks((split_options){.lengths = lengths, .sequences = sequences, .total_multiple = total});
        if (sequences > 0)
            check_ranks((split_options){
                .lengths = lengths, .sequences = sequences, .last_is_dummy = true, .total_multiple = 240});
    }
}

/* The total may be padded for every padding of sequences. */
TEST(padded_batches_get_dummies_too)
{
    static const uint64_t lengths[] = {5, 0, 16, 1, 33}, padded[] = {48, 48, 96, 48, 48};
    for (uint64_t total = 48; total <= 480; total += 48)
        check_ranks((split_options){.lengths = lengths, .padded = padded, .sequences = 5, .total_multiple = total});
}

TEST(a_batch_may_be_full_already)
{
    static const uint64_t lengths[] = {8, 12, 4};
    const split_options options = {.lengths = lengths, .sequences = 3, .ranks = 2, .rank = 1, .total_multiple = 24};
    bp_cp_split *split = new_split(&options);
    assert_int_equal(info_of(split).sequences, 3);
    assert_int_equal(info_of(split).padded_tokens, 24);
    bp_cp_split_destroy(&split);
}

/* ---- bijections ---------------------------------------------------------------------------------------------------- */

/* The local tokens of all ranks are a permutation of the padded tokens. */
TEST(local_tokens_are_a_permutation)
{
    seed(5);
    for (size_t i = 0; i < RANKS_COUNT; i++) {
        uint64_t *ragged = random_lengths(30, 100);
        split_options options = {.lengths = ragged, .sequences = 30, .ranks = RANKS[i], .total_multiple = 192};
        uint8_t *taken = NULL;
        uint64_t padded = 0;
        for (options.rank = 0; options.rank < options.ranks; options.rank++) {
            bp_cp_split *split = new_split(&options);
            const uint64_t local = info_of(split).local_tokens;
            padded = info_of(split).padded_tokens;
            taken = taken != NULL ? taken : calloc(padded, 1);
            int64_t *map = malloc(local * sizeof *map);
            assert_non_null(taken);
            assert_non_null(map);
            assert_true(local * options.ranks == padded);
            assert_ok(bp_cp_split_map(split, BP_CP_PADDED, BP_CP_LOCAL, BP_CP_KEEP, local, map));
            for (uint64_t token = 0; token < local; token++) {
                assert_true(map[token] >= 0 && (uint64_t)map[token] < padded);
                assert_int_equal(taken[map[token]]++, 0);
            }
            free(map);
            bp_cp_split_destroy(&split);
        }
        free(taken);
        free(ragged);
    }
}

TEST(maps_are_inverse)
{
    seed(6);
    for (size_t i = 0; i < RANKS_COUNT; i++) {
        uint64_t *ragged = random_lengths(25, 90);
        const split_options options = {.lengths = ragged, .sequences = 25, .ranks = RANKS[i], .multiple = 48};
        bp_cp_split *split = new_split(&options);
        const bp_cp_split_info info = info_of(split);
        int64_t *there = malloc(info.padded_tokens * sizeof *there), *back = malloc(info.padded_tokens * sizeof *back);
        assert_non_null(there);
        assert_non_null(back);
        assert_ok(bp_cp_split_map(split, BP_CP_PADDED, BP_CP_GATHERED, BP_CP_KEEP, info.padded_tokens, there));
        assert_ok(bp_cp_split_map(split, BP_CP_GATHERED, BP_CP_PADDED, BP_CP_KEEP, info.padded_tokens, back));
        for (uint64_t token = 0; token < info.padded_tokens; token++)
            assert_int_equal(there[back[token]], token);
        assert_ok(bp_cp_split_map(split, BP_CP_PACKED, BP_CP_GATHERED, BP_CP_KEEP, info.padded_tokens, there));
        assert_ok(bp_cp_split_map(split, BP_CP_GATHERED, BP_CP_PACKED, BP_CP_KEEP, info.packed_tokens, back));
        for (uint64_t token = 0; token < info.packed_tokens; token++)
            assert_int_equal(there[back[token]], token);
        free(there);
        free(back);
        bp_cp_split_destroy(&split);
        free(ragged);
    }
}

/* ---- fingerprints -------------------------------------------------------------------------------------------------- */

static uint64_t print_of(const uint64_t *lengths, uint64_t sequences, uint32_t ranks, uint32_t rank, uint64_t multiple,
                         uint64_t total_multiple)
{
    const split_options options = {.lengths = lengths,
                                   .sequences = sequences,
                                   .ranks = ranks,
                                   .rank = rank,
                                   .multiple = multiple,
                                   .total_multiple = total_multiple};
    bp_cp_split *split = new_split(&options);
    const uint64_t fingerprint = info_of(split).fingerprint;
    bp_cp_split_destroy(&split);
    return fingerprint;
}

TEST(fingerprints_differ_between_batches)
{
    static const uint64_t lengths[] = {5, 9, 3, 0}, swapped[] = {9, 5, 3, 0}, longer[] = {5, 9, 4, 0};
    const uint64_t prints[] = {print_of(lengths, 4, 2, 0, 0, 0), print_of(swapped, 4, 2, 0, 0, 0),
                               print_of(longer, 4, 2, 0, 0, 0),  print_of(lengths, 3, 2, 0, 0, 0),
                               print_of(lengths, 4, 3, 0, 0, 0), print_of(lengths, 4, 2, 0, 8, 0),
                               print_of(lengths, 4, 2, 0, 0, 64)};
    for (size_t i = 0; i < sizeof prints / sizeof *prints; i++)
        for (size_t j = 0; j < i; j++)
            assert_true(prints[i] != prints[j]);
    for (uint32_t rank = 0; rank < 3; rank++)
        assert_true(print_of(lengths, 4, 3, rank, 0, 0) == prints[4]);
    assert_true(print_of(lengths, 4, 2, 0, 4, 0) == prints[0]); /* the smallest multiple, given explicitly */
}

TESTS(NULL, NULL)
