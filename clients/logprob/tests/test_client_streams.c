/* SPDX-License-Identifier: Apache-2.0 */
/* Stream order of every client's calls: work runs in its turn, streams share workspaces, and destruction waits for enqueued work. Results have
 * the bits of an undisturbed call. */
#include "support/harness.h"

#include <pthread.h>
#include <string.h>

#include "support/children.h"
#include "support/clients.h"
#include "support/faults.h"
#include "support/hosts.h"
#include "support/pools.h"

static void enqueue(client *c, job *j, bp_stream *stream)
{
    assert_ok(c->kind->call(c, j, stream, true));
}

static bool is_done(const job *j, const client_tensors *good)
{
    return memcmp(j->there, good, sizeof *good) == 0;
}

static bool is_untouched(const job *j)
{
    return memcmp(j->there, &j->here, sizeof j->here) == 0;
}

/* A client on a device with two streams, a job for each, and what it computes. */
#define VARIANTS 3
typedef struct setting {
    bp_device *device;
    bp_stream *streams[VARIANTS];
    client c;
    job jobs[VARIANTS];
    client_tensors good[VARIANTS];
} setting;

static void begin_setting(setting *s, const client_kind *kind, bp_device *on)
{
    s->device = on;
    begin_client(&s->c, kind, on, NULL);
    assert_ok(kind->create(&s->c));
    for (uint32_t i = 0; i < VARIANTS; i++) {
        s->good[i] = results_of(kind, device, i, true);
        assert_ok(bp_stream_create(on, NULL, &s->streams[i]));
        begin_job(&s->jobs[i], on, i);
    }
}

/* Nothing is left on a device that only this client uses. */
static void end_setting(setting *s)
{
    for (uint32_t i = 0; i < VARIANTS; i++) { /* their work reads the jobs' memory */
        if (s->streams[i] != NULL)
            assert_ok(bp_stream_synchronize(s->streams[i]));
    }
    for (uint32_t i = 0; i < VARIANTS; i++) {
        assert_ok(end_job(&s->jobs[i]));
        bp_stream_destroy(&s->streams[i]);
    }
    end_client(&s->c);
    assert_false(has_client(&s->c));
    const bp_device_usage usage = usage_of(s->device);
    assert_true(usage.streams == 0 && usage.events == 0 && usage.committed_bytes == 0 && usage.allocated_bytes == 0);
    bp_device_destroy(&s->device);
}

/* The split may be destroyed before the work runs. */
TEST(work_waits_for_its_turn)
{
    FOR_CLIENTS_ON(device, kind)
    {
        setting s;
        gate g = {0};
        begin_setting(&s, kind, new_host());
        block(s.streams[0], &g);
        enqueue(&s.c, &s.jobs[0], s.streams[0]);
        bp_cp_split_destroy(&s.c.split);
        pause_us(2000);
        assert_true(is_untouched(&s.jobs[0]));
        unblock(&g);
        assert_ok(bp_stream_synchronize(s.streams[0]));
        assert_true(is_done(&s.jobs[0], &s.good[0]));
        end_setting(&s);
    }
}

/* A copy writes the inputs before, and one reads the results after; the host does not wait in between. */
TEST(copies_before_and_after_are_in_order)
{
    FOR_CLIENTS_ON(device, kind)
    for (uint64_t round = 0; round < 6; round++) {
        setting s;
        client_tensors later;
        begin_setting(&s, kind, new_slow_host(300, round));
        for (uint32_t i = 0; i < VARIANTS; i++) { /* one after another through the same memory */
            job *j = &s.jobs[0];
            assert_ok(bp_stream_copy(s.streams[0], j->there, &s.jobs[i].here, sizeof later));
            enqueue(&s.c, j, s.streams[0]);
            assert_ok(bp_stream_copy(s.streams[0], &later, j->there, sizeof later));
            assert_ok(bp_stream_fill(s.streams[0], j->there, 0x22, sizeof later));
            assert_ok(bp_stream_synchronize(s.streams[0]));
            assert_memory_equal(&later, &s.good[i], sizeof later);
        }
        end_setting(&s);
    }
}

/* Calls of one client on alternating streams share its workspaces without interference, also with synchronous calls. */
TEST(streams_take_turns)
{
    FOR_CLIENTS_ON(device, kind)
    for (uint64_t round = 0; round < 4; round++) {
        setting s;
        job own;
        begin_setting(&s, kind, new_slow_host(200, 100 + round));
        begin_job(&own, s.device, 1);
        for (uint32_t call = 0; call < 3; call++) {
            for (uint32_t i = 0; i < VARIANTS; i++)
                enqueue(&s.c, &s.jobs[i], s.streams[(i + call) % VARIANTS]);
            enqueue(&s.c, &own, NULL);
            assert_true(is_done(&own, &s.good[1]));
            for (uint32_t i = 0; i < VARIANTS; i++)
                assert_ok(bp_stream_synchronize(s.streams[i]));
            for (uint32_t i = 0; i < VARIANTS; i++) {
                assert_true(is_done(&s.jobs[i], &s.good[i]));
                upload_job(&s.jobs[i], s.streams[i]);
            }
            memcpy(own.there, &own.here, sizeof own.here);
        }
        assert_ok(end_job(&own));
        end_setting(&s);
    }
}

/* A stream that waits for an event sees the results; a check waits for the work on all streams. */
TEST(events_and_checks_mark_the_work)
{
    FOR_CLIENTS_ON(device, kind)
    for (int round = 0; round < 4; round++) {
        setting s;
        client_tensors later;
        begin_setting(&s, kind, new_slow_host(500, 9));
        enqueue(&s.c, &s.jobs[0], s.streams[0]);
        order(s.device, s.streams[0], s.streams[1]);
        assert_ok(bp_stream_copy(s.streams[1], &later, s.jobs[0].there, sizeof later));
        assert_ok(bp_stream_synchronize(s.streams[1]));
        assert_memory_equal(&later, &s.good[0], sizeof later);
        enqueue(&s.c, &s.jobs[1], s.streams[1]);
        enqueue(&s.c, &s.jobs[2], s.streams[2]);
        if (kind->check != NULL) {
            assert_ok(kind->check(&s.c));
            assert_true(is_done(&s.jobs[1], &s.good[1]) && is_done(&s.jobs[2], &s.good[2]));
        }
        end_setting(&s);
    }
}

/* More calls than the ring holds: they wait, and none is lost. Destruction waits for the last. */
TEST(many_calls_wait_for_room)
{
    enum { CALLS = 300 };
    static job jobs[CALLS];
    FOR_CLIENTS_ON(device, kind)
    {
        setting s;
        gate g = {0};
        pthread_t opener;
        begin_setting(&s, kind, new_host());
        for (uint32_t i = 0; i < CALLS; i++)
            begin_job(&jobs[i], s.device, i % VARIANTS);
        block(s.streams[0], &g);
        assert_int_equal(pthread_create(&opener, NULL, unblock_later, &g), 0);
        for (uint32_t i = 0; i < CALLS; i++)
            enqueue(&s.c, &jobs[i], s.streams[0]);
        destroy_client(&s.c);
        assert_false(has_client(&s.c));
        for (uint32_t i = 0; i < CALLS; i++)
            assert_true(is_done(&jobs[i], &s.good[i % VARIANTS]));
        pthread_join(opener, NULL);
        for (uint32_t i = 0; i < CALLS; i++)
            assert_ok(end_job(&jobs[i]));
        end_setting(&s);
    }
}

TEST(streams_may_go_first)
{
    FOR_CLIENTS_ON(device, kind)
    {
        setting s;
        begin_setting(&s, kind, new_slow_host(1000, 8));
        for (uint32_t i = 0; i < VARIANTS; i++) {
            enqueue(&s.c, &s.jobs[i], s.streams[i]);
            bp_stream_destroy(&s.streams[i]);
            assert_true(is_done(&s.jobs[i], &s.good[i]));
        }
        memcpy(s.jobs[0].there, &s.jobs[0].here, sizeof s.jobs[0].here);
        enqueue(&s.c, &s.jobs[0], NULL);
        assert_true(is_done(&s.jobs[0], &s.good[0]));
        end_setting(&s);
    }
}

/* After a failed call the caller may free its tensors: nothing is written later. */
TEST(failed_calls_leave_no_running_work)
{
    FOR_CLIENTS_ON(device, kind)
    {
        faults f = {0};
        setting s;
        bp_device *slow = new_slow_host(1000, 5), *faulty = NULL;
        assert_ok(trace_device_create(slow, fail_at, &f, &faulty));
        bp_device_destroy(&slow);
        begin_setting(&s, kind, faulty);
        bool met = true;
        for (unsigned nth = 1; met; nth++) {
            f = (faults){.until = nth, .spares_waits = true};
            const bp_status status = kind->call(&s.c, &s.jobs[0], NULL, true);
            met = f.met;
            f = (faults){0};
            assert_int_equal(status, met ? BP_ERR_IO : BP_OK);
            assert_true(!met || strstr(bp_error_detail(), "injected") != NULL);
            assert_quiet(s.jobs[0].there, sizeof *s.jobs[0].there);
        }
        assert_true(is_done(&s.jobs[0], &s.good[0]));
        end_setting(&s);
    }
}

/* ---- threads and processes ------------------------------------------------------------------------------------------------ */

typedef struct user_of_a_client {
    setting s;
    bool good;
} user_of_a_client;

static void *use_alone(void *argument)
{
    user_of_a_client *u = argument;
    client_tensors *there = u->s.jobs[0].there;
    u->good = true;
    for (int round = 0; round < 20 && u->good; round++) {
        memcpy(there, &u->s.jobs[0].here, sizeof *there);
        u->good = u->s.c.kind->call(&u->s.c, &u->s.jobs[0], NULL, true) == BP_OK && is_done(&u->s.jobs[0], u->s.good);
    }
    return NULL;
}

TEST(clients_are_independent)
{
    static user_of_a_client users[3];
    FOR_CLIENTS_ON(device, kind)
    {
        pthread_t threads[3];
        for (int i = 0; i < 3; i++)
            begin_setting(&users[i].s, kind, new_host());
        for (int i = 0; i < 3; i++)
            assert_int_equal(pthread_create(&threads[i], NULL, use_alone, &users[i]), 0);
        for (int i = 0; i < 3; i++)
            pthread_join(threads[i], NULL);
        for (int i = 0; i < 3; i++) {
            assert_true(users[i].good);
            end_setting(&users[i].s);
        }
    }
}

static void use_and_destroy(void *argument)
{
    setting *s = argument;
    const client_kind *kind = s->c.kind;
    must_refuse(kind->call(&s->c, &s->jobs[1], s->streams[0], true));
    must_refuse(kind->call(&s->c, &s->jobs[1], NULL, true));
    if (kind->check != NULL)
        must_refuse(kind->check(&s->c));
    destroy_client(&s->c);
    must(!has_client(&s->c));
}

/* A forked child does not wait for its parent's enqueued work. */
TEST(a_child_is_refused)
{
    FOR_CLIENTS_ON(device, kind)
    {
        setting s;
        gate g = {0};
        begin_setting(&s, kind, new_host());
        block(s.streams[0], &g);
        enqueue(&s.c, &s.jobs[0], s.streams[0]);
        assert_int_equal(status_of_child(use_and_destroy, &s), 0);
        unblock(&g);
        enqueue(&s.c, &s.jobs[1], s.streams[0]);
        assert_ok(bp_stream_synchronize(s.streams[0]));
        assert_true(is_done(&s.jobs[0], &s.good[0]) && is_done(&s.jobs[1], &s.good[1]));
        end_setting(&s);
    }
}

TESTS(open_host, close_host)
