/* SPDX-License-Identifier: Apache-2.0 */
/* Refused calls of offload: messages, and no effect. */
#include <pthread.h>

#include "allocators/offload/offload.h"
#include "faults.h"
#include "support/driver.h"

static const store_options WITH_PERSISTENT = {.persistent_bytes = 20000};

TEST(arguments)
{
    STORE s = open_store(new_device(), NULL, NULL);
    bp_offload_config config;
    bp_offload *second = NULL;
    bp_lease *lease = NULL;
    assert_fails(bp_offload_config_init(&config, 3), BP_ERR_INVALID_ARGUMENT, "3");
    assert_fails(bp_offload_create(NULL, NULL, &second), BP_ERR_INVALID_ARGUMENT, "pool");
    assert_invalid(bp_offload_create(s.k.pool, NULL, NULL));
    assert_invalid(bp_offload_begin(NULL, "param", BP_OFFLOAD_KEEP));
    assert_invalid(bp_offload_finish(NULL, "param"));
    assert_invalid(bp_restore_begin(NULL, "param", BP_RESTORE_ZERO));
    assert_invalid(bp_restore_finish(NULL, "param"));
    assert_invalid(bp_lease_take(NULL, "param", "reader", &lease));
    assert_refuses(&s, bp_lease_take(s.offload, "param", "reader", NULL), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_refuses(&s, bp_lease_take(s.offload, "param", NULL, &lease), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_refuses(&s, bp_offload_begin(s.offload, NULL, BP_OFFLOAD_KEEP), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_null(lease);
    bp_offload_destroy(NULL);
    bp_offload_destroy(&second);
    bp_lease_return(NULL);
    bp_lease_return(&lease);
    const uint32_t flags[] = {
        0, BP_OFFLOAD_KEEP | BP_OFFLOAD_DISCARD, BP_OFFLOAD_RECAPTURE, 8, BP_OFFLOAD_KEEP | 8, UINT32_MAX};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        assert_refuses(&s, bp_offload_begin(s.offload, "param", flags[i]), BP_ERR_INVALID_ARGUMENT, NULL);
    keep(&s, "param");
    assert_refuses(&s, bp_restore_begin(s.offload, "param", (bp_restore)0), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_refuses(&s, bp_restore_begin(s.offload, "param", (bp_restore)3), BP_ERR_INVALID_ARGUMENT, NULL);
    bring_back(&s, "param", BP_RESTORE_LEAVE);
    assert_bytes(&s);
}

TEST(configurations)
{
    STORE s = open_store(new_device(), &(store_options){.bare = true}, NULL);
    bp_offload_config config = offload_config(0, BP_BACKING_AUTO);
    assert_null(config.pinned);
    assert_null(config.progress);
    config.size = 4;
    assert_invalid(bp_offload_create(s.k.pool, &config, &s.offload));
    config = offload_config(0, (bp_backing)7);
    assert_fails(bp_offload_create(s.k.pool, &config, &s.offload), BP_ERR_INVALID_ARGUMENT, "7");
    bp_device *other = new_host();
    config = offload_config(0, BP_BACKING_AUTO);
    assert_ok(bp_pinned_create(other, NULL, &config.pinned));
    assert_fails(bp_offload_create(s.k.pool, &config, &s.offload), BP_ERR_INVALID_ARGUMENT, "another device");
    bp_pinned_destroy(&config.pinned);
    bp_device_destroy(&other);
    assert_null(s.offload);
    assert_ok(bp_offload_create(s.k.pool, NULL, &s.offload));
    bp_offload *second = NULL;
    assert_fails(bp_offload_create(s.k.pool, NULL, &second), BP_ERR_SCHEDULE, bp_pool_get_info(s.k.pool)->name);
    assert_null(second);
    bp_offload_destroy(&s.offload);
    assert_ok(bp_offload_create(s.k.pool, NULL, &s.offload)); /* in sequence both are fine */
}

/* Cost for a pool that offloads nothing: streams. */
TEST(idle)
{
    STORE s = open_store(new_device(), &(store_options){.bare = true}, NULL);
    bp_device_usage before = usage_of(s.k.device);
    assert_ok(bp_offload_create(s.k.pool, NULL, &s.offload));
    assert_int_equal(usage_of(s.k.device).committed_bytes, before.committed_bytes);
    assert_int_equal(usage_of(s.k.device).allocated_bytes, before.allocated_bytes);
    for (size_t i = 0; i < group_count(s.offload); i++)
        assert_int_equal(group_at(s.offload, i).host_bytes, 0);
    bp_offload_trim(s.offload);
    bp_offload_destroy(&s.offload);
    assert_int_equal(usage_of(s.k.device).streams, before.streams);
    assert_int_equal(usage_of(s.k.device).events, before.events);
}

TEST(unsupported)
{
    bp_offload *offload = NULL;
    kit k = start_kit(new_null(), UNITS, TRAINING, BP_POLICY_MAX, 0);
    assert_fails(bp_offload_create(k.pool, NULL, &offload), BP_ERR_UNSUPPORTED, "null");
    end_kit(&k);
    k = begin_kit(new_host(), UNITS, TRAINING, BP_POLICY_MAX, 0);
    bp_pool_config config = pool_config();
    config.guard = BP_GUARD_ON;
    open_pool(&k, &config);
    assert_fails(bp_offload_create(k.pool, NULL, &offload), BP_ERR_UNSUPPORTED, "guard");
    assert_null(offload);
    end_kit(&k);
}

TEST(groups)
{
    static const char *const NAMES[] = {"param", "grad", "state", "main_grad", "optimizer", "persistent"};
    STORE s = open_store(new_device(), &WITH_PERSISTENT, NULL);
    assert_int_equal(group_count(s.offload), 6);
    for (size_t i = 0; i < 6; i++) {
        bp_offload_group group = group_at(s.offload, i);
        assert_string_equal(group.name, NAMES[i]);
        assert_int_equal(group.slabs, 1);
        assert_int_equal(group.bytes, bytes_of_group(&s, NAMES[i]));
        assert_int_equal(group.residency, BP_RESIDENT);
    }
    bp_offload_group group = {.size = 4};
    size_t count = 99;
    assert_fails(bp_offload_groups(s.offload, &group, 1, &count), BP_ERR_INVALID_ARGUMENT, "size of a struct is 4");
    assert_fails(bp_offload_groups(s.offload, NULL, 1, &count), BP_ERR_INVALID_ARGUMENT, "groups");
    assert_fails(bp_offload_groups(s.offload, &group, 1, NULL), BP_ERR_INVALID_ARGUMENT, "count");
    assert_fails(bp_offload_groups(NULL, &group, 1, &count), BP_ERR_INVALID_ARGUMENT, "offload");
    assert_int_equal(count, 99);
    group.size = sizeof group;
    assert_ok(bp_offload_groups(s.offload, &group, 1, &count));
    assert_int_equal(count, 6);
    assert_string_equal(group.name, NAMES[0]);
    assert_refuses(&s, bp_offload_begin(s.offload, "params", BP_OFFLOAD_KEEP), BP_ERR_INVALID_ARGUMENT, "params",
                   "param", "grad", "state", "main_grad", "optimizer", "persistent");
    assert_refuses(&s, bp_offload_finish(s.offload, "params"), BP_ERR_INVALID_ARGUMENT, "params");
    assert_refuses(&s, bp_restore_begin(s.offload, "", BP_RESTORE_ZERO), BP_ERR_INVALID_ARGUMENT, "persistent");
    assert_refuses(&s, bp_restore_finish(s.offload, "params"), BP_ERR_INVALID_ARGUMENT, "params");
    bp_lease *lease = NULL;
    assert_refuses(&s, bp_lease_take(s.offload, "params", "reader", &lease), BP_ERR_INVALID_ARGUMENT, "params");
    assert_null(lease);
    const bp_residency names[] = {BP_RESIDENT,  BP_OFFLOADING,   BP_OFFLOADED,
                                  BP_RESTORING, (bp_residency)0, (bp_residency)5};
    const char *const words[] = {"resident", "offloading", "offloaded", "restoring", "invalid", "invalid"};
    for (size_t i = 0; i < 6; i++)
        assert_string_equal(bp_residency_name(names[i]), words[i]);
}

/* Every call out of a group's order. */
TEST(order)
{
    STORE s = open_store(new_device(), NULL, NULL);
    const char *g = "optimizer";
    for (int round = 0; round < 2; round++) {
        assert_refuses(&s, bp_offload_finish(s.offload, g), BP_ERR_SCHEDULE, g, "resident");
        assert_refuses(&s, bp_restore_begin(s.offload, g, BP_RESTORE_LEAVE), BP_ERR_SCHEDULE, g, "resident");
        assert_refuses(&s, bp_restore_finish(s.offload, g), BP_ERR_SCHEDULE, g, "resident");
        begin_keep(&s, g);
        assert_residency(&s, g, BP_OFFLOADING);
        assert_refuses(&s, bp_offload_begin(s.offload, g, BP_OFFLOAD_KEEP), BP_ERR_SCHEDULE, g, "offloading");
        assert_refuses(&s, bp_restore_begin(s.offload, g, BP_RESTORE_LEAVE), BP_ERR_SCHEDULE, g, "offloading");
        assert_refuses(&s, bp_restore_finish(s.offload, g), BP_ERR_SCHEDULE, g, "offloading");
        finish_offload(&s, g);
        assert_residency(&s, g, BP_OFFLOADED);
        assert_refuses(&s, bp_offload_begin(s.offload, g, BP_OFFLOAD_DISCARD), BP_ERR_SCHEDULE, g, "offloaded");
        assert_refuses(&s, bp_offload_finish(s.offload, g), BP_ERR_SCHEDULE, g, "offloaded");
        assert_refuses(&s, bp_restore_finish(s.offload, g), BP_ERR_SCHEDULE, g, "offloaded");
        begin_restore(&s, g, BP_RESTORE_LEAVE);
        assert_residency(&s, g, BP_RESTORING);
        assert_refuses(&s, bp_offload_begin(s.offload, g, BP_OFFLOAD_KEEP), BP_ERR_SCHEDULE, g, "restoring");
        assert_refuses(&s, bp_offload_finish(s.offload, g), BP_ERR_SCHEDULE, g, "restoring");
        assert_refuses(&s, bp_restore_begin(s.offload, g, BP_RESTORE_LEAVE), BP_ERR_SCHEDULE, g, "restoring");
        finish_restore(&s, g, BP_RESTORE_LEAVE);
        assert_residency(&s, g, BP_RESIDENT);
        assert_bytes(&s);
    }
}

TEST(live)
{
    STORE s = open_store(new_device(), NULL, NULL);
    uint32_t id = of_role(&s, BP_ROLE_PARAM);
    take(&s.k, id, s.k.streams[1]);
    assert_refuses(&s, bp_offload_begin(s.offload, "param", BP_OFFLOAD_KEEP), BP_ERR_SCHEDULE, "param", "u0", "s1");
    assert_refuses(&s, bp_offload_begin(s.offload, "param", BP_OFFLOAD_DISCARD), BP_ERR_SCHEDULE, "param", "u0");
    keep(&s, "grad"); /* live requests of other groups do not matter */
    drop(&s.k, id, s.k.streams[1]);
    keep(&s, "param");
    bring_back(&s, "param", BP_RESTORE_ZERO);
    bring_back(&s, "grad", BP_RESTORE_ZERO);
    const bp_offload_group before = group_of(s.offload, "param");
    assert_int_equal(before.copied_bytes, before.bytes);
    take(&s.k, id, s.k.streams[1]);
    assert_fails(bp_offload_begin(s.offload, "param", BP_OFFLOAD_KEEP), BP_ERR_SCHEDULE, "u0");
    assert_int_equal(group_of(s.offload, "param").copied_bytes, before.bytes); /* of the earlier copies */
    drop(&s.k, id, s.k.streams[1]);
    assert_bytes(&s);
}

TEST(joint)
{
    STORE s = open_store(new_device(), &(store_options){.joint = true}, NULL);
    assert_refuses(&s, bp_offload_begin(s.offload, "joint", BP_OFFLOAD_KEEP), BP_ERR_UNSUPPORTED, "joint");
    discard(&s, "joint");
    keep(&s, "state");
    bring_back(&s, "joint", BP_RESTORE_ZERO);
    assert_true(group_is_zero(&s, "joint"));
    bring_back(&s, "state", BP_RESTORE_LEAVE);
    assert_bytes(&s);
}

/* ---- destruction --------------------------------------------------------------------------------------------------- */

static const trip OPTIMIZER_KEPT = {"optimizer", true, BP_RESTORE_ZERO};

/* With copies in flight where the residency has them. */
static store open_slowly(stage next)
{
    bp_offload_config config = offload_config(4096, next % 2 ? BP_BACKING_PINNED : BP_BACKING_STAGED);
    store s = open_store(new_slow_device(100, 3), NULL, &config);
    advance_to(&s, &OPTIMIZER_KEPT, next);
    return s;
}

/* Resident groups serve requests again, with their bytes; offloaded ones stay offloaded for good. */
TEST(offload_destroyed_first)
{
    for (stage next = BEGIN_OFFLOAD; next < STAGES; next++) {
        STORE s = open_slowly(next);
        const uint32_t id = of_role(&s, BP_ROLE_OPTIMIZER);
        bp_offload_destroy(&s.offload);
        assert_null(s.offload);
        bp_offload_destroy(&s.offload);
        assert_ok(bp_offload_create(s.k.pool, NULL, &s.offload));
        bp_offload_group group = group_of(s.offload, "optimizer");
        if (next == BEGIN_RESTORE) {
            assert_int_equal(group.residency, BP_OFFLOADED);
            assert_int_equal(group.resident_bytes, 0);
            assert_false(try_take(&s.k, id, s.k.streams[0]));
            assert_refused(&s.k, id, s.k.streams[0], "optimizer");
            assert_fails(bp_restore_begin(s.offload, "optimizer", BP_RESTORE_ZERO), BP_ERR_SCHEDULE, "destroyed");
            assert_fails(bp_offload_begin(s.offload, "optimizer", BP_OFFLOAD_KEEP), BP_ERR_SCHEDULE, "offloaded");
        } else {
            assert_int_equal(group.residency, BP_RESIDENT);
            take(&s.k, id, s.k.streams[0]);
        }
        keep(&s, "grad"); /* the other groups are unaffected */
        bring_back(&s, "grad", BP_RESTORE_ZERO);
        assert_bytes(&s);
    }
}

TEST(pool_destroyed_first)
{
    for (stage next = BEGIN_OFFLOAD; next < STAGES; next++) {
        STORE s = open_slowly(next);
        bp_lease *lease = NULL;
        bp_pool_destroy(&s.k.pool);
        assert_int_equal(usage_of(s.k.device).committed_bytes, 0);
        assert_int_equal(usage_of(s.k.device).streams, KIT_STREAMS);
        assert_fails(bp_offload_begin(s.offload, "grad", BP_OFFLOAD_KEEP), BP_ERR_INVALID_ARGUMENT, "destroyed");
        assert_fails(bp_offload_finish(s.offload, "optimizer"), BP_ERR_INVALID_ARGUMENT, "destroyed");
        assert_fails(bp_restore_begin(s.offload, "optimizer", BP_RESTORE_ZERO), BP_ERR_INVALID_ARGUMENT, "destroyed");
        assert_fails(bp_restore_finish(s.offload, "optimizer"), BP_ERR_INVALID_ARGUMENT, "destroyed");
        assert_fails(bp_lease_take(s.offload, "grad", "reader", &lease), BP_ERR_INVALID_ARGUMENT, "pool");
        bp_offload_trim(s.offload);
        assert_int_equal(group_count(s.offload), 5);
        assert_int_equal(group_of(s.offload, "optimizer").host_bytes, 0);
        assert_int_equal(group_of(s.offload, "optimizer").resident_bytes, 0);
    }
}

/* A lease that outlives its offload is an error of the caller, but does not crash. */
TEST(lease_outlives_offload)
{
    for (int pool_first = 0; pool_first < 2; pool_first++) {
        STORE s = open_store(new_device(), NULL, NULL);
        bp_lease *lease = NULL;
        assert_ok(bp_lease_take(s.offload, "param", "checkpoint", &lease));
        if (pool_first)
            bp_pool_destroy(&s.k.pool);
        bp_offload_destroy(&s.offload);
        bp_lease_return(&lease);
        assert_null(lease);
        bp_lease_return(&lease);
    }
}
