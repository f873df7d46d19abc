/* CUDA kernels for rearrangements, one launch at a time on the emulation, against plain lists. */
#include "support/harness.h"

#include "../support/splits.h"
#include "launches.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/scenarios.h"
#include "work.h"

#define UNTOUCHED 0xa7

/* Tokens in an allocation that ends with the last one. */
typedef struct tokens {
    uint32_t count;
    uint64_t bytes;
    int64_t stride;
    uint8_t *memory;
} tokens;

static tokens new_tokens(uint32_t count, uint64_t bytes, uint64_t gap)
{
    tokens t = {.count = count, .bytes = bytes, .stride = (int64_t)(bytes + gap)};
    const size_t whole = count == 0 ? 0 : (count - 1) * (size_t)t.stride + bytes;
    t.memory = malloc(whole + 1); /* malloc aligns to 16 */
    assert_non_null(t.memory);
    t.memory = realloc(t.memory, whole > 0 ? whole : 1);
    assert_true(t.memory != NULL && (uintptr_t)t.memory % 16 == 0);
    memset(t.memory, UNTOUCHED, whole);
    return t;
}

static uint8_t *token_at(const tokens *t, int64_t index)
{
    return t->memory + index * t->stride;
}

static void fill_tokens(const tokens *t)
{
    for (uint32_t i = 0; i < t->count; i++)
        for (uint64_t k = 0; k < t->bytes; k++)
            token_at(t, i)[k] = (uint8_t)random_below(256);
}

typedef struct rearrangement {
    bp_cp_order from, to;
    bp_cp_shift shift;
    uint32_t word_bytes;
    uint64_t bytes;   /* per token */
    uint64_t gaps[2]; /* bytes between tokens */
    uint32_t groups;  /* number of launches */
    grid g;
} rearrangement;

static void launch_groups(const split_batch *b, const rearrangement *r, const tokens *from, const tokens *to)
{
    char name[32];
    snprintf(name, sizeof name, "bp_rearrange_%u", r->word_bytes);
    for (uint32_t i = 0; i < r->groups; i++) {
        const uint32_t first = b->count * i / r->groups, end = b->count * (i + 1) / r->groups;
        bp_rearrange_work work = {.group = group_of(b, first, end - first),
                                  .from = from->memory,
                                  .to = to->memory,
                                  .from_stride = from->stride,
                                  .to_stride = to->stride,
                                  .token_bytes = r->bytes,
                                  .from_order = r->from,
                                  .to_order = r->to,
                                  .shift = r->shift,
                                  .word_bytes = r->word_bytes};
        for (uint8_t k = 0; k < BP_FILL_BYTES; k++)
            work.fill[k] = (uint8_t)(k * 11 + 1);
        run(name, r->g, &work);
    }
}

static void check_token(const tokens *from, const tokens *to, uint32_t place, int64_t source)
{
    const uint8_t *made = token_at(to, place);
    for (uint64_t k = 0; k < to->bytes; k++) {
        const uint8_t fill = (uint8_t)(k % BP_FILL_BYTES * 11 + 1);
        assert_int_equal(made[k], source == NO_PLACE ? fill : token_at(from, source)[k]);
    }
    for (int64_t k = (int64_t)to->bytes; k < to->stride && place + 1 < to->count; k++)
        assert_int_equal(made[k], UNTOUCHED);
}

static void check(const split_batch *b, const rearrangement *r)
{
    static int64_t sources[MOST_TOKENS];
    static token list[MOST_TOKENS];
    const uint32_t count = list_sources(b, r->from, r->to, r->shift, sources);
    tokens from = new_tokens(list_order(b, r->from, list), r->bytes, r->gaps[0]);
    tokens to = new_tokens(count, r->bytes, r->gaps[1]);
    fill_tokens(&from);
    launch_groups(b, r, &from, &to);
    for (uint32_t i = 0; i < count; i++)
        check_token(&from, &to, i, sources[i]);
    free(to.memory);
    free(from.memory);
}

static const uint32_t RANKS[] = {1, 2, 3, 8};

TEST(every_order_becomes_every_other)
{
    static const grid grids[] = {{1, 1, 128}, {5, 1, 128}, {2, 1, 32}, {40, 1, 64}};
    for (unsigned at = 0; at < 4; at++)
        for (unsigned pair = 0; pair < 16; pair++)
            for (int shift = BP_CP_KEEP; shift <= BP_CP_NEXT_WRAPPED; shift++) {
                seed(100 * at + pair);
                split_batch b = random_split(1 + random_below(9), RANKS[at], 30);
                rearrangement r = {.from = (bp_cp_order)(pair / 4),
                                   .to = (bp_cp_order)(pair % 4),
                                   .shift = (bp_cp_shift)shift,
                                   .word_bytes = 4,
                                   .bytes = 12,
                                   .gaps = {0, 4},
                                   .groups = 1 + random_below(3),
                                   .g = grids[random_below(4)]};
                check(&b, &r);
            }
}

/* Fewer words than lanes, as many, a few more, and enough for several loads in flight. */
TEST(words_of_any_size_are_moved)
{
    static const uint64_t words[] = {1, 2, 5, 31, 32, 33, 127, 128, 300};
    for (uint32_t size = 1; size <= 16; size *= 2)
        for (unsigned i = 0; i < 9; i++) {
            seed(7 * i + size);
            split_batch b = random_split(3, RANKS[1 + i % 3], 12);
            rearrangement r = {.from = BP_CP_PACKED,
                               .to = i % 2 == 0 ? BP_CP_LOCAL : BP_CP_PADDED,
                               .shift = BP_CP_NEXT,
                               .word_bytes = size,
                               .bytes = size * words[i],
                               .gaps = {size * (i % 3ul), size * (i % 2ul)},
                               .groups = 1,
                               .g = {1 + i % 3, 1, 128}};
            check(&b, &r);
        }
}

/* Negative strides, and stride 0. */
TEST(strides_may_be_negative)
{
    seed(5);
    split_batch b = random_split(4, 2, 20);
    int64_t sources[MOST_TOKENS];
    token list[MOST_TOKENS];
    const uint32_t count = list_sources(&b, BP_CP_LOCAL, BP_CP_PACKED, BP_CP_KEEP, sources);
    tokens from = new_tokens(list_order(&b, BP_CP_LOCAL, list), 8, 0), to = new_tokens(count, 8, 8);
    tokens backwards = {from.count, 8, -from.stride, token_at(&from, from.count - 1)};
    const rearrangement r = {
        .from = BP_CP_LOCAL, .to = BP_CP_PACKED, .word_bytes = 8, .bytes = 8, .groups = 1, .g = {2, 1, 128}};
    fill_tokens(&from);
    launch_groups(&b, &r, &backwards, &to);
    for (uint32_t i = 0; i < count; i++)
        check_token(&backwards, &to, i, sources[i]);
    tokens same = {from.count, 8, 0, from.memory};
    launch_groups(&b, &r, &same, &to);
    for (uint32_t i = 0; i < count; i++)
        check_token(&same, &to, i, sources[i]);
    free(to.memory);
    free(from.memory);
}

/* Groups of only empty sequences have no places, on any grid. */
TEST(empty_sequences_have_no_places)
{
    for (unsigned pair = 0; pair < 16; pair++) {
        split_batch b = {.count = 3, .data = 3, .ranks = RANKS[pair % 4]};
        rearrangement r = {.from = (bp_cp_order)(pair / 4),
                           .to = (bp_cp_order)(pair % 4),
                           .word_bytes = 16,
                           .bytes = 64,
                           .groups = 1 + pair % 2,
                           .g = {2, 1, 128}};
        check(&b, &r);
    }
}

TESTS(NULL, NULL)
