/* SPDX-License-Identifier: Apache-2.0 */
/* Work enqueued by failed calls: the next step is ordered after it, and calls without a stream return only when it is done. Batches need
 * several kernel launches, on a device of which one call fails. */
#include "support/harness.h"

#include <bucketpool/loss.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support/pools.h"

enum { SEQUENCES = 130 }; /* of one token each */

typedef struct late {
    unsigned calls_until; /* calls until one fails; 0: none does */
    bp_device *device;
    bp_loss *loss;
    bp_cp_split *split;
    uint8_t mask[SEQUENCES];
    float logprob[SEQUENCES], seed[SEQUENCES];
    bp_loss_values values;
} late;

static bp_status maybe_fail(void *user, const device_call *call)
{
    late *l = user;
    if (call->operation != OP_CALL || l->calls_until == 0 || --l->calls_until > 0)
        return BP_OK;
    return bp_error_record(BP_ERR_DEVICE, "injected");
}

static void set_logprob(late *l, float value)
{
    for (int i = 0; i < SEQUENCES; i++)
        l->logprob[i] = value;
}

static late *new_late(uint32_t max_delay_us)
{
    late *l = calloc(1, sizeof *l);
    bp_device *host;
    bp_host_config host_config;
    bp_cp_split_config split;
    bp_loss_config config;
    int64_t cu[SEQUENCES + 1];
    assert_non_null(l);
    assert_ok(bp_host_config_init(&host_config, sizeof host_config));
    host_config.max_delay_us = max_delay_us;
    assert_ok(bp_device_create_host(&host_config, &host));
    assert_ok(trace_device_create(host, maybe_fail, l, &l->device));
    bp_device_destroy(&host);
    for (int i = 0; i <= SEQUENCES; i++)
        cu[i] = i;
    assert_ok(bp_cp_split_config_init(&split, sizeof split));
    split.cu_seqlens = cu;
    split.sequences = SEQUENCES;
    assert_ok(bp_cp_split_create(&split, &l->split));
    assert_ok(bp_loss_config_init(&config, sizeof config));
    config.max_sequences = SEQUENCES;
    config.threads = 1;
    assert_ok(bp_loss_create(l->device, &config, &l->loss));
    memset(l->mask, 1, sizeof l->mask);
    assert_ok(bp_loss_values_init(&l->values, sizeof l->values));
    l->values.tokens = SEQUENCES;
    l->values.mask = (bp_token_values){.data = l->mask, .stride = 1};
    l->values.logprob = (bp_token_values){.data = l->logprob, .stride = 1};
    return l;
}

static void free_late(late *l)
{
    bp_loss_destroy(&l->loss);
    bp_cp_split_destroy(&l->split);
    bp_device_destroy(&l->device);
    free(l);
}

/* Sums of the failed step are still queued when the next step is enqueued on another stream. */
TEST(the_next_step_waits_for_the_failed_one)
{
    late *l = new_late(0);
    bp_stream *slow, *other;
    gate g = {0};
    bp_loss_statistics s = {.size = sizeof s};
    float others[SEQUENCES] = {0};
    assert_ok(bp_stream_create(l->device, "slow", &slow));
    assert_ok(bp_stream_create(l->device, "other", &other));
    set_logprob(l, -7);
    block(slow, &g);
    l->calls_until = 2;
    assert_int_equal(bp_loss_add(l->loss, l->split, &l->values, slow), BP_ERR_DEVICE);
    assert_ok(bp_loss_begin(l->loss));
    l->values.logprob.data = others;
    assert_ok(bp_loss_add(l->loss, l->split, &l->values, other));
    usleep(50000); /* long enough for sums that do not wait */
    unblock(&g);
    assert_ok(bp_stream_synchronize(slow));
    assert_ok(bp_loss_reduce(l->loss, BP_OK, other));
    assert_ok(bp_loss_statistics_get(l->loss, &s));
    assert_int_equal(s.valid, SEQUENCES);
    assert_true(s.logprob_sum == 0);
    bp_stream_destroy(&slow);
    bp_stream_destroy(&other);
    free_late(l);
}

/* The caller may free its tensors after the error. */
TEST(failed_calls_leave_no_running_work)
{
    late *l = new_late(40000);
    const bp_token_values seed = {.data = l->seed, .stride = 1};
    assert_ok(bp_loss_count_set(l->loss, SEQUENCES));
    for (int i = 0; i < 8; i++) {
        float expected[SEQUENCES];
        l->calls_until = 2;
        assert_int_equal(bp_loss_seed(l->loss, l->split, SEQUENCES, &l->values.mask, -1, &seed, NULL), BP_ERR_DEVICE);
        assert_string_equal(bp_error_detail(), "injected");
        memset(l->seed, 0x3f, sizeof l->seed);
        memcpy(expected, l->seed, sizeof expected);
        assert_ok(bp_device_synchronize(l->device));
        assert_memory_equal(l->seed, expected, sizeof expected);
        uint8_t *mask = malloc(SEQUENCES); /* sanitizers detect later reads */
        assert_non_null(mask);
        memset(mask, 1, SEQUENCES);
        bp_loss_values values = l->values;
        values.mask.data = mask;
        l->calls_until = 2;
        assert_ok(bp_loss_begin(l->loss));
        assert_int_equal(bp_loss_add(l->loss, l->split, &values, NULL), BP_ERR_DEVICE);
        free(mask);
    }
    free_late(l);
}

TESTS(NULL, NULL)
