/* SPDX-License-Identifier: Apache-2.0 */
/* Random rearrangements, and their comparison with the reference split. */
#include "support/harness.h"

#include "rearrangements.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/scenarios.h"

split_batch new_split_batch(const split_options *options)
{
    split_batch h = {.d = new_reference_split(options)};
    assert_ok(split_of(options, &h.split));
    return h;
}

void free_split_batch(split_batch *h)
{
    bp_cp_split_destroy(&h->split);
    free_reference_split(&h->d);
}

bp_cp *new_cp(bp_device *device, uint32_t threads)
{
    bp_cp_config config;
    bp_cp *cp = NULL;
    assert_ok(bp_cp_config_init(&config, sizeof config));
    config.threads = threads;
    assert_ok(bp_cp_create(device, &config, &cp));
    return cp;
}

static placing random_placing(uint32_t margin)
{
    return (placing){.shift = random_below(3) == 0 ? 0 : random_below(33),
                     .gap = random_below(2) == 0 ? 0 : random_below(40),
                     .margin = margin};
}

move random_move(bp_cp_order from, bp_cp_order to, bp_cp_shift shift, uint64_t token_bytes)
{
    move m = {.from = from, .to = to, .shift = shift, .token_bytes = token_bytes};
    m.source = random_placing(0);
    m.target = random_placing(64);
    for (int i = 0; i < 16; i++)
        m.fill[i] = (uint8_t)random_below(256);
    m.fill_bytes = 1u << random_below(5);
    while (token_bytes % m.fill_bytes != 0)
        m.fill_bytes /= 2;
    if (random_below(4) == 0)
        m.fill_bytes = 0;
    return m;
}

bp_cp_rearrangement rearrangement_of(const move *m, const tokens *from, const tokens *to)
{
    bp_cp_rearrangement r;
    if (bp_cp_rearrangement_init(&r, sizeof r) != BP_OK)
        abort();
    r.from_order = m->from;
    r.to_order = m->to;
    r.from = tensor_of(from);
    r.to = tensor_of(to);
    r.shift = m->shift;
    memcpy(r.fill, m->fill, sizeof r.fill);
    r.fill_bytes = m->fill_bytes;
    return r;
}

bool is_moved(const split_batch *h, const move *m, const tokens *from, const tokens *to)
{
    char name[160];
    snprintf(name, sizeof name, "%s to %s, shift %d, rank %u of %u, %llu sequences, tokens of %llu bytes, fill of %u",
             bp_cp_order_name(m->from), bp_cp_order_name(m->to), (int)m->shift, h->d.rank, h->d.ranks,
             (unsigned long long)h->d.sequences, (unsigned long long)m->token_bytes, m->fill_bytes);
    int64_t *map = reference_map(&h->d, m->from, m->to, m->shift);
    const bool moved = tokens_are(to, from, map, m->fill, m->fill_bytes, name);
    free(map);
    return moved;
}

void check_move(bp_cp *cp, const split_batch *h, const move *m, bp_stream *stream)
{
    tokens from = new_tokens(h->d.count[m->from], m->token_bytes, m->source, 0xa5);
    tokens to = new_tokens(h->d.count[m->to], m->token_bytes, m->target, 0x5a);
    fill_tokens(&from, m->token_bytes + h->d.rank);
    uint8_t *before = malloc(from.bytes);
    assert_non_null(before);
    memcpy(before, from.memory, from.bytes);
    bp_cp_rearrangement r = rearrangement_of(m, &from, &to);
    if (can_shift(&h->d, m->from, m->shift)) {
        assert_ok(bp_cp_rearrange(cp, h->split, &r, stream));
        memset(&r, 0xee, sizeof r); /* the struct may be reused after the call */
        if (stream != NULL)
            assert_ok(bp_stream_synchronize(stream));
        assert_true(is_moved(h, m, &from, &to));
    } else {
        assert_fails(bp_cp_rearrange(cp, h->split, &r, stream), BP_ERR_INVALID_ARGUMENT, "local");
        assert_true(tokens_are_poison(&to));
    }
    assert_memory_equal(from.memory, before, from.bytes);
    free(before);
    free_tokens(&from);
    free_tokens(&to);
}

void just_move(bp_cp *cp, const split_batch *h, bp_cp_order from_order, const tokens *from, bp_cp_order to_order,
               tokens *to)
{
    const move m = {.from = from_order, .to = to_order, .token_bytes = from->token_bytes};
    const bp_cp_rearrangement r = rearrangement_of(&m, from, to);
    assert_ok(bp_cp_rearrange(cp, h->split, &r, NULL));
}

/* ---- the sample ----------------------------------------------------------------------------------------------------- */

static const uint64_t LENGTHS[] = {50, 0, 7, 122, 1};
static const split_options BATCH = {.lengths = LENGTHS, .sequences = 5, .ranks = 2, .rank = 1};
const move SAMPLE_MOVE = {.from = BP_CP_PACKED,
                          .to = BP_CP_LOCAL,
                          .shift = BP_CP_NEXT,
                          .token_bytes = 12,
                          .source = {.gap = 5},
                          .target = {.shift = 3, .gap = 1, .margin = 64},
                          .fill = {1, 2, 3, 4},
                          .fill_bytes = 4};

sample new_sample(uint64_t seed_of_bytes)
{
    sample s = {.h = new_split_batch(&BATCH)};
    s.from = new_tokens(s.h.d.count[BP_CP_PACKED], SAMPLE_MOVE.token_bytes, SAMPLE_MOVE.source, 0xa5);
    s.to = new_tokens(s.h.d.count[BP_CP_LOCAL], SAMPLE_MOVE.token_bytes, SAMPLE_MOVE.target, 0x5a);
    fill_tokens(&s.from, seed_of_bytes);
    return s;
}

void free_sample(sample *s)
{
    free_split_batch(&s->h);
    free_tokens(&s->from);
    free_tokens(&s->to);
}

bool sample_is_done(const sample *s)
{
    return is_moved(&s->h, &SAMPLE_MOVE, &s->from, &s->to);
}
