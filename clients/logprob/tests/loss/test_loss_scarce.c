/* SPDX-License-Identifier: Apache-2.0 */
/* Fault injection on one rank: every allocation and every device call fails once in turn. All ranks get the error, none hangs, nothing
 * leaks, and the next step succeeds. Linked with shortage.c. */
#include "support/harness.h"

#include "../support/faults.h"
#include "loss_ranks.h"
#include "support/shortage.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base.h"
#include "support/pools.h"

#define ODD 1 /* the rank with the faults */

static const corpus_options SMALL = {.seed = 39, .sequences = 9, .longest = 20};

/* ---- allocations --------------------------------------------------------------------------------------------------- */

/* Words that ranks exchange after a try. */
typedef struct word {
    bp_status status;
    bool met;
} word;

/* All ranks have the same status; `met`: the odd rank reached the failing call. */
static bool agree(host_rank *r, bp_status status, bool met, bool *odd_met)
{
    word mine = {0}, all[EXCHANGE_RANKS];
    mine.status = status;
    mine.met = met;
    EXPECT(bp_comm_exchange(r->comm, &mine, sizeof mine, all) == BP_OK);
    for (uint32_t i = 0; i < r->ranks; i++)
        EXPECT(all[i].status == all[0].status);
    *odd_met = all[ODD].met;
    return true;
}

/* More ranks than fit the stack's array; all except the first are simulated. */
enum { MANY = 600 };

typedef struct crowd {
    bool heard_of_it; /* the first rank has reported a failure */
} crowd;

static bp_status exchange_with_crowd(void *user, const void *mine, uint64_t bytes, void *all)
{
    crowd *c = user;
    bp_rank_words told = {0};
    memcpy(&told, mine, bytes < sizeof told ? bytes : sizeof told);
    c->heard_of_it = c->heard_of_it || told.status != BP_OK; /* the status comes first in every message */
    for (uint64_t rank = 0; rank < MANY; rank++) {
        if (bytes == sizeof told)
            told.values[6] = rank; /* its place */
        memcpy((char *)all + rank * bytes, &told, bytes);
    }
    return BP_OK;
}

/* False: there were fewer than n allocations. */
static bool creation_fails(bp_device *device, const bp_loss_config *config, crowd *c, unsigned nth)
{
    bp_loss *loss = NULL;
    c->heard_of_it = false;
    shortage.fails = nth;
    const bp_status status = bp_loss_create(device, config, &loss);
    const bool met = shortage.fails == 0;
    shortage.fails = 0;
    assert_true(status == BP_OK ? loss != NULL : status == BP_ERR_NO_HOST_MEMORY && loss == NULL);
    assert_true(c->heard_of_it == (status != BP_OK));
    bp_loss_destroy(&loss);
    return met;
}

TEST(creation_among_many_ranks)
{
    crowd c = {0};
    const bp_comm_callbacks callbacks = {.size = sizeof callbacks, .ranks = MANY, .exchange = exchange_with_crowd};
    bp_device *device = new_host();
    bp_comm *comm;
    bp_loss_config config;
    unsigned nth = 1;
    assert_ok(bp_comm_create_callback(&callbacks, &c, "crowd", &comm));
    assert_ok(bp_loss_config_init(&config, sizeof config));
    config.comm = comm;
    config.dp = MANY;
    config.max_sequences = 3;
    while (creation_fails(device, &config, &c, nth))
        nth++;
    assert_true(nth > 10);
    for (unsigned last = 0; last < 5;
         last++) /* the device sometimes needs one less: only several misses in a row mean the end */
        (void)creation_fails(device, &config, &c, nth - last);
    bp_comm_destroy(&comm);
    bp_device_destroy(&device);
}

/* ---- the device ---------------------------------------------------------------------------------------------------- */

/* The rank with a device whose calls can fail; other ranks' calls never fail. */
typedef struct faulty_rank {
    host_rank inner;
    faults f;
} faulty_rank;

static bool begin_faulty(host_rank *r, faulty_rank *x)
{
    x->inner = *r;
    x->f = (faults){0};
    EXPECT(trace_device_create(r->device, fail_at, &x->f, &x->inner.device) == BP_OK);
    EXPECT(bp_stream_create(x->inner.device, "faulty", &x->inner.stream) == BP_OK);
    return true;
}

static void end_faulty(faulty_rank *x)
{
    bp_stream_destroy(&x->inner.stream);
    bp_device_destroy(&x->inner.device);
}

/* Adds and a reduce, either of which may fail. */
static bp_status step_that_may_fail(seat *at)
{
    bp_status added = bp_loss_begin(at->loss);
    for (uint32_t m = 0; m < at->micros && added == BP_OK; m++)
        added = bp_loss_add(at->loss, at->splits[m], &at->slices[m].values, at->stream);
    const bp_status reduced = bp_loss_reduce(at->loss, BP_OK, at->stream);
    return reduced == BP_OK && added != BP_OK ? BP_ERR_INTERNAL : reduced; /* the reduce reports a failed add */
}

static bool run_steps_on_a_device(host_rank *r)
{
    faulty_rank x;
    seat at = {0};
    EXPECT(begin_faulty(r, &x));
    EXPECT(take_seat(&x.inner, &at));
    unsigned failed = 0, nth = 0;
    for (bool met = true; met; nth++) {
        x.f = (faults){.until = r->number == ODD ? nth + 1 : 0};
        const bp_status status = step_that_may_fail(&at);
        const faults was = x.f;
        x.f = (faults){0};
        if (was.met && status == BP_OK)
            fprintf(stderr, "call %u of the device, %s, failed without an error\n", nth + 1,
                    device_operation_name(was.where));
        EXPECT(!was.met || status != BP_OK);
        EXPECT(bp_device_synchronize(x.inner.device) == BP_OK);
        EXPECT(agree(r, status, was.met, &met));
        failed += status != BP_OK;
        EXPECT(met || status == BP_OK);
        EXPECT(step(&at, false) && statistics_are_true(&at) && make_seeds(&at, -1));
    }
    EXPECT(failed > 3);
    leave_seat(&at);
    end_faulty(&x);
    EXPECT(usage_of(r->device).committed_bytes == 0);
    return true;
}

TEST(steps_on_a_failing_device)
{
    corpus c = new_corpus(&SMALL);
    const topology t = topology_of(1, 2, 1);
    for (int own_streams = 0; own_streams < 2; own_streams++) {
        setting s = new_setting(&c, &t, 2);
        s.own_streams = own_streams;
        run_scene_ranks(&s, run_steps_on_a_device);
        assert_true(seeds_are_true(&s, -1, 2));
        free_setting(&s);
    }
    free_corpus(&c);
}

TESTS(NULL, NULL)
