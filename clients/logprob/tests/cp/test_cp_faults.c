/* Fault injection: every allocation and every device call fails once in turn. All ranks get an error, nothing leaks, and the next call
 * succeeds. Calls do not allocate. Linked with shortage.c. */
#include "support/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/pools.h"

#include "../support/faults.h"
#include "../support/ranks.h"
#include "../support/rearrangements.h"
#include "support/shortage.h"

#define OK(call) is_status(call, BP_OK, NULL, #call)

/* ---- allocations --------------------------------------------------------------------------------------------------- */

static bp_status create_split(const host_rank *r, uint64_t total_multiple, bp_cp_split **split)
{
    static const int64_t cu[] = {0, 50, 50, 57, 179, 180};
    bp_cp_split_config config;
    bp_cp_split_config_init(&config, sizeof config);
    config.cu_seqlens = cu;
    config.sequences = 5;
    config.ranks = r->ranks;
    config.rank = r->number;
    config.total_multiple = total_multiple;
    config.comm = r->comm;
    return bp_cp_split_create(&config, split);
}

static bp_status create_client(const host_rank *r, bp_cp **cp)
{
    bp_cp_config config;
    bp_cp_config_init(&config, sizeof config);
    config.comm = r->comm;
    config.max_gathered_bytes = 10000;
    config.threads = 1;
    return bp_cp_create(r->device, &config, cp);
}

/* False: there were fewer than n allocations. */
static bool try_poorly(const host_rank *r, unsigned nth, bool client, bp_status *status)
{
    bp_cp *cp = NULL;
    bp_cp_split *split = NULL;
    shortage.fails = nth;
    *status = client ? create_client(r, &cp) : create_split(r, 1200, &split);
    const bool met = nth > 0 && shortage.fails == 0;
    shortage.fails = 0;
    if ((*status == BP_OK) != (client ? cp != NULL : split != NULL))
        *status = BP_ERR_INTERNAL;
    bp_cp_destroy(&cp);
    bp_cp_split_destroy(&split);
    return met;
}

/* The last rank's nth allocation fails, for n from 1 until it has no nth; all ranks get the error. Optional allocations may fail without
 * one. */
static bool run_poor(host_rank *r)
{
    const bool client = r->user != NULL, is_poor = r->number == r->ranks - 1;
    const char *const words[] = {is_poor ? "" : r->ranks == 2 ? "rank 1" : "rank 2", NULL};
    bool good = true;
    unsigned refused = 0;
    for (unsigned nth = 1; good && nth < 1000; nth++) {
        bp_status status = BP_OK;
        unsigned char met = try_poorly(r, is_poor ? nth : 0, client, &status), all[EXCHANGE_RANKS];
        good = status == BP_OK || is_status(status, BP_ERR_NO_HOST_MEMORY, words, "a rank without memory");
        refused += status != BP_OK;
        if (!OK(bp_comm_exchange(r->comm, &met, 1, all)))
            return false;
        if (all[r->ranks - 1] == 0) {
            good = OK(status) && good && refused > 0;
            break;
        }
    }
    if (!good)
        fprintf(stderr, "rank %u of %u: %u %s were refused\n", r->number, r->ranks, refused,
                client ? "clients" : "splits");
    return good;
}

TEST(allocation_failure_on_one_rank_fails_on_all)
{
    int anything = 0;
    for (uint32_t ranks = 1; ranks <= 3; ranks++) {
        run_host_ranks(ranks, false, 0, run_poor, NULL);
        run_host_ranks(ranks, false, 0, run_poor, &anything);
    }
}

/* Counted on the calling thread; the test's own collectives do not allocate here. */
static bool run_often(host_rank *r)
{
    bp_cp *cp = NULL;
    bp_cp_split *split = NULL;
    bp_cp_split_info info;
    static uint8_t packed[180 * 8];
    if (!OK(create_client(r, &cp)) || !OK(create_split(r, 0, &split)))
        return false;
    info = *bp_cp_split_get_info(split);
    uint8_t *local = malloc(info.local_tokens * 8), *whole = malloc(sizeof packed);
    bp_cp_rearrangement there;
    bp_cp_rearrangement_init(&there, sizeof there);
    there.from = (bp_cp_tensor){.data = packed, .tokens = 180, .token_bytes = 8};
    there.to = (bp_cp_tensor){.data = local, .tokens = info.local_tokens, .token_bytes = 8};
    const bp_cp_tensor back = {.data = whole, .tokens = 180, .token_bytes = 8};
    bool good = local != NULL && whole != NULL;
    shortage.counts = true;
    shortage.allocations = 0;
    for (int i = 0; i < 10 && good; i++)
        good = OK(bp_cp_rearrange(cp, split, &there, i % 2 == 0 ? r->stream : NULL)) &&
               OK(bp_cp_gather(cp, split, &there.to, BP_CP_PACKED, &back, i % 3 == 0 ? r->stream : NULL)) &&
               OK(bp_stream_synchronize(r->stream));
    shortage.counts = false;
    if (shortage.allocations > 0)
        fprintf(stderr, "rank %u of %u: %lu allocations of calls\n", r->number, r->ranks, shortage.allocations);
    free(local);
    free(whole);
    bp_cp_destroy(&cp);
    bp_cp_split_destroy(&split);
    return good && shortage.allocations == 0;
}

TEST(calls_allocate_nothing)
{
    for (uint32_t ranks = 1; ranks <= 3; ranks++)
        run_host_ranks(ranks, false, 0, run_often, NULL);
}

/* ---- devices ------------------------------------------------------------------------------------------------------- */

/* False: there were fewer than n device calls. After a failed call the caller may free its tensors: nothing is written later. */
static bool fails_when_done(bp_cp *cp, sample *s, faults *f, unsigned nth)
{
    const bp_cp_rearrangement r = rearrangement_of(&SAMPLE_MOVE, &s->from, &s->to);
    poison_tokens(&s->to, 0x5a);
    *f = (faults){.until = nth, .spares_waits = true};
    const bp_status status = bp_cp_rearrange(cp, s->h.split, &r, NULL);
    const bool met = f->met;
    *f = (faults){0};
    assert_int_equal(status, met ? BP_ERR_IO : BP_OK);
    assert_true(!met || strstr(bp_error_detail(), "injected") != NULL);
    assert_quiet(s->to.memory, s->to.bytes);
    return met;
}

TEST(failed_calls_leave_no_running_work)
{
    faults f = {0};
    bp_device *slow = new_slow_host(2000, 5), *faulty = NULL;
    assert_ok(trace_device_create(slow, fail_at, &f, &faulty));
    bp_device_destroy(&slow);
    bp_cp *cp = new_cp(faulty, 1);
    sample s = new_sample(4);
    unsigned nth = 1;
    while (fails_when_done(cp, &s, &f, nth))
        nth++;
    assert_true(nth > 1);
    assert_true(sample_is_done(&s));
    free_sample(&s);
    bp_cp_destroy(&cp);
    bp_device_destroy(&faulty);
}

/* Creation with every device call failing once in turn. */
TEST(failed_creation_leaks_nothing)
{
    faults f = {0};
    bp_device *inner = new_host(), *faulty = NULL;
    bp_comm *self = NULL;
    assert_ok(bp_comm_create_self(&self));
    assert_ok(trace_device_create(inner, fail_at, &f, &faulty));
    bp_device_destroy(&inner);
    host_rank r = {.ranks = 1, .device = faulty, .comm = self};
    bool met = true;
    for (unsigned nth = 1; met; nth++) {
        bp_cp *cp = NULL;
        f = (faults){.until = nth, .spares_waits = true};
        const bp_status status = create_client(&r, &cp);
        met = f.met;
        f = (faults){0};
        assert_int_equal(status, met ? BP_ERR_IO : BP_OK);
        assert_true(met == (cp == NULL));
        bp_cp_destroy(&cp);
        const bp_device_usage usage = usage_of(faulty);
        assert_true(usage.streams == 0 && usage.events == 0 && usage.committed_bytes == 0);
    }
    bp_comm_destroy(&self);
    bp_device_destroy(&faulty);
}

TESTS(NULL, NULL)
