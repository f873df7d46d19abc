/* SPDX-License-Identifier: Apache-2.0 */
/* Each call of NCCL and of the driver fails in turn during a registration: all ranks return the same, and everything
 * is undone. */
#include "fakes/cuda/fake_cuda.h"
#include "fakes/nccl/fake_nccl.h"
#include "plan_fixture.h"
#include "team.h"

typedef struct attempt {
    bp_register_kind kind;
    const char *function; /* named in errors; "": NCCL uses the driver, too, and does not say */
    bp_status statuses[MAX_RANKS];
} attempt;

static void try_to_register(rank *r, void *user)
{
    attempt *a = user;
    a->statuses[r->number] = register_all(r, a->kind);
    expect(r, (r->registration != NULL) == (a->statuses[r->number] == BP_OK));
    if (a->statuses[r->number] != BP_OK)
        expect_words(r, bp_error_detail(), a->function);
}

static void end_registration(rank *r, void *user)
{
    bp_registration_destroy(&r->registration);
}

static unsigned registered_now(void)
{
    fake_nccl_counts counts;
    fake_nccl_count(&counts);
    return counts.windows + counts.buffers;
}

/* All ranks succeed, or none; at the end nothing is registered. */
static bool assert_alike(team *t, const attempt *a)
{
    for (uint32_t i = 1; i < t->options.ranks; i++)
        assert_int_equal(a->statuses[i] == BP_OK, a->statuses[0] == BP_OK);
    bool done = a->statuses[0] == BP_OK;
    if (!done)
        assert_int_equal(registered_now(), 0);
    team_run(t, end_registration, NULL);
    assert_int_equal(registered_now(), 0);
    return done;
}

/* ---- NCCL ---------------------------------------------------------------------------------------------------------- */

/* `function` NULL: any function. */
static void fail_each_nccl_call(const char *function, bp_register_kind kind, uint32_t ranks, int over_nccl)
{
    unsigned failures = 0;
    for (unsigned nth = 1;; nth++) {
        team t;
        attempt a = {.kind = kind, .function = over_nccl ? "" : "nccl"};
        team_begin(&t, &(team_options){.ranks = ranks, .over_nccl = over_nccl, .plan = plan});
        fake_nccl_fail(function, nth, (int)ranks - 1, 3);
        team_run(&t, try_to_register, &a);
        bool failed = fake_nccl_failed();
        bool done = assert_alike(&t, &a);
        team_end(&t);
        failures += failed && !done;
        if (!failed) {
            assert_true(done);
            break;
        }
        assert_true(nth < 200);
    }
    assert_true(failures >= 2); /* one for each slab */
}

TEST(failing_nccl_calls)
{
    for (uint32_t ranks = 1; ranks <= 3; ranks++) {
        fail_each_nccl_call(NULL, BP_REGISTER_BUFFER, ranks, 0);
        fail_each_nccl_call(NULL, BP_REGISTER_SYMMETRIC, ranks, 0);
    }
}

/* Without a control communicator, a collective that fails on one rank fails the exchange on all. */
TEST(failing_nccl_calls_without_control)
{
    for (uint32_t ranks = 1; ranks <= 3; ranks++) {
        fail_each_nccl_call("ncclCommRegister", BP_REGISTER_BUFFER, ranks, 1);
        fail_each_nccl_call("ncclCommWindowRegister", BP_REGISTER_SYMMETRIC, ranks, 1);
        fail_each_nccl_call("ncclAllGather", BP_REGISTER_SYMMETRIC, ranks, 1);
    }
}

/* A failed deregistration cannot be reported; the other windows are still deregistered. */
TEST(failing_deregistrations)
{
    const bp_register_kind kinds[] = {BP_REGISTER_BUFFER, BP_REGISTER_SYMMETRIC};
    for (int k = 0; k < 2; k++)
        for (unsigned nth = 1; nth <= 2; nth++) {
            TEAM t;
            attempt a = {.kind = kinds[k], .function = ""};
            team_begin(&t, &(team_options){.ranks = 2, .plan = plan});
            team_run(&t, try_to_register, &a);
            assert_int_equal(a.statuses[0], BP_OK);
            fake_nccl_fail(kinds[k] == BP_REGISTER_BUFFER ? "ncclCommDeregister" : "ncclCommWindowDeregister", nth, 0,
                           2);
            team_run(&t, end_registration, NULL);
            assert_true(fake_nccl_failed());
            assert_int_equal(registered_now(), 0);
        }
}

/* ---- the driver ---------------------------------------------------------------------------------------------------- */

/* True for functions that release something: their failure leaks in any program. */
static bool is_undoing(const char *function)
{
    return strcmp(function, "cuCtxPopCurrent") == 0 || strcmp(function, "cuCtxSetCurrent") == 0 ||
           strstr(function, "Destroy") != NULL || strstr(function, "Free") != NULL ||
           strstr(function, "Unmap") != NULL || strstr(function, "Release") != NULL ||
           strstr(function, "Unregister") != NULL;
}

static uint64_t uses_of(const char *function, const team_options *options, bp_register_kind kind)
{
    team t;
    attempt a = {.kind = kind, .function = ""};
    team_begin(&t, options);
    uint64_t before = fake_cuda_calls(function);
    team_run(&t, try_to_register, &a);
    uint64_t uses = fake_cuda_calls(function) - before;
    assert_true(assert_alike(&t, &a));
    team_end(&t);
    return uses;
}

static unsigned fail_each_use(const char *function, uint64_t uses, const team_options *options, bp_register_kind kind)
{
    unsigned failures = 0;
    for (uint64_t nth = 1; nth <= uses; nth++) {
        TEAM t;
        attempt a = {.kind = kind, .function = options->over_nccl ? "" : function};
        team_begin(&t, options);
        assert_true(fake_cuda_fail(function, nth, 999));
        team_run(&t, try_to_register, &a);
        fake_cuda_fail_none();
        failures += !assert_alike(&t, &a);
    }
    return failures;
}

static void fail_driver(uint32_t ranks, int over_nccl, unsigned min)
{
    unsigned failures = 0;
    team_options options = {.ranks = ranks, .over_nccl = over_nccl, .plan = plan};
    for (size_t i = 0; fake_cuda_function(i) != NULL; i++) {
        const char *function = fake_cuda_function(i);
        uint64_t uses = is_undoing(function) ? 0 : uses_of(function, &options, BP_REGISTER_SYMMETRIC);
        failures += fail_each_use(function, uses, &options, BP_REGISTER_SYMMETRIC);
    }
    assert_true(failures >= min);
}

TEST(failing_driver_calls)
{
    fail_driver(1, 0, 1);
    fail_driver(2, 0, 1);
}

TEST(failing_driver_calls_without_control)
{
    fail_driver(1, 1, 2);
}

int cuCtxGetCurrent(void **context);
int cuCtxSetCurrent(void *context);

/* NCCL leaves its device current where the library's context could not be pushed. */
static void end_and_put_back(rank *r, void *user)
{
    void *context = NULL;
    cuCtxGetCurrent(&context);
    end_registration(r, user);
    fake_cuda_fail_none();
    cuCtxSetCurrent(context);
}

/* A registration whose memory is unmapped next is ended in spite of the driver. */
static void fail_in_the_end(const char *function, bool for_good)
{
    const bp_register_kind kinds[] = {BP_REGISTER_BUFFER, BP_REGISTER_SYMMETRIC};
    for (int k = 0; k < 2; k++)
        for (uint64_t nth = 1, uses = 1; nth <= uses; nth++) {
            TEAM t;
            attempt a = {.kind = kinds[k], .function = ""};
            team_begin(&t, &(team_options){.ranks = 1, .plan = plan});
            team_run(&t, try_to_register, &a);
            assert_int_equal(a.statuses[0], BP_OK);
            const uint64_t before = fake_cuda_calls(function);
            assert_true((for_good ? fake_cuda_fail_for_good : fake_cuda_fail)(function, nth, 700));
            team_run(&t, end_and_put_back, NULL);
            uses = fake_cuda_calls(function) - before;
            assert_int_equal(registered_now(), 0);
            t.leaks = t.breaks_rules = for_good && nth <= uses;
        }
}

TEST(driver_fails_while_registrations_end)
{
    for (size_t i = 0; fake_cuda_function(i) != NULL; i++)
        if (!is_undoing(fake_cuda_function(i)) &&
            strcmp(fake_cuda_function(i), "cuCtxGetCurrent") != 0) /* of team_run */
            fail_in_the_end(fake_cuda_function(i), false);
}

TEST(driver_fails_for_good_while_registrations_end)
{
    fail_in_the_end("cuCtxPushCurrent", true);
    fail_in_the_end("cuStreamSynchronize", true);
}

/* ---- the control communicator -------------------------------------------------------------------------------------- */

typedef struct broken_exchange {
    unsigned nth;
    attempt a;
} broken_exchange;

static void register_with_broken_exchange(rank *r, void *user)
{
    broken_exchange *b = user;
    if (r->number == 1)
        r->seat.fails_nth = b->nth;
    try_to_register(r, &b->a);
}

/* Without exchanges ranks cannot agree: each returns an error and undoes its own registrations. */
TEST(failing_exchanges)
{
    for (unsigned nth = 1;; nth++) {
        team t;
        broken_exchange b = {.nth = nth, .a = {.kind = BP_REGISTER_SYMMETRIC, .function = ""}};
        team_begin(&t, &(team_options){.ranks = 3, .plan = plan});
        team_run(&t, register_with_broken_exchange, &b);
        bool failed = t.ranks[1].seat.fails_nth == 0;
        assert_int_equal(assert_alike(&t, &b.a), !failed);
        team_end(&t);
        if (!failed)
            break;
        assert_true(nth < 100);
    }
}
