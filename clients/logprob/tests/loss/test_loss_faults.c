/* SPDX-License-Identifier: Apache-2.0 */
/* A step in which one rank differs or fails: the error on every rank names it, and no rank hangs. */
#include "support/harness.h"

#include "loss_ranks.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "support/pools.h"
#include "support/scenarios.h"

static const corpus_options SMALL = {.seed = 19, .sequences = 14, .longest = 30};

/* ---- steps --------------------------------------------------------------------------------------------------------- */

typedef enum step_fault {
    TOLD,
    WRONG_LENGTH,
    NO_MASK,
    OTHER_BATCH,
    OTHER_LENGTHS,
    OTHER_MASK,
    MOVED_MASK,
    OTHER_VALUE,
    INFINITE_VALUE,
    OTHER_ENTROPY,
    NO_ENTROPY,
    NO_LARGEST,
    MISSING_ADD,
    TOO_MANY
} step_fault;

typedef struct step_case {
    step_fault fault;
    const char *name;
    bp_status status;
    bool counts; /* adds masks only */
} step_case;

static const step_case STEPS[] = {
    {TOLD, "a rank that reports a failure", BP_ERR_IO, false},
    {WRONG_LENGTH, "a mask of the wrong length", BP_ERR_INVALID_ARGUMENT, false},
    {WRONG_LENGTH, "a mask of the wrong length, alone", BP_ERR_INVALID_ARGUMENT, true},
    {NO_MASK, "no mask", BP_ERR_INVALID_ARGUMENT, false},
    {TOO_MANY, "more than max_sequences", BP_ERR_INVALID_ARGUMENT, false},
    {OTHER_BATCH, "CP ranks with different batches", BP_ERR_MISMATCH, false},
    {OTHER_BATCH, "CP ranks with different batches, masks only", BP_ERR_MISMATCH, true},
    {OTHER_LENGTHS, "equal numbers of sequences and tokens, different lengths", BP_ERR_MISMATCH, false},
    {NO_ENTROPY, "one rank without entropies", BP_ERR_MISMATCH, false},
    {NO_LARGEST, "one rank without largest logits", BP_ERR_MISMATCH, false},
    {MISSING_ADD, "one rank with fewer micro-batches", BP_ERR_MISMATCH, false},
};

/* TP ranks have the same tokens, and each exchanges all sums. */
static const step_case OTHER_MASKS[] = {
    {OTHER_MASK, "TP ranks with different masks", BP_ERR_MISMATCH, false},
    {OTHER_MASK, "TP ranks with different masks only", BP_ERR_MISMATCH, true},
};
static const step_case OTHER_VALUES[] = {
    {MOVED_MASK, "TP ranks with masks of equal count and different sums", BP_ERR_MISMATCH, false},
    {OTHER_VALUE, "TP ranks with different log-probabilities", BP_ERR_MISMATCH, false},
    {INFINITE_VALUE, "TP ranks, one with a log-probability of -inf", BP_ERR_MISMATCH, false},
    {OTHER_ENTROPY, "TP ranks with different entropies", BP_ERR_MISMATCH, false},
};

typedef struct step_scene {
    setting s;
    const step_case *now;
    uint32_t odd;
} step_scene;

/* Local place of a valid corpus token that has an invalid neighbour in its sequence's part. */
static uint64_t valid_place(const seat *at, uint64_t *invalid)
{
    const pack *p = &at->packs[0];
    uint64_t valid = UINT64_MAX;
    for (uint64_t i = 0; i < p->sequences - (p->has_dummy ? 1 : 0); i++) {
        valid = *invalid = UINT64_MAX;
        const uint64_t first = at->s->c->first[p->source[i]];
        for (uint64_t token = first; token < at->s->c->first[p->source[i] + 1]; token++) {
            uint64_t local;
            if (rank_of_token(p, i, token - first, &local) != at->cp_rank)
                continue;
            *(at->s->c->mask[token] != 0 ? &valid : invalid) = local;
        }
        if (valid != UINT64_MAX && *invalid != UINT64_MAX)
            break;
    }
    return valid;
}

static bool change_values(seat *at, step_fault fault)
{
    slice *v = &at->slices[0];
    uint64_t invalid = UINT64_MAX;
    const uint64_t valid = valid_place(at, &invalid);
    EXPECT(valid != UINT64_MAX && invalid != UINT64_MAX);
    uint8_t *mask = v->values.mask.data;
    float *logprob = v->values.logprob.data, *entropy = v->values.entropy.data;
    const int64_t one = (int64_t)valid * v->stride, other = (int64_t)invalid * v->stride;
    if (fault == OTHER_VALUE || fault == INFINITE_VALUE)
        logprob[one] -= fault == OTHER_VALUE ? 0.5f : INFINITY;
    else if (fault == OTHER_ENTROPY)
        entropy[one] += 0.5f;
    else
        mask[one] = 0;
    if (fault == MOVED_MASK) {
        mask[other] = 1;
        logprob[other] = logprob[one] + 0.25f;
        entropy[other] = entropy[one];
        ((float *)v->values.logit_min.data)[other] = 0;
        ((float *)v->values.logit_max.data)[other] = 0;
    }
    return true;
}

/* The same padding with another sequence, or a token moved to the previous sequence. */
static bool change_batch(seat *at, step_fault fault)
{
    pack other = at->packs[0];
    const uint64_t last = other.sequences;
    if (fault == OTHER_BATCH) {
        other.cu[last + 1] = other.cu[last];
        other.padded[last + 1] = other.padded[last];
        other.sequences++;
        other.has_dummy = false;
    } else {
        uint64_t i = 1;
        while (i < last && (other.cu[i] - other.cu[i - 1] == other.padded[i] - other.padded[i - 1] ||
                            other.cu[i + 1] == other.cu[i]))
            i++;
        EXPECT(i < last);
        other.cu[i]++;
    }
    other.pads_itself = true;
    other.total_multiple = 0;
    bp_cp_split_destroy(&at->splits[0]);
    bp_cp_split_info info;
    EXPECT(split_pack(&other, at->cp_rank, NULL, &at->splits[0]) == BP_OK);
    info = *bp_cp_split_get_info(at->splits[0]);
    at->slices[0].values.tokens = info.local_tokens;
    return info.local_tokens <= at->slices[0].tokens;
}

static bool add_with_fault(seat *at, const step_case *now, bool is_odd)
{
    for (uint32_t m = 0; m < at->micros; m++) {
        const bool faulty = is_odd && m == 0;
        bp_loss_values values = at->slices[m].values;
        if (now->counts)
            values.logprob.data = values.entropy.data = values.logit_min.data = values.logit_max.data = NULL;
        if (faulty && now->fault == WRONG_LENGTH)
            values.tokens++;
        if (faulty && now->fault == NO_MASK)
            values.mask.data = NULL;
        if (is_odd && now->fault == NO_ENTROPY)
            values.entropy.data = NULL;
        if (is_odd && now->fault == NO_LARGEST)
            values.logit_max.data = NULL;
        if (faulty && now->fault == MISSING_ADD)
            continue;
        const bool fails = faulty && (now->fault == WRONG_LENGTH || now->fault == NO_MASK);
        EXPECT(bp_loss_add(at->loss, at->splits[m], &values, at->stream) == (fails ? BP_ERR_INVALID_ARGUMENT : BP_OK));
    }
    bp_status status = BP_OK;
    for (int i = 0; is_odd && now->fault == TOO_MANY && i < 100 && status == BP_OK; i++)
        status = bp_loss_add(at->loss, at->splits[0], &at->slices[0].values, at->stream);
    return !is_odd || now->fault != TOO_MANY || status == BP_ERR_INVALID_ARGUMENT;
}

/* No statistics, and seeds of 0. */
static bool step_has_no_results(seat *at)
{
    bp_loss_statistics s = {.size = sizeof s};
    EXPECT(bp_loss_statistics_get(at->loss, &s) == BP_ERR_SCHEDULE);
    for (uint32_t m = 0; m < at->micros; m++) {
        const slice *v = &at->slices[m];
        memset(v->memory[1], 0x7f, sizeof(float));
        EXPECT(bp_loss_seed(at->loss, at->splits[m], v->values.tokens, &v->values.mask, -1, &v->seed, at->stream) ==
               BP_OK);
        EXPECT(at->stream == NULL || bp_stream_synchronize(at->stream) == BP_OK);
        for (uint64_t i = 0; i < v->values.tokens; i++)
            EXPECT(seed_at(v, i) == 0);
    }
    return true;
}

static bool run_step_with_fault(host_rank *r)
{
    step_scene *x = r->user;
    const step_case *now = x->now;
    const bool is_odd = r->number == x->odd;
    host_rank inner = *r;
    inner.user = &x->s;
    seat at;
    bool good = take_seat(&inner, &at) && step(&at, false); /* this client's seeds are destroyed below */
    if (good && is_odd && (now->fault == OTHER_BATCH || now->fault == OTHER_LENGTHS))
        good = change_batch(&at, now->fault);
    if (good && is_odd && now->fault >= OTHER_MASK && now->fault <= OTHER_ENTROPY)
        good = change_values(&at, now->fault);
    good = good && bp_loss_begin(at.loss) == BP_OK && add_with_fault(&at, now, is_odd);
    const bp_status mine = is_odd && now->fault == TOLD ? BP_ERR_IO : BP_OK;
    const bp_status status = bp_loss_reduce(at.loss, mine, at.stream);
    good = is_status(status, now->status, NULL, now->name) && good;
    good = good && names_rank(x->odd, now->name) && step_has_no_results(&at);
    leave_seat(&at);
    good = take_seat(&inner, &at) && step(&at, false) && statistics_are_true(&at) && good;
    leave_seat(&at);
    return good;
}

static void check_step_case(const corpus *c, const step_case *now, const uint32_t *counts, uint64_t number)
{
    seed(200 + number);
    const topology t = shuffled_topology(counts[0], counts[1], counts[2]);
    step_scene x = {.s = new_setting(c, &t, 2), .now = now};
    x.s.own_streams = number % 2 == 1;
    do /* the odd rank must have a micro-batch: the first DP rank always has one */
        x.odd = random_below(rank_count(&t));
    while (t.place[x.odd] / (t.tp * t.cp) != 0);
    run_host_ranks(rank_count(&t), false, 0, run_step_with_fault, &x);
    free_setting(&x.s);
}

static void check_step_cases(const step_case *cases, size_t count, bool needs_tp)
{
    static const uint32_t shapes[][3] = {{2, 2, 2}, {4, 1, 2}, {1, 4, 1}};
    corpus c = new_corpus(&SMALL);
    for (size_t shape = 0; shape < (needs_tp ? 2 : 3); shape++)
        for (size_t i = 0; i < count; i++)
            check_step_case(&c, &cases[i], shapes[shape], i);
    free_corpus(&c);
}

TEST(a_step_fails_on_all_ranks)
{
    check_step_cases(STEPS, sizeof STEPS / sizeof *STEPS, false);
}

TEST(tp_ranks_must_have_equal_masks)
{
    check_step_cases(OTHER_MASKS, sizeof OTHER_MASKS / sizeof *OTHER_MASKS, true);
}

TEST(tp_ranks_must_have_equal_values)
{
    check_step_cases(OTHER_VALUES, sizeof OTHER_VALUES / sizeof *OTHER_VALUES, true);
}

/* Entropies of only one DP rank would be divided by all valid tokens. */
static bool run_without_entropy_on_a_dp_rank(host_rank *r)
{
    seat at;
    bool good = take_seat(r, &at) && bp_loss_begin(at.loss) == BP_OK;
    bp_loss_values values = at.slices[0].values;
    if (at.dp_rank == 1)
        values.entropy.data = NULL;
    good = good && bp_loss_add(at.loss, at.splits[0], &values, at.stream) == BP_OK;
    good = is_status(bp_loss_reduce(at.loss, BP_OK, at.stream), BP_ERR_MISMATCH, NULL, "no entropy") && good;
    good = good && (names_rank(2, "no entropy") || names_rank(3, "no entropy")) && step_has_no_results(&at);
    leave_seat(&at);
    return good;
}

TEST(dp_ranks_must_have_the_same_values)
{
    corpus c = new_corpus(&SMALL);
    const topology t = topology_of(1, 2, 2);
    setting s = new_setting(&c, &t, 1);
    run_scene_ranks(&s, run_without_entropy_on_a_dp_rank);
    free_setting(&s);
    free_corpus(&c);
}

/* The error names its place, which differs from its rank. */
static bool names_place(const topology *t, uint32_t rank)
{
    const uint32_t place = t->place[rank];
    char words[80];
    snprintf(words, sizeof words, "tp %u, cp %u, dp %u", place % t->tp, place / t->tp % t->cp, place / t->tp / t->cp);
    return expected_here(strstr(bp_error_detail(), words) != NULL, words, __FILE__, __LINE__);
}

/* Before the reduce, which reports the same. */
static bool agree_that_one_failed(seat *at, uint32_t odd, bp_status told)
{
    EXPECT(bp_loss_agree(at->loss, BP_OK) == BP_OK);
    const bool good = is_status(bp_loss_agree(at->loss, at->r->number == odd ? told : BP_OK), told, NULL, "agreed") &&
                      names_rank(odd, "agreed") && names_place(&at->s->t, odd);
    return is_status(bp_loss_agree(at->loss, BP_OK), told, NULL, "agreed again") && good;
}

/* All CP ranks have the same sequences in different orders. */
static bool run_swapped_micro_batches(host_rank *r)
{
    seat at;
    bool good = take_seat(r, &at) && bp_loss_begin(at.loss) == BP_OK;
    for (uint32_t m = 0; good && m < at.micros; m++) {
        const uint32_t added = at.cp_rank == 0 ? m : at.micros - 1 - m;
        good = bp_loss_add(at.loss, at.splits[added], &at.slices[added].values, at.stream) == BP_OK;
    }
    good = is_status(bp_loss_reduce(at.loss, BP_OK, at.stream), BP_ERR_MISMATCH, NULL, "swapped") && good;
    leave_seat(&at);
    return good;
}

TEST(micro_batches_come_in_one_order)
{
    corpus c = new_corpus(&SMALL);
    const topology t = topology_of(1, 2, 1);
    seed(6);
    setting s = new_setting(&c, &t, 3);
    for (; s.micros[0] < 2; s = new_setting(&c, &t, 3))
        free_setting(&s);
    run_scene_ranks(&s, run_swapped_micro_batches);
    free_setting(&s);
    free_corpus(&c);
}

/* The client works after a failed step: begin resets it. */
static bool run_recovery(host_rank *r)
{
    seat at;
    bool good = take_seat(r, &at);
    for (uint32_t odd = 0; good && odd < r->ranks; odd++) {
        const bp_status told = (bp_status)(BP_ERR_IO + odd % 4), mine = odd == r->number ? told : BP_OK;
        const bool agrees = odd % 2 == 0;
        good = bp_loss_begin(at.loss) == BP_OK && add_all(&at, false);
        good = good && (!agrees || agree_that_one_failed(&at, odd, told));
        good = good && is_status(bp_loss_reduce(at.loss, agrees ? BP_OK : mine, at.stream), told, NULL, "told");
        good = good && names_rank(odd, "told") && names_place(&at.s->t, odd) && step_has_no_results(&at);
        good = good && step(&at, false) && statistics_are_true(&at) && make_seeds(&at, -1);
    }
    leave_seat(&at);
    return good;
}

TEST(the_next_step_succeeds)
{
    corpus c = new_corpus(&SMALL);
    const topology t = shuffled_topology(2, 2, 2);
    setting s = new_setting(&c, &t, 2);
    run_scene_ranks(&s, run_recovery);
    assert_true(seeds_are_true(&s, -1, 4));
    free_setting(&s);
    free_corpus(&c);
}

/* Several ranks fail differently: all get the same error. */
static bool run_many_failures(host_rank *r)
{
    seat at;
    bool good = take_seat(r, &at) && bp_loss_begin(at.loss) == BP_OK && add_all(&at, false);
    const bp_status mine = r->number == 0 ? BP_OK : (bp_status)(BP_ERR_UNSUPPORTED + r->number);
    ((bp_status *)at.s->user)[r->number] = bp_loss_reduce(at.loss, mine, at.stream);
    good = good && step_has_no_results(&at);
    leave_seat(&at);
    return good;
}

TEST(all_ranks_get_the_same_error)
{
    corpus c = new_corpus(&SMALL);
    bp_status told[4];
    const topology t = shuffled_topology(2, 2, 1);
    setting s = new_setting(&c, &t, 1);
    s.user = told;
    run_scene_ranks(&s, run_many_failures);
    assert_true(told[0] > BP_ERR_UNSUPPORTED && told[0] <= BP_ERR_UNSUPPORTED + 3);
    for (int i = 1; i < 4; i++)
        assert_int_equal(told[i], told[0]);
    free_setting(&s);
    free_corpus(&c);
}

/* ---- the communicator ---------------------------------------------------------------------------------------------- */

typedef struct broken_room {
    setting s;
    exchange_room room;
} broken_room;

/* The reduce's exchange fails on rank 2, so it completes on no rank. */
static bool run_broken_exchange(host_rank *r)
{
    broken_room *x = r->user;
    host_rank inner = *r;
    inner.seat = (exchange_seat){.room = &x->room, .rank = r->number};
    inner.user = &x->s;
    bp_comm_callbacks callbacks = exchange_callbacks(&inner.seat);
    EXPECT(bp_comm_create_callback(&callbacks, &inner.seat, "broken", &inner.comm) == BP_OK);
    seat at;
    uint8_t mine = 0, all[EXCHANGE_RANKS];
    bool good = take_seat(&inner, &at) && bp_loss_begin(at.loss) == BP_OK && add_all(&at, false);
    EXPECT(bp_comm_exchange(r->comm, &mine, 1, all) == BP_OK); /* all ranks have left the previous exchange */
    inner.seat.fails_nth = r->number == 2;
    good = good && expected_here(bp_loss_reduce(at.loss, BP_OK, at.stream) != BP_OK, "an error", __FILE__, __LINE__);
    good = good && step_has_no_results(&at);
    leave_seat(&at);
    bp_comm_destroy(&inner.comm);
    return good;
}

TEST(a_broken_communicator_is_an_error)
{
    corpus c = new_corpus(&SMALL);
    const topology t = topology_of(2, 2, 1);
    broken_room x = {.s = new_setting(&c, &t, 1)};
    exchange_begin(&x.room, 4);
    run_host_ranks(4, false, 0, run_broken_exchange, &x);
    assert_true(x.room.given_up);
    exchange_end(&x.room);
    free_setting(&x.s);
    free_corpus(&c);
}

TESTS(NULL, NULL)
