/* Wrapping NCCL communicators: accepted ones, and the errors of the others. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "fakes/cuda/fake_cuda.h"
#include "fakes/nccl/abi.h"
#include "plans.h"
#include "team.h"

typedef struct fixture {
    team t;
    bp_nccl_functions functions;
    bp_nccl_config config;
    bp_comm *comm;
} fixture;

static void begin(fixture *f, const team_options *options)
{
    memset(f, 0, sizeof *f);
    team_begin(&f->t, options);
    f->functions.size = sizeof f->functions;
    fake_nccl_table(&f->functions);
    assert_ok(bp_nccl_config_init(&f->config, sizeof f->config));
    f->config.comm = f->t.ranks[0].nccl;
    f->config.device = f->t.ranks[0].device;
    f->config.functions = &f->functions;
}

static void end(fixture *f)
{
    assert_null(f->comm);
    team_end(&f->t);
}

#define assert_refuses(f, status, word) assert_fails(bp_comm_create_nccl(&(f)->config, &(f)->comm), status, word)

/* ---- accepted communicators ---------------------------------------------------------------------------------------- */

static void test_wrapped_communicator(void **state)
{
    (void)state;
    fixture f;
    begin(&f, &(team_options){.ranks = 2});
    char name[] = "tensor parallel";
    f.config.name = name;
    assert_ok(bp_comm_create_nccl(&f.config, &f.comm));
    name[0] = '?';
    assert_string_equal(bp_comm_get_info(f.comm)->name, "tensor parallel");
    assert_int_equal(bp_comm_get_info(f.comm)->ranks, 2);
    assert_int_equal(bp_comm_get_info(f.comm)->rank, 0);
    bp_comm_destroy(&f.comm);
    f.config.name = NULL;
    assert_ok(bp_comm_create_nccl(&f.config, &f.comm));
    assert_string_equal(bp_comm_get_info(f.comm)->name, "nccl");
    bp_comm_destroy(&f.comm);
    assert_int_equal(fake_nccl_calls("ncclCommDestroy"), 0);
    assert_int_equal(fake_nccl_calls("ncclCommAbort"), 0);
    end(&f);
}

/* The table is copied: the caller's may be freed. */
static void test_copied_table(void **state)
{
    (void)state;
    fixture f;
    begin(&f, &(team_options){.ranks = 1});
    assert_ok(bp_comm_create_nccl(&f.config, &f.comm));
    memset(&f.functions, 0, sizeof f.functions);
    char mine = 5, all = 0;
    assert_ok(bp_comm_exchange(f.comm, &mine, 1, &all));
    assert_int_equal(all, 5);
    bp_comm_destroy(&f.comm);
    end(&f);
}

/* ---- versions ------------------------------------------------------------------------------------------------------ */

static void test_too_old_nccl(void **state)
{
    (void)state;
    const char *const versions[] = {"version=21805", "version=2708"};
    for (size_t i = 0; i < 2; i++) {
        fixture f;
        begin(&f, &(team_options){.ranks = 1});
        assert_int_equal(fake_nccl_set(versions[i]), 0);
        fake_nccl_table(&f.functions);
        assert_refuses(&f, BP_ERR_UNSUPPORTED, i == 0 ? "2.18.5" : "2.7.8");
        end(&f);
    }
}

/* A kind is available if the table has both of its functions, whatever the version. */
static void test_missing_optional_functions(void **state)
{
    (void)state;
    fixture f;
    bp_plan *plan = plan_of(UNITS);
    begin(&f, &(team_options){.ranks = 1, .nccl = "version=22809", .plan = plan});
    const bp_register_kind granted[] = {BP_REGISTER_BUFFER, BP_REGISTER_BUFFER, BP_REGISTER_NONE};
    for (int missing = 0; missing < 3; missing++) {
        if (missing == 0)
            f.functions.ncclCommWindowDeregister = NULL;
        else if (missing == 1)
            f.functions.ncclCommWindowRegister = NULL;
        else
            f.functions.ncclCommDeregister = NULL;
        assert_ok(bp_comm_create_nccl(&f.config, &f.comm));
        bp_registration_entry entry = entry_of(&f.t.ranks[0], BP_REGISTER_SYMMETRIC);
        entry.comm = f.comm;
        bp_registration *registration = NULL;
        assert_ok(bp_registration_create(f.t.ranks[0].pool, &entry, 1, &registration));
        assert_int_equal(window_at(registration, 0).granted, granted[missing]);
        bp_registration_destroy(&registration);
        bp_comm_destroy(&f.comm);
    }
    end(&f);
    bp_plan_destroy(&plan);
}

static void test_incomplete_table(void **state)
{
    (void)state;
    fixture f;
    begin(&f, &(team_options){.ranks = 1});
    const bp_nccl_functions whole = f.functions;
#define WITHOUT(name)                                                                                                  \
    do {                                                                                                               \
        f.functions = whole;                                                                                           \
        f.functions.name = NULL;                                                                                       \
        assert_refuses(&f, BP_ERR_INVALID_ARGUMENT, #name);                                                            \
    } while (0)
    WITHOUT(ncclGetVersion);
    WITHOUT(ncclGetErrorString);
    WITHOUT(ncclGetLastError);
    WITHOUT(ncclCommCount);
    WITHOUT(ncclCommUserRank);
    WITHOUT(ncclCommCuDevice);
    WITHOUT(ncclCommGetAsyncError);
    WITHOUT(ncclCommAbort);
    WITHOUT(ncclAllGather);
    WITHOUT(ncclAllReduce);
    WITHOUT(ncclReduceScatter);
    f.functions = whole;
    f.functions.size = 8;
    assert_refuses(&f, BP_ERR_INVALID_ARGUMENT, "size of a struct is 8");
    f.functions.size = 16; /* an older table that ends before required functions */
    assert_refuses(&f, BP_ERR_INVALID_ARGUMENT, "ncclGetErrorString");
    end(&f);
}

/* ---- mismatches ---------------------------------------------------------------------------------------------------- */

static void test_another_gpu(void **state)
{
    (void)state;
    fixture f;
    begin(&f, &(team_options){.ranks = 2});
    f.config.device = f.t.ranks[1].device;
    assert_fails(bp_comm_create_nccl(&f.config, &f.comm), BP_ERR_MISMATCH, "0", "1");
    end(&f);
}

static void test_host_device(void **state)
{
    (void)state;
    fixture f;
    begin(&f, &(team_options){.ranks = 1});
    bp_device *host = new_host();
    f.config.device = host;
    assert_refuses(&f, BP_ERR_INVALID_ARGUMENT, "");
    f.config.device = NULL;
    assert_refuses(&f, BP_ERR_INVALID_ARGUMENT, "");
    bp_device_destroy(&host);
    end(&f);
}

static void test_broken_communicator(void **state)
{
    (void)state;
    fixture f;
    begin(&f, &(team_options){.ranks = 1});
    fake_nccl_break(f.config.comm, 6);
    assert_refuses(&f, BP_ERR_INVALID_ARGUMENT, "remote process exited");
    fake_nccl_break(f.config.comm, 0);
    end(&f);
}

static void test_null(void **state)
{
    (void)state;
    fixture f;
    begin(&f, &(team_options){.ranks = 1});
    assert_fails(bp_comm_create_nccl(NULL, &f.comm), BP_ERR_INVALID_ARGUMENT, "");
    assert_fails(bp_comm_create_nccl(&f.config, NULL), BP_ERR_INVALID_ARGUMENT, "");
    assert_fails(bp_nccl_config_init(NULL, sizeof f.config), BP_ERR_INVALID_ARGUMENT, "");
    f.config.comm = NULL;
    assert_refuses(&f, BP_ERR_INVALID_ARGUMENT, "");
    end(&f);
}

static void test_control_of_other_ranks(void **state)
{
    (void)state;
    fixture f;
    begin(&f, &(team_options){.ranks = 2});
    bp_comm *self = NULL;
    assert_ok(bp_comm_create_self(&self));
    f.config.control = self;
    assert_refuses(&f, BP_ERR_INVALID_ARGUMENT, "");
    bp_comm_destroy(&self);
    /* the same number of ranks in another order */
    f.config.control = f.t.ranks[1].control;
    assert_refuses(&f, BP_ERR_INVALID_ARGUMENT, "");
    /* aborted */
    f.config.control = f.t.ranks[0].control;
    bp_comm_forget(f.t.ranks[0].control);
    assert_refuses(&f, BP_ERR_INVALID_ARGUMENT, "aborted");
    end(&f);
}

/* ---- failures of NCCL ---------------------------------------------------------------------------------------------- */

static void test_failing_calls(void **state)
{
    (void)state;
    fixture f;
    begin(&f, &(team_options){.ranks = 1});
    unsigned failures = 0;
    for (unsigned nth = 1;; nth++) {
        fake_nccl_fail(NULL, nth, -1, 3);
        bp_status status = bp_comm_create_nccl(&f.config, &f.comm);
        if (!fake_nccl_failed()) {
            assert_ok(status);
            break;
        }
        assert_int_not_equal(status, BP_OK);
        assert_null(f.comm);
        assert_true(strlen(bp_error_detail()) > 0);
        failures++;
    }
    assert_true(failures >= 4);
    bp_comm_destroy(&f.comm);
    end(&f);
}

/* ---- destruction --------------------------------------------------------------------------------------------------- */

static void test_abort_of_wrapped_communicator(void **state)
{
    (void)state;
    fixture f;
    begin(&f, &(team_options){.ranks = 1});
    rank *r = &f.t.ranks[0];
    char byte = 1;
    assert_ok(bp_comm_abort(r->comm));
    assert_int_equal(fake_nccl_calls("ncclCommAbort"), 1);
    r->nccl = NULL;
    unsigned calls = fake_nccl_calls(NULL);
    assert_fails(bp_comm_exchange(r->comm, &byte, 1, &byte), BP_ERR_INVALID_ARGUMENT, "was aborted");
    assert_fails(bp_comm_abort(r->comm), BP_ERR_INVALID_ARGUMENT, "was aborted");
    bp_comm_forget(r->comm);
    assert_int_equal(fake_nccl_calls(NULL), calls);
    end(&f);
}

static void test_abort_with_failed_device(void **state)
{
    (void)state;
    fixture f;
    begin(&f, &(team_options){.ranks = 1});
    rank *r = &f.t.ranks[0];
    assert_true(fake_cuda_fail("cuCtxPushCurrent", 1, 999));
    assert_ok(bp_comm_abort(r->comm));
    assert_int_equal(fake_nccl_calls("ncclCommAbort"), 1);
    fake_cuda_fail_none();
    r->nccl = NULL;
    end(&f);
}

static void test_forget(void **state)
{
    (void)state;
    fixture f;
    begin(&f, &(team_options){.ranks = 1});
    rank *r = &f.t.ranks[0];
    assert_int_equal(ncclCommAbort(r->nccl), 0);
    r->nccl = NULL;
    unsigned calls = fake_nccl_calls(NULL);
    char byte = 1;
    bp_comm_forget(r->comm);
    assert_fails(bp_comm_exchange(r->comm, &byte, 1, &byte), BP_ERR_INVALID_ARGUMENT, "was aborted");
    assert_int_equal(fake_nccl_calls(NULL), calls);
    end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_wrapped_communicator),
                                       cmocka_unit_test(test_copied_table),
                                       cmocka_unit_test(test_too_old_nccl),
                                       cmocka_unit_test(test_missing_optional_functions),
                                       cmocka_unit_test(test_incomplete_table),
                                       cmocka_unit_test(test_another_gpu),
                                       cmocka_unit_test(test_host_device),
                                       cmocka_unit_test(test_broken_communicator),
                                       cmocka_unit_test(test_null),
                                       cmocka_unit_test(test_control_of_other_ranks),
                                       cmocka_unit_test(test_failing_calls),
                                       cmocka_unit_test(test_abort_of_wrapped_communicator),
                                       cmocka_unit_test(test_abort_with_failed_device),
                                       cmocka_unit_test(test_forget)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
