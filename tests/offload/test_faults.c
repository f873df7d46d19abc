/* SPDX-License-Identifier: Apache-2.0 */
/* Every device call fails once in turn during offload and restore: either nothing has changed, or the header's exception applies; a
 * second try succeeds with the right bytes. */
#include "faults.h"
#include "support/driver.h"

#define MAX_CALLS 400

/* Three slabs of one group: steps of the first must be undone when the third fails. */
static const store_options SHARDS = {.groups = {[2] = "shards", [3] = "shards", [4] = "shards"}};

static const trip TRIPS[] = {{"shards", true, BP_RESTORE_LEAVE},
                             {"shards", false, BP_RESTORE_ZERO},
                             {"shards", false, BP_RESTORE_LEAVE},
                             {"param", true, BP_RESTORE_ZERO}};
#define TRIP_COUNT (sizeof TRIPS / sizeof *TRIPS)

static void assert_bytes_of_others(store *s, const trip *t)
{
    for (size_t i = 0; i < group_count(s->offload); i++) {
        bp_offload_group other = group_at(s->offload, i);
        if (!is_in_group(s, slab_of_group(s, other.name), t->group))
            assert_group_bytes(s, other.name);
    }
}

/* Asserts the header's guarantees after one failed call that could be undone. */
static void assert_failed_well(store *s, const trip *t, stage which, const faults *f, const store_state *before,
                               uint64_t all)
{
    bp_offload_group now = group_of(s->offload, t->group);
    if (which != FINISH_OFFLOAD) {
        assert_int_equal(now.residency, residency_before(which));
        if (which != FINISH_RESTORE)
            assert_same_state(s, before);
        if (which == BEGIN_OFFLOAD)
            assert_group_bytes(s, t->group);
        return;
    }
    if (f->where == OP_DECOMMIT) {
        assert_int_equal(now.residency, BP_OFFLOADED);
        assert_true(now.unreturned_bytes > 0 && now.unreturned_bytes <= now.bytes);
        assert_int_equal(now.resident_bytes, 0);
        assert_int_equal(now.kept_bytes, t->kept ? now.bytes : 0);
        return;
    }
    assert_int_equal(now.residency, BP_RESIDENT); /* unchanged, including groups that were to be discarded */
    assert_int_equal(now.unreturned_bytes, 0);
    assert_int_equal(now.kept_bytes, 0);
    assert_int_equal(usage_of(s->k.device).committed_bytes, all);
    assert_group_bytes(s, t->group);
}

/* A failure of copies may be reported by the next call, which can then be repeated. */
static void hear_late(store *s, const trip *t, stage which, bool undoing_too)
{
    bp_status status = make_stage(s, t, which + 1);
    if (status == BP_OK)
        return;
    assert_fails(status, BP_ERR_IO, "injected into");
    if (!undoing_too)
        assert_residency(s, t->group, which == BEGIN_OFFLOAD ? BP_RESIDENT : BP_RESTORING);
}

/* Runs one stage with each of its calls failing in turn. Returns the number of calls. */
static unsigned fail_each_call(store *s, faults *f, const trip *t, stage which, bool undoing_too)
{
    uint64_t all = usage_of(s->k.device).committed_bytes;
    unsigned met = 0;
    for (unsigned nth = 1; nth < MAX_CALLS; nth++) {
        advance_to(s, t, which);
        store_state before = state_of(s);
        unsigned reservations = f->reservations;
        if (undoing_too)
            assert_ok(bp_device_synchronize(s->k.device)); /* waiting fails, too */
        inject(f, nth, OP_COUNT, undoing_too, BP_ERR_IO);
        bp_status status = make_stage(s, t, which);
        faults was = *f;
        no_faults(f);
        assert_int_equal(was.reservations, reservations); /* the addresses are never unreserved */
        if (status != BP_OK) {
            assert_true(was.met);
            assert_fails(status, BP_ERR_IO, "injected into");
            if (!undoing_too)
                assert_failed_well(s, t, which, &was, &before, all);
            met++;
        } else if (was.met && (which == BEGIN_OFFLOAD || which == BEGIN_RESTORE))
            hear_late(s, t, which, undoing_too);
        assert_bytes_of_others(s, t);
        recover(s, t);
        assert_int_equal(usage_of(s->k.device).committed_bytes, all);
        if (!was.met)
            return met;
    }
    fail_msg("%s: no end of calls", t->group);
    return met;
}

static void fail_everywhere(bp_backing backing, bool undoing_too)
{
    for (size_t i = 0; i < TRIP_COUNT; i += is_brief() ? 2 : 1) {
        faults f;
        bp_offload_config config = offload_config(16384, backing);
        STORE s = open_store(new_faulty(new_device(), &f), &SHARDS, &config);
        unsigned met[STAGES];
        for (stage which = BEGIN_OFFLOAD; which <= FINISH_RESTORE; which++)
            met[which] = fail_each_call(&s, &f, &TRIPS[i], which, undoing_too);
        assert_true(met[FINISH_OFFLOAD] >= 2); /* unmap, decommit */
        assert_true(met[BEGIN_RESTORE] >= 2);  /* commit, map */
        assert_bytes(&s);
        no_faults(&f);
    }
}

TEST(pinned)
{
    fail_everywhere(BP_BACKING_PINNED, false);
}

TEST(staged)
{
    fail_everywhere(BP_BACKING_STAGED, false);
}

/* If undoing fails too, the guarantees are weak: kept bytes are not lost, and the group can be restored. */
TEST(undoing_fails_too)
{
    const trip kept = {"shards", true, BP_RESTORE_LEAVE};
    for (int staged = 0; staged < 2; staged++) {
        faults f;
        bp_offload_config config = offload_config(16384, staged ? BP_BACKING_STAGED : BP_BACKING_PINNED);
        STORE s = open_store(new_faulty(new_device(), &f), &SHARDS, &config);
        for (stage which = BEGIN_OFFLOAD; which <= FINISH_RESTORE; which++)
            fail_each_call(&s, &f, &kept, which, true);
    }
}

/* Begin calls do not block, even if they fail after some copies were enqueued behind a blocked stream. Those copies have no effect, and
 * the next call succeeds; abandoned copies are waited for before their memory is freed. */
TEST(failures_do_not_wait)
{
    for (int way = 0; way < 6; way++) {
        faults f;
        bp_offload_config config = offload_config(4096, way % 2 ? BP_BACKING_STAGED : BP_BACKING_PINNED);
        STORE s = open_store(new_faulty(new_slow_device(100, 5), &f), NULL, &config);
        gate g = {0};
        block(s.k.streams[0], &g);
        write_slab(&s, slab_of_group(&s, "optimizer"), s.k.streams[0]);
        for (unsigned nth = 1; nth <= 4; nth++) {
            inject(&f, nth, OP_COPY, false, BP_ERR_IO);
            assert_fails(bp_offload_begin(s.offload, "optimizer", BP_OFFLOAD_KEEP), BP_ERR_IO, "injected into copy");
            assert_true(end_faults(&f).met);
            assert_residency(&s, "optimizer", BP_RESIDENT);
            assert_int_equal(group_of(s.offload, "optimizer").host_bytes, 0);
        }
        if (way < 2)
            begin_keep(&s, "optimizer");
        unblock(&g);
        if (way < 2) {
            finish_offload(&s, "optimizer");
            bring_back(&s, "optimizer", BP_RESTORE_ZERO);
            assert_bytes(&s);
        } else if (way < 4)
            bp_offload_trim(s.offload);
        else
            bp_pool_destroy(&s.k.pool);
    }
}

/* A failed begin leaves nothing: no other group gets its host memory, and a later discard is not restored from it. */
TEST(in_vain)
{
    faults f;
    bp_offload_config config = offload_config(16384, BP_BACKING_PINNED);
    STORE s = open_store(new_faulty(new_slow_device(50, 3), &f), &SHARDS, &config);
    inject(&f, 2, OP_COPY, false, BP_ERR_IO);
    assert_fails(bp_offload_begin(s.offload, "shards", BP_OFFLOAD_KEEP), BP_ERR_IO, "injected");
    no_faults(&f);
    keep(&s, "param");
    assert_int_equal(group_of(s.offload, "param").host_bytes, bytes_of_group(&s, "param"));
    bring_back(&s, "param", BP_RESTORE_LEAVE);
    assert_bytes(&s);
    assert_ok(bp_offload_begin(s.offload, "param", BP_OFFLOAD_KEEP));
    inject(&f, 1, OP_UNMAP, false, BP_ERR_IO);
    assert_fails(bp_offload_finish(s.offload, "param"), BP_ERR_IO, "injected");
    no_faults(&f);
    discard(&s, "param");
    assert_int_equal(group_of(s.offload, "param").kept_bytes, 0);
    bring_back(&s, "param", BP_RESTORE_ZERO);
    assert_true(group_is_zero(&s, "param"));
}

TEST(creation)
{
    faults f;
    STORE s = open_store(new_faulty(new_device(), &f), &(store_options){.bare = true}, NULL);
    bp_device_usage before = usage_of(s.k.device);
    unsigned met = 0;
    for (unsigned nth = 1; s.offload == NULL; nth++) {
        inject(&f, nth, OP_COUNT, false, BP_ERR_IO);
        bp_status status = bp_offload_create(s.k.pool, NULL, &s.offload);
        faults was = f;
        no_faults(&f);
        if (status == BP_OK)
            break;
        met++;
        assert_true(was.met);
        assert_fails(status, BP_ERR_IO, "injected into");
        assert_null(s.offload);
        assert_int_equal(usage_of(s.k.device).streams, before.streams);
        assert_int_equal(usage_of(s.k.device).events, before.events);
    }
    assert_true(met >= 1);
}

/* Ends in mid-transition with everything failing: must not be fatal. */
TEST(ends)
{
    for (unsigned stages = 0; stages < STAGES; stages++) {
        for (int pool_first = 0; pool_first < 2; pool_first++) {
            for (unsigned nth = 1; nth < 12; nth += 3) {
                faults f;
                bp_offload_config config = offload_config(16384, BP_BACKING_AUTO);
                store s = open_store(new_faulty(new_device(), &f), &SHARDS, &config);
                for (stage which = BEGIN_OFFLOAD; which < (stage)stages; which++)
                    assert_ok(make_stage(&s, &TRIPS[0], which));
                assert_ok(bp_device_synchronize(s.k.device)); /* waiting fails, too */
                inject(&f, nth, OP_COUNT, true, BP_ERR_IO);
                if (pool_first)
                    bp_pool_destroy(&s.k.pool);
                drop_store(&s);
                no_faults(&f);
                for (int i = 0; i < KIT_STREAMS; i++)
                    bp_stream_destroy(&s.k.streams[i]);
                bp_device_destroy(&s.k.device);
                bp_plan_destroy(&s.k.plan);
                free_scenario(&s.k.w);
                free(s.k.ids);
            }
        }
    }
}

int main(void)
{
    if (has_driver())
        expect_leaks();
    return run_suite();
}
