/* SPDX-License-Identifier: Apache-2.0 */
/* Rearrangements between all orders: every byte against the reference split, and gaps between tokens stay untouched. */
#include "support/harness.h"

#include "../support/hosts.h"
#include "../support/rearrangements.h"

#include <stdlib.h>
#include <string.h>

#include "support/scenarios.h"

static const uint32_t RANKS[] = {1, 2, 3, 4, 8};
#define RANKS_COUNT (sizeof RANKS / sizeof *RANKS)
static const uint64_t BYTES[] = {1, 2, 3, 4, 7, 8, 12, 16, 48};
#define BYTES_COUNT (sizeof BYTES / sizeof *BYTES)

static bp_cp *client;

static int open_client(void **state)
{
    if (open_host(state) != 0)
        return 1;
    client = new_cp(device, 2);
    return 0;
}

static int close_client(void **state)
{
    bp_cp_destroy(&client);
    return close_host(state);
}

static split_batch random_hand(uint64_t sequences, uint32_t max, uint32_t ranks)
{
    uint64_t *lengths = random_lengths(sequences, max);
    const split_options options = {.lengths = lengths,
                                   .sequences = sequences,
                                   .ranks = ranks,
                                   .rank = random_below(ranks),
                                   .total_multiple = random_below(2) * 2 * ranks * 11};
    split_batch h = new_split_batch(&options);
    free(lengths);
    return h;
}

/* ---- orders, bytes, fills ------------------------------------------------------------------------------------------ */

TEST(all_orders_and_shifts)
{
    size_t bytes = 0;
    seed(41);
    for (size_t i = 0; i < RANKS_COUNT; i++) {
        for (uint64_t sequences = 1; sequences <= 9; sequences += 8) {
            split_batch h = random_hand(sequences, 40, RANKS[i]);
            for (int each = 0; each < ORDERS * ORDERS * SHIFTS; each++) {
                const move m = random_move((bp_cp_order)(each % ORDERS), (bp_cp_order)(each / ORDERS % ORDERS),
                                           (bp_cp_shift)(each / ORDERS / ORDERS), BYTES[bytes++ % BYTES_COUNT]);
                check_move(client, &h, &m, NULL);
            }
            free_split_batch(&h);
        }
    }
}

/* Indexing with the library's map gives the same as its rearrangement. */
TEST(maps_match_rearrangements)
{
    seed(42);
    split_batch h = random_hand(12, 30, 3);
    for (int each = 0; each < ORDERS * ORDERS * SHIFTS; each++) {
        const bp_cp_order from = (bp_cp_order)(each % ORDERS), to = (bp_cp_order)(each / ORDERS % ORDERS);
        const bp_cp_shift shift = (bp_cp_shift)(each / ORDERS / ORDERS);
        if (!can_shift(&h.d, from, shift))
            continue;
        const move m = {.from = from, .to = to, .shift = shift, .token_bytes = 8, .fill = {0xff}, .fill_bytes = 1};
        tokens source = new_tokens(h.d.count[from], 8, m.source, 0), target = new_tokens(h.d.count[to], 8, m.target, 0);
        int64_t *map = malloc((h.d.count[to] + 1) * sizeof *map);
        assert_non_null(map);
        for (uint64_t i = 0; i < source.count; i++)
            memcpy(token_at(&source, i), &i, 8);
        const bp_cp_rearrangement r = rearrangement_of(&m, &source, &target);
        assert_ok(bp_cp_rearrange(client, h.split, &r, NULL));
        assert_ok(bp_cp_split_map(h.split, from, to, shift, h.d.count[to], map));
        assert_memory_equal(target.data, map, target.count * 8); /* -1 has all bits set */
        free(map);
        free_tokens(&source);
        free_tokens(&target);
    }
    free_split_batch(&h);
}

TEST(any_bytes_at_any_address)
{
    seed(43);
    split_batch h = random_hand(5, 30, 2);
    for (size_t i = 0; i < BYTES_COUNT; i++) {
        for (uint32_t shift = 0; shift < 16; shift += shift < 4 ? 1 : 3) {
            for (uint32_t gap = 0; gap < 16; gap += 1 + gap) {
                move m = random_move(BP_CP_PACKED, BP_CP_LOCAL, BP_CP_KEEP, BYTES[i]);
                m.source = (placing){.shift = shift, .gap = gap};
                m.target = (placing){.shift = random_below(17), .gap = random_below(9), .margin = 64};
                check_move(client, &h, &m, NULL);
            }
        }
    }
    free_split_batch(&h);
}

/* Runs that a CUDA warp moves as vectors, and their ends. */
TEST(small_tokens_may_be_many)
{
    static const uint64_t bytes[] = {1, 2, 4, 8}, lengths[] = {5003, 0, 1, 2600, 4097};
    seed(49);
    for (uint32_t ranks = 1; ranks <= 2; ranks++) {
        const split_options options = {.lengths = lengths, .sequences = 5, .ranks = ranks, .rank = ranks - 1};
        split_batch h = new_split_batch(&options);
        for (int each = 0; each < ORDERS * ORDERS * SHIFTS; each += ranks) {
            const uint64_t size = bytes[random_below(4)];
            move m = random_move((bp_cp_order)(each % ORDERS), (bp_cp_order)(each / ORDERS % ORDERS),
                                 (bp_cp_shift)(each / ORDERS / ORDERS), size);
            m.source = (placing){.shift = random_below(3) * (uint32_t)size};
            m.target = (placing){.shift = random_below(3) * (uint32_t)size, .margin = 64};
            check_move(client, &h, &m, NULL);
        }
        free_split_batch(&h);
    }
}

TEST(tokens_may_be_large)
{
    static const uint64_t large[] = {1000, 4095, 8192, 8193, 65540};
    seed(44);
    split_batch h = random_hand(3, 14, 2);
    for (size_t i = 0; i < sizeof large / sizeof *large; i++) {
        move m = random_move(BP_CP_PACKED, BP_CP_LOCAL, BP_CP_NEXT, large[i]);
        check_move(client, &h, &m, NULL);
        m.from = BP_CP_GATHERED;
        m.to = BP_CP_PACKED;
        m.source = m.target = (placing){.margin = 64};
        check_move(client, &h, &m, NULL);
    }
    free_split_batch(&h);
}

TEST(fills_are_repeated)
{
    seed(45);
    split_batch h = random_hand(9, 12, 4);
    for (uint32_t fill = 1; fill <= 16; fill *= 2) {
        for (uint64_t times = 1; times <= 5; times++) {
            move m = random_move(BP_CP_PACKED, BP_CP_LOCAL, BP_CP_NEXT, fill * times);
            m.fill_bytes = fill;
            check_move(client, &h, &m, NULL);
            m.fill_bytes = 0;
            check_move(client, &h, &m, NULL);
        }
    }
    free_split_batch(&h);
}

/* ---- sequences ----------------------------------------------------------------------------------------------------- */

TEST(any_number_of_sequences)
{
    static const uint64_t counts[] = {0, 1, 2, 119, 120, 121, 239, 240, 241, 1000};
    seed(46);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        for (uint32_t ranks = 1 + i % 2; ranks <= 3; ranks += 2) {
            split_batch h = random_hand(counts[i], 9, ranks);
            for (int shift = 0; shift < SHIFTS; shift++) {
                move m = random_move(BP_CP_PACKED, BP_CP_LOCAL, (bp_cp_shift)shift, 4);
                check_move(client, &h, &m, NULL);
                m = random_move(BP_CP_GATHERED, BP_CP_PACKED, (bp_cp_shift)shift, 3);
                check_move(client, &h, &m, NULL);
                m = random_move(BP_CP_PADDED, BP_CP_GATHERED, (bp_cp_shift)shift, 8);
                check_move(client, &h, &m, NULL);
            }
            free_split_batch(&h);
        }
    }
}

/* Runs of empty sequences, at the ends, and at group boundaries of kernels. */
TEST(sequences_may_be_empty)
{
    seed(47);
    for (int kind = 0; kind < 4; kind++) {
        uint64_t lengths[300] = {0};
        for (uint64_t i = 0; i < 300; i++)
            if (kind == 0 ? i == 150 : kind == 1 ? i < 2 : kind == 2 ? i >= 298 : i % 120 < 2)
                lengths[i] = 1 + random_below(20);
        const split_options options = {.lengths = lengths, .sequences = 300, .ranks = 2, .rank = kind % 2};
        split_batch h = new_split_batch(&options);
        for (int each = 0; each < ORDERS * ORDERS; each++) {
            const move m =
                random_move((bp_cp_order)(each % ORDERS), (bp_cp_order)(each / ORDERS), BP_CP_KEEP, 1 + each % 9);
            check_move(client, &h, &m, NULL);
        }
        free_split_batch(&h);
    }
}

TEST(empty_rearrangements_succeed)
{
    static const uint64_t lengths[] = {0, 0, 0};
    for (uint64_t sequences = 0; sequences <= 3; sequences++) {
        const split_options options = {.lengths = lengths, .sequences = sequences, .ranks = 2};
        split_batch h = new_split_batch(&options);
        bp_cp_rearrangement r;
        assert_ok(bp_cp_rearrangement_init(&r, sizeof r));
        r.from.token_bytes = r.to.token_bytes = 4;
        assert_ok(bp_cp_rearrange(client, h.split, &r, NULL)); /* without memory */
        r.from_order = BP_CP_PADDED;
        r.to_order = BP_CP_GATHERED;
        assert_ok(bp_cp_rearrange(client, h.split, &r, NULL));
        free_split_batch(&h);
    }
}

/* A dummy in a batch without tokens: everything is filled. */
TEST(batches_may_be_padding_only)
{
    static const uint64_t lengths[] = {0, 0}, padded[] = {24, 48};
    const split_options options = {.lengths = lengths, .padded = padded, .sequences = 2, .ranks = 3, .rank = 1};
    split_batch h = new_split_batch(&options);
    for (int to = BP_CP_PADDED; to <= BP_CP_GATHERED; to++) {
        const move m = random_move(BP_CP_PACKED, (bp_cp_order)to, BP_CP_KEEP, 12);
        check_move(client, &h, &m, NULL);
    }
    free_split_batch(&h);
}

/* Padding has no source: sanitizers report an address computed for it. */
TEST(padding_has_no_source)
{
    static const uint64_t lengths[] = {0}, padded[] = {6};
    const split_options options = {.lengths = lengths, .padded = padded, .sequences = 1, .ranks = 3};
    split_batch h = new_split_batch(&options);
    uint8_t made[8] = {0x77, 0x77, 0x77, 0x77, 0x77, 0x77, 0x77, 0x77};
    static const uint8_t expected[8] = {5, 5, 0x77, 0x77, 5, 5, 0x77, 0x77};
    bp_cp_rearrangement r;
    assert_ok(bp_cp_rearrangement_init(&r, sizeof r));
    r.from.token_bytes = 2;
    r.to = (bp_cp_tensor){.data = made, .tokens = 2, .token_bytes = 2, .stride = 4};
    r.fill[0] = 5;
    r.fill_bytes = 1;
    assert_ok(bp_cp_rearrange(client, h.split, &r, NULL));
    assert_memory_equal(made, expected, sizeof made);
    free_split_batch(&h);
}

/* Long enough for every thread to take a part. */
TEST(sequences_may_be_long)
{
    static const uint64_t lengths[] = {3, 9011, 1, 3000};
    seed(48);
    for (uint32_t threads = 1; threads <= 4; threads += 3) {
        bp_cp *cp = new_cp(device, threads);
        const split_options options = {.lengths = lengths, .sequences = 4, .ranks = 4, .rank = 2};
        split_batch h = new_split_batch(&options);
        for (uint64_t bytes = 1; bytes <= 8; bytes *= 8) {
            move m = random_move(BP_CP_PACKED, BP_CP_LOCAL, BP_CP_NEXT_WRAPPED, bytes);
            check_move(cp, &h, &m, NULL);
            m = random_move(BP_CP_GATHERED, BP_CP_PADDED, BP_CP_KEEP, bytes);
            check_move(cp, &h, &m, NULL);
        }
        free_split_batch(&h);
        bp_cp_destroy(&cp);
    }
}

/* ---- round trips --------------------------------------------------------------------------------------------------- */

/* Packed, padded, local on each rank, gathered, packed again. */
TEST(round_trips_are_exact)
{
    seed(49);
    for (size_t i = 0; i < RANKS_COUNT; i++) {
        uint64_t *lengths = random_lengths(20, 60);
        split_options options = {.lengths = lengths, .sequences = 20, .ranks = RANKS[i], .multiple = 48};
        for (uint64_t bytes = 2; bytes <= 12; bytes += 5) {
            split_batch h = new_split_batch(&options);
            const uint64_t whole = h.d.count[BP_CP_PADDED], part = h.d.count[BP_CP_LOCAL];
            const placing close = {0};
            tokens packed = new_tokens(h.d.count[BP_CP_PACKED], bytes, close, 0xa5);
            tokens padded = new_tokens(whole, bytes, close, 0), gathered = new_tokens(whole, bytes, close, 0);
            tokens back = new_tokens(packed.count, bytes, close, 0), padded_back = new_tokens(whole, bytes, close, 0);
            fill_tokens(&packed, bytes);
            just_move(client, &h, BP_CP_PACKED, &packed, BP_CP_PADDED, &padded);
            for (options.rank = 0; options.rank < options.ranks; options.rank++) {
                split_batch own = new_split_batch(&options);
                tokens local = gathered;
                local.data += options.rank * part * bytes;
                local.count = part;
                just_move(client, &own, BP_CP_PADDED, &padded, BP_CP_LOCAL, &local);
                free_split_batch(&own);
            }
            options.rank = 0;
            just_move(client, &h, BP_CP_GATHERED, &gathered, BP_CP_PACKED, &back);
            just_move(client, &h, BP_CP_GATHERED, &gathered, BP_CP_PADDED, &padded_back);
            assert_true(same_tokens(&packed, &back, "there and back"));
            assert_true(same_tokens(&padded, &padded_back, "padded, there and back"));
            tokens *const all[] = {&packed, &padded, &gathered, &back, &padded_back};
            for (size_t t = 0; t < 5; t++)
                free_tokens(all[t]);
            free_split_batch(&h);
        }
        free(lengths);
    }
}

/* ---- mistakes of other implementations ------------------------------------------------------------------------------ */

/* Labels of cu = [0, 8, 12] by rolling the whole batch: token 7 would get the first label of the next sequence. */
TEST(labels_do_not_cross_sequences)
{
    static const uint64_t lengths[] = {8, 4};
    static const int32_t ids[] = {100, 101, 102, 103, 104, 105, 106, 107, 208, 209, 210, 211};
    static const int32_t labels[2][6] = {{101, 102, 107, -100, 209, -100}, {103, 104, 105, 106, 210, 211}};
    for (uint32_t rank = 0; rank < 2; rank++) {
        const split_options options = {.lengths = lengths, .sequences = 2, .ranks = 2, .rank = rank};
        split_batch h = new_split_batch(&options);
        int32_t local[6];
        bp_cp_rearrangement r;
        assert_ok(bp_cp_rearrangement_init(&r, sizeof r));
        r.from = (bp_cp_tensor){.data = (void *)ids, .tokens = 12, .token_bytes = 4};
        r.to = (bp_cp_tensor){.data = local, .tokens = 6, .token_bytes = 4};
        r.shift = BP_CP_NEXT;
        memcpy(r.fill, &(int32_t){-100}, 4);
        r.fill_bytes = 4;
        assert_ok(bp_cp_rearrange(client, h.split, &r, NULL));
        assert_memory_equal(local, labels[rank], sizeof local);
        free_split_batch(&h);
    }
}

TESTS(open_client, close_client)
