/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks of the loss tests: their splits, tensors and clients, and the expected results. */
#include "support/harness.h"

#include "loss_ranks.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/pools.h"
#include "support/scenarios.h"

bool expected_here(bool condition, const char *text, const char *file, int line)
{
    if (!condition)
        fprintf(stderr, "%s:%d: expected %s (last error: %s)\n", file, line, text, bp_error_detail());
    return condition;
}

bool names_rank(uint32_t rank, const char *name)
{
    static const char *const before[] = {"rank %u", "ranks %u and ", " and %u"};
    for (size_t i = 0; i < 3; i++) {
        char word[32];
        const int length = snprintf(word, sizeof word, before[i], rank);
        for (const char *at = bp_error_detail(); (at = strstr(at, word)) != NULL; at++)
            if (i == 1 || at[length] < '0' || at[length] > '9')
                return strstr(bp_error_detail(), "rank") != NULL;
    }
    fprintf(stderr, "%s: \"%s\" does not name rank %u\n", name, bp_error_detail(), rank);
    return false;
}

/* ---- topologies ---------------------------------------------------------------------------------------------------- */

uint32_t rank_count(const topology *t)
{
    return t->tp * t->cp * t->dp;
}

topology topology_of(uint32_t tp, uint32_t cp, uint32_t dp)
{
    topology t = {.tp = tp, .cp = cp, .dp = dp};
    for (uint32_t i = 0; i < rank_count(&t); i++)
        t.place[i] = i;
    return t;
}

topology shuffled_topology(uint32_t tp, uint32_t cp, uint32_t dp)
{
    topology t = topology_of(tp, cp, dp);
    for (uint32_t i = rank_count(&t); i > 1; i--) {
        const uint32_t other = random_below(i), place = t.place[i - 1];
        t.place[i - 1] = t.place[other];
        t.place[other] = place;
    }
    return t;
}

void for_topologies(topology_function *function)
{
    static const uint32_t counts[] = {1, 2, 4, 6, 8};
    seed(77);
    for (size_t i = 0; i < (is_brief() ? 3 : 5); i++)
        for (uint32_t tp = 1; tp <= counts[i]; tp++)
            for (uint32_t cp = 1; cp <= counts[i]; cp++)
                if (counts[i] % (tp * cp) == 0) {
                    const topology t = shuffled_topology(tp, cp, counts[i] / (tp * cp));
                    function(&t);
                }
}

/* ---- settings ----------------------------------------------------------------------------------------------------- */

setting new_setting(const corpus *c, const topology *t, uint32_t max_micros)
{
    setting s = {.c = c,
                 .t = *t,
                 .epsilon = 1e-5,
                 .gradients = BP_LOSS_AVERAGED,
                 .planes = WITH_ALL,
                 .max_sequences = CORPUS_SEQUENCES + 2 * MAX_MICROS};
    const uint64_t counted = max_micros > 1 ? random_below(2) : 0; /* the last DP rank has no micro-batch */
    for (uint32_t d = 0; d < t->dp; d++)
        s.micros[d] = t->dp > 1 && d + 1 == t->dp && counted == 1 ? 0 : max_micros;
    const uint32_t active = t->dp - (s.micros[t->dp - 1] == 0);
    for (uint32_t d = 0; d < active; d++)
        for (uint32_t m = 0; m < max_micros; m++)
            s.packs[d][m] = new_pack(c, t->cp, m * active + d, (uint64_t)active * max_micros);
    s.seeds = malloc((t->tp * c->tokens + 1) * sizeof *s.seeds);
    for (uint64_t i = 0; i < t->tp * c->tokens; i++)
        s.seeds[i] = NAN;
    s.gradient = calloc(EXCHANGE_RANKS, sizeof *s.gradient);
    return s;
}

void free_setting(setting *s)
{
    free(s->seeds);
    free(s->gradient);
}

void run_scene_ranks(setting *s, rank_function *function)
{
    run_host_ranks(rank_count(&s->t), s->enqueues, s->max_delay_us, function, s);
}

/* ---- seats --------------------------------------------------------------------------------------------------------- */

bp_loss_config loss_config_of(const host_rank *r, const setting *s)
{
    const uint32_t place = s->t.place[r->number];
    bp_loss_config config;
    (void)bp_loss_config_init(&config, sizeof config);
    config.tp = s->t.tp;
    config.cp = s->t.cp;
    config.dp = s->t.dp;
    config.tp_rank = place % s->t.tp;
    config.cp_rank = place / s->t.tp % s->t.cp;
    config.dp_rank = place / (s->t.tp * s->t.cp);
    config.comm = rank_count(&s->t) == 1 && s->own_streams ? NULL : r->comm;
    config.max_sequences = s->max_sequences;
    config.epsilon = s->epsilon;
    config.gradients = s->gradients;
    config.threads = 1 + place % 2;
    return config;
}

bool take_seat(host_rank *r, seat *at)
{
    static const int64_t strides[] = {1, 2, -1, -3};
    setting *s = r->user;
    const bp_loss_config config = loss_config_of(r, s);
    *at = (seat){.r = r,
                 .s = s,
                 .tp_rank = config.tp_rank,
                 .cp_rank = config.cp_rank,
                 .dp_rank = config.dp_rank,
                 .place = s->t.place[r->number],
                 .micros = s->micros[config.dp_rank],
                 .packs = s->packs[config.dp_rank],
                 .stream = s->own_streams ? NULL : r->stream};
    for (uint32_t m = 0; m < at->micros; m++) {
        bp_cp_split_info info;
        EXPECT(split_pack(&at->packs[m], at->cp_rank, NULL, &at->splits[m]) == BP_OK);
        info = *bp_cp_split_get_info(at->splits[m]);
        at->slices[m] = new_slice(s->c, &at->packs[m], info.local_tokens, at->cp_rank, at->tp_rank, s->t.tp, s->planes,
                                  strides[(at->place + m) % 4]);
    }
    EXPECT(bp_loss_create(r->device, &config, &at->loss) == BP_OK);
    return true;
}

void leave_seat(seat *at)
{
    bp_loss_destroy(&at->loss);
    for (uint32_t m = 0; m < MAX_MICROS; m++) {
        bp_cp_split_destroy(&at->splits[m]);
        free_slice(&at->slices[m]);
    }
}

bool add_all(seat *at, bool counts)
{
    for (uint32_t m = 0; m < at->micros; m++) {
        bp_loss_values values = at->slices[m].values;
        if (counts)
            values.logprob.data = values.entropy.data = values.logit_min.data = values.logit_max.data = NULL;
        EXPECT(bp_loss_add(at->loss, at->splits[m], &values, at->stream) == BP_OK);
    }
    return true;
}

bool step(seat *at, bool counts)
{
    EXPECT(bp_loss_begin(at->loss) == BP_OK);
    EXPECT(add_all(at, counts));
    EXPECT(bp_loss_reduce(at->loss, BP_OK, at->stream) == BP_OK);
    return true;
}

bool statistics_are_true(const seat *at)
{
    setting *s = at->s;
    bp_loss_statistics statistics = {.size = sizeof statistics};
    const bp_loss_statistics expected = true_statistics(s->c, s->epsilon, s->planes);
    EXPECT(bp_loss_statistics_get(at->loss, &statistics) == BP_OK);
    EXPECT(same_statistics(&statistics, &expected, "statistics"));
    s->told[at->place] = statistics;
    const bp_loss_info *info = bp_loss_get_info(at->loss);
    uint64_t next = 0;
    for (uint32_t m = 0; m < at->micros; m++)
        for (uint64_t i = 0; i < at->packs[m].sequences - (at->packs[m].has_dummy ? 1 : 0); i++) {
            const bp_loss_sequence true_one = true_sequence(s->c, at->packs[m].source[i], s->planes);
            EXPECT(next < info->sequence_count && same_sequence(&info->sequences[next++], &true_one, "sequence"));
        }
    EXPECT(info->sequence_count == next);
    return true;
}

bool statistics_are_equal_on_ranks(const setting *s)
{
    const void *const first = &s->told[0]; /* memcmp below: the struct has no padding, and all fields are set */
    bool same = true;
    for (uint32_t place = 1; place < rank_count(&s->t); place++) {
        const void *const one = &s->told[place];
        same = memcmp(one, first, sizeof s->told[0]) == 0 && same;
    }
    return same;
}

/* ---- seeds --------------------------------------------------------------------------------------------------------- */

/* The corpus token at a place of the packed batch, or UINT64_MAX. */
static uint64_t token_at(const setting *s, const pack *p, int64_t packed)
{
    for (uint64_t i = 0; i < p->sequences - (p->has_dummy ? 1 : 0); i++)
        if (packed >= p->cu[i] && packed < p->cu[i + 1])
            return s->c->first[p->source[i]] + (uint64_t)(packed - p->cu[i]);
    return UINT64_MAX;
}

/* By the map from local to packed tokens, and by its inverse. */
static bool scatter_seeds(seat *at, uint32_t m, bp_cp_split_info info)
{
    setting *s = at->s;
    int64_t *local_of = malloc((info.packed_tokens + 1) * sizeof *local_of);
    int64_t *packed_of = malloc((info.local_tokens + 1) * sizeof *packed_of);
    bool good =
        bp_cp_split_map(at->splits[m], BP_CP_LOCAL, BP_CP_PACKED, BP_CP_KEEP, info.packed_tokens, local_of) == BP_OK &&
        bp_cp_split_map(at->splits[m], BP_CP_PACKED, BP_CP_LOCAL, BP_CP_KEEP, info.local_tokens, packed_of) == BP_OK;
    for (uint64_t i = 0; good && i < info.packed_tokens; i++) {
        const uint64_t token = token_at(s, &at->packs[m], (int64_t)i);
        if (local_of[i] >= 0 && token != UINT64_MAX)
            s->seeds[at->tp_rank * s->c->tokens + token] = seed_at(&at->slices[m], (uint64_t)local_of[i]);
    }
    for (uint64_t i = 0; good && i < info.local_tokens; i++) {
        const float value = seed_at(&at->slices[m], i);
        const uint64_t token = packed_of[i] < 0 ? UINT64_MAX : token_at(s, &at->packs[m], packed_of[i]);
        good = token != UINT64_MAX || expected_here(value == 0, "a seed of padding is 0", __FILE__, __LINE__);
        for (uint32_t w = 0; token != UINT64_MAX && w < CORPUS_WEIGHTS; w++)
            s->gradient[at->place][w] += (double)value * s->c->weights[token * CORPUS_WEIGHTS + w];
    }
    free(local_of);
    free(packed_of);
    return good;
}

/* Including gaps between tokens. */
static void poison_seeds(const slice *v)
{
    for (uint64_t i = 0; i < v->elements; i++)
        ((float *)v->memory[1])[i] = NAN;
}

static uint64_t written_seeds(const slice *v)
{
    uint64_t count = 0;
    for (uint64_t i = 0; i < v->elements; i++)
        count += !isnan(((const float *)v->memory[1])[i]);
    return count;
}

bool make_seeds(seat *at, float factor)
{
    memset(at->s->gradient[at->place], 0, sizeof at->s->gradient[at->place]);
    for (uint32_t m = 0; m < at->micros; m++) {
        const slice *v = &at->slices[m];
        const bp_cp_split_info info = *bp_cp_split_get_info(at->splits[m]);
        poison_seeds(v);
        EXPECT(bp_loss_seed(at->loss, at->splits[m], v->tokens, &v->values.mask, factor, &v->seed, at->stream) ==
               BP_OK);
        EXPECT(at->stream == NULL || bp_stream_synchronize(at->stream) == BP_OK);
        EXPECT(written_seeds(v) == v->tokens);
        EXPECT(scatter_seeds(at, m, info));
    }
    return true;
}

bool seeds_are_true(const setting *s, float factor, double scale)
{
    const bp_loss_statistics truth = true_statistics(s->c, s->epsilon, s->planes);
    for (uint32_t tp = 0; tp < s->t.tp; tp++)
        for (uint64_t token = 0; token < s->c->tokens; token++) {
            const double value = s->seeds[tp * s->c->tokens + token];
            const double expected =
                s->c->mask[token] == 0 ? 0 : (double)factor * scale / (s->epsilon + (double)truth.valid);
            if (!(fabs(value - expected) <= 2.4e-7 * fabs(expected))) {
                fprintf(stderr, "seed of token %llu on TP rank %u is %.9g, expected %.9g\n", (unsigned long long)token,
                        tp, value, expected);
                return false;
            }
        }
    return true;
}

bool gradients_are_true(const setting *s)
{
    const uint32_t averaged = s->gradients == BP_LOSS_AVERAGED ? s->t.cp * s->t.dp : 1;
    for (uint32_t tp = 0; tp < s->t.tp; tp++)
        for (uint32_t w = 0; w < CORPUS_WEIGHTS; w++) {
            const double expected = true_gradient(s->c, s->epsilon, w);
            double sum = 0;
            for (uint32_t i = 0; i < s->t.cp * s->t.dp; i++)
                sum += s->gradient[i * s->t.tp + tp][w];
            if (!(fabs(sum / averaged - expected) <= 1e-6)) {
                fprintf(stderr, "gradient %u on TP rank %u is %.9g, expected %.9g\n", w, tp, sum / averaged, expected);
                return false;
            }
        }
    return true;
}
