/* SPDX-License-Identifier: Apache-2.0 */
/* Every client while allocations and device calls fail, one in turn: nothing leaks, the next try has the bits of an undisturbed one, and if it
 * happens on one of several ranks, all of them get the error. Linked with shortage.c. */
#include "support/harness.h"

#include <stdio.h>
#include <string.h>

#include "support/clients.h"
#include "support/faults.h"
#include "support/hosts.h"
#include "support/pools.h"
#include "support/ranks.h"
#include "support/shortage.h"

static bool is_clean(const bp_device *on)
{
    const bp_device_usage usage = usage_of(on);
    return usage.committed_bytes == 0 && usage.streams == 0 && usage.events == 0;
}

/* ---- one rank ---------------------------------------------------------------------------------------------------------------- */

/* Optional allocations may fail without an error. */
TEST(creation_without_host_memory)
{
    FOR_CLIENTS_ON(device, kind)
    {
        unsigned refused = 0;
        bool met = true;
        for (unsigned nth = 1; met; nth++) {
            client c;
            begin_client(&c, kind, device, NULL);
            shortage.fails = nth;
            const bp_status status = kind->create(&c);
            met = shortage.fails == 0;
            shortage.fails = 0;
            assert_true(status == BP_OK || (met && status == BP_ERR_NO_HOST_MEMORY));
            assert_true(has_client(&c) == (status == BP_OK));
            refused += status != BP_OK;
            end_client(&c);
            assert_true(is_clean(device));
        }
        if (refused < 3)
            fail_msg("%s: %u allocations were refused", kind->name, refused);
    }
}

static bp_device *new_faulty(faults *f)
{
    bp_device *inner = new_host(), *faulty = NULL;
    *f = (faults){0};
    assert_ok(trace_device_create(inner, fail_at, f, &faulty));
    bp_device_destroy(&inner);
    return faulty;
}

static bool may_succeed(const faults *f)
{
    return undoes(f->where) || f->where == OP_STREAM_SYNCHRONIZE || f->where == OP_SYNCHRONIZE;
}

TEST(creation_on_a_failing_device)
{
    FOR_CLIENTS_ON(device, kind)
    {
        faults f;
        bp_device *faulty = new_faulty(&f);
        bool met = true;
        for (unsigned nth = 1; met; nth++) {
            client c;
            begin_client(&c, kind, faulty, NULL);
            f = (faults){.until = nth};
            const bp_status status = kind->create(&c);
            const faults was = f;
            f = (faults){0};
            met = was.met;
            assert_true(status == BP_OK ? !met || may_succeed(&was) : met && status == BP_ERR_IO);
            assert_true(has_client(&c) == (status == BP_OK));
            end_client(&c);
            assert_true(is_clean(faulty));
        }
        bp_device_destroy(&faulty);
    }
}

static size_t live_of(const client *c)
{
    size_t live = 0;
    if (c->kind->pool(c) != NULL)
        assert_ok(bp_pool_live(c->kind->pool(c), NULL, 0, &live));
    return live;
}

/* Calls whose nth device call fails, then one without a fault. */
TEST(calls_on_a_failing_device)
{
    FOR_CLIENTS_ON(device, kind)
    for (int with_stream = 0; with_stream < 2; with_stream++) {
        faults f;
        bp_device *faulty = new_faulty(&f);
        bp_stream *stream = NULL;
        client c;
        job j;
        const client_tensors good = results_of(kind, device, 0, false);
        begin_client(&c, kind, faulty, NULL);
        assert_ok(kind->create(&c));
        assert_ok(bp_stream_create(faulty, "caller", &stream));
        begin_job(&j, faulty, 0);
        const size_t live = live_of(&c); /* the place of bad targets */
        bool met = true;
        for (unsigned nth = 1; met; nth++) {
            f = (faults){.until = nth};
            const bp_status status = kind->call(&c, &j, with_stream ? stream : NULL, false);
            const faults was = f;
            f = (faults){0};
            met = was.met;
            if (met == (status == BP_OK) && !(met && undoes(was.where)))
                fail_msg("%s: call %u of the device, %s: %s", kind->name, nth, device_operation_name(was.where),
                         bp_status_name(status));
            (void)bp_device_synchronize(faulty); /* waiting may have been the call that failed */
            fill_job(&j, 0);
            upload_job(&j, stream);
            assert_ok(kind->call(&c, &j, with_stream ? stream : NULL, false));
            download_job(&j, stream);
            assert_memory_equal(&j.here, &good, sizeof good);
            assert_int_equal(live_of(&c), live);
        }
        end_client(&c);
        assert_ok(end_job(&j));
        bp_stream_destroy(&stream);
        assert_true(is_clean(faulty));
        bp_device_destroy(&faulty);
    }
}

/* ---- several ranks ------------------------------------------------------------------------------------------------------------- */

/* Splits of ranks exchange as well. */
static bp_status create_split(client *c)
{
    static const int64_t cu[] = {0, 50, 50, 57, 179, 180};
    bp_cp_split_config config;
    bp_cp_split_config_init(&config, sizeof config);
    config.cu_seqlens = cu;
    config.sequences = 5;
    config.ranks = c->ranks;
    config.rank = c->rank;
    config.total_multiple = 1200;
    config.comm = c->comm;
    bp_cp_split_destroy(&c->split);
    return bp_cp_split_create(&config, &c->split);
}

typedef struct shared_creation {
    const client_kind *kind; /* NULL: a split */
    bool by_device;          /* device calls fail, not allocations */
} shared_creation;

/* The last rank's nth allocation or device call fails, for n from 1 until it has no nth. */
static bool run_creations(host_rank *r)
{
    const shared_creation *s = r->user;
    const bool is_poor = r->number == r->ranks - 1;
    const char *const words[] = {is_poor ? "" : r->ranks == 2 ? "rank 1" : "rank 2", NULL};
    const bp_status expected = s->by_device ? BP_ERR_IO : BP_ERR_NO_HOST_MEMORY;
    faults f = {0};
    bp_device *faulty = NULL;
    bool good = is_status(trace_device_create(r->device, fail_at, &f, &faulty), BP_OK, NULL, "a failing device");
    unsigned refused = 0;
    unsigned char mine = 1, all[EXCHANGE_RANKS];
    for (unsigned nth = 1; mine != 0; nth++) {
        client c;
        begin_client(&c, s->kind != NULL ? s->kind : CLIENTS, faulty, r->comm);
        shortage.fails = is_poor && !s->by_device ? nth : 0;
        f = (faults){.until = is_poor && s->by_device ? nth : 0};
        const bp_status status = s->kind != NULL ? s->kind->create(&c) : create_split(&c);
        mine = is_poor && (s->by_device ? f.met : shortage.fails == 0);
        shortage.fails = 0;
        f = (faults){0};
        good = (status == BP_OK || is_status(status, expected, words, s->kind != NULL ? s->kind->name : "split")) &&
               (s->kind == NULL || has_client(&c) == (status == BP_OK)) && good;
        refused += status != BP_OK;
        end_client(&c);
        if (bp_comm_exchange(r->comm, &mine, 1, all) != BP_OK)
            return false;
        mine = all[r->ranks - 1];
        good = (mine != 0 || is_status(status, BP_OK, NULL, "a creation without faults")) && good;
    }
    bp_device_destroy(&faulty);
    good = refused > 0 && usage_of(r->device).committed_bytes == 0 && usage_of(r->device).streams == 1 && good;
    if (!good)
        fprintf(stderr, "rank %u of %u: %u refused\n", r->number, r->ranks, refused);
    return good;
}

TEST(failure_on_one_rank_fails_on_all)
{
    FOR_CLIENTS_ON(device, kind)
    {
        if (kind->two_ranks) /* those without are made on real ranks */
            continue;
        for (uint32_t ranks = 2; ranks <= 3; ranks++)
            for (int by_device = 0; by_device < 2; by_device++)
                run_host_ranks(ranks, false, 0, run_creations, &(shared_creation){kind, by_device != 0});
    }
    for (uint32_t ranks = 1; ranks <= 3; ranks++)
        run_host_ranks(ranks, false, 0, run_creations, &(shared_creation){NULL, false});
}

TESTS(open_host, close_host)
