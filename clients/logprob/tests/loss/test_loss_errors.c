/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments that the loss refuses, with their messages, on one rank and on several; no rank waits for one that has failed. */
#include "support/harness.h"

#include "../support/hosts.h"
#include "loss_ranks.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "support/pools.h"
#include "support/scenarios.h"

static const corpus_options SMALL = {.seed = 9, .sequences = 6, .longest = 20, .empty_in_8 = 1};

/* ---- creation, one rank -------------------------------------------------------------------------------------------- */

TEST(structs_need_their_size)
{
    bp_loss_config config;
    bp_loss_values values;
    bp_loss_statistics statistics;
    assert_fails(bp_loss_config_init(NULL, sizeof config), BP_ERR_INVALID_ARGUMENT, "");
    assert_fails(bp_loss_config_init(&config, 3), BP_ERR_INVALID_ARGUMENT, "3");
    assert_fails(bp_loss_values_init(NULL, sizeof values), BP_ERR_INVALID_ARGUMENT, "");
    assert_fails(bp_loss_values_init(&values, 3), BP_ERR_INVALID_ARGUMENT, "3");
    assert_fails(bp_loss_statistics_init(NULL, sizeof statistics), BP_ERR_INVALID_ARGUMENT, "");
    assert_fails(bp_loss_statistics_init(&statistics, 3), BP_ERR_INVALID_ARGUMENT, "3");
    assert_ok(bp_loss_config_init(&config, sizeof config));
    assert_true(config.size == sizeof config && config.tp == 1 && config.cp == 1 && config.dp == 1);
    assert_true(config.epsilon == 1e-5 && config.gradients == BP_LOSS_AVERAGED && config.comm == NULL);
    assert_ok(bp_loss_statistics_init(&statistics, sizeof statistics));
    assert_true(statistics.valid == 0 && statistics.logit_min == INFINITY && statistics.logit_max == -INFINITY);
}

static bp_loss_config good_config(void)
{
    bp_loss_config config;
    assert_ok(bp_loss_config_init(&config, sizeof config));
    config.max_sequences = 8;
    config.threads = 1;
    return config;
}

TEST(configurations_are_checked)
{
    bp_loss *loss = NULL;
    bp_loss_config c = good_config();
    assert_fails(bp_loss_create(NULL, &c, &loss), BP_ERR_INVALID_ARGUMENT, "device");
    assert_fails(bp_loss_create(device, NULL, &loss), BP_ERR_INVALID_ARGUMENT, "bp_loss_create");
    assert_fails(bp_loss_create(device, &c, NULL), BP_ERR_INVALID_ARGUMENT, "bp_loss_create");
    c.size = 0;
    assert_fails(bp_loss_create(device, &c, &loss), BP_ERR_INVALID_ARGUMENT, "bp_loss_create");
    const double epsilons[] = {-1e-9, NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < 4; i++) {
        c = good_config();
        c.epsilon = epsilons[i];
        assert_fails(bp_loss_create(device, &c, &loss), BP_ERR_INVALID_ARGUMENT, "epsilon");
    }
    for (int gradients = 0; gradients <= 3; gradients += 3) {
        c = good_config();
        c.gradients = (bp_loss_gradients)gradients;
        assert_fails(bp_loss_create(device, &c, &loss), BP_ERR_INVALID_ARGUMENT, "gradients",
                     gradients == 0 ? "0" : "3");
    }
    c = good_config();
    c.threads = 1025;
    assert_fails(bp_loss_create(device, &c, &loss), BP_ERR_INVALID_ARGUMENT, "1025");
    c.threads = 1024;
    c.epsilon = 0;
    assert_ok(bp_loss_create(device, &c, &loss));
    bp_loss_destroy(&loss);
    c = good_config();
    c.max_sequences = UINT64_MAX;
    assert_fails(bp_loss_create(device, &c, &loss), BP_ERR_OVERFLOW, "18446744073709551615");
    assert_null(loss);
}

TEST(places_are_checked)
{
    bp_loss *loss = NULL;
    bp_comm *self = NULL;
    assert_ok(bp_comm_create_self(&self));
    for (int with_comm = 0; with_comm < 2; with_comm++)
        for (int which = 0; which < 3; which++) {
            bp_loss_config c = good_config();
            c.comm = with_comm ? self : NULL;
            uint32_t *const counts[] = {&c.tp, &c.cp, &c.dp}, *const ranks[] = {&c.tp_rank, &c.cp_rank, &c.dp_rank};
            const char *const names[] = {"tp", "cp", "dp"};
            *counts[which] = 0;
            assert_fails(bp_loss_create(device, &c, &loss), BP_ERR_INVALID_ARGUMENT, names[which], "0");
            *counts[which] = 1;
            for (uint32_t rank = 1; rank <= 5; rank += 4) {
                *ranks[which] = rank;
                assert_fails(bp_loss_create(device, &c, &loss), BP_ERR_INVALID_ARGUMENT, names[which],
                             rank == 1 ? "1 of" : "5");
            }
        }
    bp_loss_config c = good_config();
    c.comm = self;
    c.tp = 2;
    c.cp = 3;
    assert_fails(bp_loss_create(device, &c, &loss), BP_ERR_MISMATCH, "2", "3", "1");
    c.tp = c.cp = c.dp = UINT32_MAX; /* a product of 96 bits */
    assert_int_not_equal(bp_loss_create(device, &c, &loss), BP_OK);
    c = good_config();
    c.cp = 2; /* without a communicator */
    bp_status status = bp_loss_create(device, &c, &loss);
    assert_true(status == BP_ERR_MISMATCH || status == BP_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(bp_error_detail(), "2"));
    assert_null(loss);
    bp_comm_destroy(&self);
}

TEST(devices_are_checked)
{
    bp_loss *loss = NULL;
    bp_device *null = new_null(), *small = NULL;
    bp_host_config host;
    assert_ok(bp_host_config_init(&host, sizeof host));
    host.memory_bytes = 65536;
    assert_ok(bp_device_create_host(&host, &small));
    bp_loss_config c = good_config();
    assert_fails(bp_loss_create(null, &c, &loss), BP_ERR_UNSUPPORTED, "null");
    c.max_sequences = 1u << 20;
    assert_fails(bp_loss_create(small, &c, &loss), BP_ERR_NO_DEVICE_MEMORY, "");
    assert_null(loss);
    bp_device_usage usage = usage_of(small);
    assert_true(usage.committed_bytes == 0 && usage.streams == 0 && usage.events == 0);
    bp_loss_destroy(NULL);
    bp_loss_destroy(&loss);
    bp_device_destroy(&null);
    bp_device_destroy(&small);
}

/* ---- a step, one rank ---------------------------------------------------------------------------------------------- */

typedef struct stage {
    corpus c;
    pack p;
    slice v;
    bp_cp_split *split;
    bp_loss *loss;
    bp_stream *stream;
} stage;

static void begin_stage(stage *g, uint64_t max_sequences)
{
    g->c = new_corpus(&SMALL);
    g->p = new_pack(&g->c, 1, 0, 1);
    bp_cp_split_info info;
    assert_ok(split_pack(&g->p, 0, NULL, &g->split));
    info = *bp_cp_split_get_info(g->split);
    g->v = new_slice(&g->c, &g->p, info.local_tokens, 0, 0, 1, WITH_ALL, 1);
    bp_loss_config config = good_config();
    config.max_sequences = max_sequences == 0 ? info.sequences : max_sequences;
    g->loss = NULL;
    g->stream = NULL;
    assert_ok(bp_loss_create(device, &config, &g->loss));
    assert_ok(bp_stream_create(device, "caller", &g->stream));
}

static void end_stage(stage *g)
{
    bp_loss_destroy(&g->loss);
    assert_null(g->loss);
    bp_stream_destroy(&g->stream);
    bp_cp_split_destroy(&g->split);
    free_slice(&g->v);
    free_corpus(&g->c);
}

/* After a failed add, reduce fails, there are no statistics, and seeds are 0; the next step succeeds. */
static void check_failed_step(stage *g)
{
    bp_loss_statistics s = {.size = sizeof s, .valid = 99};
    assert_fails(bp_loss_reduce(g->loss, BP_OK, g->stream), BP_ERR_INVALID_ARGUMENT, "bp_loss_");
    assert_fails(bp_loss_statistics_get(g->loss, &s), BP_ERR_SCHEDULE, "bp_loss_statistics_get");
    assert_int_equal(s.valid, 99);
    assert_ok(bp_loss_seed(g->loss, g->split, g->v.tokens, &g->v.values.mask, -1, &g->v.seed, g->stream));
    assert_ok(bp_stream_synchronize(g->stream));
    for (uint64_t i = 0; i < g->v.tokens; i++)
        assert_true(seed_at(&g->v, i) == 0);
    const bp_loss_statistics expected = true_statistics(&g->c, 1e-5, WITH_ALL);
    assert_ok(bp_loss_begin(g->loss));
    assert_ok(bp_loss_add(g->loss, g->split, &g->v.values, g->stream));
    assert_ok(bp_loss_reduce(g->loss, BP_OK, g->stream));
    assert_ok(bp_loss_statistics_get(g->loss, &s));
    assert_true(same_statistics(&s, &expected, "after a failed step"));
}

TEST(adds_are_checked)
{
    stage g;
    begin_stage(&g, 0);
    char length[32], right[32];
    for (int which = 0; which < 6; which++) {
        bp_loss_values v = g.v.values;
        assert_ok(bp_loss_begin(g.loss));
        switch (which) {
        case 0: /* one token too many, one too few: the mask's length is wrong */
        case 1:
            v.tokens += which == 0 ? 1 : -1ull;
            snprintf(length, sizeof length, "%llu", (unsigned long long)v.tokens);
            snprintf(right, sizeof right, "%llu", (unsigned long long)g.v.tokens);
            assert_fails(bp_loss_add(g.loss, g.split, &v, g.stream), BP_ERR_INVALID_ARGUMENT, "bp_loss_add", length,
                         right);
            break;
        case 2:
            v.mask.data = NULL;
            assert_fails(bp_loss_add(g.loss, g.split, &v, g.stream), BP_ERR_INVALID_ARGUMENT, "mask");
            break;
        case 3:
            v.size = 0;
            assert_fails(bp_loss_add(g.loss, g.split, &v, g.stream), BP_ERR_INVALID_ARGUMENT, "bp_loss_add");
            break;
        case 4: assert_fails(bp_loss_add(g.loss, NULL, &v, g.stream), BP_ERR_INVALID_ARGUMENT, "split"); break;
        default: assert_fails(bp_loss_add(g.loss, g.split, NULL, g.stream), BP_ERR_INVALID_ARGUMENT, ""); break;
        }
        check_failed_step(&g);
    }
    assert_fails(bp_loss_add(NULL, g.split, &g.v.values, g.stream), BP_ERR_INVALID_ARGUMENT, "bp_loss_add");
    assert_fails(bp_loss_begin(NULL), BP_ERR_INVALID_ARGUMENT, "bp_loss_begin");
    assert_fails(bp_loss_reduce(NULL, BP_OK, NULL), BP_ERR_INVALID_ARGUMENT, "bp_loss_reduce");
    assert_fails(bp_loss_count_set(NULL, 1), BP_ERR_INVALID_ARGUMENT, "bp_loss_count_set");
    end_stage(&g);
}

TEST(views_are_checked)
{
    static const char *const names[] = {"mask", "log-prob", "entrop", "logit_min", "logit_max"};
    stage g;
    begin_stage(&g, 0);
    for (size_t i = 0; i < 5; i++) {
        bp_loss_values v = g.v.values;
        bp_token_values *const views[] = {&v.mask, &v.logprob, &v.entropy, &v.logit_min, &v.logit_max};
        views[i]->stride = INT64_MIN;
        assert_ok(bp_loss_begin(g.loss));
        assert_fails(bp_loss_add(g.loss, g.split, &v, g.stream), BP_ERR_OVERFLOW, names[i]);
        v = g.v.values;
        views[i]->data = (char *)views[i]->data + 1;
        assert_ok(bp_loss_begin(g.loss));
        if (i > 0)
            assert_fails(bp_loss_add(g.loss, g.split, &v, g.stream), BP_ERR_INVALID_ARGUMENT, names[i], "4 bytes");
    }
    bp_token_values mask = g.v.values.mask, seeds = g.v.seed;
    mask.stride = INT64_MIN;
    assert_ok(bp_loss_count_set(g.loss, 1));
    assert_fails(bp_loss_seed(g.loss, g.split, g.v.tokens, &mask, -1, &g.v.seed, g.stream), BP_ERR_OVERFLOW, "mask");
    seeds.data = (char *)seeds.data + 2;
    assert_fails(bp_loss_seed(g.loss, g.split, g.v.tokens, &g.v.values.mask, -1, &seeds, g.stream),
                 BP_ERR_INVALID_ARGUMENT, "seed", "4 bytes");
    end_stage(&g);
}

TEST(sequences_have_a_limit)
{
    stage g;
    begin_stage(&g, 0);
    bp_cp_split_info info;
    char max[32];
    info = *bp_cp_split_get_info(g.split);
    snprintf(max, sizeof max, "%llu", (unsigned long long)info.sequences);
    assert_ok(bp_loss_begin(g.loss));
    assert_ok(bp_loss_add(g.loss, g.split, &g.v.values, g.stream));
    assert_fails(bp_loss_add(g.loss, g.split, &g.v.values, g.stream), BP_ERR_INVALID_ARGUMENT, "sequences", max);
    check_failed_step(&g);
    end_stage(&g);
}

/* Not counted, but they get records. */
TEST(dummies_need_room)
{
    const int64_t cu[] = {0, 3, 5};
    uint8_t mask[5] = {1, 1, 1, 1, 1};
    bp_loss_config config = good_config();
    bp_cp_split_config batch;
    bp_loss_values values;
    bp_cp_split *split = NULL;
    bp_loss *loss = NULL;
    config.max_sequences = 1;
    assert_ok(bp_loss_create(device, &config, &loss));
    assert_ok(bp_cp_split_config_init(&batch, sizeof batch));
    batch.cu_seqlens = cu;
    batch.sequences = 2;
    batch.last_is_dummy = 1;
    assert_ok(bp_cp_split_create(&batch, &split));
    assert_ok(bp_loss_values_init(&values, sizeof values));
    values.tokens = 5;
    values.mask = (bp_token_values){.data = mask, .stride = 1};
    assert_ok(bp_loss_begin(loss));
    assert_fails(bp_loss_add(loss, split, &values, NULL), BP_ERR_INVALID_ARGUMENT, "2 sequences", "max_sequences 1");
    bp_cp_split_destroy(&split);
    bp_loss_destroy(&loss);
}

TEST(the_first_failure_is_reported)
{
    stage g;
    begin_stage(&g, 0);
    bp_loss_values longer = g.v.values, without = g.v.values;
    longer.tokens++;
    without.mask.data = NULL;
    assert_ok(bp_loss_begin(g.loss));
    assert_fails(bp_loss_add(g.loss, g.split, &longer, NULL), BP_ERR_INVALID_ARGUMENT, "local ones");
    assert_fails(bp_loss_add(g.loss, g.split, &without, NULL), BP_ERR_INVALID_ARGUMENT, "mask is missing");
    assert_fails(bp_loss_reduce(g.loss, BP_ERR_IO, NULL), BP_ERR_INVALID_ARGUMENT, "local ones");
    end_stage(&g);
}

/* A micro-batch without entropies after one with them. */
TEST(micro_batches_have_the_same_values)
{
    stage g;
    begin_stage(&g, 40);
    bp_loss_values values = g.v.values;
    values.entropy.data = NULL;
    assert_ok(bp_loss_begin(g.loss));
    assert_ok(bp_loss_add(g.loss, g.split, &g.v.values, g.stream));
    assert_fails(bp_loss_add(g.loss, g.split, &values, g.stream), BP_ERR_INVALID_ARGUMENT, "micro-batch");
    check_failed_step(&g);
    end_stage(&g);
}

TEST(splits_of_other_ranks_are_refused)
{
    stage g;
    begin_stage(&g, 0);
    pack p = new_pack(&g.c, 2, 0, 1);
    bp_cp_split *other = NULL;
    bp_cp_split_info info;
    assert_ok(split_pack(&p, 1, NULL, &other));
    info = *bp_cp_split_get_info(other);
    slice v = new_slice(&g.c, &p, info.local_tokens, 1, 0, 1, WITH_ALL, 1);
    assert_ok(bp_loss_begin(g.loss));
    assert_fails(bp_loss_add(g.loss, other, &v.values, g.stream), BP_ERR_INVALID_ARGUMENT, "2", "1");
    check_failed_step(&g);
    assert_fails(bp_loss_seed(g.loss, other, v.tokens, &v.values.mask, -1, &v.seed, g.stream), BP_ERR_INVALID_ARGUMENT,
                 "2", "1");
    bp_cp_split_destroy(&other);
    free_slice(&v);
    end_stage(&g);
}

TEST(seeds_are_checked)
{
    stage g;
    begin_stage(&g, 0);
    const bp_token_values none = {.stride = 1}, *mask = &g.v.values.mask, *seeds = &g.v.seed;
    const uint64_t tokens = g.v.tokens;
    assert_true(tokens > 2);
    assert_fails(bp_loss_seed(g.loss, g.split, tokens, mask, -1, seeds, g.stream), BP_ERR_SCHEDULE, "bp_loss_seed");
    assert_ok(bp_loss_count_set(g.loss, 5));
    char length[32];
    snprintf(length, sizeof length, "%llu", (unsigned long long)tokens - 1);
    assert_fails(bp_loss_seed(g.loss, g.split, tokens - 1, mask, -1, seeds, g.stream), BP_ERR_INVALID_ARGUMENT, length);
    assert_fails(bp_loss_seed(g.loss, g.split, tokens, &none, -1, seeds, g.stream), BP_ERR_INVALID_ARGUMENT, "mask");
    assert_fails(bp_loss_seed(g.loss, g.split, tokens, NULL, -1, seeds, g.stream), BP_ERR_INVALID_ARGUMENT, "mask");
    assert_fails(bp_loss_seed(g.loss, g.split, tokens, mask, -1, &none, g.stream), BP_ERR_INVALID_ARGUMENT, "seed");
    assert_fails(bp_loss_seed(g.loss, g.split, tokens, mask, -1, NULL, g.stream), BP_ERR_INVALID_ARGUMENT, "seed");
    assert_fails(bp_loss_seed(g.loss, NULL, tokens, mask, -1, seeds, g.stream), BP_ERR_INVALID_ARGUMENT, "split");
    bp_token_values repeated = *seeds;
    repeated.stride = 0; /* stride 0 */
    assert_fails(bp_loss_seed(g.loss, g.split, tokens, mask, -1, &repeated, g.stream), BP_ERR_INVALID_ARGUMENT, "seed");
    for (uint64_t i = 0; i < tokens; i++)
        assert_true(isnan(seed_at(&g.v, i)));
    assert_ok(bp_loss_seed(g.loss, g.split, tokens, mask, -1, seeds, g.stream));
    end_stage(&g);
}

/* Streams of other devices, and destroyed streams. */
TEST(streams_are_checked)
{
    stage g;
    begin_stage(&g, 0);
    bp_device *other = new_host();
    bp_stream *foreign = NULL, *gone = NULL;
    assert_ok(bp_stream_create(other, "foreign", &foreign));
    assert_ok(bp_stream_create(device, "gone", &gone));
    bp_stream *const dangling = gone;
    bp_stream_destroy(&gone);
    bp_stream *const wrong[] = {foreign, dangling};
    for (size_t i = 0; i < 2; i++) {
        const char *name = i == 0 ? "foreign" : "gone";
        assert_ok(bp_loss_begin(g.loss));
        assert_fails(bp_loss_add(g.loss, g.split, &g.v.values, wrong[i]), BP_ERR_INVALID_ARGUMENT, name);
        check_failed_step(&g);
        assert_fails(bp_loss_seed(g.loss, g.split, g.v.tokens, &g.v.values.mask, -1, &g.v.seed, wrong[i]),
                     BP_ERR_INVALID_ARGUMENT, name);
        assert_ok(bp_loss_begin(g.loss));
        assert_fails(bp_loss_reduce(g.loss, BP_OK, wrong[i]), BP_ERR_INVALID_ARGUMENT, name);
    }
    bp_stream_destroy(&foreign);
    bp_device_destroy(&other);
    end_stage(&g);
}

/* ---- statistics ---------------------------------------------------------------------------------------------------- */

TEST(missing_statistics_are_an_error)
{
    stage g;
    begin_stage(&g, 0);
    bp_loss_statistics s = {.size = sizeof s, .valid = 99};
    assert_fails(bp_loss_statistics_get(g.loss, &s), BP_ERR_SCHEDULE, "bp_loss_statistics_get");
    assert_int_equal(bp_loss_get_info(g.loss)->sequence_count, 0);
    assert_null(bp_loss_get_info(NULL));
    assert_ok(bp_loss_begin(g.loss));
    assert_ok(bp_loss_count_set(g.loss, 4)); /* a count gives no statistics */
    assert_fails(bp_loss_statistics_get(g.loss, &s), BP_ERR_SCHEDULE, "bp_loss_statistics_get");
    assert_ok(bp_loss_add(g.loss, g.split, &g.v.values, g.stream));
    assert_fails(bp_loss_statistics_get(g.loss, &s), BP_ERR_SCHEDULE, "bp_loss_statistics_get");
    assert_ok(bp_loss_reduce(g.loss, BP_OK, g.stream));
    assert_fails(bp_loss_statistics_get(g.loss, NULL), BP_ERR_INVALID_ARGUMENT, "bp_loss_statistics_get");
    assert_int_equal(bp_loss_get_info(g.loss)->sequence_count, SMALL.sequences);
    s.size = 0;
    assert_fails(bp_loss_statistics_get(g.loss, &s), BP_ERR_INVALID_ARGUMENT, "bp_loss_statistics_get");
    assert_true(s.valid == 99);
    assert_non_null(bp_loss_get_info(g.loss)->pool);
    end_stage(&g);
}

TESTS(open_host, close_host)
