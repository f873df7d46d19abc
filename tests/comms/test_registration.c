/* SPDX-License-Identifier: Apache-2.0 */
/* Kinds granted by each version of NCCL, and their windows and reports. */
#include "fakes/nccl/fake_nccl.h"
#include "plan_fixture.h"
#include "team.h"

/* ---- kinds by version ---------------------------------------------------------------------------------------------- */

typedef struct grant {
    bp_register_kind asked;
    int32_t exact;
    bp_register_kind granted;
} grant;

static void check_windows(rank *r, const grant *g)
{
    size_t slabs = bp_pool_get_info(r->pool)->slab_count;
    if (!expect(r, bp_registration_get_info(r->registration)->window_count == slabs))
        return;
    for (size_t i = 0; i < slabs; i++) {
        const bp_pool_slab slab = bp_pool_get_info(r->pool)->slabs[i];
        bp_registration_window w = window_at(r->registration, i);
        expect(r, w.slab == i && w.entry == 0);
        expect(r, w.address == slab.address && w.bytes == slab.bytes);
        expect(r, w.asked == g->asked);
        expect(r, w.granted == g->granted);
        expect(r, (w.handle != NULL) == (g->granted != BP_REGISTER_NONE));
        expect(r, w.because != NULL && (w.because[0] == '\0') == (g->granted == g->asked));
    }
}

static void register_and_look(rank *r, void *user)
{
    const grant *g = user;
    bp_registration_entry entry = entry_of(r, g->asked);
    entry.exact = g->exact;
    if (!expect_ok(r, bp_registration_create(r->pool, &entry, 1, &r->registration)))
        return;
    check_windows(r, g);
    char *report = report_of(r->registration);
    expect_words(r, report, bp_register_kind_name(g->granted));
    free(report);
}

static void assert_granted(const char *nccl, bp_register_kind asked, int32_t exact, bp_register_kind granted)
{
    for (uint32_t ranks = 1; ranks <= 2; ranks++) {
        TEAM t;
        grant g = {asked, exact, granted};
        team_begin(&t, &(team_options){.ranks = ranks, .nccl = nccl, .plan = plan});
        team_run(&t, register_and_look, &g);
        fake_nccl_counts counts;
        fake_nccl_count(&counts);
        assert_int_equal(counts.windows, granted >= BP_REGISTER_WINDOW ? 2 * ranks : 0);
        assert_int_equal(counts.buffers, granted == BP_REGISTER_BUFFER ? 2 * ranks : 0);
    }
}

TEST(kinds_of_versions)
{
    const struct {
        const char *version;
        bp_register_kind best;
    } rows[] = {{"version=21903", BP_REGISTER_BUFFER},    {"version=22603", BP_REGISTER_BUFFER},
                {"version=22705", BP_REGISTER_SYMMETRIC}, {"version=22809", BP_REGISTER_SYMMETRIC},
                {"version=22907", BP_REGISTER_SYMMETRIC}, {"version=23007", BP_REGISTER_SYMMETRIC}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int asked = BP_REGISTER_BUFFER; asked <= BP_REGISTER_SYMMETRIC; asked++)
            assert_granted(rows[i].version, (bp_register_kind)asked, 0,
                           asked < (int)rows[i].best ? (bp_register_kind)asked : rows[i].best);
}

TEST(exact_kinds)
{
    assert_granted("version=21903", BP_REGISTER_WINDOW, 1, BP_REGISTER_NONE);
    assert_granted("version=21903", BP_REGISTER_BUFFER, 1, BP_REGISTER_BUFFER);
    assert_granted("version=22907", BP_REGISTER_SYMMETRIC, 1, BP_REGISTER_SYMMETRIC);
    assert_granted("version=22907,symmetric=0", BP_REGISTER_SYMMETRIC, 1, BP_REGISTER_NONE);
}

/* From 2.29 NCCL returns NULL windows for GPUs without peer access; buffers still work. */
TEST(buffers_instead_of_null_windows)
{
    assert_granted("version=22907,symmetric=0", BP_REGISTER_SYMMETRIC, 0, BP_REGISTER_BUFFER);
    assert_granted("version=23007,symmetric=0", BP_REGISTER_WINDOW, 0, BP_REGISTER_BUFFER);
}

TEST(no_kind)
{
    assert_granted("version=23007", BP_REGISTER_NONE, 0, BP_REGISTER_NONE);
    assert_int_equal(fake_nccl_calls("ncclCommWindowRegister"), 0);
}

static void register_symmetric(rank *r, void *user)
{
    expect_ok(r, register_all(r, BP_REGISTER_SYMMETRIC));
}

/* ---- calls of NCCL ------------------------------------------------------------------------------------------------- */

TEST(window_for_each_slab)
{
    TEAM t;
    team_begin(&t, &(team_options){.ranks = 2, .nccl = "version=23007", .plan = plan});
    team_run(&t, register_symmetric, NULL);
    assert_int_equal(fake_nccl_calls("ncclCommWindowRegister"), 4);
    assert_int_equal(fake_nccl_calls("ncclCommRegister"), 0);
    fake_nccl_window window;
    for (unsigned i = 0; i < 4; i++) {
        assert_true(fake_nccl_window_get(i, &window));
        const rank *r = &t.ranks[window.rank];
        bp_registration_window mine = window_at(r->registration, i % 2);
        assert_true(window.address == (uint64_t)(uintptr_t)mine.address);
        assert_true(window.bytes == mine.bytes);
        assert_ptr_equal(window.handle, mine.handle);
        assert_int_equal(window.flags, 1);
    }
}

static void unregister_all(rank *r, void *user)
{
    bp_registration_destroy(&r->registration);
    expect(r, r->registration == NULL);
    bp_registration_destroy(&r->registration);
    bp_registration_destroy(NULL);
}

TEST(deregistration_order)
{
    const bp_register_kind kinds[] = {BP_REGISTER_BUFFER, BP_REGISTER_SYMMETRIC};
    for (size_t k = 0; k < 2; k++) {
        TEAM t;
        bp_register_kind kind = kinds[k];
        team_begin(&t, &(team_options){.ranks = 1, .nccl = "version=23007", .plan = plan});
        rank *r = &t.ranks[0];
        assert_ok(register_all(r, kind));
        void *first = window_at(r->registration, 0).handle, *second = window_at(r->registration, 1).handle;
        team_run(&t, unregister_all, NULL);
        assert_ptr_equal(fake_nccl_ended(0), second);
        assert_ptr_equal(fake_nccl_ended(1), first);
        assert_null(fake_nccl_ended(2));
        /* a second try succeeds */
        assert_ok(register_all(r, kind));
    }
}

/* ---- groups and several communicators ------------------------------------------------------------------------------ */

static void register_group(rank *r, void *user)
{
    bp_registration_entry entry = entry_of(r, BP_REGISTER_SYMMETRIC);
    entry.group = user;
    if (!expect_ok(r, bp_registration_create(r->pool, &entry, 1, &r->registration)))
        return;
    expect(r, bp_registration_get_info(r->registration)->window_count == 1);
    bp_registration_window w = window_at(r->registration, 0);
    const bp_pool_slab slab = bp_pool_get_info(r->pool)->slabs[w.slab];
    expect(r, strcmp(slab.group, user) == 0);
}

TEST(single_group)
{
    char groups[][8] = {"param", "grad"};
    for (int i = 0; i < 2; i++) {
        run_team(&(team_options){.ranks = 2, .plan = plan}, register_group, groups[i]);
    }
}

/* Parameters with one communicator, gradients with that one and another of the same ranks. */
static void register_with_two(rank *r, void *user)
{
    bp_comm *self = NULL;
    expect_ok(r, bp_comm_create_self(&self));
    bp_registration_entry entries[3] = {entry_of(r, BP_REGISTER_SYMMETRIC), entry_of(r, BP_REGISTER_BUFFER),
                                        entry_of(r, BP_REGISTER_WINDOW)};
    entries[0].group = "param";
    entries[1].group = "grad";
    entries[2].group = NULL;
    entries[2].comm = self;
    if (expect_ok(r, bp_registration_create(r->pool, entries, 3, &r->registration))) {
        expect(r, bp_registration_get_info(r->registration)->window_count == 4);
        unsigned of[3] = {0, 0, 0};
        for (size_t i = 0; i < 4; i++) {
            bp_registration_window w = window_at(r->registration, i);
            if (!expect(r, w.entry < 3))
                continue;
            of[w.entry]++;
            bp_register_kind granted[] = {BP_REGISTER_SYMMETRIC, BP_REGISTER_BUFFER, BP_REGISTER_NONE};
            expect(r, w.granted == granted[w.entry]);
        }
        expect(r, of[0] == 1 && of[1] == 1 && of[2] == 2);
    }
    bp_comm_destroy(&self);
}

TEST(several_communicators)
{
    TEAM t;
    team_begin(&t, &(team_options){.ranks = 2, .nccl = "version=22809", .plan = plan});
    team_run(&t, register_with_two, NULL);
    fake_nccl_counts counts;
    fake_nccl_count(&counts);
    assert_int_equal(counts.windows, 2);
    assert_int_equal(counts.buffers, 2);
}

/* ---- communicators without registration ---------------------------------------------------------------------------- */

TEST(communicators_without_registration)
{
    bp_device *host = new_host();
    bp_pool *pool = NULL;
    bp_comm *self = NULL;
    bp_registration *registration = NULL;
    bp_registration_entry entry;
    assert_ok(bp_pool_create(host, plan, NULL, &pool));
    assert_ok(bp_comm_create_self(&self));
    assert_ok(bp_registration_entry_init(&entry, sizeof entry));
    assert_int_equal(entry.kind, BP_REGISTER_SYMMETRIC);
    entry.comm = self;
    assert_ok(bp_registration_create(pool, &entry, 1, &registration));
    assert_int_equal(bp_registration_get_info(registration)->window_count, 2);
    for (size_t i = 0; i < 2; i++) {
        bp_registration_window w = window_at(registration, i);
        assert_int_equal(w.granted, BP_REGISTER_NONE);
        assert_null(w.handle);
        assert_true(w.because[0] != '\0');
    }
    bp_comm_destroy(&self);
    bp_registration_destroy(&registration);
    bp_pool_destroy(&pool);
    bp_device_destroy(&host);
}

TEST(bad_input)
{
    TEAM t;
    team_begin(&t, &(team_options){.ranks = 1, .plan = plan});
    rank *r = &t.ranks[0];
    bp_registration *registration = NULL;
    bp_registration_entry entry = entry_of(r, BP_REGISTER_SYMMETRIC), bad = entry;
    assert_invalid(bp_registration_create(NULL, &entry, 1, &registration));
    assert_invalid(bp_registration_create(r->pool, NULL, 1, &registration));
    assert_invalid(bp_registration_create(r->pool, &entry, 1, NULL));
    bad.comm = NULL;
    assert_invalid(bp_registration_create(r->pool, &bad, 1, &registration));
    bad = entry;
    bad.kind = (bp_register_kind)9;
    assert_invalid(bp_registration_create(r->pool, &bad, 1, &registration));
    bad = entry;
    bad.size = 8;
    assert_invalid(bp_registration_create(r->pool, &bad, 1, &registration));
    assert_null(registration);
    assert_invalid(bp_registration_entry_init(NULL, sizeof entry));
    fake_nccl_counts counts;
    fake_nccl_count(&counts);
    assert_int_equal(counts.window_calls + counts.buffer_calls, 0);
}
