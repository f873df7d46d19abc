/* SPDX-License-Identifier: Apache-2.0 */
/* Sums on several streams: the client orders them. */
#include "support/harness.h"

#include <pthread.h>

#include <bucketpool/loss.h>

#include "../support/hosts.h"
#include "support/pools.h"

enum { TOKENS = 5 };

/* Two sequences, the second one optionally a dummy. */
typedef struct stage {
    bp_cp_split *split;
    bp_loss *loss;
    bp_loss_values values;
    bp_stream *held, *other;
    gate g;
    pthread_t opener;
} stage;

static uint8_t mask[TOKENS] = {1, 1, 1, 1, 1};
static float logprob[TOKENS] = {-1, -2, -4, -8, -16};

static void begin_stage(stage *s, int32_t last_is_dummy)
{
    static const int64_t cu[] = {0, 3, TOKENS};
    bp_loss_config config;
    bp_cp_split_config batch;
    *s = (stage){0};
    assert_ok(bp_loss_config_init(&config, sizeof config));
    config.max_sequences = 4;
    config.threads = 1;
    assert_ok(bp_loss_create(device, &config, &s->loss));
    assert_ok(bp_cp_split_config_init(&batch, sizeof batch));
    batch.cu_seqlens = cu;
    batch.sequences = 2;
    batch.last_is_dummy = last_is_dummy;
    assert_ok(bp_cp_split_create(&batch, &s->split));
    assert_ok(bp_loss_values_init(&s->values, sizeof s->values));
    s->values.tokens = TOKENS;
    s->values.mask = (bp_token_values){.data = mask, .stride = 1};
    s->values.logprob = (bp_token_values){.data = logprob, .stride = 1};
    assert_ok(bp_stream_create(device, "held", &s->held));
    assert_ok(bp_stream_create(device, "other", &s->other));
    assert_ok(bp_loss_begin(s->loss));
    block(s->held, &s->g);
}

static void end_stage(stage *s)
{
    bp_loss_destroy(&s->loss);
    bp_cp_split_destroy(&s->split);
    bp_stream_destroy(&s->held);
    bp_stream_destroy(&s->other);
}

/* Reduces on the idle stream while the gate opens. */
static void check_sum(stage *s, double expected)
{
    bp_loss_statistics statistics = {.size = sizeof statistics};
    assert_int_equal(pthread_create(&s->opener, NULL, unblock_later, &s->g), 0);
    assert_ok(bp_loss_reduce(s->loss, BP_OK, s->other));
    pthread_join(s->opener, NULL);
    assert_ok(bp_loss_statistics_get(s->loss, &statistics));
    assert_true(statistics.logprob_sum == expected);
}

TEST(a_reduce_waits_for_sums_of_other_streams)
{
    stage s;
    begin_stage(&s, 0);
    assert_ok(bp_loss_add(s.loss, s.split, &s.values, s.held));
    check_sum(&s, -31);
    end_stage(&s);
}

/* The next micro-batch's records replace the dummy's. */
TEST(sums_wait_for_those_before)
{
    stage s;
    begin_stage(&s, 1);
    assert_ok(bp_loss_add(s.loss, s.split, &s.values, s.held));
    assert_ok(bp_loss_add(s.loss, s.split, &s.values, s.other));
    check_sum(&s, -14);
    end_stage(&s);
}

TESTS(open_host, close_host)
