/* SPDX-License-Identifier: Apache-2.0 */
/* Nonblocking communicators of NCCL: their calls return "in progress" and finish later, even during an abort. */
#include <pthread.h>
#include <time.h>

#include "fakes/nccl/abi.h"
#include "plan_fixture.h"
#include "team.h"

#define IN_PROGRESS 7
#define ENDLESS 1000000

/* The emulated functions, which those below wrap. */
static bp_nccl_functions real;
static atomic_int polls, polls_of_a_call, polled;

/* An action after the communicator was asked for its state a given number of times. */
static struct {
    void *comm, *address, **out;
    size_t bytes;
    int flags;
} pending;

static int all_gather(const void *from, void *to, size_t count, int dtype, void *comm, void *stream)
{
    int result = real.ncclAllGather(from, to, count, dtype, comm, stream);
    polls = polls_of_a_call;
    return result == 0 ? IN_PROGRESS : result;
}

static int register_window(void *comm, void *address, size_t bytes, void **out, int flags)
{
    pending.comm = comm;
    pending.address = address;
    pending.out = out;
    pending.bytes = bytes;
    pending.flags = flags;
    polls = polls_of_a_call;
    return IN_PROGRESS;
}

static int ask(void *comm, int *result)
{
    polled++;
    if (polls > 0) {
        polls--;
        *result = IN_PROGRESS;
        return 0;
    }
    if (pending.out != NULL) {
        *result = real.ncclCommWindowRegister(pending.comm, pending.address, pending.bytes, pending.out, pending.flags);
        pending.out = NULL;
        return 0;
    }
    return real.ncclCommGetAsyncError(comm, result);
}

/* NCCL first ends the calls in flight, which may still write their results. */
static int abort_late(void *comm)
{
    nanosleep(&(struct timespec){.tv_nsec = 3000000}, NULL);
    if (pending.out != NULL)
        *pending.out = comm;
    pending.out = NULL;
    return real.ncclCommAbort(comm);
}

static void begin(team *t, bp_comm *control, int each, bp_comm **comm)
{
    bp_nccl_config config;
    bp_nccl_functions functions;
    real.size = sizeof real;
    fake_nccl_table(&real);
    functions = real;
    functions.ncclAllGather = all_gather;
    functions.ncclCommWindowRegister = register_window;
    functions.ncclCommGetAsyncError = ask;
    functions.ncclCommAbort = abort_late;
    polls = 0;
    polls_of_a_call = each;
    assert_ok(bp_nccl_config_init(&config, sizeof config));
    config.comm = t->ranks[0].nccl;
    config.device = t->ranks[0].device;
    config.functions = &functions;
    config.control = control;
    assert_ok(bp_comm_create_nccl(&config, comm));
    polled = 0;
}

TEST(calls_in_progress)
{
    TEAM t;
    bp_comm *comm;
    bp_registration *registration;
    bp_registration_entry entry;
    team_begin(&t, &(team_options){.ranks = 1, .nccl = "version=22907", .plan = plan});
    begin(&t, NULL, 5, &comm);
    uint64_t mine = 77, all = 0;
    assert_ok(bp_comm_exchange(comm, &mine, sizeof mine, &all));
    assert_int_equal(all, 77);
    assert_true(polled >= 5);
    assert_ok(bp_registration_entry_init(&entry, sizeof entry));
    entry.comm = comm;
    assert_ok(bp_registration_create(t.ranks[0].pool, &entry, 1, &registration));
    for (size_t i = 0; i < bp_registration_get_info(registration)->window_count; i++) {
        assert_int_equal(window_at(registration, i).granted, BP_REGISTER_SYMMETRIC);
        assert_non_null(window_at(registration, i).handle);
    }
    bp_registration_destroy(&registration);
    bp_comm_destroy(&comm);
}

/* ---- aborts during calls ------------------------------------------------------------------------------------------- */

/* Aborts once the communicator was asked for the state of the call in flight. */
static void *abort_it(void *argument)
{
    while (polled < 3)
        nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    return bp_comm_abort(argument) == BP_OK ? NULL : argument;
}

TEST(calls_of_destroyed_communicators)
{
    for (int i = 0; i < 20; i++) {
        TEAM t;
        bp_comm *comm;
        pthread_t other;
        void *failed;
        team_begin(&t, &(team_options){.ranks = 1});
        begin(&t, NULL, ENDLESS, &comm);
        assert_int_equal(pthread_create(&other, NULL, abort_it, comm), 0);
        uint64_t mine = 1, all;
        assert_fails(bp_comm_exchange(comm, &mine, sizeof mine, &all), BP_ERR_COMM, "was aborted during");
        pthread_join(other, &failed);
        assert_null(failed);
        t.ranks[0].nccl = NULL;
        bp_comm_destroy(&comm);
    }
}

/* NCCL writes a late window handle to memory that still exists. */
TEST(late_window)
{
    TEAM t;
    bp_comm *self, *comm;
    bp_registration *registration = NULL;
    bp_registration_entry entry;
    pthread_t other;
    void *failed;
    team_begin(&t, &(team_options){.ranks = 1, .nccl = "version=22907", .plan = plan});
    assert_ok(bp_comm_create_self(&self));
    begin(&t, self, ENDLESS, &comm);
    assert_ok(bp_registration_entry_init(&entry, sizeof entry));
    entry.comm = comm;
    assert_int_equal(pthread_create(&other, NULL, abort_it, comm), 0);
    assert_fails(bp_registration_create(t.ranks[0].pool, &entry, 1, &registration), BP_ERR_INVALID_ARGUMENT,
                 "was aborted");
    pthread_join(other, &failed);
    assert_null(failed);
    t.ranks[0].nccl = NULL;
    assert_null(registration);
    bp_comm_destroy(&comm);
    bp_comm_destroy(&self);
}
