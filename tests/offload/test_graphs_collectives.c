/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs with collectives in memory that is offloaded: the slabs of their windows, and their validity afterwards. */
#include "allocators/pool.h"
#include "faults.h"
#include "graphs.h"
#include "support/driver.h"
#include "support/scripted_ranks.h"

static const char *const TOUCHED[] = {"param", "grad", "state"};

/* Callbacks like those of a registration: windows of one slab, or of none. */
typedef struct windows {
    uint32_t slab; /* UINT32_MAX: of all */
    bool captured;
    int attached;
} windows;

static bp_status attach(void *user, uint32_t slab, void *address, uint64_t bytes)
{
    ((windows *)user)->attached++;
    return BP_OK;
}

static void detach(void *user, uint32_t slab, void *address, uint64_t bytes)
{
    ((windows *)user)->attached--;
}

static int is_captured(void *user, uint32_t slab)
{
    const windows *w = user;
    return w->captured && (w->slab == UINT32_MAX || w->slab == slab);
}

static const bp_slab_callbacks WINDOWS = {.attach = attach, .detach = detach, .is_captured = is_captured};

/* Asserts that the slabs of exactly these groups are pinned. */
static void assert_pins(const store *s, const recorded *r, const char *const *groups, size_t count)
{
    for (uint32_t slab = 0; slab < s->slab_count; slab++) {
        bool expected = false;
        for (size_t i = 0; i < count; i++)
            expected = expected || is_in_group(s, slab, groups[i]);
        assert_int_equal(has_collectives(r->capture, slab), expected);
    }
}

TEST(which_slabs_are_pinned)
{
    STORE s = open_store(new_cuda(), NULL, NULL);
    const char *const gradients[] = {"grad"};
    recorded r = record_graph(&s, "r", BP_CAPTURE_COLLECTIVES_AUTO);
    assert_pins(&s, &r, NULL, 0); /* nothing is registered */
    forget_graph(&r);
    r = record_graph(&s, "r", BP_CAPTURE_COLLECTIVES_ALL);
    assert_pins(&s, &r, TOUCHED, 3);
    forget_graph(&r);
    windows w = {.slab = (uint32_t)slab_of_group(&s, "grad"), .captured = true}, none = {.slab = UINT32_MAX};
    assert_ok(bp_pool_attach(s.k.pool, &WINDOWS, &none)); /* attached, but no window */
    r = record_graph(&s, "r", BP_CAPTURE_COLLECTIVES_AUTO);
    assert_pins(&s, &r, NULL, 0);
    assert_ok(bp_pool_attach(s.k.pool, &WINDOWS, &w)); /* what is registered later is not in the graph */
    assert_pins(&s, &r, NULL, 0);
    forget_graph(&r);
    r = record_graph(&s, "r", BP_CAPTURE_COLLECTIVES_AUTO);
    assert_pins(&s, &r, gradients, 1);
    forget_graph(&r);
    r = record_graph(&s, "r", BP_CAPTURE_COLLECTIVES_NONE);
    assert_pins(&s, &r, NULL, 0);
    forget_graph(&r);
    r = record_graph(&s, "r", BP_CAPTURE_COLLECTIVES_ALL);
    assert_pins(&s, &r, TOUCHED, 3);
    forget_graph(&r);
    none.captured = true; /* a graph has no windows of slabs that it does not touch */
    r = record_graph(&s, "r", BP_CAPTURE_COLLECTIVES_AUTO);
    assert_pins(&s, &r, TOUCHED, 3);
    forget_graph(&r);
    assert_ok(bp_pool_detach(s.k.pool, &WINDOWS, &w));
    assert_ok(bp_pool_detach(s.k.pool, &WINDOWS, &none));
}

/* A graph with collectives refuses the offload and is named. If the caller will recapture, the graph becomes void once the memory is
 * unmapped. */
TEST(offload_with_collectives)
{
    const bp_capture_collectives kinds[] = {BP_CAPTURE_COLLECTIVES_AUTO, BP_CAPTURE_COLLECTIVES_ALL};
    const uint32_t flags[] = {BP_OFFLOAD_KEEP, BP_OFFLOAD_DISCARD};
    for (size_t kind = 0; kind < 2; kind++) {
        for (size_t f = 0; f < 2; f++) {
            STORE s = open_store(new_cuda(), NULL, NULL);
            windows w = {.slab = UINT32_MAX, .captured = true};
            assert_ok(bp_pool_attach(s.k.pool, &WINDOWS, &w));
            recorded r = record_graph(&s, "iteration", kinds[kind]);
            recorded pure = record_graph(&s, "pure", BP_CAPTURE_COLLECTIVES_NONE);
            assert_replays(&s, &r);
            assert_refuses(&s, bp_offload_begin(s.offload, "grad", flags[f]), BP_ERR_CAPTURE, "iteration", "grad");
            assert_replays(&s, &r);
            keep(&s, "optimizer"); /* not in the graph */
            bring_back(&s, "optimizer", BP_RESTORE_LEAVE);
            assert_replays(&s, &r);
            assert_ok(bp_offload_begin(s.offload, "grad", flags[f] | BP_OFFLOAD_RECAPTURE));
            note_begun(&s, "grad", flags[f] == BP_OFFLOAD_KEEP);
            finish_offload(&s, "grad");
            bring_back(&s, "grad", BP_RESTORE_ZERO);
            for (int again = 0; again < 2; again++)
                assert_fails(bp_capture_before_launch(r.capture, s.k.streams[0]), BP_ERR_CAPTURE, "iteration",
                             "capture");
            assert_replays(&s, &pure);
            recorded anew = record_graph(&s, "anew", kinds[kind]);
            assert_replays(&s, &anew);
            assert_fails(bp_capture_before_launch(r.capture, s.k.streams[0]), BP_ERR_CAPTURE, "iteration");
            assert_refuses(&s, bp_offload_begin(s.offload, "grad", flags[f]), BP_ERR_CAPTURE, "anew");
            forget_graph(&anew);
            discard(&s, "grad"); /* void and destroyed graphs refuse nothing */
            bring_back(&s, "grad", BP_RESTORE_ZERO);
            assert_replays(&s, &pure);
            forget_graph(&r);
            forget_graph(&pure);
            assert_ok(bp_pool_detach(s.k.pool, &WINDOWS, &w));
            assert_int_equal(w.attached, 0);
        }
    }
}

/* If memory could not be unmapped, its windows were made anew all the same: the graph is void. */
TEST(stays_with_other_windows)
{
    faults f;
    STORE s = open_store(new_faulty(new_cuda(), &f), NULL, NULL);
    windows w = {.slab = UINT32_MAX, .captured = true};
    assert_ok(bp_pool_attach(s.k.pool, &WINDOWS, &w));
    recorded r = record_graph(&s, "iteration", BP_CAPTURE_COLLECTIVES_AUTO);
    recorded pure = record_graph(&s, "pure", BP_CAPTURE_COLLECTIVES_NONE);
    for (int round = 0; round < 2; round++) {
        const device_operation failing = round == 0 ? OP_EVENT_SYNCHRONIZE : OP_UNMAP;
        assert_ok(bp_offload_begin(s.offload, "grad", BP_OFFLOAD_KEEP | BP_OFFLOAD_RECAPTURE));
        inject(&f, 1, failing, false, BP_ERR_IO);
        assert_fails(bp_offload_finish(s.offload, "grad"), BP_ERR_IO, "injected");
        assert_true(f.met);
        no_faults(&f);
        assert_residency(&s, "grad", BP_RESIDENT);
        assert_bytes(&s);
        assert_replays(&s, &pure);
        if (round == 0) /* the windows were not touched yet */
            assert_replays(&s, &r);
        else
            assert_fails(bp_capture_before_launch(r.capture, s.k.streams[0]), BP_ERR_CAPTURE, "iteration", "capture");
    }
    forget_graph(&r);
    forget_graph(&pure);
    assert_ok(bp_pool_detach(s.k.pool, &WINDOWS, &w));
    assert_int_equal(w.attached, 0);
}

/* ---- registered for good ------------------------------------------------------------------------------------------- */

/* Depends on the communicators' grants: a window that was not granted is not in the graph. */
TEST(registered)
{
    for (int granted = 0; granted < 2; granted++) {
        STORE s = open_store(new_cuda(), NULL, NULL);
        barrier at, joint;
        barrier_init(&at, 1);
        barrier_init(&joint, 1);
        rank end = {.at = &at, .joint = &joint, .best = BP_REGISTER_SYMMETRIC, .refused = granted ? 0 : UINT32_MAX};
        bp_comm *comm = NULL;
        bp_registration *registration = NULL;
        const char *const groups[] = {"param", "grad"};
        assert_ok(bp_comm_create(&RANK_OPS, &end, "dp", &comm));
        bp_registration_entry entries[2];
        for (size_t i = 0; i < 2; i++) {
            assert_ok(bp_registration_entry_init(&entries[i], sizeof entries[i]));
            entries[i].comm = comm;
            entries[i].group = groups[i];
        }
        assert_ok(bp_registration_create(s.k.pool, entries, 2, &registration));
        recorded r = record_graph(&s, "iteration", BP_CAPTURE_COLLECTIVES_AUTO);
        assert_pins(&s, &r, groups, granted ? 2 : 0);
        if (granted) {
            assert_refuses(&s, bp_offload_begin(s.offload, "param", BP_OFFLOAD_KEEP), BP_ERR_CAPTURE, "iteration");
            assert_ok(bp_offload_begin(s.offload, "param", BP_OFFLOAD_KEEP | BP_OFFLOAD_RECAPTURE));
            finish_offload(&s, "param");
        } else
            keep(&s, "param");
        bring_back(&s, "param", BP_RESTORE_LEAVE);
        if (granted)
            assert_fails(bp_capture_before_launch(r.capture, s.k.streams[0]), BP_ERR_CAPTURE, "iteration");
        else
            assert_replays(&s, &r);
        keep(&s, "state"); /* in the graph, but not registered */
        bring_back(&s, "state", BP_RESTORE_LEAVE);
        recorded anew = record_graph(&s, "anew", BP_CAPTURE_COLLECTIVES_AUTO);
        assert_pins(&s, &anew, groups, granted ? 2 : 0);
        assert_replays(&s, &anew);
        forget_graph(&anew);
        forget_graph(&r);
        bp_registration_destroy(&registration);
        assert_int_equal(live_windows(&end), 0);
        assert_int_equal(end.wrong, 0);
        bp_comm_destroy(&comm);
    }
}
