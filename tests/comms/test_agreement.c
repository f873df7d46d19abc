/* SPDX-License-Identifier: Apache-2.0 */
/* Agreement between ranks before, during and after a registration, without deadlocks. */
#include "fakes/nccl/fake_nccl.h"
#include "plans.h"
#include "team.h"

#define RANKS 3

static bp_plan *plan, *other_plan;

static int set_up(void **state)
{
    plan = plan_of(UNITS);
    other_plan = plan_of("300,100 300,100 300,100 300,100 700 300,116");
    return 0;
}

static int tear_down(void **state)
{
    bp_plan_destroy(&plan);
    bp_plan_destroy(&other_plan);
    return 0;
}

static void assert_nothing_registered(void)
{
    fake_nccl_counts counts;
    fake_nccl_count(&counts);
    assert_int_equal(counts.windows, 0);
    assert_int_equal(counts.buffers, 0);
}

static bp_status note_bytes(void *user, const void *mine, uint64_t bytes, void *all)
{
    uint64_t *first = user;
    *first = *first == 0 ? bytes : *first;
    memcpy(all, mine, bytes);
    return BP_OK;
}

/* A rank of another version that sends another size would leave the others waiting, or overflow their buffers. */
TEST(size_of_comparison)
{
    TEAM t;
    uint64_t first = 0;
    bp_comm_callbacks callbacks = {.size = sizeof callbacks, .ranks = 1, .exchange = note_bytes};
    bp_comm *comm;
    team_begin(&t, &(team_options){.ranks = 1, .plan = plan});
    assert_ok(bp_comm_create_callback(&callbacks, &first, NULL, &comm));
    bp_registration_entry entry = entry_of(&t.ranks[0], BP_REGISTER_SYMMETRIC);
    entry.comm = comm;
    assert_ok(bp_registration_create(t.ranks[0].pool, &entry, 1, &t.ranks[0].registration));
    assert_int_equal(first, 768);
    bp_registration_destroy(&t.ranks[0].registration);
    bp_comm_destroy(&comm);
}

/* ---- refusals before registration ---------------------------------------------------------------------------------- */

static void expect_mismatch(rank *r, void *user)
{
    expect_fails(r, register_all(r, BP_REGISTER_SYMMETRIC), BP_ERR_MISMATCH, user);
    expect(r, r->registration == NULL);
}

TEST(different_plans)
{
    for (uint32_t odd = 0; odd < RANKS; odd++) {
        TEAM t;
        /* without a majority rank 0 decides: the first rank that differs from it is named */
        char word[16];
        snprintf(word, sizeof word, "rank %u", odd == 0 ? 1 : odd);
        team_begin(
            &t, &(team_options){.ranks = RANKS, .over_nccl = 1, .plan = plan, .odd_plan = other_plan, .odd_rank = odd});
        team_run(&t, expect_mismatch, word);
        fake_nccl_counts counts;
        fake_nccl_count(&counts);
        assert_int_equal(counts.window_calls + counts.buffer_calls, 0);
    }
}

/* The last rank's pool is on another GPU than its communicator, or on the host. */
static void register_elsewhere(rank *r, void *user)
{
    bp_device *device = user;
    bp_pool *pool = NULL, *own = r->pool;
    bool odd = r->number + 1 == RANKS;
    if (odd && !expect_ok(r, bp_pool_create(device, plan, NULL, &pool)))
        return;
    r->pool = odd ? pool : own;
    for (int kind = BP_REGISTER_BUFFER; kind <= BP_REGISTER_SYMMETRIC; kind++)
        expect_fails(r, register_all(r, (bp_register_kind)kind), BP_ERR_MISMATCH, "rank 2 of communicator nccl: ");
    expect_words(r, bp_error_detail(), "is on GPU 2");
    r->pool = own;
    bp_pool_destroy(&pool);
}

TEST(pool_on_another_gpu)
{
    for (int on_host = 0; on_host <= 1; on_host++) {
        TEAM t;
        bp_device *host;
        team_begin(&t, &(team_options){.ranks = RANKS, .plan = plan});
        assert_ok(bp_device_create_host(NULL, &host));
        team_run(&t, register_elsewhere, on_host ? host : t.ranks[0].device);
        assert_nothing_registered();
        bp_device_destroy(&host);
    }
}

/* ---- granted kinds ------------------------------------------------------------------------------------------------- */

typedef struct outcome {
    bp_register_kind granted[RANKS][2];
    char because[RANKS][2][200];
} outcome;

static void register_and_note(rank *r, void *user)
{
    outcome *o = user;
    if (!expect_ok(r, register_all(r, BP_REGISTER_SYMMETRIC)))
        return;
    for (size_t i = 0; i < 2; i++) {
        bp_registration_window w = window_at(r->registration, i);
        o->granted[r->number][i] = w.granted;
        snprintf(o->because[r->number][i], sizeof o->because[0][0], "%s", w.because);
        expect(r, (w.handle != NULL) == (w.granted != BP_REGISTER_NONE));
    }
}

/* All ranks have the same kinds and reasons, and NCCL has exactly the granted ones registered. */
static void assert_agreed(const outcome *o, const bp_register_kind expected[2])
{
    fake_nccl_counts counts;
    fake_nccl_count(&counts);
    unsigned windows = 0, buffers = 0;
    for (int slab = 0; slab < 2; slab++) {
        for (int i = 0; i < RANKS; i++) {
            assert_int_equal(o->granted[i][slab], expected[slab]);
            assert_string_equal(o->because[i][slab], o->because[0][slab]);
        }
        windows += expected[slab] >= BP_REGISTER_WINDOW ? RANKS : 0;
        buffers += expected[slab] == BP_REGISTER_BUFFER ? RANKS : 0;
        assert_true((o->because[0][slab][0] == '\0') == (expected[slab] == BP_REGISTER_SYMMETRIC));
    }
    assert_int_equal(counts.windows, windows);
    assert_int_equal(counts.buffers, buffers);
}

static void null_windows(const char *nccl, int rank_number, int nth, const bp_register_kind expected[2])
{
    for (int over_nccl = 0; over_nccl <= 1; over_nccl++) {
        TEAM t;
        outcome o;
        memset(&o, 0, sizeof o);
        team_begin(&t, &(team_options){.ranks = RANKS, .nccl = nccl, .over_nccl = over_nccl, .plan = plan});
        fake_nccl_refuse_window(rank_number, nth);
        team_run(&t, register_and_note, &o);
        fake_nccl_refuse_window(-1, -1);
        assert_agreed(&o, expected);
    }
}

TEST(null_window_on_one_rank)
{
    const bp_register_kind none[2] = {BP_REGISTER_BUFFER, BP_REGISTER_BUFFER};
    for (int i = 0; i < RANKS; i++)
        null_windows("version=22907", i, 0, none);
    null_windows("version=22705", 1, 0, none);
}

TEST(null_window_of_one_slab)
{
    /* the first try for the first slab on rank 2 is refused: that slab gets a lesser kind, the other slab the
     * symmetric one */
    TEAM t;
    outcome o;
    memset(&o, 0, sizeof o);
    team_begin(&t, &(team_options){.ranks = RANKS, .plan = plan});
    fake_nccl_refuse_window(2, 1);
    team_run(&t, register_and_note, &o);
    for (int i = 0; i < RANKS; i++) {
        assert_true(o.granted[i][0] < BP_REGISTER_SYMMETRIC);
        assert_int_equal(o.granted[i][0], o.granted[0][0]);
        assert_int_equal(o.granted[i][1], BP_REGISTER_SYMMETRIC);
    }
}

TEST(null_windows_on_all_ranks)
{
    const bp_register_kind buffers[2] = {BP_REGISTER_BUFFER, BP_REGISTER_BUFFER};
    null_windows("version=23007", -1, 0, buffers);
    null_windows("version=22809", -1, 0, buffers);
}

/* ---- failed registrations ------------------------------------------------------------------------------------------ */

SUITE_WITHIN(set_up, tear_down)
