/* SPDX-License-Identifier: Apache-2.0 */
/* Offload of registered memory: windows end before the memory is unmapped and are made after it is mapped, on all ranks or on none. */
#include "graphs.h"
#include "rank_fixture.h"
#include "support/trace_device.h"

#define RANKS 3u
#define SLABS 6u /* param, grad, the three of the shards, persistent */

static const trip KEPT = {"shards", true, BP_RESTORE_LEAVE};

static bp_registration_window window_of(const bp_registration *r, size_t index)
{
    const bp_registration_window window = bp_registration_get_info(r)->windows[index];
    return window;
}

TEST(windows)
{
    scene *s = new_line(RANKS, NULL);
    register_all(s);
    assert_int_equal(live_in(s), RANKS * SLABS);
    void *addresses[SLABS];
    for (size_t w = 0; w < SLABS; w++)
        addresses[w] = window_of(s->made[1], w).address;
    for (int round = 0; round < 3; round++) {
        int ended = s->ends[0][1].deregistrations;
        size_t logged = s->ends[0][1].logged;
        call_all(s, &KEPT, BEGIN_OFFLOAD);
        assert_all_ok(s);
        assert_int_equal(live_in(s), RANKS * SLABS);
        call_all(s, &KEPT, FINISH_OFFLOAD);
        assert_all_ok(s);
        assert_int_equal(live_in(s), RANKS * (SLABS - 3));
        for (size_t w = 0; w < SLABS; w++) {
            bp_registration_window window = window_of(s->made[1], w);
            bool away = w >= 2 && w <= 4;
            assert_int_equal(window.handle == NULL, away);
            assert_int_equal(window.granted, away ? BP_REGISTER_NONE : BP_REGISTER_SYMMETRIC);
        }
        for (int i = 0; i < 3; i++) /* in reverse order */
            assert_ptr_equal(s->ends[0][1].log[s->ends[0][1].ended[ended + i]].address, addresses[4 - i]);
        call_all(s, &KEPT, BEGIN_RESTORE);
        assert_all_ok(s);
        assert_int_equal(live_in(s), RANKS * SLABS);
        for (int i = 0; i < 3; i++)
            assert_ptr_equal(s->ends[0][1].log[logged + (size_t)i].address, addresses[2 + i]);
        for (size_t w = 0; w < SLABS; w++) {
            bp_registration_window window = window_of(s->made[1], w);
            assert_ptr_equal(window.address, addresses[w]);
            assert_int_equal(window.granted, BP_REGISTER_SYMMETRIC);
            assert_non_null(window.handle);
        }
        call_all(s, &KEPT, FINISH_RESTORE);
        assert_all_ok(s);
    }
    assert_bytes_everywhere(s);
    deregister_all(s);
    close_scene(s);
}

/* The last call of each rank is local. */
TEST(finishing_is_not_collective)
{
    scene *s = new_line(RANKS, NULL);
    register_all(s);
    advance_all(s, &KEPT, FINISH_RESTORE);
    uint64_t met = s->barriers[0][0].met;
    for (uint32_t i = RANKS; i-- > 0;)
        finish_restore(&s->stores[i], "shards", BP_RESTORE_LEAVE);
    assert_int_equal(s->barriers[0][0].met, met);
    assert_bytes_everywhere(s);
    deregister_all(s);
    close_scene(s);
}

/* Without registration a rank offloads independently. */
TEST(not_registered)
{
    scene *s = new_line(2, NULL);
    keep(&s->stores[0], "shards");
    keep(&s->stores[1], "param");
    bring_back(&s->stores[0], "shards", BP_RESTORE_LEAVE);
    bring_back(&s->stores[1], "param", BP_RESTORE_LEAVE);
    assert_int_equal(s->barriers[0][0].met, 0);
    assert_bytes_everywhere(s);
    close_scene(s);
}

/* ---- failure of one rank ------------------------------------------------------------------------------------------- */

TEST(busy)
{
    const trip of_param = {"param", true, BP_RESTORE_LEAVE};
    for (uint32_t who = 0; who < RANKS; who++) {
        scene *s = new_line(RANKS, NULL);
        register_all(s);
        store *busy = &s->stores[who];
        uint32_t id = of_role(busy, BP_ROLE_PARAM);
        char named[64];
        snprintf(named, sizeof named, "rank %u of communicator dp", who);
        take(&busy->k, id, busy->k.streams[1]);
        call_all(s, &of_param, BEGIN_OFFLOAD);
        assert_common(s, BP_ERR_SCHEDULE, named, "u0");
        assert_all(s, "param", BP_RESIDENT);
        drop(&busy->k, id, busy->k.streams[1]);
        bp_lease *lease = NULL;
        assert_ok(bp_lease_take(busy->offload, "param", "checkpoint", &lease));
        call_all(s, &of_param, BEGIN_OFFLOAD);
        assert_common(s, BP_ERR_SCHEDULE, named, "checkpoint");
        assert_all(s, "param", BP_RESIDENT);
        for (uint32_t i = 0; i < RANKS; i++) /* and serves requests */
            work_on(&s->stores[i], of_role(&s->stores[i], BP_ROLE_PARAM), s->stores[i].k.streams[1],
                    s->stores[i].k.streams[2]);
        bp_lease_return(&lease);
        advance_all(s, &of_param, BEGIN_RESTORE);
        advance_all(s, &of_param, BEGIN_OFFLOAD);
        assert_bytes_everywhere(s);
        deregister_all(s);
        close_scene(s);
    }
}

/* When one rank refuses, the copies of the others are complete at the agreement: none touches memory that was returned. */
TEST(nothing_is_left_over)
{
    for (uint32_t who = 0; who < 2; who++) {
        scene *s = new_line(2, NULL);
        register_all(s);
        store *other = &s->stores[1 - who];
        bp_lease *lease = NULL;
        gate g = {0};
        pthread_t opener;
        assert_ok(bp_lease_take(s->stores[who].offload, "shards", "checkpoint", &lease));
        block(other->k.streams[1], &g); /* copies come afterwards */
        assert_int_equal(pthread_create(&opener, NULL, unblock_later, &g), 0);
        call_all(s, &KEPT, BEGIN_OFFLOAD);
        assert_common(s, BP_ERR_SCHEDULE, "checkpoint", "");
        bp_offload_trim(other->offload);
        assert_int_equal(group_of(other->offload, "shards").host_bytes, 0);
        for (size_t i = 2; i <= 4; i++)
            write_slab(other, i, other->k.streams[2]);
        assert_int_equal(pthread_join(opener, NULL), 0);
        assert_bytes_everywhere(s);
        for (int round = 0; round < 40; round++) { /* all of it that was in flight */
            call_all(s, &KEPT, BEGIN_OFFLOAD);
            assert_common(s, BP_ERR_SCHEDULE, "checkpoint", "");
            for (size_t i = 2; i <= 4; i++)
                write_slab(other, i, other->k.streams[2]);
        }
        assert_bytes_everywhere(s);
        bp_lease_return(&lease);
        advance_all(s, &KEPT, BEGIN_RESTORE);
        advance_all(s, &KEPT, BEGIN_OFFLOAD);
        assert_bytes_everywhere(s);
        deregister_all(s);
        close_scene(s);
    }
}

/* A pool is being captured on one rank: each of the collective calls is refused on all ranks, and succeeds afterwards. */
TEST(captured)
{
    for (uint32_t who = 0; who < 2; who++) {
        for (stage which = BEGIN_OFFLOAD; which <= BEGIN_RESTORE; which++) {
            scene *s = new_line(2, NULL);
            register_all(s);
            store *captured = &s->stores[who];
            uint32_t owned[64];
            bp_capture *capture = NULL;
            char named[64];
            snprintf(named, sizeof named, "rank %u of communicator dp", who);
            advance_all(s, &KEPT, which);
            bp_capture_config config = capture_config(captured, owned);
            assert_ok(bp_capture_begin(captured->k.pool, &config, &capture));
            call_all(s, &KEPT, which);
            assert_common(s, BP_ERR_CAPTURE, named, "capture");
            bp_capture_destroy(&capture);
            assert_all(s, "shards", residency_before(which));
            advance_all(s, &KEPT, BEGIN_RESTORE);
            advance_all(s, &KEPT, BEGIN_OFFLOAD);
            assert_bytes_everywhere(s);
            deregister_all(s);
            close_scene(s);
        }
    }
}

TEST(out_of_memory)
{
    for (uint32_t who = 0; who < RANKS; who++) {
        scene *s = new_line(RANKS, NULL);
        register_all(s);
        char named[64];
        snprintf(named, sizeof named, "rank %u of communicator dp", who);
        for (unsigned nth = 1; nth <= 3; nth++) { /* slabs of the group */
            advance_all(s, &KEPT, BEGIN_RESTORE);
            store_state before[RANKS];
            for (uint32_t i = 0; i < RANKS; i++)
                before[i] = state_of(&s->stores[i]);
            inject(&s->watches[who].faults, nth, OP_COMMIT, false, BP_ERR_NO_DEVICE_MEMORY);
            call_all(s, &KEPT, BEGIN_RESTORE);
            assert_true(s->watches[who].faults.met);
            no_faults(&s->watches[who].faults);
            assert_common(s, BP_ERR_NO_DEVICE_MEMORY, named, "injected");
            for (uint32_t i = 0; i < RANKS; i++)
                assert_same_state(&s->stores[i], &before[i]);
            assert_int_equal(live_in(s), RANKS * (SLABS - 3));
            advance_all(s, &KEPT, BEGIN_OFFLOAD);
            assert_int_equal(live_in(s), RANKS * SLABS);
            assert_bytes_everywhere(s);
        }
        deregister_all(s);
        close_scene(s);
    }
}

/* One rank's window is not granted again: an error there, or a weaker kind on all ranks. */
TEST(registration_fails)
{
    for (uint32_t who = 0; who < RANKS; who++) {
        scene *s = new_line(RANKS, NULL);
        register_all(s);
        for (int nth = 1; nth <= 3; nth++) {
            advance_all(s, &KEPT, BEGIN_RESTORE);
            char named[64];
            snprintf(named, sizeof named, "rank %u of communicator dp", who);
            s->ends[0][who].fail_at = s->ends[0][who].registrations + nth;
            call_all(s, &KEPT, BEGIN_RESTORE);
            s->ends[0][who].fail_at = 0;
            assert_common(s, BP_ERR_COMM, named, "out of window slots");
            assert_all(s, "shards", BP_OFFLOADED);
            assert_int_equal(live_in(s), RANKS * (SLABS - 3));
            advance_all(s, &KEPT, BEGIN_OFFLOAD);
            assert_bytes_everywhere(s);
        }
        advance_all(s, &KEPT, BEGIN_RESTORE);
        s->ends[0][who].refused = 1u << BP_REGISTER_SYMMETRIC;
        advance_all(s, &KEPT, BEGIN_OFFLOAD);
        for (uint32_t i = 0; i < RANKS; i++)
            assert_int_equal(window_of(s->made[i], 2).granted, BP_REGISTER_WINDOW);
        assert_bytes_everywhere(s);
        deregister_all(s);
        close_scene(s);
    }
}

/* A failure of copies may be reported by the next call: on all ranks if that call is collective. */
static void hear_late(scene *s, uint32_t who, stage which, const char *named)
{
    assert_all_ok(s);
    if (which == FINISH_OFFLOAD)
        return;
    call_all(s, &KEPT, which + 1);
    if (s->status[who] == BP_OK)
        assert_all_ok(s);
    else if (which == BEGIN_OFFLOAD) {
        assert_common(s, BP_ERR_IO, named, "injected into");
        assert_all(s, "shards", BP_RESIDENT);
    } else
        assert_ok(make_stage(&s->stores[who], &KEPT, FINISH_RESTORE)); /* again, alone */
}

/* Each call of one rank's device fails in turn. No rank hangs, all report it, and all are in the same state. */
static unsigned fail_each_call(scene *s, uint32_t who, stage which)
{
    faults *f = &s->watches[who].faults;
    char named[64];
    unsigned met = 0;
    snprintf(named, sizeof named, s->comms == 1 ? "rank %u of communicator dp" : "of communicator", who);
    for (unsigned nth = 1; nth < 200; nth += is_brief() ? 4 : 1) {
        advance_all(s, &KEPT, which);
        inject(f, nth, OP_COUNT, false, BP_ERR_IO);
        call_all(s, &KEPT, which);
        faults was = *f;
        no_faults(f);
        if (!was.met) {
            assert_all_ok(s);
            return met;
        }
        met++;
        if (s->status[who] == BP_OK)
            hear_late(s, who, which, named);
        else if (was.where == OP_DECOMMIT) {
            for (uint32_t i = 0; i < s->ranks; i++) /* too late to be undone */
                assert_true(i == who || s->status[i] == BP_OK || s->status[i] == BP_ERR_IO);
        } else {
            assert_common(s, BP_ERR_IO, named, "injected into");
            assert_all(s, "shards", which == FINISH_OFFLOAD ? BP_RESIDENT : residency_before(which));
        }
        advance_all(s, &KEPT, BEGIN_OFFLOAD);
        assert_bytes_everywhere(s);
    }
    fail_msg("no end of calls");
    return met;
}

TEST(device_calls)
{
    scene *s = new_line(2, NULL);
    register_all(s);
    for (uint32_t who = 0; who < 2; who++) /* pinned, and staged */
        for (stage which = BEGIN_OFFLOAD; which <= BEGIN_RESTORE; which++)
            assert_true(fail_each_call(s, who, which) > 0);
    deregister_all(s);
    close_scene(s);
}

/* A failure in one line of a grid reaches the whole grid. */
TEST(grid)
{
    scene *s = new_grid("shards", NULL);
    register_all(s);
    size_t live = live_in(s);
    for (uint32_t who = 0; who < 4; who += 3)
        for (stage which = BEGIN_OFFLOAD; which <= BEGIN_RESTORE; which++)
            fail_each_call(s, who, which);
    advance_all(s, &KEPT, BEGIN_OFFLOAD);
    assert_int_equal(live_in(s), live);
    deregister_all(s);
    close_scene(s);
}

/* ---- destruction --------------------------------------------------------------------------------------------------- */

/* Windows of offloaded memory end once, whichever object is destroyed first. */
TEST(ends_while_offloaded)
{
    for (int pool_first = 0; pool_first < 2; pool_first++) {
        scene *s = new_line(2, NULL);
        register_all(s);
        advance_all(s, &KEPT, BEGIN_RESTORE);
        if (pool_first)
            for (uint32_t i = 0; i < 2; i++)
                bp_pool_destroy(&s->stores[i].k.pool);
        deregister_all(s);
        if (!pool_first) {
            advance_all(s, &KEPT, BEGIN_OFFLOAD); /* the memory is restored without windows */
            assert_int_equal(live_in(s), 0);
            assert_bytes_everywhere(s);
            register_all(s);
            assert_int_equal(live_in(s), 2 * SLABS);
            deregister_all(s);
        }
        close_scene(s);
    }
}

/* An aborted communicator ends its windows: the pool continues without them. */
TEST(aborted)
{
    for (stage when = BEGIN_OFFLOAD; when <= FINISH_RESTORE; when++) {
        scene *s = new_line(2, NULL);
        register_all(s);
        advance_all(s, &KEPT, when);
        for (uint32_t i = 0; i < 2; i++)
            assert_ok(bp_comm_abort(s->handles[0][i]));
        advance_all(s, &KEPT, when == BEGIN_OFFLOAD ? BEGIN_RESTORE : BEGIN_OFFLOAD);
        advance_all(s, &KEPT, BEGIN_OFFLOAD);
        assert_bytes_everywhere(s);
        for (uint32_t i = 0; i < 2; i++)
            bp_registration_destroy(&s->made[i]);
        close_scene(s);
    }
}

/* A communicator that timed out still exists: a rank that offloaded alone would be in another state than its peers. */
TEST(timed_out)
{
    scene *s = new_line(2, NULL);
    register_all(s);
    for (uint32_t i = 0; i < 2; i++) {
        s->ends[0][i].exchange_fails_at = s->ends[0][i].exchanges + 1;
        s->ends[0][i].exchange_fails_with = BP_ERR_TIMEOUT;
    }
    const char *words = "agreement on the outcome of a step over communicator dp: the exchange was cut";
    call_all(s, &KEPT, BEGIN_OFFLOAD);
    assert_common(s, BP_ERR_TIMEOUT, words, "");
    assert_all(s, "shards", BP_RESIDENT);
    call_all(s, &KEPT, BEGIN_OFFLOAD);
    assert_common(s, BP_ERR_TIMEOUT, words, "is broken");
    assert_all(s, "shards", BP_RESIDENT);
    for (uint32_t i = 0; i < 2; i++)
        assert_ok(bp_comm_abort(s->handles[0][i]));
    advance_all(s, &KEPT, BEGIN_RESTORE);
    advance_all(s, &KEPT, BEGIN_OFFLOAD);
    assert_bytes_everywhere(s);
    for (uint32_t i = 0; i < 2; i++)
        bp_registration_destroy(&s->made[i]);
    close_scene(s);
}
