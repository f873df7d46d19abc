/* SPDX-License-Identifier: Apache-2.0 */
/* All-gathers of local tokens and their backward, on ranks that are threads. */
#include "support/harness.h"

#include "../support/ranks.h"
#include "../support/rearrangements.h"
#include "../support/reference.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/scenarios.h"

#define OK(call) is_status(call, BP_OK, NULL, #call)

static const uint32_t RANKS[] = {1, 2, 3, 4, 8};
#define RANKS_COUNT (sizeof RANKS / sizeof *RANKS)
static const placing CLOSE = {0};

typedef struct setting {
    const uint64_t *lengths;
    uint64_t sequences, total_multiple, token_bytes;
    bp_dtype dtype; /* of gradients */
    bool own_stream, trusting, bare, gaps;
} setting;

/* Client, split and streams of a rank. */
typedef struct party {
    host_rank *r;
    const setting *s;
    reference_split d;
    bp_cp_split *split;
    bp_comm *bare; /* without collectives */
    bp_cp *cp;
} party;

static bool begin_party(host_rank *r, const setting *s, party *p)
{
    const split_options options = {.lengths = s->lengths,
                                   .sequences = s->sequences,
                                   .ranks = r->ranks,
                                   .rank = r->number,
                                   .total_multiple = s->total_multiple,
                                   .comm = r->comm};
    *p = (party){.r = r, .s = s, .d = new_reference_split(&options)};
    bp_cp_config config;
    const bp_comm_callbacks callbacks = exchange_callbacks(&r->seat);
    if (!OK(bp_cp_config_init(&config, sizeof config)) || !OK(split_of(&options, &p->split)) ||
        (s->bare && !OK(bp_comm_create_callback(&callbacks, &r->seat, "bare", &p->bare))))
        return false;
    config.comm = s->bare ? p->bare : r->comm;
    config.max_gathered_bytes = p->d.count[BP_CP_PADDED] * s->token_bytes;
    config.threads = 1;
    config.trusting = s->trusting;
    return OK(bp_cp_create(r->device, &config, &p->cp));
}

static void end_party(party *p)
{
    bp_cp_destroy(&p->cp);
    bp_comm_destroy(&p->bare);
    bp_cp_split_destroy(&p->split);
    free_reference_split(&p->d);
}

static bp_stream *stream_of(const party *p)
{
    return p->s->own_stream ? NULL : p->r->stream;
}

static bool is_finished(const party *p)
{
    return p->s->own_stream || OK(bp_stream_synchronize(p->r->stream));
}

static placing gaps_of(const party *p, uint32_t shift)
{
    return p->s->gaps ? (placing){.shift = shift, .gap = 4 + shift} : CLOSE;
}

/* ---- forward ------------------------------------------------------------------------------------------------------- */

/* An enqueued gather: local tokens of the reference split, with bytes that are the same on all ranks. */
typedef struct gathering {
    bp_cp_order order;
    tokens original, local, whole;
} gathering;

static gathering new_gathering(const party *p, bp_cp_order order, uint64_t seed_of_bytes)
{
    const uint64_t bytes = p->s->token_bytes;
    placing behind = gaps_of(p, 8);
    behind.margin = 64;
    gathering g = {.order = order,
                   .original = new_tokens(p->d.count[BP_CP_PADDED], bytes, CLOSE, 0),
                   .local = new_tokens(p->d.count[BP_CP_LOCAL], bytes, gaps_of(p, 4), 0xa5),
                   .whole = new_tokens(p->d.count[order], bytes, behind, 0x5a)};
    fill_tokens(&g.original, seed_of_bytes);
    int64_t *map = reference_map(&p->d, BP_CP_PADDED, BP_CP_LOCAL, BP_CP_KEEP);
    for (uint64_t i = 0; i < g.local.count; i++)
        memcpy(token_at(&g.local, i), token_at(&g.original, (uint64_t)map[i]), bytes);
    free(map);
    return g;
}

static bool enqueue_gathering(const party *p, const gathering *g, bp_stream *stream)
{
    bp_cp_tensor of = tensor_of(&g->local), to = tensor_of(&g->whole);
    const bool good = OK(bp_cp_gather(p->cp, p->split, &of, g->order, &to, stream));
    memset(&of, 0xee, sizeof of); /* the struct may be reused after the call */
    memset(&to, 0xee, sizeof to);
    return good;
}

/* Also frees the gather. */
static bool is_gathered(const party *p, gathering *g)
{
    int64_t *map = reference_map(&p->d, BP_CP_PADDED, g->order, BP_CP_KEEP);
    const bool good = tokens_are(&g->whole, &g->original, map, NULL, 0, bp_cp_order_name(g->order));
    free(map);
    free_tokens(&g->original);
    free_tokens(&g->local);
    free_tokens(&g->whole);
    return good;
}

static bool gather_to(const party *p, bp_cp_order order, uint64_t seed_of_bytes)
{
    gathering g = new_gathering(p, order, seed_of_bytes);
    const bool good = enqueue_gathering(p, &g, stream_of(p)) && is_finished(p);
    return is_gathered(p, &g) && good;
}

static bool gather_all(host_rank *r)
{
    party p;
    bool good = begin_party(r, r->user, &p);
    good = good && (bp_cp_pool(p.cp) != NULL || r->ranks == 1 || p.d.count[BP_CP_PADDED] == 0);
    for (uint64_t round = 0; round < 3 && good; round++)
        good = gather_to(&p, BP_CP_PACKED, round) && gather_to(&p, BP_CP_PADDED, 10 + round);
    end_party(&p);
    return good;
}

static setting random_scene(uint64_t token_bytes, unsigned variant)
{
    return (setting){.lengths = random_lengths(7, 40),
                     .sequences = 7,
                     .total_multiple = (variant & 1) * 48 * 4,
                     .token_bytes = token_bytes,
                     .own_stream = (variant & 2) != 0,
                     .trusting = variant % 3 == 2,
                     .gaps = variant % 4 == 1};
}

TEST(gathers_give_what_was_split)
{
    static const uint64_t bytes[] = {4, 2, 1, 12, 8, 3};
    unsigned variant = 0;
    seed(61);
    for (size_t i = 0; i < RANKS_COUNT; i++) {
        for (int each = 0; each < 4; each++, variant++) {
            setting s = random_scene(bytes[variant % 6], variant);
            run_host_ranks(RANKS[i], variant % 2 == 0, variant % 8 == 3 ? 200 : 0, gather_all, &s);
            free((void *)s.lengths);
        }
    }
}

TEST(exchanges_replace_missing_collectives)
{
    seed(62);
    for (size_t i = 0; i < RANKS_COUNT; i++) {
        for (unsigned variant = 0; variant < 4; variant++) {
            setting s = random_scene(4, variant);
            s.bare = true;
            run_host_ranks(RANKS[i], false, variant == 1 ? 200 : 0, gather_all, &s);
            free((void *)s.lengths);
        }
    }
}

enum { CALLS = 7 };

/* Calls on two streams share one workspace. They skip the comparison between ranks: only the streams' threads communicate. */
static bool gather_in_turn(host_rank *r)
{
    party p;
    bp_stream *streams[2] = {r->stream, NULL};
    gathering all[CALLS];
    bool good = begin_party(r, r->user, &p) && OK(bp_stream_create(r->device, "second", &streams[1]));
    for (uint64_t i = 0; i < CALLS; i++) {
        all[i] = new_gathering(&p, i % 3 == 0 ? BP_CP_PADDED : BP_CP_PACKED, i);
        good = good && enqueue_gathering(&p, &all[i], streams[i % 2]);
    }
    bp_cp_split_destroy(&p.split);
    bp_cp_destroy(&p.cp); /* waits */
    for (uint64_t i = 0; i < CALLS; i++)
        good = is_gathered(&p, &all[i]) && good;
    bp_stream_destroy(&streams[1]);
    end_party(&p);
    return good;
}

TEST(streams_take_turns)
{
    seed(64);
    for (uint32_t ranks = 2; ranks <= 4; ranks++) {
        setting s = random_scene(8, 0);
        s.trusting = true;
        run_host_ranks(ranks, true, 300, gather_in_turn, &s);
        run_host_ranks(ranks, false, 300, gather_in_turn, &s);
        free((void *)s.lengths);
    }
}

/* One token in total, and none. */
TEST(gathers_of_few_tokens)
{
    static const uint64_t lengths[] = {1, 0, 0};
    for (unsigned variant = 0; variant < 4; variant++) {
        const setting s = {.lengths = lengths + variant % 2, .sequences = 2, .token_bytes = 4, .bare = variant > 1};
        run_host_ranks(3, false, 0, gather_all, (void *)&s);
    }
}

/* ---- backward ------------------------------------------------------------------------------------------------------ */

/* A small integer, a function of its arguments. */
static double small_of(uint32_t rank, uint64_t token, uint64_t element)
{
    return (double)((rank * 7 + token * 5 + element * 3) % 23) - 11;
}

static uint64_t elements_of(const party *p)
{
    return p->s->token_bytes / (bp_dtype_bits(p->s->dtype) / 8);
}

/* Gradients of rank `of` for each token of `order`. */
static void fill_gradients(const party *p, tokens *t, uint32_t of)
{
    for (uint64_t i = 0; i < t->count; i++)
        for (uint64_t e = 0; e < elements_of(p); e++)
            put_element(token_at(t, i), p->s->dtype, (int64_t)e, small_of(of, i, e));
}

/* Sums of all ranks' gradients, at the places of the reference split. */
static bool gradients_are_sums(const party *p, bp_cp_order order, const tokens *local)
{
    bool good = true;
    int64_t *map = reference_map(&p->d, order, BP_CP_LOCAL, BP_CP_KEEP);
    for (uint64_t i = 0; i < local->count && good; i++) {
        for (uint64_t e = 0; e < elements_of(p) && good; e++) {
            double sum = 0, is = element_at(token_at(local, i), p->s->dtype, (int64_t)e);
            for (uint32_t of = 0; of < p->r->ranks && map[i] >= 0; of++)
                sum += small_of(of, (uint64_t)map[i], e);
            good = is == sum;
            if (!good)
                fprintf(stderr, "rank %u of %u: the gradient of local token %llu from %s order is %g, not %g\n",
                        p->r->number, p->r->ranks, (unsigned long long)i, bp_cp_order_name(order), is, sum);
        }
    }
    free(map);
    return good;
}

/* Adjointness over all ranks: <gather(x), y> = <x, backward(y)>. */
static bool is_adjoint(const party *p, bp_cp_order order, const tokens *whole_gradients, const tokens *local_gradients)
{
    tokens x = new_tokens(local_gradients->count, p->s->token_bytes, CLOSE, 0);
    tokens gathered = new_tokens(whole_gradients->count, p->s->token_bytes, CLOSE, 0);
    fill_gradients(p, &x, p->r->number + 3);
    const bp_cp_tensor of = tensor_of(&x), to = tensor_of(&gathered);
    bool good = OK(bp_cp_gather(p->cp, p->split, &of, order, &to, NULL));
    double sums[2] = {0}, all[2 * EXCHANGE_RANKS];
    for (uint64_t e = 0; e < elements_of(p); e++) {
        for (uint64_t i = 0; i < gathered.count; i++)
            sums[0] += element_at(token_at(&gathered, i), p->s->dtype, (int64_t)e) *
                       element_at(token_at(whole_gradients, i), p->s->dtype, (int64_t)e);
        for (uint64_t i = 0; i < x.count; i++)
            sums[1] += element_at(token_at(&x, i), p->s->dtype, (int64_t)e) *
                       element_at(token_at(local_gradients, i), p->s->dtype, (int64_t)e);
    }
    good = good && OK(bp_comm_exchange(p->r->comm, sums, sizeof sums, all));
    for (uint32_t rank = 1; rank < p->r->ranks && good; rank++) {
        all[0] += all[2 * (size_t)rank];
        all[1] += all[2 * (size_t)rank + 1];
    }
    if (good && all[0] != all[1])
        fprintf(stderr, "<gather(x), y> is %g, but <x, backward(y)> is %g\n", all[0], all[1]);
    free_tokens(&x);
    free_tokens(&gathered);
    return good && all[0] == all[1];
}

static bool gaps_are_poison(const tokens *t)
{
    tokens same = *t;
    int64_t *map = malloc((t->count + 1) * sizeof *map);
    if (map == NULL)
        abort();
    for (uint64_t i = 0; i < t->count; i++)
        map[i] = (int64_t)i;
    const bool whole = tokens_are(t, &same, map, NULL, 0, "between gradients");
    free(map);
    return whole;
}

static bool backward_from(const party *p, bp_cp_order order)
{
    tokens whole = new_tokens(p->d.count[order], p->s->token_bytes, gaps_of(p, 4), 0xff);
    placing behind = gaps_of(p, 8);
    behind.margin = 64;
    tokens local = new_tokens(p->d.count[BP_CP_LOCAL], p->s->token_bytes, behind, 0xff);
    fill_gradients(p, &whole, p->r->number);
    uint8_t *before = malloc(whole.bytes);
    if (before == NULL)
        abort();
    memcpy(before, whole.memory, whole.bytes);
    bp_cp_tensor of = tensor_of(&whole), to = tensor_of(&local);
    bool good = OK(bp_cp_gather_backward(p->cp, p->split, &of, order, p->s->dtype, &to, stream_of(p)));
    memset(&of, 0xee, sizeof of);
    memset(&to, 0xee, sizeof to);
    good = good && is_finished(p) && gradients_are_sums(p, order, &local) && gaps_are_poison(&local);
    good = good && memcmp(before, whole.memory, whole.bytes) == 0;
    good = good && is_adjoint(p, order, &whole, &local);
    free(before);
    free_tokens(&whole);
    free_tokens(&local);
    return good;
}

static bool backward_all(host_rank *r)
{
    party p;
    bool good = begin_party(r, r->user, &p);
    for (int round = 0; round < 2 && good; round++)
        good = backward_from(&p, BP_CP_PACKED) && backward_from(&p, BP_CP_PADDED);
    end_party(&p);
    return good;
}

TEST(backward_is_the_adjoint)
{
    static const bp_dtype dtypes[] = {BP_DTYPE_FP32, BP_DTYPE_BF16, BP_DTYPE_FP16};
    unsigned variant = 0;
    seed(63);
    for (size_t i = 0; i < RANKS_COUNT; i++) {
        for (int each = 0; each < 6; each++, variant++) {
            setting s = random_scene(0, variant);
            s.dtype = dtypes[each % 3];
            s.token_bytes = bp_dtype_bits(s.dtype) / 8 * (1 + variant % 4);
            run_host_ranks(RANKS[i], variant % 2 == 0, variant % 8 == 3 ? 200 : 0, backward_all, &s);
            free((void *)s.lengths);
        }
    }
}

TESTS(NULL, NULL)
