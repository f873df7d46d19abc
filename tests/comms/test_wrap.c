/* SPDX-License-Identifier: Apache-2.0 */
/* Wrapping NCCL communicators: accepted ones, and the errors of the others. */
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

TEST(wrapped_communicator)
{
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
TEST(copied_table)
{
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

TEST(too_old_nccl)
{
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
TEST(missing_optional_functions)
{
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

TEST(incomplete_table)
{
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

TEST(another_gpu)
{
    fixture f;
    begin(&f, &(team_options){.ranks = 2});
    f.config.device = f.t.ranks[1].device;
    assert_fails(bp_comm_create_nccl(&f.config, &f.comm), BP_ERR_MISMATCH, "0", "1");
    end(&f);
}

TEST(host_device)
{
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

TEST(broken_communicator)
{
    fixture f;
    begin(&f, &(team_options){.ranks = 1});
    fake_nccl_break(f.config.comm, 6);
    assert_refuses(&f, BP_ERR_INVALID_ARGUMENT, "remote process exited");
    fake_nccl_break(f.config.comm, 0);
    end(&f);
}

TEST(null)
{
    fixture f;
    begin(&f, &(team_options){.ranks = 1});
    assert_invalid(bp_comm_create_nccl(NULL, &f.comm));
    assert_invalid(bp_comm_create_nccl(&f.config, NULL));
    assert_invalid(bp_nccl_config_init(NULL, sizeof f.config));
    f.config.comm = NULL;
    assert_refuses(&f, BP_ERR_INVALID_ARGUMENT, "");
    end(&f);
}

TEST(control_of_other_ranks)
{
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

TEST(failing_calls)
{
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

TEST(abort_of_wrapped_communicator)
{
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

TEST(abort_with_failed_device)
{
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
