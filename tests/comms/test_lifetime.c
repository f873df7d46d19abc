/* SPDX-License-Identifier: Apache-2.0 */
/* Destruction of registrations, pools, communicators and devices in any order, and registrations that are refused. */
#include <bucketpool/capture.h>
#include <bucketpool/cuda.h>

#include "fakes/cuda/fake_cuda.h"
#include "fakes/nccl/abi.h"
#include "plan_fixture.h"
#include "team.h"

static fake_nccl_counts counts_now(void)
{
    fake_nccl_counts counts;
    fake_nccl_count(&counts);
    return counts;
}

static void register_now(rank *r, void *user)
{
    expect_ok(r, register_all(r, *(const bp_register_kind *)user));
}

static void begin_registered(team *t, bp_register_kind kind, uint32_t ranks)
{
    team_begin(t, &(team_options){.ranks = ranks, .plan = plan});
    team_run(t, register_now, &kind);
    assert_int_equal(counts_now().windows + counts_now().buffers, 2 * ranks);
}

static const bp_register_kind KINDS[] = {BP_REGISTER_BUFFER, BP_REGISTER_WINDOW, BP_REGISTER_SYMMETRIC};
#define KIND_COUNT (sizeof KINDS / sizeof *KINDS)

/* ---- orders of destruction ----------------------------------------------------------------------------------------- */

static void end_pool(rank *r, void *user)
{
    bp_pool_destroy(&r->pool);
}

TEST(pool_destroyed_first)
{
    for (size_t k = 0; k < KIND_COUNT; k++) {
        team t;
        begin_registered(&t, KINDS[k], 2);
        team_run(&t, end_pool, NULL);
        assert_int_equal(counts_now().windows + counts_now().buffers, 0);
        assert_nothing_broken();
        /* the registration still lists its windows, as no longer registered */
        for (uint32_t i = 0; i < 2; i++) {
            bp_registration_window w = window_at(t.ranks[i].registration, 0);
            assert_null(w.handle);
        }
        unsigned calls = fake_nccl_calls("ncclCommWindowDeregister") + fake_nccl_calls("ncclCommDeregister");
        team_end(&t);
        assert_int_equal(calls, 4);
    }
}

static void end_registration(rank *r, void *user)
{
    bp_registration_destroy(&r->registration);
}

/* The registration holds a reference, so the caller may drop theirs first. */
static void end_references(rank *r, void *user)
{
    bp_comm_destroy(&r->comm);
    bp_comm_destroy(&r->control);
    expect(r, r->seat.destroys == 0);
}

TEST(references_of_registrations)
{
    for (size_t k = 0; k < KIND_COUNT; k++) {
        TEAM t;
        begin_registered(&t, KINDS[k], 2);
        team_run(&t, end_references, NULL);
        team_run(&t, end_registration, NULL);
        assert_int_equal(t.ranks[0].seat.destroys, 1);
        assert_int_equal(counts_now().windows + counts_now().buffers, 0);
    }
}

/* ---- aborted and forgotten communicators --------------------------------------------------------------------------- */

static void abort_comm(rank *r, void *user)
{
    expect_ok(r, bp_comm_abort(r->comm));
    r->nccl = NULL;
}

TEST(windows_of_aborted_communicators)
{
    for (size_t k = 0; k < KIND_COUNT; k++) {
        TEAM t;
        begin_registered(&t, KINDS[k], 2);
        team_run(&t, abort_comm, NULL);
        team_run(&t, end_registration, NULL);
        assert_int_equal(fake_nccl_calls("ncclCommWindowDeregister") + fake_nccl_calls("ncclCommDeregister"), 0);
    }
}

static void forget_comm(rank *r, void *user)
{
    expect(r, ncclCommAbort(r->nccl) == 0);
    r->nccl = NULL;
    bp_comm_forget(r->comm);
}

TEST(forgotten_communicators)
{
    for (int pool_first = 0; pool_first <= 1; pool_first++)
        for (size_t k = 0; k < KIND_COUNT; k++) {
            TEAM t;
            begin_registered(&t, KINDS[k], 2);
            team_run(&t, forget_comm, NULL);
            unsigned calls = fake_nccl_calls(NULL);
            team_run(&t, pool_first ? end_pool : end_registration, NULL);
            team_run(&t, pool_first ? end_registration : end_pool, NULL);
            assert_int_equal(fake_nccl_calls(NULL), calls);
        }
}

static void register_in_capture(rank *r, void *user)
{
    bp_capture *capture = NULL;
    bp_graph *graph = NULL;
    expect_ok(r, bp_capture_begin(r->pool, NULL, &capture));
    expect_ok(r, bp_graph_begin(r->stream));
    expect_fails(r, register_all(r, BP_REGISTER_SYMMETRIC), BP_ERR_CAPTURE, NULL);
    expect(r, r->registration == NULL);
    expect_ok(r, bp_graph_end(r->stream, &graph));
    expect_ok(r, bp_capture_end(capture));
    bp_graph_destroy(&graph);
    bp_capture_destroy(&capture);
    expect_ok(r, register_all(r, BP_REGISTER_SYMMETRIC));
}

TEST(capture)
{
    run_team(&(team_options){.ranks = 1, .plan = plan}, register_in_capture, NULL);
}

/* ---- the current device -------------------------------------------------------------------------------------------- */

/* The caller's current device stays current, whatever NCCL leaves behind. */
static void with_another_device(rank *r, void *user)
{
    bp_cuda_driver driver;
    void *other = NULL, *now = NULL;
    int device = (int)r->team->options.ranks; /* the spare device */
    fake_cuda_table(&driver);
    expect(r, driver.cuDevicePrimaryCtxRetain(&other, device) == 0);
    expect(r, driver.cuCtxPushCurrent(other) == 0);
    expect_ok(r, register_all(r, *(const bp_register_kind *)user));
    expect(r, driver.cuCtxGetCurrent(&now) == 0 && now == other);
    bp_registration_destroy(&r->registration);
    expect(r, driver.cuCtxGetCurrent(&now) == 0 && now == other);
    expect_ok(r, register_all(r, *(const bp_register_kind *)user));
    bp_pool_destroy(&r->pool);
    expect(r, driver.cuCtxGetCurrent(&now) == 0 && now == other);
    expect(r, driver.cuCtxPopCurrent(&now) == 0 && now == other);
    expect(r, driver.cuCtxGetCurrent(&now) == 0 && now == NULL);
    driver.cuDevicePrimaryCtxRelease(device);
}

TEST(current_device)
{
    for (size_t k = 0; k < KIND_COUNT; k++) {
        bp_register_kind kind = KINDS[k];
        run_team(&(team_options){.ranks = 2, .plan = plan, .spare_devices = 1}, with_another_device, &kind);
    }
}

/* ---- several pools and communicators ------------------------------------------------------------------------------- */

static void register_two_pools(rank *r, void *user)
{
    bp_pool *second = NULL;
    bp_registration *registration = NULL;
    bp_registration_entry entry = entry_of(r, BP_REGISTER_SYMMETRIC);
    expect_ok(r, bp_pool_create(r->device, plan, NULL, &second));
    expect_ok(r, register_all(r, BP_REGISTER_SYMMETRIC));
    expect_ok(r, bp_registration_create(second, &entry, 1, &registration));
    bp_registration_destroy(&r->registration);
    bp_pool_destroy(&second);
    bp_registration_destroy(&registration);
}

TEST(two_pools)
{
    run_team(&(team_options){.ranks = 2, .plan = plan}, register_two_pools, NULL);
}

/* A second communicator of the same ranks in reverse order, as tensor parallel groups are beside data parallel ones. */
typedef struct second_clique {
    unique_id id;
    exchange_room room;
} second_clique;

static void register_with_second(rank *r, void *user)
{
    second_clique *clique = user;
    void *context = NULL, *handle = NULL;
    bp_cuda_driver driver;
    fake_cuda_table(&driver);
    int number = 1 - (int)r->number;
    expect(r, driver.cuDevicePrimaryCtxRetain(&context, (int)r->number) == 0);
    expect(r, driver.cuCtxPushCurrent(context) == 0);
    expect(r, ncclCommInitRank(&handle, 2, clique->id, number) == 0);
    exchange_seat seat = {.room = &clique->room, .rank = (uint32_t)number};
    bp_comm_callbacks callbacks = exchange_callbacks(&seat);
    bp_comm *control = NULL, *comm = NULL;
    expect_ok(r, bp_comm_create_callback(&callbacks, &seat, NULL, &control));
    bp_nccl_functions functions;
    fake_nccl_table(&functions);
    bp_nccl_config config;
    expect_ok(r, bp_nccl_config_init(&config, sizeof config));
    config.comm = handle;
    config.functions = &functions;
    config.device = r->device;
    config.control = control;
    config.name = "second";
    expect_ok(r, bp_comm_create_nccl(&config, &comm));
    bp_registration_entry entries[2] = {entry_of(r, BP_REGISTER_SYMMETRIC), entry_of(r, BP_REGISTER_SYMMETRIC)};
    entries[1].comm = comm;
    expect_ok(r, bp_registration_create(r->pool, entries, 2, &r->registration));
    expect(r, bp_registration_get_info(r->registration)->window_count == 4);
    for (size_t i = 0; i < 4; i++) /* by slab */
        expect(r, window_at(r->registration, i).slab == i / 2 && window_at(r->registration, i).entry == i % 2);
    bp_registration_destroy(&r->registration);
    bp_comm_destroy(&comm);
    bp_comm_destroy(&control);
    expect(r, ncclCommDestroy(handle) == 0);
    driver.cuCtxPopCurrent(&context);
    driver.cuDevicePrimaryCtxRelease((int)r->number);
}

TEST(two_communicators)
{
    TEAM t;
    second_clique clique;
    team_begin(&t, &(team_options){.ranks = 2, .plan = plan});
    exchange_begin(&clique.room, 2);
    assert_int_equal(ncclGetUniqueId(&clique.id), 0);
    team_run(&t, register_with_second, &clique);
    exchange_end(&clique.room);
}

/* All ranks on one GPU, which NCCL 2.30 allows. */
TEST(shared_device)
{
    for (size_t k = 0; k < KIND_COUNT; k++) {
        bp_register_kind kind = KINDS[k];
        run_team(&(team_options){.ranks = 4, .shared_device = 1, .plan = plan}, register_now, &kind);
    }
}
