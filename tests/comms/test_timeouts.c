/* SPDX-License-Identifier: Apache-2.0 */
/* A rank that misses an agreement: the others report it within the time-out and can be destroyed without it. */
#include <time.h>

#include "fakes/cuda/fake_cuda.h"
#include "fakes/nccl/abi.h"
#include "fakes/nccl/fake_nccl.h"
#include "plan_fixture.h"
#include "team.h"

enum { RANKS = 4, MISSING = 2, TIMEOUT_MS = 300 };

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* All later calls fail with the first error, without waiting. */
static void expect_broken(rank *r, const char *first_error)
{
    uint32_t mine = 0, all[RANKS];
    const double begin = now();
    for (int i = 0; i < 100; i++) {
        expect_fails(r, bp_comm_exchange(r->comm, &mine, sizeof mine, all), BP_ERR_TIMEOUT, first_error);
        expect_words(r, bp_error_detail(), "is broken: ");
        expect_fails(r, bp_comm_all_gather(r->comm, &mine, all, sizeof mine, r->stream), BP_ERR_TIMEOUT, first_error);
        expect_fails(r, register_all(r, BP_REGISTER_SYMMETRIC), BP_ERR_TIMEOUT, first_error);
    }
    expect(r, now() - begin < 100 * TIMEOUT_MS * 1e-3);
}

/* ---- callbacks ----------------------------------------------------------------------------------------------------- */

static void exchange_without_one(rank *r, void *user)
{
    uint32_t mine = r->number, all[RANKS];
    expect_ok(r, bp_comm_exchange(r->control, &mine, sizeof mine, all));
    if (r->number == MISSING)
        return;
    expect_fails(r, bp_comm_exchange(r->control, &mine, sizeof mine, all), BP_ERR_TIMEOUT,
                 "bp_comm_exchange over communicator control: missing: 2");
    expect_fails(
        r, bp_comm_exchange(r->control, &mine, sizeof mine, all), BP_ERR_TIMEOUT,
        "bp_comm_exchange: communicator control is broken: bp_comm_exchange over communicator control: missing: 2");
    expect_ok(r, bp_comm_abort(r->control));
    expect_fails(r, bp_comm_exchange(r->control, &mine, sizeof mine, all), BP_ERR_INVALID_ARGUMENT, "was aborted");
}

TEST(callback_timeout)
{
    TEAM t;
    team_begin(&t, &(team_options){.ranks = RANKS});
    t.room.timeout_ms = TIMEOUT_MS;
    team_run(&t, exchange_without_one, NULL);
}

static void register_without_one(rank *r, void *user)
{
    if (r->number == MISSING)
        return;
    expect_fails(
        r, register_all(r, BP_REGISTER_SYMMETRIC), BP_ERR_TIMEOUT,
        "agreement on the plan to register over communicator nccl: bp_comm_exchange over communicator control: "
        "missing: 2");
    expect(r, r->registration == NULL);
    expect_broken(r, "communicator control: missing: 2");
}

TEST(control_communicator)
{
    TEAM t;
    team_begin(&t, &(team_options){.ranks = RANKS, .plan = plan});
    t.room.timeout_ms = TIMEOUT_MS;
    team_run(&t, register_without_one, NULL);
}

/* Windows are deregistered collectively, which would wait for a missing rank. */
static void end_registered_without_one(rank *r, void *user)
{
    uint32_t mine = 0, all[RANKS];
    expect_ok(r, register_all(r, BP_REGISTER_SYMMETRIC));
    if (r->number == MISSING)
        return;
    expect_fails(r, bp_comm_exchange(r->comm, &mine, sizeof mine, all), BP_ERR_TIMEOUT, "missing: 2");
    bp_registration_destroy(&r->registration);
}

static void abort_nccl(rank *r, void *user)
{
    expect_ok(r, bp_comm_abort(r->comm));
    r->nccl = NULL;
}

TEST(windows_until_abort)
{
    TEAM t;
    fake_nccl_counts counts;
    team_begin(&t, &(team_options){.ranks = RANKS, .plan = plan});
    t.room.timeout_ms = TIMEOUT_MS;
    team_run(&t, end_registered_without_one, NULL);
    fake_nccl_count(&counts);
    assert_int_equal(counts.windows, 2 * RANKS);
    team_run(&t, abort_nccl, NULL);
}

/* ---- exchanges over NCCL ------------------------------------------------------------------------------------------- */

static void register_over_nccl_without_one(rank *r, void *user)
{
    if (r->number == MISSING)
        return;
    const double begin = now();
    expect_fails(r, register_all(r, BP_REGISTER_SYMMETRIC), BP_ERR_TIMEOUT,
                 "agreement on the plan to register over communicator nccl: ncclAllGather (rank ");
    expect_words(r, bp_error_detail(), "did not finish within 0.3 s; NCCL does not report the missing ranks");
    expect(r, now() - begin >= TIMEOUT_MS * 1e-3);
    expect_broken(r, "NCCL does not report the missing ranks");
}

TEST(exchange_over_nccl)
{
    TEAM t;
    team_begin(&t, &(team_options){.ranks = RANKS, .over_nccl = 1, .plan = plan, .timeout_ms = TIMEOUT_MS});
    team_run(&t, register_over_nccl_without_one, NULL);
    team_run(&t, abort_nccl, NULL);
}

/* The collective may still write after the communicator is destroyed. */
static void end_without_abort(rank *r, void *user)
{
    bp_comm_destroy(&r->comm);
    if (r->nccl != NULL)
        expect(r, ncclCommAbort(r->nccl) == 0);
    r->nccl = NULL;
}

TEST(destruction_with_pending_work)
{
    TEAM t;
    team_begin(&t, &(team_options){.ranks = RANKS, .over_nccl = 1, .plan = plan, .timeout_ms = TIMEOUT_MS});
    t.leaks = true;
    team_run(&t, register_over_nccl_without_one, NULL);
    team_run(&t, end_without_abort, NULL);
}

static void exchange_and_register(rank *r, void *user)
{
    uint32_t mine = r->number * 7, all[RANKS];
    for (int i = 0; i < 20; i++) {
        expect_ok(r, bp_comm_exchange(r->comm, &mine, sizeof mine, all));
        for (uint32_t other = 0; other < RANKS; other++)
            expect(r, all[other] == other * 7);
    }
    expect_ok(r, register_all(r, BP_REGISTER_SYMMETRIC));
}

TEST(timeout_without_missing_ranks)
{
    run_team(&(team_options){.ranks = RANKS, .over_nccl = 1, .plan = plan, .timeout_ms = 60000}, exchange_and_register,
             NULL);
}

/* ---- configuration ------------------------------------------------------------------------------------------------- */

static bp_status wrap(team *t, uint32_t timeout_ms)
{
    bp_nccl_config config;
    bp_nccl_functions functions = {.size = sizeof functions};
    bp_comm *comm = NULL;
    fake_nccl_table(&functions);
    assert_ok(bp_nccl_config_init(&config, sizeof config));
    config.comm = t->ranks[0].nccl;
    config.device = t->ranks[0].device;
    config.functions = &functions;
    config.timeout_ms = timeout_ms;
    bp_status status = bp_comm_create_nccl(&config, &comm);
    bp_comm_destroy(&comm);
    return status;
}

TEST(environment_variable)
{
    static const char *const wrong[] = {"2s", "-1", " 3", "1e3", "1000001", "99999999999999999999999"};
    TEAM t;
    team_begin(&t, &(team_options){.ranks = 1});
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        setenv("BUCKETPOOL_COMM_TIMEOUT", wrong[i], 1);
        assert_fails(wrap(&t, 0), BP_ERR_INVALID_ARGUMENT,
                     "BUCKETPOOL_COMM_TIMEOUT: expected seconds in [0, 1000000] (0: no time-out), got");
        assert_ok(wrap(&t, 1000)); /* not read */
        assert_ok(wrap(&t, BP_COMM_NO_TIMEOUT));
    }
    setenv("BUCKETPOOL_COMM_TIMEOUT", "30", 1);
    assert_ok(wrap(&t, 0));
    unsetenv("BUCKETPOOL_COMM_TIMEOUT");
}
