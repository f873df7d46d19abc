/* SPDX-License-Identifier: Apache-2.0 */
/* The loss: for every arrangement of ranks, statistics, seeds and gradients match those of the whole batch on one rank. */
#include "support/harness.h"

#include "loss_ranks.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "support/pools.h"
#include "support/scenarios.h"

static const corpus_options CORPORA[] = {
    {.seed = 1, .sequences = 12, .longest = 30, .empty_in_8 = 1, .masked_in_8 = 1},
    {.seed = 2, .sequences = 40, .longest = 9, .empty_in_8 = 2, .masked_in_8 = 2, .infinite = true},
    {.seed = 3, .sequences = 7, .longest = 70, .broken = true},
    {.seed = 4, .sequences = 1, .longest = 200},
    {.seed = 5, .sequences = 9, .longest = 12, .nothing = true},
    {.seed = 6, .sequences = 5, .longest = 1, .empty_in_8 = 8},
    {.seed = 7, .sequences = 0, .longest = 1},
};
#define CORPORA_COUNT (sizeof CORPORA / sizeof *CORPORA)

/* Twice, because begin resets. */
static bool run_whole_steps(host_rank *r)
{
    seat at;
    bool good = take_seat(r, &at);
    for (int i = 0; good && i < 2; i++)
        good = step(&at, false) && statistics_are_true(&at) && make_seeds(&at, -1);
    leave_seat(&at);
    return good;
}

static void check_whole(const corpus *c, const topology *t, unsigned variant)
{
    static const double epsilons[] = {1e-5, 0, 0.5};
    setting s = new_setting(c, t, 1 + variant % MAX_MICROS);
    s.epsilon = epsilons[variant % 3];
    s.gradients = variant % 4 == 3 ? BP_LOSS_SUMMED : BP_LOSS_AVERAGED;
    s.own_streams = variant % 3 == 1;
    s.enqueues = variant % 2 == 1;
    s.max_delay_us = variant % 5 == 2 ? 100 : 0;
    const double scale = s.gradients == BP_LOSS_AVERAGED ? (double)t->cp * t->dp : 1;
    run_scene_ranks(&s, run_whole_steps);
    assert_true(statistics_are_equal_on_ranks(&s));
    assert_true(seeds_are_true(&s, -1, scale));
    assert_true(gradients_are_true(&s));
    free_setting(&s);
}

static void check_corpora(const topology *t)
{
    static unsigned variant;
    for (size_t i = 0; i < CORPORA_COUNT; i++) {
        corpus_options o = CORPORA[i];
        o.seed += 100 * (uint64_t)variant;
        corpus c = new_corpus(&o);
        check_whole(&c, t, variant++);
        free_corpus(&c);
    }
}

TEST(ranks_match_a_single_rank)
{
    for_topologies(check_corpora);
}

/* More sequences than a kernel launch takes, and sequences shared by threads. */
TEST(large_batches_are_like_small_ones)
{
    static const corpus_options large[] = {
        {.seed = 8, .sequences = 400, .longest = 4, .empty_in_8 = 2, .masked_in_8 = 1},
        {.seed = 9, .sequences = 3, .longest = 20000}, /* sums in pieces */
    };
    static const uint32_t shapes[][3] = {{1, 1, 1}, {2, 2, 2}, {1, 3, 2}, {1, 8, 1}, {1, 1, 2}};
    for (unsigned i = 0; i < 10; i++) {
        const topology t = shuffled_topology(shapes[i / 2][0], shapes[i / 2][1], shapes[i / 2][2]);
        corpus c = new_corpus(&large[i % 2]);
        check_whole(&c, &t, i);
        free_corpus(&c);
    }
}

/* Sums of the last of `before` + 1 sequences: those before have one token each. */
static bp_loss_sequence sums_after(bp_device *device, uint64_t before, uint64_t tokens, const float *values)
{
    const uint64_t all = before + tokens;
    uint64_t *cu = malloc((before + 2) * sizeof *cu);
    float *logprob = malloc(all * sizeof *logprob);
    uint8_t *mask = malloc(all);
    bp_cp_split_config config;
    bp_loss_config of_loss;
    bp_cp_split *split;
    bp_loss *loss;
    bp_loss_values added;
    assert_true(cu != NULL && logprob != NULL && mask != NULL);
    for (uint64_t i = 0; i <= before; i++)
        cu[i] = i;
    cu[before + 1] = all;
    for (uint64_t i = 0; i < all; i++) {
        logprob[i] = i < before ? 1 : values[i - before];
        mask[i] = i < before || (i - before) % 5 != 3;
    }
    assert_ok(bp_cp_split_config_init(&config, sizeof config));
    config.cu_seqlens = cu;
    config.cu_dtype = BP_DTYPE_INT64;
    config.sequences = before + 1;
    config.ranks = 1;
    assert_ok(bp_cp_split_create(&config, &split));
    assert_ok(bp_loss_config_init(&of_loss, sizeof of_loss));
    of_loss.max_sequences = before + 1;
    assert_ok(bp_loss_create(device, &of_loss, &loss));
    assert_ok(bp_loss_values_init(&added, sizeof added));
    added.tokens = all;
    added.mask = (bp_token_values){mask, 0, 1};
    added.logprob = added.entropy = (bp_token_values){logprob, 0, 1};
    assert_ok(bp_loss_begin(loss));
    assert_ok(bp_loss_add(loss, split, &added, NULL));
    assert_ok(bp_loss_reduce(loss, BP_OK, NULL));
    const bp_loss_sequence sums = bp_loss_get_info(loss)->sequences[before];
    bp_loss_destroy(&loss);
    bp_cp_split_destroy(&split);
    free(cu);
    free(logprob);
    free(mask);
    return sums;
}

TEST(a_sequence_has_the_same_bits_anywhere)
{
    enum { TOKENS = 30001 }; /* four pieces */
    static const uint64_t before[] = {1, 2, 119, 120, 131};
    static float values[TOKENS];
    bp_host_config config;
    bp_device *device;
    assert_ok(bp_host_config_init(&config, sizeof config));
    assert_ok(bp_device_create_host(&config, &device));
    seed(77);
    for (size_t i = 0; i < TOKENS; i++)
        values[i] = (float)random_below(1000003) / -7919;
    const bp_loss_sequence alone = sums_after(device, 0, TOKENS, values);
    double sum = 0;
    for (size_t i = 0; i < TOKENS; i++)
        sum += i % 5 != 3 ? values[i] : 0;
    assert_true(is_close(alone.logprob_sum, sum) && alone.valid == TOKENS - TOKENS / 5);
    for (size_t i = 0; i < sizeof before / sizeof *before; i++) {
        const bp_loss_sequence one = sums_after(device, before[i], TOKENS, values);
        assert_memory_equal(&one, &alone, sizeof one);
    }
    bp_device_destroy(&device);
}

/* ---- counts first -------------------------------------------------------------------------------------------------- */

static bool counts_are_true(const seat *at)
{
    const bp_loss_statistics expected = true_statistics(at->s->c, at->s->epsilon, WITH_ALL);
    bp_loss_statistics counts = {.size = sizeof counts};
    EXPECT(bp_loss_statistics_get(at->loss, &counts) == BP_OK);
    EXPECT(counts.sequences == expected.sequences && counts.tokens == expected.tokens);
    EXPECT(counts.valid == expected.valid && counts.logprob_sum == 0 && counts.entropy_sum == 0 && counts.loss == 0);
    EXPECT(counts.logit_min == INFINITY && counts.logit_max == -INFINITY);
    return true;
}

/* Masks only and a reduce; seeds of all micro-batches, also after the next begin; then the values. */
static bool run_counts_first(host_rank *r)
{
    seat at;
    bool good = take_seat(r, &at) && step(&at, true) && counts_are_true(&at) && make_seeds(&at, 0.25f);
    good = good && bp_loss_begin(at.loss) == BP_OK && make_seeds(&at, 0.25f);
    good = good && counts_are_true(&at); /* the previous reduce's until the next */
    good = good && add_all(&at, false) && make_seeds(&at, 0.25f);
    good = good && expected_here(bp_loss_reduce(at.loss, BP_OK, at.stream) == BP_OK, "reduce", __FILE__, __LINE__);
    good = good && statistics_are_true(&at);
    leave_seat(&at);
    return good;
}

/* The caller knows the count. A reduce overrides a count set before it, and a count set afterwards overrides the reduce. */
static bool run_known_count(host_rank *r)
{
    seat at;
    bool good = take_seat(r, &at);
    const uint64_t valid = true_statistics(at.s->c, 0, WITH_ALL).valid;
    good = good && bp_loss_count_set(at.loss, valid + 7) == BP_OK && bp_loss_count_set(at.loss, valid) == BP_OK;
    good = good && make_seeds(&at, -1) && bp_loss_count_set(at.loss, 3) == BP_OK && step(&at, false) &&
           statistics_are_true(&at) && make_seeds(&at, -1) && bp_loss_count_set(at.loss, 2 * valid + 1) == BP_OK &&
           statistics_are_true(&at);
    good = good && (at.s->own_streams ? bp_loss_count_set(at.loss, valid) == BP_OK : step(&at, false));
    good = good && make_seeds(&at, 0.25f);
    leave_seat(&at);
    return good;
}

static void check_counts(const topology *t)
{
    static unsigned variant;
    corpus_options o = CORPORA[variant % CORPORA_COUNT];
    o.seed += 1000 + variant;
    corpus c = new_corpus(&o);
    for (int known = 0; known < 2; known++) {
        setting s = new_setting(&c, t, MAX_MICROS);
        s.own_streams = variant % 2 == 1;
        run_scene_ranks(&s, known == 0 ? run_counts_first : run_known_count);
        assert_true(seeds_are_true(&s, 0.25f, (double)t->cp * t->dp));
        free_setting(&s);
    }
    free_corpus(&c);
    variant++;
}

TEST(counts_may_come_first)
{
    for_topologies(check_counts);
}

/* ---- optional values ------------------------------------------------------------------------------------------------ */

static bool run_planes(host_rank *r)
{
    seat at;
    bool good = take_seat(r, &at) && step(&at, false) && statistics_are_true(&at);
    leave_seat(&at);
    return good;
}

TEST(values_may_be_missing)
{
    corpus c = new_corpus(&CORPORA[0]);
    const topology t = topology_of(2, 2, 1);
    const unsigned planes[] = {WITH_LOGPROB, WITH_LOGPROB | WITH_ENTROPY, WITH_LOGPROB | WITH_LEAST,
                               WITH_LOGPROB | WITH_LARGEST, WITH_ENTROPY | WITH_LARGEST};
    for (size_t i = 0; i < sizeof planes / sizeof *planes; i++) {
        setting s = new_setting(&c, &t, 2);
        s.planes = planes[i];
        run_scene_ranks(&s, run_planes);
        free_setting(&s);
    }
    free_corpus(&c);
}

/* A mask with stride 0 applies to every token; padding still does not count. */
static bool run_one_mask(host_rank *r)
{
    uint8_t all = 1;
    seat at;
    bool good = take_seat(r, &at);
    const bp_token_values mask = {.data = &all};
    at.slices[0].values.mask = mask;
    good = good && step(&at, false) && statistics_are_true(&at) && make_seeds(&at, -1);
    leave_seat(&at);
    return good;
}

TEST(one_mask_may_be_for_all)
{
    corpus c = new_corpus(&CORPORA[0]);
    for (uint64_t token = 0; token < c.tokens; token++) {
        c.mask[token] = 1;
        c.logprob[token] = -0.125f * (float)(token % 19);
        c.entropy[token] = 0.5f * (float)(token % 7);
        for (uint32_t i = 0; i < CORPUS_LOGITS; i++)
            c.logits[token * CORPUS_LOGITS + i] = (float)(token * i % 31);
    }
    const topology t = topology_of(2, 2, 2);
    setting s = new_setting(&c, &t, 1);
    run_scene_ranks(&s, run_one_mask);
    assert_true(seeds_are_true(&s, -1, 4));
    free_setting(&s);
    free_corpus(&c);
}

/* A log-probability of NaN or -inf shows in the statistics of every rank. */
TEST(broken_log_probabilities_show)
{
    const float values[] = {NAN, -INFINITY};
    for (size_t i = 0; i < 2; i++) {
        corpus c = new_corpus(&CORPORA[0]);
        uint64_t token = 0;
        while (c.mask[token] == 0)
            token++;
        c.logprob[token] = values[i];
        const topology t = topology_of(2, 2, 2);
        setting s = new_setting(&c, &t, 1);
        run_scene_ranks(&s, run_planes);
        free_setting(&s);
        free_corpus(&c);
    }
}

/* ---- other denominators -------------------------------------------------------------------------------------------- */

/* Communicators over the CP x TP ranks of each DP rank. */
typedef struct groups {
    exchange_room rooms[2];
    corpus parts[2];
    setting settings[2];
    topology whole;
} groups;

/* The ranks of one DP rank form a separate loss: dp is 1, so nothing is averaged over DP ranks. */
static bool run_group(host_rank *r)
{
    groups *g = r->user;
    const uint32_t place = g->whole.place[r->number], each = g->whole.tp * g->whole.cp;
    const uint32_t d = place / each;
    setting *s = &g->settings[d];
    host_rank inner = *r;
    inner.seat = (exchange_seat){.room = &g->rooms[d], .rank = place % each};
    inner.number = place % each;
    inner.ranks = each;
    inner.user = s;
    bp_comm_callbacks callbacks = exchange_callbacks(&inner.seat);
    EXPECT(bp_comm_create_callback(&callbacks, &inner.seat, "group", &inner.comm) == BP_OK);
    seat at;
    bool good = take_seat(&inner, &at) && step(&at, false) && statistics_are_true(&at) && make_seeds(&at, -1);
    leave_seat(&at);
    bp_comm_destroy(&inner.comm);
    return good;
}

TEST(each_dp_rank_may_have_its_denominator)
{
    groups g = {.whole = shuffled_topology(2, 2, 2)};
    const topology inner = topology_of(2, 2, 1);
    for (uint32_t d = 0; d < 2; d++) {
        corpus_options o = CORPORA[0];
        o.seed = 50 + d;
        g.parts[d] = new_corpus(&o);
        g.settings[d] = new_setting(&g.parts[d], &inner, 2);
        exchange_begin(&g.rooms[d], 4);
    }
    run_host_ranks(8, false, 0, run_group, &g);
    for (uint32_t d = 0; d < 2; d++) {
        assert_true(seeds_are_true(&g.settings[d], -1, 2)); /* averaged over CP ranks only */
        assert_true(gradients_are_true(&g.settings[d]));
        assert_false(g.rooms[d].given_up);
        exchange_end(&g.rooms[d]);
        free_setting(&g.settings[d]);
        free_corpus(&g.parts[d]);
    }
}

/* ---- exchanges ----------------------------------------------------------------------------------------------------- */

typedef struct counted_steps {
    int steps;
    uint64_t exchanges;
} counted_steps;

static bool run_counted_steps(host_rank *r)
{
    seat at;
    bool good = take_seat(r, &at);
    counted_steps *counted = at.s->user;
    for (int i = 0; good && i < counted->steps; i++)
        good = step(&at, false) && make_seeds(&at, -1);
    pthread_mutex_lock(&r->seat.room->lock);
    if (r->number == 0)
        counted->exchanges = r->seat.room->exchanges;
    pthread_mutex_unlock(&r->seat.room->lock);
    leave_seat(&at);
    return good;
}

TEST(a_step_has_one_exchange)
{
    corpus c = new_corpus(&CORPORA[0]);
    const topology t = topology_of(2, 2, 1);
    counted_steps counted[] = {{.steps = 1}, {.steps = 6}};
    for (int i = 0; i < 2; i++) {
        setting s = new_setting(&c, &t, MAX_MICROS);
        s.user = &counted[i];
        run_scene_ranks(&s, run_counted_steps);
        free_setting(&s);
    }
    assert_int_equal(counted[1].exchanges - counted[0].exchanges, 5);
    free_corpus(&c);
}

TESTS(NULL, NULL)
