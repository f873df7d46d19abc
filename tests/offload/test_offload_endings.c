/* Destroying offloads, pools, leases and devices in any order and in any state. */
#include "pages.h"
#include "support/trace_device.h"

/* From resident to each of the four states, with copies in flight where the state has them. */
static void advance(const pages *p, const char *group, bp_residency residency)
{
    if (residency >= BP_OFFLOADING)
        assert_ok(bp_offload_begin(p->offload, group, BP_OFFLOAD_KEEP));
    if (residency >= BP_OFFLOADED)
        assert_ok(bp_offload_finish(p->offload, group));
    if (residency >= BP_RESTORING)
        assert_ok(bp_restore_begin(p->offload, group, BP_RESTORE_ZERO));
    assert_int_equal(group_in(p->offload, group).residency, residency);
}

static pages open_slowly(bp_backing backing)
{
    bp_offload_config config = config_with(backing, PAGE);
    return open_pages(new_slow_host(100, 3), &config);
}

/* Resident groups serve requests again, with their bytes; offloaded ones stay offloaded for good. */
TEST(offload_destroyed)
{
    for (int r = BP_RESIDENT; r <= BP_RESTORING; r++) {
        PAGES p = open_slowly(r % 2 ? BP_BACKING_PINNED : BP_BACKING_STAGED);
        advance(&p, "param", (bp_residency)r);
        bp_offload_destroy(&p.offload);
        assert_null(p.offload);
        bp_offload_destroy(&p.offload);
        assert_ok(bp_offload_create(p.k.pool, NULL, &p.offload));
        bp_offload_group group = group_in(p.offload, "param");
        if (r == BP_OFFLOADED) {
            assert_int_equal(group.residency, BP_OFFLOADED);
            assert_int_equal(group.resident_bytes, 0);
            assert_false(try_take(&p.k, param(&p.k, 0), p.k.streams[0]));
            assert_fails(bp_restore_begin(p.offload, "param", BP_RESTORE_ZERO), BP_ERR_SCHEDULE, "param", "destroyed");
            assert_fails(bp_offload_begin(p.offload, "param", BP_OFFLOAD_DISCARD), BP_ERR_SCHEDULE, "offloaded");
        } else {
            assert_int_equal(group.residency, BP_RESIDENT);
            assert_pages(&p.slabs[0], 0);
            take(&p.k, param(&p.k, 0), p.k.streams[0]);
            drop(&p.k, param(&p.k, 0), p.k.streams[0]);
        }
        advance(&p, "grad", BP_RESTORING); /* the other group is unaffected */
        assert_ok(bp_restore_finish(p.offload, "grad"));
        assert_pages(&p.slabs[1], 1);
    }
}

static void assert_over(bp_offload *offload)
{
    bp_lease *lease = NULL;
    assert_fails(bp_offload_begin(offload, "param", BP_OFFLOAD_KEEP), BP_ERR_INVALID_ARGUMENT, "pool was destroyed");
    assert_fails(bp_offload_finish(offload, "param"), BP_ERR_INVALID_ARGUMENT, "pool was destroyed");
    assert_fails(bp_restore_begin(offload, "param", BP_RESTORE_ZERO), BP_ERR_INVALID_ARGUMENT, "pool was destroyed");
    assert_fails(bp_restore_finish(offload, "param"), BP_ERR_INVALID_ARGUMENT, "pool was destroyed");
    assert_fails(bp_lease_take(offload, "param", "late", &lease), BP_ERR_INVALID_ARGUMENT, "pool");
    bp_offload_trim(offload);
    size_t count = 0;
    assert_ok(bp_offload_groups(offload, NULL, 0, &count));
    assert_int_equal(count, 2);
    bp_offload_group group = group_in(offload, "param");
    assert_string_equal(group.name, "param");
    assert_int_equal(group.host_bytes, 0);
    assert_int_equal(group.resident_bytes, 0);
}

TEST(pool_destroyed)
{
    for (int r = BP_RESIDENT; r <= BP_RESTORING; r++) {
        PAGES p = open_slowly(r % 2 ? BP_BACKING_PINNED : BP_BACKING_STAGED);
        advance(&p, "param", (bp_residency)r);
        bp_pool_destroy(&p.k.pool);
        assert_int_equal(usage_of(p.k.device).committed_bytes, 0);
        assert_int_equal(usage_of(p.k.device).streams, KIT_STREAMS);
        assert_over(p.offload);
    }
}

/* A lease that outlives its offload is an error of the caller, but does not crash. */
TEST(lease_outlives_offload)
{
    for (int pool_first = 0; pool_first < 2; pool_first++) {
        PAGES p = open_pages(new_host(), NULL);
        bp_lease *first = NULL, *second = NULL, *third = NULL;
        assert_ok(bp_lease_take(p.offload, "param", "checkpoint", &first));
        assert_ok(bp_lease_take(p.offload, "param", "evaluation", &second));
        assert_ok(bp_lease_take(p.offload, "grad", "norms", &third));
        bp_lease_return(&second);
        bp_lease_return(&second);
        assert_fails(bp_offload_begin(p.offload, "param", BP_OFFLOAD_KEEP), BP_ERR_SCHEDULE, "checkpoint", "1 lease");
        if (pool_first)
            bp_pool_destroy(&p.k.pool);
        bp_offload_destroy(&p.offload);
        bp_lease_return(&third);
        bp_lease_return(&first);
    }
}

/* Abandoned copies are waited for before their memory is freed. */
static bp_status fail_copy(void *user, const device_call *call)
{
    unsigned *until = user;
    return *until > 0 && call->operation == OP_COPY && --*until == 0 ? BP_ERR_IO : BP_OK;
}

TEST(abandoned_copies)
{
    for (int ending = 0; ending < 3; ending++) {
        unsigned until = 0;
        bp_device *inner = new_slow_host(300, 5), *device = NULL;
        assert_ok(trace_device_create(inner, fail_copy, &until, &device));
        bp_device_destroy(&inner);
        bp_offload_config config = config_with(ending == 1 ? BP_BACKING_STAGED : BP_BACKING_PINNED, PAGE);
        PAGES p = open_pages(device, &config);
        until = 20;
        assert_fails(bp_offload_begin(p.offload, "param", BP_OFFLOAD_KEEP), BP_ERR_IO, "copy");
        if (ending == 0)
            bp_offload_trim(p.offload);
        else if (ending == 1)
            bp_pool_destroy(&p.k.pool);
    }
}
