/* SPDX-License-Identifier: Apache-2.0 */
/* Known mistakes in statistics of context-parallel losses. Each test computes the wrong value, checks that it differs in this case, and
 * expects the right one on every rank. */
#include "support/harness.h"

#include "loss_ranks.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "support/pools.h"
#include "support/scenarios.h"

#define EPSILON 0.5 /* large, to show how often it was added */

/* Per sequence, sums of the valid tokens on one CP rank of a pack. */
typedef struct slice_sums {
    double logprob[CORPUS_SEQUENCES];
    uint64_t valid[CORPUS_SEQUENCES];
    double all_logprob;
    uint64_t all_valid, all_tokens;
} slice_sums;

static slice_sums sums_of(const setting *s, uint32_t dp_rank, uint32_t cp_rank)
{
    slice_sums sums = {0};
    const pack *p = &s->packs[dp_rank][0];
    for (uint64_t i = 0; i < p->sequences - (p->has_dummy ? 1 : 0); i++) {
        const uint64_t first = s->c->first[p->source[i]];
        for (uint64_t token = first; token < s->c->first[p->source[i] + 1]; token++) {
            uint64_t local;
            if (rank_of_token(p, i, token - first, &local) != cp_rank)
                continue;
            sums.all_tokens++;
            if (s->c->mask[token] == 0)
                continue;
            sums.valid[p->source[i]]++;
            sums.logprob[p->source[i]] += (double)s->c->logprob[token];
            sums.all_valid++;
            sums.all_logprob += (double)s->c->logprob[token];
        }
    }
    return sums;
}

static const corpus_options MIXED = {.seed = 31, .sequences = 11, .longest = 40, .masked_in_8 = 1};

static bool run_step(host_rank *r)
{
    seat at;
    bool good = take_seat(r, &at) && step(&at, false) && statistics_are_true(&at) && make_seeds(&at, -1);
    bp_loss_statistics s = {.size = sizeof s};
    good = good && bp_loss_statistics_get(at.loss, &s) == BP_OK;
    if (r->number == 0 && good)
        *(bp_loss_statistics *)at.s->user = s;
    leave_seat(&at);
    return good;
}

/* The library's statistics of a corpus on ranks; the setting is kept to compute the mistake. */
static bp_loss_statistics statistics_on(const corpus *c, uint32_t tp, uint32_t cp, uint32_t dp, setting *s)
{
    bp_loss_statistics statistics = {0};
    seed(5);
    const topology t = shuffled_topology(tp, cp, dp);
    *s = new_setting(c, &t, 1);
    s->epsilon = EPSILON;
    s->user = &statistics;
    run_scene_ranks(s, run_step);
    return statistics;
}

static void assert_differs(double right, double wrong)
{
    if (!(fabs(right - wrong) > 1e-3 * fabs(right)))
        fail_msg("the mistake does not show: %.17g and %.17g", right, wrong);
}

/* Mistake: a sequence's ratio exp(- sum lp / n) from one CP rank's tokens, then averaged. */
TEST(perplexity_from_one_slice)
{
    corpus c = new_corpus(&MIXED);
    for (uint32_t cp = 2; cp <= 4; cp += 2) {
        setting s;
        const bp_loss_statistics right = statistics_on(&c, 1, cp, 1, &s);
        double of_slices = 0;
        for (uint32_t rank = 0; rank < cp; rank++) {
            const slice_sums sums = sums_of(&s, 0, rank);
            double sum = 0;
            uint64_t count = 0;
            for (uint64_t i = 0; i < c.sequences; i++)
                if (sums.valid[i] > 0) {
                    sum += exp(-sums.logprob[i] / (double)sums.valid[i]);
                    count++;
                }
            assert_differs(right.perplexity, sum / (double)count);
            of_slices += sum / (double)count / cp;
        }
        assert_differs(right.perplexity, of_slices);
        assert_true(is_close(right.perplexity, true_statistics(&c, EPSILON, WITH_ALL).perplexity));
        free_setting(&s);
    }
    free_corpus(&c);
}

/* Mistake: counts of one CP rank's slice, summed over DP ranks only: too small by a factor of cp. */
TEST(counts_too_small_by_cp)
{
    corpus c = new_corpus(&MIXED);
    setting s;
    const bp_loss_statistics right = statistics_on(&c, 1, 4, 2, &s);
    uint64_t all_valid = 0, all_tokens = 0;
    for (uint32_t rank = 0; rank < 4; rank++) {
        uint64_t valid = 0, tokens = 0;
        for (uint32_t d = 0; d < 2; d++) {
            const slice_sums sums = sums_of(&s, d, rank);
            valid += sums.all_valid;
            tokens += sums.all_tokens;
        }
        assert_true(valid < right.valid && tokens < right.tokens);
        assert_true(2 * valid < right.valid && 2 * tokens < right.tokens); /* a factor of about 4 */
        all_valid += valid;
        all_tokens += tokens;
    }
    assert_int_equal(right.valid, all_valid);
    assert_int_equal(right.tokens, all_tokens);
    /* a seed with the slice's count would be about 4 times too large */
    assert_true(seeds_are_true(&s, -1, 8));
    free_setting(&s);
    free_corpus(&c);
}

/* Mistake: summing over TP ranks, which have the same tokens. */
TEST(summing_what_tp_ranks_duplicate)
{
    corpus c = new_corpus(&MIXED);
    setting s;
    const bp_loss_statistics right = statistics_on(&c, 4, 2, 1, &s);
    slice_sums sums[2];
    for (uint32_t rank = 0; rank < 2; rank++)
        sums[rank] = sums_of(&s, 0, rank);
    const uint64_t valid = sums[0].all_valid + sums[1].all_valid;
    const double logprob = sums[0].all_logprob + sums[1].all_logprob;
    assert_int_equal(right.valid, valid);
    assert_int_not_equal(right.valid, 4 * valid);
    assert_differs(right.logprob_sum, 4 * logprob);
    assert_differs(right.loss, -4 * logprob / (EPSILON + 4 * (double)valid)); /* epsilon then has less weight */
    assert_true(is_close(right.loss, -logprob / (EPSILON + (double)valid)));
    free_setting(&s);
    free_corpus(&c);
}

/* Mistakes: averaging the ranks' losses instead of dividing the sums; adding epsilon on each rank. */
TEST(averaging_losses_of_ranks)
{
    corpus c = new_corpus(&MIXED);
    setting s;
    const bp_loss_statistics right = statistics_on(&c, 1, 2, 4, &s);
    double mean = 0, logprob = 0, valid = 0;
    for (uint32_t place = 0; place < 8; place++) {
        const slice_sums sums = sums_of(&s, place / 2, place % 2);
        mean += -sums.all_logprob / (EPSILON + (double)sums.all_valid) / 8;
        logprob += sums.all_logprob;
        valid += (double)sums.all_valid;
    }
    assert_differs(right.loss, mean);
    assert_differs(right.loss, -logprob / (8 * EPSILON + valid));
    assert_true(is_close(right.loss, -logprob / (EPSILON + valid)));
    free_setting(&s);
    free_corpus(&c);
}

/* Mistake: an evaluation's loss as the mean of its steps' losses, or with epsilon in each step. */
TEST(averaging_losses_of_steps)
{
    corpus_options o = MIXED;
    bp_loss_statistics total;
    double mean = 0, logprob = 0, valid = 0;
    assert_ok(bp_loss_statistics_init(&total, sizeof total));
    for (uint32_t i = 0; i < 3; i++) {
        o.seed = 60 + i;
        o.longest = 4 + 30 * i;
        corpus c = new_corpus(&o);
        setting s;
        const bp_loss_statistics one = statistics_on(&c, 1, 2, 1, &s);
        assert_ok(bp_loss_statistics_merge(&one, &total));
        mean += one.loss / 3;
        logprob += one.logprob_sum;
        valid += (double)one.valid;
        free_setting(&s);
        free_corpus(&c);
    }
    assert_differs(total.loss, mean);
    assert_differs(total.loss, -logprob / (3 * EPSILON + valid));
    assert_true(is_close(total.loss, -logprob / (EPSILON + valid)));
}

/* ---- the roll ------------------------------------------------------------------------------------------------------ */

/* The batch of the golden example: sequences of 8 and 4 tokens. */
#define TOKENS 12
static const int64_t CU[] = {0, 8, 12};
static const uint8_t MASK[TOKENS] = {0, 0, 1, 1, 0, 1, 1, 1, 1, 1, 0, 1}; /* of the labels before the roll */

/* A distinct log-probability per label. */
static float logprob_of(uint64_t token, uint64_t label)
{
    return -(float)(1 + (token * 13 + label * 7) % 23) / 8;
}

typedef struct rolled {
    uint8_t mask[TOKENS];
    float logprob[TOKENS];
    double sum;
    uint64_t valid;
} rolled;

/* A roll of the whole batch, or per sequence without its last token. */
static rolled roll(bool globally)
{
    rolled all = {0};
    for (uint64_t token = 0; token < TOKENS; token++) {
        const bool is_last = token == 7 || token == 11;
        const uint64_t next = (token + 1) % TOKENS;
        all.mask[token] = is_last && !globally ? 0 : MASK[next];
        all.logprob[token] = logprob_of(token, next);
        all.valid += all.mask[token];
        all.sum += all.mask[token] != 0 ? (double)all.logprob[token] : 0;
    }
    return all;
}

static bp_status golden_split(uint32_t cp, uint32_t rank, bp_cp_split **split)
{
    bp_cp_split_config config;
    (void)bp_cp_split_config_init(&config, sizeof config);
    config.cu_seqlens = CU;
    config.sequences = 2;
    config.ranks = cp;
    config.rank = rank;
    return bp_cp_split_create(&config, split);
}

/* Mask and labels are rearranged to this rank with the next-token shift; log-probabilities are looked up by label. */
static bool run_rolled(host_rank *r)
{
    bp_cp_split *split = NULL;
    bp_loss *loss = NULL;
    bp_cp_split_info info;
    bp_loss_config config;
    bp_loss_values values;
    uint8_t mask[TOKENS];
    float logprob[TOKENS];
    int64_t here[TOKENS], next[TOKENS];
    EXPECT(golden_split(r->ranks, r->number, &split) == BP_OK);
    info = *bp_cp_split_get_info(split);
    EXPECT(info.local_tokens <= TOKENS);
    EXPECT(bp_cp_split_map(split, BP_CP_PACKED, BP_CP_LOCAL, BP_CP_KEEP, info.local_tokens, here) == BP_OK);
    EXPECT(bp_cp_split_map(split, BP_CP_PACKED, BP_CP_LOCAL, BP_CP_NEXT, info.local_tokens, next) == BP_OK);
    for (uint64_t i = 0; i < info.local_tokens; i++) {
        mask[i] = next[i] < 0 ? 0 : MASK[next[i]];
        logprob[i] = next[i] < 0 ? NAN : logprob_of((uint64_t)here[i], (uint64_t)next[i]);
    }
    (void)bp_loss_config_init(&config, sizeof config);
    (void)bp_loss_values_init(&values, sizeof values);
    config.cp = r->ranks;
    config.cp_rank = r->number;
    config.comm = r->comm;
    config.max_sequences = 2;
    config.epsilon = 0;
    values.tokens = info.local_tokens;
    values.mask = (bp_token_values){.data = mask, .stride = 1};
    values.logprob = (bp_token_values){.data = logprob, .stride = 1};
    EXPECT(bp_loss_create(r->device, &config, &loss) == BP_OK);
    EXPECT(bp_loss_begin(loss) == BP_OK && bp_loss_add(loss, split, &values, NULL) == BP_OK);
    EXPECT(bp_loss_reduce(loss, BP_OK, NULL) == BP_OK);
    bp_loss_statistics s = {.size = sizeof s};
    EXPECT(bp_loss_statistics_get(loss, &s) == BP_OK);
    const rolled right = roll(false), wrong = roll(true);
    EXPECT(s.valid == right.valid && s.valid != wrong.valid);
    EXPECT(is_close(s.loss, -right.sum / (double)right.valid) && !is_close(s.loss, -wrong.sum / (double)wrong.valid));
    EXPECT(bp_loss_get_info(loss)->sequence_count == 2);
    bp_loss_destroy(&loss);
    bp_cp_split_destroy(&split);
    return true;
}

/* Mistake: rolling labels and mask over the whole packed batch gives the last token of a sequence the first label of the next. */
TEST(a_global_roll_across_sequences)
{
    const rolled right = roll(false), wrong = roll(true);
    assert_int_not_equal(right.valid, wrong.valid);
    assert_differs(right.sum / (double)right.valid, wrong.sum / (double)wrong.valid);
    for (uint32_t cp = 1; cp <= 2; cp++)
        run_host_ranks(cp, false, 0, run_rolled, NULL);
}

/* The golden example: the two rolls differ at tokens 7 and 11 only; also the token placement on ranks. */
TEST(rolls_differ_at_ends_of_sequences)
{
    static const int64_t owned[2][6] = {{0, 1, 6, 7, 8, 11}, {2, 3, 4, 5, 9, 10}};
    for (uint32_t rank = 0; rank < 2; rank++) {
        bp_cp_split *split = NULL;
        int64_t map[TOKENS];
        assert_ok(golden_split(2, rank, &split));
        assert_ok(bp_cp_split_map(split, BP_CP_PACKED, BP_CP_LOCAL, BP_CP_KEEP, 6, map));
        assert_memory_equal(map, owned[rank], sizeof owned[rank]);
        assert_ok(bp_cp_split_map(split, BP_CP_PACKED, BP_CP_PACKED, BP_CP_NEXT_WRAPPED, TOKENS, map));
        for (int64_t token = 0; token < TOKENS; token++)
            assert_int_equal(map[token] != (token + 1) % TOKENS, token == 7 || token == 11);
        bp_cp_split_destroy(&split);
    }
}

TESTS(NULL, NULL)
