/* SPDX-License-Identifier: Apache-2.0 */
/* Losses of packed sequences for every arrangement of the processes, and failures of one process. */
#include <bucketpool/loss.h>

#include <math.h>

#include "../support/hosts.h"
#include "sequences.h"

#define COLUMNS 4 /* of the logits, between the smallest and the largest */

static uint8_t mask_of(uint64_t sequence, uint64_t offset)
{
    return sequence != 7 && number(2, sequence, offset) % 3 != 0;
}

/* Multiples of 1/128, whose sums are exact. */
static float value_of(uint64_t what, uint64_t sequence, uint64_t offset)
{
    return (float)(number(what, sequence, offset) % 1024) / 128;
}

enum { LOGPROB = 10, ENTROPY, LOGIT };

typedef struct place {
    uint32_t tp, cp, dp, tp_rank, cp_rank, dp_rank;
} place;

static place place_of(uint32_t tp, uint32_t cp, uint32_t dp)
{
    return (place){tp, cp, dp, rank % tp, rank / tp % cp, rank / tp / cp};
}

static bp_loss_config loss_config(const place *p)
{
    bp_loss_config config;
    assert_ok(bp_loss_config_init(&config, sizeof config));
    config.tp = p->tp;
    config.cp = p->cp;
    config.dp = p->dp;
    config.tp_rank = p->tp_rank;
    config.cp_rank = p->cp_rank;
    config.dp_rank = p->dp_rank;
    config.comm = everybody;
    config.max_sequences = SEQUENCES;
    return config;
}

/* A rank's tokens with their reference values. */
typedef struct slice {
    sequences s;
    bp_cp_split *split;
    uint64_t tokens;
    uint8_t mask[MAX_TOKENS];
    float logprob[MAX_TOKENS], entropy[MAX_TOKENS], min[MAX_TOKENS], largest[MAX_TOKENS];
} slice;

static void take_local(bp_cp *cp, const slice *mine, void *packed, void *local, uint64_t bytes)
{
    rearrange(cp, mine->split, BP_CP_LOCAL,
              (bp_cp_tensor){.data = packed, .tokens = mine->s.tokens, .token_bytes = bytes},
              (bp_cp_tensor){.data = local, .tokens = mine->tokens, .token_bytes = bytes});
}

static float logit_of(uint64_t sequence, uint64_t offset, uint32_t column)
{
    return value_of(LOGIT + column, sequence, offset) - 4;
}

/* The range of a TP rank's columns. */
static void range_of(const place *p, uint64_t sequence, uint64_t offset, float *min, float *largest)
{
    *min = INFINITY;
    *largest = -INFINITY;
    for (uint32_t c = COLUMNS * p->tp_rank / p->tp; c < COLUMNS * (p->tp_rank + 1) / p->tp; c++) {
        *min = fminf(*min, logit_of(sequence, offset, c));
        *largest = fmaxf(*largest, logit_of(sequence, offset, c));
    }
}

/* Only one can be open. */
static slice *open_slice(const place *p)
{
    static slice whole, local;
    slice *packed = &whole, *mine = &local;
    mine->s = sequences_of(p->dp, p->dp_rank);
    mine->split = new_split(&mine->s, p->cp, p->cp_rank);
    mine->tokens = info_of(mine->split).local_tokens;
    uint64_t t = 0;
    for (uint64_t i = mine->s.first; i < SEQUENCES; i += mine->s.step)
        for (uint64_t offset = 0; offset < length_of(i); offset++, t++) {
            packed->mask[t] = mask_of(i, offset);
            packed->logprob[t] = -value_of(LOGPROB, i, offset);
            packed->entropy[t] = value_of(ENTROPY, i, offset);
            range_of(p, i, offset, &packed->min[t], &packed->largest[t]);
        }
    bp_cp *cp = new_client(NULL, 0);
    take_local(cp, mine, packed->mask, mine->mask, 1);
    take_local(cp, mine, packed->logprob, mine->logprob, 4);
    take_local(cp, mine, packed->entropy, mine->entropy, 4);
    take_local(cp, mine, packed->min, mine->min, 4);
    take_local(cp, mine, packed->largest, mine->largest, 4);
    bp_cp_destroy(&cp);
    return mine;
}

static void close_slice(slice *mine)
{
    bp_cp_split_destroy(&mine->split);
}

static bp_loss_values values_of(slice *mine)
{
    bp_loss_values values;
    assert_ok(bp_loss_values_init(&values, sizeof values));
    values.tokens = mine->tokens;
    values.mask = (bp_token_values){.data = mine->mask, .stride = 1};
    values.logprob = (bp_token_values){.data = mine->logprob, .stride = 1};
    values.entropy = (bp_token_values){.data = mine->entropy, .stride = 1};
    values.logit_min = (bp_token_values){.data = mine->min, .stride = 1};
    values.logit_max = (bp_token_values){.data = mine->largest, .stride = 1};
    return values;
}

/* The loss over all sequences, as one process computes it. */
static bp_loss_sequence truth_of(uint64_t sequence)
{
    bp_loss_sequence truth = {0};
    for (uint64_t offset = 0; offset < length_of(sequence); offset++)
        if (mask_of(sequence, offset)) {
            truth.valid++;
            truth.logprob_sum -= value_of(LOGPROB, sequence, offset);
            truth.entropy_sum += value_of(ENTROPY, sequence, offset);
        }
    truth.perplexity = truth.valid > 0 ? exp(-truth.logprob_sum / (double)truth.valid) : 0;
    return truth;
}

static bp_loss_statistics truth_of_all(void)
{
    const place alone = {1, 1, 1, 0, 0, 0};
    bp_loss_statistics truth = {.sequences = SEQUENCES, .logit_min = INFINITY, .logit_max = -INFINITY};
    for (uint64_t i = 0; i < SEQUENCES; i++) {
        const bp_loss_sequence one = truth_of(i);
        truth.tokens += length_of(i);
        truth.valid += one.valid;
        truth.logprob_sum += one.logprob_sum;
        truth.entropy_sum += one.entropy_sum;
        truth.perplexity_sum += one.perplexity;
        truth.perplexity_sequences += one.valid > 0;
        for (uint64_t offset = 0; offset < length_of(i); offset++) {
            float min, largest;
            range_of(&alone, i, offset, &min, &largest);
            truth.logit_min = mask_of(i, offset) ? fmin(truth.logit_min, min) : truth.logit_min;
            truth.logit_max = mask_of(i, offset) ? fmax(truth.logit_max, largest) : truth.logit_max;
        }
    }
    return truth;
}

static bool is_near(double a, double b)
{
    return fabs(a - b) <= 1e-12 * fabs(b);
}

static void check_statistics(const bp_loss *loss, const place *p)
{
    const bp_loss_statistics truth = truth_of_all();
    bp_loss_statistics s = {.size = sizeof s};
    assert_ok(bp_loss_statistics_get(loss, &s));
    assert_true(s.sequences == truth.sequences && s.tokens == truth.tokens && s.valid == truth.valid);
    assert_true(s.logprob_sum == truth.logprob_sum && s.entropy_sum == truth.entropy_sum);
    assert_true(s.logit_min == truth.logit_min && s.logit_max == truth.logit_max);
    assert_true(is_near(s.loss, -truth.logprob_sum / (1e-5 + (double)truth.valid)));
    assert_true(is_near(s.entropy, truth.entropy_sum / (double)truth.valid));
    assert_true(s.perplexity_sequences == truth.perplexity_sequences);
    assert_true(is_near(s.perplexity, truth.perplexity_sum / (double)truth.perplexity_sequences));
    uint64_t index = 0;
    for (uint64_t i = p->dp_rank; i < SEQUENCES; i += p->dp, index++) {
        const bp_loss_sequence one = truth_of(i);
        assert_true(index < bp_loss_get_info(loss)->sequence_count);
        const bp_loss_sequence got = bp_loss_get_info(loss)->sequences[index];
        assert_true(got.valid == one.valid && got.logprob_sum == one.logprob_sum &&
                    is_near(got.perplexity, one.perplexity));
    }
    assert_true(bp_loss_get_info(loss)->sequence_count == index);
}

static void check_seeds(bp_loss *loss, slice *mine, const place *p)
{
    static float seeds[MAX_TOKENS];
    const float expected = (float)(-(double)p->dp * p->cp / (1e-5 + (double)truth_of_all().valid));
    const bp_token_values mask = {.data = mine->mask, .stride = 1}, to = {.data = seeds, .stride = 1};
    assert_ok(bp_loss_seed(loss, mine->split, mine->tokens, &mask, -1, &to, NULL));
    for (uint64_t t = 0; t < mine->tokens; t++)
        assert_true(seeds[t] == (mine->mask[t] ? expected : 0));
}

#define FOR_PLACES(p)                                                                                                  \
    for (uint32_t tp = 1; tp <= ranks; tp *= 2)                                                                        \
        for (uint32_t cp = 1; cp <= ranks / tp; cp *= 2)                                                               \
            for (place p = place_of(tp, cp, ranks / tp / cp), *once = &p; once != NULL; once = NULL)

TEST(losses_are_those_of_one_process)
{
    FOR_PLACES(p)
    {
        const bp_loss_config config = loss_config(&p);
        slice *mine = open_slice(&p);
        const bp_loss_values values = values_of(mine);
        bp_loss *loss = NULL;
        assert_ok(bp_loss_create(device, &config, &loss));
        for (int step = 0; step < 2; step++) {
            assert_ok(bp_loss_begin(loss));
            assert_ok(bp_loss_add(loss, mine->split, &values, NULL));
            assert_ok(bp_loss_reduce(loss, BP_OK, NULL));
            check_statistics(loss, &p);
            check_seeds(loss, mine, &p);
        }
        bp_loss_destroy(&loss);
        close_slice(mine);
    }
}

/* ---- ranks that fail ------------------------------------------------------------------------------------------------ */

/* Kinds of failures of the last rank. */
enum { LOADER, OTHER_LENGTHS, SHORT_MASK, OTHER_MASK, WAYS };

static bp_status go_wrong(bp_loss *loss, slice *mine, int way)
{
    bp_loss_values values = values_of(mine);
    if (way == LOADER)
        return bp_error_record(BP_ERR_IO, "shard 17 cannot be read");
    if (way == SHORT_MASK)
        values.tokens--;
    if (way == OTHER_MASK)
        for (uint64_t t = 0; t < mine->tokens; t++)
            mine->mask[t] = 1;
    return bp_loss_add(loss, mine->split, &values, NULL);
}

static bp_status step_of(bp_loss *loss, slice *mine, int way)
{
    const bp_loss_values values = values_of(mine);
    const bool wrong = rank == ranks - 1;
    return bp_loss_reduce(loss, wrong ? go_wrong(loss, mine, way) : bp_loss_add(loss, mine->split, &values, NULL),
                          NULL);
}

/* On the last rank the second last sequence ends where the last one does. */
static slice *open_slice_of(const place *p, int way)
{
    slice *mine = open_slice(p);
    if (way == OTHER_LENGTHS && rank == ranks - 1) {
        bp_cp_split_destroy(&mine->split);
        mine->s.cu[mine->s.count - 1] = mine->s.cu[mine->s.count];
        mine->split = new_split(&mine->s, p->cp, p->cp_rank);
        mine->tokens = info_of(mine->split).local_tokens;
    }
    return mine;
}

TEST(all_hear_of_one_that_failed)
{
    char who[32], both[32];
    snprintf(who, sizeof who, "rank %u of", ranks - 1);
    snprintf(both, sizeof both, "and %u ", ranks - 1);
    FOR_PLACES(p)
    {
        const bp_loss_config config = loss_config(&p);
        bp_loss *loss = NULL;
        bp_loss_statistics statistics = {.size = sizeof statistics};
        assert_ok(bp_loss_create(device, &config, &loss));
        for (int way = 0; way < WAYS; way++) {
            /* batches are compared between CP and TP ranks, masks only between TP ranks, which have the same tokens */
            if ((way == OTHER_LENGTHS && p.tp * p.cp == 1) || (way == OTHER_MASK && p.tp == 1))
                continue;
            slice *mine = open_slice_of(&p, way);
            assert_ok(bp_loss_begin(loss));
            if (way == LOADER)
                assert_fails(step_of(loss, mine, way), BP_ERR_IO, who, "shard 17 cannot be read");
            else if (way == SHORT_MASK)
                assert_fails(step_of(loss, mine, way), BP_ERR_INVALID_ARGUMENT, who, "local ones");
            else
                assert_fails(step_of(loss, mine, way), BP_ERR_MISMATCH, both);
            assert_fails(bp_loss_statistics_get(loss, &statistics), BP_ERR_SCHEDULE, "reduce");
            close_slice(mine);
        }
        slice *mine = open_slice(&p); /* the next step succeeds */
        const bp_loss_values values = values_of(mine);
        assert_ok(bp_loss_begin(loss));
        assert_ok(bp_loss_add(loss, mine->split, &values, NULL));
        assert_ok(bp_loss_reduce(loss, BP_OK, NULL));
        check_statistics(loss, &p);
        close_slice(mine);
        bp_loss_destroy(&loss);
    }
}

TEST(arrangements_that_cannot_be_are_refused)
{
    place p = place_of(1, ranks, 1);
    bp_loss *loss = NULL;
    bp_loss_config config = loss_config(&p);
    config.cp = ranks + 1;
    assert_fails(bp_loss_create(device, &config, &loss), BP_ERR_MISMATCH, "tp 1 x cp");
    if (ranks == 1)
        return;
    config = loss_config(&p);
    config.cp_rank = rank == ranks - 1 ? 0 : rank;
    assert_fails(bp_loss_create(device, &config, &loss), BP_ERR_MISMATCH, "ranks 0 and");
    config = loss_config(&p);
    config.epsilon = rank == 0 ? 1e-6 : 1e-5;
    assert_fails(bp_loss_create(device, &config, &loss), BP_ERR_MISMATCH, "epsilon");
    config = loss_config(&p);
    config.max_sequences = rank == ranks - 1 ? 0 : 5;
    assert_fails(bp_loss_create(device, &config, &loss), BP_ERR_INVALID_ARGUMENT,
                 rank == ranks - 1 ? "max_sequences is 0" : "rank");
    assert_null(loss);
}

int main(void)
{
    return open_everything() ? close_everything(run_suite()) : 1;
}
